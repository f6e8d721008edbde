"""Several fleets for one service: each serves some classes, prompts up to a length, or a share, on the GPUs that suit them best."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from math import inf
from typing import TypeVar

import numpy as np

from capplan.accuracy.bounded import BoundedSpread
from capplan.errors import InputError
from capplan.fleet.decision import SUREST_WITHIN
from capplan.fleet.load.demand import Demand
from capplan.fleet.load.waits import waits_of
from capplan.fleet.mix import MOST_CLASSES, Costs, cheapest_division, partitions
from capplan.fleet.order import OWN, Machine, units_of
from capplan.fleet.plan import (
    Certainty,
    Choices,
    FleetAnswer,
    Mix,
    NoMix,
    Plan,
    RoutedRequests,
    whole_gpus,
)
from capplan.fleet.pools.order import with_machines
from capplan.fleet.price import HOURS_PER_MONTH, usd_per_million_tokens
from capplan.fleet.scenario import MixBy
from capplan.fleet.search.cheapest import Search, Terms, busy_bound
from capplan.fleet.search.layouts import ScreenedLayout, search
from capplan.fleet.search.recommended import confirmed
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.unit_costs import unit_costs_at_mean
from capplan.frozen import frozen
from capplan.numbers import Spread
from capplan.questions.fleet import AskedFleet, part_of, terms_of
from capplan.serving.outcome import SeenByUsers
from capplan.workload.multiples import (
    below_and_above,
    dealt_by_share,
    divisible,
    part_of_classes,
    share_of,
    thresholds,
    users_of_share,
)
from capplan.workload.request_class import RequestClass, outside_use

THRESHOLDS = (0.25, 0.5, 0.75, 0.9, 0.95)
"""Parts of all requests whose longest prompt is tried as a threshold."""

LAST_REPLICAS = 3
"""Replicas, or machines, of the cheapest fleet of a device whose place other devices are tried in."""

_Spread = TypeVar("_Spread", Spread[float], BoundedSpread)

Group = tuple[tuple[str, ...], frozenset[str]]
"""Labels of parts of classes, and the devices that another group has."""
Division = tuple[Group, ...]


@frozen
class _Part:
    """The requests of one class that a group gets."""

    requests: RequestClass
    """These requests, as a class."""
    name: str
    """Name of the whole class."""
    above_tokens: float | None = None
    up_to_tokens: float | None = None
    share: float | None = None


def with_mix(asked: AskedFleet, answer: FleetAnswer) -> FleetAnswer:
    """Return an answer with the cheapest mix of fleets: it is the first of the plans, the cheapest and the recommended one.

    What a target, a surer fleet or a measurement would change was found for the plan of one kind, and is not said of the mix.
    """
    found = mixed(asked, answer, asked.scenario.fleet.mix)
    if not isinstance(found, Mix) or answer.choices is None:
        return replace(answer, mix=found)
    plan, choices = found.plan, answer.choices
    near = (choices.surest.usd_per_hour or inf) <= SUREST_WITHIN * (plan.usd_per_hour or inf)
    surer = near and choices.surest.slo_met_probability > plan.slo_met_probability
    why = f"it costs {found.saved_fraction:.1%} less than the cheapest fleet of one kind, on {choices.cheapest.hardware}"
    return replace(
        answer,
        plans=(plan, *answer.plans),
        choices=Choices(
            plan, choices.surest if surer else plan, min(plan, choices.fewest, key=whole_gpus), plan, why
        ),
        certainty=tuple(_at_least(row, plan) for row in answer.certainty),
        tight=None,
        next_steps=None,
        mix=found,
    )


def _at_least(row: Certainty, plan: Plan) -> Certainty:
    """Return the cheapest fleet at a confidence: the mix, if it is as sure and costs less."""
    if plan.slo_met_probability < row.confidence or (row.usd_per_month or inf) <= (plan.usd_per_month or inf):
        return row
    return Certainty(row.confidence, plan.hardware, plan.gpus, plan.usd_per_month)


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
    parts, divisions = _divisions(asked, by)
    fleets, skipped = _Fleets(asked, parts), _skipped(asked.scenario.classes, by)
    if by in ("shares", "any") and all(dealt_by_share(item) for item in asked.scenario.classes):
        divisions += _by_share(asked, answer, fleets, parts)
    if not divisions:
        return NoMix("the requests cannot be divided", 0, skipped)
    best = cheapest_division(divisions, Costs(fleets.bound, fleets.cheapest), single)
    if best is None:
        return NoMix("no mix costs less than one kind of fleet", len(divisions), skipped)
    groups, plans = best
    total = sum(plan.peak_requests_per_s for plan in plans)
    found = []
    for (labels, _), plan in zip(groups, plans, strict=True):
        first = parts[labels[0]]
        requests = RoutedRequests(
            tuple(parts[label].name for label in labels),
            plan.peak_requests_per_s / total,
            first.above_tokens,
            first.up_to_tokens,
            fleets.longest(labels),
            first.share,
        )
        found.append(replace(plan, groups=(replace(plan.single, requests=requests),)))
    usd = answer.choices.cheapest.usd_per_month or 0.0
    return Mix(mix_plan(asked.question.demand, found), tuple(found), usd, len(divisions), skipped)


def mix_plan(demand: Demand, parts: Sequence[Plan]) -> Plan:
    """Return the plan of a mix: all of its groups, and bounds of what the requests of all of them see.

    A quantile of all requests is at most the largest one of the groups; means are weighted by requests. One slowness decides about
    each group, so the targets hold with the least probability of a group.
    """
    shares = [part.peak_requests_per_s for part in parts]
    hourly = sum(part.usd_per_hour or 0.0 for part in parts)
    responses_s = _responses_s(demand, parts)
    names = [part.single.layout.device.name for part in parts]

    def worst(spreads: Sequence[_Spread]) -> _Spread:
        largest = {key.name: max(getattr(one, key.name) for one in spreads) for key in fields(spreads[0])}
        means = {
            key: float(np.average([getattr(one, key) for one in spreads], weights=shares))
            for key in ("mean", "low", "high")
            if key in largest
        }
        return replace(spreads[0], **{**largest, **means})

    per_s = sum(shares)
    lengths, output = demand.lengths, demand.generated_tokens
    return Plan(
        groups=tuple(part.single for part in parts),
        ttft_s=worst([part.ttft_s for part in parts]),
        tpot_s=worst([part.tpot_s for part in parts]),
        e2e_s=worst([part.e2e_s for part in parts]),
        slo_met_probability=min(part.slo_met_probability for part in parts),
        few_open_loops_measured=any(part.few_open_loops_measured for part in parts),
        target_probabilities={
            key: min(part.target_probabilities[key] for part in parts)
            for key in parts[0].target_probabilities
        },
        usd_per_hour=hourly,
        money=unit_costs_at_mean(demand, hourly, responses_s),
        usd_per_million_output_tokens=float(usd_per_million_tokens(hourly, per_s * output))
        if output
        else None,
        usd_per_million_tokens=float(
            usd_per_million_tokens(hourly, per_s * (output + float(lengths.input_tokens)))
        ),
        bottleneck="; ".join(
            f"{name}: {part.bottleneck}" for name, part in zip(names, parts, strict=True) if part.bottleneck
        )
        or None,
        routing=parts[0].routing,
        outside=outside_use(demand.classes, responses_s, HOURS_PER_MONTH),
        unlike_waits=SeenByUsers(
            worst([part.seen.ttft_s for part in parts]),
            worst([part.seen.e2e_s for part in parts]),
            _seen_by_class(demand, parts),
        )
        if waits_of(demand.classes).are_unlike
        else None,
        class_e2e_mean_s=responses_s if len(demand.classes) > 1 else (),
    )


def _seen_by_class(
    demand: Demand, parts: Sequence[Plan]
) -> tuple[tuple[Spread[float], ...], tuple[Spread[float], ...]]:
    """Return what the users of each class see: the largest of the groups that serve some of them."""
    found: tuple[list[Spread[float]], list[Spread[float]]] = [], []
    for item in demand.classes:
        for place, latency in enumerate(("ttft_s", "e2e_s")):
            seen = []
            for part in parts:
                names = part.single.requests.classes if part.single.requests else ()
                if item.name in names:
                    own = part.seen.by_class[place]
                    seen.append(own[names.index(item.name)] if own else getattr(part.seen, latency))
            found[place].append(
                Spread(*(max(getattr(one, key.name) for one in seen) for key in fields(Spread)))
            )
    return tuple(found[0]), tuple(found[1])


def _responses_s(demand: Demand, parts: Sequence[Plan]) -> tuple[float, ...]:
    """Return the mean response time of each class over the groups that serve it [s]; of prompts by length that of all requests."""
    found = []
    for item in demand.classes:
        means, weights = [], []
        for part in parts:
            requests = part.single.requests
            if requests is None or item.name not in requests.classes:
                continue
            place = requests.classes.index(item.name)
            means.append(part.class_e2e_mean_s[place] if part.class_e2e_mean_s else part.e2e_s.mean)
            (mine,) = part_of_classes((item,), requests.above_tokens, requests.up_to_tokens, requests.share)
            weights.append(mine.request_rate_at(means[-1]))
        found.append(float(np.average(means, weights=weights)))
    return tuple(found)


def _skipped(classes: Sequence[RequestClass], by: MixBy) -> tuple[str, ...]:
    """Return the ways to divide requests that were asked for and are not tried, each with the reason."""
    whole = [item.name for item in classes if not divisible(item)]
    undealt = [item.name for item in classes if not dealt_by_share(item)]
    reasons = {
        "classes": "there is one class"
        if len(classes) == 1
        else f"there are {len(classes)} classes, and at most {MOST_CLASSES} are divided"
        if len(classes) > MOST_CLASSES
        else "",
        "lengths": f"the prompts of users, sessions and cached prefixes stay together ({', '.join(whole)})"
        if whole
        else "",
        "shares": f"the prompts of one user, of a session and of cached prefixes stay together ({', '.join(undealt)})"
        if undealt
        else "",
    }
    return tuple(f"{way}: {reason}" for way, reason in reasons.items() if reason and by in (way, "any"))


def _divisions(asked: AskedFleet, by: MixBy) -> tuple[dict[str, _Part], list[Division]]:
    """Return the parts of classes by label, and the ways to divide them by class and by length."""
    whole = asked.scenario.classes
    parts = {item.name: _Part(item, item.name) for item in whole}
    if len(parts) < len(whole):
        raise InputError(f"{asked.scenario.path}: fleet.mix: classes need names of their own; traffic[].name")
    found: list[tuple[tuple[str, ...], ...]] = []
    if by in ("classes", "any") and 1 < len(whole) <= MOST_CLASSES:
        found += [division for division in partitions(tuple(parts)) if len(division) > 1]
    if by in ("lengths", "any") and all(divisible(item) for item in whole):
        for tokens in thresholds(whole, THRESHOLDS):
            halves: tuple[list[str], list[str]] = ([], [])
            for item in whole:
                for labels, part in zip(halves, below_and_above(item, tokens), strict=True):
                    if part is not None:
                        short = labels is halves[0]
                        label = f"{item.name}, {'up to' if short else 'above'} {tokens:g}"
                        bounds = (None, tokens) if short else (tokens, None)
                        parts[label] = _Part(part, item.name, *bounds)
                        labels.append(label)
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
    return parts, divisions


def _by_share(
    asked: AskedFleet, answer: FleetAnswer, fleets: "_Fleets", parts: dict[str, _Part]
) -> list[Division]:
    """Return ways to divide every class by weight: a share for one device, the rest for the others; their parts are added.

    A share is what some replicas of the cheapest fleet of a device carry, the largest that its machines hold if there are too few of
    them for all requests, and the largest that the machines that are there already hold. Each part has whole users of every class.
    """
    names = tuple(device.name for device in asked.question.devices)

    def labelled(percent: int) -> tuple[str, ...]:
        labels = []
        for item in asked.scenario.classes:
            label = f"{item.name}, {percent}%"
            parts.setdefault(label, _Part(share_of(item, percent / 100), item.name, share=percent / 100))
            labels.append(label)
        return tuple(labels)

    divisions: list[Division] = []
    for name in names:
        others = frozenset(names) - {name}
        plan = next(
            (
                plan
                for plan in (*answer.plans, *answer.dear)
                if len(plan.groups) == 1 and plan.hardware == name
            ),
            None,
        )
        found = set() if plan is None else set(_shares(plan))
        if plan is None:
            found.add(_largest(lambda percent: fleets.cheapest((labelled(percent), others), inf) is not None))  # noqa: B023
        if fleets.owned(name):
            found.add(_largest(lambda percent: fleets.held_by_owned(labelled(percent), name)))  # noqa: B023
        divisions += [
            ((labelled(percent), others), (labelled(100 - percent), frozenset({name})))
            for percent in sorted(found)
            if all(_divides(item, percent) for item in asked.scenario.classes)
        ]
    return divisions


def _divides(item: RequestClass, percent: int) -> bool:
    """Return whether a percentage of a class and the rest are all of it, each with at least one of its users."""
    if item.users is None:
        return 0 < percent < 100
    parts = [users_of_share(item.users, part / 100) for part in (percent, 100 - percent)]
    return min(parts) >= 1.0 and sum(parts) == item.users


def _largest(fits: Callable[[int], bool]) -> int:
    """Return the largest percentage of the requests, below 100, that fits; 0 if none does."""
    low, high = 0, 100
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _shares(plan: Plan) -> Iterator[int]:
    """Yield the percentages of all requests that all but the last replicas or machines of a fleet carry, and the first ones."""
    group = plan.single
    each = 100.0 * group.total_rate_per_replica / plan.peak_requests_per_s
    busy, order = group.busy_replicas, group.order
    per_machine = (
        max((held for line in order.lines for _, held, _ in (units_of(line),)), default=1) if order else 1
    )
    last = (busy - 1) // per_machine * per_machine
    counts = {1, *range(busy - LAST_REPLICAS, busy), *range(last, 0, -per_machine)[:LAST_REPLICAS]}
    yield from {int(count * each + 1e-9) for count in counts if count > 0}


class _Fleets:
    """The cheapest fleet of each group of classes; searches of shares share their runs, those of other groups differ in their requests."""

    def __init__(self, asked: AskedFleet, parts: Mapping[str, _Part]) -> None:
        self._asked, self._parts, self._runs = asked, parts, SearchCache()
        self._searches: dict[tuple[str, ...], tuple[AskedFleet, Sequence[ScreenedLayout], Terms]] = {}

    def _screened(self, names: tuple[str, ...]) -> tuple[AskedFleet, Sequence[ScreenedLayout], Terms]:
        if names not in self._searches:
            part = part_of(self._asked, tuple(self._parts[name].requests for name in names))
            self._searches[names] = part, search(part.question).candidates, terms_of(part)
        return self._searches[names]

    def owned(self, device: str) -> tuple[Machine, ...]:
        """Return the machines of a device that are there already."""
        price = self._asked.prices.get(device)
        return tuple(item for item in price.machines if item.provider == OWN) if price else ()

    def held_by_owned(self, names: tuple[str, ...], device: str) -> bool:
        """Return whether the machines of a device that are there already serve some classes by themselves."""
        part, candidates, terms = self._screened(names)
        price = self._asked.prices[device]
        assert price is not None
        alone = replace(terms, prices={device: with_machines(price, self.owned(device))})
        allowed = [item for item in candidates if item.layout.device.name == device]
        found = Search(part.question, allowed, alone, self._runs).cheapest(part.question.slo.confidence)
        return found is not None and confirmed(found, alone) is not None

    def longest(self, names: tuple[str, ...]) -> int:
        """Return the longest sequence that replicas for some classes are started for."""
        return self._screened(names)[0].question.max_model_len

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
        shared = self._parts[names[0]].share is not None
        trials = Search(part.question, terms.listed(allowed), terms, self._runs if shared else SearchCache())
        found = trials.cheapest(part.question.slo.confidence, under=most)
        pair = None if found is None else confirmed(found, terms)
        if pair is None or pair[1].usd_per_hour is None or pair[1].usd_per_hour >= most:
            return None
        return pair[1].usd_per_hour, pair[1]
