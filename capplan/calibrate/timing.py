"""Time of one call: warmed up, on rotated operands, repeated until the median is known or the time is up.

Before a run, one large matmul for about two seconds warms the card up and shows the rate that its power allows.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from capplan.calibrate.machine import Target, Watch, abilities_of, capability_of
from capplan.readers.calibration.record import Sustained

Call = Callable[[], Any]
SMALLEST_PASS_S = 3e-4
"""A repeat lasts at least this long, so that the cost of reading the clock does not show."""
DEVICE_PASS_S = 2e-3
"""A repeat on an accelerator lasts about this long, so that the start of a graph does not show."""
MOST_CALLS = 200
"""Calls of one repeat, unless there are more sets of operands."""
ENOUGH_SPREAD_FRACTION = 0.01
"""Repetition stops once the standard error of the median is below this fraction of it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Repeats of one measurement, in one pass or in several."""

    passes: tuple[tuple[float, ...], ...]
    """Times per call of the repeats of each pass."""
    throttled: bool = False
    """True where the device was slowing itself down for heat in every repeat."""

    @property
    def seconds(self) -> float:
        """Median over passes of each pass's median: a pass in a noisy minute counts once."""
        return float(np.median([np.median(times) for times in self.passes]))

    @property
    def spread_fraction(self) -> float:
        """Half the distance of the quartiles of all repeats, over the median."""
        low, high = np.quantile(np.concatenate(self.passes), (0.25, 0.75))
        return float((high - low) / 2 / self.seconds)

    @property
    def repeats(self) -> int:
        """Repeats of all passes."""
        return sum(len(times) for times in self.passes)

    def beside(self, other: "Sample") -> "Sample":
        """Return the repeats of both; those of a throttled pass only where there are no others."""
        if self.throttled != other.throttled:
            return other if self.throttled else self
        return Sample((*self.passes, *other.passes), self.throttled)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to repeat."""

    least_repeats: int
    most_repeats: int
    seconds: float
    """Time for one case in all its passes, without warm-up."""


QUICK = Effort(5, 60, 0.15)
FULL = Effort(9, 200, 1.0)
LEAST_SLOW_REPEATS = 3
"""Minimum repeats of a case so slow that `least_repeats` would take `SLOW_RATIO` times its time."""
SLOW_RATIO = 3.0
COOLING_S = 0.05
"""Pause after a repeat during which the device slowed itself down."""
MOST_COOLING_S = 1.0
"""Time given to a hot device in one case, before its repeats are kept as throttled."""
TRIAL = Effort(3, 3, 0.02)
"""Effort for each way to run a shape, of which the quickest is measured."""


def sampled(
    target: Target, calls: Sequence[Call], effort: Effort, *, graph: bool = True, watch: Watch | None = None
) -> Sample:
    """Return the median time of one call, over repeats that each pass through all `calls`.

    On CUDA the pass is captured as a CUDA graph (unless `graph` is false) and timed by device events. On one
    CPU thread the clock is the CPU time of the thread, so that other processes do not count;
    with more threads it is the wall clock.
    """
    if target.is_cuda:
        calls = _enough(calls)
        repeat = _graph_pass(calls) if graph else _event_pass(calls)
        per_pass = len(calls)
    else:
        clock = time.thread_time if target.machine.threads == 1 else time.perf_counter
        repeat, per_pass = _clock_pass(calls, clock, effort.seconds)
    if watch is None:
        return Sample((tuple(repeated(repeat, per_pass, effort)),))
    times, hot = cool_repeats(repeat, per_pass, effort, watch)
    return Sample((tuple(times or hot),), throttled=not times)


def cool_repeats(
    repeat: Callable[[], float], per_pass: int, effort: Effort, watch: Watch
) -> tuple[list[float], list[float]]:
    """Return times per call, and apart those of repeats during which the device slowed itself down.

    Parameters
    ----------
    repeat : runs one pass and returns its time [s]
    per_pass : calls of one pass [-]
    effort : how long
    watch : of the device's sensors; counts the rejected repeats
    """
    hot: list[float] = []

    def cool() -> float:
        seconds = repeat()
        while watch.is_hot() and COOLING_S * len(hot) < MOST_COOLING_S:
            watch.rejected += 1
            hot.append(seconds / per_pass)
            time.sleep(COOLING_S)
            seconds = repeat()
        return seconds

    times = repeated(cool, per_pass, effort)
    return ([], times) if watch.is_hot() else (times, hot)


def repeated(repeat: Callable[[], float], per_pass: int, effort: Effort) -> list[float]:
    """Return times per call, repeated until the median is known or the time is up.

    Parameters
    ----------
    repeat : runs one pass and returns its time [s]
    per_pass : calls of one pass [-]
    effort : how long

    Returns
    -------
    times [s], in their order
    """
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < effort.most_repeats:
        times.append(repeat() / per_pass)
        elapsed = time.perf_counter() - begin
        if len(times) < effort.least_repeats:
            if len(times) >= LEAST_SLOW_REPEATS and elapsed > SLOW_RATIO * effort.seconds:
                break
            continue
        if _standard_error_fraction(times) < ENOUGH_SPREAD_FRACTION or elapsed > effort.seconds:
            break
    return times


def _standard_error_fraction(times: Sequence[float]) -> float:
    low, median, high = np.quantile(times, (0.25, 0.5, 0.75))
    # of a normal sample: sd = IQR / 1.349, and the median's standard error is 1.253 sd / sqrt(n)
    return float(1.253 * (high - low) / 1.349 / np.sqrt(len(times)) / median)


def _clock_pass(
    calls: Sequence[Call], clock: Callable[[], float], longest_s: float
) -> tuple[Callable[[], float], int]:
    begin = time.perf_counter()
    for call in calls:  # first touch of every result, and the library's choice of a kernel
        call()
        if time.perf_counter() - begin > longest_s:
            break
    start = clock()
    calls[0]()
    single_s = max(clock() - start, 1e-8)
    count = int(np.clip(SMALLEST_PASS_S / single_s, 1, 1000))
    position = 0

    def repeat() -> float:
        nonlocal position
        chosen = [calls[(position + index) % len(calls)] for index in range(count)]
        position += count
        begin = clock()
        for call in chosen:
            call()
        return clock() - begin

    return repeat, count


def _enough(calls: Sequence[Call]) -> list[Call]:
    """Return the calls, in turns until one pass lasts about `DEVICE_PASS_S`, and every one of them at least once.

    A pass that left some out would find its operands in the cache the next time.
    """
    calls[0]()
    torch.cuda.synchronize()
    single_s = max(_event_pass(calls[:1])(), 1e-6)
    turns = int(np.clip(DEVICE_PASS_S / (single_s * len(calls)), 1, max(MOST_CALLS // len(calls), 1)))
    return [call for _ in range(turns) for call in calls]


def _event_pass(calls: Sequence[Call]) -> Callable[[], float]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for call in calls:
        call()
    torch.cuda.synchronize()

    def repeat() -> float:
        begin.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    return repeat


def _graph_pass(calls: Sequence[Call]) -> Callable[[], float]:
    """Return a timed replay of all calls in one CUDA graph, with enough of them for the resolution of the clock."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries choose kernels and allocate workspaces before the capture
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return _event_pass([graph.replay])


