"""Exact hit rates of a prefix cache: at every size from one pass over a trace (least recently used), and under other rules of eviction."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from capplan.errors import InputError
from capplan.numbers import Array, Counts, Number
from capplan.serving.flat_trees import counts_of_greater

NEVER = np.iinfo(np.int64).max
"""Stack distance of the first touch of a block."""


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Hit fraction as a function of the cache size in blocks."""

    block_tokens: int
    distances: Counts
    """Reuse distances of the blocks that can hit, ascending: a block hits in a cache of more blocks than its distance."""
    hit_tokens: Array
    """Prompt tokens that hit, cumulative over the distances."""
    hit_blocks: Array
    prompt_tokens: float
    prompt_blocks: float

    def hit_fraction(self, blocks: Number) -> Array:
        """Return the fraction of prompt tokens that hit in a cache of this many blocks.

        Examples
        --------
        The same prompt of two blocks twice: half of all tokens hit, if the cache holds both blocks.

        >>> curve = hit_curve(np.array([7, 8, 7, 8]), np.array([2, 2]), block_tokens=16)
        >>> curve.hit_fraction(np.array([1.0, 2.0]))
        array([0. , 0.5])
        """
        return self._at(blocks, self.hit_tokens) / self.prompt_tokens

    def block_hit_fraction(self, blocks: Number) -> Array:
        """Return the fraction of prompt blocks that hit in a cache of this many blocks; a partial last block counts as one."""
        return self._at(blocks, self.hit_blocks) / self.prompt_blocks

    @property
    def distinct_blocks(self) -> int:
        """Return the smallest cache size, in blocks, with the most hits."""
        return int(self.distances[-1]) + 1 if self.distances.size else 0

    def _at(self, blocks: Number, cumulative: Array) -> Array:
        place = np.searchsorted(self.distances, np.floor(np.minimum(blocks, 1e18)), side="left")
        result: Array = np.concatenate(([0.0], cumulative))[place]
        return result


def earlier_greater(values: Counts) -> Counts:
    """Return for each value how many earlier values are greater.

    A tree over the values has the number of those so far in ranges of powers of two, so each count takes about log2 n steps.

    Parameters
    ----------
    values : [-]
        whole numbers; the tree is as long as their range.

    Returns
    -------
    [-]
        counts, one per value.

    Examples
    --------
    >>> earlier_greater(np.array([3, 1, 2, 5, 0]))
    array([0, 1, 1, 0, 4])

    References
    ----------
    Fenwick 1994, "A new data structure for cumulative frequency tables", doi:10.1002/spe.4380240306.
    """
    ranks = np.asarray(values, dtype=np.int64) - min(values.min(initial=0), 0)
    counts = counts_of_greater(array("q", ranks.tobytes()), int(ranks.max(initial=0)) + 1)
    return np.frombuffer(counts, dtype=np.int64)


