"""Fleets for several classes of users, quick and slow ones: the closed form, the search and the simulation of its plan agree."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from capplan.fleet.load.session_load import peak_stream
from capplan.fleet.search import layouts as screening
from capplan.fleet.search.cheapest import Search, Terms, busy_replicas
from capplan.fleet.search.layouts import search
from capplan.fleet.search.steady_plans import carried_shares, class_responses_s, steady_states_of
from capplan.fleet.search.trial import Trial
from capplan.fleet.simulation import simulated_fleet
from capplan.money.order import NO_LOSS
from tests.asked import asked_in
from tests.shipped import price_by_hand

QUICK = "{name: quick, users: 400, think_time: 1 s, input_tokens: 1500, output_tokens: 20}"
SLOW = "{name: slow, users: 100, think_time: 5 s, input_tokens: 2000, output_tokens: 1500}"
PAIRS = (
    (QUICK, SLOW),
    (
        "{name: quick, users: 90, think_time: 0.2 s, input_tokens: 100, output_tokens: 10}",
        "{name: slow, users: 60, think_time: 20 s, input_tokens: 700, output_tokens: 1000}",
    ),
    (
        "{name: quick, users: 200, think_time: 5 s, input_tokens: 3000, output_tokens: 80}",
        "{name: slow, users: 200, think_time: 5 s, input_tokens: 100, output_tokens: 900}",
    ),
)
FREE = Terms(0.0, NO_LOSS, {name: price_by_hand(1.0) for name in ("h100-sxm", "l40s")})


@lru_cache(maxsize=32)
def question_of(*classes: str, hardware: str = "h100-sxm", requests: int = 15_000):
    text = f"""name: law
model: meta-llama/Llama-3.1-8B-Instruct
traffic: [{", ".join(classes)}]
slo: {{ttft_p95: 800 ms, tpot_p95: 40 ms, confidence: 50 %}}
fleet: {{hardware: [{hardware}], tensor_parallel: [1], pipeline_parallel: [1]}}
"""
    asked = asked_in(text)
    return replace(asked.question, requests=requests)


def cheapest(question):
    return Search(question, search(question).candidates, FREE).cheapest(0.5)


def test_slow_users_beside_quick_ones_take_no_replicas_away() -> None:
    """Mixed into one population, the slow users' responses would keep the quick users from asking."""
    alone, both = (cheapest(question_of(*classes)).busy for classes in ((QUICK,), (QUICK, SLOW)))
    assert both >= alone


@pytest.mark.parametrize("classes", PAIRS)
def test_the_plan_carries_in_a_simulation_what_its_users_ask_for(classes) -> None:
    """Each class X = N / (Z + R) with the response that `fleet` found, between 60 and 220 s of 260 s; the slow class sends some hundreds."""
    question = question_of(*classes)
    best = cheapest(question)
    trial = best.trial
    seen = trial.at(trial.total_rate / best.busy, best.busy)
    expected = trial.demand.rates_of_classes(seen.responses_s)
    stream = peak_stream(
        trial.demand, replicas=best.busy, seed=8, longest=question.max_model_len, seconds=260.0,
        response_s=seen.responses_s, routing="round_robin",
    )  # fmt: skip
    outcome = simulated_fleet(trial.replica, stream, replicas=best.busy, slo=question.slo)
    arrival_s = np.concatenate([part.arrival_s for part in outcome.parts])
    seconds = (arrival_s > 60.0) & (arrival_s < 220.0)
    owner = np.concatenate([part.class_index for part in outcome.parts])
    found = [np.sum(seconds & (owner == index)) / 160.0 for index in range(2)]
    assert found == pytest.approx(list(expected), rel=0.1)
    assert [figures.e2e_s.mean for figures in outcome.classes.values()] == pytest.approx(
        list(seen.responses_s), rel=0.15
    )
    assert outcome.missed(question.slo) == ()


@pytest.mark.parametrize("classes", PAIRS)
def test_the_closed_form_knows_the_response_of_each_class(classes) -> None:
    """At the load of a simulation, responses are within the slack of the closed form, and rates within half of it: users also think."""
    question = question_of(*classes)
    best = cheapest(question)
    trial, share = best.trial, 1.0 / best.busy
    seen = trial.at(trial.total_rate * share, best.busy)
    state = steady_states_of([trial.replica], trial.demand)
    at = int(np.argmin(np.abs(carried_shares(state, trial.demand)[0] - share)))
    assert state.requests_per_s[0, at] == pytest.approx(seen.requests_per_s, rel=0.15)
    found = [float(response[0, at]) for response in class_responses_s(state, trial.demand)]
    assert found == pytest.approx(list(seen.responses_s), rel=screening.TARGET_SLACK - 1.0)


