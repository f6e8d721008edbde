"""Statistics of a workload, from a trace read part by part, from clients or from counters of a server: lengths, rates and burstiness."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from capplan.numbers import Array, Counts
from capplan.workload.length import standard_normal_quantile
from capplan.workload.reuse import PrefixReuse

PART_REQUESTS = 65_536
"""Requests in one part: the most that is held in memory while a long trace is read."""


@dataclass(frozen=True, slots=True)
class TracePart:
    """Consecutive requests, as columns of equal length, in the order of the file."""

    arrival_s: Array
    """Arrival times on the clock of the file; nan where it has none."""
    input_tokens: Counts
    output_tokens: Counts
    block_counts: Counts
    """Blocks of each prompt; 0 where the file names none."""
    block_ids: Counts
    """Identities of those blocks, one prompt after the other."""
    ttft_s: Array
    """Measured; nan where the file has none."""
    e2e_s: Array

    def __len__(self) -> int:
        """Return the number of requests."""
        return int(self.input_tokens.size)


@dataclass(slots=True)
class Omissions:
    """Rows that are not used, counted by reason, with the line where each reason first occurred."""

    counts: Counter[str] = field(default_factory=Counter)
    first_line: dict[str, int] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    """What is wrong with the first row of a reason, where that says more."""
    broken: dict[str, int] = field(default_factory=dict)
    """The reasons for which strict reading refuses the file, with their first line."""
    notes: list[str] = field(default_factory=list)
    """What was normalised, such as a unit of time."""
    assumed_unit: str = ""
    """Unit in which time stamps are read though the file does not state one; empty if it does."""
    counted_in: str = "line"
    """What the numbers of rows count: lines of a file, rows of Parquet, or entries of a list."""

    def drop(self, reason: str, line: int, *, broken: bool = False, cause: str = "") -> None:
        """Count one row that is left out; a broken row cannot be what its writer meant."""
        self.counts[reason] += 1
        self.first_line.setdefault(reason, line)
        self.causes.setdefault(reason, cause and f": {cause}")
        if broken:
            self.broken.setdefault(reason, line)

    def note(self, text: str) -> None:
        """Record once what was done to the file."""
        if text not in self.notes:
            self.notes.append(text)

    def lines(self) -> list[str]:
        """Return the reasons as people read them, most frequent first.

        Examples
        --------
        >>> omissions = Omissions()
        >>> omissions.drop("no output token", 3)
        >>> omissions.lines()
        ['1 row left out: no output token (first in line 3)']
        """
        return [
            f"{count:,} row{'s' if count > 1 else ''} left out: {reason} (first in {self.counted_in} {self.first_line[reason]}{self.causes[reason]})"
            for reason, count in self.counts.most_common()
        ]


LONGEST_TOKENS = 10_000_000
"""A longer input or output is an error in the file."""
KEPT_ARRIVALS = 8_000_000
"""Arrivals kept for interarrival times; rates count all arrivals."""
LEAST_GAPS = 20
"""Interarrival times that a minute needs for its variation to count."""
WINDOW_S = 60.0
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
MOST_HOURS = 48
"""A longer trace is shown by hour of the day."""


def weighted_quantile(values: Array, weights: Array, probability: Array) -> Array:
    """Return quantiles of values with the number of times that each occurs.

        Q(p) = linear between the order statistics at p (n - 1)

    Parameters
    ----------
    values : [any]
        ascending
    weights : [-]
        times that each occurs, whole numbers; n is their sum
    probability : [-]
        p

    Returns
    -------
    [any]
        Q of the list in which each value is repeated

    Examples
    --------
    >>> weighted_quantile(np.array([1.0, 2.0]), np.array([1.0, 1.0]), np.array([0.5]))
    array([1.5])

    References
    ----------
    Hyndman, Fan 1996, "Sample quantiles in statistical packages", definition 7, doi:10.2307/2684934.
    """
    reached = np.cumsum(weights)
    place = np.asarray(probability) * (reached[-1] - 1.0)
    low = values[np.searchsorted(reached, np.floor(place), side="right")]
    high = values[np.searchsorted(reached, np.minimum(np.ceil(place), reached[-1] - 1.0), side="right")]
    return np.asarray(low + (high - low) * (place - np.floor(place)))


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Token counts of inputs or outputs."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float
    values: tuple[float, ...]
    """Quantiles of equal weight that stand for the distribution, ascending, with its mean."""
    fit: Mapping[str, float]
    """Their lognormal distribution; see `lognormal_fit`."""


VALUES = 100


def length_summary(tokens: Array, weights: Array) -> LengthSummary:
    """Return the summary of token counts, ascending, each weighted by its count (or probability).

    Examples
    --------
    >>> summary = length_summary(np.array([10.0, 30.0]), np.array([300.0, 100.0]))
    >>> summary.mean, summary.p50, summary.p95
    (15.0, 10.0, 30.0)
    """
    total = float(weights.sum())
    mean = float(tokens @ weights) / total
    whole = weights if total > VALUES else weights * (1e9 / total)
    p50, p95, p99 = weighted_quantile(tokens, whole, np.array([0.5, 0.95, 0.99])).tolist()
    middle = weighted_quantile(tokens, whole, (np.arange(VALUES) + 0.5) / VALUES)
    scaled = np.maximum(np.rint(middle * (mean / middle.mean())), 1.0)
    return LengthSummary(
        mean=mean,
        p50=p50,
        p95=p95,
        p99=p99,
        max=float(tokens[-1]),
        values=tuple(scaled.tolist()),
        fit=lognormal_fit(tokens, weights / total, mean),
    )


def lognormal_fit(tokens: Array, share: Array, mean: float) -> dict[str, float]:
    """Return the lognormal distribution with this mean and the spread of the logarithms, and how far it is off.

    The error is the largest distance between the two cumulative distributions (Kolmogorov-Smirnov).

    Examples
    --------
    Half of the prompts have 100 tokens, half have 10,000: no lognormal distribution is near that.

    >>> fit = lognormal_fit(np.array([100.0, 10_000.0]), np.array([0.5, 0.5]), 5050.0)
    >>> [round(fit[name], 2) for name in ("mean", "sigma", "largest_error_fraction")]
    [5050.0, 2.3, 0.43]
    """
    logs = np.log(np.maximum(tokens, 1.0))
    centre = float(logs @ share)
    sigma = float(np.sqrt(max(float(np.square(logs - centre) @ share), 0.0)))
    shift = np.log(mean) - sigma**2 / 2.0
    p95 = float(np.exp(shift + sigma * float(standard_normal_quantile(0.95))))
    if sigma == 0.0:
        return {"mean": mean, "sigma": 0.0, "p95": mean, "largest_error_fraction": 0.0}
    grid = np.arange(1, 200) / 200.0
    drawn = np.exp(shift + sigma * standard_normal_quantile(grid))
    reached = np.concatenate(([0.0], np.cumsum(share)))
    seen = reached[np.searchsorted(tokens, drawn, side="right")]
    error = float(np.abs(seen - grid).max())
    return {"mean": mean, "sigma": sigma, "p95": p95, "largest_error_fraction": error}


class TokenCounts:
    """How often each token count occurs."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        """Start empty."""
        self._counts: Counts = np.zeros(1024, dtype=np.int64)
        self.total = 0

    def add(self, tokens: Counts) -> None:
        """Count some lengths."""
        if not tokens.size:
            return
        counts = np.bincount(tokens)
        if counts.size > self._counts.size:
            self._counts = np.concatenate(
                (self._counts, np.zeros(2 * counts.size - self._counts.size, dtype=np.int64))
            )
        self._counts[: counts.size] += counts
        self.total += int(tokens.size)

    def summary(self) -> LengthSummary:
        """Return the summary of the lengths."""
        tokens = np.flatnonzero(self._counts)
        return length_summary(tokens.astype(np.float64), self._counts[tokens].astype(np.float64))


@dataclass(frozen=True, slots=True)
class RateSummary:
    """Arrival rates; None where the trace is too short."""

    seconds: float
    mean: float | None
    """Requests per second."""
    peak_60s: float | None
    """Requests per second in the busiest whole minute; the mean rate for traces of under two minutes."""
    cv: float | None
    """Coefficient of variation of the time between arrivals; 1 is Poisson."""
    dispersion_60s: float | None
    """Variance over mean of the requests per minute; 1 is Poisson at a constant rate."""
    by_hour: tuple[float, ...]
    """Requests per second of each hour; of each hour of the day for traces over two days."""
    by_window: tuple[float, ...] = ()
    """Requests per second of each window of `window_s`."""
    window_s: float = WINDOW_S
    cv_60s: float | None = None
    """As `cv`, but within minutes, without the drift of the rate; None where no minute has enough arrivals."""
    quantised: bool = False
    """Most arrivals share a timestamp; `cv` is then that of the requests per timestamp."""

    @property
    def peak_to_mean_ratio(self) -> float | None:
        """Busiest minute over the mean."""
        return self.peak_60s / self.mean if self.peak_60s and self.mean else None


def rates_by_window(by_window: Mapping[float, float], window_s: float, cv: float | None) -> RateSummary:
    """Return the rates of traffic that is known by windows.

    Parameters
    ----------
    by_window : [1/s]
        requests per second by the start of a window [s]; a window that is left out had none
    window_s : [s]
        length of a window
    cv : of the time between arrivals; None if it is not known
    """
    starts = np.array(sorted(by_window))
    index = np.rint((starts - starts[0]) / window_s).astype(np.int64)
    rates = np.zeros(int(index[-1]) + 1)
    np.add.at(rates, index, [by_window[start] for start in starts])
    seconds = rates.size * window_s
    hour = (np.arange(rates.size) * window_s // HOUR_S).astype(np.int64)
    hour = hour % 24 if seconds > MOST_HOURS * HOUR_S else hour
    by_hour = np.bincount(hour, weights=rates) / np.bincount(hour) if window_s <= HOUR_S else np.zeros(0)
    return RateSummary(
        seconds=seconds,
        mean=float(rates.mean()),
        peak_60s=float(rates.max()),
        cv=cv,
        dispersion_60s=None,
        by_hour=tuple(by_hour.tolist()),
        by_window=tuple(rates.tolist()),
        window_s=window_s,
    )


def interarrival_cv(arrival_s: Array) -> tuple[float | None, bool]:
    """Return the coefficient of variation of interarrival times, and whether timestamps are quantised.

        c = sqrt(E[g^2] - E[g]^2) / E[g]

    Where most timestamps are shared, c is the square root of variance over mean of the requests per
    timestamp, the same for a renewal process over long intervals.

    Parameters
    ----------
    arrival_s : [s]
        ascending

    Returns
    -------
    [-]
        c, None for fewer than three arrivals or zero duration; and a flag

    Examples
    --------
    >>> interarrival_cv(np.array([0.0, 1.0, 2.0, 3.0]))
    (0.0, False)

    References
    ----------
    Cox 1962, "Renewal Theory", section 3.3: the variance of a renewal count over its mean tends to c^2.
    """
    if arrival_s.size < 3 or arrival_s[-1] <= arrival_s[0]:
        return None, False
    stamps, repeats = np.unique(arrival_s, return_counts=True)
    quantised = stamps.size > 2 and stamps.size < 0.5 * arrival_s.size
    if quantised:
        return float(np.sqrt(repeats.var() / repeats.mean())), True
    gaps = np.diff(arrival_s)
    return float(gaps.std() / gaps.mean()), False


def cv_within_minutes(arrival_s: Array) -> float | None:
    """Return the coefficient of variation of interarrival times within minutes.

        c = sqrt(sum_w n_w c_w^2 / sum_w n_w),   n_w the gaps of minute w; minutes with fewer than 20 are left out

    Parameters
    ----------
    arrival_s : [s]
        ascending

    Returns
    -------
    [-]
        c; None where no minute has enough gaps, or where most timestamps are shared

    Examples
    --------
    A minute of one request a second, then one of two: steady in both, though not over both.

    >>> steps = np.concatenate((np.arange(60.0), 60.0 + np.arange(120) / 2.0))
    >>> cv_within_minutes(steps), round(interarrival_cv(steps)[0], 2)
    (0.0, 0.35)

    References
    ----------
    Whitt 1982, "Approximating a point process by a renewal process", doi:10.1287/opre.30.1.125 (variability by time scale).
    """
    if arrival_s.size < 3 or interarrival_cv(arrival_s)[1]:
        return None
    minute = np.floor((arrival_s - arrival_s[0]) / WINDOW_S).astype(np.int64)
    starts = np.flatnonzero(np.diff(minute, prepend=-1))
    ends = np.append(starts[1:], arrival_s.size)
    squares = weight = 0.0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        gaps = np.diff(arrival_s[start:end])
        if gaps.size >= LEAST_GAPS and gaps.mean() > 0.0:
            squares += gaps.size * float(gaps.var() / gaps.mean() ** 2)
            weight += gaps.size
    return float(np.sqrt(squares / weight)) if weight else None


class ArrivalCounts:
    """Requests per minute, and the arrival times themselves as long as they are few."""

    __slots__ = ("_first_s", "_kept", "_last_s", "_least_s", "_minutes", "kept", "total", "unsorted")

    def __init__(self) -> None:
        """Start empty."""
        self._first_s = np.nan
        self._least_s, self._last_s = np.inf, -np.inf
        self._minutes: Counter[int] = Counter()
        self._kept: list[Array] = []
        self.kept = 0
        self.total = 0
        self.unsorted = 0
        """Requests that follow a later one in the file."""

    def add(self, arrival_s: Array) -> None:
        """Count some arrivals, in the order of the file."""
        if not arrival_s.size:
            return
        if not self.total:
            self._first_s = float(arrival_s[0])
        latest = np.maximum.accumulate(np.maximum(arrival_s, self._last_s))
        self.unsorted += int(np.count_nonzero(arrival_s < latest))
        self._least_s = min(self._least_s, float(arrival_s.min()))
        self._last_s = float(latest[-1])
        minute = np.floor((arrival_s - self._first_s) / WINDOW_S).astype(np.int64)
        keys, counts = np.unique(minute, return_counts=True)
        self._minutes.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))
        if self.kept < KEPT_ARRIVALS:
            self._kept.append(arrival_s)
            self.kept += int(arrival_s.size)
        self.total += int(arrival_s.size)

    def summary(self) -> RateSummary:
        """Return the arrival rates."""
        seconds = max(self._last_s - self._least_s, 0.0) if self.total else 0.0
        if self.total < 2 or seconds == 0.0:
            return RateSummary(seconds, None, None, None, None, ())
        arrivals = np.sort(np.concatenate(self._kept))
        cv, quantised = interarrival_cv(arrivals)
        if self.kept == self.total:
            minute = np.floor((arrivals - arrivals[0]) / WINDOW_S).astype(np.int64)
            keys, counts = np.unique(minute, return_counts=True)
        else:
            pairs = sorted(self._minutes.items())
            keys = np.array([key for key, _ in pairs]) - pairs[0][0]
            counts = np.array([count for _, count in pairs])
        summary = rate_summary(self.total, seconds, keys, counts, cv=cv, quantised=quantised)
        return replace(summary, cv_60s=cv_within_minutes(arrivals))


def rate_summary(
    requests: int, seconds: float, minutes: Counts, counts: Counts, *, cv: float | None, quantised: bool
) -> RateSummary:
    """Return the rates from request counts of the minutes that had any; minutes count from the first request.

    Examples
    --------
    Two minutes with 30 and 90 requests: one a second on average, half as much again in the busier minute.

    >>> rates = rate_summary(120, 120.0, np.array([0, 1]), np.array([30, 90]), cv=None, quantised=False)
    >>> rates.mean, rates.peak_60s, rates.dispersion_60s
    (1.0, 1.5, 15.0)
    """
    mean = requests / seconds
    whole = int(seconds // WINDOW_S)
    inside = counts[minutes < whole]
    peak, dispersion = mean, None
    if whole >= 2:
        peak = float(inside.max(initial=0)) / WINDOW_S
        average = float(inside.sum()) / whole
        square = float(np.square(inside, dtype=np.float64).sum()) / whole
        dispersion = (square - average**2) / average if average else None
    hours = max(int(np.ceil(seconds / HOUR_S)), 1)
    hour = (minutes * WINDOW_S / HOUR_S).astype(np.int64)
    if hours > MOST_HOURS:
        by_hour = np.bincount(hour % 24, weights=counts, minlength=24) / (seconds / 24.0)
    else:
        last_s = seconds - (hours - 1) * HOUR_S
        lasting = np.array([HOUR_S] * (hours - 1) + [max(last_s, WINDOW_S)])
        by_hour = np.bincount(hour, weights=counts, minlength=hours)[:hours] / lasting
    windows = np.zeros(0)
    if 1 <= whole <= 60 * 24 * 31:
        windows = np.bincount(minutes[minutes < whole], weights=inside, minlength=whole) / WINDOW_S
    return RateSummary(
        seconds,
        mean,
        peak,
        cv,
        dispersion,
        tuple(by_hour.tolist()),
        tuple(windows.tolist()),
        WINDOW_S,
        quantised=quantised,
    )


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """One workload as a planner needs it."""

    name: str
    format: str
    requests: int
    rate: RateSummary
    input_tokens: LengthSummary
    output_tokens: LengthSummary
    prefix: PrefixReuse | None = None
    evictions: tuple[Mapping[str, Any], ...] = ()
    """Rows of the hits under each rule of eviction that was asked for, as a part of the prompt tokens, by blocks and tokens of the cache."""
    prefix_hit_fraction: float | None = None
    """Fraction of prompt tokens that hit the prefix cache of the server, where it counted them."""
    measured: Mapping[str, float | None] | None = None
    """Mean TTFT, time per output token after the first, end-to-end latency and time in the queue [s], each None where the file has none of it."""
    acceptance_fraction: float | None = None
    """Fraction of draft tokens that were accepted."""
    accepted_tokens_per_round: float | None = None
    """Bonus token included."""
    kv_cache_tokens: float | None = None
    """Tokens of the KV cache of the server whose counters were read."""
    omissions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def counted_prefix(self) -> tuple[int, float] | None:
        """Return a prefix of all prompts, and the share of them that find it, with the hits that a server counted; None without any.

            t = E[L] - 1,   h' = min(h E[L] / E[min(t, L - 1)], 1)

        A counter says that h of all tokens were found, not where; prompts L shorter than the prefix t find
        less of it.
        """
        if not self.prefix_hit_fraction:
            return None
        lengths = np.asarray(self.input_tokens.values, dtype=np.float64)
        tokens = max(int(self.input_tokens.mean) - 1, 1)
        held = float(np.minimum(np.maximum(lengths - 1.0, 0.0), tokens).mean())
        counted = self.prefix_hit_fraction * self.input_tokens.mean
        return tokens, min(counted / held, 1.0) if held else 1.0
