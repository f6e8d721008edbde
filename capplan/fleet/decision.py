"""The answer of a fleet search: the plans of every device, three choices, the recommendation, and the cost of confidence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, isinf

from capplan.fleet.device_lines import dear_line, tight_target, without_plan
from capplan.fleet.plan import (
    Certainty,
    Choices,
    FleetAnswer,
    NextSteps,
    Plan,
    Sizing,
    Step,
    Uneconomical,
    Unproven,
    whole_gpus,
)
from capplan.fleet.price import usd_per_month
from capplan.fleet.question import Question
from capplan.fleet.search.candidates import rejection_rows
from capplan.fleet.search.cheapest import Search, Sized, Terms, busy_replicas
from capplan.fleet.search.layouts import CONFIDENCES, search
from capplan.fleet.search.recommended import (
    DEAR,
    Paid,
    best_plan,
    by_cost,
    confirmed,
    cost_range,
    met_probability,
    rank,
    recommended,
    surest_within,
)
from capplan.fleet.search.search_cache import SearchCache

SUREST_WITHIN = 1.25
"""The surest plan may cost at most this times as much as the cheapest."""


def fleet_decision(
    question: Question,
    terms: Terms,
    progress: Callable[[int, int], None] | None = None,
    cache: SearchCache | None = None,
    paid: Paid | None = None,
) -> FleetAnswer:
    """Return the plans that serve the scenario, cheapest first, the recommendation, and what was rejected and why.

    Searches of similar questions share what they simulate by the same `cache`. Where commitments pay for plans, as `paid` says, the
    recommended one is the cheapest of those found by that cost.
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

    best: dict[str, Sized] = {}
    for device in question.devices:
        if fleet := trials.best_of(device.name, question.slo.confidence, rejected):
            best[device.name] = fleet
        step()
    rows = {name: best_plan(trials, best[name]) for name in _shown(best, terms)}
    sized = sorted(rows.values(), key=lambda fleet: rank(fleet, terms))
    if sized:
        step()
        near = trials.within(SUREST_WITHIN * rank(sized[0], terms)[0], question.slo.confidence)
        shown = {id(fleet.trial) for fleet in sized}
        sized += [fleet for fleet in near if id(fleet.trial) not in shown]
    surest = _surest_first(trials, terms, step, sized[0]) if sized and question.slo.targets else {}
    surer = surest.get(min((c for c in CONFIDENCES if c >= question.slo.confidence), default=1.0))
    if surer is not None and rank(surer, terms)[0] < rank(sized[0], terms)[0]:
        sized.append(surer)
    sized.sort(key=lambda fleet: rank(fleet, terms))
    checked = [pair for pair in (confirmed(fleet, terms) for fleet in sized) if pair is not None]
    pairs = sorted(((fleet, _with_range(plan, fleet, terms)) for fleet, plan in checked), key=by_cost)
    choices = _choices_of(pairs, terms, paid) if pairs else None
    chosen = None if choices is None else _sized_as(choices.recommended, pairs)
    grown = _grown(chosen, terms)
    return FleetAnswer(
        tuple(plan for _, plan in pairs),
        rejection_rows(rejected),
        result.evaluated,
        () if pairs else tuple(sorted(result.relaxations, key=lambda r: r.needed_s / r.limit_s)[:3]),
        choices,
        _ladder(surest, pairs, grown, terms),
        uneconomical=tuple(
            dear_line(best[device.name], pairs[0][0], trials)
            if device.name in best
            else without_plan(device, result, rejected, trials)
            for device in question.devices
            if device.name not in rows
        ),
        dear=tuple(
            pair[1]
            for name, fleet in best.items()
            if name not in rows and (pair := confirmed(fleet, terms)) is not None
        ),
        tight=None if chosen is None else tight_target(chosen, trials),
        next_steps=_next_steps(chosen, grown, rows, terms),
    )


class FleetsByDevice:
    """The best fleet of each device of a question, by itself; one that nobody asks for is not confirmed."""

    def __init__(self, question: Question, terms: Terms) -> None:
        """Search every device."""
        self._result = search(question)
        self._trials, self._rejected = (
            Search(question, self._result.candidates, terms),
            self._result.rejected.copy(),
        )
        self._plans: dict[str, Plan | None] = {}
        self._sized: dict[str, Sized] = {}
        for device in question.devices:
            fleet = self._trials.best_of(device.name, question.slo.confidence, self._rejected)
            if fleet is not None:
                self._sized[device.name] = best_plan(self._trials, fleet)

    def busy(self, hardware: str) -> int | None:
        """Return the replicas without spares on a device; None where it has no plan. Confirmed plans may have more of them."""
        if hardware in self._plans:
            plan = self._plans[hardware]
            return None if plan is None else plan.single.busy_replicas
        return self._sized[hardware].busy if hardware in self._sized else None

    def plan(self, hardware: str) -> Plan | None:
        """Return the plan on a device; None where it has none."""
        if hardware not in self._plans:
            sized = self._sized.get(hardware)
            pair = None if sized is None else confirmed(sized, self._trials.terms)
            self._plans[hardware] = None if pair is None else pair[1]
        return self._plans[hardware]

    def line(self, hardware: str) -> Uneconomical:
        """Return why a device has no plan."""
        device = next(item for item in self._trials.question.devices if item.name == hardware)
        return without_plan(device, self._result, self._rejected, self._trials)


def _shown(best: Mapping[str, Sized], terms: Terms) -> list[str]:
    """Return the devices whose best plan costs at most DEAR times the cheapest; one of unknown price is shown too."""
    costs = {name: rank(fleet, terms)[0] for name, fleet in best.items()}
    least = min(costs.values(), default=inf)
    return [name for name, cost in costs.items() if isinf(cost) or cost <= DEAR * least]


