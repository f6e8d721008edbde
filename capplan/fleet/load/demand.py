"""The traffic of a scenario for the search and the simulator: one mixture of request classes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from capplan.fleet.engine_options import TierSize, TierTokens
from capplan.fleet.scenario import Purchase
from capplan.numbers import Array, Counts, Number
from capplan.serving.requests import Requests
from capplan.serving.steady_state import Lengths
from capplan.workload.kept_contexts import CacheTraffic, Contexts
from capplan.workload.request_class import RequestClass, ResponseTimes, responses_of_classes
from capplan.workload.reuse import PrefixReuse
from capplan.workload.sessions import SingleTurns, kept_context_probability, single_turns

FREE_SHARE = 0.5
"""Fraction of the KV cache that holds prefixes of earlier requests; a trace with block hashes is simulated without it."""
MISSED_STEP = 1.02
"""Ratio of two shares of the prompt tokens that a cache misses, which count as different."""
CACHED_SHARE = 0.9
"""Cached fraction of a prompt that hits; the other prompts miss entirely."""
_SURGES, _SURGE_WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
"""Standard deviations by which sessions in flight hold more than in the mean, and the weight of each: Gauss quadrature over a normal law."""
SLICES = 64
"""Number of equally likely lengths that represent a distribution when its moments are computed."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The traffic: request classes, lengths, and prefix-cache hits."""

    classes: tuple[RequestClass, ...]
    lengths: Lengths
    longest_tokens: int
    """Input plus output of the largest request to plan for (99.9th percentile of each)."""
    hit_fractions: tuple[float, ...] = ()
    """Fraction of the prompt tokens of each class that hit in the prefix cache of one plan; empty before a plan is chosen."""
    tiers: tuple[TierSize, ...] = ()
    """Offload tiers of every replica, for prefixes that its devices have no room for."""
    load_s: float = 0.0
    """Mean time that a request waits for blocks from those tiers; depends on the plan."""

    @property
    def reuses(self) -> bool:
        """Return whether prefix-cache hits depend on the size of the cache."""
        return any(request_class.reuse is not None for request_class in self.classes)

    @property
    def has_sessions(self) -> bool:
        """Return whether prefix-cache hits depend on the load of a replica too."""
        return any(request_class.sessions is not None for request_class in self.classes)

    def with_cache(
        self,
        cache_tokens: float,
        tiers: Sequence[TierTokens] = (),
        share: float = 1.0,
        response_s: ResponseTimes = 0.0,
        surge: float | None = None,
    ) -> "Demand":
        """Return the demand with the hits of a KV cache of this size; of a trace half of it is free for prefixes (an assumption).

        What prompts miss is rounded to 2 % of itself, so that replicas of nearly the same size share their runs.
        Tiers hold what was evicted from the cache, so their sizes add to its size; hits in a tier are loaded from it.

        Parameters
        ----------
        cache_tokens : [tokens]
        tiers : below the cache
        share : [-]
            of the whole traffic, at the replica; 0: contexts stay as long as the cache has room for one
        response_s : [s]
            during which sessions keep their blocks
        surge : [-]
            standard deviations by which sessions in flight hold more than in the mean; None: the mean over a normal law of them
        """
        below = np.cumsum([0.0, *(tier.tokens for tier in tiers)])
        responses_s = self.responses_s(response_s)
        traffic = self._cache_traffic(share, responses_s)
        surges, parts = (_SURGES, _SURGE_WEIGHTS) if surge is None else (np.array([surge]), np.ones(1))
        deviation = self._held_deviation(share, responses_s)
        if not deviation:
            surges, parts = np.zeros(1), np.ones(1)
        sizes = np.maximum(cache_tokens - surges * deviation, 0.0).tolist()
        curves = [
            np.average(
                [self._found(place, size, below, share, traffic) for size in sizes], axis=0, weights=parts
            )
            for place in range(len(self.classes))
        ]
        hits = tuple(_rounded_hits(float(curve[-1])) for curve in curves)
        weights = _weights(self.classes)
        per_token = np.array([tier.load_s_per_token for tier in tiers])
        loads = [
            w * c.input_tokens.mean_tokens * float(np.diff(curve) @ per_token)
            for w, curve, c in zip(weights, curves, self.classes, strict=True)
        ]
        hit = replace(self, hit_fractions=hits, load_s=float(f"{sum(loads):.2g}"))
        cached = sum(w * hit.cached_tokens_of(index) for index, w in enumerate(weights))
        return replace(hit, lengths=replace(self.lengths, cached_tokens=cached))

    def _cache_traffic(self, share: float, responses_s: Sequence[float]) -> CacheTraffic:
        """Return what all requests of a share of the traffic put into a cache."""
        rates = share * np.array(self.rates_of_classes(responses_s))
        left = np.array([_left_tokens(item) for item in self.classes])
        think_s = [item.sessions.think_time_s if item.sessions else 0.0 for item in self.classes]
        running = float((rates * np.array(responses_s) * left[:, 2]).sum())
        return CacheTraffic(rates, left[:, 0], np.array(think_s), left[:, 1], running)

    def _held_deviation(self, share: float, responses_s: Sequence[float]) -> float:
        """Return the standard deviation of what sessions in flight at a replica hold [tokens]."""
        variance = 0.0
        rates = self.rates_of_classes(responses_s)
        for item, rate, wait_s in zip(self.classes, rates, responses_s, strict=True):
            if item.sessions is not None and isinstance(item.reuse, Contexts):
                held = share * rate * (item.sessions.think_time_s + wait_s)
                variance += item.reuse.held_variance(held, of_users=item.users is not None)
        return math.sqrt(variance)

    def _found(
        self, index: int, cache_tokens: float, below: Array, share: float, traffic: CacheTraffic
    ) -> Array:
        """Return the hits of a class in the cache, and in it and each of the tiers below it together."""
        item = self.classes[index]
        if isinstance(item.reuse, PrefixReuse):
            return item.reuse.hit_fraction(FREE_SHARE * cache_tokens + below)
        if item.reuse is None or item.sessions is None:
            return np.zeros(below.size)
        others = traffic
        if item.users is not None:  # one of them sends the turn
            rest = np.ones(len(self.classes))
            rest[index] = max(1.0 - 1.0 / (item.users * share), 0.0) if share else 0.0
            others = replace(traffic, rates_per_s=traffic.rates_per_s * rest)
        return item.reuse.hit_fraction(cache_tokens + below, item.sessions.think_time_s, others)

    def cached_tokens_of(self, index: int) -> float:
        """Return the prompt tokens per request of a class that need no prefill, in the mean; of a reused prompt none before a plan is chosen."""
        item = self.classes[index]
        if item.reuse is None:
            return item.cached_input_tokens
        return self.hit_fractions[index] * item.input_tokens.mean_tokens if self.hit_fractions else 0.0

    @property
    def generated_tokens(self) -> float:
        """Return the mean tokens of an output; none where vectors or scores are asked for."""
        return 0.0 if all(item.pooled for item in self.classes) else float(self.lengths.output_tokens)

    @property
    def users(self) -> float:
        """Return the number of users of all classes."""
        return sum(request_class.users or 0.0 for request_class in self.classes)

    @property
    def user_classes(self) -> tuple[int, ...]:
        """Return the places of the classes with users among all classes."""
        return tuple(index for index, item in enumerate(self.classes) if item.users is not None)

    @property
    def mix_depends_on_responses(self) -> bool:
        """Return whether the classes' shares of the requests depend on response times: users next to any other class."""
        return bool(self.user_classes) and len(self.classes) > 1

    def responses_s(self, response_s: ResponseTimes) -> tuple[float, ...]:
        """Return the response time of each class [s], given one for all classes or one for each class."""
        return responses_of_classes(response_s, len(self.classes))

    def rates_of_classes(self, response_s: ResponseTimes) -> tuple[float, ...]:
        """Return the requests per second of each class, given the response times of users."""
        responses_s = self.responses_s(response_s)
        return tuple(item.request_rate_at(s) for item, s in zip(self.classes, responses_s, strict=True))

    def rates_per_s(self, response_s: ResponseTimes) -> tuple[float, float]:
        """Return the open-loop requests per second, and the requests per second of users with these response times."""
        parts = {True: 0.0, False: 0.0}
        for request_class, rate in zip(self.classes, self.rates_of_classes(response_s), strict=True):
            parts[request_class.users is not None] += rate
        return parts[False], parts[True]

    def request_rate_per_s(self, responses_s: Sequence[Array]) -> Array:
        """Return the requests per second of all classes if responses of each class take this long."""
        total = np.zeros(())
        for rate in self._rates_of_classes(responses_s):
            total = total + rate
        return total

    def lengths_at(self, responses_s: Sequence[Array]) -> Lengths:
        """Return the lengths of the mixture if responses of each class take this long: quick users send more of the requests."""
        rates = self._rates_of_classes(responses_s)
        total = sum(rates, start=np.zeros(()))
        cached = [self.cached_tokens_of(index) for index in range(len(self.classes))]
        return _mixed_lengths(self.classes, cached, [rate / total for rate in rates])

    def at_responses(self, response_s: ResponseTimes) -> "Demand":
        """Return the demand with the lengths that its requests have in the mean while responses take this long."""
        if not self.mix_depends_on_responses:
            return self
        mixed = self.lengths_at([np.asarray(s) for s in self.responses_s(response_s)])
        return replace(self, lengths=Lengths(*map(float, astuple(mixed))))

    def of_plan(self, response_s: ResponseTimes, hit_fractions: Sequence[float]) -> "Demand":
        """Return the demand with the mean lengths that its requests have under a plan, and the prefix-cache hits of each class there."""
        if not hit_fractions or not self.reuses:
            return self.at_responses(response_s)
        hit = replace(self, hit_fractions=tuple(hit_fractions))
        mixed = hit.lengths_at([np.asarray(s) for s in self.responses_s(response_s)])
        return replace(hit, lengths=Lengths(*map(float, astuple(mixed))))

    @property
    def hit_fraction(self) -> float:
        """Return the part of the tokens of all prompts that needs no prefill."""
        return float(self.lengths.cached_tokens) / float(self.lengths.input_tokens)

    @property
    def class_hit_fractions(self) -> tuple[float, ...]:
        """Return the part of the prompt tokens of each class that needs no prefill."""
        return tuple(
            self.cached_tokens_of(index) / item.input_tokens.mean_tokens
            for index, item in enumerate(self.classes)
        )

    def _rates_of_classes(self, responses_s: Sequence[Array]) -> list[Array]:
        """Return the requests per second of each class; without think time a response takes some time all the same."""
        return [
            response_s * 0.0 + item.request_rate_per_s
            if item.request_rate_per_s is not None
            else (item.users or 0.0) / ((item.think_time_s or 0.0) + response_s)
            for item, response_s in zip(self.classes, responses_s, strict=True)
        ]


