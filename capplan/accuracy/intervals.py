"""80 % prediction intervals, by statistic, load and regime: how they were fitted is in calibrate/interval_fit.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

LEAST_POINTS = 12
"""A regime with fewer residuals than this takes the interval of the next wider one."""


LEAST_GROUPS = 6
"""With fewer groups than this a regime is thin: its interval spans that of the next wider one as well."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Measured over predicted: its percentiles at the ends of the nominal level."""

    low_ratio: float
    high_ratio: float
    n: int
    groups: int
    median_ratio: float = 1.0
    """Its median: the typical bias of predictions, which are not corrected for it."""


Intervals = Mapping[str, Interval]
"""Regime key -> interval; see `regime_keys`."""


RESIDUALS_OF_STATISTIC = {"mean": "mean", "p50": "p50", "p90": "p95", "p95": "p95", "p99": "p99"}
"""Statistic of a latency -> the one whose residuals bound it."""
RESIDUALS_OF_METRIC = {"itl": "tpot"}
"""Latencies that no row measured -> the one whose residuals bound them."""


def regime_keys(metric: str, load: str, network: str, label: str, statistic: str = "mean") -> tuple[str, ...]:
    """Return the names of the regimes that a prediction belongs to, narrowest first.

    Parameters
    ----------
    metric : ttft, tpot, itl, e2e, throughput, ...
    load : closed, open, burst, static, offline
    network : dense, moe, mla
    label : measured where the device was calibrated, else assumed
    statistic : of a latency

    Returns
    -------
    keys to look up one after the other

    Examples
    --------
    >>> regime_keys("tpot", "closed", "moe", "measured", "p90")[0], regime_keys("throughput", "open", "moe", "measured")[0]
    ('tpot_p95/closed/moe/measured', 'throughput/open/moe/measured')
    """
    quantity = RESIDUALS_OF_METRIC.get(metric, metric)
    narrow = quantity if quantity == "throughput" else f"{quantity}_{RESIDUALS_OF_STATISTIC[statistic]}"
    middle = f"{quantity}_middle" if narrow.endswith(("_mean", "_p50")) else quantity
    return (
        f"{narrow}/{load}/{network}/{label}",
        f"{narrow}/{load}/{network}",
        f"{narrow}/{load}",
        f"{middle}/{load}",
        quantity,
    )


def interval_of(intervals: Intervals, keys: Sequence[str]) -> Interval | None:
    """Return the interval of the narrowest regime that has enough residuals; None where none has any.

    A regime without data takes the widest interval of its metric, never a narrower one; a thin one spans the next as well.
    """
    interval: Interval | None = None
    for key in keys:
        entry = intervals.get(key)
        if entry is None or entry.n < LEAST_POINTS:
            continue
        interval = entry if interval is None else _spanning(interval, entry)
        if entry.groups >= LEAST_GROUPS:
            return interval
    return interval or intervals.get(keys[-1])


def _spanning(thin: Interval, wider: Interval) -> Interval:
    low, high = min(thin.low_ratio, wider.low_ratio), max(thin.high_ratio, wider.high_ratio)
    return replace(thin, low_ratio=low, high_ratio=high)


def stretched(interval: Interval, width: float) -> Interval:
    """Return an interval whose ends are a multiple as far from its median, in logarithms.

    Examples
    --------
    >>> stretched(Interval(0.5, 2.0, 30, 9), 2.0).high_ratio
    4.0
    """
    middle = interval.median_ratio
    low, high = (middle * (end / middle) ** width for end in (interval.low_ratio, interval.high_ratio))
    return replace(interval, low_ratio=low, high_ratio=high)


def widest(intervals: Intervals) -> Interval:
    """Return an interval that spans all regimes, for those that were never measured."""
    lows = [entry.low_ratio for entry in intervals.values()]
    highs = [entry.high_ratio for entry in intervals.values()]
    return Interval(min(lows, default=0.5), max(highs, default=2.0), 0, 0)
