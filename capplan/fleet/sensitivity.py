"""What a fleet costs if one thing turns out otherwise: the layout of a plan, sized again by the simulation that sized it."""

from collections.abc import Sequence
from dataclasses import dataclass

from capplan.errors import Reason
from capplan.fleet.plan import Plan, sized_groups
from capplan.fleet.pools.sizing import pools_sizing
from capplan.fleet.price import HOURS_PER_MONTH, Side
from capplan.fleet.question import Question
from capplan.fleet.search.cheapest import Terms, busy_replicas
from capplan.fleet.search.one_layout import replicas_of_layout, trial_of
from capplan.fleet.search.recommended import RANGE, replicas_at_speed
from capplan.fleet.search.search_cache import SearchCache

WHAT_IF_RATIOS = tuple(2.0 ** (step / 4.0) for step in range(-8, 9))
"""Traffic over today's, from a quarter to four times."""
FEW_RATIOS = (0.5, 0.8, 1.0, 1.2, 2.0)
"""The same where each needs simulations of its own: for separate pools, and for sessions."""
Busy = tuple[int, ...]
"""Replicas in service, by group."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The fleet after one change."""

    change: str
    """Change in words, such as `-20 %`."""
    gpus: int | None
    """None: no number of replicas meets the targets."""
    usd: float | None
    """Cost of a month, or of the job; None where no price is known or no fleet is enough."""


@dataclass(frozen=True, slots=True)
class Swing:
    """One thing that may turn out otherwise, in both directions."""

    what: str
    low: Turn
    high: Turn

    @property
    def width(self) -> float:
        """Return how far apart the ends are: in dollars, in GPUs without a price, endless where an end has no fleet."""
        if self.low.gpus is None or self.high.gpus is None:
            return float("inf")
        if self.low.usd is None or self.high.usd is None:
            return float(abs(self.high.gpus - self.low.gpus))
        return abs(self.high.usd - self.low.usd)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A plan at another traffic."""

    traffic_ratio: float
    request_rate: float
    """Request rate at the peak [req/s]."""
    gpus: int
    usd: float | None
    """Cost of a month, or of the job."""


def paid_hours(plan: Plan) -> float:
    """Return the hours that a plan is paid for: those of its job, else those of a month."""
    return plan.money.job_hours if plan.money and plan.money.job_hours else HOURS_PER_MONTH


def turned(change: str, plan: Plan, busy: Busy | None, side: Side = "likely") -> Turn:
    """Return the fleet of a plan with other numbers of replicas, or at other offers.

    Parameters
    ----------
    change : in words
    plan : its layouts stay, and what it survives
    busy : replicas in service, by group; None: no number of them is enough
    side : of the offers

    Returns
    -------
    Turn
    """
    if busy is None:
        return Turn(change, None, None)
    groups = sized_groups(plan.groups, busy)
    known = [
        usd
        for group, count in zip(groups, busy, strict=True)
        if (usd := group.usd_per_hour_of(count, side)) is not None
    ]
    usd = paid_hours(plan) * sum(known) if len(known) == len(groups) else None
    return Turn(change, sum(group.gpus for group in groups), usd)


def resized(question: Question, plan: Plan, terms: Terms, cache: SearchCache | None = None) -> Busy | None:
    """Return the replicas in service that the layouts of a plan take for a question; None if no number is enough."""
    if plan.has_pools:
        sizing = pools_sizing(question, plan, terms, cache)
        return None if isinstance(sizing, Reason) else sizing.at_confidence(question.slo.confidence)
    busy = replicas_of_layout(question, plan.single.layout, plan.single.weight_dtype, terms, cache)
    return None if busy is None else (busy,)


def joined(groups: Sequence[Busy | None]) -> Busy | None:
    """Return the replicas in service of several plans as those of one; None if no number is enough for one of them."""
    known = [busy for busy in groups if busy is not None]
    return tuple(count for busy in known for count in busy) if len(known) == len(groups) else None


def speed_swing(plan: Plan, parts: Sequence[tuple[Question, Plan, Terms]], cache: SearchCache) -> Swing:
    """Return the fleets for replicas as fast as in the best tenth of the cases, and as slow as in the worst.

    Parameters
    ----------
    plan : as a whole
    parts : each group of a mix with its question; any other plan itself
    cache : runs of the same questions before
    """
    words = "as fast as the best tenth", "as slow as the worst tenth"
    fleets = []
    for change, tenth in zip(words, RANGE, strict=True):
        busy = joined([_at_speed(question, alone, terms, cache, tenth) for question, alone, terms in parts])
        fleets.append(turned(change, plan, busy))
    return Swing("kernel efficiency", *fleets)


def _at_speed(question: Question, plan: Plan, terms: Terms, cache: SearchCache, part: float) -> Busy | None:
    if plan.has_pools:
        sizing = pools_sizing(question, plan, terms, cache)
        return None if isinstance(sizing, Reason) else sizing.at_speed(part)
    trial = trial_of(question, plan.single.layout, plan.single.weight_dtype, terms, cache)
    busy = None if isinstance(trial, Reason) else replicas_at_speed(trial, part, terms)
    return None if busy is None else (busy,)


def by_traffic(
    question: Question, plan: Plan, terms: Terms, cache: SearchCache, ratios: Sequence[float]
) -> list[Busy | None]:
    """Return the replicas in service that a plan's layout takes at other traffic, each counted by simulation.

    A replica is simulated at a share of the traffic, so the runs of one question serve every multiple of it.

    Parameters
    ----------
    question : of today
    plan : its layout stays
    terms : headroom
    cache : runs of the same question before
    ratios : [-]
        traffic over today's

    Returns
    -------
    by ratio; None where no number of replicas is enough
    """
    trial = trial_of(question, plan.single.layout, plan.single.weight_dtype, terms, cache)
    if isinstance(trial, Reason):
        return [None] * len(ratios)
    counts = (
        busy_replicas(trial, trial.limits, question.slo.confidence, terms, traffic_ratio=ratio)
        for ratio in ratios
    )
    return [None if busy is None else (busy,) for busy in counts]
