"""Numbers that commands print, by their path: those of the recommended plan, and groups of others beside it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from capplan.errors import InputError, unknown
from capplan.explain.bill import bill_group
from capplan.explain.commitments import commitments_group
from capplan.explain.comparison import comparison_group
from capplan.explain.energy import energy_group
from capplan.explain.growth import growth_group
from capplan.explain.plans import PLANS, of_plan
from capplan.explain.quantities import quantities, subject_of
from capplan.explain.record import Explained, labelled
from capplan.explain.row import Group, Planned
from capplan.explain.simulated import simulation_group
from capplan.explain.steps import next_steps_group, tight_target_group
from capplan.explain.subject import name_of
from capplan.report.answers.fleet_words import next_steps_result

GROUPS: Mapping[str, Callable[[Planned], Group]] = {
    **PLANS,
    "next_steps": next_steps_group,
    "tight_target": tight_target_group,
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
        "choices": answer.choices is not None,
        "certainty": bool(answer.certainty),
        "plans": bool(answer.plans),
        "next_steps": next_steps_result(answer) is not None,
        "tight_target": answer.tight is not None,
        "energy": scenario.power is not None,
        "growth": bool(scenario.growth),
        "commitments": scenario.commitments is not None,
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
        return quantities(subject_of(planned.asked, planned.plan))
    name = _first(path)
    if name not in GROUPS:
        return planned.of_plan(path)
    if name not in groups_of(planned):
        there = ", ".join(groups_of(planned))
        raise InputError(
            f"{path}: {planned.asked.scenario.name} does not ask for it\n  beside its plan there is: {there}"
        )
    group = GROUPS[name](planned)
    places = {name_of((name, *place)): place for place in group.numbers}
    if path in places:
        return replace(group.explain(places[path], group.numbers[places[path]]), quantity=path)
    for row, subject in group.plans.items():
        inner = path.removeprefix(f"{row}.")
        if inner != path and inner in quantities(plan := subject()):
            return of_plan(row, plan, inner)
    below = {
        each: group.numbers[place]
        for each, place in places.items()
        if each.startswith((f"{path}.", f"{path}["))
    }
    if not below:
        raise unknown("quantity", path, places, hint=f"all of them: capplan explain PLAN {name}")
    return below


def is_of_another_plan(path: str) -> bool:
    """Return whether a number is not one of the recommended plan, nor follows from it."""
    return _first(path) in PLANS


def _first(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]
