"""What `capplan calibrate` shows: a calibration, a verification, a refit, a comparison."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from shlex import join, quote
from typing import Any

import numpy as np

from capplan.calibrate.endpoint.deployment import Deployment
from capplan.calibrate.endpoint.series import Series
from capplan.readers.calibration.record import Calibration, HostRefit, Machine, ResultPoint
from capplan.report.answer import Answer, Table, row_of

SAME_KERNELS = (
    "these layers run the torch kernels that were fitted: they prove the sum, not an engine; with results of an engine: "
    "capplan calibrate --verify MODEL --calibration FILE --results RESULT"
)
_PROOF = "One real layer: measured and predicted"


def calibration_answer(
    calibration: Calibration,
    written: Path | None,
    proof: Sequence[Mapping[str, Any]],
    *,
    interrupted: bool,
) -> Answer:
    """Return the fitted numbers and their error on held-out shapes.

    Parameters
    ----------
    calibration : what was measured
    written : file it was written to; None where it was only read
    proof : rows of a verification, where there was one
    interrupted : Ctrl-C ended the run; exit code 130
    """
    remarks = [
        f"{name} in {key.partition('/')[2]}: {remark}"
        for key, fit in calibration.fitted.items()
        for name, score in fit.operators.items()
        for remark in score.remarks
    ]
    errors = [
        {
            "kernel": key,
            "operator": name,
            "shapes": score.points + score.held_out_points,
            "held_out": score.held_out_points,
            "median_error_fraction": score.median_ape,
            "held_out_error_fraction": score.held_out_median_ape,
        }
        for key, fit in calibration.fitted.items()
        for name, score in fit.operators.items()
    ]
    numbers = [
        {"kernel": key, "number": name, **row_of(n, "value low high constrained")}
        for key, fit in calibration.fitted.items()
        for name, n in fit.numbers.items()
    ]
    if proof:
        remarks.append(SAME_KERNELS)
    partial = " (partial)" if calibration.partial else ""
    closing = [f"written to {written}{partial}"] if written else []
    if written:
        closing.append(f"use it: capplan estimate MODEL --hardware NAME --calibration {quote(str(written))}")
    return Answer(
        command="calibrate",
        result=calibration_result(calibration, written, proof),
        tables=(
            Table(errors, title="Error of the fit, on fitted and on held-out shapes"),
            Table(numbers, title="Fitted numbers, with 95% intervals"),
            Table(proof, title=_PROOF),
        ),
        headline=f"{calibration.machine.name}, {len(calibration.measurements)} shapes in {calibration.seconds:.0f} s{partial}",
        closing=(*closing, *_said(calibration), *(f"note: {remark}" for remark in remarks)),
        warnings=calibration.remarks,
        exit_code=130 if interrupted else 0,
    )


def _said(calibration: Calibration) -> Iterator[str]:
    """Yield what is missing, and how steady the device was."""
    if calibration.missing:
        yield f"not measured: {', '.join(calibration.missing)}"
    conditions = calibration.conditions
    if conditions is None:
        return
    if not conditions.readings:
        yield "clock and power are unknown: the driver shows no sensors here"
    if conditions.clock_hz:
        clock, hot = conditions.clock_hz, conditions.slowed_fraction
        reasons = (
            f"; lowered by {', '.join(f'{name} ({share:.0%})' for name, share in hot.items())}" if hot else ""
        )
        yield (
            f"clock {clock.median / 1e6:.0f} MHz ({clock.low / 1e6:.0f} to {clock.high / 1e6:.0f}){reasons}; "
            f"{conditions.passes} passes, {conditions.rejected_repeats} repeats rejected"
        )


def calibration_result(
    calibration: Calibration, written: Path | None, proof: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the result of the JSON object."""
    result: dict[str, Any] = {
        "device": calibration.machine.name,
        "fitted": {
            key: {name: n.value for name, n in fit.numbers.items()} for key, fit in calibration.fitted.items()
        },
        "held_out": held_out_errors(calibration),
        **row_of(calibration, "seconds partial"),
        "shapes": len(calibration.measurements),
        "peaks": {
            "memory_bytes_per_s": calibration.peaks.memory_bytes_per_s,
            "flop_per_s": dict(calibration.peaks.flop_per_s),
        },
        "file": str(written) if written else None,
        "remarks": list(calibration.remarks),
        "missing": list(calibration.missing),
        "libraries": {key: list(fit.libraries) for key, fit in calibration.fitted.items() if fit.libraries},
        "conditions": asdict(calibration.conditions) if calibration.conditions else None,
    }
    return result | ({"proof": list(proof), "proof_error": proof_errors(proof)} if proof else {})


