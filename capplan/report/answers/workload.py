"""What `capplan workload` shows: lengths, rates, prefix reuse, what was left out, and what to do with it."""

from dataclasses import asdict
from typing import Any

from capplan.assumption import Assumption
from capplan.report.answer import Answer, Table
from capplan.workload.statistics import LengthSummary, WorkloadSummary


def _lengths(lengths: LengthSummary) -> dict[str, Any]:
    return {
        "mean": lengths.mean,
        "p50": lengths.p50,
        "p95": lengths.p95,
        "p99": lengths.p99,
        "max": lengths.max,
        "lognormal": asdict(lengths.fit),
    }


def workload_result(summary: WorkloadSummary) -> dict[str, Any]:
    """Return a workload with the keys of the interface."""
    rate = summary.rate
    prefix = None
    if summary.prefix:
        prefix = {
            "block_tokens": summary.prefix.block_tokens,
            "unlimited_hit_fraction": summary.prefix.unlimited_hit_fraction,
            "unlimited_token_hit_fraction": summary.prefix.unlimited_token_hit_fraction,
            "curve": [{"blocks": blocks, "hit_fraction": share} for blocks, share in summary.prefix.curve],
        }
    return {
        "name": summary.name,
        "format": summary.format,
        "requests": summary.requests,
        "seconds": rate.seconds,
        "request_rate": {
            "mean": rate.mean,
            "peak_60s": rate.peak_60s,
            "cv": rate.cv,
            "cv_60s": rate.cv_60s,
            "peak_to_mean_ratio": rate.peak_to_mean_ratio,
            "dispersion_60s": rate.dispersion_60s,
            "by_hour": list(rate.by_hour),
        },
        "input_tokens": _lengths(summary.input_tokens),
        "output_tokens": _lengths(summary.output_tokens),
        "prefix": prefix,
        "evictions": [asdict(item) for item in summary.evictions],
        "prefix_hit_fraction": summary.prefix_hit_fraction,
        "measured": asdict(summary.measured) if summary.measured else None,
        "acceptance_fraction": summary.acceptance_fraction,
        "accepted_tokens_per_round": summary.accepted_tokens_per_round,
        "kv_cache_tokens": summary.kv_cache_tokens,
        "omissions": list(summary.omissions),
        "notes": list(summary.notes),
    }


def _tables(summary: WorkloadSummary) -> tuple[Table, ...]:
    rate = summary.rate
    lengths = [
        {"tokens": name, "mean": s.mean, "p50": s.p50, "p95": s.p95, "p99": s.p99, "max": s.max,
         "lognormal p95": s.fit.p95, "fit_error_fraction": s.fit.largest_error_fraction}
        for name, s in (("input", summary.input_tokens), ("output", summary.output_tokens))
    ]  # fmt: skip
    overview = {
        "requests": summary.requests,
        "seconds": rate.seconds,
        "mean_requests_per_s": rate.mean,
        "peak_60s_requests_per_s": rate.peak_60s,
        "peak_to_mean_ratio": rate.peak_to_mean_ratio,
        "arrival_cv": rate.cv,
        "arrival_cv_60s": rate.cv_60s,
        "dispersion_60s": rate.dispersion_60s,
        "prefix_hit_fraction": summary.prefix_hit_fraction,
        "acceptance_fraction": summary.acceptance_fraction,
        "accepted_tokens_per_round": summary.accepted_tokens_per_round,
        "kv_cache_tokens": summary.kv_cache_tokens,
    }
    if summary.measured:
        overview |= {f"measured_{key}": value for key, value in asdict(summary.measured).items()}
    known = {key: value for key, value in overview.items() if value is not None}
    tables = [
        Table([known], title="Traffic", upright=True),
        Table(lengths, title="Lengths"),
    ]
    if len(rate.by_hour) > 1:
        title = "Rate by hour of the day" if rate.seconds > 48 * 3600 else "Rate by hour"
        rows = [{"hour": hour, "request_rate": value} for hour, value in enumerate(rate.by_hour)]
        tables.append(Table(rows, title=title))
    if summary.prefix:
        size = summary.prefix.block_tokens
        rows = [{"blocks": n, "cache_tokens": n * size, "hit_fraction": h} for n, h in summary.prefix.curve]
        tables.append(Table(rows, title=f"Prefix hits by cache size, in blocks of {size} tokens"))
    if summary.evictions:
        rows = [asdict(item) for item in summary.evictions]
        tables.append(Table(rows, title="Prefix hits by rule of eviction"))
    return tuple(tables)


def workload_answer(summary: WorkloadSummary, written: str | None) -> Answer:
    """Return what a file says about its traffic."""
    rate = summary.rate
    speed = (
        f", {rate.mean:.3g} req/s on average and {rate.peak_60s:.3g} at peak"
        if rate.mean and rate.peak_60s
        else ""
    )
    closing = list(summary.notes)
    if written:
        closing.append(f"written to {written}: use it in a scenario as trace: {written}")
    else:
        closing.append("to use it in a scenario, write it: -o workload.yaml")
    return Answer(
        command="workload",
        result=workload_result(summary),
        tables=_tables(summary),
        headline=f"{summary.name} ({summary.format}): {summary.requests:,} requests{speed}",
        closing=tuple(closing),
        assumptions=(
            (
                Assumption(
                    "prompts share no prefixes: the file has neither block ids nor counters of a prefix cache",
                    "shared_prefix in the workload YAML",
                ),
            )
            if summary.prefix is None and summary.prefix_hit_fraction is None
            else ()
        ),
        warnings=summary.omissions,
    )
