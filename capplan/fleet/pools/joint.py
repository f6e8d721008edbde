"""Both pools and the link between them simulated together, as `simulate` does, and the cheapest pair of replica counts."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, exp, inf, log
from typing import Literal, TypeAlias

import numpy as np

from capplan.fleet.engine_options import EngineOptions
from capplan.fleet.load.routed import Operation, run_fleet
from capplan.fleet.load.session_load import peak_stream
from capplan.fleet.load.waits import waits_of
from capplan.fleet.pools.link import LinkTerms, LinkUse, link_use, unlinked_reason
from capplan.fleet.review import Question
from capplan.fleet.search.latencies import is_steady
from capplan.fleet.search.trial import demand_at_replica, with_load_time
from capplan.fleet.simulation import ENGINE_DEFAULTS, FleetOutcome, Stream
from capplan.replica.replica import Replica
from capplan.workload.request_class import Target

Phase = Literal["prefill", "decode"]
Pair = tuple[int, int]
"""Prefill and decode replicas."""
Rank = tuple[float, float]
"""Sort key of pairs: their cost, infinite if they may not be had, then their size. A larger pair never comes before a smaller one."""
ANY_COST: Rank = (inf, 0.0)
"""A rank above that of every pair that may be had."""
Lacking = frozenset[Phase]
"""Pools to which a replica has to be added, one of them at least; empty where nothing is missing."""

FIRST_STRIDE = 1.0 / 16.0
"""The first stride adds this share of its replicas to a pool that is short; each later stride adds twice the share, up to all."""
MOST_GROWN = 64
"""A pool grows to at most this multiple of the replicas that its phase takes by itself."""
MOST_TRIED = 100
"""Most pairs that are tried; after so many the cheapest one so far counts, whatever is left to try."""


def cheapest_pair(
    lacking: Callable[[Pair], Lacking],
    start: Pair,
    rank: Callable[[Pair], Rank],
    *,
    joined: Callable[[Pair], bool] = lambda _: True,
    under: Rank = ANY_COST,
    most_tried: int = MOST_TRIED,
) -> tuple[Pair | None, int]:
    """Return the cheapest pair of replica counts to which nothing is missing, and how many pairs were tried.

        min c(P, D)   with nothing missing at (P, D), P >= 1, D >= 1

    The pool that is short grows by strides in proportion to its size until nothing is missing. Then either pool shrinks by
    bisection, and each cheaper pair that may still be enough is tried. What is missing with some replicas is missing with
    fewer of either pool; a pair that lacks only prefill replicas lacks them with any number of decode replicas.

    Parameters
    ----------
    lacking : what a pair lacks
    start : [-]
        replicas that either phase takes by itself; nothing is tried if they cost too much
    rank : of a pair: its cost c in [$/h] or [-], then its size
    joined : whether the link joins a pair; if it does not, it joins no larger one
    under : only pairs below this rank are tried
    most_tried : [-]
        after so many pairs the cheapest one so far counts; strides that find a first one are never cut short

    Returns
    -------
    P, D, or None; and the number of pairs

    Examples
    --------
    Three prefill and two decode replicas are needed, and a decode replica costs four times as much:

    >>> def lacks(pair: Pair) -> Lacking:
    ...     return frozenset([*["prefill"] * (pair[0] < 3), *["decode"] * (pair[1] < 2)])
    >>> cheapest_pair(lacks, (1, 1), lambda pair: (pair[0] + 4.0 * pair[1], sum(pair)))[0]
    (3, 2)
    """
    walk = _Walk(lacking, joined, rank, (MOST_GROWN * start[0], MOST_GROWN * start[1]), under)
    if not rank(start) < under:
        return None, 0
    near = walk.grown(start) if joined(start) else start
    best = walk.shrunk(near) if near in walk.enough else None
    while len(walk.tried) < most_tried:
        cheaper = walk.open_below(best)
        if not cheaper:
            break
        middle = best[0] if best else near[0]
        pair = min(cheaper, key=lambda item: abs(item[0] - middle))
        if walk.meets(pair):
            best = walk.shrunk(pair)
    return best, len(walk.tried)


@dataclass(slots=True)
class _Walk:
    """Pairs that were tried, and what follows from them for others."""

    lacking: Callable[[Pair], Lacking]
    joined: Callable[[Pair], bool]
    rank: Callable[[Pair], Rank]
    most: Pair
    under: Rank
    tried: dict[Pair, Lacking] = field(default_factory=dict)

    @property
    def enough(self) -> set[Pair]:
        """Pairs to which nothing is missing."""
        return {pair for pair, missing in self.tried.items() if not missing}

    def meets(self, pair: Pair) -> bool:
        """Return whether nothing is missing to a pair."""
        if pair not in self.tried:
            self.tried[pair] = self.lacking(pair)
        return not self.tried[pair]

    def short(self, pair: Pair) -> bool:
        """Return whether a pair that was tried shows that something is missing to this one."""
        return any(
            missing
            and (pair[0] <= other[0] or missing == {"decode"})
            and (pair[1] <= other[1] or missing == {"prefill"})
            for other, missing in self.tried.items()
        )

    def grown(self, pair: Pair) -> Pair:
        """Return the first pair that is enough as the pool that is short grows, or the last one within all limits."""
        share = FIRST_STRIDE
        while not self.meets(pair):
            missing = self.tried[pair]
            larger = (
                _strode(pair[0], share if "prefill" in missing else 0.0, self.most[0]),
                _strode(pair[1], share if "decode" in missing else 0.0, self.most[1]),
            )
            if larger == pair or not self.rank(larger) < self.under or not self.joined(larger):
                return pair
            pair, share = larger, min(2.0 * share, 1.0)
        return pair

    def shrunk(self, pair: Pair) -> Pair:
        """Return the pair that is enough after either pool shrank as far as it can, the dearer one first."""
        of_each = (self.rank((pair[0], 1)), self.rank((1, pair[1])))
        for side in sorted((0, 1), key=lambda side: of_each[side], reverse=True):
            low = 0  # replicas that are too few
            while pair[side] - low > 1:
                middle = (low + pair[side]) // 2
                fewer = (middle, pair[1]) if side == 0 else (pair[0], middle)
                if self.short(fewer) or not self.meets(fewer):
                    low = middle
                else:
                    pair = fewer
        return pair

    def open_below(self, best: Pair | None) -> list[Pair]:
        """Return, for each number of prefill replicas, the largest pair cheaper than the best that may be enough."""
        below = self.under if best is None else self.rank(best)
        found = []
        for prefill in range(1, self.most[0] + 1):
            decode = self._most_decode(prefill, below)
            if not decode:
                break
            while decode and not self.joined((prefill, decode)):
                decode -= 1
            if decode and not self.short((prefill, decode)):
                found.append((prefill, decode))
        return found

    def _most_decode(self, prefill: int, below: Rank) -> int:
        """Return the most decode replicas of a pair below a rank; none if one of them is too many."""
        low, high = 0, self.most[1] + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.rank((prefill, middle)) < below else (low, middle)
        return low


def _strode(count: int, share: float, most: int) -> int:
    return min(count + ceil(share * count), most)


SIZING_REQUESTS = 3000
"""Simulated at least for each pair of replica counts; the latencies of the plan are those of all requests of the peak."""
STAYS = 40
"""Requests are simulated for at least this many times the mean stay of a request that has both pools to itself, and its allowed wait ..."""
MOST_SIZING_REQUESTS = 48_000
"""... but no more of them than this."""
SEED = 0
"""Seed of the requests, the default of `simulate`."""
SLOWNESSES = (0.25, 4.0)
"""Factors on step times between which the largest one that meets the targets is looked for ..."""
HALVINGS = 6
"""... with this many halvings, to 4.5 % or less."""
TWICE = 2.0
"""Multiple of the peak up to which it is looked for what a pair carries ..."""
LOAD_HALVINGS = 4
"""... with this many halvings, to 4.4 %."""
NO_LOAD = 1e-6
"""Multiple of the peak at which no request waits for another one."""
BUSY_LINK = 0.2
"""Fraction of time for which the links of a prefill replica send, from which more of them shorten the wait for a transfer."""
JointRuns: TypeAlias = dict[tuple[Pair, float, float, int | None], FleetOutcome]
"""Replica counts, load, slowness and number of requests -> what they see; without a number, all of the peak."""
Demanded: TypeAlias = tuple[tuple[float, float], ...]
"""Multiples of the peak, each with a slowness, at which all targets have to hold."""
_EITHER: Lacking = frozenset({"prefill", "decode"})
_PREFILL: Lacking = frozenset({"prefill"})
_DECODE: Lacking = frozenset({"decode"})


def demanded_of(headroom_fraction: float, slowness: float) -> Demanded:
    """Return what sizes a pair: the targets hold as predicted with headroom, and at the peak with replicas that are slower.

    Examples
    --------
    >>> demanded_of(headroom_fraction=0.2, slowness=1.5)
    ((1.25, 1.0), (1.0, 1.5))
    """
    return (1.0 / (1.0 - headroom_fraction), 1.0), (1.0, slowness)


class Joint:
    """One layout of either pool and the link between them, under the traffic of a question."""

    def __init__(
        self,
        question: Question,
        prefill: Replica,
        decode: Replica,
        link: LinkTerms,
        seen: JointRuns | None = None,
    ) -> None:
        """Draw the requests; nothing is simulated yet. `seen` shares the runs of the same layouts and traffic with other questions."""
        self.question = question
        self.demand = demand_at_replica(question.demand, prefill)
        named = self.demand.has_sessions  # blocks, so each request waits for the loads of its own
        self.prefill = prefill if named else with_load_time(prefill, self.demand)
        self.decode, self.link = decode, link
        self._use = EngineOptions(tiers=question.demand.tiers) if named else ENGINE_DEFAULTS
        self.rate = sum(self.demand.rates_per_s(0.0))
        self._seen: JointRuns = {} if seen is None else seen

    @cached_property
    def stream(self) -> Stream:
        """The requests at the peak, those that `simulate` draws."""
        return peak_stream(
            self.demand,
            replicas=1,
            seed=SEED,
            longest=self.question.max_model_len,
            routing=self.question.routing,
        )

    def operation(self, pair: Pair, slowness: float = 1.0) -> Operation:
        """Return how a fleet with these replica counts is operated.

        Where every step takes s times as long, the unit of time is s seconds: the link is s times as fast.
        """
        link = replace(self.link, rate_ratio=slowness, latency_s=self.link.latency_s / slowness)
        return Operation(prefill_replicas=pair[0], decode_replicas=pair[1], kv_link=link, decode=self.decode)

    def at_peak(self, pair: Pair) -> FleetOutcome:
        """Return what all requests of the peak see."""
        return self._run(pair, 1.0, 1.0, None)

    def sized(self, pair: Pair, load: float = 1.0, slowness: float = 1.0) -> FleetOutcome:
        """Return what the first requests see at a multiple of the peak, in units of `slowness` seconds."""
        return self._run(pair, load, slowness, self._sizing_requests)

    @cached_property
    def _sizing_requests(self) -> int:
        """Requests enough that queues which grow stand out from pools that fill up to the wait that targets allow."""
        stay_s = self._run((1, 1), NO_LOAD, 1.0, SIZING_REQUESTS).all.e2e_s.mean
        waits = [target.limit_s for target in self.question.slo.targets if target.metric == "ttft"]
        wanted = ceil(STAYS * self.rate * (stay_s + min(waits, default=0.0)))
        return min(max(SIZING_REQUESTS, wanted), MOST_SIZING_REQUESTS)

    def _run(self, pair: Pair, load: float, slowness: float, count: int | None) -> FleetOutcome:
        key = (pair, load, slowness, count)
        if key not in self._seen:
            assert self.stream.requests is not None
            assert self.stream.requests.arrival_s is not None
            requests = self.stream.requests if count is None else self.stream.requests.between(0, count)
            if load * slowness != 1.0:
                requests = replace(requests, arrival_s=np.asarray(requests.arrival_s) / (load * slowness))
            waits = waits_of(self.demand.classes)
            waits = replace(waits, seconds=tuple(wait_s / slowness for wait_s in waits.seconds))
            stream = replace(self.stream, requests=requests, waits=waits if waits.are_unlike else None)
            self._seen[key] = run_fleet(
                self.prefill,
                stream,
                self.operation(pair, slowness),
                replicas=sum(pair),
                slo=self.question.slo,
                use=self._use,
            )
        return self._seen[key]

    def missed(self, pair: Pair, load: float = 1.0, slowness: float = 1.0) -> tuple[Target, ...]:
        """Return the targets that are missed at a multiple of the peak, by replicas slower than predicted by a factor."""
        outcome = self.sized(pair, load, slowness)
        targets = self.question.slo.targets
        return tuple(target for target in targets if not _value(outcome, target, slowness) <= target.limit_s)

    def steady(self, pair: Pair, load: float, slowness: float) -> bool:
        """Return whether no queue keeps growing."""
        (part,) = self.sized(pair, load, slowness).parts
        return is_steady(part.arrival_s, part.arrival_s + part.e2e_s)

    def steady_first(self, pair: Pair, load: float, slowness: float) -> bool:
        """Return whether the queue of the prefill pool does not keep growing."""
        (part,) = self.sized(pair, load, slowness).parts
        return is_steady(part.arrival_s, part.arrival_s + part.ttft_s)

    def link_use(self, pair: Pair, load: float = 1.0) -> LinkUse:
        """Return size, time and load of the transfers at a multiple of the peak."""
        return link_use(
            self.prefill.spec,
            self.decode.spec,
            pair,
            self.link,
            prompt_tokens=self.stream.mean_input_tokens,
            requests_per_s=load * self.rate,
            draft=self.prefill.draft,
        )

    def unlinked_reason(self, pair: Pair) -> str:
        """Return why the link does not join all replicas; empty where it does."""
        return unlinked_reason(self.prefill.spec, self.decode.spec, pair, self.link)

    def lacking(self, pair: Pair, demanded: Demanded) -> Lacking:
        """Return what a pair lacks at the loads and slownesses that are demanded of it, and with all requests of the peak.

        The first token comes from the prefill pool, whatever the decode pool; what comes later from the decode pool, and
        from the prefill pool as far as its links are busy.
        """
        if self.unlinked_reason(pair):
            return _EITHER
        use = self.link_use(pair, max(load for load, _ in demanded))
        if use.load_fraction >= 1.0:
            return frozenset({"prefill" if use.prefill_load_fraction >= 1.0 else "decode"})
        later: Lacking = _EITHER if use.prefill_load_fraction > BUSY_LINK else _DECODE
        for load, factor in demanded:
            missed = self.missed(pair, load, factor)
            if missed or not self.steady(pair, load, factor):
                first = _late_first(missed) or not self.steady_first(pair, load, factor)
                return _PREFILL if first else later
        seen = self.at_peak(pair)
        missed = tuple(t for t in self.question.slo.targets if not _value(seen, t) <= t.limit_s)
        return frozenset() if not missed else _PREFILL if _late_first(missed) else later

    def cheapest(
        self, alone: Pair, rank: Callable[[Pair], Rank], demanded: Demanded, under: Rank = ANY_COST
    ) -> tuple[Pair | None, int]:
        """Return the cheapest pair below a rank that meets what is demanded, or None, and how many pairs were tried."""
        if self.never(demanded):
            return None, 0

        def lacking(pair: Pair) -> Lacking:
            return self.lacking(pair, demanded)

        def joined(pair: Pair) -> bool:
            return not self.unlinked_reason(pair)

        return cheapest_pair(lacking, alone, rank, joined=joined, under=under)

    def never(self, demanded: Demanded) -> bool:
        """Return whether no number of replicas is enough, as the link does not join them or an idle pair misses a target."""
        return bool(self.unlinked_reason((1, 1)) or self.out_of_reach(demanded))

    def out_of_reach(self, demanded: Demanded) -> str:
        """Return which target no number of replicas meets, as a request that has both pools to itself misses it; else empty."""
        for factor in sorted({factor for _, factor in demanded}):
            missed = self.missed((1, 1), NO_LOAD, factor)
            if missed:
                idle = self.sized((1, 1), NO_LOAD, factor)
                value = _value(idle, missed[0], factor) + missed[0].outside_s
                use = self.link_use((1, 1))
                return (
                    f"{missed[0].key} is {value * 1000.0:.3g} ms however many replicas there are,"
                    f" {use.transfer_s * 1000.0:.3g} ms of it the transfer of a mean prompt over {use.link}"
                )
        return ""

    def slowest(self, pair: Pair, asked: float, alone: Target | None = None) -> float:
        """Return the largest factor by which all steps may be slower than predicted while the targets, or one target, are met at the peak.

        What is asked for is tried first, so that a pair that was sized for it is never below it.
        """
        least, most = SLOWNESSES
        enough = least < asked < most and self._holds(pair, 1.0, asked, alone)
        between = (asked, most) if enough else (least, max(least, min(asked, most)))
        most_borne = _largest(lambda factor: self._holds(pair, 1.0, factor, alone), between)
        return max(most_borne, asked) if enough else most_borne

    def bears(self, pair: Pair, slowness: float) -> bool:
        """Return whether all targets hold at the peak with replicas that are slower than predicted by a factor."""
        return self._holds(pair, 1.0, slowness)

    def most_load(self, pair: Pair, headroom_fraction: float, slowness: float) -> float:
        """Return the multiple of the peak that a pair carries by the rule that sized it, at least 1 and at most TWICE.

        Twice the load takes a larger pair, unless a pool has the one replica that it needs at least.
        """
        room = 1.0 / (1.0 - headroom_fraction)

        def carried(load: float) -> bool:
            return (
                self.link_use(pair, room * load).load_fraction < 1.0
                and self._holds(pair, load, slowness)
                and self._holds(pair, room * load, 1.0)
            )

        return _largest(carried, (1.0, TWICE), LOAD_HALVINGS)

    def _holds(self, pair: Pair, load: float, slowness: float, alone: Target | None = None) -> bool:
        missed = self.missed(pair, load, slowness)
        missing = missed if alone is None else alone in missed
        return not missing and self.steady(pair, load, slowness)


def _largest(holds: Callable[[float], bool], between: tuple[float, float], halvings: int = HALVINGS) -> float:
    """Return the largest factor that holds, within some halvings of a range whose lower end does."""
    low, high = (log(factor) for factor in between)
    for _ in range(halvings):
        middle = (low + high) / 2.0
        low, high = (middle, high) if holds(exp(middle)) else (low, middle)
    return exp(low)


def _value(outcome: FleetOutcome, target: Target, slowness: float = 1.0) -> float:
    """Return the value that a target limits, of a run in units of `slowness` seconds, in whichever hour it is largest [s]."""
    if not target.outside_s or outcome.seen is None:
        return outcome.value(target) * slowness
    seen = outcome.seen.ttft_s if target.metric == "ttft" else outcome.seen.e2e_s
    return float(getattr(seen, target.statistic)) * slowness - target.outside_s


def _late_first(missed: tuple[Target, ...]) -> bool:
    """Return whether the first token is late."""
    return any(target.metric == "ttft" for target in missed)
