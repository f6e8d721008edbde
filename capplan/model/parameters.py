"""Parameters and weight bytes: sums over the layers of a network, whole or on one rank."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from capplan.model.network import Experts, Layer, Network, Projection, TensorClass, layer_counts
from capplan.model.sharding import Sharding, rank_inputs, rank_outputs
from capplan.model.weight_format import FORMATS
from capplan.numbers import Array, Number

Piece = tuple[TensorClass, str, int]
"""Tensor class, weight format, elements."""


def parameters(network: Network) -> int:
    """Return the parameters of the network, as the reference implementation counts them.

        P = embedding + layers + final norm + LM head (not where tied) + vision + other

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

    Parameters
    ----------
    layer : one block

    Returns
    -------
    [-]

    Examples
    --------
    >>> layer_parameters(Layer((), (Projection("up", "ffn", 8, 16, "columns"),), norm_parameters=8))
    136
    """
    return sum(elements for _, _, elements in _layer_pieces(layer, "bf16"))


def active_parameters(network: Network, *, embedding: bool = False) -> int:
    """Return the parameters that are multiplied or added for one generated token.

        A = layers without routed experts + k of E experts per layer + final norm + LM head

    Counted: attention, dense and shared feed-forward, router, norms, state tensors, the LM head (tied or
    not), and experts_per_token of the routed experts. Not counted: the token embedding, of which one row
    is looked up; vision towers; multi-token-prediction layers. Model cards often add the embedding.

    Parameters
    ----------
    network : the model
    embedding : count the whole token embedding too, as model cards that quote "active" often do

    Returns
    -------
    [-]
        A

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> layer = Layer((), (Projection("router", "router", 8, 4, "none"),), Experts(4, 2, 8, 16))
    >>> active_parameters(Network("n", "t", 8, 10, (layer,), head, False, 80))
    880

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 2.
    """
    layers = sum(count * _active_of_layer(layer) for layer, count in layer_counts(network))
    total = layers + network.final_norm_parameters + network.lm_head.parameters
    if embedding:
        total += network.embedding_parameters - (
            network.lm_head.inputs * network.lm_head.outputs if network.tied_embeddings else 0
        )
    return total


def _active_of_layer(layer: Layer) -> int:
    matmuls = sum(projection.parameters for projection in layer.projections if projection.matmul)
    experts = 0
    if layer.experts is not None:
        experts = layer.experts.experts_per_token * layer.experts.parameters_per_expert
    rest = layer.norm_parameters + layer.state_parameters + layer.other_active_parameters
    return matmuls + experts + rest


def weight_elements_by_class(network: Network, *, mtp: bool = False) -> dict[TensorClass, int]:
    """Return the parameters of each tensor class.

    Parameters
    ----------
    network : the model
    mtp : count the multi-token-prediction layers too

    Returns
    -------
    elements [-] by tensor class; the sum is `parameters`

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> weight_elements_by_class(Network("n", "t", 8, 10, (), head, False, 80))
    {'embedding': 80, 'lm_head': 80}
    """
    elements: Counter[TensorClass] = Counter()
    for tensor_class, _, count in _pieces(network, mtp=mtp):
        elements[tensor_class] += count
    return dict(elements)


def weight_bytes_by_class(network: Network, *, mtp: bool = False) -> dict[TensorClass, float]:
    """Return the weight bytes of each tensor class, scales of quantised matrices included.

        bytes = sum over tensors of elements x bytes per element of their format

    Parameters
    ----------
    network : the model
    mtp : count the multi-token-prediction layers too

    Returns
    -------
    [B] by tensor class

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> weight_bytes_by_class(Network("n", "t", 8, 10, (), head, False, 80))
    {'embedding': 160.0, 'lm_head': 160.0}

    References
    ----------
    Hugging Face safetensors, format description: https://github.com/huggingface/safetensors.
    """
    size: dict[TensorClass, float] = {}
    for tensor_class, name, count in _pieces(network, mtp=mtp):
        size[tensor_class] = size.get(tensor_class, 0.0) + count * FORMATS[name].bytes_per_element
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
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> weight_bytes(Network("n", "t", 8, 10, (), head, False, 80))
    320.0
    """
    return sum(weight_bytes_by_class(network, mtp=mtp).values())


