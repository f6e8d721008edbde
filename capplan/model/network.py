"""A network as a list of layers: what an engine multiplies, caches and holds.

Everything else (parameters, KV bytes, FLOP, weight bytes, sharding) is a sum over this list.
All records are hashable, so equal layers are counted once (`layer_counts`).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias

TensorClass: TypeAlias = Literal[
    "embedding", "lm_head", "attention", "ffn", "expert", "shared_expert", "router", "norm", "state",
    "vision", "mtp", "other",
]  # fmt: skip
Split: TypeAlias = Literal["columns", "rows", "none"]


@dataclass(frozen=True, slots=True)
class Projection:
    """One weight matrix as an engine multiplies it: q, k and v fused, gate and up fused."""

    name: str
    """What it is: qkv, o, q_a, q_b, kv_a, kv_b, gate_up, up, down, router, in_proj, out_proj, lm_head."""
    tensor_class: TensorClass
    inputs: int
    """k of the matmul."""
    outputs: int
    """n of the matmul, before sharding."""
    split: Split
    """How tensor parallelism cuts it: columns (outputs), rows (inputs, then an all-reduce), none (replicated)."""
    bias: int = 0
    """Bias elements, kept beside the matrix."""
    kv_outputs: int = 0
    """The part of `outputs` that belongs to KV heads: replicated where ranks outnumber KV heads."""
    kv_heads: int = 0
    """KV heads that `kv_outputs` is divided into."""
    weight_format: str = "bf16"
    """Key of `weight_format.FORMATS`."""
    multiplied_in: str | None = None
    """Format that engines hold and multiply it in, where that is not the one of the checkpoint."""
    matmul: bool = True
    """False for weights that are held but not multiplied by every token (lookup tables)."""
    held: bool = True
    """False where the matrix is that of another layer (zamba2): multiplied and read here, counted there."""

    @property
    def parameters(self) -> int:
        """Elements of matrix and bias."""
        return self.inputs * self.outputs + self.bias


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
    biases_softmax: bool = False
    """Attention sinks and the like: no cost, kept for the report."""
    query_key_norms: Literal["none", "head", "wide"] = "none"
    """Norms of queries and keys: of each head, or over all heads at once, whose mean squares tensor ranks exchange."""
    index_heads: int = 0
    """Heads of a block-sparse indexer (MiniMax M3); 0 without one."""
    index_head_dim: int = 0
    """Width of the one index key per token that is cached beside keys and values."""
    index_top_tokens: int = 0
    """Tokens in the blocks that attention reads after the indexer chose them."""


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
    """Tokens that attention reads after the indexer chose them."""
    index_cached: bool = True
    """False where the layer reuses the indexer choice of an earlier layer."""


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


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """Gated short convolution (LFM2)."""

    channels: int
    kernel: int


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention over a window and over entries that each stand for several earlier tokens (DeepSeek V4).

    One vector per token or entry is key and value of all heads at once, whole on every tensor-parallel rank.
    """

    query_heads: int
    head_dim: int
    """Width of the one vector."""
    rope_head_dim: int
    """Its part that is rotated."""
    window_tokens: int
    output_groups: int
    """Groups of heads in the output projection; ranks take whole groups."""
    entry_tokens: int = 0
    """Tokens that one entry stands for; 0 where there is the window alone."""
    overlapping: bool = False
    """An entry also draws on the tokens of the one before."""
    index_heads: int = 0
    """Heads of the indexer that chooses entries; 0 where all are read."""
    index_head_dim: int = 0
    """Width of the one index key per entry."""
    index_top_entries: int = 0
    """Entries that attention reads after the indexer chose them."""
    state_format: str = "fp32"
    """Of the tokens that wait to become an entry."""


Mixer: TypeAlias = (
    Attention | LatentAttention | LinearAttention | StateSpace | ShortConvolution | CompressedAttention
)


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of one layer; shared experts and the router are projections."""

    experts: int
    experts_per_token: int
    inputs: int
    """Width that an expert reads and writes (hidden size, or the latent of latent MoE)."""
    intermediate_size: int
    gated: bool = True
    """Two input matrices (gate, up) instead of one."""
    bias: int = 0
    """Bias elements of one expert."""
    weight_format: str = "bf16"

    @property
    def parameters_per_expert(self) -> int:
        """Elements of one expert."""
        return (3 if self.gated else 2) * self.inputs * self.intermediate_size + self.bias

    @property
    def parameters(self) -> int:
        """Elements of all experts."""
        return self.experts * self.parameters_per_expert


@dataclass(frozen=True, slots=True)
class Layer:
    """One block: its mixers (usually one), its matmuls in order, its experts."""

    mixers: tuple[Mixer, ...]
    projections: tuple[Projection, ...]
    experts: Experts | None = None
    norm_parameters: int = 0
    """Norm weights and biases, rotary tables and other vectors that are only read elementwise."""
    state_parameters: int = 0
    """Convolution taps, A, D, dt bias of state layers."""
    other_parameters: int = 0
    """Held, but neither multiplied by every token nor any of the above; the reader says what."""
    other_active_parameters: int = 0
    """The part of `other_parameters` that one token uses."""
    residual_streams: int = 1
    """Copies of the hidden state that the residual carries from layer to layer (hyper-connections)."""


@dataclass(frozen=True, slots=True)
class Network:
    """A model, read from its config.json."""

    name: str
    model_type: str
    hidden_size: int
    vocabulary_size: int
    layers: tuple[Layer, ...]
    lm_head: Projection
    """Multiplied on positions that need logits; its parameters count once where tied."""
    tied_embeddings: bool
    embedding_parameters: int
    """Token embedding (and learned positions)."""
    embedding_format: str = "bf16"
    final_norm_parameters: int = 0
    vision_parameters: int = 0
    """Vision and audio towers and projectors: held, not modelled in time."""
    vision_format: str = "bf16"
    mtp_parameters: int = 0
    """Multi-token-prediction layers: in the checkpoint, not counted in `parameters`."""
    other_parameters: int = 0
    activation_format: str = "bf16"
    kv_format: str | None = None
    """What the checkpoint asks for the KV cache, where it does (kv_cache_scheme)."""
    max_context_tokens: int | None = None
    scaled_rotary_tokens: int = 0
    """Positions of a further rotary table, where linear scaling stretches one beyond the context; 0 without."""
    mtp_experts: Experts | None = None
    notes: tuple[str, ...] = ()
    """What a reader should know: conventions, keys that were missing and their class defaults."""
    keys_used: tuple[str, ...] = ()


def layer_counts(network: Network) -> list[tuple[Layer, int]]:
    """Return each distinct layer with the number of times it occurs, in order of first occurrence.

    Parameters
    ----------
    network : the model

    Returns
    -------
    pairs of a layer and its count [-]

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer(mixers=(), projections=())
    >>> network = Network("n", "t", 8, 10, (layer,) * 3, head, True, 80)
    >>> [count for _, count in layer_counts(network)]
    [3]
    """
    # Equal layers mostly are one object: counting those first spares the hash of a whole layer per layer.
    objects = {id(layer): layer for layer in network.layers}
    counts: dict[Layer, int] = {}
    for key, count in Counter(map(id, network.layers)).items():
        counts[objects[key]] = counts.get(objects[key], 0) + count
    return list(counts.items())
