"""What a run would measure, how long it would take and how much memory, without running anything."""

from collections.abc import Sequence
from dataclasses import dataclass

from capplan.calibrate.kernels import case_bytes, ways_of
from capplan.calibrate.kernels.case import Case
from capplan.calibrate.machine import Target
from capplan.calibrate.measure import PASSES, budget_of, peak_bytes
from capplan.calibrate.shapes import cases, held_out
from capplan.calibrate.timing import FULL, QUICK
from capplan.calibrate.warmup import WARM_S

BUILD_S = {"cuda": 0.08, "cpu": 0.05}
"""Estimated time of one case besides its repeats: operands, warm-up, the recording of a graph."""
REPEATS_S = {"cuda": 0.04, "cpu": 0.0}
"""Estimated time of its repeats where they agree at once; 0: they fill their time."""


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
    """Of the largest shape, with its rotated operands."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run before it starts."""

    kinds: tuple[PlannedKind, ...]
    shapes: int
    seconds: float
    """Estimate, of measuring and without the fit."""
    budget_s: float
    """After which measuring ends."""
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
    chosen = cases(target.abilities, quick=quick)
    budget_s = budget_of(target, quick=quick, minutes=minutes)
    unseen = held_out(chosen)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place, case in enumerate(chosen):
        groups.setdefault(case.kind, []).append(place)
    kinds = [_kind(target, chosen, places, unseen) for places in groups.values()]
    return Plan(
        tuple(kinds),
        len(chosen),
        min(budget_s, _expected_s(target, chosen, budget_s, quick=quick)),
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


def _expected_s(target: Target, chosen: Sequence[Case], budget_s: float, *, quick: bool) -> float:
    kind = target.device.type
    effort = QUICK if quick else FULL
    each_s = min(effort.seconds, 0.6 * budget_s / len(chosen)) / PASSES[kind]
    repeats_s = min(REPEATS_S[kind] or each_s, each_s)
    warm_s = WARM_S if target.is_cuda else 0.0
    return warm_s + PASSES[kind] * len(chosen) * (BUILD_S[kind] + repeats_s)
