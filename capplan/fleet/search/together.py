"""Several groups of replicas behind one router: what all of their requests see together, and which loads and slownesses meet the targets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf

import numpy as np

from capplan.accuracy.joint_normal import normal_probability, shared_out
from capplan.accuracy.slowness import JointSlowness, Latency, jointly, normal_score
from capplan.fleet.search.latencies import Latencies, latencies_of
from capplan.fleet.search.load_scale import fewest
from capplan.fleet.search.one_layout import Standing
from capplan.fleet.search.trial import Trial, limits_by_latency
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

    @property
    def slowness(self) -> JointSlowness:
        """How slow its replicas may be, by latency."""
        return self.trial.candidate.slowness


@dataclass(frozen=True, slots=True)
class Together:
    """The groups of a mix, whose requests count together.

    One slowness of each latency decides about all groups: where a group is as slow as in a part of the cases, so are the others.
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

    def at(self, latency: Latency, probability: float) -> list[float]:
        """Return how slow each group is at most in a part of the cases, as a latency shows it."""
        return [part.slowness.by_latency[latency].quantile(probability) for part in self.parts]

    def holds(self, confidence: float, headroom_fraction: float) -> bool:
        """Return whether all targets hold: as predicted, at the peak plus headroom, and with the confidence, at the peak."""
        ratio = 1.0 / (1.0 - headroom_fraction)
        return self.worst(None, ratio, self.limits) <= 1.0 and self.sure(confidence)

    def sure(self, confidence: float, traffic_ratio: float = 1.0) -> bool:
        """Return whether all targets hold with a confidence: those of each latency, and then both together."""
        by_name = limits_by_latency(self.limits)
        return all(
            self.worst(self.at(name, confidence), traffic_ratio, own) <= 1.0 for name, own in by_name.items()
        ) and (len(by_name) == 1 or self.probability(confidence, traffic_ratio) >= confidence)

    def standing(self, confidence: float, headroom_fraction: float) -> Standing:
        """Return how the groups stand, each with its share of the requests."""
        carried = self.most_load(None, self.limits) * (1.0 - headroom_fraction)
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

    def probability(self, confidence: float, traffic_ratio: float = 1.0) -> float:
        """Return the probability that all targets hold at a multiple of the peak."""
        return jointly(self._of_each(confidence, traffic_ratio).values(), self._correlation)

    def target_probability(self, confidence: float, target: Target) -> float:
        """Return the probability that one target holds at the peak; at least that of all together."""

        def at(probability: float) -> list[float]:
            return [part.trial.slowness_of(target).quantile(probability) for part in self.parts]

        alone = self._largest_part(confidence, {target: target.limit_s}, at)
        return max(alone, self.probability(confidence))

    @property
    def _correlation(self) -> float:
        return self.parts[0].slowness.correlation

    def _of_each(self, confidence: float, traffic_ratio: float = 1.0) -> dict[Latency, float]:
        """Return the probability that the targets on a latency hold, by latency."""
        return {
            name: self._largest_part(confidence, own, partial(self.at, name), traffic_ratio)
            for name, own in limits_by_latency(self.limits).items()
        }

    def _largest_part(
        self,
        confidence: float,
        limits: Mapping[Target, float],
        at: Callable[[float], Sequence[float]],
        traffic_ratio: float = 1.0,
    ) -> float:
        """Return the largest part of the cases in which all groups, each as slow as it is then at most, keep some limits together."""
        known = sorted({*PROBABILITIES, confidence})

        def excess(probability: float) -> float:
            return self.worst(at(probability), traffic_ratio, limits)

        low, high = last_of(known, lambda probability: excess(probability) <= 1.0)
        if low is None:
            return 0.0
        if high is None:
            return low
        below, over = excess(low), excess(high)
        if not below < over < inf or below <= 0.0:
            return low
        return float(low + (high - low) * np.log(1.0 / below) / np.log(over / below))

    def sure_load(self) -> float:
        """Return the largest multiple of the traffic that groups carry which are as slow as the required confidence allows for."""
        each, confidence = self._of_each(self.confidence), self.confidence
        if len(each) == 1:
            shared = dict.fromkeys(each, confidence)
        else:
            scores = [normal_score(probability) for probability in each.values()]
            limits = shared_out(scores, self._correlation, confidence)
            shared = dict(zip(each, map(normal_probability, limits), strict=True))
        by_name = limits_by_latency(self.limits)
        return min(self.most_load(self.at(name, part), by_name[name]) for name, part in shared.items())

    def most_load(self, slownesses: Sequence[float] | None, limits: Mapping[Target, float]) -> float:
        """Return the largest multiple of the traffic at which targets hold, each group with its share of it; 0 where none does."""
        low, high = last_of(RATIOS, lambda ratio: self.worst(slownesses, ratio, limits) <= 1.0)
        if low is None or high is None:
            return low or 0.0
        if low <= 1.0 < high and self.worst(slownesses, 1.0, limits) <= 1.0:
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
