"""How an engine divides the memory of one device, from weights down to the sequences that fit."""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from capplan.engine.lookup import default_memory_fraction
from capplan.engine.memory_rules import MemoryRules
from capplan.engine.profile import EngineProfile
from capplan.memory.layer_groups import cache_kinds
from capplan.memory.packed_pool import (
    BLOCK_TOKENS,
    compressed_layers,
    packed_capacity,
    packed_layout,
    summed_capacity,
)
from capplan.memory.plan import MemoryPlan
from capplan.memory.pool import block_capacity, grouped_layout, split_capacity
from capplan.memory.rank import rank_activation_bytes, rank_graph_bytes, rank_weight_bytes, warmup_bytes
from capplan.memory.stages import Stage, stages_of
from capplan.model.network import CompressedAttention, Network
from capplan.model.sharding import Sharding
from capplan.model.weight_format import FORMATS
from capplan.numbers import Array, Number


@dataclass(frozen=True, slots=True)
class Launch:
    """What an engine is started with; every field is a number or an array over plans."""

    tensor: Number
    expert: Number
    data: Number
    pipeline: Number
    device_memory_bytes: Number
    kv_bytes_per_element: Number
    max_model_len: Number
    max_num_seqs: Number
    max_num_batched_tokens: Number
    memory_fraction: Number
    block_tokens: Number
    fast_links: Number = 1.0
    """1 where tensor-parallel ranks talk over links of their own."""
    padded_inputs: Number = 128.0
    """Multiple that inputs of mxfp4 experts are padded to."""

    @property
    def stage_sharding(self) -> Sharding:
        """Parallelism within one pipeline stage."""
        return Sharding(tensor=self.tensor, expert=self.expert, data=self.data)


def memory_plan(
    network: Network,
    sharding: Sharding,
    device_memory_bytes: Number,
    profile: EngineProfile,
    kv_bytes_per_element: Number,
    max_model_len: Number,
    max_num_seqs: Number,
    max_num_batched_tokens: Number,
    gpu_memory_utilization: Number | None = None,
    *,
    fast_links: Number | NDArray[np.bool_] = True,
    padded_inputs: Number = 128.0,
    block_tokens: Number | None = None,
    eager: bool = False,
) -> MemoryPlan:
    """Return what one device holds, of the pipeline stage whose cache holds the fewest sequences.

        vLLM:          KV = f M - W - A - N (- G from 0.21 on)
        SGLang:        KV = f (M - N) - W
        TensorRT-LLM:  KV = f (M - W - A - N)

    Parameters
    ----------
    network : the model, in the weight format that is served
    sharding : [-]
        parallelism, numbers or arrays over plans
    device_memory_bytes : [B]
        M, what a process is given as the total (`usable.engine_memory_bytes`), not the datasheet figure
    profile : the engine of a version
    kv_bytes_per_element : [B]
        of the cache dtype, scales included
    max_model_len : [tokens]
        longest sequence that the engine must be able to hold
    max_num_seqs : [-]
        limit of the scheduler
    max_num_batched_tokens : [tokens]
        token budget of a step
    gpu_memory_utilization : [-]
        f, each engine's own fraction; None takes its default
    fast_links : tensor-parallel ranks talk over NVLink or the like (`usable.has_fast_links`): larger collective buffers
    padded_inputs : [elements]
        multiple that inputs of mxfp4 experts are padded to (`usable.padded_inputs_multiple`)
    block_tokens : [tokens]
        cache block; None takes the engine's default
    eager : no CUDA graphs are captured

    Returns
    -------
    the plan; arrays where any input is an array

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((Attention(4, 4, 16, 16),), ()),), head, True, 64000)
    >>> plan = memory_plan(network, Sharding(), 8e9, profile("vllm", "0.19.0"), 2.0, 4096, 64, 2048)
    >>> bool(plan.fits), plan.limits
    (True, ())

    References
    ----------
    vLLM, `Worker.determine_available_memory`: https://docs.vllm.ai/en/latest/api/vllm/v1/worker/gpu_worker;
    SGLang, `ModelRunner.profile_max_num_token`; TensorRT-LLM, `KvCacheConfig.free_gpu_memory_fraction`.
    """
    if gpu_memory_utilization is None:
        gpu_memory_utilization = _default_fractions(profile, device_memory_bytes, sharding)
    given = [
        sharding.tensor, sharding.expert, sharding.data, sharding.pipeline, device_memory_bytes, kv_bytes_per_element,
        max_model_len, max_num_seqs, max_num_batched_tokens, gpu_memory_utilization,
        profile.block_tokens if block_tokens is None else block_tokens, fast_links, padded_inputs,
    ]  # fmt: skip
    columns = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in given))
    shape = columns[0].shape
    launch = Launch(*(column.reshape(-1) for column in columns))
    results: list[tuple[NDArray[np.bool_], MemoryPlan]] = []
    for stage_count in sorted(set(np.asarray(launch.pipeline).tolist())):  # np.unique would load numpy.ma
        here = np.asarray(launch.pipeline == stage_count)
        part = Launch(*(np.asarray(getattr(launch, field.name))[here] for field in fields(Launch)))
        plans = [
            _stage_plan(stage, network, part, profile, eager=eager)
            for stage in stages_of(network, int(stage_count))
        ]
        results.append((here, _fewest(plans)))
    return _gathered(results, shape)


