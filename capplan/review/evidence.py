"""The end of a review: memory, roofline, latency by operator, what was rejected, what was assumed, where it comes from."""

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from capplan.assumption import Assumption
from capplan.engine.profile import EngineProfile
from capplan.fleet.plan import PHASES, Group
from capplan.fleet.review import PlanDetail, kernel_assumptions
from capplan.hardware.device import Device
from capplan.report.answer import Table
from capplan.report.answers.fleet_outlook import over_time_parts, over_time_tables
from capplan.report.answers.fleet_words import rejected_text, relaxation_text
from capplan.report.answers.pools import pools_tables
from capplan.report.answers.replica import waterfall
from capplan.report.charts.of_answers import (
    compute_dtype_of,
    load_chart,
    memory_chart,
    ridge_flop_per_byte,
    roof_flop_per_s,
    roofline_chart,
)
from capplan.report.charts.records import COLOURS, Bar, Bars
from capplan.review.decision import shown
from capplan.review.findings import Findings, Section
from capplan.review.plans import devices_of, price_rows
from capplan.workload.request_class import RequestClass, responses_of_classes


def _titled(title: str, detail: PlanDetail) -> str:
    """Return a title, with the name of the group where the plan has several."""
    pool = " pool" if detail.group in PHASES else ""
    return f"{title}: {detail.group}{pool}" if detail.group else title


def _group_of(given: Findings, detail: PlanDetail) -> Group:
    """Return the replicas that a detail is one of."""
    assert given.chosen is not None
    return given.chosen.groups[given.details.index(detail)]


def memory_section(given: Findings, detail: PlanDetail) -> Section:
    """Return what takes the memory of one device, down to the cache, and what the cache holds."""
    group = _group_of(given, detail)
    steps = waterfall(detail.memory)
    plan = detail.memory.plan
    held = [
        {
            "cache_tokens_per_replica": group.kv_cache_tokens,
            "longest_sequence_tokens": detail.spec.max_model_len,
            "max_concurrency": float(np.asarray(plan.max_concurrency)),
            "concurrency_per_replica": group.concurrency_per_replica,
        }
    ]
    titles = {
        "longest_sequence_tokens": "maximum sequence length",
        "max_concurrency": "concurrent sequences of maximum length, per engine",
    }
    name = detail.spec.device.name
    if detail.spec.network.bidirectional:
        del held[0]["cache_tokens_per_replica"]
    return Section(
        _titled("Memory of one GPU", detail),
        text=(
            f"Each line is subtracted from the memory of one {name}; a replica has {detail.spec.devices}.",
        ),
        tables=(
            Table(steps),
            Table(held, upright=True, titles=titles, title="Capacity of the cache"),
        ),
        pictures=(memory_chart(name, steps),),
    )


def roofline_section(detail: PlanDetail) -> Section:
    """Return where the operators stand below the roof of the device, with the arithmetic intensity of each."""
    device, compute = detail.spec.device, compute_dtype_of(detail.spec)
    rows = [
        {
            "phase": row.phase,
            "operator": row.operator,
            "flop_per_byte": row.flop / row.bytes,
            "flop_per_s": row.flop / row.seconds,
            "of_roof_fraction": row.flop
            / row.seconds
            / roof_flop_per_s(device, compute, row.flop / row.bytes),
            "bound": row.bound,
        }
        for row in detail.breakdown
        if row.flop > 0.0 and row.bytes > 0.0
    ]
    ridge = ridge_flop_per_byte(device, compute)
    return Section(
        _titled("Roofline", detail),
        text=(
            f"{device.name} computes {shown('flop_per_s', device.peak_flop_per_s[compute])} in {compute} and reads "
            f"{shown('bytes_per_s', device.memory_bytes_per_s)}: below {ridge:.3g} FLOP per byte its memory is the roof, above its arithmetic. "
            f"Operators on one device, for one prompt{' and for one decode step at the peak' if detail.spec.network.generates else ''}.",
        ),
        tables=(
            Table(
                rows,
                titles={
                    "flop_per_s": "rate",
                },
            ),
        ),
        pictures=(roofline_chart(device, compute, detail.breakdown),),
    )


