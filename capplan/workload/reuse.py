"""What prompts repeat of earlier ones, by age, by size of the cache and by replica."""

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from capplan.numbers import Array, Counts, Number
from capplan.workload.sessions import Sessions, drawn_gaps_s, drawn_turns, turn_starts_s

DRAWN_SESSIONS = 4000
"""Sessions that are drawn, from which the reuse of all sessions is taken."""


@dataclass(frozen=True, slots=True)
class ReuseByAge:
    """Prompt blocks that were sent before, by their age."""

    ages_s: Array
    """Age of every leading block that was sent before, ascending: the longest time since the last use of it or of one before it."""
    blocks: int
    """Blocks of all prompts."""
    request_rate: float
    """Request rate of the trace [req/s]."""

    def hit_fraction(self, time_to_live_s: float, request_rate: float) -> float:
        """Return the hit fraction, in blocks, of a cache that keeps each block for this time after its last use.

        At x times the rate of the trace every gap is x times as short, so a block that is T old there is T / x old here.

        Parameters
        ----------
        time_to_live_s : [s]
        request_rate : [req/s]

        Examples
        --------
        >>> reuse = ReuseByAge(np.array([1.0, 5.0, 9.0]), 6, 1.0)
        >>> reuse.hit_fraction(5.0, 1.0), reuse.hit_fraction(5.0, 2.0)
        (0.3333333333333333, 0.5)
        """
        alive_s = time_to_live_s * request_rate / self.request_rate
        return float(np.searchsorted(self.ages_s, alive_s, side="right")) / max(self.blocks, 1)


@dataclass(frozen=True, slots=True)
class RepeatedBlocks:
    """What the prompts of a trace repeat, prompt by prompt."""

    ages_s: Array
    """Age of every leading block that was sent before, prompt by prompt: the longest time since the last use of it or of one before it."""
    repeated: Counts
    """Leading blocks of each prompt that were sent before."""
    blocks: Counts
    """Blocks of each prompt."""
    request_rate: float
    """Request rate of the trace [req/s]."""
    block_tokens: int = 1

    def kept_from(self, shortest_tokens: float) -> ReuseByAge:
        """Return what of that a cache finds that keeps no shorter prefixes, of the prompts that it keeps.

        A hit that is shorter than the shortest prefix counts as a miss.

        Parameters
        ----------
        shortest_tokens : [tokens]

        Examples
        --------
        Three blocks that were sent 1, 2 and 5 s ago, in a prompt of four, next to a prompt of one block that was sent before:

        >>> trace = RepeatedBlocks(np.array([1.0, 2.0, 5.0, 3.0]), np.array([3, 1]), np.array([4, 1]), 1.0, 16)
        >>> trace.kept_from(32.0).ages_s.tolist(), trace.kept_from(32.0).blocks, trace.kept_from(0.0).blocks
        ([2.0, 2.0, 5.0], 4, 5)
        """
        least = max(math.ceil(shortest_tokens / self.block_tokens), 1)
        enough = np.repeat(self.repeated >= least, self.repeated)
        starts = np.cumsum(self.repeated) - self.repeated
        place = np.arange(self.ages_s.size) - np.repeat(starts, self.repeated)
        all_of_them = np.minimum(np.repeat(starts, self.repeated) + least, self.ages_s.size) - 1
        ages = np.where(place < least, self.ages_s[all_of_them], self.ages_s)[enough]
        return ReuseByAge(np.sort(ages), int(self.blocks[self.blocks >= least].sum()), self.request_rate)


