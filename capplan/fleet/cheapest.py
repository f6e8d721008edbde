"""The cheapest fleet for a scenario: branch and bound over all layouts, one device type at a time.

Layouts are taken in order of a lower bound on their GPUs, first from the closed form, then from short runs, and simulated
until the bound exceeds the best fleet so far. Device types are independent: one more can only add an answer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, floor, inf

from capplan.errors import Reason, Refusal
from capplan.fleet.candidates import Rejections
from capplan.fleet.content_key import content_key
from capplan.fleet.offered import SamplePath
from capplan.fleet.price import ChosenPrice
from capplan.fleet.search import Question, ScreenedLayout
from capplan.fleet.trial import SeenRuns, Trial, replicas_at
from capplan.workload.slo import Target

SIMULATED = Reason(Refusal.SIMULATION, "misses a target when simulated with the scenario's own lengths")
OVER_BUDGET = Reason(Refusal.BUDGET, "costs more than the budget, or its price is not known")
DEARER = Reason(Refusal.COST, "costs more than another layout of this device")


@dataclass(frozen=True, slots=True)
class Terms:
    """Headroom, spares, prices and size limit of a fleet."""

    headroom_fraction: float
    spare_replicas: int
    prices: Mapping[str, ChosenPrice | None]
    max_devices: int | None = None
    max_usd_per_hour: float | None = None
    """Budget of the whole fleet; devices of unknown price are then left out."""

    def hourly(self, device: str) -> float | None:
        """Return dollars per hour of one device; None if its price is unknown."""
        price = self.prices.get(device)
        return None if price is None else price.total_usd_per_hour

    def most_devices(self, device: str) -> float:
        """Return how many of a device the limits on number and cost allow; infinite without limits."""
        most = inf if self.max_devices is None else float(self.max_devices)
        return min(most, self.affordable_devices(device))

    def affordable_devices(self, device: str) -> float:
        """Return how many of a device the budget pays for; infinite without a budget."""
        if self.max_usd_per_hour is None:
            return inf
        hourly = self.hourly(device)
        return 0.0 if hourly is None else float(floor(self.max_usd_per_hour / hourly + 1e-9))


@dataclass(frozen=True, slots=True)
class Sized:
    """A layout with the number of replicas that meets the targets."""

    trial: Trial
    busy: int
    """Replicas without spares."""
    gpus: int
    """Devices of all replicas, with spares."""


def busy_bound(candidate: ScreenedLayout, confidence: float, terms: Terms) -> float:
    """Return a closed-form lower bound on the replicas that meet the targets with a confidence; infinite if none do."""
    sure = candidate.sure_share_bounds[confidence]
    if sure <= 0.0:
        return inf
    predicted = candidate.share_bound * (1.0 - terms.headroom_fraction)
    return float(max(ceil(1.0 / min(predicted, sure) - 1e-9), 1))


def busy_replicas(
    trial: Trial, limits: Mapping[Target, float], confidence: float, terms: Terms, most: float = inf
) -> int | None:
    """Return the fewest replicas that meet the targets; None if that takes more than `most`.

        n = max(n_1, n_2):   n_1 as predicted, at the peak plus headroom;   n_2 with the confidence, at the peak

    Headroom covers unforeseen traffic, confidence covers replicas that are slower than predicted.

    Parameters
    ----------
    trial : the simulated layout
    limits : of the targets [s]
    confidence : [-]
        required probability that its steps are fast enough
    terms : headroom
    most : [-]
        the largest acceptable number of replicas

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


def _short_bound(trial: Trial, confidence: float, terms: Terms) -> float:
    """Return a lower bound, from short runs, on the replicas that meet the targets; infinite if none do."""
    predicted = trial.rate_bound(1.0, trial.limits) * (1.0 - terms.headroom_fraction)
    sure = trial.rate_bound(trial.candidate.slowness.quantile(confidence), trial.limits)
    limit = min(predicted, sure)
    return replicas_at(trial.total_rate, limit) if limit > 0.0 else inf


Runs = dict[tuple[object, ...], SeenRuns]
"""What was simulated of every layout: questions that differ in targets and prices alone share it."""

Waiting = tuple[float, tuple[str, str, str], bool, ScreenedLayout]
"""Bound, name, whether the bound is from short runs, layout."""


def _one(candidate: ScreenedLayout) -> float:
    del candidate
    return 1.0


