"""Prefix cache of an engine, block by block: shared while in use, kept while there is room, offloaded, forgotten.

Blocks of running requests are pinned and counted once however many share them. When the last user is gone they stay,
the least recently used ones going first, and the tail of a prompt before its head. What goes falls into the offload
tiers, one after the other, and is forgotten after the last. What is found in a tier comes back over its link, one
prompt after the other, while other prompts are worked on.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from capplan.errors import InputError


@dataclass(frozen=True, slots=True)
class OffloadTier:
    """Memory behind that of the device: host, NVMe, remote."""

    capacity_blocks: int
    """Blocks of the block ids that it holds."""
    load_s_per_block: float
    """To bring one of them back; bytes of the block over the bandwidth of the link."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class PrefixCaching:
    """How an engine caches prefixes of prompts whose blocks have ids."""

    id_tokens: int
    """Tokens that one id stands for; a multiple of the blocks of the engine."""
    tiers: tuple[OffloadTier, ...] = ()
    """From the fastest to the slowest; each holds what has fallen out of the one before."""


class BlockCache:
    """Which blocks are where; knows ids only, not tokens."""

    __slots__ = ("_absent", "_free", "_link_free_s", "_loading", "_tiers", "_users", "found_blocks", "tiers")

    def __init__(self, tiers: Sequence[OffloadTier] = ()) -> None:
        """Start empty."""
        self._users: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict()
        self.tiers = tuple(tiers)
        self._tiers: list[OrderedDict[int, None]] = [OrderedDict() for _ in tiers]
        self._link_free_s = [0.0] * len(self.tiers)
        self._loading: dict[int, float] = {}
        """Blocks in use that are on their way from a tier, and when they are there."""
        self._absent: set[int] = set()
        """Blocks in use that nobody has worked on yet: their prompt still loads what comes before them."""
        self.found_blocks = [0] * (1 + len(self.tiers))
        """Found by the prompts that were admitted: in the device, then in each tier."""

    def match(self, ids: Sequence[int], now_s: float = 0.0) -> tuple[int, float]:
        """Return how many leading blocks are found, and when all of them will be in the device if they are used now.

        The link of a tier brings one prompt after the other, so what was asked for before comes first.

        Examples
        --------
        >>> cache = BlockCache()
        >>> cache.pin([1, 2, 3])
        3
        >>> cache.match([1, 2, 9], now_s=5.0)
        (2, 5.0)
        """
        found, ready_s = 0, now_s
        counts = [0] * len(self.tiers)
        for block in ids:
            if block in self._users:
                if self._absent and block in self._absent:
                    break
                if self._loading:
                    ready_s = max(ready_s, self._loading.get(block, now_s))
            elif block not in self._free:
                tier = self._tier_of(block)
                if tier < 0:
                    break
                counts[tier] += 1
            found += 1
        for tier, count in enumerate(counts):
            if count:
                ready_s = max(ready_s, self._arrival_s(tier, count, now_s))
        return found, ready_s

    def to_pin(self, ids: Sequence[int]) -> int:
        """Return how many of these blocks are not in use yet."""
        users = self._users
        return sum(block not in users for block in ids)

    def pin(self, ids: Sequence[int], found: int = 0, now_s: float = 0.0) -> int:
        """Use these blocks, the first few of which were found; return how many of them were not in use."""
        if self.tiers:
            self._load(ids[:found], now_s)
        elif found:
            self.found_blocks[0] += found
        users = self._users
        more = 0
        for block in ids:
            count = users.get(block, 0)
            users[block] = count + 1
            if count:
                continue
            more += 1
            if block in self._free:
                del self._free[block]
            elif self._tiers:
                tier = self._tier_of(block)
                if tier >= 0:
                    del self._tiers[tier][block]
        return more

    def wait_for(self, ids: Sequence[int]) -> None:
        """Let nobody find these blocks: their prompt cannot be worked on before the blocks ahead of them are loaded."""
        self._absent.update(block for block in ids if self._users[block] == 1)

    def work_on(self, ids: Sequence[int], now_s: float) -> None:
        """Let everybody find these blocks, for the prompt is worked on in the step that begins now."""
        self._absent.difference_update(ids)
        for block in ids:
            if self._loading.get(block, inf) <= now_s:
                del self._loading[block]

    def unpin(self, ids: Sequence[int], worked_on: int | None = None) -> int:
        """Use these blocks no longer; return how many have no user left. They are kept, the tail going first.

        Where a prompt is given up before its end, only the leading blocks that were worked on or loaded are kept.
        """
        users = self._users
        fewer = 0
        last = len(ids) if worked_on is None else worked_on
        for place in range(len(ids) - 1, -1, -1):
            block = ids[place]
            count = users[block] - 1
            if count:
                users[block] = count
                if place >= last:
                    self._absent.add(block)
                continue
            del users[block]
            fewer += 1
            if self._loading:
                self._loading.pop(block, None)
            if place < last:
                self._free[block] = None
            self._absent.discard(block)
        return fewer

    def keep(self, ids: Sequence[int]) -> None:
        """Keep blocks that have been worked on outside any prompt, as those of an answer, the tail going first."""
        for block in reversed(ids):
            if block in self._users:
                continue
            tier = self._tier_of(block)
            if tier >= 0:
                del self._tiers[tier][block]
            self._free[block] = None
            self._free.move_to_end(block)

    def trim(self, room: int) -> None:
        """Let go of the least recently used blocks beyond the room there is."""
        free = self._free
        while len(free) > room:
            self._offload(free.popitem(last=False)[0])

    def _load(self, ids: Sequence[int], now_s: float) -> None:
        """Begin to bring what is in a tier back."""
        wanted: list[list[int]] = [[] for _ in self.tiers]
        for block in ids:
            tier = -1 if block in self._users or block in self._free else self._tier_of(block)
            self.found_blocks[tier + 1] += 1
            if tier >= 0:
                wanted[tier].append(block)
        for tier, blocks in enumerate(wanted):
            if blocks:
                at_s = self._link_free_s[tier] = self._arrival_s(tier, len(blocks), now_s)
                if at_s > now_s:
                    self._loading.update(dict.fromkeys(blocks, at_s))

    def _arrival_s(self, tier: int, blocks: int, now_s: float) -> float:
        return max(self._link_free_s[tier], now_s) + blocks * self.tiers[tier].load_s_per_block

    def _tier_of(self, block: int) -> int:
        for place, tier in enumerate(self._tiers):
            if block in tier:
                return place
        return -1

    def _offload(self, block: int) -> None:
        for held, tier in zip(self._tiers, self.tiers, strict=True):
            if tier.capacity_blocks < 1:
                continue
            held[block] = None
            if len(held) <= tier.capacity_blocks:
                return
            block = held.popitem(last=False)[0]


def check_prefix_caching(caching: PrefixCaching, block_tokens: int) -> None:
    """Refuse blocks of a trace that are not made of whole blocks of the engine.

    Raises
    ------
    InputError
        names the sizes
    """
    if caching.id_tokens < 1 or caching.id_tokens % block_tokens:
        raise InputError(
            f"a block id of the trace stands for {caching.id_tokens} tokens, which is not a multiple of the engine's "
            f"block of {block_tokens}\n  set block_tokens to a divisor of {caching.id_tokens}"
        )
    for tier in caching.tiers:
        if tier.capacity_blocks < 0 or not tier.load_s_per_block >= 0.0:
            raise InputError(
                f"an offload tier must hold at least 0 blocks and load in at least 0 s, but is {tier}"
            )
