"""The part of a calibration file that was refitted from results of a serving benchmark, and who may use it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from capplan.assumption import Assumption
from capplan.engine.lookup import profile
from capplan.engine.profile import EngineProfile, HostOverhead
from capplan.errors import InputError
from capplan.hardware.calibration import FittedNumber, HostRefit, ResultPoint
from capplan.hardware.device import Device
from capplan.readers.record import Record


class HostNumberRecord(Record):
    """A refitted number and its 95 % interval."""

    value: float = Field(ge=0)
    low: float = Field(ge=0)
    high: float = Field(ge=0)
    constrained: bool


class PointRecord(Record):
    """One value of one result."""

    result: str
    metric: str
    model: str
    concurrency: float | None
    measured_s: float = Field(gt=0)
    before_s: float = Field(gt=0)
    after_s: float = Field(gt=0)
    left_out_s: float = Field(gt=0)


class HostRecord(Record):
    """Host times of one engine on one device."""

    engine: str
    engine_version: str
    hardware: str
    tools: list[str]
    models: list[str]
    numbers: dict[str, HostNumberRecord]
    kept: dict[str, float]
    before_median_ape: float = Field(ge=0)
    after_median_ape: float = Field(ge=0)
    left_out_median_ape: float = Field(ge=0)
    date: str
    remarks: list[str]
    points: list[PointRecord]

    @field_validator("kept")
    @classmethod
    def _older_files_know_no_streams(cls, kept: dict[str, float]) -> dict[str, float]:
        return {**kept, "stream_s": kept.get("stream_s", 0.0)}

    @model_validator(mode="after")
    def _every_number_is_there_once(self) -> "HostRecord":
        written = [*self.numbers, *self.kept]
        known = [f.name for f in fields(HostOverhead)]
        if sorted(written) != sorted(known):
            odd = sorted(set(written) ^ set(known)) or sorted(
                {name for name in written if written.count(name) > 1}
            )
            raise ValueError(
                f"its host times do not fit this version of capplan, which has {', '.join(known)}; "
                f"{', '.join(odd)} is missing or not known: refit from the results again"
            )
        return self


def host_values(host: HostRefit, rounded: Any) -> dict[str, Any]:
    """Return the section of the file that holds refitted host times.

    Parameters
    ----------
    host : the refit
    rounded : turns a number into what is written

    Returns
    -------
    plain values, in the order of the file
    """
    numbers = {
        name: {
            "value": rounded(n.value),
            "low": rounded(n.low),
            "high": rounded(n.high),
            "constrained": n.constrained,
        }
        for name, n in host.numbers.items()
    }
    points = [
        {
            "result": p.result,
            "metric": p.metric,
            "model": p.model,
            "concurrency": p.concurrency,
            **{
                name: rounded(getattr(p, name))
                for name in ("measured_s", "before_s", "after_s", "left_out_s")
            },
        }
        for p in host.points
    ]
    return {
        "engine": host.engine,
        "engine_version": host.engine_version,
        "hardware": host.hardware,
        "tools": list(host.tools),
        "models": list(host.models),
        "numbers": numbers,
        "kept": {name: float(value) for name, value in host.kept.items()},
        **{
            name: rounded(getattr(host, name))
            for name in ("before_median_ape", "after_median_ape", "left_out_median_ape")
        },
        "date": host.date,
        "remarks": list(host.remarks),
        "points": points,
    }


def host_of_record(record: HostRecord) -> HostRefit:
    """Return the refit that a record holds."""
    return HostRefit(
        engine=record.engine,
        engine_version=record.engine_version,
        hardware=record.hardware,
        tools=tuple(record.tools),
        models=tuple(record.models),
        numbers={name: FittedNumber(**number.model_dump()) for name, number in record.numbers.items()},
        kept=dict(record.kept),
        points=tuple(ResultPoint(**point.model_dump()) for point in record.points),
        before_median_ape=record.before_median_ape,
        after_median_ape=record.after_median_ape,
        left_out_median_ape=record.left_out_median_ape,
        date=record.date,
        remarks=tuple(record.remarks),
    )


def refitted_overhead(host: HostRefit) -> HostOverhead:
    """Return the host times of a refit: its numbers, and what it kept."""
    return HostOverhead(**{name: number.value for name, number in host.numbers.items()}, **host.kept)


def refitted_profile(
    path: Path | None, rules: EngineProfile, device: Device
) -> tuple[EngineProfile, tuple[Assumption, ...], tuple[str, ...]]:
    """Return the profile of an engine with the host times that a calibration refitted, if it did.

    Parameters
    ----------
    path : a calibration file; None leaves the profile as it is
    rules : of the engine that is asked for
    device : that it runs on

    Returns
    -------
    the profile, the line that says where its host times come from, and warnings

    Raises
    ------
    InputError
        The file was refitted for another engine or on another device.
    """
    from capplan.readers.calibration.file import read_calibration_file

    if path is None:
        return rules, (), ()
    found = read_calibration_file(path)
    host = found.host
    if host is None:
        return rules, (), found.notes
    refuse_other_device(path, host, device)
    if host.engine != rules.engine:
        raise InputError(
            f"{path}: its host times were refitted for {host.engine}, not for {rules.engine}\n"
            f"  use it with --engine {host.engine}, or refit from results of {rules.engine}: capplan calibrate --from"
        )
    line = Assumption(
        f"host times of {host.engine} {host.engine_version} from {path.name}: refitted from {host.results} results of "
        f"{', '.join(host.tools)} ({', '.join(host.models)}), {host.left_out_median_ape:.1%} off on results left out",
        "--calibration",
        "calibration",
    )
    other = (
        f"{path.name}: its host times are those of {host.engine} {host.engine_version}, and are used for "
        f"{rules.asked_version or rules.version}"
    )
    warnings = () if _same_host(host, rules) else (other,)
    return replace(rules, host=refitted_overhead(host)), (line,), (*found.notes, *warnings)


def row_profile(path: Path | None, rules: EngineProfile, device: Device) -> EngineProfile:
    """Return the profile of a measured row: with refitted host times where they are of its engine, version and device."""
    host = refit_of(path)
    if (
        host is None
        or host.engine != rules.engine
        or host.hardware != device.name
        or not _same_host(host, rules)
    ):
        return rules
    return replace(rules, host=refitted_overhead(host))


def refit_of(path: Path | None) -> HostRefit | None:
    """Return the host times in a calibration file; None where it has none, or there is no file."""
    from capplan.readers.calibration.file import read_calibration_file

    return read_calibration_file(path).host if path else None


def refuse_other_device(path: Path, host: HostRefit, device: Device) -> None:
    """Refuse host times that were refitted on another device."""
    if host.hardware != device.name:
        raise InputError(
            f"{path}: its host times were refitted on {host.hardware}, not on {device.name}\n"
            f"  use it with {host.hardware} alone, or refit from results on {device.name}: capplan calibrate --from"
        )


def _same_host(host: HostRefit, rules: EngineProfile) -> bool:
    """Return whether the engine's version has the host times that the refit replaces."""
    return (
        profile(host.engine, host.engine_version).host
        == profile(rules.engine, rules.asked_version or rules.version).host
    )
