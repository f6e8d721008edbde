"""Answers in a trace: the next turn of a chat names their blocks, and the cache has them."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.engine.profile import Scheduling
from capplan.fleet.load.offered import selected_requests
from capplan.recorded.traces.trace import read_trace
from capplan.serving.block_cache import PrefixCaching
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.terms import EngineSetup
from capplan.workload.sessions import output_blocks
from tests.constant_steps import constant_steps

TABLE = constant_steps(0.01, 0.02)
BLOCK = 16


def chats(seed, people, turns):
    """Rows of a chat trace in which every prompt is all that was said before and something new; times are far apart."""
    rng = np.random.default_rng(seed)
    said = dict.fromkeys(range(people), 0)
    shared = int(rng.integers(0, 5)) * BLOCK
    rows = []
    for turn in range(turns):
        for person in range(people):
            prompt = (
                said[person] + int(rng.integers(1 + BLOCK * (turn == 0), 200)) + (shared if turn == 0 else 0)
            )
            answer = int(rng.integers(1, 150))
            system = [10**6 + place for place in range(shared // BLOCK)]
            own = [1000 * (person + 1) + place for place in range(len(system), -(-prompt // BLOCK))]
            rows.append((prompt, answer, [*system, *own]))
            said[person] = prompt + answer
    return rows


def columns(rows, gap_s=100.0):
    whole = [ids[: prompt // BLOCK] for prompt, _, ids in rows]
    prompts = np.array([prompt for prompt, _, _ in rows])
    outputs = np.array([answer for _, answer, _ in rows])
    counts = np.array([len(ids) for ids in whole])
    ids = np.array([block for own in whole for block in own], dtype=np.int64)
    return ids, counts, prompts, outputs, np.arange(len(rows)) * gap_s


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), people=st.integers(1, 4), turns=st.integers(1, 4))
def test_only_what_is_new_is_worked_on(seed: int, people: int, turns: int) -> None:
    """In a large cache a turn finds all whole blocks of the turn before and of its answer, and the system prompt."""
    rows = chats(seed, people, turns)
    ids, counts, prompts, outputs, arrival = columns(rows)
    answers, output_counts = output_blocks(ids, counts, prompts, outputs, BLOCK)
    requests = Requests(
        prompts,
        outputs,
        arrival,
        block_ids=ids,
        block_counts=counts,
        output_ids=answers,
        output_counts=output_counts,
    )
    outcome = simulate(
        requests, EngineSetup(TABLE, Scheduling("mixed", 4, 4096), 10**5, caching=PrefixCaching(BLOCK))
    )
    found, known = 0, set()
    for row, (prompt, _, blocks) in enumerate(rows):
        own = blocks[: prompt // BLOCK]
        before = row - people
        if before >= 0:
            have = (rows[before][0] + rows[before][1]) // BLOCK
            known.update(own[:have])
        lead = next((place for place, block in enumerate(own) if block not in known), len(own))
        found += min(lead * BLOCK, prompt - 1)
        known.update(own)
    assert outcome.cached_tokens == found


def test_the_next_turn_is_the_one_that_goes_on(tmp_path):
    """Not another chat with the same system prompt, and not a prompt that is too short to hold the answer."""
    rows = [
        (48, 40, [1, 2, 3]),
        (64, 40, [1, 2, 9, 10]),
        (64, 10, [1, 2, 3, 4]),
        (112, 10, [1, 2, 3, 5, 6, 7, 8]),
    ]
    ids, counts, prompts, outputs, _ = columns(rows)
    found, each = output_blocks(ids, counts, prompts, outputs, BLOCK)
    assert each.tolist() == [2, 0, 0, 0]
    assert found.tolist() == [5, 6]


def test_a_turn_that_completes_no_block_is_a_turn_too():
    """A short question after a short answer: the answer to it is known from the turn after it."""
    rows = [(40, 5, [1, 2, 3]), (47, 40, [1, 2, 3]), (100, 1, [1, 2, 4, 5, 6, 7, 8])]
    ids, counts, prompts, outputs, _ = columns(rows)
    found, each = output_blocks(ids, counts, prompts, outputs, BLOCK)
    assert each.tolist() == [0, 3, 0]
    assert found.tolist() == [4, 5, 6]


def test_a_trace_of_small_blocks_is_read_with_its_answers_and_one_of_large_blocks_without(tmp_path):
    """A prompt that ends within 512 tokens of its last name could go on in many ways."""
    rows = chats(3, 3, 3)
    small = tmp_path / "small.jsonl"
    lines = [
        {"timestamp": 10.5 * place, "chat_id": place, "input_length": p, "output_length": o, "hash_ids": ids}
        for place, (p, o, ids) in enumerate(rows)
    ]
    small.write_text("".join(json.dumps(line) + "\n" for line in lines))
    requests = read_trace(small).requests()
    assert requests.output_ids is not None
    assert int(requests.output_counts.sum()) == requests.output_ids.size > 0
    part = selected_requests(requests, np.arange(3, 9))
    assert part.output_ids.tolist() == requests.output_ids[int(requests.output_counts[:3].sum()) :].tolist()
    assert requests.between(3, 9).output_ids.tolist() == part.output_ids.tolist()
    large = tmp_path / "large.jsonl"
    lines = [
        {
            "timestamp": 1000 * place,
            "input_length": 512 * (place + 1),
            "output_length": 600,
            "hash_ids": list(range(place + 1)),
        }
        for place in range(6)
    ]
    large.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_trace(large).requests().output_ids is None
