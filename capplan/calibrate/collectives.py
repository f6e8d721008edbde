"""Collectives between the ranks of a group that torchrun started: NCCL between accelerators, gloo between CPUs."""

import datetime
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import distributed

from capplan.calibrate.machine import Target
from capplan.errors import InputError
from capplan.readers.calibration.record import Measurement

OPERATORS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")
REPEATS = 15
"""Repeats of one message size; the same on all ranks."""
CALLS = 20
"""Calls of one repeat between two events: a single one would show the barrier before it and the start of the kernel."""
LONGEST_CALLS_S = 0.05
TIMEOUT_S = 60.0
"""Time after which a rank that hears nothing of another one gives up."""
CUDA_SIZES = tuple(float(2**power) for power in range(10, 29))
CPU_SIZES = tuple(float(2**power) for power in range(10, 25))


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that torchrun started, as seen by this one."""

    rank: int
    ranks: int
    node_ranks: int

    @property
    def is_first(self) -> bool:
        """True on the rank that writes the file."""
        return self.rank == 0


def group_of_environment() -> Group | None:
    """Return the group that torchrun describes in the environment; None for a single process."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks < 2 or "RANK" not in os.environ:
        return None
    return Group(int(os.environ["RANK"]), ranks, int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks))))


def own_device(name: str | None) -> str:
    """Return the device of this rank, the accelerator of the machine where none is named: torchrun gives each local rank one."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name


def collective_times(
    group: Group, target: Target, *, quick: bool, tell: Callable[[str], None]
) -> list[Measurement]:
    """Return the time of every collective by message size, on the slowest rank.

    Parameters
    ----------
    group : of torchrun
    target : the device of this rank
    quick : only every other size
    tell : receives progress messages

    Returns
    -------
    measurements; identical on every rank
    """
    sizes = (CUDA_SIZES if target.is_cuda else CPU_SIZES)[:: 2 if quick else 1]
    measured: list[Measurement] = []
    try:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if target.is_cuda else "gloo",
            rank=group.rank,
            world_size=group.ranks,
            timeout=datetime.timedelta(seconds=TIMEOUT_S),
        )
        for operator in OPERATORS:
            for size in sizes:
                timings = _measured(operator, size, group, target)
                if isinstance(timings, str):
                    if group.is_first:
                        tell(f"{operator} is skipped: {timings}")
                    break
                measured.append(timings)
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"rank {group.rank} of {group.ranks}: the collectives ended: {reason}\n"
            "  all ranks stop, nothing is written; check the links (NCCL_DEBUG=INFO), or measure one device without torchrun"
        ) from None
    finally:
        if distributed.is_initialized():
            with suppress(RuntimeError):
                distributed.destroy_process_group()
    return measured


def agreed(problem: str, group: Group) -> str:
    """Return the first problem that any rank has, the same on all ranks; empty where none has one.

    Parameters
    ----------
    problem : of this rank; empty for none
    group : all of them
    """
    problems: list[str] = [""] * group.ranks
    distributed.all_gather_object(problems, problem)
    return next((f"rank {rank}: {one}" for rank, one in enumerate(problems) if one), "")


def _measured(operator: str, size: float, group: Group, target: Target) -> Measurement | str:
    dtype = torch.bfloat16 if target.is_cuda else torch.float32
    elements = max(int(size / dtype.itemsize) // group.ranks, 1) * group.ranks
    problem, call = "", None
    try:
        call = _call(operator, elements, group, target, dtype)
    except RuntimeError as error:
        problem = _first_line(error)
    problem = agreed(problem, group)
    if problem or call is None:
        return problem
    try:
        call()
        if target.is_cuda:
            torch.cuda.synchronize()
    except RuntimeError as error:  # gloo lacks some collectives in some versions
        problem = _first_line(error)
    problem = agreed(problem, group)  # all ranks go on, or none does: one alone would wait for ever
    if problem:
        return problem
    repeat, calls = _many(call, operator, group, target)
    times = [repeat() / calls for _ in range(REPEATS)]
    slowest = torch.tensor(times, dtype=torch.float64)
    distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
    low, median, high = np.quantile(slowest.numpy(), (0.25, 0.5, 0.75))
    shape = {"ranks": float(group.ranks), "message_bytes": float(elements * dtype.itemsize)}
    return Measurement(
        operator, "bf16", shape, float(median), float((high - low) / 2 / median), REPEATS,
        library="rccl" if target.abilities.is_amd else "nccl" if target.is_cuda else "gloo",
    )  # fmt: skip


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["failed"])[0][:100]


def _many(
    call: Callable[[], object], operator: str, group: Group, target: Target
) -> tuple[Callable[[], float], int]:
    """Return what times several calls after a barrier, inside a CUDA graph where the collective can be captured."""
    begin = time.perf_counter()
    call()
    if target.is_cuda:
        torch.cuda.synchronize()
    alone = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    distributed.all_reduce(alone, op=distributed.ReduceOp.MAX)  # the same number of calls on all ranks
    count = int(np.clip(LONGEST_CALLS_S / max(float(alone), 1e-7), 1, CALLS))
    if target.is_cuda:
        return _on_device(call, count, captured=operator != "point_to_point", group=group), count

    def repeat() -> float:
        distributed.barrier()
        start = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - start

    return repeat, count


def _on_device(
    call: Callable[[], object], count: int, *, captured: bool, group: Group
) -> Callable[[], float]:
    def several() -> None:
        for _ in range(count):
            call()

    replay: Callable[[], object] = several
    if captured:
        graph = torch.cuda.CUDAGraph()
        problem = ""
        try:
            with torch.cuda.graph(graph):
                several()
        except RuntimeError as error:
            problem = _first_line(error)
        if not agreed(problem, group):
            replay = graph.replay
        torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def repeat() -> float:
        distributed.barrier()
        begin.record()
        replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    return repeat


def _call(
    operator: str, elements: int, group: Group, target: Target, dtype: torch.dtype
) -> Callable[[], object]:
    whole = torch.randn(elements, device=target.device).to(dtype)
    part = torch.randn(elements // group.ranks, device=target.device).to(dtype)
    other = torch.empty_like(whole)
    if operator == "all_reduce":
        return lambda: distributed.all_reduce(whole)
    if operator == "all_gather":
        return lambda: distributed.all_gather_into_tensor(whole, part)
    if operator == "reduce_scatter":
        return lambda: distributed.reduce_scatter_tensor(part, whole)
    if operator == "all_to_all":
        return lambda: distributed.all_to_all_single(other, whole)
    # the first rank sends to the last one, over the network where there are several nodes
    if group.rank == 0:
        return lambda: distributed.send(whole, group.ranks - 1)
    if group.rank == group.ranks - 1:
        return lambda: distributed.recv(whole, 0)
    return lambda: None


def best_link_rate(measurements: list[Measurement]) -> float | None:
    """Return the best rate of one rank over the link or network of the group [B/s].

    A ring moves 2 (n - 1) / n of an all-reduced message over each link, and (n - 1) / n of a gathered one.

    Examples
    --------
    Four ranks reduce 100 bytes in a second, over links that carry 150 bytes each:

    >>> best_link_rate([Measurement("all_reduce", "bf16", {"ranks": 4.0, "message_bytes": 100.0}, 1.0, 0.0, 15)])
    150.0
    """
    passes = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
    rates = [
        passes[m.operator] * (m.shape["ranks"] - 1) / m.shape["ranks"] * m.shape["message_bytes"] / m.median_s
        for m in measurements
        if m.operator in passes
    ]
    return max(rates, default=None)
