"""What a plan costs across the offers of its devices: at the lowest, at the one that it is priced at, at the highest."""

from collections.abc import Sequence
from dataclasses import dataclass

from capplan.fleet.plan import Plan
from capplan.fleet.price import SIDES, PriceRecord, Side


@dataclass(frozen=True, slots=True)
class OfferedCost:
    """A plan at one end of the offers, or at the likely price."""

    usd_per_hour: float
    """Price of all devices, with electricity where it is paid separately."""
    records: tuple[PriceRecord, ...]
    """The offers that it is from; empty where the scenario states every price."""
    usd_per_job: float | None
    """None for continuous traffic."""


def offered_costs(plan: Plan) -> dict[Side, OfferedCost]:
    """Return what a plan costs at each side of the offers; empty where a price is unknown.

        c_s = c  sum_i(g_i p_i,s) / sum_i(g_i p_i)

    g are the devices of a pool, p their price with electricity: each device is taken at its own lowest or highest offer,
    whoever makes it.

    Parameters
    ----------
    plan : with identical replicas or with separate pools; its cost c is the likely one

    Returns
    -------
    by side, lowest first
    """
    sums, job_hours = dict[Side, float](), plan.money.job_hours if plan.money else None
    records: dict[Side, tuple[PriceRecord, ...]] = {}
    for side in SIDES:
        parts = [group.price.at(side) for group in plan.groups if group.price is not None]
        if len(parts) < len(plan.groups) or plan.usd_per_hour is None:
            return {}
        sums[side] = sum(usd * group.gpus for (usd, _), group in zip(parts, plan.groups, strict=True))
        records[side] = tuple(dict.fromkeys(offer for _, offers in parts for offer in offers))
    likely = sums["likely"] or 1.0
    hourly = {side: (plan.usd_per_hour or 0.0) * usd / likely for side, usd in sums.items()}
    return {
        side: OfferedCost(usd, records[side], None if job_hours is None else usd * job_hours)
        for side, usd in hourly.items()
    }


def named_offers(records: Sequence[PriceRecord]) -> str:
    """Return who offers a price and the day of the offer; empty for none.

    Examples
    --------
    >>> named_offers([PriceRecord("b200", "Lambda", "on-demand", 4.99, "list", date="2026-08-21")])
    'Lambda, 2026-08-21'
    """
    return " and ".join(f"{record.provider}, {record.date or 'date unknown'}" for record in records)
