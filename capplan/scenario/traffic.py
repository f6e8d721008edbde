"""The traffic of a scenario -> classes of requests (rate, lengths and cached prefix of each), and rates over time of traces and daily curves."""

from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

import numpy as np

from capplan.fleet.over_time import RateLine
from capplan.numbers import Array
from capplan.readers.yaml_file import KeyPath
from capplan.scenario.exclusions import MULTIPLES
from capplan.scenario.reading import Reading, plausible_rate, refuse_idle_time, refuse_rare_users
from capplan.scenario.scenario_file import Scenario, SharedPrefix, Traffic, lengths
from capplan.scenario.traffic_line import (
    prompt_images,
    sessions_of,
    with_multiples,
    with_one_turn,
    with_outside,
)
from capplan.scenario.workload_file import (
    MEANS,
    is_workload,
    read_workload,
    with_workload,
    workload_mean_rate,
    workload_reuse,
)
from capplan.workload.daily_curve import active_for, mean_rate_fraction
from capplan.workload.kept_contexts import contexts_of, prompt_lengths
from capplan.workload.length import Lengths, empirical
from capplan.workload.request_class import RequestClass, ResponseTimes, responses_of_classes
from capplan.workload.reuse import PrefixReuse
from capplan.workload.sessions import Sessions

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
    from capplan.recorded.traces.trace import read_trace

    trace = read_trace(item.trace)
    whole = int(trace.seconds // WINDOW_S)
    if whole < 1:
        return None
    minute = (trace.arrival_s // WINDOW_S).astype(np.int64)
    counts: Array = np.bincount(minute[minute < whole], minlength=whole) / WINDOW_S
    return counts


RATES = ("request_rate", "users", "requests", "trace")
_UNLESS = {"output_tokens": ", or runner: pooling for embeddings and rerankers"}
SHORT_OF = 0.98
"""Relative to a number stated in the scenario: results below this fraction of it raise a warning."""
FREE_FOR_PREFIXES = "half of a replica's cache is available for prefixes of earlier requests"


def _frequency(reading: Reading, item: Traffic, at: KeyPath) -> str:
    given = [key for key in RATES if getattr(item, key) is not None]
    if len(given) != 1:
        named = " and ".join(given) if given else "none"
        raise reading.refuse(
            at,
            f"{named} given; give exactly one of request_rate, users with think_time, requests with within, trace, e.g. request_rate: 20 req/s",
        )
    for key, owner in (("think_time", "users"), ("within", "requests")):
        if key == "think_time" and item.turns is not None:
            continue
        if (getattr(item, key) is not None) != (given[0] == owner):
            raise reading.refuse(
                at,
                f"{owner} and {key} belong together; e.g. users: 4000 with think_time: 30 s, or requests: 1M with within: 8 h",
            )
    return given[0]


def _load_over_time(
    reading: Reading, item: Traffic, index: int, peak_per_s: float | None, trace_mean_per_s: float | None
) -> tuple[float, tuple[float, ...]]:
    """Return the mean rate over the peak, and the rate fractions by hour where they are known."""
    at: KeyPath = ("traffic", index)
    if item.mean_rate is not None and peak_per_s is not None:
        if item.mean_rate > peak_per_s * (1.0 + 1e-9):
            raise reading.refuse(
                (*at, "mean_rate"), f"{item.mean_rate:g} req/s is above the peak of {peak_per_s:.4g} req/s"
            )
        return float(mean_rate_fraction(item.mean_rate, peak_per_s)), ()
    hours = tuple(item.daily_curve or ()) or (active_for(item.active_hours) if item.active_hours else ())
    if hours:
        return sum(hours) / len(hours), hours
    if trace_mean_per_s is not None and peak_per_s is not None:
        fraction = float(mean_rate_fraction(trace_mean_per_s, peak_per_s))
        reading.assume(
            f"{item.name}: mean rate {fraction * peak_per_s:.4g} req/s, from the trace",
            f"traffic[{index}].mean_rate",
        )
        return fraction, ()
    if item.requests is None:
        reading.assume(
            f"{item.name}: traffic is at its peak at all hours",
            f"traffic[{index}].mean_rate, traffic[{index}].daily_curve",
        )
    return 1.0, ()


def _warn_of_short_prompts(reading: Reading, described: RequestClass) -> None:
    """Warn where many prompts are shorter than the prefix they are said to share."""
    said = described.shared_prefix_tokens * described.prefix_hit_fraction
    if described.cached_input_tokens < SHORT_OF * said:
        tokens = described.shared_prefix_tokens
        reading.warnings.append(
            f"{described.name}: {described.short_prompt_fraction:.0%} of the prompts do not exceed the shared prefix of {tokens:,.0f} tokens, "
            f"so they contain only part of it: {described.cached_input_tokens:,.0f} tokens are cached on average, not {tokens:,.0f} x "
            f"{described.prefix_hit_fraction:.0%} = {said:,.0f}; give lengths that include it, such as input_tokens with min: {tokens + 1:.0f}"
        )


@dataclass(slots=True)
class _Source:
    """Rate and lengths that a line of traffic or its trace gives."""

    rate: float | None = None
    mean_rate: float | None = None
    arrival_cv: float | None = None
    lengths: dict[str, Lengths] = field(default_factory=dict)
    reuse: PrefixReuse | None = None
    path: str | None = None


def _of_trace(reading: Reading, name: str, path: str, index: int) -> _Source:
    """Return the figures of a trace: peak rate (its busiest minute), mean rate, arrivals, and lengths."""
    from capplan.recorded.traces.trace import read_trace

    trace = read_trace(path)
    if trace.seconds > MOST_WINDOWS * WINDOW_S:
        reading.warnings.append(
            f"{name}: the trace is longer than a year, so replicas over its time are left out"
        )
    for remark in trace.remarks:
        reading.assume(f"{name}: {remark}", f"traffic[{index}].trace")
    reading.assume(
        f"{name}: peak rate {trace.peak_request_rate_per_s:.4g} req/s, the busiest minute of the trace",
        f"traffic[{index}].request_rate",
    )
    lengths_found = {
        "input_tokens": empirical(trace.input_tokens),
        "output_tokens": empirical(trace.output_tokens),
    }
    reuse = trace.reuse
    if reuse is not None:
        reading.assume(f"{name}: {FREE_FOR_PREFIXES}", f"traffic[{index}].shared_prefix")
    return _Source(
        trace.peak_request_rate_per_s,
        trace.mean_request_rate_per_s,
        trace.arrival_cv,
        lengths_found,
        reuse,
        path,
    )


def _length(reading: Reading, item: Traffic, index: int, key: str) -> Lengths | None:
    """Return the lengths that a line of traffic states; None where it does not."""
    path: KeyPath = ("traffic", index, key)
    record = getattr(item, key)
    if record is None:
        return None
    distribution = lengths(record, partial(reading.refuse, path))
    if record.mean is not None and abs(distribution.mean_tokens / record.mean - 1.0) > 1.0 - SHORT_OF:
        cut = " and ".join(name for name in ("min", "max") if getattr(record, name) is not None)
        reading.warnings.append(
            f"{item.name}: {cut} moves the mean of {key} from {record.mean:,.0f} to {distribution.mean_tokens:,.0f} tokens; "
            "leave the mean out and give two percentiles"
        )
    if distribution.kind == "lognormal":
        reading.assume(f"{item.name}: {key} are lognormal", f"traffic[{index}].trace")
    if record.mean is not None and distribution.kind == "fixed":
        reading.assume(f"{item.name}: every request has the mean {key}", f"traffic[{index}].{key}.p95")
    return distribution


def _lengths(
    reading: Reading, item: Traffic, index: int, of_trace: dict[str, Lengths]
) -> list[Lengths | None]:
    """Return input and output lengths, those of the scenario before those of a trace; None for one that is wrong."""
    at: KeyPath = ("traffic", index)
    both = []
    for key in ("input_tokens", "output_tokens"):
        path = (*at, key)
        stated = reading.attempt(partial(_length, reading, item, index, key), None, path)
        if stated is None and getattr(item, key) is None and key not in of_trace:
            reading.reject(
                at, f"{key} is missing; e.g. {key}: {{mean: 1800, p95: 6000}}{_UNLESS.get(key, '')}", path
            )
        both.append(stated or of_trace.get(key))
    return both


def _prefix(reading: Reading, prefix: SharedPrefix, mean_tokens: float, index: int) -> None:
    if prefix.tokens > mean_tokens:
        raise reading.refuse(
            ("traffic", index, "shared_prefix", "tokens"),
            f"{prefix.tokens:g} tokens are more than the mean prompt of {mean_tokens:g}, which includes them",
        )


def _source(reading: Reading, item: Traffic, index: int) -> tuple[Traffic, _Source]:
    """Return a line of traffic, completed from its workload YAML if it names one, and the figures of its trace."""
    if item.trace is None:
        rate = item.requests / item.within if item.requests and item.within else item.request_rate
        return item, _Source(rate)
    path = reading.resolved(item.trace)
    if is_workload(item.trace):
        item = with_workload(item, path)
        reuse, mean = workload_reuse(path), workload_mean_rate(path)
        return item, _Source(item.request_rate, mean, reuse=reuse, path=path)
    return item, _of_trace(reading, item.name, path, index)


def _sessions(
    reading: Reading, item: Traffic, index: int, prompts: Lengths | None, outputs: Lengths | None
) -> Sessions | None:
    """Return the sessions of a line of traffic, if it has any, once its shared prefix is found to be possible."""
    at: KeyPath = ("traffic", index)
    if prompts is None or outputs is None:
        return None
    if item.shared_prefix:
        check = partial(_prefix, reading, item.shared_prefix, prompts.mean_tokens, index)
        reading.attempt(check, None, (*at, "shared_prefix"))
    about = [(*at, key) for key in ("turns", "added_tokens", "think_time", "shared_prefix")]
    return reading.attempt(partial(sessions_of, reading, item, index, prompts, outputs), None, *about)


def _arrival_cv(
    reading: Reading, item: Traffic, index: int, source: _Source, sessions: Sessions | None
) -> float:
    """Return the burstiness of arrivals as it is stated, else as the trace has it, else that of a Poisson process."""
    if item.users is not None or sessions is not None:
        if item.users is None:
            said = "plans take turns for a Poisson process, of which as many are in flight as of sessions that wait for their responses"
            reading.assume(f"{item.name}: {said}", "fleet.headroom")
        return 1.0
    stated = source.arrival_cv if item.arrival_cv is None else item.arrival_cv
    if stated is None:
        reading.assume(f"{item.name}: arrivals are a Poisson process", f"traffic[{index}].arrival_cv")
    return 1.0 if stated is None else stated


def _request_class(reading: Reading, item: Traffic, index: int, burst_ratio: float) -> RequestClass | None:
    """Return the class of a line of traffic; None where it has errors, which are then in the reading."""
    at: KeyPath = ("traffic", index)
    burst = burst_ratio if item.trace else 1.0
    said = -1 if any(path[:2] == at for path in reading.excluded) else len(reading.mistakes)
    rate_keys: list[KeyPath] = [(*at, key) for key in (*RATES, "think_time", "within")]
    reading.attempt(partial(_frequency, reading, item, at), None, *rate_keys)
    users = None if item.users is None else item.users.at_once
    item, source = reading.attempt(partial(_source, reading, item, index), (item, _Source()), (*at, "trace"))
    prompts, outputs = _lengths(reading, item, index, source.lengths)
    prefix = item.shared_prefix
    sessions = _sessions(reading, item, index, prompts, outputs)
    fraction, hours = reading.attempt(
        partial(_load_over_time, reading, item, index, source.rate, source.mean_rate),
        (1.0, ()),
        *rate_keys,
        (*at, "mean_rate"),
    )
    reading.attempt(
        partial(refuse_rare_users, reading, users, item.think_time, (*at, "users")), None, *rate_keys
    )
    mean_key = next((key for key in MEANS if getattr(item, key) is not None), MEANS[0])
    reading.attempt(
        partial(refuse_idle_time, reading, fraction, (*at, mean_key)), None, *rate_keys, (*at, mean_key)
    )
    rate_key = next((key for key in RATES if getattr(item, key) is not None), RATES[0])
    rate = reading.attempt(
        partial(plausible_rate, reading, source.rate, (*at, rate_key)), source.rate, *rate_keys
    )
    if sessions is not None and with_one_turn(sessions):
        sessions = None
    cv = _arrival_cv(reading, item, index, source, sessions)
    if len(reading.mistakes) > said or prompts is None or outputs is None:
        return None
    described = RequestClass(
        name=item.name,
        input_tokens=prompts,
        output_tokens=outputs,
        request_rate_per_s=None if rate is None else rate * burst,
        users=users,
        think_time_s=None if item.users is None else item.think_time,
        trace=source.path,
        shared_prefix_tokens=prefix.tokens if prefix else 0.0,
        prefix_hit_fraction=(prefix.hit_fraction or 0.0) if prefix else 0.0,
        reuse=None if prefix else source.reuse,
        arrival_cv=cv,
        tenant=item.tenant,
        requests_per_conversation=item.requests_per_conversation,
        priority=item.priority,
        deadline_s=item.deadline,
        mean_rate_fraction=fraction / burst,
        hourly_rate_fractions=tuple(hour / burst for hour in hours),
        job_requests=item.requests,
        images=reading.attempt(partial(prompt_images, reading, item, at), None, (*at, "images")),
        burst_ratio=burst,
    )
    _warn_of_short_prompts(reading, described)
    return _whole_class(reading, item, index, described, sessions)


def _whole_class(
    reading: Reading, item: Traffic, index: int, described: RequestClass, sessions: Sessions | None
) -> RequestClass | None:
    """Return a class with its sessions or multiples, and with what its requests take outside of the GPUs."""
    if sessions is not None:
        return with_outside(reading, item, index, of_turns(described, sessions))
    about: list[KeyPath] = [("traffic", index, key) for key in MULTIPLES]
    whole = reading.attempt(partial(with_multiples, reading, item, index, described), None, *about)
    return None if whole is None else with_outside(reading, item, index, whole)


def of_turns(item: RequestClass, sessions: Sessions, longest: float = inf) -> RequestClass:
    """Return the class of all turns of sessions, which end before a turn that exceeds the longest context [tokens]."""
    return replace(
        item,
        input_tokens=prompt_lengths(sessions, longest),
        shared_prefix_tokens=0.0,
        prefix_hit_fraction=0.0,
        reuse=contexts_of(sessions, longest),
        sessions=sessions,
        requests_per_conversation=item.requests_per_conversation or sessions.turns.mean_tokens,
    )


def request_classes(
    reading: Reading, items: list[Traffic], burst_ratio: float, *, pooled: bool
) -> tuple[RequestClass, ...]:
    """Return the classes of requests that the lines of traffic describe, without those that are wrong.

    Parameters
    ----------
    reading : of the file
    items : lines of traffic
    burst_ratio : [-]
        peak to size for, over the busiest minute of a trace
    pooled : the prompts are answered by vectors or scores

    Returns
    -------
    in the order of the lines
    """
    names = [item.name for item in items]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        at = ("traffic", len(names) - 1 - names[::-1].index(twice), "name")
        text = f"{twice!r} names two kinds of traffic; give each a different name"
        reading.reject(at, text, ("traffic",))
    classes = [_request_class(reading, item, index, burst_ratio) for index, item in enumerate(items)]
    return tuple(replace(item, pooled=pooled) for item in classes if item is not None)
