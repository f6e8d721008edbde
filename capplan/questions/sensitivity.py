"""What moves the number of a plan: traffic, lengths, prices and efficiency, each turned by itself, and the plans at other traffic."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from capplan.errors import Reason
from capplan.fleet.answer import FleetAnswer
from capplan.fleet.load.demand import demand_of
from capplan.fleet.plan import RANGE, Plan
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.search.together import Together
from capplan.fleet.sweep import (
    FEW_RATIOS,
    WHAT_IF_RATIOS,
    Busy,
    Swing,
    Turn,
    WhatIf,
    busy_at_speed,
    by_traffic,
    resized,
    turned,
)
from capplan.money.price import Side
from capplan.questions.fleet import (
    AskedFleet,
    part_of,
    requests_of,
    terms_of,
    wanted_context,
)
from capplan.questions.mix import together_of
from capplan.workload.length import Lengths
from capplan.workload.request_class import RequestClass, with_scaled_rate
from capplan.workload.reuse import PrefixReuse

CHANGE = 0.2
"""Traffic and lengths are taken this much lower and higher."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What moves the number."""

    swings: tuple[Swing, ...] = ()
    """Swings of the recommended plan, the widest first."""
    what_if: tuple[tuple[Plan, tuple[WhatIf, ...]], ...] = ()
    """Plans at other traffic, the recommended one first."""


@dataclass(frozen=True, slots=True)
class _Turning:
    """A plan whose question is changed, and the runs that the changed questions share."""

    asked: AskedFleet
    plan: Plan
    cache: SearchCache

    def busy(self, change: Callable[[RequestClass, float], RequestClass], ratio: float) -> Busy | None:
        """Return the replicas in service for changed traffic; None where none are enough, or a mean request is too long."""
        asked, first = self.asked, self.plan.groups[0]
        classes = tuple(change(item, ratio) for item in asked.scenario.classes)
        if self.plan.is_mix:
            confidence, headroom = asked.scenario.slo.confidence, asked.scenario.fleet.headroom_fraction
            return self._of_groups(classes, lambda groups: groups.holds(confidence, headroom))
        demand = demand_of(replace(asked.scenario, classes=classes))
        network = asked.question.networks[first.weight_dtype]
        context = wanted_context(asked.scenario, network, demand.longest_tokens)[0]
        tokens = max(context, asked.question.max_model_len)
        if demand.lengths.input_tokens + demand.lengths.output_tokens > tokens:
            return None
        question = replace(asked.question, demand=demand, max_model_len=tokens)
        return resized(question, self.plan, terms_of(asked), self.cache)

    def _of_groups(self, classes: tuple[RequestClass, ...], holds: Callable[[Together], bool]) -> Busy | None:
        """Return the replicas in service of each group of a mix with which all groups hold together; a group without requests keeps one."""
        parts: list[tuple[AskedFleet, Plan]] = []
        served = [place for place, group in enumerate(self.plan.groups) if requests_of(group, classes)]
        for place in served:
            group = self.plan.groups[place]
            alone = replace(self.plan, groups=(replace(group, requests=None),))
            parts.append((part_of(self.asked, requests_of(group, classes)), alone))
        together = together_of(parts, classes)
        busy = None if isinstance(together, Reason) else together.resized(holds)
        if busy is None:
            return None
        counts = dict(zip(served, busy, strict=True))
        return tuple(counts.get(place, 1) for place in range(len(self.plan.groups)))

    def at_speed(self, part: float) -> Busy | None:
        """Return the replicas in service if all are as fast as in a part of the cases, at the peak plus headroom."""
        if not self.plan.is_mix:
            return busy_at_speed(self.asked.question, self.plan, terms_of(self.asked), self.cache, part)
        ratio = 1.0 / (1.0 - self.asked.scenario.fleet.headroom_fraction)
        return self._of_groups(self.asked.scenario.classes, lambda groups: groups.sure(part, ratio))

    def speed_swing(self) -> Swing:
        """Return the fleets for replicas as fast as in the best tenth of the cases, and as slow as in the worst."""
        words = "as fast as the best tenth", "as slow as the worst tenth"
        low, high = (
            turned(change, self.plan, self.at_speed(tenth))
            for change, tenth in zip(words, RANGE, strict=True)
        )
        return Swing("kernel efficiency", low, high)

    def both(self, what: str, change: Callable[[RequestClass, float], RequestClass]) -> Swing:
        """Return the fleets for a fifth less and a fifth more of something."""
        low, high = (
            turned(f"{ratio - 1.0:+.0%}", self.plan, self.busy(change, ratio))
            for ratio in (1.0 - CHANGE, 1.0 + CHANGE)
        )
        return Swing(what, low, high)

    def at_traffic(self) -> tuple[WhatIf, ...]:
        """Return the fleets for other traffic, each counted by simulation; today's is the plan itself."""
        plan = self.plan
        if not plan.has_pools and not plan.is_mix:
            ratios, asked = WHAT_IF_RATIOS, self.asked
            counts = by_traffic(asked.question, plan, terms_of(asked), self.cache, ratios)
        else:
            ratios = FEW_RATIOS
            counts = [
                plan.in_service if ratio == 1.0 else self.busy(with_scaled_rate, ratio) for ratio in ratios
            ]
        points = []
        for ratio, count in zip(ratios, counts, strict=True):
            fleet = turned("", plan, plan.in_service if ratio == 1.0 else count)
            if fleet.gpus is not None:
                points.append(WhatIf(ratio, plan.peak_requests_per_s * ratio, fleet.gpus, fleet.usd))
        return tuple(points)


