"""Why a plan has so many GPUs and costs so much: what each cause adds, one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from capplan.fleet.group import Group
from capplan.fleet.plan import Plan
from capplan.fleet.search.load_scale import replicas_at
from capplan.money.price import usd_per_month

Cause: TypeAlias = Literal["saturated", "headroom", "confidence", "spares", "machines", "hours"]


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """What a plan comes to with a cause and all causes before it."""

    step: Cause
    gpus: int
    usd_per_month: float | None
    """None without a price."""
    key: str | None
    """Key of the scenario that removes what the step adds; None for the first step, which the traffic takes."""


def waterfall(plan: Plan) -> tuple[WaterfallStep, ...]:
    """Return the GPUs and the monthly cost of a plan cause by cause, each step with those before it.

        saturated    n = ceil(R / l)
        headroom     n = ceil(R / ((1 - h) l))
        confidence   n replicas in service
        spares       n replicas of the plan

        G = sum(n g),   C = 730 u sum(n g p)

        machines     C = u c                    idle GPUs of the machines too
        hours        C = c                      all hours

    Separate pools are sized with headroom and confidence at once, and start with `confidence`.

    Parameters
    ----------
    plan : groups with rate R at the peak, limit l of a replica, headroom h, g GPUs a replica at the price p of their order; the plan costs c a
        month, and its mean load is u of the peak

    Returns
    -------
    G and C of each step, with the key of the scenario that removes it; those of the last step are the plan's
    """
    order, month = plan.order, plan.usd_per_month
    sizes = [
        (cause, _gpus(plan, replicas), _usd(plan, replicas), key) for cause, replicas, key in _sizes(plan)
    ]
    if month is None:
        return tuple(WaterfallStep(cause, gpus, None, key) for cause, gpus, _, key in sizes)
    hours = _mean_load_fraction(plan)
    steps = [WaterfallStep(cause, gpus, hours * min(usd, month), key) for cause, gpus, usd, key in sizes]
    if order is not None and order.gpus_idle:
        steps.append(WaterfallStep("machines", plan.gpus, hours * month, "fleet.machines"))
    if hours < 1.0:
        steps.append(WaterfallStep("hours", plan.gpus, month, "commitments"))
    return *steps[:-1], replace(steps[-1], usd_per_month=month)


def _sizes(plan: Plan) -> Iterator[tuple[Cause, Sequence[int], str | None]]:
    """Yield the replicas of each group with every cause that adds replicas, and its key."""
    groups = plan.groups
    if all(group.request_rate_limit_per_replica for group in groups):
        yield "saturated", [_least_replicas(group, 0.0) for group in groups], None
        if any(group.headroom_fraction for group in groups):
            planned = [_least_replicas(group, group.headroom_fraction) for group in groups]
            yield "headroom", planned, "fleet.headroom"
    yield "confidence", [group.busy_replicas for group in groups], "slo.confidence"
    if plan.spare_replicas:
        key = next(group.survive.key for group in groups if group.spare_replicas)
        yield "spares", [group.replicas for group in groups], key


def _least_replicas(group: Group, headroom_fraction: float) -> int:
    """Return how many replicas carry the peak of a group as predicted; its limit rests on loads of a scale, so never more than it has."""
    peak = group.request_rate_per_replica * group.busy_replicas
    limit = (group.request_rate_limit_per_replica or 0.0) * (1.0 - headroom_fraction)
    return replicas_at(peak, limit) if peak < limit * group.busy_replicas else group.busy_replicas


def _gpus(plan: Plan, replicas: Sequence[int]) -> int:
    return sum(count * group.gpus_per_replica for group, count in zip(plan.groups, replicas, strict=True))


def _usd(plan: Plan, replicas: Sequence[int]) -> float:
    """Return what some replicas of each group cost a month at the price of a GPU in their order."""
    hourly = (
        count * group.gpus_per_replica * group.quote.total_usd_per_hour
        for group, count in zip(plan.groups, replicas, strict=True)
        if group.quote is not None
    )
    return float(usd_per_month(sum(hourly)))


def _mean_load_fraction(plan: Plan) -> float:
    """Return the mean load over the peak; 1 where the cost of a token at the peak is not known.

    Tokens cost as many times more at the mean load as there are fewer of them.
    """
    of_mean = plan.money.usd_per_million_tokens_at_mean if plan.money else None
    if not of_mean or plan.usd_per_million_tokens is None:
        return 1.0
    fraction = plan.usd_per_million_tokens / of_mean
    return fraction if fraction < 1.0 - 1e-9 else 1.0
