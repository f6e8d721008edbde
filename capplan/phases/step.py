"""Steps of an engine as sums of operators: one decode step, one prefill chunk, one mixed step, and what LoRA adapters add to each."""

import numpy as np

from capplan.model.adapters import adapted_matrices, rank_elements
from capplan.model.network import Layer, Network, layer_counts
from capplan.model.sharding import Sharding
from capplan.model.weight_format import FORMATS
from capplan.numbers import Number
from capplan.operators.adapters import adapter_bytes, adapter_flop, adapter_time_s, adapters_in_step
from capplan.operators.collective import all_gather_time_s, all_reduce_time_s, point_to_point_time_s
from capplan.phases.cost import OperatorCost, StepRates, summed
from capplan.phases.mixer_work import decode_cost, prefill_cost
from capplan.phases.token_work import ACTIVATION_BYTES, encoder_costs, head_costs, layer_costs


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


def token_costs(
    network: Network, tokens: Number, sharding: Sharding, rates: StepRates, *, decode: bool
) -> list[OperatorCost]:
    """Return the costs of all layers that depend on the tokens of a step, and the pipeline transfers."""
    costs = [
        cost.times(count)
        for layer, count in layer_counts(network)
        for cost in layer_costs(network, layer, tokens, sharding, rates, decode=decode)
    ]
    costs += adapter_costs(network, tokens, sharding, rates, decode=decode)
    message = ACTIVATION_BYTES * network.hidden_size * tokens / sharding.data
    hop = OperatorCost("stage_transfer", point_to_point_time_s(message, rates.link), sent_bytes=message)
    return summed([*costs, hop.times(sharding.pipeline - 1.0)])


def decode_attention_costs(
    network: Network, sequences: Number, context_tokens: Number, sharding: Sharding, kv_bytes: Number,
    rates: StepRates, query_tokens: Number = 1.0,
) -> list[OperatorCost]:  # fmt: skip
    """Return the costs of all mixers over the caches of decoding sequences."""
    local_sequences = sequences / sharding.data
    return summed(
        decode_cost(
            mixer, local_sequences, context_tokens, sharding.tensor, kv_bytes, rates, query_tokens
        ).times(count)
        for layer, count in layer_counts(network)
        for mixer in layer.mixers
    )


def _expansion_format(layer: Layer) -> str:
    """Return the format of the matrix that expands cached latents."""
    formats = [p.weight_format for p in layer.projections if p.name == "kv_b"]
    return formats[0] if formats else "bf16"


def prefill_attention_costs(
    network: Network, prompts: Number, new_tokens: Number, past_tokens: Number, sharding: Sharding, kv_bytes: Number,
    rates: StepRates,
) -> list[OperatorCost]:  # fmt: skip
    """Return the costs of all mixers for one chunk of each of `prompts` prompts, distributed over the attention groups.

    The groups of an attention-data-parallel replica prefill different prompts at once, so a prompt
    takes 1 / data of the replica's time. Before the first token of a prompt the encoder of an encoder-decoder reads its source.
    """
    costs = summed(
        prefill_cost(
            mixer, prompts, new_tokens, past_tokens, sharding.tensor, kv_bytes, rates,
            _expansion_format(layer),
        ).times(count)
        for layer, count in layer_counts(network)
        for mixer in layer.mixers
    )  # fmt: skip
    if read := encoder_costs(network, sharding.tensor, rates):
        begun = prompts * np.where(np.asarray(past_tokens) > 0, 0.0, 1.0)
        costs += [cost.named(f"encoder_{cost.operator}").times(begun) for cost in summed(read)]
    return [cost.times(1.0 / sharding.data) for cost in costs]


def decode_step_costs(
    network: Network, sequences: Number, context_tokens: Number, sharding: Sharding, kv_bytes: Number,
    rates: StepRates, query_tokens: Number = 1.0,
) -> list[OperatorCost]:  # fmt: skip
    """Return every operator of one decode step (a verification step with more than one query token)."""
    tokens = sequences * query_tokens
    return summed(
        [
            *token_costs(network, tokens, sharding, rates, decode=True),
            *decode_attention_costs(
                network, sequences, context_tokens, sharding, kv_bytes, rates, query_tokens
            ),
            *head_costs(network, tokens, sharding, rates),
        ]
    )


def prefill_step_costs(
    network: Network, prompts: Number, new_tokens: Number, past_tokens: Number, sharding: Sharding,
    kv_bytes: Number, rates: StepRates,
) -> list[OperatorCost]:  # fmt: skip
    """Return every operator of one step that prefills `prompts` prompts of equal length."""
    chunks = prefill_attention_costs(network, prompts, new_tokens, past_tokens, sharding, kv_bytes, rates)
    return summed(
        [
            *token_costs(network, prompts * new_tokens, sharding, rates, decode=False),
            *chunks,
            *head_costs(network, prompts, sharding, rates),
        ]
    )
