"""The growth that a scenario states -> the ratios of its traffic by month."""

from math import isclose

import numpy as np

from capplan.money.growth import grown_ratios
from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.scenario.records.money import Growth
from capplan.scenario.sense import MOST_RATE_PER_S
from capplan.workload.request_class import RequestClass

MONTHS = 12
"""To look ahead where a scenario states a growth and no number of months."""
MOST_MONTHS = 120


def growth_ratios(
    reading: Reading, record: Growth | None, classes: tuple[RequestClass, ...]
) -> tuple[float, ...]:
    """Return the traffic of successive months over today's; empty where no growth is stated."""
    if record is None:
        return ()
    at: KeyPath = ("growth",)
    if (record.per_month is None) == (record.rates is None):
        both = (
            "per_month and rates are both given" if record.rates else "neither per_month nor rates is given"
        )
        raise reading.refuse(at, f"{both}; give one of them, e.g. {{per_month: 6 %, months: 18}}")
    if any(item.job_requests is not None for item in classes):
        raise reading.refuse(
            at, "is for continuous traffic; a batch job is planned as it stands, so leave it out"
        )
    ratios = _by_month(reading, record) if record.rates is None else _of_rates(reading, record, classes)
    key = "per_month" if record.rates is None else "rates"
    # Of a file with mistakes, today's rates may be missing.
    now = 0.0 if reading.mistakes else sum(item.request_rate_at() for item in classes)
    month = int(np.argmax(ratios))
    if now * ratios[month] > MOST_RATE_PER_S:
        raise reading.refuse(
            (*at, key),
            f"leads to {now * ratios[month]:.3g} req/s in month {month + 1}, which no service has; give less growth",
        )
    return ratios


def _by_month(reading: Reading, record: Growth) -> tuple[float, ...]:
    """Return the ratios of a growth by the same part each month."""
    if record.months is None:
        reading.assume(f"growth is followed for {MONTHS} months", "growth.months")
    return tuple(grown_ratios(record.per_month or 0.0, record.months or MONTHS).tolist())


def _of_rates(reading: Reading, record: Growth, classes: tuple[RequestClass, ...]) -> tuple[float, ...]:
    """Return the stated rates over the first; refused where a month is missing, or the first is not today's traffic."""
    if record.months is not None:
        raise reading.refuse(
            ("growth", "months"), "belongs to per_month; rates state their months themselves"
        )
    at: KeyPath = ("growth", "rates")
    rates = record.rates or {}
    months = {str(month) for month in range(1, MOST_MONTHS + 1)}
    wrong = next((month for month in rates if month not in months), None)
    if wrong is not None:
        raise reading.refuse(
            (*at, wrong),
            f"{wrong!r} is not a month; months are counted from 1, today's, to {MOST_MONTHS}",
        )
    by_month = {int(month): rate for month, rate in rates.items()}
    last = max(by_month, default=0)
    gap = next((month for month in range(1, last + 1) if month not in by_month), None)
    if gap is not None or last < 2:
        missing = f"month {gap or 2} is missing"
        raise reading.refuse(at, f"has a gap: {missing}; give every month from 1 on, at least two")
    if reading.mistakes or any(item.users for item in classes):
        return tuple(by_month[month] / by_month[1] for month in range(1, last + 1))
    today = sum(item.request_rate_at() for item in classes)
    if not isclose(by_month[1], today, rel_tol=0.01):
        raise reading.refuse(
            (*at, "1"),
            f"{by_month[1]:.3g} req/s is not today's traffic, whose peak is {today:.3g} req/s; month 1 is today's",
        )
    return tuple(by_month[month] / by_month[1] for month in range(1, last + 1))
