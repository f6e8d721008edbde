"""The calibration file: how it is written, and how it is checked on load."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict

from capplan.engine.profile import HostOverhead
from capplan.errors import InputError
from capplan.readers.calibration.emulated import emulated_before
from capplan.readers.calibration.record import SCHEMA_VERSION, Calibration, CalibrationFile, HostRefit
from capplan.readers.record import plain, validated
from capplan.readers.yaml_file import Document, read_yaml, yaml_text

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
MIGRATED = {
    1: "before host times and the tiles of processors; its kernels are read as they were fitted",
    2: "before libraries and clock readings; its kernels are read as they were fitted",
    3: "before emulated formats were told apart; they are known by their rates, and by the capability of the device",
}
"""Older schemas that are read, and what they lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostFile:
    """A file without kernels."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    schema_version: int
    checksum: str
    host: HostRefit


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelFile(Calibration):
    """A file with measured kernels."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    schema_version: int
    checksum: str
    host: HostRefit | None = None


def calibration_text(kernels: Calibration | None, host: HostRefit | None = None) -> str:
    """Return the file that holds measured kernels, refitted host times, or both."""
    body = {**(plain(kernels) if kernels else {}), **({"host": plain(host)} if host else {})}
    header = HEADER if kernels else HOST_HEADER
    return header + yaml_text({"schema_version": SCHEMA_VERSION, "checksum": _checksum(body), **body})


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Return the measured kernels in a file; the error says in one line why they cannot be used.

    Parameters
    ----------
    path : written by `capplan calibrate`

    Returns
    -------
    the calibration, as it was measured
    """
    calibration_file = read_calibration_file(path)
    if calibration_file.kernels is None:
        raise InputError(
            f"{os.fspath(path)}: holds host times that were refitted from results, and no measured kernels\n"
            "  measure those with: capplan calibrate -o FILE.calibration.yaml"
        )
    return calibration_file.kernels


def read_calibration_file(path: str | os.PathLike[str]) -> CalibrationFile:
    """Return everything in a calibration file; the error says in one line why it cannot be used.

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
    """Return everything in a file, read once: every row of a validation asks for it."""
    document = read_yaml(path, kind=KIND, way_out=WAY_OUT)
    notes = _migration(document)
    alone = "host" in document.value and "machine" not in document.value
    file: _HostFile | _KernelFile = (
        validated(_HostFile, document) if alone else validated(_KernelFile, document)
    )
    body = {key: value for key, value in document.value.items() if key not in ("schema_version", "checksum")}
    host = file.host and _checked_host(file.host, document)
    if _checksum(body) != file.checksum:
        raise InputError(
            f"{document.name}: was edited or truncated after it was written (its checksum does not match)\n  {WAY_OUT}"
        )
    kernels = None
    if isinstance(file, _KernelFile):
        kernels = Calibration(**{f.name: getattr(file, f.name) for f in fields(Calibration)})
        if file.schema_version in MIGRATED:
            emulated = emulated_before(kernels.machine, kernels.peaks)
            kernels = replace(kernels, machine=replace(kernels.machine, emulated=emulated))
    return CalibrationFile(kernels, host, notes)


def _migration(document: Document) -> tuple[str, ...]:
    """Return the notice for a file of an older schema that is still read; refuse any other schema."""
    version = document.value.get("schema_version")
    if "fits" in document.value and "catalogue_names" in document.value:
        raise InputError(f"{document.name}: is an efficiency file of the catalogue, not {KIND}\n  {WAY_OUT}")
    if version is None:
        raise InputError(f"{document.name}: has no schema_version, so it is not {KIND}\n  {WAY_OUT}")
    if isinstance(version, int) and version in MIGRATED:
        return (f"{document.name}: was written in schema_version {version}, {MIGRATED[version]}",)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise InputError(
            f"{document.name}: schema_version {version} is that of a newer capplan; this one reads up to {SCHEMA_VERSION}\n"
            "  update capplan, or measure again with this one: capplan calibrate -o FILE"
        )
    if version != SCHEMA_VERSION:
        known = ", ".join(map(str, (*MIGRATED, SCHEMA_VERSION)))
        raise InputError(
            f"{document.name}: schema_version {version} is not read\n  known: {known}\n"
            "  another version of capplan wrote it; measure again with: capplan calibrate -o FILE"
        )
    return ()


def _checked_host(host: HostRefit, document: Document) -> HostRefit:
    """Return the refitted host times, each known to this version and given once; older files have no streams and no rates."""
    for name, number in host.numbers.items():
        for end in ("value", "low", "high"):
            if getattr(number, end) < 0:
                place = document.place(("host", "numbers", name, end))
                raise InputError(f"{place}: {getattr(number, end)} should be greater than or equal to 0")
    later = {"stream_s": 0.0, "compute_rate_ratio": 1.0, "memory_rate_ratio": 1.0, "link_rate_ratio": 1.0}
    lacking = {
        name: value for name, value in later.items() if name not in host.numbers and name not in host.kept
    }
    kept = {**host.kept, **lacking}
    written, known = [*host.numbers, *kept], [f.name for f in fields(HostOverhead)]
    if sorted(written) != sorted(known):
        odd = sorted(set(written) ^ set(known)) or sorted(host.numbers.keys() & kept.keys())
        raise InputError(
            f"{document.place(('host',))}: its host times do not fit this version of capplan, which has "
            f"{', '.join(known)}; {', '.join(odd)} is missing or not known: refit from the results again"
        )
    return replace(host, kept=kept)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
