"""Evaluate every legal plan at every load, as arrays; keep for each plan the largest load that holds the targets."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from capplan.accuracy.intervals import Interval, Intervals, interval_of, regime_keys, widest
from capplan.accuracy.serving import network_class
from capplan.engine.profile import EngineProfile
from capplan.errors import Reason, Refusal
from capplan.fleet.candidates import Layout, Ranges, Rejections, layouts
from capplan.fleet.demand import Demand
from capplan.fleet.engine_use import tier_in_tokens
from capplan.fleet.plan import Relaxation
from capplan.fleet.probability import needed_ratio
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency
from capplan.memory.plan import LIMITS
from capplan.model.network import Network
from capplan.numbers import Array
from capplan.replica.plan_steps import plans_step_function
from capplan.replica.plans import Plans, plans_cache_tokens, plans_memory, plans_of, plans_tables
from capplan.replica.spec import ReplicaSpec
from capplan.serving.screening import screened
from capplan.serving.steady_state import SteadyState
from capplan.serving.steady_steps import Limits
from capplan.workload.slo import Slo, Target

LOADS = 96
"""Loads per plan: mean decoding sequences from one to as many as the cache holds, evenly in the logarithm."""

_ABOVE = Reason(Refusal.LOAD, "above the largest load that holds the targets")

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Question:
    """What a search may choose from, resolved: one network per weight dtype, one efficiency per device."""

    networks: Mapping[str, Network]
    """By the name of the weight dtype."""
    devices: Sequence[Device]
    efficiencies: Mapping[str, Efficiency]
    """By device name."""
    kv_formats: Sequence[str]
    profile: EngineProfile
    ranges: Ranges
    demand: Demand
    slo: Slo
    intervals: Intervals
    max_model_len: int
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None


def spec_of_layout(layout: Layout, weight_dtype: str, question: Question) -> ReplicaSpec:
    """Return the replica of a layout with the weights in one of the question's dtypes."""
    return ReplicaSpec(
        network=question.networks[weight_dtype],
        device=layout.device,
        efficiency=question.efficiencies[layout.device.name],
        profile=question.profile,
        sharding=layout.sharding,
        kv_format=layout.kv_format,
        max_model_len=question.max_model_len,
        max_num_seqs=question.max_num_seqs,
        max_num_batched_tokens=question.max_num_batched_tokens,
        gpu_memory_utilization=question.gpu_memory_utilization,
        typical_context_tokens=int(
            question.demand.lengths.input_tokens + question.demand.lengths.output_tokens
        ),
    )


@dataclass(frozen=True, slots=True)
class SizedLayout:
    """A layout, the largest rate at which one replica of it holds the targets, and what it does there."""

    layout: Layout
    weight_dtype: str
    request_rate_limit: float
    """Requests per second and replica."""
    response_s: float
    kv_cache_tokens: float
    label: str
    demand: Demand
    """As the replica sees it: what its cache finds is not worked on."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All layouts that can hold the targets at some load, and the rest counted."""

    found: tuple[SizedLayout, ...]
    rejected: Rejections
    evaluated: int
    relaxations: tuple[Relaxation, ...]


def search(question: Question) -> SearchResult:
    """Return every layout with the largest load at which it holds the targets."""
    sized: list[SizedLayout] = []
    rejected: Rejections = Counter()
    relaxations: list[Relaxation] = []
    evaluated = 0
    for dtype, network in question.networks.items():
        for kv_format in question.kv_formats:
            ranges = replace(question.ranges, weight_formats=(dtype,), kv_formats=(kv_format,))
            legal, illegal = layouts(network, question.devices, ranges, question.profile)
            rejected.update({key: count * LOADS for key, count in illegal.items()})
            evaluated += LOADS * (len(legal) + sum(illegal.values()))
            part = _Part(question, network, dtype, kv_format)
            held, kept_memory = part.that_fit(legal, rejected)
            if held:
                more, near = part.evaluated(held, kept_memory, rejected)
                sized += more
                relaxations += near
    return SearchResult(tuple(sized), rejected, evaluated, tuple(relaxations))


