"""How sure a plan is and how large it has to be, against plain trial of one replica; small runs, so that each test is quick."""

from dataclasses import astuple, replace
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from capplan.fleet.decision import _chosen_of, _missed, fleet_decision
from capplan.fleet.search.cheapest import Search, Sized, Terms, busy_bound, busy_replicas
from capplan.fleet.search.layouts import search
from capplan.fleet.search.recommended import cost_range, plan_of
from capplan.fleet.search.trial import limits_by_latency
from capplan.money.order import NO_LOSS, Survival
from capplan.workload.request_class import Slo, Target
from tests.asked import asked_in
from tests.shipped import price_by_hand
from tests.tables import table

RATE, SPARES, HOURLY = 60.0, 2, 3.0
TEXT = """name: small
model: llama-3.1-8b
traffic: [{name: chat, request_rate: 60 req/s, input_tokens: {mean: 900, p95: 2500}, output_tokens: {mean: 120, p95: 300}}]
slo: {ttft_p95: 600 ms, tpot_p95: 60 ms}
fleet: {hardware: [l40s], tensor_parallel: [1, 2], pipeline_parallel: 1}
"""
PRICE = price_by_hand(HOURLY)
TERMS = Terms(0.25, Survival("replica", SPARES), {"l40s": PRICE})


@pytest.fixture(scope="module")
def question():
    asked = asked_in(TEXT)
    return replace(asked.question, requests=2500)


@pytest.fixture(scope="module")
def trial(question):
    candidates = [item for item in search(question).candidates if item.layout.sharding.tensor == 1.0]
    return Search(question, candidates, TERMS).trial(candidates[0])


def holds(trial, rate, replicas, slowness=1.0, limits=None):
    """Say whether every target holds where all steps take longer by a factor."""
    seen = trial.at(rate, replicas, slowness)
    wanted = trial.limits if limits is None else limits
    return seen.steady and all(seen.value(target) * slowness <= limit for target, limit in wanted.items())


BETWEEN_STEPS = 1.03
"""Slownesses between the loads of the scale, which are 9 % apart, are interpolated."""


def surely_holds(trial, replicas, confidence):
    """Say whether both latencies hold as slow as some pair of slownesses that are not exceeded together with a confidence."""
    slowness, share = trial.candidate.slowness, min(replicas, 16)
    by_name = limits_by_latency(trial.limits)
    for level in np.linspace(confidence, 1.0, 60)[1:-1]:
        first = slowness.by_latency["ttft"].quantile(level)
        pair = {"ttft": first, "tpot": slowness.other_needed("ttft", first, confidence)}
        if pair["tpot"] < inf and all(
            holds(trial, RATE / replicas, share, pair[name] / BETWEEN_STEPS, own)
            for name, own in by_name.items()
        ):
            return True
    return False


def test_an_nth_of_the_traffic_takes_n_replicas():
    for n in range(1, 2000):
        for bounds in ((1.0 / n, 9.0), (9.0, 1.0 / n)):
            bound = SimpleNamespace(share_bound=bounds[0], sure_share_bounds={0.8: bounds[1]})
            assert busy_bound(bound, 0.8, Terms(0.0, Survival("replica", 3), {})) == n
    half = SimpleNamespace(share_bound=0.25, sure_share_bounds={0.8: 0.2})
    assert (
        busy_bound(half, 0.8, Terms(0.5, NO_LOSS, {})) == 8
    )  # four for the traffic, as many again for headroom
    assert busy_bound(half, 0.8, Terms(0.0, NO_LOSS, {})) == 5


