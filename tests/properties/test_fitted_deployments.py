"""Laws of the certainty of a fitted deployment: it holds as often as it claims, and is wider where the results say less."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.accuracy.bounded import (
    NOISE,
    PER_DOUBLING,
    Operation,
    bounded_estimate,
    deployment_interval,
    left_out_spread,
    operation_interval,
    unseen_doublings,
)
from capplan.accuracy.slowness import deployment_slowness, replica_slowness
from capplan.engine.left_out import LEAST_LOADS, LeftOutResult, Served
from capplan.engine.lookup import profile
from capplan.readers.calibration.record import ResultPoint
from capplan.readers.calibration.refitted import efficiency_by, left_out_results
from capplan.readers.catalogue.efficiency import shipped_intervals, shipped_slowness
from capplan.readers.catalogue.hardware import device
from capplan.replica.load import Load
from capplan.replica.replica import replica_of
from capplan.replica.spec import deployed_as
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.workload.request_class import Target

USERS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
OWN = Served("chat in bf16", 512.0, 128.0, 16.0)
MEAN, TAIL = Target("tpot", "mean", 1.0), Target("tpot", "p99", 1.0)


def result(in_flight=8.0, ttft=0.0, tpot=0.0, rate=None, deployment=OWN.deployment):
    return LeftOutResult(deployment, 512.0, 128.0, in_flight, rate, {"ttft": ttft, "tpot": tpot})


def noisy(draw, deviation, loads, repeats=1):
    """Return results of a deployment whose errors have a known deviation."""
    return [
        result(users, *draw.normal(0.0, deviation, 2).tolist())
        for users in USERS[:loads]
        for _ in range(repeats)
    ]


def of(results, served=OWN, targets=(MEAN,)):
    gpu = device("h100-sxm")
    return replica_slowness(
        shipped_slowness(), targets, network_class="dense", step_s=0.03, device=gpu,
        efficiency=efficiency_by(None, gpu), left_out=results, served=served,
    )  # fmt: skip


@pytest.mark.parametrize(("loads", "repeats"), [(3, 1), (4, 1), (8, 1), (6, 3)])
@pytest.mark.parametrize("claimed", [0.5, 0.8, 0.95])
def test_a_deployment_is_as_fast_as_claimed_as_often_as_claimed(claimed, loads, repeats):
    """Over many deployments whose errors deviate by 8 %: with 1,500 of them, 4 % is three times the deviation of a share."""
    draw, trials = np.random.default_rng(loads), 1500
    held = 0
    for _ in range(trials):
        spread = left_out_spread(noisy(draw, 0.08, loads, repeats), OWN, ("tpot",))
        held += bool(draw.normal(0.0, 0.08) <= spread.log_quantile(claimed))
    # repeats of one load say more than one of them, and are counted as one: what they hold is at least what is claimed
    assert held / trials >= claimed - 0.04
    assert repeats > 1 or held / trials <= claimed + 0.04


@pytest.mark.parametrize("claimed", [0.5, 0.8, 0.95])
def test_both_latencies_hold_together_as_often_as_claimed(claimed):
    draw, trials = np.random.default_rng(3), 1500
    targets = [Target("ttft", "mean", 1.0), MEAN]
    held = 0
    for _ in range(trials):
        own = deployment_slowness(shipped_slowness(), targets, noisy(draw, 0.08, 8), OWN)
        held += bool(np.exp(draw.normal(0.0, 0.08, 2)).max() <= own.quantile(claimed))
    assert held / trials >= claimed - 0.04
    assert held / trials <= claimed + 0.09  # never surer than either latency, so a little careful


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("quantity", ["ttft", "tpot"])
def test_intervals_of_a_deployment_hold_their_share(quantity, level):
    draw, trials = np.random.default_rng(7), 1500
    inside = 0
    for _ in range(trials):
        low, high = deployment_interval(quantity, noisy(draw, 0.08, 5), OWN, 1.0).at(level)
        inside += bool(low <= np.exp(draw.normal(0.0, 0.08)) <= high)
    assert inside / trials == pytest.approx(level, abs=0.04)


@given(st.integers(0, LEAST_LOADS - 1), st.integers(1, 5))
def test_few_loads_leave_the_spread_of_the_back_test(loads, repeats):
    """One result, or one load as often as anybody likes, says nothing of another load."""
    results = noisy(np.random.default_rng(0), 0.01, loads, repeats)
    assert left_out_spread(results, OWN, ("tpot",)) is None
    assert of(results) == of(()) == of((), None)


@given(
    st.integers(0, 2**32 - 1),
    st.floats(1.0, 64.0),
    st.sampled_from(["input_tokens", "output_tokens", "in_flight"]),
)
def test_unseen_lengths_and_loads_widen_it(seed, factor, what):
    results = noisy(np.random.default_rng(seed), 0.05, 6)
    largest = {"input_tokens": 512.0, "output_tokens": 128.0, "in_flight": 32.0}[what]
    near, far = (replace(OWN, **{what: largest * more}) for more in (factor, 2.0 * factor))
    scales = [left_out_spread(results, served, ("tpot",)).scale for served in (OWN, near, far)]
    assert scales == sorted(scales)
    assert unseen_doublings(results, OWN) == 0.0 < unseen_doublings(results, far)
    assert of(results, far).quantile(0.9) >= of(results).quantile(0.9)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["other in bf16", "chat in fp8", "chat TP2 in bf16"]))
def test_another_model_format_or_parallelism_keeps_the_spread_of_the_back_test(seed, other):
    results = noisy(np.random.default_rng(seed), 0.02, 8)
    assert of(results, replace(OWN, deployment=other)) == of(())
    assert of(results).quantile(0.8) < of(()).quantile(0.8)


def test_no_results_make_it_narrower_than_repeats_are():
    exact = [result(users) for users in USERS]
    spread = left_out_spread(exact, OWN, ("tpot",))
    assert spread.scale >= NOISE["tpot"]
    assert left_out_spread(exact, OWN, ("ttft",)).scale >= NOISE["ttft"]
    repeated = [result(users, tpot=error) for users in USERS for error in (-0.06, 0.06)]
    assert left_out_spread(repeated, OWN, ("tpot",)).scale >= 0.06


@given(st.integers(0, 2**32 - 1), st.floats(0.5, 3.0))
def test_it_is_never_wider_than_the_back_test(seed, deviation):
    """A fit that explains its own results badly says less than the back-test, which then stays."""
    assert of(noisy(np.random.default_rng(seed), deviation, 5)) == of(())


def test_tails_are_less_certain_than_means():
    results = noisy(np.random.default_rng(1), 0.03, 8)
    assert of(results, targets=[TAIL]).quantile(0.9) > of(results).quantile(0.9)


def test_what_it_rests_on_is_said():
    results = noisy(np.random.default_rng(1), 0.03, 8)
    assert of(results).rests_on.startswith("8 results of this deployment, left-out error ")
    assert "measured runs" in of(()).rests_on


@given(
    st.sampled_from(["ttft", "tpot", "itl", "e2e", "throughput"]),
    st.sampled_from(["open", "closed"]),
    st.sampled_from(["mean", "p95"]),
)
def test_intervals_take_those_of_the_deployment_where_they_are_narrower(quantity, load, statistic):
    results = tuple(noisy(np.random.default_rng(2), 0.01, 8))
    known = replace(profile("vllm"), left_out=results)
    ends = []
    for served in (OWN, replace(OWN, deployment="another"), None):
        operation = Operation("dense", known, "measured", device("h100-sxm"), served)
        interval = operation_interval(shipped_intervals(), quantity, load, operation, statistic)
        ends.append(interval.high_ratio / interval.low_ratio)
        assert (interval.left_out_error_fraction is not None) == (served is OWN)
    assert ends[0] < ends[1] == ends[2]


def point(name, metric, measured_s, **more):
    return ResultPoint(
        name,
        metric,
        OWN.deployment,
        more.pop("concurrency", 4.0),
        measured_s,
        1.0,
        1.0,
        measured_s / 1.1,
        **more,
    )


def test_points_of_a_file_become_results():
    lengths = {"input_tokens": 512.0, "output_tokens": 128.0}
    closed = [point("a.json", "tpot_s", 0.02, **lengths), point("a.json", "ttft_s", 0.3, **lengths)]
    rated = [
        point("b.json", metric, 0.02, concurrency=None, request_rate_per_s=2.0, **lengths)
        for metric in ("tpot_s", "ttft_s")
    ]
    first, second = left_out_results([*closed, *rated])
    assert (first.in_flight, first.request_rate_per_s) == (4.0, None)
    assert second.in_flight == pytest.approx(2.0 * (0.02 + 128.0 * 0.02))
    assert first.log_ratios == pytest.approx({"tpot": np.log(1.1), "ttft": np.log(1.1)})
    assert len(left_out_results([*closed, *closed])) == 2  # files of one name in two folders
    assert left_out_results([point("old.json", "tpot_s", 0.02)]) == ()  # an older file states no lengths


def test_each_doubling_adds_its_variance():
    exact = [result(users) for users in USERS]
    inside, beyond = (
        left_out_spread(exact, replace(OWN, input_tokens=tokens), ("tpot",)).scale
        for tokens in (512.0, 8192.0)
    )
    assert beyond**2 - inside**2 == pytest.approx(4.0 * PER_DOUBLING**2)


def test_an_estimate_says_which_results_its_intervals_rest_on():
    spec = asked_replica("llama-3.1-8b", "h100-sxm", ServingFlags(offline=True)).spec
    name = deployed_as(spec.network, spec.sharding, spec.kv_format)
    seen = [replace(one, deployment=name) for one in noisy(np.random.default_rng(2), 0.01, 8)]
    found = []
    for results in (tuple(seen), ()):
        replica = replica_of(replace(spec, profile=replace(spec.profile, left_out=results)))
        found.append(bounded_estimate(replica, Load(512, 128, concurrency=8), shipped_intervals()))
    own, usual = found
    assert own.rests_on.startswith("TTFT, TPOT, E2E from 8 results of this deployment, left-out error ")
    assert usual.rests_on == ""
    assert own.estimate == usual.estimate
    assert own.tpot_s.high - own.tpot_s.low < usual.tpot_s.high - usual.tpot_s.low
