"""Speculative decoding: its laws, and drafts in the search of fleets, where they pay and where they do not."""

import json
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.fleet.search.cheapest import Search, Terms
from capplan.fleet.search.layouts import search
from capplan.memory.layer_groups import cache_kinds
from capplan.money.order import NO_LOSS
from capplan.phases.step import expected_tokens_by_position, expected_tokens_per_round, round_tokens
from capplan.questions.levers.answer import asked_levers, levers_of
from capplan.readers.catalogue.models import read_model
from capplan.replica.replica import replica_of
from capplan.replica.speculation import (
    DraftModel,
    DraftPlan,
    Method,
    best_draft_tokens,
    best_speculating_replica,
    breakeven_batch,
    draft_of,
    speculation,
    target_and_draft_memory,
)
from capplan.scenario.command_flags import DraftFlags
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.scenario.scenario_file import Speculation
from capplan.scenario.speculation import (
    PUBLISHED,
    acceptance_by_position,
    asked_speculation,
    drafting_of,
    published_acceptance,
)
from capplan.serving.step_table import decode_step_s
from tests.asked import asked_of, fleet_of
from tests.files import file_with, written_to
from tests.plan_files import SCENARIO
from tests.sweeps import examples
from tests.tables import table

pytestmark = pytest.mark.usefixtures("shared_runs")


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


SMALL = """name: small
model: llama-3.1-8b
traffic:
  - {name: chat, request_rate: 30 req/s, input_tokens: {mean: 600, p95: 1500}, output_tokens: {mean: 250, p95: 600}}
slo: {ttft_p95: 600 ms, tpot_p95: 12 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: [1, 2], pipeline_parallel: [1, 2]}
"""
FREE = Terms(0.2, NO_LOSS, {})


small = file_with(SMALL, "small.yaml")


@pytest.fixture(scope="module")
def question(small):
    return replace(asked_of(small).question, requests=4000)


@pytest.fixture(scope="module")
def replica():
    return replica_of(
        asked_replica("llama-3.1-8b", "h100-sxm", ServingFlags(max_model_len=8192, offline=True)).spec
    )


def one_replica(question, plan):
    drafting = replace(question, drafting=plan)
    found = Search(drafting, search(drafting).candidates, FREE)
    return found.trial(next(item for item in found.candidates if item.layout.devices == 1))


@settings(max_examples=examples(60, 300), deadline=None)
@given(acceptances=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), seed=st.integers(0, 10**6))
def test_a_round_by_position_yields_what_throwing_the_dice_yields(acceptances, seed):
    thrown = np.random.default_rng(seed).random((20_000, len(acceptances))) < np.array(acceptances)
    accepted = np.cumprod(thrown, axis=1).sum(axis=1)
    error = 5.0 * accepted.std() / np.sqrt(accepted.size) + 1e-9
    assert expected_tokens_by_position(acceptances) == pytest.approx(1.0 + accepted.mean(), abs=error + 1e-3)


@given(acceptance=st.floats(0.0, 1.0), drafts=st.integers(1, 16))
def test_the_same_acceptance_at_every_position_is_the_closed_form(acceptance, drafts):
    constant = float(expected_tokens_per_round(acceptance, float(drafts)))
    assert round_tokens([acceptance], drafts) == constant
    assert round_tokens([acceptance, *[acceptance] * drafts], drafts) == pytest.approx(constant)


def test_a_head_takes_the_memory_of_a_layer_and_a_prompt_lookup_none(replica):
    layers = len(replica.spec.network.layers)
    head = draft_of(DraftPlan("eagle", (0.7,)), replica.spec)
    assert isinstance(head, DraftModel)
    every = 8.03e9 - 2 * 128_256 * 4096
    assert head.weight_bytes == pytest.approx(2.0 * every / layers, rel=0.01)
    assert draft_of(DraftPlan("ngram", (0.4,)), replica.spec) == 0.0
    assert draft_of(DraftPlan("draft-model", (0.4,), step_s=0.0), replica.spec) == 0.0
    medusa = draft_of(DraftPlan("medusa", (0.6,), draft_tokens=3), replica.spec)
    assert medusa.weight_bytes == pytest.approx(3 * 2.0 * 128_256 * 4096)
    blocks = {
        method: best_speculating_replica(replica, DraftPlan(method, (0.7,), 3), 8.0, 1000.0).kv_blocks
        for method in ("ngram", "eagle", "medusa")
    }
    assert blocks["ngram"] == replica.kv_blocks > blocks["eagle"] > blocks["medusa"]


