"""Results of an engine against the predictions of a calibration: what layers of torch cannot prove."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capplan.calibrate.replayed import run_of
from capplan.errors import CapplanError, InputError
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.recorded.results.record import BenchmarkResult
from capplan.replica.spec import ReplicaSpec


@dataclass(frozen=True, slots=True)
class EngineProof:
    """One value of one result, measured and replayed."""

    result: str
    metric: str
    engine: str
    measured_s: float
    predicted_s: float
    """Predicted value with the calibration."""
    shipped_s: float
    """Predicted value with the shipped kernels of the device."""


def engine_proofs(pairs: Sequence[tuple[BenchmarkResult, ReplicaSpec]]) -> list[EngineProof]:
    """Return measured and replayed times of an engine, with and without the calibration.

    Parameters
    ----------
    pairs : results, each with the replica it was measured on, whose efficiency is that of the calibration

    Returns
    -------
    one row for each value; an error names the reason where no result can be replayed
    """
    rows: list[EngineProof] = []
    reasons = []
    for result, spec in pairs:
        try:
            run = run_of(result, spec)
            shipped = run_of(result, replace(spec, efficiency=efficiency_for(spec.device)))
        except CapplanError as error:
            run = shipped = str(error).splitlines()[0]
        if isinstance(run, str) or isinstance(shipped, str):
            reasons.append(f"{result.path}: {run}")
            continue
        host = spec.profile.host
        both = zip(run.values, run.replayed_s(host), shipped.replayed_s(host), strict=True)
        rows += [
            EngineProof(result.path, value.metric, spec.profile.engine, value.seconds, own, without)
            for value, own, without in both
        ]
    if not rows:
        raise InputError("no result can be replayed\n  " + "\n  ".join(reasons or ["no results were given"]))
    return rows
