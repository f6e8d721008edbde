"""Laws of hosted bills: linear in price and traffic, caching within its bounds, and a break-even that costs the same."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capplan.money.comparison import PaidReplicas, breakeven_rate
from capplan.money.hosted import Hosted, TokenPrice, TokenRates, hosted_bill, hosted_traffic
from capplan.money.order import Machine, Survival, order_of
from capplan.money.prompt_cache import reused_fraction, stored_fraction
from capplan.workload.length import fixed, lognormal
from capplan.workload.request_class import RequestClass
from tests.ledgers import fleet_that_costs

USD = st.floats(0.01, 20.0)
CLASSES = st.builds(
    RequestClass,
    name=st.just("chat"),
    input_tokens=st.floats(100, 20_000).map(lambda mean: lognormal(mean, 0.8)),
    output_tokens=st.floats(1, 2000).map(fixed),
    request_rate_per_s=st.floats(1e-4, 50.0),
    shared_prefix_tokens=st.floats(0, 3000),
    prefix_hit_fraction=st.floats(0, 1),
    arrival_cv=st.floats(0.2, 4.0),
    mean_rate_fraction=st.floats(0.05, 1.0),
)
RATES = st.builds(
    lambda usd, output, read, write: TokenRates(usd, output, usd * read, usd * write),
    USD, USD, st.floats(0.0, 1.0), st.floats(1.0, 2.0),
)  # fmt: skip
PRICES = st.builds(
    TokenPrice, st.just("a"), st.just("b"), RATES, st.just("2026"), st.just("page"),
    storage_usd_per_million_tokens_hour=st.floats(0, 5), time_to_live_s=st.floats(1, 1e5), batch_discount_fraction=st.floats(0, 1),
)  # fmt: skip


def bill(item, price, terms=None, ratio=1.0):
    return hosted_bill((hosted_traffic(item, 1.0),), price, terms or Hosted(), ratio)


def times(rates, factor):
    return TokenRates(*(getattr(rates, field.name) * factor for field in fields(rates)))


@given(CLASSES, PRICES, st.floats(0.1, 10.0))
def test_a_bill_is_linear_in_price(item, price, factor):
    dearer = replace(
        price,
        rates=times(price.rates, factor),
        storage_usd_per_million_tokens_hour=price.storage_usd_per_million_tokens_hour * factor,
    )
    assert bill(item, dearer).usd == pytest.approx(factor * bill(item, price).usd)


@given(CLASSES, PRICES, st.floats(0.1, 10.0))
def test_input_and_output_grow_with_the_traffic_and_storage_never_beyond_all_the_time(item, price, ratio):
    once, more = bill(item, price), bill(item, price, ratio=ratio)
    assert more.output_usd == pytest.approx(ratio * once.output_usd)
    assert more.input_usd == pytest.approx(ratio * once.input_usd)
    most = 730 * item.shared_prefix_tokens * 1e-6 * price.storage_usd_per_million_tokens_hour
    assert more.storage_usd <= most * (1 + 1e-9)


@given(CLASSES, PRICES)
def test_what_is_cached_is_no_longer_input(item, price):
    """Priced as input, written and read tokens and the rest are the whole prompt."""
    flat = replace(price, rates=TokenRates(1.0, 1.0, 1.0, 1.0), storage_usd_per_million_tokens_hour=0.0)
    plain = replace(flat, rates=TokenRates(1.0, 1.0))
    assert bill(item, flat).usd == pytest.approx(bill(item, plain).usd)


@given(CLASSES, PRICES, st.floats(1.0, 100.0))
def test_a_longer_life_never_costs_more_where_storage_is_free(item, price, longer):
    free = replace(price, storage_usd_per_million_tokens_hour=0.0)
    alive = replace(free, time_to_live_s=free.time_to_live_s * longer)
    assert bill(item, alive).usd <= bill(item, free).usd * (1 + 1e-9)


@given(CLASSES, PRICES, st.floats(1.0, 1000.0))
def test_more_prefixes_are_never_cheaper(item, price, prefixes):
    poisson = replace(item, arrival_cv=1.0)
    assert bill(poisson, price).usd <= bill(poisson, price, Hosted(prefixes=prefixes)).usd * (1 + 1e-9)


@given(st.floats(1e-6, 100.0), st.floats(1e-3, 1e6), st.floats(0.1, 5.0))
def test_reuse_and_storage_are_shares(rate, alive_s, cv):
    reused, stored = reused_fraction(rate, alive_s, cv), stored_fraction(rate, alive_s, cv)
    assert 0.0 <= reused <= 1.0
    assert 0.0 <= stored <= min(1.0, rate * alive_s) * (1 + 1e-9)


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


@pytest.mark.long
@given(
    st.floats(0, 1e5), st.floats(0, 1), st.floats(1.0, 1e4), st.floats(0.1, 100.0), st.integers(0, 3), st.floats(0.1, 1e4)
)  # fmt: skip
def test_at_the_breakeven_both_cost_the_same_and_beyond_it_the_fleet_never_more(
    people, overhead, replica, carried, spares, per_request
):
    groups = (by_the_replica(carried, replica, spares),)
    own = fleet_that_costs(groups, replica * (1 + spares), people, overhead)
    rates = carried * np.arange(2001)
    even = breakeven_rate(own.usd_at(rates).__getitem__, rates, lambda rate: per_request * rate)
    if even is None:
        assert own.usd(2000 * carried) > per_request * carried * 1999
        return
    assert own.usd(even) <= per_request * even * (1 + 1e-6) + 1e-6
    for steps in (1e-3, 0.5, 1.0, 1.001, 7.3, 40.0):
        rate = even + steps * carried
        assert own.usd(rate) <= per_request * rate * (1 + 1e-6) + 1e-6
    below = even - 1e-3 * carried
    if below > 0 and (below // carried) == (even * (1 - 1e-12)) // carried:
        assert own.usd(below) >= per_request * below
