"""The traffic of a scenario -> classes of requests: how often each comes, how long, and what of it is cached."""

from capplan.questions.length_record import lengths
from capplan.questions.scenario_file import Reading, Traffic
from capplan.questions.workload_file import is_workload, with_workload, workload_mean_rate, workload_reuse
from capplan.readers.traces.trace import read_trace
from capplan.readers.yaml_file import KeyPath
from capplan.workload.daily_curve import active_for, mean_rate_fraction
from capplan.workload.length import Lengths, empirical
from capplan.workload.request_class import RequestClass
from capplan.workload.summary import PrefixReuse

FREE_FOR_PREFIXES = "half of the cache of a replica is free for prefixes of earlier requests"


def _frequency(reading: Reading, item: Traffic, at: KeyPath) -> str:
    given = [key for key in ("request_rate", "users", "requests", "trace") if getattr(item, key) is not None]
    if len(given) != 1:
        named = " and ".join(given) if given else "none of them"
        raise reading.refuse(
            at,
            f"{named} given; give one of request_rate, users with think_time, requests with within, trace, e.g. request_rate: 20 req/s",
        )
    for key, owner in (("think_time", "users"), ("within", "requests")):
        if (getattr(item, key) is not None) != (given[0] == owner):
            raise reading.refuse(
                at,
                f"{owner} and {key} belong together; e.g. users: 4000 with think_time: 30 s, or requests: 1M with within: 8 h",
            )
    return given[0]


def _refuse_second_mean(reading: Reading, item: Traffic, at: KeyPath) -> None:
    """Refuse what says the mean rate a second time, or of traffic that has none."""
    given = [key for key in ("mean_rate", "daily_curve", "active_hours") if getattr(item, key) is not None]
    if len(given) > 1:
        raise reading.refuse(
            (*at, given[1]), f"says the mean rate a second time, beside {given[0]}; give one of them"
        )
    if given and item.requests is not None:
        raise reading.refuse(
            (*at, given[0]),
            "is of traffic without an end; a batch job is paid for while it runs, so leave it out",
        )
    if item.mean_rate is not None and item.users is not None:
        raise reading.refuse(
            (*at, "mean_rate"),
            "is not known of users, whose rate depends on how fast they are answered; give daily_curve or active_hours",
        )


def _load_over_time(
    reading: Reading, item: Traffic, index: int, peak_per_s: float | None, trace_mean_per_s: float | None
) -> tuple[float, tuple[float, ...]]:
    """Return the mean rate over the peak, and the hours of a day where they are known."""
    at: KeyPath = ("traffic", index)
    if item.mean_rate is not None:
        assert peak_per_s is not None
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
            f"{item.name}: mean rate {fraction * peak_per_s:.4g} req/s, that of the trace",
            f"traffic[{index}].mean_rate",
        )
        return fraction, ()
    if item.requests is None:
        reading.assume(
            f"{item.name}: the peak is paid and served at all hours",
            f"traffic[{index}].mean_rate, traffic[{index}].daily_curve",
        )
    return 1.0, ()


def _of_trace(
    reading: Reading, name: str, path: str, index: int
) -> tuple[float, float, float, dict[str, Lengths], PrefixReuse | None]:
    """Return the peak and the mean rate, the variation of the times between arrivals, and the lengths of a trace."""
    trace = read_trace(path)
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
    return (
        trace.peak_request_rate_per_s, trace.mean_request_rate_per_s, trace.arrival_cv, lengths_found, reuse,
    )  # fmt: skip


def _request_class(reading: Reading, item: Traffic, index: int) -> RequestClass:
    at: KeyPath = ("traffic", index)
    how = _frequency(reading, item, at)
    trace_path = None
    if item.trace is not None and is_workload(item.trace):
        trace_path = reading.resolved(item.trace)
        item = with_workload(item, trace_path)
    _refuse_second_mean(reading, item, at)
    cv, rate = item.arrival_cv, item.request_rate
    length_records: dict[str, Lengths] = {}
    reuse, mean = (workload_reuse(trace_path), workload_mean_rate(trace_path)) if trace_path else (None, None)
    if item.trace is not None:
        trace_path = reading.resolved(item.trace)
        rate, mean, trace_cv, length_records, reuse = _of_trace(reading, item.name, trace_path, index)
        cv = trace_cv if cv is None else cv
    for key in ("input_tokens", "output_tokens"):
        record = getattr(item, key)
        if record is not None:
            path = (*at, key)
            length_records[key] = lengths(record, lambda message, path=path: reading.refuse(path, message))  # type: ignore[misc]
            if length_records[key].kind == "lognormal":
                reading.assume(f"{item.name}: {key} are lognormal", f"traffic[{index}].trace")
            if record.mean is not None and length_records[key].kind == "fixed":
                reading.assume(
                    f"{item.name}: every request has the mean of {key}", f"traffic[{index}].{key}.p95"
                )
        elif key not in length_records:
            raise reading.refuse(at, f"{key} is missing; e.g. {key}: {{mean: 1800, p95: 6000}}")
    if cv is None:
        cv = 1.0
        reading.assume(f"{item.name}: requests arrive at random (Poisson)", f"traffic[{index}].arrival_cv")
    if item.requests is not None and item.within is not None:
        rate = item.requests / item.within
    prefix = item.shared_prefix
    if prefix and prefix.tokens > length_records["input_tokens"].mean_tokens:
        mean = length_records["input_tokens"].mean_tokens
        raise reading.refuse(
            (*at, "shared_prefix", "tokens"),
            f"{prefix.tokens:g} tokens are more than the mean prompt of {mean:g}, which contains them",
        )
    assert rate is not None or how == "users"
    fraction, hours = _load_over_time(reading, item, index, rate, mean)
    return RequestClass(
        name=item.name,
        input_tokens=length_records["input_tokens"],
        output_tokens=length_records["output_tokens"],
        request_rate_per_s=rate,
        users=item.users,
        think_time_s=item.think_time,
        trace=trace_path,
        shared_prefix_tokens=prefix.tokens if prefix else 0.0,
        prefix_hit_fraction=prefix.hit_fraction if prefix else 0.0,
        reuse=None if prefix else reuse,
        arrival_cv=cv,
        priority=item.priority,
        deadline_s=item.deadline,
        mean_rate_fraction=fraction,
        hourly_rate_fractions=hours,
        job_requests=item.requests,
    )


def request_classes(reading: Reading, items: list[Traffic]) -> tuple[RequestClass, ...]:
    """Return the classes of requests that the lines of traffic describe; InputError names the line that cannot be read."""
    names = [item.name for item in items]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        at = ("traffic", len(names) - 1 - names[::-1].index(twice), "name")
        raise reading.refuse(at, f"{twice!r} names two kinds of traffic; give each its own name")
    return tuple(_request_class(reading, item, index) for index, item in enumerate(items))