def stack_distances(block_ids: Counts) -> Counts:
    """Return for each touch of a block how many other blocks were touched since its previous touch.

        d_i = (i - p_i - 1) - #{j < i : p_j > p_i},   p_i the last touch of the same block before i

    The second term removes repeated touches of a block since p_i.

    Parameters
    ----------
    block_ids : [-]
        in the order in which they are touched.

    Returns
    -------
    [blocks]
        d, NEVER for the first touch of a block.

    Examples
    --------
    >>> stack_distances(np.array([1, 2, 3, 2, 2, 1]))[3:]
    array([1, 0, 2])

    References
    ----------
    Mattson, Gecsei, Slutz, Traiger 1970, "Evaluation techniques for storage hierarchies", doi:10.1147/sj.92.0078;
    the count as inversions: Bennett, Kruskal 1975, "LRU stack processing", doi:10.1147/rd.194.0353.
    """
    touches = np.arange(block_ids.size, dtype=np.int64)
    order = np.argsort(block_ids, kind="stable")
    previous = np.full(block_ids.size, -1, dtype=np.int64)
    same = block_ids[order][1:] == block_ids[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    distance = touches - previous - 1 - earlier_greater(previous)
    return np.where(previous >= 0, distance, NEVER)


def hit_curve(
    block_ids: Counts, block_counts: Counts, *, block_tokens: int, input_tokens: Counts | None = None
) -> HitCurve:
    """Return the hit fraction of a trace for every size of a least-recently-used cache.

    Parameters
    ----------
    block_ids : [-]
        of all prompts, concatenated; equal ids stand for equal prefixes up to and including the block.
    block_counts : [blocks]
        of each prompt.
    block_tokens : [tokens]
        of one block.
    input_tokens : [tokens]
        of each prompt, so that a partial last block counts with its tokens; None: all blocks are full.

    Examples
    --------
    The second prompt of 32 tokens finds the first block of the first one, the third finds both if two blocks are kept:

    >>> curve = hit_curve(np.array([1, 2, 1, 3, 1, 3]), np.array([2, 2, 2]), block_tokens=16)
    >>> curve.hit_fraction(np.array([1.0, 2.0, 3.0])).tolist()
    [0.0, 0.5, 0.5]

    Raises
    ------
    InputError
        the columns do not match
    """
    total = int(block_counts.sum())
    if total != block_ids.size:
        raise InputError(f"block_counts add up to {total}, but there are {block_ids.size} block ids")
    if total == 0:
        raise InputError("the trace has no block ids, so its prefix reuse is unknown")
    starts = np.cumsum(block_counts) - block_counts
    request = np.repeat(np.arange(block_counts.size), block_counts)
    place = np.arange(total) - starts[request]
    whole = block_counts * block_tokens if input_tokens is None else input_tokens
    tokens = np.clip(whole[request] - place * block_tokens, 0, block_tokens)
    needed = _running_max(stack_distances(block_ids), starts, block_counts)
    hits = needed != NEVER
    order = np.argsort(needed[hits], kind="stable")
    return HitCurve(
        block_tokens=block_tokens,
        distances=needed[hits][order],
        hit_tokens=np.cumsum(tokens[hits][order], dtype=np.float64),
        hit_blocks=np.arange(1.0, int(hits.sum()) + 1.0),
        prompt_tokens=float(whole.sum()),
        prompt_blocks=float(total),
    )


def _running_max(values: Counts, starts: Counts, counts: Counts) -> Counts:
    """Return the largest value so far within each group."""
    result = values.copy()
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        np.maximum.accumulate(result[start : start + count], out=result[start : start + count])
    return result


class EvictingCache:
    """A cache of prefix blocks with a rule for eviction; a heap orders the blocks, stale entries are skipped."""

    def __init__(self, blocks: int, policy: str) -> None:
        """Start empty.

        Parameters
        ----------
        blocks : [blocks]
            that fit
        policy : lru evicts the block touched longest ago; lfu the one touched least often while it was cached, the oldest of a tie;
            prefix the one touched longest ago of those that no cached block continues, as a radix tree does
        """
        self.blocks, self.policy = blocks, policy
        self._touched: dict[int, int] = {}
        self._uses: Counter[int] = Counter()
        self._parent: dict[int, int | None] = {}
        self._children: Counter[int] = Counter()
        self._heap: list[tuple[int, int, int]] = []
        self._now = 0

    def leading_hits(self, prompt: Iterable[int]) -> int:
        """Touch the blocks of a prompt in order; return how many of the first ones were cached."""
        hits, leading, parent = 0, True, None
        for block in prompt:
            held = block in self._touched
            leading = leading and held
            hits += leading
            if not held:
                self._insert(block, parent)
            self._touch(block)
            parent = block
        return hits

    def _insert(self, block: int, parent: int | None) -> None:
        if len(self._touched) >= self.blocks:
            self._evict()
        self._uses[block] = 0
        self._parent[block] = parent
        if parent is not None:
            self._children[parent] += 1

    def _touch(self, block: int) -> None:
        self._now += 1
        self._touched[block] = self._now
        self._uses[block] += 1
        self._offer(block)

    def _offer(self, block: int) -> None:
        """Put a block on the heap with its rank: the lowest is evicted first."""
        first = self._uses[block] if self.policy == "lfu" else 0
        heappush(self._heap, (first, self._touched[block], block))

    def _evict(self) -> None:
        while True:
            uses, touched, block = heappop(self._heap)
            stale = self._touched.get(block) != touched or (
                self.policy == "lfu" and self._uses[block] != uses
            )
            if stale or (self.policy == "prefix" and self._children[block]):
                continue
            del self._touched[block]
            parent = self._parent.pop(block)
            if parent is not None:
                self._children[parent] -= 1
                if not self._children[parent] and parent in self._touched:
                    self._offer(parent)
            return


def policy_hit_fractions(
    block_ids: Counts,
    block_counts: Counts,
    sizes: Sequence[int],
    policy: str,
    *,
    block_tokens: int,
    input_tokens: Counts | None = None,
) -> list[float]:
    """Return the fraction of prompt tokens that hit in caches of several sizes.

    Parameters
    ----------
    block_ids : [-]
        of all prompts, concatenated; equal ids stand for equal prefixes up to and including the block
    block_counts : [blocks]
        of each prompt
    sizes : [blocks]
        of the caches, at least one
    policy : what is evicted
    block_tokens : [tokens]
        of one block
    input_tokens : [tokens]
        of each prompt; None: all blocks are full

    Returns
    -------
    [-]
        one fraction for each size

    Examples
    --------
    Three prompts of two blocks share the first one, and a cache of two blocks keeps it for the second and the third:

    >>> ids, counts = np.array([1, 2, 1, 3, 1, 4]), np.array([2, 2, 2])
    >>> policy_hit_fractions(ids, counts, [2], "prefix", block_tokens=16)
    [0.3333333333333333]
    """
    whole = block_counts * block_tokens if input_tokens is None else input_tokens
    prompts = [part.tolist() for part in np.split(block_ids, np.cumsum(block_counts)[:-1])]
    total = float(whole.sum())
    fractions = []
    for size in sizes:
        cache = EvictingCache(size, policy)
        hits = np.array([cache.leading_hits(prompt) for prompt in prompts])
        fractions.append(float(np.minimum(hits * block_tokens, whole).sum()) / total)
    return fractions
