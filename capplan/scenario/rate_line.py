"""Rates over time of a scenario whose traffic is a trace, or has a daily curve."""

import numpy as np

from capplan.fleet.over_time import RateLine
from capplan.fleet.scenario import Scenario
from capplan.numbers import Array
from capplan.recorded.traces.trace import read_trace
from capplan.scenario.written.workload_file import is_workload, read_workload
from capplan.workload.request_class import RequestClass, ResponseTimes, responses_of_classes

WINDOW_S = 60.0
HOUR_S = 3600.0
MOST_WINDOWS = 366 * 24 * 60
"""A year of minutes; replicas over the time of a longer trace are left out."""


def rate_line(scenario: Scenario, response_s: ResponseTimes = 0.0) -> RateLine | None:
    """Return the rates of all classes together; None where no class has a daily curve or a trace of at least two windows, or where a trace is longer than a year.

    Other classes are at their peak all the time; hours of a day and of a workload YAML are cut into minutes. Bursts that a
    scenario plans for are not included: they come on top of the busiest minute. Users send the next request after a response, so
    their rates follow from the response times of a plan.
    """
    waits = responses_of_classes(response_s, len(scenario.classes))
    found = [_of(item, wait_s) for item, wait_s in zip(scenario.classes, waits, strict=True)]
    lines = [line for line in found if line is not None]
    if not lines:
        return None
    longest = max(line.size for line in lines)
    if not 2 <= longest <= MOST_WINDOWS:
        return None
    total = np.zeros(longest)
    for line in lines:
        total += np.resize(line, longest)  # a shorter trace is repeated
    constant = sum(
        item.request_rate_at(wait_s) / item.burst_ratio
        for item, wait_s, line in zip(scenario.classes, waits, found, strict=True)
        if line is None
    )
    return RateLine(total + constant, WINDOW_S)


def _of(item: RequestClass, response_s: float) -> Array | None:
    if item.hourly_rate_fractions:
        hourly = np.array(item.hourly_rate_fractions) * item.request_rate_at(response_s)
        return np.repeat(hourly, int(HOUR_S / WINDOW_S))
    if item.trace is None:
        return None
    if is_workload(item.trace):
        hours = read_workload(item.trace).rate_by_hour
        return np.repeat(np.array(hours), int(HOUR_S / WINDOW_S)) if hours else None
    trace = read_trace(item.trace)
    whole = int(trace.seconds // WINDOW_S)
    if whole < 1:
        return None
    minute = (trace.arrival_s // WINDOW_S).astype(np.int64)
    counts: Array = np.bincount(minute[minute < whole], minlength=whole) / WINDOW_S
    return counts
