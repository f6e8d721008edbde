"""The answer of a fleet search: the plans of every device, three choices, the recommendation, and one line for each device without a plan."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import floor, inf, isfinite, isinf, log10

from capplan.accuracy.slowness import latency_of
from capplan.errors import Refusal
from capplan.fleet.answer import (
    DEAR,
    SUREST_WITHIN,
    Bought,
    Certainty,
    Choices,
    FleetAnswer,
    NextSteps,
    Relaxation,
    Relaxed,
    Sizing,
    Step,
    TightTarget,
    Uneconomical,
)
from capplan.fleet.plan import Plan, whole_gpus
from capplan.fleet.review import Question, spec_of_layout
from capplan.fleet.search.candidates import Rejections, layouts, rejection_rows
from capplan.fleet.search.cheapest import Search, Sized, Terms, busy_bound, busy_replicas
from capplan.fleet.search.layouts import CONFIDENCES, ScreenedLayout, SearchResult, search
from capplan.fleet.search.recommended import (
    TIGHT_SHARE,
    Confirmed,
    Paid,
    best_plan,
    bought_of,
    by_cost,
    confirmed,
    rank,
    recommended,
    surest_within,
    used_fraction,
)
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.search.trial import Trial
from capplan.hardware.device import Device
from capplan.memory.plan import CONTEXT_TOO_LONG
from capplan.money.order import machines_per_replica
from capplan.money.price import ChosenPrice, usd_per_month
from capplan.replica.replica import memory_of
from capplan.workload.request_class import Target

RELAXED = (1.75, 2.75)
"""Relaxed limits for which GPUs are counted instead, as multiples of the stated limit, or of the latency of an idle replica."""
IDLE_SHARE = 1e-3
"""Share of the traffic of an idle replica, where no users are counted."""
IDLE_RATIO = 1.5
"""GPUs that are bought over those that carry the peak, from which on a line names the machines."""
_LIMITS = (Refusal.FLEET_SIZE, Refusal.BUDGET, Refusal.MACHINES)


def dear_line(fleet: Sized, cheapest: Sized, trials: Search) -> Uneconomical:
    """Return the line of a device whose best plan costs far more than the cheapest."""
    hourly, least = (rank(item, trials.terms)[0] for item in (fleet, cheapest))
    tight, tightest = tight_target(fleet, trials), _tightest(fleet.trial)
    target: tuple[str | None, float | None, float | None] = (None, None, None)
    if tightest is not None:
        target = tightest[0].key, tightest[1] + tightest[0].outside_s, tightest[0].stated_s
    return Uneconomical(
        fleet.hardware,
        *target,
        fleet.gpus,
        tight.gpus_at if tight else (),
        float(usd_per_month(hourly)),
        hourly / least if least else None,
        dear=_dear(fleet, cheapest, trials.terms),
    )


def _dear(fleet: Sized, cheapest: Sized, terms: Terms) -> str:
    """Return why a plan costs more than the cheapest: how many GPUs are bought at which price, and what of them carries the peak."""
    orders = [terms.order(item.layout, item.busy) for item in (fleet, cheapest)]
    mine, best = orders
    if mine is None or best is None or not best.usd_per_hour:
        return ""
    each = [order.usd_per_hour / order.gpus for order in orders if order is not None]
    words = (
        f"{mine.gpus:,} GPUs at ${each[0]:.2f} an hour are bought instead of {best.gpus:,} at ${each[1]:.2f}"
    )
    carrying = fleet.busy * fleet.layout.devices
    size = max(line.machine.gpus for line in mine.lines)
    if mine.gpus < IDLE_RATIO * carrying or size <= fleet.layout.devices:
        return words
    return (
        f"{words}; {carrying:,} carry the peak, its machines have {size} GPUs, and {terms.survive.what_fails} may fail; "
        f"{terms.survive.key}, fleet.providers"
    )


def tight_target(fleet: Sized, trials: Search) -> TightTarget | None:
    """Return the target that leaves a fleet a small part of what its GPUs can do; None where it uses more, or one replica is enough.

    None with users too: those who wait longer ask less, so a replica holds any number of them if none may complain.
    """
    tightest = _tightest(fleet.trial)
    if fleet.busy == 1 or tightest is None or trials.question.demand.users:
        return None
    used = used_fraction(fleet, trials)
    if used >= TIGHT_SHARE:
        return None
    target, value = tightest
    at = _gpus_at(fleet.trial, target, value, trials, fewer_than=fleet.gpus)
    return TightTarget(used, target.key, value + target.outside_s, target.stated_s, at)


def without_plan(device: Device, result: SearchResult, rejected: Rejections, trials: Search) -> Uneconomical:
    """Return the line of a device without any plan."""
    name = device.name
    mine = trials.of(name)
    if mine and any(count and key[0] == name and key[1].code in _LIMITS for key, count in rejected.items()):
        return Uneconomical(name, reason=_limited(name, trials))
    if mine and trials.question.slo.targets:
        nearest = max(mine, key=lambda item: item.share_bound / item.layout.devices)
        line = _missed(trials.trial(nearest), trials)
        return line or Uneconomical(
            name, reason="the load of a single user is more than one replica serves within the targets"
        )
    near = [item for item in result.relaxations if item.layout.device.name == name]
    if near:
        return _screened(name, min(near, key=lambda item: item.needed_s / item.limit_s))
    return Uneconomical(name, reason=_refused(device, rejected, trials.question))


def _unheld(name: str, held: float, price: ChosenPrice, trials: Search) -> str:
    """Return why the machines that may be ordered do not suffice (each is too small, or they are too few), and which would."""
    mine = trials.of(name)
    node = mine[0].layout.device.node_devices
    able = [
        item
        for item in mine
        if any(machines_per_replica(one.gpus, item.layout.devices, node)[1] for one in price.machines)
    ]
    if not able:
        fewest = min(item.layout.devices for item in mine)
        way = (
            f"a machine of {fewest} would do"
            if fewest <= node
            else f"machines of {node} would do, with fleet.network between them"
        )
        return (
            f"its smallest replica has {fewest} GPUs, and the largest machine that may be ordered has "
            f"{max(one.gpus for one in price.machines)}: {way}; fleet.machines, fleet.providers, prices.provider"
        )
    nearest = max(able, key=lambda item: item.share_bound / item.layout.devices)
    needed = _unlimited_order(nearest, price, trials)
    return (
        f"the machines that may be ordered hold {held:.0f} GPUs, and {needed}; fleet.max_machines, fleet.own"
    )


def _unlimited_order(candidate: ScreenedLayout, price: ChosenPrice, trials: Search) -> str:
    """Return how many machines a layout would take if any number of them could be ordered."""
    layout, trial = candidate.layout, trials.trial(candidate)
    busy = busy_replicas(trial, trial.limits, trials.question.slo.confidence, trials.terms)
    if busy is None:
        return "no number of them meets the targets"
    free = replace(price, machines=tuple(replace(one, most=None) for one in price.machines))
    order = free.order(layout.devices, layout.device.node_devices, busy, trials.terms.survive)
    assert order is not None
    words = " and ".join(f"{line.count} x {line.machine.sku}" for line in order.lines)
    return f"it takes {words}, {order.gpus} GPUs"


def _limited(name: str, trials: Search) -> str:
    """Return which limit of the scenario a device exceeds, and by how much: the fewest GPUs that are enough, or a lower bound."""
    terms, confidence = trials.terms, trials.question.slo.confidence
    mine = [item.layout for item in trials.of(name)]
    least = min(
        terms.least_gpus(item.layout, busy_bound(item, confidence, terms)) for item in trials.of(name)
    )
    paid, held, most = (
        max(terms.least_gpus(layout, busy) if (busy := of(layout)) >= 1.0 else 0.0 for layout in mine)
        for of in (terms.affordable_busy, terms.orderable_busy, terms.busy_allowed)
    )
    if held < min(paid, terms.max_devices or inf):
        price = terms.prices[name]
        assert price is not None
        return _unheld(name, held, price, trials)
    if terms.max_devices is not None and terms.max_devices <= paid:
        limit = f"fleet.max_gpus allows {terms.max_devices}"
        if (enough := _fewest_gpus(name, trials)) is not None:
            return f"it takes {enough} GPUs, and {limit}"
    elif not terms.priced(name):
        return "its price is not known, so no plan is known to be within the budget"
    else:
        limit = f"the budget pays for {paid:.0f}"
    if most < least < inf:
        return f"it takes {least:.0f} GPUs or more (a lower bound), and {limit}"
    return f"no plan of that many GPUs meets the targets: {limit}"


def _fewest_gpus(name: str, trials: Search) -> int | None:
    """Return the fewest GPUs of a device that meet the targets without a limit on their number; None if none do."""
    by_cost = replace(trials.terms, max_devices=None, max_usd_per_hour=None)
    counts = []
    for free in (by_cost, replace(by_cost, prices={})):  # the fewest may have more spares than the cheapest
        alone = Search(trials.question, trials.of(name), free, trials.cache)
        found = alone.best_of(name, trials.question.slo.confidence, Counter())
        sure = None if found is None else confirmed(found, free)
        counts += [] if sure is None else [trials.terms.gpus(sure.sized.layout, sure.sized.busy)]
    return min(counts, default=None)


def _missed(trial: Trial, trials: Search) -> Uneconomical | None:
    """Return the target that no number of replicas meets; None where even an idle replica cannot be simulated."""
    tightest = _tightest(trial)
    if tightest is None:
        return None
    target, value = tightest
    slower = trial.candidate.slowness.each(trials.question.slo.confidence)
    sure = _idle_value(trial, target, slower[latency_of(target)])
    at = _gpus_at(trial, target, value, trials)
    name = trial.candidate.layout.device.name
    value_s, sure_s = value + target.outside_s, sure + target.outside_s
    return Uneconomical(name, target.key, value_s, target.stated_s, None, at, sure_value_s=sure_s)


def _screened(name: str, nearest: Relaxation) -> Uneconomical:
    """Return the target that the closed form says is out of reach at any load."""
    needed = nearest.needed_s
    return Uneconomical(name, nearest.target, needed, nearest.limit_s, None, (), sure_value_s=needed)


def _refused(device: Device, rejected: Rejections, question: Question) -> str:
    """Return why no layout of a device can run the model: the reason of those that came furthest."""
    counts = {why: count for (name, why), count in rejected.items() if name == device.name and count}
    if not counts:
        return "no layout of it is allowed"
    ranks = {Refusal.OVERLOAD: 3, Refusal.SPECULATION: 2, Refusal.SPEED: 1, Refusal.MEMORY: 1}
    why = max(counts, key=lambda reason: (ranks.get(reason.code, 0), counts[reason]))
    return _memory_lacking(device, question) if why.code is Refusal.MEMORY else why.words


def _memory_lacking(device: Device, question: Question) -> str:
    """Return what memory the largest replica of a device lacks, with the numbers."""
    specs = [
        spec_of_layout(layout, question)
        for dtype, network in question.networks.items()
        for kv_format in question.kv_formats
        for ranges in [replace(question.ranges, weight_formats=(dtype,), kv_formats=(kv_format,))]
        for layout in layouts(network, [device], ranges, question.profile)[0]
    ]
    plans = [(memory_of(spec), spec.devices) for spec in specs]
    plan, gpus = max(plans, key=lambda item: (int(item[0].limit_codes), item[1]))
    each = f"each of {gpus} GPUs" if gpus > 1 else "one GPU"
    if int(plan.limit_codes) == CONTEXT_TOO_LONG:
        tokens = float(plan.kv_cache_tokens)
        return f"the KV cache of its largest replica holds {tokens:,.0f} tokens, and a request may have {question.max_model_len:,}"
    weights, usable = float(plan.weight_bytes) * 1e-9, float(plan.usable_bytes) * 1e-9
    reason = f"its weights take {weights:.3g} GB on {each}, of which the engine may use {usable:.3g} GB"
    return reason if weights >= usable else f"{reason}; {plan.limits[0]}"


def _idle_value(trial: Trial, target: Target, slowness: float = 1.0) -> float:
    """Return the targeted latency on a replica with next to no load: a single user, or a thousandth of the traffic."""
    users = trial.demand.users
    rate = trial.total_rate / users if users else trial.total_rate * IDLE_SHARE
    return trial.at(rate, 16, slowness).value(target, slowness)


def _tightest(trial: Trial) -> tuple[Target, float] | None:
    """Return the target that leaves an idle replica the least room, and its value; None without one that can be met."""
    values = {target: _idle_value(trial, target) for target in trial.limits}
    target = max(values, key=lambda item: values[item] / item.limit_s, default=None)
    return None if target is None or not isfinite(values[target]) else (target, values[target])


def _gpus_at(
    trial: Trial, target: Target, value_s: float, trials: Search, fewer_than: float = inf
) -> tuple[Relaxed, ...]:
    """Return the GPUs of a layout at relaxed limits of one target, as far as each needs fewer than the limit before it."""
    terms, layout = trials.terms, trial.candidate.layout
    found = []
    for ratio in RELAXED:
        limit = max(value_s, target.limit_s / RELAXED[0]) * ratio
        limit = round(limit, 1 - floor(log10(limit)))  # two significant digits
        if limit <= target.limit_s:
            continue
        limits = {**trial.limits, target: limit}
        busy = busy_replicas(trial, limits, trials.question.slo.confidence, terms)
        if busy is not None and terms.gpus(layout, busy) < fewer_than:
            fewer_than = terms.gpus(layout, busy)
            found.append(Relaxed(limit + target.outside_s, int(fewer_than)))
    return tuple(found)


def _with_surer(
    rows: Iterable[Sized], trials: Search, step: Callable[[], None]
) -> tuple[list[Sized], dict[float, Sized | None]]:
    """Return the fleets of the rows by cost with those near the cheapest that are surer, and the cheapest at each confidence."""
    question, terms = trials.question, trials.terms
    sized = sorted(rows, key=lambda fleet: rank(fleet, terms))
    if not sized:
        return [], {}
    step()
    near = trials.within(SUREST_WITHIN * rank(sized[0], terms)[0], question.slo.confidence)
    shown = {id(fleet.trial) for fleet in sized}
    sized += [fleet for fleet in near if id(fleet.trial) not in shown]
    surest = cheapest_by_confidence(trials, CONFIDENCES, sized[0], step=step) if question.slo.targets else {}
    surer = surest.get(min((c for c in CONFIDENCES if c >= question.slo.confidence), default=1.0))
    if surer is not None and rank(surer, terms)[0] < rank(sized[0], terms)[0]:
        sized.append(surer)
    return sorted(sized, key=lambda fleet: rank(fleet, terms)), surest


def fleet_decision(
    question: Question,
    terms: Terms,
    progress: Callable[[int, int], None] | None = None,
    cache: SearchCache | None = None,
    paid: Paid | None = None,
    found: Callable[[Plan], None] | None = None,
) -> FleetAnswer:
    """Return the plans that serve the scenario, cheapest first, the recommendation, and what was rejected and why.

    Searches of similar questions share what they simulate by the same `cache`. Where commitments pay for plans, as `paid` says, the
    recommended one is the cheapest of those found by that cost. `found` takes the cheapest plan of each device as soon as it is known.
    """
    cache = cache or SearchCache()
    result, done = cache.searched(question), 0
    every, rejected = Search(question, result.candidates, terms, cache), result.rejected.copy()
    trials, others = (
        Search(question, [c for c in result.candidates if terms.is_unlisted(c.layout) == other], terms, cache)
        for other in (False, True)
    )
    steps = len(question.devices) + 1 + len(CONFIDENCES)

    def step() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(min(done, steps), steps)

    names = [device.name for device in question.devices]
    best = _best_of_each(trials, names, rejected, step, found)
    unlisted = _best_of_each(others, [name for name in names if name not in best], rejected)
    if not best:
        best, trials, unlisted = unlisted, others, {}
    rows = {name: best_plan(trials, best[name]) for name in _shown(best, terms)}
    dear = {name: fleet for name, fleet in best.items() if name not in rows}
    sized, surest = _with_surer(rows.values(), trials, step)
    choices, chosen, fleets = _chosen_of(_confirmed_by_cost(sized, terms), terms, paid)
    grown = _grown(chosen, terms)
    return FleetAnswer(
        tuple(fleet.plan for fleet in (*fleets, *_confirmed_by_cost(unlisted.values(), terms))),
        rejection_rows(rejected),
        result.evaluated,
        () if fleets else tuple(sorted(result.relaxations, key=lambda r: r.needed_s / r.limit_s)[:3]),
        choices,
        _ladder(surest, fleets, grown, terms),
        uneconomical=tuple(
            dear_line(best[device.name], fleets[0].sized, trials)
            if device.name in best
            else without_plan(device, result, rejected, every)
            for device in question.devices
            if device.name not in rows and device.name not in unlisted
        ),
        dear=tuple(fleet.plan for fleet in _confirmed_by_cost(dear.values(), terms)),
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
            sure = None if sized is None else confirmed(sized, self._trials.terms)
            self._plans[hardware] = None if sure is None else sure.plan
        return self._plans[hardware]

    def line(self, hardware: str) -> Uneconomical:
        """Return why a device has no plan."""
        device = next(item for item in self._trials.question.devices if item.name == hardware)
        return without_plan(device, self._result, self._rejected, self._trials)


def _confirmed_by_cost(fleets: Iterable[Sized], terms: Terms) -> list[Confirmed]:
    """Return those of some fleets that reach the required confidence, cheapest first, whose plans have the range of their cost."""
    sure = (confirmed(fleet, terms, ranged=True) for fleet in fleets)
    return sorted((fleet for fleet in sure if fleet is not None), key=by_cost)


def _best_of_each(
    trials: Search,
    names: Iterable[str],
    rejected: Rejections,
    step: Callable[[], None] | None = None,
    found: Callable[[Plan], None] | None = None,
) -> dict[str, Sized]:
    """Return the cheapest fleet of each device that has one; those that may cost least are looked for first."""
    best: dict[str, Sized] = {}
    confidence = trials.question.slo.confidence
    names = list(names)
    likely = sorted(names, key=lambda name: trials.least_usd_per_hour(name, confidence))
    for name in likely:
        if fleet := trials.best_of(name, confidence, rejected):
            best[name] = fleet
            if found:
                for sure in _confirmed_by_cost([best_plan(trials, fleet)], trials.terms):
                    found(sure.plan)
        if step:
            step()
    return {name: best[name] for name in names if name in best}


def _shown(best: Mapping[str, Sized], terms: Terms) -> list[str]:
    """Return the devices whose best plan costs at most DEAR times the cheapest that costs something; one of unknown price is shown too."""
    costs = {name: rank(fleet, terms)[0] for name, fleet in best.items()}
    least = min((cost for cost in costs.values() if cost), default=inf)
    return [name for name, cost in costs.items() if isinf(cost) or cost <= DEAR * least]


def _grown(chosen: Sized | None, terms: Terms) -> dict[float, Sized | None]:
    """Return the recommended layout with the replicas of each higher confidence; None where no number is enough."""
    if chosen is None or not chosen.trial.limits:
        return {}
    trial = chosen.trial
    chance = trial.probability(chosen.busy)
    fleets: dict[float, Sized | None] = {}
    for confidence in CONFIDENCES:
        if confidence > chance:
            busy = busy_replicas(trial, trial.limits, confidence, terms)
            fleets[confidence] = None
            if busy is not None:
                fleets[confidence] = terms.sized(trial, max(busy, chosen.busy))
    return fleets


def _next_steps(
    chosen: Sized | None, grown: Mapping[float, Sized | None], best: Mapping[str, Sized], terms: Terms
) -> NextSteps | None:
    """Return the recommended layout sized for more confidence and as predicted, and what unmeasured devices would cost as predicted."""
    if chosen is None or not chosen.trial.limits:
        return None
    steps = tuple(_step(confidence, fleet, terms) for confidence, fleet in grown.items())
    cost = rank(chosen, terms)[0]
    unproven = []
    for name, fleet in best.items():
        if fleet.trial.question.efficiencies[name].borrowed is None:
            continue
        bought = _as_predicted(fleet, terms)
        usd = bought.usd_per_month
        if usd is not None and name != chosen.hardware and usd < usd_per_month(cost):
            unproven.append(bought)
    predicted = _as_predicted(chosen, terms)
    return NextSteps(steps, Sizing(predicted.gpus, predicted.usd_per_month), tuple(unproven))


def _step(confidence: float, fleet: Sized | None, terms: Terms) -> Step:
    if fleet is None:
        return Step(confidence, None, None)
    return Step(confidence, fleet.gpus, bought_of(fleet, fleet.busy, terms).usd_per_month)


def _as_predicted(fleet: Sized, terms: Terms) -> Bought:
    """Return a layout sized for replicas that are as fast as predicted, with headroom; at most those of the fleet."""
    peak = fleet.trial.total_rate / (1.0 - terms.headroom_fraction)
    busy = fleet.trial.replicas_for(peak, 1.0, fleet.trial.limits, most=fleet.busy)
    return bought_of(fleet, busy or fleet.busy, terms)


def _chosen_of(
    fleets: list[Confirmed], terms: Terms, paid: Paid | None
) -> tuple[Choices | None, Sized | None, list[Confirmed]]:
    """Return the choices, the recommended fleet, and all fleets, of which the recommended one may be a larger one of a layout.

    The choices are the cheapest plan, the surest for at most a quarter more, the one with the fewest GPUs, and the recommended one.

    Parameters
    ----------
    fleets : cheapest first
    terms : prices
    paid : what a plan costs by its mix of commitments, for the recommended one; None: what its order costs
    """
    if not fleets:
        return None, None, fleets
    plans = [fleet.plan for fleet in fleets]
    surest = surest_within(fleets, terms, SUREST_WITHIN) if fleets[0].sized.trial.limits else fleets[0]
    best, why = recommended(fleets, terms, paid)
    if all(best.plan != plan for plan in plans):
        best = replace(best, ranged=True)
        fleets = sorted([*fleets, best], key=by_cost)
    return Choices(plans[0], surest.plan, min(plans, key=whole_gpus), best.plan, why), best.sized, fleets


def cheapest_by_confidence(
    trials: Search,
    confidences: Iterable[float],
    planned: Sized | None = None,
    under: Mapping[float, float] | None = None,
    step: Callable[[], None] | None = None,
) -> dict[float, Sized | None]:
    """Return the cheapest fleet at each confidence; a surer fleet that costs less stands for lower confidences too.

    The `planned` fleet is one of the confidence asked for. Only fleets that cost less per hour than `under`, by confidence, are looked for.

    Under open-loop traffic a surer fleet never costs less; with users, each slowness is simulated separately, with separate
    noise.
    """
    fleets: dict[float, Sized | None] = {}
    surer: Sized | None = None
    for confidence in sorted(confidences, reverse=True):
        enough = planned if confidence <= trials.question.slo.confidence else None
        cheapest = trials.cheapest(confidence, under[confidence] if under else inf)
        found = (cheapest, surer, enough)
        known = [fleet for fleet in found if fleet is not None]
        fleets[confidence] = surer = min(known, key=lambda fleet: rank(fleet, trials.terms)[:2], default=None)
        if step:
            step()
    return fleets


def _ladder(
    surest: Mapping[float, Sized | None],
    fleets: Sequence[Confirmed],
    grown: Mapping[float, Sized | None],
    terms: Terms,
) -> tuple[Certainty, ...]:
    """Return the cheapest fleet at each confidence: the one found for it, or a listed plan or more of the recommended one as sure for less."""
    rows = []
    for confidence, fleet in sorted(surest.items()):
        known = [sure.sized for sure in fleets if sure.chance >= confidence]
        known += [more for sure, more in grown.items() if more and sure >= confidence]
        known += [fleet] if fleet else []
        least = min(known, key=lambda sized: rank(sized, terms)[:2], default=None)
        rows.append(_certainty(confidence, least, terms))
    return tuple(rows)


def _certainty(confidence: float, fleet: Sized | None, terms: Terms) -> Certainty:
    if fleet is None:
        return Certainty(confidence, None, None, None)
    usd, spares = bought_of(fleet, fleet.busy, terms).usd_per_month, terms.spares(fleet.layout, fleet.busy)
    return Certainty.of_layout(confidence, fleet.layout, fleet.busy + spares, spares, usd)
