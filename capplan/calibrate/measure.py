"""One run of the microbenchmarks: all cases in order, within the time and memory available."""

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from capplan.calibrate.collectives import Group, best_link_rate, collective_times, group_of_environment
from capplan.calibrate.fit import Family, fitted
from capplan.calibrate.kernels import Case, calls_of, case_bytes, prepare_arenas, shrunk
from capplan.calibrate.machine import Target
from capplan.calibrate.progress import Progress
from capplan.calibrate.shapes import cases, held_out
from capplan.calibrate.simple_fit import copy_fit, launch_fit
from capplan.calibrate.timing import FULL, QUICK, Effort, Sample, sampled
from capplan.errors import InputError
from capplan.readers.calibration.measured_device import same_device
from capplan.readers.calibration.record import Calibration, KernelFit, Measurement, Peaks
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device, device_names

QUICK_BUDGET_S = {"cpu": 100.0, "cuda": 130.0}
FULL_BUDGET_S = 700.0
HOST_COPIES = ("host_to_device", "device_to_host")
PASSES = {"cpu": 3, "cuda": 1}
"""Passes over all cases, minutes apart: the load beside a processor comes and goes."""
BUSY_LOAD_FRACTION = 0.5
"""Load per processor from which a remark says that others use the machine; a processor is never idle, so it is not refused."""
NO_FP8 = "processors have no fp8 products, and torch's emulation of them is a thousand times slower"
PRODUCTS = {"matmul": ("rows", ""), "latent_bmm": ("tokens", "query_heads")}
"""Operators that show the arithmetic peak, and their sizes besides inputs and outputs."""
LEAST_POINTS = 8
"""Shapes that a calibration needs to be written."""


@dataclass(slots=True)
class Run:
    """What has been measured so far, and what was left out."""

    samples: dict[int, tuple[Case, Sample]] = field(default_factory=dict)
    """By index in the plan; the case is smaller than planned where memory did not suffice."""
    remarks: list[str] = field(default_factory=list)
    unsupported: set[tuple[str, str]] = field(default_factory=set)
    ended_early: str = ""
    """Why it ended before all shapes were measured; empty otherwise."""
    stopped: bool = False
    """Ended by Ctrl-C."""
    room_bytes: float = 0.0
    """Memory that one case may use besides the arenas."""

    def measurements(self) -> list[Measurement]:
        """Return what was measured, in the order of the plan."""
        return [
            Measurement(
                case.operator if case.graph or case.operator != "launch" else "launch_eager",
                case.dtype, dict(case.shape), sample.seconds, sample.spread_fraction, sample.repeats,
            )
            for _, (case, sample) in sorted(self.samples.items())
        ]  # fmt: skip


