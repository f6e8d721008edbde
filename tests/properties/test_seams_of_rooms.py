"""What a default, a stage or a limit of a record means, counted by hand where nothing else would notice."""

from dataclasses import replace

import numpy as np
import pytest

from capplan.engine.lookup import profile
from capplan.hardware.device import Device, engine_memory_bytes
from capplan.memory.capacity import cache_capacity, token_capacity
from capplan.memory.launch import Launch
from capplan.model.kv_cache import state_bytes
from capplan.model.network import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Network,
    Projection,
)
from capplan.phases.mixer_work import decode_cost
from capplan.recorded.traces.trace import read_trace
from capplan.workload.sessions import LARGEST_BLOCK_TOKENS
from tests.nearness import near
from tests.properties.ideal_device import ideal_rates

HEAD = Projection("lm_head", "lm_head", 64, 1000, "columns")
LAUNCH = Launch(1.0, 1.0, 1.0, 1.0, 8e9, 2.0, 4096.0, 64.0, 2048.0, 0.9, 16.0)


def network(*mixers):
    return Network("n", "t", 64, 1000, tuple(Layer((mixer,), ()) for mixer in mixers), HEAD, True, 64000)


def test_a_recurrent_mixer_keeps_its_state_alone_unless_it_convolves():
    """Lightning attention (arXiv:2501.08313, section 2.2.1) has no convolution: d x d numbers for each head, in fp32."""
    lightning = LinearAttention("lightning", 8, 8, 64, 64, state_elements=8 * 64 * 64)
    (state,) = lightning.description.state_parts
    assert state.elements == state.allocated_elements == 32768
    assert state_bytes(lightning) == 4 * 32768
    assert state_bytes(LinearAttention("lightning", 8, 8, 64, 64)) == 0.0
    delta = replace(lightning, kind="kda", conv_channels=100, conv_kernel=4)
    assert state_bytes(delta) == 4 * 32768 + 2 * 100 * 4


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    "mixer",
    [
        Attention(4, 4, 16, 16),
        CompressedAttention(64, 512, 64, 128, 8, 128),
        CompressedAttention(64, 512, 64, 128, 8, 4, overlapping=True, index_heads=8, index_head_dim=128),
    ],
)
def test_a_stage_with_half_of_the_layers_holds_as_many_sequences_in_half_of_the_bytes(engine, mixer):
    rules, model = profile(engine), network(*[mixer] * 8)
    tokens, sequences, size = cache_capacity(2e9, model, LAUNCH, rules, 1.0)
    half_tokens, half_sequences, half_size = cache_capacity(1e9, model, LAUNCH, rules, 0.5)
    assert half_size == near(float(size) / 2)
    assert half_sequences == near(float(sequences))
    assert half_tokens == near(float(tokens))
    assert sequences > 1.0
    # All of them fit; compressed attention keeps room for the chunk in flight besides.
    reserved = float(sequences) * float(size)
    assert reserved <= 2e9
    assert reserved > 2e9 * (0.98 if isinstance(mixer, Attention) else 0.8)


def test_tokens_of_equal_sequences_are_sequences_times_their_length():
    assert token_capacity(0.0, 100.0, 64.0) == 0.0
    assert token_capacity(-5.0, 100.0, 64.0) == 0.0
    assert token_capacity(250.0, 100.0, 64.0) == near(2.5 * 64)


def test_networks_without_a_cache_hold_every_sequence_that_may_run():
    empty = network()
    rules = profile("vllm")
    tokens, sequences, size = cache_capacity(1.0, empty, LAUNCH, rules, 1.0)
    assert float(sequences) == 64.0
    assert float(tokens) == 64.0 * 4096.0
    assert float(size) == 0.0
    tokens, sequences, _ = cache_capacity(-1.0, empty, LAUNCH, rules, 1.0)
    assert float(sequences) == float(tokens) == 0.0


def test_a_sparse_decode_attends_to_the_selected_tokens_and_scores_all():
    """DeepSeek V3.2: 2,048 of the context (arXiv:2512.02556, section 2.1); the index keys of all tokens are read."""
    dense = LatentAttention(16, 512, 64, 128, 128)
    sparse = replace(dense, index_heads=4, index_head_dim=128, index_top_tokens=2048)
    rates = ideal_rates(flop_per_s=1e12)
    for context in (1000.0, 2048.0, 50_000.0):
        attends = min(context, 2048.0)
        here, selected = (
            decode_cost(mixer, 3.0, tokens, 1.0, 2.0, rates)
            for mixer, tokens in ((sparse, context), (dense, attends))
        )
        assert here.flop == near(float(selected.flop))
        assert here.moved_bytes == near(float(selected.moved_bytes))
        scored = 2.0 * 3 * 4 * 128 * (1.0 + context)
        assert here.seconds - selected.seconds == near(scored / 1e12)


def test_blocks_of_64_tokens_name_the_next_turn_and_larger_ones_do_not(tmp_path):
    """vLLM's timed traces have blocks of 64 tokens, Mooncake's of 512."""
    path = tmp_path / "trace.jsonl"
    rows = [(128, 128, [1, 2]), (384, 1, [1, 2, 3, 4, 5, 6])]
    lines = (
        f'{{"timestamp": {place}, "input_length": {p}, "output_length": {o}, "chat_id": {place}, "hash_ids": {ids}}}\n'
        for place, (p, o, ids) in enumerate(rows)
    )
    path.write_text("".join(lines))
    trace = replace(read_trace(path), block_tokens=LARGEST_BLOCK_TOKENS)
    assert LARGEST_BLOCK_TOKENS == 64
    requests = trace.requests()
    assert requests.output_counts.tolist() == [2, 0]
    assert requests.output_ids.tolist() == [3, 4]
    for larger in (65, 128, 512):
        assert replace(trace, block_tokens=larger).requests().output_ids is None
    assert np.size(requests.block_ids) == 8


def test_an_engine_budgets_what_a_process_sees():
    """Logged totals lie 0.44 to 0.6 GiB below what the driver prints; memory sold in GB is as many GiB."""
    device = Device(
        "x", "X", "v", "hopper", 80e9, None, 1.0, {}, None, None, None, None, None, 1, None, 8, None, {}
    )
    printed = replace(device, driver_memory_bytes=81559 * 2.0**20)
    assert 0.44 * 2**30 <= 81559 * 2.0**20 - engine_memory_bytes(printed) <= 0.6 * 2**30
    assert 0.44 * 2**30 <= 80 * 2.0**30 - engine_memory_bytes(device) <= 0.6 * 2**30
    assert engine_memory_bytes(replace(printed, reported_memory_bytes=85e9)) == 85e9
