"""Parameters and weight bytes of a network, whole or on one rank, its layer that predicts further tokens, and its key figures."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from capplan.model.network import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Layer,
    Network,
    Projection,
    TensorClass,
    layer_counts,
)
from capplan.model.sharding import weight_bytes_per_rank
from capplan.model.weight_format import FORMATS, in_weight_format

__all__ = [
    "active_parameters",
    "layer_parameters",
    "parameters",
    "weight_bytes",
    "weight_bytes_by_class",
    "weight_bytes_per_rank",
    "weight_elements_by_class",
]

Piece = tuple[TensorClass, str, int, int]
"""Tensor class, weight format, elements, outputs of matrices (0 for vectors, whose formats have no scales)."""


def parameters(network: Network) -> int:
    """Return the parameters of the network, as the reference implementation counts them.

        P = embedding + layers + final norm + pooler + LM head (not where tied) + vision + other

    Multi-token-prediction layers are left out: checkpoints hold them, the served model does not.

    Parameters
    ----------
    network : the model

    Returns
    -------
    [-]
        P; a tied LM head is counted once

    Examples
    --------
    >>> from capplan.model.network import Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((), (Projection("up", "ffn", 8, 16, "columns"),), norm_parameters=8)
    >>> parameters(Network("n", "t", 8, 10, (layer,) * 2, head, True, 80, final_norm_parameters=8))
    360

    References
    ----------
    Hugging Face transformers, `PreTrainedModel.num_parameters`.
    """
    return sum(weight_elements_by_class(network).values())


def layer_parameters(layer: Layer) -> int:
    """Return the parameters that one layer holds.

    Returns
    -------
    [-]

    Examples
    --------
    >>> from capplan.model.network import Projection
    >>> layer_parameters(Layer((), (Projection("up", "ffn", 8, 16, "columns"),), norm_parameters=8))
    136
    """
    return sum(elements for _, _, elements, _ in _layer_pieces(layer, "bf16"))


def active_parameters(network: Network) -> int:
    """Return the parameters that are multiplied or added for one generated token.

        A = layers without routed experts + k of E experts per layer + final norm + LM head

    Counted: attention, dense and shared feed-forward, router, norms, state tensors, the LM head (tied or
    not), and experts_per_token of the routed experts. Not counted: the token embedding, of which one row
    is looked up; vision towers; multi-token-prediction layers. Model cards often add the embedding.

    Parameters
    ----------
    network : the model

    Returns
    -------
    [-]
        A

    Examples
    --------
    >>> from capplan.model.network import Experts, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((), (Projection("router", "router", 8, 4, "none"),), Experts(4, 2, 8, 16))
    >>> active_parameters(Network("n", "t", 8, 10, (layer,), head, False, 80))
    880

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 2.
    """
    layers = sum(count * _active_of_layer(layer) for layer, count in layer_counts(network))
    ends = network.final_norm_parameters + network.lm_head.parameters
    return layers + ends + (network.pooler.parameters if network.pooler else 0)


def _active_of_layer(layer: Layer) -> int:
    matmuls = sum(projection.parameters for projection in layer.projections if projection.matmul)
    experts = 0
    if layer.experts is not None:
        experts = layer.experts.experts_per_token * layer.experts.parameters_per_expert
    rest = layer.norm_parameters + layer.state_parameters + layer.other_active_parameters
    return matmuls + experts + rest


def weight_elements_by_class(network: Network) -> dict[TensorClass, int]:
    """Return the parameters of each tensor class.

    Returns
    -------
    elements [-] by tensor class; the sum is `parameters`

    Examples
    --------
    >>> from capplan.model.network import Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> weight_elements_by_class(Network("n", "t", 8, 10, (), head, False, 80))
    {'embedding': 80, 'lm_head': 80}
    """
    elements: Counter[TensorClass] = Counter()
    for tensor_class, _, count, _ in _pieces(network, mtp=False):
        elements[tensor_class] += count
    return dict(elements)


def weight_bytes_by_class(network: Network, *, mtp: bool = False) -> dict[TensorClass, float]:
    """Return the weight bytes of each tensor class, scales of quantised matrices included.

        bytes = sum over tensors of elements x bytes per element + outputs x bytes per output of their format

    Parameters
    ----------
    network : the model
    mtp : count the multi-token-prediction layers too

    Returns
    -------
    [B] by tensor class

    Examples
    --------
    >>> from capplan.model.network import Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> weight_bytes_by_class(Network("n", "t", 8, 10, (), head, False, 80))
    {'embedding': 160.0, 'lm_head': 160.0}

    References
    ----------
    Hugging Face safetensors, format description: https://github.com/huggingface/safetensors.
    """
    size: dict[TensorClass, float] = {}
    for tensor_class, name, count, outputs in _pieces(network, mtp=mtp):
        held = float(FORMATS[name].matrix_bytes(count, outputs))
        size[tensor_class] = size.get(tensor_class, 0.0) + held
    return size


def weight_bytes(network: Network, *, mtp: bool = False) -> float:
    """Return the bytes of all weights, each tensor in its format; a tied LM head once.

    Parameters
    ----------
    network : the model
    mtp : count the multi-token-prediction layers too

    Returns
    -------
    [B]

    Examples
    --------
    >>> from capplan.model.network import Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> weight_bytes(Network("n", "t", 8, 10, (), head, False, 80))
    320.0
    """
    return sum(weight_bytes_by_class(network, mtp=mtp).values())


def _pieces(network: Network, *, mtp: bool) -> Iterable[Piece]:
    plain = network.plain_format
    yield "embedding", network.embedding_format, network.embedding_parameters, network.vocabulary_size
    for layer, count in layer_counts(network):
        for tensor_class, name, elements, outputs in _layer_pieces(layer, plain):
            yield tensor_class, name, elements * count, outputs * count
    if network.final_norm_parameters:
        yield "norm", plain, network.final_norm_parameters, 0
    if (pooler := network.pooler) is not None:
        yield "lm_head", pooler.weight_format, pooler.inputs * pooler.outputs, pooler.outputs
        yield "lm_head", plain, pooler.bias, 0
    head = network.lm_head
    if not network.tied_embeddings:
        yield "lm_head", head.weight_format, head.inputs * head.outputs, head.outputs
    if head.bias:
        yield "lm_head", plain, head.bias, 0
    if network.vision_parameters:
        yield "vision", network.vision_format, network.vision_parameters, 0
    if network.other_parameters:
        yield "other", plain, network.other_parameters, 0
    if mtp and network.mtp_parameters:
        held = network.mtp_experts
        if held:
            for name, elements, outputs in held.matrices:
                yield "mtp", name, held.experts * elements, held.experts * outputs
            yield "mtp", plain, held.experts * held.bias, 0
        yield "mtp", plain, network.mtp_parameters - (held.parameters if held else 0), 0


def _layer_pieces(layer: Layer, plain: str) -> Iterable[Piece]:
    for matrix in layer.projections:
        if matrix.owns_weights:
            elements = matrix.inputs * matrix.outputs
            yield matrix.tensor_class, matrix.weight_format, elements, matrix.outputs
            if matrix.bias:
                yield matrix.tensor_class, plain, matrix.bias, 0
    if layer.experts is not None:
        held = layer.experts
        bias = held.experts * held.bias
        for name, elements, outputs in held.matrices:
            yield "expert", name, held.experts * elements, held.experts * outputs
        if bias:
            yield "expert", plain, bias, 0
    vectors: tuple[tuple[TensorClass, int], ...] = (
        ("norm", layer.norm_parameters),
        ("state", layer.state_parameters),
        ("other", layer.other_parameters),
    )
    for tensor_class, elements in vectors:
        if elements:
            yield tensor_class, plain, elements, 0


_FEED_FORWARD = frozenset({"ffn", "shared_expert"})


def draft_layer(network: Network) -> Layer | None:
    """Return the last caching layer again, with the matrix that joins the last hidden state and the embedding of the new token.

    Where that layer has no feed-forward part of its own (Nemotron-H: a layer has one part), the last such layer is added.
    Matrices are in the dtype of the activations and experts in the format that the checkpoint stores those of its prediction layers in.

    Returns
    -------
    the layer; None where no layer has a KV cache

    References
    ----------
    vLLM 0.23, deepseek_mtp.py and nemotron_h_mtp.py: `eh_proj`, a whole decoder layer or one attention and one mixture-of-experts layer.

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> mlp = Projection("up_proj", "ffn", 8, 16, "columns")
    >>> layers = (Layer((Attention(2, 2, 4, 4),), ()), Layer((), (mlp,)), Layer((), ()))
    >>> [p.name for p in draft_layer(Network("n", "t", 8, 10, layers, head, True, 80)).projections]
    ['up_proj', 'eh_proj']
    """
    caching = next((layer for layer in reversed(network.layers) if _caches(layer)), None)
    if caching is None:
        return None
    size = network.hidden_size
    joined = Projection("eh_proj", "mtp", 2 * size, size, "none", weight_format=network.activation_format)
    feeding = caching
    if not _feeds_forward(caching):
        feeding = next(
            (layer for layer in reversed(network.layers) if not layer.mixers and _feeds_forward(layer)),
            caching,
        )
    apart = feeding is not caching
    layer = replace(
        caching,
        projections=(*caching.projections, *(feeding.projections if apart else ())),
        experts=feeding.experts,
        norm_parameters=caching.norm_parameters + (feeding.norm_parameters if apart else 0),
    )
    plain = in_weight_format(replace(network, layers=(layer,)), network.activation_format).layers[0]
    experts = plain.experts
    if experts is not None and network.mtp_experts is not None:
        experts = replace(network.mtp_experts, experts=experts.experts)
    return replace(plain, projections=(*plain.projections, joined), experts=experts)


def draft_layers_per_layer(network: Network, layer: Layer) -> float:
    """Return the bytes of all layers for multi-token prediction that a checkpoint has, per byte of `layer`.

    Parameters
    ----------
    network : with such layers
    layer : as `draft_layer` returns it

    Returns
    -------
    [-]
        3 where a model has three such layers, below 1 where its feed-forward part is smaller than in the other layers
    """
    held = weight_bytes_by_class(network, mtp=True).get("mtp", 0.0)
    alone = weight_bytes(replace(network, layers=(layer,))) - weight_bytes(replace(network, layers=()))
    return held / alone


def _caches(layer: Layer) -> bool:
    return any(isinstance(mixer, Attention | LatentAttention | CompressedAttention) for mixer in layer.mixers)


def _feeds_forward(layer: Layer) -> bool:
    return layer.experts is not None or any(p.tensor_class in _FEED_FORWARD for p in layer.projections)


def summary(network: Network) -> dict[str, Any]:
    """Return the figures of a network.

    Returns
    -------
    counts [-], weights [B] in the formats that the network holds: `parameters` as the reference implementation counts them, without layers for
    multi-token prediction; `active_parameters` are multiplied or added for one generated token, without the embedding lookup;
    `attention_layers` have softmax attention of any kind; `mixers` are counted by kind; `experts` of a layer that has them, 0 if none does

    Examples
    --------
    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((Attention(2, 1, 4, 4),), (Projection("qkv", "attention", 8, 16, "columns"),))
    >>> tiny = summary(Network("n", "t", 8, 10, (layer,) * 3, head, True, 80))
    >>> [tiny[name] for name in ("attention_layers", "mixers", "parameters", "weight_bytes")]
    [3, {'attention': 3}, 464, 928.0]
    """
    mixers: Counter[str] = Counter()
    attention_layers = 0
    for layer, count in layer_counts(network):
        descriptions = [mixer.description for mixer in layer.mixers]
        attention_layers += count * any(description.softmax for description in descriptions)
        for description in descriptions:
            mixers[description.name] += count
    routed = next((layer.experts for layer in network.layers if layer.experts), None)
    return {
        "model": network.name,
        "model_type": network.model_type,
        "layers": len(network.layers),
        "parameters": parameters(network),
        "active_parameters": active_parameters(network),
        "embedding_parameters": network.embedding_parameters,
        "mtp_parameters": network.mtp_parameters,
        "weight_bytes": float(weight_bytes(network)),
        "hidden_size": network.hidden_size,
        "vocabulary_size": network.vocabulary_size,
        "attention_layers": attention_layers,
        "mixers": dict(mixers),
        "experts": routed.experts if routed else 0,
        "experts_per_token": routed.experts_per_token if routed else 0,
        "max_context_tokens": network.max_context_tokens,
    }


LARGE_PARAMETERS = 1e11
"""Parameters from which a mixture counts as large whatever its attention (a choice): all published separate pools in the open data are of larger models."""


def is_large_mixture(network: Network) -> bool:
    """Return whether a model is one that operators serve with separate pools and experts over several servers.

    It has routed experts, and latent attention or LARGE_PARAMETERS: prompts and decode steps then want other layouts.

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.4, https://arxiv.org/abs/2412.19437.
    """
    return bool(network.routed_layers) and (
        bool(network.latent_layers) or parameters(network) >= LARGE_PARAMETERS
    )
