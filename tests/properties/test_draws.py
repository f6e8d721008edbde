"""Requests as they are drawn: their lengths, their bursts, and that a longer draw begins with a shorter one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from capplan.errors import InputError
from capplan.fleet.load.demand import Demand, demand_of, drawn_requests
from capplan.fleet.load.offered import SamplePath
from capplan.recorded.traces.trace import read_trace
from capplan.scenario.scenario import read_scenario
from capplan.scenario.scenario_file import LengthFields, lengths
from capplan.serving.steady_state import replica_arrival_cv
from capplan.workload.length import (
    empirical,
    fixed,
    lognormal,
    lognormal_sigma,
    standard_normal_quantile,
    uniform,
)
from capplan.workload.request_class import RequestClass
from capplan.workload.statistics import cv_within_minutes, interarrival_cv
from tests.shipped import SCENARIOS

pytestmark = pytest.mark.usefixtures("shared_runs")


CLASSES = (
    RequestClass(
        "chat", lognormal(800.0, 0.9), lognormal(200.0, 0.7), request_rate_per_s=3.0, prefix_hit_fraction=0.4,
        shared_prefix_tokens=100.0,
    ),
    RequestClass("code", empirical([10.0, 500.0, 4000.0]), lognormal(50.0, 0.2), request_rate_per_s=1.0),
)  # fmt: skip


def _demand(classes: tuple[RequestClass, ...]) -> Demand:
    return Demand(classes, classes[0].input_tokens, 4096)


@given(few=st.integers(1, 400), more=st.integers(0, 400), seed=st.integers(0, 1000))
def test_the_first_requests_of_a_longer_draw_are_those_of_a_shorter_one(
    few: int, more: int, seed: int
) -> None:
    demand = _demand(CLASSES)
    short, long = (drawn_requests(demand, count, seed, 4096) for count in (few, few + more))
    for name in ("input_tokens", "output_tokens", "cached_tokens", "class_index"):
        assert np.array_equal(getattr(short, name), getattr(long, name)[:few]), name


@given(rate=st.floats(0.1, 50.0), seed=st.integers(0, 1000))
def test_the_lengths_of_a_class_do_not_depend_on_the_rate_of_another(rate: float, seed: int) -> None:
    demand = _demand(CLASSES)
    other = _demand((CLASSES[0], replace(CLASSES[1], request_rate_per_s=rate)))
    lengths = [
        drawn.input_tokens[drawn.class_index == 0]
        for drawn in (drawn_requests(item, 300, seed, 4096) for item in (demand, other))
    ]
    shared = min(len(part) for part in lengths)
    assert np.array_equal(lengths[0][:shared], lengths[1][:shared])


def refuse(message):
    return InputError(message)


def test_normal_quantile_agrees_with_scipy():
    p = np.concatenate([np.logspace(-12, -0.31, 400), 1 - np.logspace(-12, -0.31, 400)])
    assert np.asarray(standard_normal_quantile(p)) == pytest.approx(stats.norm.ppf(p), rel=3e-9, abs=3e-9)


@given(mean=st.floats(1, 1e6), ratio=st.floats(1.01, 3.86))
def test_lognormal_has_the_mean_and_p95_that_were_asked_for(mean, ratio):
    sigma = float(lognormal_sigma(mean, mean * ratio, 0.95))
    distribution = stats.lognorm(s=sigma, scale=mean / math.exp(sigma**2 / 2))
    assert distribution.mean() == pytest.approx(mean, rel=1e-9)
    assert distribution.ppf(0.95) == pytest.approx(mean * ratio, rel=1e-7)
    assert float(lognormal(mean, sigma).quantile(0.95)) == pytest.approx(mean * ratio, rel=1e-9)


@pytest.mark.parametrize(
    "shape",
    [
        fixed(300),
        uniform(10, 90),
        lognormal(1800, 1.0),
        lognormal(900, 1.2, high=4000),
        empirical(np.array([3, 9, 100.0])),
    ],
)
def test_quantiles_ascend_and_samples_have_the_mean(shape):
    q = shape.quantile(np.linspace(0.001, 0.999, 500))
    assert np.all(np.diff(q) >= 0)
    drawn = shape.sample(200_000, seed=1)
    # five standard errors, and rounding to whole tokens
    assert drawn.mean() == pytest.approx(shape.mean_tokens, abs=5 * drawn.std() / math.sqrt(len(drawn)) + 0.5)
    assert np.array_equal(drawn, shape.sample(200_000, seed=1))
    assert drawn.min() >= 1


@given(count=st.integers(1, 300))
def test_midpoints_keep_the_mean_and_ascend(count):
    points = lognormal(1800, 1.0).midpoints(count)
    assert points.mean() == pytest.approx(1800)
    assert np.all(np.diff(points) >= 0)


@given(p50=st.floats(10, 1e4), ratio=st.floats(1.0, 20))
def test_two_quantiles_are_met(p50, ratio):
    shape = lengths(LengthFields(p50=p50, p95=p50 * ratio), refuse)
    assert float(shape.quantile(0.5)) == pytest.approx(p50, rel=1e-6)
    assert float(shape.quantile(0.95)) == pytest.approx(p50 * ratio, rel=1e-6)


@given(mean=st.floats(10, 1e4), ratio=st.floats(0.2, 1.0))
def test_mean_and_p50_are_met(mean, ratio):
    shape = lengths(LengthFields(mean=mean, p50=mean * ratio), refuse)
    assert shape.mean_tokens == pytest.approx(mean, rel=1e-9)
    assert float(shape.quantile(0.5)) == pytest.approx(mean * ratio, rel=1e-6)


def test_whole_tokens_stand_for_what_is_drawn_and_never_for_none():
    lengths = uniform(0.0, 3.0)
    assert lengths.whole_tokens(6).tolist() == [1, 1, 1, 2, 2, 3]
    drawn = lengths.sample(30_000, 1)
    assert lengths.whole_tokens(600).mean() == pytest.approx(drawn.mean(), rel=0.01)
    assert drawn.min() == 1


RAG_TOOLS = next(path for path in SCENARIOS if path.stem == "rag-tools")


def bursts(seed, minutes=30, size=40):
    """One crowd every twenty seconds or so, of requests a fiftieth of a second apart."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum(rng.exponential(20.0, 3 * minutes))
    return np.sort(np.concatenate([start + np.cumsum(rng.exponential(0.02, size)) for start in starts]))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), replicas=st.integers(1, 30))
