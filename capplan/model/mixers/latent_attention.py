"""Multi-head latent attention (MLA), with or without the sparse indexer of DeepSeek V3.2."""

from dataclasses import dataclass

from capplan.model.cache_parts import CachePart, index_key_bytes
from capplan.model.mixers.description import Description, Expansion, Heads
from capplan.numbers import Number


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

    @property
    def description(self) -> Description:
        """The mixer as other rooms read it; vLLM packs only the latents of sparse layers."""
        width = self.kv_lora_rank + self.rope_head_dim
        sparse = self.index_head_dim > 0
        packed = float(packed_latent_bytes(self.kv_lora_rank, self.rope_head_dim)) if sparse else None
        parts = [CachePart(width, packed_bytes=packed)]
        if sparse and self.index_cached:
            key = float(index_key_bytes(self.index_head_dim))
            parts.append(CachePart(self.index_head_dim, packed_bytes=key, index=True))
        expanded = self.nope_head_dim + self.value_head_dim
        return Description(
            "sparse_mla" if self.index_heads else "mla",
            (Heads(self.query_heads),),
            tuple(parts),
            read_limits=(float(self.index_top_tokens),) if self.index_top_tokens else (),
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
