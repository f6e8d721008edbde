"""The cheapest fleet for a scenario: branch and bound over all layouts, one device type at a time.

Layouts are taken in order of a lower bound on their GPUs, first from the closed form, then from short runs, and simulated
until the bound exceeds the best fleet so far. Device types are independent: one more can only add an answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import ceil, floor, inf

from capplan.errors import Reason, Refusal
from capplan.fleet.review import Question
from capplan.fleet.search.candidates import Layout, Rejections
from capplan.fleet.search.layouts import ScreenedLayout
from capplan.fleet.search.load_scale import replicas_at
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.search.simulated_layout import SamplePaths
from capplan.fleet.search.trial import Trial, limits_by_latency
from capplan.money.order import Order, Survival, most_busy_for
from capplan.money.price import ChosenPrice
from capplan.workload.request_class import Target

SIMULATED = Reason(Refusal.SIMULATION, "misses a target when simulated with the scenario's own lengths")
OVER_BUDGET = Reason(Refusal.BUDGET, "costs more than the budget, or its price is not known")
UNHELD = Reason(Refusal.MACHINES, "no machine that may be ordered holds a replica")
TOO_FEW_MACHINES = Reason(Refusal.MACHINES, "needs more machines than fleet.max_machines and fleet.own allow")
DEARER = Reason(Refusal.COST, "another layout of this GPU costs no more")


@dataclass(frozen=True, slots=True)
class Terms:
    """Headroom, what may fail, prices and size limit of a fleet."""

    headroom_fraction: float
    survive: Survival
    prices: Mapping[str, ChosenPrice | None]
    max_devices: int | None = None
    max_usd_per_hour: float | None = None
    """Budget of the whole fleet; devices of unknown price are then left out."""

    def priced(self, device: str) -> bool:
        """Return whether the price of a device is known."""
        return self.prices.get(device) is not None

    def of_a_part(self) -> "Terms":
        """Return the terms of one pool by itself, which shares what is sold in lots with the other."""
        return replace(
            self, prices={name: price and price.by_the_machine() for name, price in self.prices.items()}
        )

    def is_unlisted(self, layout: Layout) -> bool:
        """Return whether no list states a machine for a replica of a layout, and the scenario states no price of its own."""
        price = self.prices.get(layout.device.name)
        return price is None or (bool(price.records) and price.is_by_the_gpu(layout.devices))

    def listed(self, candidates: Sequence[ScreenedLayout]) -> list[ScreenedLayout]:
        """Return the candidates that can be ordered; all of them if none can be."""
        able = [item for item in candidates if not self.is_unlisted(item.layout)]
        return able or list(candidates)

    def spares(self, layout: Layout, busy: int) -> int:
        """Return the spare replicas in addition to those that carry the peak: what the domains hold that may fail."""
        price = self.prices.get(layout.device.name)
        if price is None:
            return self.survive.least_spares(busy)
        return price.spares(layout.devices, layout.device.node_devices, busy, self.survive)

    def sized(self, trial: Trial, busy: int) -> "Sized":
        """Return a layout with some replicas that carry the peak."""
        return Sized(trial, busy, self.gpus(trial.candidate.layout, busy))

    def gpus(self, layout: Layout, busy: int) -> int:
        """Return the GPUs of some replicas that carry the peak and of their spares."""
        return (busy + self.spares(layout, busy)) * layout.devices

    def least_gpus(self, layout: Layout, busy: float) -> float:
        """Return a lower bound on the GPUs of these replicas and of their spares."""
        return inf if busy == inf else (busy + self.survive.least_spares(ceil(busy))) * layout.devices

    def usd_per_hour(self, layout: Layout, busy: float) -> float | None:
        """Return what the machines of some replicas and of their spares cost per hour; None if the price is unknown, infinite without machines for them."""
        price = self.prices.get(layout.device.name)
        if price is None:
            return None
        if busy == inf:
            return inf
        node = layout.device.node_devices
        return price.order_usd_per_hour(layout.devices, node, int(busy), survive=self.survive)

    def order(self, layout: Layout, busy: int) -> Order | None:
        """Return the machines of some replicas and of their spares; None without a price."""
        price, node = self.prices.get(layout.device.name), layout.device.node_devices
        return None if price is None else price.order(layout.devices, node, busy, self.survive)

    def least_usd_per_hour(self, layout: Layout, gpus: float) -> float:
        """Return a lower bound on what any machines with this many used GPUs cost per hour; infinite without a price."""
        price = self.prices.get(layout.device.name)
        if price is None or gpus == inf:
            return inf
        return price.least_usd_per_hour(layout.devices, layout.device.node_devices, gpus)

    def machine_usd_per_hour(self, device: str) -> float:
        """Return the price of the cheapest machine of a device that is to be paid; zero if the device is sold by the GPU."""
        price = self.prices.get(device)
        paid = [item.usd_per_hour for item in price.machines if item.usd_per_hour > 0.0] if price else []
        return min(paid, default=0.0)

    def most_busy(self, layout: Layout, usd_per_hour: float) -> float:
        """Return the most replicas in addition to the spares that some dollars per hour pay for."""
        price = self.prices.get(layout.device.name)
        if price is None:
            return 0.0
        if usd_per_hour == inf:
            return self.orderable_busy(layout)
        if price.is_by_the_gpu(layout.devices):
            return self.busy_within(layout, floor(usd_per_hour / price.total_usd_per_hour + 1e-9))

        def cost(busy: int) -> float:
            usd = self.usd_per_hour(layout, busy)
            return inf if usd is None else usd

        return most_busy_for(cost, usd_per_hour + 1e-9)

    def busy_within(self, layout: Layout, gpus: float) -> float:
        """Return an upper bound on the replicas in addition to the spares that so many GPUs hold; infinite for any number."""
        return inf if gpus == inf else float(self.survive.most_busy(int(gpus // layout.devices)))

    def busy_allowed(self, layout: Layout) -> float:
        """Return an upper bound on the replicas of a layout in addition to the spares that the limits on number and cost allow."""
        most = inf if self.max_devices is None else self.busy_within(layout, self.max_devices)
        return min(most, self.orderable_busy(layout), self.affordable_busy(layout))

    def orderable_busy(self, layout: Layout) -> float:
        """Return how many replicas in addition to the spares the machines hold that may be ordered; infinite without a limit."""
        price = self.prices.get(layout.device.name)
        node = layout.device.node_devices
        return inf if price is None else price.most_busy(layout.devices, node, self.survive)

    def affordable_busy(self, layout: Layout) -> float:
        """Return how many replicas of a layout in addition to the spares the budget pays for; infinite without a budget."""
        if self.max_usd_per_hour is None:
            return inf
        return self.most_busy(layout, self.max_usd_per_hour)

    def too_large(self, layout: Layout, busy: int) -> bool:
        """Return whether some replicas with their spares have more GPUs than the limit on number allows."""
        return self.max_devices is not None and self.gpus(layout, busy) > self.max_devices


@dataclass(frozen=True, slots=True)
class Sized:
    """A layout with the number of replicas that meets the targets."""

    trial: Trial
    busy: int
    """Replicas without spares."""
    gpus: int
    """Devices of all replicas, with spares."""

    @property
    def layout(self) -> Layout:
        """Layout of one replica."""
        return self.trial.candidate.layout

    @property
    def hardware(self) -> str:
        """Name of the device."""
        return self.layout.device.name


def busy_bound(candidate: ScreenedLayout, confidence: float, terms: Terms) -> float:
    """Return a closed-form lower bound on the replicas that meet the targets with a confidence; infinite if none do."""
    sure = candidate.sure_share_bounds[confidence]
    if sure <= 0.0:
        return inf
    predicted = candidate.share_bound * (1.0 - terms.headroom_fraction)
    return float(max(ceil(1.0 / min(predicted, sure) - 1e-9), 1))


def busy_replicas(
    trial: Trial,
    limits: Mapping[Target, float],
    confidence: float,
    terms: Terms,
    most: float = inf,
    traffic_ratio: float = 1.0,
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
    traffic_ratio : [-]
        multiple of the traffic of the trial

    Returns
    -------
    [-]
        n
    """
    total = trial.total_rate * traffic_ratio
    predicted = trial.replicas_for(total / (1.0 - terms.headroom_fraction), 1.0, limits, most=most)
    if predicted is None:
        return None
    return trial.sure_replicas(total, confidence, limits, most=most, at_least=predicted)