def held_out_errors(calibration: Calibration) -> dict[str, dict[str, float | int]]:
    """Return the number of held-out shapes and their median error, by operator, over all dtypes."""
    errors: dict[str, list[float]] = {}
    for m in calibration.measurements:
        if m.held_out and m.fitted_s is not None:
            errors.setdefault(m.operator, []).append(abs(m.fitted_s / m.median_s - 1.0))
    return {name: {"n": len(e), "median_ape": float(np.median(e))} for name, e in errors.items()}


def proof_errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | int]]:
    """Return the number of rows of a verification and their median error, by phase."""
    phases = dict.fromkeys(str(row["phase"]) for row in rows)
    errors_by_phase = {p: [abs(row["error_fraction"]) for row in rows if row["phase"] == p] for p in phases}
    return {p: {"n": len(e), "median_ape": float(np.median(e))} for p, e in errors_by_phase.items()}


def proof_answer(
    model: str, device: str, rows: Sequence[Mapping[str, Any]], warnings: Sequence[str]
) -> Answer:
    """Return measured and predicted times of real layers."""
    errors = proof_errors(rows)
    shown = ", ".join(f"{phase} {e['median_ape']:.1%} of {e['n']}" for phase, e in errors.items())
    return Answer(
        command="calibrate",
        result={"model": model, "device": device, "proof": list(rows), "proof_error": errors},
        tables=(Table(rows, title=_PROOF),),
        headline=f"{model} on {device}: median error {shown}",
        closing=(SAME_KERNELS,),
        warnings=tuple(warnings),
    )


def engine_proof_answer(model: str, calibration: str, rows: Sequence[Mapping[str, Any]]) -> Answer:
    """Return results of an engine, measured and replayed with a calibration and with the shipped kernels.

    Parameters
    ----------
    model : that the engine served
    calibration : file
    rows : of `calibrate.verify.engine_proofs`
    """
    errors = {
        name: float(np.median([abs(row[field] / row["measured_s"] - 1.0) for row in rows]))
        for name, field in (("calibrated", "predicted_s"), ("shipped", "shipped_s"))
    }
    return Answer(
        command="calibrate",
        result={"model": model, "calibration": calibration, "rows": rows, "median_ape": errors},
        tables=(Table(rows, title="Results of an engine: measured, and replayed"),),
        headline=(
            f"{model}, {len(rows)} values: median error {errors['calibrated']:.1%} with {calibration}, "
            f"{errors['shipped']:.1%} with the shipped kernels"
        ),
    )


def plan_answer(
    machine: Machine, plan: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], busy: str
) -> Answer:
    """Return what a run would measure.

    Parameters
    ----------
    machine : the device
    plan, rows : of `calibrate.measure.planned_run`
    busy : who else uses the device; empty if nobody is seen
    """
    return Answer(
        command="calibrate",
        result={"device": machine.name, **plan, "rows": rows},
        tables=(Table(rows, title="What would be measured"),),
        headline=(
            f"{machine.name}: {plan['shapes']} shapes, about {plan['seconds']:.0f} s of at most {plan['budget_s']:.0f} s, up to "
            f"{plan['peak_bytes'] / 1e9:.1f} GB of {plan['free_bytes'] / 1e9:.1f} GB free"
        ),
        closing=("nothing was written; the fit takes up to a minute more",),
        warnings=(f"in use: {busy}; a run needs --force",) if busy else (),
    )


_POINTS = ("result", "metric", "model", "concurrency", "measured_s", "before_s", "after_s", "left_out_s")


def refit_answer(refit: HostRefit, written: Path | None, replica: Sequence[str] = ()) -> Answer:
    """Return a refit from benchmark results: numbers, and the error before, after and on results left out.

    Parameters
    ----------
    refit : of `calibrate.refit`
    written : the calibration file it was written to; None where none was written
    replica : model and options of the replica that was measured, for the command that uses the file
    """
    numbers = [
        {"number": name, **row_of(n, "value low high constrained")} for name, n in refit.numbers.items()
    ]
    rows = [asdict(point) for point in refit.points]
    errors = {
        "before": refit.before_median_ape,
        "after": refit.after_median_ape,
        "left_out": refit.left_out_median_ape,
    }
    words = [*replica, *_load_words(refit.points[0]), "--calibration", str(written)]
    closing = (f"use it: capplan estimate {join(words)}",)
    return Answer(
        command="calibrate",
        result={
            "device": refit.hardware,
            **row_of(refit, "engine engine_version"),
            "fitted": {row["number"]: row["value"] for row in numbers},
            "intervals": numbers,
            "points": rows,
            **{name: {"n": len(rows), "median_ape": error} for name, error in errors.items()},
            "file": str(written) if written else None,
            "remarks": list(refit.remarks),
        },
        tables=(
            Table(
                rows,
                title="Measured and replayed: before the refit, after it, and refitted without that result",
                shown=_POINTS,
            ),
            Table(numbers, title="Refitted numbers, with 95% intervals"),
        ),
        headline=(
            f"{refit.engine} {refit.engine_version} on {refit.hardware}, {refit.results} results: median error "
            f"{errors['before']:.1%} before, {errors['after']:.1%} after, {errors['left_out']:.1%} on results left out"
        ),
        closing=(f"written to {written}", *closing) if written else (),
        warnings=refit.remarks,
    )


