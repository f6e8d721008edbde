"""Operators whose arguments a step could swap unseen: shapes without two equal sizes, demand counted by hand.

Numbers that differ from one another everywhere make a swapped pair of arguments, or one that is left out, a different result.
"""

from dataclasses import replace

import numpy as np
import pytest

from capplan.families.model_config import read_network
from capplan.model.images import ImageWork
from capplan.model.network import Adapters, Attention, CompressedAttention, CrossAttention, ShortConvolution
from capplan.model.sharding import Sharding
from capplan.operators.attention import bidirectional_attention_time_s, bidirectional_pairs
from capplan.operators.collective import all_gather_time_s, all_reduce_time_s
from capplan.operators.compressed_attention import (
    compressed_prefill_time_s,
    entry_indexer_time_s,
    visible_pairs,
    visible_vectors,
)
from capplan.operators.matmul import adapter_bytes
from capplan.phases.cost import summed
from capplan.phases.mixer_work import decode_cost, prefill_cost
from capplan.phases.step import adapter_costs
from capplan.phases.token_work import tower_costs
from capplan.readers.catalogue.models import read_model
from tests.nearness import near
from tests.properties.ideal_device import ATTENTION, RING, ideal_rates

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