WARM_S = 2.0
WARM_EDGE = 8192
"""Rows, inputs and outputs of the matmul."""
SMALL_WARM_EDGE = 4096
LARGE_CARD_BYTES = 12e9
LEAST_PARTS = 8
LOOKS = 20
"""Readings of the sensors during the warm-up."""


def warmed_up(target: Target, dtype: str, watch: Watch) -> Sustained | None:
    """Run one matmul over and over, and return its rates; None on a processor, or where it does not run.

    Parameters
    ----------
    target : the device
    dtype : 16-bit dtype to multiply in
    watch : keeps the readings of the sensors
    """
    if not target.is_cuda:
        return None
    edge = WARM_EDGE if target.usable_bytes > LARGE_CARD_BYTES else SMALL_WARM_EDGE
    try:
        rates = _rates(_product(edge, dtype, target.device), 2.0 * edge**3, watch, WARM_S)
    except RuntimeError:  # the cases say what does not run
        return None
    ends = max(len(rates) // 10, 1), max(len(rates) // 4, 1)
    return Sustained(float(np.median(rates[-ends[1] :])), float(np.median(rates[: ends[0]])), WARM_S, dtype)


def _product(edge: int, dtype: str, device: torch.device) -> Callable[[], object]:
    first, second = (random_operand((edge, edge), dtype, device) for _ in range(2))
    result = torch.empty_like(first)
    return lambda: torch.mm(first, second, out=result)


def _rates(call: Callable[[], object], flop: float, watch: Watch, seconds: float) -> list[float]:
    """Return the rate of each call in order [FLOP/s]."""
    call()
    torch.cuda.synchronize()
    rates: list[float] = []
    begin, looked = time.monotonic(), 0
    while (elapsed := time.monotonic() - begin) < seconds or len(rates) < LEAST_PARTS:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(5)]
        for event in events:
            event.record()
            if event is not events[-1]:
                call()
        events[-1].synchronize()
        rates += [flop / (one.elapsed_time(two) * 1e-3) for one, two in pairwise(events)]
        if looked <= LOOKS * elapsed / seconds:
            watch.look()
            looked += 1
    return rates


