"""Work that depends on how many tokens a step holds: matmuls, experts, elementwise passes, collectives.

Every function takes the tokens of the whole replica and returns the cost on one device. Tokens of an
attention-data-parallel replica are spread evenly over its groups.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from capplan.model.images import ImageWork, Tower
from capplan.model.network import (
    CROSS_KV,
    CrossAttention,
    Experts,
    LatentAttention,
    Layer,
    LinearAttention,
    Network,
    Projection,
    layer_counts,
)
from capplan.model.sharding import Sharding, expert_slots, rank_inputs, rank_outputs
from capplan.model.weight_format import named_weight_format
from capplan.numbers import Number
from capplan.operators.attention import prefill_attention_flop, prefill_attention_time_s
from capplan.operators.collective import (
    all_gather_time_s,
    all_reduce_time_s,
    between_groups,
    reduce_scatter_time_s,
)
from capplan.operators.expert_exchange import (
    GROUPED_DOMAINS,
    ExchangeRates,
    exchange_bytes,
    exchange_time_s,
    exposed_exchange_s,
)
from capplan.operators.experts import busiest_loads, experts_bytes, experts_flop, grouped_experts_time_s
from capplan.operators.matmul import elementwise_time_s, matmul_bytes, matmul_flop, matmul_time_s
from capplan.phases.cost import OperatorCost, StepRates, total_s

ACTIVATION_BYTES = 2.0
"""Activations are 16-bit between kernels (bf16 serving; fp8 kernels quantise on entry)."""

ABSORBED = frozenset({"kv_b"})
"""Projections that latent attention folds into its kernels in decode, and in prefill where an indexer selects keys
(arXiv:2405.04434, section 2.1.2)."""


DELTA_INPUTS = ("f_a", "f", "g_a", "g", "b")
"""Projections that engines multiply in one product with the queries, keys and values of Kimi delta attention (vLLM, `in_proj_qkvgfab` of
kimi_gdn_linear_attn.py; SGLang, `fused_qkvbfg_a_proj` of kimi_linear.py)."""


def projection_cost(
    projection: Projection,
    tokens: Number,
    tensor_parallel: Number,
    rates: StepRates,
    *,
    joined: Sequence[Projection] = (),
) -> OperatorCost:
    """Return the cost of one matmul on one rank, with the outputs of others that are joined to it."""
    served = projection.multiplied_in or projection.weight_format
    matmul_rates = rates.matmul[served]
    bytes_each = named_weight_format(served).bytes_per_element
    inputs, outputs = rank_inputs(projection, tensor_parallel), rank_outputs(projection, tensor_parallel)
    for other in joined:
        outputs = outputs + rank_outputs(other, tensor_parallel)
    activation_bytes = rates.activation_bytes[served]
    flop = matmul_flop(tokens, inputs, outputs)
    moved = matmul_bytes(tokens, inputs, outputs, bytes_each, activation_bytes)
    seconds = matmul_time_s(tokens, inputs, outputs, bytes_each, activation_bytes, matmul_rates)
    return OperatorCost(
        projection.name,
        seconds,
        flop,
        moved,
        compute_s=flop / matmul_rates.flop_per_s,
        memory_s=moved / matmul_rates.bytes_per_s,
        overlaps=True,
    )


def _experts_cost(experts: Experts, tokens: Number, sharding: Sharding, rates: StepRates) -> OperatorCost:
    """Return the cost of the routed experts of one layer on one rank, routing and combining included."""
    expert_rates = rates.experts[experts.weight_format]
    ranks = sharding.tensor * sharding.data
    slots = expert_slots(experts.experts, sharding.expert)
    each = sum(
        named_weight_format(name).bytes_per_element * elements for name, elements, _ in experts.matrices
    ) / sum(elements for _, elements, _ in experts.matrices)
    shape = (
        tokens,
        slots,
        slots / sharding.expert,
        float(experts.experts_per_token),
        float(experts.inputs),
        experts.intermediate_size * sharding.expert / ranks,
        experts.gated,
        each,
    )
    activation_bytes = rates.expert_activation_bytes[experts.weight_format]
    loads = busiest_loads(
        *shape[:4], expert_rates.router_skew, rates.decode_exchange.used, slots - experts.experts
    )
    flop = experts_flop(*shape[:7])
    moved = experts_bytes(*shape, activation_bytes)
    return OperatorCost(
        "experts",
        grouped_experts_time_s(loads, *shape[4:], activation_bytes, expert_rates),
        flop,
        moved,
        compute_s=flop / expert_rates.flop_per_s,
        memory_s=moved / expert_rates.bytes_per_s,
    )


def _pass_cost(operator: str, moved_bytes: Number, rates: StepRates) -> OperatorCost:
    """Return the cost of one elementwise kernel."""
    return OperatorCost(
        operator,
        elementwise_time_s(moved_bytes, rates.elementwise),
        0.0,
        moved_bytes,
        memory_s=moved_bytes / rates.elementwise.bytes_per_s,
        overlaps=True,
    )


def _elementwise_costs(
    layer: Layer, hidden_size: int, tokens: Number, tensor_parallel: Number, rates: StepRates
) -> list[OperatorCost]:
    """Return the elementwise kernels of one layer: a fused add and norm before each block, rotary, activation.

    A fused add and norm reads and writes the residual and the branch (4 passes of 2 bytes; every stream of a
    residual that has several); rotary reads and writes q and k, and the cache write copies k and v, as do norms
    of q and k; the activation reads gate and up and writes one of them; a compressor writes and reads its values in fp32.
    """
    costs = []
    norm_bytes = 4.0 * (layer.residual_streams + 1.0) * hidden_size * tokens
    if layer.mixers:
        costs.append(_pass_cost("norm", norm_bytes, rates).times(1 + _crossing(layer)))
    for mixer in layer.mixers:
        if normed := mixer.description.normed_elements:
            costs.append(_pass_cost("query_key_norm", 4.0 * normed / tensor_parallel * tokens, rates))
    for projection in layer.projections:
        width = rank_outputs(projection, tensor_parallel)
        if projection.name in {"qkv", "q_b", "q"}:
            costs.append(_pass_cost("rotary", 4.0 * width * tokens, rates))
        if projection.name == "compress":
            costs.append(_pass_cost("compress", 8.0 * width * tokens, rates))
        if projection.name == "gate_up" and projection.tensor_class == "ffn":
            costs.append(_pass_cost("activation", 3.0 * width * tokens, rates))
        if projection.name == "up" and projection.tensor_class == "ffn":
            costs.append(_pass_cost("activation", 4.0 * width * tokens, rates))
    if layer.experts or any(p.tensor_class in {"ffn", "shared_expert"} for p in layer.projections):
        costs.append(_pass_cost("norm", norm_bytes, rates))
    return costs


def _crossing(layer: Layer) -> int:
    """Return the mixers of a layer that follow another one, with a norm before and an all-reduce behind them."""
    return sum(isinstance(mixer, CrossAttention) for mixer in layer.mixers)


def _exchange_cost(
    experts: Experts, tokens: Number, sharding: Sharding, kernel: ExchangeRates, rates: StepRates
) -> OperatorCost:
    """Return the cost of bringing the tokens of all attention groups to their experts, and the results back.

    Ranks gather the tokens of all groups, in the format in which the engine sends them, and then scatter the sums; or each rank sends its
    tokens to the ranks of their experts, which send the results back (`exchange_time_s`).
    """
    there, back = (
        bytes_per_element * experts.inputs * tokens
        for bytes_per_element in (rates.gathered_bytes[experts.weight_format], ACTIVATION_BYTES)
    )
    link = between_groups(rates.link, sharding.tensor)
    gathered_s = all_gather_time_s(sharding.data, there, link)
    gathered_s = gathered_s + reduce_scatter_time_s(sharding.data, back, link)
    used = np.asarray(kernel.used) > 0
    if not np.any(used):
        return OperatorCost("expert_exchange", gathered_s, sent_bytes=there + back)
    ranks = sharding.tensor * sharding.data
    most = GROUPED_DOMAINS if experts.routing == "grouped" else np.inf
    sent_s: Number = 0.0
    sent_bytes: Number = 0.0
    for element, floor_s in (
        (rates.dispatched_bytes[experts.weight_format], kernel.dispatch_floor_s),
        (ACTIVATION_BYTES, kernel.combine_floor_s),
    ):
        size = (tokens / ranks, ranks, float(experts.experts_per_token), element * experts.inputs)
        sent_s = sent_s + exchange_time_s(*size, floor_s, kernel, most)
        sent_bytes = sent_bytes + exchange_bytes(*size, kernel, most)
    seconds = np.where(used, sent_s, gathered_s)
    return OperatorCost("expert_exchange", seconds, sent_bytes=np.where(used, sent_bytes, there + back))


def _collective_costs(
    layer: Layer, hidden_size: int, tokens: Number, sharding: Sharding, rates: StepRates
) -> list[OperatorCost]:
    """Return the collectives between the ranks of one attention group in one layer.

    One all-reduce follows each mixer and one the feed-forward (dense, or shared and routed experts together). Norms
    over all heads exchange two mean squares in fp32 for each token.
    """
    message = ACTIVATION_BYTES * hidden_size * tokens / sharding.data
    ranks = sharding.tensor
    reduced = OperatorCost("all_reduce", all_reduce_time_s(ranks, message, rates.link), sent_bytes=message)
    names = {(p.tensor_class, p.split) for p in layer.projections}
    costs = []
    if any(mixer.description.norms_exchange for mixer in layer.mixers):
        squares = 8.0 * tokens / sharding.data
        seconds = all_reduce_time_s(ranks, squares, rates.link)
        costs.append(OperatorCost("norm_exchange", seconds, sent_bytes=squares))
    if layer.mixers and (("attention", "rows") in names or ("state", "rows") in names):
        costs.append(reduced.times(1 + _crossing(layer)))
    if layer.experts or any(p.tensor_class == "ffn" for p in layer.projections):
        costs.append(reduced)
    return costs


def layer_costs(
    network: Network, layer: Layer, tokens: Number, sharding: Sharding, rates: StepRates, *, decode: bool
) -> list[OperatorCost]:
    """Return the costs of one layer that depend only on its tokens, without attention over the cache."""
    costs = _own_costs(network, layer, tokens, sharding, rates, decode=decode)
    if (experts := layer.experts) is None:
        return costs
    kernel = rates.decode_exchange if decode else rates.prefill_exchange
    exchange = _exchange_cost(experts, tokens, sharding, kernel, rates)
    whole_s = exchange.seconds + kernel.wait_s
    if np.any(np.asarray(kernel.overlapping) > 0):
        half = _own_costs(network, layer, tokens / 2.0, sharding, rates, decode=decode)
        sent = _exchange_cost(experts, tokens / 2.0, sharding, kernel, rates)
        exposed_s = exposed_exchange_s(
            whole_s, sent.seconds, total_s(costs), total_s(half), kernel.busy_fraction
        )
        whole_s = np.where(np.asarray(kernel.overlapping) > 0, exposed_s, whole_s)
    return [*costs, replace(exchange, seconds=whole_s)]


def _own_costs(
    network: Network, layer: Layer, tokens: Number, sharding: Sharding, rates: StepRates, *, decode: bool
) -> list[OperatorCost]:
    """Return the costs of one layer without the exchange of tokens with experts."""
    local_tokens = tokens / sharding.data
    absorbs = decode or any(
        isinstance(mixer, LatentAttention) and mixer.index_heads for mixer in layer.mixers
    )
    delta = _delta_inputs(layer)
    costs = [
        projection_cost(
            projection,
            local_tokens,
            sharding.tensor,
            rates,
            joined=delta if projection.name == "qkv" else (),
        )
        for projection in layer.projections
        if projection.matmul and projection not in delta and not (absorbs and projection.name in ABSORBED)
    ]
    if layer.experts:
        costs.append(_experts_cost(layer.experts, tokens, sharding, rates))
    costs += _elementwise_costs(layer, network.hidden_size, local_tokens, sharding.tensor, rates)
    return costs + _collective_costs(layer, network.hidden_size, tokens, sharding, rates)


def _delta_inputs(layer: Layer) -> tuple[Projection, ...]:
    """Return the projections of a layer that are joined to those of queries, keys and values: of Kimi delta attention, in the same format."""
    if not any(isinstance(mixer, LinearAttention) and mixer.kind == "kda" for mixer in layer.mixers):
        return ()
    formats = [p.multiplied_in or p.weight_format for p in layer.projections if p.name == "qkv"]
    inputs = (p for p in layer.projections if p.name in DELTA_INPUTS)
    return tuple(p for p in inputs if (p.multiplied_in or p.weight_format) in formats)


def head_costs(
    network: Network, positions: Number, sharding: Sharding, rates: StepRates
) -> list[OperatorCost]:
    """Return LM head, logit gather and sampling for the positions that need logits; of a pooled model its vector and its scores.

    A pooled position reads its hidden state in 2 bytes and writes it, normalised, in 4.
    """
    local_positions = positions / sharding.data
    if not network.generates:
        pooling = _pass_cost("pooling", 6.0 * network.hidden_size * local_positions, rates)
        costs = [pooling]
        if network.pooler is not None:
            costs.append(projection_cost(network.pooler, local_positions, sharding.tensor, rates))
        if network.lm_head.outputs:
            scores = projection_cost(network.lm_head, local_positions, sharding.tensor, rates)
            costs.append(scores.named("scores"))
        return costs
    logits = 4.0 * network.vocabulary_size * local_positions
    message = ACTIVATION_BYTES * network.vocabulary_size * local_positions
    gather = all_gather_time_s(sharding.tensor, message, rates.link)
    return [
        projection_cost(network.lm_head, local_positions, sharding.tensor, rates).named("lm_head"),
        OperatorCost("logit_gather", gather, sent_bytes=message),
        _pass_cost("sampling", 2.0 * logits, rates),
    ]


def shared_costs(costs: Iterable[OperatorCost], exchange: ExchangeRates) -> list[OperatorCost]:
    """Return what all groups of data-parallel attention do together: routed experts, and gathering the tokens of all groups for them.

    An all-to-all kernel is not part of it: the ranks of a group send their own tokens.
    """
    gathered = np.where(np.asarray(exchange.used) > 0, 0.0, 1.0)
    parts: dict[str, Number] = {"experts": 1.0, "expert_exchange": gathered}
    return [cost.times(parts[cost.operator]) for cost in costs if cost.operator in parts]


Matrix = tuple[int, int]


def tower_costs(
    tower: Tower, image: ImageWork, weight_format: str, tensor_parallel: Number, rates: StepRates
) -> list[OperatorCost]:
    """Return the cost of a tower over one image on one rank, its matrices split as those of the text model.

    Attention goes both ways: of n patches each sees n, which is what a causal prefill of n tokens after n / 2 cached ones does.

    Parameters
    ----------
    tower : its sizes
    image : patches of the image, and tokens that they become
    weight_format : of the tower
    tensor_parallel : [-]
        ranks
    rates : of the device
    """

    def product(name: str, matrix: Matrix, rows: float, split: str, times: int) -> OperatorCost:
        projection = Projection(
            name,
            "vision",
            *matrix,
            "rows" if split == "rows" else "columns" if split == "columns" else "none",
            weight_format=weight_format,
        )
        return projection_cost(projection, rows, tensor_parallel, rates).times(times)

    patches, hidden, wide = float(image.patches), tower.hidden_size, tower.intermediate_size
    up = (2 if tower.gated else 1) * wide
    layers = tower.layers
    norm_s = elementwise_time_s(8.0 * hidden * patches, rates.elementwise)
    message = ACTIVATION_BYTES * hidden * patches
    reduced_s = all_reduce_time_s(tensor_parallel, message, rates.link)
    return [
        product("patches", (tower.patch_inputs, hidden), patches, "none", 1),
        product("qkv", (hidden, 3 * hidden), patches, "columns", layers),
        product("o", (hidden, hidden), patches, "rows", layers),
        product("up", (hidden, up), patches, "columns", layers),
        product("down", (wide, hidden), patches, "rows", layers),
        *(product("merger", matrix, float(image.merged_tokens), "none", 1) for matrix in tower.merger),
        *_attention(tower, patches, tensor_parallel, rates),
        OperatorCost("norm", 2.0 * norm_s).times(layers),
        OperatorCost("all_reduce", 2.0 * reduced_s, sent_bytes=2.0 * message).times(layers),
    ]


def encoder_costs(network: Network, tensor_parallel: Number, rates: StepRates) -> list[OperatorCost]:
    """Return the cost of the encoder of an encoder-decoder over one source, keys and values of the decoder's layers included."""
    if (encoder := network.encoder) is None:
        return []
    source = ImageWork(encoder.positions, encoder.positions, 0.0)
    made = [
        projection_cost(projection, float(encoder.positions), tensor_parallel, rates).times(count)
        for layer, count in layer_counts(network)
        for projection in layer.projections
        if projection.name == CROSS_KV
    ]
    return [*tower_costs(encoder.tower, source, network.vision_format, tensor_parallel, rates), *made]


def _attention(tower: Tower, patches: float, tensor_parallel: Number, rates: StepRates) -> list[OperatorCost]:
    """Return attention over whole images, and over windows of them."""
    seen = tower.window_patches or patches
    whole = tower.whole_layers if tower.window_patches else tower.layers
    spans = ((1.0, patches, whole), (patches / min(seen, patches), min(seen, patches), tower.layers - whole))
    heads, width = tower.heads / tensor_parallel, tower.hidden_size / tower.heads
    costs = []
    for count, span, layers in spans:
        sight = (count, span, span / 2.0, heads)
        dims = (width, width, math.inf)
        seconds = prefill_attention_time_s(*sight, heads, *dims, ACTIVATION_BYTES, rates.attention)
        flop = prefill_attention_flop(*sight, *dims)
        costs.append(OperatorCost("attention", seconds, flop).times(layers))
    return costs
