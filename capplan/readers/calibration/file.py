"""The calibration file: how it is written and checked, its formats, and which catalogue entry it belongs to."""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from capplan.engine.profile import OF_ROWS, HostOverhead
from capplan.errors import InputError
from capplan.hardware.device import Device
from capplan.keys import ONLY_KNOWN_KEYS
from capplan.readers.calibration.record import (
    SCHEMA_VERSION,
    Calibration,
    CalibrationFile,
    HostRefit,
    Machine,
)
from capplan.readers.record import plain, validated
from capplan.readers.yaml_file import Document, read_yaml, yaml_text

MATMUL_BYTES = {
    "fp32": (4.0, 4.0), "bf16": (2.0, 2.0), "fp16": (2.0, 2.0), "int8": (1.0, 1.0), "fp8": (1.0, 1.0),
    "fp8_row": (1.0, 1.0), "fp8_block": (1.0, 1.0), "mxfp8": (1.03125, 1.03125), "nvfp4": (0.5625, 0.5625),
    "w4a16": (0.53125, 2.0),
}  # fmt: skip
"""Format -> bytes per weight, and per input as the product reads it; scales included."""
COMPUTE_DTYPE = {"fp8_row": "fp8", "fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "w4a16": "bf16"}
"""Format -> dtype it multiplies in, where that has another name."""
QUANTISED_FIRST = frozenset({"fp8", "fp8_row", "fp8_block", "mxfp8"})
"""Formats whose inputs arrive in 16 bits and are quantised in the time measured."""


MEMORY_TOLERANCE_FRACTION = 0.12
"""Nominal and reported memory of one device differ by less than this."""
_FORM_FACTORS = ("pcie", "nvl")
_MEANINGLESS = re.compile(
    r"nvidia|amd|geforce|tesla|quadro|instinct|radeon|graphics|gpu|generation|blackwell|edition|oam|hgx|dgx|"
    r"sxm\d?|hbm\d?e?|\d+gb|\d+g|vf"
)
"""Words of a driver's name that distinguish no two cards of the catalogue."""
_VARIANT = re.compile(r"(\d{4}) (d|ti|super)\b")
"""A variant of a consumer card is another card: RTX 4090 D, RTX 3090 Ti."""


def words_of(name: str) -> set[str]:
    """Return the words of a device's name that say which it is.

    Examples
    --------
    >>> sorted(words_of("NVIDIA GeForce RTX 4090 D")), sorted(words_of("NVIDIA H100 80GB HBM3"))
    (['4090d', 'rtx'], ['h100'])
    """
    plain = _VARIANT.sub(r"\1\2", re.sub(r"[-_/()]", " ", name.lower()))
    return {word for word in plain.split() if not _MEANINGLESS.fullmatch(word)}


def same_device(machine: Machine, device: Device) -> bool:
    """Return whether a device of the catalogue is the one that was measured.

    Both names say the same (no word such as Ti, Max-Q or MIG on only one side), the form factor is the same, the
    multiprocessors are as many where the catalogue knows them, and the memory is about as large.

    Parameters
    ----------
    machine : measured
    device : of the catalogue
    """
    if machine.device == "cpu" or device.architecture == "cpu":
        return machine.device == "cpu" and device.architecture == "cpu" and device.title == machine.name
    seen, wanted = words_of(machine.name), words_of(device.name)
    if not wanted <= seen or seen - wanted - words_of(device.title):
        return False
    if any((factor in seen) != (factor in wanted) for factor in _FORM_FACTORS):
        return False
    if device.multiprocessors and machine.multiprocessors != device.multiprocessors:
        return False
    reported = device.reported_memory_bytes or device.memory_bytes
    return math.isclose(machine.memory_bytes, reported, rel_tol=MEMORY_TOLERANCE_FRACTION)


NARROW = ("bf16", "fp16", "int8")
"""Formats with fewer bits than fp32, which units of their own multiply at least as fast."""
LEAST_NATIVE_RATIO = 0.5
"""Rate of a product over that of fp32 at which a format counts as native. Native units are one to ten times as fast as fp32;
emulation was seen at 0.08 to 0.25."""


def emulated_formats(flop_per_s: Mapping[str, float]) -> tuple[str, ...]:
    """Return the formats that a processor emulates, from the rate of products in each.

    Parameters
    ----------
    flop_per_s : [FLOP/s] by format; without fp32 there is nothing to compare with

    Examples
    --------
    >>> emulated_formats({"fp32": 100e9, "bf16": 20e9, "int8": 200e9})
    ('bf16',)
    """
    least = LEAST_NATIVE_RATIO * flop_per_s.get("fp32", 0.0)
    return tuple(name for name in NARROW if name in flop_per_s and flop_per_s[name] < least)


KIND = "a calibration YAML"
WAY_OUT = "write one with: capplan calibrate -o FILE.calibration.yaml"
HEADER = """\
# What this machine reaches, measured by `capplan calibrate`. Fractions are of the best rates seen (peaks); times are in
# seconds. Take it into any command with --calibration. capplan rejects a changed file: measure again instead of editing.
"""
HOST_HEADER = """\
# What an engine's host adds to its steps, refitted by `capplan calibrate --from` from results of a serving benchmark.
# Take it into any command with --calibration. capplan rejects a changed file: refit again instead of editing.
"""
LATER = (
    "stream_s",
    "context_token_s",
    "eager_experts_s",
    "graph_layer_s",
    "eager_latent_s",
    "eager_scaled_s",
    "prompt_token_s",
)
"""Numbers of `HostOverhead` that host times of earlier versions lack; they were 0 when those were fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostFile:
    """A file without kernels."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
    schema_version: int
    checksum: str
    host: HostRefit


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelFile(Calibration):
    """A file with measured kernels."""

    __pydantic_config__ = ONLY_KNOWN_KEYS
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
    measured kernels and refitted host times
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
    _refuse_other_schema(document)
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
    return CalibrationFile(kernels, host)


def _refuse_other_schema(document: Document) -> None:
    """Raise the error for a file of another kind, or of a schema that this version does not read."""
    version = document.value.get("schema_version")
    if "fits" in document.value and "catalogue_names" in document.value:
        raise InputError(f"{document.name}: is an efficiency file of the catalogue, not {KIND}\n  {WAY_OUT}")
    if version is None:
        raise InputError(f"{document.name}: has no schema_version, so it is not {KIND}\n  {WAY_OUT}")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise InputError(
            f"{document.name}: schema_version {version} is that of a newer capplan; this one reads {SCHEMA_VERSION}\n"
            "  update capplan, or measure again with this one: capplan calibrate -o FILE"
        )
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{document.name}: schema_version {version} is not read, only {SCHEMA_VERSION}\n"
            f"  another version of capplan wrote it; measure again with: {_again(document.value)} -o FILE.calibration.yaml"
        )


