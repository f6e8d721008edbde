"""The answer of a fleet search: the plans of every device, three choices, the recommendation, and the cost of confidence."""

from collections.abc import Callable
from dataclasses import replace
from math import floor, inf, log10

from capplan.errors import Refusal
from capplan.fleet.candidates import Rejections
from capplan.fleet.cheapest import Search, Sized, Terms, busy_replicas
from capplan.fleet.confirmed import cost_range, met_probability, plan_of
from capplan.fleet.plan import (
    Certainty,
    Choices,
    FleetAnswer,
    FleetPlan,
    Insensible,
    Rejection,
)
from capplan.fleet.price import usd_per_month
from capplan.fleet.search import CONFIDENCES, RATE_SLACK, Question, search
from capplan.fleet.trial import Trial

SENSIBLE_SHARE = 0.1
"""A device is worth a row if it keeps at least this fraction of its maximum throughput under the targets."""
RELAXED = (1.75, 2.75)
"""Relaxed limits for which GPUs are counted instead, as multiples of the latency of an idle replica."""
SUREST_WITHIN = 1.25
"""The surest plan may cost at most this times as much as the cheapest."""
SMALL_EXTRA = 1.05
"""A plan that costs less than this times as much as the cheapest is recommended ..."""
CLEARLY_SURER = 0.05
"""... if its probability to meet the targets is higher by at least this."""


def fleet_decision(
    question: Question, terms: Terms, progress: Callable[[int, int], None] | None = None
) -> FleetAnswer:
    """Return the plans that serve the scenario, cheapest first, the recommendation, and what was rejected and why."""
    result = search(question)
    trials = Search(question, result.candidates, terms)
    rejected, done = result.rejected.copy(), 0
    steps = len(question.devices) + 1 + len(CONFIDENCES)

    def step() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(min(done, steps), steps)

    best = []
    for device in question.devices:
        item = trials.best_of(device.name, question.slo.confidence, rejected)
        best += [item] if item else []
        step()
    best.sort(key=lambda item: _rank(item, terms))
    poor = [item for item in best[1:] if not _sensible(item, trials)]
    insensible = tuple(_insensible(item.trial, item.gpus, terms) for item in poor)
    insensible += _without_plan(trials, best, rejected)
    sized = [item for item in best if item not in poor]
    if sized:
        step()
        near = trials.within(SUREST_WITHIN * _rank(best[0], terms)[0], question.slo.confidence)
        shown = {id(item.trial) for item in best}
        sized += [item for item in near if id(item.trial) not in shown]
    surest = _surest_first(trials, terms, step) if sized and question.slo.targets else {}
    surer = surest.get(min((c for c in CONFIDENCES if c >= question.slo.confidence), default=1.0))
    if surer is not None and _rank(surer, terms)[0] < _rank(best[0], terms)[0]:
        sized.append(surer)
    sized.sort(key=lambda item: _rank(item, terms))
    pairs = [(item, _with_range(plan_of(item, terms), item, terms)) for item in sized]
    pairs.sort(key=lambda pair: (_cost_of(pair[1]), pair[1].gpus, -pair[1].slo_met_probability))
    rows = sorted(rejected.items(), key=lambda entry: (entry[0][0], -entry[1]))
    return FleetAnswer(
        tuple(plan for _, plan in pairs),
        tuple(Rejection(hardware, why.words, count, why.code) for (hardware, why), count in rows if count),
        result.evaluated,
        () if pairs else tuple(sorted(result.relaxations, key=lambda r: r.needed_s / r.limit_s)[:3]),
        _choices_of(pairs, terms) if pairs else None,
        tuple(_certainty(confidence, surest[confidence], terms) for confidence in CONFIDENCES if surest),
        insensible,
    )


def _rank(item: Sized, terms: Terms) -> tuple[float, int, int, str]:
    """Return the sort key of plans: cost if known, then GPUs."""
    hourly = terms.hourly(item.trial.candidate.layout.device.name)
    cost = inf if hourly is None else hourly * item.gpus
    return cost, item.gpus, item.busy, item.trial.candidate.layout.in_words("")


def _with_range(plan: FleetPlan, item: Sized, terms: Terms) -> FleetPlan:
    costs = cost_range(item, terms)
    return plan if costs is None else replace(plan, usd_per_month_low=costs[0], usd_per_month_high=costs[1])


