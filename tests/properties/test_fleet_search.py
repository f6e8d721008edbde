"""The search over arrays finds what each plan gives alone, and counts every candidate once."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from capplan.errors import InputError, Refusal
from capplan.fleet.search.candidates import Layout, Ranges, layout_reason, refuse_illegal, shardings
from capplan.fleet.search.layouts import search
from capplan.fleet.search.steady_plans import LOADS
from capplan.model.sharding import Sharding
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from tests.asked import asked_of

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "support-chat.yaml"
DEVICES = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "l40s", "mi300x")
DENSE = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B", "google/gemma-2-9b-it")
SPARSE = ("Qwen/Qwen3-30B-A3B", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V2-Lite")


@pytest.fixture(scope="module")
def asked():
    return asked_of(SCENARIO).question


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
    tokens = item.layout.max_num_batched_tokens
    found = [other for other in search(own).candidates if other.layout.max_num_batched_tokens == tokens]
    return by_layout(found)[item.layout.device.name, sharding]


places = st.lists(st.sampled_from(DEVICES), min_size=1, max_size=3, unique=True)


@pytest.mark.long
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
    assume(result.candidates)
    for item in result.candidates:
        single = alone(question, item)
        assert single.share_bound == pytest.approx(item.share_bound, rel=1e-9)
        assert single.share_ceiling == pytest.approx(item.share_ceiling, rel=1e-9)
        assert single.usual_step_s == pytest.approx(item.usual_step_s, rel=1e-9)
        assert single.kv_cache_tokens == item.kv_cache_tokens


@pytest.mark.long
@given(st.sampled_from(DENSE + SPARSE), places)
@settings(max_examples=15, deadline=None)
def test_plans_of_any_size_give_what_each_gives_alone_but_for_the_knots(asked, model, places):
    """Tables of unequal plans share their knots, so values between knots may differ by a little."""
    question = question_of(asked, model, places, Ranges((1, 2, 4), (1, 2)))
    result = search(question)
    assume(result.candidates)
    for item in result.candidates:
        single = alone(question, item)
        assert single.kv_cache_tokens == item.kv_cache_tokens
        assert single.label == item.label
        # one step of the grid of loads is 7.5 %
        assert single.share_bound == pytest.approx(item.share_bound, rel=0.08)


degrees = st.none() | st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=1, max_size=3, unique=True)


@given(st.sampled_from(DENSE + SPARSE), places, degrees, degrees)
@settings(max_examples=15, deadline=None)
def test_every_candidate_is_found_or_rejected_for_one_reason(asked, model, places, experts, groups):
    ranges = Ranges((1, 2, 4, 8), (1, 2, 3), expert_parallel=experts, data_parallel=groups)
    question = question_of(asked, model, places, ranges)
    result = search(question)
    for item in result.candidates:
        assert experts is None or item.layout.sharding.expert in experts
        assert groups is None or item.layout.sharding.data in groups
    above = sum(n for (_, reason), n in result.rejected.items() if reason.code is Refusal.LOAD)
    found = [item for item in result.candidates if item.sure_share_bounds[question.slo.confidence]]
    held = len(found) * LOADS - above
    assert held >= len(found)
    assert held + sum(result.rejected.values()) == result.evaluated


def tried(model, **lists):
    return list(shardings(read_model(model, offline=True), Ranges(**lists)))


def test_without_lists_experts_and_attention_are_spread_over_all_ranks_or_none():
    """Of four degrees and two stages: a dense model 8, one with experts those and two more wherever ranks are several."""
    assert {(s.expert, s.data) for s in tried(DENSE[0])} == {(1.0, 1.0)}
    assert len(tried(DENSE[0])) == 8
    found = tried(SPARSE[0])
    assert len(found) == len(set(found)) == 8 + 3 * 2 * 2
    assert all(s.expert in {1.0, s.tensor * s.data} and 1.0 in {s.tensor, s.data} for s in found)


@given(st.sampled_from(DENSE + SPARSE), degrees, degrees)
def test_lists_keep_what_they_name_and_try_every_degree_that_they_name(model, experts, groups):
    found, usual = tried(model, expert_parallel=experts, data_parallel=groups), tried(model)
    assert len(set(found)) == len(found)
    for sharding in usual:
        named = (experts is None or sharding.expert in experts) and (
            groups is None or sharding.data in groups
        )
        assert named <= (sharding in found)
    assert experts is None or {s.expert for s in found} == set(experts)
    assert groups is None or {s.data for s in found} == set(groups)


@pytest.mark.parametrize("model", DENSE)
@pytest.mark.parametrize("experts", [2, 8])
def test_a_model_without_experts_cannot_spread_them(asked, model, experts):
    network = read_model(model, offline=True)
    for sharding in tried(model, expert_parallel=[experts]):
        layout = Layout(device("h100-sxm"), sharding, "auto", "bf16")
        assert layout_reason(network, layout, asked.profile) is not None
    spread = Layout(device("h100-sxm"), Sharding(8.0, 1.0, float(experts)), "auto", "bf16")
    with pytest.raises(InputError, match=f"expert-parallel {experts} on a model without experts"):
        refuse_illegal(network, spread, asked.profile)


def test_experts_must_divide_over_the_ranks_that_hold_them(asked):
    """128 experts of gpt-oss-120b: 8 ranks make 2 groups, not 3 and not 64."""
    network, gpu = read_model("openai/gpt-oss-120b", offline=True), device("h100-sxm")

    def reason(sharding):
        return layout_reason(network, Layout(gpu, sharding, "auto", "bf16"), asked.profile)

    by_groups = {
        int(s.expert): reason(s)
        for s in tried(
            "openai/gpt-oss-120b", tensor_parallel=(8,), data_parallel=[1], expert_parallel=[2, 3, 64]
        )
    }
    assert by_groups[2] is None
    assert by_groups[3].words == "expert-parallel 3 does not divide the ranks of tensor x data parallel"
    assert by_groups[64].words == "expert-parallel 64 does not divide the ranks of tensor x data parallel"
