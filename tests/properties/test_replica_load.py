"""What a replica delivers at a load, on an engine whose steps a person can add up, and where its time goes."""

from dataclasses import replace
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from capplan.engine.lookup import profile
from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.model.sharding import Sharding
from capplan.phases.step import decode_step_costs, prefill_step_costs
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.replica.estimate import (
    FRONT_END,
    LAUNCHES,
    OperatorRow,
    bottleneck_of,
    breakdown_of,
    estimate,
    requests_for,
)
from capplan.replica.load import Load
from capplan.replica.replica import replica_of
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import (
    largest_graph_tokens,
    rejection_s,
    round_table,
    speculating_replica,
    step_time_s,
)
from capplan.serving.step_table import StepTable, decode_step_s, launching_s, mixed_step_s, piecewise_linear
from tests.nearness import near

ONE = np.array([1.0])
FLAT = StepTable(
    ONE, 0.25 * ONE, 0 * ONE, ONE, np.array([[0.0]]), ONE, 0.5 * ONE, ONE, ONE, np.array([[0.0]]), 0.125
)
"""Steps of a quarter of a second, half a second with prompts; an eighth for every request before."""
CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 3072, "vocab_size": 32000, "head_dim": 64,
    "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 8192,
}  # fmt: skip


def spec(**sharding):
    l4 = device("l4")
    return ReplicaSpec(
        read_network(CONFIG, "small"),
        l4,
        efficiency_for(l4),
        profile("vllm"),
        Sharding(**sharding),
        "bf16",
        8192,
        64,
        2048,
    )


@pytest.fixture(scope="module")
def replica():
    return replica_of(spec())


@pytest.fixture(scope="module")
def flat(replica):
    """Two seats and steps that do not depend on what they hold."""
    return replace(replica, table=FLAT, scheduling=Scheduling("mixed", 2, 4096), kv_blocks=4096)


@pytest.mark.parametrize("rate", [0.2, 1.0, 50.0])
def test_an_open_load_comes_at_its_rate_at_random(rate):
    """A Poisson process: 15,000 gaps with the mean 1 / rate, exponential (five standard errors; p above 0.1 %)."""
    requests, warm = requests_for(Load(100, 10, request_rate=rate, prefix_hit_fraction=0.25))
    assert (len(requests), warm) == (15_000, 2250)
    gaps = np.diff(requests.arrival_s)
    assert gaps.mean() * rate == pytest.approx(1.0, abs=5 / 15_000**0.5)
    assert stats.kstest(gaps * rate, "expon").pvalue > 0.001
    assert set(requests.input_tokens) == {100}
    assert set(requests.output_tokens) == {10}
    assert set(requests.cached_tokens) == {25}
    other, _ = requests_for(Load(100, 10, request_rate=rate, seed=2, requests=500))
    assert len(other) == 500
    assert other.arrival_s[0] != requests.arrival_s[0]


@pytest.mark.parametrize(("concurrency", "count"), [(1, 200), (50, 200), (100, 400), (3000, 8000)])
def test_a_closed_load_warms_up_with_one_request_of_each_client(concurrency, count):
    requests, warm = requests_for(Load(100, 10, concurrency=concurrency))
    assert warm == concurrency
    assert len(requests) == warm + count
    assert requests.arrival_s is None
    full, _ = requests_for(Load(100, 10, concurrency=1, prefix_hit_fraction=1.0, requests=7))
    assert len(full) == 8
    assert set(full.cached_tokens) == {99}  # the last token of a prompt is always worked on


def test_one_client_gets_one_step_after_the_other(flat):
    found = estimate(flat, Load(100, 9, concurrency=1, requests=50))
    assert found.ttft_s.mean == near(0.125 + 0.5)
    assert found.tpot_s.p99 == near(0.25)
    assert found.e2e_s.mean == near(0.625 + 8 * 0.25)
    assert found.requests_per_s == near(1 / 2.625)
    assert found.output_tokens_per_s == near(9 / 2.625)
    assert found.total_tokens_per_s == near(109 / 2.625)
    assert found.concurrency == 1.0
    assert not found.saturated
    # Seven blocks for the prompt of 100 and what follows, all the time but for the eighth of a second of each request.
    assert found.kv_occupancy_fraction == pytest.approx(7 / 4096, rel=0.08)


@pytest.mark.parametrize("tensor", [1.0, 2.0])
def test_output_is_shared_by_the_devices_of_the_replica(flat, tensor):
    wide = replace(flat, spec=replace(flat.spec, sharding=Sharding(tensor)))
    found = estimate(wide, Load(100, 9, concurrency=2, requests=50))
    assert found.output_tokens_per_s_per_gpu * tensor == near(found.output_tokens_per_s)


def test_an_open_loop_beyond_the_capacity_is_saturated(flat):
    """Two seats serve at most two requests in 0.5 + 8 x 0.25 s, and no fewer than with a prefill for each of both."""
    light, heavy = (estimate(flat, Load(100, 9, request_rate=rate, requests=400)) for rate in (0.2, 3.0))
    assert not light.saturated
    assert light.requests_per_s == pytest.approx(0.2, rel=0.15)
    assert heavy.saturated
    assert 2 / 3.0 * 0.99 <= heavy.requests_per_s <= 2 / 2.5 * 1.01
    assert light.concurrency == pytest.approx(0.2 * light.e2e_s.mean)


