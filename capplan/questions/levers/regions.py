"""Where machines are: one fleet for the users of all regions, in each of these, against a fleet in each region for its own users."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from capplan.errors import CapplanError
from capplan.fleet.load.demand import demand_of_classes
from capplan.fleet.plan import Plan, RoutedRequests
from capplan.questions.fleet import AskedFleet
from capplan.questions.levers.lever import Base, Lever, LeverRow, first_line, idle, lever_row
from capplan.questions.mix import mix_plan
from capplan.questions.money.energy import asked_energy

NAME, EACH = "regions", "a fleet in each region, for its own users"
Planned = Callable[[Sequence[str]], tuple[AskedFleet, Plan | None]]
"""A question with more keys overridden, and its plan; None if no plan meets the targets."""


def region_rows(planned: Planned, base: Base) -> list[LeverRow]:
    """Return the other places for the machines of all users, and a fleet in each region.

    Parameters
    ----------
    planned : asks a changed scenario
    base : the scenario as it is: one fleet
    """
    names, why = [region.name for region in base.file.regions], ""
    if len(names) < 2:
        why = "the scenario has fewer than two regions; see regions and traffic[].region"
    elif base.file.fleet.serves == "location":
        why = "the fleet serves the users of one region; leave fleet.serves out"
    if why:
        return [lever_row(idle(NAME, EACH, why), None, base.plan)]
    return [*_elsewhere(planned, base, names), _in_each(planned, base, names)]


def kg_co2_per_month(asked: AskedFleet, plan: Plan | None) -> float | None:
    """Return the carbon dioxide of the electricity of a plan; None if a scenario does not state what it takes to say it."""
    found = None if plan is None else asked_energy(asked, plan)
    return None if found is None or found.energy is None else found.energy.kg_co2


def _elsewhere(planned: Planned, base: Base, names: Sequence[str]) -> Iterator[LeverRow]:
    """Yield one fleet for the users of all regions, with its machines in each region; the plan as it is is left out."""
    for name in names:
        settings = (f"fleet.location={json.dumps(name)}",)
        risk = "users of other regions wait longer for a first token: the delay is a part of the targets"
        lever = Lever(NAME, f"one fleet for all users, in {name}", settings, risk)
        try:
            asked, plan = planned(settings)
        except CapplanError as error:
            yield lever_row(idle(NAME, lever.change, first_line(error)), None, base.plan)
            continue
        if asked.scenario.classes == base.asked.scenario.classes:  # where the machines are
            continue
        row = lever_row(lever, plan, base.plan, "no plan meets the targets")
        yield replace(row, kg_co2_per_month=kg_co2_per_month(asked, plan))


def _in_each(planned: Planned, base: Base, names: Sequence[str]) -> LeverRow:
    """Return the fleets of all regions together, each sized for the busiest hour of its own users."""
    homes = {item.region for item in base.file.traffic}
    parts: dict[str, tuple[AskedFleet, Plan]] = {}
    risk = "users are sent to the fleet of their region; plan each with fleet.serves=location and fleet.location=NAME"
    for name in names:
        if name not in homes:
            continue
        try:
            asked, plan = planned((f"fleet.location={json.dumps(name)}", "fleet.serves=location"))
        except CapplanError as error:
            return lever_row(idle(NAME, EACH, first_line(error)), None, base.plan)
        if plan is None:
            return lever_row(
                Lever(NAME, EACH, risk=risk), None, base.plan, f"no plan meets the targets in {name}"
            )
        parts[name] = asked, plan
    if any(len(plan.groups) > 1 for _, plan in parts.values()):
        why = "fleets of separate pools or of a mix are not added up; plan each with fleet.serves=location"
        return lever_row(idle(NAME, EACH, why), None, base.plan)
    fleets = ", ".join(f"{plan.gpus} x {plan.hardware} in {name}" for name, (_, plan) in parts.items())
    lever = Lever(NAME, f"a fleet in each region: {fleets}", risk=risk)
    each = [kg_co2_per_month(*part) for part in parts.values()]
    kg = None if None in each else sum(filter(None, each))
    return replace(lever_row(lever, _together(parts), base.plan), kg_co2_per_month=kg)


def _together(parts: dict[str, tuple[AskedFleet, Plan]]) -> Plan:
    """Return the fleets of several regions as one plan, each with the requests of its own users."""
    total = sum(plan.peak_requests_per_s for _, plan in parts.values())
    classes = tuple(item for asked, _ in parts.values() for item in asked.scenario.classes)
    plans = []
    for asked, plan in parts.values():
        names = tuple(item.name for item in asked.scenario.classes)
        requests = RoutedRequests(names, plan.peak_requests_per_s / total)
        plans.append(replace(plan, groups=(replace(plan.single, requests=requests),)))
    return mix_plan(demand_of_classes(classes), plans)
