"""Laws of the prediction intervals: by statistic, with their bias, wider where few were measured."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.interval_fit import FEW_VALUES, LEVEL, covering_intervals, residual_intervals
from capplan.accuracy.intervals import (
    LEAST_GROUPS,
    LEAST_POINTS,
    Interval,
    interval_of,
    regime_keys,
)
from capplan.accuracy.score import Prediction
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.workload.slo import METRICS, STATISTICS

LOADS = ("closed", "open", "burst", "static", "offline", "overload")
ENTRIES = st.builds(
    Interval,
    st.floats(0.2, 1.0), st.floats(1.0, 5.0), st.integers(1, 40), st.integers(1, 12), st.just(1.0),
)  # fmt: skip


def residuals(ratios, keys=("tpot_mean/open",), groups=20):
    return [(keys, f"group {k % groups}", Prediction(str(k), "m", r, 1.0)) for k, r in enumerate(ratios)]


@given(st.floats(0.3, 3.0))
def test_the_bias_of_predictions_is_kept(bias):
    """Twenty groups that all measure twice what is predicted: the interval lies about two, it does not reach down to one."""
    ratios = bias * np.exp(np.random.default_rng(3).normal(0.0, 0.05, 400))
    found = residual_intervals(residuals(ratios))["tpot_mean/open"]
    assert found.median_ratio == pytest.approx(bias, rel=0.02)
    assert 0.85 * bias < found.low_ratio < found.median_ratio < found.high_ratio < 1.15 * bias


def test_statistics_do_not_share_their_residuals():
    keys = [regime_keys("ttft", "open", "dense", "measured", name) for name in ("p50", "p99")]
    both = residuals([1.0] * 30, keys[0]) + residuals([3.0] * 30, keys[1])
    found = residual_intervals(both)
    assert [interval_of(found, own).high_ratio for own in keys] == [1.0, 3.0]


@settings(max_examples=5)
@given(st.integers(0, 10_000), st.floats(0.02, 0.3), st.floats(0.0, 0.3))
def test_every_statistic_holds_its_share_of_groups_left_out(seed, within, between):
    """Groups that differ, and statistics that are sure by different measure: each gets the level that it needs."""
    rng = np.random.default_rng(seed)
    entries = []
    for statistic, factor in (("mean", 1.0), ("p99", 3.0)):
        keys = regime_keys("ttft", "closed", "dense", "measured", statistic)
        shift = rng.normal(0.0, factor * between, 12)[np.arange(96) % 12]
        entries += residuals(np.exp(shift + rng.normal(0.0, factor * within, 96)), keys, groups=12)
    intervals, coverage = covering_intervals([entries])
    assert set(coverage) == {"ttft_mean/closed", "ttft_p99/closed"}
    assert all(entry.held >= LEVEL and entry.values >= FEW_VALUES for entry in coverage.values())
    mean, tail = intervals["ttft_mean/closed"], intervals["ttft_p99/closed"]
    assert mean.high_ratio / mean.low_ratio < tail.high_ratio / tail.low_ratio


@given(st.lists(ENTRIES, min_size=5, max_size=5))
def test_a_thin_regime_is_never_narrower_than_the_next(entries):
    keys = regime_keys("ttft", "open", "dense", "measured")
    intervals = dict(zip(keys, entries, strict=True))
    found = interval_of(intervals, keys)
    enough = [entry for entry in entries if entry.n >= LEAST_POINTS]
    if not enough:
        assert found == entries[-1]
        return
    assert (found.n, found.groups) == (enough[0].n, enough[0].groups)
    ends = next((k for k, entry in enumerate(enough) if entry.groups >= LEAST_GROUPS), len(enough) - 1)
    assert found.low_ratio == min(entry.low_ratio for entry in enough[: ends + 1])
    assert found.high_ratio == max(entry.high_ratio for entry in enough[: ends + 1])


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("metric", [*METRICS, "throughput"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_every_latency_of_a_report_has_an_interval(metric, statistic, load):
    """Gaps between tokens are nowhere published as such: they are bounded as the time per token is."""
    found = interval_of(shipped_intervals(), regime_keys(metric, load, "mla", "assumed", statistic))
    assert found is not None
    assert found.low_ratio <= found.median_ratio <= found.high_ratio
    assert found.low_ratio < found.high_ratio
