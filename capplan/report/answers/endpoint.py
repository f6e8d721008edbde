"""What `capplan calibrate --endpoint` shows: what would be sent, or what was measured of a server and what follows."""

from dataclasses import replace
from pathlib import Path

from capplan.calibrate.endpoint.deployment import Deployment
from capplan.calibrate.endpoint.series import Series
from capplan.report.answer import Answer, Table
from capplan.report.answers.calibrate import refit_answer


def series_answer(address: str, series: Series) -> Answer:
    """Return what a series would send; nothing has been sent."""
    rows = [
        {
            "point": number + 1,
            "concurrency": point.concurrency,
            "input_tokens": point.input_tokens,
            "output_tokens": point.output_tokens,
            "seconds": series.point_s,
        }
        for number, point in enumerate(series.points)
    ]
    (least_in, least_out), (most_in, most_out) = series.least_tokens, series.most_tokens
    numbers = {
        "seconds": series.seconds,
        "most_requests": series.most_requests,
        "least_input_tokens": least_in,
        "least_output_tokens": least_out,
        "most_input_tokens": most_in,
        "most_output_tokens": most_out,
    }
    return Answer(
        command="calibrate",
        result={"endpoint": address, **numbers, "rows": rows},
        tables=(Table(rows, title="Closed loops; an open loop follows"),),
        headline=f"{address}: {len(rows)} closed loops and an open loop, {series.seconds / 60.0:.3g} min",
        closing=(
            f"at most {most_in:,} input and {most_out:,} output tokens in {series.most_requests:,} requests; "
            f"a slow server gets {least_in:,} and {least_out:,} or fewer",
            f"a hosted endpoint bills at most {most_in / 1e6:.2f} x its price per million input tokens, and "
            f"{most_out / 1e6:.2f} x its price per million output tokens",
            "nothing was sent",
        ),
    )


def deployment_answer(found: Deployment, written: Path) -> Answer:
    """Return what was measured of a server, and the refit on it."""
    base = refit_answer(found.refit, written)
    rows = [
        {
            "point": result.path,
            "requests": result.requests,
            "ttft_s.p50": result.ttft_s.p50,
            "ttft_s.p95": result.ttft_s.p95,
            "tpot_s.p50": result.tpot_s.p50,
            "tpot_s.p95": result.tpot_s.p95,
            "output_tokens_per_s": result.output_tokens_per_s,
        }
        for result in found.probed.results
    ]
    counted = found.probed.counted
    closing = list(base.closing)
    if counted.get("prefix_queries"):
        share = counted.get("prefix_hits", 0.0) / counted["prefix_queries"]
        closing.insert(
            0, f"its own counters: {share:.1%} of prompt tokens hit the prefix cache during the series"
        )
    if counted.get("steps"):
        closing.insert(0, f"its own counters: {counted['steps']:,.0f} steps")
    fullest = found.probed.fullest
    said = [f"{fullest[name]:,.0f} {name}" for name in ("running", "waiting") if name in fullest]
    said += [f"{fullest['cache_use']:.0%} of the cache in use"] if "cache_use" in fullest else []
    if said:
        closing.insert(0, f"its own numbers at most: {', '.join(said)}")
    result = {
        **base.result,
        "endpoint": found.address,
        "measured": rows,
        "counted": counted,
        "fullest": fullest,
    }
    return replace(
        base,
        result={**result, "interrupted": found.probed.stopped},
        tables=(Table(rows, title="Measured"), *base.tables),
        closing=tuple(closing),
    )
