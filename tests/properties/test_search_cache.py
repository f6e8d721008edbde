"""Searches share a run only if it is the same run: nothing that a run depends on may be left out of its key."""

from dataclasses import fields, replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capplan.fleet.engine_options import TierSize
from capplan.fleet.pools.link import LinkTerms
from capplan.fleet.review import Question, spec_of_layout
from capplan.fleet.search import simulated_layout
from capplan.fleet.search.layouts import ScreenedLayout, search
from capplan.fleet.search.load_scale import scale_rate
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.search.trial import Trial
from capplan.questions.fleet import asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.readers.yaml_file import parse_yaml
from capplan.replica.offload import Offload
from capplan.replica.replica import replica_of
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import DraftPlan
from capplan.scenario.scenario import scenario_from
from capplan.serving.outcome import FULL_RUN
from capplan.workload.length import fixed
from capplan.workload.request_class import Slo, Target
from tests.asked import asked_in
from tests.sweeps import examples, share_runs, size_on_few_requests

SCENARIO = """name: cached
model: llama-3.1-8b-instruct
weight_dtype: fp8
kv_dtype: fp8
traffic:
  - {name: chat, request_rate: 20 req/s, input_tokens: 900, output_tokens: 120}
slo: {ttft_p95: 600 ms, tpot_p95: 30 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1}
"""


@pytest.fixture(scope="module")
def question():
    asked = asked_in(SCENARIO)
    return replace(asked.question, requests=300)


@pytest.fixture(scope="module")
def candidate(question):
    return search(question).candidates[0]


def other_question(question):
    """Return, by field, the question with another value there."""
    (dtype, network), (device,) = next(iter(question.networks.items())), question.devices
    first = question.demand.classes[0]
    efficiency = question.efficiencies[device.name]
    slower = replace(efficiency, fits=dict(list(efficiency.fits.items())[:-1]))
    longer = replace(question.demand, classes=(replace(first, arrival_cv=3.0),))
    return {
        "networks": {"networks": {dtype: replace(network, layers=network.layers[:-1])}},
        "efficiencies": {"efficiencies": {device.name: slower}},
        "profile": {"profile": replace(question.profile, version="0.0.1")},
        "on_devices": {"on_devices": {device.name: replace(question.profile, version="0.0.1")}},
        "demand": {"demand": longer},
        "max_model_len": {"max_model_len": question.max_model_len + 1024},
        "routing": {"routing": "random" if question.routing != "random" else "round_robin"},
        "requests": {"requests": 301},
        "seed": {"seed": 8},
        "max_num_seqs": {"max_num_seqs": 3},
        "max_num_batched_tokens": {"max_num_batched_tokens": 512},
        "gpu_memory_utilization": {"gpu_memory_utilization": 0.6},
        "drafting": {"drafting": DraftPlan("ngram", (0.4,), 2)},
    }


def other_layout(candidate):
    """Return, by field, the layout with another value there."""
    layout, demand = candidate.layout, candidate.demand
    return {
        "layout.kv_format": {"layout": replace(layout, kv_format="bf16")},
        "layout.sharding": {"layout": replace(layout, sharding=replace(layout.sharding, tensor=2.0))},
        "demand.hit_fractions": {"demand": replace(demand, hit_fractions=(0.5,))},
        "demand.load_s": {"demand": replace(demand, load_s=0.01)},
    }


NEVER = {
    "devices", "kv_formats", "ranges", "slo", "intervals", "slowness_table",
    "share_bound", "share_ceiling", "sure_share_bounds", "kv_cache_tokens", "label", "usual_step_s", "usual_batch", "slowness",
}  # fmt: skip
"""What a search compares with runs or chooses layouts by: no run of a given layout depends on it."""


def test_every_field_of_a_question_and_of_a_layout_is_judged(question, candidate):
    """A new field has to say whether runs depend on it."""
    judged = {name.partition(".")[0] for name in (*other_question(question), *other_layout(candidate))}
    known = {field.name for record in (Question, ScreenedLayout) for field in fields(record)}
    assert known - judged == NEVER | {"speculating"}


