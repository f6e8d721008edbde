"""Laws of length distributions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from capplan.errors import InputError
from capplan.scenario.scenario_file import LengthFields, lengths
from capplan.workload.length import (
    empirical,
    fixed,
    lognormal,
    lognormal_sigma,
    standard_normal_quantile,
    uniform,
)


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
