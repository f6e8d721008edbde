"""Softmax attention over cached keys and values: MHA, GQA, MQA; full, sliding-window or chunked."""

import math
from dataclasses import dataclass
from typing import Literal

from capplan.model.cache_parts import CachePart
from capplan.model.mixers.description import Description, Heads


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
    """Query and key norms: per head, or over all heads at once, for which tensor-parallel ranks exchange mean squares."""
    index_heads: int = 0
    """Heads of a block-sparse indexer (MiniMax M3); 0 without one."""
    index_head_dim: int = 0
    """Width of the single index key per token, cached beside keys and values in the same dtype."""
    index_top_tokens: int = 0
    """Tokens in the blocks that the indexer selects."""

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it."""
        window = math.inf if self.window_tokens is None else float(self.window_tokens)
        parts = [CachePart(self.head_dim + self.value_head_dim, self.kv_heads, window, self.chunked)]
        if self.index_head_dim:
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
            read_limits=tuple(float(limit) for limit in (self.window_tokens, self.index_top_tokens) if limit),
            softmax=True,
            causal=self.causal,
            rotary_elements=self.head_dim,
            normed_elements=(self.query_heads + self.kv_heads) * self.head_dim if normed else 0,
            norms_exchange=self.query_key_norms == "wide",
        )
