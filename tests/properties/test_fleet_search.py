"""The search over arrays finds what each plan gives alone, and counts every candidate once."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from capplan.fleet.candidates import Ranges
from capplan.fleet.search import LOADS, search
from capplan.questions.fleet import asked_fleet
from capplan.questions.scenario import read_scenario
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.model import read_model

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "support-chat.yaml"
DEVICES = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "l40s", "mi300x")
DENSE = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B", "google/gemma-2-9b-it")
SPARSE = ("Qwen/Qwen3-30B-A3B", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V2-Lite")


@pytest.fixture(scope="module")
def asked():
    return asked_fleet(read_scenario(SCENARIO), offline=True).question


def question_of(asked, model, places, ranges, **limits):
    gpus = [device(place) for place in places]
    return replace(
        asked,
        networks={"auto": read_model(model, offline=True)},
        devices=gpus,
        efficiencies={gpu.name: efficiency_for(gpu) for gpu in gpus},
        kv_formats=("bf16",),
        ranges=ranges,
        **limits,
    )


def by_layout(found):
    return {(item.layout.device.name, item.layout.sharding): item for item in found}


def alone(question, item):
    """Return what the search says of one layout when it is the only one; others of its degree are left out."""
    sharding = item.layout.sharding
    ranks = (int(sharding.tensor * sharding.data), int(sharding.pipeline))
    own = replace(question, devices=[item.layout.device], ranges=Ranges((ranks[0],), (ranks[1],)))
    return by_layout(search(own).found)[item.layout.device.name, sharding]


places = st.lists(st.sampled_from(DEVICES), min_size=1, max_size=3, unique=True)


@given(st.sampled_from(DENSE), places, st.sampled_from([32, 200, 512]), st.sampled_from([2048, 8192]))
@settings(max_examples=15, deadline=None)
def test_plans_of_one_size_give_exactly_what_each_gives_alone(asked, model, places, sequences, tokens):
    question = question_of(
        asked,
        model,
        places,
        Ranges((1, 2, 4, 8), (1,)),
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
    )
    result = search(question)
    assume(result.found)
    for item in result.found:
        single = alone(question, item)
        assert single.request_rate_limit == pytest.approx(item.request_rate_limit, rel=1e-9)
        assert single.response_s == pytest.approx(item.response_s, rel=1e-9)
        assert single.kv_cache_tokens == item.kv_cache_tokens
        assert single.slo_met_probability == pytest.approx(item.slo_met_probability, abs=1e-9)


@given(st.sampled_from(DENSE + SPARSE), places)
@settings(max_examples=15, deadline=None)
def test_plans_of_any_size_give_what_each_gives_alone_but_for_the_knots(asked, model, places):
    """Tables of unequal plans share their knots, so values between knots may differ by a little."""
    question = question_of(asked, model, places, Ranges((1, 2, 4), (1, 2)))
    result = search(question)
    assume(result.found)
    for item in result.found:
        single = alone(question, item)
        assert single.kv_cache_tokens == item.kv_cache_tokens
        assert single.label == item.label
        # one step of the grid of loads is 7.5 %
        assert single.request_rate_limit == pytest.approx(item.request_rate_limit, rel=0.08)


@given(st.sampled_from(DENSE + SPARSE), places)
@settings(max_examples=15, deadline=None)
def test_every_candidate_is_found_or_rejected_for_one_reason(asked, model, places):
    question = question_of(asked, model, places, Ranges((1, 2, 4, 8), (1, 2, 3)))
    result = search(question)
    above = sum(
        n for (_, reason), n in result.rejected.items() if reason.startswith("above the largest load")
    )
    held = len(result.found) * LOADS - above
    assert held >= len(result.found)
    assert held + sum(result.rejected.values()) == result.evaluated
