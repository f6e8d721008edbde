"""Latencies that users see: each request also waits outside as long as its class does; the hour that makes a latency largest counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Array, Spread
from capplan.serving.outcome import PERCENTILES, SeenByUsers
from capplan.workload.request_class import RequestClass, Statistic

HALVINGS = 40
"""Halvings of the range of a percentile: to the twelfth digit."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The wait of each class before its prompts are sent, and how much of its traffic each hour of a day has."""

    seconds: tuple[float, ...]
    """Wait of each class."""
    hours: tuple[tuple[float, ...], ...]
    """Traffic of each class as a multiple of the planned one: at the peak, which is first, and in each other hour of a day."""

    @property
    def are_unlike(self) -> bool:
        """Whether some classes wait longer than others."""
        return len(set(self.seconds)) > 1

    @property
    def at_the_peak(self) -> "Waits":
        """Return the waits at the peak only."""
        return Waits(self.seconds, self.hours[:1])


def waits_of(classes: Sequence[RequestClass]) -> Waits:
    """Return the waits of the classes of a traffic, and the hours in which they come."""
    curves = [item.hourly_rate_fractions for item in classes]
    hours = range(max((len(curve) for curve in curves), default=0))
    parts = [tuple(curve[hour] if curve else 1.0 for curve in curves) for hour in hours]
    peak = (1.0,) * len(classes)
    return Waits(
        tuple(item.outside.wait_s for item in classes),
        tuple(dict.fromkeys((peak, *(part for part in parts if any(part))))),
    )


class WaitedTimes:
    """A latency of the requests of a run at the peak, by class, and the wait of each class."""

    __slots__ = ("_counts", "_engine_s", "_means", "_ordered", "_reached", "_waits")

    def __init__(
        self,
        waits: Waits,
        values_s: Array,
        class_index: NDArray[np.int64],
        engine_s: Spread[float],
        weights: Array | None = None,
    ) -> None:
        """Sort the requests of each class.

        Parameters
        ----------
        waits : of the classes
        values_s : [s]
            latency of each request; nan for a request without one
        class_index : of each request
        engine_s : [s]
            statistics of all requests
        weights : [-]
            how often each request counts; None: once
        """
        self._waits, self._engine_s = waits, engine_s
        self._ordered: list[Array] = []
        self._reached: list[Array] = []
        counts, means = [], []
        for place in range(len(waits.seconds)):
            rows = np.flatnonzero((class_index == place) & np.isfinite(values_s))
            rows = rows[np.argsort(values_s[rows], kind="stable")]
            often = np.ones(rows.size) if weights is None else weights[rows]
            counts.append(float(often.sum()))
            means.append(float(np.average(values_s[rows], weights=often)) if rows.size else 0.0)
            self._ordered.append(values_s[rows])
            self._reached.append(np.concatenate([[0.0], np.cumsum(often)]) / (counts[-1] or 1.0))
        self._counts, self._means = np.array(counts), np.array(means)

    def value(self, statistic: Statistic, slowness: float = 1.0) -> float:
        """Return a statistic of what users see.

            v = min(s Q(x) + max_k w_k, max_h Q_h(s x_i + w_k(i)))

        Q_h counts the requests of each class as often as they come in hour h, when replicas are no busier
        than at the peak. The first argument is the bound of the case in which every request waits as long
        as the longest wait.

        Parameters
        ----------
        statistic : Q, mean or percentile
        slowness : [-]
            s, factor on the time x of each request i, of class k

        Returns
        -------
        [s]
            v

        Examples
        --------
        Nine requests of 1 s that wait nothing outside, and one that waits 4 s; at night there are as many of either class:

        >>> from capplan.serving.outcome import spread
        >>> times, classes = np.ones(10), np.array([0] * 9 + [1])
        >>> waits = Waits((0.0, 4.0), ((1.0, 1.0), (0.1, 0.9)))
        >>> day, peak = (WaitedTimes(each, times, classes, spread(times)) for each in (waits, waits.at_the_peak))
        >>> day.value("mean"), round(peak.value("mean"), 3), day.value("mean", slowness=2.0)
        (3.0, 1.4, 4.0)
        >>> round(day.value("p90"), 6), round(peak.value("p50"), 6)
        (5.0, 1.0)

        References
        ----------
        docs/methodology.md, "Numbers of replicas".
        """
        waits_s, hours = np.array(self._waits.seconds), np.array(self._waits.hours) * self._counts
        hours = hours[hours.any(axis=1)]
        shares = hours / hours.sum(axis=1, keepdims=True)
        most_s = slowness * float(getattr(self._engine_s, statistic)) + float(waits_s.max())
        if statistic == "mean":
            return min(most_s, float((shares @ (slowness * self._means + waits_s)).max()))
        part, low, high = int(statistic[1:]) / 100.0, 0.0, most_s
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            below = [
                reached[ordered.searchsorted((middle - wait_s) / slowness, "right")]
                for ordered, reached, wait_s in zip(
                    self._ordered, self._reached, self._waits.seconds, strict=True
                )
            ]
            low, high = (low, middle) if float((shares @ below).min()) >= part else (middle, high)
        return high

    @property
    def by_class(self) -> tuple[Spread[float], ...]:
        """Mean and percentiles of what the users of each class see at the peak; those of all users for a class without requests."""
        return tuple(
            Spread(
                mean + wait_s,
                *(float(ordered[reached.searchsorted(part) - 1]) + wait_s for part in PERCENTILES),
            )
            if ordered.size
            else self.spread
            for mean, ordered, reached, wait_s in zip(
                self._means, self._ordered, self._reached, self._waits.seconds, strict=True
            )
        )

    @property
    def spread(self) -> Spread[float]:
        """Mean and percentiles of what users see."""
        return Spread(
            self.value("mean"), self.value("p50"), self.value("p90"), self.value("p95"), self.value("p99")
        )


def seen_by_users(ttft: WaitedTimes, e2e: WaitedTimes) -> SeenByUsers:
    """Return what users see of two latencies: all of them, and those of each class."""
    return SeenByUsers(ttft.spread, e2e.spread, (ttft.by_class, e2e.by_class))
