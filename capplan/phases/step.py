"""One decode step, prefill chunk, mixed step or speculative round of an engine, as a sum of operators."""

from collections.abc import Sequence

import numpy as np

from capplan.model.mixers import LatentAttention
from capplan.model.network import Layer, Network, layer_counts
from capplan.model.sharding import Sharding, adapted_matrices, rank_elements
from capplan.model.weight_format import FORMATS
from capplan.numbers import Number
from capplan.operators.collective import (
    LinkRates,
    all_gather_time_s,
    all_reduce_time_s,
    point_to_point_time_s,
    reduce_scatter_time_s,
)
from capplan.operators.matmul import adapter_bytes, adapter_flop, adapter_time_s, adapters_in_step
from capplan.phases.cost import OperatorCost, StepRates, summed
from capplan.phases.mixer_work import decode_cost, prefill_cost
from capplan.phases.token_work import ACTIVATION_BYTES, encoder_costs, head_costs, layer_costs, shared_costs


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
    pieces = 1.0 if np.isinf(rates.ubatch_tokens) else np.maximum(tokens / rates.ubatch_tokens, 1.0)
    costs = [
        cost.times(count * pieces)
        for layer, count in layer_counts(network)
        for cost in layer_costs(network, layer, tokens / pieces, sharding, rates, decode=decode)
    ]
    costs += adapter_costs(network, tokens, sharding, rates, decode=decode)
    message = ACTIVATION_BYTES * network.hidden_size * tokens / sharding.data
    return summed([*costs, stage_transfer_cost(message, sharding, rates.link)])


HANDED_ON = 2.0
"""Tensors that a stage hands to the next: hidden states and residual."""


def stage_transfer_cost(message_bytes: Number, sharding: Sharding, rates: LinkRates) -> OperatorCost:
    """Return the cost of all hops between p stages of d groups of t ranks, with D devices in a link domain.

        c = ceil(p / max(floor(D / (t d)), 1)) - 1
        T = 2 ((p - 1 - c) P_link(M / t) + c P_network(M / t) + (p - 1) G(t, M))

    Parameters
    ----------
    message_bytes : [B]
        M, of one tensor.

    Examples
    --------
    >>> from dataclasses import fields
    >>> rates = LinkRates(**{field.name: 0.0 for field in fields(LinkRates)} | {"network_bytes_per_s": 100.0, "network_fraction": 1.0,
    ...                   "link_bytes_per_s": 800.0, "ring_fraction": 1.0, "domain_devices": 8.0})
    >>> float(stage_transfer_cost(800.0, Sharding(8.0, 2.0), rates).seconds)
    3.75

    References
    ----------
    vLLM, GroupCoordinator.send_tensor_dict, vllm/distributed/parallel_state.py
    """
    ranks, hops = sharding.tensor * sharding.data, sharding.pipeline - 1.0
    beside = np.maximum(np.floor(rates.domain_devices / ranks), 1.0)
    crossing = np.ceil(sharding.pipeline / beside) - 1.0
    part = message_bytes / sharding.tensor
    near_s = point_to_point_time_s(part, rates)
    far_s = point_to_point_time_s(part, rates, rates.domain_devices + 1.0)
    gather_s = all_gather_time_s(sharding.tensor, message_bytes, rates)
    seconds = (hops - crossing) * near_s + crossing * far_s + hops * gather_s
    return OperatorCost("stage_transfer", HANDED_ON * seconds, sent_bytes=HANDED_ON * hops * message_bytes)


_LSE_BYTES = 4.0
"""A logarithm of a sum of exponentials has this many bytes: ranks exchange them in single precision."""


def _exchange_cost(
    mixer: LatentAttention, tokens: Number, sharding: Sharding, rates: LinkRates
) -> OperatorCost:
    """Return the cost of attention over a cache whose tokens c ranks share out, on top of that of its kernels.

        h = H c / t
        T = G(c, 2 s h (r + q)) + G(c, 4 s h c) + S(c, 2 s h r)

    Each rank attends with the h queries of c of t ranks to its own keys: queries and logarithms are gathered, outputs scattered.

    Parameters
    ----------
    mixer : H query heads
    tokens : [-]
        s

    References
    ----------
    vLLM, `cp_lse_ag_out_rs`, vllm/v1/attention/ops/common.py.
    """
    ranks = sharding.context
    heads = mixer.query_heads * ranks / sharding.tensor
    queries = ACTIVATION_BYTES * tokens * heads * (mixer.kv_lora_rank + mixer.rope_head_dim)
    sums = _LSE_BYTES * tokens * heads * ranks
    outputs = ACTIVATION_BYTES * tokens * heads * mixer.kv_lora_rank
    gathered_s = all_gather_time_s(ranks, queries, rates) + all_gather_time_s(ranks, sums, rates)
    seconds = gathered_s + reduce_scatter_time_s(ranks, outputs, rates)
    return OperatorCost("context_exchange", seconds, sent_bytes=queries + sums + outputs)