def latency_section(given: Findings, detail: PlanDetail) -> Section:
    """Return the operators of one prompt and one step, with their share."""
    totals: dict[str, float] = {}
    for row in detail.breakdown:
        totals[row.phase] = totals.get(row.phase, 0.0) + row.seconds
    rows = [
        {
            "phase": row.phase,
            "operator": row.operator,
            "seconds": row.seconds,
            "share_fraction": row.seconds / totals[row.phase],
            "flop": row.flop,
            "flop_per_s": row.flop / row.seconds,
            "bytes": row.bytes,
            "bytes_per_s": row.bytes / row.seconds,
            "bound": row.bound,
        }
        for row in detail.breakdown
    ]
    load, running = detail.load, _group_of(given, detail).concurrency_per_replica
    step = f", and one decode step of the {running:.3g} requests that a replica serves at once at peak"
    text = (
        f"One prompt of {load.input_tokens:,} tokens ({shown('fraction', load.prefix_hit_fraction)} of them cached) without other load"
        f"{step if detail.spec.network.generates else ''}, on one device. "
        "Time x rate = amount of work or traffic. Kernels are timed one at a time; the engine overlaps some of them and adds "
        "host time. Queueing comes on top; the predictions above include it.",
    )
    tables = tuple(
        Table(
            [{k: v for k, v in row.items() if k != "phase"} for row in rows if row["phase"] == phase],
            title=_phase_title(phase, totals[phase], detail.phase_s.get(phase)),
            titles={"flop": "work", "bytes": "traffic", "flop_per_s": "rate", "bytes_per_s": "traffic rate"},
        )
        for phase in totals
    )
    return Section(
        _titled("Where the time goes", detail),
        text=text,
        tables=tables,
        pictures=_phase_pictures(detail, totals),
    )


def _phase_title(phase: str, kernels_s: float, engine_s: float | None) -> str:
    what = "Prefill of one prompt" if phase == "prefill" else "One decode step"
    text = f"{what}: {shown('s', kernels_s)} kernel by kernel"
    return text if engine_s is None else f"{text}, {shown('s', engine_s)} as the engine runs them"


def _phase_pictures(detail: PlanDetail, totals: dict[str, float]) -> tuple[Bars, ...]:
    """Return shares of both phases on one scale; small ones are merged."""
    most = len(COLOURS) - 1
    weight = {
        name: max(r.seconds / totals[r.phase] for r in detail.breakdown if r.operator == name)
        for name in dict.fromkeys(row.operator for row in detail.breakdown)
    }
    named = set(sorted(weight, key=lambda name: -weight[name])[:most])
    bars = []
    for phase, total in totals.items():
        shares: dict[str, float] = {}
        for row in detail.breakdown:
            if row.phase == phase:
                name = row.operator if row.operator in named else "other"
                shares[name] = shares.get(name, 0.0) + row.seconds / total
        bars.append(Bar(f"{phase} ({total * 1e3:.3g} ms)", tuple(shares.items())))
    return (Bars("Share of the time by operator", "fraction", tuple(bars)),)


def rejections_section(given: Findings) -> Section:
    """Return what was rejected, by device and reason, and the smallest change that would let a plan through."""
    rows = [
        {
            "hardware": item.hardware,
            "reason": item.reason,
            "count": item.count,
            "share_fraction": item.count / max(1, given.answer.evaluated),
        }
        for item in given.answer.rejected
    ]
    text = (f"{rejected_text(given.answer)}.",)
    lines = tuple(relaxation_text(item) for item in given.answer.relaxations) if given.chosen else ()
    alike = Table(rows, titles={"count": "candidates", "share_fraction": "of all"})
    apart = pools_tables(given.answer)[2:]
    if not given.answer.evaluated and apart:
        text = ("Identical replicas are not allowed by the scenario.",)
    tables = tuple(table for table in (alike, *apart) if table.rows)
    return Section("Rejected", text=text, tables=tables, lines=lines)


