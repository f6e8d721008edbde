"""An acceptance is borrowed within its method and kin of models; for every other pair it is asked for."""

import json
from typing import get_args

import pytest

from capplan.errors import InputError
from capplan.phases.step import expected_tokens_by_position
from capplan.readers.catalogue.models import read_model
from capplan.replica.speculation import Method
from capplan.scenario.scenario_file import Speculation
from capplan.scenario.speculation import PUBLISHED, acceptance_by_position, drafting_of, published_acceptance
from tests.plan_files import SCENARIO

pytestmark = pytest.mark.usefixtures("shared_runs")

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


@pytest.mark.parametrize(
    ("name", "method", "drafts", "tokens"),
    [
        ("deepseek-v4-pro", "mtp", 3, 2.49),
        ("glm-5.2", "mtp", 7, 3.91),
        ("kimi-k2.5", "eagle", 3, 2.75),
        ("minimax-m3", "eagle", 7, 3.53),
        ("qwen3.5-397b-a17b", "mtp", 1, 1.92),
    ],
)
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