def _gather_cost(
    mixer: LatentAttention, past_tokens: Number, sharding: Sharding, kv_bytes: Number, rates: LinkRates
) -> OperatorCost:
    """Return the cost of bringing together the cached latents of prompts, which ranks share out, before they are expanded.

    References
    ----------
    vLLM, `_context_parallel_compute_prefill_context`, vllm/model_executor/layers/attention/mla_attention.py.
    """
    message = past_tokens * (mixer.kv_lora_rank + mixer.rope_head_dim) * kv_bytes
    seconds = all_gather_time_s(sharding.context, message, rates)
    return OperatorCost("context_exchange", seconds, sent_bytes=message)


def _shared_contexts(network: Network, sharding: Sharding) -> list[tuple[LatentAttention, int]]:
    """Return the mixers whose cached tokens ranks share out, with their counts; none where each rank holds all tokens."""
    if not np.any(np.asarray(sharding.context) > 1.0):
        return []
    mixers = ((mixer, count) for layer, count in layer_counts(network) for mixer in layer.mixers)
    return [(mixer, count) for mixer, count in mixers if isinstance(mixer, LatentAttention)]


def decode_attention_costs(
    network: Network, sequences: Number, context_tokens: Number, sharding: Sharding, kv_bytes: Number,
    rates: StepRates, query_tokens: Number = 1.0,
) -> list[OperatorCost]:  # fmt: skip
    """Return the costs of all mixers over the caches of decoding sequences."""
    local_sequences = sequences / sharding.data
    attended = [
        decode_cost(
            mixer,
            local_sequences,
            context_tokens,
            sharding.tensor,
            kv_bytes,
            rates,
            query_tokens,
            sharding.context,
        ).times(count)
        for layer, count in layer_counts(network)
        for mixer in layer.mixers
    ]
    exchanged = (
        _exchange_cost(mixer, local_sequences * query_tokens, sharding, rates.link).times(count)
        for mixer, count in _shared_contexts(network, sharding)
    )
    return summed([*attended, *exchanged])


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
    gathered = (
        _gather_cost(mixer, prompts * past_tokens, sharding, kv_bytes, rates.link).times(count)
        for mixer, count in _shared_contexts(network, sharding)
    )
    costs += summed(gathered)
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


def lone_prompt_costs(
    network: Network, new_tokens: Number, past_tokens: Number, sharding: Sharding, kv_bytes: Number, rates: StepRates
) -> list[OperatorCost]:  # fmt: skip
    """Return every operator of one step that prefills one prompt: one group of data-parallel attention computes it, and the others wait for it."""
    groups = float(np.max(sharding.data))
    prompt = (new_tokens, past_tokens, sharding, kv_bytes, rates)
    each = prefill_step_costs(network, groups, *prompt)
    if groups == 1.0:
        return each
    own, shared = (
        {cost.operator: cost for cost in shared_costs(costs, rates.prefill_exchange)}
        for costs in (prefill_step_costs(network, 1.0, *prompt), each)
    )
    return [
        cost.plus(shared[cost.operator].times(-1.0)).plus(own[cost.operator])
        if cost.operator in own
        else cost
        for cost in each
    ]


def expected_tokens_per_round(acceptance_fraction: Number, draft_tokens: Number) -> Number:
    """Return the tokens that one round adds to a sequence, the bonus token included.

        E = (1 - a^(g+1)) / (1 - a),   g + 1 at a = 1

    Parameters
    ----------
    acceptance_fraction : [-]
        a, the chance that one draft token is accepted given that all before it were, 0 to 1
    draft_tokens : [tokens]
        g, drafted in one round

    Returns
    -------
    [tokens]
        E, between 1 and g + 1; assumes that acceptances are independent

    Examples
    --------
    >>> round(float(expected_tokens_per_round(0.9, 4.0)), 4)
    4.0951
    >>> float(expected_tokens_per_round(1.0, 4.0))
    5.0

    References
    ----------
    Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative Decoding",
    arXiv:2211.17192, equation 1.
    """
    acceptance, drafts = np.broadcast_arrays(
        np.asarray(acceptance_fraction, dtype=np.float64), np.asarray(draft_tokens, dtype=np.float64)
    )
    certain = acceptance >= 1.0
    miss = np.where(certain, 1.0, 1.0 - acceptance)
    logarithm = np.log(
        np.maximum(acceptance, np.finfo(float).tiny)
    )  # 1 - alpha^(gamma+1) has no digits left where alpha is almost 1
    tokens: Number = np.where(certain, drafts + 1.0, -np.expm1((drafts + 1.0) * logarithm) / miss)[()]
    return tokens


def expected_tokens_by_position(acceptance_fractions: Sequence[float]) -> float:
    """Return the tokens that one round adds to a sequence, where acceptance differs by position.

        E = 1 + a_1 + a_1 a_2 + ... + a_1 a_2 ... a_g

    Parameters
    ----------
    acceptance_fractions : [-]
        a_i, the chance that the i-th draft is accepted given that all before it were; the share of rounds
        that reach position i is a_1 ... a_i

    Returns
    -------
    [tokens]
        E, the bonus token included

    Examples
    --------
    >>> round(expected_tokens_by_position([0.8, 0.5]), 4)
    2.2

    References
    ----------
    Leviathan, Kalman, Matias 2023, arXiv:2211.17192, equation 1 with an acceptance for each position.
    """
    return 1.0 + float(np.cumprod(np.asarray(acceptance_fractions, dtype=np.float64)).sum())