def _again(value: Mapping[str, Any]) -> str:
    """Return the command that measures a device again, or refits host times from results."""
    if "machine" not in value:
        return "capplan calibrate --from RESULT"
    return "capplan calibrate --quick" if value.get("quick") is True else "capplan calibrate"


def _checked_host(host: HostRefit, document: Document) -> HostRefit:
    """Return the refitted host times, each known to this version and given once; older files lack some, which keep their defaults."""
    for name, number in host.numbers.items():
        for end in ("value", "low", "high"):
            if getattr(number, end) < 0:
                place = document.place(("host", "numbers", name, end))
                raise InputError(f"{place}: {getattr(number, end)} should be greater than or equal to 0")
    usual = HostOverhead().named
    rates = {name for name in usual if name.endswith("_ratio") and "excess" not in name}
    lacking = {
        name: usual[name]
        for name in (*LATER, *sorted(rates))
        if name not in host.numbers and name not in host.kept
    }
    kept = {**host.kept, **lacking}
    written = [*host.numbers, *kept]
    known = [*usual, *{name for name in written if OF_ROWS.fullmatch(name)}]
    if sorted(written) != sorted(known):
        odd = sorted(set(written) ^ set(known)) or sorted(host.numbers.keys() & kept.keys())
        raise InputError(
            f"{document.place(('host',))}: its host times do not fit this version of capplan, which has "
            f"{', '.join(known)}; {', '.join(odd)} is missing or not known: refit from the results again"
        )
    return replace(host, kept=kept)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
