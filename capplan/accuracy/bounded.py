"""An estimate with the back-test intervals of its regime."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log

from capplan.accuracy.intervals import (
    LEAST_GROUPS,
    LEAST_SOURCES,
    PROBABILITIES,
    Interval,
    Intervals,
    interval_of,
    interval_of_ratios,
    regime_keys,
    stretched,
    widest,
)
from capplan.accuracy.left_out import Served, left_out_spread
from capplan.accuracy.serving import engine_generation, network_class
from capplan.assumption import Label
from capplan.engine.left_out import LeftOutResult
from capplan.engine.profile import EngineProfile
from capplan.hardware.device import Device
from capplan.numbers import Number, Spread
from capplan.replica.estimate import Estimate, estimate
from capplan.replica.load import Load
from capplan.replica.replica import Replica
from capplan.replica.spec import ReplicaSpec, deployed_as


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
    rests_on: str = ""
    """Latencies whose intervals rest on results of this deployment, and these; empty: all rest on the back-test."""


SLICE_WIDTH = 1.85
"""Factor on the logarithm of an interval on a slice of a device: with it the intervals of whole devices hold 16 of the 19 runs on slices that
were measured (docs/accuracy.md, "MIG slices and embeddings"); with 1.6, which was assumed before, they hold 14."""


def interval_on(intervals: Intervals, keys: Sequence[str], device: Device) -> Interval:
    """Return the interval of the narrowest regime that was measured; wider on a slice of a device."""
    interval = interval_of(intervals, keys) or widest(intervals)
    return interval if device.partition is None else stretched(interval, SLICE_WIDTH)


@dataclass(frozen=True, slots=True)
class Operation:
    """A replica as intervals know it."""

    network_class: str
    profile: EngineProfile
    label: Label
    """measured where the device was calibrated, else assumed."""
    device: Device
    served: Served | None = None
    """What it serves; None: it is not a deployment that a fit may have seen."""


def operation_of(replica: Replica, served: Served | None = None) -> Operation:
    """Return a replica as intervals know it; with drafts it is no deployment that a fit has seen."""
    spec = replica.spec
    kind, own = network_class(spec.network), None if replica.draft_tokens else served
    return Operation(kind, spec.profile, replica.label, spec.device, own)


def served_by(spec: ReplicaSpec, input_tokens: Number, output_tokens: Number, in_flight: float) -> Served:
    """Return what a replica serves."""
    name = deployed_as(spec.network, spec.sharding, spec.kv_format)
    return Served(name, float(input_tokens), float(output_tokens), in_flight)


def operation_interval(
    intervals: Intervals, quantity: str, load: str, operation: Operation, statistic: str = "mean"
) -> Interval:
    """Return the interval of a statistic of a quantity for a replica under a kind of load (closed, open).

    A fitted deployment has that of its own results where it is narrower than the one of the back-test.
    """
    generation = engine_generation(operation.profile)
    label, kind, device = operation.label, operation.network_class, operation.device
    keys = regime_keys(quantity, load, kind, label, statistic, generation)
    usual = interval_on(intervals, keys, device)
    left_out, served = operation.profile.left_out, operation.served
    if not left_out or served is None:
        return usual
    middle = interval_on(intervals, regime_keys(quantity, "closed", kind, label, "mean", generation), device)
    latency = (
        quantity if load == "closed" else "e2e"
    )  # in an open loop first tokens wait for steps of all kinds
    latency = quantity if quantity == "throughput" else latency
    own = deployment_interval(latency, left_out, served, max(_reach(usual) / _reach(middle), 1.0))
    return own if own and _reach(own) < _reach(usual) else usual


def _reach(interval: Interval) -> float:
    """Return the ratio of the ends, as a logarithm."""
    return log(interval.high_ratio / interval.low_ratio)


def deployment_interval(
    quantity: str, left_out: Sequence[LeftOutResult], served: Served, width: float
) -> Interval | None:
    """Return the interval of a fitted deployment; None if its results do not say.

    Parameters
    ----------
    quantity : ttft, tpot, itl, e2e, throughput; the last two take the wider one of the latencies
    left_out : results, each predicted without itself
    served : what the replica serves
    width : [-]
        width of the statistic and load over that of a mean in a closed loop, which most results are
    """
    names = {"ttft": ("ttft",), "tpot": ("tpot",), "itl": ("tpot",)}.get(quantity, ("ttft", "tpot"))
    spreads = [spread for name in names if (spread := left_out_spread(left_out, served, (name,)))]
    if len(spreads) < len(names):
        return None
    widest_spread = max(spreads, key=lambda spread: spread.scale)
    sign = -1.0 if quantity == "throughput" else 1.0
    logs = sorted(sign * widest_spread.log_quantile(probability, width) for probability in PROBABILITIES)
    ratios = tuple(map(exp, logs))
    interval = interval_of_ratios(ratios, widest_spread.results, LEAST_GROUPS, LEAST_SOURCES)
    return replace(interval, left_out_error_fraction=widest_spread.error_fraction)


def bounded_estimate(replica: Replica, load: Load, intervals: Intervals) -> BoundedEstimate:
    """Return what the replica delivers under the load, with 80 % intervals."""
    predicted = estimate(replica, load)
    kind = "closed" if load.concurrency is not None else "open"

    served = served_by(replica.spec, load.input_tokens, load.output_tokens, predicted.concurrency)
    operation = operation_of(replica, served)
    latencies = {
        name: operation_interval(intervals, name, kind, operation) for name in ("ttft", "tpot", "e2e")
    }

    throughput = operation_interval(intervals, "throughput", kind, operation)
    return BoundedEstimate(
        predicted,
        bounded(predicted.ttft_s, latencies["ttft"]),
        bounded(predicted.tpot_s, latencies["tpot"]),
        bounded(predicted.e2e_s, latencies["e2e"]),
        throughput,
        throughput.n == 0,
        min(entry.groups for entry in (*latencies.values(), throughput)),
        min(entry.sources for entry in (*latencies.values(), throughput)),
        _rests_on(latencies),
    )


def _rests_on(latencies: Mapping[str, Interval]) -> str:
    """Return which latencies have intervals of results of this deployment, and which results; empty if none have."""
    own = {
        name.upper(): entry for name, entry in latencies.items() if entry.left_out_error_fraction is not None
    }
    return f"{', '.join(own)} from {own.popitem()[1].rests_on}" if own else ""