def test_the_fewest_replicas_hold_the_peak_as_slow_as_asked_and_headroom_as_predicted(trial):
    for confidence, headroom in ((0.5, 0.0), (0.5, 0.4), (0.9, 0.0)):
        busy = busy_replicas(
            trial, trial.limits, confidence, Terms(headroom, Survival("replica", SPARES), {})
        )
        assert busy > 1
        assert surely_holds(trial, busy, confidence)
        assert holds(trial, RATE / (1.0 - headroom) / busy, min(busy, 16))
        fewer = busy - 2  # one may be missing for want of a finer scale of loads
        assert not (
            surely_holds(trial, fewer, confidence)
            and holds(trial, RATE / (1.0 - headroom) / fewer, min(fewer, 16))
        )
        assert busy_replicas(trial, trial.limits, confidence, Terms(headroom, NO_LOSS, {}), busy) == busy
        assert busy_replicas(trial, trial.limits, confidence, Terms(headroom, NO_LOSS, {}), busy - 1) is None


@pytest.mark.parametrize("busy", [10, 14, 20])
def test_the_probability_is_that_of_the_slowest_replica_that_holds(trial, busy):
    chance = trial.probability(busy)
    assert 0.05 < chance < 0.99
    classes = max(n for n in (1, 2, 4, 8, 16) if n <= busy)
    slowest = {}
    for name, own in limits_by_latency(trial.limits).items():
        slowest[name] = trial.slowest(busy, own)
        assert holds(trial, RATE / busy, classes, slowest[name] / 1.05, own)
        assert not holds(trial, RATE / busy, classes, slowest[name] * 1.05, own)
    assert chance == pytest.approx(trial.candidate.slowness.probability(slowest), abs=1e-9)
    chances = [trial.target_probability(busy, target) for target in trial.question.slo.targets]
    assert sum(chances) - 1.0 <= chance <= min(chances)


BURSTS = """name: bursts
model: Qwen/Qwen3-32B
traffic: [{name: o, request_rate: 60 req/s, arrival_cv: 2.5, input_tokens: {mean: 3531, p95: 7062}, output_tokens: {mean: 18, p95: 54}}]
slo: {ttft_p95: 0.395 s, tpot_p95: 13.01 ms, confidence: 80 %}
fleet: {hardware: [b200], tensor_parallel: [2], pipeline_parallel: 1, headroom: 0 %}
"""


def test_bursts_at_one_replica_say_nothing_of_many():
    """One replica misses its TTFT in a burst, however few requests it gets; dealt to forty in turn, the same requests come one by one."""
    asked = asked_in(BURSTS)
    asking = replace(asked.question, requests=4000)
    candidates = search(asking).candidates
    own = Search(asking, candidates, TERMS).trial(candidates[0])
    assert not own._sure(1, 0.8, own.limits, 1e-3)
    needed = own.sure_replicas(60.0, 0.8, own.limits)
    assert needed is not None
    assert own.probability(needed) >= 0.8 > own.probability(needed - 1)


def test_a_plan_is_what_its_replicas_are_together(trial):
    sized = Sized(trial, 14, 16)
    plan = plan_of(sized, TERMS)
    lengths = trial.demand.lengths
    assert (plan.replicas, plan.spare_replicas, plan.single.busy_replicas, plan.gpus) == (16, SPARES, 14, 16)
    assert plan.single.busy_replicas * plan.single.request_rate_per_replica == pytest.approx(RATE)
    assert plan.single.concurrency_per_replica == pytest.approx(
        plan.single.request_rate_per_replica * plan.e2e_s.mean
    )
    assert plan.usd_per_hour == pytest.approx(16 * HOURLY)
    assert plan.usd_per_month == pytest.approx(16 * HOURLY * 730)
    # dollars an hour over millions of tokens an hour
    assert plan.usd_per_million_output_tokens == pytest.approx(
        16 * HOURLY / (RATE * lengths.output_tokens * 3600 / 1e6)
    )
    both = lengths.output_tokens + lengths.input_tokens
    assert plan.usd_per_million_tokens == pytest.approx(16 * HOURLY / (RATE * both * 3600 / 1e6))
    assert plan.watts == 16 * 350.0  # NVIDIA L40S datasheet, maximum power
    assert plan.single.request_rate_limit_per_replica == trial.limit(8, 1.0, trial.limits)
    slower = trial.sure_slowness(14)
    assert trial.candidate.slowness.probability(slower) == pytest.approx(0.8)
    limits = limits_by_latency(trial.limits)
    assert plan.single.sure_request_rate_limit_per_replica == pytest.approx(
        min(trial.limit(8, slower[name], own) for name, own in limits.items()), rel=1e-12
    )
    for values in (plan.ttft_s, plan.tpot_s, plan.e2e_s):
        assert values.low < values.mean < values.high
        assert values.p50 <= values.p90 <= values.p95 <= values.p99
    low, high = cost_range(sized, TERMS)
    assert low < high
    for cost, part in ((low, 0.1), (high, 0.9)):
        assert cost == (trial.sure_replicas(RATE / 0.75, part, trial.limits) + SPARES) * HOURLY * 730
    assert cost_range(sized, Terms(0.25, Survival("replica", SPARES), {})) is None
    unpriced = plan_of(sized, Terms(0.25, Survival("replica", SPARES), {}))
    assert unpriced.usd_per_hour is unpriced.usd_per_month is unpriced.usd_per_million_tokens is None


