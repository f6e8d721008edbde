"""Screening: upper bounds on the load of every legal layout, in closed form as arrays, before anything is simulated."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from capplan.accuracy.slowness import JointSlowness, Latency, by_latency, latency_of
from capplan.assumption import Label
from capplan.errors import CapplanError, Reason, Refusal
from capplan.fleet.answer import Relaxation
from capplan.fleet.engine_options import tier_in_tokens
from capplan.fleet.load.demand import Demand
from capplan.fleet.review import Question, spec_of_layout
from capplan.fleet.search.candidates import Layout, Rejections, layouts
from capplan.fleet.search.steady_plans import (
    LOADS,
    carried_shares,
    steady_states,
    steady_states_of,
    usual_batches,
    usual_states,
    usual_step_s,
)
from capplan.memory.plan import LIMITS
from capplan.model.network import Network
from capplan.model.parameters import is_large_mixture
from capplan.model.sharding import Sharding
from capplan.numbers import Array
from capplan.replica.plans import (
    Plans,
    StepTimes,
    exchange_of,
    plans_cache_tokens,
    plans_memory,
    plans_of,
    started_schedulings,
    without_speed,
)
from capplan.replica.replica import Replica, replica_of
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import DraftPlan, best_plan, drafting_replica
from capplan.serving.steady_state import SteadyState, prompts_fit_a_step
from capplan.workload.request_class import Slo, Target

TARGET_SLACK = 1.3
"""Factor by which the closed form may overstate a latency: a layout that misses a target by more at every load is dropped."""
RATE_SLACK = 1.12
"""Factor by which the closed form may understate a rate; a test over random scenarios checks both factors."""
FORM_SLACK, DEVIATIONS = 1.05, 3.0
"""The part of it that is not the luck of a run, and how lucky a run may be, in standard deviations of its rate."""

STEP_DIVISORS = (2, 4, 8)
"""Parts of the tokens of the engine's default step that are tried as a limit."""
MORE_CACHE = 1.25
"""Multiple of the KV cache of a layout with the largest step that the smallest one has to leave."""
UNLIMITED_S = 60.0
"""Latency assumed in bounds for a metric without a target: more is not borne by users."""
CONFIDENCES = (0.5, 0.8, 0.9, 0.95)
"""The confidences for which the cheapest fleet is reported."""

_ABOVE = Reason(Refusal.LOAD, "above the largest load that meets the targets")

Flags = NDArray[np.bool_]


def rate_slack(question: Question) -> float:
    """Return the factor by which the closed form may understate a rate: a run of few or of bursty requests may be a lucky one.

        f = max(1.12, 1.05 + 3 v / n^(1/2))

    v is the coefficient of variation of the gaps between arrivals, n the requests of a run: its rate is off by v / n^(1/2).
    """
    bursts = max((item.arrival_cv for item in question.demand.classes), default=1.0)
    return float(max(RATE_SLACK, FORM_SLACK + DEVIATIONS * bursts / question.requests**0.5))


