"""Cost of the LoRA adapters of a network in one step."""

import numpy as np

from capplan.model.adapters import adapted_matrices, rank_elements
from capplan.model.network import Network, layer_counts
from capplan.model.sharding import Sharding
from capplan.model.weight_format import FORMATS
from capplan.numbers import Number
from capplan.operators.adapters import adapter_bytes, adapter_flop, adapter_time_s, adapters_in_step
from capplan.operators.collective import all_gather_time_s, all_reduce_time_s
from capplan.phases.cost import OperatorCost
from capplan.phases.rates import StepRates


def adapter_costs(
    network: Network, tokens: Number, sharding: Sharding, rates: StepRates, *, decode: bool
) -> list[OperatorCost]:
    """Return the low-rank products of all layers on one device; none without adapters.

    A decode step has an adapter for each of its tokens; a step with prompts reads all that are resident, since its table does
    not tell how many prompts its tokens belong to. Fully sharded, what is between the two products is exchanged.

    Parameters
    ----------
    network : with its adapters
    tokens : [-]
        of the whole replica
    sharding : [-]
        parallelism
    rates : of the device
    decode : one token of every sequence
    """
    adapters = network.adapters
    if adapters is None:
        return []
    local = tokens / sharding.data
    used = adapters_in_step(local, float(adapters.adapters), adapters.adapted_fraction)
    used = np.minimum(used if decode else float(adapters.slots), float(adapters.slots))
    adapted = local * adapters.adapted_fraction
    costs = []
    for layer, count in layer_counts(network):
        for matrix, parts in adapted_matrices(layer, adapters.modules):
            elements, inputs, outputs = rank_elements(matrix, parts, adapters, sharding.tensor)
            inner = float(adapters.rank * parts)
            flop = adapter_flop(adapted, elements)
            moved = adapter_bytes(
                adapted, used, elements, inputs, outputs, inner, FORMATS[adapters.format].bytes_per_element
            )
            product = rates.matmul[adapters.format]
            seconds = adapter_time_s(flop, moved, rates.elementwise, product)
            cost = OperatorCost(
                "adapters",
                seconds,
                flop,
                moved,
                compute_s=flop / product.flop_per_s,
                memory_s=moved / rates.elementwise.bytes_per_s,
            )
            costs.append(cost.times(count))
            if adapters.fully_sharded and matrix.split != "none":
                exchange = all_reduce_time_s if matrix.split == "rows" else all_gather_time_s
                message = 4.0 * inner * adapted
                sent = OperatorCost(
                    "adapter_exchange", exchange(sharding.tensor, message, rates.link), sent_bytes=message
                )
                costs.append(sent.times(count))
    return costs