SEED = 20
"""Seed of random operands and routings; the same in every run."""
LARGEST_DRAW = 2**20
"""Random elements generated at once; larger operands repeat them."""
ALIGNED = 1024
"""Operands start at multiples of this many elements."""
TORCH_DTYPES = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8,
}  # fmt: skip
STORED_IN = {"fp8_row": "fp8", "fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "int8", "w4a16": "int8"}
"""Format of a matmul -> dtype of the arena that its weights are cut from."""
ELEMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
_RESULTS = "results"
"""Name of the arena that large results are written to."""


@dataclass(slots=True)
class Arena:
    """Random data of one dtype, of which operands are consecutive slices.

    A pass over all slices reads the whole arena, so none of them is still in the cache when its turn comes, and
    creating operands costs nothing.
    """

    values: torch.Tensor
    position: int = 0

    def cut(self, count: int) -> torch.Tensor | None:
        """Return the next `count` elements; None where the arena is shorter than that."""
        size = self.values.numel()
        if count > size:
            return None
        if self.position + count > size:
            self.position = 0
        start = self.position
        self.position += -(-count // ALIGNED) * ALIGNED
        return self.values[start : start + count]


_ARENAS: dict[tuple[torch.device, str], Arena] = {}


def torch_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype as torch names it; fp8 is the kind that the device multiplies."""
    if name != "fp8":
        return TORCH_DTYPES[name]
    if device.type != "cuda":
        return torch.float8_e4m3fn
    able = abilities_of(capability_of(torch.cuda.get_device_properties(device)))
    return able.fp8 or torch.float8_e4m3fn


def prepare_arenas(device: torch.device, dtypes: Iterable[str], arena_bytes: float) -> None:
    """Fill the arenas of a run with random data, and drop those of an earlier run."""
    drop_arenas()
    torch.manual_seed(SEED)
    for dtype in dict.fromkeys(STORED_IN.get(name, name) for name in dtypes):
        with suppress(RuntimeError):  # a dtype that cannot be generated is skipped and reported case by case
            _ARENAS[device, dtype] = Arena(_drawn(int(arena_bytes / ELEMENT_BYTES[dtype]), dtype, device))
    _ARENAS[device, _RESULTS] = Arena(_drawn(int(arena_bytes / 2.0), "fp16", device).view(torch.bfloat16))


def drop_arenas() -> None:
    """Release the memory of all arenas."""
    _ARENAS.clear()


def rewind_arenas() -> None:
    """Let the next operands start at the beginning of their arena."""
    for arena in _ARENAS.values():
        arena.position = 0


def random_operand(sizes: Sequence[float], dtype: str, device: torch.device) -> torch.Tensor:
    """Return random data: with zeros or ones the device would draw less power and clock higher."""
    whole = tuple(int(size) for size in sizes)
    arena = _ARENAS.get((device, dtype))
    values = arena.cut(math.prod(whole)) if arena else None
    return (_drawn(math.prod(whole), dtype, device) if values is None else values).reshape(whole)


def result_space(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return memory for a result that is as cold as the operands."""
    arena = _ARENAS.get((device, _RESULTS))
    values = arena.cut(-(-like.numel() * like.element_size() // 2)) if arena else None
    if values is None or like.element_size() % 2:
        return torch.empty_like(like)
    return values.view(like.dtype).reshape(like.shape)


def _drawn(count: int, dtype: str, device: torch.device) -> torch.Tensor:
    kind = torch_dtype(dtype, device)
    some = min(count, LARGEST_DRAW)
    if dtype == "int8":
        drawn = torch.randint(-127, 128, (some,), dtype=kind, device=device)
    else:
        drawn = torch.randn(some, dtype=torch.float16 if dtype == "fp8" else kind, device=device).to(kind)
    return drawn if some == count else drawn.repeat(-(-count // some))[:count]
