"""Several groups of replicas behind one router: what all of their requests see together, and which loads and slownesses meet the targets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf

import numpy as np

from capplan.accuracy.slowness import Slowness
from capplan.fleet.search.latencies import Latencies, latencies_of
from capplan.fleet.search.one_layout import Standing
from capplan.fleet.search.trial import Trial
from capplan.workload.request_class import RequestClass, Target

PROBABILITIES = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.75,
    0.8,
    0.85,
    0.9,
    0.925,
    0.95,
    0.975,
    0.99,
    0.995,
)
"""Probabilities, beyond the required one, at which groups are simulated as slow as they are at most; between them the worst ratio is a power."""
RATIOS = tuple(2.0 ** (step / 8.0) for step in range(-8, 33))
"""Multiples of the traffic at which the most that a mix carries is looked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """One group: a layout with the requests that the router sends to it."""

    trial: Trial
    busy: int
    """Replicas in service."""
    classes: tuple[int, ...]
    """Place of each class of its requests among all classes of the service."""

    def slowness(self, target: Target | None) -> Slowness:
        """Return the slowness that decides about all targets, or about a single one."""
        return self.trial.candidate.slowness if target is None else self.trial.slowness_of(target)


@dataclass(frozen=True, slots=True)
class Together:
    """The groups of a mix, whose requests count together.

    One slowness decides about all groups: where a group is as slow as in a part of the cases, so are the others.
    """

    classes: tuple[RequestClass, ...]
    """All classes of the service."""
    parts: tuple[Part, ...]
    targets: tuple[Target, ...]

    @property
    def confidence(self) -> float:
        """Required confidence of the question of all groups."""
        return self.parts[0].trial.question.slo.confidence

    @property
    def limits(self) -> Mapping[Target, float]:
        """Limits of all targets [s]."""
        return {target: target.limit_s for target in self.targets}

    def seen(
        self,
        slownesses: Sequence[float] | None = None,
        traffic_ratio: float = 1.0,
        of: Sequence[int] | None = None,
    ) -> Latencies:
        """Return the latencies of all requests together, or of those of some groups.

        Parameters
        ----------
        slownesses : [-]
            factor on the time of each step, by group; None: as predicted
        traffic_ratio : [-]
            multiple of the traffic
        of : places of the groups that count; None: all

        Returns
        -------
        latencies; steady only where no group has a queue that grows
        """
        runs = []
        for place in range(len(self.parts)) if of is None else of:
            part = self.parts[place]
            slowness = 1.0 if slownesses is None else slownesses[place]
            own = np.array(part.classes)
            runs += [
                (replace(seen, class_index=own[seen.class_index]), count)
                for seen, count in part.trial.samples(part.busy, slowness, traffic_ratio)
            ]
        return latencies_of(runs, self.classes)

    def by_class(self) -> list[Latencies]:
        """Return the latencies of the requests of each class, whichever group serves them, as predicted at the peak."""
        found = []
        for place in range(len(self.classes)):
            runs = []
            for part in self.parts:
                own = np.array(part.classes)
                for seen, count in part.trial.samples(part.busy):
                    rows = own[seen.class_index] == place
                    if rows.any():
                        share = float(rows.mean())
                        mine = replace(
                            seen,
                            ttft_s=seen.ttft_s[rows],
                            tpot_s=seen.tpot_s[rows],
                            e2e_s=seen.e2e_s[rows],
                            class_index=np.full(int(rows.sum()), place),
                            requests_per_s=share * seen.requests_per_s,
                        )
                        runs.append((mine, count))
            found.append(latencies_of(runs, self.classes) if runs else self.seen())
        return found

    def value(self, target: Target) -> float:
        """Return the value that a target limits, of all requests together at the peak, as predicted [s]."""
        return self._value(self.seen(), target, None, 1.0)

    def _value(
        self, seen: Latencies, target: Target, slownesses: Sequence[float] | None, traffic_ratio: float
    ) -> float:
        """Return the value that a target limits of what all requests see together [s]."""
        if target.metric != "itl":
            return seen.value(target)
        slower = [1.0] * len(self.parts) if slownesses is None else slownesses
        alone = (self.seen(slownesses, traffic_ratio, [place]) for place in range(len(self.parts)))
        # no quantile of the gaps of all requests is above the largest of a group
        return max(own.value(target, slowness) for own, slowness in zip(alone, slower, strict=True))

    def worst(
        self, slownesses: Sequence[float] | None, traffic_ratio: float, limits: Mapping[Target, float]
    ) -> float:
        """Return the largest ratio of a target's value to its limit; infinite where a queue grows."""
        seen = self.seen(slownesses, traffic_ratio)
        if not seen.steady:
            return inf
        ratios = (
            self._value(seen, target, slownesses, traffic_ratio) / limit for target, limit in limits.items()
        )
        return max(ratios, default=0.0)

    def at(self, probability: float, target: Target | None = None) -> list[float]:
        """Return how slow each group is at most in a part of the cases."""
        return [part.slowness(target).quantile(probability) for part in self.parts]

    def holds(self, confidence: float, headroom_fraction: float) -> bool:
        """Return whether all targets hold: as predicted, at the peak plus headroom, and with the confidence, at the peak."""
        ratio = 1.0 / (1.0 - headroom_fraction)
        return (
            self.worst(self.at(confidence), 1.0, self.limits) <= 1.0
            and self.worst(None, ratio, self.limits) <= 1.0
        )

    def standing(self, confidence: float, headroom_fraction: float) -> Standing:
        """Return how the groups stand, each with its share of the requests."""
        carried = self.most_load(None) * (1.0 - headroom_fraction)
        needed = tuple(ceil(part.busy / carried - 1e-9) if carried else None for part in self.parts)
        values = {target: self.value(target) + target.outside_s for target in self.targets}
        return Standing(values, self.probability(confidence), needed)

    def with_busy(self, busy: Sequence[int]) -> "Together":
        """Return the same groups with other numbers of replicas in service."""
        parts = zip(self.parts, busy, strict=True)
        return replace(self, parts=tuple(replace(part, busy=count) for part, count in parts))

    def resized(self, meets: Callable[["Together"], bool]) -> tuple[int, ...] | None:
        """Return replicas of each group with which the groups meet some condition together; None if no multiple of these numbers does.

        All groups grow or shrink by one factor, then each has as few replicas as the others allow.
        """

        def holds(busy: Sequence[int]) -> bool:
            return meets(self.with_busy(busy))

        def counts(ratio: float) -> list[int]:
            return [max(ceil(ratio * part.busy - 1e-9), 1) for part in self.parts]

        place = fewest(range(len(RATIOS)), lambda at: holds(counts(RATIOS[at])))
        if place is None:
            return None
        found = counts(RATIOS[place])

        def with_fewer(at: int, count: int) -> bool:
            return holds([*found[:at], count, *found[at + 1 :]])

        for at, most in enumerate(tuple(found)):
            found[at] = fewest(range(1, most + 1), partial(with_fewer, at)) or most
        return tuple(found)

    def probability(self, confidence: float, target: Target | None = None) -> float:
        """Return the probability that all targets hold at the peak, or one of them.

        It is the largest part of the cases in which all groups, each as slow as it is then at most, meet them together.
        """
        limits = self.limits if target is None else {target: target.limit_s}
        known = sorted({*PROBABILITIES, confidence})

        def excess(probability: float) -> float:
            return self.worst(self.at(probability, target), 1.0, limits)

        low, high = last_of(known, lambda probability: excess(probability) <= 1.0)
        if low is None:
            return 0.0
        if high is None:
            return low
        below, over = excess(low), excess(high)
        if not below < over < inf or below <= 0.0:
            return low
        return float(low + (high - low) * np.log(1.0 / below) / np.log(over / below))

    def most_load(self, slownesses: Sequence[float] | None) -> float:
        """Return the largest multiple of the traffic at which all targets hold, each group with its share of it; 0 where none does."""
        low, high = last_of(RATIOS, lambda ratio: self.worst(slownesses, ratio, self.limits) <= 1.0)
        if low is None or high is None:
            return low or 0.0
        if low <= 1.0 < high and self.worst(slownesses, 1.0, self.limits) <= 1.0:
            return 1.0
        return low


def last_of(values: Sequence[float], holds: Callable[[float], bool]) -> tuple[float | None, float | None]:
    """Return the last of ascending values at which something holds, and the next one; None where there is none.

    Examples
    --------
    >>> last_of([1.0, 2.0, 3.0, 4.0], lambda value: value < 3.5), last_of([1.0, 2.0], lambda value: False)
    ((3.0, 4.0), (None, 1.0))
    """
    low, high = -1, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(values[middle]) else (low, middle)
    return values[low] if low >= 0 else None, values[high] if high < len(values) else None


def fewest(counts: range, holds: Callable[[int], bool]) -> int | None:
    """Return the least of some counts at which something holds, which then holds at all above it; None if it does at none.

    Examples
    --------
    >>> fewest(range(1, 10), lambda count: count >= 4), fewest(range(1, 10), lambda count: False)
    (4, None)
    """
    if not counts or not holds(counts[-1]):
        return None
    low, high = counts[0], counts[-1]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high
