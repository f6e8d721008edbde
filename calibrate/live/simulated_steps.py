"""The steps that the simulator takes for a recorded run: the same requests, the same step times, batch by batch.

Time is counted in steps of the engine. A request arrives when the first step was planned after the scheduler had it (with
asynchronous scheduling, when the step before that one began), and every step takes one unit; so order and duration of events are those that were measured, whatever the clock of the machine did.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from calibrate.live.python_core import python_engine
from calibrate.live.step_logs import Step, StepLog
from capplan.engine.profile import Scheduling
from capplan.numbers import Counts
from capplan.serving.block_cache import PrefixCaching
from capplan.serving.requests import Admission, Requests
from capplan.serving.step_table import StepClock, StepTable
from capplan.serving.terms import EngineSetup

MANY_BLOCKS = 1_000_000


def watched(engine: Any) -> list[Step]:
    """Let an engine of `python_engine` write down what each step works on, one decode step at a time, in the list that is returned."""
    steps: list[Step] = []
    gone: list[int] = []
    work_on, decode, count_preempted = engine.work_on, engine.decode, engine.count_preempted

    def note(chunks: int) -> None:
        pieces = [(engine.chunk_rows[place], engine.chunk_tokens[place]) for place in range(chunks)]
        prompts = sorted((row, new, engine.done[row]) for row, new in pieces)
        decodes = []
        row = engine.last if engine.shared_steps or not chunks else -1
        while row >= 0:
            decodes.append(row)
            row = engine.before[row]
        steps.append(Step(tuple(prompts), tuple(sorted(decodes)), tuple(sorted(gone))))
        gone.clear()

    def noted_work() -> None:
        note(engine.chunks)
        work_on()

    def noted_decode(until_s: float, one: bool) -> None:
        del one
        note(0)
        decode(until_s, True)

    def noted_preemption(row: int) -> None:
        gone.append(row)
        count_preempted(row)

    engine.work_on, engine.decode, engine.count_preempted = noted_work, noted_decode, noted_preemption
    return steps


def unit_clock() -> StepClock:
    """Return a clock on which every step takes one unit of time."""
    one, zero = np.ones(1), np.zeros(1)
    return StepClock(StepTable(one, one, zero, one, zero[None], one, one, one, zero, zero[None]))


def recorded_load(log: StepLog) -> tuple[Requests, EngineSetup, Admission]:
    """Return the requests of a recorded run, the engine with its limits on a clock of units, and the order of its queue."""
    limits = log.limits
    scheduling = Scheduling(
        limits.get("policy", "mixed"),
        limits["max_num_seqs"],
        limits["max_num_batched_tokens"],
        limits["chunked"],
        block_tokens=limits["block_tokens"],
        asynchronous=limits["asynchronous"],
    )
    ahead = 1 if scheduling.asynchronous else 0
    blocks = limits["blocks"] - 1 if limits["blocks"] else MANY_BLOCKS
    caching = PrefixCaching(limits["block_tokens"]) if limits["caching"] else None
    rows = log.requests
    priorities = sorted({row.priority for row in rows})
    requests = Requests(
        _column(row.prompt_tokens for row in rows),
        _column(row.output_tokens for row in rows),
        np.array([float(max(row.from_step - ahead, 0)) for row in rows]),
        class_index=_column(priorities.index(row.priority) for row in rows),
    )
    if caching:
        requests = replace(
            requests,
            block_ids=_column(block for row in rows for block in row.prompt_ids),
            block_counts=_column(len(row.prompt_ids) for row in rows),
            output_ids=_column(block for row in rows for block in row.output_ids),
            output_counts=_column(len(row.output_ids) for row in rows),
        )
    admission = Admission(priority=tuple(priorities) if len(priorities) > 1 else ())
    return requests, EngineSetup(unit_clock(), scheduling, blocks, caching=caching), admission


def simulated(log: StepLog) -> tuple[Step, ...]:
    """Return the steps that the simulator takes under the limits of a recorded run."""
    requests, engine, admission = recorded_load(log)
    core = python_engine(requests, engine, admission=admission)
    steps = watched(core)
    core.advance(inf)
    return tuple(steps)


def _column(values: Iterable[int]) -> Counts:
    return np.array(list(values), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many steps of a recorded run the simulator takes in the same way."""

    steps: int
    equal: int
    first: int | None
    """First step that differs; None if all are equal."""

    @property
    def exact(self) -> bool:
        """Return whether every step is equal."""
        return self.first is None


def agreement(log: StepLog) -> Agreement:
    """Return how far the simulator takes the recorded steps."""
    ours = simulated(log)
    pairs = list(zip(log.steps, ours, strict=False))
    equal = sum(theirs == own for theirs, own in pairs)
    count = max(len(log.steps), len(ours))
    first = next((place for place, (theirs, own) in enumerate(pairs) if theirs != own), None)
    if first is None and len(log.steps) != len(ours):
        first = len(pairs)
    return Agreement(count, equal, first)