def _may_be_enough(trial: Trial, confidence: float, terms: Terms, most: float, *, short: bool) -> bool:
    """Return whether at most this many replicas may meet the targets: those of each latency as slow as the confidence says, and all as predicted."""
    total, slower = trial.total_rate, trial.candidate.slowness.each(confidence)
    asked: list[tuple[float, float, Mapping[Target, float]]] = [
        (total / (1.0 - terms.headroom_fraction), 1.0, trial.limits),
        *((total, slower[name], own) for name, own in limits_by_latency(trial.limits).items()),
    ]
    heaviest_first = sorted(asked, key=lambda item: -item[0] * item[1])  # which decides about the others
    return all(trial.may_be_enough(*item, most, short=short) for item in heaviest_first)


def _short_bound(trial: Trial, confidence: float, terms: Terms, most: float) -> float:
    """Return a lower bound, from short runs, on the replicas that meet the targets; infinite if none do.

    Where only some number is of use, one run tells whether it may be enough, and the bound is a single replica.
    """
    left = 1.0 - terms.headroom_fraction
    if most < inf:
        return 1.0 if _may_be_enough(trial, confidence, terms, most, short=True) else inf
    total, slower = trial.total_rate, trial.candidate.slowness.each(confidence)
    predicted = trial.rate_bound(1.0, trial.limits, total=total / left)
    if predicted <= 0.0:
        return inf
    needed = replicas_at(total / left, predicted)
    for name, own in limits_by_latency(trial.limits).items():
        sure = trial.rate_bound(slower[name], own, enough=total / needed, total=total, predicted=predicted)
        if sure <= 0.0:
            return inf
        needed = max(needed, replicas_at(total, sure))
    return needed


