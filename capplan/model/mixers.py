"""Mixers of a layer: attention, linear attention, state spaces, short convolutions, each with what it caches for a sequence."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from capplan.numbers import Number


@dataclass(frozen=True, slots=True)
class CachePart:
    """One kind of vector that a layer caches."""

    elements: int
    """Elements of one vector; the key and the value of a head count as one vector."""
    heads: int = 1
    """Vectors per token. Tensor-parallel ranks split them and hold at least one each, so a single one is on every rank."""
    window_tokens: float = math.inf
    """Most recent tokens that are kept."""
    chunked: bool = False
    """The window is an aligned chunk, not a sliding one."""
    entry_tokens: int = 1
    """Tokens compressed into one vector."""
    overlapping: bool = False
    """Each vector also covers the tokens of the previous one."""
    packed_bytes: float | None = None
    """Bytes of one vector in the engines' 8-bit layout, scales and 16-bit parts included; None: elements x cache dtype."""
    index: bool = False
    """Indexer keys, which engines store in `packed_bytes` whatever the cache dtype."""
    source_tokens: int = 0
    """Positions of an encoder that are kept from the first token on, whatever the context; 0: the tokens of the context are."""


@dataclass(frozen=True, slots=True)
class StatePart:
    """A state of fixed size that a layer keeps for a sequence, whatever its length."""

    elements: int
    """Elements that the architecture needs, over all ranks."""
    allocated_elements: int
    """Elements that engines keep instead."""
    state_format: str | None = None
    """Key of `weight_format.FORMATS`; None: the activation dtype."""
    pieces: int | None = None
    """Indivisible pieces; every tensor-parallel rank holds at least one. None: split evenly."""
    recurrent: bool = False
    """Engines store it in the dtype of the model unless `stated`."""
    stated: bool = False
    """The config, or the engines' code for this family, says `state_format`."""
    filled_by_tokens: float = 0.0
    """Tokens of a sequence that fill it, as those that wait to be compressed do; 0: it is whole from the first one."""


def cache_elements_on_rank(elements: Number, heads: Number, tensor_parallel: Number = 1.0) -> Number:
    """Return the elements that one token adds to the cache of one layer, on one rank.

        e_rank = ceil(h / tp) e

    Parameters
    ----------
    elements : [elements]
        e, of the vectors of one head: key and value
    heads : [-]
        h, key-value heads, not query heads
    tensor_parallel : [-]
        tp, ranks; each holds at least one head

    Returns
    -------
    [elements]
        e_rank

    Examples
    --------
    Llama-3: eight heads of 128, a key and a value each; sixteen ranks hold one head each.

    >>> cache_elements_on_rank(2 * 128.0, 8.0)
    np.float64(2048.0)
    >>> cache_elements_on_rank(2 * 128.0, 8.0, tensor_parallel=16.0)
    np.float64(256.0)

    References
    ----------
    Ainslie et al. 2023, "GQA", arXiv:2305.13245, section 2.2.
    """
    on_rank: Number = np.ceil(heads / tensor_parallel) * elements
    return on_rank


def state_elements_on_rank(elements: int, pieces: int | None, tensor_parallel: Number = 1.0) -> Number:
    """Return the elements of a state that one rank holds.

        e_rank = e / tp, or ceil(g / tp) e / g for g indivisible pieces

    Parameters
    ----------
    elements : e, over all ranks [elements]
    pieces : g, such as the groups of Mamba-2 [-]; None splits evenly
    tensor_parallel : [-]
        tp, ranks

    Returns
    -------
    [elements]
        e_rank

    Examples
    --------
    Four ranks hold a quarter of a state each, or one of its two groups each, in two copies:

    >>> state_elements_on_rank(64, None, 4.0), float(state_elements_on_rank(64, 2, 4.0))
    (16.0, 32.0)

    References
    ----------
    Dao, Gu 2024, "Transformers are SSMs", arXiv:2405.21060, section 8.2 (tensor parallelism).
    """
    if pieces is None:
        return elements / tensor_parallel
    on_rank: Number = np.ceil(pieces / tensor_parallel) * (elements / pieces)
    return on_rank


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


