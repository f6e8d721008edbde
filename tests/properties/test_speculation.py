"""Laws of speculative decoding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.memory.layer_groups import cache_kinds
from capplan.replica.replica import replica_of
from capplan.replica.speculation import breakeven_batch, speculation, target_and_draft_memory
from capplan.scenario.command_flags import DraftFlags
from capplan.scenario.flags import ServingFlags
from capplan.scenario.speculation import asked_speculation
from capplan.serving.step_table import decode_step_s


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
