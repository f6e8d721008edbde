"""Decode steps that the streams of an engine show are those that it ran, whatever else it did meanwhile."""

import random
from dataclasses import replace

import pytest

from capplan.calibrate.endpoint.client import Answered
from capplan.calibrate.endpoint.decode_steps import decode_steps, paces_of, pooled, step_results
from capplan.calibrate.endpoint.series import stairs
from capplan.recorded.results.record import BenchmarkResult

PROMPT_S = 0.4
"""Of a step with prompts."""


def step_s(sequences):
    """Return the time of a decode step of an engine to which odd numbers of sequences suit less."""
    return 0.03 + 0.002 * sequences + (0.01 if sequences % 2 else 0.0)


def streamed(requests, slowness=1.0):
    """Return the answers of an engine to requests (time sent, output tokens): a prompt joins at the next step, with the others that wait."""
    now_s, waiting, running, times = 0.0, sorted(requests), {}, {}
    draw = random.Random(1)
    while waiting or running:
        now_s = max(now_s, waiting[0][0]) if not running else now_s
        joined = [request for request in waiting if request[0] <= now_s]
        waiting = [request for request in waiting if request[0] > now_s]
        now_s += slowness * (PROMPT_S if joined else step_s(len(running)))
        running |= dict.fromkeys(joined, 0)
        for request in list(running):
            times.setdefault(request, []).append(now_s + draw.uniform(0.0, 1e-3))
            running[request] += 1
            if running[request] == request[1]:
                del running[request]
    return [
        Answered(sent_s, tuple(at), 100, tokens, ended_s=at[-1]) for (sent_s, tokens), at in times.items()
    ]


def of_stairs(most, slowness=1.0):
    points = stairs(3.0, most, 128, 4000)
    return streamed([(1e-5 * place, point.output_tokens) for place, point in enumerate(points)], slowness)


def test_stairs_show_the_decode_step_of_every_number_of_sequences():
    found = decode_steps(of_stairs(12))
    assert list(found) == list(range(1, 13))
    for sequences, seen in found.items():
        assert seen.mean_s == pytest.approx(step_s(sequences), abs=2e-4), sequences
        assert seen.steps >= 12
        assert 100.0 < seen.context_tokens < 300.0


def test_stairs_beyond_sixteen_sequences_stop_at_half_powers_of_two():
    found = decode_steps(of_stairs(64))
    assert list(found) == [*range(1, 17), 24, 32, 48, 64]
    assert len(stairs(3.0, 64, 128, 4000)) == 64


@pytest.mark.parametrize(
    ("minutes", "most", "room"), [(3.0, 1, 1000), (0.02, 8, 1000), (3.0, 12, 100), (30.0, 500, 5000)]
)
def test_stairs_keep_to_the_context_and_are_shorter_in_a_shorter_series(minutes, most, room):
    points = stairs(minutes, most, 128, room)
    outputs = [point.output_tokens for point in points]
    assert len(points) == most
    assert outputs == sorted(outputs, reverse=True)
    assert 4 <= outputs[-1] <= 16
    assert outputs[0] <= room
    assert not stairs(minutes, 12, 128, 40)


def test_steps_with_prompts_and_steps_in_which_a_request_ends_are_not_decode_steps():
    """Requests come at any time in an open loop, and each step in which one waits, joins or ends is left out."""
    draw = random.Random(4)
    at_s, requests = 0.0, []
    for _ in range(60):
        at_s += draw.expovariate(1.0)
        requests.append((at_s, draw.randrange(20, 60)))
    found = decode_steps(streamed(requests))
    assert len(found) > 3
    for sequences, seen in found.items():
        assert seen.mean_s == pytest.approx(step_s(sequences), rel=0.02), sequences


def test_loads_are_pooled_and_a_token_that_was_not_streamed_is_no_long_step():
    whole = of_stairs(4)
    lacking = [
        replace(answer, token_s=answer.token_s[:9] + answer.token_s[10:])
        if len(answer.token_s) > 20
        else answer
        for answer in whole
    ]
    assert lacking != whole
    one = decode_steps(whole)
    both = pooled([one, decode_steps(lacking)])
    for sequences, seen in both.items():
        assert seen.mean_s == pytest.approx(step_s(sequences), abs=3e-4)
        assert seen.steps > 1.7 * one[sequences].steps


def test_streams_that_hold_several_tokens_at_once_and_loads_with_errors_show_no_steps():
    answers = of_stairs(3)
    assert decode_steps([replace(answer, token_s=answer.token_s[::2]) for answer in answers]) == {}
    assert decode_steps([replace(answers[0], error="status 500"), *answers[1:]]) == {}
    assert decode_steps([]) == pooled([]) == {}


def test_the_pace_of_a_load_is_told_from_the_sequences_in_its_steps():
    """Single users, whose steps are short, at a slow moment; four at a quick one; stairs with all numbers between them."""
    quick, slow = 0.9, 1.25
    loads = [
        of_stairs(8),
        streamed([(0.0, 200)], slow),
        streamed([(1e-5 * user, 200) for user in range(4)], quick),
    ]
    paces = paces_of([decode_steps(answers) for answers in loads])
    assert paces[1] / paces[0] == pytest.approx(slow, rel=0.01)
    assert paces[2] / paces[0] == pytest.approx(quick, rel=0.01)
    assert paces_of([]) == []


def test_decode_steps_become_results_of_one_batch_each():
    results = step_results(decode_steps(of_stairs(3)), BenchmarkResult("tool", "path", model="tiny"))
    assert [(result.kind, result.concurrency) for result in results] == [
        ("decode", 1.0),
        ("decode", 2.0),
        ("decode", 3.0),
    ]
    assert {result.model for result in results} == {"tiny"}
    assert [result.tpot_s.mean for result in results] == pytest.approx(
        [step_s(n) for n in (1, 2, 3)], rel=0.02
    )
