"""Laws of speculative decoding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.memory.layer_groups import cache_kinds
from capplan.phases.step import expected_tokens_per_round
from capplan.replica.replica import replica_of
from capplan.replica.speculation import breakeven_batch, speculation, target_and_draft_memory
from capplan.scenario.command_flags import DraftFlags
from capplan.scenario.flags import ServingFlags
from capplan.scenario.speculation import asked_speculation
from capplan.serving.step_table import decode_step_s

ACCEPTANCE = st.floats(0.0, 1.0)
DRAFTS = st.integers(1, 64)
TIME = st.floats(1e-5, 10.0)


@given(ACCEPTANCE, ACCEPTANCE, DRAFTS, DRAFTS)
def test_expected_tokens_rise_with_acceptance_and_with_drafts(one, other, few, many):
    low, high = sorted((one, other))
    short, long = sorted((few, many))
    slack = 1e-9
    assert expected_tokens_per_round(low, short) <= expected_tokens_per_round(high, short) + slack
    assert expected_tokens_per_round(high, short) <= expected_tokens_per_round(high, long) + slack


@given(ACCEPTANCE, DRAFTS)
def test_a_round_yields_at_least_one_token_and_at_most_all_drafts_and_one(acceptance, drafts):
    tokens = float(expected_tokens_per_round(acceptance, drafts))
    assert 1.0 - 1e-9 <= tokens <= drafts + 1.0 + 1e-9
    assert float(expected_tokens_per_round(0.0, drafts)) == 1.0
    assert float(expected_tokens_per_round(1.0, drafts)) == drafts + 1.0


@given(ACCEPTANCE, DRAFTS, TIME, TIME)
def test_the_speedup_of_stated_times_is_bounded_by_the_tokens_of_a_round(
    acceptance, drafts, draft_s, target_s
):
    found = speculation(target_s, draft_s, acceptance, draft_tokens=(drafts,), batches=(1, 8))
    for row in found.rows:
        assert row["speedup"] <= row["expected_tokens_per_round"] + 1e-9
        assert row["round_s"] == pytest.approx(row["draft_s"] + row["verify_s"])
        assert row["speedup"] == pytest.approx(
            row["expected_tokens_per_round"] * row["target_step_s"] / row["round_s"]
        )
    assert found.breakeven_batch == (1 if found.rows[0]["speedup"] <= 1.0 else None)


@given(st.lists(st.floats(0.1, 4.0), min_size=1, max_size=20))
def test_from_the_breakeven_batch_on_nothing_is_gained(speedups):
    batches = np.arange(1.0, len(speedups) + 1.0)
    found = breakeven_batch(batches, np.array(speedups))
    if found is None:
        assert speedups[-1] > 1.0
    else:
        assert max(speedups[found - 1 :]) <= 1.0
        assert found == 1 or speedups[found - 2] > 1.0


@pytest.fixture(scope="module")
def pair():
    """A 70B target with a 1B draft on four devices."""
    asked = asked_speculation(
        "llama-3.1-70b-instruct",
        "h100-sxm",
        DraftFlags(draft="llama-3.2-1b"),
        ServingFlags(tensor_parallel=4, weight_dtype="fp8", kv_dtype="fp8", max_model_len=8192),
        0.7,
    )
    return replica_of(asked.target), asked.draft


def test_a_verification_takes_longer_than_a_step_and_shorter_than_as_many_steps(pair):
    target, draft = pair
    for row in speculation(target, draft, 0.7, draft_tokens=(1, 4), batches=(1, 16, 128)).rows:
        assert row["target_step_s"] <= row["verify_s"] <= (row["draft_tokens"] + 1) * row["target_step_s"]


def test_a_plain_step_is_that_of_every_other_prediction(pair):
    """At knots of the step table that estimate, fleet and simulation read; between knots the table is linear."""
    target, draft = pair
    context = float(target.table.context_knots[3])
    batches = [int(target.table.sequence_knots[i]) for i in (0, 3, 9)]
    found = speculation(target, draft, 0.7, draft_tokens=(2,), batches=batches, context_tokens=context)
    for row in found.rows:
        assert row["target_step_s"] == pytest.approx(
            float(decode_step_s(target.table, float(row["batch"]), context))
        )


def test_a_draft_step_of_a_small_model_is_shorter_than_a_step_of_the_target(pair):
    target, draft = pair
    for row in speculation(target, draft, 0.7, batches=(1, 64)).rows:
        assert row["draft_step_s"] < row["target_step_s"]
        assert row["draft_s"] == pytest.approx(row["draft_tokens"] * row["draft_step_s"])


def test_higher_acceptance_never_slows_a_round_and_never_shortens_the_best_draft(pair):
    target, draft = pair
    low, high = (speculation(target, draft, a, batches=(1, 32)) for a in (0.4, 0.9))
    for before, after in zip(low.rows, high.rows, strict=True):
        assert before["round_s"] == after["round_s"]
        assert before["speedup"] < after["speedup"]
    assert low.best_draft_tokens <= high.best_draft_tokens


def test_a_draft_takes_cache_and_weights_from_the_target(pair):
    target, draft = pair
    both = speculation(target, draft, 0.7, context_tokens=2048.0).memory
    assert both["kv_bytes_available_per_gpu"] == pytest.approx(
        both["kv_bytes_available_alone_per_gpu"] - both["draft_weight_bytes_per_gpu"]
    )
    assert 0.0 < both["max_concurrency"] < both["max_concurrency_alone"]
    alone = speculation(target, 0.001, 0.7, context_tokens=2048.0).memory
    assert alone["draft_weight_bytes_per_gpu"] == 0.0
    assert alone["max_concurrency"] == alone["max_concurrency_alone"]


def test_a_stated_draft_of_the_same_cost_gives_the_same_rounds(pair):
    target, draft = pair
    modelled = speculation(target, draft, 0.7, draft_tokens=(3,), batches=(1,)).rows[0]
    stated = speculation(target, modelled["draft_step_s"], 0.7, draft_tokens=(3,), batches=(1,)).rows[0]
    assert stated["speedup"] == pytest.approx(modelled["speedup"])


def test_the_tables_of_the_command_multiply_across(capplan):
    result = capplan.result(
        "spec llama-3.1-8b --hardware h100 --draft llama-3.2-1b --acceptance '70 %' --batch 1 --batch 64 --max-model-len 8192 --format json"
    )
    assert [row["draft_tokens"] for row in result["rows"]] == [*range(1, 9), *range(1, 9)]
    for row in result["rows"]:
        assert row["draft_s"] + row["verify_s"] == pytest.approx(row["round_s"])
        assert row["speedup"] == pytest.approx(
            row["expected_tokens_per_round"] * row["target_step_s"] / row["round_s"]
        )
    assert result["memory"]["draft_weight_bytes_per_gpu"] == pytest.approx(2.47e9, rel=0.01)


def test_a_recurrent_target_keeps_a_state_for_every_draft():
    """Kimi Delta, gated delta and Mamba cannot roll back: vLLM allocates one block of states more for each draft token."""
    asked = asked_speculation(
        "Qwen/Qwen3.5-35B-A3B",
        "h200",
        DraftFlags(draft_step_s=0.002),
        ServingFlags(tensor_parallel=2, max_model_len=8192),
        0.7,
    )
    target = replica_of(asked.target)
    held = [
        target_and_draft_memory(target, 0.001, 4096.0, drafts)["target_kv_bytes_per_sequence_per_gpu"]
        for drafts in (0, 1, 3)
    ]
    [state] = [
        kind.layers * float(kind.state_bytes)
        for kind in cache_kinds(
            target.spec.network, 2.0, 2.0, 2.0, target.spec.profile.memory.recurrent_format
        )
        if kind.kind == "state"
    ]
    each = held[1] - held[0]
    assert held[2] - held[0] == 3 * each
    assert state <= each <= 1.5 * state  # whole blocks, padded to the pages of attention
