"""A daily curve, written as a named shape or as 24 rates -> fractions of the busiest hour."""

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from capplan.readers.record import RequestsPerSOrZero, unknown_name
from capplan.workload.daily_curve import HOURS, SHAPES, relative_to_peak

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