@dataclass(frozen=True, slots=True)
class SessionReuse:
    """What the prompts of sessions repeat, turn by turn; more traffic means more sessions, not quicker ones."""

    begun: Array
    """Where in the time of all turns the session of each turn begins, from 0 to 1."""
    since_s: Array
    """Time since the first turn of its session."""
    gap_s: Array
    """Time since the turn before of the same session; infinite for a first turn."""
    shared_tokens: Array
    """Prompt tokens that all sessions have in common."""
    repeated_tokens: Array
    """Prompt tokens that the turn before has too, without the shared ones."""
    input_tokens: Array
    """Tokens of the prompts that are long enough to be cached."""

    def kept_from(self, shortest_tokens: float) -> "SessionReuse":
        """Return what of that a cache finds that keeps no shorter prefixes, of the prompts that it keeps.

        Parameters
        ----------
        shortest_tokens : [tokens]

        Examples
        --------
        Of 10 shared tokens and 25 of the turn before, a cache that keeps prefixes from 20 tokens on finds 25 or nothing:

        >>> ages = np.array([0.0]), np.array([60.0]), np.array([60.0])
        >>> reuse = SessionReuse(*ages, np.array([10.0]), np.array([15.0]), np.array([50.0]))
        >>> [round(50 * reuse.kept_from(20.0).hit_fraction(alive_s, 1.0)) for alive_s in (5.0, 90.0)]
        [0, 25]
        """
        before = self.shared_tokens + self.repeated_tokens
        shared = np.where(self.shared_tokens >= shortest_tokens, self.shared_tokens, 0.0)
        repeated = np.where(before >= shortest_tokens, before - shared, 0.0)
        long = self.input_tokens[self.input_tokens >= shortest_tokens]
        return replace(self, shared_tokens=shared, repeated_tokens=repeated, input_tokens=long)

    def hit_fraction(self, time_to_live_s: float, request_rate: float) -> float:
        """Return the share of the prompt tokens that a cache finds that keeps a prompt for this time after its last use.

        Time is a circle, so that the turns come at the rate at all times. With less traffic sessions begin further apart, and the turns of
        each stay as near each other as they are.

        Parameters
        ----------
        time_to_live_s : [s]
        request_rate : [req/s]
            turns of all sessions

        Examples
        --------
        A first turn 4 s after one of another session, and a second one 60 s after it; each shares 10 tokens, of 20 and 50:

        >>> ages = np.array([0.0, 0.5]), np.array([0.0, 0.0]), np.array([math.inf, 60.0])
        >>> reuse = SessionReuse(*ages, np.array([10.0, 10.0]), np.array([0.0, 10.0]), np.array([20.0, 50.0]))
        >>> [round(70 * reuse.hit_fraction(alive_s, 0.25)) for alive_s in (3.0, 5.0, 90.0)]
        [0, 20, 30]
        """
        seconds = self.begun.size / request_rate
        sent_s = (self.begun * seconds + self.since_s) % seconds
        order = np.argsort(sent_s, kind="stable")
        idle_s = np.empty(order.size)
        idle_s[order] = np.diff(sent_s[order], prepend=sent_s[order[-1]] - seconds)
        found = self.shared_tokens[np.minimum(idle_s, self.gap_s) <= time_to_live_s].sum()
        found += self.repeated_tokens[self.gap_s <= time_to_live_s].sum()
        return float(found) / max(float(self.input_tokens.sum()), 1.0)


Reuse: TypeAlias = ReuseByAge | SessionReuse
"""What a cache finds again, by how long it keeps a prompt."""
Repeated: TypeAlias = RepeatedBlocks | SessionReuse
"""What prompts repeat, whatever the shortest prefix that a cache keeps."""


def session_reuse_by_age(
    sessions: Sessions,
    response_s: float,
    longest: int,
    random: "np.random.Generator",
    count: int = DRAWN_SESSIONS,
) -> SessionReuse:
    """Return what the prompts of random sessions repeat, and how long ago it was sent.

    A response is sent again as a part of the next prompt, which is the first time that a cache of prompts sees it.

    Parameters
    ----------
    sessions : what they are like
    response_s : [s]
        mean, before the user or the tools begin
    longest : [tokens]
        sessions end before a turn that exceeds it
    random : generator
    count : [-]
        of sessions that are drawn
    """
    turns = drawn_turns(sessions, count, random, longest)
    gaps = drawn_gaps_s(sessions, len(turns), response_s, random)
    first = turns.turn == 0
    shared = np.minimum(sessions.shared_tokens, turns.input_tokens - 1)
    before = np.where(first, 0, np.roll(turns.input_tokens, 1))
    return SessionReuse(
        random.random(count)[turns.session],
        turn_starts_s(turns, np.zeros(count), gaps),
        np.where(first, math.inf, gaps),
        shared.astype(np.float64),
        np.maximum(before - shared, 0).astype(np.float64),
        turns.input_tokens.astype(np.float64),
    )


