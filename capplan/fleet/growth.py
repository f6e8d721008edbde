"""Traffic that grows by the month: when a plan no longer holds, what to buy when, and what the months cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from capplan.fleet.over_time import ReplicasAt
from capplan.fleet.plan import Plan, ordered_text
from capplan.money.commitments import Mix, cash_of, falling_ratios
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
    """Request rate at the peak [req/s]."""
    replicas: int
    """Spares included."""
    gpus: int
    added_gpus: int
    """More than the month before; in the first month more than today's plan."""
    usd_per_month: float | None
    """All replicas at all hours."""
    mix_usd_per_month: float | None
    """Cost by the cheapest mix of commitments; None where none are named."""
    pool_replicas: tuple[int, ...] | None
    """Prefill and decode, or the groups of a mix; None where all replicas are alike."""
    machines: str | None
    """Machines of the order of that month; None if GPUs are bought by the piece, or without a price."""
    gpu_price_ratio: float = 1.0
    """Prices of GPUs over those of the first month."""

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
    mixes: tuple[Mix, ...] = ()
    """The cheapest mix of commitments of each month; empty where none are named."""

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
    plan: Plan,
    ratios: Array,
    mix_of_month: Callable[[float, Plan], Mix | None],
    replicas_at: Sequence[ReplicasAt],
    decline_fraction: float = 0.0,
) -> Growth:
    """Return the fleets of successive months: the layout of the plan, as many replicas as the rule that sized it asks for.

    Pools grow alike, beyond the load that both of them carry together.

    Parameters
    ----------
    plan : today's
    ratios : [-]
        traffic of each month over today's
    mix_of_month : (ratio, plan of the month) -> the cheapest mix of that month, None without commitments
    replicas_at : of each group, the rate of the service -> replicas in service
    decline_fraction : [-]
        yearly fall of the prices of GPUs

    Returns
    -------
    Growth; replicas that are no longer needed are given back
    """
    rates = (plan.peak_requests_per_s * ratios).tolist()
    plans = [plan.resized([needed_at(rate) for needed_at in replicas_at]) for rate in rates]
    found = (mix_of_month(ratio, grown) for ratio, grown in zip(ratios.tolist(), plans, strict=True))
    mixes = tuple(mix for mix in found if mix is not None)
    paid = cash_of(mixes, decline_fraction).months
    prices = falling_ratios(decline_fraction, len(plans)).tolist()
    rows: list[GrowthMonth] = []
    for at, (grown, rate) in enumerate(zip(plans, rates, strict=True)):
        counts, usd = tuple(group.replicas for group in grown.groups), grown.usd_per_month
        rows.append(
            GrowthMonth(
                month=at + 1,
                request_rate=rate,
                replicas=grown.replicas,
                gpus=grown.gpus,
                added_gpus=grown.gpus - (plans[at - 1] if at else plan).gpus,
                usd_per_month=None if usd is None else usd * prices[at],
                mix_usd_per_month=paid[at].cost_usd if paid else None,
                pool_replicas=counts if len(counts) > 1 else None,
                machines=ordered_text(grown),
                gpu_price_ratio=prices[at],
            )
        )
    outgrown = next((row.month for row in rows if _outgrown(row, plan)), None)
    return Growth(tuple(rows), outgrown, mixes)


def _outgrown(row: GrowthMonth, plan: Plan) -> bool:
    """Return whether a month needs more replicas than a plan has, of any kind."""
    counts = row.pool_replicas or (row.replicas,)
    return any(count > group.replicas for count, group in zip(counts, plan.groups, strict=True))
