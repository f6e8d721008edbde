"""The cheapest fleet with separate prefill and decode pools.

Each phase by itself is a question of the fleet search: prompts answered with one token under the targets of the first token,
and prompts that are in the cache under the targets of the later tokens. Its layouts are bounded in closed form and
simulated as those of any fleet, so a pair of pools costs nothing more to screen. What the search of either phase returns
for a device is then simulated together, with the link, and the cheapest pair of replica counts is taken.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf, isnan

from capplan.accuracy.bounded import operation_interval, operation_of
from capplan.accuracy.slowness import Latency, latency_of
from capplan.errors import Reason, Refusal
from capplan.fleet.answer import DEAR, PoolsSearch
from capplan.fleet.group import Group, sized_groups
from capplan.fleet.load.demand import Demand, planned_demand
from capplan.fleet.plan import Plan, Transfer, cost_of, summed_usd_per_hour
from capplan.fleet.pools.joint import (
    ANY_COST,
    Demanded,
    Joint,
    Pair,
    Phase,
    Rank,
)
from capplan.fleet.pools.link import LinkTerms, check_known
from capplan.fleet.pools.sizing import (
    Contender,
    decode_question,
    pools_sizing,
    prefill_question,
    rank_of,
    timed_question,
    with_range,
    without_targets,
)
from capplan.fleet.review import Question
from capplan.fleet.scenario import PoolsLimits
from capplan.fleet.search.candidates import Rejections, rejection_rows
from capplan.fleet.search.cheapest import OVER_BUDGET, TOO_FEW_MACHINES, Search, Sized, Terms
from capplan.fleet.search.one_layout import Standing
from capplan.fleet.search.recommended import group_of, plan_at_peak, rank
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.simulation import FleetOutcome
from capplan.hardware.device import Device
from capplan.money.price import most_usd

SHOWN = 3
"""Pairs of devices that get a plan; of the others only those that cost less by what either phase takes by itself. More are tried until one has a plan."""
DEARER_POOLS = Reason(Refusal.COST, "costs more than pools of other devices")
DEARER_THAN_ALIKE = Reason(Refusal.COST, f"costs over {DEAR:g} times as much as identical replicas")
NO_SAVING = Reason(Refusal.COST, "costs no less than identical replicas")
NEAR = 1.25
"""Layouts that cost under this many times the cheapest of their device for a phase by itself, or one machine more, are paired too."""
NEAR_LAYOUTS = 3
"""Layouts of each phase that are paired at most."""
WORTH_SHOWING = 1.5
"""Pools that cost over this many times the cheapest are given up."""


def pools_decision(
    question: Question,
    pools: PoolsLimits,
    terms: Terms,
    *,
    beyond: bool = True,
    progress: Callable[[int, int], None] | None = None,
    cache: SearchCache | None = None,
    most_usd_per_hour: float = inf,
) -> tuple[tuple[Plan, ...], PoolsSearch]:
    """Return the plans with separate pools, cheapest first, and why other devices have none.

    Parameters
    ----------
    question : of the whole fleet; both phases of a plan have one weight dtype and one KV dtype
    beyond : whether to look for the load beyond the peak, the chance of each target and the cost range of the cheapest plan; else a plan counts as full
    most_usd_per_hour : [$/h]
        only cheaper plans are looked for, among those with a price: devices whose closed-form bounds say that there are none are left out
    """
    check_known((*pools.prefill_devices, *pools.decode_devices), pools.link)
    rejected, together, cache = Rejections(), Rejections(), cache or SearchCache()
    confirmed = partial(
        _confirmed, users=question.demand, link=pools.link, terms=terms, cache=cache, beyond=beyond
    )
    found = _groups(question, pools, terms, rejected, cache, most_usd_per_hour)
    groups = found.groups
    plans, simulated = list[Plan](), 0

    def most_of(group: Sequence[Contender]) -> float:
        return most_usd_per_hour if _priced(group[0], terms) else inf

    def least_known(group: Sequence[Contender], ratio: float = 1.0) -> float:
        return min(most_of(group), ratio * min((cost_of(plan) for plan in plans), default=inf))

    for place, (timed, group) in enumerate(groups):
        shown = place < SHOWN or not plans
        dearer = DEARER_POOLS if plans else NO_SAVING if pools.screened else DEARER_THAN_ALIKE
        least = least_known(group, WORTH_SHOWING if shown else 1.0)
        most = most_of(group) if shown else least
        if most < inf and _alone_cost(group[0], terms) >= most:
            for _, others in groups[place:]:
                rejected[others[0].hardware, dearer] += 1
            break
        plan, tried = confirmed(timed, group, dearer, together, least)
        simulated += tried
        plans += [plan] if plan else []
        if progress:
            progress(min(place + 1, SHOWN), min(len(groups), SHOWN))
    for timed, group in groups if plans else groups[:SHOWN]:
        least = least_known(group)
        if _alone_cost(group[0], terms) >= least:
            break
        wider = _every_layout(timed, group, pools, terms, cache, least)
        plan, tried = confirmed(timed, wider, DEARER_POOLS, Rejections(), least) if wider else (None, 0)
        simulated += tried
        if plan:
            plans = [*(item for item in plans if item.hardware != plan.hardware), plan]
    plans.sort(key=lambda plan: (inf if plan.usd_per_hour is None else plan.usd_per_hour, plan.gpus))
    if beyond and plans:
        plans[0] = with_range(question, plans[0], terms, cache)
    return tuple(plans), _searched(found, rejected, together, simulated, terms)


def _searched(
    found: "_Phases", rejected: Rejections, together: Rejections, simulated: int, terms: Terms
) -> PoolsSearch:
    """Return how pools were searched: what was rejected by itself and together, and what the cheapest pair costs or misses."""
    groups = found.groups
    alone = min((_alone_cost(group[0], terms) for _, group in groups), default=inf)
    least = alone if groups and _priced(groups[0][1][0], terms) else found.least_usd_per_hour
    return PoolsSearch(
        rejection_rows(rejected + together),
        found.evaluated,
        simulated,
        least_usd_per_hour=least if 0.0 < least < inf else None,
        unmet=next((why.words for _, why in together if why.code is not Refusal.COST), ""),
    )


def pools_standing(question: Question, plan: Plan, terms: Terms) -> Standing | Reason:
    """Return how the pools of a plan stand, or the reason where one of its layouts cannot serve the model at all."""
    sizing = pools_sizing(question, plan, terms)
    if isinstance(sizing, Reason):
        return sizing
    contender, joint = sizing.contender, sizing.joint
    pair = (plan.groups[0].busy_replicas, plan.groups[1].busy_replicas)
    now = _plan(contender, joint, pair, terms, question.demand, beyond=False)
    lacking = joint.lacking(pair, contender.demanded(question, terms.headroom_fraction))
    needed = tuple(None if pool.role in lacking else pool.busy_replicas for pool in plan.groups)
    values = {target: now.value(target) for target in question.slo.targets}
    return Standing(values, now.slo_met_probability, needed)


@dataclass(frozen=True, slots=True)
class _Phases:
    """The best layouts of either phase by itself."""

    groups: list[tuple[Question, list[Contender]]]
    """Layouts of each pair of devices, cheapest first, with the traffic that they get."""
    evaluated: int
    """Candidates."""
    least_usd_per_hour: float
    """Closed-form lower bound on what both phases cost by themselves, on any pair of devices [$/h]; zero without a price."""


def _groups(
    question: Question,
    pools: PoolsLimits,
    terms: Terms,
    rejected: Rejections,
    cache: SearchCache,
    most_usd: float,
) -> _Phases:
    """Return the best layouts of every pair of devices that may cost less than `most_usd` per hour.

    Users send more to quicker devices. Each pair of devices is sized for the traffic that the quicker one gets, so it is the
    same pair whatever other devices are listed.
    """
    smallest = _least_of_any(pools.prefill_devices, terms) + _least_of_any(pools.decode_devices, terms)
    if pools.screened and smallest >= most_usd:
        return _Phases([], 0, smallest)
    if not question.demand.users:
        return _contenders(question, pools, terms, rejected, cache, most_usd)
    devices = tuple(
        {device.name: device for device in (*pools.prefill_devices, *pools.decode_devices)}.values()
    )
    step_s = dict.fromkeys((device.name for device in devices), inf)
    for candidate in cache.searched(without_targets(question, devices)).candidates:
        name = candidate.layout.device.name
        step_s[name] = min(step_s[name], candidate.usual_step_s)
    groups: list[tuple[Question, list[Contender]]] = []
    evaluated, least = 0, inf
    left = list(devices)
    for device in sorted(devices, key=lambda device: step_s[device.name]):
        timed, own = timed_question(question, [device], terms, cache), Counter[tuple[str, Reason]]()
        bound = _least_with(device, timed, pools, terms, cache, most_usd) if pools.screened else 0.0
        if bound >= most_usd:
            rejected[device.name, NO_SAVING] += 1
            least = min(least, bound)
            left.remove(device)
            continue
        of_left = replace(
            pools,
            prefill_devices=tuple(item for item in pools.prefill_devices if item in left),
            decode_devices=tuple(item for item in pools.decode_devices if item in left),
        )
        found = _contenders(timed, of_left, terms, own, cache, most_usd)
        groups += [
            pair for pair in found.groups
            if device in (side.trial.replica.spec.device for side in pair[1][0].sides)
        ]  # fmt: skip
        rejected.update({key: times for key, times in own.items() if key[0] == device.name})
        evaluated, least = max(evaluated, found.evaluated), min(least, found.least_usd_per_hour)
        left.remove(device)
    return _Phases(sorted(groups, key=lambda pair: _cost(pair[1][0], terms)), evaluated, least)


def _least_with(
    device: Device, question: Question, pools: PoolsLimits, terms: Terms, cache: SearchCache, most_usd: float
) -> float:
    """Return a lower bound on what two pools cost of which one has this device [$/h].

    Its layouts are looked at only if one of its GPUs, and one of the other pool, may cost less than `most_usd`.
    """
    least = inf
    for phase, own, others in (
        (prefill_question, pools.prefill_devices, pools.decode_devices),
        (decode_question, pools.decode_devices, pools.prefill_devices),
    ):
        if device not in own:
            continue
        beside, alone = _least_of_any(others, terms), _least_of_any((device,), terms)
        if alone + beside < most_usd:
            alone = _Side(phase(question, (device,)), terms, Rejections(), cache).least_usd
        least = min(least, alone + beside)
    return least


def _contenders(
    question: Question,
    pools: PoolsLimits,
    terms: Terms,
    rejected: Rejections,
    cache: SearchCache,
    most_usd: float,
    limits: tuple[float, float] | None = None,
) -> _Phases:
    """Return the layouts of every pair of devices, cheapest first; if pools are screened, only of those that may cost less than `most_usd` per hour.

    They are near the cheapest, or under limits on the cost of each phase by itself.
    """
    groups: list[list[Contender]] = []
    evaluated, least, most = 0, inf, most_usd if pools.screened else inf
    for dtype, kv_format in product(question.networks, question.kv_formats):
        part = replace(question, networks={dtype: question.networks[dtype]}, kv_formats=(kv_format,))
        phases = (prefill_question(part, pools.prefill_devices), decode_question(part, pools.decode_devices))
        sides = [_Side(phase, terms, rejected, cache) for phase in phases]
        evaluated += sum(side.evaluated for side in sides)
        least = min(least, sum(side.least_usd for side in sides))
        prefill, decode = sides
        other, dearer = sorted(sides, key=lambda side: side.least_usd)
        dearer.find_least(other.left_of(most))  # what it leaves bounds the other
        other.size(dearer.left_of(most))
        dearer.size(other.left_of(most))
        near = [
            side.near(other.left_of(most), None if limits is None else limits[place])
            for place, (side, other) in enumerate(((prefill, decode), (decode, prefill)))
        ]
        for pair in product(*near):
            pairs = [Contender(*both) for both in product(*pair)]
            groups.append(sorted(pairs, key=lambda item: _cost(item, terms)))
    groups.sort(key=lambda group: _cost(group[0], terms))
    return _Phases([(question, group) for group in groups], evaluated, least)


def _least_of_any(devices: Sequence[Device], terms: Terms) -> float:
    """Return what one GPU of the cheapest of some devices costs in an order, the least that a pool has [$/h]; zero where a price is not known."""
    prices = [(terms.prices.get(device.name), device.node_devices) for device in devices]
    return min(
        (0.0 if price is None else price.least_usd_per_hour(1, node, 1.0) for price, node in prices),
        default=0.0,
    )


def least_usd_of_pools(question: Question, pools: PoolsLimits, terms: Terms) -> float:
    """Return a closed-form lower bound on what both phases cost by themselves, of which no pair of pools costs less [$/h]."""
    cache, rejected = SearchCache(), Rejections()
    phases = (
        prefill_question(question, pools.prefill_devices),
        decode_question(question, pools.decode_devices),
    )
    return sum(_Side(phase, terms, rejected, cache).least_usd for phase in phases)


class _Side:
    """One phase by itself: what it costs at least on each device, and the layouts that cost least."""

    def __init__(self, phase: Question, terms: Terms, rejected: Rejections, cache: SearchCache) -> None:
        """Bound the layouts of all devices in closed form; those that can be ordered, where any can be."""
        result, terms = cache.searched(phase), terms.of_a_part()
        listed = terms.listed(result.candidates)
        rejected.update(result.rejected)
        self.evaluated = result.evaluated
        self._rejected, self._terms, self._confidence = rejected, terms, phase.slo.confidence
        self._all = Search(phase, listed, terms, cache)
        self._trials = {device.name: self._all.among(self._all.of(device.name)) for device in phase.devices}
        self._least = {
            name: trials.least_usd_per_hour(name, self._confidence) for name, trials in self._trials.items()
        }
        self._best: dict[str, Sized] = {}

    @property
    def least_usd(self) -> float:
        """Lower bound on the cost of the phase by itself on any device [$/h]: 0 if a device has no price, infinite if no device meets its targets."""
        return min(self._least.values(), default=inf)

    def left_of(self, most_usd: float) -> float:
        """Return what the phase leaves of a cost for the other one [$/h]."""
        return inf if most_usd == inf else most_usd - self.least_usd

    def find_least(self, under: float) -> None:
        """Find what the phase costs on the cheapest of its devices, if that may be less than `under` per hour: the others cost no less."""
        if under == inf or not all(map(self._terms.priced, self._trials)):
            return
        best = self._all.cheapest(self._confidence, under)
        least = under if best is None else rank(best, self._terms)[0]
        self._least = {name: max(bound, least) for name, bound in self._least.items()}

    def size(self, under: float) -> None:
        """Find the cheapest layout of each device that may cost less than `under` per hour."""
        for name, trials in self._trials.items():
            if not self._least[name] < under:
                self._left_out(name)
                continue
            if under < inf and self._terms.priced(name):
                best = trials.cheapest(self._confidence, under)
                self._rejected[name, NO_SAVING] += best is None
            else:
                best = trials.best_of(name, self._confidence, self._rejected)
            if best is not None:
                self._best[name] = best
            if self._terms.priced(name):
                self._least[name] = inf if best is None else rank(best, self._terms)[0]

    def near(self, under: float, limit: float | None) -> list[list[Sized]]:
        """Return the layouts of each device that cost least, cheapest first, without devices whose cheapest one costs `under` per hour or more.

        Together with the other pool and the link another one may be cheaper, so those that cost little more are kept, or all under a limit.
        """
        found = []
        for name, best in self._best.items():
            if not self._terms.priced(name):
                found.append([best])
            elif self._least[name] < under:
                found.append([best, *self._others(name, best, limit)])
            else:
                self._left_out(name)
        return found

    def _others(self, name: str, best: Sized, limit: float | None) -> list[Sized]:
        least, terms = self._least[name], self._terms
        little_more = max(NEAR * least, least + terms.machine_usd_per_hour(name))
        near = self._trials[name].within(little_more if limit is None else limit, self._confidence)
        others = [item for item in near if item.trial.candidate is not best.trial.candidate]
        most = NEAR_LAYOUTS - 1 if limit is None else len(others)
        return sorted(others, key=lambda item: rank(item, terms))[:most]

    def _left_out(self, name: str) -> None:
        if self._least[name] < inf:
            self._rejected[name, NO_SAVING] += 1


def _every_layout(
    question: Question,
    group: Sequence[Contender],
    pools: PoolsLimits,
    terms: Terms,
    cache: SearchCache,
    most_usd: float,
) -> list[Contender]:
    """Return all layouts of a pair of devices whose phases by themselves cost less together than a plan that is known, cheapest first.

    A layout that is cheap for a phase by itself may take more replicas together with the link, or miss a target with any number.
    """
    least_prefill, least_decode = (
        min(rank(side, terms)[0] for side in sides)
        for sides in zip(*(contender.sides for contender in group), strict=True)
    )
    prefill, decode = (side.trial.replica.spec.device for side in group[0].sides)
    only = replace(pools, prefill_devices=(prefill,), decode_devices=(decode,))
    limits = (most_usd - least_decode, most_usd - least_prefill)
    found = _contenders(question, only, terms, Counter(), cache, most_usd, limits).groups
    together = sorted((item for _, some in found for item in some), key=lambda item: _cost(item, terms))
    return [item for item in together if _cost(item, terms)[0][0] < most_usd]


def _cost(contender: Contender, terms: Terms) -> tuple[Rank, int, str]:
    """Return the sort key of contenders: the order of what either phase takes by itself, then devices."""
    order = rank_of(contender, terms)(contender.alone)
    return order, sum(side.gpus for side in contender.sides), contender.hardware


def _alone_cost(contender: Contender, terms: Terms) -> float:
    """Return what the two phases cost if neither waits for the other: at most what they cost together."""
    return rank_of(contender, terms)(contender.alone)[0]


def _priced(contender: Contender, terms: Terms) -> bool:
    return all(terms.priced(side.layout.device.name) for side in contender.sides)


def _confirmed(
    question: Question,
    group: Sequence[Contender],
    dearer: Reason,
    rejected: Rejections,
    most_cost: float,
    *,
    users: Demand,
    link: LinkTerms,
    terms: Terms,
    cache: SearchCache,
    beyond: bool,
) -> tuple[Plan | None, int]:
    """Return the cheapest plan of a group, simulated with its link, or None with the reason in `rejected`; and the pairs tried.

    The demand of `users` is as the scenario states it: in the question requests at random take the place of users.
    """
    for side in group[0].sides:
        device = side.trial.replica.spec.device
        if not link.known_to(device):
            why = Reason(Refusal.LINK_DOMAIN, f"{device.name} has no {link.name}")
            rejected[group[0].hardware, why] += 1
            return None, 0
    tried, under = 0, (most_cost, 0.0)
    best: tuple[Contender, Joint, Pair] | None = None
    for contender in group:
        order, alone = rank_of(contender, terms), contender.alone
        if best is not None and not order(alone) < under:
            continue
        sides = (contender.prefill.trial.replica, contender.decode.trial.replica)
        joint = cache.joint(question, *sides, link)
        demanded = contender.demanded(question, terms.headroom_fraction)
        likely = partial(contender.alone_if, demanded)
        pair, more = joint.cheapest(alone, order, demanded, under, likely)
        tried += more
        if pair is not None:
            best, under = (contender, joint, pair), order(pair)
        elif best is None and contender is group[-1]:
            over = dearer if under < ANY_COST else None
            rejected[contender.hardware, _no_pair(contender, joint, demanded, terms, over)] += 1
    if best is None:
        return None, tried
    plan = _plan(*best, terms, users, beyond=beyond)
    reason = _over(plan, terms) or _unsure(plan, question)
    if reason is not None:
        rejected[group[0].hardware, reason] += 1
    return plan if reason is None else None, tried


def _no_pair(
    contender: Contender, joint: Joint, demanded: Demanded, terms: Terms, dearer: Reason | None
) -> Reason:
    """Return why no number of replicas was found: a limit on number or machines, the cost, or the targets."""
    alone = contender.alone
    unmet = _unmet(joint, alone, demanded)
    if joint.never(demanded):
        return unmet
    if dearer is not None:
        return dearer
    free = replace(terms, max_devices=None, prices={})
    likely = partial(contender.alone_if, demanded)
    pair, _ = joint.cheapest(alone, rank_of(contender, free), demanded, likely=likely)
    if pair is None:
        return unmet
    layouts = [side.layout for side in contender.sides]
    gpus = sum(terms.gpus(layout, count) for layout, count in zip(layouts, pair, strict=True))
    if terms.max_devices is not None and gpus > terms.max_devices:
        return _too_large(terms.max_devices)
    return TOO_FEW_MACHINES


def _unmet(joint: Joint, alone: Pair, demanded: Demanded) -> Reason:
    """Return why no number of replicas was found, given what either phase takes by itself."""
    words = joint.unlinked_reason(alone)
    if words:
        return Reason(Refusal.LINK_DOMAIN, words)
    use = joint.link_use(alone)
    busy = f", which would be busy {use.load_fraction:.0%} of the time" if use.load_fraction >= 1.0 else ""
    words = joint.out_of_reach(demanded) or (
        f"misses a target once both pools are simulated with {use.link} between them"
    )
    return Reason(Refusal.SIMULATION, words + busy)


def _unsure(plan: Plan, question: Question) -> Reason | None:
    """Return that a plan does not reach the required confidence at its own load; None if it does, or without targets."""
    if not question.slo.targets or plan.slo_met_probability >= question.slo.confidence:
        return None
    words = f"meets the targets at its own load with a probability of {plan.slo_met_probability:.0%} only"
    return Reason(Refusal.SIMULATION, words)


def _too_large(most: int) -> Reason:
    return Reason(Refusal.FLEET_SIZE, f"needs more than the {most} devices allowed")


def _over(plan: Plan, terms: Terms) -> Reason | None:
    """Return the limit of the whole fleet that a plan exceeds; None if it is within all."""
    if terms.max_devices is not None and plan.gpus > terms.max_devices:
        return _too_large(terms.max_devices)
    if terms.max_usd_per_hour is None:
        return None
    hourly = plan.usd_per_hour
    return OVER_BUDGET if hourly is None or hourly > most_usd(terms.max_usd_per_hour) else None


def _plan(
    contender: Contender, joint: Joint, pair: Pair, terms: Terms, users: Demand, *, beyond: bool
) -> Plan:
    """Return the plan with these replica counts, with what all requests of the peak see."""
    outcome, question = joint.at_peak(pair), joint.question
    seen = outcome.classes
    means = [seen[item.name].e2e_s.mean for item in users.classes]
    responses_s = tuple(outcome.all.e2e_s.mean if isnan(mean) else mean for mean in means)
    rate = planned_demand(users, responses_s).peak_requests_per_s
    demanded = contender.demanded(question, terms.headroom_fraction)
    planned = joint.most_load(pair, demanded) if beyond else 1.0
    first_s, whole_s = outcome.all.ttft_s.mean, outcome.all.e2e_s.mean
    hits = tuple(seen[item.name].prefix_hit_fraction for item in users.classes)
    prefill = _pool("prefill", contender.prefill, pair[0], outcome, terms, rate, first_s, planned)
    decode = _pool("decode", contender.decode, pair[1], outcome, terms, rate, whole_s - first_s, planned)
    pools = (
        replace(prefill, class_prefix_hit_fractions=hits),
        replace(decode, draft_tokens=joint.decode.draft_tokens),
    )
    groups = sized_groups(pools, pair)
    served = users.of_plan(responses_s, hits)
    output_rate, input_rate = rate * served.generated_tokens, rate * float(served.lengths.input_tokens)
    by_pool = {"ttft": joint.prefill, "tpot": joint.decode, "e2e": joint.decode}
    intervals = {
        name: operation_interval(question.intervals, name, "open", operation_of(replica))
        for name, replica in by_pool.items()
    }
    together = _met_probability(contender, joint, pair, demanded)
    return plan_at_peak(
        groups,
        summed_usd_per_hour(groups),
        users,
        responses_s,
        (outcome.all.ttft_s, outcome.all.tpot_s, outcome.all.e2e_s),
        intervals,
        (output_rate, output_rate + input_rate),
        prefix_hit_fraction=outcome.all.prefix_hit_fraction,
        class_prefix_hit_fractions=hits,
        transfer=Transfer(joint.link, joint.link_use(pair, rate / joint.rate)),
        simulated_requests=outcome.all.requests,
        slo_met_probability=together,
        few_open_loops_measured=contender.slowness(question).thin,
        target_probabilities=_target_probabilities(contender, joint, pair, demanded, together)
        if beyond
        else {},
        unlike_waits=outcome.seen,
    )


def _target_probabilities(
    contender: Contender, joint: Joint, pair: Pair, demanded: Demanded, together: float
) -> dict[str, float]:
    """Return the probability of each target, whether or not the others hold; at least that of all together."""
    asked = {condition.latency: condition.paces for condition in demanded}
    probabilities = {}
    for target in joint.question.slo.targets:
        slowness = contender.slowness_of(joint.question, [target])
        slowest = joint.slowest(pair, asked[latency_of(target)], slowness, [target])
        probabilities[target.key] = max(slowness.decode.probability(slowest), together)
    return probabilities


def _met_probability(contender: Contender, joint: Joint, pair: Pair, demanded: Demanded) -> float:
    """Return the probability that all targets hold; at least the required confidence where the pair bears what that demands."""
    question = joint.question
    slowness = contender.slowness(question)
    slower = [condition for condition in demanded if condition.latency is not None]
    borne = [joint.holds(pair, condition) for condition in slower]
    slowest: dict[Latency, float] = {}
    for condition, holds in zip(slower, borne, strict=True):
        assert condition.latency is not None
        own, asked = slowness.by_latency[condition.latency], condition.paces
        targets = [target for target in question.slo.targets if condition.concerns(target)]
        most = joint.slowest(pair, asked, own, targets)
        slowest[condition.latency] = max(most, asked.decode) if holds else most
    probability: float = slowness.of_decode.probability(slowest)
    return max(probability, question.slo.confidence) if all(borne) else probability


def _pool(
    phase: Phase,
    side: Sized,
    count: int,
    outcome: FleetOutcome,
    terms: Terms,
    request_rate: float,
    stay_s: float,
    planned_ratio: float,
) -> Group:
    """Return one pool of a plan before its spares, with the mean time in steps over the time in service of its replicas.

    A request of the peak stays in the pool for `stay_s`, waiting included; both pools carry `planned_ratio` times the peak.
    """
    assert outcome.run is not None
    shares = [
        use.gauges.busy_s / max(use.until_s - use.from_s, 1e-12)
        for use in outcome.run.replicas
        if use.pool == phase
    ]
    each = request_rate / count
    # one replica fewer was not enough for today's traffic, whatever two halvings of a load leave open
    fewer = inf if count == 1 else (1.0 - 1e-9) * request_rate / (count - 1)
    return group_of(
        side,
        terms,
        phase,
        count,
        spare_replicas=0,
        busy_fraction=sum(shares) / len(shares),
        concurrency_per_replica=each * stay_s,
        request_rate_per_replica=each,
        planned_request_rate_limit_per_replica=min(each * planned_ratio, fewer),
    )