def _left_tokens(item: RequestClass) -> tuple[float, float, float]:
    """Return the tokens that a request leaves in a cache for the next turn, those that it leaves for nobody, and those that it holds while it runs."""
    if isinstance(item.reuse, Contexts):
        return item.reuse.returning_tokens, item.reuse.gone_tokens, item.reuse.running_tokens
    found = item.cached_input_tokens
    if item.reuse is not None:
        found = item.reuse.unlimited_token_hit_fraction * item.input_tokens.mean_tokens
    own = item.input_tokens.mean_tokens - found
    return 0.0, own + item.generated_tokens, own + item.generated_tokens / 2.0


def _rounded_hits(hit_fraction: float) -> float:
    """Return hits of which the rest is a power of 1.02, the nearest one.

    Examples
    --------
    >>> round(_rounded_hits(0.9266), 4), _rounded_hits(0.0), _rounded_hits(1.0)
    (0.9268, 0.0, 1.0)
    """
    missed = 1.0 - hit_fraction
    return 1.0 - MISSED_STEP ** round(math.log(missed, MISSED_STEP)) if missed > 0.0 else 1.0


def _found_of_turns(
    turns: SingleTurns, hit_fraction: float, random: "np.random.Generator"
) -> NDArray[np.int64]:
    """Return the prompt tokens of each turn that the prefix cache holds: the context of its session, or what all share [tokens]."""
    kept, shared = kept_context_probability(hit_fraction, turns.left_tokens, turns.shared_tokens)
    draws = random.random(turns.input_tokens.size)
    return np.where(draws < kept, turns.left_tokens, np.where(draws < shared, turns.shared_tokens, 0))


