"""Sessions of several turns: each prompt holds all that was said before it, so prefix reuse follows from the traffic, or is found in a trace."""

import math
from dataclasses import dataclass

import numpy as np

from capplan.numbers import Array, Counts
from capplan.workload.length import Lengths

SMALLEST_BLOCK_TOKENS = 16
BLOCKS_PER_PROMPT = 100
"""Blocks of a mean prompt of drawn sessions: rounding to whole blocks then hides about 1 % of the reuse."""
DRAWN_SESSIONS = 8192
"""Sessions of which single turns are drawn."""
WHOLE_QUANTILE = 0.999
"""Quantile of the turns of a session, after which a session that began before is taken to have ended."""
LEAST_GAP_S = 0.1
"""Shortest time from one turn to the next, where neither the response nor the user or tool takes any time."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations, or runs of an agent, that send their whole context again at every turn."""

    turns: Lengths
    """Requests of one session."""
    first_tokens: Lengths
    """Prompt of the first turn, with what all sessions share."""
    added_tokens: Lengths
    """What the user or the tools add before each later turn."""
    output_tokens: Lengths
    """Response of each turn; a part of the next prompt."""
    think_time_s: float
    """Mean time of the user or the tools from a response to the next turn."""
    shared_tokens: int = 0
    """Leading tokens that all sessions have in common."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of drawn sessions as columns of equal length, session after session."""

    session: Counts
    turn: Counts
    """Number of the turn in its session, from 0."""
    input_tokens: Counts
    output_tokens: Counts

    def __len__(self) -> int:
        """Return the number of turns."""
        return int(self.session.size)


def drawn_turns(
    sessions: Sessions, count: int, random: "np.random.Generator", longest: float = math.inf
) -> Turns:
    """Return the turns of random sessions.

    Parameters
    ----------
    sessions : what they are like
    count : [-]
        of sessions
    random : generator
    longest : [tokens]
        a session ends before the turn whose prompt and response would exceed it; its first turn is cut to it

    Examples
    --------
    >>> from capplan.workload.length import fixed
    >>> agent = Sessions(fixed(3), fixed(100), fixed(30), fixed(20), 5.0)
    >>> drawn_turns(agent, 1, np.random.default_rng(0)).input_tokens
    array([100, 150, 200])
    """
    # one session for each of equally likely parts of the distribution
    parts = (random.permutation(count) + random.random(count)) / count
    turns = np.maximum(np.rint(sessions.turns.quantile(parts)), 1.0).astype(np.int64)
    session = np.repeat(np.arange(count, dtype=np.int64), turns)
    first_row = np.cumsum(turns) - turns
    place = np.arange(session.size, dtype=np.int64) - first_row[session]
    outputs = sessions.output_tokens.sample(session.size, random)
    grown = sessions.added_tokens.sample(session.size, random)
    grown[1:] += outputs[:-1]
    grown[first_row] = np.maximum(sessions.first_tokens.sample(count, random), sessions.shared_tokens + 1)
    total = np.cumsum(grown)
    inputs = total - (total[first_row] - grown[first_row])[session]
    if longest < math.inf:
        inputs = np.where(place == 0, np.minimum(inputs, int(longest) - 2), inputs)
        outputs = np.where(place == 0, np.minimum(outputs, int(longest) - 1 - inputs), outputs)
        kept = inputs + outputs < longest
        session, place, inputs, outputs = session[kept], place[kept], inputs[kept], outputs[kept]
    return Turns(session, place, inputs, np.maximum(outputs, 1))


def held_in_turn(
    sessions: Sessions, users: int, turns: int, random: "np.random.Generator", longest: float = math.inf
) -> tuple[Turns, list[tuple[int, int]]]:
    """Return the turns of users who hold one session after another, and the rows of each user, who begins somewhere in a session.

    Parameters
    ----------
    sessions : what they are like
    users : [-]
    turns : [-]
        of each user
    random : generator
    longest : [tokens]
        a session ends before the turn whose prompt and response would exceed it

    Examples
    --------
    >>> from capplan.workload.length import fixed
    >>> agent = Sessions(fixed(3), fixed(100), fixed(30), fixed(20), 5.0)
    >>> held, rows = held_in_turn(agent, 2, 4, np.random.default_rng(0))
    >>> [held.turn[start:end].tolist() for start, end in rows]
    [[2, 0, 1, 2], [1, 2, 0, 1]]
    """
    before = random.integers(0, math.ceil(sessions.turns.quantile(WHOLE_QUANTILE)), users)
    each = turns + before
    count = math.ceil(float(each.sum()) / sessions.turns.mean_tokens) + users
    while True:
        drawn, rows, after = drawn_turns(sessions, count, random, longest), list[tuple[int, int]](), 0
        starts = np.append(np.flatnonzero(drawn.turn == 0), len(drawn))
        for skipped in before.tolist():
            begin = int(starts[min(int(np.searchsorted(starts, after)), starts.size - 1)])
            after = begin + skipped + turns
            rows.append((begin + skipped, after))
        if after <= len(drawn):
            return drawn, rows
        count *= 2


