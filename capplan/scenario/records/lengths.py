"""Lengths of prompts and outputs and the rates of a day, as a scenario writes them."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from capplan.errors import InputError
from capplan.keys import RequestsPerSOrZero, Tokens
from capplan.readers.record import OrNumber, Record, unknown_name
from capplan.workload.daily_curve import HOURS, SHAPES, relative_to_peak
from capplan.workload.length import (
    Lengths,
    empirical,
    fixed,
    lognormal,
    lognormal_quantile,
    lognormal_sigma,
    standard_normal_quantile,
    uniform,
)

PROBABILITIES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

Refuse = Callable[[str], InputError]


class LengthFields(Record):
    """Token counts: `fixed`; `mean` with quantiles; two quantiles; `min` with `max`; or `values`."""

    fixed: Tokens | None = None
    """Length of every request; the same as a number in place of the mapping."""
    mean: Tokens | None = None
    """Mean length; with one or more percentiles the length is lognormal."""
    p50: Tokens | None = None
    """Median length; needs the mean or another percentile."""
    p90: Tokens | None = None
    p95: Tokens | None = None
    p99: Tokens | None = None
    min: Tokens | None = None
    """Shortest length. With max only, all lengths between are equally likely; otherwise shorter lengths are raised to it."""
    max: Tokens | None = None
    """Longest length; longer lengths are cut to it."""
    values: Annotated[list[Tokens], Field(min_length=1)] | None = None
    """Observed lengths, drawn from at random."""


def _number_is_fixed(written: object) -> object:
    return (
        {"fixed": written}
        if isinstance(written, (int, float, str)) and not isinstance(written, bool)
        else written
    )


LengthRecord = Annotated[LengthFields, BeforeValidator(_number_is_fixed), OrNumber]


def _check_order(record: LengthFields, quantiles: dict[str, float], refuse: Refuse) -> None:
    ordered = [
        *([("min", record.min)] if record.min else []),
        *quantiles.items(),
        *([("max", record.max)] if record.max else []),
    ]
    for (low_name, low), (high_name, high) in pairwise(ordered):
        if low > high:
            raise refuse(f"{high_name} {high:g} is below {low_name} {low:g}")
    if record.mean is None:
        return
    for name, value in quantiles.items():
        if name != "p50" and value < record.mean:
            raise refuse(f"{name} {value:g} is below the mean {record.mean:g}; were they swapped?")
        if name == "p50" and value > record.mean:
            raise refuse(
                f"p50 {value:g} is above the mean {record.mean:g}; lengths are skewed the other way; give a trace or values"
            )
        most = record.mean * math.exp(float(standard_normal_quantile(PROBABILITIES[name])) ** 2 / 2.0)
        if name != "p50" and value > most:
            raise refuse(
                f"{name} {value:g} is more than {most / record.mean:.3g} times the mean {record.mean:g}, which no lognormal distribution reaches; "
                "give p50 together with p95 without the mean, or values, or a trace"
            )
    if not (record.min or 0) <= record.mean <= (record.max or math.inf):
        raise refuse(f"the mean {record.mean:g} lies outside min and max")


def _spread(mean: float, quantiles: dict[str, float]) -> float:
    """Return the shape that fits one quantile exactly, or several as well as it can."""
    if len(quantiles) == 1:
        ((name, value),) = quantiles.items()
        if name == "p50":
            return math.sqrt(2.0 * math.log(mean / value))
        return float(lognormal_sigma(mean, value, PROBABILITIES[name]))
    sigmas = np.linspace(0.0, 4.0, 4001)
    error = sum(
        np.log(np.asarray(lognormal_quantile(mean, sigmas, PROBABILITIES[name])) / value) ** 2
        for name, value in quantiles.items()
    )
    return float(sigmas[int(np.argmin(error))])


def lengths(record: LengthFields, refuse: Refuse) -> Lengths:
    """Return the distribution that a record describes.

    Parameters
    ----------
    record : LengthFields
    refuse : function
        Makes the error from a message and adds the place.

    Returns
    -------
    Lengths
    """
    quantiles = {name: value for name in PROBABILITIES if (value := getattr(record, name)) is not None}
    given = {name for name in LengthFields.model_fields if getattr(record, name) is not None}
    if "fixed" in given or "values" in given:
        if len(given) > 1:
            raise refuse(f"{' and '.join(sorted(given))} cannot be combined")
        return fixed(record.fixed) if record.fixed is not None else empirical(np.array(record.values))
    _check_order(record, quantiles, refuse)
    low, high = record.min or 0.0, record.max or math.inf
    if record.mean is not None:
        if not quantiles and given != {"mean"}:
            raise refuse("mean with min or max does not determine the shape; add p95")
        return (
            lognormal(record.mean, _spread(record.mean, quantiles), low=low, high=high)
            if quantiles
            else fixed(record.mean)
        )
    if given == {"min", "max"}:
        return uniform(low, high)
    if len(quantiles) < 2:
        raise refuse(
            "is not enough; give a number, or mean and p95, e.g. {mean: 1800, p95: 6000}, or min and max"
        )
    z = np.array([float(standard_normal_quantile(PROBABILITIES[name])) for name in quantiles])
    sigma, centre = np.polyfit(z, np.log(np.array(list(quantiles.values()))), 1)
    return lognormal(math.exp(centre + sigma**2 / 2.0), float(sigma), low=low, high=high)


_ALLOWED = f"give {HOURS}, one per hour from midnight on, or a shape: {', '.join(SHAPES)}"


def _shape_or_rates(written: object) -> object:
    if isinstance(written, list):
        gap = next((hour for hour, rate in enumerate(written) if rate is None), None)
        if gap is not None:
            raise ValueError(f"has a gap: hour {gap} has no rate; write 0 for an hour without traffic")
    if not isinstance(written, str):
        return written
    if written not in SHAPES:
        raise unknown_name("shape", written, SHAPES)
    return list(SHAPES[written])


def _hours(rates: list[float]) -> list[float]:
    if len(rates) != HOURS:
        values = f"{len(rates)} value{'s' if len(rates) != 1 else ''}"
        raise ValueError(f"has {values}; {_ALLOWED}")
    if max(rates) == 0.0:
        raise ValueError(f"is 0 in every hour; {_ALLOWED}")
    return list(relative_to_peak(rates))


DailyCurve: TypeAlias = Annotated[
    list[RequestsPerSOrZero],
    BeforeValidator(_shape_or_rates),
    AfterValidator(_hours),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(SHAPES)},
                {
                    "type": "array",
                    "items": {
                        "type": ["string", "number"],
                        "description": "a rate of any unit, such as 20 req/s",
                    },
                    "minItems": HOURS,
                    "maxItems": HOURS,
                },
            ]
        }
    ),
]
"""Read as fractions: the rate of every hour over that of the busiest one."""
