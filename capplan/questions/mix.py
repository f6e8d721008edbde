"""Several fleets for one service: each serves some classes, prompts up to a length, or a share, on the GPUs that suit them best."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import inf, isnan

import numpy as np

from capplan.accuracy.bounded import BoundedSpread, Interval, bounded_latencies
from capplan.errors import InputError, Reason
from capplan.fleet.answer import SUREST_WITHIN, Certainty, Choices, FleetAnswer, Mix, NoMix
from capplan.fleet.group import Group as PlanGroup
from capplan.fleet.group import RoutedRequests
from capplan.fleet.load.demand import Demand
from capplan.fleet.mix import MOST_CLASSES, Costs, cheapest_division, partitions
from capplan.fleet.plan import ClassLatencies, Plan, whole_gpus
from capplan.fleet.pools.order import with_machines
from capplan.fleet.scenario import MixBy
from capplan.fleet.search.cheapest import Search, Sized, Terms, busy_bound
from capplan.fleet.search.layouts import ScreenedLayout
from capplan.fleet.search.load_scale import fewest
from capplan.fleet.search.one_layout import at_any_latency, trial_of
from capplan.fleet.search.recommended import confirmed, plan_at_peak, plan_of, planned_rate_limit
from capplan.fleet.search.together import Part, Together
from capplan.fleet.search.trial import Trial
from capplan.money.order import OWN, Machine, units_of
from capplan.questions.fleet import AskedFleet, part_of, terms_of
from capplan.workload.multiples import (
    dealt_by_share,
    divisible,
    part_of_classes,
    share_of,
    split_by_prompt_length,
    thresholds,
    users_of_share,
)
from capplan.workload.request_class import RequestClass

THRESHOLDS = (0.25, 0.5, 0.75, 0.9, 0.95)
"""Parts of all requests whose longest prompt is tried as a threshold."""

LAST_REPLICAS = 3
"""Replicas, or machines, of the cheapest fleet of a device whose place other devices are tried in."""

FIRST_DIVISIONS = 2
"""Divisions that are sized for all requests together: those whose groups cost least if each meets the targets by itself."""
LOOSER = 1.5
"""Divisions by class or by length that cost at most this many times as much as one kind of fleet are sized for all requests together.

