"""Numbers that commands print, by their path, and what `capplan explain` shows of one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from capplan.errors import InputError, unknown
from capplan.explain.comparison import bill_group, comparison_group
from capplan.explain.outlook import (
    commitments_group,
    demand_group,
    energy_group,
    growth_group,
    prices_by_term_group,
    total_cost_group,
)
from capplan.explain.plans import (
    Group,
    Planned,
    certainty_group,
    explained_quantity,
    next_steps_group,
    of_plan,
    plans_group,
    subject_of,
    tight_target_group,
)
from capplan.explain.simulated import simulation_group
from capplan.explain.subject import Explained, labelled, listed_path, name_of
from capplan.questions.money.ledger import term_prices
from capplan.report.answer import Answer, Table, columns, row_of
from capplan.report.answers.fleet_words import next_steps_result, purchase_text
from capplan.report.quantities import plan_path, unexplained
from capplan.report.screen_units import is_number, unit_of
from capplan.workload.request_class import METRICS, STATISTICS

GROUPS: Mapping[str, Callable[[Planned], Group]] = {
    "certainty": certainty_group,
    "plans": plans_group,
    "next_steps": next_steps_group,
    "tight_target": tight_target_group,
    "demand": demand_group,
    "total_cost": total_cost_group,
    "prices_by_term": prices_by_term_group,
    "energy": energy_group,
    "growth": growth_group,
    "commitments": commitments_group,
    "bill": bill_group,
    "compare": comparison_group,
    "simulate": simulation_group,
}
"""Name of a group -> its numbers: keys of the result of `fleet`, or another command."""


def groups_of(planned: Planned) -> tuple[str, ...]:
    """Return the groups that a scenario and its plan have."""
    scenario, answer = planned.asked.scenario, planned.answer
    there = {
        "certainty": bool(answer.certainty),
        "plans": bool(answer.plans),
        "next_steps": next_steps_result(answer) is not None,
        "tight_target": answer.tight is not None,
        "total_cost": planned.plan.usd_per_month is not None,
        "prices_by_term": bool(term_prices(scenario, planned.plan)),
        "energy": scenario.file.energy is not None,
        "growth": bool(scenario.growth),
        "commitments": scenario.file.commitments is not None,
    }
    return tuple(name for name in GROUPS if there.get(name, True))


def printed(planned: Planned, path: str | None) -> Explained | dict[str, float]:
    """Return the number at a path explained, or the numbers below it, by their path; without a path those of the plan.

    Raises
    ------
    InputError
        nothing is printed at the path, or the scenario does not ask for it
    """
    found = _found(planned, path)
    return labelled(found, planned.asked.scenario.written) if isinstance(found, Explained) else found


def _found(planned: Planned, path: str | None) -> Explained | dict[str, float]:
    """Return what `printed` returns, before the labels of keys that the scenario does not state are corrected."""
    if path is None:
        return subject_of(planned.asked, planned.plan).numbers
    path = plan_path(of_target(path))
    if why := unexplained(path):
        raise InputError(f"{path}: {why}")
    name = _first(path)
    if name not in GROUPS:
        whole = subject_of(planned.asked, planned.plan)
        return explained_quantity(whole, listed_path(path, whole.numbers))
    if name not in groups_of(planned):
        there = ", ".join(groups_of(planned))
        raise InputError(
            f"{path}: {planned.asked.scenario.name} does not ask for it\n  in addition to its plan there is: {there}"
        )
    group = GROUPS[name](planned)
    places = {name_of((name, *place)): place for place in group.numbers}
    path = listed_path(path, places)
    if path in places:
        return replace(group.explain(places[path], group.numbers[places[path]]), quantity=path)
    for row, subject in group.plans.items():
        inner = path.removeprefix(f"{row}.")
        if inner != path and inner in (plan := subject()).numbers:
            return of_plan(row, plan, inner)
    below = {
        each: group.numbers[place]
        for each, place in places.items()
        if each.startswith((f"{path}.", f"{path}["))
    }
    if not below:
        raise unknown("quantity", path, places, hint=f"all of them: capplan explain PLAN {name}")
    return below


def of_target(path: str) -> str:
    """Return the path of the latency that a target limits; any other path as it is.

    Examples
    --------
    >>> of_target("ttft_p95"), of_target("slo.tpot_p99"), of_target("gpus")
    ('ttft_s.p95', 'tpot_s.p99', 'gpus')
    """
    metric, _, statistic = path.removeprefix("slo.").partition("_")
    return f"{metric}_s.{statistic}" if metric in METRICS and statistic in STATISTICS else path


def _first(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


ORIGINS = {
    "spec": "as published",
    "config": "as stated",
    "derived": "computed",
    "measured": "predicted from measured numbers",
    "assumed": "predicted from assumptions",
}
"""Label of the weakest number that a result rests on -> what the result is."""
_LISTED = "quantity value unit formula label page"
FEW_STEPS = 4
"""Steps whose inputs are shown too; JSON has those of all."""


def explain_answer(planned: Planned, quantity: str | None) -> Answer:
    """Return a number explained, or the list of numbers."""
    asked, fleet = planned.asked, purchase_text(planned.plan)
    name = asked.scenario.name
    explained = printed(planned, quantity)
    if isinstance(explained, dict):
        return _list_answer(planned, explained, quantity)
    of_fleet = "" if _first(explained.quantity) in ("certainty", "plans") else f"of {fleet}; "
    listed = row_of(explained, _LISTED)
    inputs = [asdict(each) for each in explained.inputs]
    steps = [
        {**row_of(step, _LISTED), "inputs": [asdict(each) for each in step.inputs]}
        for step in explained.steps
    ]
    below = [{"quantity": step["quantity"], **row} for step in steps for row in step["inputs"]]
    few = len(steps) <= FEW_STEPS
    unit = "" if explained.unit == "-" else f" {explained.unit}"
    return Answer(
        command="explain",
        result={**listed, "inputs": inputs, "steps": steps},
        tables=(
            Table(_exact(inputs), title="Inputs"),
            Table(_exact(steps), title="Steps before it", shown=columns("quantity value unit formula label")),
            Table(
                _exact(below if few else []),
                title="Inputs of these steps",
                spare=("symbol", "label", "source"),
            ),
        ),
        csv_rows=[{"kind": "result", **listed}, *({"kind": "input", **row} for row in inputs)],
        headline=f"{name}: {explained.quantity} = {_digits(explained.value)}{unit} ({ORIGINS[explained.label]})",
        closing=(f"formula: {explained.formula}", f"{of_fleet}more: {explained.page}"),
        assumptions=asked.assumptions,
        warnings=asked.warnings,
    )


def _list_answer(planned: Planned, numbers: Mapping[str, float], path: str | None) -> Answer:
    asked = planned.asked
    rows = [{"quantity": name, "value": value, "unit": unit_of(name)} for name, value in numbers.items()]
    groups = groups_of(planned)
    return Answer(
        command="explain",
        result={"quantities": rows, "groups": list(groups)},
        tables=(Table(_exact(rows), title="What can be explained"),),
        csv_rows=rows,
        headline=f"{asked.scenario.name}: {purchase_text(planned.plan)}",
        closing=() if path else (f"in addition to the plan, lists of their own: {', '.join(groups)}",),
        assumptions=asked.assumptions,
        warnings=asked.warnings,
    )


def _exact(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows whose values are text with all their digits, in base units."""
    return [{**row, "value": _digits(row["value"])} for row in rows]


def _digits(value: Any) -> str:
    return f"{value:.12g}" if is_number(value) else "-"