def acceptance_of_round(tokens_per_round: float, draft_tokens: float) -> float:
    """Return the acceptance with which rounds yield as many tokens as were counted: the inverse of expected_tokens_per_round.

        (1 - a^(g+1)) / (1 - a) = E

    The accepted share that engines print counts drafts behind a rejected one too.

    Parameters
    ----------
    tokens_per_round : [tokens]
        E, the bonus token included; 1 to g + 1
    draft_tokens : [tokens]
        g, the mean where rounds differ

    Returns
    -------
    [-]
        a, the same for all positions, found by halving

    Examples
    --------
    >>> round(acceptance_of_round(3.68928, 5.0), 6)
    0.8
    >>> round(acceptance_of_round(6.0, 5.0), 6), round(acceptance_of_round(1.0, 5.0), 6)
    (1.0, 0.0)

    References
    ----------
    Leviathan, Kalman, Matias 2023, arXiv:2211.17192, equation 1, solved for alpha.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        enough = float(expected_tokens_per_round(middle, draft_tokens)) >= tokens_per_round
        low, high = (low, middle) if enough else (middle, high)
    return high


def round_tokens(acceptance_fractions: Sequence[float], draft_tokens: int) -> float:
    """Return the tokens of a round with one acceptance for all positions, or one for each of the first.

    Examples
    --------
    >>> round_tokens([0.5], 2), round_tokens([0.5, 0.5], 1)
    (1.75, 1.5)
    """
    if len(acceptance_fractions) == 1:
        return float(expected_tokens_per_round(acceptance_fractions[0], float(draft_tokens)))
    return expected_tokens_by_position(acceptance_fractions[:draft_tokens])


def round_tokens_variance(acceptance_fractions: Sequence[float], draft_tokens: int) -> float:
    """Return the variance of the tokens of a round, with one acceptance for all positions, or one for each of the first.

        P(K > i) = a_1 ... a_i
        Var K = 1 + sum_i (2 i + 1) P(K > i) - (E K)^2

    Parameters
    ----------
    acceptance_fractions : [-]
        a_i, the chance that the i-th draft is accepted given that all before it were
    draft_tokens : [tokens]
        g, the most that i is

    Returns
    -------
    [tokens^2]
        of K, the accepted drafts and the bonus token

    Examples
    --------
    >>> round_tokens_variance([0.5], 1), round_tokens_variance([1.0], 3), round_tokens_variance([0.5, 0.5], 2)
    (0.25, 0.0, 0.6875)

    References
    ----------
    The second moment of a count is the sum of (2 i + 1) P(K > i) over i from 0; P as in Leviathan, Kalman, Matias 2023,
    arXiv:2211.17192, equation 1.
    """
    each = list(acceptance_fractions) * (draft_tokens if len(acceptance_fractions) == 1 else 1)
    above = np.cumprod(np.asarray(each[:draft_tokens], dtype=np.float64))
    squared = 1.0 + float((above * (2.0 * np.arange(1, above.size + 1) + 1.0)).sum())
    return max(squared - (1.0 + float(above.sum())) ** 2, 0.0)


def round_time_s(draft_tokens: Number, draft_step_s: Number, verify_s: Number) -> Number:
    """Return the time of one round: the drafts in sequence, then one verification.

        t = g t_d + t_v

    Parameters
    ----------
    draft_tokens : [tokens]
        g
    draft_step_s : [s]
        t_d, mean of the draft steps
    verify_s : [s]
        t_v, one step of the target over g + 1 tokens of every sequence

    Returns
    -------
    [s]
        t, without rejection sampling

    Examples
    --------
    >>> round(round_time_s(5.0, 0.002, 0.035), 6)
    0.045

    References
    ----------
    Leviathan, Kalman, Matias 2023, arXiv:2211.17192, section 3.2.
    """
    return draft_tokens * draft_step_s + verify_s


def speculative_speedup_ratio(expected_tokens: Number, round_s: Number, target_step_s: Number) -> Number:
    """Return how many times faster a sequence decodes with drafts than without.

        speedup = E t_t / t

    Parameters
    ----------
    expected_tokens : [tokens]
        E, of one round
    round_s : [s]
        t, of one round
    target_step_s : [s]
        t_t, of one plain decode step of the target at the same batch

    Returns
    -------
    [-]
        below 1 where drafting costs more than it saves

    Examples
    --------
    >>> speculative_speedup_ratio(3.0, 0.045, 0.030)
    2.0

    References
    ----------
    Leviathan, Kalman, Matias 2023, arXiv:2211.17192, theorem 3.8.
    """
    return expected_tokens * target_step_s / round_s
