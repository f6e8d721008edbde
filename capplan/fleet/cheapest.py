"""The cheapest fleet for a scenario: branch and bound over all layouts, each device by itself.

Layouts are simulated in the order of a lower bound of their GPUs, first by the closed form, then by short runs, until the bound is
above what was found. Devices do not look at each other: one more device can only add an answer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, floor, inf

from capplan.errors import Reason, Refusal
from capplan.fleet.candidates import Rejections
from capplan.fleet.offered import SamplePath
from capplan.fleet.price import ChosenPrice
from capplan.fleet.search import Question, ScreenedLayout
from capplan.fleet.trial import Trial, replicas_at
from capplan.workload.slo import Target

SIMULATED = Reason(Refusal.SIMULATION, "misses a target when simulated with the scenario's own lengths")
DEARER = Reason(Refusal.COST, "costs more than another layout of this device")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a fleet must leave free, and what it may cost."""

    headroom_fraction: float
    spare_replicas: int
    prices: Mapping[str, ChosenPrice | None]
    max_devices: int | None = None

    def hourly(self, device: str) -> float | None:
        """Return dollars per hour of one device; None where no price is known."""
        price = self.prices.get(device)
        return None if price is None else price.total_usd_per_hour


@dataclass(frozen=True, slots=True)
class Sized:
    """A layout with the replicas that hold the targets."""

    trial: Trial
    busy: int
    """Replicas, spares not counted."""
    gpus: int
    """Spares included."""


def busy_bound(candidate: ScreenedLayout, confidence: float, terms: Terms) -> float:
    """Return replicas below which a layout cannot hold the targets with a confidence, by the closed form; infinite where never."""
    sure = candidate.sure_share_bounds[confidence]
    if sure <= 0.0:
        return inf
    predicted = candidate.share_bound * (1.0 - terms.headroom_fraction)
    return float(max(ceil(1.0 / min(predicted, sure) - 1e-9), 1))


def busy_replicas(
    trial: Trial, limits: Mapping[Target, float], confidence: float, terms: Terms, most: float = inf
) -> int | None:
    """Return the fewest replicas that hold the targets; None where it takes more than `most`.

        n = max(n_1, n_2):   n_1 by the prediction, with headroom;   n_2 with the confidence, at the peak itself

    Headroom is for traffic that nobody foresaw, confidence for replicas that are slower than predicted.

    Parameters
    ----------
    trial : layout that is simulated
    limits : of the targets [s]
    confidence : [-]
        that its steps are fast enough
    terms : headroom
    most : [-]
        replicas beyond which nobody is interested

    Returns
    -------
    [-]
        n
    """
    total = trial.total_rate
    predicted = trial.replicas_for(total / (1.0 - terms.headroom_fraction), 1.0, limits, most=most)
    if predicted is None:
        return None
    slower = trial.candidate.slowness.quantile(confidence)
    return trial.replicas_for(total, slower, limits, most=most, at_least=predicted)


def short_bound(trial: Trial, confidence: float, terms: Terms) -> float:
    """Return replicas below which a layout cannot hold the targets, by short runs; infinite where never."""
    predicted = trial.rate_bound(1.0, trial.limits) * (1.0 - terms.headroom_fraction)
    sure = trial.rate_bound(trial.candidate.slowness.quantile(confidence), trial.limits)
    limit = min(predicted, sure)
    return replicas_at(trial.total_rate, limit) if limit > 0.0 else inf


Waiting = tuple[float, tuple[str, str, str], bool, ScreenedLayout]
"""Bound, name, whether the bound is one by short runs, layout."""


def _one(candidate: ScreenedLayout) -> float:
    del candidate
    return 1.0


