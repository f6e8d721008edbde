"""Cache of one sequence at several contexts: in which dtype, what the architecture needs, and what an engine reserves."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capplan.assumption import Assumption
from capplan.engine.lookup import cache_rule, profile, scheduling
from capplan.engine.profile import EngineProfile
from capplan.errors import InputError
from capplan.memory.capacity import encoder_reason, reserved_bytes_per_sequence
from capplan.memory.launch import engine_launch
from capplan.memory.layer_groups import cache_kinds, held_state_bytes, narrow_states
from capplan.memory.pool import compressed_layers, layout_assumptions
from capplan.model.kv_cache import (
    kv_bytes_per_sequence,
    kv_bytes_per_token,
)
from capplan.model.network import Network
from capplan.model.sharding import Sharding
from capplan.model.weight_format import KV_DTYPES, kv_bytes_per_element
from capplan.ranges import DEVICES, TOKENS, Whole, check_list

AUTO = "auto"
"""Value of engines, flags and scenarios for an unspecified cache dtype."""


def cache_dtype(
    network: Network,
    asked: str | None = None,
    engine: EngineProfile | None = None,
    architecture: str | None = None,
) -> tuple[str, tuple[Assumption, ...]]:
    """Return the cache dtype, and the assumption behind it.

    It never follows from the weight dtype: an fp8 checkpoint without a KV cache scheme is served with a 16-bit cache.

    Parameters
    ----------
    network : the model; `kv_format` is what its checkpoint asks for
    asked : dtype on the command line or in the scenario; None and `auto` leave it open
    engine, architecture : what runs it on which device, for models whose cache an engine narrows by itself; None: any

    Returns
    -------
    name of the dtype; an assumption unless it was requested, the checkpoint states it, or nothing is cached

    Examples
    --------
    >>> from capplan.model.network import Projection
    >>> network = Network("n", "t", 8, 10, (), Projection("lm_head", "lm_head", 8, 10, "columns"), True, 80)
    >>> cache_dtype(network, "fp8")
    ('fp8', ())
    >>> cache_dtype(network)[0]
    'bf16'
    """
    if asked is not None and asked.lower() != AUTO:
        name = asked.lower()
        kv_bytes_per_element(name)
        return name, ()
    if network.kv_format is not None:
        return network.kv_format, ()
    rule = engine and cache_rule(engine, network.model_type, architecture)
    if engine and rule:
        what = f"KV cache in {rule.dtype}, which {engine.engine} takes for {network.model_type}"
        return rule.dtype, (Assumption(what, "--kv-dtype", "kv_dtype"),)
    if engine and engine.cache_format:
        what = f"KV cache in {engine.cache_format}, the default of {engine.engine}"
        return engine.cache_format, (Assumption(what, "--kv-dtype", "kv_dtype"),)
    dtype = network.activation_format if network.activation_format in KV_DTYPES else "bf16"
    if network.bidirectional:
        return dtype, ()
    return dtype, (Assumption(f"KV cache in {dtype}, the activation dtype", "--kv-dtype", "kv_dtype"),)


_USUAL_CONTEXTS = (4096, 16384, 65536, 131072)
_USUAL_DEVICE_BYTES = 80 * 2.0**30


@dataclass(frozen=True, slots=True)
class KvSize:
    """Cache at one context."""

    context_tokens: int
    sequences: int
    kv_dtype: str
    tensor_parallel: int
    kv_bytes_per_token: float
    """What the next token adds to one sequence at this context."""
    kv_bytes_per_sequence: float
    """Keys and values over all ranks, without the fixed state."""
    state_bytes_per_sequence: float
    kv_bytes_total: float
    """Sequences x (keys and values + state)."""
    kv_bytes_per_gpu: float
    """Keys, values and state of all sequences on one device, after sharding and replication."""
    engine_reserved_bytes_per_sequence: float
    """What the engine reserves for a whole sequence: blocks rounded up, padded layer groups, window plus step."""
    engine_reserved_bytes_per_gpu: float
    """What the engine reserves for all sequences on one device."""


@dataclass(frozen=True, slots=True)
class KvSizes:
    """Cache at several contexts."""

    network: Network
    rows: tuple[KvSize, ...]
    engine: EngineProfile
    assumptions: tuple[Assumption, ...]


def kv_sizes(
    network: Network,
    contexts: Sequence[int] = (),
    *,
    sequences: int = 1,
    kv_dtype: str | None = None,
    tensor_parallel: int = 1,
    engine: str = "vllm",
    engine_version: str | None = None,
    max_num_batched_tokens: int | None = None,
) -> KvSizes:
    """Return the cache of a model at several contexts.

    Parameters
    ----------
    network : the model
    contexts : [tokens]
        prompt and output so far; empty: a few up to the model's maximum
    sequences : [-]
        held at once
    kv_dtype : of the cache; None: the checkpoint's, else what the engine takes for the model on every device, else the activation dtype
    tensor_parallel : [-]
        ranks
    engine : whose layout is used
    engine_version : None: the newest known
    max_num_batched_tokens : [tokens]
        token budget of a step, reserved on top of sliding windows; None: the engine's default

    Returns
    -------
    one record per context, with what was assumed

    Examples
    --------
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 10, "columns")
    >>> network = Network("n", "t", 64, 10, (Layer((Attention(8, 8, 64, 64),), ()),), head, True, 640)
    >>> (size,) = kv_sizes(network, [100], kv_dtype="bf16").rows
    >>> size.kv_bytes_per_token, size.kv_bytes_per_sequence, size.engine_reserved_bytes_per_sequence
    (2048.0, 204800.0, 229376.0)
    """
    _check_numbers(contexts, sequences, tensor_parallel, max_num_batched_tokens)
    rules = profile(engine, engine_version)
    if reason := encoder_reason(network, rules):
        raise InputError(reason.words)
    dtype, assumptions = cache_dtype(network, kv_dtype, rules)
    step_tokens = max_num_batched_tokens
    if step_tokens is None:
        step_tokens = scheduling(rules, _USUAL_DEVICE_BYTES).max_num_batched_tokens
        assumptions = (*assumptions, *_assumed_steps(network, step_tokens))
    most = network.max_context_tokens or _USUAL_CONTEXTS[-1]
    tried = list(contexts) or [*(tokens for tokens in _USUAL_CONTEXTS if tokens < most), most]
    rows = _rows(network, tried, sequences, dtype, tensor_parallel, rules, step_tokens)
    laid_out = (
        *layout_assumptions(network, rules.memory),
        *narrow_states(network, rules.memory, rules.engine),
    )
    return KvSizes(
        network, tuple(rows), rules, (*assumptions, *network.doubts, *laid_out, *rules.assumptions)
    )


def _check_numbers(
    contexts: Sequence[int], sequences: int, tensor_parallel: int, max_num_batched_tokens: int | None
) -> None:
    """Raise the error for the first number that is out of its range."""
    check_list(contexts, TOKENS, "contexts")
    Whole("sequences").check(sequences, "sequences")
    DEVICES.check(tensor_parallel, "tensor_parallel")
    if max_num_batched_tokens is not None:
        TOKENS.check(max_num_batched_tokens, "max_num_batched_tokens")


def _assumed_steps(network: Network, step_tokens: int) -> tuple[Assumption, ...]:
    """Return the assumption about the token budget where it counts: windows reserve that many tokens more."""
    windows = any(kind.kind == "window" for kind in cache_kinds(network, 1.0, 2.0))
    if not windows or compressed_layers(network):
        return ()
    what = f"steps of {step_tokens} tokens, the engine's default on an 80 GB device"
    return (Assumption(what, "--max-num-batched-tokens", "max_num_batched_tokens"),)


def _rows(
    network: Network,
    contexts: list[int],
    sequences: int,
    kv_dtype: str,
    tensor_parallel: int,
    engine: EngineProfile,
    step_tokens: int,
) -> list[KvSize]:
    context = np.asarray(contexts, dtype=np.float64)
    element = kv_bytes_per_element(kv_dtype)
    growth = np.broadcast_to(kv_bytes_per_token(network, context, element, stored=True), context.shape)
    whole = np.broadcast_to(kv_bytes_per_sequence(network, context, element, stored=True), context.shape)
    on_rank = np.broadcast_to(
        kv_bytes_per_sequence(network, context, element, tensor_parallel, stored=True), context.shape
    )
    state, state_on_rank = (
        np.broadcast_to(
            held_state_bytes(network, ranks, engine.memory.recurrent_format, context), context.shape
        )
        for ranks in (1.0, float(tensor_parallel))
    )
    ranks = Sharding(tensor=np.array([[1.0], [float(tensor_parallel)]]))
    launch = engine_launch(engine, ranks, _USUAL_DEVICE_BYTES, element, context, 1.0, float(step_tokens))
    reserved, reserved_on_rank = np.asarray(reserved_bytes_per_sequence(network, launch, engine))
    return [
        KvSize(
            context_tokens=int(tokens),
            sequences=sequences,
            kv_dtype=kv_dtype,
            tensor_parallel=tensor_parallel,
            kv_bytes_per_token=float(growth[i]),
            kv_bytes_per_sequence=float(whole[i]),
            state_bytes_per_sequence=float(state[i]),
            kv_bytes_total=sequences * float(whole[i] + state[i]),
            kv_bytes_per_gpu=sequences * float(on_rank[i] + state_on_rank[i]),
            engine_reserved_bytes_per_sequence=float(reserved[i]),
            engine_reserved_bytes_per_gpu=sequences * float(reserved_on_rank[i]),
        )
        for i, tokens in enumerate(contexts)
    ]
