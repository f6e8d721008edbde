"""Real transformer layers with random weights, built from the record of a model, to check predictions against timings.

Every matrix, cache and attention has the shape of the model, in the dtype that was timed (bf16 where it is native). Where engines run a fused kernel that torch
does not have, one torch kernel that moves the same bytes stands in: layer norm for the fused norms, a
product with a table for the rotary embedding, the gated linear unit for the gated activation; residuals
are added by the matmul before them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from capplan.calibrate.kernels.attention import (
    BACKENDS,
    absorbed_attention,
    attention,
    expanded_attention,
    folded_attention,
)
from capplan.calibrate.kernels.matmul import (
    GROUPED,
    SEPARATE,
    Routing,
    can_group,
    read_routing,
    routed_experts,
)
from capplan.calibrate.machine import Abilities
from capplan.calibrate.timing import ELEMENT_BYTES, random_operand
from capplan.errors import InputError
from capplan.model.network import Attention, LatentAttention, Layer

_KNOWN = frozenset(
    {"qkv", "q", "q_a", "q_b", "kv_a", "kv_b", "o", "gate_up", "up", "down", "router"}
    | {"shared_gate_up", "shared_up", "shared_down", "shared_gate"}
)


def refusal(layer: Layer) -> str:
    """Return why a layer cannot be built; empty if it can."""
    if len(layer.mixers) != 1 or not isinstance(layer.mixers[0], (Attention, LatentAttention)):
        kinds = ", ".join(type(mixer).__name__ for mixer in layer.mixers) or "no mixer"
        return f"its mixer ({kinds}) has no kernel in torch to time"
    if layer.mixers[0].index_heads:
        return "its sparse indexer has no kernel in torch to time"
    if layer.experts and not layer.experts.gated:
        return "its experts have no gate"
    strange = sorted({p.name for p in layer.projections if p.matmul} - _KNOWN)
    return f"its matrices {', '.join(strange)} are not built" if strange else ""


def layer_bytes(layer: Layer, wide: str = "bf16") -> float:
    """Return the memory of the layer's weights in one dtype [B]."""
    dense = sum(p.inputs * p.outputs for p in layer.projections if p.matmul)
    return ELEMENT_BYTES[wide] * (dense + (layer.experts.parameters if layer.experts else 0))


def cache_bytes(layer: Layer, sequences: int, context_tokens: int, wide: str = "bf16") -> float:
    """Return the memory of the layer's cache in one dtype [B]."""
    elements = sum(part.heads * part.elements for part in layer.mixers[0].description.cache_parts)
    return ELEMENT_BYTES[wide] * sequences * context_tokens * elements


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of torch's kernels a layer runs."""

    backend: str = ""
    """Backend of attention, one of `kernels.attention.BACKENDS`."""
    experts: str = SEPARATE
    """How experts are multiplied."""


def choices(layer: Layer, able: Abilities) -> Iterator[Choice]:
    """Yield the kernels worth trying for a layer on a device: the quickest is measured, as in the calibration.

    Parameters
    ----------
    layer : of a model
    able : what the device can do
    """
    if not able.is_card:
        yield Choice()
        return
    grouped = layer.experts is not None and can_group(able, {})
    for backend in BACKENDS:
        yield Choice(backend, GROUPED if grouped else SEPARATE)