def sensitivity_of(asked: AskedFleet, answer: FleetAnswer, *, others: bool = True) -> Sensitivity:
    """Return what moves the number of a fleet; nothing where there is no plan.

    The layouts of the plan stay; its replicas are counted by the simulation that sized it, under the changed question.

    Parameters
    ----------
    asked : the question as it is
    answer : its plans
    others : whether the cheapest plan of every other device is taken at other traffic too
    """
    plan = answer.chosen
    if plan is None:
        return Sensitivity()
    cache = SearchCache()
    turning = _Turning(asked, plan, cache)
    swings = sorted(_swings(turning), key=lambda swing: -swing.width)
    beside: dict[str, Plan] = {plan.hardware: plan}
    for each in answer.alike if others else ():
        beside.setdefault(each.hardware, each)
    points = ((each, _Turning(asked, each, cache).at_traffic()) for each in beside.values())
    return Sensitivity(tuple(swings), tuple(points))


def at_other_traffic(asked: AskedFleet, plan: Plan) -> tuple[WhatIf, ...]:
    """Return a plan at other traffic: its layouts stay, and its replicas are counted by simulation."""
    return _Turning(asked, plan, SearchCache()).at_traffic()


def _swings(turning: _Turning) -> list[Swing]:
    asked, plan = turning.asked, turning.plan
    swings = [turning.both("traffic", with_scaled_rate)]
    if not asked.question.demand.has_sessions:  # their lengths follow from turns and what each adds
        swings.append(turning.both("input length", longer_input))
        swings.append(turning.both("output length", longer_output))
    swings += _price_swing(plan)
    return [*swings, turning.speed_swing()]


def _price_swing(plan: Plan) -> list[Swing]:
    """Return the plan at the cheapest and at the dearest offer of its devices; nothing where the offers do not differ."""
    low, high = _at_offers(plan, "low"), _at_offers(plan, "high")
    return [] if low is None or high is None or low == high else [Swing("price of a GPU", low, high)]


def _at_offers(plan: Plan, side: Side) -> Turn | None:
    prices = {group.layout.device.name: group.quote for group in plan.groups}
    known = {name: price for name, price in prices.items() if price is not None}
    if len(known) < len(prices):
        return None

    offers = [
        price.low_usd_per_hour if side == "low" else price.high_usd_per_hour for price in known.values()
    ]
    change = " and ".join(f"${usd:.2f}" for usd in offers)
    return turned(f"{change} an hour", plan, plan.in_service, side)


def longer_input(item: RequestClass, ratio: float) -> RequestClass:
    """Return a class with inputs of some times the length; a shared prefix stays as long, what a trace repeats grows alike."""
    reuse = item.reuse
    if isinstance(reuse, PrefixReuse):
        reuse = replace(reuse, curve=tuple((round(ratio * size), share) for size, share in reuse.curve))
    return replace(item, input_tokens=scaled_lengths(item.input_tokens, ratio), reuse=reuse)


def longer_output(item: RequestClass, ratio: float) -> RequestClass:
    """Return a class with outputs of some times the length."""
    return replace(item, output_tokens=scaled_lengths(item.output_tokens, ratio))


def scaled_lengths(lengths: Lengths, ratio: float) -> Lengths:
    """Return a distribution of which every length is multiplied.

    Examples
    --------
    >>> from capplan.workload.length import uniform
    >>> scaled_lengths(uniform(100.0, 300.0), 1.5).mean_tokens
    300.0
    """
    return replace(
        lengths,
        mean_tokens=ratio * lengths.mean_tokens,
        unclipped_mean_tokens=ratio * lengths.unclipped_mean_tokens,
        low_tokens=ratio * lengths.low_tokens,
        high_tokens=ratio * lengths.high_tokens,
        values=tuple(ratio * value for value in lengths.values),
    )
