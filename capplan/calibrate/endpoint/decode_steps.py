"""Decode steps that clients of a server see: how long they take by the sequences in them, and at what pace each load ran.

A streamed response shows when each step ended. While no request waits for its first token and none ends, all that are in flight decode
in the same step, so the time between two tokens is that of a decode step of a known number of sequences.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from capplan.calibrate.endpoint.client import Answered
from capplan.recorded.results.record import BenchmarkResult, latency

LEAST_SEEN = 3
"""Decode steps of a number of sequences below which their mean says nothing."""
STREAMED = 0.9
"""Part of the tokens of a response that arrive by themselves at least: a server that streams several at once shows no steps."""
LONGEST = 1.7
"""Times the median, from where on a time between tokens is that of two steps: a token without text is not streamed."""
MOST_STEPS = 16
"""Decode steps that are replayed around the mean context."""


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """Decode steps of one number of sequences."""

    steps: float
    mean_s: float
    context_tokens: float
    """Tokens of a sequence in the cache before a step, mean over sequences and steps."""


def decode_steps(answers: Sequence[Answered]) -> dict[int, DecodeSteps]:
    """Return the decode steps that the streams of a load show, by their sequences.

    Parameters
    ----------
    answers : all requests that the server had meanwhile; with errors, or with streams whose pieces hold several tokens, they show no steps

    Examples
    --------
    >>> first = Answered(0.0, (1.0, 1.06, 1.12, 1.19, 1.26, 1.35), 10, 6, ended_s=1.35)
    >>> {count: (seen.steps, round(seen.mean_s, 3)) for count, seen in decode_steps([first]).items()}
    {1: (5.0, 0.07)}
    """
    found = {}
    for count, rows in sorted(_between_tokens(answers).items()):
        single = np.array(rows)
        single = single[single[:, 0] < LONGEST * np.median(single[:, 0])]
        mean_s, context = single.mean(axis=0).tolist()
        found[count] = DecodeSteps(len(rows) / count, mean_s, context)
    return {count: seen for count, seen in found.items() if seen.steps >= LEAST_SEEN}


def pooled(loads: Sequence[Mapping[int, DecodeSteps]]) -> dict[int, DecodeSteps]:
    """Return the decode steps of several loads, by their sequences: means over all steps.

    Examples
    --------
    >>> pooled([{1: DecodeSteps(10.0, 0.03, 100.0)}, {1: DecodeSteps(30.0, 0.05, 200.0)}])
    {1: DecodeSteps(steps=40.0, mean_s=0.045, context_tokens=175.0)}
    """
    found = {}
    for count in sorted({count for load in loads for count in load}):
        own = [load[count] for load in loads if count in load]
        total = sum(seen.steps for seen in own)
        mean_s, context = (
            sum(seen.steps * getattr(seen, name) for seen in own) / total
            for name in ("mean_s", "context_tokens")
        )
        found[count] = DecodeSteps(total, mean_s, context)
    return found


def paces_of(loads: Sequence[Mapping[int, DecodeSteps]]) -> list[float]:
    """Return the pace of each load: what its decode steps took over the same steps at the mean pace of all loads.

        ln t_l(S) = ln t(S) + ln p_l,   mean of ln p_l over all steps seen = 0

    by least squares, with as much weight as steps were seen.

    Parameters
    ----------
    loads : decode steps by sequences, of each load

    Examples
    --------
    >>> fast, slow = {1: DecodeSteps(9, 0.03, 9.0), 2: DecodeSteps(9, 0.04, 9.0)}, {1: DecodeSteps(9, 0.06, 9.0)}
    >>> [round(pace, 2) for pace in paces_of([fast, slow])]
    [0.79, 1.59]
    """
    counts = sorted({count for load in loads for count in load})
    cells = [
        (row, counts.index(count), seen) for row, load in enumerate(loads) for count, seen in load.items()
    ]
    if not cells:
        return [1.0] * len(loads)
    of_load, of_count = np.zeros((len(cells), len(loads))), np.zeros((len(cells), len(counts)))
    for place, (row, column, _) in enumerate(cells):
        of_load[place, row] = of_count[place, column] = 1.0
    weights = np.array([seen.steps for *_, seen in cells])
    root, logs = np.sqrt(weights), np.log([seen.mean_s for *_, seen in cells])
    both = np.concatenate([of_load, of_count], axis=1)
    solved = np.linalg.lstsq(both * root[:, None], logs * root, rcond=None)[0][: len(loads)]
    middle = float(weights @ of_load @ solved / weights.sum())
    return [float(pace) for pace in np.exp(solved - middle)]


def _between_tokens(answers: Sequence[Answered]) -> dict[int, list[tuple[float, float]]]:
    """Return the times between tokens in which every request in flight decodes, with the context before the second token, by sequences."""
    if any(answer.error or len(answer.token_s) < STREAMED * answer.output_tokens for answer in answers):
        return {}
    sent = sorted(answer.sent_s for answer in answers)
    begun = sorted(answer.token_s[0] for answer in answers)
    ended = sorted(answer.token_s[-1] for answer in answers)
    seen: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for answer in answers:
        for place, (from_s, to_s) in enumerate(pairwise(answer.token_s)):
            decoding = bisect_right(begun, from_s) - bisect_right(ended, from_s)
            waits = bisect_left(sent, to_s) > bisect_right(begun, from_s)
            ends = bisect_left(ended, to_s) > bisect_right(ended, from_s)
            if not waits and not ends:
                seen[decoding].append((to_s - from_s, answer.input_tokens + place + 1.0))
    return seen


def step_results(seen: Mapping[int, DecodeSteps], bare: BenchmarkResult) -> list[BenchmarkResult]:
    """Return the decode steps of each number of sequences as results.

    Parameters
    ----------
    seen : decode steps by sequences
    bare : a result that names tool, model and device
    """
    return [
        replace(
            bare,
            path=f"decode steps of {count} sequences",
            kind="decode",
            concurrency=float(count),
            output_tokens=min(steps.steps, MOST_STEPS) + 1.0,
            context_tokens=steps.context_tokens,
            tpot_s=latency(steps.mean_s),
        )
        for count, steps in seen.items()
    ]
