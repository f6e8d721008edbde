"""A network as a list of layers: what an engine multiplies, caches and holds.

Everything else (parameters, KV bytes, FLOP, weight bytes, sharding) is a sum over this list.
All records are hashable, so equal layers are counted once (`layer_counts`).
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from capplan.assumption import Assumption
from capplan.model.images import ImageRule, ImageWork, Tower
from capplan.model.mixers import (
    Attention,
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    LinearAttention,
    ShortConvolution,
    StateSpace,
)

__all__ = [
    "CROSS_KV",
    "Adapters",
    "Attention",
    "CompressedAttention",
    "CrossAttention",
    "Encoder",
    "Experts",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "LoraTerms",
    "Mixer",
    "Network",
    "Projection",
    "ShortConvolution",
    "Split",
    "StateSpace",
    "TensorClass",
    "layer_counts",
]

CROSS_KV = "cross_kv"
"""The matrix of a decoder layer that makes keys and values of what an encoder read: multiplied once for a sequence."""

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
    """Bias elements, kept next to the matrix."""
    kv_outputs: int = 0
    """The part of `outputs` that belongs to KV heads: replicated where ranks outnumber KV heads."""
    kv_heads: int = 0
    """KV heads that `kv_outputs` is divided into."""
    weight_format: str = "bf16"
    """Key of `weight_format.FORMATS`."""
    multiplied_in: str | None = None
    """Format in which engines hold and multiply it, where it differs from the checkpoint's."""
    matmul: bool = True
    """False for weights that are held but not multiplied by every token (lookup tables)."""
    owns_weights: bool = True
    """False where the weights belong to another layer (zamba2): read and multiplied here, counted there."""

    @property
    def parameters(self) -> int:
        """Elements of matrix and bias."""
        return self.inputs * self.outputs + self.bias


Mixer: TypeAlias = (
    Attention
    | CrossAttention
    | LatentAttention
    | LinearAttention
    | StateSpace
    | ShortConvolution
    | CompressedAttention
)
"""Every kind of mixer; other rooms read its `description`."""


Routing: TypeAlias = Literal["softmax", "sigmoid", "grouped"]
"""How the experts of a token are chosen: the largest scores of a softmax or of a biased sigmoid, or, as in DeepSeek, those of the best groups."""


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
    """Key of `weight_format.FORMATS`: of the matrices that read the hidden state, and of all where `down_format` is None."""
    down_format: str | None = None
    """Format of the matrix that writes the hidden state, where a quantiser gave it another one."""
    routing: Routing = "softmax"
    """How the experts of a token are chosen."""

    @property
    def matrices(self) -> tuple[tuple[str, int, int], ...]:
        """Format, elements and outputs of the matrices of one expert: those that read the hidden state, the one that writes it."""
        inner = (2 if self.gated else 1) * self.intermediate_size
        return (
            (self.weight_format, inner * self.inputs, inner),
            (self.down_format or self.weight_format, self.intermediate_size * self.inputs, self.inputs),
        )

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
    """Weights that are held but neither multiplied by every token nor any of the above."""
    other_active_parameters: int = 0
    """The part of `other_parameters` that one token uses."""
    residual_streams: int = 1
    """Copies of the hidden state that the residual carries from layer to layer (hyper-connections)."""
    split_norm_parameters: int = 0
    """The part of `norm_parameters` that tensor-parallel ranks divide: norms over heads that they divide as well."""


@dataclass(frozen=True, slots=True)
class LoraTerms:
    """LoRA adapters that a scenario, flags or the command line of an engine ask for."""

    adapters: int
    """Adapters of the traffic, equally popular, all of them in the memory of the host."""
    slots: int
    """Resident on a replica, each of the full rank."""
    rank: int
    modules: tuple[str, ...] | None = None
    """Matrices that they stand next to, as q_proj; None: all of attention and feed-forward."""
    fully_sharded: bool = False
    """Both low-rank matrices are split over tensor-parallel ranks, instead of one of them."""
    adapted_fraction: float = 1.0
    """Fraction of the requests that use an adapter."""


@dataclass(frozen=True, slots=True)
class Adapters(LoraTerms):
    """LoRA adapters that are served with a network, next to matrices that it has."""

    modules: tuple[str, ...]
    format: str = "bf16"
    """Key of `weight_format.FORMATS`."""
    prompt_tokens: float | None = None
    """Mean prompt tokens computed per request; None if unknown, and no adapter is ever missing."""

    @property
    def missing_fraction(self) -> float:
        """Share of the requests whose adapter is not resident, if it stays for those that follow."""
        return self.adapted_fraction * max(1.0 - self.slots / self.adapters, 0.0)


@dataclass(frozen=True, slots=True)
class Encoder:
    """What reads the source of every request, all of one length, before the decoder takes its first token."""

    positions: int
    tower: Tower