class Search:
    """The simulated layouts of a question; each is built and simulated once, whatever is asked of it."""

    def __init__(self, question: Question, candidates: Iterable[ScreenedLayout], terms: Terms) -> None:
        """Take what the screening left."""
        self.question = question
        self.terms = terms
        self.candidates = tuple(candidates)
        self._trials: dict[int, Trial] = {}
        self._paths: dict[tuple[int, int, float], SamplePath] = {}

    def trial(self, candidate: ScreenedLayout) -> Trial:
        """Return the trial of a candidate."""
        if id(candidate) not in self._trials:
            self._trials[id(candidate)] = Trial(candidate, self.question, self._paths)
        return self._trials[id(candidate)]

    def best_of(self, device: str, confidence: float, rejected: Rejections) -> Sized | None:
        """Return the layout of a device that needs the fewest GPUs; None where none holds the targets."""
        most = self.terms.max_devices or inf
        waiting = self._bounded(
            (item for item in self.candidates if item.layout.device.name == device), confidence
        )
        best: Sized | None = None
        while waiting:
            bound, candidate = self._next(waiting, confidence)
            allowed = min(best.gpus if best else inf, most)
            found = self._sized(candidate, confidence, allowed) if bound <= allowed else None
            if found is not None and (best is None or (found.gpus, found.busy) < (best.gpus, best.busy)):
                best = found
            elif found is None:
                rejected[device, _too_many(max(bound, allowed), most)] += 1
            if bound > allowed:
                rejected[device, _too_many(bound, most)] += len(waiting)
                break
        return best

    def within(self, usd_per_hour: float, confidence: float) -> list[Sized]:
        """Return all layouts that hold the targets for so many dollars per hour."""
        sized = []
        waiting = self._bounded(self.candidates, confidence, self._usd_per_hour)
        while waiting and waiting[0][0] <= usd_per_hour:
            bound, candidate = self._next(waiting, confidence, self._usd_per_hour)
            if bound <= usd_per_hour:
                allowed = floor(usd_per_hour / self._usd_per_hour(candidate) + 1e-9)
                found = self._sized(candidate, confidence, min(allowed, self.terms.max_devices or inf))
                sized += [found] if found else []
        return sized

    def cheapest(self, confidence: float) -> Sized | None:
        """Return the cheapest fleet of all devices at a confidence; the one with the fewest GPUs where nothing has a price.

        The cost alone is certain: of several that cost the same it is any.
        """
        priced = any(self.terms.hourly(item.layout.device.name) is not None for item in self.candidates)
        weight = self._usd_per_hour if priced else _one
        waiting = self._bounded(self.candidates, confidence, weight)
        best: Sized | None = None
        cost = inf
        while waiting and waiting[0][0] < cost:
            bound, candidate = self._next(waiting, confidence, weight)
            if bound >= cost:
                continue
            allowed = floor((cost - 1e-9) / weight(candidate)) if cost < inf else inf
            found = self._sized(candidate, confidence, min(allowed, self.terms.max_devices or inf))
            if found is not None and found.gpus * weight(candidate) < cost:
                best, cost = found, found.gpus * weight(candidate)
        return best

    def _usd_per_hour(self, candidate: ScreenedLayout) -> float:
        hourly = self.terms.hourly(candidate.layout.device.name)
        return inf if hourly is None else hourly

    def _bounded(
        self,
        candidates: Iterable[ScreenedLayout],
        confidence: float,
        weight: Callable[[ScreenedLayout], float] = _one,
    ) -> list[Waiting]:
        """Return layouts in the order of a lower bound of their GPUs, by closed forms, times a weight; those without hope left out."""
        spares = self.terms.spare_replicas
        waiting = [
            (
                weight(item) * (busy_bound(item, confidence, self.terms) + spares) * item.layout.devices,
                _name(item),
                False,
                item,
            )
            for item in candidates
        ]
        kept = [entry for entry in waiting if entry[0] < inf]
        heapify(kept)
        return kept

    def _next(
        self, waiting: list[Waiting], confidence: float, weight: Callable[[ScreenedLayout], float] = _one
    ) -> tuple[float, ScreenedLayout]:
        """Return the layout with the least bound, once that bound is one by short runs, and the bound."""
        while True:
            bound, name, simulated, item = heappop(waiting)
            if simulated:
                return bound, item
            busy = short_bound(self.trial(item), confidence, self.terms)
            closer = weight(item) * (busy + self.terms.spare_replicas) * item.layout.devices
            heappush(waiting, (max(bound, closer), name, True, item))

    def _sized(self, candidate: ScreenedLayout, confidence: float, most_gpus: float) -> Sized | None:
        trial, spares = self.trial(candidate), self.terms.spare_replicas
        devices = candidate.layout.devices
        most = floor(most_gpus / devices) - spares if most_gpus < inf else inf
        busy = busy_replicas(trial, trial.limits, confidence, self.terms, most)
        return None if busy is None else Sized(trial, busy, (busy + spares) * devices)


def _name(item: ScreenedLayout) -> tuple[str, str, str]:
    """Return what orders equals, whatever order they were listed in."""
    return item.layout.device.name, item.layout.in_words(item.weight_dtype), item.layout.kv_format


def _too_many(gpus: float, most: float) -> Reason:
    if gpus >= most < inf:
        return Reason(Refusal.FLEET_SIZE, f"needs more than the {most:.0f} devices allowed")
    return SIMULATED if gpus == inf else DEARER
