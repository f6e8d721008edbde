"""Softmax attention with keys and values of its own: MHA, GQA, MQA, in full, sliding or chunked."""

import math
from dataclasses import dataclass
from typing import Literal

from capplan.model.cache_parts import CachePart
from capplan.model.mixers.description import Description, Heads


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with its own keys and values: MHA, GQA or MQA."""

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
    query_key_norms: Literal["none", "head", "wide"] = "none"
    """Norms of queries and keys: of each head, or over all heads at once, whose mean squares tensor ranks exchange."""
    index_heads: int = 0
    """Heads of a block-sparse indexer (MiniMax M3); 0 without one."""
    index_head_dim: int = 0
    """Width of the one index key per token that is cached beside keys and values, in the same dtype."""
    index_top_tokens: int = 0
    """Tokens in the blocks that attention reads after the indexer chose them."""

    @property
    def description(self) -> Description:
        """What the rest of the package asks of it."""
        window = math.inf if self.window_tokens is None else float(self.window_tokens)
        parts = [CachePart(self.head_dim + self.value_head_dim, self.kv_heads, window, self.chunked)]
        if self.index_head_dim:
            parts.append(CachePart(self.index_head_dim, 1, window, self.chunked))
        name = "sparse_attention" if self.index_heads else "attention"
        if self.window_tokens is not None:
            name = "chunked" if self.chunked else "sliding_window"
        normed = self.query_key_norms != "none"
        return Description(
            name,
            (Heads(self.query_heads), Heads(self.kv_heads, "KV heads", replicable=True)),
            tuple(parts) if self.cached else (),
            read_limits=tuple(float(limit) for limit in (self.window_tokens, self.index_top_tokens) if limit),
            softmax=True,
            rotary_elements=self.head_dim,
            normed_elements=(self.query_heads + self.kv_heads) * self.head_dim if normed else 0,
            norms_exchange=self.query_key_norms == "wide",
        )
