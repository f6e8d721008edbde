"""Laws of the certainty of a prediction: intervals, the slowness of a replica and fitted deployments."""

from dataclasses import replace
from math import exp, inf, log, log1p, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.interval_fit import UNITS, Residual, conformal_intervals, regime_intervals
from capplan.accuracy.bounded import (
    LEAST_POINTS,
    LEVELS,
    NOISE,
    PER_DOUBLING,
    Interval,
    Operation,
    bounded_estimate,
    deployment_interval,
    interval_of,
    left_out_spread,
    operation_interval,
    regime_keys,
    unmeasured_width,
    unseen_doublings,
)
from capplan.accuracy.slowness import (
    JointSlowness,
    by_latency,
    deployment_slowness,
    latency_at_slowness,
    replica_slowness,
    slowness_of,
    slowness_scale,
)
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
from capplan.workload.request_class import METRICS, STATISTICS, Target
from tests.sweeps import examples

LOADS = ("closed", "open", "burst", "static", "offline", "overload")
ENTRIES = st.builds(
    Interval,
    st.floats(0.2, 1.0), st.floats(1.0, 5.0), st.integers(1, 40), st.integers(1, 12), st.just(1.0), st.just(()), st.integers(1, 3),
)  # fmt: skip


def residuals(logs, keys=("tpot_mean/open",), models=20):
    return [
        Residual(keys, {unit: f"{unit} {k % models}" for unit in UNITS}, (keys[0], str(k)), float(x))
        for k, x in enumerate(logs)
    ]


@given(st.floats(0.3, 3.0))
def test_the_bias_of_predictions_is_kept(bias):
    """Twenty models that all measure twice what is predicted: the distribution of what was measured lies about two."""
    logs = np.log(bias) + np.random.default_rng(3).normal(0.0, 0.05, 400)
    found = regime_intervals(residuals(logs))["tpot_mean/open"]
    assert found.median_ratio == pytest.approx(bias, rel=0.02)
    assert 0.85 * bias < found.low_ratio < found.median_ratio < found.high_ratio < 1.15 * bias


def test_a_model_of_many_rows_does_not_decide():
    """Nineteen models of eight rows are right, one of a thousand rows is off by a factor of e: the 80 % interval leaves it out."""
    many = residuals([1.0] * 1000, models=1)
    others = [
        Residual(own.keys, dict.fromkeys(UNITS, f"other {k % 19}"), ("other", str(k)), 0.02 * (k % 5 - 2))
        for k, own in enumerate(residuals([0.0] * 152))
    ]
    found = regime_intervals(many + others)["tpot_mean/open"]
    assert found.high_ratio < 1.1


def test_statistics_do_not_share_their_residuals():
    keys = [regime_keys("ttft", "open", "dense", "measured", name) for name in ("p50", "p99")]
    found = regime_intervals(residuals([0.0] * 40, keys[0]) + residuals([1.0] * 40, keys[1]))
    assert [interval_of(found, own).median_ratio for own in keys] == pytest.approx([1.0, np.e])


@pytest.mark.long
@settings(max_examples=5)
@given(st.integers(0, 10_000), st.floats(0.02, 0.3), st.floats(0.0, 0.3))
def test_every_level_holds_its_share_of_models_left_out(seed, within, between):
    """Models that differ, and statistics that are sure by different measure: each level holds its share, and the surer statistic is narrower."""
    rng = np.random.default_rng(seed)
    entries = []
    for statistic, factor in (("mean", 1.0), ("p99", 3.0)):
        keys = regime_keys("ttft", "closed", "dense", "measured", statistic)
        shift = rng.normal(0.0, factor * between, 24)[np.arange(192) % 24]
        entries += residuals(shift + rng.normal(0.0, factor * within, 192), keys, models=24)
    intervals, coverage = conformal_intervals(dict.fromkeys(UNITS, entries))
    for ruler in UNITS:
        for name in ("ttft_mean/closed", "ttft_p99/closed"):
            for level in LEVELS:
                assert coverage[ruler, name].held[level] == pytest.approx(level, abs=0.1)
    mean, tail = intervals["ttft_mean/closed"], intervals["ttft_p99/closed"]
    assert mean.high_ratio / mean.low_ratio < tail.high_ratio / tail.low_ratio
    assert all(left < right for left, right in zip(mean.ratios, mean.ratios[1:], strict=False))


