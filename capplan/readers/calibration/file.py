"""The calibration file: its schema, how it is written, and how it is checked on load."""

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from capplan.errors import InputError
from capplan.hardware.calibration import (
    SCHEMA_VERSION,
    Calibration,
    CalibrationFile,
    FittedNumber,
    HostRefit,
    KernelFit,
    Machine,
    Measurement,
    Peaks,
    Score,
)
from capplan.readers.calibration.host import HostRecord, host_of_record, host_values
from capplan.readers.record import Record, validated
from capplan.readers.yaml_file import Document, read_yaml

KIND = "a calibration YAML"
WAY_OUT = "write one with: capplan calibrate -o FILE.calibration.yaml"
HEADER = """\
# What this machine reaches, measured by `capplan calibrate`. Fractions are of the best rates seen (peaks); times are in
# seconds. Take it into any command with --calibration. A changed file is refused: measure again instead of editing.
"""
HOST_HEADER = """\
# What an engine's host adds to its steps, refitted by `capplan calibrate --from` from results of a serving benchmark.
# Take it into any command with --calibration. A changed file is refused: refit again instead of editing.
"""
SIGNIFICANT_DIGITS = 6
MIGRATED = {1: "before host times and the tiles of processors; its kernels are read as they were fitted"}
"""Older schemas that are read, and what they lack."""


class MachineRecord(Record):
    """The device that was measured."""

    device: str
    name: str
    uuid_hash: str = Field(pattern="^[0-9a-f]{12}$")
    driver: str | None
    cuda: str | None
    torch: str
    threads: int | None
    memory_bytes: float = Field(gt=0)
    multiprocessors: int = Field(gt=0)
    l2_bytes: float = Field(gt=0)
    tile_rows: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    clocks: dict[str, str]


class NumberRecord(Record):
    """A fitted number and its 95 % interval."""

    value: float
    low: float
    high: float
    constrained: bool


class ScoreRecord(Record):
    """How well the form describes one operator."""

    points: int = Field(ge=0)
    held_out_points: int = Field(ge=0)
    median_ape: float = Field(ge=0)
    held_out_median_ape: float | None = Field(ge=0)
    remarks: list[str]


class FitRecord(Record):
    """One kernel in one dtype."""

    numbers: dict[str, NumberRecord]
    operators: dict[str, ScoreRecord]


class PeaksRecord(Record):
    """Best rates seen."""

    memory_bytes_per_s: float = Field(gt=0)
    flop_per_s: dict[str, float]
    link_bytes_per_s: float | None = Field(gt=0)
    ranks: int = Field(gt=0)
    node_ranks: int = Field(gt=0)


class MeasurementRecord(Record):
    """One shape."""

    operator: str
    dtype: str
    shape: dict[str, float]
    median_s: float = Field(gt=0)
    spread_fraction: float = Field(ge=0)
    repeats: int = Field(gt=0)
    held_out: bool
    fitted_s: float | None = Field(gt=0)


class HostFileRecord(Record):
    """A file without kernels."""

    schema_version: int
    checksum: str
    host: HostRecord


class CalibrationRecord(Record):
    """A file with measured kernels."""

    schema_version: int
    checksum: str
    date: str
    seconds: float = Field(ge=0)
    quick: bool
    partial: bool
    machine: MachineRecord
    peaks: PeaksRecord
    fitted: dict[str, FitRecord]
    remarks: list[str]
    measurements: list[MeasurementRecord]
    host: HostRecord | None = None


def calibration_text(kernels: Calibration | None, host: HostRefit | None = None) -> str:
    """Return the file that holds measured kernels, refitted host times, or both."""
    values = _values(kernels) if kernels else {}
    values |= {"host": host_values(host, _rounded)} if host else {}
    rows = values.pop("measurements", None)
    points = values["host"].pop("points") if host else None
    text = HEADER if kernels else HOST_HEADER
    text += _yaml(
        {"schema_version": SCHEMA_VERSION, "checksum": _checksum(_body(values, rows, points)), **values}
    )
    if points is not None:  # the last key of the last section, so its rows can follow line by line
        text += "  points:\n" + "".join(f"  - {_row(point)}\n" for point in points)
    return text + (
        "measurements:\n" + "".join(f"- {_row(row)}\n" for row in rows) if rows is not None else ""
    )


def _body(values: dict[str, Any], rows: Any, points: Any) -> dict[str, Any]:
    host = {"host": {**values["host"], "points": points}} if points is not None else {}
    return {**values, **host, **({"measurements": rows} if rows is not None else {})}