def assumptions_section(given: Findings, assumptions: Sequence[Assumption]) -> Section:
    """Return every default that nobody confirmed, with what replaces it."""
    rows = [{"assumed": item.what, "replace": item.replace} for item in assumptions]
    warnings = tuple(f"warning: {text}" for text in given.asked.warnings)
    return Section(
        "Assumptions",
        tables=(Table(rows, titles={"replace": "replace with"}),) if rows else (),
        lines=warnings,
    )


def sources_section(given: Findings) -> Section:
    """Return where prices, datasheets, model, engine and efficiencies come from, with their dates."""
    model = given.model_source
    rows = [
        {"what": "model", "title": model.title, "date": None, "where": model.url or model.note},
        _engine_row(given.asked.question.profile),
    ]
    devices = devices_of(given)
    for device in given.asked.question.devices:
        if device.name in devices or not devices:
            rows += [
                {
                    "what": device.name,
                    "title": source.title,
                    "date": source.checked,
                    "where": source.url or source.note,
                }
                for source in device.sources
            ]
            rows += _efficiency_rows(given, device)
    prices = price_rows(given)
    titles = {"low_usd_per_gpu_hour": "lowest", "high_usd_per_gpu_hour": "highest"}
    priced = (Table(prices, title="Prices of a GPU-hour", titles=titles),) if prices else ()
    return Section("Sources", tables=(*priced, Table(rows, title="Models, devices, engines")))


def _engine_row(profile: EngineProfile) -> dict[str, Any]:
    version = profile.asked_version or profile.version
    what = "scheduling, defaults and memory rules of this version"
    if version != profile.version:
        what += f"; {profile.version} is the nearest version known"
    return {"what": "engine", "title": f"{profile.engine} {version}", "date": None, "where": what}


def _efficiency_rows(given: Findings, device: Device) -> list[dict[str, Any]]:
    """Return where the kernel efficiencies of a device come from, a row for each label that its plans have."""
    question = given.asked.question
    efficiency = question.efficiencies[device.name]
    groups = [
        group for plan in given.plans for group in plan.groups if group.layout.device.name == device.name
    ]
    assumed = [item.what for group in groups for item in kernel_assumptions(group, question)]
    borrowed = dict.fromkeys(assumed or ([efficiency.borrowed.what] if efficiency.borrowed else []))
    where = (
        given.asked.scenario.calibration
        or "efficiencies that ship with capplan, fitted to published kernel timings"
    )
    said = [efficiency.note, efficiency.merged.what if efficiency.merged else ""]
    notes = {"measured": "; ".join(filter(None, said)), "assumed": "; ".join(borrowed)}
    return [
        {
            "what": device.name,
            "title": f"kernel efficiencies, {label}, fitted on {efficiency.device}",
            "date": None,
            "where": f"{where}{'; ' + notes[label] if notes[label] else ''}",
        }
        for label in (dict.fromkeys(group.label for group in groups) or {efficiency.label: None})
    ]


def command_section(given: Findings) -> Section:
    """Return the command that wrote the page, and the one that estimates one replica of the chosen plan."""
    commands = [given.command]
    commands += [_estimate_command(given, detail) for detail in given.details]
    others = ""
    if given.chosen is not None:
        others = ", the second estimates one replica of the chosen plan"
    if given.chosen is not None and given.chosen.has_pools:
        others = ", the others estimate one replica of either pool, as if it served whole requests"
    elif len(given.details) > 1:
        others = ", the others estimate one replica of each group, with the requests that it gets"
    return Section(
        "Commands",
        text=(f"The first command writes this page{others}:",),
        code=tuple(commands),
    )


