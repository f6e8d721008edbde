"""Both pools and the link between them simulated together, as `simulate` does, and the cheapest pair of replica counts."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, exp, inf, log
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from capplan.accuracy.slowness import JointSlowness, Latency, Slowness, latency_of
from capplan.fleet.engine_options import EngineOptions
from capplan.fleet.load.routed import Operation, run_fleet
from capplan.fleet.load.session_load import peak_stream
from capplan.fleet.load.waits import waits_of
from capplan.fleet.pools.link import LinkTerms, LinkUse, link_use, unlinked_reason
from capplan.fleet.review import Question
from capplan.fleet.search.latencies import ROUNDING, is_steady
from capplan.fleet.search.simulated_layout import demand_at_replica, with_load_time
from capplan.fleet.simulation import (
    ENGINE_DEFAULTS,
    FleetOutcome,
    Stream,
    arrived_in,
    measured_time,
)
from capplan.ranges import SEED
from capplan.replica.replica import Replica
from capplan.serving.outcome import FULL_RUN, EarlyEnd, LatencyLimit, most_above
from capplan.workload.request_class import ResponseTimes, Slo, Target

Phase = Literal["prefill", "decode"]
Pair = tuple[int, int]
"""Prefill and decode replicas."""
Rank = tuple[float, float]
"""Sort key of pairs: their cost, infinite if they may not be had, then their size. A larger pair never comes before a smaller one."""
ANY_COST: Rank = (inf, 0.0)
"""A rank above that of every pair that may be had."""
Lacking = frozenset[Phase]
"""Pools to which a replica has to be added, one of them at least; empty where nothing is missing."""
_EITHER: Lacking = frozenset({"prefill", "decode"})
_PREFILL: Lacking = frozenset({"prefill"})
_DECODE: Lacking = frozenset({"decode"})

SMOOTHED = 4
"""Prefill replicas from which more of them hardly change how evenly prompts reach the decode pool; those of few come in batches (a choice)."""
FIRST_STRIDE = 1.0 / 16.0
"""The first stride adds this share of its replicas to a pool that is short, or takes it from one that is not; each later one is twice as long."""
MOST_GROWN = 64
"""A pool grows to at most this multiple of the replicas that its phase takes by itself."""
MOST_TRIED = 100
"""Most pairs that are tried; after so many the cheapest one so far counts. Strides that find a first one are never cut short."""


def cheapest_pair(
    lacking: Callable[[Pair], Lacking],
    start: Pair,
    rank: Callable[[Pair], Rank],
    *,
    likely: Callable[[], Pair | None] = lambda: None,
    joined: Callable[[Pair], bool] = lambda _: True,
    confirmed: Callable[[Pair], Lacking] = lambda _: frozenset(),
    under: Rank = ANY_COST,
    known: dict[Pair, Lacking] | None = None,
) -> tuple[Pair | None, int]:
    """Return the cheapest pair of replica counts to which nothing is missing, and how many pairs were tried.

        min c(P, D)   with nothing missing at (P, D), P >= 1, D >= 1

    The pool that is short grows by strides until nothing is missing. Then either pool shrinks, and each
    cheaper pair that may still be enough is tried: what is missing with some replicas is missing with fewer
    of either pool.

    Parameters
    ----------
    lacking : what a pair lacks
    start : [-]
        replicas that either phase takes by itself; nothing is tried if they cost too much
    rank : of a pair: its cost c in [$/h] or [-], then its size
    likely : [-]
        replicas from which the search goes on if a large start is short; None: from the start
    joined : whether the link joins a pair; if it does not, it joins no larger one
    confirmed : what the cheapest pair lacks in longer runs; if it lacks something, the search goes on
    under : only pairs below this rank are tried
    known : what pairs lack that were tried before; the search adds those that it tries

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
    tried = {} if known is None else known
    walk = _Walk(lacking, joined, rank, (MOST_GROWN * start[0], MOST_GROWN * start[1]), under, tried)
    if not rank(start) < under:
        return None, 0
    before, near = len(tried), start
    if max(start) * FIRST_STRIDE > 1.0 and joined(start) and walk.missing(start):
        near = walk.raised(start, likely())
    while True:
        best = walk.cheapest(near, before + MOST_TRIED)
        missing = frozenset() if best is None else confirmed(best)
        if best is None or not missing:
            return best, len(tried) - before
        tried[best], near = missing, best