def _pieces(network: Network, *, mtp: bool) -> Iterable[Piece]:
    plain = network.activation_format
    yield "embedding", network.embedding_format, network.embedding_parameters
    for layer, count in layer_counts(network):
        for tensor_class, name, elements in _layer_pieces(layer, plain):
            yield tensor_class, name, elements * count
    if network.final_norm_parameters:
        yield "norm", plain, network.final_norm_parameters
    head = network.lm_head
    if not network.tied_embeddings:
        yield "lm_head", head.weight_format, head.inputs * head.outputs
    if head.bias:
        yield "lm_head", plain, head.bias
    if network.vision_parameters:
        yield "vision", network.vision_format, network.vision_parameters
    if network.other_parameters:
        yield "other", plain, network.other_parameters
    if mtp and network.mtp_parameters:
        experts = network.mtp_experts.parameters if network.mtp_experts else 0
        if network.mtp_experts:
            yield "mtp", network.mtp_experts.weight_format, experts
        yield "mtp", plain, network.mtp_parameters - experts


def _layer_pieces(layer: Layer, plain: str) -> Iterable[Piece]:
    for projection in layer.projections:
        if projection.held:
            yield projection.tensor_class, projection.weight_format, projection.inputs * projection.outputs
            if projection.bias:
                yield projection.tensor_class, plain, projection.bias
    if layer.experts is not None:
        bias = layer.experts.experts * layer.experts.bias
        yield "expert", layer.experts.weight_format, layer.experts.parameters - bias
        if bias:
            yield "expert", plain, bias
    if layer.norm_parameters:
        yield "norm", plain, layer.norm_parameters
    if layer.state_parameters:
        yield "state", plain, layer.state_parameters
    if layer.other_parameters:
        yield "other", plain, layer.other_parameters


def weight_bytes_per_rank(network: Network, sharding: Sharding) -> Number:
    """Return the weight bytes of the fullest device of a replica.

        W = max over pipeline stages of (embedding on the first + layers of the stage + head on the last)

    Attention and dense matrices are cut over the tensor-parallel ranks (KV heads replicated once ranks
    outnumber them), experts over tensor x data ranks, embedding and LM head by vocabulary; norms, routers
    and matrices with split "none" are on every rank. With one stage a tied LM head is held once, with
    several the first and the last stage hold a copy each.

    Parameters
    ----------
    network : the model
    sharding : [-]
        parallelism, numbers or arrays over plans

    Returns
    -------
    [B]
        W; without multi-token-prediction layers, which are loaded for speculative decoding only

    Examples
    --------
    >>> head = Projection("lm_head", "lm_head", 8, 10, "columns")
    >>> network = Network("n", "t", 8, 10, (), head, False, 80)
    >>> weight_bytes_per_rank(network, Sharding(tensor=2.0))
    160.0
    >>> weight_bytes_per_rank(network, Sharding(pipeline=2.0))
    160.0

    References
    ----------
    Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3; vLLM `get_pp_indices`.
    """
    tensor, expert, data, pipeline = np.broadcast_arrays(
        *(
            np.asarray(x, dtype=np.float64)
            for x in (sharding.tensor, sharding.expert, sharding.data, sharding.pipeline)
        )
    )
    first, last, tied = _end_bytes_per_rank(network, tensor)
    distinct = layer_counts(network)
    kinds = {layer: kind for kind, (layer, _) in enumerate(distinct)}
    per_layer = [
        _layer_bytes_per_rank(layer, network.activation_format, tensor, expert, data) for layer, _ in distinct
    ]
    order = np.asarray([kinds[layer] for layer in network.layers], dtype=np.intp)
    fullest: Array = np.zeros(tensor.shape)
    for stages in np.unique(pipeline):
        here = pipeline == stages
        held = np.zeros(int(here.sum()))
        edges = stage_edges(len(order), int(stages))
        for stage, (start, end) in enumerate(edges):
            counts = np.bincount(order[start:end], minlength=len(distinct))
            size = np.zeros_like(held)
            for count, layer_bytes in zip(counts, per_layer, strict=True):
                size = size + count * layer_bytes[here]
            size = size + (first[here] if stage == 0 else 0.0)
            size = size + (last[here] if stage == len(edges) - 1 else 0.0)
            size = size - (tied[here] if len(edges) == 1 else 0.0)
            held = np.maximum(held, size)
        fullest[here] = held
    return float(fullest) if fullest.ndim == 0 else fullest


