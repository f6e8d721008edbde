"""The answer of a fleet search: the plans of every device, three choices, the recommendation, and the cost of confidence."""

from collections.abc import Callable
from dataclasses import replace
from math import floor, isfinite, log10

from capplan.errors import Refusal
from capplan.fleet.plan import (
    Certainty,
    Choices,
    FleetAnswer,
    FleetPlan,
    Insensible,
)
from capplan.fleet.price import usd_per_month
from capplan.fleet.question import Question
from capplan.fleet.search.candidates import Rejections, rejection_rows
from capplan.fleet.search.cheapest import Search, Sized, Terms, busy_replicas
from capplan.fleet.search.confirmed import cost_range, plan_of
from capplan.fleet.search.layouts import CONFIDENCES, search
from capplan.fleet.search.recommended import by_cost, rank, recommended, sensible, surest_within
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.search.trial import Trial

RELAXED = (1.75, 2.75)
"""Relaxed limits for which GPUs are counted instead, as multiples of the latency of an idle replica."""
SUREST_WITHIN = 1.25
"""The surest plan may cost at most this times as much as the cheapest."""


def fleet_decision(
    question: Question,
    terms: Terms,
    progress: Callable[[int, int], None] | None = None,
    cache: SearchCache | None = None,
) -> FleetAnswer:
    """Return the plans that serve the scenario, cheapest first, the recommendation, and what was rejected and why.

    Searches of similar questions share what they simulate by the same `cache`.
    """
    result = search(question)
    trials = Search(question, result.candidates, terms, cache)
    rejected, done = result.rejected.copy(), 0
    steps = len(question.devices) + 1 + len(CONFIDENCES)

    def step() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(min(done, steps), steps)

    best = []
    for device in question.devices:
        fleet = trials.best_of(device.name, question.slo.confidence, rejected)
        best += [fleet] if fleet else []
        step()
    best.sort(key=lambda fleet: rank(fleet, terms))
    poor = [fleet for fleet in best[1:] if not sensible(fleet, trials)]
    insensible = [_insensible(fleet.trial, fleet.gpus, terms) for fleet in poor]
    insensible += _without_plan(trials, best, rejected)
    sized = [fleet for fleet in best if fleet not in poor]
    if sized:
        step()
        near = trials.within(SUREST_WITHIN * rank(best[0], terms)[0], question.slo.confidence)
        shown = {id(fleet.trial) for fleet in best}
        sized += [fleet for fleet in near if id(fleet.trial) not in shown]
    surest = _surest_first(trials, terms, step, best[0]) if sized and question.slo.targets else {}
    surer = surest.get(min((c for c in CONFIDENCES if c >= question.slo.confidence), default=1.0))
    if surer is not None and rank(surer, terms)[0] < rank(best[0], terms)[0]:
        sized.append(surer)
    sized.sort(key=lambda fleet: rank(fleet, terms))
    pairs = [(fleet, _with_range(plan_of(fleet, terms), fleet, terms)) for fleet in sized]
    pairs.sort(key=by_cost)
    return FleetAnswer(
        tuple(plan for _, plan in pairs),
        rejection_rows(rejected),
        result.evaluated,
        () if pairs else tuple(sorted(result.relaxations, key=lambda r: r.needed_s / r.limit_s)[:3]),
        _choices_of(pairs, terms) if pairs else None,
        tuple(_certainty(confidence, surest[confidence], terms) for confidence in CONFIDENCES if surest),
        tuple(row for row in insensible if row is not None),
    )


def _with_range(plan: FleetPlan, fleet: Sized, terms: Terms) -> FleetPlan:
    costs = cost_range(fleet, terms)
    return plan if costs is None else replace(plan, usd_per_month_low=costs[0], usd_per_month_high=costs[1])


def _choices_of(pairs: list[tuple[Sized, FleetPlan]], terms: Terms) -> Choices:
    """Return the cheapest plan, the surest for at most a quarter more, the one with the fewest GPUs, and the recommended one.

    Parameters
    ----------
    pairs : plans, cheapest first, at least one
    terms : prices

    Returns
    -------
    the choices
    """
    plans = [plan for _, plan in pairs]
    surest = surest_within(pairs, terms, SUREST_WITHIN) if pairs[0][0].trial.limits else plans[0]
    return Choices(plans[0], surest, min(plans, key=_whole_gpus), *recommended(pairs, terms))


