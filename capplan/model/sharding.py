"""How a network and its LoRA adapters are split over the devices of one replica, and the weight bytes of each."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from capplan.errors import InputError, Reason, Refusal
from capplan.model.mixers import Attention
from capplan.model.network import Adapters, Experts, Layer, Network, Projection, layer_counts
from capplan.model.weight_format import FORMATS
from capplan.numbers import Array, Number


@dataclass(frozen=True, slots=True)
class Sharding:
    """Parallelism of one replica; every field is a number or an array over plans.

    Devices of a replica = tensor x data x pipeline. Attention is split over the `tensor` ranks of each of the
    `data` groups (attention data parallelism: every group serves different sequences). Experts occupy all
    tensor x data ranks: whole experts are distributed over `expert` groups, and each is split over the
    tensor x data / expert ranks of its group. `expert` = 1 splits every expert over all ranks.
    """

    tensor: Number = 1.0
    pipeline: Number = 1.0
    expert: Number = 1.0
    data: Number = 1.0
    context: Number = 1.0
    """Ranks of an attention group that share out the cached tokens of each sequence (vLLM's decode context parallelism), no devices of their own."""

    @property
    def devices(self) -> Number:
        """Devices of one replica."""
        return self.tensor * self.data * self.pipeline

    @property
    def spreads_experts(self) -> bool:
        """Whether whole experts are spread over the ranks of one plan, whose fields are numbers."""
        return bool(self.expert > 1.0)


WHOLE = Sharding()
"""One device."""


def rank_inputs(projection: Projection, tensor_parallel: Number) -> Number:
    """Return k of a matmul on one tensor-parallel rank.

        k_rank = k / tp if the matrix is split by rows, else k

    Parameters
    ----------
    projection : the matrix
    tensor_parallel : [-]
        tp, ranks of one attention group

    Returns
    -------
    [elements]
        k on the rank

    Examples
    --------
    >>> rank_inputs(Projection("o", "attention", 64, 32, "rows"), 4.0)
    16.0

    References
    ----------
    Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3.
    """
    return projection.inputs / tensor_parallel if projection.split == "rows" else float(projection.inputs)


def rank_outputs(projection: Projection, tensor_parallel: Number) -> Number:
    """Return n of a matmul on one tensor-parallel rank; KV heads are replicated once ranks outnumber them.

        n_rank = (n - n_kv) / tp + n_kv max(1 / tp, 1 / kv_heads)     if split by columns, else n

    Parameters
    ----------
    projection : the matrix
    tensor_parallel : [-]
        tp, ranks of one attention group

    Returns
    -------
    [elements]
        n on the rank

    Examples
    --------
    Eight query heads and two KV heads of width one, on four ranks: two query heads, one key, one value.

    >>> rank_outputs(Projection("qkv", "attention", 8, 12, "columns", kv_outputs=4, kv_heads=2), 4.0)
    np.float64(4.0)

    References
    ----------
    Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3; vLLM QKVParallelLinear replicates KV heads.
    """
    if projection.split != "columns":
        return float(projection.outputs)
    unshared = (projection.outputs - projection.kv_outputs) / tensor_parallel
    if not projection.kv_outputs:
        return unshared
    share = np.maximum(1.0 / tensor_parallel, 1.0 / projection.kv_heads)
    shared: Number = unshared + projection.kv_outputs * share
    return shared


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
    towers = vision if network.whole_towers else vision / tensor
    first = embedding / tensor + towers + network.other_parameters * plain
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
        if projection.owns_weights:
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
    held: Number = expert_slots(experts.experts, expert) / expert * (divided * expert / ranks + repeated)
    return held


def expert_slots(experts: Number, expert: Number) -> Number:
    """Return how many experts of a layer the ranks hold together: redundant copies fill all ranks alike.

        S = ceil(E / ep) ep

    Parameters
    ----------
    experts : [-]
        E, of the layer
    expert : [-]
        ep, expert-parallel groups

    Returns
    -------
    [-]
        S

    Examples
    --------
    256 experts on 72 ranks, four on each: 32 are redundant.

    >>> float(expert_slots(256, 72.0))
    288.0

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section 3.4 (redundant experts).
    """
    slots: Number = np.ceil(experts / np.asarray(expert)) * expert
    return slots


_MOST_RANKS = 64


def head_reason(network: Network, tensor_parallel: int) -> Reason | None:
    """Return why the heads of the network cannot be split over this many ranks, or None if they can.

    Query heads must divide evenly; KV heads must divide or replicate evenly; groups of heads that share an output matrix
    must stay whole.

    Examples
    --------
    12 query heads and 4 KV heads on 8 ranks:

    >>> from capplan.model.network import Attention, Layer, Projection
    >>> head = Projection("lm_head", "lm_head", 64, 1000, "columns")
    >>> network = Network("n", "t", 64, 1000, (Layer((Attention(12, 4, 64, 64),), ()),), head, True, 64000)
    >>> head_reason(network, 4), head_reason(network, 8).words
    (None, '12 heads do not divide over tensor-parallel 8')
    """
    divided = (
        part
        for layer, _ in layer_counts(network)
        for mixer in layer.mixers
        for part in mixer.description.heads
    )
    for heads in dict.fromkeys(divided):
        if heads.count % tensor_parallel == 0:
            continue
        over = f"over tensor-parallel {tensor_parallel}"
        if not heads.replicable:
            return Reason(Refusal.HEADS, f"{heads.count} {heads.name} do not divide {over}")
        if tensor_parallel % heads.count:
            return Reason(Refusal.HEADS, f"{heads.count} {heads.name} neither divide nor replicate {over}")
    return None


def refuse_heads(network: Network, tensor_parallel: int, flag: str = "--tensor-parallel") -> None:
    """Raise InputError for a tensor parallelism that the heads cannot be split over."""
    reason = head_reason(network, tensor_parallel)
    if reason:
        allowed = listed_degrees(lambda n: head_reason(network, n) is None, _MOST_RANKS)
        raise InputError(f"{flag} {tensor_parallel}: {network.name}: {reason.words}\n  allowed: {allowed}")


def listed_degrees(legal: Callable[[int], bool], most: int) -> str:
    """Return the degrees up to the most that are legal, as a list in words."""
    return ", ".join(str(n) for n in range(1, most + 1) if legal(n))


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
        if projection.tensor_class not in _ADAPTED or not (projection.matmul and projection.owns_weights):
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