class Search:
    """The simulated layouts of a question; each is built once, and its runs are shared by all queries."""

    def __init__(
        self,
        question: Question,
        candidates: Iterable[ScreenedLayout],
        terms: Terms,
        runs: Runs | None = None,
    ) -> None:
        """Take the layouts that passed the screening; `runs` shares what other searches simulated."""
        self.question = question
        self.terms = terms
        self.candidates = tuple(candidates)
        self._trials: dict[int, Trial] = {}
        self._paths: dict[tuple[int, int, float], SamplePath] = {}
        self._runs: Runs = {} if runs is None else runs
        self._keys: dict[str, str] = {}

    def trial(self, candidate: ScreenedLayout) -> Trial:
        """Return the trial of a candidate."""
        if id(candidate) not in self._trials:
            seen = self._runs.setdefault(self._key(candidate), {})
            self._trials[id(candidate)] = Trial(candidate, self.question, self._paths, seen)
        return self._trials[id(candidate)]

    def _key(self, candidate: ScreenedLayout) -> tuple[object, ...]:
        """Return what tells the runs of a layout from those of all others: everything but targets and prices."""
        q, layout, dtype = self.question, candidate.layout, candidate.weight_dtype
        if dtype not in self._keys:
            limits = (q.max_model_len, q.max_num_seqs, q.max_num_batched_tokens, q.gpu_memory_utilization)
            draws = (q.demand, q.routing, q.requests, q.seed, q.drafting)
            self._keys[dtype] = content_key(q.networks[dtype], q.profile, limits, draws)
        name = layout.device.name
        if name not in self._keys:
            self._keys[name] = content_key(layout.device, q.efficiencies[name])
        hits = (candidate.demand.hit_fractions, candidate.demand.load_s)
        return self._keys[dtype], self._keys[name], layout.sharding, layout.kv_format, hits

    def best_of(self, device: str, confidence: float, rejected: Rejections) -> Sized | None:
        """Return the layout of a device that needs the fewest GPUs; None if none meets the targets."""
        most = self.terms.most_devices(device)
        over_budget = most < (self.terms.max_devices or inf)
        waiting = self._bounded(
            (item for item in self.candidates if item.layout.device.name == device), confidence
        )
        best: Sized | None = None
        while waiting:
            bound, candidate = self._next(waiting, confidence)
            allowed = min(best.gpus if best else inf, most)
            sized = self._sized(candidate, confidence, allowed) if bound <= allowed else None
            if sized is not None and (best is None or (sized.gpus, sized.busy) < (best.gpus, best.busy)):
                best = sized
            elif sized is None:
                rejected[device, _too_many(max(bound, allowed), most, over_budget=over_budget)] += 1
            if bound > allowed:
                rejected[device, _too_many(bound, most, over_budget=over_budget)] += len(waiting)
                break
        return best

    def within(self, usd_per_hour: float, confidence: float) -> list[Sized]:
        """Return all layouts that meet the targets for at most this many dollars per hour."""
        affordable = []
        waiting = self._bounded(self.candidates, confidence, self._usd_per_hour)
        while waiting and waiting[0][0] <= usd_per_hour:
            bound, candidate = self._next(waiting, confidence, self._usd_per_hour)
            if bound <= usd_per_hour:
                allowed = floor(usd_per_hour / self._usd_per_hour(candidate) + 1e-9)
                sized = self._sized(candidate, confidence, min(allowed, self._most(candidate)))
                affordable += [sized] if sized else []
        return affordable

    def cheapest(self, confidence: float, under: float = inf) -> Sized | None:
        """Return the cheapest fleet of all devices at a confidence; without any price, the one with the fewest GPUs.

        Of several fleets at the same cost it may be any. Only fleets below the cost `under` are looked for.
        """
        priced = any(self.terms.hourly(item.layout.device.name) is not None for item in self.candidates)
        weight = self._usd_per_hour if priced else _one
        waiting = self._bounded(self.candidates, confidence, weight)
        best: Sized | None = None
        cost = under
        while waiting and waiting[0][0] < cost:
            bound, candidate = self._next(waiting, confidence, weight)
            if bound >= cost:
                continue
            allowed = floor((cost - 1e-9) / weight(candidate)) if cost < inf else inf
            sized = self._sized(candidate, confidence, min(allowed, self._most(candidate)))
            if sized is not None and sized.gpus * weight(candidate) < cost:
                best, cost = sized, sized.gpus * weight(candidate)
        return best

    def _most(self, candidate: ScreenedLayout) -> float:
        return self.terms.most_devices(candidate.layout.device.name)

    def _usd_per_hour(self, candidate: ScreenedLayout) -> float:
        hourly = self.terms.hourly(candidate.layout.device.name)
        return inf if hourly is None else hourly

    def _bounded(
        self,
        candidates: Iterable[ScreenedLayout],
        confidence: float,
        weight: Callable[[ScreenedLayout], float] = _one,
    ) -> list[Waiting]:
        """Return a heap of layouts by the closed-form lower bound on their GPUs, times a weight; finite bounds only."""
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
        """Return the least bound and its layout, once that bound is from short runs."""
        while True:
            bound, name, simulated, item = heappop(waiting)
            if simulated:
                return bound, item
            busy = _short_bound(self.trial(item), confidence, self.terms)
            closer = weight(item) * (busy + self.terms.spare_replicas) * item.layout.devices
            heappush(waiting, (max(bound, closer), name, True, item))

    def _sized(self, candidate: ScreenedLayout, confidence: float, most_gpus: float) -> Sized | None:
        trial, spares = self.trial(candidate), self.terms.spare_replicas
        devices = candidate.layout.devices
        most = floor(most_gpus / devices) - spares if most_gpus < inf else inf
        busy = busy_replicas(trial, trial.limits, confidence, self.terms, most)
        return None if busy is None else Sized(trial, busy, (busy + spares) * devices)


def _name(item: ScreenedLayout) -> tuple[str, str, str]:
    """Return a key that breaks ties, independent of the order of the input."""
    return item.layout.device.name, item.layout.in_words(item.weight_dtype), item.layout.kv_format


def _too_many(gpus: float, most: float, *, over_budget: bool) -> Reason:
    if gpus >= most < inf and over_budget:
        return OVER_BUDGET
    if gpus >= most < inf:
        return Reason(Refusal.FLEET_SIZE, f"needs more than the {most:.0f} devices allowed")
    return SIMULATED if gpus == inf else DEARER