def load_beside() -> str:
    """Return a remark on other load on this machine's processors; empty if there is little or it is unknown."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return ""
    processors = os.cpu_count() or 1
    if load < BUSY_LOAD_FRACTION * processors:
        return ""
    return f"others use this machine: a load of {load:.1f} on {processors} processors at the start"


def _standing_bytes(planned: Sequence[Case], target: Target) -> float:
    """Return the memory of the arenas that operands are slices of: one per dtype, and one for results [B]."""
    return (len({case.dtype for case in planned}) + 1) * target.cold_bytes


def peak_bytes(planned: Sequence[Case], target: Target) -> float:
    """Return the peak device memory, of the arenas and any one case [B]."""
    standing = _standing_bytes(planned, target)
    room = (target.usable_bytes - standing) / target.slack_ratio
    return standing + target.slack_ratio * max(min(case_bytes(case, 0.0), room) for case in planned)


def calibrated(
    target: Target,
    *,
    quick: bool,
    minutes: float | None = None,
    planned: Sequence[Case] | None = None,
    run: Run | None = None,
    tell: Callable[[str], None] = lambda _line: None,
) -> Calibration | None:
    """Return the calibration of a device: measured, fitted, and scored on held-out shapes.

    Parameters
    ----------
    target : the device
    quick : fewer shapes and fewer repeats
    minutes : time budget [min]; None: the default
    planned : the cases; None: the default ones
    run : collects what is measured, and how the run ended; None creates one
    tell : receives progress messages (memory, skipped cases)

    Returns
    -------
    the calibration, marked partial where Ctrl-C or the budget ended it early; None on all ranks of torchrun but the
    first, which only take part in the collectives
    """
    group = group_of_environment()
    linked = collective_times(group, target, quick=quick, tell=tell) if group else []
    if group and not group.is_first:
        return None
    chosen = list(cases(accelerator=target.is_cuda, quick=quick) if planned is None else planned)
    run = run or Run()
    if planned is None and not quick and not target.is_cuda:
        run.unsupported.add(("matmul", "fp8"))
        _remark(run, f"matmul in fp8 is skipped: {NO_FP8}", tell)
    beside = "" if target.is_cuda else load_beside()
    if beside:
        _remark(run, beside, tell)
    usual_s = QUICK_BUDGET_S[target.device.type] if quick else FULL_BUDGET_S
    budget_s = minutes * 60.0 if minutes else usual_s
    peak = peak_bytes(chosen, target)
    tell(
        f"{target.machine.name}: {len(chosen)} shapes, about {budget_s / 60:.1f} min; uses up to {peak / 1e9:.2f} GB of "
        f"{target.free_bytes / 1e9:.1f} GB free; clocks and settings are left unchanged"
    )
    started = time.monotonic()
    try:
        _measure_all(run, chosen, target, QUICK if quick else FULL, budget_s, tell)
    except KeyboardInterrupt:
        run.ended_early = f"interrupted after {len(run.samples)} of {len(chosen)} shapes"
        run.stopped = True
        tell(run.ended_early)
    return _finished(run, linked, group, target, quick=quick, seconds=time.monotonic() - started)


def _measure_all(
    run: Run,
    chosen: Sequence[Case],
    target: Target,
    effort: Effort,
    budget_s: float,
    tell: Callable[[str], None],
) -> None:
    passes = PASSES[target.device.type]
    each_s = min(effort.seconds, 0.6 * budget_s / max(len(chosen), 1)) / passes
    effort = replace(effort, seconds=each_s)
    prepare_arenas(target.device, sorted({case.dtype for case in chosen}), target.cold_bytes)
    run.room_bytes = (target.usable_bytes - _standing_bytes(chosen, target)) / target.slack_ratio
    end = time.monotonic() + budget_s
    progress = Progress(budget_s)
    steps = [(place, case) for _ in range(passes) for place, case in enumerate(chosen)]
    done = 0
    try:
        for number, (place, case) in enumerate(steps):
            if time.monotonic() > end:
                break
            progress.show(number / len(steps), case.title)
            if (case.operator, case.dtype) not in run.unsupported:
                _measure_one(run, place, case, target, effort, tell)
            done = number + 1
    finally:
        progress.close()
    if done < len(chosen):
        run.ended_early = f"out of time after {done} of {len(chosen)} shapes"
        tell(run.ended_early)
    elif done < len(steps):
        tell(f"out of time in pass {done // len(chosen) + 1} of {passes} over all shapes")


def _measure_one(
    run: Run, place: int, case: Case, target: Target, effort: Effort, tell: Callable[[str], None]
) -> None:
    """Measure a case, or a smaller one if memory does not suffice; report what was skipped."""
    trial: Case | None = case
    while trial is not None:
        if case_bytes(trial, 0.0) > run.room_bytes:
            trial = shrunk(trial)
            continue
        try:
            sample = _sample(trial, target, effort)
        except torch.OutOfMemoryError:
            _after_failure(target)
            trial = shrunk(trial)
            continue
        except (RuntimeError, TypeError) as error:
            if "out of memory" in str(error) or "allocate memory" in str(error):
                trial = shrunk(trial)
                continue
            _after_failure(target)
            run.unsupported.add((case.operator, case.dtype))
            reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
            _remark(run, f"{case.operator} in {case.dtype} is skipped: {reason}", tell)
            return
        if trial is not case:
            _remark(run, f"out of memory: {case.title} was measured as {trial.title}", tell)
        before = run.samples.get(place)
        again = before is not None and before[0] == trial
        run.samples[place] = (trial, before[1].beside(sample) if before and again else sample)
        return
    _remark(run, f"out of memory: {case.title} is skipped", tell)


def _sample(case: Case, target: Target, effort: Effort) -> Sample:
    """Return the times of one case; its operands are released when this returns or fails."""
    calls = calls_of(case, target.device, _cold_bytes(case, target))
    return sampled(target, calls, effort, graph=case.graph)


def _cold_bytes(case: Case, target: Target) -> float:
    # the host link is far slower than any cache
    return 0.0 if case.operator in HOST_COPIES else target.cold_bytes


def _after_failure(target: Target) -> None:
    if target.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _remark(run: Run, line: str, tell: Callable[[str], None]) -> None:
    if line not in run.remarks:
        run.remarks.append(line)
        tell(line)


def _finished(
    run: Run, linked: list[Measurement], group: Group | None, target: Target, *, quick: bool, seconds: float
) -> Calibration:
    if len(run.samples) < LEAST_POINTS:
        raise InputError(
            f"{len(run.samples)} shapes were measured, at least {LEAST_POINTS} are needed: nothing is written\n"
            "  let it run longer, or pass more --minutes"
        )
    everything = [*run.measurements(), *linked]
    unseen = held_out(everything)
    marked = [replace(result, held_out=place in unseen) for place, result in enumerate(everything)]
    peaks = _best_rates(marked)
    if group:
        rate = best_link_rate(linked)
        peaks = replace(peaks, link_bytes_per_s=rate, ranks=group.ranks, node_ranks=group.node_ranks)
    fits, scored = fitted(marked, target.machine, peaks, _family_numbers(target))
    fits |= _simple_fits(scored)
    remarks = [*run.remarks, *([run.ended_early] if run.ended_early else [])]
    return Calibration(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        quick=quick,
        partial=bool(run.ended_early),
        machine=target.machine,
        peaks=peaks,
        fitted=fits,
        remarks=tuple(remarks),
        measurements=tuple(scored),
    )


def _family_numbers(target: Target) -> Family:
    """Return the catalogue's numbers of this device as starting values; empty for an unknown device."""
    if not target.is_cuda:
        return {}
    for name in device_names():
        known = device(name)
        if same_device(target.machine, known):
            numbers: dict[str, Mapping[str, float]] = {}
            for key, fit in efficiency_for(known).fits.items():
                numbers.setdefault(key.partition("@")[0], fit.numbers)
            return numbers
    return {}


