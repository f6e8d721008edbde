"""A layout of either pool: each phase as a question of its own, its cost and certainty, and what smaller chunks would do instead."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import floor, inf

from capplan.accuracy.slowness import by_latency, equal_share
from capplan.errors import Reason
from capplan.fleet.answer import Certainty, Choices, FleetAnswer
from capplan.fleet.load.demand import Demand, demand_of_classes, without_users
from capplan.fleet.plan import RANGE, Plan, cost_of, costs_less, orderable_first, whole_gpus, with_cost_range
from capplan.fleet.pools.joint import (
    ANY_COST,
    Condition,
    Demanded,
    Joint,
    JointPoolsSlowness,
    Pair,
    PoolsSlowness,
    Rank,
    demanded_of,
)
from capplan.fleet.pools.order import PoolSize, pools_order
from capplan.fleet.review import Question, spec_of_layout
from capplan.fleet.search.cheapest import Search, Sized, Terms, busy_replicas, layout_name, search_of
from capplan.fleet.search.layouts import CONFIDENCES
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.recommended import plan_of
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.search.trial import Trial, limits_by_latency
from capplan.hardware.device import Device
from capplan.money.price import HOURS_PER_MONTH
from capplan.replica.plans import started_scheduling
from capplan.replica.speculation import drafting_of_prompts
from capplan.workload.length import fixed
from capplan.workload.request_class import ResponseTimes, Slo, Target

CENT = 0.01
"""Cost per hour within which two plans count as equally dear [$/h]."""
WHOLE_PROMPT = 1e9
"""Tokens of a shared prefix that holds every prompt."""


def timed_question(
    question: Question, devices: Sequence[Device], terms: Terms, cache: SearchCache | None = None
) -> Question:
    """Return the question whose users are replaced by requests that arrive at random at the rate that users send.

    Many users, each of whom thinks for a random time, send requests like a Poisson process. Their rate is that of responses as
    quick as on an idle replica of the quickest layout of the devices of both pools, so it is never too low; users who wait
    longer send fewer requests, and never queue in larger numbers than there are users.
    """
    if not question.demand.users:
        return question
    candidates = (cache or SearchCache()).searched(without_targets(question, devices)).candidates
    responses_s: ResponseTimes = 0.0
    if candidates:
        quickest = min(candidates, key=lambda candidate: candidate.usual_step_s)
        free = without_targets(question, devices)
        responses_s = Search(free, [quickest], terms).trial(quickest).responses_s
    return replace(question, demand=without_users(question.demand, responses_s))


def without_targets(question: Question, devices: Sequence[Device]) -> Question:
    """Return the question of some devices whose replicas may be as slow as they are."""
    return replace(question, devices=tuple(devices), slo=replace(question.slo, targets=()))


def prefill_question(question: Question, devices: Sequence[Device]) -> Question:
    """Return the question of the prefill pool: every prompt yields one token, under the targets of the first token.

    Its replicas have the offload tiers, and run a draft model once a prompt.
    """
    classes = tuple(
        replace(request_class, output_tokens=fixed(1.0)) for request_class in question.demand.classes
    )
    demand = replace(demand_of_classes(classes), tiers=question.demand.tiers)
    prompts = replace(question, drafting=drafting_of_prompts(question.drafting))
    return _phase(prompts, devices, demand, ("ttft",))


def decode_question(question: Question, devices: Sequence[Device]) -> Question:
    """Return the question of the decode pool: prompts arrive with their cache, under the targets of the later tokens.

    Each takes a token of a step's budget in closed form, as if it hit in the prefix cache, and no time of it.
    """
    classes = tuple(
        replace(request_class, shared_prefix_tokens=WHOLE_PROMPT, prefix_hit_fraction=1.0, reuse=None)
        for request_class in question.demand.classes
    )
    taking = replace(
        question,
        profile=replace(question.profile, takes_over=True),
        on_devices={name: replace(own, takes_over=True) for name, own in question.on_devices.items()},
    )
    return _phase(taking, devices, demand_of_classes(classes), ("tpot", "itl"))


def _phase(
    question: Question, devices: Sequence[Device], demand: Demand, metrics: tuple[str, ...]
) -> Question:
    targets = tuple(target for target in question.slo.targets if target.metric in metrics)
    slo = Slo(targets, share_of_phase(question, question.slo.confidence))
    return replace(question, devices=tuple(devices), demand=demand, slo=slo)


def share_of_phase(question: Question, confidence: float) -> float:
    """Return the confidence of a phase by itself that sizes its pool where all targets hold with a confidence: both latencies share it equally."""
    return equal_share(confidence, len(by_latency(question.slo.targets)), question.slowness_table.correlation)


DIVISORS = (4, 8)
"""Divisors of the tokens that a step takes by default."""


def smaller_chunks(question: Question, terms: Terms, now: Plan, cache: SearchCache) -> dict[int, Plan]:
    """Return the cheapest fleets whose steps take fewer tokens, by these tokens; this delays prompts and speeds up decoding.

    Parameters
    ----------
    question : of the fleet
    terms : headroom, spares, prices
    now : the plan as it is
    cache : runs that searches of similar questions share

    Returns
    -------
    plans; empty where the scenario sets the tokens of a step, or the engine does not split prompts
    """
    scheduling = started_scheduling(spec_of_layout(now.single.layout, question))
    if question.max_num_batched_tokens is not None or not scheduling.chunked or scheduling.policy != "mixed":
        return {}
    plans, likely = {}, layout_name(now.single.layout)
    for divisor in DIVISORS:
        tokens = scheduling.max_num_batched_tokens // divisor
        if tokens < scheduling.max_num_seqs:
            continue
        # a device on which the engine runs more sequences by default would not fit them in a step
        smaller = replace(question, max_num_batched_tokens=tokens, max_num_seqs=int(scheduling.max_num_seqs))
        trials = search_of(smaller, terms, cache)
        fleet = trials.cheapest(question.slo.confidence, likely=likely)
        if fleet is not None:
            plans[tokens] = plan_of(fleet, terms)
    return plans


OTHER_DRAWS = 1.0 / 16.0
"""A phase by itself is simulated with other requests than both together, so this share of its replicas may not be needed (a choice)."""


def nearly(replicas: int) -> int:
    """Return the fewest replicas that may be enough together where a phase takes so many by itself.

    Examples
    --------
    >>> [nearly(replicas) for replicas in (1, 4, 31)]
    [1, 3, 29]
    """
    return max(1, floor((1.0 - OTHER_DRAWS) * replicas))


@dataclass(frozen=True, slots=True)
class Contender:
    """One layout of either phase, each sized separately."""

    prefill: Sized
    decode: Sized

    @property
    def sides(self) -> tuple[Sized, Sized]:
        """The layout of the prefill pool and that of the decode pool."""
        return self.prefill, self.decode

    @property
    def alone(self) -> Pair:
        """Replicas that either phase takes by itself, or slightly fewer."""
        return nearly(self.prefill.busy), nearly(self.decode.busy)

    @property
    def trials(self) -> tuple[Trial, Trial]:
        """The simulated layout of the prefill pool and that of the decode pool."""
        return self.prefill.trial, self.decode.trial

    def alone_if(self, demanded: Demanded) -> Pair | None:
        """Return the replicas that either phase takes by itself at the loads and slownesses that are demanded of both; None if no number is enough."""
        counts = []
        for side, trial in enumerate(self.trials):
            needed: int | None = 1
            concerned = limits_by_latency(trial.limits)
            for load, paces, latency in demanded:
                if needed is not None and (latency is None or latency in concerned):
                    total = load * trial.total_rate
                    needed = trial.replicas_for(total, paces[side], trial.limits, at_least=needed)
            counts.append(needed)
        prefill, decode = counts
        return None if prefill is None or decode is None else (prefill, decode)

    @property
    def hardware(self) -> str:
        """Names of the devices: that of the prefill pool, then that of the decode pool if it differs."""
        return " + ".join(dict.fromkeys(side.layout.device.name for side in self.sides))

    def slowness(self, question: Question) -> JointPoolsSlowness:
        """Return how much slower than predicted the steps of either pool may be, by the latencies that the targets limit."""
        each = by_latency(question.slo.targets)
        return JointPoolsSlowness(
            {name: self.slowness_of(question, own) for name, own in each.items()},
            question.slowness_table.correlation,
        )

    def demanded(self, question: Question, headroom_fraction: float) -> Demanded:
        """Return what sizes a pair of the layouts: with headroom, and with the required confidence, which both latencies share equally."""
        return demanded_of(headroom_fraction, self.slowness(question).equally(question.slo.confidence))

    def slowness_of(self, question: Question, targets: Sequence[Target]) -> PoolsSlowness:
        """Return how much slower than predicted the steps of either pool may be, as it matters for some targets on one latency."""
        prefill, decode = (
            question.slowness(
                targets,
                question.networks[trial.candidate.layout.weight_format],
                trial.candidate.usual_step_s,
                trial.candidate.layout.device,
            )
            for trial in self.trials
        )
        return PoolsSlowness(prefill, decode)


def rank_of(contender: Contender, terms: Terms) -> Callable[[Pair], Rank]:
    """Return the sort key of pairs of the layouts: dollars per hour of their order, then GPUs without spares.

    Without a price it is GPUs with and without spares. A pair that the limits on number or machines do not allow costs infinitely much.
    """
    layouts = [side.layout for side in contender.sides]
    prices = [terms.prices.get(layout.device.name) for layout in layouts]
    sizes = [
        PoolSize(price, layout.devices, layout.device.node_devices)
        for price, layout in zip(prices, layouts, strict=True)
        if price is not None
    ]

    @cache
    def rank(pair: Pair) -> Rank:
        counted = list(zip(layouts, pair, strict=True))
        busy = float(sum(layout.devices * count for layout, count in counted))
        gpus = sum(terms.gpus(layout, count) for layout, count in counted)
        if terms.max_devices is not None and gpus > terms.max_devices:
            return inf, busy
        if len(sizes) < len(layouts):
            return float(gpus), busy
        return round(pools_order(sizes, pair, terms.survive)[0], 9), busy

    return rank


def contender_of(
    question: Question, plan: Plan, terms: Terms, cache: SearchCache | None = None
) -> Contender | Reason:
    """Return the layouts of a plan under a question, with its replicas, or the reason where one cannot serve the model at all."""
    sides = []
    for phase, pool in zip((prefill_question, decode_question), plan.groups, strict=True):
        trial = trial_of(phase(question, (pool.layout.device,)), pool.layout, terms, cache)
        if isinstance(trial, Reason):
            return trial
        sides.append(Sized(trial, pool.busy_replicas, pool.gpus))
    return Contender(sides[0], sides[1])


@dataclass(frozen=True, slots=True)
class PoolsSizing:
    """The layouts and the link of a plan under a question, which its replicas are counted for."""

    question: Question
    terms: Terms
    contender: Contender
    joint: Joint

    def at_confidence(self, confidence: float, under: Rank = ANY_COST) -> Pair | None:
        """Return the cheapest replicas that meet the targets: as predicted with headroom, and with a confidence at the peak.

        Parameters
        ----------
        confidence : [-]
            that replicas are fast enough
        under : only pairs below this rank count
        """
        trials = self.contender.trials
        share = share_of_phase(self.question, confidence)
        prefill, decode = (busy_replicas(trial, trial.limits, share, self.terms) for trial in trials)
        slower = self.contender.slowness(self.question).equally(confidence)
        demanded = demanded_of(self.terms.headroom_fraction, slower)
        if prefill is None or decode is None:
            return None
        return self._from((nearly(prefill), nearly(decode)), demanded, under)

    def at_speed(self, part: float) -> Pair | None:
        """Return the cheapest replicas that carry the peak with headroom if they are as slow as in this part of the cases."""
        slower = self.contender.slowness(self.question).equally(part)
        demanded = tuple(Condition(self._room, paces, name) for name, paces in slower.items())
        start = self.contender.alone_if(demanded)
        return None if start is None else self._from(start, demanded)

    @property
    def _room(self) -> float:
        """Multiple of the peak that is carried with headroom."""
        return 1.0 / (1.0 - self.terms.headroom_fraction)

    def _from(self, start: Pair, demanded: Demanded, under: Rank = ANY_COST) -> Pair | None:
        """Return the cheapest pair below a rank, looked for from what either phase takes by itself."""
        rank, likely = rank_of(self.contender, self.terms), partial(self.contender.alone_if, demanded)
        return self.joint.cheapest(start, rank, demanded, under, likely)[0]


def pools_sizing(
    question: Question, plan: Plan, terms: Terms, cache: SearchCache | None = None
) -> PoolsSizing | Reason:
    """Return how the replicas of a plan's layouts are counted under a question, or why one of them cannot serve the model."""
    cache = cache or SearchCache()
    question = timed_question(question, [group.layout.device for group in plan.groups], terms)
    contender = contender_of(question, plan, terms, cache)
    if isinstance(contender, Reason):
        return contender
    prefill, decode = (side.trial.replica for side in contender.sides)
    assert plan.transfer is not None
    return PoolsSizing(
        question, terms, contender, cache.joint(question, prefill, decode, plan.transfer.terms)
    )


