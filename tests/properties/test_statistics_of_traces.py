"""What is said of a trace is what numpy and scipy say of its rows, whatever parts it is read in."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from capplan.workload.length import clipped_lognormal_mean, lognormal_sigma
from capplan.workload.request_class import Slo, Target
from capplan.workload.reuse import PrefixReuse
from capplan.workload.statistics import (
    ArrivalCounts,
    Omissions,
    TokenCounts,
    cv_within_minutes,
    interarrival_cv,
    length_summary,
    lognormal_fit,
    rate_summary,
    weighted_quantile,
)
from tests.nearness import near

FEW = settings(max_examples=60, deadline=None)
lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=300).map(np.array)
seeds = st.integers(0, 10**6)


@FEW
@given(lengths, st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5))
def test_quantiles_of_counted_values_are_those_of_the_list(tokens, probability):
    values, weights = np.unique(tokens, return_counts=True)
    counted = weighted_quantile(values.astype(float), weights.astype(float), np.array(probability))
    assert counted == near(np.quantile(tokens, probability))


@FEW
@given(lengths, st.integers(1, 5))
def test_a_summary_of_lengths_is_that_of_all_rows_together(tokens, parts):
    counts = TokenCounts()
    for part in np.array_split(tokens, parts):
        counts.add(part)
    assert counts.total == tokens.size
    whole = counts.summary()
    assert whole.mean == near(tokens.mean())
    assert whole.max == tokens.max()
    if tokens.size > 100:
        assert [whole.p50, whole.p95, whole.p99] == near(np.quantile(tokens, [0.5, 0.95, 0.99]))
    assert list(whole.values) == sorted(whole.values)
    assert min(whole.values) >= 1.0
    if tokens.min() >= 100:  # rounding to whole tokens moves the mean by half a token at most
        assert np.mean(whole.values) == pytest.approx(tokens.mean(), abs=0.5)


def test_counts_grow_with_the_longest_length():
    counts = TokenCounts()
    for tokens in ([3, 3], [5000], [], [1023, 1024, 20000]):
        counts.add(np.array(tokens, dtype=np.int64))
    assert counts.total == 6
    assert counts.summary().mean == near((3 + 3 + 5000 + 1023 + 1024 + 20000) / 6)


def test_probabilities_are_summarised_as_many_draws_are():
    """A distribution that a server counted in shares, of which few would be too few for a quantile."""
    shares = np.array([0.25, 0.5, 0.25])
    summary = length_summary(np.array([10.0, 20.0, 40.0]), shares)
    assert summary.mean == near(22.5)
    assert (summary.p50, summary.p95) == (20.0, 40.0)
    assert summary.fit == lognormal_fit(np.array([10.0, 20.0, 40.0]), shares, 22.5)


@FEW
@given(seeds, st.floats(10.0, 5000.0), st.floats(0.2, 1.5))
def test_the_fitted_lognormal_and_its_distance_are_those_of_scipy(seed, mean, sigma):
    drawn = np.random.default_rng(seed).lognormal(math.log(mean), sigma, 400).round() + 1.0
    values, weights = np.unique(drawn, return_counts=True)
    fit = lognormal_fit(values, weights / weights.sum(), float(drawn.mean()))
    assert fit["sigma"] == near(np.log(drawn).std())
    law = stats.lognorm(s=fit["sigma"], scale=drawn.mean() / math.exp(fit["sigma"] ** 2 / 2))
    assert law.mean() == near(fit["mean"]) == near(drawn.mean())
    assert fit["p95"] == pytest.approx(law.ppf(0.95), rel=1e-7)
    # The distance is looked for on 199 quantiles, half a percent apart.
    apart = stats.kstest(drawn, law.cdf).statistic
    assert apart - 0.01 - 1 / 400 <= fit["largest_error_fraction"] <= apart + 1e-9


def test_lengths_without_spread_are_their_own_fit():
    fit = lognormal_fit(np.array([7.0]), np.array([1.0]), 7.0)
    assert (fit["mean"], fit["sigma"], fit["p95"], fit["largest_error_fraction"]) == (7.0, 0.0, 7.0, 0.0)


@FEW
@given(seeds, st.floats(0.3, 3.0))
def test_the_variation_of_a_renewal_process_is_that_of_its_gaps(seed, cv):
    gaps = np.random.default_rng(seed).gamma(1 / cv**2, cv**2, 500)
    found, quantised = interarrival_cv(np.cumsum(gaps))
    assert found == near(stats.variation(gaps[1:]))
    assert not quantised
    assert interarrival_cv(10.0 + 60.0 * np.cumsum(gaps))[0] == near(found)  # no clock changes it


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_stamps_in_whole_seconds_keep_the_variation(cv):
    """Cox 1962, section 3.3: of 200,000 arrivals at 50/s, the variance of counts over their mean tends to cv^2."""
    gaps = np.random.default_rng(1).gamma(1 / cv**2, cv**2, 200_000) / 50.0
    found, quantised = interarrival_cv(np.floor(np.cumsum(gaps)))
    assert quantised
    assert found == pytest.approx(cv, rel=0.06)
    assert cv_within_minutes(np.floor(np.cumsum(gaps))) is None


def test_two_arrivals_or_no_time_say_nothing_of_variation():
    assert interarrival_cv(np.array([0.0, 1.0])) == (None, False)
    assert interarrival_cv(np.array([2.0, 2.0, 2.0])) == (None, False)
    assert cv_within_minutes(np.array([0.0, 1.0])) is None
    # Half of the stamps and one more are different: the clock is fine enough.
    assert interarrival_cv(np.array([0.0, 0.0, 1.0, 1.0, 2.0, 3.0]))[1] is False
    assert interarrival_cv(np.array([0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0]))[1] is True


def test_variation_within_minutes_weighs_minutes_by_their_gaps_and_leaves_quiet_ones_out():
    steady = np.arange(31) * 1.0  # 30 gaps, no variation
    even = 60.0 + np.cumsum(np.tile([0.5, 1.5], 20))  # 39 gaps of variation near a half
    quiet = 120.0 + np.array([0.0, 1.0, 30.0])
    gaps = np.diff(even)
    expected = math.sqrt(39 * gaps.var() / gaps.mean() ** 2 / (30 + 39))
    assert cv_within_minutes(np.concatenate((steady, even, quiet))) == near(expected)
    assert cv_within_minutes(np.concatenate((np.arange(21) * 1.0, quiet))) == 0.0  # 20 gaps are enough
    assert cv_within_minutes(np.concatenate((np.arange(20) * 1.0, quiet))) is None


def counted(arrivals, parts=1):
    counts = ArrivalCounts()
    for part in np.array_split(arrivals, parts):
        counts.add(part)
    return counts


@FEW
@given(seeds, st.integers(2, 400), st.floats(30.0, 9000.0), st.integers(1, 4))
def test_rates_are_those_of_the_rows_whatever_parts_they_come_in(seed, requests, span_s, parts):
    arrivals = 1e6 + np.sort(np.random.default_rng(seed).uniform(0.0, span_s, requests))
    rate = counted(arrivals, parts).summary()
    seconds = arrivals[-1] - arrivals[0]
    assert rate.seconds == near(seconds)
    assert rate.mean == near(requests / seconds)
    minute = np.floor((arrivals - arrivals[0]) / 60.0).astype(int)
    whole = int(seconds // 60)
    each = np.bincount(minute, minlength=whole)[:whole]
    if whole >= 2:
        assert rate.peak_60s == near(each.max() / 60)
        assert rate.peak_to_mean_ratio == near(each.max() / 60 / rate.mean)
        if each.any():
            assert rate.dispersion_60s == near(each.var() / each.mean())
    else:
        assert rate.peak_60s == rate.mean
        assert rate.dispersion_60s is None
    assert list(rate.by_window) == near(each / 60)
    hour = np.floor((arrivals - arrivals[0]) / 3600.0).astype(int)
    hours = max(math.ceil(seconds / 3600), 1)
    lasting = [3600.0] * (hours - 1) + [max(seconds - 3600 * (hours - 1), 60.0)]
    assert list(rate.by_hour) == near(np.bincount(hour, minlength=hours)[:hours] / lasting)


def test_a_trace_of_days_is_shown_by_the_hour_of_its_day():
    """72 hours, one request in each second of the third hour of each day and one a minute otherwise."""
    minutes = np.arange(72 * 60)
    counts = np.where(minutes // 60 % 24 == 2, 60, 1)
    rate = rate_summary(int(counts.sum()), 72 * 3600.0, minutes, counts, cv=None, quantised=False)
    assert rate.by_hour == near([1 / 60, 1 / 60, 1.0, *[1 / 60] * 21])
    # Up to two days every hour stands for itself.
    short = rate_summary(
        int(counts[: 48 * 60].sum()),
        48 * 3600.0,
        minutes[: 48 * 60],
        counts[: 48 * 60],
        cv=None,
        quantised=False,
    )
    assert len(short.by_hour) == 48
    # Minutes of more than a month are too many to show.
    assert rate_summary(9, 32 * 86400.0, minutes[:9], counts[:9], cv=None, quantised=False).by_window == ()
    month = rate_summary(9, 31 * 86400.0, minutes[:9], counts[:9], cv=None, quantised=False)
    assert len(month.by_window) == 31 * 24 * 60


def test_rows_behind_a_later_one_are_counted_and_put_in_order():
    arrivals = np.array([5.0, 3.0, 9.0, 8.0, 9.0, 1.0, 300.0])
    for parts in (1, 3):
        counts = counted(arrivals, parts)
        assert (counts.unsorted, counts.total, counts.kept) == (3, 7, 7)
        assert counts.summary().seconds == 299.0
        assert counts.summary().cv == near(interarrival_cv(np.sort(arrivals))[0])


def test_arrivals_beyond_those_that_are_kept_still_count_in_the_rates(monkeypatch):
    arrivals = np.sort(np.random.default_rng(3).uniform(0.0, 1000.0, 5000))
    whole = counted(arrivals, 10).summary()
    monkeypatch.setattr("capplan.workload.statistics.KEPT_ARRIVALS", 1000)
    few = counted(arrivals, 10)
    assert few.kept == 1000
    for name in ("seconds", "mean", "peak_60s", "dispersion_60s", "by_hour", "by_window"):
        assert getattr(few.summary(), name) == near(getattr(whole, name))


def test_no_time_says_nothing_of_rates():
    assert counted(np.array([])).summary().seconds == 0.0
    for arrivals in ([4.0], [4.0, 4.0]):
        rate = counted(np.array(arrivals)).summary()
        assert (rate.seconds, rate.mean, rate.peak_60s, rate.peak_to_mean_ratio) == (0.0, None, None, None)


@FEW
@given(st.floats(10.0, 1e4), st.floats(0.1, 1.5), st.floats(0.05, 1.0), st.floats(1.0, 5.0))
def test_the_mean_of_a_cut_lognormal_is_that_of_its_survival_function(mean, sigma, low, high):
    """E[min(max(X, l), h)] = l + the integral of 1 - F from l to h."""
    law = stats.lognorm(s=sigma, scale=mean / math.exp(sigma**2 / 2))
    x = np.linspace(low * mean, high * mean, 4001)
    expected = low * mean + np.trapezoid(law.sf(x), x)
    assert clipped_lognormal_mean(mean, sigma, low * mean, high * mean) == pytest.approx(expected, rel=1e-5)


def test_no_lognormal_has_a_quantile_that_far_above_its_mean():
    z = stats.norm.ppf(0.95)
    most = math.exp(z * z / 2)
    assert float(lognormal_sigma(1.0, most * 0.999, 0.95)) < z
    assert math.isnan(float(lognormal_sigma(1.0, most * 1.001, 0.95)))


@FEW
@given(st.floats(0.0, 50.0))
def test_a_prefix_cache_finds_what_lies_between_the_sizes_that_were_tried(blocks):
    reuse = PrefixReuse(16, 0.6, 0.5, ((10, 0.2), (30, 0.5)))
    share = float(reuse.hit_fraction(16 * blocks))
    expected = 0.02 * blocks if blocks <= 10 else min(0.2 + 0.015 * (blocks - 10), 0.5)
    assert share == near(expected)


def test_a_target_is_named_by_its_metric_and_statistic():
    slo = Slo((Target("ttft", "p95", 0.8), Target("tpot", "mean", 0.05), Target("ttft", "p99", 2.0)))
    assert [t.key for t in slo.targets] == ["ttft_p95", "tpot_mean", "ttft_p99"]


def test_omissions_are_counted_by_reason_with_their_first_line():
    omissions = Omissions()
    for reason, line in (("no output", 9), ("no input", 3), ("no output", 12), ("no output", 4)):
        omissions.drop(reason, line)
    assert omissions.lines() == [
        "3 rows left out: no output (first in line 9)",
        "1 row left out: no input (first in line 3)",
    ]
    for text in ("in ms", "in ms", "other"):
        omissions.note(text)
    assert omissions.notes == ["in ms", "other"]


@pytest.mark.parametrize(
    ("requests", "known"), [(1, []), (8, ["p50"]), (19, ["p50"]), (20, ["p50", "p95"]), (100, ["p50", "p95", "p99"])]
)  # fmt: skip
def test_a_trace_has_no_percentile_that_its_requests_do_not_carry(capplan, tmp_path, requests, known):
    rows = [f"{0.5 * at},{100 + at},{20 + at}" for at in range(requests)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows, ""]))
    result = capplan.result("workload", trace)
    for name in ("input_tokens", "output_tokens"):
        assert [key for key in ("p50", "p95", "p99") if result[name][key] is not None] == known
    said = capplan("workload", trace).out
    assert ("too few for a 99th percentile" in said) == (requests < 100)