@dataclass(frozen=True, slots=True)
class _Part:
    """The plans of one weight dtype and one KV dtype."""

    question: Question
    network: Network
    weight_dtype: str
    kv_format: str

    def plans(self, layouts: Sequence[Layout]) -> Plans:
        """Return replicas of these layouts side by side."""
        return plans_of([spec_of_layout(layout, self.weight_dtype, self.question) for layout in layouts])

    def that_fit(self, legal: list[Layout], rejected: Rejections) -> tuple[list[Layout], Array]:
        """Return the layouts whose memory suffices, and the cache tokens of their replicas."""
        if not legal:
            return [], np.zeros(0)
        plans = self.plans(legal)
        memory = plans_memory(plans)
        codes = memory.limit_codes
        for item, code in zip(legal, codes, strict=True):
            if code:
                rejected[item.device.name, Reason(Refusal.MEMORY, f"memory: {LIMITS[code]}")] += LOADS
        kept = [item for item, code in zip(legal, codes, strict=True) if not code]
        lengths = self.question.demand.lengths
        tokens = plans_cache_tokens(plans, memory, float(lengths.input_tokens + lengths.output_tokens))
        return kept, tokens[codes == 0]

    def evaluated(
        self, kept: list[Layout], cache_tokens: Array, rejected: Rejections
    ) -> tuple[list[SizedLayout], list[Relaxation]]:
        """Return the layouts that hold the targets at some load, and how far the others are from it."""
        if not self.question.demand.reuses or self.question.demand.hit_fractions:
            return self._evaluated(kept, cache_tokens, rejected)
        seen = [self._seen(layout, float(tokens)) for layout, tokens in zip(kept, cache_tokens, strict=True)]
        sized: list[SizedLayout] = []
        near: list[Relaxation] = []
        kinds = [(demand.hit_fractions, demand.load_s) for demand in seen]
        for kind in sorted(set(kinds)):
            rows = [row for row, own_kind in enumerate(kinds) if own_kind == kind]
            part = replace(self, question=replace(self.question, demand=seen[rows[0]]))
            more, closest = part._evaluated([kept[row] for row in rows], cache_tokens[rows], rejected)  # noqa: SLF001
            sized += more
            near += closest
        return sized, near

    def _seen(self, layout: Layout, cache_tokens: float) -> Demand:
        """Return the demand as a replica of a layout sees it."""
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
        return demand.with_cache(cache_tokens, tiers)

    def _evaluated(
        self, kept: list[Layout], cache_tokens: Array, rejected: Rejections
    ) -> tuple[list[SizedLayout], list[Relaxation]]:
        q = self.question
        plans = self.plans(kept)
        tables = plans_tables(plans)
        labels = [rates.label for rates in tables.rates]
        per_sequence = float(q.demand.lengths.input_tokens) + float(q.demand.lengths.output_tokens)
        most = np.minimum(plans.max_num_seqs, cache_tokens / per_sequence)
        grid = np.geomspace(1e-3, 1.0, LOADS)[None, :] * np.maximum(most, 1.0)[:, None]
        state = screened(
            plans_step_function(tables.table, q.demand.lengths, plans.max_num_batched_tokens[:, None]),
            q.demand.lengths,
            Limits(
                np.maximum(most, 1.0)[:, None],
                plans.max_num_batched_tokens[:, None],
                prefill_first=q.profile.policy == "prefill_first",
                request_s=q.profile.host.request_s + q.demand.load_s,
            ),
            grid,
        )
        return self._chosen(kept, labels, state, cache_tokens, rejected)

    def _chosen(
        self,
        kept: list[Layout],
        labels: Sequence[str],
        state: SteadyState,
        cache_tokens: Array,
        rejected: Rejections,
    ) -> tuple[list[SizedLayout], list[Relaxation]]:
        q = self.question
        sized, near = [], []
        needed = {}
        holds: Flags = ~state.saturated
        for target in q.slo.targets:
            ratios = [needed_ratio(self.bounds(target, label), q.slo.confidence) for label in labels]
            needed[target] = target_values(state, target) * np.array(ratios)[:, None]
            holds = holds & (needed[target] <= target.limit_s)
        for row, layout in enumerate(kept):
            good = np.flatnonzero(holds[row])
            if not good.size:
                worst, relaxation = _nearest(q.slo, needed, row, layout, state)
                rejected[layout.device.name, worst] += LOADS
                near += [relaxation] if relaxation else []
                continue
            rejected[layout.device.name, _ABOVE] += LOADS - int(good.size)
            at = int(good[np.argmax(state.requests_per_s[row, good])])
            sized.append(
                SizedLayout(
                    layout,
                    self.weight_dtype,
                    float(state.requests_per_s[row, at]),
                    float(state.e2e_s.mean[row, at]),
                    float(cache_tokens[row]),
                    labels[row],
                    q.demand,
                )
            )
        return sized, near

    def bounds(self, target: Target, label: str) -> Interval:
        """Return the interval of the metric that a target limits, under open load."""
        q = self.question
        keys = regime_keys(target.metric, "open", network_class(self.network), label)
        return interval_of(q.intervals, keys) or widest(q.intervals)


def target_values(state: SteadyState, target: Target) -> Array:
    """Return what a target limits, over plans and loads; gaps between tokens are taken as the time per token."""
    spread = {"ttft": state.ttft_s, "tpot": state.tpot_s, "itl": state.tpot_s, "e2e": state.e2e_s}[
        target.metric
    ]
    values: Array = getattr(spread, target.statistic)
    return values


def _nearest(
    slo: Slo, needed: Mapping[Target, Array], row: int, layout: Layout, state: SteadyState
) -> tuple[Reason, Relaxation | None]:
    """Return the target that a layout misses by most at its lightest load, and what it would need."""
    served = np.flatnonzero(~state.saturated[row])
    if not served.size:
        return Reason(Refusal.OVERLOAD, "one request is more than the replica can serve"), None
    at = int(served[0])
    worst = max(slo.targets, key=lambda target: float(needed[target][row, at]) / target.limit_s)
    least = float(needed[worst][row, served].min())
    words = f"{worst.key} over {worst.limit_s:g} s even at the lightest load"
    return Reason(Refusal.TARGET, words), Relaxation(worst.key, worst.limit_s, least, layout)