@pytest.mark.parametrize("classes", PAIRS)
@pytest.mark.parametrize("hardware", ["h100-sxm", "l40s"])
def test_the_bounds_leave_out_no_layout_that_would_be_cheapest(classes, hardware) -> None:
    question = question_of(*classes, hardware=hardware, requests=3000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screening, "TARGET_SLACK", 50.0)
        patch.setattr(screening, "RATE_SLACK", 50.0)
        every = search(question).candidates
    sizes = []
    for candidate in every:
        trial = Trial(candidate, question, {})
        busy = busy_replicas(trial, trial.limits, 0.5, FREE)
        if busy is not None:
            sizes.append(busy * candidate.layout.devices)
    best = cheapest(question)
    assert (best and best.gpus) == min(sizes, default=None)


def test_a_run_ends_when_the_first_replica_has_no_request_left() -> None:
    """Five users of whom one replica has two: it takes less than twice as long for twice the requests, and would be measured alone at the end.

    Replicas of users who stay weigh as much as they serve, in the fleet and in its simulation.
    """
    question = question_of(
        "{name: u, users: 5, think_time: 0 s, input_tokens: 2300, output_tokens: 12}", requests=6000
    )
    trial = Trial(search(question).candidates[0], question, {})
    expected = trial.fleet(4)
    stream = peak_stream(
        trial.demand, replicas=4, seed=3, longest=question.max_model_len, seconds=120.0,
        response_s=expected.responses_s, routing="round_robin",
    )  # fmt: skip
    found = simulated_fleet(trial.replica, stream, replicas=4, slo=question.slo)
    assert found.all.tpot_s.mean == pytest.approx(expected.tpot_s.mean, rel=0.03)
    assert found.all.ttft_s.mean == pytest.approx(expected.ttft_s.mean, rel=0.03)


def test_a_user_at_a_replica_sends_as_long_as_requests_arrive_there() -> None:
    """Five users on 35 replicas beside 2.9 requests a second: those of a replica with a user are mostly that user's, not as in the whole traffic.

    Their long prompts were 28 % of all, and are 39 %: each user asks again 2 s after a response.
    """
    user = "{name: u, users: 5, think_time: 2 s, input_tokens: 3000, output_tokens: 117}"
    question = question_of(
        user, "{name: o, request_rate: 2.93 req/s, input_tokens: 240, output_tokens: 168}", requests=15_000
    )
    trial = Trial(search(question).candidates[0], question, {})
    found = trial.fleet(35)
    user_s, _ = found.responses_s
    expected = (5 / (2.0 + user_s) + 2.93) / 35
    runs = [(kind[2], seen) for kind, seen in trial._kinds.items()]
    rates = {users: seen.requests_per_s for users, seen in runs}
    assert rates[(1,)] == pytest.approx(1 / (2.0 + user_s) + 2.93 / 35, rel=0.05)
    assert (5 * rates[(1,)] + 30 * rates[(0,)]) / 35 == pytest.approx(expected, rel=0.03)


def test_few_long_prompts_next_to_many_short_ones_count_as_load() -> None:
    """Few requests arrive, each with 27 times the tokens of a user's request: users wait for about twice as long as at the lightest load."""
    question = question_of(
        "{name: u, users: 26, think_time: 0 s, input_tokens: 120, output_tokens: 13}",
        "{name: o, request_rate: 7 req/s, input_tokens: 3466, output_tokens: 107}",
    )
    trial = Trial(search(question).candidates[0], question, {})
    expected = trial.fleet(2)
    stream = peak_stream(
        trial.demand, replicas=2, seed=3, longest=question.max_model_len, seconds=300.0,
        response_s=expected.responses_s, routing="round_robin",
    )  # fmt: skip
    found = simulated_fleet(trial.replica, stream, replicas=2, slo=question.slo)
    assert found.classes["o"].requests > 1500
    of_classes = [figures.e2e_s.mean for figures in found.classes.values()]
    assert of_classes == pytest.approx(list(expected.responses_s), rel=0.05)
    assert found.all.tpot_s.p95 == pytest.approx(expected.tpot_s.p95, rel=0.1)
    assert expected.responses_s[0] > 1.9 * trial.responses_s[0]


def test_a_run_of_users_and_others_ends_when_either_have_no_request_left() -> None:
    """Users who are expected to wait for a tenth of their time have requests for ten times as long as requests arrive."""
    question = question_of(
        "{name: u, users: 26, think_time: 0 s, input_tokens: 120, output_tokens: 13}",
        "{name: o, request_rate: 7 req/s, input_tokens: 3466, output_tokens: 107}",
    )
    trial = Trial(search(question).candidates[0], question, {})
    waits = trial.fleet(2).responses_s
    stream = peak_stream(
        trial.demand, replicas=2, seed=3, longest=question.max_model_len, seconds=60.0,
        response_s=(0.1 * waits[0], waits[1]), routing="round_robin",
    )  # fmt: skip
    found = simulated_fleet(trial.replica, stream, replicas=2, slo=question.slo)
    assert found.until_s < 62.0 < found.seconds
    assert found.classes["u"].e2e_s.mean == pytest.approx(waits[0], rel=0.2)
