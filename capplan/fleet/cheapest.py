"""The cheapest fleet for a scenario: search all plans in closed form, confirm the cheapest by simulation."""

from collections.abc import Callable, Mapping
from itertools import zip_longest
from math import inf

import numpy as np

from capplan.errors import Reason, Refusal
from capplan.fleet.finalists import confirmed_plan, replicas_needed
from capplan.fleet.plan import FleetAnswer, FleetPlan, Rejection
from capplan.fleet.price import ChosenPrice
from capplan.fleet.search import Question, SearchResult, SizedLayout, search

FINALISTS = 12
"""Plans that are shown, each confirmed by simulation."""

MOST_SIMULATED = 24
"""Layouts that are simulated at most."""

_SIMULATED = Reason(Refusal.SIMULATION, "misses a target when simulated with the scenario's own lengths")


def expected_cost(
    candidate: SizedLayout,
    question: Question,
    headroom_fraction: float,
    spare_replicas: int,
    price: ChosenPrice | None,
) -> float:
    """Return dollars per hour of a layout before it is simulated; devices count where there is no price."""
    total = float(question.demand.request_rate_per_s(np.asarray(candidate.response_s)))
    replicas = replicas_needed(total, candidate.request_rate_limit, headroom_fraction) + spare_replicas
    devices = replicas * candidate.layout.devices
    return devices * price.total_usd_per_hour if price else 1e6 + devices


def round_robin_by_device(result: SearchResult, cost: Callable[[SizedLayout], float]) -> list[SizedLayout]:
    """Return the layouts in the order in which they are simulated: each device's cheapest, then its next, and so on."""
    by_device: dict[str, list[SizedLayout]] = {}
    for candidate in sorted(result.found, key=cost):
        by_device.setdefault(candidate.layout.device.name, []).append(candidate)
    return [
        candidate for turn in zip_longest(*by_device.values()) for candidate in turn if candidate is not None
    ]


def cheapest_fleet(
    question: Question,
    *,
    headroom_fraction: float,
    spare_replicas: int,
    prices: Mapping[str, ChosenPrice | None],
    max_devices: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FleetAnswer:
    """Return the plans that serve the scenario, cheapest first, and what was rejected and why."""
    result = search(question)

    def cost(candidate: SizedLayout) -> float:
        price = prices.get(candidate.layout.device.name)
        return expected_cost(candidate, question, headroom_fraction, spare_replicas, price)

    plans: list[FleetPlan] = []
    rejected = dict(result.rejected)
    waiting = round_robin_by_device(result, cost)[:MOST_SIMULATED]
    for done, found in enumerate(waiting):
        if len(plans) >= FINALISTS:
            break
        plan = confirmed_plan(
            found, question, headroom_fraction=headroom_fraction, spare_replicas=spare_replicas, prices=prices
        )
        name = found.layout.device.name
        if plan is None:
            key = (name, _SIMULATED)
            rejected[key] = rejected.get(key, 0) + 1
        elif max_devices is not None and plan.gpus > max_devices:
            key = (name, Reason(Refusal.FLEET_SIZE, f"needs more than the {max_devices} devices allowed"))
            rejected[key] = rejected.get(key, 0) + 1
        else:
            plans.append(plan)
        if progress:
            progress(done + 1, len(waiting))
    plans.sort(
        key=lambda plan: (
            plan.usd_per_hour if plan.usd_per_hour is not None else inf,
            plan.gpus if plan.usd_per_hour is None else 0,
            -plan.slo_met_probability,
            plan.gpus,
        )
    )
    rows = sorted(rejected.items(), key=lambda item: (item[0][0], -item[1]))
    relaxations = sorted(result.relaxations, key=lambda r: r.needed_s / r.limit_s)
    return FleetAnswer(
        tuple(plans),
        tuple(Rejection(hardware, why.words, count, why.code) for (hardware, why), count in rows),
        result.evaluated,
        tuple(relaxations[:3]) if not plans else (),
    )
