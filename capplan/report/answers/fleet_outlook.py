"""What `capplan fleet` adds about time: replicas over a day, the months to come, energy."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from capplan.assumption import Assumption
from capplan.fleet.group import PHASES
from capplan.fleet.growth import Growth
from capplan.fleet.over_time import OverTime
from capplan.money.energy import Energy
from capplan.questions.money.energy import Outlook
from capplan.report.answer import Table, columns, row_of
from capplan.scenario.scenario_file import Scenario

ROWS = 24


def over_time_result(over_time: OverTime) -> dict[str, Any]:
    """Return GPUs and GPU-hours over the time of a trace."""
    gpus = over_time.gpus_per_replica
    return {
        **row_of(over_time, "window_s start_up_s peak_to_mean_ratio static_replicas"),
        "static_gpus": over_time.static_replicas * gpus,
        "static_gpu_hours": over_time.static_gpu_hours,
        "autoscaled_gpu_hours": over_time.gpu_hours(over_time.paid),
        "autoscaled_short_fraction": over_time.short_fraction,
        "foreseen_gpu_hours": over_time.gpu_hours(over_time.foreseen),
        "burst_ratio": over_time.burst_ratio,
        "spares": list(over_time.spares),
        "request_rate": over_time.rates_per_s.tolist(),
        "needed_gpus": (over_time.needed * gpus).tolist(),
        "autoscaled_gpus": (over_time.autoscaled * gpus).tolist(),
        "autoscaled_paid_gpus": (over_time.paid * gpus).tolist(),
        "foreseen_gpus": (over_time.foreseen * gpus).tolist(),
    }


def over_time_tables(over_time: OverTime, pool: str = "") -> Iterator[Table]:
    """Yield the ways to run the trace, the spares, and the GPUs over time in at most 24 spans; of one pool, if it is named."""
    of = f"{pool} pool: " if pool in PHASES else f"{pool}: " if pool else ""
    gpus = over_time.gpus_per_replica
    ways = [
        {"way": "static, sized for the busiest minute", "gpus": over_time.static_replicas * gpus, "gpu_hours": over_time.static_gpu_hours, "requests_short_fraction": 0.0},
        {"way": "autoscaled on the observed rate", "gpus": int(over_time.autoscaled.max()) * gpus, "gpu_hours": over_time.gpu_hours(over_time.paid), "requests_short_fraction": over_time.short_fraction},
        {"way": "autoscaled with a perfect forecast", "gpus": int(over_time.foreseen.max()) * gpus, "gpu_hours": over_time.gpu_hours(over_time.foreseen), "requests_short_fraction": 0.0},
    ]  # fmt: skip
    width = -(-over_time.needed.size // ROWS)
    spans = [
        {
            "start_s": at * over_time.window_s,
            "peak_requests_per_s": float(over_time.rates_per_s[at : at + width].max()),
            **{
                f"{name}_gpus": int(np.max(getattr(over_time, name)[at : at + width])) * gpus
                for name in ("needed", "autoscaled", "foreseen")
            },
        }
        for at in range(0, over_time.needed.size, width)
    ]
    yield Table(
        ways,
        title=f"{of}The chosen plan over the trace; peak-to-mean ratio {over_time.peak_to_mean_ratio:.2f}",
    )
    yield Table(
        over_time.spares,
        title=f"{of}Static fleet with N + k redundancy, and for a burst of {over_time.burst_ratio:g} times the peak",
    )
    yield Table(spans, title=f"{of}GPUs over time, maximum of each interval")


def over_time_assumptions(over_time: OverTime) -> tuple[Assumption, ...]:
    """Return what the figures over time rest on."""
    return (
        Assumption(
            f"a replica takes {over_time.start_up_s:g} s to start, and is paid for from the decision to start it",
            "fleet.start_up",
        ),
        Assumption(f"a burst is {over_time.burst_ratio:g} times the busiest minute", "fleet.burst"),
    )


def outlook_over_time(outlook: Outlook) -> dict[str, Any] | None:
    """Return GPUs and GPU-hours over time, of each pool where the plan has some; None without a load curve."""
    parts = {pool: over_time_result(part) for pool, part in outlook.over_time.items()}
    return parts.get("", parts or None)


_GROWTH_TITLES = {"request_rate": "peak", "pools": "by group"}


def growth_result(growth: Growth | None) -> dict[str, Any] | None:
    """Return the fleets of the months to come."""
    if growth is None:
        return None
    return {
        "months": [asdict(row) for row in growth.months],
        "outgrown_in_month": growth.outgrown_in_month,
        "usd_over_horizon": growth.usd,
        "mix_usd_over_horizon": growth.mix_usd,
    }


def growth_tables(growth: Growth | None) -> tuple[Table, ...]:
    """Return what is needed and bought in which month."""
    if growth is None:
        return ()
    rows = [
        asdict(row) | {"pools": row.pool_replicas and " + ".join(map(str, row.pool_replicas))}
        for row in growth.months
    ]
    shown = columns(
        "month request_rate replicas pools gpus added_gpus machines gpu_price_ratio usd_per_month mix_usd_per_month"
    )
    if all(row["gpu_price_ratio"] == 1.0 for row in rows):
        rows = [row | {"gpu_price_ratio": None} for row in rows]
    kept = tuple(name for name in shown if any(row[name] is not None for row in rows))
    return (Table(rows, title=_growth_title(growth), shown=kept, titles=_GROWTH_TITLES),)


def _growth_title(growth: Growth) -> str:
    """Return for how long the plan is enough, and what all months cost if their prices are known."""
    month, months = growth.outgrown_in_month, growth.months
    title = f"Growth: today's plan holds for all {len(months)} months"
    if month is not None:
        peak = months[month - 1].request_rate
        title = f"Growth: today's plan no longer holds in month {month}, at a peak of {peak:.3g} req/s"
    if growth.usd is None:
        return title
    mix = "" if growth.mix_usd is None else f", ${growth.mix_usd:,.0f} with the mix of each"
    return f"{title}; {len(months)} months cost ${growth.usd:,.0f}{mix}"


def growth_closing(growth: Growth | None, scenario: Scenario) -> Iterator[str]:
    """Yield the limits that growth reaches, and when."""
    if growth is None:
        return
    most, budget = scenario.file.fleet.max_gpus, scenario.budget
    over = next((row.month for row in growth.months if most is not None and row.gpus > most), None)
    if over:
        yield f"fleet.max_gpus of {most} is exceeded in month {over}"
    if budget is None:
        return
    today = growth.months[0].request_rate
    for row in growth.months:
        ratio = row.request_rate / today
        if (row.paid_usd or 0.0) > budget.machines_usd_per_month(ratio):
            parts = f", which leaves {budget.left_text(ratio)} for machines," if budget.includes else ""
            yield f"the budget of ${budget.usd_per_month:,.0f} per month{parts} is exceeded in month {row.month}"
            break


_ENERGY_TITLES = {"phase": ""}
_SERVER_TITLES = {
    "count": "servers",
    "gpus": "GPUs each",
    "watts": "each",
}


def energy_result(energy: Energy | None) -> dict[str, Any] | None:
    """Return power by phase, energy by month or job and by token, carbon dioxide and racks."""
    if energy is None:
        return None
    span = "month" if energy.job_hours is None else "job"
    return {
        "phases": list(energy.phases),
        **row_of(energy, "gpu_watts server_watts facility_watts design_watts"),
        f"kwh_per_{span}": energy.kwh,
        **row_of(energy, "joules_per_output_token kwh_per_million_output_tokens kwh_per_million_tokens"),
        f"electricity_usd_per_{span}": energy.usd,
        f"kg_co2_per_{span}": energy.kg_co2,
        "servers": [asdict(one) | {"racks": one.racks} for one in energy.servers],
        **row_of(energy, "racks rack_watts gpus_per_rack"),
    }


def energy_tables(energy: Energy | None) -> Iterator[Table]:
    """Yield what the devices do for how much of the time, and the energy of the fleet."""
    if energy is None:
        return
    result = energy_result(energy) or {}
    shown = tuple(
        name for name, value in result.items() if name not in ("phases", "servers") and value is not None
    )
    servers = [row | {"sku": row["sku"] or row["device"]} for row in result["servers"]]
    columns = ("sku", "count", "gpus", "watts") + (("per_rack", "racks") if energy.racks else ())
    yield Table(energy.phases, title="Power of a GPU by phase, spares included", titles=_ENERGY_TITLES)
    yield Table([result], title="Energy", shown=shown, titles=_ENERGY_TITLES, upright=True)
    yield Table(servers, title="Servers at the wall, at most", shown=columns, titles=_SERVER_TITLES)