@dataclass(frozen=True, slots=True)
class RealLayer:
    """Weights of one layer on a device."""

    layer: Layer
    weights: Mapping[str, torch.Tensor]
    """Transposed matrices by the name of the projection."""
    experts: tuple[torch.Tensor, torch.Tensor] | None
    absorbed: tuple[torch.Tensor, torch.Tensor] | None
    """Key and value expansion per head, of latent attention."""
    choice: Choice = Choice()
    routings: dict[int, Routing] = field(default_factory=dict)
    """Routing that the weights decide, by rows, read back once. A CUDA graph cannot read it."""

    def norm(self, values: torch.Tensor) -> torch.Tensor:
        """Return normalised values."""
        return functional.layer_norm(values, (values.shape[-1],))

    def feed_forward(self, residual: torch.Tensor) -> torch.Tensor:
        """Return the residual after the second half of the layer."""
        normed = self.norm(residual)
        result = residual
        if self.experts is not None and self.layer.experts is not None:
            scores = torch.mm(normed, self.weights["router"]).float()
            result = result + self._routed(normed, scores, self.experts, self.layer.experts.experts_per_token)
        for prefix in ("", "shared_"):
            if f"{prefix}down" in self.weights:
                result = torch.addmm(result, self._activated(normed, prefix), self.weights[f"{prefix}down"])
        return result

    def _routed(
        self,
        normed: torch.Tensor,
        scores: torch.Tensor,
        experts: tuple[torch.Tensor, torch.Tensor],
        chosen: int,
    ) -> torch.Tensor:
        rows = scores.shape[0]
        if self.choice.experts != GROUPED and rows not in self.routings:
            self.routings[rows] = read_routing(scores, chosen)
        known = self.routings.get(rows)
        return routed_experts(normed, scores, *experts, chosen, way=self.choice.experts, routing=known)

    def _activated(self, normed: torch.Tensor, prefix: str) -> torch.Tensor:
        if f"{prefix}gate_up" in self.weights:
            return functional.glu(torch.mm(normed, self.weights[f"{prefix}gate_up"]))
        return functional.gelu(torch.mm(normed, self.weights[f"{prefix}up"]))

    def prefill(self, residual: torch.Tensor, sequences: int) -> torch.Tensor:
        """Return the residual of all tokens of `sequences` equal prompts."""
        mixer, normed = self.layer.mixers[0], self.norm(residual)
        if isinstance(mixer, LatentAttention):
            mixed = self._latent_prefill(mixer, normed, sequences)
        else:
            assert isinstance(mixer, Attention)
            mixed = self._prefill(mixer, normed, sequences)
        return self.feed_forward(torch.addmm(residual, mixed, self.weights["o"]))

    def decode(self, residual: torch.Tensor, cache: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the residual of one new token of every sequence whose cache is given."""
        mixer, normed = self.layer.mixers[0], self.norm(residual)
        if isinstance(mixer, LatentAttention):
            mixed = self._latent_decode(mixer, normed, cache[0])
        else:
            assert isinstance(mixer, Attention)
            mixed = self._decode(mixer, normed, cache)
        return self.feed_forward(torch.addmm(residual, mixed, self.weights["o"]))

    def _parts(
        self, mixer: Attention, normed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return rotated queries and keys, and values, of every token."""
        fused = torch.mm(normed, self.weights["qkv"])
        queries, keys = mixer.query_heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
        values = mixer.kv_heads * mixer.value_head_dim
        rotated = fused[:, : queries + keys] * fused[:1, : queries + keys]
        return rotated[:, :queries], rotated[:, queries:], fused[:, queries + keys : queries + keys + values]

    def _prefill(self, mixer: Attention, normed: torch.Tensor, sequences: int) -> torch.Tensor:
        query, key, value = self._parts(mixer, normed)

        def heads(values: torch.Tensor, count: int) -> torch.Tensor:
            return values.reshape(sequences, -1, count, values.shape[-1] // count).transpose(1, 2)

        mixed = attention(
            heads(query, mixer.query_heads),
            heads(key, mixer.kv_heads),
            heads(value, mixer.kv_heads),
            causal=True,
            backend=self.choice.backend,
        )
        return mixed.transpose(1, 2).reshape(normed.shape[0], -1)

    def _decode(
        self, mixer: Attention, normed: torch.Tensor, cache: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        query, key, value = self._parts(mixer, normed)
        keys, values = cache
        sequences = normed.shape[0]
        keys[:, :, -1] = key.reshape(sequences, mixer.kv_heads, -1)
        values[:, :, -1] = value.reshape(sequences, mixer.kv_heads, -1)
        folded = query.reshape(sequences, mixer.query_heads, 1, -1)
        mixed = attention(folded, keys, values, causal=False, backend=self.choice.backend)
        return mixed.reshape(sequences, -1)

    def _latent_query(self, mixer: LatentAttention, normed: torch.Tensor) -> torch.Tensor:
        name = "q" if "q" in self.weights else "q_b"
        inputs = normed if name == "q" else self.norm(torch.mm(normed, self.weights["q_a"]))
        query = torch.mm(inputs, self.weights[name])
        return (query * query[:1]).reshape(normed.shape[0], mixer.query_heads, -1)

    def _latent_prefill(self, mixer: LatentAttention, normed: torch.Tensor, sequences: int) -> torch.Tensor:
        query = self._latent_query(mixer, normed)
        latent = torch.mm(normed, self.weights["kv_a"])
        rank, nope = mixer.kv_lora_rank, mixer.nope_head_dim
        expanded = torch.mm(latent[:, :rank], self.weights["kv_b"]).reshape(
            normed.shape[0], mixer.query_heads, -1
        )
        shared = latent[:, None, rank:].expand(-1, mixer.query_heads, -1)
        key = torch.cat((expanded[..., :nope], shared), dim=-1)

        def heads(values: torch.Tensor) -> torch.Tensor:
            return values.reshape(sequences, -1, *values.shape[1:]).transpose(1, 2)

        mixed = expanded_attention(heads(query), heads(key), heads(expanded[..., nope:]), self.choice.backend)
        return mixed.transpose(1, 2).reshape(normed.shape[0], -1)

    def _latent_decode(
        self, mixer: LatentAttention, normed: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        assert self.absorbed is not None
        query = self._latent_query(mixer, normed)
        cache[:, -1] = torch.mm(normed, self.weights["kv_a"])
        nope = mixer.nope_head_dim
        folded = torch.bmm(query[..., :nope].transpose(0, 1), self.absorbed[0]).transpose(0, 1)
        fused = self.choice.backend == "sdpa efficient"
        attended = folded_attention if fused else absorbed_attention
        latent = attended(torch.cat((folded, query[..., nope:]), dim=-1), cache, mixer.kv_lora_rank)
        return (
            torch.bmm(latent.transpose(0, 1), self.absorbed[1]).transpose(0, 1).reshape(normed.shape[0], -1)
        )

    def caches(
        self, sequences: int, context_tokens: int, device: torch.device, wide: str = "bf16"
    ) -> tuple[torch.Tensor, ...]:
        """Return the filled caches of `sequences` sequences."""
        mixer = self.layer.mixers[0]
        if isinstance(mixer, LatentAttention):
            width = mixer.kv_lora_rank + mixer.rope_head_dim
            return (random_operand((sequences, context_tokens, width), wide, device),)
        assert isinstance(mixer, Attention)
        widths = (mixer.head_dim, mixer.value_head_dim)
        sizes = [(sequences, mixer.kv_heads, context_tokens, width) for width in widths]
        return tuple(random_operand(size, wide, device) for size in sizes)


def built(layer: Layer, device: torch.device, wide: str = "bf16") -> RealLayer:
    """Return the layer with random weights on a device.

    Parameters
    ----------
    layer : of a model
    device : where
    wide : dtype of everything

    Returns
    -------
    the layer; its weights are scaled so that values stay finite
    """
    why = refusal(layer)
    if why:
        raise InputError(f"this layer cannot be built: {why}")

    def matrix(inputs: int, outputs: int) -> torch.Tensor:
        return random_operand((outputs, inputs), wide, device).mul_(inputs**-0.5).t()

    weights = {p.name: matrix(p.inputs, p.outputs) for p in layer.projections if p.matmul}
    experts = None
    if layer.experts:
        sizes, width = layer.experts, layer.experts.inputs
        both = (2 if sizes.gated else 1) * sizes.intermediate_size
        experts = (
            random_operand((sizes.experts, width, both), wide, device).mul_(width**-0.5),
            random_operand((sizes.experts, sizes.intermediate_size, width), wide, device).mul_(
                sizes.intermediate_size**-0.5
            ),
        )
    absorbed = None
    mixer = layer.mixers[0]
    if isinstance(mixer, LatentAttention):
        heads, rank = mixer.query_heads, mixer.kv_lora_rank
        absorbed = (
            random_operand((heads, mixer.nope_head_dim, rank), wide, device).mul_(mixer.nope_head_dim**-0.5),
            random_operand((heads, rank, mixer.value_head_dim), wide, device).mul_(rank**-0.5),
        )
    return RealLayer(layer, weights, experts, absorbed)