@dataclass(frozen=True, slots=True)
class SingleTurns:
    """Turns of different sessions, each at a random place in its session."""

    input_tokens: Counts
    output_tokens: Counts
    left_tokens: Counts
    """Prompt tokens that the turn before left in a prefix cache; for first turns what all sessions share."""
    shared_tokens: Counts
    """Prompt tokens that all sessions share."""


def single_turns(
    sessions: Sessions, count: int, random: "np.random.Generator", longest: float = math.inf
) -> SingleTurns:
    """Return random turns, out of a fixed number of drawn sessions: the first turns of a longer draw are those of a shorter one.

    A turn follows the response before it, so sessions go back and forth between a replica and those who think. With sessions that
    begin as a Poisson process, the turns at a replica that shares its speed among them are as many as if all turns were a Poisson process.

    Parameters
    ----------
    sessions : what they are like
    count : [-]
        of turns
    random : generator
    longest : [tokens]
        a session ends before the turn whose prompt and response would exceed it

    Examples
    --------
    >>> from capplan.workload.length import fixed
    >>> agent = Sessions(fixed(2), fixed(100), fixed(30), fixed(20), 5.0, shared_tokens=40)
    >>> turns = single_turns(agent, 50, np.random.default_rng(0))
    >>> sorted(set(zip(turns.input_tokens.tolist(), turns.left_tokens.tolist())))
    [(100, 40), (150, 120)]

    References
    ----------
    Baskett, Chandy, Muntz, Palacios 1975, "Open, closed, and mixed networks of queues with different classes of customers",
    doi:10.1145/321879.321887: networks of processor-sharing and delay stations have a product form.
    """
    drawn = drawn_turns(sessions, DRAWN_SESSIONS, random, longest)
    rows = random.integers(0, len(drawn), count)
    shared = np.minimum(sessions.shared_tokens, drawn.input_tokens - 1)
    context = np.roll(drawn.input_tokens + drawn.output_tokens, 1)
    left = np.where(drawn.turn == 0, shared, np.minimum(context, drawn.input_tokens - 1))
    return SingleTurns(drawn.input_tokens[rows], drawn.output_tokens[rows], left[rows], shared[rows])


def kept_context_probability(
    hit_fraction: float, left_tokens: Counts, shared_tokens: Counts
) -> tuple[float, float]:
    """Return how likely a turn finds the context of its session in a prefix cache, and else what all sessions share.

        p = (h L - S) / (L - S),   q = h L / S where h L < S

    A full cache drops whole sessions, those that waited longest; what all share goes last.

    Parameters
    ----------
    hit_fraction : [-]
        h, hits over those in an unlimited cache
    left_tokens : [tokens]
        of each prompt, what the turn before left; L is their sum
    shared_tokens : [tokens]
        of each prompt, what all sessions share; S is their sum

    Returns
    -------
    p, q [-]

    Examples
    --------
    >>> two = np.array([40, 120]), np.array([40, 40])
    >>> kept_context_probability(1.0, *two), kept_context_probability(0.25, *two)
    ((1.0, 1.0), (0.0, 0.5))
    """
    found, left, shared = hit_fraction * left_tokens.sum(), left_tokens.sum(), shared_tokens.sum()
    context = (found - shared) / (left - shared) if left > shared else 0.0
    return float(min(max(context, 0.0), 1.0)), float(min(found / shared, 1.0) if shared else 0.0)


def drawn_gaps_s(sessions: Sessions, count: int, response_s: float, random: "np.random.Generator") -> Array:
    """Return random times from one turn to the next: the mean response, and an exponential time of the user or the tools [s]."""
    return np.maximum(random.exponential(1.0, count) * sessions.think_time_s + response_s, LEAST_GAP_S)


def block_tokens_for(mean_tokens: float) -> int:
    """Return the tokens of one block in which prompts of a mean length are drawn: 16 times a power of two.

    Examples
    --------
    >>> block_tokens_for(900.0), block_tokens_for(30_000.0)
    (16, 256)
    """
    doublings = math.log2(max(mean_tokens / (BLOCKS_PER_PROMPT * SMALLEST_BLOCK_TOKENS), 1.0))
    return SMALLEST_BLOCK_TOKENS << int(doublings)


@dataclass(frozen=True, slots=True)
class TurnBlocks:
    """Ids of the whole blocks of prompts and responses, each concatenated over the turns, with the number of each turn."""

    prompt_ids: Counts
    prompt_counts: Counts
    output_ids: Counts
    output_counts: Counts