@given(
    concurrency=st.none() | st.integers(1, 40),
    rate=st.floats(0.02, 3.0),
    prompt=st.integers(1, 300),
    output=st.integers(1, 40),
)
def test_requests_in_flight_are_those_that_come_in_the_time_that_each_takes(
    flat, concurrency, rate, prompt, output
):
    """Little's law; a closed loop against a run of 40 times as many requests, an open one against what is offered."""
    load = Load(prompt, output, concurrency=concurrency, request_rate=None if concurrency else rate)
    found = estimate(flat, load)
    assert found.requests_per_s * found.e2e_s.mean == pytest.approx(found.concurrency, rel=0.02)
    if concurrency:
        assert found.concurrency == pytest.approx(concurrency)
        longer = estimate(flat, replace(load, requests=40 * concurrency + 400))
        assert found.requests_per_s == pytest.approx(longer.requests_per_s, rel=0.02)
    else:
        assert found.requests_per_s <= rate
        assert found.saturated or found.requests_per_s == rate
    for latency in (found.ttft_s, found.tpot_s, found.e2e_s):
        if not isnan(latency.mean):
            assert latency.p50 <= latency.p90 <= latency.p95 <= latency.p99
    if output > 1:
        parts = found.ttft_s.mean + (output - 1) * found.tpot_s.mean
        assert found.e2e_s.mean == pytest.approx(parts, rel=1e-6)


@pytest.mark.parametrize("load", [Load(10, 10), Load(10, 10, concurrency=1, request_rate=1.0)])
def test_a_load_is_a_concurrency_or_a_rate(flat, load):
    with pytest.raises(InputError, match="either --concurrency N or --request-rate R"):
        estimate(flat, load)


def test_the_longest_context_is_the_longest_request(flat):
    estimate(flat, Load(8000, 192, concurrency=1, requests=2))
    with pytest.raises(InputError, match="8193 tokens exceeds the longest context of 8192"):
        estimate(flat, Load(8000, 193, concurrency=1, requests=2))


def test_the_breakdown_is_that_of_one_prompt_and_one_step(replica):
    load = Load(1000, 200, concurrency=8, prefix_hit_fraction=0.4)
    rows = breakdown_of(replica, load, 8.0)
    rates, host = replica.rates.rates, replica.spec.profile.host
    network = replica.spec.network
    prefill = prefill_step_costs(network, 1.0, 600.0, 400.0, Sharding(), 2.0, rates)
    decode = decode_step_costs(network, 8.0, 1100.0, Sharding(), 2.0, rates)
    for phase, costs, beside in (
        ("prefill", prefill, 0.0), ("decode", decode, host.step_s + 8 * (host.sequence_s + host.stream_s)),
    ):  # fmt: skip
        mine = [row for row in rows if row.phase == phase and row.operator != LAUNCHES]
        assert sum(row.seconds for row in mine) == near(sum(float(cost.seconds) for cost in costs) + beside)
        assert sum(row.flop for row in mine) == near(sum(float(cost.flop) for cost in costs))
        kept = [cost for cost in costs if float(cost.seconds) > 0]
        assert sum(row.bytes for row in mine) == near(
            sum(float(cost.moved_bytes + cost.sent_bytes) for cost in kept)
        )
    assert {row.operator for row in rows if row.phase == "decode"} >= {"qkv", "attention", "lm_head", "host"}
    assert not any(row.operator == "all_reduce" for row in rows)  # of one rank, in no time
    waits = sum(row.seconds for row in rows if row.operator == LAUNCHES)
    least = float(launching_s(replica.table, 600.0))
    assert waits == near(max(least - sum(float(cost.seconds) for cost in prefill), 0.0))
    alone = breakdown_of(replica, load, 0.2)
    assert alone == breakdown_of(replica, load, 1.0)


def test_the_steps_of_a_pipeline_are_those_of_one_micro_batch(replica):
    """Eight sequences on two stages decode in two micro-batches of four; a prompt is in one of them."""
    load, piped = Load(1000, 100, concurrency=8), replica_of(spec(pipeline=2.0))

    def seconds(rows):
        return {
            (row.phase, row.operator): row.seconds
            for row in rows
            if row.operator not in {"host", "stage_transfer"}
        }

    assert seconds(breakdown_of(piped, load, 8.0)) == pytest.approx(seconds(breakdown_of(replica, load, 4.0)))


def row(operator, phase, seconds, kind):
    return OperatorRow(operator, phase, seconds, 0.0, 0.0, kind)


