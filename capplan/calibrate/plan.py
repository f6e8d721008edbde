"""What a run would measure, how long it would take and how much memory, without running anything."""

from collections.abc import Sequence
from dataclasses import dataclass

from capplan.calibrate.kernels import case_bytes, ways_of
from capplan.calibrate.kernels.arena import drop_arenas
from capplan.calibrate.kernels.case import Case
from capplan.calibrate.machine import Target
from capplan.calibrate.measure import PASSES, budget_of, effort_of_a_pass, peak_bytes, prepared
from capplan.calibrate.shapes import cases, held_out
from capplan.calibrate.timing import FULL, QUICK, WARM_S

BUILD_S = 0.08
"""Estimated time of one case on a card besides its repeats: operands, warm-up, the recording of a graph."""
REPEATS_S = 0.04
"""Estimated time of its repeats where they agree at once."""


@dataclass(frozen=True, slots=True)
class PlannedKind:
    """The shapes of one operator, dtype and library."""

    operator: str
    dtype: str
    library: str
    """Ways that are tried; the quickest of each shape is measured."""
    shapes: int
    held_out: int
    peak_bytes: float
    """Memory of the largest shape, with its rotated operands."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before it starts."""

    kinds: tuple[PlannedKind, ...]
    shapes: int
    seconds: float
    """Estimate, of measuring and without the fit."""
    budget_s: float
    """Time after which measuring ends."""
    peak_bytes: float
    free_bytes: float


def planned_run(target: Target, *, quick: bool, minutes: float | None) -> Plan:
    """Return what `calibrated` would do.

    Parameters
    ----------
    target : the device
    quick : fewer shapes and fewer repeats
    minutes : time budget [min]; None: the default

    Returns
    -------
    kinds of kernels with their shapes, time and memory
    """
    budget_s = budget_of(target, quick=quick, minutes=minutes)
    chosen, seconds = _announced(target, cases(target.abilities, quick=quick), budget_s, quick=quick)
    unseen = held_out(chosen)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place, case in enumerate(chosen):
        groups.setdefault(case.kind, []).append(place)
    kinds = [_kind(target, chosen, places, unseen) for places in groups.values()]
    return Plan(
        tuple(kinds),
        len(chosen),
        min(budget_s, seconds),
        budget_s,
        peak_bytes(chosen, target),
        target.free_bytes,
    )


def _kind(target: Target, chosen: Sequence[Case], places: Sequence[int], unseen: set[int]) -> PlannedKind:
    first = chosen[places[0]]
    ways = dict.fromkeys(name for place in places for name in ways_of(chosen[place], target.abilities))
    largest = max(case_bytes(chosen[place], 0.0) for place in places)
    return PlannedKind(
        first.operator,
        first.dtype,
        ", ".join(ways) or "none",
        len(places),
        len(unseen.intersection(places)),
        largest,
    )


def _announced(
    target: Target, chosen: Sequence[Case], budget_s: float, *, quick: bool
) -> tuple[list[Case], float]:
    """Return what a run would measure of the shapes, and the time for it: on a processor from a few calls of each kind."""
    kind = target.device.type
    each = effort_of_a_pass(chosen, target, QUICK if quick else FULL, budget_s)
    if target.is_cuda:
        repeats_s = min(REPEATS_S, each.seconds)
        return list(chosen), WARM_S + PASSES[kind] * len(chosen) * (BUILD_S + repeats_s)
    known = prepared(chosen, target, each, budget_s)
    drop_arenas()
    return [chosen[place] for place in known.kept], PASSES[kind] * known.pass_s
