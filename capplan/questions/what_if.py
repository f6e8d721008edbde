"""The cheapest fleet where the load, the TTFT target, the required probability and the price of a GPU are others, all of them together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, log2

from capplan.fleet.answer import Bought, FleetAnswer
from capplan.fleet.decision import cheapest_by_confidence
from capplan.fleet.plan import Plan
from capplan.fleet.search.cheapest import Search, Sized, Terms
from capplan.fleet.search.layouts import CONFIDENCES
from capplan.fleet.search.recommended import bought_of
from capplan.fleet.sweep import FEW_RATIOS
from capplan.questions.fleet import AskedFleet, terms_of
from capplan.questions.largest_load import LoadSearch
from capplan.questions.sensitivity import at_other_traffic
from capplan.workload.request_class import Slo

LOADS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
"""Traffic over that of the scenario."""
LIMITS = (0.5, 0.75, 1.0, 1.5, 2.0)
"""TTFT targets over those of the scenario."""
PRICES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Prices of the GPU of the plan, electricity included, over those of today."""


@dataclass(frozen=True, slots=True)
class Point:
    """The cheapest fleet of one point of the grid."""

    traffic_ratio: float
    request_rate: float
    """Request rate at the peak [req/s]."""
    ttft_limit_s: float | None
    """TTFT target as a scenario states it [s]; None without one."""
    confidence: float
    gpu_price_ratio: float
    hardware: str | None
    """None, as GPUs and dollars, if no fleet meets the targets within the limits of the scenario."""
    gpus: int | None
    usd_per_month: float | None


@dataclass(frozen=True, slots=True)
class Surface:
    """The grid of one scenario."""

    plan: Plan
    """The plan as the scenario is."""
    points: tuple[Point, ...]
    target: str | None
    """Name of the TTFT target, such as ttft_p95."""
    hardware: str
    """The GPU whose price changes."""
    layouts_searched: bool
    """Whether every layout is searched at each point; else the layouts of the plan stay, and only its load changes."""


def surface_of(
    asked: AskedFleet,
    answer: FleetAnswer,
    progress: Callable[[int, int], None] | None = None,
    found: Callable[[Sequence[Point]], None] | None = None,
) -> Surface | None:
    """Return the grid around a scenario; None if it has no plan.

    Every point is a search of its own, as `fleet` does with these values; searches share what they simulate. A plan with separate pools
    or of several groups is taken at other traffic only.

    Parameters
    ----------
    asked : the question
    answer : of the search as the scenario is
    progress : takes the loads and targets that are done, and all of them
    found : takes points as they are found, those nearest to the scenario first
    """
    plan = answer.chosen
    if plan is None:
        return None
    target = next((item for item in asked.question.slo.targets if item.metric == "ttft"), None)
    key, stated = (None, None) if target is None else (target.key, target.stated_s)
    searched = not (plan.has_pools or plan.is_mix)
    if searched:
        points = _points(asked, answer, plan, progress, found)
    else:
        sure = asked.question.slo.confidence
        points = [
            Point(row.traffic_ratio, row.request_rate, stated, sure, 1.0, plan.hardware, row.gpus, row.usd)
            for row in at_other_traffic(asked, plan)
        ]
    return Surface(plan, tuple(sorted(points, key=_place)), key, plan.hardware, searched)


def _place(point: Point) -> tuple[float, ...]:
    limit = 0.0 if point.ttft_limit_s is None else point.ttft_limit_s
    return limit, point.traffic_ratio, point.confidence, point.gpu_price_ratio