def test_an_interval_of_one_source_spans_that_of_others_too():
    """Six models that one careful setup measured 2 % from what is predicted say nothing of a second setup, 30 % off."""
    keys = regime_keys("tpot", "open", "dense", "measured")
    careful = [
        replace(own, parts=own.parts | {"source": "one"})
        for own in residuals([0.02, 0.03] * 60, keys, models=6)
    ]
    found = regime_intervals(careful)
    assert found[keys[0]].few
    assert found[keys[0]].groups == 6
    wider = [
        replace(own, parts=own.parts | {"source": "two"}, keys=keys[4:]) for own in residuals([0.26] * 40)
    ]
    assert interval_of(regime_intervals(careful + wider), keys).high_ratio > 1.29


def test_a_regime_of_few_models_gives_way_to_the_wider_one_of_its_class():
    """Of two timed models one is off by a factor of six: the tail is that of all eight of the class."""
    keys = regime_keys("tpot", "closed", "mla", "measured")
    timed = residuals([0.0, 1.8] * 20, keys, models=2)
    others = [
        replace(
            own,
            parts=own.parts | {"model": f"{own.parts['model']} of others", "source": "two"},
            keys=keys[1:],
        )
        for own in residuals([0.1] * 120, keys, models=8)
    ]
    found = regime_intervals(timed + others)
    assert found[keys[0]].high_ratio > 6.0
    assert interval_of(found, keys).ratios == found[keys[1]].ratios


def test_mixtures_stretch_no_interval_of_dense_networks():
    """Dense networks are off by 2 %, mixtures by 30 %: what mixtures show says nothing of dense networks."""
    rng = np.random.default_rng(12)
    entries = []
    for kind, off in (("dense", 0.02), ("moe", 0.3)):
        keys = regime_keys("tpot", "closed", kind, "measured")
        shift = rng.normal(0.0, off, 24)[np.arange(192) % 24]
        entries.append(residuals(shift + rng.normal(0.0, 0.1 * off, 192), keys, models=24))
    both, _ = conformal_intervals({ruler: [*entries[0], *entries[1]] for ruler in UNITS})
    alone, _ = conformal_intervals(dict.fromkeys(UNITS, entries[0]))
    key = regime_keys("tpot", "closed", "dense", "measured")[0]
    assert both[key].ratios == pytest.approx(alone[key].ratios)


@pytest.mark.parametrize("quantity", ["ttft", "tpot", "throughput"])
def test_an_interval_is_wider_the_further_the_timed_device_is(quantity):
    """As plans are less sure there: on another generation than was timed, and more so on another vendor's devices."""
    spread = []
    for far in (0, 1, 2):
        operation = Operation("dense", profile("vllm"), "measured", device("h100-sxm"), unmeasured=far)
        interval = operation_interval(shipped_intervals(), quantity, "closed", operation)
        spread.append(np.log(interval.high_ratio / interval.low_ratio) / unmeasured_width(far))
    assert spread == pytest.approx([spread[0]] * 3)


def test_two_values_of_a_second_source_stretch_no_interval_of_the_first():
    """All but two means are of one source. Without it, what stretches its intervals are the tails that others measured, not the two."""
    rng = np.random.default_rng(11)

    def of(statistic, source, logs):
        keys = regime_keys("tpot", "closed", "dense", "measured", statistic)
        return [
            replace(own, parts=own.parts | {"source": source}, name=(f"{source} {own.name[1]}", statistic))
            for own in residuals(logs, keys)
        ]

    entries = of("mean", "one", rng.normal(0.0, 0.1, 400)) + of("mean", "two", [0.0, 0.001])
    entries += of("p99", "two", rng.normal(0.0, 0.1, 200)) + of("p99", "three", rng.normal(0.0, 0.1, 200))
    _, coverage = conformal_intervals(dict.fromkeys(UNITS, entries))
    assert coverage["source", "tpot_mean/closed"].held[0.5] == pytest.approx(0.5, abs=0.15)


