"""One run: every case with the quickest of its ways, whatever fails on the way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from capplan.calibrate.kernels import KERNELS, calls_of, case_bytes, ways_of
from capplan.calibrate.kernels.case import Case, Way, shrunk
from capplan.calibrate.machine import Target, Watch
from capplan.calibrate.timing import TRIAL, Effort, Sample, sampled
from capplan.readers.calibration.record import Measurement

HOST_COPIES = ("host_to_device", "device_to_host")
MOST_FAILURES = 3
"""Different failures of one way, at different shapes, after which it is not tried again."""
Kind = tuple[str, str, str]


class DeviceLostError(Exception):
    """The device answers nothing any more: an error of CUDA stays with the process that caused it."""


@dataclass(slots=True)
class Run:
    """What has been measured so far, and what was left out."""

    samples: dict[int, tuple[Case, Sample, str]] = field(default_factory=dict)
    """Samples by index in the plan: the case, smaller than planned where memory did not suffice; its times; what ran it."""
    remarks: list[str] = field(default_factory=list)
    unsupported: set[Kind] = field(default_factory=set)
    """Kinds that are not tried again."""
    failures: dict[tuple[Kind, str], dict[str, str]] = field(default_factory=dict)
    """Shapes that failed by kind and way, with the reason."""
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)
    """Single shapes that failed by kind, with the reason."""
    ended_early: str = ""
    """Why it ended before all shapes were measured; empty otherwise."""
    stopped: bool = False
    """Ended by Ctrl-C."""
    room_bytes: float = 0.0
    """Memory that one case may use besides the arenas."""
    passes: int = 0
    """Complete passes over all shapes."""
    watch: Watch | None = None
    tell: Callable[[str], None] = lambda _line: None

    def remark(self, line: str) -> None:
        """Keep a line for the record, once."""
        if line not in self.remarks:
            self.remarks.append(line)
            self.tell(line)

    def measurements(self) -> list[Measurement]:
        """Return what was measured, in the order of the plan."""
        return [
            Measurement(
                case.operator if case.graph or case.operator != "launch" else "launch_eager",
                case.dtype, dict(case.shape), sample.seconds, sample.spread_fraction, sample.repeats,
                library=library, throttled=sample.throttled,
            )
            for _, (case, sample, library) in sorted(self.samples.items())
        ]  # fmt: skip

    def open_ways(self, case: Case, target: Target) -> Mapping[str, Way]:
        """Return the ways to run a case that have not failed too often."""
        ways = ways_of(case, target.abilities)
        return {
            name: way
            for name, way in ways.items()
            if len(set(self.failures.get((case.kind, name), {}).values())) < MOST_FAILURES
            and len(self.failures.get((case.kind, name), {})) < 2 * MOST_FAILURES
        }

    def reason(self, case: Case) -> str:
        """Return why the last way of a kind failed."""
        reasons = [
            why for (kind, _), seen in self.failures.items() if kind == case.kind for why in seen.values()
        ]
        return reasons[-1] if reasons else "this device has no kernel for it"

    def skipped_remarks(self) -> list[str]:
        """Return a line for each kind of which some shapes failed."""
        return [
            f"{kind}: {len(shapes)} shape(s) failed: {', '.join(dict.fromkeys(shapes.values()))} (as {next(iter(shapes))})"
            for kind, shapes in self.skipped.items()
        ]

    def fail(self, case: Case, way: str, error: BaseException) -> None:
        """Keep the failure of one way at one shape; say so when it is not tried again."""
        seen = self.failures.setdefault((case.kind, way), {})
        seen[case.title] = (str(error).splitlines() or [type(error).__name__])[0][:100] or type(
            error
        ).__name__


def measure_case(run: Run, place: int, case: Case, target: Target, effort: Effort) -> None:
    """Measure a case, or a smaller one if memory does not suffice; keep a remark on what was skipped."""
    trial: Case | None = case
    while trial is not None:
        if case_bytes(trial) > run.room_bytes:
            trial = shrunk(trial, KERNELS[trial.operator].shrinks)
            continue
        try:
            measured = _quickest(run, place, trial, target, effort)
        except torch.OutOfMemoryError:
            pass  # its operands are freed when the handler is left
        else:
            if measured is not None:
                _keep(run, place, case, trial, *measured)
            return
        settle(target)
        trial = shrunk(trial, KERNELS[trial.operator].shrinks)
    run.remark(f"out of memory: {case.title} is skipped")


def _keep(run: Run, place: int, case: Case, trial: Case, sample: Sample, library: str) -> None:
    if trial is not case:
        run.remark(f"out of memory: {case.title} was measured as {trial.title}")
    before = run.samples.get(place)
    again = before is not None and before[0] == trial and before[2] == library
    run.samples[place] = (trial, before[1].beside(sample) if before and again else sample, library)


def _quickest(run: Run, place: int, case: Case, target: Target, effort: Effort) -> tuple[Sample, str] | None:
    """Return the times of the quickest way, and its name; None where every way failed."""
    ways = run.open_ways(case, target)
    before = run.samples.get(place)
    if before is not None and before[2] in ways:
        ways = {before[2]: ways[before[2]]}
    if len(ways) > 1:
        tried = {name: _attempt(run, case, name, way, target, TRIAL) for name, way in ways.items()}
        times = {name: sample.seconds for name, sample in tried.items() if sample is not None}
        ways = {best: ways[best] for best in sorted(times, key=lambda name: times[name])[:1]}
    for name, way in ways.items():
        sample = _attempt(run, case, name, way, target, effort)
        if sample is not None:
            return sample, name
    _give_up(run, case, target)
    return None


def _give_up(run: Run, case: Case, target: Target) -> None:
    """Drop a kind of which no way is left."""
    if run.open_ways(case, target) or any(kept.kind == case.kind for kept, _, _ in run.samples.values()):
        run.skipped.setdefault(case.kind_title, {})[case.title] = run.reason(case)
        return
    run.unsupported.add(case.kind)
    run.skipped.pop(case.kind_title, None)
    run.remark(f"{case.kind_title} is skipped: {run.reason(case)}")


def _attempt(run: Run, case: Case, name: str, way: Way, target: Target, effort: Effort) -> Sample | None:
    """Return the times of one way; None where it failed. Running out of memory is not a failure of the kernel."""
    # the host link is far slower than any cache
    cold_bytes = 0.0 if case.operator in HOST_COPIES else target.cold_bytes
    try:
        calls = calls_of(case, way, target.device, cold_bytes)
        return sampled(target, calls, effort, graph=case.graph, watch=run.watch if target.is_cuda else None)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a library's kernel may raise anything; the run goes on without it
        if isinstance(
            error.__context__, KeyboardInterrupt
        ):  # while a graph was recorded, whose end then fails
            raise KeyboardInterrupt from None
        spoilt = isinstance(error.__context__, torch.OutOfMemoryError)
        if spoilt or any(words in str(error) for words in ("out of memory", "allocate memory")):
            raise torch.OutOfMemoryError(str(error)) from None
        run.fail(case, name, error)
    settle(target, lost=f"{case.title}: {run.failures[case.kind, name][case.title]}")
    return None


def settle(target: Target, lost: str = "") -> None:
    """Wait for the device after a failure and free its memory; raise if it does not answer any more."""
    if not target.is_cuda:
        return
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        raise DeviceLostError(lost or str(error).splitlines()[0][:100]) from None