def first_stage_plan(
    network: Network, launch: Launch, profile: EngineProfile, *, eager: bool = False
) -> MemoryPlan:
    """Return the plan of the first pipeline stage, whose figures an engine logs first.

    Parameters
    ----------
    network : the model
    launch : settings as arrays of one shape with the same number of stages
    profile : the engine of a version
    eager : as for `memory_plan`

    Returns
    -------
    the plan of that stage alone

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
    return _stage_plan(stages_of(network, stages)[0], network, launch, profile, eager=eager)


def _default_fractions(profile: EngineProfile, device_memory_bytes: Number, sharding: Sharding) -> Number:
    if profile.memory.default_fraction is not None:
        return profile.memory.default_fraction
    memory, ranks = np.broadcast_arrays(
        np.asarray(device_memory_bytes, dtype=np.float64),
        np.asarray(sharding.tensor * sharding.pipeline, dtype=np.float64),
    )
    pairs = zip(memory.reshape(-1).tolist(), ranks.reshape(-1).tolist(), strict=True)
    known: dict[tuple[float, float], float] = {}
    chosen = []
    for pair in pairs:
        if pair not in known:
            known[pair] = default_memory_fraction(profile, *pair)
        chosen.append(known[pair])
    return np.asarray(chosen).reshape(memory.shape)


def _stage_plan(
    stage: Stage, network: Network, launch: Launch, profile: EngineProfile, *, eager: bool
) -> MemoryPlan:
    rules = profile.memory
    weights = rank_weight_bytes(stage, network, launch.stage_sharding, launch.padded_inputs)
    activations = rank_activation_bytes(stage, network, launch, profile)
    graphs = rank_graph_bytes(stage, network, launch, profile) * (0.0 if eager else 1.0)
    several = np.asarray(launch.tensor * launch.data) > 1
    fast = np.asarray(launch.fast_links) > 0
    runtime = rules.non_torch_bytes + np.where(several & fast, rules.collective_bytes, 0.0)
    total, fraction = launch.device_memory_bytes, launch.memory_fraction
    if rules.budget == "utilisation":
        usable: Number = fraction * total
        available = usable - weights - activations - runtime - (graphs if rules.graphs_in_budget else 0.0)
    elif rules.budget == "static_fraction":
        usable = fraction * (total - runtime)
        available = usable - weights
    else:
        usable = total - runtime
        available = fraction * (usable - weights - activations)
    tokens, sequences, reserved, block = _capacity(available, stage, network, launch, profile)
    warm = warmup_bytes(network, launch, profile) if stage.last else 0.0
    late = np.where(several & ~fast, rules.late_collective_bytes, 0.0)
    left = total - late - weights - runtime - graphs - np.maximum(available, 0.0)
    return MemoryPlan(
        weight_bytes=weights,
        activation_bytes=activations,
        non_torch_bytes=runtime,
        cuda_graph_bytes=graphs,
        usable_bytes=usable,
        kv_bytes_available=available,
        kv_cache_tokens=tokens,
        max_concurrency=sequences,
        block_tokens=block,
        reserved_bytes_per_sequence=reserved,
        headroom_bytes=left - warm,
    )


def _capacity(
    available: Number, stage: Stage, network: Network, launch: Launch, profile: EngineProfile
) -> tuple[Number, Number, Number, Number]:
    """Return tokens, sequences, bytes per sequence and block size of a pool."""
    rules = profile.memory
    element = FORMATS[network.activation_format].bytes_per_element
    kinds = cache_kinds(network, launch.tensor, launch.kv_bytes_per_element, element)
    context = launch.max_model_len
    compressed = compressed_layers(network)
    if compressed:
        return _compressed_capacity(available, stage, compressed, launch, rules)
    if not kinds:
        free = np.maximum(available, 0.0)
        endless = np.where(free > 0, launch.max_num_seqs, 0.0)
        return endless * context, endless, 0.0 * free, launch.block_tokens
    if rules.whole_windows or (rules.budget == "utilisation" and not rules.layer_groups):
        kinds = [replace(kind, kind="full") if kind.kind == "window" else kind for kind in kinds]
    if rules.budget != "utilisation":
        share = stage.layer_share
        held = [
            replace(k, token_bytes=k.token_bytes * share, state_bytes=k.state_bytes * share) for k in kinds
        ]
        tokens, sequences, size = split_capacity(
            available, held, launch.block_tokens, context, launch.max_num_batched_tokens, rules
        )
        return tokens, sequences, size, launch.block_tokens
    layout = grouped_layout(
        kinds, launch.block_tokens, context, launch.max_num_batched_tokens, stage.layer_share
    )
    tokens, sequences = block_capacity(available, layout, context, rules)
    return tokens, sequences, layout.sequence_blocks * layout.block_bytes, layout.block_tokens


def _compressed_capacity(
    available: Number, stage: Stage, mixers: list[CompressedAttention], launch: Launch, rules: MemoryRules
) -> tuple[Number, Number, Number, Number]:
    """Return the same for compressed attention, whose caches have vectors of several widths and rhythms."""
    share, step, context = stage.layer_share, launch.max_num_batched_tokens, launch.max_model_len
    element = launch.kv_bytes_per_element
    # Caches of all stages are laid out alike: a stage holds its share of every block.
    whole = available / share
    if rules.budget == "utilisation":
        tokens, sequences, size = packed_capacity(whole, packed_layout(mixers, element), context, step)
        return tokens, sequences, size * share, BLOCK_TOKENS + 0.0 * launch.block_tokens
    tokens, sequences, size = summed_capacity(whole, mixers, element, context, step, launch.block_tokens)
    return tokens, sequences, size * share, launch.block_tokens


def _fewest(plans: list[MemoryPlan]) -> MemoryPlan:
    """Return, plan by plan, the stage with the fewest sequences; where none holds any, with the least memory."""
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
