"""The traffic of a scenario as the search and the simulator want it: one mixture of requests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from capplan.fleet.engine_use import TierSize, TierTokens
from capplan.fleet.scenario import Scenario
from capplan.numbers import Array
from capplan.serving.requests import Requests
from capplan.serving.steady_steps import Lengths
from capplan.workload.request_class import RequestClass

FREE_SHARE = 0.5
"""Of a cache, what running requests leave to prefixes of earlier ones; the simulation of a trace with block hashes finds the real one."""
CACHED_SHARE = 0.9
"""Of a prompt that finds its prefix, the part that it finds: the rest of the prompts then finds nothing."""
SLICES = 64
"""Lengths of equal weight that stand for a distribution when its moments are taken."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What arrives: rate, lengths, and the part of the prompts that is cached."""

    classes: tuple[RequestClass, ...]
    lengths: Lengths
    longest_tokens: int
    """Prompt and answer of the largest request that is planned for (99.9 %)."""
    hit_fractions: tuple[float, ...] = ()
    """By class, the share of the prompt tokens that the prefix cache of one plan finds; empty before a plan is known."""
    tiers: tuple[TierSize, ...] = ()
    """Memory of every replica for prefixes that its devices have no room for."""
    load_s: float = 0.0
    """That a request waits in the mean for blocks from those tiers; known with the plan."""

    @property
    def reuses(self) -> bool:
        """Return whether the cached part of the prompts depends on the size of the cache."""
        return any(item.reuse is not None for item in self.classes)

    def with_cache(self, cache_tokens: float, tiers: Sequence[TierTokens] = ()) -> "Demand":
        """Return the demand as a replica with such a cache sees it, half of it free for prefixes (an assumption).

        Tiers hold what has fallen out of the cache, so that the sizes add up; what only a tier finds is loaded from it.
        """
        sizes = np.cumsum([FREE_SHARE * cache_tokens, *(tier.tokens for tier in tiers)])
        found = [
            item.reuse.hit_fraction(sizes) if item.reuse else np.zeros(sizes.size) for item in self.classes
        ]
        hits = tuple(round(float(own[-1]), 2) for own in found)
        weights = _weights(self.classes)
        per_token = np.array([tier.load_s_per_token for tier in tiers])
        loads = [
            w * c.input_tokens.mean_tokens * float(np.diff(own) @ per_token)
            for w, own, c in zip(weights, found, self.classes, strict=True)
        ]
        cached = sum(
            w * (h * c.input_tokens.mean_tokens if c.reuse else c.cached_input_tokens)
            for w, h, c in zip(weights, hits, self.classes, strict=True)
        )
        lengths = replace(self.lengths, cached_tokens=cached)
        return replace(self, lengths=lengths, hit_fractions=hits, load_s=float(f"{sum(loads):.2g}"))

    @property
    def users(self) -> float:
        """Return the users of all classes."""
        return sum(item.users or 0.0 for item in self.classes)

    def rates_per_s(self, response_s: float) -> tuple[float, float]:
        """Return requests per second that come by themselves, and those of users who wait so long for each answer."""
        parts = {True: 0.0, False: 0.0}
        for item in self.classes:
            parts[item.users is not None] += item.request_rate_at(response_s)
        return parts[False], parts[True]

    def request_rate_per_s(self, response_time_s: Array) -> Array:
        """Return requests per second when an answer takes so long; users wait for it before they ask again."""
        total = np.zeros_like(response_time_s)
        for item in self.classes:
            if item.request_rate_per_s is not None:
                total = total + item.request_rate_per_s
            else:
                total = total + (item.users or 0.0) / ((item.think_time_s or 0.0) + response_time_s)
        return total


def _weights(classes: tuple[RequestClass, ...]) -> list[float]:
    rates = np.array([item.request_rate_at() for item in classes])
    return [float(w) for w in rates / rates.sum()]


def _moments(values: list[Array], weights: list[float]) -> tuple[float, float]:
    """Return mean and coefficient of variation of a mixture."""
    mean = sum(w * float(v.mean()) for v, w in zip(values, weights, strict=True))
    square = sum(w * float(np.square(v).mean()) for v, w in zip(values, weights, strict=True))
    return mean, math.sqrt(max(square - mean * mean, 0.0)) / mean


def demand_of(scenario: Scenario) -> Demand:
    """Return the mixture of all classes, weighted by their rates."""
    weights = _weights(scenario.classes)
    inputs, input_cv = _moments([c.input_tokens.midpoints(SLICES) for c in scenario.classes], weights)
    outputs, output_cv = _moments([c.output_tokens.midpoints(SLICES) for c in scenario.classes], weights)
    cached = sum(w * c.cached_input_tokens for w, c in zip(weights, scenario.classes, strict=True))
    longest = max(
        float(c.input_tokens.quantile(0.999)) + float(c.output_tokens.quantile(0.999))
        for c in scenario.classes
    )
    lengths = Lengths(inputs, outputs, input_cv, output_cv, cached)
    return Demand(scenario.classes, lengths, math.ceil(longest), tiers=scenario.kv_offload)


def drawn_requests(
    demand: Demand,
    count: int,
    seed: int,
    longest: int,
    *,
    users: bool | None = None,
    response_s: float = 0.0,
) -> Requests:
    """Return requests drawn from the mixture, in random order and without times of arrival, cut to the longest context.

    Parameters
    ----------
    demand : the mixture
    count : [-]
    seed : of the draws
    longest : [tokens]
        a prompt and its answer are cut to it
    users : only the classes of users, or only those that come at a rate; None: all
    response_s : [s]
        that users wait for an answer, about

    Returns
    -------
    Requests with their classes and what the prefix cache finds of them
    """
    random = np.random.default_rng([seed, 0])
    shares = np.array(
        [
            item.request_rate_at(response_s) if users is None or (item.users is not None) == users else 0.0
            for item in demand.classes
        ]
    )
    chosen = random.choice(len(demand.classes), size=count, p=shares / shares.sum())
    inputs, outputs = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    cached = np.zeros(count, dtype=np.int64)
    for index, item in enumerate(demand.classes):
        rows = np.flatnonzero(chosen == index)
        inputs[rows] = np.minimum(item.input_tokens.sample(rows.size, random), longest - 2)
        outputs[rows] = np.minimum(item.output_tokens.sample(rows.size, random), longest - 1 - inputs[rows])
        if item.reuse is not None:
            found = demand.hit_fractions[index] if demand.hit_fractions else 0.0
            part = max(CACHED_SHARE, found)
            hit = random.random(rows.size) < found / part
            shared = np.minimum(np.rint(part * inputs[rows]).astype(np.int64), inputs[rows] - 1)
        else:
            hit = random.random(rows.size) < item.prefix_hit_fraction
            shared = np.minimum(int(item.shared_prefix_tokens), inputs[rows] - 1)
        cached[rows] = np.where(hit, shared, 0)
    return Requests(inputs, np.maximum(outputs, 1), cached_tokens=cached, class_index=chosen.astype(np.int64))
