"""The reusable workload YAML: written from a summary, read as the traffic of a scenario."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from capplan.errors import InputError
from capplan.readers.record import Record, validated
from capplan.readers.yaml_file import read_yaml, schema_line
from capplan.scenario.scenario_file import MOST_CLASSES, Traffic
from capplan.workload.reuse import PrefixReuse
from capplan.workload.statistics import LengthSummary, WorkloadSummary

WITHOUT_RATE = "its source has no timestamps, so it has no request_rate"
MEANS = ("mean_rate", "daily_curve", "active_hours")
FROM_WORKLOAD = ("request_rate", "arrival_cv", "input_tokens", "output_tokens", "shared_prefix")


class CurvePoint(Record):
    """Share of the prompt tokens that hit in a cache of so many blocks."""

    blocks: Annotated[int, Field(ge=1)]
    hit_fraction: Annotated[float, Field(ge=0, le=1)]


class Prefix(Record):
    """Prefix reuse of the trace, by the size of the cache."""

    block_tokens: Annotated[int, Field(ge=1)]
    unlimited_hit_fraction: Annotated[float, Field(ge=0, le=1)]
    curve: list[CurvePoint]


class WorkloadFile(Record):
    """Measured traffic; `traffic` is written as in a scenario."""

    name: str
    source: str = ""
    """File and format it was made from."""
    requests: Annotated[int, Field(ge=0)] | None = None
    seconds: Annotated[float, Field(ge=0)] | None = None
    traffic: Annotated[list[Traffic], Field(min_length=1, max_length=MOST_CLASSES)]
    rate_by_hour: list[Annotated[float, Field(ge=0)]] = Field(default_factory=list)
    """Requests per second of each hour, of the day where the trace is longer than two days."""
    prefix: Prefix | None = None
    notes: list[str] = Field(default_factory=list)


def is_workload(path: str) -> bool:
    """Return whether a path is that of a workload YAML."""
    return path.lower().endswith((".yaml", ".yml"))


def read_workload(path: str | Path) -> WorkloadFile:
    """Return the workload in a YAML file; InputError lists its errors."""
    document = read_yaml(
        path, kind="a workload YAML", way_out="make one: capplan workload TRACE -o workload.yaml"
    )
    return validated(WorkloadFile, document)


def with_workload(item: Traffic, path: str) -> Traffic:
    """Return a line of traffic, with missing keys taken from a workload YAML."""
    workload = read_workload(path)
    if len(workload.traffic) > 1:
        raise InputError(
            f"{path}: holds {len(workload.traffic)} kinds of traffic; copy them into the scenario"
        )
    traffic = workload.traffic[0]
    if traffic.request_rate is None:
        raise InputError(f"{path}: {WITHOUT_RATE}\n  write one into it: request_rate: 20 req/s")
    of_mean = MEANS if all(getattr(item, key) is None for key in MEANS) else ()
    taken = [*of_mean, *(key for key in FROM_WORKLOAD if getattr(item, key) is None)]
    return item.model_copy(update={key: getattr(traffic, key) for key in taken} | {"trace": None})


def workload_mean_rate(path: str) -> float | None:
    """Return the mean rate of a workload YAML, over its hours or its whole time; None where it has neither."""
    workload = read_workload(path)
    if workload.rate_by_hour:
        return sum(workload.rate_by_hour) / len(workload.rate_by_hour)
    return workload.requests / workload.seconds if workload.requests and workload.seconds else None


def workload_reuse(path: str) -> PrefixReuse | None:
    """Return the prefix reuse of a workload YAML; None where its trace has no block ids."""
    prefix = read_workload(path).prefix
    if prefix is None:
        return None
    curve = tuple(sorted((point.blocks, point.hit_fraction) for point in prefix.curve))
    most = max((share for _, share in curve), default=0.0)
    return PrefixReuse(prefix.block_tokens, prefix.unlimited_hit_fraction, most, curve)


def _lengths_text(lengths: LengthSummary) -> str:
    if lengths.values[0] == lengths.values[-1]:
        return f"{lengths.values[0]:.0f}"
    return "{values: [" + ", ".join(f"{value:.0f}" for value in lengths.values) + "]}"


def workload_text(summary: WorkloadSummary) -> str:
    """Return a workload as YAML.

    Parameters
    ----------
    summary : of the traffic

    Returns
    -------
    text of a workload YAML, whose `traffic` can be copied into a scenario
    """
    rate = summary.rate
    lines = [
        f"name: {json.dumps(summary.name)}",
        f"source: {json.dumps(summary.format)}",
        f"requests: {summary.requests}",
        f"seconds: {rate.seconds:.6f}",
        "traffic:",
        f"  - name: {json.dumps(summary.name)}",
    ]
    if rate.peak_60s:
        lines.append(f"    request_rate: {rate.peak_60s:.6g} req/s  # busiest minute; mean {rate.mean:.6g}")
    cv = rate.cv_60s or rate.cv
    if cv:
        lines.append(f"    arrival_cv: {min(cv, 100.0):.6g}" + ("  # within minutes" if rate.cv_60s else ""))
    for key, lengths in (("input_tokens", summary.input_tokens), ("output_tokens", summary.output_tokens)):
        lines.append(f"    {key}: {_lengths_text(lengths)}")
    if summary.counted_prefix:
        tokens, fraction = summary.counted_prefix
        lines.append(
            f"    shared_prefix: {{tokens: {tokens}, hit_fraction: {fraction:.6g}}}  # as many hits as the server counted"
        )
    if rate.by_hour:
        lines.append(f"rate_by_hour: [{', '.join(f'{value:.6g}' for value in rate.by_hour)}]")
    if summary.prefix:
        lines += [
            "prefix:",
            f"  block_tokens: {summary.prefix.block_tokens}",
            f"  unlimited_hit_fraction: {summary.prefix.unlimited_hit_fraction:.6g}",
            "  curve:",
            *(
                f"    - {{blocks: {blocks}, hit_fraction: {share:.6g}}}"
                for blocks, share in summary.prefix.curve
            ),
        ]
    remarks = (*summary.omissions, *summary.notes)
    if remarks:
        lines += ["notes:", *(f"  - {json.dumps(text)}" for text in remarks)]
    return "\n".join((schema_line("workload"), *lines)) + "\n"