@pytest.mark.parametrize("name", [f.name for f in fields(Question) if f.name not in NEVER])
def test_questions_that_differ_in_what_a_run_depends_on_share_none(question, candidate, name):
    cache, changed = SearchCache(), replace(question, **other_question(question)[name])
    assert cache.trial(candidate, question, {})._runs is not cache.trial(candidate, changed, {})._runs


def test_layouts_are_found_in_the_order_of_the_dtypes_that_are_asked_for(question):
    (network,), cache = question.networks.values(), SearchCache()
    for names in (("fp8", "bf16"), ("bf16", "fp8")):
        both = replace(question, networks=dict.fromkeys(names, network))
        assert [item.layout for item in cache.searched(both).candidates] == [
            item.layout for item in search(both).candidates
        ]


@pytest.mark.parametrize("name", ["demand.hit_fractions", "demand.load_s"])
def test_runs_with_other_hits_are_other_runs_of_the_same_replica(question, candidate, name):
    cache, changed = SearchCache(), replace(candidate, **other_layout(candidate)[name])
    first, second = (cache.trial(item, question, {}) for item in (candidate, changed))
    first.at(5.0, 1.0)
    runs = len(first._runs.latencies)
    second.at(5.0, 1.0)
    assert len(second._runs.latencies) > runs


def test_a_target_for_the_gaps_between_tokens_takes_no_run_that_recorded_none(question, candidate):
    gaps = replace(question, slo=Slo((Target("itl", "p99", 0.05),)))
    (target,), cache = gaps.slo.targets, SearchCache()
    cache.trial(candidate, question, {}).at(5.0, 1.0)
    shared, own = (of.trial(candidate, gaps, {}).at(5.0, 1.0) for of in (cache, SearchCache()))
    assert shared.value(target) == own.value(target) > 0.0


@pytest.mark.parametrize("name", ["layout.kv_format", "layout.sharding"])
def test_layouts_that_differ_share_no_run(question, candidate, name):
    cache, changed = SearchCache(), replace(candidate, **other_layout(candidate)[name])
    assert cache.trial(candidate, question, {})._runs is not cache.trial(changed, question, {})._runs


def test_equal_questions_share_their_runs_whichever_records_they_are_made_of(question, candidate):
    again = asked_in(SCENARIO).question
    again = replace(again, requests=300)
    assert again.demand is not question.demand
    cache = SearchCache()
    assert (
        cache.trial(candidate, question, {})._runs
        is cache.trial(search(again).candidates[0], again, {})._runs
    )
    looser = replace(again, slo=Slo(()))
    assert cache.trial(candidate, looser, {})._runs is cache.trial(candidate, question, {})._runs


def test_the_same_mixture_at_another_rate_shares_its_runs_and_no_runs_of_pools(question, candidate):
    """A replica is run at rates of a scale, both pools together at the peak of their question."""
    (first,) = question.demand.classes
    demand = replace(
        question.demand, classes=(replace(first, request_rate_per_s=2 * first.request_rate_per_s),)
    )
    busier = replace(question, demand=demand)
    spec = spec_of_layout(candidate.layout, question)
    replica, link = replica_of(spec), LinkTerms()
    for order in ((question, busier), (busier, question)):
        cache = SearchCache()
        one, two = (cache.trial(candidate, each, {}) for each in order)
        assert one._runs is two._runs
        first_pair, second_pair = (cache.joint(each, replica, replica, link) for each in order)
        assert first_pair._seen is not second_pair._seen
        assert cache.joint(order[0], replica, replica, link)._seen is first_pair._seen