@settings(max_examples=examples(10, 100))
@given(st.floats(0.3, 3.0))
def test_an_interval_holds_its_own_prediction(bias):
    """All models measure more, or less, than predicted: the median says so, and the ends still enclose the prediction."""
    logs = np.log(bias) + np.random.default_rng(3).normal(0.0, 0.05, 400)
    intervals, _ = conformal_intervals(dict.fromkeys(UNITS, residuals(logs)))
    found = intervals["tpot_mean/open"]
    assert found.median_ratio == pytest.approx(bias, rel=0.02)
    for level in LEVELS:
        low, high = found.at(level)
        assert low <= 1.0 <= high


@given(st.lists(ENTRIES, min_size=6, max_size=6))
def test_a_regime_of_few_models_gives_way_or_is_never_narrower_than_the_next(entries):
    """To the narrowest regime of its class with enough models; where none has, the next wider ones are spanned."""
    keys = regime_keys("ttft", "open", "dense", "measured")
    intervals = dict(zip(keys, entries, strict=True))
    found = interval_of(intervals, keys)
    enough = [entry for entry in entries if entry.n >= LEAST_POINTS]
    if not enough:
        assert found == entries[-1]
        return
    alone = [
        entry for key, entry in intervals.items() if "dense" in key and entry in enough and not entry.few
    ]
    if alone:
        assert found == alone[0]
        return
    assert (found.n, found.groups) == (enough[0].n, enough[0].groups)
    spanned = enough[:1]
    if enough[0].few and len(enough) > 1 and enough[1] is not entries[-1]:  # the last one is of all loads
        spanned = enough[:2]
    assert found.low_ratio <= min(entry.low_ratio for entry in spanned)
    assert found.high_ratio >= max(entry.high_ratio for entry in spanned)
    assert found.low_ratio in {entry.low_ratio for entry in enough}
    assert found.high_ratio in {entry.high_ratio for entry in enough}
    if not enough[0].few:
        assert (found.low_ratio, found.high_ratio) == (enough[0].low_ratio, enough[0].high_ratio)