LayoutName = tuple[str, str, str]
"""Device, layout and weight dtype in words, KV dtype."""
Waiting = tuple[float, LayoutName, bool, ScreenedLayout]
"""Bound, name, whether the bound is from short runs, layout."""


class Search:
    """The simulated layouts of a question; each is built once, and its runs are shared by all queries."""

    def __init__(
        self,
        question: Question,
        candidates: Iterable[ScreenedLayout],
        terms: Terms,
        cache: SearchCache | None = None,
    ) -> None:
        """Take the layouts that passed the screening; `cache` holds what other searches simulated."""
        self.question = question
        self.terms = terms
        self.candidates = tuple(candidates)
        self._trials: dict[int, Trial] = {}
        self._sizes: dict[tuple[int, float], Sized] = {}
        self._least_busy: dict[int, dict[float, float]] = {}
        """Lower bounds on the replicas of layouts that short runs gave, by confidence."""
        self._paths: SamplePaths = {}
        self.cache = cache or SearchCache()

    def trial(self, candidate: ScreenedLayout) -> Trial:
        """Return the trial of a candidate."""
        if id(candidate) not in self._trials:
            self._trials[id(candidate)] = self.cache.trial(candidate, self.question, self._paths)
        return self._trials[id(candidate)]

    def of(self, device: str) -> list[ScreenedLayout]:
        """Return the layouts of a device."""
        return [item for item in self.candidates if item.layout.device.name == device]

    def among(self, candidates: Iterable[ScreenedLayout]) -> "Search":
        """Return the search among some layouts, which shares all runs."""
        return Search(self.question, candidates, self.terms, self.cache)

    def best_of(self, device: str, confidence: float, rejected: Rejections) -> Sized | None:
        """Return the layout of a device that costs least, of equal ones the one with the fewest GPUs; None if none meets the targets.

        Without a price it is the one with the fewest GPUs.
        """
        priced = self.terms.priced(device)
        waiting = self._bounded(self.of(device), confidence, priced=priced)
        best: Sized | None = None
        cost = self._limit(priced=priced)

        def allowed(candidate: ScreenedLayout) -> float:
            within = self._busy_within(candidate, cost, priced=priced) if best else inf
            return min(within, self._most(candidate))

        def as_few(candidate: ScreenedLayout) -> float:
            return allowed(candidate) if best else inf

        while waiting:
            bound, candidate = self._next(waiting, confidence, as_few, cost if best else 0.0, priced=priced)
            sized = self._sized(candidate, confidence, allowed(candidate)) if bound <= cost else None
            if sized is not None and (
                best is None or self._rank(sized, priced=priced) < self._rank(best, priced=priced)
            ):
                best, cost = sized, self._cost(sized, priced=priced)
            elif sized is None:
                rejected[device, self._too_many(candidate, best)] += 1
            if bound > cost:
                rejected[device, self._too_many(candidate, best)] += len(waiting)
                break
        return best

    def _too_many(self, candidate: ScreenedLayout, best: Sized | None) -> Reason:
        """Return why a layout is not the best of its device: a limit, no number of replicas, or its cost."""
        terms, layout = self.terms, candidate.layout
        allowed = inf if terms.max_devices is None else float(terms.max_devices)
        held = self._gpus_of(layout, terms.orderable_busy(layout))
        most = min(allowed, held, self._gpus_of(layout, terms.affordable_busy(layout)))
        needed = most if best is None else min(best.gpus, most)
        if needed >= most < inf:
            if most < held and most < allowed:
                return OVER_BUDGET
            if most < allowed:
                return UNHELD if most == 0.0 else TOO_FEW_MACHINES
            return Reason(Refusal.FLEET_SIZE, f"needs more than the {most:.0f} devices allowed")
        return SIMULATED if best is None else DEARER

    def as_many(self, fleet: Sized, confidence: float) -> list[Sized]:
        """Return all layouts of a device known to cost as much as its best with as many GPUs: `best_of` has sized every one of them."""
        priced = self.terms.priced(fleet.hardware)
        cost = self._cost(fleet, priced=priced)
        return [
            other
            for (_, sure), other in self._sizes.items()
            if sure == confidence
            and (other.hardware, other.gpus) == (fleet.hardware, fleet.gpus)
            and abs(self._cost(other, priced=priced) - cost) <= 1e-9 * cost
        ]

    def least_usd_per_hour(self, device: str, confidence: float) -> float:
        """Return a closed-form lower bound on the cost of any fleet of a device [$/h]; infinite without a layout, zero without a price."""
        mine = self.of(device)
        if mine and not self.terms.priced(device):
            return 0.0
        return min((bound for bound, *_ in self._bounded(mine, confidence)), default=inf)

    def within(self, usd_per_hour: float, confidence: float) -> list[Sized]:
        """Return all layouts that meet the targets for at most this many dollars per hour."""
        affordable = []

        def allowed(candidate: ScreenedLayout) -> float:
            return min(self._busy_within(candidate, usd_per_hour), self._most(candidate))

        waiting = self._bounded(self.candidates, confidence)
        while waiting and waiting[0][0] <= usd_per_hour:
            bound, candidate = self._next(waiting, confidence, allowed, usd_per_hour)
            if bound <= usd_per_hour:
                sized = self._sized(candidate, confidence, allowed(candidate))
                affordable += [sized] if sized else []
        return affordable

    def cheapest(
        self, confidence: float, under: float = inf, likely: LayoutName | None = None
    ) -> Sized | None:
        """Return the cheapest fleet of all devices at a confidence; without any price, the one with the fewest GPUs.

        Of several fleets at the same cost it may be any. Only fleets below the cost `under` are looked for. The `likely`
        layout is sized first: what cannot cost less than it is left out sooner.
        """
        priced = any(self.terms.priced(candidate.layout.device.name) for candidate in self.candidates)
        waiting = self._bounded(self.candidates, confidence, first=likely, priced=priced)
        best: Sized | None = None
        cost = under

        def allowed(candidate: ScreenedLayout) -> float:
            return min(self._busy_within(candidate, cost - 1e-9, priced=priced), self._most(candidate))

        while waiting and waiting[0][0] < cost:
            bound, candidate = self._next(
                waiting, confidence, allowed, cost if cost < inf else 0.0, priced=priced
            )
            sized = self._sized(candidate, confidence, allowed(candidate)) if bound < cost else None
            if sized is not None and (mine := self._cost(sized, priced=priced)) < cost:
                best, cost = sized, mine
        return best

    def cheapest_paid(
        self,
        confidence: float,
        least: Callable[[ScreenedLayout], float],
        paid: Callable[[Sized], float],
        under: float = inf,
    ) -> tuple[Sized, float] | None:
        """Return the fleet that costs least below `under`, and that cost, where it does not follow only from its devices.

        Parameters
        ----------
        confidence : [-]
        least : lower bound on the cost of any fleet of a layout
        paid : cost of a fleet
        under : in the unit of both; only cheaper fleets are looked for
        """
        best: tuple[Sized, float] | None = None
        bounds = [
            (least(candidate), layout_name(candidate.layout), candidate) for candidate in self.candidates
        ]
        for bound, _, candidate in sorted(bounds, key=lambda item: item[:2]):
            if bound >= under:
                break
            sized = self._sized(candidate, confidence, self._most(candidate))
            if sized is not None and (cost := paid(sized)) < under:
                best, under = (sized, cost), cost
        return best

    def _most(self, candidate: ScreenedLayout) -> float:
        return self.terms.busy_allowed(candidate.layout)

    def _gpus_of(self, layout: Layout, busy: float) -> float:
        """Return the GPUs of a number of busy replicas with their spares; 0 if that number is below one."""
        return 0.0 if busy < 1.0 else self.terms.least_gpus(layout, busy)

    def _limit(self, *, priced: bool) -> float:
        """Return the cost that no fleet within the limits exceeds: dollars per hour, or GPUs. A number of GPUs bounds no dollars."""
        terms = self.terms
        if terms.max_usd_per_hour is not None:
            return terms.max_usd_per_hour * (1.0 + 1e-9) if priced else 0.0
        return inf if priced or terms.max_devices is None else float(terms.max_devices)

    def _cost(self, sized: Sized, *, priced: bool) -> float:
        """Return dollars per hour, or GPUs."""
        if not priced:
            return float(sized.gpus)
        usd = self.terms.usd_per_hour(sized.layout, sized.busy)
        return inf if usd is None else usd

    def _rank(self, sized: Sized, *, priced: bool) -> tuple[float, int, int]:
        return self._cost(sized, priced=priced), sized.gpus, sized.busy

    def _least(self, candidate: ScreenedLayout, gpus: float, *, priced: bool) -> float:
        """Return a lower bound on the cost of this many GPUs of a layout: dollars per hour, or GPUs."""
        return self.terms.least_usd_per_hour(candidate.layout, gpus) if priced else gpus

    def _busy_within(self, candidate: ScreenedLayout, cost: float, *, priced: bool = True) -> float:
        """Return the most replicas in addition to the spares that a cost pays for: dollars per hour, or GPUs."""
        layout = candidate.layout
        return self.terms.most_busy(layout, cost) if priced else self.terms.busy_within(layout, cost)

    def _bounded(
        self,
        candidates: Iterable[ScreenedLayout],
        confidence: float,
        first: LayoutName | None = None,
        *,
        priced: bool = True,
    ) -> list[Waiting]:
        """Return a heap of layouts by a lower bound on their cost from the closed form; finite bounds only.

        The layout that is to come `first` has a bound of zero.
        """
        waiting = []
        for candidate in candidates:
            name = layout_name(candidate.layout)
            busy = max(busy_bound(candidate, confidence, self.terms), self._known_busy(candidate, confidence))
            bound = self._least(candidate, self.terms.least_gpus(candidate.layout, busy), priced=priced)
            if bound < inf:
                waiting.append(
                    (0.0, name, True, candidate) if name == first else (bound, name, False, candidate)
                )
        heapify(waiting)
        return waiting

    def _next(
        self,
        waiting: list[Waiting],
        confidence: float,
        allowed: Callable[[ScreenedLayout], float],
        below: float,
        *,
        priced: bool = True,
    ) -> tuple[float, ScreenedLayout]:
        """Return the least bound and its layout, once that bound is from short runs; infinite above the allowed replicas.

        Layouts with a bound `below` a cost need short runs too, so their replicas are built together with the first one.
        """
        while True:
            bound, name, simulated, candidate = heappop(waiting)
            if simulated:
                return bound, candidate
            most = allowed(candidate)
            busy = inf
            if most >= 1.0 and self._known_busy(candidate, confidence) <= most:
                if id(candidate) not in self._trials:
                    self._build(candidate, waiting, below)
                busy = _short_bound(self.trial(candidate), confidence, self.terms, most)
                least = floor(most) + 1.0 if busy == inf and most < inf else busy
                self._least_busy.setdefault(id(candidate), {})[confidence] = least
            gpus = self.terms.least_gpus(candidate.layout, busy)
            closer = self._least(candidate, gpus, priced=priced)
            heappush(waiting, (max(bound, closer), name, True, candidate))

    def _build(self, candidate: ScreenedLayout, waiting: Sequence[Waiting], below: float) -> None:
        """Build the replica of a layout, and with it those of layouts that wait with a bound below a cost."""
        others = [item for bound, _, simulated, item in waiting if bound < below and not simulated]
        self.cache.build(
            [candidate, *(item for item in others if id(item) not in self._trials)], self.question
        )

    def _known_busy(self, candidate: ScreenedLayout, confidence: float) -> float:
        """Return a lower bound on replicas from short runs at this confidence or at lower ones, which never take more replicas."""
        known = self._least_busy.get(id(candidate), {})
        return max((busy for sure, busy in known.items() if sure <= confidence), default=1.0)

    def sized(self, candidate: ScreenedLayout, confidence: float) -> Sized | None:
        """Return the fewest replicas of a layout that meet the targets with a probability; None if no number does."""
        return self._sized(candidate, confidence, inf)

    def _sized(self, candidate: ScreenedLayout, confidence: float, most: float) -> Sized | None:
        known = id(candidate), confidence
        if known not in self._sizes:
            trial = self.trial(candidate)
            if most < 1.0 or not _may_be_enough(trial, confidence, self.terms, most, short=False):
                return None
            busy = busy_replicas(trial, trial.limits, confidence, self.terms, most)
            if busy is None:
                return None
            self._sizes[known] = self.terms.sized(trial, busy)
        sized = self._sizes[known]
        if sized.busy > most or self.terms.too_large(candidate.layout, sized.busy):
            return None
        return sized


def search_of(question: Question, terms: Terms, cache: SearchCache | None = None) -> Search:
    """Return the search among all layouts of a question that can be ordered."""
    cache = cache or SearchCache()
    return Search(question, terms.listed(cache.searched(question).candidates), terms, cache)


def layout_name(layout: Layout) -> LayoutName:
    """Return a key that breaks ties, independent of the order of the input."""
    return layout.device.name, layout.in_words(), layout.kv_format