def test_a_bottleneck_is_what_takes_most_of_the_time_of_a_request():
    """A prompt is worked on alone, a decode step is shared by all sequences and needed for every token."""
    rows = (
        row("gate_up", "prefill", 5.0, "compute"), row("down", "prefill", 4.0, "compute"),
        row("attention", "decode", 0.5, "memory"), row("qkv", "decode", 0.4, "memory"), row("host", "decode", 0.8, "latency"),
    )  # fmt: skip
    assert (
        bottleneck_of(rows, 100, 10.0) == "prefill compute (gate_up)"
    )  # 9.0 against 10 x 0.9 = 9.0, the first wins
    assert bottleneck_of(rows, 101, 10.0) == "decode memory (attention)"
    assert bottleneck_of(rows, 9, 0.1) == "prefill compute (gate_up)"  # one sequence at least
    assert bottleneck_of(rows, 11, 0.1) == "decode memory (attention)"


@pytest.mark.parametrize(("drafts", "draft_s"), [(1, 0.002), (3, 0.0), (8, 0.01)])
def test_a_round_is_a_step_its_drafts_and_what_verifying_takes_beyond_one_token(replica, drafts, draft_s):
    table, rounds = replica.table, round_table(replica, draft_s, drafts)
    batch = table.sequence_knots
    one, many = np.ones_like(batch), np.full_like(batch, drafts + 1.0)
    drawn_s = rejection_s(replica.spec, drafts * np.maximum(batch, 1.0))
    # More tokens than the largest graph holds take at least as long as prompts of as many.
    eager = piecewise_linear(table.token_knots, table.mixed_s, batch * (drafts + 1)) + table.head_s
    beyond = batch * (drafts + 1) > largest_graph_tokens(replica.spec, drafts + 1.0)
    assert beyond.any() == (drafts == 8)
    assert not beyond.all()
    for place, context in list(enumerate(table.context_knots))[::4]:
        plain, verified = (step_time_s(replica.spec, batch, float(context), n) for n in (one, many))
        step = table.decode_s + table.decode_attention_s[:, place] + verified - plain
        least = eager + table.decode_attention_s[:, place]
        found = rounds.decode_s + rounds.decode_attention_s[:, place] - drafts * draft_s - drawn_s
        assert found[~beyond] == near(step[~beyond])
        assert np.all(found[beyond] >= np.maximum(step, least)[beyond] * (1 - 1e-9))
        if place == 0:
            assert found[beyond] == near(np.maximum(step, least)[beyond])
    assert rounds.head_s == near(table.head_s + drafts * draft_s + drawn_s)
    for name in ("mixed_s", "prefill_attention_s", "request_s"):
        assert np.all(getattr(rounds, name) == getattr(table, name))


def test_the_largest_graph_holds_the_verified_tokens_of_its_sequences(replica):
    """vLLM: min(2 x 64 x (drafts + 1), 512) tokens; SGLang: its largest batch, each sequence with its verified tokens."""
    assert [float(largest_graph_tokens(replica.spec, tokens)) for tokens in (1.0, 2.0, 4.0, 9.0)] == [
        128.0,
        256.0,
        512.0,
        512.0,
    ]
    other = replace(replica.spec, profile=profile("sglang"))
    assert largest_graph_tokens(other, 4.0) == 4.0 * largest_graph_tokens(other, 1.0)
    two = replace(replica.spec, sharding=replace(replica.spec.sharding, data=2.0))
    assert largest_graph_tokens(two, 2.0) == 512.0


def test_rounds_take_seats_by_their_tokens_and_no_cache_where_the_draft_is_no_model(replica):
    rounds = speculating_replica(replica, 0.001, 0.5, 3, 1000.0)
    assert rounds.query_tokens == 4
    assert rounds.tokens_per_step == near(1 + 0.5 + 0.25 + 0.125)
    assert rounds.kv_blocks == replica.kv_blocks
    assert rounds.scheduling.max_num_seqs == min(64, 2048 // 4)
    tight = replace(replica, scheduling=replace(replica.scheduling, max_num_batched_tokens=100))
    assert speculating_replica(tight, 0.001, 0.5, 3, 1000.0).scheduling.max_num_seqs == 25
    with pytest.raises(InputError, match="pipeline stages"):
        speculating_replica(replace(replica, spec=spec(pipeline=2.0)), 0.001, 0.5, 3, 1000.0)


def test_estimates_read_the_table_that_the_simulator_reads(replica):
    """One client: prompts in one step, then steps of one sequence at growing contexts."""
    found = estimate(replica, Load(1000, 100, concurrency=1, requests=5))
    table, host = replica.table, replica.spec.profile.host
    (front_end,) = (row for row in found.breakdown if row.operator == FRONT_END)
    assert front_end.seconds == near(host.handling_s(1000))
    assert host.handling_s(1000) > host.handling_s(1) > 0.0
    assert found.ttft_s.mean == near(
        front_end.seconds + float(mixed_step_s(table, 0.0, 0.0, 1.0, 1000.0, 0.0))
    )
    steps = sum(float(decode_step_s(table, 1.0, 1000.0 + i)) for i in range(1, 100))
    assert found.tpot_s.mean == pytest.approx(
        steps / 99, rel=2e-3
    )  # contexts before or after the token of a step
