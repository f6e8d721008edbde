"""Cost against certainty, as a chart."""

from collections.abc import Sequence

from capplan.fleet.plan import Certainty
from capplan.report.charts.records import Bar, Bars


def certainty_chart(rows: Sequence[Certainty]) -> Bars | None:
    """Return what the cheapest fleet costs a month at each confidence; None where no cost is known."""
    bars = tuple(
        Bar(f"{row.confidence:.0%} sure: {row.gpus} x {row.hardware}", (("cost", row.usd_per_month),))
        for row in rows
        if row.usd_per_month is not None
    )
    return (
        Bars("Cost per month of the cheapest fleet, by confidence", "usd_per_month", bars) if bars else None
    )