def test_the_best_draft_length_falls_with_the_load_and_rises_with_acceptance(replica):
    lengths = [best_draft_tokens(DraftPlan("eagle", (0.7,)), replica.spec, b, 1000.0) for b in (1, 32, 256)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]
    better = [best_draft_tokens(DraftPlan("eagle", (a,)), replica.spec, 8, 1000.0) for a in (0.3, 0.6, 0.9)]
    assert better == sorted(better)
    assert best_draft_tokens(DraftPlan("eagle", (0.9, 0.9)), replica.spec, 1, 1000.0) <= 2
    free = DraftPlan("draft-model", (1.0,), step_s=0.0)
    assert best_draft_tokens(free, replica.spec, 1, 1000.0) == 8


def test_a_slower_or_worse_draft_never_carries_more(question):
    limits = [one_replica(question, DraftPlan("draft-model", (0.7,), 3, step_s=s)) for s in (0.0, 1e-3, 4e-3)]
    rates = [trial.limit(4, 1.0, trial.limits) for trial in limits]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[-1]
    worse = [one_replica(question, DraftPlan("ngram", (a,), 3)) for a in (0.9, 0.5, 0.0)]
    rates = [trial.limit(4, 1.0, trial.limits) for trial in worse]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] <= one_replica(question, None).limit(4, 1.0, limits[0].limits)


@pytest.mark.parametrize(
    "plan", [DraftPlan("ngram", (0.4,)), DraftPlan("eagle", (0.7,)), DraftPlan("eagle", (0.6, 0.4))]
)
def test_the_closed_form_bounds_what_is_simulated(question, plan):
    trial = one_replica(question, plan)
    carried = trial.limit(16, 1.0, trial.limits) / trial.total_rate
    assert 0.0 < carried <= trial.candidate.share_bound
    assert trial.replica.spec.sharding.pipeline == 1.0


def test_pipelines_are_rejected_with_the_reason(question):
    found = search(replace(question, drafting=DraftPlan("ngram", (0.4,))))
    assert all(item.layout.sharding.pipeline == 1.0 for item in found.candidates)
    assert any("pipeline" in why.words and why.code == "speculation" for _, why in found.rejected)


@pytest.mark.long
def test_a_plan_says_how_many_drafts_it_takes_and_needs_no_more_gpus_where_decoding_is_the_bottleneck(small):
    plain = fleet_of(small).chosen
    fast = fleet_of(small, "speculation={method: eagle, acceptance: 0.7}").chosen
    assert plain.draft_tokens is None
    assert fast.draft_tokens >= 1
    assert fast.gpus <= plain.gpus
    assert fast.tpot_s.mean < plain.tpot_s.mean


EAGLE_ON_H100 = """name: eagle
model: llama-3.1-8b-instruct
engine_version: 0.11.0
max_model_len: 512
traffic:
  - {name: chat, request_rate: 52 req/s, input_tokens: 204, output_tokens: 62, shared_prefix: {tokens: 100, hit_fraction: 1}}
slo: {ttft_p95: 1 s, tpot_p95: 20 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 0}
"""
MEASURED_RATES = (1.0, 18.2, 35.3, 52.5)
"""Stages of the H100 whose queue stays bounded: kubernetes-sigs/inference-perf, demos/kubecon-na-2025. EAGLE-3 with 4 drafts was slower at
each of them (5.8 to 10.8 ms a token, where the same engine without it takes 3.5 ms and more) and saturated at 68 instead of 173 req/s."""


def test_eagle_as_measured_on_an_h100_comes_out_as_do_not(tmp_path):
    """The prompts are random text of which a head can guess nothing, so no draft is accepted."""
    path = written_to(tmp_path / "eagle.yaml", EAGLE_ON_H100)
    question = asked_of(path).question
    plain = one_replica(question, None)
    eagle = one_replica(question, DraftPlan("eagle", (0.0,), 4))
    for rate in MEASURED_RATES:
        assert eagle.at(rate, 1).tpot_s.mean > 1.2 * plain.at(rate, 1).tpot_s.mean
        assert eagle.at(rate, 1).e2e_s.mean > plain.at(rate, 1).e2e_s.mean
    assert eagle.limit(1, 1.0, eagle.limits) < 0.6 * plain.limit(1, 1.0, plain.limits)
    drafting = "speculation={method: eagle, acceptance: 0, draft_tokens: 4}"
    asking, base = asked_levers(path, None, (drafting,), offline=True)
    answer = levers_of(asking, base, ("speculation",))
    assert [lever.change for lever in answer.best.levers] == ["without speculation"]
    assert answer.best.plan.usd_per_month < base.plan.usd_per_month


