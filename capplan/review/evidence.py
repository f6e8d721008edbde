"""The evidence of a review: plans and costs, memory, latency by operator, rejections, assumptions and sources."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

import numpy as np

from capplan.assumption import Assumption
from capplan.engine.profile import EngineProfile
from capplan.fleet.answer import DEAR
from capplan.fleet.group import PHASES, Group
from capplan.fleet.plan import Plan, Transfer, paid_by_the_gpu
from capplan.fleet.review import PlanDetail, kernel_assumptions, sizing_of
from capplan.hardware.device import Device
from capplan.money.ledger import total_usd
from capplan.money.price import HOURS_PER_MONTH, usd_per_month
from capplan.questions.plans.plan_row import plan_row
from capplan.replica.plans import tightest_card
from capplan.report.answer import Table, columns, row_of
from capplan.report.answers.fleet_money import term_tables, total_table
from capplan.report.answers.fleet_outlook import over_time_tables
from capplan.report.answers.fleet_words import (
    ALL_HOURS,
    above,
    layout_text,
    month_titles,
    pools_tables,
    rejected_text,
    relaxation_text,
    uneconomical_text,
)
from capplan.report.answers.order import order_tables
from capplan.report.answers.replica import waterfall
from capplan.report.charts.of_answers import (
    COLOURS,
    Bar,
    Bars,
    compute_dtype_of,
    load_chart,
    memory_chart,
    ridge_flop_per_byte,
    roof_flop_per_s,
    roofline_chart,
)
from capplan.report.replica_command import replica_words
from capplan.review.findings import Findings, Section, kernels_label, machines_usd, shown
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
    name, cards = tightest_card(detail.spec)[0].device.name, detail.spec.device.cards
    of_what = f"a replica has {detail.spec.devices}"
    if cards:
        of_what = (
            f"of the {len(cards)} cards of {detail.spec.device.name}, its cache holds the fewest sequences"
        )
    if detail.spec.network.bidirectional:
        del held[0]["cache_tokens_per_replica"]
    return Section(
        _titled("Memory of one GPU", detail),
        text=(f"Each line is subtracted from the memory of one {name}; {of_what}.",),
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
            **row_of(row, "phase operator"),
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
        tables=(Table(rows, titles={"flop_per_s": "rate"}),),
        pictures=(roofline_chart(device, compute, detail.breakdown),),
    )


def latency_section(given: Findings, detail: PlanDetail) -> Section:
    """Return the operators of one prompt and one step, with their share."""
    totals: dict[str, float] = {}
    for row in detail.breakdown:
        totals[row.phase] = totals.get(row.phase, 0.0) + row.seconds
    rows = [
        {
            **row_of(row, "phase operator seconds"),
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
        f"{step if detail.spec.network.generates else ''}, on {'the cards one after the other' if detail.spec.device.cards else 'one device'}. "
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
            **row_of(item, "hardware reason count"),
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
    return Section("Rejected", text=text, tables=(alike, *apart), lines=lines)


def assumptions_section(given: Findings, assumptions: Sequence[Assumption]) -> Section:
    """Return every default that nobody confirmed, with what replaces it."""
    rows = [{"assumed": item.what, "replace": item.replace} for item in assumptions]
    warnings = tuple(f"warning: {text}" for text in given.asked.warnings)
    return Section(
        "Assumptions",
        tables=(Table(rows, titles={"replace": "replace with"}),),
        lines=warnings,
    )


def sources_section(given: Findings) -> Section:
    """Return where prices, datasheets, model, engine and efficiencies come from, with their dates."""
    model = given.model_source
    rows = [
        _source_row("model", model.title, model.url or model.note),
        _engine_row(given.asked.question.profile),
    ]
    devices = devices_of(given)
    for device in given.asked.question.devices:
        if device.name in devices or not devices:
            rows += [
                _source_row(device.name, each.title, each.url or each.note, each.checked)
                for each in device.sources
            ]
            rows += _efficiency_rows(given, device)
    prices = [*price_rows(given)]
    titles = {"low_usd_per_gpu_hour": "lowest", "high_usd_per_gpu_hour": "highest"}
    priced = Table(prices, title="Prices of a GPU-hour", titles=titles)
    return Section("Sources", tables=(priced, Table(rows, title="Models, devices, engines")))


def _source_row(what: str, title: str, where: str | None, date: str | None = None) -> dict[str, Any]:
    return {"what": what, "title": title, "date": date, "where": where}


def _engine_row(profile: EngineProfile) -> dict[str, Any]:
    version = profile.asked_version or profile.version
    what = "scheduling, defaults and memory rules of this version"
    if version != profile.version:
        what += f"; {profile.version} is the nearest version known"
    return _source_row("engine", f"{profile.engine} {version}", what)


def _efficiency_rows(given: Findings, device: Device) -> list[dict[str, Any]]:
    """Return where the kernel efficiencies of a device come from, a row for each label that its plans have."""
    question = given.asked.question
    efficiency = question.efficiencies[device.name]
    groups = [
        group for plan in given.plans for group in plan.groups if group.layout.device.name == device.name
    ]
    assumed = [item.what for group in groups for item in kernel_assumptions(group, question)]
    borrowed = dict.fromkeys(assumed or ([efficiency.borrowed.what] if efficiency.borrowed else []))
    shipped = "efficiencies that ship with capplan, fitted to published kernel timings"
    where = given.asked.scenario.calibration or shipped
    said = [efficiency.note, efficiency.merged.what if efficiency.merged else ""]
    notes = {"measured": "; ".join(filter(None, said)), "assumed": "; ".join(borrowed)}
    return [
        _source_row(
            device.name,
            f"kernel efficiencies, {label}, fitted on {efficiency.device}",
            "; ".join(filter(None, (where, notes[label]))),
        )
        for label in (dict.fromkeys(group.label for group in groups) or {efficiency.label: None})
    ]


def command_section(given: Findings) -> Section:
    """Return the command that wrote the page, and the one that estimates one replica of the chosen plan."""
    others = "" if given.chosen is None else ", the second estimates one replica of the chosen plan"
    if given.chosen is not None and given.chosen.has_pools:
        others = ", the others estimate one replica of either pool, as if it served whole requests"
    elif len(given.details) > 1:
        others = ", the others estimate one replica of each group, with the requests that it gets"
    commands = (given.command, *(_estimate_command(given, detail) for detail in given.details))
    return Section("Commands", text=(f"The first command writes this page{others}:",), code=commands)


def _estimate_command(given: Findings, detail: PlanDetail) -> str:
    scenario = given.asked.scenario
    replica = replica_words(scenario, detail.spec, _group_of(given, detail).weight_dtype)
    load, words = detail.load, ["capplan", "estimate", scenario.model, *replica]
    words += ["--input-tokens", str(load.input_tokens), "--output-tokens", str(load.output_tokens)]
    if load.prefix_hit_fraction:
        words += ["--prefix-hit-fraction", f"{load.prefix_hit_fraction:.3g}"]
    return shlex.join([*words, "--request-rate", f"{load.request_rate:.4g} req/s"])


def workload_section(given: Findings) -> Section:
    """Return the traffic: every row multiplies across to tokens per second."""
    scenario, plan, question = given.asked.scenario, given.chosen, given.asked.question
    responses_s = responses_of_classes(plan.responses_s if plan else 0.0, len(scenario.classes))
    hits = plan.class_prefix_hit_fractions if plan else ()
    known = hits or [item.cached_input_tokens / item.input_tokens.mean_tokens for item in scenario.classes]
    rows = list(map(_class_row, scenario.classes, responses_s, known))
    version = question.profile.asked_version or question.profile.version
    served = (
        f"Model {scenario.model}, served by {question.profile.engine} {version}, longest context "
        f"{question.max_model_len:,} tokens. Tokens per second are those of the peak."
    )
    users = "Users wait for a response before they send the next request, so their rate follows from the response time."
    text = (scenario.file.description, served, users if any(item.users for item in scenario.classes) else "")
    return Section(
        "Workload",
        text=tuple(filter(None, text)),
        tables=(Table(rows, titles={"request_rate": "peak rate"}),),
    )


def _class_row(item: RequestClass, response_s: float, hit_fraction: float) -> dict[str, Any]:
    rate = item.request_rate_at(response_s)
    inputs, outputs = item.input_tokens.mean_tokens, item.output_tokens.mean_tokens
    return {
        "class": item.name,
        **row_of(item, "users think_time_s"),
        "mean_request_rate": rate * item.mean_rate_fraction,
        "request_rate": rate,
        "input_tokens.mean": inputs,
        "input_tokens_per_s": rate * inputs,
        "output_tokens.mean": outputs,
        "output_tokens_per_s": rate * outputs,
        "input_tokens.p95": float(item.input_tokens.quantile(0.95)),
        "output_tokens.p95": float(item.output_tokens.quantile(0.95)),
        "cached_tokens": hit_fraction * inputs,
        "prefix_hit_fraction": hit_fraction,
        "arrival_cv": item.arrival_cv,
    }


def over_time_section(given: Findings) -> Section:
    """Return the load curve, how the plan follows it with and without autoscaling, and N + k replicas, where the load has a curve."""
    over_time = given.outlook.over_time
    if not over_time:
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


WHY = "Why not the others"
SIZING = "Number of replicas"
CHARTED = 8
"""Plans in charts, the chosen one first; the table has all."""


def by_the_job(plans: Sequence[Plan]) -> bool:
    """Return whether plans are paid for until a job is done, not by the month."""
    return any(plan.is_of_job for plan in plans)


def plan_rows(given: Findings) -> Iterator[dict[str, Any]]:
    """Yield every plan with all its columns, its rank, and its cost relative to the chosen one: the CSV."""
    for rank, (plan, margins) in enumerate(zip(given.plans, given.margins, strict=True), start=1):
        yield {
            "rank": rank,
            "plan": layout_text(plan),
            **plan_row(plan),
            "label": kernels_label(plan),
            **_difference(plan, given.chosen),
            "margin_fraction": {m["target"]: m["margin_fraction"] for m in margins},
            "met_probability": {m["target"]: m["met_probability"] for m in margins},
        }


def _difference(plan: Plan, chosen: Plan | None) -> dict[str, float | None]:
    usd, own = plan.usd_per_month, None if chosen is None else chosen.usd_per_month
    return {
        "more_usd_per_month": above(usd, own),
        "price_ratio": usd / own if own and usd is not None else None,
    }


def plans_section(given: Findings) -> Section:
    """Return the chosen plan and the runners-up: price difference, margin to every target."""
    rows = [*plan_rows(given)]
    cost = "usd_per_job" if by_the_job(given.plans) else "usd_per_month more_usd_per_month"
    margins = " ".join(f"margin_fraction.{m['target']}" for m in given.margins[0])
    chance = "slo_met_probability" if given.margins[0] else ""
    shown_names = columns(
        f"rank hardware gpus plan kv_dtype {cost} price_ratio {margins} {chance} bottleneck label"
    )
    titles: dict[str, str] = {
        "usd_per_job": "the job",
        "kv_dtype": "KV cache",
        "more_usd_per_month": "more than chosen",
        "usd_per_month": "cost",
        **month_titles(given.answer),
        "label": "kernels",
        **{f"margin_fraction.{m['target']}": f"margin {m['target']}" for m in given.margins[0]},
    }
    choices = given.answer.choices
    text = (
        *([] if choices is None else [f"Recommended because {choices.why}."]),
        "The first line is the chosen plan. A margin is the share of the limit that the prediction leaves. Kernels are measured "
        "where their efficiencies were fitted on that device, assumed (*) where some were borrowed from another device or dtype.",
    )
    return Section(
        WHY,
        text=text,
        tables=(Table(rows, shown=shown_names, titles=titles, assumed=_unmeasured(rows, shown_names)),),
        pictures=_plan_pictures(given),
    )


def _unmeasured(rows: list[dict[str, Any]], names: tuple[str, ...]) -> frozenset[tuple[int, str]]:
    """Return the cells that rest on the kernels of another device."""
    predicted = [name for name in names if name.startswith(("margin", "slo_met_probability", "label"))]
    return frozenset(
        (i, name) for i, row in enumerate(rows) if row["label"] == "assumed" for name in predicted
    )


def _plan_pictures(given: Findings) -> tuple[Bars, ...]:
    plans = given.plans[:CHARTED]
    pictures: list[Bars] = []
    if by_the_job(plans):
        jobs = [(plan, plan.money.usd_per_job) for plan in plans if plan.money is not None]
        bars = tuple(Bar(_short(plan), (("cost", usd),)) for plan, usd in jobs if usd is not None)
        pictures.append(Bars("Cost of the job", "usd_per_job", bars))
    elif all(plan.usd_per_month is not None for plan in plans):
        bars = tuple(Bar(_short(plan), (("cost", float(plan.usd_per_month or 0.0)),)) for plan in plans)
        hours = f" {ALL_HOURS}" if given.answer.by_commitments else ""
        pictures.append(Bars(f"Cost per month{hours}", "usd_per_month", bars))
    for at, margin in enumerate(given.margins[0]):
        rows = [margins[at] for margins in given.margins[:CHARTED]]
        bars = tuple(
            Bar(_short(plan), ((margin["target"], row["predicted_s"]),), row["low_s"], row["high_s"])
            for plan, row in zip(plans, rows, strict=True)
        )
        title = f"{margin['target']}: prediction, 80% interval, and limit"
        pictures.append(Bars(title, "s", bars, margin["limit_s"], "limit"))
    return tuple(pictures)


def _short(plan: Plan) -> str:
    layout = "apart" if plan.has_pools else layout_text(plan).partition(",")[0]
    return f"{plan.gpus} x {plan.hardware} {layout}"


def sizing_section(given: Findings, plan: Plan) -> Section:
    """Return the steps from the peak rate to the number of devices, one operation per line."""
    limits = given.asked.scenario.fleet
    if plan.transfer is not None:
        return _pools_section(given, plan, plan.transfer)
    parts = zip(plan.group_names, plan.groups, strict=True)
    confidence = given.asked.scenario.slo.confidence
    lines = [_sizing(sizing_of(group, limits.headroom_fraction), name, confidence) for name, group in parts]
    return Section(SIZING, text=tuple(text for text, _ in lines), tables=tuple(table for _, table in lines))


def _sizing(row: Mapping[str, float], name: str, confidence: float) -> tuple[str, Table]:
    """Return how the replicas of a group follow from the peak of its requests, in words and line by line."""
    titles = {
        "peak_request_rate": f"peak rate, {name or 'all traffic'}",
        "sure_limit_request_rate": f"maximum rate that one replica reaches in {confidence:.0%} of cases",
        "sure_replicas": f"replicas for the peak, {confidence:.0%} required confidence",
        "busy_replicas": "larger of the two, rounded up",
        "devices_per_replica": "GPUs per replica",
        "devices": "GPUs in total",
        "utilisation_fraction": "load of one replica at peak, spares idle",
    }
    peak, limit, sure_limit = (
        shown("request_rate", row[f"{name}request_rate"]) for name in ("peak_", "limit_", "sure_limit_")
    )
    text = (
        f"{f'{name}: ' if name else ''}{peak} / ({limit} x {shown('fraction', 1.0 - row['headroom_fraction'])}) = "
        f"{row['predicted_replicas']:.2f} replicas as predicted, with headroom for unforeseen traffic; {peak} / {sure_limit} = "
        f"{row['sure_replicas']:.2f} for {confidence:.0%} required confidence, as replicas may be slower than predicted. "
        f"So ({row['busy_replicas']} + {row['spare_replicas']} spare) x {row['devices_per_replica']} = {row['devices']} devices."
    )
    return text, Table([row], upright=True, titles=titles, title=name)


def _pools_section(given: Findings, plan: Plan, transfer: Transfer) -> Section:
    """Return the replicas of both pools, and what their pair was simulated with."""
    limits, confidence = given.asked.scenario.fleet, given.asked.scenario.slo.confidence
    rows = [
        {
            "pool": pool.role,
            "hardware": pool.layout.device.name,
            "plan": pool.layout.in_words(),
            "request_rate": pool.request_rate_per_replica,
            **row_of(pool, "busy_fraction busy_replicas spare_replicas"),
            "devices_per_replica": pool.layout.devices,
            "devices": pool.gpus,
        }
        for pool in plan.groups
    ]
    titles = {
        "request_rate": "peak rate of a replica",
        "busy_replicas": "replicas",
        "devices_per_replica": "devices each",
    }
    sent = pools_tables(given.answer)[1]
    return Section(
        SIZING,
        text=(
            f"Both pools and {transfer.at_peak.link} between them are simulated together: with {1.0 / (1.0 - limits.headroom_fraction) - 1.0:.0%} more traffic than "
            f"the peak as predicted, and at the peak with replicas as slow as in the slowest {1.0 - confidence:.0%} of the cases that are planned for. "
            "These are the cheapest numbers of replicas that meet all targets in both; the spares come on top.",
        ),
        tables=(Table(rows, titles=titles), sent),
    )


def price_rows(given: Findings) -> Iterator[dict[str, Any]]:
    """Yield the price taken for every device of the plans, with provider, date and range."""
    quotes = {group.hardware: group.quote for plan in reversed(given.plans) for group in plan.groups}
    for name in devices_of(given):
        price = quotes[name]
        if price is None:
            yield {"hardware": name, "usd_per_gpu_hour": None, "provider": "no offer known"}
            continue
        yield {
            "hardware": name,
            "usd_per_gpu_hour": price.usd_per_hour,
            "low_usd_per_gpu_hour": price.low_usd_per_hour,
            "high_usd_per_gpu_hour": price.high_usd_per_hour,
            "provider": " and ".join(offer.provider for offer in price.records) or "the scenario",
            **row_of(price, "basis commitment"),
            "date": max((offer.date for offer in price.records if offer.date), default=None),
            "source": ", ".join(offer.source for offer in price.records) or given.asked.scenario.path,
        }


def devices_of(given: Findings) -> tuple[str, ...]:
    """Return the devices of all plans, those of the chosen one first."""
    return tuple(dict.fromkeys(group.layout.device.name for plan in given.plans for group in plan.groups))


UNECONOMICAL = "Devices without a plan in the table"


def uneconomical_section(given: Findings) -> Section:
    """Return the devices that were asked for and have no plan in the table, each with the reason."""
    if not given.answer.uneconomical:
        return Section(UNECONOMICAL)
    return Section(
        UNECONOMICAL,
        text=(
            f"The table leaves out devices whose cheapest plan costs more than {DEAR:g} times the cheapest of all, and devices that have no plan.",
        ),
        lines=tuple(uneconomical_text(row, given.answer) for row in given.answer.uneconomical),
    )


_TITLES = {
    "usd_per_job": "the job",
    "usd_per_hour": "cost",
    "usd_per_month": "cost",
    "load": "tokens at",
}
_JOB_WAY = (
    "x hours of the job = cost of the job; / thousand requests = price per thousand requests; cost of the job / million "
    "tokens = price per million tokens. Nothing is paid for once the job is done."
)
_MONTH_WAY = (
    "x hours = cost per month; / million tokens = price per million tokens. Devices are paid for at all hours, "
    "so the price to expect is that at the mean load; the price at the peak would need peak traffic all month."
)
MEAN, PEAK = "the mean load", "the peak, all month"


def cost_section(given: Findings) -> Section:
    """Return the cost of the devices, and of a million tokens or of the job; every row multiplies across."""
    powered = given.asked.scenario.prices.electricity is not None
    plans = given.plans[:CHARTED]
    of_job = by_the_job(plans)
    devices = [
        row
        for plan in plans
        for group, name in zip(plan.groups, plan.group_names, strict=True)
        for row in _devices_rows(plan, group, name, powered=powered, of_job=of_job)
    ]
    tokens = [row for plan in plans for row in (_job_rows(plan) if of_job else _token_rows(plan))]
    idle = "" if paid_by_the_gpu(plans) else "GPUs are those of the machines, idle ones included; "
    way = f"{idle}GPUs x price{' + electricity' if powered else ''} = cost per hour; {_JOB_WAY if of_job else _MONTH_WAY}"
    if powered:
        way += _electricity_text(given)
    titles = {**_TITLES, **month_titles(given.answer)}
    return Section(
        "Cost",
        text=(way,),
        tables=(
            Table(devices, title="Devices", titles=titles),
            Table(tokens, title="Requests and tokens" if of_job else "Tokens", titles=titles),
            *order_tables(given.answer.chosen),
            *term_tables(given.outlook.terms),
        ),
    )


def total_section(given: Findings, plan: Plan) -> Section:
    """Return every line of the total cost, and how it adds up to the headline of the plan."""
    lines = given.outlook.total
    if not lines:
        return Section("Total cost")
    span = "for the job" if plan.is_of_job else "a month"
    headline = machines_usd(given, plan)
    beside = total_usd(lines) - headline
    text = f"Quantity x price of one = cost; the lines add up to ${total_usd(lines):,.0f} {span}. "
    if abs(beside) < 0.5:  # dollars
        text += "The machines of the first sentence are all of it: no staff, overhead or other cost is stated (prices.people, prices.overhead, prices.other)."
    else:
        text += f"The machines of the first sentence cost ${headline:,.0f}, the other lines ${beside:,.0f}."
    return Section("Total cost", text=(text,), tables=(total_table(lines),))


def _electricity_text(given: Findings) -> str:
    prices = given.asked.scenario.prices
    return (
        f" Electricity is maximum power x {prices.power_ratio:g} (facility ratio) x {prices.electricity:g} $/kWh, on top of "
        "the price; leave it out where the price of a rented GPU-hour already includes it."
    )


def _devices_rows(
    plan: Plan, group: Group, name: str, *, powered: bool, of_job: bool
) -> Iterator[dict[str, Any]]:
    """Yield what the machines of a group cost, idle GPUs included: a row for each price of a GPU, and one for those that are there already."""
    price, order = group.price, group.order
    energy = price.energy_usd_per_hour or 0.0 if price is not None else 0.0
    gpus: dict[tuple[bool, float | None], int] = {}
    for line in order.lines if order is not None else ():
        usd_per_gpu = round(line.machine.usd_per_hour / line.machine.gpus, 9)
        key = (line.machine.is_owned, usd_per_gpu)
        gpus[key] = gpus.get(key, 0) + line.count * line.machine.gpus
    for (owned, each), count in gpus.items() or [((False, None), group.gpus)]:
        usd = None if each is None else count * (each + energy)
        paid: dict[str, float | None] = {
            "hours": HOURS_PER_MONTH,
            "usd_per_month": None if usd is None else float(usd_per_month(usd)),
        }
        if of_job:
            hours = plan.money.job_hours if plan.money else None
            paid = {"job_hours": hours, "usd_per_job": None if usd is None or hours is None else hours * usd}
        watts = group.layout.device.tdp_w
        yield {
            "hardware": f"{group.hardware} of your own" if owned else group.hardware,
            "plan": f"{name} {group.layout.in_words()}" if name else layout_text(plan),
            "gpus": count,
            "usd_per_gpu_hour": each,
            **({"energy_usd_per_hour": count * energy} if powered else {}),
            "usd_per_hour": usd,
            **paid,
            "tdp_watts": watts * count if watts else None,
        }


def _token_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return the cost per month over the tokens at the mean load and at the peak; nothing without a price."""
    if plan.money is None or plan.usd_per_month is None:
        return []
    mean = plan.money.usd_per_million_output_tokens_at_mean, plan.money.usd_per_million_tokens_at_mean
    peak = plan.usd_per_million_output_tokens, plan.usd_per_million_tokens
    loads: list[tuple[str, float | None, float | None]] = [(MEAN, *mean)]
    if peak[1] is not None and not isclose(peak[1], mean[1] or 0.0):
        loads.append((PEAK, *peak))
    return [
        {
            "hardware": plan.hardware,
            "plan": layout_text(plan),
            "load": load,
            "usd_per_month": plan.usd_per_month,
            **_million_tokens("month", plan.usd_per_month, of_output, of_all),
        }
        for load, of_output, of_all in loads
    ]


def _job_rows(plan: Plan) -> list[dict[str, Any]]:
    money = plan.money
    if money is None or money.usd_per_job is None or not money.usd_per_thousand_requests:
        return []
    each = money.usd_per_million_output_tokens_at_mean, money.usd_per_million_tokens_at_mean
    return [
        {
            "hardware": plan.hardware,
            "plan": layout_text(plan),
            "usd_per_job": money.usd_per_job,
            "thousand_requests": money.usd_per_job / money.usd_per_thousand_requests,
            "usd_per_thousand_requests": money.usd_per_thousand_requests,
            **_million_tokens("job", money.usd_per_job, *each),
        }
    ]


def _million_tokens(
    span: str, usd: float, of_output: float | None, of_all: float | None
) -> dict[str, float | None]:
    """Return the million tokens of a month or a job and the price per million, of output and of all tokens."""
    return {
        f"output_million_tokens_per_{span}": usd / of_output if of_output else None,
        "usd_per_million_output_tokens": of_output,
        f"total_million_tokens_per_{span}": usd / of_all if of_all else None,
        "usd_per_million_tokens": of_all,
    }
