"""Formulas of cascades against draws and brute force: arrivals that are thinned, waits of two stages, the break-even share."""

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.money.comparison import PaidReplicas
from capplan.money.several_models import CascadeFleets, breakeven_fraction, wait_of_stages
from capplan.workload.multiples import thinned_arrival_cv
from tests.ledgers import fleet_that_costs


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_a_share_of_arrivals_is_as_uneven_as_one_that_is_drawn(cv, share):
    random = np.random.default_rng(7)
    arrivals = np.cumsum(random.gamma(1 / cv**2, cv**2, 400_000))
    gaps = np.diff(arrivals[random.random(arrivals.size) < share])
    assert thinned_arrival_cv(cv, share) == pytest.approx(gaps.std() / gaps.mean(), rel=0.03)


@pytest.mark.parametrize("together", [1.0, 0.0, -1.0])
def test_nine_in_ten_of_two_stages_take_no_longer_than_is_said(together):
    """Stages that rise together, apart, and against each other, each with a long tail."""
    random = np.random.default_rng(3)
    first, other = random.standard_normal((2, 200_000))
    second = together * first + (1.0 - abs(together)) * other
    stages = np.exp(first), np.exp(1.5 * second)
    wait = wait_of_stages([float(s.mean()) for s in stages], [float(np.quantile(s, 0.95)) for s in stages])
    assert wait["mean"] == pytest.approx(float((stages[0] + stages[1]).mean()))
    assert np.quantile(stages[0] + stages[1], 0.9) <= wait["nine_in_ten"]


def own(rate, spare, usd):
    return fleet_that_costs((PaidReplicas(rate, lambda busy: (busy + spare) * usd),), usd)


FLEET = st.builds(own, st.floats(0.5, 20.0), st.integers(0, 3), st.floats(1.0, 100.0))


def usd_by_hand(fleets, share):
    """Return the cost of a cascade at one share, counted replica by replica."""

    def usd(fleet, rate):
        group = fleet.groups[0]
        return group.usd_of(max(ceil(rate / group.request_rate - 1e-9), 1)) if rate else 0.0

    rate = fleets.request_rate
    first = usd(fleets.first, rate * (1.0 - share) if fleets.routed else rate)
    return first + min(usd(fleet, rate * share) for fleet in fleets.seconds)


@pytest.mark.long
@given(
    FLEET,
    st.lists(FLEET, min_size=1, max_size=2),
    st.booleans(),
    st.floats(1.0, 60.0),
    st.floats(1.0, 3000.0),
)
def test_the_break_even_is_where_a_walk_along_all_shares_finds_it(first, seconds, routed, rate, alone):
    fleets = CascadeFleets(first, tuple(seconds), routed, rate)
    found = breakeven_fraction(fleets, alone)
    walked = np.linspace(0.0, 1.0, 2003)[1:-1]
    dearer = np.array([usd_by_hand(fleets, float(share)) > alone for share in walked])
    assert fleets.usd_at(walked) == pytest.approx([usd_by_hand(fleets, float(share)) for share in walked])
    if found is None:
        assert dearer[0] or fleets.step_fractions[1] < walked[0]
    else:
        assert not dearer[walked < found - 1e-9].any()
        beyond = walked[walked > found + 1e-9]
        steps = fleets.step_fractions
        ends = steps[steps > found + 1e-9]
        if found < 1.0 and ends.size and beyond.size and beyond[0] < ends[0]:
            assert dearer[walked > found + 1e-9][0]


def test_a_break_even_in_the_head():
    """One small replica of $10 for all, and $30 for each 5 requests a second of the large one, against $130: four of them, 20 of 40."""
    fleets = CascadeFleets(own(100.0, 0, 10.0), (own(5.0, 0, 30.0),), False, 40.0)
    assert breakeven_fraction(fleets, 130.0) == 0.5
    assert breakeven_fraction(fleets, 129.0) == 0.375
    assert breakeven_fraction(fleets, 39.0) is None
    assert breakeven_fraction(fleets, 10_000.0) == 1.0