@given(st.floats(0.05, 0.95), st.floats(0.2, 1.0), st.floats(1.0, 5.0))
def test_an_interval_is_one_distribution(probability, low, high):
    entry = Interval(low, high, 30, 9)
    assert entry.quantile(0.1) == pytest.approx(low)
    assert entry.quantile(0.9) == pytest.approx(high)
    assert entry.quantile(probability) <= entry.quantile(min(probability + 0.04, 0.99)) + 1e-12


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("metric", [*METRICS, "throughput"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_every_latency_of_a_report_has_an_interval(metric, statistic, load):
    """Gaps between tokens are nowhere published as such: they are bounded as the time per token is."""
    found = interval_of(shipped_intervals(), regime_keys(metric, load, "mla", "assumed", statistic))
    assert found is not None
    assert found.low_ratio <= found.median_ratio <= found.high_ratio
    assert found.low_ratio < found.high_ratio


CHANCES = st.floats(0.001, 0.999)
STEPS = st.floats(1e-3, 1.0)
ANY_TARGETS = st.lists(
    st.builds(Target, st.sampled_from(METRICS), st.sampled_from(STATISTICS), st.floats(0.01, 10.0)), min_size=1, max_size=4
)  # fmt: skip
TARGETS = ANY_TARGETS.map(lambda targets: next(iter(by_latency(targets).values())))
"""On one latency."""


def of(targets, step_s=0.03, network_class="dense"):
    return slowness_of(shipped_slowness(), targets, network_class=network_class, step_s=step_s)


@given(TARGETS, STEPS, CHANCES)
def test_a_quantile_is_held_with_its_probability(targets, step_s, chance):
    usual = of(targets, step_s)
    assert usual.probability(usual.quantile(chance)) == pytest.approx(chance, abs=1e-6)


@given(
    target=st.builds(Target, st.sampled_from(METRICS), st.sampled_from(STATISTICS), st.floats(0.01, 10.0)),
    step_s=STEPS,
    chance=CHANCES,
    predicted=st.floats(1e-3, 10.0),
    part=st.sampled_from((0.1, 0.5, 0.8, 0.9)),
)
def test_a_latency_is_within_its_limit_as_often_as_its_probability_says(
    target, step_s, chance, predicted, part
):
    """The interval of a target and its probability are of one distribution: a quantile of the latency is within the limit if the probability is as high."""
    usual = of([target], step_s)
    slowest = usual.quantile(chance)
    if (target.limit_s > predicted) == (slowest > 1.0) and abs(log(slowest)) > 1e-6:
        latency = latency_at_slowness(predicted, usual.quantile(part), target.limit_s, slowest)
        if abs(part - chance) > 1e-6 and (usual.quantile(part) > 1.0) == (slowest > 1.0):
            assert (latency <= target.limit_s) == (part <= chance)


@given(TARGETS, STEPS, CHANCES, CHANCES)
def test_more_confidence_needs_room_for_more_slowness(targets, step_s, one, other):
    usual = of(targets, step_s)
    low, high = sorted((one, other))
    assert usual.quantile(low) <= usual.quantile(high)
    assert 0.0 == usual.probability(0.0) <= usual.probability(low) <= usual.probability(high) <= 1.0
    assert usual.probability(inf) == 1.0


@given(TARGETS)
def test_the_order_and_the_repetition_of_targets_count_for_nothing(targets):
    assert of(targets) == of(targets[::-1]) == of(targets * 2)


def test_the_bias_is_kept():
    """Half of the measured groups are slower than predicted, at steps of 50 ms by 2.8 % and more; a plan starts from there."""
    table, found = shipped_slowness(), of([Target("tpot", "p50", 0.05)], 0.05).quantile(0.5)
    regime = table.regimes["tpot/middle"]
    scale = sqrt(table.relative**2 + log1p(table.host_s / 0.05) ** 2)
    assert found == pytest.approx(exp(scale * regime.quantiles[2]), rel=1e-6)
    assert found == pytest.approx(1.028, abs=0.002)


def joint_of(step_s, statistic="p95"):
    first, later = Target("ttft", statistic, 1.0), Target("tpot", statistic, 1.0)
    each = {"ttft": of([first], step_s), "tpot": of([later], step_s)}
    return JointSlowness(each, shipped_slowness().correlation)


SLOWNESSES = st.one_of(st.floats(0.2, 5.0), st.sampled_from([0.0, inf]))


@given(STEPS, SLOWNESSES, SLOWNESSES, st.sampled_from(STATISTICS))
def test_both_targets_hold_as_often_as_the_chances_of_each_allow(step_s, first, later, statistic):
    """Never more often than either, nor less often than both miss at different times (Frechet); and one that always holds takes nothing away."""
    joint = joint_of(step_s, statistic)
    chances = [joint.by_latency["ttft"].probability(first), joint.by_latency["tpot"].probability(later)]
    both = joint.probability({"ttft": first, "tpot": later})
    assert max(sum(chances) - 1.0, 0.0) - 1e-9 <= both <= min(chances) + 1e-9
    assert both >= chances[0] * chances[1] - 1e-9  # errors rise together
    for name, chance, own in (("ttft", chances[0], first), ("tpot", chances[1], later)):
        other = "tpot" if name == "ttft" else "ttft"
        assert joint.probability({name: own, other: inf}) == pytest.approx(chance, abs=1e-9)


@given(STEPS, SLOWNESSES, SLOWNESSES, st.floats(0.05, 0.99))
def test_what_is_required_of_both_is_shared_out_whole(step_s, first, later, confidence):
    """Whatever room either has to its limit, the shares hold together with the confidence; alone each has to hold with it at least."""
    joint = joint_of(step_s)
    least = joint.each(confidence)
    for shares in (
        joint.equally(confidence),
        joint.shared_out({"ttft": first, "tpot": later}, confidence),
    ):
        assert joint.probability(shares) == pytest.approx(confidence, abs=1e-6)
        assert all(shares[name] >= least[name] * (1.0 - 1e-6) for name in shares)
    other = joint.other_needed("ttft", first, confidence)
    if other < inf:
        assert joint.probability({"ttft": first, "tpot": other}) == pytest.approx(confidence, abs=1e-6)
    else:
        assert first <= least["ttft"] * (1.0 + 1e-6)


def test_probabilities_of_two_errors_are_those_of_drawn_ones():
    """Two million pairs of normal scores with the shipped correlation, by their ranks in the distributions."""
    joint, draw = joint_of(0.03), np.random.default_rng(4)
    first = draw.normal(size=2_000_000)
    second = joint.correlation * first + sqrt(1.0 - joint.correlation**2) * draw.normal(size=first.size)
    for limits in ((0.9, 1.0), (1.3, 1.1), (2.0, 1.05), (1.1, 2.0)):
        scores = [
            joint.by_latency[name].normal_quantile(limit)
            for name, limit in zip(("ttft", "tpot"), limits, strict=True)
        ]
        drawn = ((first <= scores[0]) & (second <= scores[1])).mean()
        assert joint.probability(dict(zip(("ttft", "tpot"), limits, strict=True))) == pytest.approx(
            drawn, abs=2e-3
        )


def test_a_class_of_networks_that_nobody_measured_is_wider_and_thin():
    target = [Target("tpot", "p50", 0.05)]
    dense, mla, unknown = of(target), of(target, network_class="mla"), of(target, network_class="new")
    assert mla.quantile(0.9) / mla.quantile(0.1) > dense.quantile(0.9) / dense.quantile(0.1)
    assert mla.thin
    assert unknown.quantile(0.9) >= mla.quantile(0.9)


@given(TARGETS, STEPS, st.floats(0.51, 0.999))
def test_kernels_that_nobody_timed_make_a_plan_less_certain(targets, step_s, confidence):
    """The median stays, both ends move away from it, and two unknowns are more than one and less than their product."""

    def at(unmeasured, chance):
        found = slowness_of(
            shipped_slowness(), targets, network_class="dense", step_s=step_s, unmeasured_kernels=unmeasured
        )
        assert found.thin or not unmeasured
        return log(found.quantile(chance))

    middle = at(0, 0.5)
    own, kin, foreign = (at(unmeasured, confidence) - middle for unmeasured in (0, 1, 2))
    assert at(1, 0.5) == pytest.approx(middle)
    assert own <= kin <= foreign <= 1.6 * kin + 1e-9
    assert kin == pytest.approx(1.6 * own)
    assert at(2, 1.0 - confidence) <= at(0, 1.0 - confidence) + 1e-9


def test_few_groups_are_called_thin():
    table = shipped_slowness()
    few = {key: replace(regime, groups=3) for key, regime in table.regimes.items()}
    found = slowness_of(
        replace(table, regimes=few), [Target("ttft", "p99", 1.0)], network_class="dense", step_s=0.03
    )
    assert found.thin


def test_a_slow_host_doubles_a_short_step():
    assert exp(slowness_scale(0.008, 0.0, 0.008)) == pytest.approx(2.0)


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


def deployment_of(results, served=OWN, targets=(MEAN,)):
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
        spread = left_out_spread(noisy(draw, 0.08, loads, repeats), OWN, "tpot")
        held += bool(draw.normal(0.0, 0.08) <= spread.log_quantile(claimed))
    # repeats of one load say more than one of them, and are counted as one: what they hold is at least what is claimed
    assert held / trials >= claimed - 0.04
    assert repeats > 1 or held / trials <= claimed + 0.04


@pytest.mark.parametrize("claimed", [0.5, 0.8, 0.95])
def test_both_latencies_hold_together_as_often_as_claimed(claimed):
    """Errors of a deployment that rise together as those of measured runs do."""
    draw, trials, table = np.random.default_rng(3), 1500, shipped_slowness()
    covariance = 0.08**2 * np.array([[1.0, table.correlation], [table.correlation, 1.0]])
    held = 0
    for _ in range(trials):
        results = noisy(draw, 0.08, 8)
        each = {
            name: deployment_slowness(table, [target], results, OWN)
            for name, target in (("ttft", Target("ttft", "mean", 1.0)), ("tpot", MEAN))
        }
        limits = JointSlowness(each, table.correlation).equally(claimed)
        errors = np.exp(draw.multivariate_normal([0.0, 0.0], covariance))
        held += bool(errors[0] <= limits["ttft"] and errors[1] <= limits["tpot"])
    assert held / trials == pytest.approx(claimed, abs=0.05)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("quantity", ["ttft", "tpot"])
def test_intervals_of_a_deployment_hold_their_share(quantity, level):
    draw, trials = np.random.default_rng(7), 1500
    inside = 0
    for _ in range(trials):
        low, high = deployment_interval(quantity, noisy(draw, 0.08, 5), OWN, 1.0).at(level)
        inside += bool(low <= np.exp(draw.normal(0.0, 0.08)) <= high)
    assert inside / trials == pytest.approx(level, abs=0.04)


def test_a_deployment_that_is_less_even_than_others_says_so_and_far_from_its_results_the_back_test_says_more():
    """A busy host kept 42 % of the limits on TPOT that plans called 80 % sure: the back-test was narrower than its own results."""
    shown = {0.02: False, 0.5: True}
    usual = deployment_of(())
    for deviation, wider in shown.items():
        results = noisy(np.random.default_rng(5), deviation, 8)
        own = deployment_of(results)
        assert own == deployment_slowness(shipped_slowness(), [MEAN], results, OWN)
        assert (own.quantile(0.8) / own.quantile(0.5) > usual.quantile(0.8) / usual.quantile(0.5)) is wider
    far = replace(OWN, input_tokens=512.0 * 2.0**20)
    assert deployment_of(noisy(np.random.default_rng(5), 0.02, 8), far) == usual


@given(st.integers(0, LEAST_LOADS - 1), st.integers(1, 5))
def test_few_loads_leave_the_spread_of_the_back_test(loads, repeats):
    """One result, or one load as often as anybody likes, says nothing of another load."""
    results = noisy(np.random.default_rng(0), 0.01, loads, repeats)
    assert left_out_spread(results, OWN, "tpot") is None
    assert deployment_of(results) == deployment_of(()) == deployment_of((), None)


@given(
    st.integers(0, 2**32 - 1),
    st.floats(1.0, 64.0),
    st.sampled_from(["input_tokens", "output_tokens", "in_flight"]),
)
def test_unseen_lengths_and_loads_widen_it(seed, factor, what):
    results = noisy(np.random.default_rng(seed), 0.05, 6)
    largest = {"input_tokens": 512.0, "output_tokens": 128.0, "in_flight": 32.0}[what]
    near, far = (replace(OWN, **{what: largest * more}) for more in (factor, 2.0 * factor))
    scales = [left_out_spread(results, served, "tpot").scale for served in (OWN, near, far)]
    assert scales == sorted(scales)
    assert unseen_doublings(results, OWN) == 0.0 < unseen_doublings(results, far)
    assert deployment_of(results, far).quantile(0.9) >= deployment_of(results).quantile(0.9)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["other in bf16", "chat in fp8", "chat TP2 in bf16"]))
