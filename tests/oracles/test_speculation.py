"""Speculative decoding against the accept/reject rule itself, played out with real probabilities."""

import json
from fractions import Fraction

import numpy as np
import pytest

from capplan.errors import InputError
from capplan.phases.step import expected_tokens_per_round
from capplan.replica.speculation import speculation

VOCABULARY = 12


def two_models(random, sharpness):
    """Return a target and a draft distribution that differ, as two softmaxes do."""
    logits = random.normal(size=VOCABULARY) * sharpness
    target = np.exp(logits)
    draft = np.exp(logits + random.normal(size=VOCABULARY))
    return target / target.sum(), draft / draft.sum()


def verified(target, draft, drafts, rounds, random):
    """Play rounds of Leviathan et al., algorithm 1: return the tokens of every round and all produced tokens.

    A drafted token x is kept with min(1, p(x)/q(x)); the first that is not is replaced by one of
    max(0, p - q) / sum(max(0, p - q)); after a round without a rejection one more token of p is added.
    """
    excess = np.maximum(0.0, target - draft)
    residual = excess / excess.sum()
    proposed = random.choice(VOCABULARY, size=(rounds, drafts), p=draft)
    kept = random.random((rounds, drafts)) < np.minimum(1.0, target / draft)[proposed]
    accepted = np.where(kept.all(axis=1), drafts, kept.argmin(axis=1))
    replacement = random.choice(VOCABULARY, size=rounds, p=residual)
    bonus = random.choice(VOCABULARY, size=rounds, p=target)
    last = np.where(accepted == drafts, bonus, replacement)
    in_front = proposed[np.arange(drafts)[None, :] < accepted[:, None]]
    return accepted + 1, np.concatenate([in_front, last])


@pytest.mark.parametrize(("drafts", "sharpness"), [(1, 1.0), (4, 0.5), (4, 2.0), (7, 1.0)])
def test_a_round_yields_as_many_tokens_as_the_rule_played_out(drafts, sharpness):
    """The acceptance of two distributions is sum(min(p, q)); 200,000 rounds leave a standard error below 0.006."""
    random = np.random.default_rng(11)
    target, draft = two_models(random, sharpness)
    acceptance = np.minimum(target, draft).sum()
    tokens, _ = verified(target, draft, drafts, 200_000, random)
    error = tokens.std() / np.sqrt(tokens.size)
    assert abs(tokens.mean() - expected_tokens_per_round(acceptance, drafts)) < 4.0 * error


def test_the_rule_produces_the_tokens_of_the_target():
    """Theorem of Leviathan et al., appendix A.1: nothing is lost by drafting, whatever the draft is.

    Within four standard errors of every token; with p - q normalised by one minus sum(max(0, p - q)), or with the
    target itself as residual, this fails.
    """
    random = np.random.default_rng(5)
    target, draft = two_models(random, 1.5)
    _, produced = verified(target, draft, 1, 400_000, random)
    counts = np.bincount(produced, minlength=VOCABULARY)
    expected = target * produced.size
    assert (np.abs(counts - expected) < 4.0 * np.sqrt(expected)).all()


def test_the_worked_example_of_a_draft_of_2_ms_and_a_target_of_35_ms():
    """Acceptance 0.8 and five drafts: 3.69 tokens per round of 45 ms, 2.87 times faster (published example)."""
    (row,) = speculation(0.035, 0.002, 0.8, draft_tokens=(5,), batches=(1,)).rows
    assert row["expected_tokens_per_round"] == pytest.approx(3.69, abs=0.005)
    assert row["round_s"] == pytest.approx(0.045)
    assert row["draft_s"] + row["verify_s"] == pytest.approx(row["round_s"])
    assert row["speedup"] == pytest.approx(2.87, abs=0.005)


def test_four_drafts_at_an_acceptance_of_nine_tenths_yield_4_1_tokens():
    """1 + 0.9 + 0.81 + 0.729 + 0.6561, added by hand; guides print 3.6, which forgets the bonus token."""
    assert expected_tokens_per_round(0.9, 4.0) == pytest.approx(4.0951)