Parts of a share have the same requests, so what one of them lacks the other does not make up for: only cheaper divisions are sized.
"""

Group = tuple[tuple[str, ...], frozenset[str]]
"""Labels of parts of classes, and the devices that another group has."""
Division = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
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
    plan, known = found.plan, answer.choices
    near = (known.surest.usd_per_hour or inf) <= SUREST_WITHIN * (plan.usd_per_hour or inf)
    surer = near and known.surest.slo_met_probability > plan.slo_met_probability
    surest, fewest_gpus = known.surest if surer else plan, min(plan, known.fewest, key=whole_gpus)
    why = f"it costs {found.saved_fraction:.1%} less than the cheapest fleet of one kind, on {known.cheapest.hardware}"
    return replace(
        answer,
        plans=(plan, *answer.plans),
        choices=Choices(plan, surest, fewest_gpus, plan, why),
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
    ways = _ways(asked.scenario.classes, by)
    parts, divisions = _divisions(asked, ways)
    fleets, skipped = _Fleets(asked, parts), tuple(f"{way}: {why}" for way, why in ways.items() if why)
    shares = _by_share(asked, answer, fleets, parts) if ways.get("shares") == "" else []
    if not divisions and not shares:
        return NoMix("the requests cannot be divided", 0, skipped)
    terms = terms_of(asked)
    best: tuple[float, tuple[Sized, ...], Division] | None = None
    for tried, looser in ((list(divisions), LOOSER), (list(shares), 1.0)):
        least = single if best is None else best[0]
        for _ in range(FIRST_DIVISIONS):
            found = cheapest_division(tried, fleets.costs, looser * least)
            if found is None:
                break
            division, fitting = found
            tried.remove(division)
            sizes, usd = _smaller(asked, fleets, division, fitting)
            if usd < min(single, inf if best is None else best[0]) - 1e-9:
                best = usd, sizes, division
    if best is None:
        return NoMix("no mix costs less than one kind of fleet", len(divisions) + len(shares), skipped)
    _, sizes, division = best
    plans = [plan_of(sized, terms) for sized in sizes]
    total = sum(plan.peak_requests_per_s for plan in plans)
    routed = []
    for (labels, _), plan in zip(division, plans, strict=True):
        names, first = tuple(fleets.names(labels)), parts[labels[0]]
        bounds, longest = (first.above_tokens, first.up_to_tokens), fleets.longest(labels)
        requests = RoutedRequests(names, plan.peak_requests_per_s / total, *bounds, longest, first.share)
        routed.append(replace(plan, groups=(replace(plan.single, requests=requests),)))
    together = _together(asked, fleets, division, sizes)
    whole = mix_plan(asked.question.demand, routed, together, terms.headroom_fraction)
    usd_of_one = answer.choices.cheapest.usd_per_month or 0.0
    return Mix(*whole, usd_of_one, len(divisions) + len(shares), skipped)


def _together(asked: AskedFleet, fleets: "_Fleets", division: Division, sizes: Sequence[Sized]) -> Together:
    """Return the groups of a division with their requests, by which all of them are judged together."""
    names = [item.name for item in asked.scenario.classes]
    parts = tuple(
        Part(sized.trial, sized.busy, tuple(names.index(name) for name in fleets.names(labels)))
        for (labels, _), sized in zip(division, sizes, strict=True)
    )
    return Together(asked.scenario.classes, parts, asked.question.slo.targets)


def _smaller(
    asked: AskedFleet, fleets: "_Fleets", division: Division, sizes: Sequence[Sized]
) -> tuple[tuple[Sized, ...], float]:
    """Return the groups of a division with cheaper fleets, as long as all requests together meet the targets, and their cost per hour.

    Each group meets the targets by itself at first, so all together do. What one part of the requests lacks, another may make up for:
    group by group, the dearest first, the cheapest fleet is taken with which all still do and no queue grows.
    """
    terms, confidence = terms_of(asked), asked.question.slo.confidence
    found = list(sizes)

    def usd(sized: Sized) -> float:
        return terms.usd_per_hour(sized.layout, sized.busy) or 0.0

    def holds(place: int, trial: Trial, busy: int) -> bool:
        changed = [*found[:place], terms.sized(trial, busy), *found[place + 1 :]]
        return _together(asked, fleets, division, changed).holds(confidence, terms.headroom_fraction)

    for place in sorted(range(len(found)), key=lambda at: -usd(found[at])):
        for candidate in fleets.any_latency(division[place]):
            layout, least = candidate.layout, max(busy_bound(candidate, confidence, terms), 1.0)
            most = min(terms.most_busy(layout, usd(found[place]) - 1e-9), terms.busy_allowed(layout))
            if least < inf and int(least) <= most:
                trial = fleets.trial(division[place], candidate)
                enough = partial(holds, place, trial)
                busy = fewest(range(int(least), int(most) + 1), enough)
                found[place] = found[place] if busy is None else terms.sized(trial, busy)
    return tuple(found), sum(map(usd, found))


def together_of(
    parts: Sequence[tuple[AskedFleet, Plan]], classes: Sequence[RequestClass]
) -> Together | Reason:
    """Return groups of replicas that are known, with the question of the requests of each; the reason where a layout no longer serves them."""
    names = [item.name for item in classes]
    found = []
    for asked, plan in parts:
        group = plan.single
        trial = trial_of(asked.question, group.layout, terms_of(asked), asked.cache)
        if isinstance(trial, Reason):
            return trial
        places = tuple(_place(item.name, names) for item in asked.question.demand.classes)
        found.append(Part(trial, group.busy_replicas, places))
    return Together(tuple(classes), tuple(found), parts[0][0].question.slo.targets)


def _place(part: str, names: Sequence[str]) -> int:
    """Return the place of the class that a part of a class is cut from: its name begins with that of the class.

    Examples
    --------
    >>> _place("chat, above 800", ["agent", "chat"]), _place("chat", ["agent", "chat"])
    (1, 1)
    """
    whole = (name for name in names if part == name or part.startswith(f"{name}, "))
    return names.index(max(whole, key=len))


def mix_plan(
    demand: Demand, parts: Sequence[Plan], together: Together, headroom_fraction: float
) -> tuple[Plan, tuple[Plan, ...]]:
    """Return the plan of a mix, with what all requests of its groups see together, and each group as a plan by itself.

    One slowness decides about each group, so the interval of a mean has the ends of all groups at once.
    """
    shares = [part.peak_requests_per_s for part in parts]
    hourly = sum(part.usd_per_hour or 0.0 for part in parts)
    seen, confidence = together.seen(), together.confidence
    names = [part.single.layout.device.name for part in parts]
    responses_s = tuple(
        float(np.average([part.e2e_s.mean for part in parts], weights=shares)) if isnan(mean) else mean
        for mean in seen.responses_s
    )

    intervals = {name: _interval_of(parts, f"{name}_s") for name in ("ttft", "tpot", "e2e")}
    probability = together.probability(confidence)
    groups = _with_their_loads(parts, together, headroom_fraction)
    hits = _hits_of_classes(demand, parts)
    mixed = demand.of_plan(responses_s, hits)
    lengths, output = mixed.lengths, mixed.generated_tokens
    plan = plan_at_peak(
        tuple(groups),
        hourly,
        demand,
        responses_s,
        (seen.ttft_s, seen.tpot_s, seen.e2e_s),
        intervals,
        (sum(shares) * output, sum(shares) * (output + float(lengths.input_tokens))),
        class_latencies=tuple(
            ClassLatencies(name=item.name, ttft_s=of_class[0], tpot_s=of_class[1], e2e_s=of_class[2])
            for item, own in zip(demand.classes, together.by_class(), strict=True)
            for of_class in [bounded_latencies(own.ttft_s, own.tpot_s, own.e2e_s, intervals)]
        ),
        prefix_hit_fraction=_hit_fraction(demand, responses_s, hits),
        class_prefix_hit_fractions=hits,
        slo_met_probability=probability,
        few_open_loops_measured=any(part.few_open_loops_measured for part in parts),
        target_probabilities={
            target.key: together.target_probability(confidence, target) for target in together.targets
        },
        bottleneck="; ".join(
            f"{name}: {part.bottleneck}" for name, part in zip(names, parts, strict=True) if part.bottleneck
        )
        or None,
        routing=parts[0].routing,
        unlike_waits=seen.seen,
    )
    pairs = zip(parts, groups, strict=True)
    return plan, tuple(
        replace(part, groups=(group,), slo_met_probability=probability) for part, group in pairs
    )


def _interval_of(parts: Sequence[Plan], latency: str) -> Interval:
    """Return the interval of the mean of a latency, whose ends are as far from it as those of all groups together."""
    spreads: list[BoundedSpread] = [getattr(part, latency) for part in parts]
    shares = [part.peak_requests_per_s for part in parts]
    mean = sum(share * spread.mean for share, spread in zip(shares, spreads, strict=True))
    low, high = (
        sum(share * getattr(spread, end) for share, spread in zip(shares, spreads, strict=True)) / mean
        for end in ("low", "high")
    )
    return Interval(low, high, 0, 0)


def _with_their_loads(parts: Sequence[Plan], together: Together, headroom_fraction: float) -> list[PlanGroup]:
    """Return the group of each part with its own latencies, and with the rates at which the targets of all requests just hold."""
    predicted, sure = together.most_load(None, together.limits), together.sure_load()
    groups = []
    for part in parts:
        rate = part.single.request_rate_per_replica
        limits = predicted * rate, sure * rate
        group = replace(
            part.single,
            request_rate_limit_per_replica=limits[0],
            sure_request_rate_limit_per_replica=limits[1],
            planned_request_rate_limit_per_replica=planned_rate_limit(*limits, headroom_fraction, rate),
            ttft_s=part.ttft_s,
            tpot_s=part.tpot_s,
            e2e_s=part.e2e_s,
        )
        groups.append(group)
    return groups


def _hit_fraction(demand: Demand, responses_s: Sequence[float], hits: Sequence[float]) -> float:
    """Return the part of the tokens of all prompts that is found, from the part of each class."""
    rates = demand.rates_of_classes(tuple(responses_s))
    prompts = [rate * item.input_tokens.mean_tokens for rate, item in zip(rates, demand.classes, strict=True)]
    return float(np.average(hits, weights=prompts))


def _hits_of_classes(demand: Demand, parts: Sequence[Plan]) -> tuple[float, ...]:
    """Return the part of the prompt tokens of each class that the prefix caches of all groups hold."""
    found = []
    for item in demand.classes:
        hits, weights = [], []
        for part in parts:
            requests = part.single.requests
            if requests is None or item.name not in requests.classes:
                continue
            (mine,) = part_of_classes((item,), requests.above_tokens, requests.up_to_tokens, requests.share)
            hits.append(part.class_prefix_hit_fractions[requests.classes.index(item.name)])
            weights.append(mine.request_rate_at(part.e2e_s.mean) * mine.input_tokens.mean_tokens)
        found.append(float(np.average(hits, weights=weights)))
    return tuple(found)


def _ways(classes: Sequence[RequestClass], by: MixBy) -> dict[str, str]:
    """Return the ways to divide requests that are asked for, each with the reason why it is not tried; empty if it is."""
    whole = ", ".join(item.name for item in classes if not divisible(item))
    undealt = ", ".join(item.name for item in classes if not dealt_by_share(item))
    reasons = {"classes": "", "lengths": "", "shares": ""}
    if len(classes) == 1:
        reasons["classes"] = "there is one class"
    elif len(classes) > MOST_CLASSES:
        reasons["classes"] = f"there are {len(classes)} classes, and at most {MOST_CLASSES} are divided"
    if whole:
        reasons["lengths"] = f"the prompts of users, sessions and cached prefixes stay together ({whole})"
    if undealt:
        reasons["shares"] = (
            f"the prompts of one user, of a session and of cached prefixes stay together ({undealt})"
        )
    return {way: reason for way, reason in reasons.items() if by in (way, "any")}


def _divisions(asked: AskedFleet, ways: Mapping[str, str]) -> tuple[dict[str, _Part], list[Division]]:
    """Return the parts of classes by label, and the ways to divide them by class and by length."""
    whole = asked.scenario.classes
    parts = {item.name: _Part(item, item.name) for item in whole}
    if len(parts) < len(whole):
        raise InputError(f"{asked.scenario.path}: fleet.mix: classes need names of their own; traffic[].name")
    found: list[tuple[tuple[str, ...], ...]] = []
    if ways.get("classes") == "":
        found += [division for division in partitions(tuple(parts)) if len(division) > 1]
    if ways.get("lengths") == "":
        for tokens in thresholds(whole, THRESHOLDS):
            halves: tuple[list[str], list[str]] = ([], [])
            for item in whole:
                for labels, part in zip(halves, split_by_prompt_length(item, tokens), strict=True):
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

    def tried(name: str, others: frozenset[str]) -> set[int]:
        plans = (*answer.plans, *answer.dear)
        plan = next((item for item in plans if len(item.groups) == 1 and item.hardware == name), None)
        if plan is None:
            found = {_largest(lambda percent: fleets.cheapest((labelled(percent), others), inf) is not None)}
        else:
            found = set(_shares(plan))
        if fleets.owned(name):
            found.add(_largest(lambda percent: fleets.held_by_owned(labelled(percent), name)))
        return found

    divisions: list[Division] = []
    for name in names:
        others = frozenset(names) - {name}
        divisions += [
            ((labelled(percent), others), (labelled(100 - percent), frozenset({name})))
            for percent in sorted(tried(name, others))
            if all(_divides(item, percent) for item in asked.scenario.classes)
        ]
    return divisions


def _divides(item: RequestClass, percent: int) -> bool:
    """Return whether a percentage of a class and the rest are all of it, each with at least one of its users."""
    if item.users is None:
        return 0 < percent < 100
    parts = [users_of_share(item.users, part / 100) for part in (percent, 100 - percent)]
    return min(parts) >= 1.0 and sum(parts) == item.users


def _least_usd_per_hour(item: ScreenedLayout, confidence: float, terms: Terms) -> float:
    """Return a lower bound on what a fleet of one layout costs."""
    busy = busy_bound(item, confidence, terms)
    return terms.least_usd_per_hour(item.layout, terms.least_gpus(item.layout, busy))


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
    per_machine = max((units_of(line)[1] for line in (order.lines if order else ())), default=1)
    last = (busy - 1) // per_machine * per_machine
    counts = {1, *range(busy - LAST_REPLICAS, busy), *range(last, 0, -per_machine)[:LAST_REPLICAS]}
    yield from {int(count * each + 1e-9) for count in counts if count > 0}


class _Fleets:
    """The cheapest fleet of each group of classes; their searches share the replicas and the runs of the whole fleet."""

    def __init__(self, asked: AskedFleet, parts: Mapping[str, _Part]) -> None:
        self._asked, self._parts, self._runs = asked, parts, asked.cache
        self._searches: dict[tuple[str, ...], tuple[AskedFleet, Sequence[ScreenedLayout], Terms]] = {}
        self._loose: dict[tuple[str, ...], Search] = {}

    def _screened(self, names: tuple[str, ...]) -> tuple[AskedFleet, Sequence[ScreenedLayout], Terms]:
        if names not in self._searches:
            part = part_of(self._asked, tuple(self._parts[name].requests for name in names))
            self._searches[names] = part, self._runs.searched(part.question).candidates, terms_of(part)
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

    def names(self, labels: tuple[str, ...]) -> list[str]:
        """Return the names of the classes of a group."""
        return [self._parts[label].name for label in labels]

    @cached_property
    def costs(self) -> Costs[Group, Sized]:
        """What groups cost that meet the targets by themselves."""
        return Costs(self.bound, self.cheapest)

    def any_latency(self, group: Group) -> list[ScreenedLayout]:
        """Return the layouts that serve a group at all, whatever the latency, by a lower bound on their cost."""
        names, elsewhere = group
        part, _, terms = self._screened(names)
        question, confidence = part.question, part.question.slo.confidence
        if names not in self._loose:
            candidates = self._runs.searched(at_any_latency(question)).candidates
            self._loose[names] = Search(question, candidates, terms, self._runs)
        candidates = self._loose[names].candidates
        allowed = [item for item in candidates if item.layout.device.name not in elsewhere]
        bounds = [_least_usd_per_hour(item, confidence, terms) for item in allowed]
        return [allowed[place] for place in np.argsort(bounds, kind="stable") if bounds[place] < inf]

    def trial(self, group: Group, candidate: ScreenedLayout) -> Trial:
        """Return the trial of a layout that serves a group at all, with the requests of the group, under the targets of the service."""
        return self._loose[group[0]].trial(candidate)

    def bound(self, group: Group) -> float:
        """Return a lower bound on what the cheapest fleet of a group costs per hour, from the closed form."""
        names, elsewhere = group
        part, candidates, terms = self._screened(names)
        allowed = (item for item in candidates if item.layout.device.name not in elsewhere)
        confidence = part.question.slo.confidence
        return min((_least_usd_per_hour(item, confidence, terms) for item in allowed), default=inf)

    def cheapest(self, group: Group, most: float) -> tuple[float, Sized] | None:
        """Return the cheapest fleet of a group below a cost per hour, simulated with the requests that it gets."""
        names, elsewhere = group
        part, candidates, terms = self._screened(names)
        allowed = [item for item in candidates if item.layout.device.name not in elsewhere]
        trials = Search(part.question, terms.listed(allowed), terms, self._runs)
        found = trials.cheapest(part.question.slo.confidence, under=most)
        sure = None if found is None else confirmed(found, terms)
        if sure is None or sure.usd_per_hour is None or sure.usd_per_hour >= most:
            return None
        return sure.usd_per_hour, sure.sized
