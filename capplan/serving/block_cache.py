"""Prefix cache of an engine, block by block: shared while in use, kept while there is room, offloaded, forgotten.

Blocks of running requests are pinned and counted once however many share them. When the last user is gone they stay,
the least recently used ones going first, and the tail of a prompt before its head. What goes falls into the offload
tiers, one after the other, and is forgotten after the last.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from capplan.errors import InputError


@dataclass(frozen=True, slots=True)
class OffloadTier:
    """Memory behind that of the device: host, NVMe, remote."""

    capacity_blocks: int
    """Blocks of the block ids that it holds."""
    load_s_per_block: float
    """To bring one of them back; bytes of the block over the bandwidth of the link."""


@dataclass(frozen=True, slots=True)
class PrefixCaching:
    """How an engine caches prefixes of prompts whose blocks have ids."""

    id_tokens: int
    """Tokens that one id stands for; a multiple of the blocks of the engine."""
    tiers: tuple[OffloadTier, ...] = ()


class BlockCache:
    """Which blocks are where; knows ids only, not tokens."""

    __slots__ = ("_free", "_tiers", "_users", "loaded_blocks", "loaded_s", "tiers")

    def __init__(self, tiers: Sequence[OffloadTier] = ()) -> None:
        """Start empty."""
        self._users: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict()
        self.tiers = tuple(tiers)
        self._tiers: list[OrderedDict[int, None]] = [OrderedDict() for _ in tiers]
        self.loaded_blocks = 0
        self.loaded_s = 0.0

    @property
    def pinned(self) -> int:
        """Return the blocks in use."""
        return len(self._users)

    @property
    def kept(self) -> int:
        """Return the blocks that are kept without a user."""
        return len(self._free)

    def match(self, ids: Sequence[int]) -> tuple[int, float]:
        """Return how many leading blocks are found, and the time to load those that were offloaded.

        Examples
        --------
        >>> cache = BlockCache()
        >>> cache.pin([1, 2, 3])
        3
        >>> cache.match([1, 2, 9])
        (2, 0.0)
        """
        found, seconds = 0, 0.0
        for block in ids:
            if block not in self._users and block not in self._free:
                tier = self._tier_of(block)
                if tier < 0:
                    break
                seconds += self.tiers[tier].load_s_per_block
            found += 1
        return found, seconds

    def to_pin(self, ids: Sequence[int]) -> int:
        """Return how many of these blocks are not in use yet."""
        users = self._users
        return sum(block not in users for block in ids)

    def pin(self, ids: Sequence[int]) -> int:
        """Use these blocks; return how many of them were not in use."""
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
                    self.loaded_blocks += 1
                    self.loaded_s += self.tiers[tier].load_s_per_block
        return more

    def unpin(self, ids: Sequence[int]) -> int:
        """Use these blocks no longer; return how many have no user left. They are kept, the tail going first."""
        users = self._users
        fewer = 0
        for block in reversed(ids):
            count = users[block] - 1
            if count:
                users[block] = count
            else:
                del users[block]
                self._free[block] = None
                fewer += 1
        return fewer

    def trim(self, room: int) -> None:
        """Let go of the least recently used blocks beyond the room there is."""
        free = self._free
        while len(free) > room:
            self._offload(free.popitem(last=False)[0])

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
