"""How large a load a replica takes, and how slow it may be, where a formula says whether the targets hold: every step of the scale is tried."""

from collections import Counter
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from capplan.fleet.load.offered import dealt_users, kinds_of_replicas
from capplan.fleet.search.latencies import is_steady
from capplan.fleet.search.load_scale import (
    MANY_REPLICAS,
    REGULARITY,
    REGULARITY_OF_BURSTS,
    STEPS_PER_DOUBLING,
    regularity_class,
    replicas_at,
    scale_rate,
)
from capplan.fleet.search.trial import SHORT_SLACK, Trial
from tests.sweeps import examples

STEP = 2.0 ** (1 / STEPS_PER_DOUBLING)
CAPACITIES = st.sampled_from([REGULARITY, REGULARITY_OF_BURSTS]).flatmap(
    lambda classes: st.lists(st.floats(0.02, 90.0), min_size=len(classes), max_size=len(classes)).map(
        lambda drawn: dict(zip(classes, sorted(drawn, reverse=True), strict=True))
    )
)
"""By class, in requests per second at the predicted speed: more regular arrivals carry more."""


class Formula(Trial):
    """A trial whose targets hold up to a known rate; the search over loads is that of the product."""

    def __init__(self, ceiling, capacity, users=0, found=0.9):
        self.rate_ceiling, self.capacity, self.classes = ceiling, capacity, tuple(capacity)
        self.demand, self.found, self.runs = SimpleNamespace(users=users), found, set()
        self.candidate = SimpleNamespace(slowness=SimpleNamespace(each=lambda _confidence: {"tpot": 1.2}))
        self.question = SimpleNamespace(slo=SimpleNamespace(confidence=0.8))

    def at(self, rate_per_s, replicas, slowness=1.0, **_how):
        return SimpleNamespace(load=rate_per_s * slowness, capacity=self.capacity[replicas])

    def fleet(self, replicas, slowness=1.0, traffic_ratio=1.0, _limits=None, **_how):
        rate_per_s = self.total_rate * traffic_ratio / replicas
        return self.at(rate_per_s, regularity_class(replicas, self.classes), slowness)

    def worst(self, latencies, _slowness, limits):
        """Return the excess that `limits` gives a share of the capacity."""
        return limits(latencies.load / latencies.capacity)

    def _short_step(self, _slowness, _limits):
        return 0

    def _screened_step(self, _slowness, _limits):
        """The closed form may be far off; only the first number of replicas that is tried follows from it."""
        return round(STEPS_PER_DOUBLING * np.log2(self.found * max(self.capacity.values())))

    def holds(self, rate_per_s, replicas, slowness, _limits, *, short=False):
        """Short runs find nine tenths, or another part of what a replica carries."""
        if not short:
            self.runs.add((rate_per_s, replicas))
        return rate_per_s * slowness <= self.capacity[replicas] * (self.found if short else 1.0)


def largest(trial, capacity, slowness):
    """Return the largest rate of the scale below its top step that a capacity allows; 0 if there is none."""
    least, top = trial.scale
    return max(
        (scale_rate(step) / slowness for step in range(least, top) if scale_rate(step) <= capacity),
        default=0.0,
    )


@settings(max_examples=examples(60, 600), deadline=None)
@given(users=st.lists(st.integers(1, 12), min_size=1, max_size=4), replicas=st.integers(1, 60))
def test_kinds_of_replicas_are_those_that_users_are_dealt_to(users, replicas):
    """In the same order, which is that of the runs."""
    assert kinds_of_replicas(users, replicas) == Counter(dealt_users(users, replicas)).most_common()


@settings(max_examples=examples(60, 600), deadline=None)
@given(ceiling=st.floats(0.5, 100.0), capacity=CAPACITIES, slowness=st.floats(0.3, 4.0))
def test_the_limit_is_the_largest_load_that_holds(ceiling, capacity, slowness):
    trial = Formula(ceiling, capacity)
    for replicas, most in capacity.items():
        assert trial.limit(replicas, slowness, inf) == largest(trial, most, slowness)
    short = largest(trial, 0.9 * capacity[REGULARITY[0]], slowness)
    assert trial.rate_bound(slowness, inf) == pytest.approx(SHORT_SLACK * short)


@settings(max_examples=examples(100, 1000), deadline=None)
@given(
    ceiling=st.floats(0.5, 100.0),
    capacity=CAPACITIES,
    rate=st.floats(0.1, 500.0),
    slowness=st.floats(0.3, 4.0),
    more=st.integers(0, 9),
    short=st.booleans(),
)
def test_one_run_leaves_out_no_number_of_replicas_that_is_enough(
    ceiling, capacity, rate, slowness, more, short
):
    trial = Formula(ceiling, capacity)
    needed = trial.replicas_for(rate, slowness, inf)
    if needed is not None:
        assert trial.may_be_enough(rate, slowness, inf, needed + more, short=short)
    few = rate * slowness / (1.6 * max(capacity.values()))
    if few >= 1.0:
        assert not trial.may_be_enough(rate, slowness, inf, int(few), short=short)