def held_vector_bytes(part: CachePart, kv_bytes_per_element: Number, tensor_parallel: Number = 1.0) -> Number:
    """Return the bytes of the vectors of one token or entry as engines store them, on one rank.

        v = packed bytes in an 8-bit cache, e_rank b in a wider one

    Parameters
    ----------
    part : what is cached
    kv_bytes_per_element : [B]
        b, of the cache dtype
    tensor_parallel : [-]
        ranks

    Returns
    -------
    [B]
        v; index keys are packed whatever the cache dtype

    Examples
    --------
    A latent of 512 and a rotary key of 64 elements takes 656 bytes packed, 2 x 576 in bf16:

    >>> latent = CachePart(576, packed_bytes=656.0)
    >>> float(held_vector_bytes(latent, 1.0)), float(held_vector_bytes(latent, 2.0, 8.0))
    (656.0, 1152.0)

    References
    ----------
    vLLM, fp8_ds_mla: https://docs.vllm.ai/en/latest/api/vllm/v1/attention/backends/mla.
    """
    plain = cache_elements_on_rank(part.elements, part.heads, tensor_parallel) * kv_bytes_per_element
    if part.packed_bytes is None:
        return plain
    packed = part.index | (np.asarray(kv_bytes_per_element) <= 1.0)
    size: Number = np.where(packed, part.packed_bytes + 0.0 * plain, plain)
    return size