def reuse_by_age(
    block_ids: Counts, block_counts: Counts, arrival_s: Array, block_tokens: int = 1
) -> RepeatedBlocks:
    """Return the ages of the leading blocks of all prompts at their next use.

    A prompt finds its leading blocks up to the first one that is gone, and uses all of its blocks, found or not.

    Parameters
    ----------
    block_ids : [-]
        of all prompts, concatenated in order of arrival; equal ids stand for equal prefixes
    block_counts : [blocks]
        of each prompt
    arrival_s : [s]
        of each request, ascending
    block_tokens : [tokens]
        of a block

    Examples
    --------
    Two blocks, and 7 s later the same two and a new one:

    >>> reuse_by_age(np.array([1, 2, 1, 2, 3]), np.array([2, 3]), np.array([0.0, 7.0])).ages_s
    array([7., 7.])
    """
    last: dict[int, float] = {}
    ages: list[float] = []
    repeated = np.zeros(block_counts.size, dtype=np.int64)
    ids, start = block_ids.tolist(), 0
    for row, (count, now) in enumerate(zip(block_counts.tolist(), arrival_s.tolist(), strict=True)):
        longest, leading, before = 0.0, True, len(ages)
        for block in ids[start : start + count]:
            if leading:
                longest = max(longest, now - last.get(block, -math.inf))
                leading = longest < math.inf
                if leading:
                    ages.append(longest)
            last[block] = now
        repeated[row] = len(ages) - before
        start += count
    rate = arrival_s.size / max(float(arrival_s[-1] - arrival_s[0]), 1e-9)
    return RepeatedBlocks(np.array(ages), repeated, block_counts, rate, block_tokens)


def hits_by_replica(sessions: Sessions, replicas: int, longest: int) -> float:
    """Return the share of the prompt tokens that an unlimited cache of each replica finds if turns are spread over them at random.

        f = sum_k (s + sum_(j<k) (1/n) (1 - 1/n)^(k-1-j) (i_j - s)) / sum_k i_k

    A turn k goes to any of n replicas alike; the last turn j that went to the same one left its prompt i_j there.

    Parameters
    ----------
    sessions : what they are like; s of their tokens are common to all
    replicas : [-]
        n; with one, every turn finds the one before it
    longest : [tokens]
        sessions end before a turn that exceeds it

    Examples
    --------
    Prompts of 100, 150 and 200 tokens: one replica finds 100 + 150 of 450, two find 50 + 100.

    >>> from capplan.workload.length import fixed
    >>> agent = Sessions(fixed(3), fixed(100), fixed(30), fixed(20), 5.0)
    >>> [round(450 * hits_by_replica(agent, n, 4096)) for n in (1, 2)]
    [250, 150]

    References
    ----------
    The geometric distribution: Ross 2014, "Introduction to Probability Models", section 2.2.3.
    """
    turns = drawn_turns(sessions, DRAWN_SESSIONS, np.random.default_rng(0), longest)
    missed = 1.0 - 1.0 / replicas
    own = np.maximum(turns.input_tokens - sessions.shared_tokens, 0).tolist()
    found = kept = 0.0
    for place, tokens in zip(turns.turn.tolist(), own, strict=True):
        kept = kept if place else 0.0
        found += kept
        kept = tokens / replicas + missed * kept
    shared = float(np.minimum(sessions.shared_tokens, turns.input_tokens - 1).sum())
    return (found + shared) / float(turns.input_tokens.sum())


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Prefix-cache hits in a trace, by the size of a least-recently-used cache."""

    block_tokens: int
    unlimited_hit_fraction: float
    """Fraction of prompt blocks that hit an unlimited cache."""
    unlimited_token_hit_fraction: float
    curve: tuple[tuple[int, float], ...]
    """(blocks of the cache, fraction of prompt tokens that hit)."""

    def hit_fraction(self, cache_tokens: Number) -> Array:
        """Return the fraction of prompt tokens that hit a cache of this many tokens, linear between the points.

        Examples
        --------
        >>> float(PrefixReuse(16, 0.5, 0.5, ((10, 0.2), (20, 0.4))).hit_fraction(16 * 15.0).round(9))
        0.3
        """
        blocks = np.array([0.0, *(float(size) for size, _ in self.curve)])
        shares = np.array([0.0, *(share for _, share in self.curve)])
        return np.asarray(np.interp(np.asarray(cache_tokens) / self.block_tokens, blocks, shares))
