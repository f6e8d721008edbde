"""The prefix cache of an engine: where its KV blocks are, with tiers below the device."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from capplan.errors import InputError


@dataclass(frozen=True, slots=True)
class OffloadTier:
    """A level of memory below the device: host, NVMe, remote."""

    capacity_blocks: int
    """Capacity, in blocks of one block id each."""
    load_s_per_block: float
    """Time to load one block back: its bytes over the bandwidth of the link."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class PullLink:
    """The link over which an engine pulls cached blocks from the other engines of its fleet."""

    load_s_per_block: float
    """Time to pull one block: its bytes over the rate of the link."""
    latency_s: float = 0.0
    """Time until the first block of a prompt arrives."""


@dataclass(frozen=True, slots=True)
class PrefixCaching:
    """How an engine caches prefixes of prompts that have block ids."""

    id_tokens: int
    """Tokens per block id; a multiple of the engine's block size."""
    tiers: tuple[OffloadTier, ...] = ()
    """Offload tiers from the fastest to the slowest; each holds what was evicted from the one above."""
    pull: PullLink | None = None
    """Blocks that an engine lacks are pulled from the caches of the others; None: they are computed again."""


class BlockCache:
    """Where each block is; sees block ids only, not tokens."""

    __slots__ = (
        "_absent",
        "_computed_s",
        "_free",
        "_link_free_s",
        "_loading",
        "_loads",
        "_tiers",
        "_users",
        "hit_blocks",
        "peers",
        "tiers",
    )

    def __init__(self, tiers: Sequence[OffloadTier] = (), pull: PullLink | None = None) -> None:
        """Start empty."""
        self._users: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict()
        self.tiers = tuple(tiers)
        self._tiers: list[OrderedDict[int, None]] = [OrderedDict() for _ in tiers]
        self._loads = [(tier.load_s_per_block, 0.0) for tier in tiers]
        """Time per block and latency of the link of each tier, then of the link to the other engines."""
        if pull is not None:
            self._loads.append((pull.load_s_per_block, pull.latency_s))
        self.peers: Sequence[BlockCache] = ()
        """The caches of the fleet, from which blocks are pulled; this one is among them."""
        self._link_free_s = [0.0] * len(self._loads)
        self._loading: dict[int, float] = {}
        """Pinned blocks that are being loaded from a tier, and when each load ends."""
        self._absent: set[int] = set()
        """Pinned blocks that are not computed yet, because their prompt is still loading the blocks before them."""
        self._computed_s: dict[int, float] = {}
        """When a block that others may pull was computed here; infinite while it is not yet."""
        self.hit_blocks = [0] * (1 + len(self._loads))
        """Hits of admitted prompts: on the device, then in each tier, then pulled."""

    def holds(self, block: int, at_s: float) -> bool:
        """Return whether a block is here at a time, on the device or in a tier, so that another engine can pull it."""
        if self._computed_s.get(block, at_s) > at_s:
            return False
        if block in self._users:
            return block not in self._absent and block not in self._loading
        return block in self._free or self._tier_of(block) >= 0

    def match(self, ids: Sequence[int], now_s: float = 0.0) -> tuple[int, float]:
        """Return how many leading blocks hit, and when all of them are on the device if they are requested now.

        The link of a tier loads one prompt at a time, in order of request.

        Examples
        --------
        >>> cache = BlockCache()
        >>> cache.pin([1, 2, 3])
        3
        >>> cache.match([1, 2, 9], now_s=5.0)
        (2, 5.0)
        """
        hits, ready_s = 0, now_s
        counts = [0] * len(self._loads)
        for block in ids:
            if block in self._users:
                if self._absent and block in self._absent:
                    break
                if self._loading:
                    ready_s = max(ready_s, self._loading.get(block, now_s))
            elif block not in self._free:
                tier = self._source_of(block, now_s)
                if tier < 0:
                    break
                counts[tier] += 1
            hits += 1
        for tier, count in enumerate(counts):
            if count:
                ready_s = max(ready_s, self._arrival_s(tier, count, now_s))
        return hits, ready_s

    def on_device(self, ids: Sequence[int]) -> int:
        """Return how many leading blocks hit on the device, without its offload tiers.

        Examples
        --------
        >>> cache = BlockCache([OffloadTier(8, 0.0)])
        >>> cache.keep([1, 2, 3])
        >>> cache.trim(2)
        >>> cache.on_device([1, 2, 3]), cache.match([1, 2, 3])[0]
        (2, 3)
        """
        users, free, absent = self._users, self._free, self._absent
        for place, block in enumerate(ids):
            if block not in free and (block not in users or block in absent):
                return place
        return len(ids)

    def to_pin(self, ids: Sequence[int]) -> int:
        """Return how many of these blocks are not pinned yet."""
        users = self._users
        return sum(block not in users for block in ids)

    def pin(self, ids: Sequence[int], hits: int = 0, now_s: float = 0.0) -> int:
        """Pin the blocks of a prompt, the first `hits` of which are cached; return how many were not pinned before."""
        if self._loads:
            self._load(ids[:hits], now_s)
        elif hits:
            self.hit_blocks[0] += hits
        users = self._users
        more = 0
        for place, block in enumerate(ids):
            count = users.get(block, 0)
            users[block] = count + 1
            if count:
                continue
            more += 1
            if self.peers and place >= hits:
                self._computed_s[block] = inf
            if block in self._free:
                del self._free[block]
            elif self._tiers:
                tier = self._tier_of(block)
                if tier >= 0:
                    del self._tiers[tier][block]
        return more

    def computed(self, ids: Sequence[int], at_s: float) -> None:
        """Let the other engines pull the blocks of a prompt from now on."""
        known = self._computed_s
        for block in ids:
            if known.get(block) == inf:
                known[block] = at_s

    def hide(self, ids: Sequence[int]) -> None:
        """Hide these blocks from lookups: they are not computed before the blocks ahead of them are loaded."""
        self._absent.update(block for block in ids if self._users[block] == 1)

    def reveal(self, ids: Sequence[int], now_s: float) -> None:
        """Make these blocks visible to lookups: their prompt is prefilled in the step that starts now."""
        self._absent.difference_update(ids)
        for block in ids:
            if self._loading.get(block, inf) <= now_s:
                del self._loading[block]

    def unpin(self, ids: Sequence[int], worked_on: int | None = None) -> int:
        """Unpin the blocks of a prompt; return how many are unpinned now. They stay cached, the tail to be evicted first.

        Of a prompt whose prefill was aborted, only the leading blocks that were computed or loaded stay cached.
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
        """Cache blocks that belong to no prompt, such as those of a response, the tail to be evicted first."""
        for block in reversed(ids):
            if block in self._users:
                continue
            tier = self._tier_of(block)
            if tier >= 0:
                del self._tiers[tier][block]
            self._free[block] = None
            self._free.move_to_end(block)

    def trim(self, room: int) -> None:
        """Evict the least recently used blocks until at most `room` are cached and unpinned."""
        free = self._free
        while len(free) > room:
            self._offload(free.popitem(last=False)[0])

    def _load(self, ids: Sequence[int], now_s: float) -> None:
        """Count the hits, and start to load the blocks that are in a tier."""
        wanted: list[list[int]] = [[] for _ in self._loads]
        for block in ids:
            tier = -1 if block in self._users or block in self._free else self._source_of(block, now_s)
            self.hit_blocks[tier + 1] += 1
            if tier >= 0:
                wanted[tier].append(block)
        for tier, blocks in enumerate(wanted):
            if blocks:
                at_s = self._arrival_s(tier, len(blocks), now_s)
                self._link_free_s[tier] = at_s - self._loads[tier][1]
                if at_s > now_s:
                    self._loading.update(dict.fromkeys(blocks, at_s))

    def _arrival_s(self, tier: int, blocks: int, now_s: float) -> float:
        each_s, latency_s = self._loads[tier]
        return max(self._link_free_s[tier], now_s) + blocks * each_s + latency_s

    def _source_of(self, block: int, now_s: float) -> int:
        """Return the place in `_loads` of the link that brings a block; -1 if the block has to be computed."""
        tier = self._tier_of(block)
        if tier < 0 and any(peer is not self and peer.holds(block, now_s) for peer in self.peers):
            return len(self.tiers)
        return tier

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
    """Refuse block ids that do not stand for whole blocks of the engine, and tiers and links of negative size or load time.

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
                f"an offload tier needs a capacity of at least 0 blocks and a load time of at least 0 s, but is {tier}"
            )
    pull = caching.pull
    if pull is not None and not (pull.load_s_per_block >= 0.0 and pull.latency_s >= 0.0):
        raise InputError(f"a link between caches needs times of at least 0 s, but is {pull}")