def test_progress_goes_up_by_one_to_the_end(question):
    calls = []
    answer = fleet_decision(
        replace(question, requests=800), TERMS, lambda done, steps: calls.append((done, steps))
    )
    assert answer.plans
    assert calls == [(done, len(calls)) for done in range(1, len(calls) + 1)]


def test_no_replica_serves_the_rate_at_the_top_of_the_scale(question):
    """Without targets: a queue grows there, and what a replica does serve is not far below."""
    loose = replace(question, requests=15_000)
    for candidate in search(loose).candidates:
        trial = Search(loose, [candidate], TERMS).trial(candidate)
        assert not trial.at(trial.rate_ceiling, 16).steady
        assert 0.6 * trial.rate_ceiling < trial.limit(16, 1.0, {}) < trial.rate_ceiling


def test_the_target_that_binds_an_idle_replica_is_the_one_nearest_to_its_limit(question):
    """Not the longest time: a whole response takes seconds, of a thousand that it may take."""
    slo = Slo((Target("e2e", "p95", 1000.0), Target("ttft", "p95", 0.25)), 0.8)
    asked = replace(question, slo=slo)
    candidate = next(item for item in search(asked).candidates if item.layout.sharding.tensor == 1.0)
    trials = Search(asked, [candidate], TERMS)
    row = _missed(trials.trial(candidate), trials)
    assert (row.hardware, row.target, row.limit_s, row.gpus) == ("l40s", "ttft_p95", 0.25, None)
    assert 0.1 < row.value_s < 0.25
    assert row.sure_value_s > row.value_s
    (first, many), (second, few) = map(astuple, row.gpus_at)
    assert (first, second) == pytest.approx((1.75 * row.value_s, 2.75 * row.value_s), rel=0.05)  # two digits
    assert many >= few > SPARES


def offer(usd, chance, gpus=8):
    """Return a fleet with a price and a probability; no replica can be added to it for the money of another."""
    trial = SimpleNamespace(limits={"a target": 1.0})
    layout = SimpleNamespace(devices=1, device=SimpleNamespace(name="l40s", partition=None, node_devices=8))
    group = SimpleNamespace(gpus=gpus, layout=layout)
    plan = SimpleNamespace(
        usd_per_hour=usd, slo_met_probability=chance, gpus=gpus, replicas=8, single=group, groups=(group,)
    )
    sized = SimpleNamespace(trial=trial, busy=10**9, layout=layout)
    return SimpleNamespace(sized=sized, usd_per_hour=usd, cost=usd, gpus=gpus, chance=chance, plan=plan)


@table
def test_a_little_more_is_recommended_for_clearly_more_certainty(others, recommended):
    fleets = [offer(100.0, 0.80), *(offer(*other, gpus=7) for other in others)]
    choices, chosen, listed = _chosen_of(fleets, TERMS, None)
    assert choices.recommended is fleets[recommended].plan
    assert chosen is fleets[recommended].sized
    assert choices.cheapest is fleets[0].plan
    assert choices.fewest is fleets[1].plan
    assert listed == fleets
