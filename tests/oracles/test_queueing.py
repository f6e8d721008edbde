"""Queues against published tables."""

import numpy as np
import pytest
from scipy import stats

from capplan.serving.queueing import (
    erlang_b,
    erlang_c,
    ggc_wait_s,
    md1_wait_at_most,
    mg1_wait_s,
    mmc_wait_s,
    utilisation,
    wait_percentile_s,
)


@pytest.mark.parametrize(
    ("servers", "offered", "lost"),
    [
        (1, 0.0101, 0.01),
        (5, 1.36, 0.01),
        (10, 4.46, 0.01),
        (20, 12.0, 0.01),
        (50, 37.9, 0.01),
        (100, 84.1, 0.01),
        (10, 6.22, 0.05),
        (20, 15.2, 0.05),
    ],
)
def test_erlang_b_is_the_traffic_table(servers: int, offered: float, lost: float) -> None:
    """Erlang B table as printed in teletraffic handbooks (ITU-D 2005, chapter 7): erlangs to three digits."""
    assert float(erlang_b(offered, servers)) == pytest.approx(lost, rel=0.03)


def test_the_county_hospital() -> None:
    """Hillier, Lieberman, "Introduction to Operations Research", emergency room: 2 patients/h, 3/h per doctor."""
    doctors = np.array([1, 2])
    assert mmc_wait_s(2.0, 1 / 3, doctors) == pytest.approx([2 / 3, 1 / 24])
    waits = erlang_c(2 / 3, doctors)
    assert waits == pytest.approx([0.667, 0.167], abs=5e-4)
    over_half_hour = 1.0 - np.array([0.596, 0.978])
    assert wait_percentile_s(waits, mmc_wait_s(2.0, 1 / 3, doctors), 1.0 - over_half_hour) == pytest.approx(
        0.5, rel=0.02
    )


def test_erlang_c_is_the_poisson_distribution_in_disguise() -> None:
    """Erlang B is the last term of a Poisson distribution cut at c (Kleinrock 1975, equation 3.43)."""
    for servers, offered in ((3, 1.5), (30, 25.0), (200, 180.0)):
        cut = stats.poisson.pmf(servers, offered) / stats.poisson.cdf(servers, offered)
        load = offered / servers
        assert float(erlang_b(offered, servers)) == pytest.approx(cut, rel=1e-9)
        assert float(erlang_c(offered, servers)) == pytest.approx(cut / (1 - load * (1 - cut)), rel=1e-9)


@pytest.mark.parametrize(("load", "wait"), [(0.1, 0.0556), (0.5, 0.5), (0.8, 2.0), (0.9, 4.5), (0.95, 9.5)])
def test_equal_services_wait_half_as_long(load: float, wait: float) -> None:
    """M/D/1 table in units of the service time (Erlang 1909): half of M/M/1."""
    assert float(mg1_wait_s(load, 1.0, 0.0)) == pytest.approx(wait, rel=1e-3)
    assert float(mg1_wait_s(load, 1.0, 1.0)) == pytest.approx(float(mmc_wait_s(load, 1.0)))


def test_the_md1_distribution_has_the_mean_of_pollaczek_and_khinchine() -> None:
    """The integral of P(W > t) is the mean wait; Tijms 2003 gives both."""
    times = np.linspace(0.0, 14.0, 2801)
    beyond = np.array([1.0 - md1_wait_at_most(0.6, 1.0, float(t)) for t in times])
    assert np.trapezoid(beyond, times) == pytest.approx(float(mg1_wait_s(0.6, 1.0, 0.0)), rel=2e-3)


@pytest.mark.parametrize("servers", [1, 2, 5, 20, 100])
def test_the_closed_approximation_is_near_erlang_c(servers: int) -> None:
    """Within 12 % of the wait, or 2.5 % of a service time where hardly anybody waits."""
    for load in (0.5, 0.7, 0.8, 0.9, 0.95, 0.99):
        exact = float(mmc_wait_s(load * servers, 1.0, servers))
        assert float(ggc_wait_s(load * servers, 1.0, servers)) == pytest.approx(exact, rel=0.12, abs=0.025)


def test_an_overloaded_queue_waits_for_ever() -> None:
    assert mmc_wait_s(2.0, 1.0, np.array([1, 2, 3])).tolist()[:2] == [np.inf, np.inf]
    assert float(mg1_wait_s(1.0, 1.0, 0.5)) == np.inf
    assert float(ggc_wait_s(5.0, 1.0, 4.0)) == np.inf
    assert float(utilisation(5.0, 1.0, 4.0)) == 1.25