@dataclass(frozen=True)
class Network:
    """A model, read from its config.json; without slots, so that it keeps its distinct layers."""

    name: str
    model_type: str
    hidden_size: int
    vocabulary_size: int
    layers: tuple[Layer, ...]
    lm_head: Projection
    """Applied to positions that need logits; its parameters count once where tied."""
    tied_embeddings: bool
    embedding_parameters: int
    """Token embedding (and learned positions)."""
    embedding_format: str = "bf16"
    final_norm_parameters: int = 0
    vision_parameters: int = 0
    """Vision and audio towers and projectors: held; `image_work` says what a vision tower reads, sound is not modelled in time."""
    vision_format: str = "bf16"
    whole_towers: bool = False
    """Every rank holds the towers whole instead of its share (vLLM: --mm-encoder-tp-mode data)."""
    mtp_parameters: int = 0
    """Multi-token-prediction layers: in the checkpoint, not counted in `parameters`."""
    other_parameters: int = 0
    activation_format: str = "bf16"
    vector_format: str | None = None
    """Format of norms, biases and states, where it is not that of the activations (GGUF files keep them in fp32)."""
    kv_format: str | None = None
    """KV cache format that the checkpoint states (kv_cache_scheme); None: it states none."""
    max_context_tokens: int | None = None
    """Longest context, scaled rotary positions included."""
    stated_context_tokens: int | None = None
    """Longest context in SGLang, which takes the positions of the config without their scaling; None: as max_context_tokens."""
    scaled_rotary_tokens: int = 0
    """Positions of a second rotary table, which linear scaling extends beyond the context; 0 without one."""
    mtp_experts: Experts | None = None
    pooler: Projection | None = None
    """Applied to one position of a prompt, before its scores (the pooler of BERT); None without one."""
    generates: bool = True
    """False where a head for scores, or none, stands in place of the LM head: there are no decode steps."""
    pooled: bool = False
    """Served for a vector or a score of every prompt: no decode steps are asked for."""
    adapters: Adapters | None = None
    """Served with the network; None: none."""
    encoder: Encoder | None = None
    """Encoder of an encoder-decoder, with its weights in `vision_parameters`; None: a decoder or an encoder by itself."""
    images: ImageRule | None = None
    """How images become tokens; None where that is not modelled."""
    image_work: tuple[ImageWork, ...] = ()
    """Images of the traffic that its tower reads."""
    notes: tuple[str, ...] = ()
    """What a reader should know: conventions, keys that were missing and their class defaults."""
    doubts: tuple[Assumption, ...] = ()
    """Assumptions that may make figures too small: keys that were not read, towers that are not counted."""
    keys_used: tuple[str, ...] = ()

    @property
    def logits(self) -> int:
        """Width of what a step writes for each position that it answers: tokens of the vocabulary, or scores."""
        return self.vocabulary_size if self.generates else self.lm_head.outputs

    @property
    def bidirectional(self) -> bool:
        """Whether prompts are read whole and in both directions, so that they have no cache, chunks or reused prefixes."""
        return any(
            not mixer.description.causal for layer, _ in self.distinct_layers for mixer in layer.mixers
        )

    @property
    def plain_format(self) -> str:
        """Format of everything that is no matrix."""
        return self.vector_format or self.activation_format

    @property
    def whole_prompts(self) -> bool:
        """Whether engines take every prompt in one step and keep nothing of it for another: encoders, and encoder-decoders."""
        return self.bidirectional or self.encoder is not None

    @property
    def routed_layers(self) -> int:
        """Layers with routed experts."""
        return sum(count for layer, count in self.distinct_layers if layer.experts is not None)

    @property
    def latent_layers(self) -> int:
        """Layers with latent attention, compressed or not."""
        return sum(
            count
            for layer, count in self.distinct_layers
            if any(isinstance(mixer, LatentAttention | CompressedAttention) for mixer in layer.mixers)
        )

    @property
    def scaled_products(self) -> int:
        """Matrix products of block-scaled fp8 in all layers, whose inputs are quantised in blocks first; the experts of a layer have two."""
        return sum(
            count
            * (
                sum(
                    _in_blocks(projection.weight_format)
                    for projection in layer.projections
                    if projection.matmul
                )
                + (2 if layer.experts is not None and _in_blocks(layer.experts.weight_format) else 0)
            )
            for layer, count in self.distinct_layers
        )

    @property
    def routing(self) -> Routing:
        """How the experts of a token are chosen, in all layers alike."""
        routed = (layer.experts for layer, _ in self.distinct_layers if layer.experts is not None)
        return next((experts.routing for experts in routed), "softmax")

    @cached_property
    def distinct_layers(self) -> tuple[tuple[Layer, int], ...]:
        """Each distinct layer with the number of times it occurs, in order of first occurrence."""
        # Equal layers are mostly the same object: counting objects first saves hashing every layer.
        objects = {id(layer): layer for layer in self.layers}
        counts: dict[Layer, int] = {}
        for key, count in Counter(map(id, self.layers)).items():
            counts[objects[key]] = counts.get(objects[key], 0) + count
        return tuple(counts.items())


def _in_blocks(weight_format: str) -> bool:
    return weight_format.startswith("fp8_block")


def layer_counts(network: Network) -> tuple[tuple[Layer, int], ...]:
    """Return each distinct layer with the number of times it occurs, in order of first occurrence.

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
    return network.distinct_layers
