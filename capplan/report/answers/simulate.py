"""What `capplan simulate`, `sweep`, `workload` and `validate` show."""

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import isfinite
from typing import Any

from capplan.accuracy.score import (
    CONFIDENCES,
    PLANNED_CONFIDENCE,
    TPOT_LIMITS_MS,
    DecisionScore,
    Prediction,
    Run,
    decision_score,
)
from capplan.assumption import Assumption
from capplan.fleet.load.routed import Operation
from capplan.fleet.simulation import Figures, FleetOutcome
from capplan.fleet.sweep import Row, summaries
from capplan.numbers import FEWEST, TOO_FEW, Spread
from capplan.questions.simulation import AskedStream, Chosen
from capplan.questions.sweep import AskedSweep
from capplan.questions.validation import Validation
from capplan.report.answer import Answer, Table, columns, row_of
from capplan.report.safe_text import spreadsheet_text
from capplan.serving.fleet_simulator import FleetRun
from capplan.serving.outcome import joint_timeline
from capplan.workload.request_class import Slo
from capplan.workload.statistics import LengthSummary, WorkloadSummary

_SIMULATE_TITLES = {
    "slo_met_fraction": "requests within all SLO limits",
    "requests": "requests that arrived",
    "seconds": "whole run",
    "requests_per_s": "throughput",
    "busy_fraction": "share of time in steps",
    "utilisation_fraction": "offered rate over capacity",
}
"""Headings of totals whose key says too little."""
TIMELINE_ROWS = 24
"""Spans of a timeline, about."""