@pytest.mark.parametrize(
    "change",
    [
        {"routing": "random"},
        {"max_model_len": 4096},
        {"slo": Slo(())},
        {"link": LinkTerms(bytes_per_s=1e9)},
        {"tiers": (TierSize("host", 1e9),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_pools_that_differ_share_no_run(question, candidate, change):
    replica = replica_of(spec_of_layout(candidate.layout, question))
    link = change.pop("link", LinkTerms())
    if "tiers" in change:
        change = {"demand": replace(question.demand, **change)}
    cache = SearchCache()
    one = cache.joint(question, replica, replica, LinkTerms())
    assert cache.joint(replace(question, **change), replica, replica, link)._seen is not one._seen


def test_every_field_of_a_specification_is_part_of_its_key(question, candidate):
    spec = spec_of_layout(candidate.layout, question)
    others = {
        name: values[name] for name, values in other_question(question).items() if name in values and hasattr(spec, name)
    } | {
        "network": replace(spec.network, layers=spec.network.layers[:-1]),
        "device": replace(spec.device, name="another"),
        "efficiency": next(iter(other_question(question)["efficiencies"]["efficiencies"].values())),
        "sharding": replace(spec.sharding, tensor=2.0),
        "kv_format": "bf16",
        "typical_context_tokens": 1,
        "offline": True,
        "offload": Offload(spec.network, 8e10),
        "tensor_split": (3.0, 1.0),
    }  # fmt: skip
    assert set(others) == {field.name for field in fields(ReplicaSpec)}
    cache = SearchCache()
    for name, value in others.items():
        changed = replace(spec, **{name: value})
        assert cache._made_of(changed) != cache._made_of(spec), name
        same_times = cache._timed_by(changed) == cache._timed_by(spec)
        assert same_times == (name == "typical_context_tokens"), name


def same_numbers(one, other):
    """Return whether two records of numbers and arrays are equal to the last digit."""
    return all(
        np.array_equal(np.asarray(getattr(one, f.name)), np.asarray(getattr(other, f.name)))
        for f in fields(one)
    )


MIXED = """name: mixed
model: openai/gpt-oss-120b
traffic:
  - {name: chat, request_rate: 20 req/s, input_tokens: {mean: 900, p95: 3000}, output_tokens: 120}
  - {name: users, users: 50, think_time: 20 s, input_tokens: 500, output_tokens: 300}
slo: {ttft_p95: 2 s, tpot_p95: 60 ms}
fleet: {hardware: [h100-sxm, h200-sxm, b200, l40s, mi300x]}
"""


@pytest.mark.parametrize("text", [SCENARIO, MIXED])
def test_replicas_that_are_built_together_are_those_built_alone(text):
    """Step times, memory and steady states have the same digits whichever layouts are built with them, and after other lengths."""
    asked = asked_in(text).question
    candidates, cache = search(asked).candidates, SearchCache()
    for typical in (2.0, 1.0):
        (first, *others) = asked.demand.classes
        longer = replace(first, output_tokens=fixed(typical * first.output_tokens.mean_tokens))
        question = replace(asked, demand=replace(asked.demand, classes=(longer, *others)))
        cache.build([replace(item, demand=question.demand) for item in candidates], question)
    for candidate in candidates:
        spec = spec_of_layout(candidate.layout, question)
        own, built = replica_of(spec), cache.replica(spec)
        assert same_numbers(own.table, built.table)
        assert same_numbers(own.memory, built.memory)
        assert (own.kv_blocks, own.scheduling) == (built.kv_blocks, built.scheduling)
        item = replace(candidate, demand=question.demand)
        assert Trial(item, question, {}).responses_s == cache.trial(item, question, {}).responses_s
        assert Trial(item, question, {}).rate_ceiling == cache.trial(item, question, {}).rate_ceiling


def test_phases_of_pools_share_step_times(question, candidate):
    """An engine that takes caches over takes as long for a step, so nothing is computed twice."""
    taking = replace(question.profile_on(candidate.layout.device), takes_over=True)
    spec, cache = spec_of_layout(candidate.layout, question), SearchCache()
    plain, decoding = cache.replica(spec), cache.replica(replace(spec, profile=taking))
    assert plain.table is decoding.table
    assert decoding.spec.profile.takes_over


def test_what_is_asked_twice_by_the_tests_of_a_module_is_simulated_once(monkeypatch):
    def unwanted(*_, **__):
        raise AssertionError("a run is simulated again")

    scenario = scenario_from(parse_yaml(SCENARIO, "cached.yaml"), Path())
    size_on_few_requests(monkeypatch)
    share_runs(monkeypatch, SearchCache())
    first = fleet_for(asked_fleet(scenario, offline=True)).chosen
    monkeypatch.setattr(Trial, "_simulated", unwanted)
    again = fleet_for(asked_fleet(scenario, offline=True)).chosen
    assert (again.gpus, again.usd_per_hour) == (first.gpus, first.usd_per_hour)


CHAT = "{name: chat, request_rate: 20 req/s, input_tokens: 900, output_tokens: 120}"
TRAFFICS = {
    "requests": [CHAT],
    "two classes that wait differently long": [
        CHAT.replace("chat,", "near,").replace("20 req/s", "20 req/s, region: near"),
        CHAT.replace("chat,", "far,").replace("20 req/s", "12 req/s, region: far"),
    ],
    "users": [CHAT.replace("request_rate: 20 req/s", "users: 60, think_time: 4 s")],
    "users of two classes": [
        CHAT.replace("request_rate: 20 req/s", "users: 40, think_time: 4 s"),
        "{name: code, users: 30, think_time: 9 s, input_tokens: 2500, output_tokens: 300}",
    ],
    "users and requests": [
        CHAT.replace("20 req/s", "8 req/s"),
        "{name: code, users: 30, think_time: 9 s, input_tokens: 2500, output_tokens: 300}",
    ],
    "sessions": [
        "{name: agent, request_rate: 6 req/s, turns: 8, input_tokens: 3000, added_tokens: 500, output_tokens: 120, think_time: 6 s}"
    ],
    "sessions of users": [
        "{name: agent, users: 40, turns: 8, input_tokens: 3000, added_tokens: 500, output_tokens: 120, think_time: 6 s}"
    ],
}
REGIONS = "regions: [{name: near, utc_offset: 1, delay: {far: 180 ms}}, {name: far, utc_offset: 9}]\n"
TARGETS = {"ttft": ("mean", "p50", "p95", "p99"), "tpot": ("mean", "p90", "p95"), "e2e": ("p50", "p95")}


def whole_runs():
    """Let no run end early."""
    return mock.patch.object(simulated_layout, "early_end", return_value=FULL_RUN)


@pytest.mark.parametrize("traffic", TRAFFICS)
@settings(
    max_examples=examples(10, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(st.integers(-60, 20), min_size=2, max_size=4),
    targets=st.lists(
        st.sampled_from([(m, s) for m, names in TARGETS.items() for s in names]),
        min_size=1,
        max_size=3,
        unique=True,
    ),
    tight=st.floats(0.3, 2.0),
    replicas=st.sampled_from([1, 3, 7]),
    slowness=st.sampled_from([1.0, 1.3]),
)
def test_runs_that_end_early_decide_what_whole_runs_decide(
    traffic, steps, targets, tight, replicas, slowness
):
    """Whether targets hold is the same whatever was asked before: at looser limits, at other loads, of a fleet or of a replica."""
    text = SCENARIO.replace(CHAT, "\n  - ".join(TRAFFICS[traffic]))
    if "region:" in text:
        text = REGIONS + text.replace("fleet: {", "fleet: {location: near, ")
    asked = asked_in(text)
    limits = [
        replace(t, metric=metric, statistic=statistic)
        for metric, statistic in targets
        for t in asked.question.slo.targets[:1]
    ]
    question = replace(asked.question, requests=400, slo=Slo(tuple(replace(t, limit_s=9.0) for t in limits)))
    candidate, *_ = search(question).candidates
    trial, whole = (SearchCache().trial(candidate, question, {}) for _ in range(2))
    for step in steps:
        rate = trial.total_rate / 8 * scale_rate(step)
        count = max(int(8 * 2.0 ** (-step / 32)), 1)
        with whole_runs():
            seen = whole.at(rate, replicas, slowness)
        for factor in (1.001, 0.999, 4.0, 0.5, tight):
            borne = {target: factor * seen.value(target, slowness) for target in question.slo.targets}
            with whole_runs():
                holds = whole.holds(rate, replicas, slowness, borne)
                met = whole.worst(whole.fleet(count, slowness, limits=borne), slowness, borne) <= 1.0
            assert trial.holds(rate, replicas, slowness, borne) == holds
            assert (trial.worst(trial.fleet(count, slowness, limits=borne), slowness, borne) <= 1.0) == met
