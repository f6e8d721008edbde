"""Replicas over the time of a trace: autoscaled, static, and spare ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from capplan.fleet.group import Group
from capplan.numbers import Array, Counts
from capplan.serving.terms import SCALE_DOWN_HOLD_S

ReplicasAt = Callable[[float], int]
"""Request rate of the whole service [1/s] -> replicas of a group in service that meet the targets at that rate."""

ROUNDED = 1e-5
"""A threshold is written with six digits, so the rate that a replica counts with is taken this part lower."""
DOWN = (0, 1, 2)
"""Replicas that may be down at the same time, a row of spares for each."""


@dataclass(frozen=True, slots=True)
class RateLine:
    """Requests per second in successive windows."""

    rates_per_s: Array
    window_s: float

    @property
    def mean_per_s(self) -> float:
        """Return the mean rate."""
        return float(self.rates_per_s.mean())

    @property
    def peak_to_mean_ratio(self) -> float:
        """Return the busiest window over the mean."""
        return float(self.rates_per_s.max()) / self.mean_per_s if self.mean_per_s else 1.0


@dataclass(frozen=True, slots=True)
class OverTime:
    """A plan over the time of a trace; only `spares` counts spare replicas."""

    window_s: float
    start_up_s: float
    burst_ratio: float
    gpus_per_replica: int
    rates_per_s: Array
    needed: Counts
    """Replicas needed in each window, with headroom and with the confidence asked for."""
    autoscaled: Counts
    """Replicas that serve under an autoscaler that follows the observed load."""
    paid: Counts
    """Replicas that are paid for under that autoscaler: those that serve and those that start."""
    foreseen: Counts
    """Replicas that are paid for with a perfect forecast: each starts in time to serve when it is needed."""
    short_fraction: float
    """Fraction of the requests that arrive while fewer replicas serve than are needed."""
    peak_to_mean_ratio: float
    static_replicas: int
    spares: tuple[Mapping[str, int], ...]
    """Rows of the size of a static fleet that tolerates a number of failures, without and with a burst above the peak."""

    def gpu_hours(self, replicas: Counts) -> float:
        """Return the GPU-hours of the replicas in each window: `paid` or `foreseen`."""
        return float(replicas.sum()) * self.gpus_per_replica * self.window_s / 3600.0

    @property
    def static_gpu_hours(self) -> float:
        """Return the GPU-hours of the smallest static fleet over the whole time."""
        return self.static_replicas * self.gpus_per_replica * self.needed.size * self.window_s / 3600.0


def scaling_rate(planned_per_s: float, rates_per_s: Sequence[float], needed: Sequence[int]) -> float:
    """Return the largest rate that each replica counts with, so that no hour has fewer than it needs.

        c = min(c_0, min_i r_i / (n_i - 1)),   n_i > 1

    A replica of a small fleet carries less, and an autoscaler has one rate for all hours: at c it starts
    more than n_i - 1 replicas at r_i.

    Parameters
    ----------
    planned_per_s : [1/s]
        c_0, largest rate that one replica is planned for
    rates_per_s : [1/s]
        r, of the group by window; empty without a load curve
    needed : [-]
        n, replicas without spares that it needs then

    Returns
    -------
    [1/s]
        c

    Examples
    --------
    >>> scaling_rate(5.0, [12.0, 4.0], [3, 2]), scaling_rate(5.0, [], [])
    (3.99996, 5.0)

    References
    ----------
    Kubernetes, "Horizontal Pod Autoscaling", algorithm details,
    https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/.
    """
    hourly = (rate / (count - 1) for rate, count in zip(rates_per_s, needed, strict=True) if count > 1)
    return min((planned_per_s, *((1.0 - ROUNDED) * rate for rate in hourly)))


def replicas_by_window(rates_per_s: Array, replicas_at: ReplicasAt) -> Counts:
    """Return the replicas needed in each window: never fewer in a busier one, and as found for the busiest.

        n_i = min(s(r_i), n_j)   for r_i < r_j,   never fewer than for a lower rate

    A window between two windows with the same number of replicas needs no search.

    Parameters
    ----------
    rates_per_s : [1/s]
        r, by window
    replicas_at : s

    Returns
    -------
    [-]
        n

    Examples
    --------
    >>> replicas_by_window(np.array([9.0, 0.0, 4.0, 4.1]), lambda rate: max(1, ceil(rate / 4.0)))
    array([3, 1, 1, 2])

    References
    ----------
    Beyer et al. 2016, "Site Reliability Engineering", chapter 18.
    """
    distinct, window = np.unique(rates_per_s, return_inverse=True)
    counts = np.zeros(distinct.size, dtype=np.int64)
    counts[-1] = replicas_at(float(distinct[-1]))
    counts[0] = min(replicas_at(float(distinct[0])), counts[-1])
    between = [(0, distinct.size - 1)]
    while between:
        low, high = between.pop()
        if counts[low] == counts[high]:
            counts[low:high] = counts[high]
        elif high - low > 1:
            middle = (low + high) // 2
            counts[middle] = np.clip(replicas_at(float(distinct[middle])), counts[low], counts[high])
            between += [(low, middle), (middle, high)]
    return np.asarray(counts[window], dtype=np.int64)


def autoscaled_replicas(needed: Counts, lag: int, hold: int) -> Counts:
    """Return the replicas that serve under an autoscaler: late by the lag, and held for a while after they were needed.

        a_j = max(n_i : j - g - d <= i <= j - g)

    Parameters
    ----------
    needed : [-]
        n, by window
    lag : [windows]
        g, from the window in which a need is observed to the one in which the replica serves
    hold : [windows]
        d, that a replica is kept after it was last needed

    Returns
    -------
    [-]
        a; until the first observation, the replicas of the first window

    Examples
    --------
    >>> autoscaled_replicas(np.array([1, 3, 1, 1, 1]), lag=1, hold=1)
    array([1, 1, 3, 3, 1])

    References
    ----------
    Kubernetes documentation, Horizontal Pod Autoscaling, "Stabilization window":
    https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/
    """
    before = np.full(lag + hold, needed[0])
    seen = np.concatenate((before, needed))[: needed.size + hold]
    result: Counts = sliding_window_view(seen, hold + 1).max(axis=1)
    return result


def forecast_replicas(needed: Counts, lag: int) -> Counts:
    """Return the replicas that run with a perfect forecast: each is started early enough to serve when it is needed.

        f_j = max(n_i : j <= i <= j + g)

    Parameters
    ----------
    needed : [-]
        n, by window
    lag : [windows]
        g, start-up

    Returns
    -------
    [-]
        f, never below n; replicas count from their start

    Examples
    --------
    >>> forecast_replicas(np.array([1, 1, 3, 1]), lag=1)
    array([1, 3, 3, 1])

    References
    ----------
    Kubernetes documentation, Horizontal Pod Autoscaling, as above; this is the bound of a perfect forecast.
    """
    padded = np.concatenate((needed, np.full(lag, needed[-1])))
    result: Counts = sliding_window_view(padded, lag + 1).max(axis=1)
    return result


def paid_replicas(serving: Counts, start: int) -> Counts:
    """Return the replicas that are paid for: each from the decision to start it until it is stopped.

        p_j = max(a_i : j <= i <= j + g)

    Parameters
    ----------
    serving : [-]
        a, by window
    start : [windows]
        g, from the decision to the first request that a replica serves

    Returns
    -------
    [-]
        p, never below a; a replica that is needed again within g is kept, and those of the first window are already running

    Examples
    --------
    Two more replicas serve from the fourth window; starting them takes two windows, so they are paid for from the second:

    >>> serving = np.array([1, 1, 1, 3, 3, 1])
    >>> paid_replicas(serving, start=2)
    array([1, 3, 3, 3, 3, 1])

    With windows of an hour and 4 GPUs each, that is (1 + 4 x 3 + 1) x 4 = 56 GPU-hours, where 10 x 4 = 40 serve.

    References
    ----------
    An instance is billed from the moment it enters the running state, before anything on it is ready:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html.
    """
    return forecast_replicas(serving, start)


def fleet_over_time(
    group: Group,
    line: RateLine,
    replicas_at: ReplicasAt,
    *,
    start_up_s: float,
    burst_ratio: float,
) -> OverTime:
    """Return the replicas of a plan, or of one pool of it, over the time of a trace.

    Parameters
    ----------
    group : states the devices of a replica
    line : rates by window
    replicas_at : rate of the whole service -> replicas of the group
    start_up_s : [s]
        from the decision to the first request served
    burst_ratio : [-]
        rate of a burst over the peak of the trace

    Returns
    -------
    replicas by window and GPU-hours
    """
    needed = replicas_by_window(line.rates_per_s, replicas_at)
    start = ceil(start_up_s / line.window_s)
    auto = autoscaled_replicas(needed, start + 1, ceil(SCALE_DOWN_HOLD_S / line.window_s))
    total = float(line.rates_per_s.sum())
    late = float(line.rates_per_s[auto < needed].sum())
    devices = group.layout.devices
    peak = int(needed.max())
    burst = max(replicas_at(float(line.rates_per_s.max()) * burst_ratio), peak)
    return OverTime(
        window_s=line.window_s,
        start_up_s=start_up_s,
        burst_ratio=burst_ratio,
        gpus_per_replica=devices,
        rates_per_s=line.rates_per_s,
        needed=needed,
        autoscaled=auto,
        paid=paid_replicas(auto, start),
        foreseen=forecast_replicas(needed, start),
        short_fraction=late / total if total else 0.0,
        peak_to_mean_ratio=line.peak_to_mean_ratio,
        static_replicas=peak,
        spares=tuple(
            {
                "failed_replicas": k,
                "replicas": peak + k,
                "gpus": (peak + k) * devices,
                "burst_replicas": burst + k,
                "burst_gpus": (burst + k) * devices,
            }
            for k in DOWN
        ),
    )
