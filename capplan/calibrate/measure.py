"""One run of the microbenchmarks: all cases in order within the time and memory available, and what it would measure without running.

On a processor, one call of a slow shape may take as long as all quick ones together: where a format is emulated, or the machine is old. So a
few shapes of each kind are run once before the run is announced, the time of all others follows from their work, and what does not fit is left out.
"""

import datetime
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from capplan.calibrate.collectives import Group, best_link_rate, collective_times, group_of_environment
from capplan.calibrate.fit import Family, Fitting, copy_fit, fit_all, launch_fit
from capplan.calibrate.kernels import KERNELS, calls_of, case_bytes, ways_of
from capplan.calibrate.kernels.case import Case, Shape, Way
from capplan.calibrate.machine import Sensors, Target, Watch
from capplan.calibrate.run import HOST_COPIES, DeviceLostError, Run, measure_case, settle
from capplan.calibrate.shapes import cases, held_out
from capplan.calibrate.timing import (
    FULL,
    LEAST_SLOW_REPEATS,
    QUICK,
    SEED,
    STORED_IN,
    TRIAL,
    WARM_S,
    Effort,
    drop_arenas,
    prepare_arenas,
    warmed_up,
)
from capplan.errors import InputError
from capplan.readers.calibration.file import same_device
from capplan.readers.calibration.record import (
    Calibration,
    Conditions,
    KernelFit,
    Measurement,
    Peaks,
    Sustained,
)
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device, device_names

BUILD_S = 0.08
"""Estimated time of one case on a card besides its repeats: operands, warm-up, the recording of a graph."""
REPEATS_S = 0.04
"""Estimated time of its repeats where they agree at once."""


