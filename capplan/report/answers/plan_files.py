"""What commands show of a plan that is there: whether it holds (`check`), what changed (`diff`), and predicted next to measured (`verify-plan`)."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

from capplan.assumption import Assumption
from capplan.fleet.plan import Plan
from capplan.fleet.review import spec_of_layout
from capplan.money.order import OWN
from capplan.questions.fleet import AskedFleet, prices_of_others
from capplan.questions.plans.plan_check import Check, Side, changes, plan_changes
from capplan.questions.plans.plan_verification import (
    CALIBRATION_FILE,
    LATENCIES,
    PROMETHEUS,
    Verification,
    next_settings,
)
from capplan.readers.plan_file import PlanFile
from capplan.report.answer import Answer, Table, columns, row_of
from capplan.report.replica_command import replica_words
from capplan.report.screen_units import Screen, is_number, screen_of, shown_number

_UNITS = {"slo.confidence": "confidence_fraction", "budget.usd_per_month": "usd_per_month"}
"""Check -> the name that says its unit; latencies are in seconds, the others are counts and words."""


def check_answer(asked: AskedFleet, file: PlanFile, checks: Sequence[Check]) -> Answer:
    """Return whether a plan meets its checks; exit code 4 if it does not."""
    failures, chosen = [check for check in checks if not check.holds], file.answer.chosen
    plan = f"the plan of {chosen.gpus} x {chosen.hardware}"
    missed = ", ".join(_missed(check) for check in failures)
    name, rows = asked.scenario.name, [{**_failure(check), "holds": check.holds} for check in checks]
    again = f"search again: capplan fleet {asked.scenario.command_words()} -o {shlex.quote(str(file.path))}"
    return Answer(
        command="check",
        result={
            "holds": not failures,
            "failures": [_failure(check) for check in failures],
            "checks": rows,
            "scenario": name,
            "plan": str(file.path),
        },
        tables=(Table(list(map(_check_row, checks)), title=f"Checks of {plan}", titles={"holds": "met"}),),
        csv_rows=rows,
        headline=f"{name}: {plan} {f'no longer meets {missed}' if failures else 'meets every check'}",
        closing=(again,) if failures else (),
        assumptions=asked.assumptions,
        counted=prices_of_others(asked, {group.hardware for group in chosen.groups}),
        warnings=(*file.data_remarks, *asked.warnings),
        exit_code=4 if failures else 0,
    )


def _failure(check: Check) -> dict[str, Any]:
    return {"what": check.name, **row_of(check, "limit value")}


def _check_row(check: Check) -> dict[str, Any]:
    limit, value, unit = _shown(check)
    return {"what": check.name, "limit": limit, "value": value, "unit": unit, "holds": check.holds}


def _missed(check: Check) -> str:
    limit, value, unit = _shown(check)
    if check.name.startswith("capacity"):
        return f"{check.name} ({value} replicas needed, {limit} at work)"
    said = f" ({value}, limit {limit}{f' {unit}' if unit else ''})"
    return f"{check.name}{'' if limit == '-' else said}"


def _shown(check: Check) -> tuple[str, str, str]:
    """Return limit, value and their unit as on screen."""
    latency = check.name.startswith("slo.") and check.name not in _UNITS
    screen = screen_of("s" if latency else _UNITS.get(check.name, "count"), [check.limit, check.value])
    unit = "replicas" if check.name.startswith("capacity") else screen.unit

    limit, value = (
        screen.number(each) if is_number(each) else _written(each) for each in (check.limit, check.value)
    )
    return limit, value, unit


_AS_IT_IS = columns(
    "gpus usd_per_month usd_per_month_low usd_per_month_high usd_per_million_output_tokens_at_mean"
)
_RESULTS = {
    **dict(zip(_AS_IT_IS, _AS_IT_IS, strict=True)),
    "ttft_s.p95": "ttft_p95_s",
    "tpot_s.p95": "tpot_p95_s",
    "slo_met_probability": "confidence",
}
"""Keys of a plan that are always shown -> their names here."""
_HEADINGS = {
    "confidence": "chance to meet the SLO (%)",
    "usd_per_month_low": "$/month at best",
    "usd_per_month_high": "$/month at worst",
}


def diff_answer(before: Side, after: Side) -> Answer:
    """Return what changed; exit code 4 where no plan meets the targets afterwards."""
    inputs, of_plan = changes(before, after), plan_changes(before, after)
    results = {
        name: {"before": _value(before.chosen, key), "after": _value(after.chosen, key)}
        for key, name in _RESULTS.items()
    }
    chosen = list(_choices(of_plan)) if before.chosen and after.chosen else []
    orders = {"before": _ordered(before.chosen), "after": _ordered(after.chosen)}
    ordered = [{"side": side, "machines": text or "-"} for side, text in orders.items()]
    known = set(before.assumptions)
    more = f"figures of the plan that differ: {len(of_plan)}; --format json lists each one under changes"
    return Answer(
        command="diff",
        result={
            "before": {"file": str(before.path), "scenario": before.inputs["content"].get("name")},
            "after": {"file": str(after.path), "scenario": after.inputs["content"].get("name")},
            "changes": [*inputs, *of_plan],
            **results,
        },
        tables=(
            Table([*starmap(_diff_row, results.items()), *map(_choice_row, chosen)], title="The plan"),
            Table(ordered if orders["before"] != orders["after"] else [], title="The order"),
            Table(list(map(_changed, inputs)), title="Inputs"),
        ),
        csv_rows=[*inputs, *({"path": name, **pair} for name, pair in results.items()), *of_plan],
        headline=_headline(before, after, results),
        closing=(
            "before: " + _named(before),
            "after: " + _named(after),
            *([more] if len(of_plan) > len(chosen) else []),
        ),
        assumptions=tuple(item for item in after.assumptions if item not in known),
        warnings=tuple(dict.fromkeys((*before.warnings, *after.warnings))),
        exit_code=4 if after.chosen is None else 0,
    )


_ELSEWHERE = ("order.", "survival.", "waterfall[")
"""Parts of a plan that have a table of their own, or follow from its counts."""


def _choices(of_plan: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the changed counts and names of a plan, each once; prices and latencies are fractions."""
    at_plan = {change["path"]: change for change in of_plan}
    for change in of_plan:
        path = change["path"].removeprefix("plan.")
        repeated = at_plan.get(f"plan.{path.removeprefix('groups[0].')}", change)
        is_repeated = repeated is not change and {**repeated, "path": ""} == {**change, "path": ""}
        values = (change["before"], change["after"])
        fractions = any(isinstance(value, (float, list)) for value in values)
        if not (is_repeated or fractions or path in _RESULTS or path.startswith(_ELSEWHERE)):
            yield {**change, "path": path}