@dataclass(slots=True)
class _Walk:
    """Pairs that were tried, and what follows from them for others."""

    lacking: Callable[[Pair], Lacking]
    joined: Callable[[Pair], bool]
    rank: Callable[[Pair], Rank]
    most: Pair
    under: Rank
    tried: dict[Pair, Lacking]

    def cheapest(self, near: Pair, most_tried: int) -> Pair | None:
        """Return the cheapest pair that is enough, from a pair near it; None if there is none below the rank."""
        near = self.grown(near) if self.joined(near) else near
        best = self.shrunk(near) if self.tried.get(near) == frozenset() else None
        while len(self.tried) < most_tried:
            cheaper = self.open_below(best)
            if not cheaper:
                break
            middle = best[0] if best else cheaper[len(cheaper) // 2][0]
            pair = min(cheaper, key=lambda item: abs(item[0] - middle))
            if not self.missing(pair):
                best = self.shrunk(pair)
        return best

    def raised(self, pair: Pair, likely: Pair | None) -> Pair:
        """Return a pair with as many replicas as are likely in each pool of which it has fewer, if that is within all limits."""
        larger = pair if likely is None else (max(pair[0], likely[0]), max(pair[1], likely[1]))
        within = all(count <= most for count, most in zip(larger, self.most, strict=True))
        return larger if within and self.rank(larger) < self.under and self.joined(larger) else pair

    def missing(self, pair: Pair) -> Lacking:
        """Return what a pair lacks; it is tried unless another one shows it."""
        if pair not in self.tried:
            if shown := self.shown(pair):
                return shown
            self.tried[pair] = self.lacking(pair)
        return self.tried[pair]

    def shown(self, pair: Pair) -> Lacking:
        """Return what a pair that was tried shows to be missing to this one; empty if none does.

        What lacks only decode replicas lacks them with any number of prefill replicas, from SMOOTHED of them on, unless another pair has as few
        decode replicas and is enough.
        """
        prefill, decode = (
            min((other[side] for other, missing in self.tried.items() if not missing), default=inf)
            for side in (0, 1)
        )
        for other, missing in self.tried.items():
            any_prefill = missing == _DECODE and other[1] < decode and other[0] >= SMOOTHED
            any_decode = missing == _PREFILL and other[0] < prefill
            if missing and (pair[0] <= other[0] or any_prefill) and (pair[1] <= other[1] or any_decode):
                return missing
        return frozenset()

    def grown(self, pair: Pair) -> Pair:
        """Return the first pair that is enough as the pool that is short grows, or the last one within all limits."""
        share = FIRST_STRIDE
        while missing := self.missing(pair):
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
            low, stride = 0, ceil(FIRST_STRIDE * pair[side])  # low: replicas that are too few
            while pair[side] - low > 1:
                middle = max(pair[side] - stride, (low + pair[side]) // 2)
                stride *= 2
                fewer = (middle, pair[1]) if side == 0 else (pair[0], middle)
                if self.missing(fewer):
                    low = middle
                else:
                    pair = fewer
        return pair

    def open_below(self, best: Pair | None) -> list[Pair]:
        """Return, for each number of prefill replicas, the largest pair cheaper than the best that may be enough."""
        below = self.under if best is None else self.rank(best)
        found = []
        most = self._most_decode(1, below)
        for prefill in range(1, self.most[0] + 1):
            while most and not self.rank((prefill, most)) < below:
                most -= 1
            if not most:
                break
            decode = most
            while decode and not self.joined((prefill, decode)):
                decode -= 1
            if decode and not self.shown((prefill, decode)):
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
"""Requests are simulated for at least this many times the mean stay of a request that has both pools to itself, and its allowed wait."""
MOST_SIZING_REQUESTS = 48_000
"""Requests that are simulated at most for a pair of replica counts."""
SLOWNESSES = (0.25, 4.0)
"""Factors on step times between which the largest one that meets the targets is looked for."""
HALVINGS = 6
"""Halvings of the search for the largest slowness, which leave 4.5 % or less."""
TWICE = 2.0
"""Multiple of the peak up to which it is looked for what a pair carries."""
LOAD_HALVINGS = 4
"""Halvings of the search for what a pair carries, which leave 4.4 %."""
MOST_KEPT = 16
"""Runs of a pair of layouts that are kept at once; what pairs lack is known beyond that."""
NO_LOAD = 1e-6
"""Multiple of the peak at which no request waits for another one."""
BUSY_LINK = 0.2
"""Fraction of time for which the links of a prefill replica send, from which more of them shorten the wait for a transfer."""


class Paces(NamedTuple):
    """Measured over predicted step time of the replicas of either pool."""

    prefill: float = 1.0
    decode: float = 1.0


AS_PREDICTED = Paces()


class Condition(NamedTuple):
    """What a pair has to bear."""

    load: float
    """Multiple of the peak."""
    paces: Paces
    """How slow the replicas of either pool are."""
    latency: Latency | None = None
    """Whose targets have to hold; None: all."""

    def concerns(self, target: Target) -> bool:
        """Return whether a target has to hold."""
        return self.latency is None or self.latency == latency_of(target)


Demanded: TypeAlias = tuple[Condition, ...]


def demanded_of(headroom_fraction: float, slower: Mapping[Latency, Paces]) -> Demanded:
    """Return what sizes a pair: all targets hold as predicted with headroom, and those of each latency at the peak with replicas that are slower.

    Examples
    --------
    >>> as_predicted, slow = demanded_of(headroom_fraction=0.2, slower={"tpot": Paces(prefill=1.2, decode=1.5)})
    >>> as_predicted.load, tuple(as_predicted.paces), slow.load, tuple(slow.paces), slow.latency
    (1.25, (1.0, 1.0), 1.0, (1.2, 1.5), 'tpot')
    """
    as_predicted = Condition(1.0 / (1.0 - headroom_fraction), AS_PREDICTED)
    return as_predicted, *(Condition(1.0, paces, name) for name, paces in slower.items())


@dataclass(frozen=True, slots=True)
class PoolsSlowness:
    """How much slower than predicted the replicas of either pool may be, as one latency shows it: each by the spread of its own steps, both at one probability."""

    prefill: Slowness
    decode: Slowness

    def at(self, decode: float) -> Paces:
        """Return the slowness of either pool where decode replicas are so slow.

        Examples
        --------
        >>> wide, narrow = (Slowness((-x, -x / 2.0, 0.0, x / 2.0, x, 1.25 * x), 36, 22, False) for x in (0.4, 0.2))
        >>> round(PoolsSlowness(narrow, wide).at(1.44).prefill, 3)
        1.2
        """
        return Paces(self.prefill.as_likely_as(self.decode, decode), decode)


@dataclass(frozen=True, slots=True)
class JointPoolsSlowness:
    """Slowness of both pools by the latencies that targets limit."""

    by_latency: Mapping[Latency, PoolsSlowness]
    correlation: float

    @property
    def thin(self) -> bool:
        """Return whether few runs, or none, were measured with networks of the class of either pool."""
        return any(pools.prefill.thin or pools.decode.thin for pools in self.by_latency.values())

    @property
    def of_decode(self) -> JointSlowness:
        """How slow decode replicas may be; prefill replicas are as slow as is equally likely."""
        return JointSlowness(
            {name: pools.decode for name, pools in self.by_latency.items()}, self.correlation
        )

    def equally(self, probability: float) -> dict[Latency, Paces]:
        """Return paces that are equally likely not to be exceeded, and that are not with a probability for all latencies."""
        return {
            name: self.by_latency[name].at(decode)
            for name, decode in self.of_decode.equally(probability).items()
        }


@dataclass(frozen=True, slots=True)
class JointRuns:
    """Runs of one layout of either pool under the same traffic and targets, and what pairs of replica counts lack."""

    outcomes: dict[tuple[Pair, float, Paces, int | None], FleetOutcome] = field(default_factory=dict)
    """What requests see by replica counts, load, slowness and number of requests; without a number, all of the peak."""
    lacking: dict[Demanded, dict[Pair, Lacking]] = field(default_factory=dict)
    """What pairs lack by what was demanded of them."""
    late: set[tuple[int, float, Paces]] = field(default_factory=set)
    """Prefill replicas, loads and slownesses at which the first requests surely get their first tokens late."""
    met: set[Pair] = field(default_factory=set)
    """Pairs that meet all targets with all requests of the peak."""


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
        self._seen = JointRuns() if seen is None else seen
        self._borne: dict[Pair, dict[Paces, tuple[tuple[Target, ...], bool]]] = {}
        """Targets that a pair misses by the slowness of its replicas, and whether no queue grows; see `slowest`."""
        self._slowed: dict[float, Replica] = {1.0: self.prefill}
        """The prefill replica with all step times longer by a factor."""

    @cached_property
    def stream(self) -> Stream:
        """The requests at the peak, those that `simulate` draws: a turn of a session follows a response as one replica of each pool gives it."""
        first = self._drawn(0.0)
        if not self.demand.has_sessions:
            return first
        idle = self._at(first, NO_LOAD, 1.0, self._warm(first, SIZING_REQUESTS))
        return self._drawn_after(self._fleet_run(idle, (1, 1), AS_PREDICTED))

    def _warm(self, stream: Stream, requests: int) -> int:
        """Return the number of the first requests of a stream of which so many come once caches are full of the contexts of sessions."""
        return ceil(self.rate * stream.warm_up_s) + requests

    def _drawn_after(self, seen: FleetOutcome) -> Stream:
        """Return the requests at the peak whose turns follow responses that take as long as in a run."""
        return self._drawn([seen.classes[item.name].e2e_s.mean for item in self.demand.classes])

    def _drawn(self, response_s: ResponseTimes) -> Stream:
        return peak_stream(
            self.demand,
            replicas=2,
            seed=SEED,
            longest=self.question.max_model_len,
            response_s=response_s,
            routing=self.question.routing,
            turns_wait=False,
        )

    def operation(self, pair: Pair, unit_s: float = 1.0) -> Operation:
        """Return how a fleet with these replica counts is operated.

        Where every decode step takes s times as long, the unit of time is s seconds: the link is s times as fast.
        """
        link = replace(self.link, rate_ratio=unit_s, latency_s=self.link.latency_s / unit_s)
        return Operation(prefill_replicas=pair[0], decode_replicas=pair[1], kv_link=link, decode=self.decode)

    def at_peak(self, pair: Pair) -> FleetOutcome:
        """Return what all requests of the peak see; turns of sessions follow responses that take as long as those of this pair."""
        run = pair, 1.0, AS_PREDICTED, None
        if self.demand.has_sessions and run not in self._seen.outcomes:
            before = self._fleet_run(self.stream, pair, AS_PREDICTED)
            self._keep(run, self._fleet_run(self._drawn_after(before), pair, AS_PREDICTED))
        return self._run(*run)

    def sized(self, pair: Pair, load: float = 1.0, paces: Paces = AS_PREDICTED) -> FleetOutcome:
        """Return what the first requests see at a multiple of the peak, in units of `paces.decode` seconds."""
        return self._run(pair, load, paces, self._sizing_requests)

    @cached_property
    def _sizing_requests(self) -> int:
        """Requests enough that queues which grow stand out from pools that fill up to the wait that targets allow."""
        idle = self._warm(self.stream, SIZING_REQUESTS)
        stay_s = self._run((1, 1), NO_LOAD, AS_PREDICTED, idle).all.e2e_s.mean
        waits = [target.limit_s for target in self.question.slo.targets if target.metric == "ttft"]
        wanted = ceil(STAYS * self.rate * (stay_s + min(waits, default=0.0)))
        return self._warm(self.stream, min(max(SIZING_REQUESTS, wanted), MOST_SIZING_REQUESTS))

    def _run(
        self, pair: Pair, load: float, paces: Paces, count: int | None, *, ends_early: bool = False
    ) -> FleetOutcome:
        """Return a run; one that may end early, as first tokens are late, is kept only if it did not."""
        key = (pair, load, paces, count)
        if key in self._seen.outcomes:
            return self._seen.outcomes[key]
        stream = self._at(self.stream, load, paces.decode, count)
        early = first_token_limits(self.question.slo, stream, paces.decode) if ends_early else FULL_RUN
        outcome = self._fleet_run(stream, pair, paces, early)
        if outcome.parts[0].missed is None:
            self._keep(key, outcome)
        return outcome

    def _keep(self, key: tuple[Pair, float, Paces, int | None], outcome: FleetOutcome) -> None:
        """Keep a run; the oldest of many goes, as each holds what thousands of requests saw."""
        kept = self._seen.outcomes
        kept[key] = outcome
        while len(kept) > MOST_KEPT:
            del kept[next(iter(kept))]

    def _fleet_run(
        self, stream: Stream, pair: Pair, paces: Paces, early_end: EarlyEnd = FULL_RUN
    ) -> FleetOutcome:
        return run_fleet(
            self._prefill_slower(paces.prefill / paces.decode),
            stream,
            self.operation(pair, paces.decode),
            replicas=sum(pair),
            slo=self.question.slo,
            use=self._use,
            gauged=any(target.metric == "itl" for target in self.question.slo.targets),
            early_end=early_end,
        )

    def _prefill_slower(self, factor: float) -> Replica:
        """Return the prefill replica with all step times longer by a factor."""
        if factor not in self._slowed:
            self._slowed[factor] = replace(self.prefill, table=self.prefill.table.slower(factor))
        return self._slowed[factor]

    def _at(self, stream: Stream, load: float, unit_s: float, count: int | None) -> Stream:
        """Return the first requests of a stream, or all of them, at a multiple of the peak, in this unit of time."""
        assert stream.requests is not None
        assert stream.requests.arrival_s is not None
        requests = stream.requests if count is None else stream.requests.between(0, count)
        quicker = load * unit_s
        if quicker != 1.0:
            requests = replace(requests, arrival_s=np.asarray(requests.arrival_s) / quicker)
        waits = waits_of(self.demand.classes)
        waits = replace(waits, seconds=tuple(wait_s / unit_s for wait_s in waits.seconds))
        return replace(
            stream,
            requests=requests,
            warm_up_s=stream.warm_up_s / quicker,
            load_ends_s=stream.load_ends_s / quicker,
            waits=waits if waits.are_unlike else None,
        )

    def late(self, pair: Pair, load: float, paces: Paces) -> bool:
        """Return whether first tokens are surely late: the prefill pool shows that by itself, whatever the decode pool."""
        key = pair[0], load, paces
        if key not in self._seen.late:
            outcome = self._run(pair, load, paces, self._sizing_requests, ends_early=True)
            if outcome.parts[0].missed is None:
                return False
            self._seen.late.add(key)
        return True

    def missed(self, pair: Pair, load: float = 1.0, paces: Paces = AS_PREDICTED) -> tuple[Target, ...]:
        """Return the targets that are missed at a multiple of the peak, by replicas as slow as this."""
        outcome = self.sized(pair, load, paces)
        targets = self.question.slo.targets
        return tuple(
            target for target in targets if not _value(outcome, target, paces.decode) <= target.limit_s
        )

    def steady(self, pair: Pair, load: float, paces: Paces) -> bool:
        """Return whether no queue keeps growing."""
        (part,) = self.sized(pair, load, paces).parts
        return is_steady(part.arrival_s, part.arrival_s + part.e2e_s)

    def steady_first(self, pair: Pair, load: float, paces: Paces) -> bool:
        """Return whether the wait for first tokens does not keep growing."""
        (part,) = self.sized(pair, load, paces).parts
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

        A pair that has no fewer replicas in either pool than one that meets the targets with all requests of the peak meets them too.
        """
        missing = self._lacking_first(pair, demanded, demanded)
        if missing or any(pair[0] >= met[0] and pair[1] >= met[1] for met in self._seen.met):
            return missing
        seen = self.at_peak(pair)
        missed = tuple(t for t in self.question.slo.targets if not _value(seen, t) <= t.limit_s)
        later = _late_tokens(self.link_use(pair, max(condition.load for condition in demanded)))
        if not missed:
            self._seen.met.add(pair)
            return frozenset()
        return _EITHER if _late_first(missed) else later

    def _lacking_first(self, pair: Pair, demanded: Demanded, looked: Demanded) -> Lacking:
        """Return what a pair lacks with the first requests of the peak, at some of the loads and slownesses that are demanded.

        The first token waits for both pools, and surely for the prefill pool if that is late by itself; what comes later waits for the decode
        pool, and for the prefill pool as far as its links are busy.
        """
        if self.unlinked_reason(pair):
            return _EITHER
        use = self.link_use(pair, max(condition.load for condition in demanded))
        if use.load_fraction >= 1.0:
            return frozenset({"prefill" if use.prefill_load_fraction >= 1.0 else "decode"})
        later = _late_tokens(use)
        for condition in looked:
            load, paces, latency = condition
            if latency != "tpot" and self.late(pair, load, paces):
                return _PREFILL
            missed = tuple(t for t in self.missed(pair, load, paces) if condition.concerns(t))
            if missed or not self.steady(pair, load, paces):
                first = _late_first(missed) or not self.steady_first(pair, load, paces)
                return _EITHER if first else later
        return frozenset()

    def cheapest(
        self,
        alone: Pair,
        rank: Callable[[Pair], Rank],
        demanded: Demanded,
        under: Rank = ANY_COST,
        likely: Callable[[], Pair | None] = lambda: None,
    ) -> tuple[Pair | None, int]:
        """Return the cheapest pair below a rank that meets what is demanded, or None, and how many pairs were tried.

        Pairs are simulated where replicas are busiest. The cheapest one is simulated at all that is demanded, and with all requests of
        the peak. If it lacks something there, the next pairs are simulated at all that is demanded too.
        """
        if self.never(demanded):
            return None, 0
        looked: Demanded = (max(demanded, key=lambda each: each.load * max(each.paces)),)

        def lacking(pair: Pair) -> Lacking:
            return self._lacking_first(pair, demanded, looked)

        def confirmed(pair: Pair) -> Lacking:
            nonlocal looked
            missing = self.lacking(pair, demanded)
            if missing and looked != demanded:
                looked = demanded
                for other in [other for other, lacks in known.items() if not lacks]:
                    del known[other]  # it was enough for one condition only
            return missing

        def joined(pair: Pair) -> bool:
            return not self.unlinked_reason(pair)

        known = self._seen.lacking.setdefault(demanded, {})
        return cheapest_pair(
            lacking, alone, rank, likely=likely, joined=joined, confirmed=confirmed, under=under, known=known
        )

    def never(self, demanded: Demanded) -> bool:
        """Return whether no number of replicas is enough, as the link does not join them or an idle pair misses a target."""
        return bool(self.unlinked_reason((1, 1)) or self.out_of_reach(demanded))

    def out_of_reach(self, demanded: Demanded) -> str:
        """Return which target no number of replicas meets, as a request that has both pools to itself misses it; else empty.

        The more replicas hold the contexts of sessions, the more of a prompt is cached, so one pair of replicas says nothing of these.
        """
        if self.demand.has_sessions:
            return ""
        for condition in sorted(demanded, key=lambda each: each.paces):
            paces = condition.paces
            missed = [t for t in self.missed((1, 1), NO_LOAD, paces) if condition.concerns(t)]
            if missed:
                idle = self.sized((1, 1), NO_LOAD, paces)
                value = _value(idle, missed[0], paces.decode) + missed[0].outside_s
                use = self.link_use((1, 1))
                return (
                    f"{missed[0].key} is {1000.0 * value:,.0f} ms however many replicas there are,"
                    f" {1000.0 * use.transfer_s:.3g} ms of it the transfer of a mean prompt over {use.link}"
                )
        return ""

    def slowest(
        self, pair: Pair, asked: Paces, slowness: PoolsSlowness, targets: Collection[Target]
    ) -> float:
        """Return how slow decode replicas may be at most while some targets are met at the peak.

        Prefill replicas are as slow as is equally likely. What is asked for is tried first, so that a pair that was sized for it
        is never below it.
        """

        def bears(factor: float) -> bool:
            return self._bears(pair, slowness.at(factor), targets)

        least, most = SLOWNESSES
        enough = least < asked.decode < most and self._bears(pair, asked, targets)
        between = (asked.decode, most) if enough else (least, max(least, min(asked.decode, most)))
        most_borne = _largest(bears, between)
        return max(most_borne, asked.decode) if enough else most_borne

    def _bears(self, pair: Pair, paces: Paces, targets: Collection[Target]) -> bool:
        """Return whether some targets are met at the peak; runs with slower or faster replicas may tell, so that targets share them."""
        runs = self._borne.setdefault(pair, {})
        for known, (missed, steady) in runs.items():
            holds = steady and not any(target in missed for target in targets)
            slower, faster = (known, paces) if holds else (paces, known)
            if slower.prefill >= faster.prefill and slower.decode >= faster.decode:
                return holds
        runs[paces] = self.missed(pair, 1.0, paces), self.steady(pair, 1.0, paces)
        return self._bears(pair, paces, targets)

    def most_load(self, pair: Pair, demanded: Demanded) -> float:
        """Return the multiple of the peak that a pair carries by the rule that sized it, at least 1 and at most TWICE.

        Twice the load takes a larger pair, unless a pool has the one replica that it needs at least.
        """
        room = max(condition.load for condition in demanded)

        def carried(load: float) -> bool:
            return self.link_use(pair, room * load).load_fraction < 1.0 and all(
                self.holds(pair, condition._replace(load=condition.load * load))
                for condition in reversed(demanded)
            )

        return _largest(carried, (1.0, TWICE), LOAD_HALVINGS)

    def holds(self, pair: Pair, condition: Condition) -> bool:
        """Return whether the targets of a condition hold, and no queue keeps growing."""
        load, paces, latency = condition
        if latency != "tpot" and self.late(pair, load, paces):
            return False
        missed = self.missed(pair, load, paces)
        return not any(map(condition.concerns, missed)) and self.steady(pair, load, paces)


def first_token_limits(slo: Slo, stream: Stream, unit_s: float) -> EarlyEnd:
    """Return the limits on first tokens, in this unit of time, that a run without users surely misses if too many exceed them.

    A value that is above its limit by rounding counts as within it. Targets on means, or with waits outside, have no such limit.
    """
    requests = stream.requests
    assert requests is not None
    columns = {name: requests.column(name) for name in ("class_index", "input_tokens", "output_tokens")}
    begin, end = measured_time({"arrival_s": requests.times_s, **columns}, stream, inf)
    count = int(np.count_nonzero(arrived_in({"arrival_s": requests.times_s}, begin, end)))
    limits = tuple(
        LatencyLimit(
            "ttft",
            target.limit_s / unit_s * (1.0 + ROUNDING),
            most_above(float(target.statistic[1:]) / 100.0, count),
        )
        for target in slo.targets
        if target.metric == "ttft" and target.statistic != "mean" and not target.outside_s
    )
    return EarlyEnd(limits, int(np.searchsorted(requests.times_s, begin)), end)


def _largest(holds: Callable[[float], bool], between: tuple[float, float], halvings: int = HALVINGS) -> float:
    """Return the largest factor that holds, within some halvings of a range whose lower end does."""
    low, high = (log(factor) for factor in between)
    for _ in range(halvings):
        middle = (low + high) / 2.0
        low, high = (middle, high) if holds(exp(middle)) else (low, middle)
    return exp(low)


def _value(outcome: FleetOutcome, target: Target, unit_s: float = 1.0) -> float:
    """Return the value that a target limits, of a run in this unit of time, in whichever hour it is largest [s]."""
    if not target.outside_s or outcome.seen is None:
        return outcome.value(target) * unit_s
    seen = outcome.seen.ttft_s if target.metric == "ttft" else outcome.seen.e2e_s
    return float(getattr(seen, target.statistic)) * unit_s - target.outside_s


def _late_tokens(use: LinkUse) -> Lacking:
    """Return the pools that may be short where later tokens are late: of prefill replicas, their links."""
    return _EITHER if use.prefill_load_fraction > BUSY_LINK else _DECODE


def _late_first(missed: tuple[Target, ...]) -> bool:
    """Return whether the first token is late."""
    return any(target.metric == "ttft" for target in missed)