def _choices_of(pairs: list[tuple[Sized, FleetPlan]], terms: Terms) -> Choices:
    """Return the cheapest plan, the surest for at most a quarter more, the one with the fewest GPUs, and the recommended one.

    Parameters
    ----------
    pairs : plans, cheapest first, at least one
    terms : prices

    Returns
    -------
    the choices; the recommended one is the cheapest, unless another costs under 5 % more and is at least 5 points surer to
    meet its targets
    """
    plans = [plan for _, plan in pairs]
    cheapest = plans[0]
    fewest = min(plans, key=lambda plan: plan.gpus)
    surest = _surest(pairs, terms)
    if not pairs[0][0].trial.limits:
        return Choices(cheapest, surest, fewest, cheapest, "it is the cheapest; no target could be missed")
    recommended, why = cheapest, "it is the cheapest, and none that costs under 5 % more is clearly surer"
    near = [plan for plan in (*plans, surest) if _cost(plan) < SMALL_EXTRA * _cost(cheapest)]
    best = max(near, key=lambda plan: plan.slo_met_probability, default=cheapest)
    if best.slo_met_probability >= cheapest.slo_met_probability + CLEARLY_SURER:
        extra = _cost(best) / _cost(cheapest) - 1.0
        gain = 100.0 * (best.slo_met_probability - cheapest.slo_met_probability)
        recommended, why = best, f"it costs {extra:.1%} more than the cheapest and is {gain:.0f} points surer"
    return Choices(cheapest, surest, fewest, recommended, why)


def _cost(plan: FleetPlan) -> float:
    return plan.usd_per_hour if plan.usd_per_hour is not None else float(plan.gpus)


def _cost_of(plan: FleetPlan) -> float:
    return inf if plan.usd_per_hour is None else plan.usd_per_hour


def _surest(pairs: list[tuple[Sized, FleetPlan]], terms: Terms) -> FleetPlan:
    """Return the surest plan for at most a quarter more than the cheapest; replicas may be added up to that cost."""
    cheapest = pairs[0][1]
    best = cheapest
    for item, plan in pairs:
        if (plan.usd_per_hour is None) != (cheapest.usd_per_hour is None):
            continue
        each = _cost(plan) / plan.replicas
        most = floor(SUREST_WITHIN * _cost(cheapest) / each + 1e-9) - terms.spare_replicas
        limit = terms.most_devices(plan.layout.device.name)
        if limit < inf:
            most = min(most, int(limit) // plan.layout.devices - terms.spare_replicas)
        if most < item.busy:
            continue
        top = met_probability(item.trial, most)
        if top <= best.slo_met_probability + 0.01:
            continue
        busy = next(n for n in range(item.busy, most + 1) if met_probability(item.trial, n) >= top - 0.01)
        gpus = (busy + terms.spare_replicas) * plan.layout.devices
        best = plan_of(Sized(item.trial, busy, gpus), terms)
    return best


def _surest_first(trials: Search, terms: Terms, step: Callable[[], None]) -> dict[float, Sized | None]:
    """Return the cheapest fleet at each of CONFIDENCES; a surer fleet that costs less stands for lower confidences too.

    Under open-loop traffic a surer fleet never costs less; with users, each slowness is simulated separately, with separate
    noise.
    """
    fleets: dict[float, Sized | None] = {}
    surer: Sized | None = None
    for confidence in sorted(CONFIDENCES, reverse=True):
        item = trials.cheapest(confidence)
        if item is None or (surer is not None and _rank(surer, terms)[:2] < _rank(item, terms)[:2]):
            item = surer
        fleets[confidence] = surer = item
        step()
    return fleets


def _certainty(confidence: float, item: Sized | None, terms: Terms) -> Certainty:
    if item is None:
        return Certainty(confidence, None, None, None)
    name = item.trial.candidate.layout.device.name
    hourly = terms.hourly(name)
    return Certainty(
        confidence, name, item.gpus, None if hourly is None else float(usd_per_month(hourly * item.gpus))
    )


def _sensible(item: Sized, trials: Search) -> bool:
    """Return whether a device keeps a tenth of its maximum throughput under the targets, or one replica is enough."""
    mine = item.trial.candidate.layout
    most = max(
        other.share_ceiling / RATE_SLACK / other.layout.devices
        for other in trials.candidates
        if other.layout.device.name == mine.device.name
    )
    return item.busy == 1 or 1.0 / (item.busy * mine.devices) >= SENSIBLE_SHARE * most


def _without_plan(trials: Search, best: list[Sized], rejected: Rejections) -> tuple[Insensible, ...]:
    """Return the devices that pass the screening but meet the targets at no simulated load.

    Those that would meet them with more devices than their number or their cost may be are left out.
    """
    rows = []
    limited = {
        name
        for (name, why), count in rejected.items()
        if count and why.code in (Refusal.FLEET_SIZE, Refusal.BUDGET)
    }
    met = {item.trial.candidate.layout.device.name for item in best}
    for name in dict.fromkeys(item.layout.device.name for item in trials.candidates):
        if name not in met and name not in limited and trials.question.slo.targets:
            mine = [item for item in trials.candidates if item.layout.device.name == name]
            nearest = max(mine, key=lambda item: item.share_bound / item.layout.devices)
            rows.append(_insensible(trials.trial(nearest), None, trials.terms))
    return tuple(rows)


def _insensible(trial: Trial, gpus: int | None, terms: Terms) -> Insensible:
    idle = trial.at(
        trial.total_rate * 1e-3 if not trial.demand.users else trial.total_rate / trial.demand.users, 16
    )
    target = max(trial.limits, key=lambda t: idle.value(t) / t.limit_s)
    value = idle.value(target)
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