def _weights(classes: tuple[RequestClass, ...]) -> list[float]:
    rates = np.array([request_class.request_rate_at() for request_class in classes])
    return [float(w) for w in rates / rates.sum()]


def _moments(values: list[Array], weights: Sequence[Number]) -> tuple[Number, Number]:
    """Return mean and coefficient of variation of a mixture."""
    mean = sum((w * float(v.mean()) for v, w in zip(values, weights, strict=True)), start=0.0)
    square = sum((w * float(np.square(v).mean()) for v, w in zip(values, weights, strict=True)), start=0.0)
    return mean, np.sqrt(np.maximum(square - mean * mean, 0.0)) / mean


def _mixed_lengths(
    classes: tuple[RequestClass, ...], cached_tokens: Sequence[float], weights: Sequence[Number]
) -> Lengths:
    inputs, input_cv = _moments([c.input_tokens.midpoints(SLICES) for c in classes], weights)
    outputs, output_cv = _moments([c.output_tokens.midpoints(SLICES) for c in classes], weights)
    cached = sum((w * tokens for w, tokens in zip(weights, cached_tokens, strict=True)), start=0.0)
    return Lengths(inputs, outputs, input_cv, output_cv, cached)


def demand_of(scenario: Purchase) -> Demand:
    """Return the mixture of all classes, weighted by their rates."""
    return replace(demand_of_classes(scenario.classes), tiers=scenario.kv_offload)