@settings(max_examples=examples(100, 1000), deadline=None)
@given(
    ceiling=st.floats(0.5, 100.0),
    capacity=CAPACITIES,
    rate=st.floats(0.1, 500.0),
    most=st.one_of(st.just(inf), st.integers(1, 60)),
    at_least=st.integers(1, 20),
    found=st.floats(-7.0, 5.0).map(np.exp2),
)
@example(ceiling=100.0, capacity=dict.fromkeys(REGULARITY, 4.0), rate=30.0, most=10, at_least=1, found=0.05)
def test_replicas_are_the_fewest_whose_number_makes_arrivals_regular_enough(
    ceiling, capacity, rate, most, at_least, found
):
    """Six replicas are enough if six carry the rate with the limit of four and more behind one router, however wrong the closed form is."""
    trial = Formula(ceiling, capacity, found=found)
    limits = {least: largest(trial, capacity[least], 1.0) for least in capacity}
    enough = (
        count
        for count in range(at_least, 30_000)
        if (limit := limits[regularity_class(count, trial.classes)]) and count >= replicas_at(rate, limit)
    )
    fewest = next(enough, None)
    expected = None if fewest is None or fewest > most else fewest
    assert trial.replicas_for(rate, 1.0, inf, most=most, at_least=at_least) == expected


@pytest.mark.parametrize("needed", [1, 3, 6, 12, 24])
def test_where_the_closed_form_is_right_no_other_class_is_simulated(needed):
    """One class of replica counts says how many are needed, as arrivals at more replicas are more regular."""
    trial = Formula(100.0, dict.fromkeys(REGULARITY, 4.0), found=SHORT_SLACK)
    assert trial.replicas_for(3.9 * needed, 1.0, inf) == needed
    assert {replicas for _, replicas in trial.runs} == {regularity_class(needed)}


@settings(max_examples=examples(100, 1000), deadline=None)
@given(
    classes=st.sampled_from([REGULARITY, REGULARITY_OF_BURSTS]),
    noise=st.lists(st.floats(0.85, 1.0), min_size=2 * len(REGULARITY), max_size=2 * len(REGULARITY)),
    rate=st.floats(11.0, 400.0),
    copies=st.sampled_from([2, 3]),
)
def test_copies_carry_copies_of_a_load_whatever_runs_vary_by(classes, noise, rate, copies):
    """Runs of one class of replica counts find up to a seventh less than those of another one, in any order."""
    trial = Formula(100.0, dict(zip(classes, noise, strict=False)))
    needed = trial.replicas_for(rate, 1.0, inf)
    if copies * needed >= MANY_REPLICAS:
        assert trial.replicas_for(copies * rate, 1.0, inf) <= copies * needed


@settings(max_examples=examples(100, 1000), deadline=None)
@given(
    ceiling=st.floats(1.0, 100.0),
    capacity=CAPACITIES,
    rate=st.floats(0.1, 100.0),
    replicas=st.integers(1, 400),
    power=st.floats(0.5, 6.0),
    users=st.sampled_from([0, 40]),
)
def test_steps_may_be_slower_until_the_load_reaches_the_limit(
    ceiling, capacity, rate, replicas, power, users
):
    """Where latency is a power of the load, logarithms are interpolated exactly; where it jumps, a step of the scale is missing at most."""
    trial = Formula(ceiling, capacity, users)
    room = capacity[regularity_class(replicas, trial.classes)] / rate
    trial.total_rate = rate * replicas
    smooth = trial.slowest(replicas, lambda share: share**power)
    jump = trial.slowest(replicas, lambda share: 0.5 if share <= 1.0 else inf)
    if room > 0.25:
        assert smooth == pytest.approx(room, rel=1e-6)
        # Tried are eight times the steps with users, else the whole scale, and a step more than the rate itself.
        tried = 8.0 if users else scale_rate(trial.scale[1]) / rate
        most = min(room, max(tried, STEP))
        assert most / STEP * (1.0 - 1e-9) <= jump <= most * (1.0 + 1e-9)
    elif room < 0.25 / STEP:  # not even at four times the speed: nothing below is tried
        assert smooth == jump <= 0.25
        assert smooth * (1.0 + 1e-9) >= 0.25 / STEP


@pytest.mark.parametrize("count", [12, 40, 3000])
def test_few_long_requests_do_not_look_like_a_queue_that_grows(count):
    """Responses of ten seconds, four seconds apart, that no other request delays: at most one run in fifty seems to grow."""
    random = np.random.default_rng(count)
    steady = []
    for _ in range(300):
        arrival = np.cumsum(random.exponential(4.0, count))
        steady.append(is_steady(arrival, arrival + random.exponential(10.0, count)))
    assert np.mean(steady) >= 0.98


@pytest.mark.parametrize("load", [1.15, 1.5])
def test_a_queue_that_gets_more_than_it_serves_grows(load):
    """One server, of which 3,000 requests each take a second."""
    random = np.random.default_rng(7)
    for _ in range(20):
        arrival = np.cumsum(random.exponential(1.0 / load, 3000))
        at_once = np.arange(3000) + np.maximum.accumulate(arrival - np.arange(3000)) + 1.0
        assert not is_steady(arrival, at_once)


@pytest.mark.parametrize("at_least", [1, 75, 90, 205])
def test_users_next_to_requests_get_a_far_smaller_fleet_where_more_replicas_take_longer(at_least):
    """From 80 to 160 replicas meet the targets and those between 160 and 205 do not: the first that meets them from above is not the fewest."""

    class Between(Formula):
        _all_users = False

        def _meets(self, replicas, *_):
            return 80 <= replicas <= 160 or replicas >= 205

        def _short_step(self, *_):
            return 0

    trial = Between(90.0, dict.fromkeys(REGULARITY, 1.0), users=50)
    trial.total_rate = 205.0
    assert trial.replicas_for(205.0, 1.0, {}, at_least=at_least) == max(at_least, 80)
