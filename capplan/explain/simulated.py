"""A simulation explained: how a percentile comes about, what the request at that percentile waited for, and what rates are counted from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import floor

import numpy as np
from numpy.typing import NDArray

from capplan.explain.plans import Group, Planned, Row
from capplan.explain.subject import Explained, Input, Place, explained, input_of, places_of
from capplan.fleet.load.waits import waits_of
from capplan.fleet.simulation import FleetOutcome, arrived_in, finished_in, goodput_limits, request_columns
from capplan.library import Simulation, SimulationRecords, simulation
from capplan.numbers import Array
from capplan.report.quantities import SIMULATION
from capplan.serving.outcome import slo_met

_SPREADS = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
_COLUMNS = (*_SPREADS, "status", "arrival_s", "input_tokens", "output_tokens", "class_index")


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
        in_time = finished_in if finished else arrived_in
        counted = in_time(self.columns, self.outcome.from_s, self.outcome.until_s)
        if place[0] == "classes":
            counted &= self.columns["class_index"] == list(self.outcome.classes).index(str(place[1]))
        return np.flatnonzero(counted)

    def row(self, place: Place) -> Row:
        """Return the numbers next to the one at a place."""
        return Row("simulate", self.numbers, place[:-1], self.label)


def simulation_group(planned: Planned) -> Group:
    """Return what `capplan simulate` prints, without the flags that change the run."""
    run = simulation(planned.asked, planned.answer, SimulationRecords(), offline=True)
    numbers = {place: value for place, value in places_of(run.answer.result) if _is_explained(place)}
    if planned.asked.scenario.pooled:
        numbers = {place: value for place, value in numbers.items() if place[-1] != "output_tokens_per_s"}
    parts = run.outcome.parts
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return Group(numbers, partial(_explain, _Run(run, numbers, columns)))


def _is_explained(place: Place) -> bool:
    inner = place[2:] if place[0] == "classes" else place
    return inner[0] in (*_SPREADS, "itl_s") or (len(inner) == 1 and inner[0] in _COUNTED)


def _explain(run: _Run, place: Place, value: float) -> Explained:
    inner = place[2:] if place[0] == "classes" else place
    if inner[0] == "itl_s":
        return _between_tokens(run, str(inner[1]))
    if inner[0] in _SPREADS:
        return _statistic(run, place, str(inner[0]), str(inner[1]))
    return _COUNTED[str(inner[0])](run, place, value)


def _between_tokens(run: _Run, statistic: str) -> Explained:
    gaps = input_of(
        "",
        "gaps",
        None,
        run.label,
        "every gap between two tokens of a request, in a histogram: docs/simulation.md",
    )
    value = float(getattr(run.outcome.itl_s, statistic))
    words = "mean" if statistic == "mean" else f"{statistic[1:]}th percentile"
    return explained(f"itl_s.{statistic}", value, f"{words} of the gaps between tokens", (gaps,), SIMULATION, label=run.label)  # fmt: skip


def _statistic(run: _Run, place: Place, metric: str, statistic: str) -> Explained:
    """Explain a mean or a percentile by the requests that it is counted from."""
    figures = run.outcome.classes[str(place[1])] if place[0] == "classes" else run.outcome.all
    value = float(getattr(getattr(figures, metric), statistic))
    rows = run.requests_of(place)
    rows = rows[np.isfinite(run.columns[metric][rows])]
    counted = input_of("N", "requests", rows.size, "derived", "requests of the run that have this latency")
    name = f"{metric}.{statistic}"
    if statistic == "mean":
        total = input_of(
            "S", metric, float(run.columns[metric][rows].sum()), run.label, "sum over these requests"
        )
        return explained(name, value, "S / N", (total, counted), SIMULATION)  # fmt: skip
    fraction = int(statistic[1:]) / 100.0
    ordered = rows[np.argsort(run.columns[metric][rows], kind="stable")]
    rank = fraction * (rows.size - 1)
    below = min(floor(rank), max(rows.size - 2, 0))
    pair = [int(ordered[min(at, rows.size - 1)]) for at in (below, below + 1)]
    inputs = (
        input_of("q", "quantile_fraction", fraction, "derived", "the percentile that is asked for"),
        counted,
        input_of(
            "k", "rank", below, "derived", "whole part of q (N - 1): requests from the fastest on, from 0"
        ),
        *(
            input_of(symbol, metric, float(run.columns[metric][at]), run.label, f"request {at} of the run")
            for symbol, at in zip("ab", pair, strict=True)
        ),
    )
    steps = tuple(_of_request(run, metric, at) for at in dict.fromkeys(pair))
    return explained(name, value, "a + (q (N - 1) - k) (b - a)", inputs, SIMULATION, steps=steps)


def _of_request(run: _Run, metric: str, at: int) -> Explained:
    """Explain what one request waited for."""
    values = {name: float(column[at]) for name, column in run.columns.items()}
    ttft, queue, output = values["ttft_s"], values["queue_s"], values["output_tokens"]
    tokens = input_of(
        "n",
        "input_tokens",
        values["input_tokens"],
        "config",
        "its prompt, drawn from the traffic or of the trace",
    )
    arrival = input_of("", "arrival_s", values["arrival_s"], "config", "when it came")
    wait = input_of("w", "queue_s", queue, run.label, "until the first step that works on it")
    of: dict[str, tuple[str, tuple[Input, ...]]] = {
        "queue_s": ("w: the engine had other requests, or no room", (wait, arrival)),
        "ttft_s": (
            "w + p",
            (
                wait,
                input_of("p", "prefill_s", ttft - queue, run.label, "steps that hold its prompt, other requests in them too: explain ttft_s.p95 has their operators"),
                tokens,
                arrival,
            ),
        ),
        "tpot_s": (
            "(e - t) / (m - 1)",
            (
                input_of("e", "e2e_s", values["e2e_s"], run.label, "until its last token"),
                input_of("t", "ttft_s", ttft, run.label, "until its first token"),
                input_of("m", "output_tokens", output, "config", "its output"),
            ),
        ),
        "e2e_s": (
            "t + (m - 1) d" if output > 1 else "t",
            (
                input_of("t", "ttft_s", ttft, run.label, "until its first token"),
                *([input_of("d", "tpot_s", values["tpot_s"], run.label, "each further token")] if output > 1 else []),
                input_of("m", "output_tokens", output, "config", "its output"),
            ),
        ),
    }  # fmt: skip
    formula, inputs = of[metric]
    return explained(f"request {at}: {metric}", values[metric], formula, inputs, SIMULATION)


def _plain(formula: str, source: str) -> Callable[[_Run, Place, float], Explained]:
    def explain(run: _Run, place: Place, value: float) -> Explained:
        name = str(place[-1])
        item = input_of("", name, value, run.label, source)
        return explained(name, value, formula, (item,), SIMULATION)

    return explain


def _per_second(run: _Run, place: Place, value: float) -> Explained:
    name = str(place[-1])
    of_run = Row("simulate", run.numbers, (), run.label)
    time = of_run.input("b", "measured_until_s"), of_run.input("a", "measured_from_s")
    done = run.requests_of(place, finished=True)
    if name == "requests_per_s":
        finished = input_of(
            "f", "finished", done.size, run.label, "requests that finished in the measured time"
        )
        return explained(name, value, "f / (b - a)", (finished, *time), SIMULATION)
    if name == "goodput_requests_per_s":
        return explained(name, value, "g / (b - a)", (_good(run, done), *time), SIMULATION)
    total = input_of(
        "o",
        "output_tokens",
        float(run.columns["output_tokens"][done].sum()),
        "config",
        "of the requests that finished in the measured time",
    )
    return explained(name, value, "o / (b - a)", (total, *time), SIMULATION)  # fmt: skip


def _good(run: _Run, rows: NDArray[np.intp]) -> Input:
    slo = run.simulation.chosen.asked.scenario.slo
    waits = waits_of(run.simulation.chosen.asked.question.demand.classes)
    met = np.concatenate(
        [slo_met(part, **goodput_limits(slo, request_columns([part], waits))) for part in run.outcome.parts]
    )
    limits = goodput_limits(slo).items()
    stated = ", ".join(f"{name} {limit:g}" for name, limit in limits if np.isfinite(limit))
    if waits.are_unlike:
        stated += ", later for classes that wait less outside"
    good = int(np.count_nonzero(met[rows]))
    return input_of("g", "requests_within_limits", good, run.label, f"finished within {stated or 'no limit'}")


def _met(run: _Run, place: Place, value: float) -> Explained:
    inputs = (_good(run, run.requests_of(place)), run.row(place).input("n", "requests"))
    return explained("slo_met_fraction", value, "g / n", inputs, SIMULATION)


_ARRIVED = "requests that arrived in the measured time: drawn from the traffic at its peak, or of the trace"
_COUNTED: Mapping[str, Callable[[_Run, Place, float], Explained]] = {
    "requests": _plain("counted", _ARRIVED),
    "measured_from_s": _plain("end of the warm-up", "the run: docs/simulation.md"),
    "measured_until_s": _plain("last arrival, or when the first user found no request left", "the run: docs/simulation.md"),
    "finished": _plain("counted", "requests that got all their tokens"),
    "shed": _plain("counted", "requests that were turned away, or waited beyond their deadline"),
    "unfinished": _plain("counted", "requests still under way at the end"),
    "seconds": _plain("end of the last step", "the run: docs/simulation.md"),
    "preemptions": _plain("counted", "requests that had to give their cache back and start again"),
    "requests_per_s": _per_second,
    "goodput_requests_per_s": _per_second,
    "output_tokens_per_s": _per_second,
    "slo_met_fraction": _met,
    "batch_mean": _plain("mean over the busy time of the replicas", "requests in a replica"),
    "busy_fraction": _plain("time in steps over time, mean of the replicas", "the run"),
    "utilisation_fraction": _plain("offered rate over the largest that the replicas serve", "a closed loop of the same requests"),
}  # fmt: skip
"""Number -> its explanation, of all requests or of a class."""
