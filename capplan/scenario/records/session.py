"""The turns of a line of traffic -> sessions, the lengths of their prompts, and how much of them a cache finds."""

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from capplan.numbers import Array
from capplan.readers.yaml_file import KeyPath
from capplan.recorded.traces.read import prefix_reuse
from capplan.scenario.reading import Reading
from capplan.scenario.records.lengths import lengths
from capplan.scenario.scenario_file import Traffic
from capplan.serving.cache.prefix_cache import hit_curve
from capplan.workload.length import Lengths, empirical, fixed
from capplan.workload.sessions import (
    Sessions,
    Turns,
    block_tokens_for,
    drawn_turns,
    turn_blocks,
    turn_starts_s,
)
from capplan.workload.summary import PrefixReuse

MOST_TURNS = 1000
"""Mean turns of a session; with more, a draw of sessions no longer fits in memory."""
DRAWN_TURNS = 20_000
"""From which the lengths of prompts are taken."""
IN_FLIGHT = 32
"""Sessions in flight where the curve of hits is taken; with fewer, the session itself takes a visible part of the cache."""
SESSIONS_EACH = 8
"""Sessions that follow each other in the draw, so that most of it is in a steady state."""
CURVE_POINTS = 64
_SEED = 11


def _refuse_mixed(reading: Reading, item: Traffic, at: KeyPath) -> None:
    """Refuse keys of sessions that do not belong together."""
    if item.turns is None:
        if item.added_tokens is not None:
            raise reading.refuse((*at, "added_tokens"), "is what later turns add; give turns, e.g. turns: 8")
        return
    other = next((key for key in ("requests", "trace") if getattr(item, key) is not None), None)
    if other:
        raise reading.refuse(
            (*at, "turns"), f"is for request_rate or users, and {other} is given; leave one of them out"
        )
    for key, example in (("think_time", "5 s"), ("added_tokens", "{mean: 800, p95: 3000}")):
        if getattr(item, key) is None:
            raise reading.refuse((*at, "turns"), f"needs {key}, e.g. {key}: {example}")


def sessions_of(
    reading: Reading, item: Traffic, index: int, first: Lengths, outputs: Lengths
) -> Sessions | None:
    """Return the sessions of a line of traffic; None where it has no turns.

    Parameters
    ----------
    reading : of the file
    item : line of traffic
    index : [-]
        of the line
    first, outputs : [tokens]
        prompt of the first turn, response of every turn
    """
    at: KeyPath = ("traffic", index)
    _refuse_mixed(reading, item, at)
    prefix = item.shared_prefix
    if prefix and (prefix.hit_fraction is None) == (item.turns is None):
        key = (*at, "shared_prefix", "hit_fraction")
        why = "follows from the turns; leave it out" if item.turns else "is missing, e.g. hit_fraction: 85 %"
        raise reading.refuse(key, why)
    if item.turns is None or item.added_tokens is None or item.think_time is None:
        return None
    turns = lengths(item.turns, partial(reading.refuse, (*at, "turns")))
    if turns.mean_tokens > MOST_TURNS:
        raise reading.refuse((*at, "turns"), f"a mean of {turns.mean_tokens:g} is above {MOST_TURNS}")
    if turns.kind == "fixed" and turns.mean_tokens != round(turns.mean_tokens):
        raise reading.refuse((*at, "turns"), f"{turns.mean_tokens:g} is not a whole number; give min and max")
    added = lengths(item.added_tokens, partial(reading.refuse, (*at, "added_tokens")))
    shared = int(prefix.tokens) if prefix else 0
    reading.assume(
        f"{item.name}: think times between turns are exponential, sessions start as a Poisson process, and a session "
        "sends all that was said before again",
        f"traffic[{index}].turns",
    )
    return Sessions(turns, first, added, outputs, item.think_time, shared)


def with_one_turn(sessions: Sessions) -> bool:
    """Return whether every session is a single request with nothing in common with others."""
    return float(sessions.turns.quantile(1.0)) <= 1.0 and not sessions.shared_tokens


def session_lengths(sessions: Sessions) -> Lengths:
    """Return the prompts of all turns, as drawn [tokens]."""
    drawn = _drawn(sessions, max(int(DRAWN_TURNS / sessions.turns.mean_tokens), 1))
    inputs = drawn.input_tokens
    return fixed(float(inputs[0])) if inputs.min() == inputs.max() else empirical(inputs.astype(np.float64))


@lru_cache(maxsize=32)
def session_reuse(sessions: Sessions) -> PrefixReuse:
    """Return the hits of prompts in a least-recently-used cache, by its size, with IN_FLIGHT sessions in flight.

    The blocks of a response are used, but none of their tokens count: they hit as a part of the next prompt.
    """
    turns = _drawn(sessions, IN_FLIGHT * SESSIONS_EACH)
    mean = float(turns.input_tokens.mean())
    block_tokens = block_tokens_for(mean)
    blocks = turn_blocks(turns, sessions.shared_tokens, block_tokens)
    order = np.argsort(_one_after_the_other_s(turns), kind="stable")
    prompts = np.split(blocks.prompt_ids, np.cumsum(blocks.prompt_counts)[:-1])
    responses = np.split(blocks.output_ids, np.cumsum(blocks.output_counts)[:-1])
    curve = hit_curve(
        np.concatenate([ids for row in order.tolist() for ids in (prompts[row], responses[row])]),
        np.stack((blocks.prompt_counts, blocks.output_counts), axis=1)[order].ravel(),
        block_tokens=block_tokens,
        input_tokens=np.stack((turns.input_tokens, np.zeros_like(turns.input_tokens)), axis=1)[order].ravel(),
    )
    sizes = np.unique(np.geomspace(1, max(curve.distinct_blocks, 1), CURVE_POINTS).astype(np.int64))
    return replace(prefix_reuse(curve, sizes.tolist()), in_flight_tokens=IN_FLIGHT * mean)


def _drawn(sessions: Sessions, count: int) -> Turns:
    return drawn_turns(sessions, count, np.random.default_rng(_SEED))


def _one_after_the_other_s(turns: Turns) -> Array:
    """Return when the turns are sent if IN_FLIGHT sessions run at any time, with gaps of one second in the mean."""
    gaps = np.random.default_rng(_SEED).exponential(1.0, len(turns))
    lasts = np.bincount(turns.session, gaps).reshape(SESSIONS_EACH, IN_FLIGHT)
    starts = np.cumsum(lasts, axis=0) - lasts
    return turn_starts_s(turns, np.asarray(starts.ravel(), dtype=np.float64), gaps)
