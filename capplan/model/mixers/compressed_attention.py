"""Attention over a window and over compressed entries (DeepSeek V4)."""

from dataclasses import dataclass

from capplan.model.cache_parts import CachePart, StatePart, index_key_bytes
from capplan.model.mixers.description import Description, Heads
from capplan.numbers import Number


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

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it; windows and entries have different rotary bases, hence two tables.

        Parts after Hugging Face transformers 5.23, `DeepseekV4HCACache`, `DeepseekV4CSACache` (models/deepseek_v4).
        """
        packed = float(packed_vector_bytes(self.head_dim, self.rope_head_dim))
        parts = [CachePart(self.head_dim, window_tokens=float(self.window_tokens), packed_bytes=packed)]
        states: tuple[StatePart, ...] = ()
        if self.entry_tokens:
            compression = (self.entry_tokens, self.overlapping)
            parts.append(_entries(self.head_dim, packed, *compression))
            if self.index_head_dim:
                key = float(index_key_bytes(self.index_head_dim))
                parts.append(_entries(self.index_head_dim, key, *compression, index=True))
            states = (waiting_tokens(self.head_dim + self.index_head_dim, *compression, self.state_format),)
        name = "compressed_sparse" if self.index_heads else "heavily_compressed"
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


def waiting_tokens(elements: int, entry_tokens: int, overlapping: bool, state_format: str) -> StatePart:
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
    >>> part = waiting_tokens(512, 4, True, "fp32")
    >>> part.elements, part.held_elements
    (12288, 16384)

    References
    ----------
    Hugging Face transformers 5.23, `DeepseekV4HCACache.store_compression_weights` and `update_overlap_state`;
    vLLM, `CompressorStateCache`: https://github.com/vllm-project/vllm.
    """
    vectors, kept = (6, 8) if overlapping else (2, 2)
    size = entry_tokens * elements
    return StatePart(vectors * size, kept * size, state_format, pieces=1)


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
