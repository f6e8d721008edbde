"""Traffic that grows by the month: when a plan no longer holds, what to buy when, and what the months cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from capplan.fleet.over_time import ReplicasAt
from capplan.fleet.plan import Plan, ordered_text
from capplan.money.commitments import Mix
from capplan.money.price import usd_per_month
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

    def at_prices(self, price_ratios: Sequence[float], mix_usd: Sequence[float]) -> "Growth":
        """Return the same fleets at other prices.

        Parameters
        ----------
        price_ratios : [-]
            prices of each month over those of the first
        mix_usd : [$]
            cost of each month by its mix; empty without one
        """
        rows = tuple(
            replace(
                row,
                gpu_price_ratio=ratio,
                usd_per_month=None if row.usd_per_month is None else row.usd_per_month * ratio,
                mix_usd_per_month=mix_usd[row.month - 1] if mix_usd else None,
            )
            for row, ratio in zip(self.months, price_ratios, strict=True)
        )
        return replace(self, months=rows)

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

    Returns
    -------
    Growth; replicas that are no longer needed are given back
    """
    peak = plan.peak_requests_per_s
    needed = [[needed_at(peak * ratio) for ratio in ratios.tolist()] for needed_at in replicas_at]
    rows: list[GrowthMonth] = []
    mixes: list[Mix] = []
    before = plan
    for month, ratio in enumerate(ratios.tolist(), start=1):
        grown = plan.resized([counts[month - 1] for counts in needed])
        counts = [group.replicas for group in grown.groups]
        mix = mix_of_month(ratio, grown)
        mixes += [] if mix is None else [mix]
        rows.append(
            GrowthMonth(
                month=month,
                request_rate=peak * ratio,
                replicas=grown.replicas,
                gpus=grown.gpus,
                added_gpus=grown.gpus - before.gpus,
                usd_per_month=grown.usd_per_month,
                mix_usd_per_month=None if mix is None else float(usd_per_month(mix.usd_per_hour)),
                pool_replicas=tuple(counts) if len(counts) > 1 else None,
                machines=ordered_text(grown),
            )
        )
        before = grown
    outgrown = next((row.month for row in rows if _outgrown(row, plan)), None)
    return Growth(tuple(rows), outgrown, tuple(mixes))


def _outgrown(row: GrowthMonth, plan: Plan) -> bool:
    """Return whether a month needs more replicas than a plan has, of any kind."""
    counts = row.pool_replicas or (row.replicas,)
    return any(count > group.replicas for count, group in zip(counts, plan.groups, strict=True))