def _ordered(chosen: Mapping[str, Any] | None) -> str | None:
    """Return the machines of a plan, each with provider, region and price; None without a plan, and for prices that the scenario states."""
    lines = ((chosen or {}).get("order") or {}).get("machines", ())
    return "; ".join(_line_text(line) for line in lines if line["sku"] or line["source"]) or None


def _line_text(line: Mapping[str, Any]) -> str:
    """Return a line of an order in words."""
    size = line["hardware"] if line["gpus"] == 1 else f"({line['gpus']} x {line['hardware']})"
    seller = " ".join(filter(None, (line["provider"], line["region"])))
    place = "of your own" if line["provider"] == OWN else seller
    cost = f", ${line['usd_per_hour']:,.2f}/h" if line["usd_per_hour"] else ""
    return f"{line['count']} x {line['sku'] or size} ({place}{cost})"


def _named(side: Side) -> str:
    return f"{side.inputs['content'].get('name')} ({side.path}), by capplan {side.version}"


def _value(chosen: Mapping[str, Any] | None, key: str) -> Any:
    value: Any = chosen
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _diff_row(name: str, pair: Mapping[str, Any]) -> dict[str, str]:
    """Return a quantity of both plans as text, with its change: absolute, and as a share of what it was."""
    values = [pair["before"], pair["after"]]
    numbers = [float(value) for value in values if is_number(value)]
    screen = screen_of("confidence_fraction" if name == "confidence" else name, numbers)
    row = {"quantity": _HEADINGS.get(name) or screen.column(numbers=bool(numbers))}
    row |= {side: _text(pair[side], screen) for side in ("before", "after")}
    if len(numbers) < 2:
        return {**row, "change": "", "share": ""}
    change = numbers[1] - numbers[0]
    sign = "+" if change > 0 else "-" if change < 0 else ""
    size = abs(change) if isinstance(pair["after"], float) else round(abs(change))
    return {
        **row,
        "change": sign + _text(size, screen) if change else "-",
        "share": f"{change / numbers[0]:+.1%}" if change and numbers[0] and name != "confidence" else "",
    }