def _yaml(values: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(
        values, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    )
    return text


def _row(values: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(
        values, sort_keys=False, allow_unicode=True, default_flow_style=True, width=10**6
    )
    return text.strip()


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Return the measured kernels in a file, or say in one line why they are not used.

    Parameters
    ----------
    path : written by `capplan calibrate`

    Returns
    -------
    the calibration, as it was measured
    """
    found = read_calibration_file(path)
    if found.kernels is None:
        raise InputError(
            f"{os.fspath(path)}: holds host times that were refitted from results, and no measured kernels\n"
            "  measure those with: capplan calibrate -o FILE.calibration.yaml"
        )
    return found.kernels


def read_calibration_file(path: str | os.PathLike[str]) -> CalibrationFile:
    """Return everything in a calibration file, or say in one line why it is not used.

    Parameters
    ----------
    path : written by `capplan calibrate`

    Returns
    -------
    measured kernels, refitted host times, and what was migrated
    """
    name = os.fspath(path)
    try:
        changed_ns = Path(name).stat().st_mtime_ns
    except (OSError, ValueError):
        changed_ns = 0
    return _read(name, changed_ns)


@lru_cache(maxsize=8)
def _read(path: str, _changed_ns: int) -> CalibrationFile:
    """Return everything in a file, once: the rows of a validation ask for it one by one."""
    document = read_yaml(path, kind=KIND, way_out=WAY_OUT)
    notes = _migration(document)
    alone = "host" in document.value and "machine" not in document.value
    record: HostFileRecord | CalibrationRecord = (
        validated(HostFileRecord, document) if alone else validated(CalibrationRecord, document)
    )
    body = {key: value for key, value in document.value.items() if key not in ("schema_version", "checksum")}
    if _checksum(body) != record.checksum:
        raise InputError(
            f"{document.name}: was changed or cut short after it was written (its checksum does not match)\n  {WAY_OUT}"
        )
    host = host_of_record(record.host) if record.host else None
    return CalibrationFile(None if isinstance(record, HostFileRecord) else _plain(record), host, notes)


def _migration(document: Document) -> tuple[str, ...]:
    """Return what is said of a file of an older schema that is read; refuse every other one."""
    version = document.value.get("schema_version")
    if "fits" in document.value and "catalogue_names" in document.value:
        raise InputError(f"{document.name}: is an efficiency file of the catalogue, not {KIND}\n  {WAY_OUT}")
    if version is None:
        raise InputError(f"{document.name}: has no schema_version, so it is not {KIND}\n  {WAY_OUT}")
    if isinstance(version, int) and version in MIGRATED:
        return (f"{document.name}: was written in schema_version {version}, {MIGRATED[version]}",)
    if version != SCHEMA_VERSION:
        known = ", ".join(map(str, (*MIGRATED, SCHEMA_VERSION)))
        raise InputError(
            f"{document.name}: schema_version {version} is not read\n  known: {known}\n"
            "  another version of capplan wrote it; measure again with: capplan calibrate -o FILE"
        )
    return ()


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def _values(calibration: Calibration) -> dict[str, Any]:
    machine, link = calibration.machine, calibration.peaks.link_bytes_per_s
    return {
        "date": calibration.date,
        "seconds": _rounded(calibration.seconds),
        "quick": calibration.quick,
        "partial": calibration.partial,
        "machine": {name: getattr(machine, name) for name in MachineRecord.model_fields}
        | {"clocks": dict(machine.clocks), "tile_rows": dict(machine.tile_rows)},
        "peaks": {
            "memory_bytes_per_s": _rounded(calibration.peaks.memory_bytes_per_s),
            "flop_per_s": {
                dtype: _rounded(rate) for dtype, rate in sorted(calibration.peaks.flop_per_s.items())
            },
            "link_bytes_per_s": None if link is None else _rounded(link),
            "ranks": calibration.peaks.ranks,
            "node_ranks": calibration.peaks.node_ranks,
        },
        "fitted": {fit.key: _fit_values(fit) for fit in calibration.fits},
        "remarks": list(calibration.remarks),
        "measurements": [_measurement_values(m) for m in calibration.measurements],
    }


def _fit_values(fit: KernelFit) -> dict[str, Any]:
    numbers = {
        name: {
            "value": _rounded(n.value),
            "low": _rounded(n.low),
            "high": _rounded(n.high),
            "constrained": n.constrained,
        }
        for name, n in fit.numbers.items()
    }
    operators = {
        name: {
            "points": s.points,
            "held_out_points": s.held_out_points,
            "median_ape": _rounded(s.median_ape),
            "held_out_median_ape": None if s.held_out_median_ape is None else _rounded(s.held_out_median_ape),
            "remarks": list(s.remarks),
        }
        for name, s in fit.scores.items()
    }
    return {"numbers": numbers, "operators": operators}


def _measurement_values(m: Measurement) -> dict[str, Any]:
    return {
        "operator": m.operator,
        "dtype": m.dtype,
        "shape": {name: float(size) for name, size in m.shape.items()},
        "median_s": _rounded(m.seconds),
        "spread_fraction": _rounded(m.spread_fraction),
        "repeats": m.repeats,
        "held_out": m.held_out,
        "fitted_s": None if m.fitted_s is None else _rounded(m.fitted_s),
    }


def _plain(record: CalibrationRecord) -> Calibration:
    fits = []
    for key, fit in record.fitted.items():
        kernel, _, dtype = key.partition("/")
        numbers = {name: FittedNumber(**number.model_dump()) for name, number in fit.numbers.items()}
        scores = {
            name: Score(**(score.model_dump() | {"remarks": tuple(score.remarks)}))
            for name, score in fit.operators.items()
        }
        fits.append(KernelFit(kernel, dtype, numbers, scores))
    measurements = [
        Measurement(
            m.operator, m.dtype, m.shape, m.median_s, m.spread_fraction, m.repeats, m.held_out, m.fitted_s
        )
        for m in record.measurements
    ]
    return Calibration(
        machine=Machine(**record.machine.model_dump()),
        date=record.date,
        seconds=record.seconds,
        quick=record.quick,
        partial=record.partial,
        peaks=Peaks(**record.peaks.model_dump()),
        fits=tuple(fits),
        measurements=tuple(measurements),
        remarks=tuple(record.remarks),
    )
