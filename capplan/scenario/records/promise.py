"""The targets of a scenario -> what the engine is held to, once the time outside is taken off."""

from collections.abc import Sequence
from dataclasses import replace

from capplan.scenario.reading import Reading, warn_of_odd_targets
from capplan.scenario.scenario_file import Promise
from capplan.workload.request_class import METRICS, STATISTICS, RequestClass, Slo, Target

_WAITED = ("ttft", "e2e")
"""Metrics that users count from the moment they ask."""


def promised(reading: Reading, promise: Promise, classes: Sequence[RequestClass]) -> Slo:
    """Return the targets that a scenario states, less what its requests take outside before their prompts are sent.

    Parameters
    ----------
    reading : of the file
    promise : as written
    classes : of requests, with their time outside
    """
    targets = tuple(
        Target(metric, statistic, limit_s)
        for metric in METRICS
        for statistic in STATISTICS
        if (limit_s := getattr(promise, f"{metric}_{statistic}")) is not None
    )
    if promise.confidence is not None and not targets:
        raise reading.refuse(
            ("slo", "confidence"),
            "is the probability of meeting the targets, and there are none; e.g. ttft_p95: 800 ms, or leave confidence out",
        )
    if not targets:
        reading.assume("no latency targets: sized for throughput only", "slo.ttft_p95, slo.tpot_p95")
    if promise.confidence is None and targets:
        reading.assume(
            f"sized to meet all targets with a probability of {Slo().confidence:.0%}, given how far predictions were from measured results",
            "slo.confidence",
        )
    warn_of_odd_targets(reading, targets)
    targets = _of_engine(reading, promise, classes, targets)
    return Slo(targets, Slo().confidence if promise.confidence is None else promise.confidence)


def _of_engine(
    reading: Reading, promise: Promise, classes: Sequence[RequestClass], targets: tuple[Target, ...]
) -> tuple[Target, ...]:
    """Return the targets with the limit that the longest time outside leaves to the engine; `Target.limit_of` has that of each class."""
    waits = [item.outside.wait_s for item in classes]
    longest = max(waits, default=0.0)
    counted = [target for target in targets if target.metric in _WAITED]
    if promise.outside is not None and not (longest and counted):
        why = "says whether targets of ttft or e2e include the time outside, and there is no such "
        missing = "time; e.g. traffic: [{outside: {time: 200 ms}}]" if not longest else "target"
        raise reading.refuse(("slo", "outside"), why + missing)
    if not (longest and counted):
        return targets
    if promise.outside == "excluded":
        reading.assume(f"targets are those of the engine: users wait up to {longest:g} s more", "slo.outside")
        return targets
    short = next((target for target in counted if target.limit_s <= longest), None)
    if short is not None:
        raise reading.refuse(
            ("slo", short.key),
            f"{short.limit_s:g} s are over before the prompt is sent: up to {longest:g} s are spent outside; "
            "for a limit of the engine only: outside: excluded",
        )
    left = ", ".join(f"{target.key} of {target.limit_s - longest:g} s" for target in counted)
    some = (
        ", and more for classes that wait less: each request counts with its own wait"
        if min(waits) < longest
        else ""
    )
    reading.assume(
        f"targets include up to {longest:g} s outside, which leaves the engine {left}{some}", "slo.outside"
    )
    return tuple(
        replace(target, limit_s=target.limit_s - longest, outside_s=longest) if target in counted else target
        for target in targets
    )
