"""Weight bytes of one device: how the parameters of a network are split over the ranks of a replica."""

import numpy as np

from capplan.model.network import Experts, Layer, Network, Projection, layer_counts
from capplan.model.sharding import Sharding, rank_inputs, rank_outputs
from capplan.model.weight_format import FORMATS
from capplan.numbers import Array, Number


def weight_bytes_per_rank(network: Network, sharding: Sharding) -> Number:
    """Return the weight bytes on one rank, of a whole network or of one pipeline stage.

        W = embedding + layers + head - head where tied

    Attention and dense matrices are split over the tensor-parallel ranks (KV heads replicated once ranks
    outnumber them), experts over tensor x data ranks, embedding and LM head by vocabulary; norms, routers
    and matrices with split "none" are on every rank, and so are the scales of the outputs of a matrix that is
    split by its inputs. A tied LM head is held once.

    Parameters
    ----------
    network : the whole model, or the layers of one pipeline stage
    sharding : [-]
        parallelism, numbers or arrays over plans; the pipeline degree is ignored: pass the network of one stage

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

    References
    ----------
    Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3.
    """
    tensor, expert, data = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (sharding.tensor, sharding.expert, sharding.data))
    )
    first, last, tied = _end_bytes_per_rank(network, tensor)
    layers: Array = sum(
        (
            count * _layer_bytes_per_rank(layer, network.plain_format, tensor, expert, data)
            for layer, count in layer_counts(network)
        ),
        first * 0.0,
    )
    size = layers + first + last - tied
    return float(size) if size.ndim == 0 else size


def _end_bytes_per_rank(network: Network, tensor: Array) -> tuple[Array, Array, Array]:
    """Return the bytes before the layers, the bytes after them, and what tying saves."""
    plain = FORMATS[network.plain_format].bytes_per_element
    embedding = network.embedding_parameters * FORMATS[network.embedding_format].bytes_per_element
    vision = network.vision_parameters * FORMATS[network.vision_format].bytes_per_element
    head_format = network.embedding_format if network.tied_embeddings else network.lm_head.weight_format
    head = network.lm_head
    matrix = FORMATS[head_format].matrix_bytes(head.inputs * head.outputs, head.outputs)
    first = (embedding + vision) / tensor + network.other_parameters * plain
    last = (matrix + head.bias * plain) / tensor + network.final_norm_parameters * plain
    if network.pooler is not None:
        last = last + _projection_bytes_per_rank(network.pooler, tensor, plain)
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
    whole = layer.norm_parameters - layer.split_norm_parameters + layer.other_parameters
    return size + (whole + (layer.split_norm_parameters + layer.state_parameters) / tensor) * plain


def _projection_bytes_per_rank(projection: Projection, tensor: Array, plain: float) -> Number:
    outputs = rank_outputs(projection, tensor)
    elements = rank_inputs(projection, tensor) * outputs
    matrix = FORMATS[projection.weight_format].matrix_bytes(elements, outputs)
    return matrix + projection.bias * (outputs / projection.outputs) * plain


def expert_bytes_per_rank(experts: Experts, ranks: Number, expert: Number, plain: float = 2.0) -> Number:
    """Return the bytes of routed experts on one rank.

        W = ceil(E / ep) (e / (r / ep) + s)

    Parameters
    ----------
    experts : the routed experts of a layer (E of them, e bytes each; s: scales of the outputs of a matrix that is
        split by its inputs, which all ranks of a group hold)
    ranks : [-]
        r, tensor x data ranks
    expert : [-]
        ep, expert-parallel groups, each of which holds whole experts
    plain : [B]
        bytes of one bias element

    Returns
    -------
    [B]
        W

    Examples
    --------
    Each of four ranks holds one expert of three matrices of 8 x 16, in bf16:

    >>> expert_bytes_per_rank(Experts(4, 2, 8, 16), ranks=4.0, expert=4.0)
    np.float64(768.0)

    References
    ----------
    vLLM documentation, "Expert Parallel Deployment": https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment.html.
    """
    (into, elements, outputs), (out_of, others, repeats) = experts.matrices
    divided = FORMATS[into].matrix_bytes(elements, outputs) + FORMATS[out_of].matrix_bytes(others, 0)
    divided = divided + experts.bias * plain
    repeated = FORMATS[out_of].matrix_bytes(0, repeats)
    held: Number = np.ceil(experts.experts / expert) * (divided * expert / ranks + repeated)
    return held