def planned_run(
    target: Target, *, quick: bool, minutes: float | None
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return what `calibrated` would do.

    Parameters
    ----------
    target : the device
    quick : fewer shapes and fewer repeats
    minutes : time budget [min]; None: the default

    Returns
    -------
    its figures: the time [s] is an estimate for measuring without the fit, and measuring ends after `budget_s`; a row for each kind of kernels
    with its shapes and the memory of the largest, rotated operands included
    """
    budget_s = budget_of(target, quick=quick, minutes=minutes)
    chosen, seconds = _announced(target, cases(target.abilities, quick=quick), budget_s, quick=quick)
    unseen = held_out(chosen)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place, case in enumerate(chosen):
        groups.setdefault(case.kind, []).append(place)
    figures = {
        "shapes": len(chosen),
        "seconds": min(budget_s, seconds),
        "budget_s": budget_s,
        "peak_bytes": peak_bytes(chosen, target),
        "free_bytes": target.free_bytes,
    }
    return figures, [_kind(target, chosen, places, unseen) for places in groups.values()]


def _kind(target: Target, chosen: Sequence[Case], places: Sequence[int], unseen: set[int]) -> dict[str, Any]:
    first = chosen[places[0]]
    ways = dict.fromkeys(name for place in places for name in ways_of(chosen[place], target.abilities))
    return {
        "operator": first.operator,
        "dtype": first.dtype,
        "library": ", ".join(ways) or "none",  # ways that are tried; the quickest of each shape is measured
        "shapes": len(places),
        "held_out": len(unseen.intersection(places)),
        "peak_bytes": max(case_bytes(chosen[place]) for place in places),
    }


def _announced(
    target: Target, chosen: Sequence[Case], budget_s: float, *, quick: bool
) -> tuple[list[Case], float]:
    """Return what a run would measure of the shapes, and the time for it: on a processor from a few calls of each kind."""
    kind = target.device.type
    each = effort_of_a_pass(chosen, target, QUICK if quick else FULL, budget_s)
    if target.is_cuda:
        repeats_s = min(REPEATS_S, each.seconds)
        return list(chosen), WARM_S + PASSES[kind] * len(chosen) * (BUILD_S + repeats_s)
    kept, pass_s, _ = prepared(chosen, target, each, budget_s)
    drop_arenas()
    return [chosen[place] for place in kept], PASSES[kind] * pass_s


Kind = tuple[str, str, str]
BYTE_WORK = 4.0
"""Work of a moved byte, in FLOP: processors move about a byte in the time of four."""
ENOUGH_CALL_S = 5e-3
"""A call that takes this long shows the rate of a kind; shorter ones show what it costs to start."""
NEXT_CALL_FRACTION = 1e-3
"""The next shape to be tried is expected to take at most this share of the time of the run."""
MOST_TRIED = 5
"""Shapes of a kind that are tried."""
MOST_OF_BUDGET = 0.02
"""Share of the time of a run that one shape may take in one pass."""
LEAST_OF_KIND = 8
"""Shapes of a kind that are never too slow by themselves, so that every kind has a fit and held-out shapes."""
STARTED_CALLS = 2
"""Calls of a slow shape before its repeats: the first touch, and one that shows how often to repeat."""

LINE = 100
"""Characters of the progress line."""


@dataclass(slots=True)
class Pace:
    """How long the shapes of each kind take, from the slowest of them that was timed."""

    shown: dict[Kind, tuple[float, float]] = field(default_factory=dict)
    """Work of the slowest shape of each kind, and the time of one call [s]."""
    build_s: float = 0.0
    """Time to make the operands of a shape."""

    def learn(self, case: Case, call_s: float) -> None:
        """Keep the time of one call, if none of the kind with more work is known."""
        work, known = case_work(case), self.shown.get(case.kind)
        if known is None or work >= known[0]:
            self.shown[case.kind] = work, call_s

    def call_s(self, case: Case) -> float:
        """Return the expected time of one call; 0 for a kind of which nothing was timed [s]."""
        work, seconds = self.shown.get(case.kind, (1.0, 0.0))
        return seconds * max(case_work(case) / work, 1e-3) if work else seconds

    def pass_s(self, case: Case, ways: int, effort: Effort) -> float:
        """Return the expected time of a shape in one pass, the trials of its ways included [s].

        Parameters
        ----------
        case : the shape
        ways : to run it; where there are several, all are tried
        effort : of this pass
        """
        call_s = self.call_s(case)
        calls = STARTED_CALLS + LEAST_SLOW_REPEATS
        one_s = self.build_s + max(effort.seconds, calls * call_s)
        return one_s + (ways * (self.build_s + TRIAL.seconds + calls * call_s) if ways > 1 else 0.0)


def announced(
    target: Target, chosen: Sequence[Case], effort: Effort, budget_s: float, room_bytes: float
) -> tuple[tuple[int, ...], float, Pace]:
    """Return the places of the shapes that are measured, how long one pass over them takes [s], and their pace; on a processor their kinds are timed for it.

    Parameters
    ----------
    target : the device
    chosen : the shapes, in the order in which they are measured
    effort : of one pass
    budget_s : time for measuring [s]
    room_bytes : memory that one shape may use besides the arenas

    Returns
    -------
    all shapes on a card, whose calls are short; those that fit on a processor
    """
    if target.is_cuda:
        return tuple(range(len(chosen))), 0.0, Pace()
    begin = time.monotonic()
    pace = _probed(target, chosen, room_bytes, NEXT_CALL_FRACTION * budget_s)
    left_s = budget_s - (time.monotonic() - begin)
    costs = [pace.pass_s(case, len(ways_of(case, target.abilities)), effort) for case in chosen]
    kept, total_s = [], 0.0
    limits = _limits(chosen, costs, MOST_OF_BUDGET * budget_s)
    for place, (case, cost_s) in enumerate(zip(chosen, costs, strict=True)):
        if cost_s <= limits[case.kind] and total_s + cost_s <= left_s:
            kept.append(place)
            total_s += cost_s
    return tuple(kept), total_s, pace


def _limits(chosen: Sequence[Case], costs: Sequence[float], most_s: float) -> dict[Kind, float]:
    """Return by kind the longest time of a shape: the quickest few of a kind are never too slow."""
    limits: dict[Kind, float] = {}
    for kind in dict.fromkeys(case.kind for case in chosen):
        own = sorted(cost for case, cost in zip(chosen, costs, strict=True) if case.kind == kind)
        limits[kind] = max(most_s, own[min(LEAST_OF_KIND, len(own)) - 1])
    return limits


def _probed(target: Target, chosen: Sequence[Case], room_bytes: float, longest_s: float) -> Pace:
    """Return the pace after one call of a few shapes of each kind: from the smallest up, until a call takes long enough."""
    pace = Pace()
    builds: list[float] = []
    for kind in dict.fromkeys(case.kind for case in chosen):
        cases = [case for case in chosen if case.kind == kind and case_bytes(case) <= room_bytes]
        cases.sort(key=case_work)
        for _ in range(MOST_TRIED):
            known = pace.shown.get(kind)
            open_cases = [
                case
                for case in cases
                if known is None or (case_work(case) > known[0] and pace.call_s(case) <= longest_s)
            ]
            if not open_cases or (known and known[1] >= min(ENOUGH_CALL_S, longest_s)):
                break
            trial = open_cases[0] if known is None else open_cases[-1]
            timed = _one_call(target, trial)
            if timed is None:
                break
            builds.append(timed[0])
            pace.learn(trial, timed[1])
    pace.build_s = sum(builds) / len(builds) if builds else 0.0
    return pace


NO_KERNEL = (RuntimeError, AttributeError, ImportError, MemoryError, TypeError, ValueError)
"""What torch raises on a processor where a release or a build has no kernel for a case, or no room for its operands."""


def _one_call(target: Target, case: Case) -> tuple[float, float] | None:
    """Return the time to make the operands of a case and that of its second call; None where it does not run."""
    ways: list[Way] = list(ways_of(case, target.abilities).values())
    begin = time.monotonic()
    try:
        calls = calls_of(case, ways[0], target.device, target.cold_bytes)
        built = time.monotonic()
        calls[0]()
        first = time.monotonic()
        if first - built > ENOUGH_CALL_S:  # so long that what comes only once does not matter
            return built - begin, first - built
        calls[-1]()
    except NO_KERNEL:  # the run says so of the case
        return None
    return built - begin, time.monotonic() - first


def case_work(case: Case) -> float:
    """Return the work of one call in FLOP, moved bytes included; only ratios between shapes of one kind count.

    Examples
    --------
    >>> case_work(Case("matmul", "fp32", {"rows": 2.0, "inputs": 10.0, "outputs": 10.0}))
    2640.0
    """
    kernel = KERNELS[case.operator]
    moved = (kernel.touched_bytes or kernel.operand_bytes)(case.shape, case.dtype)
    return _flop(case.operator, case.shape) + BYTE_WORK * moved


def _flop(operator: str, shape: Shape) -> float:
    """Return the arithmetic of one call; 0 for what only moves bytes."""
    s = {name: float(size) for name, size in shape.items()}
    if operator == "matmul":
        return 2.0 * s["rows"] * s["inputs"] * s["outputs"]
    if operator == "latent_bmm":
        return 2.0 * s["tokens"] * s["query_heads"] * s["inputs"] * s["outputs"]
    if operator == "experts":
        return 6.0 * s["tokens"] * s["experts_per_token"] * s["inputs"] * s["intermediate"]
    if operator == "prefill_attention":
        keys = s["new_tokens"] + s.get("past_tokens", 0.0)
        return 4.0 * s["sequences"] * s["query_heads"] * s["head_dim"] * s["new_tokens"] * keys
    if operator == "latent_prefill":
        widths = s["nope"] + s["rope"] + s["value"]
        return 2.0 * s["sequences"] * s["query_heads"] * widths * s["new_tokens"] ** 2
    if operator == "latent_decode":
        widths = 2.0 * s["latent"] + s["rope"]
        return 2.0 * s["sequences"] * s["query_heads"] * widths * s["context_tokens"]
    if operator == "decode_attention":
        queries = s["query_heads"] * s.get("query_tokens", 1.0)
        return 4.0 * s["sequences"] * queries * s["head_dim"] * s["context_tokens"]
    return 0.0


def left_out(planned: Sequence[Case], untried: Sequence[Case]) -> str:
    """Return how many shapes of each kind were planned and left out, in words; empty for none.

    Parameters
    ----------
    planned : all shapes of the run
    untried : those that were not tried
    """
    every = Counter(case.kind_title for case in planned)
    lacking = Counter(case.kind_title for case in untried)
    return ", ".join(f"{count} of {every[kind]} shapes of {kind}" for kind, count in lacking.items())


@dataclass(slots=True)
class Progress:
    """Progress of a run with a time budget."""

    expected_s: float
    started: float = field(default_factory=time.monotonic)
    shown: bool = field(default_factory=lambda: sys.stderr.isatty())

    def show(self, done_fraction: float, title: str) -> None:
        """Rewrite the line."""
        if not self.shown:
            return
        left = self.remaining_s(done_fraction)
        bar = "#" * round(20 * done_fraction)
        text = f"[{bar:<20}] {done_fraction:4.0%} {int(left) // 60:d}:{int(left) % 60:02d} left  {title}"
        sys.stderr.write("\r" + text[:LINE].ljust(LINE))
        sys.stderr.flush()

    def remaining_s(self, done_fraction: float) -> float:
        """Return the remaining time at the pace so far, at most the rest of the budget [s]."""
        elapsed = time.monotonic() - self.started
        left = max(self.expected_s - elapsed, 0.0)
        return min(elapsed * (1.0 - done_fraction) / done_fraction, left) if done_fraction >= 0.02 else left

    def close(self) -> None:
        """Clear the line."""
        if self.shown:
            sys.stderr.write("\r" + " " * LINE + "\r")
            sys.stderr.flush()


QUICK_BUDGET_S = {"cpu": 100.0, "cuda": 130.0}
FULL_BUDGET_S = 700.0
PASSES = {"cpu": 3, "cuda": 3}
"""Passes over all cases, minutes apart: other load on a machine comes and goes, and so does the clock of a card."""
MOST_PASSES = {"cpu": 3, "cuda": 9}
"""Most passes where time is left: repeats on a card end as soon as they agree."""
BUSY_LOAD_FRACTION = 0.5
"""Load per processor from which a remark says that others use the machine; a processor is never idle, so capplan accepts it."""
NO_FP8 = "processors have no fp8 products, and torch's emulation of them is a thousand times slower"
PRODUCTS = {"matmul": ("rows", ""), "latent_bmm": ("tokens", "query_heads")}
"""Operators that show the arithmetic peak, and their sizes besides inputs and outputs."""
FIT_FRACTION = 0.2
"""Share of the time for measuring, after which a fit starts from one point instead of several."""
TIDY_EVERY = 50
"""Cases after which memory that nothing uses is given back."""
LEAST_POINTS = 8
"""Shapes that a calibration needs to be written, unless it was interrupted."""


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


def _arena_dtypes(planned: Sequence[Case]) -> list[str]:
    """Return the dtypes that operands are cut from; formats with wide inputs need those too."""
    stored = {STORED_IN.get(case.dtype, case.dtype) for case in planned}
    wide = {"bf16"} if stored & {"fp8"} or any(case.dtype == "w4a16" for case in planned) else set()
    return sorted(stored | wide)


def _standing_bytes(planned: Sequence[Case], target: Target) -> float:
    """Return the memory of the arenas that operands are slices of: one per dtype, and one for results [B]."""
    return (len(_arena_dtypes(planned)) + 1) * target.cold_bytes


def peak_bytes(planned: Sequence[Case], target: Target) -> float:
    """Return the peak device memory, of the arenas and any one case [B]."""
    standing = _standing_bytes(planned, target)
    room = (target.usable_bytes - standing) / target.slack_ratio
    return standing + target.slack_ratio * max(min(case_bytes(case), room) for case in planned)


def budget_of(target: Target, *, quick: bool, minutes: float | None) -> float:
    """Return the time for measuring [s]."""
    usual_s = QUICK_BUDGET_S[target.device.type] if quick else FULL_BUDGET_S
    return minutes * 60.0 if minutes else usual_s


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
    the calibration, marked partial where Ctrl-C, an error or the budget ended it early; None on all ranks of torchrun but
    the first, which only take part in the collectives
    """
    run = run or Run()
    run.tell = tell
    group = group_of_environment()
    linked = collective_times(group, target, quick=quick, tell=tell) if group else []
    if group and not group.is_first:
        return None
    chosen = list(cases(target.abilities, quick=quick) if planned is None else planned)
    if planned is None and not quick and not target.is_cuda:
        run.remark(f"matmul in fp8 is skipped: {NO_FP8}")
    if words := target.emulated_words:
        run.remark(words)
    beside = target.busy if target.is_cuda else load_beside()
    if beside:
        run.remark(beside if not target.is_cuda else f"measured under another load: {beside}")
    budget_s = budget_of(target, quick=quick, minutes=minutes)
    started = time.monotonic()
    run.watch = Watch(target.sensors)
    sustained = _measured(run, chosen, target, QUICK if quick else FULL, budget_s)
    return _finished(
        run,
        chosen,
        linked,
        group,
        target,
        sustained,
        budget_s,
        quick=quick,
        seconds=time.monotonic() - started,
    )


def _told(
    run: Run,
    chosen: Sequence[Case],
    kept: Sequence[int],
    target: Target,
    budget_s: float,
    all_passes_s: float,
) -> None:
    """Say what will be measured and how long that takes, which is what was timed and at most the budget."""
    few = len(kept) < len(chosen)
    shapes = (
        f"{len(kept)} of {len(chosen)} shapes (the others take too long here)"
        if few
        else f"{len(chosen)} shapes"
    )
    seconds = min(budget_s, all_passes_s) if all_passes_s else budget_s
    run.tell(
        f"{target.machine.name}: {shapes}, about {seconds / 60:.1f} min and the fit; uses up to "
        f"{peak_bytes([chosen[place] for place in kept] or chosen, target) / 1e9:.2f} GB of {target.free_bytes / 1e9:.1f} GB free; clocks and settings are left unchanged"
    )


def effort_of_a_pass(chosen: Sequence[Case], target: Target, effort: Effort, budget_s: float) -> Effort:
    """Return how long to repeat one shape in one of the passes over all."""
    passes = PASSES[target.device.type]
    return replace(effort, seconds=min(effort.seconds, 0.6 * budget_s / max(len(chosen), 1)) / passes)


def prepared(
    chosen: Sequence[Case], target: Target, effort: Effort, budget_s: float
) -> tuple[tuple[int, ...], float, Pace]:
    """Fill the operands of a run, and return which of its shapes are measured and how long a pass takes.

    Parameters
    ----------
    chosen : the shapes, in the order in which they are measured
    target : the device
    effort : of one pass
    budget_s : time for measuring [s]
    """
    begin = time.monotonic()
    prepare_arenas(target.device, _arena_dtypes(chosen), target.cold_bytes)
    return announced(
        target, chosen, effort, budget_s - (time.monotonic() - begin), _room_bytes(chosen, target)
    )


def _room_bytes(chosen: Sequence[Case], target: Target) -> float:
    """Return the memory that one case may use besides the arenas."""
    return (target.usable_bytes - _standing_bytes(chosen, target)) / target.slack_ratio


def _measured(
    run: Run, chosen: Sequence[Case], target: Target, effort: Effort, budget_s: float
) -> Sustained | None:
    """Measure all cases; whatever ends the run early, what was measured is kept in it."""
    sustained = None
    begin = time.monotonic()
    try:
        each = effort_of_a_pass(chosen, target, effort, budget_s)
        run.room_bytes = _room_bytes(chosen, target)
        kept, pass_s, pace = prepared(chosen, target, each, budget_s)
        _told(run, chosen, kept, target, budget_s, PASSES[target.device.type] * pass_s)
        sustained = warmed_up(target, target.abilities.wide, run.watch or Watch(target.sensors))
        # a card is warmed up before its time begins, a processor needs none
        start = time.monotonic() if target.is_cuda else begin
        _measure_all(run, chosen, kept, pace, target, each, start + budget_s)
    except KeyboardInterrupt:
        run.ended_early = f"interrupted after {len(run.samples)} of {len(chosen)} shapes"
        run.stopped = True
    except DeviceLostError as error:
        run.ended_early = f"the device failed after {len(run.samples)} of {len(chosen)} shapes: {error}"
    except (RuntimeError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
        run.ended_early = f"ended after {len(run.samples)} of {len(chosen)} shapes: {reason}"
    if run.ended_early:
        run.tell(run.ended_early)
    return sustained


def _measure_all(
    run: Run,
    chosen: Sequence[Case],
    kept: tuple[int, ...],
    pace: Pace,
    target: Target,
    effort: Effort,
    end: float,
) -> None:
    """Measure what was announced, pass after pass until `end`; a shape that would end later is left out of its pass."""
    passes, most = PASSES[target.device.type], MOST_PASSES[target.device.type]
    progress = Progress(end - time.monotonic())
    done, late, tried = 0, False, set[int]()
    try:
        for number, place in enumerate(kept * most):
            case, now = chosen[place], time.monotonic()
            if now > end:
                break
            progress.show(number / (passes * len(kept)), case.title)
            if case.kind not in run.unsupported:
                ways = 1 if place in run.samples else len(run.open_ways(case, target))
                if now + pace.pass_s(case, ways, effort) > end and not target.is_cuda:
                    late = late or number < len(kept)
                    continue
                tried.add(place)
                measure_case(run, place, case, target, effort)
                if run.watch is not None and target.is_cuda:
                    run.watch.look()
            if number % TIDY_EVERY == TIDY_EVERY - 1:
                settle(target)  # the memory of old graphs
            done = number + 1
    finally:
        progress.close()
        run.passes = done // max(len(kept), 1)
    if done < len(kept) or late:
        run.ended_early = f"out of time after {len(run.samples)} of {len(chosen)} shapes"
    elif done < passes * len(kept):
        run.tell(f"out of time in pass {done // len(kept) + 1} of {passes} over all shapes")
    untried = [
        case for place, case in enumerate(chosen) if place not in tried and case.kind not in run.unsupported
    ]
    if words := left_out(chosen, untried):
        run.remark(f"left out to keep the time: {words}")


def _finished(
    run: Run,
    chosen: Sequence[Case],
    linked: list[Measurement],
    group: Group | None,
    target: Target,
    sustained: Sustained | None,
    budget_s: float,
    *,
    quick: bool,
    seconds: float,
) -> Calibration:
    fewest = 1 if run.ended_early and not run.ended_early.startswith("out of time") else LEAST_POINTS
    everything = [*run.measurements(), *linked]
    peaks = best_rates(everything)
    if len(run.samples) < fewest or peaks is None:
        if run.stopped:
            run.tell("too little was measured for a file: nothing is written")
            raise KeyboardInterrupt
        why = f"{len(run.samples)} shapes were measured, at least {fewest} are needed"
        raise InputError(
            f"{why if len(run.samples) < fewest else 'no memory bandwidth was measured'}: nothing is written\n"
            f"  {run.ended_early or 'let it run longer, or pass more --minutes'}"
        )
    unseen = held_out(everything)
    marked = [replace(result, held_out=place in unseen) for place, result in enumerate(everything)]
    if group:
        rate = best_link_rate(linked)
        peaks = replace(peaks, link_bytes_per_s=rate, ranks=group.ranks, node_ranks=group.node_ranks)
    late = time.monotonic() + FIT_FRACTION * budget_s
    fitting = _fitted(run, marked, target, peaks, lambda: time.monotonic() > late)
    missing = missing_kinds(chosen, run)
    for line in run.skipped_remarks():
        run.remark(line)
    notes = [*run.remarks, *fitting.failures, *([run.ended_early] if run.ended_early else [])]
    return Calibration(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        quick=quick,
        partial=bool(run.ended_early or missing),
        machine=target.machine,
        peaks=peaks,
        fitted=fitting.fits,
        remarks=tuple(notes),
        measurements=tuple(fitting.measurements),
        missing=missing,
        conditions=_conditions(run, sustained) if target.is_cuda else None,
    )


def _fitted(
    run: Run, marked: list[Measurement], target: Target, peaks: Peaks, is_late: Callable[[], bool]
) -> Fitting:
    """Return the fits; Ctrl-C ends them early, and keeps those that are done and everything that was measured."""
    fitting = Fitting(marked)
    try:
        fit_all(fitting, target.machine, peaks, _family_numbers(target), is_late)
        fitting.fits |= _simple_fits(fitting.measurements)
    except KeyboardInterrupt:
        run.stopped = True
        run.ended_early = run.ended_early or "interrupted during the fit: not every kernel is fitted"
        run.tell(run.ended_early)
    return fitting


def missing_kinds(chosen: Sequence[Case], run: Run) -> tuple[str, ...]:
    """Return the kinds that were planned and of which nothing was measured."""
    kept = {case.kind for case, _, _ in run.samples.values()}
    return tuple(dict.fromkeys(case.kind_title for case in chosen if case.kind not in kept))


def _conditions(run: Run, sustained: Sustained | None) -> Conditions:
    watch = run.watch or Watch(Sensors())
    return Conditions(
        readings=len(watch.readings),
        clock_hz=watch.range("clock_hz"),
        memory_clock_hz=watch.range("memory_clock_hz"),
        power_w=watch.range("power_w"),
        temperature_c=watch.range("temperature_c"),
        slowed_fraction=watch.slowed_fraction(),
        rejected_repeats=watch.rejected,
        passes=run.passes,
        seed=SEED,
        sustained=sustained,
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


def best_rates(measurements: Sequence[Measurement]) -> Peaks | None:
    """Return the best rate of memory and of each dtype's matmuls: they stand in for the datasheet of this machine.

    Only the larger copies count for memory, because small ones fit a cache. None without any.
    """
    copies = [m for m in measurements if m.operator in ("copy", "read")]
    if not copies:
        copies = [m for m in measurements if "moved_bytes" in m.shape and m.operator not in HOST_COPIES]
    if not copies:
        return None
    largest = max(m.shape["moved_bytes"] for m in copies)
    memory = max(m.shape["moved_bytes"] / m.median_s for m in copies if m.shape["moved_bytes"] >= largest / 8)
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
