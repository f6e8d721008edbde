"""The traffic of a scenario as one mixture of requests: moments, reuse of prompts, draws, and how sure a limit is."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from capplan.fleet.engine_options import TierTokens
from capplan.fleet.load.demand import FREE_SHARE, demand_of_classes, drawn_requests
from capplan.fleet.load.offered import SamplePath
from capplan.serving.steady_state import replica_arrival_cv
from capplan.workload.length import empirical, fixed, lognormal, uniform
from capplan.workload.request_class import RequestClass
from capplan.workload.reuse import PrefixReuse
from tests.nearness import near

CHAT = RequestClass(
    "chat", uniform(200, 1000), lognormal(300, 0.8), 3.0, shared_prefix_tokens=100, prefix_hit_fraction=0.6
)
CODE = RequestClass("code", fixed(2000), fixed(50), 1.0, arrival_cv=3.0)
USERS = RequestClass("users", fixed(700), fixed(70), None, users=60.0, think_time_s=20.0)
AGENTS = RequestClass(
    "agents", fixed(1000), fixed(10), 1.0, reuse=PrefixReuse(16, 0.9, 0.9, ((100, 0.3), (1000, 0.8)))
)


def demand(*classes):
    return demand_of_classes(classes)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 9.0), st.lists(st.integers(1, 4000), min_size=1, max_size=9), st.integers(1, 900)),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_a_mixture_has_the_moments_of_its_requests_weighted_by_their_rates(rows):
    classes = tuple(
        RequestClass(str(n), empirical(np.array(inputs, dtype=float)), fixed(output), rate)
        for n, (rate, inputs, output) in enumerate(rows)
    )
    found = demand(*classes)
    rates = np.array([rate for rate, _, _ in rows])
    outputs = np.array([output for _, _, output in rows], dtype=float)
    mean = np.average(outputs, weights=rates)
    deviation = math.sqrt(np.average((outputs - mean) ** 2, weights=rates))
    assert found.lengths.output_tokens == near(mean)
    assert found.lengths.output_cv == pytest.approx(deviation / mean, abs=1e-6)
    points = np.concatenate([c.input_tokens.midpoints(64) for c in classes])
    weights = np.repeat(rates, 64)
    mean = np.average(points, weights=weights)
    assert mean == near(np.average([np.mean(inputs) for _, inputs, _ in rows], weights=rates))
    assert found.lengths.input_tokens == near(mean)
    assert found.lengths.input_cv == pytest.approx(
        math.sqrt(np.average((points - mean) ** 2, weights=weights)) / mean, abs=1e-6
    )
    longest = [np.quantile(inputs, 0.999) + output for _, inputs, output in rows]
    assert found.longest_tokens == math.ceil(max(longest))
    assert found.lengths.cached_tokens == 0.0


def test_a_fixed_prefix_is_cached_for_those_who_find_it():
    assert demand(CHAT, CODE).lengths.cached_tokens == near(3 / 4 * 100 * 0.6)
    # Users who wait for nothing come at the highest rate that they can.
    assert demand(CODE, USERS).lengths.input_tokens == near((1 * 2000 + 3 * 700) / 4)


@given(st.floats(0.0, 60.0), st.integers(0, 3))
def test_the_rate_of_users_falls_with_what_they_wait(response_s, copies):
    mix = demand(CHAT, USERS, *[CODE] * copies)
    found = mix.request_rate_per_s(
        [np.array([9.0, 9.0]), np.array([response_s, 0.0])] + copies * [np.ones(2)]
    )
    assert found.tolist() == near([3 + copies + 60 / (20 + response_s), 3 + copies + 3])


@given(st.floats(0.0, 40_000.0), st.floats(0.0, 20_000.0), st.floats(0.0, 1e-3))
def test_half_of_a_cache_and_its_tiers_hold_prefixes_and_what_a_tier_finds_is_loaded(cache, behind, load_s):
    mix = demand(CHAT, AGENTS)
    plain, tiered = (mix.with_cache(cache), mix.with_cache(cache, [TierTokens(behind, load_s)]))

    def share(tokens):
        return float(np.interp(tokens / 16, [0, 100, 1000], [0.0, 0.3, 0.8]))

    device, both = share(FREE_SHARE * cache), share(FREE_SHARE * cache + behind)
    for found, hit in ((plain, device), (tiered, both)):
        # what prompts miss is rounded to 2 % of itself
        assert found.hit_fractions == pytest.approx((0.0, hit), abs=0.0101 * (1.0 - hit))
        assert found.lengths.cached_tokens == near(3 / 4 * 60 + 1 / 4 * found.hit_fractions[1] * 1000)
        assert found.lengths.input_tokens == mix.lengths.input_tokens
    assert plain.load_s == 0.0
    assert tiered.load_s == pytest.approx(1 / 4 * 1000 * (both - device) * load_s, rel=0.051)
    assert (mix.reuses, demand(CHAT).reuses) == (True, False)


LENGTHS = st.one_of(
    st.builds(lognormal, st.floats(20, 5000), st.floats(0.05, 2.5)),
    st.builds(lambda low, more: uniform(low, low + more), st.floats(2, 900), st.floats(0, 4000)),
    st.builds(lambda mean, sigma: lognormal(mean, sigma, low=50, high=9000), st.floats(60, 5000), st.floats(0.05, 2.5)),
    st.builds(fixed, st.integers(2, 4000).map(float)),
    st.lists(st.integers(1, 9000), min_size=1, max_size=30).map(lambda values: empirical(np.array(values, dtype=float))),
)  # fmt: skip
DRAWS = 20_000


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, prefix=st.floats(1, 6000), hit=st.floats(0, 1), seed=st.integers(0, 9))
def test_what_is_drawn_is_cached_as_much_as_the_mean_says(lengths, prefix, hit, seed):
    item = RequestClass("a", lengths, fixed(9), 1.0, shared_prefix_tokens=prefix, prefix_hit_fraction=hit)
    mix = demand(item, CODE)
    drawn = drawn_requests(mix, DRAWS, seed, 10**9)
    error = (
        5.0 * drawn.cached_tokens.std() / math.sqrt(DRAWS)
    )  # five standard errors, and the slices of the mean
    assert mix.lengths.cached_tokens == pytest.approx(
        drawn.cached_tokens.mean(), abs=error + 1e-3 * prefix + 0.01
    )
    assert (drawn.cached_tokens < drawn.input_tokens).all()


@settings(max_examples=60, deadline=None)
@given(
    lengths=LENGTHS.filter(lambda found: found.mean_tokens > 40),
    hit=st.floats(0.0, 0.99),
    seed=st.integers(0, 9),
)
def test_what_a_cache_finds_again_is_drawn_as_much_as_the_mean_says(lengths, hit, seed):
    reuse = PrefixReuse(16, 1.0, 1.0, ((100, hit), (1000, hit)))
    mix = demand(RequestClass("a", lengths, fixed(9), 1.0, reuse=reuse)).with_cache(1e6)
    drawn = drawn_requests(mix, DRAWS, seed, 10**9)
    mean = float(mix.hit_fractions[0] * drawn.input_tokens.mean())
    error = 5.0 * (drawn.cached_tokens - mix.hit_fractions[0] * drawn.input_tokens).std() / math.sqrt(DRAWS)
    assert drawn.cached_tokens.mean() == pytest.approx(mean, abs=error + 1.0)
    assert mix.lengths.cached_tokens == near(mix.hit_fractions[0] * lengths.mean_tokens)


@pytest.mark.parametrize(("cv", "replicas"), [(1.0, 3), (3.0, 4), (4.0, 25), (0.5, 4)])
def test_requests_dealt_out_in_turn_come_more_regularly_and_at_random_more_like_chance(cv, replicas):
    assert float(replica_arrival_cv(cv, replicas)) == near(cv / replicas**0.5)
    assert float(replica_arrival_cv(cv, 0.5)) == near(cv)  # no fewer than one replica
    alone = float(replica_arrival_cv(cv, replicas, "random"))
    assert min(cv, 1.0) <= alone <= max(cv, 1.0)


@pytest.mark.parametrize(
    ("routing", "cv", "replicas"), [("round_robin", 3.0, 4), ("random", 3.0, 4), ("random", 0.3, 5)]
)
def test_the_variation_at_a_replica_is_that_of_a_stream_that_is_dealt_out(routing, cv, replicas):
    """Gamma intervals dealt out one by one, within about five standard errors of 60,000 of them."""
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.gamma(1 / cv**2, cv**2, 60_000 * replicas))
    to = (
        np.arange(arrivals.size) % replicas
        if routing == "round_robin"
        else rng.integers(0, replicas, arrivals.size)
    )
    gaps = np.diff(arrivals[to == 0])
    assert float(replica_arrival_cv(cv, replicas, routing)) == pytest.approx(stats.variation(gaps), rel=0.05)


def test_draws_have_the_rate_the_variation_and_the_shares_that_were_asked_for():
    """Each within about five standard errors of 40,000 draws."""
    drawn = SamplePath(demand(CHAT, CODE), count=40_000, seed=1, longest=10**6).offered(1.25).requests
    gaps = np.diff(drawn.arrival_s)
    assert gaps.mean() == pytest.approx(0.2, rel=0.025)
    assert stats.variation(gaps) == pytest.approx(1.0, rel=0.03)
    code = drawn.class_index == 1
    assert code.mean() == pytest.approx(0.25, abs=0.011)
    assert np.all(drawn.input_tokens[code] == 2000)
    assert np.all(drawn.output_tokens[code] == 50)
    assert drawn.input_tokens[~code].mean() == pytest.approx(600, rel=0.02)
    assert drawn.output_tokens[~code].mean() == pytest.approx(300, rel=0.04)
    assert np.all(drawn.cached_tokens[code] == 0)
    assert set(np.unique(drawn.cached_tokens[~code])) == {0, 100}
    assert (drawn.cached_tokens[~code] == 100).mean() == pytest.approx(0.6, abs=0.015)


@given(st.floats(0.01, 3.0), st.sampled_from([1, 2, 16]), st.floats(0.5, 4.0))
def test_loads_and_replicas_share_one_sample_path(share, replicas, slowness):
    """Whatever the load, the same requests; steps that are slower make them come sooner, and thoughts shorter."""
    mix = demand(CHAT, CODE, USERS)
    drawn = {"count": 400, "seed": 3, "longest": 5000, "response_s": 5.0}
    path = SamplePath(mix, **drawn)
    usual = path.offered(1.0, replicas=replicas)
    other = path.offered(share, replicas=replicas, slowness=slowness)
    assert len(usual.requests) + usual.crowd.think_s.size == 400
    for ours, theirs in ((usual.requests, other.requests), (usual.crowd.requests, other.crowd.requests)):
        for name in ("input_tokens", "output_tokens", "cached_tokens", "class_index"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name))
    np.testing.assert_allclose(
        other.requests.arrival_s * share * slowness, usual.requests.arrival_s, rtol=1e-9
    )
    np.testing.assert_allclose(other.crowd.think_s * slowness, usual.crowd.think_s, rtol=1e-9)
    assert (usual.crowd.users, other.crowd.users) == (60, max(round(60 * share), 1))
    # As many rows of users as they send while the others arrive: 60 / 25 of 6.4 requests per second.
    assert usual.crowd.think_s.size == round(400 * 2.4 / 6.4)
    assert usual.crowd.think_s.mean() == pytest.approx(20.0, rel=0.3)


def test_users_of_each_class_wait_for_their_own_responses():
    """60 users in cycles of 20 + 5 s and 60 in cycles of 1 + 2 s: 2.4 and 20 requests per second, lengths in that proportion."""
    quick = RequestClass("quick", fixed(100), fixed(10), None, users=60.0, think_time_s=1.0)
    mix = demand(USERS, quick)
    assert mix.rates_of_classes((5.0, 2.0)) == near((2.4, 20.0))
    assert mix.rates_per_s((5.0, 2.0)) == near((0.0, 22.4))
    assert mix.request_rate_per_s([np.array([5.0]), np.array([2.0])]).tolist() == near([22.4])
    seen = mix.at_responses((5.0, 2.0)).lengths
    assert seen.input_tokens == near((2.4 * 700 + 20 * 100) / 22.4)
    assert seen.output_tokens == near((2.4 * 70 + 20 * 10) / 22.4)
    path = SamplePath(mix, count=1000, seed=2, longest=5000, response_s=(5.0, 2.0))
    assert [set(part.requests.class_index.tolist()) for part in path.offered(1.0).crowd.parts] == [{0}, {1}]
    assert demand(CHAT, CODE).at_responses(5.0) == demand(CHAT, CODE)


def test_only_users_or_only_arrivals_leave_the_other_part_out():
    people = SamplePath(demand(USERS), count=50, seed=1, longest=5000).offered(0.5)
    assert people.requests is None
    assert people.crowd.users == 30
    assert SamplePath(demand(CHAT), count=50, seed=1, longest=5000).offered(0.5).crowd is None


def test_draws_are_cut_to_the_context_and_leave_room_for_a_token():
    drawn = drawn_requests(demand(CHAT, CODE), 5000, 1, 600)
    assert drawn.input_tokens.max() == 598
    assert np.max(drawn.input_tokens + drawn.output_tokens) == 599
    assert drawn.output_tokens.min() >= 1
    assert np.all(drawn.cached_tokens < drawn.input_tokens)