def turn_blocks(turns: Turns, shared_tokens: int, block_tokens: int, first_id: int = 0) -> TurnBlocks:
    """Return the ids of the blocks of turns: those of a session continue, and all sessions share their first ones.

    Parameters
    ----------
    turns : of drawn sessions, in any order
    shared_tokens : [tokens]
        that the prompts of all sessions start with
    block_tokens : [tokens]
        of one block
    first_id : [-]
        ids of these turns start here

    Examples
    --------
    Two turns of one session, of 32 and 64 tokens, the first with a response of 20, in blocks of 16:

    >>> turns = Turns(np.array([0, 0]), np.array([0, 1]), np.array([32, 64]), np.array([20, 16]))
    >>> blocks = turn_blocks(turns, 0, 16)
    >>> blocks.prompt_ids, blocks.output_ids
    (array([0, 1, 0, 1, 2, 3]), array([2, 4]))
    """
    prompts = turns.input_tokens // block_tokens
    ends = (turns.input_tokens + turns.output_tokens) // block_tokens
    shared = shared_tokens // block_tokens
    most = np.zeros(int(turns.session.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(most, turns.session, ends)
    base = (first_id + shared + np.cumsum(most) - most)[turns.session]

    def ids(start: Counts, counts: Counts) -> Counts:
        place = (
            np.arange(int(counts.sum()))
            - np.repeat(np.cumsum(counts) - counts, counts)
            + np.repeat(start, counts)
        )
        return np.where(place < shared, first_id + place, np.repeat(base, counts) + place)

    return TurnBlocks(
        ids(np.zeros_like(prompts), prompts), prompts, ids(prompts, ends - prompts), ends - prompts
    )


def turn_starts_s(turns: Turns, session_start_s: Array, gap_s: Array) -> Array:
    """Return when each turn is sent: at the start of its session, and a gap after the turn before it [s].

    Parameters
    ----------
    turns : session after session
    session_start_s : [s]
        of every session
    gap_s : [s]
        before each turn; that of a first turn is not used

    Examples
    --------
    >>> turns = Turns(np.array([0, 0, 1]), np.array([0, 1, 0]), np.ones(3, int), np.ones(3, int))
    >>> turn_starts_s(turns, np.array([1.0, 5.0]), np.array([9.0, 2.0, 9.0]))
    array([1., 3., 5.])
    """
    gaps = np.where(turns.turn == 0, 0.0, gap_s)
    total = np.cumsum(gaps)
    firsts = np.flatnonzero(turns.turn == 0)
    return np.asarray(
        session_start_s[turns.session] + total - np.repeat(total[firsts], np.diff([*firsts, len(turns)]))
    )


LARGEST_BLOCK_TOKENS = 64
"""Tokens of the largest block; the last whole block of a prompt in larger ones does not identify the next turn well enough (an assumption)."""


def output_blocks(
    block_ids: Counts,
    block_counts: Counts,
    input_tokens: Counts,
    output_tokens: Counts,
    block_tokens: int,
) -> tuple[Counts, Counts]:
    """Return the blocks completed by each output, under the ids that the prompt of the next turn gives them.

    A request is the next turn of an earlier one if its prompt starts with all whole blocks of that prompt, the last of
    which first occurred there or in a turn before it, and is long enough to contain that output too.

    Parameters
    ----------
    block_ids : [-]
        of all prompts, concatenated in order of arrival; equal ids stand for equal prefixes.
    block_counts : [blocks]
        of each prompt.
    input_tokens, output_tokens, block_tokens : [tokens]
        of each request, and of one block.

    Returns
    -------
    ids of all outputs, concatenated, and the number of blocks of each [blocks]

    Examples
    --------
    A prompt of two blocks, an output of two more, and the next turn, of five blocks:

    >>> ids, counts = np.array([1, 2, 1, 2, 3, 4, 5]), np.array([2, 5])
    >>> output_blocks(ids, counts, np.array([32, 80]), np.array([32, 8]), 16)
    (array([3, 4]), array([2, 0]))

    References
    ----------
    Alibaba, qwen-bailian-usagetraces-anon: prompts of later turns contain the earlier ones with their outputs,
    https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
    """
    ends = np.cumsum(block_counts)
    ids = block_ids.tolist()
    outputs: list[list[int]] = [[] for _ in range(block_counts.size)]
    seen: set[int] = set()
    last: dict[int, int] = {}
    columns = (ends - block_counts, ends, input_tokens, output_tokens)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    ready: list[tuple[int, int]] = []
    for row, (start, end, prompt, output) in enumerate(rows):
        prompt_ids = ids[start:end][: prompt // block_tokens]
        ready.append((len(prompt_ids), prompt + output))
        before = _previous_turn(prompt_ids, last, ready)
        goes_on = False
        if before is not None:
            first, said = ready[before]
            whole, goes_on = said // block_tokens, first == len(prompt_ids) and said <= prompt
            if whole <= len(prompt_ids) and not outputs[before]:
                outputs[before] = prompt_ids[first:whole]
        if prompt_ids and (goes_on or prompt_ids[-1] not in seen):
            last[prompt_ids[-1]] = row
        seen.update(prompt_ids)
    counts = np.array([len(output_ids) for output_ids in outputs], dtype=np.int64)
    return np.array([block for output_ids in outputs for block in output_ids], dtype=np.int64), counts


def _previous_turn(prompt_ids: list[int], last: dict[int, int], ready: list[tuple[int, int]]) -> int | None:
    """Return the row of the longest earlier prompt that this one starts with; None for a first turn.

    `ready` has the whole blocks of each prompt, and its tokens with those of its output.
    """
    for place in range(len(prompt_ids) - 1, -1, -1):
        before = last.get(prompt_ids[place])
        if before is not None and ready[before][0] == place + 1:
            return before
    return None