@dataclass(frozen=True, slots=True)
class Heads:
    """Units that tensor parallelism distributes over ranks and must not split."""

    count: int
    name: str = "heads"
    """Plural noun for messages."""
    replicable: bool = False
    """Replicated where ranks outnumber them (KV heads)."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """How prefill expands cached latents into keys and values of every head."""

    heads: int
    head_elements: int
    """Elements of one expanded head: the key without its rotary part, and the value."""
    latent_elements: int
    """Width of the latent that each head is expanded from."""
    gathered_elements: int
    """Width of one cached vector, which is gathered first."""


@dataclass(frozen=True, slots=True)
class Description:
    """One mixer; what does not apply to its kind keeps the default."""

    name: str
    """Name in reports."""
    heads: tuple[Heads, ...]
    cache_parts: tuple[CachePart, ...] = ()
    state_parts: tuple[StatePart, ...] = ()
    read_limits: tuple[float, ...] = ()
    """Contexts beyond which a query reads no more tokens: its window, the tokens an indexer selects [tokens]."""
    softmax: bool = False
    """Softmax attention, over the cache of this layer or of another one."""
    causal: bool = True
    """False where a position sees those after it: its prompt is read whole, in one step."""
    mixed_pages: bool = False
    """Engines lay out its cache in pages of several sizes; all other kinds share one pool of equal pages."""
    rotary_elements: int = 0
    """Rotated elements of a head, summed over its tables of sines and cosines."""
    normed_elements: int = 0
    """Elements of queries and keys that are normalised before attention."""
    norms_exchange: bool = False
    """This norm spans all heads, so tensor-parallel ranks exchange mean squares."""
    expansion: Expansion | None = None
    """Expansion of cached latents into keys and values; None where the cache holds keys and values."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention over cached keys and values: MHA, GQA or MQA."""

    query_heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    window_tokens: int | None = None
    """Tokens that a position sees (itself included); None sees all."""
    chunked: bool = False
    """The window is an aligned chunk (llama4), not a sliding one."""
    cached: bool = True
    """False where the layer reads the cache of an earlier layer (gemma3n, gemma4)."""
    causal: bool = True
    """False in encoders: a position sees both sides of it, the window is centred on it, and nothing is cached."""
    query_key_norms: Literal["none", "head", "wide"] = "none"
    """Query and key norms: per head, or over all heads at once; then tensor-parallel ranks exchange mean squares."""
    index_heads: int = 0
    """Heads of a block-sparse indexer (MiniMax M3); 0 without one."""
    index_head_dim: int = 0
    """Width of the single index key per token, cached next to keys and values in the same dtype."""
    index_top_tokens: int = 0
    """Tokens in the blocks that the indexer selects."""
    index_pool_tokens: int = 1
    """Tokens that share one index key (Qwen 4), which engines keep in 16 bits."""
    index_tail_elements: int = 0
    """Elements that engines keep of the tokens of the pool at hand, in 16 bits."""
    convolved_elements: int = 0
    """Inputs of convolutions over queries, keys and values that the next token needs again (ZAYA1)."""

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it."""
        window = math.inf if self.window_tokens is None else float(self.window_tokens)
        parts = [CachePart(self.head_dim + self.value_head_dim, self.kv_heads, window, self.chunked)]
        states: tuple[StatePart, ...] = ()
        if self.index_pool_tokens > 1:
            key, tail = 2.0 * self.index_head_dim, self.index_tail_elements
            pool = self.index_pool_tokens
            parts.append(CachePart(self.index_head_dim, entry_tokens=pool, packed_bytes=key, index=True))
            states = (StatePart(tail, tail, "bf16", pieces=1),)
        elif self.convolved_elements:
            states = (StatePart(self.convolved_elements, self.convolved_elements, "bf16"),)
        elif self.index_head_dim:
            parts.append(CachePart(self.index_head_dim, 1, window, self.chunked))
        name = "sparse_attention" if self.index_heads else "attention"
        if self.window_tokens is not None:
            name = "chunked" if self.chunked else "sliding_window"
        if not self.causal:
            name = "bidirectional" if self.window_tokens is None else "bidirectional_window"
        normed = self.query_key_norms != "none"
        return Description(
            name,
            (Heads(self.query_heads), Heads(self.kv_heads, "KV heads", replicable=True)),
            tuple(parts) if self.cached and self.causal else (),
            states,
            read_limits=tuple(float(limit) for limit in (self.window_tokens, self.index_top_tokens) if limit),
            softmax=True,
            causal=self.causal,
            rotary_elements=self.head_dim,
            normed_elements=(self.query_heads + self.kv_heads) * self.head_dim if normed else 0,
            norms_exchange=self.query_key_norms == "wide",
        )


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention of a decoder over what an encoder read (Whisper): keys and values are made once, and kept for the whole sequence."""

    heads: int
    head_dim: int
    source_tokens: int
    """Positions of the encoder."""

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it.

        Cache after vLLM, `CrossAttentionSpec` and `CrossAttentionManager`: blocks for every position of the encoder, allocated with the
        first token, never shared and never grown: https://github.com/vllm-project/vllm.
        """
        part = CachePart(2 * self.head_dim, self.heads, source_tokens=self.source_tokens)
        return Description("cross_attention", (Heads(self.heads),), (part,), softmax=True)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one latent per token, replicated on every tensor-parallel rank."""

    query_heads: int
    kv_lora_rank: int
    rope_head_dim: int
    nope_head_dim: int
    value_head_dim: int
    index_heads: int = 0
    """Heads of the sparse indexer (DeepSeek V3.2); 0 without one."""
    index_head_dim: int = 0
    index_top_tokens: int = 0
    """Tokens that the indexer selects."""
    index_cached: bool = True
    """False where the layer reuses the selection of an earlier layer's indexer."""
    index_pool_tokens: int = 1
    """Tokens that share one index key (GLM-5.3): engines cache that key, and key and gate of each token of the pool at hand."""
    window_tokens: int | None = None
    """Tokens that a position sees (itself included) in a layer without an indexer (dots3-note); None sees all."""

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it; vLLM packs only the latents of sparse layers.

        Pooled index keys after its `Glm5NextIndexerCache` and `Glm5NextTailCache`: https://github.com/vllm-project/vllm.
        """
        width = self.kv_lora_rank + self.rope_head_dim
        sparse = self.index_head_dim > 0
        packed = float(packed_latent_bytes(self.kv_lora_rank, self.rope_head_dim)) if sparse else None
        window = float(self.window_tokens or math.inf)
        parts = [CachePart(width, window_tokens=window, packed_bytes=packed)]
        states: tuple[StatePart, ...] = ()
        if sparse and self.index_cached:
            key = float(index_key_bytes(self.index_head_dim))
            pool = self.index_pool_tokens
            parts.append(CachePart(self.index_head_dim, entry_tokens=pool, packed_bytes=key, index=True))
            if pool > 1:
                ring = 2 * self.index_head_dim * pool
                states = (StatePart(ring, ring, "bf16", pieces=1),)
        expanded = self.nope_head_dim + self.value_head_dim
        return Description(
            "sparse_mla" if self.index_heads else "sliding_mla" if self.window_tokens else "mla",
            (Heads(self.query_heads),),
            tuple(parts),
            states,
            read_limits=tuple(float(limit) for limit in (self.window_tokens, self.index_top_tokens) if limit),
            softmax=True,
            rotary_elements=self.rope_head_dim,
            expansion=Expansion(self.query_heads, expanded, self.kv_lora_rank, width),
        )


def packed_latent_bytes(kv_lora_rank: Number, rope_head_dim: Number) -> Number:
    """Return the bytes of one latent of sparse MLA in the engines' packed 8-bit layout.

        v = r + 4 x 4 + 2 d

    Parameters
    ----------
    kv_lora_rank : [elements]
        r, in fp8, with four scales in fp32
    rope_head_dim : [elements]
        d, of the rotary key, which stays in 16 bits

    Returns
    -------
    [B]
        v

    Examples
    --------
    >>> packed_latent_bytes(512.0, 64.0)
    656.0

    References
    ----------
    vLLM, fp8_ds_mla: https://docs.vllm.ai/en/latest/api/vllm/v1/attention/backends/mla.
    """
    return kv_lora_rank + 16.0 + 2.0 * rope_head_dim


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """Gated short convolution (LFM2), or one over every `dilation`-th token, which is whole on every rank (n-grams of Qwen 4)."""

    channels: int
    kernel: int
    dilation: int = 1
    """Tokens from one tap to the next."""

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it."""
        if self.dilation > 1:
            kept = self.channels * (self.kernel - 1) * self.dilation
            return Description("dilated_convolution", (), state_parts=(StatePart(kept, kept, pieces=1),))
        heads = (Heads(self.channels, "channels"),)
        return Description(
            "short_convolution", heads, state_parts=(convolution_columns(self.channels, self.kernel),)
        )