def _load_words(point: ResultPoint) -> list[str]:
    """Return the options of the load of a result."""
    lengths = (
        ["--input-tokens", f"{point.input_tokens:.0f}", "--output-tokens", f"{point.output_tokens:.0f}"]
        if point.input_tokens and point.output_tokens
        else []
    )
    if point.request_rate_per_s:
        return [*lengths, "--request-rate", f"{point.request_rate_per_s:.4g} req/s"]
    return [*lengths, "--concurrency", f"{max(1.0, point.concurrency or 1.0):.0f}"]


def comparison_answer(
    first: str, second: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str]
) -> Answer:
    """Return two calibrations, or a calibration and the datasheet, side by side."""
    return Answer(
        command="calibrate",
        result={"first": first, "second": second, "rows": rows, "notes": list(notes)},
        tables=(Table(rows, titles={"first": first, "second": second, "agrees": "within 3%"}),),
        headline=f"{first} against {second}",
        closing=tuple(notes),
    )


def series_answer(address: str, series: Series) -> Answer:
    """Return what a series would send; nothing has been sent."""
    rows = [
        {
            "point": number + 1,
            **row_of(point, "concurrency input_tokens output_tokens"),
            "seconds": series.point_s,
        }
        for number, point in enumerate(series.points)
    ]
    (least_in, least_out), (most_in, most_out) = series.least_tokens, series.most_tokens
    numbers = {
        "seconds": series.seconds,
        "stairs_requests": len(series.stairs),
        "most_requests": series.most_requests,
        "least_input_tokens": least_in,
        "least_output_tokens": least_out,
        "most_input_tokens": most_in,
        "most_output_tokens": most_out,
    }
    return Answer(
        command="calibrate",
        result={"endpoint": address, **numbers, "rows": rows},
        tables=(
            Table(
                rows,
                title=f"Closed loops; an open loop follows, and stairs of {len(series.stairs)} requests that end one after the other "
                "come before and after",
            ),
        ),
        headline=f"{address}: {len(rows)} closed loops and an open loop, {series.seconds / 60.0:.3g} min",
        closing=(
            f"at most {most_in:,} input and {most_out:,} output tokens in {series.most_requests:,} requests; "
            f"a slow server gets {least_in:,} and {least_out:,} or fewer",
            f"a hosted endpoint bills at most {most_in / 1e6:.2f} x its price per million input tokens, and "
            f"{most_out / 1e6:.2f} x its price per million output tokens",
            "nothing was sent",
        ),
    )


def deployment_answer(found: Deployment, written: Path, replica: Sequence[str]) -> Answer:
    """Return what was measured of a server, and the refit on it; `replica`: model and options of what it serves."""
    base = refit_answer(found.refit, written, replica)
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
    counted, fullest, pace = found.probed.counted, found.probed.fullest, found.refit.pace
    result = {
        **base.result,
        "endpoint": found.address,
        "measured": rows,
        "decode_steps": [asdict(step) for step in found.refit.steps],
        "pace": asdict(pace) if pace else None,
        "counted": counted,
        "fullest": fullest,
    }
    steps = Table(result["decode_steps"], title="Decode steps: measured, and with the refitted numbers")
    return replace(
        base,
        result={**result, "interrupted": found.probed.stopped},
        tables=(Table(rows, title="Measured"), steps, *base.tables),
        closing=(*_own_texts(found), *base.closing),
    )


def _own_texts(found: Deployment) -> Iterator[str]:
    """Yield what the server says of itself, and by how much loads of another moment may differ."""
    counted, fullest, pace = found.probed.counted, found.probed.fullest, found.refit.pace
    said = [f"{fullest[name]:,.0f} {name}" for name in ("running", "waiting") if name in fullest]
    said += [f"{fullest['cache_use']:.0%} of the cache in use"] if "cache_use" in fullest else []
    if said:
        yield f"its own numbers at most: {', '.join(said)}"
    if counted.get("steps"):
        yield f"its own counters: {counted['steps']:,.0f} steps"
    if counted.get("prefix_queries"):
        share = counted.get("prefix_hits", 0.0) / counted["prefix_queries"]
        yield f"its own counters: {share:.1%} of prompt tokens hit the prefix cache during the series"
    if pace:
        said_pace = f"steps of a load took {pace.low:.2f} to {pace.high:.2f} times as long as at the mean pace of the series"
        yield f"{said_pace}: a load of another moment may differ as much"
