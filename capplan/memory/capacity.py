"""What one sequence takes out of the cache of an engine."""

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
