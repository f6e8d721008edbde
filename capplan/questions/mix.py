"""Several fleets for one service: each serves some classes, or prompts up to a length, on the GPUs that suit them best."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import inf
from typing import Literal

from capplan.errors import InputError
from capplan.fleet.mix import MOST_CLASSES, Costs, cheapest_division, partitions
from capplan.fleet.plan import FleetAnswer, Mix, MixPart, NoMix, Plan
from capplan.fleet.scenario import MixBy
from capplan.fleet.search.cheapest import Search, Terms, busy_bound
from capplan.fleet.search.layouts import ScreenedLayout, search
from capplan.fleet.search.recommended import confirmed
from capplan.fleet.search.search_cache import SearchCache
from capplan.questions.fleet import AskedFleet, part_of, terms_of
from capplan.workload.request_class import RequestClass
from capplan.workload.split_lengths import below_and_above, thresholds

THRESHOLDS = (0.25, 0.5, 0.75, 0.9, 0.95)
"""Parts of all requests whose longest prompt is tried as a threshold."""

Group = tuple[tuple[str, ...], frozenset[str]]
"""Names of classes, and the devices that another group has."""
Division = tuple[Group, ...]


def mixed(asked: AskedFleet, answer: FleetAnswer, by: MixBy) -> Mix | NoMix:
    """Return the cheapest mix of fleets for the traffic of a scenario, or why one kind serves all requests.

    Parameters
    ----------
    asked : the scenario and its question
    answer : of one kind of fleet for all requests
    by : what the router may look at
    """
    if answer.choices is None:
        return NoMix("no plan of one kind meets the targets", 0)
    single = answer.choices.cheapest.usd_per_hour
    if single is None:
        return NoMix("the plan has no price to compare with: give prices.per_gpu_hour", 0)
    if len(asked.question.devices) < 2:
        return NoMix(f"{asked.question.devices[0].name} is the only kind of GPU listed", 0)
    classes, divisions, cut = _divisions(asked, by)
    if not divisions:
        return NoMix(_undivided(by), 0)
    fleets = _Fleets(asked, classes)
    best = cheapest_division(divisions, Costs(fleets.bound, fleets.cheapest), single)
    if best is None:
        return NoMix("no mix costs less than one kind of fleet", len(divisions))
    groups, plans = best
    threshold = cut.get(groups[0][0][0])
    total = sum(item.request_rate_at() for item in asked.scenario.classes)
    parts = []
    for (names, _), plan in zip(groups, plans, strict=True):
        rate = sum(classes[name].request_rate_at() for name in names)
        words = ", ".join(names) if threshold is None else _rule(names[0], threshold, cut)
        parts.append(MixPart(words, names, rate / total, plan))
    by_what: Literal["classes", "lengths"] = "classes" if threshold is None else "lengths"
    usd = answer.choices.cheapest.usd_per_month or 0.0
    return Mix(by_what, tuple(parts), threshold, usd, len(divisions))


def _rule(name: str, threshold: float, cut: Mapping[str, float]) -> str:
    return f"prompts {'of at most' if cut[name] == threshold and ', up to' in name else 'above'} {threshold:,.0f} tokens"


def _undivided(by: MixBy) -> str:
    """Return why the requests of a scenario cannot be divided."""
    if by == "classes":
        return "all requests are of one class; fleet.mix: lengths divides them by the length of their prompts"
    return "prompts of users, sessions and traces with prefixes stay together, and there is one class"


def _divisions(
    asked: AskedFleet, by: MixBy
) -> tuple[dict[str, RequestClass], list[Division], dict[str, float]]:
    """Return the classes by name, the ways to divide them, and the thresholds of those that are cut by length."""
    whole = asked.scenario.classes
    classes: dict[str, RequestClass] = {f"{item.name}": item for item in whole}
    if len(classes) < len(whole):
        raise InputError(f"{asked.scenario.path}: fleet.mix: classes need names of their own; traffic[].name")
    cut: dict[str, float] = {}
    found: list[tuple[tuple[str, ...], ...]] = []
    if by in ("classes", "any") and 1 < len(whole) <= MOST_CLASSES:
        found += [division for division in partitions(tuple(classes)) if len(division) > 1]
    if by in ("lengths", "any") and all(_divisible(item) for item in whole):
        for tokens in thresholds(whole, THRESHOLDS):
            halves: tuple[list[str], list[str]] = ([], [])
            for item in whole:
                for names, part in zip(halves, below_and_above(item, tokens), strict=True):
                    if part is not None:
                        label = (
                            part.name
                            if part is not item
                            else f"{item.name}, {'up to' if names is halves[0] else 'above'} {tokens:g}"
                        )
                        classes[label], cut[label] = part, tokens
                        names.append(label)
            if all(halves):
                found.append((tuple(halves[0]), tuple(halves[1])))
    limited = [
        name
        for name, price in asked.prices.items()
        if price is not None and any(machine.most is not None for machine in price.machines)
    ]
    divisions: list[Division] = []
    for division in found:
        for owners in product(range(len(division)), repeat=len(limited)):
            elsewhere = [
                frozenset(name for name, owner in zip(limited, owners, strict=True) if owner != place)
                for place in range(len(division))
            ]
            divisions.append(tuple(zip(division, elsewhere, strict=True)))
    return classes, divisions, cut


def _divisible(item: RequestClass) -> bool:
    """Return whether the requests of a class may be divided by length: none of them belongs to another."""
    return item.users is None and item.sessions is None and item.reuse is None


class _Fleets:
    """The cheapest fleet of each group of classes; searches of groups share no runs, as their requests differ."""

    def __init__(self, asked: AskedFleet, classes: Mapping[str, RequestClass]) -> None:
        self._asked, self._classes = asked, classes
        self._searches: dict[tuple[str, ...], tuple[AskedFleet, Sequence[ScreenedLayout], Terms]] = {}

    def _screened(self, names: tuple[str, ...]) -> tuple[AskedFleet, Sequence[ScreenedLayout], Terms]:
        if names not in self._searches:
            part = part_of(self._asked, tuple(self._classes[name] for name in names))
            self._searches[names] = part, search(part.question).candidates, terms_of(part)
        return self._searches[names]

    def bound(self, group: Group) -> float:
        """Return a lower bound on what the cheapest fleet of a group costs per hour, from the closed form."""
        names, elsewhere = group
        part, candidates, terms = self._screened(names)
        confidence = part.question.slo.confidence
        return min(
            (
                terms.least_usd_per_hour(
                    item.layout, terms.least_gpus(item.layout, busy_bound(item, confidence, terms))
                )
                for item in candidates
                if item.layout.device.name not in elsewhere
            ),
            default=inf,
        )

    def cheapest(self, group: Group, most: float) -> tuple[float, Plan] | None:
        """Return the cheapest fleet of a group below a cost per hour, simulated with the requests that it gets."""
        names, elsewhere = group
        part, candidates, terms = self._screened(names)
        allowed = [item for item in candidates if item.layout.device.name not in elsewhere]
        trials = Search(part.question, allowed, terms, SearchCache())
        found = trials.cheapest(part.question.slo.confidence, under=most)
        pair = None if found is None else confirmed(found, terms)
        if pair is None or pair[1].usd_per_hour is None or pair[1].usd_per_hour >= most:
            return None
        return pair[1].usd_per_hour, pair[1]