def _sized_as(plan: Plan, pairs: Sequence[tuple[Sized, Plan]]) -> Sized:
    """Return the sized layout of a plan that has as many replicas as another one of the same layout, or more."""
    trial = next(
        fleet.trial
        for fleet, other in pairs
        if (other.single.layout, other.single.weight_dtype) == (plan.single.layout, plan.single.weight_dtype)
    )
    return Sized(trial, plan.single.busy_replicas, plan.gpus)


def _grown(chosen: Sized | None, terms: Terms) -> dict[float, Sized | None]:
    """Return the recommended layout with the replicas of each higher confidence; None where no number is enough."""
    if chosen is None or not chosen.trial.limits:
        return {}
    trial = chosen.trial
    chance = met_probability(trial, chosen.busy)
    fleets: dict[float, Sized | None] = {}
    for confidence in CONFIDENCES:
        if confidence > chance:
            busy = busy_replicas(trial, trial.limits, confidence, terms)
            fleets[confidence] = None
            if busy is not None:
                busy = max(busy, chosen.busy)
                fleets[confidence] = Sized(trial, busy, terms.gpus(trial.candidate.layout, busy))
    return fleets


def _next_steps(
    chosen: Sized | None, grown: Mapping[float, Sized | None], best: Mapping[str, Sized], terms: Terms
) -> NextSteps | None:
    """Return the recommended layout sized for more confidence and as predicted, and what unmeasured devices would cost as predicted."""
    if chosen is None or not chosen.trial.limits:
        return None
    steps = tuple(_step(confidence, fleet, terms) for confidence, fleet in grown.items())
    predicted = _predicted_busy(chosen, terms)
    cost = rank(chosen, terms)[0]
    unproven = []
    for name, fleet in best.items():
        if fleet.trial.question.efficiencies[name].borrowed is None:
            continue
        busy = _predicted_busy(fleet, terms)
        usd = _usd_per_month(fleet, busy, terms)
        if usd is not None and name != _device_name(chosen) and usd < usd_per_month(cost):
            unproven.append(Unproven(name, terms.gpus(fleet.trial.candidate.layout, busy), usd))
    gpus = terms.gpus(chosen.trial.candidate.layout, predicted)
    as_predicted = Sizing(gpus, _usd_per_month(chosen, predicted, terms))
    return NextSteps(steps, as_predicted, tuple(unproven))


def _step(confidence: float, fleet: Sized | None, terms: Terms) -> Step:
    if fleet is None:
        return Step(confidence, None, None)
    return Step(confidence, fleet.gpus, _usd_per_month(fleet, fleet.busy, terms))


def _predicted_busy(fleet: Sized, terms: Terms) -> int:
    """Return the replicas of a layout, spares left out, that are as fast as predicted, with headroom; at most those of the fleet."""
    peak = fleet.trial.total_rate / (1.0 - terms.headroom_fraction)
    return fleet.trial.replicas_for(peak, 1.0, fleet.trial.limits, most=fleet.busy) or fleet.busy


def _device_name(fleet: Sized) -> str:
    return fleet.trial.candidate.layout.device.name


def _usd_per_month(fleet: Sized, busy: int, terms: Terms) -> float | None:
    hourly = terms.usd_per_hour(fleet.trial.candidate.layout, busy)
    return None if hourly is None else float(usd_per_month(hourly))


def _with_range(plan: Plan, fleet: Sized, terms: Terms) -> Plan:
    costs = cost_range(fleet, terms)
    return plan if costs is None else replace(plan, usd_per_month_low=costs[0], usd_per_month_high=costs[1])


def _choices_of(pairs: list[tuple[Sized, Plan]], terms: Terms, paid: Paid | None) -> Choices:
    """Return the cheapest plan, the surest for at most a quarter more, the one with the fewest GPUs, and the recommended one.

    Parameters
    ----------
    pairs : plans, cheapest first, at least one
    terms : prices
    paid : what a plan costs by its mix of commitments, for the recommended one; None: what its order costs

    Returns
    -------
    the choices
    """
    plans = [plan for _, plan in pairs]
    surest = surest_within(pairs, terms, SUREST_WITHIN) if pairs[0][0].trial.limits else plans[0]
    return Choices(plans[0], surest, min(plans, key=whole_gpus), *recommended(pairs, terms, paid))


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


def _ladder(
    surest: Mapping[float, Sized | None],
    pairs: Sequence[tuple[Sized, Plan]],
    grown: Mapping[float, Sized | None],
    terms: Terms,
) -> tuple[Certainty, ...]:
    """Return the cheapest fleet at each confidence: the one found for it, or a listed plan or more of the recommended one as sure for less."""
    rows = []
    for confidence, fleet in sorted(surest.items()):
        known = [sized for sized, plan in pairs if plan.slo_met_probability >= confidence]
        known += [more for sure, more in grown.items() if more and sure >= confidence]
        known += [fleet] if fleet else []
        least = min(known, key=lambda sized: rank(sized, terms)[:2], default=None)
        rows.append(_certainty(confidence, least, terms))
    return tuple(rows)


def _certainty(confidence: float, fleet: Sized | None, terms: Terms) -> Certainty:
    if fleet is None:
        return Certainty(confidence, None, None, None)
    candidate = fleet.trial.candidate
    name = candidate.layout.device.name
    spares = terms.spares(candidate.layout, fleet.busy)
    return Certainty(
        confidence,
        name,
        fleet.gpus,
        _usd_per_month(fleet, fleet.busy, terms),
        gpus_per_replica=candidate.layout.devices,
        replicas=fleet.busy + spares,
        spare_replicas=spares,
        **candidate.layout.degrees,
        weight_dtype=candidate.weight_dtype,
        kv_dtype=candidate.layout.kv_format,
    )
