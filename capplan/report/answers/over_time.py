"""Replicas over time: the table and the record that `capplan fleet` adds for a trace."""

from dataclasses import asdict
from typing import Any

import numpy as np

from capplan.assumption import Assumption
from capplan.fleet.over_time import OverTime
from capplan.fleet.pools.plan import POOLS
from capplan.questions.outlook import Outlook
from capplan.report.answer import Table

ROWS = 24


def over_time_result(over_time: OverTime) -> dict[str, Any]:
    """Return GPUs and GPU-hours over the time of a trace."""
    gpus = over_time.gpus_per_replica
    return {
        "window_s": over_time.window_s,
        "start_up_s": over_time.start_up_s,
        "peak_to_mean_ratio": over_time.peak_to_mean_ratio,
        "static_replicas": over_time.static_replicas,
        "static_gpus": over_time.static_replicas * gpus,
        "static_gpu_hours": over_time.static_gpu_hours,
        "autoscaled_gpu_hours": over_time.gpu_hours(over_time.paid),
        "autoscaled_short_fraction": over_time.short_fraction,
        "foreseen_gpu_hours": over_time.gpu_hours(over_time.foreseen),
        "burst_ratio": over_time.burst_ratio,
        "spares": [asdict(row) for row in over_time.spares],
        "request_rate": over_time.rates_per_s.tolist(),
        "needed_gpus": (over_time.needed * gpus).tolist(),
        "autoscaled_gpus": (over_time.autoscaled * gpus).tolist(),
        "autoscaled_paid_gpus": (over_time.paid * gpus).tolist(),
        "foreseen_gpus": (over_time.foreseen * gpus).tolist(),
    }


def over_time_tables(over_time: OverTime, pool: str = "") -> tuple[Table, ...]:
    """Return the ways to run the trace, the spares, and the GPUs over time in at most 24 spans; of one pool, if it is named."""
    of = f"{pool} pool: " if pool else ""
    gpus = over_time.gpus_per_replica
    ways = [
        {"way": "static, sized for the busiest minute", "gpus": over_time.static_replicas * gpus, "gpu_hours": over_time.static_gpu_hours, "requests_short_fraction": 0.0},
        {"way": "autoscaled on the observed rate", "gpus": int(over_time.autoscaled.max()) * gpus, "gpu_hours": over_time.gpu_hours(over_time.paid), "requests_short_fraction": over_time.short_fraction},
        {"way": "autoscaled with a perfect forecast", "gpus": int(over_time.foreseen.max()) * gpus, "gpu_hours": over_time.gpu_hours(over_time.foreseen), "requests_short_fraction": 0.0},
    ]  # fmt: skip
    width = -(-over_time.needed.size // ROWS)
    spans = []
    for at in range(0, over_time.needed.size, width):
        part = slice(at, at + width)
        spans.append(
            {
                "start_s": at * over_time.window_s,
                "peak_requests_per_s": float(over_time.rates_per_s[part].max()),
                "needed_gpus": int(over_time.needed[part].max()) * gpus,
                "autoscaled_gpus": int(np.max(over_time.autoscaled[part])) * gpus,
                "foreseen_gpus": int(np.max(over_time.foreseen[part])) * gpus,
            }
        )
    spares = [asdict(row) for row in over_time.spares]
    titles = {
        "failed_replicas": "replicas that may fail",
        "burst_replicas": "replicas for the burst",
        "burst_gpus": "GPUs for the burst",
        "requests_short_fraction": "requests over capacity",
    }
    return (
        Table(
            ways,
            title=f"{of}The chosen plan over the trace; peak-to-mean ratio {over_time.peak_to_mean_ratio:.2f}",
            titles=titles,
        ),
        Table(
            spares,
            title=f"{of}Static fleet with N + k redundancy, and for a burst of {over_time.burst_ratio:g} times the peak",
            titles=titles,
        ),
        Table(spans, title=f"{of}GPUs over time, maximum of each interval"),
    )


def over_time_assumptions(over_time: OverTime) -> tuple[Assumption, ...]:
    """Return what the figures over time rest on."""
    return (
        Assumption(
            f"a replica takes {over_time.start_up_s:g} s to start, and is paid for from the decision to start it",
            "fleet.start_up",
        ),
        Assumption(f"a burst is {over_time.burst_ratio:g} times the busiest minute", "fleet.burst"),
    )


def over_time_parts(outlook: Outlook) -> dict[str, OverTime]:
    """Return the replicas over time by pool; without a name where all of them are alike."""
    if outlook.over_time is not None:
        return {"": outlook.over_time}
    return dict(zip(POOLS, outlook.pools_over_time, strict=False))


def outlook_over_time(outlook: Outlook) -> dict[str, Any] | None:
    """Return GPUs and GPU-hours over time, of each pool where the plan has some; None without a load curve."""
    parts = {pool: over_time_result(part) for pool, part in over_time_parts(outlook).items()}
    return parts.get("", parts or None)