def _points(
    asked: AskedFleet,
    answer: FleetAnswer,
    plan: Plan,
    progress: Callable[[int, int], None] | None,
    found: Callable[[Sequence[Point]], None] | None,
) -> list[Point]:
    """Return the cheapest fleet at each load, target, confidence and price."""
    terms, slo = terms_of(asked), asked.question.slo
    loads = FEW_RATIOS if asked.question.demand.users else LOADS
    confidences = sorted({*CONFIDENCES, slo.confidence}) if slo.targets else [slo.confidence]
    prices = PRICES if terms.priced(plan.hardware) else (1.0,)
    limits, points = _limits(slo), []
    for done, ((limit, changed), load) in enumerate(product(limits, _nearest_first(loads)), 1):
        at_limit = replace(asked, question=replace(asked.question, slo=changed))
        fleets = _fleets(LoadSearch(at_limit, terms).trials(load), plan.hardware, confidences)
        if load == 1.0 and changed == slo:
            fleets = {sure: [*known, *_known(answer, sure)] for sure, known in fleets.items()}
        new = [
            _point((load, plan.peak_requests_per_s * load, limit, sure, price), fleets[sure], plan.hardware)
            for sure, price in product(confidences, prices)
        ]
        points += new
        if found:
            found(new)
        if progress:
            progress(done, len(limits) * len(loads))
    return points


def _point(
    at: tuple[float, float, float | None, float, float], fleets: Sequence[Bought], hardware: str
) -> Point:
    """Return a point of the grid: the fleet that costs least if the GPUs of a device cost as many times as much as the point says."""
    best = _cheapest(fleets, hardware, at[-1])
    return (
        Point(*at, None, None, None)
        if best is None
        else Point(*at, best.hardware, best.gpus, best.usd_per_month)
    )


def _nearest_first(ratios: Sequence[float]) -> list[float]:
    """Return ratios in the order in which they are searched: as it is first."""
    return sorted(ratios, key=lambda ratio: abs(log2(ratio)))


def _limits(slo: Slo) -> list[tuple[float | None, Slo]]:
    """Return each TTFT target as a scenario states it, with the targets that it makes; all TTFT targets change together."""
    first = next((item for item in slo.targets if item.metric == "ttft"), None)
    if first is None:
        return [(None, slo)]
    found: list[tuple[float | None, Slo]] = []
    for ratio in _nearest_first(LIMITS):
        changed = tuple(
            replace(item, limit_s=ratio * item.stated_s - item.outside_s)
            if item.metric == "ttft" and ratio != 1.0
            else item
            for item in slo.targets
        )
        if all(item.limit_s > 0.0 for item in changed):
            found.append((ratio * first.stated_s, replace(slo, targets=changed)))
    return found


def _fleets(trials: Search, hardware: str, confidences: Sequence[float]) -> dict[float, list[Bought]]:
    """Return by confidence the cheapest fleet of one device, and the cheapest of all others that may cost less at another price."""
    mine, others = (
        trials.among(item for item in trials.candidates if (item.layout.device.name == hardware) == of_it)
        for of_it in (True, False)
    )
    own = cheapest_by_confidence(mine, confidences)
    most = {confidence: max(PRICES) * _cost(fleet, trials.terms) for confidence, fleet in own.items()}
    rest = cheapest_by_confidence(others, confidences, under=most)
    return {
        confidence: [
            bought_of(fleet, fleet.busy, trials.terms)
            for fleet in (own[confidence], rest[confidence])
            if fleet is not None
        ]
        for confidence in confidences
    }


def _cost(fleet: Sized | None, terms: Terms) -> float:
    usd = None if fleet is None else terms.usd_per_hour(fleet.layout, fleet.busy)
    return inf if usd is None else usd


def _known(answer: FleetAnswer, confidence: float) -> list[Bought]:
    """Return the fleet that the answer has for a confidence."""
    return [
        Bought(row.hardware, row.gpus, row.usd_per_month)
        for row in answer.certainty
        if row.confidence == confidence and row.hardware is not None and row.gpus is not None
    ]


def _cheapest(found: Sequence[Bought], hardware: str, price: float) -> Bought | None:
    """Return the fleet that costs least, or has the fewest GPUs without a price, if the GPUs of a device cost some times as much."""
    priced = [
        replace(item, usd_per_month=item.usd_per_month * price)
        if item.hardware == hardware and item.usd_per_month is not None
        else item
        for item in found
    ]
    return min(
        priced,
        key=lambda item: (inf if item.usd_per_month is None else item.usd_per_month, item.gpus),
        default=None,
    )