@dataclass(frozen=True, slots=True)
class ScreenedLayout:
    """A layout that may meet the targets, and upper bounds on the share of the traffic that one replica can carry."""

    layout: Layout
    share_bound: float
    """Largest share of the traffic with which a replica may meet the targets, as predicted."""
    share_ceiling: float
    """Largest share of the traffic that a replica can serve, whatever the latency."""
    sure_share_bounds: Mapping[float, float]
    """Bound like `share_bound`, by confidence, for a replica as slow as that confidence allows for; 0 if it is out of reach."""
    kv_cache_tokens: float
    label: Label
    usual_step_s: float
    """Time per output token at half of the largest rate, without drafts."""
    usual_batch: float
    """Decoding sequences at that rate."""
    slowness: JointSlowness
    """How much slower than predicted its steps may be."""
    demand: Demand
    """Traffic with the prefix-cache hits of this replica; with sessions, the most hits that it may have."""
    speculating: Replica | None = None
    """The replica, if it speculates."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The layouts that may meet the targets at some load, and the number of the others by reason."""

    candidates: tuple[ScreenedLayout, ...]
    rejected: Rejections
    evaluated: int
    relaxations: tuple[Relaxation, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """Functions that build the replicas of a search, or take them from earlier ones."""

    times: StepTimes = field(default_factory=StepTimes)
    replica: Callable[[ReplicaSpec], Replica] = replica_of
    drafting: Callable[[Replica, DraftPlan, float], Replica] = drafting_replica


def search(question: Question, built: Built | None = None) -> SearchResult:
    """Return every layout that may meet the targets, with upper bounds on its load."""
    built = built or Built()
    sized: list[ScreenedLayout] = []
    rejected: Rejections = Counter()
    relaxations: list[Relaxation] = []
    evaluated = 0
    for (dtype, network), kv_format, devices in product(
        question.networks.items(), question.kv_formats, question.devices_by_profile
    ):
        ranges = replace(question.ranges, weight_formats=(dtype,), kv_formats=(kv_format,))
        legal, illegal = layouts(network, devices, ranges, question.profile_on(devices[0]))
        rejected.update({key: count * LOADS for key, count in illegal.items()})
        evaluated += LOADS * (len(legal) + sum(illegal.values()))
        part = _Part(question, network, kv_format, built)
        legal = part.with_speed(legal, rejected)
        if not legal:
            continue
        plans = part.plans(legal)
        held, kept_memory = part.that_fit(legal, plans, rejected)
        if is_large_mixture(network):
            smaller, smaller_memory = part.with_smaller_steps(legal, plans, held, kept_memory)
            held, kept_memory = [*held, *smaller], np.concatenate((kept_memory, smaller_memory))
            evaluated += LOADS * len(smaller)
        if held:
            screened, near = part.evaluated(held, kept_memory, rejected)
            sized += screened
            relaxations += near
    return SearchResult(tuple(sized), rejected, evaluated, tuple(relaxations))


def longest_responses_s(slo: Slo, demand: Demand) -> tuple[float, ...]:
    """Return the longest mean response of each class whose targets are met [s]; 0 if no users wait for a response."""
    if not demand.users:
        return demand.responses_s(0.0)
    targets = {target.metric: target for target in slo.targets}
    per_token = targets.get("tpot", targets.get("itl"))
    token_s = UNLIMITED_S if per_token is None else per_token.limit_s
    outputs = [item.output_tokens.mean_tokens for item in demand.classes]
    if len(demand.classes) == 1:
        outputs = [float(demand.lengths.output_tokens)]
    return tuple(
        (targets["ttft"].limit_of(item) if "ttft" in targets else UNLIMITED_S) + tokens * token_s
        for item, tokens in zip(demand.classes, outputs, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """The plans of one weight dtype and one KV dtype."""

    question: Question
    network: Network
    kv_format: str
    built: Built

    def plans(self, layouts: Sequence[Layout]) -> Plans:
        """Return the plans of these layouts."""
        return plans_of([spec_of_layout(layout, self.question) for layout in layouts])

    def with_speed(self, legal: list[Layout], rejected: Rejections) -> list[Layout]:
        """Return the layouts on devices of which a speed is known; an error where that is none of all devices."""
        one_of_each = {layout.device.name: spec_of_layout(layout, self.question) for layout in legal}
        errors = {name: error for name, spec in one_of_each.items() if (error := without_speed(spec))}
        if len(errors) == len(self.question.devices) and len(self.question.networks) == 1:
            raise next(iter(errors.values()))
        for layout in legal:
            if error := errors.get(layout.device.name):
                words = str(error).partition("\n")[0].removeprefix(f"{layout.device.name}: ")
                rejected[layout.device.name, Reason(Refusal.SPEED, words)] += LOADS
        return [layout for layout in legal if layout.device.name not in errors]

    def that_fit(
        self, legal: Sequence[Layout], plans: Plans, rejected: Rejections
    ) -> tuple[list[Layout], Array]:
        """Return the layouts whose plans fit in memory, and the KV-cache capacity of their replicas in tokens."""
        memory = plans_memory(plans)
        codes = memory.limit_codes
        for layout, code in zip(legal, codes, strict=True):
            if code:
                rejected[layout.device.name, Reason(Refusal.MEMORY, f"memory: {LIMITS[code]}")] += LOADS
        kept = [layout for layout, code in zip(legal, codes, strict=True) if not code]
        lengths = self.question.demand.lengths
        tokens = plans_cache_tokens(plans, memory, float(lengths.input_tokens + lengths.output_tokens))
        return kept, tokens[codes == 0]

    def with_smaller_steps(
        self, legal: Sequence[Layout], plans: Plans, held: Sequence[Layout], held_tokens: Array
    ) -> tuple[list[Layout], Array]:
        """Return layouts whose steps take fewer tokens than the engine's default, where that pays, and the KV-cache capacity of their replicas.

        The working memory of a step grows with its tokens, for experts over several servers by those of all attention groups. The largest
        step that fits is taken where the engine's own does not. The smallest one is taken where it leaves MORE_CACHE times as
        much cache: prompts want large steps, decoding wants cache. The largest one with which the engine starts other all-to-all kernels is
        taken too.

        Parameters
        ----------
        legal, plans : layouts with the steps of the engine, and their plans
        held : those that fit
        held_tokens : [tokens]
            cache of those
        """
        if self.question.max_num_batched_tokens is not None:
            return [], np.zeros(0)
        smaller = []
        for layout, engine in zip(legal, started_schedulings(plans), strict=True):
            steps = (engine.max_num_batched_tokens // divisor for divisor in STEP_DIVISORS)
            if engine.chunked and engine.policy == "mixed":
                smaller += [
                    replace(layout, max_num_batched_tokens=step)
                    for step in steps
                    if step >= engine.max_num_seqs
                ]
        if not smaller:
            return [], np.zeros(0)
        fitting, tokens = self.that_fit(smaller, self.plans(smaller), Counter())
        known = {
            (layout.device.name, layout.sharding): cache
            for layout, cache in zip(held, held_tokens.tolist(), strict=True)
        }
        by_layout: dict[tuple[str, Sharding], list[int]] = {}
        for row, layout in enumerate(fitting):
            by_layout.setdefault((layout.device.name, layout.sharding), []).append(row)
        kept = []
        for name, rows in by_layout.items():
            largest, smallest = rows[0], rows[-1]
            kept += [] if name in known else [largest]
            more_cache = tokens[smallest] >= MORE_CACHE * known.get(name, tokens[largest])
            own = self._exchange(replace(fitting[largest], max_num_batched_tokens=None))
            others = [row for row in rows if self._exchange(fitting[row]) != own]
            wanted = [*others[:1], *([smallest] if more_cache else [])]
            kept += [row for row in dict.fromkeys(wanted) if row not in kept]
        return [fitting[row] for row in kept], tokens[kept]

    def _exchange(self, layout: Layout) -> tuple[str, str]:
        return exchange_of(spec_of_layout(layout, self.question))

    def evaluated(
        self, layouts: list[Layout], cache_tokens: Array, rejected: Rejections
    ) -> tuple[list[ScreenedLayout], list[Relaxation]]:
        """Return the layouts that may meet the targets at some load, and how far the others miss them."""
        if not self.question.demand.reuses or self.question.demand.hit_fractions:
            return self.with_one_demand(layouts, cache_tokens, rejected)
        demands = [self._seen(*row) for row in zip(layouts, cache_tokens.tolist(), strict=True)]
        sized: list[ScreenedLayout] = []
        near: list[Relaxation] = []
        kinds = [(demand.hit_fractions, demand.load_s) for demand in demands]
        for kind in sorted(set(kinds)):
            rows = [row for row, other in enumerate(kinds) if other == kind]
            part = replace(self, question=replace(self.question, demand=demands[rows[0]]))
            more, closest = part.with_one_demand([layouts[row] for row in rows], cache_tokens[rows], rejected)
            sized += more
            near += closest
        return sized, near

    def _seen(self, layout: Layout, cache_tokens: float) -> Demand:
        """Return the demand with the most prefix-cache hits of a replica of a layout: all of the cache for one session, if there are any."""
        demand = self.question.demand
        tiers = [
            tier_in_tokens(
                self.network,
                layout.device,
                layout.sharding,
                self.kv_format,
                size,
                float(demand.lengths.input_tokens),
            )
            for size in demand.tiers
        ]
        return demand.with_cache(cache_tokens, tiers, share=0.0)

    def with_one_demand(
        self, layouts: list[Layout], cache_tokens: Array, rejected: Rejections
    ) -> tuple[list[ScreenedLayout], list[Relaxation]]:
        """Do the same for layouts that all have the prefix-cache hits of the question's demand."""
        plans = self.plans(layouts)
        table, rates = self.built.times.together(plans)
        labels = [each.label for each in rates]
        engines = plans.specs[0].profile, plans.schedulings, table, cache_tokens, self.question.demand
        state = steady_states(*engines)
        usual = usual_states(*engines, state)
        batches = usual_batches(usual, self.question.demand)
        if self.question.drafting is None:
            states = (state, cache_tokens, plans.max_num_batched_tokens)
            return self._chosen(layouts, labels, *states, rejected, usual_step_s(usual), batches)
        sized: list[ScreenedLayout] = []
        near: list[Relaxation] = []
        for layout, batch, usual_s in zip(layouts, batches, usual_step_s(usual), strict=True):
            more, closest = self._speculating(layout, batch, usual_s, rejected)
            sized += more
            near += closest
        return sized, near

    def _speculating(
        self, layout: Layout, batch: float, usual_s: float, rejected: Rejections
    ) -> tuple[list[ScreenedLayout], list[Relaxation]]:
        """Do the same for one layout that speculates, with the draft length that is best at its usual batch.

        How much slower than predicted its steps may be is that of the same replica without drafts.
        """
        question, lengths = self.question, self.question.demand.lengths
        assert question.drafting is not None
        spec = spec_of_layout(layout, question)
        try:
            context = min(float(lengths.input_tokens + lengths.output_tokens), question.max_model_len)
            plan = best_plan(question.drafting, spec, batch, context)
            replica = self.built.drafting(self.built.replica(spec), plan, context)
        except CapplanError as error:
            words = str(error).partition("\n")[0]
            rejected[layout.device.name, Reason(Refusal.SPECULATION, words)] += LOADS
            return [], []
        tokens = np.array([float(replica.kv_blocks * replica.scheduling.block_tokens)])
        state = steady_states_of([replica], question.demand, replica)
        states = (state, tokens, np.array([float(replica.scheduling.max_num_batched_tokens)]))
        sized, near = self._chosen([layout], [replica.label], *states, rejected, [usual_s], [batch])
        return [replace(candidate, speculating=replica) for candidate in sized], near

    def _chosen(
        self,
        layouts: list[Layout],
        labels: Sequence[Label],
        state: SteadyState,
        cache_tokens: Array,
        budgets: Array,
        rejected: Rejections,
        usual_s: Sequence[float],
        batches: Sequence[float],
    ) -> tuple[list[ScreenedLayout], list[Relaxation]]:
        q = self.question
        slownesses = [
            q.joint_slowness(self.network, step_s, layout.device, q.served(self.network, layout, batch))
            for step_s, batch, layout in zip(usual_s, batches, layouts, strict=True)
        ]
        fits = prompts_fit_a_step(q.demand.lengths, np.asarray(budgets)[:, None])
        needed = {target: _least_values(state, target, fits) for target in q.slo.targets}
        holds = ~state.saturated & self._within(needed, np.ones((len(layouts), 1)))
        shares = carried_shares(state, q.demand, longest_responses_s(q.slo, q.demand))
        slack = rate_slack(q)
        sure = {}
        for confidence in {q.slo.confidence, *CONFIDENCES}:
            each = [slowness.each(confidence) for slowness in slownesses]
            bound = np.full(len(layouts), np.inf)
            for latency, own in by_latency(q.slo.targets).items():
                slower = np.array([slow[latency] for slow in each])[:, None]
                limited = {target: needed[target] for target in own}
                within = ~state.saturated & self._within(limited, slower)
                bound = np.minimum(bound, np.where(within, shares / slower, 0.0).max(axis=1))
            sure[confidence] = slack * bound
        candidates, near = [], []
        for row, layout in enumerate(layouts):
            good = np.flatnonzero(holds[row])
            bounds = {confidence: float(values[row]) for confidence, values in sure.items()}
            if not good.size or not bounds[q.slo.confidence]:
                slowest = slownesses[row].each(q.slo.confidence)
                worst, relaxation = _nearest(q, needed, slowest, row, layout, state)
                rejected[layout.device.name, worst] += LOADS
                near += [relaxation] if relaxation else []
            else:
                rejected[layout.device.name, _ABOVE] += LOADS - int(good.size)
            if not good.size:
                continue
            candidates.append(
                ScreenedLayout(
                    layout,
                    share_bound=slack * float(shares[row, good].max()),
                    share_ceiling=slack * float(shares[row, ~state.saturated[row]].max()),
                    sure_share_bounds=bounds,
                    kv_cache_tokens=float(cache_tokens[row]),
                    label=labels[row],
                    usual_step_s=usual_s[row],
                    usual_batch=batches[row],
                    slowness=slownesses[row],
                    demand=q.demand,
                )
            )
        return candidates, near

    def _within(self, needed: Mapping[Target, Array], slowness: Array) -> Flags:
        """Return where all targets may hold if every step takes `slowness` times as long."""
        within: Flags = np.array(True)
        for target, values in needed.items():
            within = within & (values * slowness <= _loosest_limit_s(target, self.question.demand))
        return within


def target_values(state: SteadyState, target: Target) -> Array:
    """Return the latency that a target limits, over plans and loads; ITL is approximated by TPOT."""
    spread = {"ttft": state.ttft_s, "tpot": state.tpot_s, "itl": state.tpot_s, "e2e": state.e2e_s}[
        target.metric
    ]
    values: Array = getattr(spread, target.statistic)
    return values


def _least_values(state: SteadyState, target: Target, fits: Flags) -> Array:
    """Return a lower bound on the value that a target limits, over plans and loads.

    The tail of the time per token is overstated where outputs are short; its mean is not. Where prompts are longer than a step (not
    `fits`), the closed form is out of its range, and the bound at every load is the value next to idle.
    """
    values = target_values(state, target)
    if target.metric in {"tpot", "itl"}:
        values = np.minimum(values, state.tpot_s.mean)
    return np.where(fits, values, values[:, :1]) / TARGET_SLACK


def _loosest_limit_s(target: Target, demand: Demand) -> float:
    """Return the limit of the class that leaves an engine the most time: requests of no class may take longer [s]."""
    return max(target.limit_of(item) for item in demand.classes)


def _nearest(
    question: Question,
    needed: Mapping[Target, Array],
    slower: Mapping[Latency, float],
    row: int,
    layout: Layout,
    state: SteadyState,
) -> tuple[Reason, Relaxation | None]:
    """Return the target that a layout misses by the largest factor at its lightest load, and the limit it could meet as slow as it may be."""
    served = np.flatnonzero(~state.saturated[row])
    if not served.size:
        return Reason(Refusal.OVERLOAD, "a single request overloads the replica"), None
    at = int(served[0])
    limits = {target: _loosest_limit_s(target, question.demand) for target in question.slo.targets}
    worst = max(limits, key=lambda target: float(needed[target][row, at]) / limits[target])
    slowest = max(slower[latency_of(worst)], 1.0)
    least = float(needed[worst][row, served].min()) * slowest + worst.stated_s - limits[worst]
    words = f"{worst.key} over {worst.stated_s:g} s even at the lightest load"
    return Reason(Refusal.TARGET, words), Relaxation(worst.key, worst.stated_s, least, layout)
