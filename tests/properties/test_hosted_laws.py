"""The traffic from which a fleet costs less than an API: what a scan of all steps of the cost finds."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capplan.money.comparison import PaidReplicas, breakeven_rate
from capplan.money.order import Machine, Survival, order_of
from tests.ledgers import fleet_that_costs

REPLICAS = st.tuples(st.floats(0.5, 20.0), st.floats(10.0, 1e3))


def by_the_replica(rate, usd, spares=0):
    return PaidReplicas(rate, lambda busy: (busy + spares) * usd)


@pytest.mark.long
@given(REPLICAS, REPLICAS, st.floats(0.0, 500.0), st.floats(1.02, 3.0))
@example(
    (1.0, 10.0), (1.0, 10.0), 0.0, 1.02
)  # the cost of a step is that of the API at its start, but for rounding
def test_the_breakeven_of_two_pools_is_that_of_a_scan_of_all_their_steps(prefill, decode, people, margin):
    """Two pools grow at rates of their own, so the fleet is dearer and cheaper in turns before it is cheaper for good."""
    groups = tuple(by_the_replica(*pool) for pool in (prefill, decode))
    own = fleet_that_costs(groups, prefill[1] + decode[1], people)
    per_request = margin * (prefill[1] / prefill[0] + decode[1] / decode[0])
    rates = own.step_rates
    usd = own.usd_at(rates)
    even = breakeven_rate(usd.__getitem__, rates, lambda rate: per_request * rate)
    dearer = np.flatnonzero(usd[1:] > per_request * rates[:-1] + 1e-9) + 1
    last = int(dearer[-1])
    assert even == pytest.approx(min(usd[last] / per_request, rates[last]), rel=1e-6)


@given(st.floats(0.5, 20.0), st.integers(1, 4), st.floats(1.02, 4.0), st.sampled_from([0, 1]))
@example(15.75, 2, 1.02, 0)  # the cost of a step is that of the API at its start, but for rounding
def test_the_breakeven_of_whole_machines_is_that_of_a_scan_of_all_their_steps(carried, gpus, margin, lost):
    """Machines of eight GPUs: replicas of some GPUs cost nothing until the next machine is needed."""
    machines = (Machine("cloud", "eight", "gpu", 8, 16.0),)

    def usd_of(busy):
        return order_of(machines, gpus, 8, busy, Survival(count=lost)).usd_per_hour

    own = fleet_that_costs((PaidReplicas(carried, usd_of),), usd_of(1))
    per_request = margin * 16.0 / (8 // gpus) / carried
    rates = carried * np.arange(301)
    usd = own.usd_at(rates)
    even = breakeven_rate(usd.__getitem__, rates, lambda rate: per_request * rate)
    dearer = np.flatnonzero(usd[1:] > per_request * rates[:-1] + 1e-9) + 1
    last = int(dearer[-1])
    assert usd[8 // gpus] == usd[1] if not lost else usd[1] == 32.0
    if last == rates.size - 1:
        assert even is None
    else:
        assert even == pytest.approx(min(usd[last] / per_request, rates[last]), rel=1e-6)
