"""LoRA adapters: the low-rank matrices next to those of a network, what one of them holds, and how engines split them over ranks."""

from dataclasses import replace

from capplan.model.mixers import Attention
from capplan.model.network import Adapters, Layer, Network, Projection, layer_counts
from capplan.model.sharding import Sharding, rank_inputs, rank_outputs
from capplan.model.weight_format import FORMATS
from capplan.numbers import Number

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Every matrix of attention and feed-forward, as adapters name them."""
_ADAPTED = frozenset({"attention", "ffn", "shared_expert"})
"""Classes of matrices that adapters stand next to; routed experts, router, embedding and LM head stay as they are."""


def adapter_elements(inputs: Number, outputs: Number, rank: Number, parts: Number = 1.0) -> Number:
    """Return the elements of the two low-rank matrices next to one matrix.

        e = r (p k + n)

    Parameters
    ----------
    inputs : [-]
        k of the matrix.
    outputs : [-]
        n of the matrix, of all its parts together.
    rank : [-]
        r.
    parts : [-]
        p, matrices that an engine holds as one, each with a low-rank matrix of its own for the same inputs: 3 for q, k and v.

    Returns
    -------
    [elements]
        e.

    Examples
    --------
    >>> adapter_elements(4096.0, 4096.0, 8.0)
    65536.0

    References
    ----------
    Hu et al. 2021, "LoRA", section 4.1, arXiv:2106.09685.
    """
    return rank * (parts * inputs + outputs)


def adapted_matrices(layer: Layer, modules: tuple[str, ...]) -> list[tuple[Projection, int]]:
    """Return the matrices of a layer that adapters stand next to, cut to their adapted outputs, each with its adapted parts.

    Examples
    --------
    Of one matrix for four heads of queries, two of keys and two of values, all as wide as one, queries and values only:

    >>> qkv = Projection("qkv", "attention", 8, 8, "columns", kv_outputs=4, kv_heads=2)
    >>> ((matrix, parts),) = adapted_matrices(Layer((Attention(4, 2, 1, 1),), (qkv,)), ("q_proj", "v_proj"))
    >>> matrix.outputs, matrix.kv_outputs, parts
    (6, 2, 2)
    """
    found = []
    for projection in layer.projections:
        if projection.tensor_class not in _ADAPTED or not (projection.matmul and projection.held):
            continue
        parts = {name: outputs for name, outputs in _parts(layer, projection).items() if name in modules}
        if parts:
            cached = sum(parts.get(name, 0) for name in ("k_proj", "v_proj"))
            cut = replace(projection, outputs=sum(parts.values()), kv_outputs=cached)
            found.append((cut, len(parts)))
    return found


def _parts(layer: Layer, projection: Projection) -> dict[str, int]:
    """Return the outputs of the matrices that a projection is made of, by the names that adapters give them."""
    if projection.name == "gate_up":
        return dict.fromkeys(("gate_proj", "up_proj"), projection.outputs // 2)
    if projection.name != "qkv":
        return {f"{projection.name}_proj": projection.outputs}
    mixer = next((item for item in layer.mixers if isinstance(item, Attention)), None)
    width = (mixer.head_dim, mixer.value_head_dim) if mixer else (1, 1)
    keys = projection.kv_outputs * width[0] // sum(width)
    values = projection.kv_outputs - keys
    return {
        "q_proj": projection.outputs - projection.kv_outputs,
        **({"k_proj": keys, "v_proj": values} if projection.kv_outputs else {}),
    }


def rank_elements(
    matrix: Projection, parts: int, adapters: Adapters, tensor: Number
) -> tuple[Number, Number, Number]:
    """Return the elements that one rank holds next to one matrix, and the widths that it reads and writes there.

    The matrix that shrinks is whole on every rank where the inputs are, the one that expands where the outputs are; fully
    sharded, both are split.

    Parameters
    ----------
    matrix, parts : as adapted
    adapters : their rank r
    tensor : [-]
        tensor-parallel ranks

    Returns
    -------
    elements [-]; inputs k and outputs n of the rank [-]

    Examples
    --------
    A matrix of 8 x 12 on four ranks: r (8 + 12 / 4), or r (8 + 12) / 4 fully sharded.

    >>> columns = Projection("up", "ffn", 8, 12, "columns")
    >>> [rank_elements(columns, 1, Adapters(1, 1, 2, ("up_proj",), full), 4.0)[0] for full in (False, True)]
    [22.0, 10.0]

    References
    ----------
    vLLM, `ColumnParallelLinearWithLoRA`, `RowParallelLinearWithLoRA`: https://docs.vllm.ai/en/latest/api/vllm/lora/layers.
    """
    inputs, outputs = rank_inputs(matrix, tensor), rank_outputs(matrix, tensor)
    split = matrix.split != "none" and adapters.fully_sharded
    shrink = adapters.rank * parts * inputs
    expand = adapters.rank * outputs
    if split and matrix.split == "columns":
        shrink = shrink / tensor
    if split and matrix.split == "rows":
        outputs = outputs / tensor
        expand = expand / tensor
    return shrink + expand, inputs, outputs


def network_adapter_elements(network: Network, adapters: Adapters) -> int:
    """Return the elements of one adapter of a whole network [-], as its file holds them."""
    whole = replace(adapters, fully_sharded=False)
    return int(
        sum(
            count * rank_elements(matrix, parts, whole, 1.0)[0]
            for layer, count in layer_counts(network)
            for matrix, parts in adapted_matrices(layer, adapters.modules)
        )
    )


def adapter_bytes_per_rank(network: Network, sharding: Sharding) -> Number:
    """Return the bytes of one adapter on one device, of a whole network or of one pipeline stage; 0 without adapters.

    Parameters
    ----------
    network : with its adapters
    sharding : [-]
        parallelism, numbers or arrays over plans

    Returns
    -------
    [B]
    """
    adapters = network.adapters
    if adapters is None:
        return 0.0
    size: Number = 0.0
    for layer, count in layer_counts(network):
        for matrix, parts in adapted_matrices(layer, adapters.modules):
            size = size + count * rank_elements(matrix, parts, adapters, sharding.tensor)[0]
    return size * FORMATS[adapters.format].bytes_per_element