def stage_edges(layers: int, stages: int) -> list[tuple[int, int]]:
    """Return first and one-past-last layer of each pipeline stage.

    Layers that do not divide evenly go to the stages before the last, from behind: the last holds the head.

    Parameters
    ----------
    layers : [-]
    stages : [-]

    Returns
    -------
    pairs of layer indices

    Examples
    --------
    >>> stage_edges(126, 4)
    [(0, 31), (31, 63), (63, 95), (95, 126)]

    References
    ----------
    vLLM, vllm/distributed/utils.py, `get_pp_indices`.
    """
    sizes = [layers // stages] * stages
    for i in range(layers % stages):
        sizes[(stages - 2 - i) % stages] += 1
    ends = np.cumsum(sizes).tolist()
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _end_bytes_per_rank(network: Network, tensor: Array) -> tuple[Array, Array, Array]:
    """Return the bytes of the first stage's and the last stage's own tensors, and what tying saves on one stage."""
    plain = FORMATS[network.activation_format].bytes_per_element
    embedding = network.embedding_parameters * FORMATS[network.embedding_format].bytes_per_element
    vision = network.vision_parameters * FORMATS[network.vision_format].bytes_per_element
    head_format = network.embedding_format if network.tied_embeddings else network.lm_head.weight_format
    matrix = network.lm_head.inputs * network.lm_head.outputs * FORMATS[head_format].bytes_per_element
    first = (embedding + vision) / tensor + network.other_parameters * plain
    last = (matrix + network.lm_head.bias * plain) / tensor + network.final_norm_parameters * plain
    return first, last, (matrix / tensor if network.tied_embeddings else 0.0 * tensor)


def _layer_bytes_per_rank(
    layer: Layer, plain_format: str, tensor: Array, expert: Array, data: Array
) -> Array:
    plain = FORMATS[plain_format].bytes_per_element
    size = np.zeros(tensor.shape)
    for projection in layer.projections:
        if projection.held:
            size = size + _projection_bytes_per_rank(projection, tensor, plain)
    if layer.experts is not None:
        size = size + expert_bytes_per_rank(layer.experts, tensor * data, expert, plain)
    size = size + (layer.norm_parameters + layer.other_parameters) * plain
    return size + layer.state_parameters * plain / tensor


def _projection_bytes_per_rank(projection: Projection, tensor: Array, plain: float) -> Number:
    size = FORMATS[projection.weight_format].bytes_per_element
    outputs = rank_outputs(projection, tensor)
    matrix = rank_inputs(projection, tensor) * outputs * size
    return matrix + projection.bias * (outputs / projection.outputs) * plain


def expert_bytes_per_rank(experts: Experts, ranks: Number, expert: Number, plain: float = 2.0) -> Number:
    """Return the bytes of routed experts on one rank.

        W = ceil(E / ep) e / (r / ep)

    Parameters
    ----------
    experts : the routed experts of a layer (E of them, e bytes each)
    ranks : [-]
        r, tensor x data ranks
    expert : [-]
        ep, groups that the experts are dealt out to
    plain : [B]
        bytes of one bias element

    Returns
    -------
    [B]
        W

    Examples
    --------
    >>> expert_bytes_per_rank(Experts(4, 2, 8, 16), ranks=4.0, expert=4.0)
    np.float64(768.0)

    References
    ----------
    vLLM documentation, "Expert Parallel Deployment": https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment.html.
    """
    matrix = (experts.parameters_per_expert - experts.bias) * FORMATS[experts.weight_format].bytes_per_element
    held: Number = np.ceil(experts.experts / expert) * (matrix + experts.bias * plain) * expert / ranks
    return held
