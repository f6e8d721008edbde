"""Memory of one device of a plan: what it holds, what is left for the KV cache, and how an engine divides it."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from capplan.engine.profile import EngineProfile
from capplan.memory.capacity import Stage, cache_capacity, stages_of, state_blocks, waiting_ring_bytes
from capplan.memory.launch import Launch
from capplan.memory.rank import (
    exchange_buffer_bytes,
    rank_activation_bytes,
    rank_graph_bytes,
    rank_weight_bytes,
    warmup_bytes,
)
from capplan.model.network import Network
from capplan.model.sharding import adapter_bytes_per_rank
from capplan.model.weight_format import FORMATS
from capplan.numbers import Array, Number, distinct

LIMITS = (
    "fits",
    "weights by themselves exceed the memory that the engine may use",
    "activations and runtime leave nothing for the KV cache",
    "the KV cache is smaller than one sequence of the maximum context",
    "CUDA graphs and the sampler do not fit next to the KV cache",
    "max_num_seqs exceeds the state blocks: every sequence of a hybrid model needs one",
)
"""Reasons why a plan cannot start, by code."""

NO_ROOM = 2
"""Code of activations and runtime that take what the cache would have."""
CONTEXT_TOO_LONG = 3
"""Code of a cache that is smaller than one sequence."""
TOO_MANY_SEQUENCES = 5
"""Code of more sequences per step than blocks for their states."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of one device of a replica, of the pipeline stage with the smallest cache; numbers or arrays."""

    weight_bytes: Number
    """Weights and lookup tables, as an engine logs them after loading."""
    activation_bytes: Number
    """Peak working memory."""
    non_torch_bytes: Number
    """Kernels, handles, collective buffers."""
    cuda_graph_bytes: Number
    usable_bytes: Number
    """Total that the engine may use."""
    kv_bytes_available: Number
    kv_cache_tokens: Number
    """Tokens that the KV cache holds, as the engine prints them when it starts."""
    max_concurrency: Number
    """Sequences of the maximum context that the cache holds at once."""
    reserved_bytes_per_sequence: Number
    """Cache that one sequence of the maximum context reserves."""
    headroom_bytes: Number
    """Left on the device once the cache is allocated, graphs are captured and the sampler has warmed up."""
    max_num_seqs: Number
    """Sequences per step with which one engine is started."""
    state_blocks: Number
    """Most sequences per step with which it starts (`memory.capacity.state_blocks`)."""

    def at(self, plan: int) -> "MemoryPlan":
        """Return one plan of an array of plans, as numbers."""
        return MemoryPlan(*(float(np.asarray(getattr(self, field.name))[plan]) for field in fields(self)))

    @property
    def limit_codes(self) -> NDArray[np.intp]:
        """Index into `LIMITS` of the first reason that prevents a start; 0 where the plan fits."""
        usable = np.asarray(self.usable_bytes, dtype=np.float64)
        conditions = np.broadcast_arrays(
            np.asarray(self.weight_bytes) >= usable,
            np.asarray(self.kv_bytes_available) <= 0,
            np.asarray(self.max_concurrency) < 1,
            np.asarray(self.headroom_bytes) < 0,
            np.asarray(self.max_num_seqs) > np.asarray(self.state_blocks),
        )
        codes: NDArray[np.intp] = np.select(conditions, [1, 2, 3, 4, TOO_MANY_SEQUENCES], default=0).astype(
            np.intp
        )
        return codes

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether the engine starts and holds at least one sequence of the maximum context."""
        good: NDArray[np.bool_] = np.asarray(self.limit_codes == 0)
        return good

    @property
    def limits(self) -> tuple[str, ...]:
        """Reasons that prevent a start, in words; for arrays, all that occur."""
        return tuple(LIMITS[code] for code in distinct(self.limit_codes).tolist() if code)


def memory_plan(network: Network, launch: Launch, profile: EngineProfile) -> MemoryPlan:
    """Return the memory of one device, on the pipeline stage whose cache holds the fewest sequences.

        vLLM:          KV = f M - W - A - N (- e G from 0.20 on)
        SGLang:        KV = f (M - N) - W
        TensorRT-LLM:  KV = f (M - W - A - N)

    KV is what the cache may take. W are weights, A is the working memory of the largest step, N what is allocated outside of PyTorch, G
    the memory of CUDA graphs and e the part of it that counts.

    Parameters
    ----------
    network : the model, in the weight format that is served
    launch : M bytes of the device, its fraction f and the other launch settings, numbers or arrays over plans
    profile : of the engine version

    Returns
    -------
    the plan; arrays where any entry of the launch is an array

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.memory.launch import engine_launch
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> from capplan.model.sharding import Sharding
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((Attention(4, 4, 16, 16),), ()),), head, True, 64000)
    >>> vllm = profile("vllm", "0.19.0")
    >>> plan = memory_plan(network, engine_launch(vllm, Sharding(), 8e9, 2.0, 4096, 64, 2048), vllm)
    >>> bool(plan.fits), plan.limits
    (True, ())

    References
    ----------
    vLLM, `Worker.determine_available_memory`: https://docs.vllm.ai/en/latest/api/vllm/v1/worker/gpu_worker;
    SGLang, `ModelRunner.profile_max_num_token`; TensorRT-LLM, `KvCacheConfig.free_gpu_memory_fraction`.
    """
    shape, columns = launch.shape, launch.as_columns()
    results: list[tuple[NDArray[np.bool_], MemoryPlan]] = []
    for stage_count in distinct(np.asarray(columns.pipeline)).tolist():
        here = np.asarray(columns.pipeline == stage_count)
        part = columns.selected(here)
        plans = [_stage_plan(stage, network, part, profile) for stage in stages_of(network, int(stage_count))]
        results.append((here, _fewest(plans)))
    return _gathered(results, shape)


def first_stage_plan(network: Network, launch: Launch, profile: EngineProfile) -> MemoryPlan:
    """Return the plan of the first pipeline stage, whose figures the engine logs first.

    Parameters
    ----------
    network : the model
    launch : settings as arrays of one shape, all with the same number of stages
    profile : of the engine version

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((Attention(4, 4, 16, 16),), ()),) * 2, head, True, 64000)
    >>> launch = Launch(1.0, 1.0, 1.0, 2.0, 8e9, 2.0, 4096.0, 64.0, 2048.0, 0.9, 16.0)
    >>> bool(first_stage_plan(network, launch, profile("vllm", "0.19.0")).fits)
    True
    """
    stages = int(np.max(np.asarray(launch.pipeline)))
    return _stage_plan(stages_of(network, stages)[0], network, launch, profile)


def _stage_plan(stage: Stage, network: Network, launch: Launch, profile: EngineProfile) -> MemoryPlan:
    rules, graphs_run = profile.memory, profile.most_graph_sequences != 0
    weights = rank_weight_bytes(
        stage,
        network,
        launch.stage_sharding,
        launch.padded_inputs,
        rules.vocabulary_multiple,
        mixed=rules.pads_mixed_experts,
    )
    if rules.host_embedding and not network.tied_embeddings:
        element = FORMATS[network.embedding_format].bytes_per_element
        elsewhere = (1.0 - launch.holds_embedding) * stage.network.embedding_parameters
        weights = weights - element * elsewhere / launch.tensor
    if network.adapters is not None:
        adapter = adapter_bytes_per_rank(stage.network, launch.stage_sharding)
        weights = weights + network.adapters.slots * adapter
    activations = rank_activation_bytes(stage, network, launch, profile)
    graphs = rank_graph_bytes(stage, network, launch, profile) if graphs_run else 0.0
    several = np.asarray(launch.tensor * launch.data) > 1
    fast = np.asarray(launch.fast_links) > 0
    runtime = rules.non_torch_bytes + np.where(several & fast, rules.collective_bytes, 0.0)
    buffers = exchange_buffer_bytes(stage, launch, profile)
    late = np.where(several & ~fast, rules.late_collective_bytes, 0.0)
    if rules.budget == "static_fraction":  # the first all-to-all comes after the cache
        late = late + buffers
    else:
        runtime = runtime + buffers
    total, fraction = launch.device_memory_bytes, launch.memory_fraction
    rings = waiting_ring_bytes(stage.network, launch, rules)
    if rules.budget == "utilisation":
        usable: Number = fraction * total
        available = usable - weights - activations - runtime - rules.budgeted_graph_fraction * graphs
    elif rules.budget == "static_fraction":
        usable = fraction * (total - runtime)
        available = usable - weights - rings
    else:
        usable = total - runtime
        available = fraction * (usable - weights - activations)
    tokens, sequences, size = cache_capacity(available, network, launch, profile, stage.layer_share)
    warm = warmup_bytes(network, launch, profile) if stage.last else 0.0
    left = total - late - weights - runtime - graphs - rings - np.maximum(available, 0.0)
    return MemoryPlan(
        weight_bytes=weights,
        activation_bytes=activations,
        non_torch_bytes=runtime,
        cuda_graph_bytes=graphs,
        usable_bytes=usable,
        kv_bytes_available=available,
        kv_cache_tokens=tokens * launch.context,
        max_concurrency=sequences * launch.context,
        reserved_bytes_per_sequence=size / launch.context,
        headroom_bytes=left - warm,
        max_num_seqs=launch.max_num_seqs,
        state_blocks=np.inf
        if not graphs_run
        else state_blocks(available, network, launch, profile, stage.layer_share),
    )


def _fewest(plans: list[MemoryPlan]) -> MemoryPlan:
    """Return, for every plan, the stage with the fewest sequences; where none holds any, the one with the least memory."""
    size = np.asarray(plans[0].weight_bytes).shape
    order = np.stack(
        [
            np.broadcast_to(np.asarray(p.max_concurrency), size) + 1e-15 * np.asarray(p.kv_bytes_available)
            for p in plans
        ]
    )
    chosen = np.argmin(order, axis=0)
    columns = {}
    for field in fields(MemoryPlan):
        stacked = np.stack(
            [np.broadcast_to(np.asarray(getattr(p, field.name), dtype=np.float64), size) for p in plans]
        )
        columns[field.name] = np.take_along_axis(stacked, chosen[None], axis=0)[0]
    # The caches of all stages are allocated before any graph is captured: the tightest stage decides.
    columns["headroom_bytes"] = np.min(np.stack([np.asarray(p.headroom_bytes) for p in plans]), axis=0)
    return MemoryPlan(**columns)


def _gathered(results: list[tuple[NDArray[np.bool_], MemoryPlan]], shape: tuple[int, ...]) -> MemoryPlan:
    columns: dict[str, Number] = {}
    for field in fields(MemoryPlan):
        column: Array = np.zeros(results[0][0].shape)
        for here, plan in results:
            column[here] = getattr(plan, field.name)
        columns[field.name] = column.reshape(shape) if shape else float(column[0])
    return MemoryPlan(**columns)