def test_another_model_format_or_parallelism_keeps_the_spread_of_the_back_test(seed, other):
    results = noisy(np.random.default_rng(seed), 0.02, 8)
    assert deployment_of(results, replace(OWN, deployment=other)) == deployment_of(())
    assert deployment_of(results).quantile(0.8) < deployment_of(()).quantile(0.8)


def test_no_results_make_it_narrower_than_repeats_are():
    exact = [result(users) for users in USERS]
    spread = left_out_spread(exact, OWN, "tpot")
    assert spread.scale >= NOISE["tpot"]
    assert left_out_spread(exact, OWN, "ttft").scale >= NOISE["ttft"]
    repeated = [result(users, tpot=error) for users in USERS for error in (-0.06, 0.06)]
    assert left_out_spread(repeated, OWN, "tpot").scale >= 0.06


def test_tails_are_less_certain_than_means():
    results = noisy(np.random.default_rng(1), 0.03, 8)
    assert deployment_of(results, targets=[TAIL]).quantile(0.9) > deployment_of(results).quantile(0.9)


def test_what_it_rests_on_is_said():
    results = noisy(np.random.default_rng(1), 0.03, 8)
    assert deployment_of(results).rests_on.startswith("8 results of this deployment, left-out error ")
    assert "measured runs" in deployment_of(()).rests_on


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
        left_out_spread(exact, replace(OWN, input_tokens=tokens), "tpot").scale for tokens in (512.0, 8192.0)
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
