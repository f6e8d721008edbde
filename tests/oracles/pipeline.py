"""Micro-batches that go round a pipeline, one event at a time: written from the description of a pipeline alone."""

from collections import deque
from itertools import pairwise


def chunk_ends_s(chunks_s: list[list[float]]) -> list[float]:
    """Return when each chunk leaves the last stage. Chunks wait in one line and overtake nobody; `chunks_s` holds the time
    of each chunk in each stage. As many are in flight as there are stages: the next one starts when the oldest has ended."""
    stages = len(chunks_s[0])
    free_s, ends = [0.0] * stages, []
    for place, own in enumerate(chunks_s):
        now = ends[place - stages] if place >= stages else 0.0
        for stage, seconds in enumerate(own):
            now = max(now, free_s[stage]) + seconds
            free_s[stage] = now
        ends.append(now)
    return ends


def token_gap_s(stages_s: list[float], in_flight: int, rounds: int = 200) -> float:
    """Return the mean time between two tokens of a micro-batch that goes round with others of the same size."""
    free_s, line = [0.0] * len(stages_s), deque((0.0, number) for number in range(in_flight))
    tokens: list[list[float]] = [[] for _ in range(in_flight)]
    for _ in range(rounds * in_flight):
        now, number = line.popleft()
        for stage, seconds in enumerate(stages_s):
            now = max(now, free_s[stage]) + seconds
            free_s[stage] = now
        tokens[number].append(now)
        line.append((now, number))
    late = tokens[0][rounds // 2 :]
    return (late[-1] - late[0]) / (len(late) - 1)


def delayed_round_s(plain_s: float, prompt_s: float, prompts: int, stages: int) -> float:
    """Return the longest time between two tokens of a full pipeline of equal micro-batches, of which some hold a prompt
    once. Times are those of one stage."""
    free_s, line = [0.0] * stages, deque((0.0, number) for number in range(stages))
    tokens: list[list[float]] = [[] for _ in range(stages)]
    for turn in range(40 * stages):
        now, number = line.popleft()
        seconds = prompt_s if 20 * stages <= turn < 20 * stages + prompts else plain_s
        for stage in range(stages):
            now = max(now, free_s[stage]) + seconds
            free_s[stage] = now
        tokens[number].append(now)
        line.append((now, number))
    return max(b - a for own in tokens for a, b in pairwise(own))