def convolution_columns(channels: int, kernel: int, pieces: int | None = None) -> StatePart:
    """Return the state of a causal convolution: its most recent inputs, which the next token needs again.

        needed = c K, as reference implementations keep them;  held = c (K - 1) in engines

    Parameters
    ----------
    channels : c, convolved channels [-]
    kernel : K, taps [-]
    pieces : indivisible groups of channels under tensor parallelism; None splits evenly

    Returns
    -------
    the state of one layer, in the activation dtype

    Examples
    --------
    >>> columns = convolution_columns(64, 3)
    >>> columns.elements, columns.allocated_elements
    (192, 128)

    References
    ----------
    vLLM, `MambaStateShapeCalculator`: https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/mamba/mamba_utils.
    """
    return StatePart(channels * kernel, channels * (kernel - 1), pieces=pieces)


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Attention with a recurrent state instead of a cache: gated delta net, lightning, KDA."""

    kind: Literal["gated_delta", "lightning", "kda"]
    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_channels: int = 0
    conv_kernel: int = 0
    state_elements: int = 0
    """Recurrent state of one sequence in this layer."""
    state_format: str = "fp32"
    state_stated: bool = False
    """Engines store the state in `state_format`, whatever the dtype of the model."""

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it."""
        states = [
            StatePart(
                self.state_elements,
                self.state_elements,
                self.state_format,
                recurrent=True,
                stated=self.state_stated,
            )
        ]
        if self.conv_channels:
            states.append(convolution_columns(self.conv_channels, self.conv_kernel))
        return Description(self.kind, (Heads(self.value_heads),), state_parts=tuple(states))


