"""Time of a vision tower over one image, and of an encoder over one source."""

import math

from capplan.model.images import ImageWork, Tower
from capplan.model.network import CROSS_KV, Network, Projection, layer_counts
from capplan.numbers import Number
from capplan.operators.attention import prefill_attention_flop, prefill_attention_time_s
from capplan.operators.collective import all_reduce_time_s
from capplan.operators.matmul import elementwise_time_s
from capplan.phases.cost import OperatorCost, StepRates
from capplan.phases.token_work import ACTIVATION_BYTES, projection_cost

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