def demand_of_classes(classes: tuple[RequestClass, ...]) -> Demand:
    """Return the mixture of classes, weighted by their rates, without offload tiers."""
    mixed = _mixed_lengths(classes, [c.cached_input_tokens for c in classes], _weights(classes))
    longest = max(
        float(c.input_tokens.quantile(0.999)) + float(c.output_tokens.quantile(0.999)) for c in classes
    )
    return Demand(classes, Lengths(*map(float, astuple(mixed))), math.ceil(longest))


def without_users(demand: Demand, response_s: ResponseTimes) -> Demand:
    """Return the demand whose users are replaced by open-loop classes of the rates that they send with these response times."""
    rates = demand.rates_of_classes(response_s)
    classes = tuple(
        item if item.users is None else replace(item, users=None, think_time_s=None, request_rate_per_s=rate)
        for item, rate in zip(demand.classes, rates, strict=True)
    )
    return replace(demand_of_classes(classes), tiers=demand.tiers)


@dataclass(frozen=True, slots=True)
class PlannedDemand:
    """Requests per second of all classes, at the response times of a plan: the one peak and the one mean that every page states."""

    peak_requests_per_s: float
    mean_requests_per_s: float


def planned_demand(demand: Demand, response_s: ResponseTimes) -> PlannedDemand:
    """Return the peak and the mean of the traffic, whose users send the next request after a response of a plan.

        R = sum_k r_k,   M = sum_k f_k r_k,   r_k = N_k / (Z_k + T_k) of users

    Parameters
    ----------
    demand : classes k with rates r, or N users who think for Z; mean over peak f
    response_s : [s]
        T, of all classes or of each

    Returns
    -------
    R, M [1/s]

    References
    ----------
    Denning, Buzen 1978, "The operational analysis of queueing network models", doi:10.1145/356733.356735, interactive response time formula.
    """
    rates = demand.rates_of_classes(response_s)
    mean = sum(rate * item.mean_rate_fraction for rate, item in zip(rates, demand.classes, strict=True))
    return PlannedDemand(sum(rates), mean)