def _choice_row(change: Mapping[str, Any]) -> dict[str, str]:
    """Return a changed count or name of both plans as text, a count with its change."""
    before, after = change["before"], change["after"]
    counts = is_number(before) and is_number(after)
    return {
        "quantity": change["path"],
        "before": _written(before),
        "after": _written(after),
        "change": f"{after - before:+}" if counts else "",
        "share": f"{(after - before) / before:+.1%}" if counts and before else "",
    }


def _text(value: Any, screen: Screen) -> str:
    return screen.number(value) if is_number(value) else _written(value)


def _changed(change: Mapping[str, Any]) -> dict[str, str]:
    return {"key": change["path"]} | {side: _written(change[side]) for side in ("before", "after")}


def _written(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join("-" if item is None else str(item) for item in value)
    return str(value)


def _headline(before: Side, after: Side, results: Mapping[str, Mapping[str, Any]]) -> str:
    name = after.inputs["content"].get("name")
    if after.chosen is None:
        return f"{name}: no plan meets the targets afterwards"
    if before.chosen is None:
        return f"{name}: a plan meets the targets now: {_fleet(after.chosen)}"
    if before.chosen == after.chosen:
        return f"{name}: the plan stays {_fleet(after.chosen)}"
    return (
        f"{name}: {_cost_change(results['usd_per_month'])}; {_fleet(before.chosen)} -> {_fleet(after.chosen)}"
    )


def _cost_change(usd: Mapping[str, Any]) -> str:
    if usd["before"] is None or usd["after"] is None:
        return "cost unknown"
    change = usd["after"] - usd["before"]
    if not change:
        return f"${usd['after']:,.0f} per month as before"
    share = f", {change / usd['before']:+.1%}" if usd["before"] else ""
    return f"{'+' if change > 0 else '-'}${abs(change):,.0f} per month (${usd['before']:,.0f} -> ${usd['after']:,.0f}{share})"


def _fleet(chosen: Mapping[str, Any]) -> str:
    return f"{chosen['gpus']} x {chosen['hardware']}"


_WORDS = {
    "holds": "what was measured lies in the intervals of the prediction",
    "slower": "it is slower than the interval of the prediction",
    "faster": "it is faster than the interval of the prediction, so the plan may buy more than is needed",
}
_LENGTHS = {
    "of the plan": Assumption(
        "the run had the traffic of the plan at its own rate: lengths, arrivals and prefixes are those of the scenario; "
        "the intervals include by how much runs of as many requests differ",
        "results with the lengths of every request",
    ),
    "of the results": Assumption(
        "the requests are those that the results list; prefixes hit as in the plan", "results without them"
    ),
    "fixed": Assumption(
        "the mean lengths of the results are not those of the plan, so all requests have these mean lengths",
        "results with the lengths of every request",
    ),
}
"""What is predicted, by whose lengths it has."""
_RATES = {"output_tokens_per_s": "tokens/s", "requests_per_s": "req/s"}
_CAUSES = {
    "ttft_s": "time to first token: prefill kernels, the wait in the queue and the host, per request",
    "tpot_s": "time per output token: decode kernels and the host, per step",
    "e2e_s": "end-to-end latency: follows from the other two",
    "output_tokens_per_s": "throughput: follows from the latencies of a closed loop",
    "requests_per_s": "throughput: follows from the latencies of a closed loop",
}


def verify_plan_answer(
    asked: AskedFleet, plan: Plan, verification: Verification, results: tuple[Path, ...]
) -> Answer:
    """Return a plan next to its measurement; exit code 4 where it is slower than predicted or misses a target."""
    result, verdict = verification.result, verification.verdict
    missed = [target for target in verification.targets if not target["holds"]]
    settings = next_settings(asked, verification)
    rows = [row_of(row, "quantity predicted low high measured inside") for row in verification.rows]
    load = (
        f"{result.request_rate_per_s:.4g} req/s"
        if result.request_rate_per_s
        else f"{result.concurrency:.4g} requests in flight"
        if result.concurrency
        else f"{verification.share:.3g} of the planned traffic"
        if verification.share
        else "all requests at once"
    )
    of = f"{verification.replicas} replica{'s' if verification.replicas > 1 else ''}"
    return Answer(
        command="verify-plan",
        result={
            "rows": rows,
            "targets": list(verification.targets),
            "verdict": verdict,
            "lengths": verification.lengths,
            "recalibrate": list(verification.culprits),
            "next_settings": list(settings),
            "as_measured": verification.as_measured,
        },
        tables=(
            Table([_measured_row(row) for row in rows], title=f"Predicted and measured, {load} on {of}"),
            Table([_target(**target) for target in verification.targets], title="Targets of the plan"),
        ),
        csv_rows=rows,
        headline=f"{asked.scenario.name}: {_WORDS[verdict]}"
        + (f"; missed: {', '.join(target['target'] for target in missed)}" if missed else ""),
        closing=tuple(_closing(asked, plan, verification, settings, results)),
        assumptions=(*asked.assumptions, _LENGTHS[verification.lengths]),
        warnings=(*asked.warnings, *result.notes),
        exit_code=4 if verdict == "slower" or missed else 0,
    )


def _measured_row(row: dict[str, Any]) -> dict[str, Any]:
    latency = str(row["quantity"]).partition(".")[0] in LATENCIES
    screen = screen_of("s" if latency else "count", [row["predicted"], row["measured"]])
    shown = {
        name: shown_number(row[name], screen.factor) for name in ("predicted", "low", "high", "measured")
    }
    return {
        "quantity": row["quantity"],
        **shown,
        "unit": screen.unit if latency else _RATES[str(row["quantity"])],
        "inside": row["inside"],
    }


def _target(target: str, limit_s: float, measured_s: float, *, holds: bool) -> dict[str, Any]:
    screen = screen_of("s", [limit_s, measured_s])
    return {
        "target": target,
        "limit": shown_number(limit_s, screen.factor),
        "measured": shown_number(measured_s, screen.factor),
        "unit": screen.unit,
        "holds": holds,
    }


def _closing(
    asked: AskedFleet,
    plan: Plan,
    verification: Verification,
    settings: tuple[str, ...],
    results: tuple[Path, ...],
) -> Iterator[str]:
    """Yield what to recalibrate, and the next version of the scenario."""
    yield from (
        f"recalibrate: {cause}" for cause in dict.fromkeys(_CAUSES[name] for name in verification.culprits)
    )
    yield from _machines(plan, verification)
    if verification.verdict != "holds":
        yield _calibrating(asked, plan, verification, results)
    if settings:
        yield f"next version: capplan fleet {asked.scenario.command_words(*settings)}"


def _calibrating(asked: AskedFleet, plan: Plan, verification: Verification, results: tuple[Path, ...]) -> str:
    """Return the command that calibrates from the measurement, with all settings of the replica that was measured."""
    group, result = plan.single, verification.result
    spec = spec_of_layout(group.layout, asked.question)
    replica = replica_words(asked.scenario, spec, group.weight_dtype)
    own = ["--model", asked.scenario.model, *replica, "-o", CALIBRATION_FILE]
    if not verification.fits_means:
        return "the means are as predicted and only the tail is not: a calibration fits means, so repeat the run for longer"
    what, source = "with this server", ["--endpoint", result.path]
    if results:
        what, source = "with this result", ["--from", str(results[0])]
        if result.tool == PROMETHEUS or verification.replicas > 1:
            what, source = "with a benchmark of one replica, in a file RESULT", ["--from", "RESULT"]
    return f"{what}: {shlex.join(['capplan', 'calibrate', *source, *own])}"


def _machines(plan: Plan, verification: Verification) -> Iterator[str]:
    """Yield what the measured speed means for the number of GPUs."""
    group, seen = plan.single, verification.as_measured
    planned = _in_service(group.busy_replicas, group.gpus)
    if verification.verdict == "holds":
        yield f"the replica is as fast as predicted: {planned}, as planned"
    elif seen is not None:
        counted = "no number of such replicas meets the targets"
        if seen["gpus"] is not None:
            now = _in_service(seen["busy_replicas"], seen["gpus"])
            counted = f"{now} to meet the targets with headroom; planned: {planned}"
        yield f"steps take {seen['slowness']:.2g} times as long as predicted: {counted}"


def _in_service(busy: int, gpus: int) -> str:
    return f"{busy} busy replica{'s' if busy > 1 else ''} on {gpus} GPU{'s' if gpus > 1 else ''}"
