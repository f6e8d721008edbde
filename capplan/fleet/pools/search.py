"""The cheapest fleet with separate prefill and decode pools.

Each phase alone is a question of the fleet search: prompts answered with one token under the targets of the first token,
and prompts that are in the cache under the targets of the later tokens. Its layouts are bounded in closed form and
simulated as those of any fleet, so a pair of pools costs nothing more to screen. What the search of either phase returns
for a device is then simulated together, with the link, and the cheapest pair of replica counts is taken.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import floor, inf

from capplan.accuracy.bounded import BoundedSpread, load_interval
from capplan.accuracy.slowness import Slowness
from capplan.errors import Reason, Refusal
from capplan.fleet.candidates import Rejections, rejection_rows
from capplan.fleet.cheapest import OVER_BUDGET, Search, Sized, Terms
from capplan.fleet.one_layout import trial_of
from capplan.fleet.pools.joint import Joint
from capplan.fleet.pools.link import LinkTerms, check_known
from capplan.fleet.pools.phases import decode_question, prefill_question
from capplan.fleet.pools.plan import Pool, PoolsAnswer, PoolsPlan, summed_usd_per_hour
from capplan.fleet.pools.ratio import Lacking, Pair, Phase, cheapest_pair
from capplan.fleet.price import usd_per_month
from capplan.fleet.question import Question
from capplan.fleet.recommended import cost_of, rank
from capplan.fleet.scenario import PoolsLimits
from capplan.fleet.search import ScreenedLayout, search
from capplan.fleet.search_cache import SearchCache
from capplan.fleet.simulation import FleetOutcome
from capplan.fleet.unit_costs import unit_costs_at_mean
from capplan.replica.replica import Replica
from capplan.serving.outcome import Spread

SHOWN = 3
"""Pairs of devices that get a plan; the others cost more by what either phase takes alone."""
NEAR = 1.25
"""Layouts that cost under this many times the cheapest of their device for a phase alone are paired too ..."""
NEAR_LAYOUTS = 3
"""... so many of each phase at most."""
LEAST_SHARE = 0.8
"""Where a pool is as small as it was tried, this share of its replicas is tried next."""
MOST_TRIED = 16
"""Pairs of replica counts of two layouts before the search gives up."""
WORTH_SHOWING = 1.5
"""Pools that cost over this many times the cheapest are given up."""


@dataclass(frozen=True, slots=True)
class _Contender:
    """One layout of either phase, each sized alone."""

    prefill: Sized
    decode: Sized

    @property
    def sides(self) -> tuple[Sized, Sized]:
        return self.prefill, self.decode

    @property
    def hardware(self) -> str:
        return " + ".join(dict.fromkeys(side.trial.candidate.layout.device.name for side in self.sides))

    def slowness(self, question: Question) -> Slowness:
        """Return how much slower than predicted the steps of both pools may be: as those of the decode replicas."""
        candidate = self.decode.trial.candidate
        network = question.networks[candidate.weight_dtype]
        return question.slowness(question.slo.targets, network, candidate.usual_step_s)


def pools_decision(
    question: Question,
    pools: PoolsLimits,
    terms: Terms,
    *,
    beyond: bool = True,
    progress: Callable[[int, int], None] | None = None,
    cache: SearchCache | None = None,
) -> PoolsAnswer:
    """Return the plans with separate pools, cheapest first, and why other devices have none.

    Parameters
    ----------
    question : of the whole fleet; both phases of a plan have one weight dtype and one KV dtype
    pools : devices of either pool, and the link
    terms : headroom, spares of each pool, prices, and limits of the whole fleet
    beyond : whether to look for the load that a plan carries beyond the peak; else it counts as full
    progress : called with the pairs that are done, and all of them
    cache : runs that searches of similar questions share

    Returns
    -------
    PoolsAnswer
    """
    check_known((*pools.prefill_devices, *pools.decode_devices), pools.link)
    rejected: Rejections = Counter()
    groups, evaluated = _contenders(question, pools, terms, rejected)
    plans: list[PoolsPlan] = []
    simulated = 0
    for done, group in enumerate(groups[:SHOWN]):
        least = min((cost_of(plan) for plan in plans), default=inf)
        asking = _Asking(question, pools.link, terms, cache or SearchCache(), beyond=beyond)
        plan, tried = _confirmed(group, asking, rejected, WORTH_SHOWING * least)
        simulated += tried
        plans += [plan] if plan else []
        if progress:
            progress(done + 1, min(len(groups), SHOWN))
    for group in groups[SHOWN:]:
        rejected[group[0].hardware, Reason(Refusal.COST, "costs more than pools of other devices")] += 1
    plans.sort(key=lambda plan: (inf if plan.usd_per_hour is None else plan.usd_per_hour, plan.gpus))
    return PoolsAnswer(tuple(plans), rejection_rows(rejected), evaluated, simulated)


@dataclass(frozen=True, slots=True)
class PoolsStanding:
    """How a plan with separate pools stands to the traffic and the targets of a question."""

    plan: PoolsPlan
    """With the latencies and the probability of now."""
    lacking: Lacking
    """Pools that are too small."""


def pools_standing(question: Question, plan: PoolsPlan, terms: Terms) -> PoolsStanding | Reason:
    """Return how a plan stands that was chosen before, or the reason where one of its layouts cannot serve the model at all.

    Parameters
    ----------
    question : the traffic, the targets and the engine
    plan : layouts and numbers of replicas of either pool
    terms : headroom, spares and prices

    Returns
    -------
    PoolsStanding
    """
    sides = []
    for phase, pool in zip((prefill_question, decode_question), plan.pools, strict=True):
        trial = trial_of(phase(question, (pool.layout.device,)), pool.layout, pool.weight_dtype, terms)
        if isinstance(trial, Reason):
            return trial
        sides.append(Sized(trial, pool.busy_replicas, pool.gpus))
    contender = _Contender(sides[0], sides[1])
    joint = Joint(question, sides[0].trial.replica, sides[1].trial.replica, plan.link_terms)
    pair = (plan.prefill.busy_replicas, plan.decode.busy_replicas)
    slowness = contender.slowness(question).quantile(question.slo.confidence)
    return PoolsStanding(
        _plan(contender, joint, pair, terms, beyond=False),
        joint.lacking(pair, terms.headroom_fraction, slowness),
    )


def _contenders(
    question: Question, pools: PoolsLimits, terms: Terms, rejected: Rejections
) -> tuple[list[list[_Contender]], int]:
    """Return the best layouts of every pair of devices, cheapest first, and the number of candidates."""
    groups: list[list[_Contender]] = []
    evaluated = 0
    for dtype, kv_format in product(question.networks, question.kv_formats):
        part = replace(question, networks={dtype: question.networks[dtype]}, kv_formats=(kv_format,))
        sides = []
        for phase in (
            prefill_question(part, pools.prefill_devices),
            decode_question(part, pools.decode_devices),
        ):
            result = search(phase)
            evaluated += result.evaluated
            rejected.update(result.rejected)
            sides.append(
                [_near(phase, result.candidates, device.name, terms, rejected) for device in phase.devices]
            )
        for prefill, decode in product(*(filter(None, side) for side in sides)):
            pairs = [_Contender(*pair) for pair in product(prefill, decode)]
            groups.append(sorted(pairs, key=lambda item: _cost(item, terms)))
    return sorted(groups, key=lambda group: _cost(group[0], terms)), evaluated


def _near(
    phase: Question, candidates: Sequence[ScreenedLayout], device: str, terms: Terms, rejected: Rejections
) -> list[Sized]:
    """Return the layouts of a device that cost least for a phase alone, cheapest first; empty if none meets its targets.

    Together with the other pool and the link another one may be cheaper, so those that cost little more are kept.
    """
    confidence = phase.slo.confidence
    trials = Search(phase, [item for item in candidates if item.layout.device.name == device], terms)
    best = trials.best_of(device, confidence, rejected)
    hourly = terms.hourly(device)
    if best is None or hourly is None:
        return [] if best is None else [best]
    near = trials.within(NEAR * hourly * best.gpus, confidence)
    others = [item for item in near if item.trial.candidate is not best.trial.candidate]
    return [best, *sorted(others, key=lambda item: rank(item, terms))[: NEAR_LAYOUTS - 1]]


def _hourly(side: Sized, terms: Terms) -> float:
    """Return dollars per hour of one replica; infinite without a price."""
    layout = side.trial.candidate.layout
    hourly = terms.hourly(layout.device.name)
    return inf if hourly is None else hourly * layout.devices


def _cost(contender: _Contender, terms: Terms) -> tuple[float, int, str]:
    """Return the sort key of contenders: dollars of what either phase takes alone, then devices."""
    cost = sum(_hourly(side, terms) * (side.busy + terms.spare_replicas) for side in contender.sides)
    return cost, sum(side.gpus for side in contender.sides), contender.hardware


@dataclass(frozen=True, slots=True)
class _Asking:
    """What a plan is asked to be."""

    question: Question
    link: LinkTerms
    terms: Terms
    cache: SearchCache
    beyond: bool

    def costs(self, contender: _Contender) -> tuple[float, float]:
        """Return dollars per hour of one replica of either pool, or its devices where a price is unknown."""
        prefill, decode = (_hourly(side, self.terms) for side in contender.sides)
        if inf in (prefill, decode):
            devices = [float(side.trial.replica.spec.devices) for side in contender.sides]
            return devices[0], devices[1]
        return prefill, decode


def _confirmed(
    group: Sequence[_Contender], asking: _Asking, rejected: Rejections, most_cost: float
) -> tuple[PoolsPlan | None, int]:
    """Return the cheapest plan of a group, simulated with its link, or None with the reason in `rejected`; and the pairs tried."""
    for side in group[0].sides:
        device = side.trial.replica.spec.device
        if not asking.link.known_to(device):
            why = Reason(Refusal.LINK_DOMAIN, f"{device.name} has no {asking.link.name}")
            rejected[group[0].hardware, why] += 1
            return None, 0
    question, terms, tried = asking.question, asking.terms, 0
    best: tuple[_Contender, Joint, Pair] | None = None
    for contender in group:
        costs = asking.costs(contender)
        spares = terms.spare_replicas * sum(costs)
        alone = (contender.prefill.busy, contender.decode.busy)
        if best is not None and costs[0] * alone[0] + costs[1] * alone[1] + spares >= most_cost:
            continue
        sides = (contender.prefill.trial.replica, contender.decode.trial.replica)
        joint = asking.cache.joint(question, *sides, asking.link)
        slowness = contender.slowness(question).quantile(question.slo.confidence)
        lacking = partial(joint.lacking, headroom_fraction=terms.headroom_fraction, slowness=slowness)
        pair, more = _cheapest_from(alone, lacking, costs, most_cost - spares)
        tried += more
        if pair is not None:
            best, most_cost = (contender, joint, pair), costs[0] * pair[0] + costs[1] * pair[1] + spares
        elif best is None and contender is group[-1]:
            rejected[contender.hardware, _unmet(joint, alone)] += 1
    if best is None:
        return None, tried
    plan = _plan(*best, terms, beyond=asking.beyond)
    reason = _over(plan, terms)
    if reason is not None:
        rejected[group[0].hardware, reason] += 1
    return plan if reason is None else None, tried


def _unmet(joint: Joint, alone: Pair) -> Reason:
    """Return why no number of replicas was found, given what either phase takes alone."""
    words = joint.unlinked_reason(alone)
    if words:
        return Reason(Refusal.LINK_DOMAIN, words)
    use = joint.link_use(alone)
    busy = f", which would be busy {use.load_fraction:.0%} of the time" if use.load_fraction >= 1.0 else ""
    return Reason(
        Refusal.SIMULATION,
        f"misses a target once both pools are simulated with {use.name} between them{busy}",
    )


def _cheapest_from(
    start: Pair, lacking: Callable[[Pair], Lacking], costs: tuple[float, float], most_cost: float
) -> tuple[Pair | None, int]:
    """Return the cheapest pair, from what either phase takes alone, and below it where that many are not needed together."""
    least, tried = start, 0
    while True:
        pair, more = cheapest_pair(lacking, least, costs, most_cost=most_cost, most_tried=MOST_TRIED)
        tried += more
        lower = tuple(
            max(floor(LEAST_SHARE * count), 1) if pair and pair[side] == count else count
            for side, count in enumerate(least)
        )
        if lower == least:
            return pair, tried
        least = (lower[0], lower[1])


def _over(plan: PoolsPlan, terms: Terms) -> Reason | None:
    """Return the limit of the whole fleet that a plan exceeds; None if it is within all."""
    if terms.max_devices is not None and plan.gpus > terms.max_devices:
        return Reason(Refusal.FLEET_SIZE, f"needs more than the {terms.max_devices} devices allowed")
    if terms.max_usd_per_hour is None:
        return None
    hourly = plan.usd_per_hour
    return OVER_BUDGET if hourly is None or hourly > terms.max_usd_per_hour * (1.0 + 1e-9) else None


def _plan(contender: _Contender, joint: Joint, pair: Pair, terms: Terms, *, beyond: bool) -> PoolsPlan:
    """Return the plan with these replica counts, with what all requests of the peak see."""
    outcome, question = joint.at_peak(pair), joint.question
    slowness = contender.slowness(question)
    asked = slowness.quantile(question.slo.confidence)
    planned = joint.most_load(pair, terms.headroom_fraction, asked) if beyond else 1.0
    first_s = outcome.all.ttft_s.mean
    prefill = _pool(
        contender.prefill, pair[0], outcome, terms, _PoolLoad("prefill", joint.rate, first_s, planned)
    )
    later_s = outcome.all.e2e_s.mean - first_s
    decode = _pool(
        contender.decode, pair[1], outcome, terms, _PoolLoad("decode", joint.rate, later_s, planned)
    )
    hourly = summed_usd_per_hour((prefill, decode))
    money = None if hourly is None else unit_costs_at_mean(joint.demand, hourly, outcome.all.e2e_s.mean)

    def bounded(values: Spread, quantity: str, replica: Replica) -> BoundedSpread:
        interval = load_interval(question.intervals, quantity, "open", replica)
        ends = values.mean * interval.low_ratio, values.mean * interval.high_ratio
        return BoundedSpread(values.mean, values.p50, values.p90, values.p95, values.p99, *ends)

    return PoolsPlan(
        prefill,
        decode,
        link_terms=joint.link,
        link=joint.link_use(pair),
        requests=outcome.all.requests,
        ttft_s=bounded(outcome.all.ttft_s, "ttft", joint.prefill),
        tpot_s=bounded(outcome.all.tpot_s, "tpot", joint.decode),
        e2e_s=bounded(outcome.all.e2e_s, "e2e", joint.decode),
        slo_met_probability=_met_probability(
            slowness, joint.slowest(pair, asked), asked, question.slo.confidence
        ),
        few_open_loops_measured=slowness.thin,
        usd_per_month=None if hourly is None else float(usd_per_month(hourly)),
        money=money,
    )


def _met_probability(slowness: Slowness, slowest: float, asked: float, confidence: float) -> float:
    """Return the probability that steps are at most so slow; at the slowness that was asked for, it is the confidence."""
    probability = slowness.probability(slowest)
    return max(probability, confidence) if slowest >= asked else probability


@dataclass(frozen=True, slots=True)
class _PoolLoad:
    """What the requests of the peak ask of one pool."""

    phase: Phase
    request_rate: float
    stay_s: float
    """Mean time of a request at the pool, waiting included."""
    planned_ratio: float
    """Multiple of the peak that both pools carry."""


def _pool(side: Sized, count: int, outcome: FleetOutcome, terms: Terms, load: _PoolLoad) -> Pool:
    """Return one pool of a plan, with the mean time in steps over the time in service of its replicas."""
    assert outcome.run is not None
    shares = [
        use.gauges.busy_s / max(use.until_s - use.from_s, 1e-12)
        for use in outcome.run.replicas
        if use.pool == load.phase
    ]
    candidate = side.trial.candidate
    each = load.request_rate / count
    return Pool(
        layout=candidate.layout,
        weight_dtype=candidate.weight_dtype,
        busy_replicas=count,
        spare_replicas=terms.spare_replicas,
        busy_fraction=sum(shares) / len(shares),
        kv_cache_tokens=candidate.kv_cache_tokens,
        label=candidate.label,
        concurrency_per_replica=each * load.stay_s,
        request_rate_per_replica=each,
        planned_rate_limit_per_replica=each * load.planned_ratio,
        price=terms.prices.get(candidate.layout.device.name),
    )