def _whole_gpus(plan: FleetPlan) -> float:
    """Return the GPUs of a plan, slices as their part of one."""
    cut = plan.layout.device.partition
    return plan.gpus / (cut.per_device if cut else 1)


def _surest_first(
    trials: Search, terms: Terms, step: Callable[[], None], planned: Sized
) -> dict[float, Sized | None]:
    """Return the cheapest fleet at each of CONFIDENCES; a surer fleet that costs less stands for lower confidences too.

    The `planned` fleet is one of the confidence asked for.

    Under open-loop traffic a surer fleet never costs less; with users, each slowness is simulated separately, with separate
    noise.
    """
    fleets: dict[float, Sized | None] = {}
    surer: Sized | None = None
    for confidence in sorted(CONFIDENCES, reverse=True):
        enough = planned if confidence <= trials.question.slo.confidence else None
        known = [fleet for fleet in (trials.cheapest(confidence), surer, enough) if fleet is not None]
        fleets[confidence] = surer = min(known, key=lambda fleet: rank(fleet, terms)[:2], default=None)
        step()
    return fleets


def _certainty(confidence: float, fleet: Sized | None, terms: Terms) -> Certainty:
    if fleet is None:
        return Certainty(confidence, None, None, None)
    candidate = fleet.trial.candidate
    name = candidate.layout.device.name
    hourly = terms.hourly(name)
    return Certainty(
        confidence,
        name,
        fleet.gpus,
        None if hourly is None else float(usd_per_month(hourly * fleet.gpus)),
        replicas=fleet.busy + terms.spare_replicas,
        spare_replicas=terms.spare_replicas,
        layout=candidate.layout,
        weight_dtype=candidate.weight_dtype,
    )


def _without_plan(trials: Search, best: list[Sized], rejected: Rejections) -> list[Insensible | None]:
    """Return the devices that pass the screening but meet the targets at no simulated load.

    Those that would meet them with more devices than their number or their cost may be are left out.
    """
    rows = []
    limited = {
        name
        for (name, why), count in rejected.items()
        if count and why.code in (Refusal.FLEET_SIZE, Refusal.BUDGET)
    }
    met = {fleet.trial.candidate.layout.device.name for fleet in best}
    for name in dict.fromkeys(fleet.layout.device.name for fleet in trials.candidates):
        if name not in met and name not in limited and trials.question.slo.targets:
            mine = [fleet for fleet in trials.candidates if fleet.layout.device.name == name]
            nearest = max(mine, key=lambda fleet: fleet.share_bound / fleet.layout.devices)
            rows.append(_insensible(trials.trial(nearest), None, trials.terms))
    return rows


def _insensible(trial: Trial, gpus: int | None, terms: Terms) -> Insensible | None:
    """Return the limits that would make a device sensible; None where its least load, one user and the rest, is too much for it."""
    idle = trial.at(
        trial.total_rate * 1e-3 if not trial.demand.users else trial.total_rate / trial.demand.users, 16
    )
    target = max(trial.limits, key=lambda t: idle.value(t) / t.limit_s)
    value = idle.value(target)
    if not isfinite(value):
        return None
    spares, devices = terms.spare_replicas, trial.candidate.layout.devices
    at = []
    for ratio in RELAXED:
        limit = _two_digits(value * ratio)
        busy = busy_replicas(trial, {**trial.limits, target: limit}, trial.question.slo.confidence, terms)
        if busy is not None:
            at.append((limit, (busy + spares) * devices))
    name = trial.candidate.layout.device.name
    return Insensible(name, target.key, value, target.limit_s, gpus, tuple(at))


def _two_digits(value: float) -> float:
    """Round a value to two significant digits.

    Examples
    --------
    >>> _two_digits(1.2128), _two_digits(0.0693)
    (1.2, 0.069)
    """
    return round(value, 1 - floor(log10(value)))
