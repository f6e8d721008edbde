"""A simulation explained: how a percentile comes about, what the request at that percentile waited for, and what rates are counted from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import floor

import numpy as np
from numpy.typing import NDArray

from capplan.explain.plans import Arguments, Group, NextToPlan, Planned
from capplan.explain.subject import Explained, Input, Place, explained, input_of, name_of, places_of
from capplan.explain.table import Stated
from capplan.fleet.simulation import FleetOutcome, goodput_limits
from capplan.library.simulated_fleet import Simulation, SimulationRecords, simulation
from capplan.numbers import Array
from capplan.report.quantities import SIMULATION, quantity_of

_SPREADS = ("ttft_s", "tpot_s", "e2e_s", "queue_s")


@dataclass(frozen=True, slots=True)
class _Run:
    """A run, its numbers, and its requests as columns."""

    simulation: Simulation
    numbers: Mapping[Place, float]
    columns: Mapping[str, Array]

    @property
    def outcome(self) -> FleetOutcome:
        return self.simulation.outcome

    @property
    def label(self) -> str:
        """Return the label of the step times."""
        plan = self.simulation.chosen.plan
        return plan.groups[0].label if plan else "derived"

    def requests_of(self, place: Place, *, finished: bool = False) -> NDArray[np.intp]:
        """Return the positions of the requests of a class, or of all, that arrived, or finished, in the measured time."""
        counted = self.outcome.requests.done if finished else self.outcome.requests.seen
        if place[0] == "classes":
            counted = counted & (
                self.columns["class_index"] == list(self.outcome.classes).index(str(place[1]))
            )
        return np.flatnonzero(counted)

    def with_latency(self, place: Place) -> NDArray[np.intp]:
        """Return the positions of the requests that have the latency of a statistic, the fastest first."""
        rows, column = self.requests_of(place), self.columns[str(place[-2])]
        rows = rows[np.isfinite(column[rows])]
        return rows[np.argsort(column[rows], kind="stable")]

    def rank(self, place: Place) -> int:
        """Return the rank of the faster of the two requests that a percentile lies between, from 0."""
        size = self.with_latency(place).size
        return min(floor(_fraction(place) * (size - 1)), max(size - 2, 0))

    def pair(self, place: Place) -> tuple[int, int]:
        """Return the positions of these two requests."""
        rows, rank = self.with_latency(place), self.rank(place)
        return int(rows[rank]), int(rows[min(rank + 1, rows.size - 1)])


def simulation_group(planned: Planned) -> Group:
    """Return what `capplan simulate` prints, without the flags that change the run."""
    run = simulation(planned.asked, planned.answer, SimulationRecords(), offline=True)
    numbers = {
        place: value
        for place, value in places_of(run.answer.result)
        if quantity_of(name_of(("simulate", *_inner(place))))
    }
    columns = dict(run.outcome.requests.columns)
    if planned.asked.scenario.pooled:  # a prompt that is pooled has no output
        columns["output_tokens"] = np.zeros_like(columns["output_tokens"])
    found = _Run(run, numbers, columns)
    of = NextToPlan("simulate", numbers, _arguments(found), found.label)
    return Group(numbers, partial(_explain, found, of))


def _inner(place: Place) -> Place:
    return place[2:] if place[0] == "classes" else place


def _explain(run: _Run, of: NextToPlan, place: Place, value: float) -> Explained:
    """Explain a number of a run as the table says, and a percentile by the two requests that it lies between too."""
    inner = _inner(place)
    found = replace(of, under=place[: -len(inner)]).explain(place, value)
    if inner[0] not in _SPREADS or inner[1] == "mean":
        return found
    steps = tuple(_of_request(run, str(inner[0]), at) for at in dict.fromkeys(run.pair(place)))
    return replace(found, steps=steps)


def _arguments(run: _Run) -> Arguments:
    """Return the arguments of the numbers of a run: what is counted of its requests."""

    def latencies(place: Place) -> NDArray[np.float64]:
        return run.columns[str(place[-2])][run.with_latency(place)]

    def beside(place: Place, at: int) -> Stated:
        request, metric = run.pair(place)[at], str(place[-2])
        return Stated(float(run.columns[metric][request]), f"request {request} of the run", run.label, metric)

    def finished(place: Place) -> NDArray[np.intp]:
        return run.requests_of(place, finished=True)

    def good(place: Place) -> Stated:
        return _good(run, run.requests_of(place) if place[-1] == "slo_met_fraction" else finished(place))

    return {
        "run": lambda place: Stated(run.numbers[place], label=run.label, name=str(place[-1])),
        "gaps": Stated(None, label=run.label),
        "run_requests": lambda place: Stated(len(latencies(place))),
        "run_sum": lambda place: Stated(float(latencies(place).sum()), label=run.label, name=str(place[-2])),
        "quantile_fraction": lambda place: Stated(_fraction(place)),
        "rank": lambda place: Stated(run.rank(place)),
        "faster_request": lambda place: beside(place, 0),
        "slower_request": lambda place: beside(place, 1),
        "finished_requests": lambda place: Stated(finished(place).size, label=run.label),
        "finished_output_tokens": lambda place: Stated(float(run.columns["output_tokens"][finished(place)].sum())),
        "good_requests": good,
    }  # fmt: skip


def _fraction(place: Place) -> float:
    return int(str(place[-1])[1:]) / 100.0


def _of_request(run: _Run, metric: str, at: int) -> Explained:
    """Explain what one request waited for."""
    values = {name: float(column[at]) for name, column in run.columns.items()}
    ttft, queue, output = values["ttft_s"], values["queue_s"], values["output_tokens"]
    of_run = partial(input_of, label=run.label)
    drawn = "its prompt, drawn from the traffic or of the trace"
    tokens = input_of("n", "input_tokens", values["input_tokens"], "config", drawn)
    arrival = input_of("", "arrival_s", values["arrival_s"], "config", "when it came")
    wait = of_run("w", "queue_s", queue, source="until the first step that works on it")
    first = of_run("t", "ttft_s", ttft, source="until its first token")
    last = of_run("e", "e2e_s", values["e2e_s"], source="until its last token")
    size = input_of("m", "output_tokens", output, "config", "its output")
    each = [of_run("d", "tpot_s", values["tpot_s"], source="each further token")] if output > 1 else []
    shared = "steps that hold its prompt, other requests in them too: explain ttft_s.p95 has their operators"
    prefill = of_run("p", "prefill_s", ttft - queue, source=shared)
    of: dict[str, tuple[str, tuple[Input, ...]]] = {
        "queue_s": ("w: the engine had other requests, or no room", (wait, arrival)),
        "ttft_s": ("w + p", (wait, prefill, tokens, arrival)),
        "tpot_s": ("(e - t) / (m - 1)", (last, first, size)),
        "e2e_s": ("t + (m - 1) d" if output > 1 else "t", (first, *each, size)),
    }
    formula, inputs = of[metric]
    return explained(f"request {at}: {metric}", values[metric], formula, inputs, SIMULATION)


def _good(run: _Run, rows: NDArray[np.intp]) -> Stated:
    slo = run.simulation.chosen.asked.scenario.slo
    limits = goodput_limits(slo).items()
    stated = ", ".join(f"{name} {limit:g}" for name, limit in limits if np.isfinite(limit))
    if run.outcome.seen is not None:
        stated += ", later for classes that wait less outside"
    good = int(np.count_nonzero(run.outcome.requests.met[rows]))
    return Stated(good, f"finished within {stated or 'no limit'}", run.label)