def test_what_is_dealt_out_in_turn_varies_as_the_formula_says(seed: int, replicas: int) -> None:
    """Every n-th arrival of a gamma process with cv 4: within the noise of the 2,000 gaps that thirty replicas leave, 8 %."""
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(1.0 / 16.0, 16.0, 60_000)
    own = np.diff(np.cumsum(gaps)[::replicas])
    assert own.std() / own.mean() == pytest.approx(4.0 / np.sqrt(replicas), rel=0.08)
    assert float(replica_arrival_cv(4.0, float(replicas))) == pytest.approx(4.0 / np.sqrt(replicas))


@pytest.mark.parametrize("replicas", [1, 3, 12])
def test_requests_beside_sessions_are_dealt_in_turn_and_turns_of_sessions_are_not(replicas):
    """Counts in windows of a hundred arrivals vary as an n-th of a Poisson process, and as a whole one; 800 windows know that to 5 %."""
    demand = demand_of(read_scenario(RAG_TOOLS))
    sent = (
        SamplePath(demand, count=120_000, seed=replicas, longest=32_000)
        .offered(0.1, replicas=replicas)
        .requests
    )
    questions, turns = (sent.times_s[sent.column("class_index") == index] for index in (0, 1))
    rates = demand.rates_of_classes(0.0)
    for times, rate, dispersion in ((questions, rates[0], 1.0 / replicas), (turns, rates[1], 1.0)):
        assert times.size / times[-1] == pytest.approx(0.1 * rate, rel=0.02)
        counts = np.histogram(times, np.linspace(0.0, times[-1], times.size // 100))[0]
        assert counts.var() / counts.mean() == pytest.approx(dispersion, rel=0.2)
    assert (np.diff(sent.times_s) >= 0.0).all()


def test_a_drifting_rate_is_no_burst_and_a_crowd_is() -> None:
    """Poisson arrivals whose rate goes up tenfold vary little within minutes; crowds vary at any scale."""
    rng = np.random.default_rng(4)
    minutes = [
        60.0 * m + np.sort(rng.random(rng.poisson(60.0 * r)) * 60.0)
        for m, r in enumerate([1, 2, 5, 10, 1, 1])
    ]
    drift = np.concatenate(minutes)
    assert cv_within_minutes(drift) == pytest.approx(1.0, abs=0.07)
    assert interarrival_cv(drift)[0] > 1.3
    assert cv_within_minutes(bursts(1)) > 3.0
    assert cv_within_minutes(np.arange(5.0)) is None


def test_a_fleet_for_crowds_holds_its_targets_when_they_come(tmp_path, capplan):
    """A trace of crowds gets a plan, and replaying it on that plan holds the targets."""
    arrivals = bursts(2)
    rows = "".join(f"{at:.4f},1500,20\n" for at in arrivals)
    (tmp_path / "t.csv").write_text("timestamp,input_tokens,output_tokens\n" + rows)
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\nmodel: llama-3.1-8b\ntraffic: [{name: t, trace: t.csv}]\nslo: {ttft_p95: 4 s}\nfleet: {hardware: h100-sxm}\n"
    )
    assert capplan.result("fleet", path)["plans"][0]["replicas"] >= 2
    assert capplan.result("simulate", path)["missed"] == []
    demand = demand_of(read_scenario(path))
    assert demand.classes[0].arrival_cv > 3.0
    whole, part = (
        SamplePath(demand, count=4000, seed=1, longest=9000).offered(1.0, replicas=n).requests.arrival_s
        for n in (1, 4)
    )
    assert np.diff(part).std() < 0.8 * np.diff(whole).std()


@pytest.mark.parametrize(
    ("name", "whole", "within"),
    [("AzureLLMInferenceTrace_code.csv.gz", 13.15, 4.7), ("AzureLLMInferenceTrace_conv.csv.gz", 1.09, 1.03)],
)
def test_azure_s_code_comes_in_bursts_and_its_chats_do_not(measured, trace, name, whole, within):
    """Published with the trace and counted once, to three digits; of the excerpt by plain counting."""
    arrivals = read_trace(trace(name)).arrival_s
    if not measured.whole:
        whole, within = (measured.facts(name)[key] for key in ("cv", "cv_within_minutes"))
    assert interarrival_cv(arrivals)[0] == pytest.approx(whole, rel=0.01)
    assert cv_within_minutes(arrivals) == pytest.approx(within, rel=0.01)
    assert (within > 3.0) == ("code" in name)
