"""Host times that were refitted from results of a serving benchmark, and where they apply."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from capplan.assumption import Assumption
from capplan.engine.lookup import profile
from capplan.engine.profile import EngineProfile, HostOverhead
from capplan.errors import InputError
from capplan.hardware.device import Device

if TYPE_CHECKING:
    from capplan.readers.calibration.record import HostRefit


def refitted_overhead(host: "HostRefit") -> HostOverhead:
    """Return the host times of a refit: its numbers, and what it kept."""
    return HostOverhead(**{name: number.value for name, number in host.numbers.items()}, **host.kept)


def refitted_profile(
    path: Path | None, rules: EngineProfile, device: Device
) -> tuple[EngineProfile, tuple[Assumption, ...], tuple[str, ...]]:
    """Return the profile of an engine with the host times that a calibration refitted, if it did.

    Parameters
    ----------
    path : a calibration file; None leaves the profile as it is
    rules : profile of the engine
    device : that the engine runs on

    Returns
    -------
    the profile, the assumption that states where its host times come from, and warnings

    Raises
    ------
    InputError
        The file was refitted for another engine or on another device.
    """
    if path is None:
        return rules, (), ()
    from capplan.readers.calibration.file import read_calibration_file

    calibration_file = read_calibration_file(path)
    host = calibration_file.host
    if host is None:
        return rules, (), calibration_file.notes
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
    return replace(rules, host=refitted_overhead(host)), (line,), (*calibration_file.notes, *warnings)


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


def refit_of(path: Path | None) -> "HostRefit | None":
    """Return the host times in a calibration file; None where it has none, or there is no file."""
    if path is None:
        return None
    from capplan.readers.calibration.file import read_calibration_file

    return read_calibration_file(path).host


def refuse_other_device(path: Path, host: "HostRefit", device: Device) -> None:
    """Refuse host times that were refitted on another device."""
    if host.hardware != device.name:
        raise InputError(
            f"{path}: its host times were refitted on {host.hardware}, not on {device.name}\n"
            f"  use it with {host.hardware} alone, or refit from results on {device.name}: capplan calibrate --from"
        )


def _same_host(host: "HostRefit", rules: EngineProfile) -> bool:
    """Return whether the engine's version has the host times that the refit replaces."""
    return (
        profile(host.engine, host.engine_version).host
        == profile(rules.engine, rules.asked_version or rules.version).host
    )
