"""How an engine lays the caches of different layers into one pool of equal blocks."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from capplan.model.kv_cache import cache_elements_per_token, state_bytes
from capplan.model.network import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    Network,
    StateSpace,
)
from capplan.numbers import Number


@dataclass(frozen=True, slots=True)
class CacheKind:
    """Layers whose caches have the same shape, on one rank."""

    kind: Literal["full", "window", "state"]
    layers: int
    token_bytes: Number
    """Bytes per token and layer; 0 for states."""
    state_bytes: Number
    """Bytes per sequence and layer; 0 for caches that grow."""
    window_tokens: float = np.inf
    chunked: bool = False


def cache_kinds(
    network: Network, tensor_parallel: Number, kv_bytes_per_element: Number, activation_bytes: Number = 2.0
) -> list[CacheKind]:
    """Return the kinds of caches of a network, layers counted.

    Parameters
    ----------
    network : the model, or the layers of one pipeline stage
    tensor_parallel : [-]
        ranks
    kv_bytes_per_element : [B]
        of the cache dtype
    activation_bytes : [B]
        of the model dtype, in which convolution columns are kept

    Returns
    -------
    kinds in order of first occurrence; layers that cache nothing are left out

    Examples
    --------
    >>> from capplan.model.network import Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layers = (Layer((Attention(8, 8, 64, 64),), ()), Layer((Attention(8, 8, 64, 64, window_tokens=128),), ()))
    >>> kinds = cache_kinds(Network("n", "t", 8, 10, layers * 3, head, True, 80), 1.0, 2.0)
    >>> [(kind.kind, kind.layers, float(kind.token_bytes)) for kind in kinds]
    [('full', 3, 2048.0), ('window', 3, 2048.0)]
    """
    counts: dict[Mixer, int] = {}
    for layer in network.layers:
        for mixer in layer.mixers:
            shape = _shape(mixer, network)
            counts[shape] = counts.get(shape, 0) + 1
    kinds = []
    for mixer, layers in counts.items():
        if isinstance(mixer, CompressedAttention):
            kinds.extend(_compressed_kinds(mixer, layers, tensor_parallel, kv_bytes_per_element))
        elif isinstance(mixer, Attention | LatentAttention):
            size = _token_bytes(mixer, tensor_parallel, kv_bytes_per_element)
            window = mixer.window_tokens if isinstance(mixer, Attention) else None
            if np.any(np.asarray(size) > 0):
                kind: Literal["full", "window"] = "full" if window is None else "window"
                chunked = isinstance(mixer, Attention) and mixer.chunked
                kinds.append(CacheKind(kind, layers, size, 0.0, float(window or np.inf), chunked))
        else:
            size = state_bytes_held(mixer, tensor_parallel, activation_bytes)
            kinds.append(CacheKind("state", layers, 0.0, size))
    return _merged(kinds)


def _compressed_kinds(
    mixer: CompressedAttention, layers: int, tensor_parallel: Number, kv_bytes_per_element: Number
) -> list[CacheKind]:
    """Return the window, the entries and the waiting tokens of compressed attention, each whole on every rank."""
    vector = vector_bytes(mixer, kv_bytes_per_element) + 0.0 * tensor_parallel
    kinds = [CacheKind("window", layers, vector, 0.0, float(mixer.window_tokens))]
    if mixer.entry_tokens:
        entry = (vector + index_key_bytes(mixer.index_head_dim)) / mixer.entry_tokens
        kinds.append(CacheKind("full", layers, entry, 0.0))
        kinds.append(CacheKind("state", layers, 0.0, waiting_bytes(mixer) + 0.0 * tensor_parallel))
    return kinds


def index_key_bytes(index_head_dim: Number) -> Number:
    """Return the bytes of one index key of sparse latent or compressed attention: fp8 with a scale per 128.

        k = d (1 + 4 / 128)

    Parameters
    ----------
    index_head_dim : [elements]
        d

    Returns
    -------
    [B]
        k, whatever the cache dtype

    Examples
    --------
    >>> index_key_bytes(128.0)
    132.0

    References
    ----------
    vLLM, `DeepseekV32IndexerCache`: https://docs.vllm.ai/en/latest/api/vllm/model_executor/models/deepseek_v2.
    """
    return index_head_dim * (1.0 + 4.0 / 128.0)


def vector_bytes(mixer: CompressedAttention, kv_bytes_per_element: Number) -> Number:
    """Return the bytes of one vector of compressed attention as engines pack it.

        v = (d - r) + 2 r + (d - r) / 64 + 1 in fp8,  d b in wider dtypes

    Parameters
    ----------
    mixer : d wide, r of it rotated
    kv_bytes_per_element : [B]
        b, of the cache dtype

    Returns
    -------
    [B]
        v; in fp8 the rotated part stays in 16 bit, and every 64 others share a scale of one byte

    Examples
    --------
    >>> float(vector_bytes(CompressedAttention(64, 512, 64, 128, 8, 128), 1.0))
    584.0

    References
    ----------
    vLLM, `DeepseekV4SWACache`, fp8_ds_mla: https://github.com/vllm-project/vllm.
    """
    plain = mixer.head_dim - mixer.rope_head_dim
    packed = plain + 2.0 * mixer.rope_head_dim + plain // 64 + 1.0
    size: Number = np.where(
        np.asarray(kv_bytes_per_element) <= 1.0, packed, mixer.head_dim * np.asarray(kv_bytes_per_element)
    )
    return size


def waiting_bytes(mixer: CompressedAttention) -> float:
    """Return the tokens that wait to become an entry, as engines keep them: value and gate in fp32.

        w = s c x 2 s (d + d_i) x 4, with two series s = 2 of twice the tokens where entries overlap

    Parameters
    ----------
    mixer : entries of c tokens, d wide, with index keys of d_i

    Returns
    -------
    [B]
        w, of one sequence and layer

    Examples
    --------
    >>> waiting_bytes(CompressedAttention(64, 512, 64, 128, 8, 128))
    524288.0

    References
    ----------
    vLLM, `CompressorStateCache`: https://github.com/vllm-project/vllm.
    """
    series = 2 if mixer.overlapping else 1
    return series * mixer.entry_tokens * 2.0 * series * (mixer.head_dim + mixer.index_head_dim) * 4.0


def _shape(mixer: Mixer, network: Network) -> Mixer:
    """Return the mixer without what does not change its cache, so that equal caches are one kind."""
    if isinstance(mixer, Attention):
        return Attention(
            1,
            mixer.kv_heads,
            mixer.head_dim,
            mixer.value_head_dim,
            mixer.window_tokens,
            chunked=mixer.chunked,
            cached=mixer.cached,
            index_head_dim=mixer.index_head_dim,
        )
    if isinstance(mixer, LinearAttention | StateSpace) and not _states_their_dtype(network):
        # An engine keeps recurrent states in the dtype of the model unless the config says otherwise.
        return replace(mixer, state_format=network.activation_format)
    return mixer


def _states_their_dtype(network: Network) -> bool:
    return any("ssm" in key and "dtype" in key for key in network.keys_used)


def _merged(kinds: list[CacheKind]) -> list[CacheKind]:
    """Return kinds with those joined that an engine cannot tell apart."""
    merged: list[CacheKind] = []
    for kind in kinds:
        for index, other in enumerate(merged):
            same = (kind.kind, kind.window_tokens, kind.chunked) == (
                other.kind,
                other.window_tokens,
                other.chunked,
            )
            sizes = np.array_equal(kind.token_bytes, other.token_bytes) and np.array_equal(
                kind.state_bytes, other.state_bytes
            )
            if same and sizes:
                merged[index] = CacheKind(
                    kind.kind,
                    kind.layers + other.layers,
                    kind.token_bytes,
                    kind.state_bytes,
                    kind.window_tokens,
                    kind.chunked,
                )
                break
        else:
            merged.append(kind)
    return merged


def _token_bytes(
    mixer: Attention | LatentAttention, tensor_parallel: Number, kv_bytes_per_element: Number
) -> Number:
    if isinstance(mixer, Attention):
        return cache_elements_per_token(mixer, tensor_parallel) * kv_bytes_per_element
    latent = (mixer.kv_lora_rank + mixer.rope_head_dim) * kv_bytes_per_element + 0.0 * tensor_parallel
    if not mixer.index_head_dim:
        return latent
    # Sparse MLA in fp8: latents in fp8 with four fp32 scales, the rotary part in bf16; indexer keys in fp8 with a scale.
    packed = mixer.kv_lora_rank + 16.0 + 2.0 * mixer.rope_head_dim
    indexer = index_key_bytes(mixer.index_head_dim) if mixer.index_cached else 0.0
    held: Number = np.where(np.asarray(kv_bytes_per_element) <= 1.0, packed, latent) + indexer
    return held


def state_bytes_held(mixer: Mixer, tensor_parallel: Number, activation_bytes: Number) -> Number:
    """Return the fixed state of one sequence in one layer as an engine keeps it: one convolution column fewer.

        S_engine = S (K - 1) / K for the convolution, the recurrent part as it is

    Parameters
    ----------
    mixer : the mixer of the layer
    tensor_parallel : [-]
        ranks
    activation_bytes : [B]
        of the model dtype

    Returns
    -------
    [B]

    Examples
    --------
    >>> from capplan.model.network import ShortConvolution
    >>> state_bytes_held(ShortConvolution(64, 3), 1.0, 2.0)
    256.0

    References
    ----------
    vLLM, `MambaStateShapeCalculator`: https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/mamba/mamba_utils.
    """
    whole = state_bytes(mixer, tensor_parallel, activation_bytes)
    recurrent = state_bytes(mixer, tensor_parallel, 0.0)
    columns = getattr(mixer, "conv_kernel", 0) or getattr(mixer, "kernel", 0)
    if not columns:
        return whole
    return recurrent + (whole - recurrent) * (columns - 1) / columns


def group_layers(kinds: list[CacheKind]) -> int:
    """Return how many layers form a group: layers of one group each own a slot in every block.

        g = min layers of a kind; the largest instead where it is below 1.5 x the smallest

    Parameters
    ----------
    kinds : the kinds of caches

    Returns
    -------
    [-]
        g; the last group of a kind is padded to it

    Examples
    --------
    52 sliding and 10 full layers make groups of ten: six and one, 70 slots for 62 layers.

    >>> kinds = [CacheKind("window", 52, 1.0, 0.0), CacheKind("full", 10, 1.0, 0.0)]
    >>> group_layers(kinds)
    10

    References
    ----------
    vLLM documentation, "Hybrid KV Cache Manager": https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager.html.
    """
    counts = [kind.layers for kind in kinds]
    smallest, largest = min(counts), max(counts)
    return largest if largest < 1.5 * smallest else smallest