def known(value: Any) -> Any:
    """Return a value with None for what is not a number, all the way down."""
    if isinstance(value, dict):
        return {key: known(item) for key, item in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


def figures_result(figures: Figures, *, pooled: bool) -> dict[str, Any]:
    """Return what some of the requests saw; prompts that are pooled have no output."""
    result: dict[str, Any] = asdict(figures)
    result |= {name: asdict(spread) for name, spread in _carried(figures).items()}
    found: dict[str, Any] = known(result | {"output_tokens_per_s": 0.0} if pooled else result)
    return found


def _carried(figures: Figures) -> dict[str, Spread[float | None]]:
    """Return the latencies of some requests, each with the percentiles that so many requests carry."""
    names = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
    return {name: getattr(figures, name).of_sample(figures.finished) for name in names}


def _seen(figures: Figures, wait_s: float) -> dict[str, Any]:
    """Return what users see of some requests that all wait this long before their prompts are sent; nothing without a wait."""
    if not wait_s:
        return {}
    spreads = {"seen_ttft_s": figures.ttft_s, "seen_e2e_s": figures.e2e_s}
    seen = {key: {part: value + wait_s for part, value in asdict(s).items()} for key, s in spreads.items()}
    return {"wait_s": wait_s, **known(seen)}


def _waits(chosen: Chosen, outcome: FleetOutcome) -> dict[str, float]:
    """Return what the requests of each class wait outside before their prompts are sent; those of a trace as the only class."""
    said = {item.name: item.outside.wait_s for item in chosen.asked.scenario.classes}
    alone = next(iter(said.values())) if len(said) == 1 else 0.0
    return {name: said.get(name, alone) for name in outcome.classes}


def seen_texts(chosen: Chosen, outcome: FleetOutcome) -> Iterator[str]:
    """Yield what users see of each class whose requests wait before their prompts are sent, and which hour is simulated."""
    by_hour = outcome.seen is not None and any(
        item.hourly_rate_fractions for item in chosen.asked.scenario.classes
    )
    waits = _waits(chosen, outcome)
    yield from (
        f"{name}: {1e3 * waits[name]:,.0f} ms before the prompt is sent, so users see TTFT p95 {1e3 * (figures.ttft_s.p95 + waits[name]):,.0f} ms "
        f"and E2E p95 {1e3 * (figures.e2e_s.p95 + waits[name]):,.0f} ms"
        for name, figures in outcome.classes.items()
        if waits[name]
    )
    if by_hour:
        yield "the peak is simulated; capplan fleet also tests the hours in which more of the requests are of the classes that wait longest"


def simulate_result(chosen: Chosen, outcome: FleetOutcome, seed: int) -> dict[str, Any]:
    """Return a simulation with the keys of the interface."""
    pooled = chosen.asked.scenario.pooled
    waits = _waits(chosen, outcome)
    result = figures_result(outcome.all, pooled=pooled)
    return {
        "scenario": chosen.asked.scenario.name,
        "plan": chosen.name,
        "replicas": outcome.replicas,
        "gpus": chosen.gpus_of(outcome.replicas),
        "seed": seed,
        **result,
        "seconds": outcome.seconds,
        "measured_from_s": outcome.from_s,
        "measured_until_s": outcome.until_s,
        "itl_s": known(asdict(outcome.itl_s)),
        "prefix_hit_fraction": outcome.all.prefix_hit_fraction,
        "prefix_hit_fractions": outcome.hit_fractions,
        "tokens_per_step": outcome.tokens_per_step,
        "preemptions": outcome.all.preemptions,
        "kv_occupancy": {"mean": outcome.kv_occupancy_mean, "p99": outcome.kv_occupancy_p99},
        **row_of(outcome, "batch_mean busy_fraction"),
        "timeline": _timeline_rows(outcome),
        "missed": [target.key for target in outcome.missed(chosen.asked.scenario.slo)],
        "classes": {
            name: figures_result(figures, pooled=pooled) | _seen(figures, waits[name])
            for name, figures in outcome.classes.items()
        },
        **({"operation": operation_result(outcome.run)} if outcome.run else {}),
    }


def operation_result(run: FleetRun) -> dict[str, Any]:
    """Return totals of the replicas behind a router, and the figures of each replica."""
    replicas = [
        {
            **row_of(use, "pool replica from_s until_s requests preemptions"),
            "busy_fraction": use.gauges.busy_s / max(use.until_s - use.from_s, 1e-12),
        }
        for use in run.replicas
    ]
    return {
        "replica_time_s": run.replica_seconds,
        "replicas_mean": mean_replicas(run),
        **row_of(run, "rerouted_requests copied_requests cancelled_output_tokens"),
        "replicas": replicas,
    }


def mean_replicas(run: FleetRun) -> float:
    """Return the time-averaged number of replicas, starting and draining ones included."""
    return run.replica_seconds / run.outcome.seconds if run.outcome.seconds else 0.0


def several_counts(operation: Operation | None, run: FleetRun | None) -> str:
    """Return the replica counts as text where one number is not enough (autoscaling, two pools); else empty."""
    if operation is None or run is None:
        return ""
    if operation.autoscaling is not None:
        rule = operation.autoscaling
        return f"{rule.min_replicas} to {rule.max_replicas} replicas, {mean_replicas(run):.3g} on average"
    if operation.prefill_replicas is not None:
        return f"{operation.prefill_replicas} prefill and {operation.decode_replicas} decode replicas"
    return ""


def _latency_rows(figures: Figures, itl_s: Spread[float] | None) -> list[dict[str, Any]]:
    spreads: dict[str, Spread[float | None] | Spread[float]] = {
        name.removesuffix("_s").upper() if name != "queue_s" else "queue": spread
        for name, spread in _carried(figures).items()
    }
    if itl_s is not None:
        spreads["ITL"] = itl_s
    return [
        {"latency": name, **{f"{statistic}_s": known(value) for statistic, value in asdict(spread).items()}}
        for name, spread in spreads.items()
    ]


def overload(asked: AskedStream, utilisation: float) -> str | None:
    """Return the warning about a rate that the replicas cannot serve; None if they can, or if only users send requests, who wait."""
    if utilisation <= 1.0 or asked.stream.requests is None:
        return None
    return (
        f"{asked.rate_per_s:.3g} req/s is {utilisation:.0%} of what the replicas can serve: "
        "the queue keeps growing while requests arrive"
    )


def warn_of_overload(asked: AskedStream, utilisation: float) -> None:
    """Say on stderr, before a run that may take a while, that the rate cannot be served."""
    warning = overload(asked, utilisation)
    if warning is not None:
        sys.stderr.write(
            f"{warning}\n"
            f"  all {len(asked.stream.representative):,} requests are simulated anyway; for a shorter run: --until '1 min'\n"
        )


def _asked_assumptions(chosen: Chosen, asked: AskedStream) -> list[Assumption]:
    """Return the assumptions of the question, with the context length that a trace needs in place of the default."""
    context = asked.spec.max_model_len
    return [
        replace(item, what=f"max_model_len {context}: room for the longest request of the trace")
        if item.key == "max_model_len" and context != chosen.spec.max_model_len
        else item
        for item in chosen.asked.assumptions
    ]


def _timeline_rows(outcome: FleetOutcome) -> list[dict[str, Any]]:
    """Return batch and cache over time, of all replicas together, in a few spans."""
    line = joint_timeline([part.timeline for part in outcome.parts])
    width = max(-(-line.start_s.size // TIMELINE_ROWS), 1)
    return [
        {
            "start_s": float(line.start_s[at]),
            "batch_sequences": float(line.batch_sequences[at : at + width].mean()),
            "kv_blocks": float(line.kv_blocks[at : at + width].mean()),
            "kv_occupancy_fraction": float(line.kv_blocks[at : at + width].mean())
            / max(outcome.kv_blocks, 1),
            "busy_fraction": float(line.busy_fraction[at : at + width].mean()),
        }
        for at in range(0, line.start_s.size, width)
    ]


def _simulate_tables(result: dict[str, Any], outcome: FleetOutcome, slo: Slo) -> Iterator[Table]:
    """Yield what people see: totals, replicas, and traffic classes."""
    targets = [
        {"target": t.key, "limit_s": t.stated_s, "reached_s": known(outcome.value(t) + t.outside_s), "met": outcome.value(t) <= t.limit_s}
        for t in slo.targets
    ]  # fmt: skip
    rate = "output_tokens_per_s" if result["output_tokens_per_s"] else "input_tokens_per_s"
    shown = columns(
        "requests finished shed unfinished seconds measured_from_s measured_until_s requests_per_s goodput_requests_per_s "
        f"slo_met_fraction {rate} prefix_hit_fraction preemptions batch_mean busy_fraction utilisation_fraction"
    )
    totals = {key: result[key] for key in shown}
    totals |= {
        "kv_occupancy_fraction": outcome.kv_occupancy_mean,
        "kv_occupancy_p99_fraction": outcome.kv_occupancy_p99,
    }
    if outcome.tokens_per_step > 1.0:
        totals["tokens_per_step"] = outcome.tokens_per_step
    yield Table(_latency_rows(outcome.all, outcome.itl_s), title="Latencies")
    yield Table([totals], title="Totals of the measured time", upright=True, titles=_SIMULATE_TITLES)
    if len(outcome.hit_fractions) > 1:
        shares = outcome.hit_fractions.items()
        hits = [{"place": name, "prefix_hit_fraction": share} for name, share in shares]
        yield Table(hits, title="Prefix hits")
    if "transfer" in result:
        yield Table([result["transfer"]], title="KV caches sent", upright=True)
    if outcome.run:
        events = dict(result["operation"])
        replicas = events.pop("replicas")
        names = (
            " ".join(str(row[key]) for key in ("pool", "replica") if row[key] is not None) for row in replicas
        )
        yield Table([events], title="Operation", upright=True)
        yield Table(
            [{**row, "replica": name} for row, name in zip(replicas, names, strict=True)],
            title="Replicas",
            shown=columns("replica from_s until_s requests preemptions busy_fraction"),
        )
    yield Table(result["timeline"], title="Over time, all replicas")
    yield Table(targets, title="Targets")
    if len(outcome.classes) > 1:
        of_class = "requests finished shed unfinished requests_per_s goodput_requests_per_s slo_met_fraction prefix_hit_fraction preemptions"
        rows = [
            {"class": name, **known(row_of(figures, of_class))} for name, figures in outcome.classes.items()
        ]
        spare = ("preemptions", "shed", "unfinished", "requests_per_s", "finished")
        yield Table(rows, title="Classes", spare=spare)
        yield from (
            Table(_latency_rows(figures, None), title=f"Class {name}")
            for name, figures in outcome.classes.items()
        )


def _unanswered(outcome: FleetOutcome, slo: Slo) -> Iterator[str]:
    """Yield what is to be said of requests without an answer."""
    every = outcome.all
    lost = every.shed + every.unfinished - outcome.undecided
    if slo.targets and lost:
        yield f"{lost:,} of {every.requests:,} requests were shed or not answered in time: they miss every target"
    if slo.targets and outcome.undecided:
        yield (
            f"{outcome.undecided:,} of {every.requests:,} requests were under way at the end and not late yet: the targets "
            "leave them out, and they do not count as within the limits; replace with a longer --until, or none"
        )


def simulate_answer(
    chosen: Chosen,
    asked: AskedStream,
    outcome: FleetOutcome,
    seed: int,
    utilisation: float,
    stated: Sequence[Assumption],
    operation: Operation | None,
) -> Answer:
    """Return the latencies of a simulated fleet; exit code 4 where a target is missed."""
    counts = several_counts(operation, outcome.run)
    bought = f"{counts}, each ({chosen.name})" if counts else f"{outcome.replicas} x ({chosen.name})"
    result = simulate_result(chosen, outcome, seed) | {"utilisation_fraction": known(utilisation)}
    if operation is not None and operation.kv_link is not None:
        use = operation.link_use(asked.spec, asked.stream.mean_input_tokens, asked.rate_per_s, outcome.draft)
        result["gpus"] = operation.pool_devices(chosen.spec)
        result |= {"transfer": asdict(use)} if use else {}
    slo = chosen.asked.scenario.slo
    every = outcome.all
    missed = outcome.missed(slo)
    met = "meets all targets" if slo.targets else "no targets"
    verdict = f"misses {', '.join(t.key for t in missed)}" if missed else met
    within = f"{every.slo_met_fraction:.1%} of {every.requests:,} requests within the limits"
    if every.requests < FEWEST["p99"]:
        within = f"{round(every.slo_met_fraction * every.requests)} of {every.requests} requests within the limits, {TOO_FEW}"
    warnings = [
        *asked.warnings,
        *chosen.asked.warnings,
        *_unanswered(outcome, slo),
        overload(asked, utilisation),
    ]
    return Answer(
        command="simulate",
        result=result,
        tables=tuple(_simulate_tables(result, outcome, slo)),
        headline=f"{chosen.asked.scenario.name} on {bought}: {verdict}; {within}",
        closing=(f"{chosen.origin}: {counts or chosen.counted}", *seen_texts(chosen, outcome)),
        assumptions=(*_asked_assumptions(chosen, asked), *asked.assumptions, *stated, *outcome.assumptions),
        warnings=tuple(filter(None, warnings)),
        exit_code=4 if missed else 0,
    )


_POINTS = columns(
    "plan request_rate concurrency requests_per_s output_tokens_per_s_per_gpu ttft_s.p95 tpot_s.mean tpot_s.p95 "
    "e2e_s.mean slo_met_fraction holds"
)
_SPARE_OF_POINTS = ("e2e_s.mean", "tpot_s.mean", "requests_per_s", "slo_met_fraction")
"""Columns that a narrow screen leaves out, the first one first."""
_SPARE_OF_PLANS = columns(
    "knee_e2e_s most_requests_per_s largest_goodput_requests_per_s knee_requests_per_s "
    "usd_per_million_output_tokens"
)
_SWEEP_TITLES = {"request_rate": "offered", "requests_per_s": "served", "usd_per_million_output_tokens": "at that load"}  # fmt: skip


def by_plan(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Return the points of each plan, in order of load."""
    return {
        name: [row for row in rows if row["plan"] == name]
        for name in dict.fromkeys(row["plan"] for row in rows)
    }


def sweep_answer(asked: AskedSweep, rows: Sequence[Row], *, reused: int, interrupted: bool) -> Answer:
    """Return all points and a summary of each plan; exit code 130 where the run was cut short."""
    planned = {each.contender.name: each.contender.planned_requests_per_s for each in asked.points}
    by_plan_rows = summaries(
        rows, asked.slo, planned, of_users=any(point.demand.users for point in asked.points)
    )
    closed = bool(rows) and rows[0]["request_rate"] is None
    apart = any(point.contender.decode is not None for point in asked.points)
    unit = "requests in flight" if closed else "req/s" if apart else "req/s per replica"
    shown = tuple(name for name in _POINTS if name != ("request_rate" if closed else "concurrency"))
    within = [each for each in by_plan_rows if each["largest_load_that_holds"]]
    verdict = (
        "no plan meets the targets at any load" if asked.slo.targets else "no targets set; compare the knees"
    )
    if within:
        best = max(within, key=lambda each: float(each["output_tokens_per_s_per_gpu"]))
        verdict = f"{best['plan']} has the highest throughput per GPU within the targets, at {best['largest_load_that_holds']:.3g} {unit}"
    closing = [f"{reused} of {len(rows)} points reused from an earlier run"] if reused else []
    if interrupted:
        verdict = f"nothing is decided, {len(rows)} points were finished"
        closing.append("interrupted: finished points are shown; run again with --points FILE to continue")
    result: dict[str, Any] = {
        "scenario": asked.name,
        "load": "concurrency" if closed else "request_rate",
        "plans": [{**summary, "points": by_plan(rows)[summary["plan"]]} for summary in by_plan_rows],
        "interrupted": interrupted,
    }
    return Answer(
        command="sweep",
        result=result,
        tables=(
            Table(rows, title="Points", shown=shown, titles=_SWEEP_TITLES, spare=_SPARE_OF_POINTS),
            Table(by_plan_rows, f"Plans (loads in {unit})", titles=_SWEEP_TITLES, spare=_SPARE_OF_PLANS),
        ),
        headline=f"{asked.name}: {verdict}",
        closing=tuple(closing),
        assumptions=asked.assumptions,
        warnings=asked.warnings,
        exit_code=130 if interrupted else 0,
    )


def _lengths(lengths: LengthSummary, requests: int) -> dict[str, Any]:
    """Return the lengths of some requests, each with the percentiles that so many carry."""
    carried = {
        name: getattr(lengths, name) if requests >= FEWEST[name] else None for name in ("p50", "p95", "p99")
    }
    return {"mean": lengths.mean, **carried, "max": lengths.max, "lognormal": dict(lengths.fit)}


def workload_result(summary: WorkloadSummary) -> dict[str, Any]:
    """Return a workload with the keys of the interface."""
    rate, prefix = summary.rate, summary.prefix
    return {
        **row_of(summary, "name format requests"),
        "seconds": rate.seconds,
        "request_rate": {
            **row_of(rate, "mean peak_60s cv cv_60s peak_to_mean_ratio dispersion_60s"),
            "by_hour": list(rate.by_hour),
        },
        "input_tokens": _lengths(summary.input_tokens, summary.requests),
        "output_tokens": _lengths(summary.output_tokens, summary.requests),
        "prefix": prefix
        and row_of(prefix, "block_tokens unlimited_hit_fraction unlimited_token_hit_fraction")
        | {"curve": [{"blocks": blocks, "hit_fraction": share} for blocks, share in prefix.curve]},
        "evictions": list(summary.evictions),
        "prefix_hit_fraction": summary.prefix_hit_fraction,
        "measured": summary.measured and dict(summary.measured),
        **row_of(summary, "acceptance_fraction accepted_tokens_per_round kv_cache_tokens"),
        "omissions": list(summary.omissions),
        "notes": list(summary.notes),
    }


def _workload_tables(summary: WorkloadSummary) -> Iterator[Table]:
    rate = summary.rate
    lengths = [
        {"tokens": name, **{key: value for key, value in _lengths(s, summary.requests).items() if key != "lognormal"},
         "lognormal p95": s.fit["p95"], "fit_error_fraction": s.fit["largest_error_fraction"]}
        for name, s in (("input", summary.input_tokens), ("output", summary.output_tokens))
    ]  # fmt: skip
    overview = {
        "requests": summary.requests,
        "seconds": rate.seconds,
        "mean_requests_per_s": rate.mean,
        "peak_60s_requests_per_s": rate.peak_60s,
        "peak_to_mean_ratio": rate.peak_to_mean_ratio,
        "arrival_cv": rate.cv,
        "arrival_cv_60s": rate.cv_60s,
        "dispersion_60s": rate.dispersion_60s,
        **row_of(
            summary, "prefix_hit_fraction acceptance_fraction accepted_tokens_per_round kv_cache_tokens"
        ),
    }
    if summary.measured:
        overview |= {f"measured_{key}": value for key, value in summary.measured.items()}
    known = {key: value for key, value in overview.items() if value is not None}
    yield Table([known], title="Traffic", upright=True)
    yield Table(lengths, title="Lengths")
    if len(rate.by_hour) > 1:
        title = "Rate by hour of the day" if rate.seconds > 48 * 3600 else "Rate by hour"
        rows = [{"hour": hour, "request_rate": value} for hour, value in enumerate(rate.by_hour)]
        yield Table(rows, title=title)
    if summary.prefix:
        size = summary.prefix.block_tokens
        rows = [{"blocks": n, "cache_tokens": n * size, "hit_fraction": h} for n, h in summary.prefix.curve]
        yield Table(rows, title=f"Prefix hits by cache size, in blocks of {size} tokens")
    yield Table(summary.evictions, title="Prefix hits by rule of eviction")


def workload_answer(summary: WorkloadSummary, written: str | None) -> Answer:
    """Return what a file says about its traffic."""
    rate, speed = summary.rate, ""
    if rate.mean and rate.peak_60s:
        speed = f", {rate.mean:.3g} req/s on average and {rate.peak_60s:.3g} at peak"
    closing = list(summary.notes)
    if summary.requests < FEWEST["p99"]:
        closing.append(f"{summary.requests} request{'s are' if summary.requests != 1 else ' is'} {TOO_FEW}")
    use = f"written to {written}: use it in a scenario as trace: {written}"
    closing.append(use if written else "to use it in a scenario, write it: -o workload.yaml")
    alone = Assumption(
        "prompts share no prefixes: the file has neither block ids nor counters of a prefix cache",
        "shared_prefix in the workload YAML",
    )
    return Answer(
        command="workload",
        result=workload_result(summary),
        tables=tuple(_workload_tables(summary)),
        headline=f"{summary.name} ({summary.format}): {summary.requests:,} requests{speed}",
        closing=tuple(closing),
        assumptions=(alone,) if summary.prefix is None and summary.prefix_hit_fraction is None else (),
        warnings=summary.omissions,
    )


_SHOWN = columns("metric n predicted median_ape mean_ape p90_ape bias within_20 interval_coverage")
_SPARE_OF_SCORES = ("predicted", "mean_ape", "p90_ape", "bias")
"""Columns that a narrow screen leaves out, the first one first."""
_VALIDATE_TITLES = {"n": "measured"}  # fmt: skip
WORST = 12
"""Rows of the list of worst predictions."""


def predictions_csv(predictions: Sequence[Prediction]) -> str:
    """Return one line per measured value: id, metric, measured, predicted, low, high, reason."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["id", "metric", "measured", "predicted", "low", "high", "reason"])
    for p in predictions:
        known = ("" if value is None else repr(float(value)) for value in (p.predicted, p.low, p.high))
        writer.writerow(
            [spreadsheet_text(p.row), p.metric, repr(p.measured), *known, spreadsheet_text(p.reason)]
        )
    return out.getvalue()


def _worst(validation: Validation) -> list[dict[str, Any]]:
    """Return the values with the largest errors, one per row of the file."""
    known = [p for p in validation.scored if p.predicted and p.measured > 0]
    known.sort(key=lambda p: -max(float(p.predicted or 1) / p.measured, p.measured / float(p.predicted or 1)))
    rows: dict[str, dict[str, Any]] = {}
    for p in known:
        if p.row not in rows and len(rows) < WORST:
            group = p.groups or {}
            where = (group.get(key) for key in group if key in {"engine", "device", "gpu", "load", "op"})
            rows[p.row] = {
                "id": p.row,
                **row_of(p, "metric measured predicted"),
                "ratio": float(p.predicted or 0) / p.measured,
                "where": ", ".join(filter(None, where)),
            }
    return list(rows.values())


def decision_scores(runs: Sequence[Run]) -> list[DecisionScore]:
    """Return the score of choices at each confidence, and at the predicted times."""
    return [decision_score(runs, confidence=confidence) for confidence in (*CONFIDENCES, None)]


def decisions_result(scores: Sequence[DecisionScore]) -> dict[str, Any]:
    """Return the score at the confidence of plans, with those of the other confidences and of the predicted times next to it."""
    planned = next(score for score in scores if score.confidence == PLANNED_CONFIDENCE)
    return asdict(planned) | {"by_confidence": [asdict(score) for score in scores]}


def decision_table(scores: Sequence[DecisionScore]) -> Table:
    """Return the scores of choices as a table."""
    limits = ", ".join(f"{limit:g}" for limit in TPOT_LIMITS_MS)
    rows = [
        {
            "confidence of a pick": "predicted time"
            if score.confidence is None
            else f"{score.confidence:.0%}",
            **row_of(score, "questions unanswered"),
            "pick broke its limit": score.broke_limit_fraction,
            "by over 10%": score.broke_by_10_fraction,
            **{f"regret, {name}": value for name, value in score.regret.items()},
            "on the best GPU": score.right_device_fraction,
        }
        for score in scores
    ]
    return Table(
        rows,
        title=f"Choices by prediction: most output tokens/s per GPU under a TPOT of {limits} ms (regret: share of the best measured plan's)",
    )


def validate_answer(validation: Validation, *, decisions: bool) -> Answer:
    """Return the scores of a back-test."""
    metrics = {name: asdict(score) for name, score in validation.metrics.items()}
    groups = [
        {"grouping": grouping, "group": group, "metric": metric, **asdict(score)}
        for grouping, group, metric, score in validation.groups
    ]
    result = {
        **row_of(validation, "rows predicted refused misfits"),
        "metrics": metrics,
        "groups": groups,
    }
    headline = (
        f"{validation.predicted} of {validation.rows} rows predicted; {len(validation.scored)} values scored"
    )
    board = [{"metric": name, **metrics[name]} for name in sorted(metrics)]
    refused = [{"reason": reason, "values": count} for reason, count in validation.refused.items()]
    misfits = [{"reason": reason, "rows": count} for reason, count in validation.misfits.items()]
    if misfits:
        headline += f"; of rows that ran, {sum(validation.misfits.values())} do not fit by our memory plan"
    scores = decision_scores(validation.runs) if decisions else []
    if scores:
        result["decisions"] = decisions_result(scores)
    scored = partial(Table, titles=_VALIDATE_TITLES, spare=_SPARE_OF_SCORES)
    tables = (
        scored(board, title="Scoreboard (weighted; errors in % of the measured value)", shown=_SHOWN),
        decision_table(scores),
        scored(groups, title="By group", shown=("grouping", "group", *_SHOWN)),
        Table(_worst(validation), title="Largest errors"),
        Table(refused, title="Refused"),
        Table(misfits, title="Ran, but does not fit by our memory plan (errors)"),
    )
    note = Assumption(
        "rows marked core (or of confidence A and B) are scored, weighted as the file says", "the file"
    )
    stated = (
        replace(one, what=f"{one.what} (rows: {count})") for one, count in validation.assumptions.items()
    )
    return Answer("validate", result, tables, headline=headline, assumptions=(note, *stated))