def usd_per_month_of(plan: Plan, pair: Pair | None) -> float:
    """Return what the layouts of a plan cost a month with other replicas in service; infinite where none are enough.

    Raises
    ------
    ValueError
        the plan has no price
    """
    if pair is None:
        return inf
    usd = plan.resized(pair).usd_per_month
    if usd is None:
        raise ValueError(f"{plan.hardware} has no price")
    return usd


def with_range(question: Question, plan: Plan, terms: Terms, cache: SearchCache) -> Plan:
    """Return a plan with what its layouts cost if replicas are as fast or as slow as RANGE; as it is without a price."""
    sizing = pools_sizing(question, plan, terms, cache)
    if plan.usd_per_month is None or isinstance(sizing, Reason):
        return plan
    low, high = (usd_per_month_of(plan, sizing.at_speed(part)) for part in RANGE)
    return with_cost_range(plan, low, high)


def with_pools(answer: FleetAnswer, apart: Sequence[Plan], surest_within: float) -> FleetAnswer:
    """Return an answer of identical replicas with plans of separate pools too; all compete for each choice.

    Parameters
    ----------
    answer : its plans are of identical replicas
    apart : plans with separate pools, cheapest first
    surest_within : multiple of the cost of the cheapest plan that the surest one may cost
    """
    if not apart:
        return answer
    plans = tuple(sorted((*apart, *answer.plans), key=orderable_first))
    apart = sorted(apart, key=orderable_first)
    if answer.choices is None:
        surest = max(apart, key=lambda plan: (plan.slo_met_probability, -cost_of(plan)))
        why = "no plan of identical replicas meets the targets, or none was asked for"
        choices = Choices(apart[0], surest, min(apart, key=whole_gpus), apart[0], why)
        return replace(answer, plans=plans, choices=choices)
    known = answer.choices
    priced = known.cheapest.usd_per_hour is not None
    alike_priced = [plan for plan in apart if (plan.usd_per_hour is not None) == priced]
    every = [known.cheapest, *alike_priced]
    cheapest = min(every, key=orderable_first)
    near = [plan for plan in (known.surest, *every) if cost_of(plan) <= surest_within * cost_of(cheapest)]
    choices = replace(
        known,
        cheapest=cheapest,
        surest=max(near, key=lambda plan: (plan.slo_met_probability, -cost_of(plan))),
        fewest=min((known.fewest, *alike_priced), key=whole_gpus),
    )
    if cheapest is not apart[0] or not costs_less(apart[0], known.recommended):
        return replace(answer, plans=plans, choices=choices)
    choices = replace(choices, recommended=apart[0], why="it costs less than identical replicas")
    return replace(answer, plans=plans, choices=choices, tight=None, next_steps=None)


