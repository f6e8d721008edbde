"""What a step multiplies, moves and sends, counted by hand from the dimensions of small models without two equal sizes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.families.model_config import read_network
from capplan.memory.launch import Launch
from capplan.model.images import ImageWork
from capplan.model.network import (
    Adapters,
    Attention,
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Projection,
    ShortConvolution,
    StateSpace,
)
from capplan.model.sharding import Sharding
from capplan.model.weight_format import in_weight_format
from capplan.operators.attention import bidirectional_attention_time_s, bidirectional_pairs
from capplan.operators.collective import all_gather_time_s, all_reduce_time_s, reduce_scatter_time_s
from capplan.operators.compressed_attention import (
    compressed_prefill_time_s,
    entry_indexer_time_s,
    indexer_time_s,
    visible_pairs,
    visible_vectors,
)
from capplan.operators.expert_exchange import GATHERED, ExchangeRates
from capplan.operators.latent_attention import mla_absorption_time_s, sparse_attention_prefill_time_s
from capplan.operators.linear_attention import gated_delta_prefill_flop
from capplan.operators.matmul import adapter_bytes
from capplan.phases.cost import OperatorCost, bound, floor_s, summed, total_s, unsaved_s
from capplan.phases.mixer_work import decode_cost, prefill_cost
from capplan.phases.step import (
    adapter_costs,
    decode_attention_costs,
    decode_step_costs,
    prefill_attention_costs,
    prefill_step_costs,
    stage_transfer_cost,
    token_costs,
)
from capplan.phases.token_work import tower_costs
from capplan.readers.catalogue.models import read_model
from capplan.replica.tables import chunk_limits, context_limits, device_tables, step_knots, table_of_plan
from capplan.serving.step_table import bilinear, prefill_attention_per_token_s
from tests.nearness import near
from tests.properties.ideal_device import ATTENTION, LATENT, LINEAR, RING, ideal_rates

FEW = settings(max_examples=60, deadline=None)
HIDDEN, INNER, VOCABULARY, LAYERS, HEADS, KV_HEADS, WIDTH = 256, 768, 1000, 3, 8, 2, 32
DENSE = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCABULARY, "head_dim": WIDTH,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
}  # fmt: skip
MOE = DENSE | {
    "model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v3", "hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCABULARY,
    "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "q_lora_rank": 96,
    "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 40, "first_k_dense_replace": 2,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1,
}  # fmt: skip
ATTENTION_WEIGHTS = HIDDEN * WIDTH * (HEADS + 2 * KV_HEADS) + HIDDEN * WIDTH * HEADS
BODY = LAYERS * (ATTENTION_WEIGHTS + 3 * HIDDEN * INNER)
HEAD = HIDDEN * VOCABULARY


def network_of(config):
    return read_network(config, "small")


def dense(**changed):
    return network_of(DENSE | changed)


def sums(costs, field):
    return float(np.sum([np.asarray(getattr(cost, field)) for cost in costs]))


def by_name(costs):
    return {cost.operator: cost for cost in costs}


def decode(network, rates, sequences=6.0, context=300.0, sharding=None, kv_bytes=2.0, new=1.0):
    return decode_step_costs(network, sequences, context, sharding or Sharding(), kv_bytes, rates, new)


def prefill(network, rates, prompts=2.0, new=100.0, past=40.0, sharding=None):
    return prefill_step_costs(network, prompts, new, past, sharding or Sharding(), 2.0, rates)


@pytest.mark.parametrize("new", [1.0, 3.0])
def test_a_decode_step_multiplies_every_weight_for_every_token_and_attends_to_every_key(new):
    costs = decode(dense(), ideal_rates(flop_per_s=1e12), new=new)
    attended = LAYERS * 4 * WIDTH * HEADS * 300
    flop = 6 * new * (2 * (BODY + HEAD) + attended)
    assert sums(costs, "flop") == near(flop)
    assert sums(costs, "compute_s") == near(flop / 1e12)


def test_a_prefill_step_needs_logits_for_the_last_token_of_each_prompt_alone():
    costs = prefill(dense(), ideal_rates(flop_per_s=1e12))
    pairs = sum(range(41, 141))
    flop = 2 * (2 * BODY * 100 + 2 * HEAD + LAYERS * 4 * WIDTH * HEADS * pairs)
    assert sums(costs, "flop") == near(flop)
    assert sums(costs, "compute_s") == near(flop / 1e12)


def test_a_decode_step_reads_its_weights_once_and_every_cache():
    """Only the bandwidth is finite, so the step takes the sum of what its kernels move."""
    costs = decode(dense(), ideal_rates(bytes_per_s=1e9))
    tokens = 6
    weights = 2 * (BODY + HEAD)
    # Inputs and outputs of qkv, o, gate and up, down, and of the head.
    ends = LAYERS * (
        HIDDEN + WIDTH * (HEADS + 2 * KV_HEADS) + WIDTH * HEADS + HIDDEN + HIDDEN + 3 * INNER + HIDDEN
    )
    matmuls = weights + 2 * tokens * (ends + HIDDEN + VOCABULARY)
    caches = LAYERS * tokens * (2 * WIDTH * KV_HEADS * 2 * 300 + 2 * 2 * WIDTH * HEADS)
    # Residual and branch in and out before each of two blocks; q, k and v in and out; gate and up in, one out.
    passes = LAYERS * tokens * (2 * 8 * HIDDEN + 4 * WIDTH * (HEADS + 2 * KV_HEADS) + 6 * INNER)
    logits = 2 * 4 * VOCABULARY * tokens  # fp32, in and out
    moved = matmuls + caches + passes + logits
    assert sums(costs, "moved_bytes") == near(moved)
    assert sums(costs, "memory_s") == near(moved / 1e9)
    assert float(total_s(costs)) == near(moved / 1e9)
    narrow = decode(dense(), ideal_rates(bytes_per_s=1e9), kv_bytes=1.0)
    assert sums(costs, "moved_bytes") - sums(narrow, "moved_bytes") == near(
        LAYERS * tokens * 2 * WIDTH * KV_HEADS * 300
    )


@pytest.mark.parametrize("tensor", [2.0, 4.0, 8.0])
def test_tensor_ranks_share_arithmetic_and_weights_and_replicate_few_kv_heads(tensor):
    rates = ideal_rates(flop_per_s=1e12, bytes_per_s=1e9)
    one, shared = (by_name(decode(dense(), rates, sharding=Sharding(t))) for t in (1.0, tensor))
    for name in ("o", "gate_up", "down", "lm_head", "attention"):
        assert shared[name].flop * tensor == near(one[name].flop)
    held = max(1.0, KV_HEADS / tensor)
    columns = WIDTH * (HEADS / tensor + 2 * held)
    assert shared["qkv"].flop == near(2 * 6 * LAYERS * HIDDEN * columns)
    caches = LAYERS * 6 * (2 * WIDTH * held * 2 * 300 + 2 * 2 * WIDTH * HEADS / tensor)
    assert shared["attention"].moved_bytes == near(caches)
    assert shared["norm"].moved_bytes == one["norm"].moved_bytes
    assert shared["activation"].moved_bytes * tensor == near(one["activation"].moved_bytes)


@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_every_layer_reduces_twice_and_logits_are_gathered_once(step):
    rates = ideal_rates(link_bytes_per_s=1e9)
    run = decode if step == "decode" else prefill
    tokens, positions = (6, 6) if step == "decode" else (200, 2)
    costs = by_name(run(dense(), rates, sharding=Sharding(4.0)))
    message = 2 * HIDDEN * tokens
    assert costs["all_reduce"].sent_bytes == near(2 * LAYERS * message)
    assert costs["all_reduce"].seconds == near(2 * LAYERS * 2 * 0.75 * message / 1e9)
    assert costs["logit_gather"].sent_bytes == near(2 * VOCABULARY * positions)
    assert costs["logit_gather"].seconds == near(0.75 * 2 * VOCABULARY * positions / 1e9)


def test_hidden_states_and_residuals_hop_between_stages():
    costs = by_name(decode(dense(), ideal_rates(link_bytes_per_s=1e9), sharding=Sharding(1.0, 3.0)))
    assert costs["stage_transfer"].sent_bytes == near(2 * 2 * 2 * HIDDEN * 6)
    assert costs["stage_transfer"].seconds == near(2 * 2 * 2 * HIDDEN * 6 / 1e9)


@pytest.mark.parametrize(
    ("tensor", "stages", "crossing"), [(8, 2, 1), (4, 2, 0), (4, 4, 1), (2, 8, 1), (8, 4, 3), (3, 6, 2)]
)
def test_hops_between_servers_cross_the_network(tensor, stages, crossing):
    """Stages fill servers of eight one after the other: hops are counted by hand from where each stage begins."""
    link = replace(ideal_rates(link_bytes_per_s=1e12).link, network_bytes_per_s=1e6, domain_devices=8.0)
    cost = stage_transfer_cost(4096.0 * tensor, Sharding(float(tensor), float(stages)), link)
    assert cost.seconds == pytest.approx(2 * crossing * 4096.0 / 1e6, rel=1e-3, abs=1e-6)


def test_norms_over_all_heads_exchange_two_mean_squares_for_each_token():
    wide = network_of(DENSE | {"model_type": "olmo2"})
    rates = ideal_rates(link_bytes_per_s=1e9, bytes_per_s=1e9)
    costs = by_name(decode(wide, rates, sharding=Sharding(2.0)))
    assert costs["norm_exchange"].sent_bytes == near(LAYERS * 8 * 6)
    assert costs["norm_exchange"].seconds == near(LAYERS * 8 * 6 / 1e9)
    # Queries and keys, read and written in two bytes.
    assert costs["query_key_norm"].moved_bytes == near(LAYERS * 4 * 6 * WIDTH * (HEADS + KV_HEADS) / 2)
    assert "query_key_norm" not in by_name(decode(dense(), rates, sharding=Sharding(2.0)))


@FEW
@given(st.integers(1, 300), st.sampled_from([1.0, 2.0, 4.0]))
def test_layers_add_up(tokens, tensor):
    rates = ideal_rates(flop_per_s=1e12, bytes_per_s=1e9, link_bytes_per_s=1e8)
    few, many = (
        token_costs(dense(num_hidden_layers=n), tokens, Sharding(tensor), rates, decode=True) for n in (2, 6)
    )
    for field in ("seconds", "flop", "moved_bytes", "sent_bytes", "compute_s", "memory_s"):
        assert sums(many, field) == near(3 * sums(few, field))


@pytest.mark.parametrize(
    ("tensor", "data", "expert"), [(4.0, 1.0, 1.0), (4.0, 1.0, 4.0), (2.0, 2.0, 4.0), (1.0, 4.0, 4.0)]
)
def test_ranks_share_the_experts_however_they_are_laid_out(tensor, data, expert):
    """Four ranks do a quarter of the work each; without expert parallelism each holds a quarter of every expert."""
    sharding = Sharding(tensor, data=data, expert=expert)
    network, rates = network_of(MOE), ideal_rates(flop_per_s=1e12, bytes_per_s=1e9)
    costs = by_name(decode(network, rates, sequences=64.0, sharding=sharding))
    whole = 2 * 64 * 4 * 3 * HIDDEN * 128 * LAYERS
    assert costs["experts"].flop == near(whole / 4)
    # Weights of the experts that 64 uniform draws of 4 in 16 hit.
    held = 16 * (1 - (12 / 16) ** 64) * 3 * HIDDEN * 128 * 2 * LAYERS / 4
    inner = 128 * expert / 4  # on a rank
    ends = 64 * 4 / expert * (HIDDEN + inner) * 4 * LAYERS
    assert costs["experts"].moved_bytes == near(held + ends)
    assert costs["experts"].memory_s == near((held + ends) / 1e9)
    # Dense weights are multiplied for the tokens of the own group.
    assert costs["o"].flop == near(2 * 64 / data * HIDDEN * WIDTH * HEADS / tensor * LAYERS)


def test_every_block_of_a_layer_has_its_norm_and_its_reduction():
    """A layer may have a mixer alone, a feed-forward alone, or experts alone, as those of hybrids do."""
    dense_layer, moe_layer = dense().layers[0], network_of(MOE).layers[0]
    mixing, feeding = dense_layer.projections[:2], dense_layer.projections[2:]
    shared = tuple(replace(p, tensor_class="shared_expert") for p in feeding)
    rates = ideal_rates(link_bytes_per_s=1e9, bytes_per_s=1e9)
    for layer, norms, reductions in (
        (dense_layer, 2, 2),
        (replace(dense_layer, projections=mixing), 1, 1),
        (Layer((), feeding), 1, 1),
        (Layer((), (), moe_layer.experts), 1, 1),
        (Layer((), shared, moe_layer.experts), 1, 1),
        (
            Layer(dense_layer.mixers, (), moe_layer.experts),
            2,
            1,
        ),  # nothing is cut by rows behind such a mixer
        (moe_layer, 2, 2),
    ):
        for streams in (1, 4):
            network = replace(dense(), layers=(replace(layer, residual_streams=streams),))
            costs = by_name(token_costs(network, 6.0, Sharding(2.0), rates, decode=True))
            # Every stream of the residual and the branch, read and written in two bytes.
            assert costs["norm"].moved_bytes == near(norms * 4 * (streams + 1) * HIDDEN * 6)
            assert costs["all_reduce"].sent_bytes == near(reductions * 2 * HIDDEN * 6)


def test_an_activation_without_a_gate_reads_and_writes_one_width():
    feeding = (
        Projection("up", "ffn", HIDDEN, INNER, "columns"),
        Projection("down", "ffn", INNER, HIDDEN, "rows"),
    )
    network = replace(dense(), layers=(Layer((), feeding),))
    costs = by_name(token_costs(network, 6.0, Sharding(2.0), ideal_rates(bytes_per_s=1e9), decode=True))
    assert costs["activation"].moved_bytes == near(4 * INNER / 2 * 6)
    compressing = (Projection("compress", "attention", HIDDEN, 64, "none"),)
    costs = by_name(
        token_costs(
            replace(network, layers=(Layer((), compressing),)),
            6.0,
            Sharding(),
            ideal_rates(bytes_per_s=1e9),
            decode=True,
        )
    )
    matrix = 2 * HIDDEN * 64 + 2 * 6 * (HIDDEN + 64)
    assert costs["compress"].moved_bytes == near(matrix + 2 * 4 * 64 * 6)  # in and out in fp32


def test_groups_gather_all_tokens_before_the_experts_and_scatter_their_sums():
    network, link = network_of(MOE), replace(RING, link_bytes_per_s=1e9)
    costs = by_name(
        decode(network, ideal_rates(link_bytes_per_s=1e9), 64.0, sharding=Sharding(2.0, data=2.0, expert=4.0))
    )
    whole = 2 * HIDDEN * 64
    exchanged = all_gather_time_s(2.0, whole, link) + reduce_scatter_time_s(2.0, whole, link)
    assert costs["expert_exchange"].seconds == near(LAYERS * exchanged)
    assert costs["expert_exchange"].sent_bytes == near(LAYERS * 2 * whole)
    quantised = replace(ideal_rates(link_bytes_per_s=1e9), gathered_bytes={"bf16": 0.5})
    sharding = Sharding(2.0, data=2.0, expert=4.0)
    narrow = by_name(decode(network, quantised, 64.0, sharding=sharding))["expert_exchange"]
    there = whole / 4  # half a byte for each element in place of two; sums always come back in two
    assert narrow.sent_bytes == near(LAYERS * (there + whole))
    gathered = all_gather_time_s(2.0, there, link) + reduce_scatter_time_s(2.0, whole, link)
    assert narrow.seconds == near(LAYERS * gathered)
    reduced = all_reduce_time_s(
        2.0, whole / 2, link
    )  # of the own group, after the mixer and after the experts
    assert costs["all_reduce"].seconds == near(LAYERS * 2 * reduced)
    # A step of prompts occupies the group that prefills it, a part of the replica's time.
    rates = ideal_rates(flop_per_s=1e12)
    alone, grouped = (
        by_name(prefill(network, rates, sharding=Sharding(data=n, expert=n))) for n in (1.0, 2.0)
    )
    assert grouped["attention"].flop * 2 == near(alone["attention"].flop)
    # Decoding sequences are dealt out to the groups.
    alone, grouped = (
        by_name(decode(network, rates, sharding=Sharding(data=n, expert=n))) for n in (1.0, 2.0)
    )
    assert grouped["attention"].flop * 2 == near(alone["attention"].flop)


@given(st.integers(1, 64), st.integers(2, 8))
def test_verified_drafts_hit_the_experts_of_as_many_sequences(sequences, new):
    """A round of n tokens of every sequence routes as n times the sequences do, and never reads fewer experts than one token does."""
    rates = ideal_rates(bytes_per_s=1e9)
    rates = replace(rates, experts={name: replace(of, router_skew=0.0) for name, of in rates.experts.items()})
    of = {
        (count, each): by_name(decode(network_of(MOE), rates, float(count), new=float(each)))["experts"]
        for count, each in ((sequences, 1), (sequences, new), (sequences * new, 1))
    }
    verified, plain, crowd = of[sequences, new], of[sequences, 1], of[sequences * new, 1]
    assert verified.moved_bytes == near(crowd.moved_bytes)
    assert verified.seconds == near(crowd.seconds)
    assert plain.moved_bytes < verified.moved_bytes <= new * plain.moved_bytes * (1 + 1e-9)


def test_groups_on_several_servers_gather_over_the_network():
    """Four groups of two ranks on two servers of four: one group of each server in two, so that every second step crosses."""
    slow = {"network_bytes_per_s": 1e9, "network_step_s": 1.0, "domain_devices": 4.0, "ring_cards": 4.0}
    rates = replace(ideal_rates(), link=replace(RING, **slow))
    found = by_name(decode(network_of(MOE), rates, 64.0, sharding=Sharding(2.0, data=4.0, expert=1.0)))
    whole = 2 * HIDDEN * 64
    passes = 2 * (3 / 4 * whole / (2 * 1e9) + 3 * 0.5)
    assert found["expert_exchange"].seconds == near(LAYERS * passes)
    inside = by_name(decode(network_of(MOE), rates, 64.0, sharding=Sharding(1.0, data=4.0, expert=1.0)))
    assert inside["expert_exchange"].seconds == near(0.0)


def test_tokens_are_sent_to_their_experts_and_back_where_an_engine_does_so():
    network, ranks = network_of(MOE), 4.0
    sending = ExchangeRates(1.0, 1.0, 1e9, 1e9, 2.0, 0.5, 0.25, 0.0)
    rates = replace(
        ideal_rates(link_bytes_per_s=1e9),
        decode_exchange=sending, prefill_exchange=GATHERED, dispatched_bytes={"bf16": 1.0},
    )  # fmt: skip
    found = by_name(decode(network, rates, 64.0, sharding=Sharding(1.0, data=ranks, expert=ranks)))
    chosen = MOE["num_experts_per_tok"]
    sent = 64 / ranks * HIDDEN * chosen * 3 / 4  # of four ranks, two in a domain
    assert found["expert_exchange"].sent_bytes == near(LAYERS * sent * (1 + 2))
    network_s = 64 / ranks * HIDDEN * chosen * 2 / 4 * (1 + 2) / 1e9
    assert found["expert_exchange"].seconds == near(LAYERS * (0.75 + network_s))
    waiting = replace(sending, wait_s=0.125)
    late = by_name(
        decode(
            network, replace(rates, decode_exchange=waiting), 64.0,
            sharding=Sharding(1.0, data=ranks, expert=ranks),
        )
    )  # fmt: skip
    assert late["expert_exchange"].seconds == near(found["expert_exchange"].seconds + LAYERS * 0.125)
    # Halves of an ideal device wait for what is sent alone, twice with its floors.
    halves = replace(rates, decode_exchange=replace(waiting, overlapping=1.0, wait_s=9.0))
    overlapped = by_name(decode(network, halves, 64.0, sharding=Sharding(1.0, data=ranks, expert=ranks)))
    assert overlapped["expert_exchange"].seconds == near(LAYERS * (2 * 0.75 + network_s))
    # Prompts are still gathered.
    prompts = by_name(prefill(network, rates, sharding=Sharding(1.0, data=ranks, expert=ranks)))
    plain = by_name(
        prefill(network, ideal_rates(link_bytes_per_s=1e9), sharding=Sharding(1.0, data=ranks, expert=ranks))
    )
    assert prompts["expert_exchange"] == plain["expert_exchange"]


def test_latent_attention_folds_its_expansion_into_decode_and_repeats_it_for_a_cached_prefix():
    network = network_of(MLA)
    slow = ideal_rates(flop_per_s=1e12)
    assert "kv_b" not in by_name(decode(network, slow))
    fresh = by_name(prefill(network, slow, past=0.0))
    assert fresh["kv_b"].flop == near(2 * 200 * 64 * HEADS * (24 + 40) * 2)
    mixer = network.layers[0].mixers[0]
    assert isinstance(mixer, LatentAttention)
    rates = replace(slow, latent_attention=LATENT)  # attention itself takes no time
    # 2560 cached tokens in all, whole tiles: they are expanded by a matmul of 64 inputs on each of two ranks.
    again = prefill_cost(mixer, 4.0, 128.0, 640.0, 2.0, 2.0, rates)
    full = rates.matmul["bf16"]
    assert again.seconds == near(2 * 2560 * 64 * HEADS / 2 * (24 + 40) / full.flop_per_s)
    assert prefill_cost(mixer, 4.0, 128.0, 0.0, 2.0, 2.0, rates).seconds == 0.0


def test_prefill_of_latent_attention_multiplies_whole_keys_and_values():
    """Counted pair by pair: a key has its rotary part, a value has none, and each is multiplied once."""
    mixer = network_of(MLA).layers[0].mixers[0]
    cost = prefill_cost(mixer, 3.0, 5.0, 7.0, 2.0, 2.0, ideal_rates(flop_per_s=1e12))
    pairs = sum(7 + query for query in range(1, 6))
    assert cost.flop == near(3 * (HEADS / 2) * pairs * 2 * ((24 + 16) + 40))


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("deepseek-ai/DeepSeek-V3.2", (2 * 512 + 64) / (128 + 64 + 128)), ("zai-org/GLM-5", 2.125)],
)
def test_prefill_with_an_indexer_is_absorbed(name, ratio):
    """Sparse kernels take queries as wide as a latent and its rotary key. What they multiply beside pairs, the expansion did."""
    network = in_weight_format(read_model(name), "bf16")
    mixer = network.layers[0].mixers[0]
    assert isinstance(mixer, LatentAttention)
    rates = ideal_rates(flop_per_s=1e12)

    def flop(past, *, selects):
        one = replace(mixer, index_heads=mixer.index_heads if selects else 0)
        return prefill_cost(one, 1.0, 64.0, past, 1.0, 1.0, rates).flop

    # A further cached key for each of 64 queries, all of them selected.
    pairs = [flop(101.0, selects=own) - flop(100.0, selects=own) for own in (True, False)]
    assert pairs[0] / pairs[1] == pytest.approx(ratio, rel=0.02)
    expanding = 2 * 64 * mixer.query_heads * mixer.kv_lora_rank * (mixer.nope_head_dim + mixer.value_head_dim)
    seen = sum(100 + i for i in range(1, 65))
    width = 2 * mixer.kv_lora_rank + mixer.rope_head_dim
    assert flop(100.0, selects=True) == near(2 * mixer.query_heads * width * seen + expanding)
    assert "kv_b" not in by_name(prefill(network, rates))


def test_an_indexer_scores_every_key_on_every_rank():
    sparse = replace(
        network_of(MLA).layers[0].mixers[0], index_heads=4, index_head_dim=128, index_top_tokens=100
    )
    plain = replace(sparse, index_heads=0)
    rates = ideal_rates(bytes_per_s=1e9)
    own = rates.latent_attention
    for tensor in (1.0, 4.0):
        for context in (60.0, 100.0):  # all tokens are read either way
            beside = indexer_time_s(6.0, 2.0, context, 4.0, 128.0, 1.0, own)
            costs = [decode_cost(m, 6.0, context, tensor, 2.0, rates, 2.0).seconds for m in (sparse, plain)]
            assert costs[0] - costs[1] == near(beside)
        beside = indexer_time_s(6.0, 50.0, 30.0, 4.0, 128.0, 1.0, own)
        absorbed = mla_absorption_time_s(300.0, HEADS / tensor, 64.0, 24.0, 40.0, own)
        absorbed += sparse_attention_prefill_time_s(
            6.0, 50.0, 30.0, HEADS / tensor, 64.0, 16.0, 2.0, own, 100.0
        )
        assert prefill_cost(sparse, 6.0, 50.0, 30.0, tensor, 2.0, rates).seconds == near(beside + absorbed)
    far = decode_cost(sparse, 6.0, 5000.0, 1.0, 2.0, rates)
    assert far.flop == decode_cost(plain, 6.0, 100.0, 1.0, 2.0, rates).flop


def test_a_chunk_of_llama_4_is_attended_whole_and_decode_begins_anew_in_the_next():
    """A prompt of one chunk has c (c + 1) / 2 pairs in every layer; the query after it sees itself alone where chunks are."""
    network = in_weight_format(read_model("meta-llama/Llama-4-Scout-17B-16E-Instruct"), "bf16")
    rates, chunk = ideal_rates(flop_per_s=1e12), 8192
    mixers = [mixer for layer in network.layers for mixer in layer.mixers]
    wide = 2 * 2 * mixers[0].query_heads * mixers[0].head_dim
    aligned = sum(mixer.chunked for mixer in mixers)
    assert (len(mixers), aligned) == (48, 36)
    pairs = chunk * (chunk + 1) // 2
    assert by_name(prefill(network, rates, 1.0, 8192.0, 0.0))["attention"].flop == near(48 * wide * pairs)
    for context in (8192, 8193, 20000, 3 * 8192):
        keys = aligned * ((context - 1) % chunk + 1) + (48 - aligned) * context
        found = by_name(decode(network, rates, 1.0, float(context)))["attention"].flop
        assert found == near(wide * keys)


@pytest.mark.parametrize("budget", [512, 2048, 8192])
def test_step_tables_keep_the_chunks_of_llama_4(budget):
    """What a table gives for the pieces of a prompt, and for decoding one sequence, is what the layers take."""
    network = in_weight_format(read_model("meta-llama/Llama-4-Scout-17B-16E-Instruct"), "bf16")
    aligned = next(layer for layer in network.layers if layer.mixers[0].chunked)
    network, rates = replace(network, layers=(aligned,)), ideal_rates(flop_per_s=1e12)
    limits = chunk_limits(network)
    knots = step_knots(64.0, 8192.0, 40000.0, context_limits(network), chunks=limits)
    launch = Launch(1.0, 1.0, 1.0, 1.0, 80e9, 2.0, 4096.0, 64.0, 8192.0, 0.9, 16.0).as_columns()
    table = table_of_plan(device_tables(network, launch, rates, knots).kernels, 0)

    def exact(costs):
        return float(total_s(costs))

    for context in (100, 8192, 8193, 12000, 16384, 16385, 33000):
        costs = decode_attention_costs(network, 1.0, float(context), Sharding(), 2.0, rates)
        assert bilinear(
            table.sequence_knots, table.context_knots, table.decode_attention_s, 1.0, float(context)
        ) == near(exact(costs))
    whole = exact(prefill_attention_costs(network, 1.0, 32768.0, 0.0, Sharding(), 2.0, rates))
    each = prefill_attention_per_token_s(table)
    parts = sum(
        budget * float(bilinear(*each, float(budget), float(past))) for past in range(0, 32768, budget)
    )
    assert parts == pytest.approx(whole, rel=0.03)


DELTA = LinearAttention("gated_delta", 4, 8, 32, 48, conv_channels=4 * 2 * 32 + 8 * 48, conv_kernel=4)
SPACE = StateSpace(2, 512, 8, 64, 16, 2, conv_channels=512 + 2 * 2 * 16, conv_kernel=4)
SCAN = StateSpace(1, 512, 1, 512, 16, 1, conv_channels=512, conv_kernel=4)
STATES = {DELTA: 8 * 32 * 48, SPACE: 512 * 16, SCAN: 512 * 16}


@pytest.mark.parametrize("tensor", [1.0, 4.0])
@pytest.mark.parametrize("mixer", STATES)
def test_a_state_is_read_and_written_and_its_convolution_keeps_its_columns(mixer, tensor):
    """The least traffic: a state of four bytes in and out, channels in and out in two, kept columns, taps."""
    rates = ideal_rates(bytes_per_s=1e9)
    state = 2 * 4 * STATES[mixer] / tensor
    for new, cost in ((1.0, decode_cost(mixer, 6.0, 300.0, tensor, 2.0, rates)), (
        100.0, prefill_cost(mixer, 6.0, 100.0, 0.0, tensor, 2.0, rates)
    )):  # fmt: skip
        channels = mixer.conv_channels / tensor
        convolution = 6 * channels * 2 * (2 * new + 2 * 3) + 2 * channels * 4
        assert cost.moved_bytes == near(6 * state + convolution)
        assert cost.memory_s == near((6 * state + convolution) / 1e9)
        assert cost.seconds >= cost.memory_s
    plain = replace(mixer, conv_channels=0)
    assert decode_cost(plain, 6.0, 300.0, tensor, 2.0, rates).moved_bytes == near(6 * state)
    assert plain.conv_channels == 0
    if mixer is DELTA:  # as those mixers are that never convolve
        assert LinearAttention("lightning", 4, 8, 32, 48).conv_channels == 0
    half = replace(plain, state_format="bf16")
    assert decode_cost(half, 6.0, 300.0, tensor, 2.0, rates).moved_bytes == near(3 * state)


@pytest.mark.parametrize("kind", ["gated_delta", "kda", "lightning"])
def test_only_a_delta_rule_corrects_its_state(kind):
    mixer, rates = replace(DELTA, kind=kind), ideal_rates(flop_per_s=1e12)
    cost = prefill_cost(mixer, 3.0, 128.0, 0.0, 2.0, 2.0, rates)
    flop = gated_delta_prefill_flop(3.0, 128.0, 4.0, 32.0, 48.0, 64.0, delta=kind != "lightning")
    assert cost.flop == near(flop)
    assert cost.seconds == near(flop / 1e12)


@pytest.mark.parametrize(("stated", "chunk"), [({}, 256), ({"chunk_size": 64}, 64)])
def test_the_config_says_how_many_tokens_mamba_2_scans_at_once(stated, chunk):
    """`Mamba2Config` and the kernels of mamba_ssm take 256 where nothing is stated."""
    sizes = {"num_heads": 8, "head_dim": 64, "hidden_size": 256, "state_size": 16, "n_groups": 2, "expand": 2}
    network = network_of({"model_type": "mamba2", "num_hidden_layers": 1, "vocab_size": 100} | sizes | stated)
    mixer = network.layers[0].mixers[0]
    assert isinstance(mixer, StateSpace)
    assert mixer.chunk_tokens == chunk
    cost = prefill_cost(mixer, 2.0, 512.0, 0.0, 2.0, 2.0, ideal_rates(flop_per_s=1e12))
    each = 1 * chunk * 16 + 4 * 64 * (
        chunk + 16 + 16
    )  # of a token, on one of two ranks: one group, four heads
    assert cost.flop == near(2 * 2 * 512 * each)
    assert cost.seconds == near(cost.compute_s) == near(cost.flop / 1e12)


@pytest.mark.parametrize("mixer", [DELTA, SPACE, SCAN])
def test_a_longer_prompt_of_a_state_takes_its_further_chunks_and_no_context(mixer):
    chained = replace(ideal_rates(), linear_attention=replace(LINEAR, chunk_step_s=1.0))
    seconds = [float(prefill_cost(mixer, 1.0, n, 0.0, 1.0, 2.0, chained).seconds) for n in (64.0, 640.0)]
    chunks = {
        DELTA: [1.0, 10.0],
        SPACE: [1.0, 3.0],
        SCAN: [0.0, 0.0],
    }  # of 64, of 256; Mamba-1 scans within one kernel
    assert seconds == chunks[mixer]
    slow = ideal_rates(bytes_per_s=1e9)
    assert decode_cost(mixer, 6.0, 10.0, 1.0, 2.0, slow) == decode_cost(mixer, 6.0, 9000.0, 1.0, 2.0, slow)


def test_a_gated_convolution_is_all_there_is_to_its_mixer():
    rates = ideal_rates(bytes_per_s=1e9)
    cost = decode_cost(ShortConvolution(512, 3), 6.0, 300.0, 2.0, 2.0, rates)
    moved = 6 * 256 * 2 * (2 + 2 * 2) + 2 * 256 * 3
    assert cost.moved_bytes == near(moved)
    assert cost.seconds == cost.memory_s == near(moved / 1e9)


KDA = {
    "model_type": "kimi_linear", "hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCABULARY,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": WIDTH,
    "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 40, "first_k_dense_replace": 1,
    "num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 64, "num_shared_experts": 1,
    "linear_attn_config": {"full_attn_layers": [], "kda_layers": [1], "head_dim": WIDTH, "num_heads": HEADS, "short_conv_kernel_size": 4},
}  # fmt: skip


def test_what_kimi_delta_attention_makes_of_its_input_is_one_product():
    """One read of the input: q, k, v, b and both gates of low rank; their second halves follow."""
    costs = by_name(decode(network_of(KDA), ideal_rates()))
    assert not {"b", "f_a", "g_a"} & costs.keys()
    assert {"f_b", "g_b"} <= costs.keys()
    outputs = 3 * HEADS * WIDTH + HEADS + 2 * WIDTH
    assert costs["qkv"].flop == near(6 * 2 * HIDDEN * outputs)
    assert costs["qkv"].moved_bytes == near(2 * HIDDEN * outputs + 2 * 6 * (HIDDEN + outputs))


amounts = st.integers(0, 2000).map(lambda n: n / 8)
operators = st.builds(
    OperatorCost, st.sampled_from("abc"), amounts, amounts, amounts, st.just(0.0), amounts, amounts
)


@FEW
@given(st.lists(operators, min_size=1, max_size=8), st.integers(1, 5))
def test_costs_are_summed_by_name_without_loss(costs, count):
    together = summed(costs)
    assert [c.operator for c in together] == list(dict.fromkeys(c.operator for c in costs))
    for field in ("seconds", "flop", "moved_bytes", "sent_bytes", "compute_s", "memory_s"):
        assert sums(together, field) == near(sums(costs, field))
        assert sums([c.times(count) for c in costs], field) == near(count * sums(costs, field))
    assert float(total_s(costs)) == near(sums(costs, "seconds"))


@FEW
@given(st.lists(operators, min_size=1, max_size=8), amounts)
def test_what_a_graph_cannot_hide_lies_between_the_floors_and_the_sum(costs, sending):
    slack = 1 + 1e-9
    assert floor_s(costs) <= unsaved_s(costs) * slack <= total_s(costs) * slack**2
    collective = OperatorCost("sent", sending, sent_bytes=1.0, memory_s=2 * sending)
    for whole in (floor_s, unsaved_s, total_s):
        assert whole([*costs, collective]) == near(whole(costs) + sending)


def test_a_graph_hides_waiting_and_no_arithmetic():
    assert unsaved_s([OperatorCost("launch", 3.0, overlaps=True)]) == 0.0
    assert unsaved_s([OperatorCost("copy", 3.0, memory_s=2.0, overlaps=True)]) == near(2.0)
    # Arithmetic at half of the peak: its floor stays, and of the other half what the floor does not hold.
    assert unsaved_s([OperatorCost("matmul", 4.0, compute_s=2.0, overlaps=True)]) == near(2.0 + 2.0 * 0.5)
    assert unsaved_s([OperatorCost("matmul", 4.0, compute_s=1.0, memory_s=3.0, overlaps=True)]) == near(
        3.0 + 1.0 * 0.25
    )
    # Attention, experts and collectives keep all of their time.
    assert unsaved_s([OperatorCost("experts", 4.0, memory_s=3.0)]) == near(4.0)


def test_a_bound_is_the_larger_floor_unless_both_are_far_below_the_time():
    assert bound(OperatorCost("a", 2.9, compute_s=1.0, memory_s=0.5)) == "compute"
    assert bound(OperatorCost("a", 2.9, compute_s=0.5, memory_s=1.0)) == "memory"
    assert bound(OperatorCost("a", 3.1, compute_s=1.0, memory_s=0.5)) == "latency"
    assert bound(OperatorCost("a", 1.0, compute_s=1.0, sent_bytes=1.0)) == "network"


LLAMA = {
    "model_type": "llama", "hidden_size": 96, "intermediate_size": 224, "vocab_size": 500, "head_dim": 16,
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
TOKENS, RANK, SHARE = 40.0, 6, 0.75


@pytest.mark.parametrize("tensor", [1.0, 2.0])
@pytest.mark.parametrize("decode", [True, False])
def test_fully_sharded_adapters_send_what_is_between_their_products(tensor, decode):
    """What has the width of the rank is gathered where a matrix is split by columns, and summed where it is by rows, in fp32."""
    adapters = Adapters(9, 5, RANK, ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj"), True, SHARE)
    network = replace(read_network(LLAMA, "small"), adapters=adapters)
    rates = ideal_rates(link_bytes_per_s=1e9, bytes_per_s=1e9)
    costs = adapter_costs(network, TOKENS, Sharding(tensor), rates, decode=decode)
    adapted = TOKENS * SHARE
    reduced = 4.0 * RANK * adapted
    gathered = 3 * reduced  # queries, keys and values are three parts
    link = rates.link
    seconds = 3 * all_gather_time_s(tensor, gathered, link) + 6 * all_reduce_time_s(tensor, reduced, link)
    sent = [cost for cost in costs if cost.operator == "adapter_exchange"]
    assert sum(float(cost.seconds) for cost in sent) == near(seconds)
    assert sum(float(cost.sent_bytes) for cost in sent) == near(3 * gathered + 6 * reduced)
    assert (seconds > 0.0) == (tensor > 1.0)
    assert RING.link_bytes_per_s != link.link_bytes_per_s
    # Two FLOP for each element on a rank and adapted token: both matrices are split.
    elements = RANK * (3 * 96 + 8 * 16 + 2 * 2 * 16) + RANK * (8 * 16 + 96) + RANK * (224 + 96)
    flop = sum(float(cost.flop) for cost in costs if cost.operator == "adapters")
    assert flop == near(3 * 2 * adapted * elements / tensor)


def test_a_narrow_window_leaves_a_shorter_tail_in_an_encoder():
    """The longest block ends where its window does: a tile of queries, the window, and a tile of keys more at most."""
    shape, widths = (2.0, 1000.0, 6.0, 3.0), (32.0, 24.0)
    rates = replace(ATTENTION, flop_per_s=1e12, prefill_tail_fraction=0.5)
    for window, longest_keys in ((np.inf, 1000), (801.0, 929), (101.0, 229)):
        pairs = 2 * 6 * bidirectional_pairs(1000.0, window)
        tail = 0.5 * 4 * 128 * longest_keys  # half of a block on each of four multiprocessors
        found = bidirectional_attention_time_s(*shape, *widths, window, rates)
        assert found == near(2 * (32 + 24) * (pairs + tail) / 1e12)


@pytest.mark.parametrize("window", [None, 31])
def test_attention_of_an_encoder_step(window):
    mixer = Attention(8, 4, 32, 24, window_tokens=window, causal=False)
    cost = prefill_cost(mixer, 3.0, 100.0, 0.0, 2.0, 2.0, ideal_rates(flop_per_s=1e12))
    side = 100 if window is None else 15
    pairs = sum(abs(i - j) <= side for i in range(100) for j in range(100))
    assert cost.flop == near(2 * 3 * 4 * (32 + 24) * pairs)
    assert cost.seconds == near(cost.flop / 1e12)
    moved = 3 * 100 * 2 * (4 + 2) * (32 + 24)  # queries and outputs, keys and values, in two bytes
    assert cost.moved_bytes == near(moved)


def test_attention_and_convolution_of_a_decode_step():
    rates = ideal_rates(flop_per_s=1e12)
    cost = decode_cost(Attention(8, 4, 32, 24), 3.0, 70.0, 2.0, 1.5, rates, 5.0)
    assert cost.flop == near(2 * 3 * 5 * 4 * (32 + 24) * 70)
    assert cost.moved_bytes == near(3 * (32 + 24) * (70 * 2 * 1.5 + 2 * 5 * 4))
    crossed = decode_cost(CrossAttention(8, 32, 90), 3.0, 70.0, 2.0, 1.5, rates, 5.0)
    assert crossed.flop == near(2 * 3 * 5 * 4 * (32 + 32) * 90)
    assert crossed.moved_bytes == near(3 * (32 + 32) * (90 * 4 * 1.5 + 2 * 5 * 4))
    columns = decode_cost(ShortConvolution(48, 4), 3.0, 70.0, 2.0, 1.5, rates, 5.0)
    assert columns.moved_bytes == near(2 * 3 * 24 * (2 * 5 + 2 * 3) + 2 * 24 * 4)


def test_a_tower_norms_and_sums_twice_a_layer():
    tower = read_model("Qwen/Qwen3-VL-8B-Instruct", offline=True).images.tower
    patches, image = 640, ImageWork(640, 160, 1.0)
    rates = ideal_rates(link_bytes_per_s=1e9, bytes_per_s=1e9)
    costs = {cost.operator: cost for cost in summed(tower_costs(tower, image, "bf16", 2.0, rates))}
    message = 2 * tower.hidden_size * patches
    assert costs["all_reduce"].sent_bytes == near(2 * tower.layers * message)
    assert costs["all_reduce"].seconds == near(2 * tower.layers * all_reduce_time_s(2.0, message, rates.link))
    assert costs["norm"].seconds >= 2 * tower.layers * 8 * tower.hidden_size * patches / 1e9 * (1 - 1e-9)
    heads, width = tower.heads / 2, tower.hidden_size / tower.heads
    pairs = tower.layers * patches**2
    assert costs["attention"].flop == pytest.approx(4 * heads * width * pairs, rel=0.002)


def test_a_file_with_two_towers_counts_both_and_their_projectors():
    """Each tower and each projector alone changes the parameters by what it has: none is left out of the sum."""
    text = {
        "model_type": "llama", "hidden_size": 96, "intermediate_size": 224, "vocab_size": 500,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
    }  # fmt: skip
    tower = {
        "model_type": "clip_vision_model", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": 4, "image_size": 56, "patch_size": 14, "projection_dim": 48,
    }  # fmt: skip
    whole = {
        "model_type": "llava",
        "text_config": text,
        "vision_config": tower,
        "projector_hidden_act": "gelu",
    }

    def parameters(**changed):
        return read_network(whole | {"vision_config": tower | changed}, "small").vision_parameters

    layer = 4 * (48 * 48 + 48) + 2 * 48 * 80 + 48 + 80 + 2 * 2 * 48  # four matrices, two more, two norms
    assert parameters(num_hidden_layers=4) - parameters() == layer
    projector = 48 * 96 + 96 + 96 * 96 + 96
    patches = 3 * 14 * 14 * 48 + (16 + 1) * 48 + 48 + 2 * 2 * 48  # convolution, positions, class, two norms
    assert parameters() == 3 * layer + patches + projector


def test_adapters_read_those_in_use_and_move_what_tokens_have():
    """Of adapted tokens: inputs read and outputs read and written, in two bytes, and what is between both products."""
    adapters = Adapters(9, 5, RANK, ("o_proj",), False, SHARE)
    network = replace(read_network(LLAMA, "small"), adapters=adapters)
    (cost, *more) = adapter_costs(network, TOKENS, Sharding(2.0), ideal_rates(), decode=False)
    assert not more
    moved = adapter_bytes(TOKENS * SHARE, 5.0, RANK * (64 + 96), 64.0, 96.0, float(RANK), 2.0)
    assert cost.moved_bytes == near(3 * moved)


def test_a_tower_is_split_like_a_text_model():
    """By columns and rows within a layer on two ranks; patches and merger are whole on each of them."""
    tower, image = (
        read_model("Qwen/Qwen3-VL-8B-Instruct", offline=True).images.tower,
        ImageWork(640, 160, 1.0),
    )
    costs = summed(tower_costs(tower, image, "bf16", 2.0, ideal_rates()))
    found = {cost.operator: cost for cost in costs}
    hidden, wide, layers = tower.hidden_size, tower.intermediate_size, tower.layers

    def moved(inputs, outputs, rows=640):
        return 2 * (inputs * outputs + rows * (inputs + outputs))

    assert found["patches"].moved_bytes == near(moved(tower.patch_inputs, hidden))
    assert found["qkv"].moved_bytes == near(layers * moved(hidden, 3 * hidden / 2))
    assert found["o"].moved_bytes == near(layers * moved(hidden / 2, hidden))
    assert found["up"].moved_bytes == near(layers * moved(hidden, (1 + tower.gated) * wide / 2))
    assert found["down"].moved_bytes == near(layers * moved(wide / 2, hidden))
    assert found["merger"].moved_bytes == near(sum(moved(*matrix, 160) for matrix in tower.merger))


def test_prefill_of_compressed_attention():
    """Each of 50 queries sees its window of 16 and an entry for each of eight tokens, of which it reads six at most."""
    mixer = CompressedAttention(
        8, 64, 24, 16, 4, entry_tokens=8, index_heads=4, index_head_dim=32, index_top_entries=6
    )
    rates = ideal_rates(flop_per_s=1e12)
    cost = prefill_cost(mixer, 3.0, 50.0, 30.0, 2.0, 1.5, rates)
    pairs = visible_pairs(50.0, 30.0, 16.0, 8.0, 6.0)
    assert cost.flop == near(3 * 4 * 64 * 4 * pairs)
    vectors = visible_vectors(30.0, 16.0, 8.0, 6.0)
    assert cost.moved_bytes == near(3 * (4 * 50 * 4 * 64 + (vectors + 50) * 64 * 1.5))
    own = rates.latent_attention
    seconds = compressed_prefill_time_s(50.0, 30.0, 4.0, 64.0, 16.0, 8.0, 6.0, 1.5, own, 3.0)
    beside = entry_indexer_time_s(3.0, 50.0, 30.0, 4.0, 32.0, 8.0, own)
    assert beside > 0.0
    assert cost.seconds == near(seconds + beside)


def test_an_indexer_reads_keys_of_its_width_once_for_all_its_heads():
    """Heads and width are alike to its products; its keys are as wide as one head."""
    rates = ideal_rates(bytes_per_s=1e9)
    mixers = (
        Attention(8, 4, 32, 24, index_heads=4, index_head_dim=160, index_top_tokens=16),
        CompressedAttention(
            8, 64, 24, 16, 4, entry_tokens=8, index_heads=4, index_head_dim=160, index_top_entries=6
        ),
    )
    for mixer in mixers:
        plain = replace(mixer, index_heads=0)
        took = [float(prefill_cost(own, 3.0, 50.0, 800.0, 2.0, 2.0, rates).seconds) for own in (mixer, plain)]
        wide = replace(mixer, index_heads=160, index_head_dim=4)
        swapped = float(prefill_cost(wide, 3.0, 50.0, 800.0, 2.0, 2.0, rates).seconds)
        assert took[0] - took[1] > 5.0 * (swapped - took[1]) > 0.0


def test_context_ranks_share_out_the_keys_and_exchange_queries_sums_and_outputs():
    network = in_weight_format(read_model("deepseek-ai/DeepSeek-R1"), "bf16")
    rates, sequences, keys = ideal_rates(), 4.0, 8192.0
    alone, shared = (
        {
            cost.operator: cost
            for cost in decode_attention_costs(
                network, sequences, keys, Sharding(8.0, context=context), 2.0, rates
            )
        }
        for context in (1.0, 8.0)
    )
    layers, heads, latent, rope = len(network.layers), 128, 512, 64
    assert "context_exchange" not in alone
    sent = sequences * heads * (2 * (latent + rope) + 4 * 8 + 2 * latent)
    assert shared["context_exchange"].sent_bytes == near(layers * sent)
    cached = layers * sequences * keys * (latent + rope) * 2.0
    queries = layers * sequences * 2.0 * (2 * latent + rope) * heads
    moved = shared["attention"].moved_bytes - alone["attention"].moved_bytes
    assert moved == near(queries * 7 / 8 - cached * 7 / 8, rel=0.02)
    read = prefill_attention_costs(network, 1.0, 512.0, keys, Sharding(8.0, context=8.0), 2.0, rates)
    gathered = next(cost for cost in read if cost.operator == "context_exchange")
    assert gathered.sent_bytes == near(layers * keys * (latent + rope) * 2.0)
