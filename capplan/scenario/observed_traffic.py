"""Keys of a scenario's traffic for what was counted: the peak, the daily curve, lengths and hits."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from capplan.errors import InputError
from capplan.recorded.traces.prometheus_server import Observed
from capplan.workload.daily_curve import HOURS
from capplan.workload.length import lognormal_sigma
from capplan.workload.statistics import LengthSummary, WorkloadSummary

if TYPE_CHECKING:
    from capplan.readers.plan_file import InputsRow

ALIKE_FRACTION = 0.1
"""Mean lengths that are this near to those of a plan are taken for its traffic, and loads for its load (an assumption)."""
_RATES = (
    "users",
    "think_time",
    "turns",
    "added_tokens",
    "trace",
    "mean_rate",
    "daily_curve",
    "active_hours",
    "reasoning_tokens",
)
"""Keys of a class that what was counted replaces, together with those that it has."""
_UNSEEN = ("requests", "within", "samples", "retries", "images", "documents", "padded_batch")
"""Keys of a class whose requests the counters of an engine do not tell."""


def counted_lengths(summary: WorkloadSummary) -> dict[str, object]:
    """Return lengths, and the prefix that has as many hits as were counted."""
    traffic: dict[str, object] = {
        "input_tokens": _lengths(summary.input_tokens),
        "output_tokens": _lengths(summary.output_tokens),
    }
    if summary.counted_prefix:
        tokens, fraction = summary.counted_prefix
        traffic["shared_prefix"] = {"tokens": tokens, "hit_fraction": round(fraction, 4)}
    return traffic


def observed_traffic(summary: WorkloadSummary) -> dict[str, object]:
    """Return the peak, the daily curve (else the mean), lengths and hits."""
    rate = summary.rate
    peak = rate.peak_60s or 0.0
    traffic: dict[str, object] = {"request_rate": f"{peak:.4g} req/s"}
    if len(rate.by_hour) == HOURS:
        traffic["daily_curve"] = [float(f"{value:.4g}") for value in rate.by_hour]
    elif rate.mean:
        traffic["mean_rate"] = f"{min(rate.mean, float(f'{peak:.4g}')):.4g} req/s"
    return traffic | counted_lengths(summary)


def _lengths(lengths: LengthSummary) -> object:
    """Return a length as a scenario has it: a number, or a mean and two percentiles of a lognormal; else a hundred quantiles."""
    if lengths.values[0] == lengths.values[-1]:
        return round(lengths.mean, 1)
    skewed = lengths.p50 <= lengths.mean <= lengths.p95
    if skewed and isfinite(float(lognormal_sigma(lengths.mean, lengths.p95, 0.95))):
        return {"mean": round(lengths.mean, 1), "p50": round(lengths.p50, 1), "p95": round(lengths.p95, 1)}
    return {"values": [round(value) for value in lengths.values]}


def as_observed(traffic: Sequence[Mapping[str, Any]], seen: Observed, planned: "InputsRow") -> str:
    """Return the setting that gives a scenario the traffic that its engines had.

    Parameters
    ----------
    traffic : of the scenario, as written
    seen : counters of all classes together
    planned : peak and mean lengths of the plan, of all classes together

    Raises
    ------
    InputError
        a class has requests that counters do not tell, such as a batch job; or only the mean of a length is known, and it is another one
    """
    for number, item in enumerate(traffic):
        unseen = next((key for key in _UNSEEN if key in item), None)
        if unseen is not None:
            raise InputError(
                f"--prometheus: traffic[{number}].{unseen}: the counters of an engine do not tell such requests apart\n"
                "  write the scenario's next version by hand"
            )
    if len(traffic) == 1:
        (item,) = traffic
        kept = {key: value for key, value in item.items() if key not in _RATES}
        found = observed_traffic(seen.summary)
        for name, lengths in (
            ("input_tokens", seen.summary.input_tokens),
            ("output_tokens", seen.summary.output_tokens),
        ):
            if name in item and lengths.values[0] == lengths.values[-1]:
                _refuse_other_mean(name, lengths.mean, getattr(planned, name))
                del found[name]
        return f"traffic={json.dumps([kept | found])}"
    ratio = (seen.summary.rate.peak_60s or 0.0) / planned.request_rate
    return f"traffic={json.dumps([_scaled(item, ratio, number) for number, item in enumerate(traffic)])}"


def _refuse_other_mean(name: str, mean: float, planned: float) -> None:
    """Raise the error for a length of which only the mean is known, unless it is that of the plan, whose spread then stays."""
    if abs(mean - planned) > ALIKE_FRACTION * planned:
        raise InputError(
            f"--prometheus: {name}: {mean:.0f} on average ({planned:.0f} in the plan), and no buckets say how they are spread\n"
            "  keep the series *_bucket of the engine in Prometheus, or write the scenario's next version by hand"
        )


def _scaled(item: Mapping[str, Any], ratio: float, number: int) -> dict[str, Any]:
    """Return one class of several with its rate times a ratio; counters do not separate classes."""
    from capplan.quantity import REQUESTS_PER_S, quantity

    if not isinstance(item.get("request_rate"), (str, int, float)):
        raise InputError(
            f"--prometheus: traffic[{number}] has no request_rate, and counters do not separate the classes of a scenario\n"
            "  write the scenario's next version by hand"
        )
    rate = quantity(item["request_rate"], REQUESTS_PER_S, f"traffic[{number}].request_rate")
    scaled = {"request_rate": f"{rate * ratio:.6g} req/s"}
    if "mean_rate" in item:
        mean = quantity(item["mean_rate"], REQUESTS_PER_S, f"traffic[{number}].mean_rate")
        scaled["mean_rate"] = f"{mean * ratio:.6g} req/s"
    return {**item, **scaled}