def test_the_command_answers_the_worked_example_without_a_model(capplan):
    ran = capplan(
        "spec --draft-step-time '2 ms' --target-step-time '35 ms' --acceptance 0.8 --draft-tokens 5 --format json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    (row,) = answer["result"]["rows"]
    assert row["speedup"] == pytest.approx(2.869, abs=0.001)
    assert answer["result"]["best_draft_tokens"] == 5
    assert answer["result"]["breakeven_batch"] is None
    assert any("do not depend on the batch" in a["assumption"] for a in answer["assumptions"])


def test_a_draft_pays_at_small_batches_and_costs_at_large_ones():
    """A user of vLLM saw drafts reverse at batch 32 and a published comparison saw saturated throughput halve.

    The direction, not the number: once a step is bound by arithmetic every drafted token is paid for.
    """
    from capplan.replica.replica import replica_of
    from capplan.scenario.command_flags import DraftFlags
    from capplan.scenario.flags import ServingFlags
    from capplan.scenario.speculation import asked_speculation

    asked = asked_speculation(
        "llama-3.1-8b",
        "h100-sxm",
        DraftFlags(draft="llama-3.2-1b"),
        ServingFlags(kv_dtype="bf16", max_model_len=8192, max_num_seqs=512),
        0.6,
    )
    found = speculation(replica_of(asked.target), asked.draft, 0.6, context_tokens=300.0)
    by_batch = {row["batch"]: row["speedup"] for row in found.best}
    assert by_batch[1] > 1.3
    assert by_batch[256] < 0.85 * by_batch[1]
    lengths = [row["draft_tokens"] for row in found.best]
    assert lengths == sorted(lengths, reverse=True)
    some = [row["speedup"] for row in found.rows if row["draft_tokens"] == 4]
    assert some[0] > 1.0 > some[-1]
    likely = speculation(replica_of(asked.target), asked.draft, 0.8, context_tokens=300.0)
    long = [row["speedup"] for row in likely.rows if row["draft_tokens"] == 8]
    assert long[0] > 1.0 > long[-1]


@pytest.mark.parametrize("method", ["eagle", "mtp"])
def test_a_round_pays_for_all_that_an_engine_computes(method):
    """By hand from vLLM's proposer and sampler: the drafter passes over g + 1 tokens first, the sampler reads a row for each draft.

    A verification larger than the largest CUDA graph, 512 tokens, saves none of the kernels: twice the batch takes more than twice as long there.
    """
    from capplan.replica.replica import replica_of
    from capplan.replica.speculation import drafting_s, measured_pairs, rejection_s, step_time_s
    from capplan.scenario.command_flags import DraftFlags
    from capplan.scenario.flags import ServingFlags
    from capplan.scenario.speculation import asked_speculation

    asked = asked_speculation(
        "qwen3.5-397b-a17b", "h200-sxm", DraftFlags(method=method), ServingFlags(tensor_parallel=8), 0.7
    )
    spec, draft = replica_of(asked.target).spec, asked.draft
    batch, one = np.array([128.0]), np.array([1.0])
    drafts = [float(drafting_s(draft, batch, 1000.0, count)[0]) for count in (0.0, 1.0, 2.0, 3.0)]
    later = float(step_time_s(draft.spec, batch, 1000.0, one)[0])
    assert drafts[0] == 0.0
    assert drafts[1] > later
    assert drafts[3] > drafts[1] + 2.0 * later
    moved = 128 * 3 * spec.network.vocabulary_size * spec.profile.memory.sampler_bytes
    assert rejection_s(spec, 128 * 3.0) == pytest.approx(moved / spec.device.memory_bytes_per_s)
    within, beyond = (
        float(step_time_s(spec, np.array([size]), 1000.0, 4.0 * one)[0]) for size in (128.0, 129.0)
    )
    assert beyond > 1.05 * within
    assert len(measured_pairs()) == 7
    assert all(0.0 < pair["ratio"] < 1.0 for pair in measured_pairs())


def test_spec_says_what_was_measured_next_to_what_it_predicts(capplan):
    ran = capplan("spec llama-3.1-8b --hardware h100-sxm --method eagle --acceptance 0.7")
    said = " ".join(ran.out.split())
    assert "as predicted, speculation pays off" in said
    assert "is extrapolated from step times: none of 7 measured pairs of runs with and without drafts" in said
    assert "gained (0.33 to 0.99 times the throughput)" in said
    assert "a verification computes 768 tokens" in said
    assert "speedups are upper bounds" in said
    measured = capplan.result("spec llama-3.1-8b --hardware h100-sxm --method eagle --acceptance 0.7")[
        "measured"
    ]
    assert [round(pair["ratio"], 2) for pair in measured] == [0.99, 0.37, 0.38, 0.34, 0.34, 0.42, 0.33]


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 1 - 1e-9, 1 - 1e-13, 1.0])
@pytest.mark.parametrize("drafts", [0, 1, 5, 64])
def test_tokens_of_a_round_are_exact_up_to_certain_acceptance(acceptance, drafts):
    """Against the sum in whole numbers: (1 - a^(g+1)) / (1 - a) loses seven digits where a is a billionth below 1."""
    exact = float(sum(Fraction(acceptance) ** power for power in range(drafts + 1)))
    assert float(expected_tokens_per_round(acceptance, drafts)) == pytest.approx(exact, rel=1e-14)


def test_spec_takes_the_published_acceptance_of_a_method():
    """Accepted lengths of MTP with Qwen3.5-397B: 1.92 tokens a round of one draft, 2.70 of two, 3.33 of three (InferenceX)."""
    from capplan.replica.replica import replica_of
    from capplan.scenario.command_flags import DraftFlags
    from capplan.scenario.flags import ServingFlags
    from capplan.scenario.speculation import asked_speculation

    flags, serving = (
        DraftFlags(method="mtp"),
        ServingFlags(tensor_parallel=8, max_model_len=8192, offline=True),
    )
    asked = asked_speculation("qwen3.5-397b-a17b", "b200", flags, serving, None)
    found = speculation(replica_of(asked.target), asked.draft, asked.acceptance_fractions, batches=(1,))
    tokens = [row["expected_tokens_per_round"] for row in found.rows]
    assert tokens[:3] == pytest.approx([1.92, 2.70, 3.33], abs=0.01)
    assert len(tokens) == len(asked.acceptance_fractions)
    assert any("Qwen3.5-397B" in one.what for one in asked.assumptions)


def test_a_method_without_a_published_acceptance_asks_for_it():
    from capplan.scenario.command_flags import DraftFlags
    from capplan.scenario.flags import ServingFlags
    from capplan.scenario.speculation import asked_speculation

    flags, serving = DraftFlags(method="eagle"), ServingFlags(offline=True)
    with pytest.raises(
        InputError, match="the acceptance of eagle is published only for models of type kimi_k25"
    ):
        asked_speculation("llama-3.1-8b", "h100-sxm", flags, serving, None)
    with pytest.raises(InputError, match="--acceptance: is missing"):
        asked_speculation("llama-3.1-8b", "h100-sxm", DraftFlags(draft="llama-3.2-1b"), serving, None)
    stated = asked_speculation("llama-3.1-8b", "h100-sxm", flags, serving, 0.7)
    assert stated.acceptance_fractions == (0.7,)