def _best_rates(measurements: Sequence[Measurement]) -> Peaks:
    """Return the best rate of memory and of each dtype's matmuls: they stand in for the datasheet of this machine.

    Only the larger copies count for memory, because small ones fit a cache.
    """
    copies = [m for m in measurements if m.operator in ("copy", "read")]
    if not copies:
        copies = [m for m in measurements if "moved_bytes" in m.shape]
    largest = max((m.shape["moved_bytes"] for m in copies), default=0.0)
    memory = max(
        (m.shape["moved_bytes"] / m.median_s for m in copies if m.shape["moved_bytes"] >= largest / 8),
        default=1.0,
    )
    flop: dict[str, float] = {}
    for m in measurements:
        if m.operator in PRODUCTS:
            rows, heads = (m.shape.get(name, 1.0) for name in PRODUCTS[m.operator])
            rate = 2.0 * rows * heads * m.shape["inputs"] * m.shape["outputs"] / m.median_s
            flop[m.dtype] = max(flop.get(m.dtype, 0.0), rate)
    return Peaks(memory, dict(sorted(flop.items())))


def _simple_fits(scored: list[Measurement]) -> dict[str, KernelFit]:
    """Return the fits that need no form (launches, copies), and add their fitted times to `scored`."""
    fits = launch_fit(scored)
    for operator in ("copy", "read", *HOST_COPIES):
        fit = copy_fit(scored, operator)
        if fit:
            places = [place for place, m in enumerate(scored) if m.operator == operator]
            fits[f"{operator}/{scored[places[0]].dtype}"] = fit[0]
            for place, seconds in zip(places, fit[1], strict=True):
                scored[place] = replace(scored[place], fitted_s=float(seconds))
    return fits