def _estimate_command(given: Findings, detail: PlanDetail) -> str:
    spec, scenario = detail.spec, given.asked.scenario
    words = ["capplan", "estimate", scenario.model, "--hardware", spec.device.name]
    degrees = (("-tp", spec.sharding.tensor), ("-pp", spec.sharding.pipeline), ("-ep", spec.sharding.expert))
    for flag, value in (*degrees, ("-dp", spec.sharding.data)):
        words += [flag, f"{float(value):g}"] if value > 1 else []
    dtype = _group_of(given, detail).weight_dtype
    words += ["--weight-dtype", dtype] if dtype != "auto" else []
    words += ["--kv-dtype", spec.kv_format, "--engine", spec.profile.engine]
    words += ["--engine-version", spec.profile.asked_version or spec.profile.version]
    words += ["--max-model-len", str(spec.max_model_len)]
    if scenario.calibration:
        words += ["--calibration", str(scenario.calibration)]
    load = detail.load
    words += ["--input-tokens", str(load.input_tokens), "--output-tokens", str(load.output_tokens)]
    if load.prefix_hit_fraction:
        words += ["--prefix-hit-fraction", f"{load.prefix_hit_fraction:.3g}"]
    return shlex.join([*words, "--request-rate", f"{load.request_rate:.4g} req/s"])


def workload_section(given: Findings) -> Section:
    """Return the traffic: every row multiplies across to tokens per second."""
    scenario = given.asked.scenario
    responses_s = responses_of_classes(
        given.chosen.responses_s if given.chosen else 0.0, len(scenario.classes)
    )
    rows = [_class_row(item, s) for item, s in zip(scenario.classes, responses_s, strict=True)]
    text = [scenario.file.description] if scenario.file.description else []
    text.append(
        f"Model {scenario.model}, served by {given.asked.question.profile.engine} "
        f"{given.asked.question.profile.asked_version or given.asked.question.profile.version}, longest context "
        f"{given.asked.question.max_model_len:,} tokens. Tokens per second are those of the peak."
    )
    if any(item.users for item in scenario.classes):
        text.append(
            "Users wait for a response before they send the next request, so their rate follows from the response time."
        )
    titles = {
        "request_rate": "peak rate",
    }
    return Section("Workload", text=tuple(text), tables=(Table(rows, titles=titles),))


def _class_row(item: RequestClass, response_s: float) -> dict[str, Any]:
    rate = item.request_rate_at(response_s)
    inputs, outputs = item.input_tokens.mean_tokens, item.output_tokens.mean_tokens
    return {
        "class": item.name,
        "users": item.users,
        "think_time_s": item.think_time_s,
        "mean_request_rate": rate * item.mean_rate_fraction,
        "request_rate": rate,
        "input_tokens.mean": inputs,
        "input_tokens_per_s": rate * inputs,
        "output_tokens.mean": outputs,
        "output_tokens_per_s": rate * outputs,
        "input_tokens.p95": float(item.input_tokens.quantile(0.95)),
        "output_tokens.p95": float(item.output_tokens.quantile(0.95)),
        "cached_tokens": item.cached_input_tokens,
        "arrival_cv": item.arrival_cv,
    }


def over_time_section(given: Findings) -> Section:
    """Return the load curve, how the plan follows it with and without autoscaling, and N + k replicas, where the load has a curve."""
    over_time = over_time_parts(given.outlook)
    if not over_time or given.chosen is None:
        return Section("Load over time")
    return Section(
        "Load over time",
        text=(
            "Static pays for the busiest minute at all hours. An autoscaler that follows the observed load is late by the start-up of a "
            "replica, and requests that come meanwhile are over capacity; a perfect forecast is the bound of what scaling can save.",
        ),
        tables=tuple(table for pool, part in over_time.items() for table in over_time_tables(part, pool)),
        pictures=tuple(load_chart(part, pool) for pool, part in over_time.items()),
    )
