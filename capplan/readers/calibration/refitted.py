"""What a calibration file changes: the efficiencies of a device, the profile of an engine, and the results that its certainty rests on."""

from collections.abc import Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import TYPE_CHECKING

from capplan.assumption import Assumption
from capplan.engine.left_out import LEAST_LOADS, LeftOutResult
from capplan.engine.lookup import profile, with_graphs_of, with_slots
from capplan.engine.profile import EngineProfile, HostOverhead
from capplan.errors import InputError
from capplan.hardware.device import Device, Efficiency
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.readers.catalogue.efficiency import efficiency_for

if TYPE_CHECKING:
    from capplan.readers.calibration.record import HostRefit, ResultPoint


def efficiency_by(
    calibration: Path | None, device: Device, engine: EngineProfile | None = None
) -> Efficiency:
    """Return the fits of a device: the calibration file's if it was measured on that device, else those of the catalogue for an engine."""
    if calibration is None:
        return efficiency_for(device, engine)
    from capplan.readers.calibration.file import read_calibration_file, same_device
    from capplan.readers.calibration.measured_device import efficiency_from_calibration

    kernels = read_calibration_file(calibration).kernels
    if engine is not None and engine.engine == LLAMACPP:
        refuse_kernels_of_torch(calibration, kernels)
        return efficiency_for(device, engine)
    measured_here = kernels is not None and same_device(kernels.machine, device)
    return efficiency_from_calibration(calibration, device) if measured_here else efficiency_for(device)


def refuse_kernels_of_torch(path: Path, kernels: object) -> None:
    """Raise the error for measured kernels where llama.cpp runs, which has others."""
    if kernels is not None:
        raise InputError(
            f"{path}: its kernels are those of torch, and llama.cpp has others\n  leave it out; capplan calibrate measures for vllm, sglang and trtllm"
        )


def refitted_overhead(host: "HostRefit") -> HostOverhead:
    """Return the host times of a refit: its numbers, and what it kept."""
    return HostOverhead.of_named(
        {name: number.value for name, number in host.numbers.items()} | dict(host.kept)
    )


def refitted_profile(
    path: Path | None, rules: EngineProfile, device: Device
) -> tuple[EngineProfile, tuple[Assumption, ...], tuple[str, ...]]:
    """Return the profile of an engine as it runs on a device: with its CUDA graphs, and the host times that a calibration refitted.

    Parameters
    ----------
    path : a calibration file; None refits nothing
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
    rules = with_graphs_of(rules, device.architecture.lower())
    if path is None:
        return rules, (), ()
    from capplan.readers.calibration.file import read_calibration_file

    host = read_calibration_file(path).host
    if host is None:
        return rules, (), ()
    refuse_other_device(path, host, device)
    if host.engine != rules.engine:
        raise InputError(
            f"{path}: its host times were refitted for {host.engine}, not for {rules.engine}\n"
            f"  use it with --engine {host.engine}, or refit from results of {rules.engine}: capplan calibrate --from RESULT"
        )
    line = Assumption(
        f"host times of {host.engine} {host.engine_version} from {path.name}: refitted from {host.results} results of "
        f"{', '.join(host.tools)} ({', '.join(host.models)}), {host.left_out_median_ape:.1%} off on results left out"
        f"{_certainty_text(host)}",
        "--calibration",
        "calibration",
    )
    other = (
        f"{path.name}: its host times are those of {host.engine} {host.engine_version}, and are used for "
        f"{rules.asked_version or rules.version}"
    )
    if host.policy == "slots":
        rules = with_slots(rules)
    is_same = _same_host(host, rules)
    warnings = () if is_same else (other,)
    fitted = replace(
        rules, host=refitted_overhead(host), left_out=left_out_results(host.points) if is_same else ()
    )
    return fitted, (line,), warnings


def refitted_profiles(
    path: Path | None, rules: EngineProfile, devices: Sequence[Device]
) -> tuple[dict[str, EngineProfile], tuple[Assumption, ...], tuple[str, ...]]:
    """Return the profile of an engine on each device where it runs otherwise than elsewhere.

    Devices that were not refitted keep the host times of the engine version; capplan rejects a refit of none of the devices.

    Parameters
    ----------
    path : a calibration file; None refits nothing
    rules : profile of the engine
    devices : that the engine may run on

    Returns
    -------
    the profiles by the name of the device, the assumption that states where their host times come from, and warnings
    """
    own_graphs = {device.name: with_graphs_of(rules, device.architecture.lower()) for device in devices}
    on_devices = {name: own for name, own in own_graphs.items() if own is not rules}
    if path is None or not devices:
        return on_devices, (), ()
    host = refit_of(path)
    own = next(
        (device for device in devices if host is not None and device.name == host.hardware), devices[0]
    )
    profile, assumptions, warnings = refitted_profile(path, rules, own)
    others = [device.name for device in devices if device.name != own.name]
    if host is None:
        return on_devices, assumptions, warnings
    if others:
        warnings += (
            f"{path.name}: was measured on {own.name}; {', '.join(others)} keep{'s' if len(others) == 1 else ''} the host times "
            "of the engine version",
        )
    return on_devices | {own.name: profile}, assumptions, warnings


def _certainty_text(host: "HostRefit") -> str:
    """Return what the certainty of this deployment rests on; empty for an older file, whose results state no lengths."""
    results = left_out_results(host.points)
    if not results:
        return ""
    loads = len({result.load for result in results})
    if loads < LEAST_LOADS:
        return f"; {loads} of {LEAST_LOADS} loads that it takes to say how certain it is, so intervals are those of the back-test"
    return "; intervals and the certainty of plans of this deployment rest on these results"


def left_out_results(points: "Sequence[ResultPoint]") -> tuple[LeftOutResult, ...]:
    """Return how far off each result was that the fit did not see; none of an older file, which does not state lengths."""
    results: list[list[ResultPoint]] = []
    for point in points:
        last = results[-1] if results else []
        if not last or last[0].result != point.result or point.metric in {other.metric for other in last}:
            results.append([])
        results[-1].append(point)
    return tuple(filter(None, map(_left_out_result, results)))


def _left_out_result(points: "Sequence[ResultPoint]") -> LeftOutResult | None:
    """Return the latencies of one result; None if its load is not stated."""
    first = points[0]
    seconds = {
        point.metric.removesuffix("_s"): point.measured_s for point in points if point.metric in LATENCIES
    }
    if first.input_tokens is None or first.output_tokens is None or not seconds:
        return None
    rate = first.request_rate_per_s
    response_s = seconds.get("ttft", 0.0) + first.output_tokens * seconds.get("tpot", 0.0)
    in_flight = rate * response_s if rate else first.concurrency or 1.0
    return LeftOutResult(
        deployment=first.model,
        in_flight=max(in_flight, 1.0),
        input_tokens=first.input_tokens,
        output_tokens=first.output_tokens,
        request_rate_per_s=rate,
        log_ratios={
            point.metric.removesuffix("_s"): log(point.measured_s / point.left_out_s)
            for point in points
            if point.metric in LATENCIES
        },
    )


LATENCIES = ("tpot_s", "ttft_s")
"""Values of a result that plans have targets for."""


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
            f"  use it with {host.hardware} only, or refit from results on {device.name}: capplan calibrate --from RESULT"
        )


def _same_host(host: "HostRefit", rules: EngineProfile) -> bool:
    """Return whether the engine's version has the host times that the refit replaces."""
    return (
        profile(host.engine, host.engine_version).host
        == profile(rules.engine, rules.asked_version or rules.version).host
    )
