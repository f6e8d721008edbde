"""Both pools and the link simulated together, as `simulate` does, at any load and slowness."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from math import ceil, exp, inf, log
from typing import TypeAlias

import numpy as np

from capplan.fleet.load.peak_stream import peak_stream
from capplan.fleet.load.routed import Operation, run_fleet
from capplan.fleet.pools.link import LinkTerms, LinkUse, link_use, unlinked_reason
from capplan.fleet.pools.ratio import Lacking, Pair, cheapest_pair
from capplan.fleet.question import Question
from capplan.fleet.search.trial import demand_at_replica, is_steady, with_load_time
from capplan.fleet.simulation import FleetOutcome, Stream
from capplan.replica.replica import Replica
from capplan.workload.slo import Target

SIZING_REQUESTS = 3000
"""Simulated at least for each pair of replica counts; the latencies of the plan are those of all requests of the peak."""
STAYS = 40
"""Requests are simulated for at least this many times the mean stay of a request that has both pools to itself, and its allowed wait ..."""
MOST_SIZING_REQUESTS = 48_000
"""... but no more of them than this."""
SEED = 0
"""Of the requests, the default of `simulate`."""
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
        self.prefill, self.decode, self.link = with_load_time(prefill, self.demand), decode, link
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
            requests = self.stream.requests if count is None else self.stream.requests.part(0, count)
            if load * slowness != 1.0:
                requests = replace(requests, arrival_s=np.asarray(requests.arrival_s) / (load * slowness))
            stream, operation = replace(self.stream, requests=requests), self.operation(pair, slowness)
            self._seen[key] = run_fleet(
                self.prefill, stream, operation, replicas=sum(pair), slo=self.question.slo
            )
        return self._seen[key]

    def missed(self, pair: Pair, load: float = 1.0, slowness: float = 1.0) -> tuple[Target, ...]:
        """Return the targets that are missed at a multiple of the peak, by replicas slower than predicted by a factor."""
        outcome = self.sized(pair, load, slowness)
        targets = self.question.slo.targets
        return tuple(t for t in targets if not outcome.value(t) * slowness <= t.limit_s)

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
        missed = self.at_peak(pair).missed(self.question.slo)
        return frozenset() if not missed else _PREFILL if _late_first(missed) else later

    def cheapest(
        self, alone: Pair, costs: tuple[float, float], demanded: Demanded, most_cost: float = inf
    ) -> tuple[Pair | None, int]:
        """Return the cheapest pair of at most a cost that meets what is demanded, or None, and how many pairs were tried."""
        if self.unlinked_reason((1, 1)) or self.out_of_reach(demanded):
            return None, 0

        def lacking(pair: Pair) -> Lacking:
            return self.lacking(pair, demanded)

        def joined(pair: Pair) -> bool:
            return not self.unlinked_reason(pair)

        return cheapest_pair(lacking, alone, costs, joined=joined, most_cost=most_cost)

    def out_of_reach(self, demanded: Demanded) -> str:
        """Return which target no number of replicas meets, as a request that has both pools to itself misses it; else empty."""
        for factor in sorted({factor for _, factor in demanded}):
            missed = self.missed((1, 1), NO_LOAD, factor)
            if missed:
                value = self.sized((1, 1), NO_LOAD, factor).value(missed[0]) * factor
                use = self.link_use((1, 1))
                return (
                    f"{missed[0].key} is {value * 1000.0:.3g} ms however many replicas there are,"
                    f" {use.transfer_s * 1000.0:.3g} ms of it the transfer of a mean prompt over {use.name}"
                )
        return ""

    def slowest(self, pair: Pair, asked: float, alone: Target | None = None) -> float:
        """Return the largest factor by which all steps may be slower than predicted while the targets, or one `alone`, hold at the peak.

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


def _late_first(missed: tuple[Target, ...]) -> bool:
    """Return whether the first token is late."""
    return any(target.metric == "ttft" for target in missed)