def test_what_cannot_draft_is_refused_in_one_line(small):
    cases = {
        "{method: mtp}": "no layers for multi-token prediction",
        "{draft: qwen3-0.6b, acceptance: 0.7}": "own vocabulary",
        "{method: eagle, acceptance: 1.5}": "speculation.acceptance",
        "{method: eagle, acceptance: [0.5, 0.4], draft_tokens: 3}": "one for each position",
        "{method: ngram, draft_tokens: 0}": "speculation.draft_tokens",
        "{method: ngram, draft_tokens: 10000}": "speculation.draft_tokens",
        "{method: eagel}": "did you mean 'eagle'",
        "{method: ngram, draft: llama-3.2-1b}": "drafts by itself",
        "{acceptance: 0.7}": "draft_step_time",
    }
    for written, words in cases.items():
        with pytest.raises(InputError, match=words):
            asked_of(small, f"speculation={written}")


MODELS = (
    "llama-3.1-70b", "deepseek-v3", "deepseek-v4-pro", "glm-5.2", "glm-4.6", "kimi-k2.5", "kimi-k2-instruct", "minimax-m3", "minimax-m2",
    "qwen3.5-397b-a17b", "qwen3-32b",
)  # fmt: skip
MEASURED_ON = {
    ("ngram", "any"), ("draft-model", "llama"), ("medusa", "llama"), ("mtp", "deepseek_v3"), ("mtp", "deepseek_v32"), ("mtp", "deepseek_v4"),
    ("mtp", "glm_moe_dsa"), ("mtp", "qwen3_5_moe"), ("eagle", "kimi_k25"), ("eagle", "minimax_m3"),
    ("dspark", "deepseek_v4"), ("dspark", "kimi_k3"),
}  # fmt: skip
"""Pairs of a method and a type of models of which somebody published a count; Vicuna, of Spec-Bench, is a Llama."""


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", get_args(Method))
def test_an_acceptance_is_borrowed_within_its_method_and_kin_alone(method, name):
    network = read_model(name, offline=True)
    known = published_acceptance(method, network)
    assert (known is not None) == bool({(method, network.model_type), (method, "any")} & MEASURED_ON)
    assert known is None or (known.method == method and ("http" in known.source or "arXiv" in known.source))


def test_a_method_without_a_published_acceptance_asks_for_it():
    network = read_model("llama-3.1-70b", offline=True)
    with pytest.raises(
        InputError,
        match=r"^speculation\.acceptance: is missing; .* kimi_k25, minimax_m3.* llama\n.*acceptance: 0\.7",
    ):
        drafting_of(Speculation(method="eagle"), network, offline=True)
    plan, _ = drafting_of(Speculation(acceptance=[0.6], method="eagle"), network, offline=True)
    assert plan.acceptance_fractions == (0.6,)


@table
def test_a_round_yields_what_was_counted(name, method, drafts, tokens):
    """The accepted lengths of the golden runs of InferenceX, by number of drafts."""
    network = read_model(name, offline=True)
    plan, stated = drafting_of(Speculation(draft_tokens=drafts, method=method), network, offline=True)
    assert expected_tokens_by_position(plan.acceptance_fractions[:drafts]) == pytest.approx(tokens, abs=2e-3)
    assert any(item.replace == "speculation.acceptance" and "InferenceX" in item.what for item in stated)


def test_more_drafts_than_were_counted_ask_for_their_acceptance():
    network = read_model("minimax-m3", offline=True)
    with pytest.raises(InputError, match=r"^speculation\.draft_tokens: 9 is above 7"):
        drafting_of(Speculation(draft_tokens=9, method="eagle"), network, offline=True)


def test_lengths_that_stop_to_grow_end_the_positions():
    assert acceptance_by_position([1.5, 1.75, 1.75, 1.9]) == (0.5, 0.5)
    assert acceptance_by_position([1.5, 1.6, 1.9]) == (0.5, 0.2)
    for row in PUBLISHED:
        assert all(0.0 < fraction <= 1.0 for fraction in row.acceptance_fractions)


def test_a_scenario_without_an_acceptance_is_refused_in_every_command(capplan, tmp_path):
    (tmp_path / "s.yaml").write_text(SCENARIO + "speculation: {method: eagle}\n")
    for words in (("fleet",), ("simulate", "--hardware", "h100-sxm", "--replicas", "1")):
        ran = capplan(words[0], tmp_path / "s.yaml", *words[1:], "--offline")
        assert (ran.code, ran.out) == (2, "")
        assert "s.yaml: speculation.acceptance: is missing" in ran.err.splitlines()[0]


def test_the_lever_is_not_tried_with_what_was_measured_on_another_model(capplan, tmp_path):
    (tmp_path / "s.yaml").write_text(SCENARIO)
    rows = capplan.result("levers", tmp_path / "s.yaml", "--offline", "--lever", "speculation")
    said = json.dumps(rows)
    assert "the acceptance of eagle is published only for models of type kimi_k25, minimax_m3" in said