def drawn_requests(
    demand: Demand,
    count: int,
    seed: int,
    longest: int,
    *,
    of: Sequence[int] | None = None,
    stream: int = 0,
) -> Requests:
    """Return random requests of the mixture, without arrival times, truncated to the longest context.

    Parameters
    ----------
    demand : the mixture
    count : [-]
    seed : of the random draws
    longest : [tokens]
        input plus output are truncated to it
    of : places of the classes to draw from; None: all
    stream : [-]
        other draws of the same seed

    Returns
    -------
    Requests with their classes and cached tokens; the first requests of a longer draw are those of a shorter one

    Notes
    -----
    Classes, input lengths, output lengths and hits have generators of their own, so that a length does not depend on how
    many requests are drawn.
    """

    def random(what: int, index: int | None = None) -> "np.random.Generator":
        return np.random.default_rng([seed, 0, stream, what, *(() if index is None else (index,))])

    shares = np.array(
        [
            rate if of is None or index in of else 0.0
            for index, rate in enumerate(demand.rates_of_classes(0.0))
        ]
    )
    chosen = random(0).choice(len(demand.classes), size=count, p=shares / shares.sum())
    inputs, outputs = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    cached = np.zeros(count, dtype=np.int64)
    for index in np.unique(chosen).tolist():
        rows = np.flatnonzero(chosen == index)
        of_class = partial(random, index=index)
        inputs[rows], outputs[rows], cached[rows] = _drawn_of_class(
            demand, index, rows.size, of_class, longest
        )
    return Requests(inputs, np.maximum(outputs, 1), cached_tokens=cached, class_index=chosen.astype(np.int64))


def _drawn_of_class(
    demand: Demand, index: int, count: int, random: "Callable[[int], np.random.Generator]", longest: int
) -> tuple[Counts, Counts, Counts]:
    """Return input, output and cached tokens of random requests of one class; `random` gives the generator of each of them."""
    item = demand.classes[index]
    hit_fraction = demand.hit_fractions[index] if demand.hit_fractions else 0.0
    if item.sessions is not None:
        turns = single_turns(item.sessions, count, random(1), longest)
        most = item.reuse.unlimited_token_hit_fraction if item.reuse else 0.0
        found = _found_of_turns(turns, hit_fraction / most if most else 0.0, random(3))
        return turns.input_tokens, turns.output_tokens, found
    inputs = np.minimum(item.input_tokens.sample(count, random(1)), longest - 2)
    outputs = np.minimum(item.output_tokens.sample(count, random(2)), longest - 1 - inputs)
    if item.reuse is not None:
        part = max(CACHED_SHARE, hit_fraction)
        hit = random(3).random(count) < hit_fraction / part
        shared = np.minimum(np.rint(part * inputs).astype(np.int64), inputs - 1)
    else:
        hit = random(3).random(count) < item.prefix_hit_fraction
        shared = np.minimum(int(item.shared_prefix_tokens), inputs - 1)
        if item.repeated_fraction:
            again = random(4).random(count) < item.repeated_fraction
            hit, shared = hit | again, np.where(again, inputs - 1, shared)
    return inputs, outputs, np.where(hit, shared, 0)