@dataclass(frozen=True, slots=True)
class StateSpace:
    """Mamba-1 (`version` 1) or Mamba-2 (`version` 2)."""

    version: Literal[1, 2]
    inner_size: int
    heads: int
    head_dim: int
    state_size: int
    groups: int
    conv_channels: int
    conv_kernel: int
    state_format: str = "fp32"
    state_stated: bool = False
    """Engines store the state in `state_format`, whatever the dtype of the model."""
    chunk_tokens: int = 256
    """Tokens of a prompt that Mamba-2 scans at once."""

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it.

        Mamba-2 also convolves B and C of each group; groups are replicated where ranks outnumber them
        (Dao, Gu 2024, "Transformers are SSMs", arXiv:2405.21060, section 8.2).
        """
        size = self.inner_size * self.state_size
        recurrent = StatePart(size, size, self.state_format, recurrent=True, stated=self.state_stated)
        shared = 2 * self.groups * self.state_size if self.version == 2 else 0
        columns = [convolution_columns(self.conv_channels - shared, self.conv_kernel)]
        if shared:
            columns.append(convolution_columns(shared, self.conv_kernel, self.groups))
        heads = Heads(self.heads) if self.version == 2 else Heads(self.inner_size, "channels")
        return Description(f"mamba{self.version}", (heads,), state_parts=(*columns, recurrent))


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention over a window and over entries that each stand for several earlier tokens (DeepSeek V4).

    One vector per token or entry is key and value of all heads at once, whole on every tensor-parallel rank.
    """

    query_heads: int
    head_dim: int
    """Width of the shared vector."""
    rope_head_dim: int
    """Rotated part of it."""
    window_tokens: int
    output_groups: int
    """Groups of heads in the output projection; ranks take whole groups."""
    entry_tokens: int = 0
    """Tokens compressed into one entry; 0: window only."""
    overlapping: bool = False
    """Each entry also covers the tokens of the previous one."""
    index_heads: int = 0
    """Heads of the indexer that selects entries; 0 where all are read."""
    index_head_dim: int = 0
    """Width of the single index key per entry."""
    index_top_entries: int = 0
    """Entries that the indexer selects."""
    state_format: str = "fp32"
    """Format of the tokens that wait to be compressed."""
    shared_entries: bool = False
    """Layers share entries, selections and the index keys that are made of them (DeepSeek V4.1)."""
    owns_entries: bool = True
    """Where they are shared: this layer makes and caches them; others read what an earlier layer has."""

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it; windows and entries have different rotary bases, hence two tables.

        Parts after Hugging Face transformers 5.23, `DeepseekV4HCACache`, `DeepseekV4CSACache` (models/deepseek_v4).
        """
        packed = float(packed_vector_bytes(self.head_dim, self.rope_head_dim))
        parts = [CachePart(self.head_dim, window_tokens=float(self.window_tokens), packed_bytes=packed)]
        states: tuple[StatePart, ...] = ()
        if self.entry_tokens and self.owns_entries:
            compression = (self.entry_tokens, self.overlapping)
            parts.append(_entries(self.head_dim, packed, *compression))
            if self.index_head_dim:
                key = float(index_key_bytes(self.index_head_dim))
                parts.append(_entries(self.index_head_dim, key, *compression, index=True))
            if self.shared_entries:
                states = shared_compressor_state(self.head_dim, self.entry_tokens, self.state_format)
            else:
                states = (
                    compressor_state(self.head_dim + self.index_head_dim, *compression, self.state_format),
                )
        name = "compressed_sparse" if self.index_top_entries else "heavily_compressed"
        return Description(
            name if self.entry_tokens else "sliding_window",
            (Heads(self.query_heads), Heads(self.output_groups, "groups of heads")),
            tuple(parts),
            states,
            read_limits=(float(self.window_tokens),),
            softmax=True,
            mixed_pages=True,
            rotary_elements=2 * self.rope_head_dim,
        )


def _entries(
    elements: int, packed_bytes: float, entry_tokens: int, overlapping: bool, *, index: bool = False
) -> CachePart:
    return CachePart(
        elements, entry_tokens=entry_tokens, overlapping=overlapping, packed_bytes=packed_bytes, index=index
    )


def compressor_state(elements: int, entry_tokens: int, overlapping: bool, state_format: str) -> StatePart:
    """Return the state of tokens that wait to be compressed (value and gate), replicated on every rank.

        needed = 2 c d, or 6 c d where entries overlap: two series of the current entry, one of the previous
        held   = 2 c d, or 8 c d: engines keep both series of both entries

    Parameters
    ----------
    elements : d, of one entry and its index key [-]
    entry_tokens : c, compressed into one entry [tokens]
    overlapping : each entry also covers the tokens of the previous one
    state_format : of value and gate

    Returns
    -------
    the state of one layer

    Examples
    --------
    >>> part = compressor_state(512, 4, True, "fp32")
    >>> part.elements, part.allocated_elements
    (12288, 16384)

    References
    ----------
    Hugging Face transformers 5.23, `DeepseekV4HCACache.store_compression_weights` and `update_overlap_state`;
    vLLM, `CompressorStateCache`: https://github.com/vllm-project/vllm.
    """
    vectors, kept = (6, 8) if overlapping else (2, 2)
    size = entry_tokens * elements
    filled_by = float((2 if overlapping else 1) * entry_tokens)
    return StatePart(vectors * size, kept * size, state_format, pieces=1, filled_by_tokens=filled_by)


def shared_compressor_state(elements: int, entry_tokens: int, state_format: str) -> tuple[StatePart, ...]:
    """Return the state of tokens that wait for an entry which layers share (value and gate), replicated on every rank.

        needed = 2 c d;  held = 8 x 2 d, a ring of eight rows;  nothing for c = 1

    Parameters
    ----------
    elements : d, of one entry [-]
    entry_tokens : c, compressed into one entry [tokens]
    state_format : of value and gate

    Returns
    -------
    the states of one layer

    Examples
    --------
    >>> [part.allocated_elements for part in shared_compressor_state(512, 2, "fp32")], shared_compressor_state(512, 1, "fp32")
    ([8192], ())

    References
    ----------
    vLLM, `CompressorStateCache` in vllm/models/deepseek_v41/compressor.py: https://github.com/vllm-project/vllm.
    """
    if entry_tokens == 1:
        return ()
    needed, held = 2 * entry_tokens * elements, 8 * 2 * elements
    return (StatePart(needed, held, state_format, pieces=1, filled_by_tokens=float(entry_tokens)),)


def packed_vector_bytes(head_dim: Number, rope_head_dim: Number) -> Number:
    """Return the bytes of one vector of compressed attention in the engines' packed 8-bit layout.

        v = (d - r) + 2 r + (d - r) / 64 + 1

    Parameters
    ----------
    head_dim : [elements]
        d
    rope_head_dim : [elements]
        r, rotated elements, which stay in 16 bits; every 64 of the others share a one-byte scale

    Returns
    -------
    [B]
        v

    Examples
    --------
    448 elements in fp8, 64 in bf16, seven scales and one byte of padding:

    >>> packed_vector_bytes(512.0, 64.0)
    584.0

    References
    ----------
    vLLM, `DeepseekV4SWACache`, fp8_ds_mla: https://github.com/vllm-project/vllm.
    """
    plain = head_dim - rope_head_dim
    return plain + 2.0 * rope_head_dim + plain // 64 + 1.0
