"""An estimate with the back-test intervals of its regime."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from capplan.accuracy.intervals import (
    LEAST_GROUPS,
    LEAST_SOURCES,
    Interval,
    Intervals,
    interval_of,
    regime_keys,
    stretched,
    widest,
)
from capplan.accuracy.serving import engine_generation, network_class
from capplan.hardware.device import Device
from capplan.numbers import Spread
from capplan.replica.estimate import Estimate, estimate
from capplan.replica.load import Load
from capplan.replica.replica import Replica


@dataclass(frozen=True, slots=True)
class BoundedSpread(Spread[float]):
    """Mean and percentiles of a latency, and the 80 % interval of its mean, in seconds."""

    low: float
    high: float


def bounded(spread: Spread[float], interval: Interval) -> BoundedSpread:
    """Return a latency with the interval of its mean."""
    low, high = spread.mean * interval.low_ratio, spread.mean * interval.high_ratio
    return BoundedSpread(**asdict(spread), low=low, high=high)


@dataclass(frozen=True, slots=True)
class BoundedEstimate:
    """An estimate, with its prediction intervals."""

    estimate: Estimate
    ttft_s: BoundedSpread
    tpot_s: BoundedSpread
    e2e_s: BoundedSpread
    throughput: Interval
    """Measured over predicted throughput."""
    unmeasured: bool
    """No result of this regime was measured: the intervals are the widest there are."""
    fewest_models: int = LEAST_GROUPS
    """Models behind the thinnest of the intervals."""
    fewest_sources: int = LEAST_SOURCES
    """The same of sources."""


SLICE_WIDTH = 1.85
"""Factor on the logarithm of an interval on a slice of a device: with it the intervals of whole devices hold 16 of the 19 runs on slices that
were measured (docs/accuracy.md, "MIG slices and embeddings"); with 1.6, which was assumed before, they hold 14."""


def interval_on(intervals: Intervals, keys: Sequence[str], device: Device) -> Interval:
    """Return the interval of the narrowest regime that was measured; wider on a slice of a device."""
    interval = interval_of(intervals, keys) or widest(intervals)
    return interval if device.partition is None else stretched(interval, SLICE_WIDTH)


def load_interval(intervals: Intervals, quantity: str, load: str, replica: Replica) -> Interval:
    """Return the interval of a statistic of a quantity for a replica under a kind of load (closed, open)."""
    kind, generation = network_class(replica.spec.network), engine_generation(replica.spec.profile)
    keys = regime_keys(quantity, load, kind, replica.label, "mean", generation)
    return interval_on(intervals, keys, replica.spec.device)


def bounded_estimate(replica: Replica, load: Load, intervals: Intervals) -> BoundedEstimate:
    """Return what the replica delivers under the load, with 80 % intervals."""
    predicted = estimate(replica, load)
    kind = "closed" if load.concurrency is not None else "open"

    latencies = {name: load_interval(intervals, name, kind, replica) for name in ("ttft", "tpot", "e2e")}

    throughput = load_interval(intervals, "throughput", kind, replica)
    return BoundedEstimate(
        predicted,
        bounded(predicted.ttft_s, latencies["ttft"]),
        bounded(predicted.tpot_s, latencies["tpot"]),
        bounded(predicted.e2e_s, latencies["e2e"]),
        throughput,
        throughput.n == 0,
        min(entry.groups for entry in (*latencies.values(), throughput)),
        min(entry.sources for entry in (*latencies.values(), throughput)),
    )