def with_certainty_of_pools(
    answer: FleetAnswer, question: Question, terms: Terms, cache: SearchCache | None = None
) -> FleetAnswer:
    """Return an answer whose cost of certainty counts separate pools too: those listed, and the recommended ones of another size.

    Parameters
    ----------
    answer : its certainty is that of identical replicas only; empty if there are none
    question : of the whole fleet
    terms : headroom, spares and prices
    cache : runs of the search before
    """
    listed = answer.with_pools
    plan = answer.chosen if answer.chosen is not None and answer.chosen.has_pools else None
    if not listed or not question.slo.targets:
        return answer
    sizing = None if plan is None else pools_sizing(question, plan, terms, cache)
    together = {row.confidence: row for row in answer.certainty}
    rows: list[Certainty] = []
    surer = Certainty(1.0, None, None, None)
    for confidence in sorted(CONFIDENCES, reverse=True):
        known = [replace(surer, confidence=confidence)]
        known += [together[confidence]] if confidence in together else []
        known += [
            _certainty(confidence, other) for other in listed if confidence <= other.slo_met_probability
        ]
        if plan is not None and sizing is not None and not isinstance(sizing, Reason):
            pair = sizing.at_confidence(confidence, _dearest_of_use(plan, known))
            known += [_certainty(confidence, plan.resized(pair))] if pair is not None else []
        surer = min(known, key=lambda row: [inf if n is None else n for n in (row.usd_per_month, row.gpus)])
        rows.append(surer)
    return replace(answer, certainty=tuple(reversed(rows)))


def _dearest_of_use(plan: Plan, known: Sequence[Certainty]) -> Rank:
    """Return the rank above which a pair of a plan's layouts costs more than a row that is known."""
    usd_per_month = min((row.usd_per_month for row in known if row.usd_per_month is not None), default=inf)
    return ANY_COST if plan.usd_per_month is None else (usd_per_month / HOURS_PER_MONTH + CENT, inf)


def _certainty(confidence: float, plan: Plan) -> Certainty:
    return Certainty(confidence, plan.hardware, plan.gpus, plan.usd_per_month)
