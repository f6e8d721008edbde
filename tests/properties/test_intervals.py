"""Laws of the prediction intervals: by statistic, with their bias, conformal over models, wider where few were measured."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.interval_fit import UNITS, Residual, conformal_intervals, regime_intervals
from capplan.accuracy.bounded import LEAST_POINTS, LEVELS, Interval, interval_of, regime_keys
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.workload.request_class import METRICS, STATISTICS
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
def test_a_regime_of_few_models_is_never_narrower_than_the_next(entries):
    keys = regime_keys("ttft", "open", "dense", "measured")
    intervals = dict(zip(keys, entries, strict=True))
    found = interval_of(intervals, keys)
    enough = [entry for entry in entries if entry.n >= LEAST_POINTS]
    if not enough:
        assert found == entries[-1]
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
