"""What commands show of a plan next to what its engines did: what has drifted (`check --prometheus`), and the plan that follows (`replan`)."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from shlex import quote
from typing import Any

from capplan.questions.fleet import AskedFleet
from capplan.questions.plans.drift import Change, Replan, Watch
from capplan.questions.plans.plan_verification import Compared
from capplan.readers.plan_file import PlanFile
from capplan.recorded.traces.prometheus_server import Observed
from capplan.report.answer import Answer, Table, row_of
from capplan.report.answers.plan_files import check_answer, diff_answer
from capplan.report.screen_units import screen_of, shown_money, shown_number

_STATISTICS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def watch_answer(asked: AskedFleet, file: PlanFile, watch: Watch) -> Answer:
    """Return whether a plan still holds under the traffic that its engines had; exit code 4 if it does not."""
    checked = check_answer(asked, file, watch.checks)
    follow, drift = asdict(watch.follow) if watch.follow else None, list(map(_drift_row, watch.rows))
    drifted = [row.quantity for row in watch.rows if not row.inside]
    closing = []
    if watch.follow is not None and watch.follow.change_usd_per_month is not None:
        change = watch.follow.change_usd_per_month
        direction = "more" if change > 0 else "less"
        closing.append(
            f"to follow in the plan's layout: {watch.follow.busy_replicas} replicas at work, {watch.follow.gpus} GPUs, "
            + (f"${abs(change):,.0f} per month {direction}" if change else "the same cost")
        )
    if watch.holds and not drifted:
        closing.append("nothing has drifted: every quantity is as planned")
    else:
        closing.append(
            f"search again: capplan replan --plan {quote(str(file.path))}{_server_words(watch.seen)}"
        )
    return replace(
        checked,
        result={
            **checked.result,
            "observed": observed_row(watch.seen),
            "drift": drift,
            "follow": follow,
        },
        tables=(drift_table(watch), *checked.tables),
        csv_rows=[*drift, *checked.csv_rows],
        closing=tuple(closing),
        warnings=(*checked.warnings, *watch.notes),
    )


def _server_words(seen: Observed) -> str:
    """Return the flags that read the same window again."""
    named = f" --model-name {quote(seen.model)}" if seen.model else ""
    return f" --prometheus {quote(seen.source)} --window {seen.window_s:g}s{named}"


def observed_row(seen: Observed) -> dict[str, Any]:
    """Return what engines did, in base units."""
    summary = seen.summary
    measured = summary.measured or {}
    return {
        **row_of(seen, "source window_s"),
        "requests": summary.requests,
        "request_rate": summary.rate.peak_60s,
        "mean_request_rate": summary.rate.mean,
        "request_rate_by_hour": list(summary.rate.by_hour),
        "input_tokens": summary.input_tokens.mean,
        "output_tokens": summary.output_tokens.mean,
        "prefix_hit_fraction": summary.prefix_hit_fraction,
        **{f"{name}_s": _spread(seen, name, measured) for name in ("ttft", "tpot", "e2e")},
        **row_of(seen, "running waiting engines"),
    }


def _spread(seen: Observed, name: str, measured: Mapping[str, float | None]) -> dict[str, float | None]:
    percentiles = {key: seen.percentile_s(name, fraction) for key, fraction in _STATISTICS.items()}
    return {"mean": measured.get(f"{name}_s"), **percentiles}


def _drift_row(row: Compared) -> dict[str, Any]:
    found = {"what": row.quantity, "planned": row.predicted, **row_of(row, "low high")}
    return found | {"observed": row.measured, "inside": row.inside}


def drift_table(watch: Watch) -> Table:
    """Return each quantity as planned, with the interval in which it is as planned, and as observed."""
    return Table(
        [_shown(row) for row in watch.rows],
        title=f"Planned and observed over {watch.seen.window_s / 3600:,.3g} h",
        titles={"inside": "as planned", "what": "quantity"},
    )


def _shown(row: Compared) -> dict[str, Any]:
    name = row.quantity.partition(".")[0]
    values = (row.predicted, row.low, row.high, row.measured)
    screen = screen_of("request_rate" if name == "mean_request_rate" else name, list(values))
    texts = [shown_number(value, screen.factor) for value in values]
    named = dict(zip(("planned", "low", "high", "observed"), texts, strict=True))
    return {"what": row.quantity, **named, "unit": screen.unit, "inside": row.inside}


def replan_answer(asked: AskedFleet, file: PlanFile, watch: Watch, found: Replan) -> Answer:
    """Return the plan for the observed traffic as a difference; exit code 4 if no plan meets the targets."""
    shown = diff_answer(found.before, found.after)
    name = asked.scenario.name
    if found.after.chosen is None:
        headline = f"{name}: no plan meets the targets under the observed traffic"
    elif found.kept:
        headline = (
            f"{name}: keep the plan; it holds, and no other one saves {found.band_fraction:.0%} of its cost"
        )
    else:
        headline = shown.headline
    return replace(
        shown,
        command="replan",
        result={
            **shown.result,
            "kept": found.kept,
            "holds": watch.holds,
            **row_of(found, "band_fraction cheapest_usd_per_month"),
            "changing": asdict(found.change),
            "observed": observed_row(watch.seen),
            "drift": [_drift_row(row) for row in watch.rows],
        },
        tables=(drift_table(watch), *shown.tables, *([] if found.kept else [_changing(found.change)])),
        headline=headline,
        closing=(*shown.closing, *_next(asked, file, found)),
        warnings=(*shown.warnings, *watch.notes),
    )


def _changing(change: Change) -> Table:
    rows = [
        {"what": "replicas to start", "value": f"{change.started_replicas} ({change.started_gpus} GPUs)"},
        {"what": "replicas to stop", "value": str(change.stopped_replicas)},
        {"what": "time until a replica serves", "value": f"{change.start_up_s:,.0f} s"},
        {
            "what": "cost until they serve",
            "value": "-" if change.usd is None else shown_money(change.usd, "$"),
        },
        {"what": "GPUs that no replica uses", "value": str(change.idle_gpus)},
    ]
    for line in change.machines:
        name = line["sku"] or f"{line['gpus']} x {line['hardware']}"
        what = f"machines {name} ({line['provider']})"
        rows.append({"what": what, "value": f"{line['before']} to {line['after']}"})
    return Table(rows, title="The change")


def _next(asked: AskedFleet, file: PlanFile, found: Replan) -> Iterator[str]:
    if not found.kept and found.after.chosen is not None:
        yield f"keep it: capplan fleet {asked.scenario.command_words()} -o {quote(str(file.path))}"
