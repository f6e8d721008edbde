"""Traffic that grows by the month: when a plan no longer holds, what to buy when, and what the months cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from capplan.fleet.over_time import replicas_over_time
from capplan.fleet.plan import FleetPlan
from capplan.numbers import Array


def grown_ratios(growth_fraction: float, months: int) -> Array:
    """Return the traffic of successive months over that of the first, growing by the same part each month.

        x_m = (1 + g)^(m - 1),   m = 1 ... n

    Parameters
    ----------
    growth_fraction : [-]
        g, from one month to the next
    months : [months]
        n, the first one is today's

    Returns
    -------
    [-]
        x

    Examples
    --------
    >>> grown_ratios(1.0, 3).tolist()
    [1.0, 2.0, 4.0]
    """
    return np.asarray((1.0 + growth_fraction) ** np.arange(months))


@dataclass(frozen=True, slots=True)
class GrowthMonth:
    """The fleet of one month."""

    month: int
    """1 is today."""
    request_rate: float
    """At the peak [req/s]."""
    replicas: int
    """Spares included."""
    gpus: int
    added_gpus: int
    """More than the month before; in the first month more than today's plan."""
    usd_per_month: float | None
    """All replicas at all hours."""
    mix_usd_per_month: float | None
    """By the cheapest mix of commitments; None where none are named."""

    @property
    def paid_usd(self) -> float | None:
        """Return what the month costs: by the mix where there is one."""
        return self.usd_per_month if self.mix_usd_per_month is None else self.mix_usd_per_month


@dataclass(frozen=True, slots=True)
class Growth:
    """A plan as its traffic grows."""

    months: tuple[GrowthMonth, ...]
    outgrown_in_month: int | None
    """First month in which today's plan is too small; None: not within the horizon."""

    @property
    def usd(self) -> float | None:
        """Cost of all months, all replicas at all hours."""
        return _sum([row.usd_per_month for row in self.months])

    @property
    def mix_usd(self) -> float | None:
        """Cost of all months by the cheapest mix of each."""
        return _sum([row.mix_usd_per_month for row in self.months])


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def growth_of(
    plan: FleetPlan,
    ratios: Array,
    headroom_fraction: float,
    mix_usd_per_month: Callable[[float, int], float | None],
) -> Growth:
    """Return the fleets of successive months: the layout of the plan, as many replicas as the rule that sized it asks for.

    Parameters
    ----------
    plan : today's
    ratios : [-]
        traffic of each month over today's
    headroom_fraction : [-]
    mix_usd_per_month : (ratio, replicas with spares) -> cost of the month by its cheapest mix [$], None without commitments

    Returns
    -------
    Growth; replicas that are no longer needed are given back
    """
    peak = plan.request_rate_per_replica * plan.busy_replicas
    carried = plan.planned_rate_per_replica(headroom_fraction)
    busy = replicas_over_time(peak * ratios, carried, 0.0, carried)
    each = None if plan.usd_per_month is None else plan.usd_per_month / plan.replicas
    rows: list[GrowthMonth] = []
    before = plan.replicas
    for month, (ratio, needed) in enumerate(zip(ratios.tolist(), busy.tolist(), strict=True), start=1):
        replicas = needed + plan.spare_replicas
        rows.append(
            GrowthMonth(
                month=month,
                request_rate=peak * ratio,
                replicas=replicas,
                gpus=replicas * plan.layout.devices,
                added_gpus=(replicas - before) * plan.layout.devices,
                usd_per_month=None if each is None else each * replicas,
                mix_usd_per_month=mix_usd_per_month(ratio, replicas),
            )
        )
        before = replicas
    outgrown = next((row.month for row in rows if row.replicas > plan.replicas), None)
    return Growth(tuple(rows), outgrown)
