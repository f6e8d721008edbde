"""What `capplan calibrate` shows: a calibration, a verification, a refit, a comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from capplan.readers.calibration.record import Calibration, HostRefit
from capplan.report.answer import Answer, Table


def calibration_answer(
    calibration: Calibration,
    written: Path | None,
    proof: Sequence[Mapping[str, Any]] = (),
    *,
    interrupted: bool = False,
) -> Answer:
    """Return the fitted numbers and their error on held-out shapes.

    Parameters
    ----------
    calibration : what was measured
    written : file it was written to; None where it was only read
    proof : rows of a verification, where there was one
    interrupted : Ctrl-C ended the run; exit code 130
    """
    operators = [
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
        {
            "kernel": key,
            "number": name,
            "value": n.value,
            "low": n.low,
            "high": n.high,
            "constrained": n.constrained,
        }
        for key, fit in calibration.fitted.items()
        for name, n in fit.numbers.items()
    ]
    remarks = [
        f"{name} in {key.partition('/')[2]}: {remark}"
        for key, fit in calibration.fitted.items()
        for name, score in fit.operators.items()
        for remark in score.remarks
    ]
    tables = [
        Table(operators, title="Error of the fit, on fitted and on held-out shapes"),
        Table(numbers, title="Fitted numbers, with 95 % intervals"),
    ]
    if proof:
        tables.append(Table(list(proof), title="One real layer: measured and predicted"))
    partial = " (partial)" if calibration.partial else ""
    closing = [f"written to {written}{partial}"] if written else []
    if written:
        closing.append(f"use it: capplan estimate MODEL --hardware NAME --calibration {quote(str(written))}")
    return Answer(
        command="calibrate",
        result=calibration_result(calibration, written, proof),
        tables=tuple(tables),
        headline=f"{calibration.machine.name}, {len(calibration.measurements)} shapes in {calibration.seconds:.0f} s{partial}",
        closing=(*closing, *(f"note: {remark}" for remark in remarks)),
        warnings=calibration.remarks,
        exit_code=130 if interrupted else 0,
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
        "seconds": calibration.seconds,
        "partial": calibration.partial,
        "shapes": len(calibration.measurements),
        "peaks": {
            "memory_bytes_per_s": calibration.peaks.memory_bytes_per_s,
            "flop_per_s": dict(calibration.peaks.flop_per_s),
        },
        "file": str(written) if written else None,
        "remarks": list(calibration.remarks),
    }
    return result | ({"proof": list(proof), "proof_error": proof_errors(proof)} if proof else {})


def held_out_errors(calibration: Calibration) -> dict[str, dict[str, float | int]]:
    """Return the number of held-out shapes and their median error, by operator, over all dtypes."""
    errors: dict[str, list[float]] = {}
    for m in calibration.measurements:
        if m.held_out and m.fitted_s is not None:
            errors.setdefault(m.operator, []).append(abs(m.fitted_s / m.median_s - 1.0))
    return {name: {"n": len(e), "median_ape": float(np.median(e))} for name, e in errors.items()}


def proof_rows(proofs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of a verification."""
    return [
        {
            "layer": p.layer,
            "layers": p.layers,
            "phase": p.phase,
            "sequences": p.sequences,
            "tokens": p.tokens,
            "measured_s": p.measured_s,
            "predicted_s": p.predicted_s,
            "error_fraction": p.error_fraction,
        }
        for p in proofs
    ]


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
        tables=(Table(list(rows), title="One real layer: measured and predicted"),),
        headline=f"{model} on {device}: median error {shown}",
        warnings=tuple(warnings),
    )


def refit_answer(refit: HostRefit, written: Path | None = None) -> Answer:
    """Return a refit from benchmark results: numbers, and the error before, after and on results left out.

    Parameters
    ----------
    refit : of `calibrate.refit`
    written : the calibration file it was written to; None where none was written
    """
    numbers = [
        {"number": name, "value": n.value, "low": n.low, "high": n.high, "constrained": n.constrained}
        for name, n in refit.numbers.items()
    ]
    rows = [asdict(point) for point in refit.points]
    errors = {
        "before": refit.before_median_ape,
        "after": refit.after_median_ape,
        "left_out": refit.left_out_median_ape,
    }
    closing = (
        f"use it: capplan estimate MODEL --hardware {quote(refit.hardware)} --engine {quote(refit.engine)} --calibration {quote(str(written))}",
    )
    return Answer(
        command="calibrate",
        result={
            "device": refit.hardware,
            "engine": refit.engine,
            "engine_version": refit.engine_version,
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
            ),
            Table(numbers, title="Refitted numbers, with 95 % intervals"),
        ),
        headline=(
            f"{refit.engine} {refit.engine_version} on {refit.hardware}, {refit.results} results: median error "
            f"{errors['before']:.1%} before, {errors['after']:.1%} after, {errors['left_out']:.1%} on results left out"
        ),
        closing=(f"written to {written}", *closing) if written else (),
        warnings=refit.remarks,
    )


def comparison_answer(first: str, second: str, differences: Sequence[Any], notes: Sequence[str]) -> Answer:
    """Return two calibrations, or a calibration and the datasheet, side by side."""
    rows = [
        {
            "quantity": d.quantity,
            "unit": d.unit,
            "first": d.first,
            "second": d.second,
            "ratio": d.ratio,
            "agrees": d.agrees,
        }
        for d in differences
    ]
    return Answer(
        command="calibrate",
        result={"first": first, "second": second, "rows": rows, "notes": list(notes)},
        tables=(Table(rows, titles={"first": first, "second": second, "agrees": "within 3 %"}),),
        headline=f"{first} against {second}",
        closing=tuple(notes),
    )
