"""Hit rate of a prefix cache that evicts by another rule than least recently used, run block by block."""

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


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
