"""What one sequence takes out of the cache of an engine."""

import numpy as np

from capplan.engine.profile import EngineProfile
from capplan.memory.budget import memory_plan
from capplan.model.network import Network
from capplan.model.sharding import Sharding
from capplan.numbers import Number

_AMPLE_BYTES = 1e15
"""More memory than any device has: what a sequence takes does not depend on how much there is."""


def engine_reserved_bytes_per_sequence(
    network: Network,
    sharding: Sharding,
    profile: EngineProfile,
    context_tokens: Number,
    kv_bytes_per_element: Number,
    max_num_batched_tokens: Number,
) -> Number:
    """Return what an engine takes out of the cache of one device for a sequence of a length.

        vLLM: blocks of every layer group, padded groups and the chunk in flight of sliding layers included

    Parameters
    ----------
    network : the model
    sharding : [-]
        parallelism, numbers or arrays over plans
    profile : the engine of a version
    context_tokens : [tokens]
        length of the sequence
    kv_bytes_per_element : [B]
        of the cache dtype
    max_num_batched_tokens : [tokens]
        token budget of a step

    Returns
    -------
    [B]
        of the fullest pipeline stage

    Examples
    --------
    One layer of 2 x 4 heads of 16 in 16 bit, 100 tokens in seven blocks of 16:

    >>> from capplan.engine.lookup import profile
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((Attention(4, 4, 16, 16),), ()),), head, True, 64000)
    >>> engine_reserved_bytes_per_sequence(network, Sharding(), profile("vllm", "0.19.0"), 100.0, 2.0, 2048.0)
    28672.0

    References
    ----------
    vLLM documentation, "Hybrid KV Cache Manager": https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager.html.
    """
    plan = memory_plan(
        network,
        sharding,
        _AMPLE_BYTES,
        profile,
        kv_bytes_per_element,
        context_tokens,
        1.0,
        max_num_batched_tokens,
        0.9,
    )
    return plan.reserved_bytes_per_sequence


def token_capacity(
    kv_bytes_available: Number, reserved_bytes_per_sequence: Number, context_tokens: Number
) -> Number:
    """Return how many tokens the cache of a replica holds where all sequences have one length.

        n = A / r l

    For layers of one kind this is what the engine prints. For hybrid models it depends on the length, and what
    the engine prints is too small (recurrent states, short windows) or belongs to its maximum context.

    Parameters
    ----------
    kv_bytes_available : [B]
        A, of one device
    reserved_bytes_per_sequence : [B]
        r, of a sequence of that length on the same device
    context_tokens : [tokens]
        l, prompt and output

    Returns
    -------
    [tokens]
        n

    Examples
    --------
    >>> token_capacity(1000.0, 100.0, 64.0)
    np.float64(640.0)

    References
    ----------
    Kwon et al. 2023, "PagedAttention", arXiv:2309.06180, section 4.
    """
    held: Number = np.maximum(kv_bytes_available, 0.0) / reserved_bytes_per_sequence * context_tokens
    return held
