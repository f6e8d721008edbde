"""Replicas over time: the table and the record that `capplan fleet` adds for a trace."""

from dataclasses import asdict
from typing import Any

import numpy as np

from capplan.assumption import Assumption
from capplan.fleet.over_time import OverTime
from capplan.report.answer import Table

ROWS = 24


def over_time_result(found: OverTime) -> dict[str, Any]:
    """Return GPUs and GPU-hours over the time of a trace."""
    gpus = found.gpus_per_replica
    return {
        "window_s": found.window_s,
        "start_up_s": found.start_up_s,
        "peak_to_mean_ratio": found.peak_to_mean_ratio,
        "static_replicas": found.static_replicas,
        "static_gpus": found.static_replicas * gpus,
        "static_gpu_hours": found.static_gpu_hours,
        "autoscaled_gpu_hours": found.gpu_hours(found.autoscaled),
        "autoscaled_short_fraction": found.short_fraction,
        "foreseen_gpu_hours": found.gpu_hours(found.foreseen),
        "burst_ratio": found.burst_ratio,
        "spares": [asdict(row) for row in found.spares],
        "request_rate": found.rates_per_s.tolist(),
        "needed_gpus": (found.needed * gpus).tolist(),
        "autoscaled_gpus": (found.autoscaled * gpus).tolist(),
        "foreseen_gpus": (found.foreseen * gpus).tolist(),
    }


def over_time_tables(found: OverTime) -> tuple[Table, ...]:
    """Return the ways to run the trace, the spares, and the GPUs over time in at most 24 spans."""
    gpus = found.gpus_per_replica
    ways = [
        {"way": "static, enough for the busiest minute", "gpus": found.static_replicas * gpus, "gpu_hours": found.static_gpu_hours, "requests_short_fraction": 0.0},
        {"way": "autoscaled on what was seen", "gpus": int(found.autoscaled.max()) * gpus, "gpu_hours": found.gpu_hours(found.autoscaled), "requests_short_fraction": found.short_fraction},
        {"way": "autoscaled with a perfect forecast", "gpus": int(found.foreseen.max()) * gpus, "gpu_hours": found.gpu_hours(found.foreseen), "requests_short_fraction": 0.0},
    ]  # fmt: skip
    width = -(-found.needed.size // ROWS)
    spans = []
    for at in range(0, found.needed.size, width):
        part = slice(at, at + width)
        spans.append(
            {
                "start_s": at * found.window_s,
                "peak_requests_per_s": float(found.rates_per_s[part].max()),
                "needed_gpus": int(found.needed[part].max()) * gpus,
                "autoscaled_gpus": int(np.max(found.autoscaled[part])) * gpus,
                "foreseen_gpus": int(np.max(found.foreseen[part])) * gpus,
            }
        )
    spares = [asdict(row) for row in found.spares]
    titles = {
        "failed_replicas": "may be down",
        "burst_replicas": "replicas for the burst",
        "burst_gpus": "GPUs for the burst",
        "requests_short_fraction": "requests short of replicas",
    }
    return (
        Table(
            ways,
            title=f"The chosen plan over the trace, peak to mean {found.peak_to_mean_ratio:.2f}",
            titles=titles,
        ),
        Table(
            spares,
            title=f"Static fleet for N + k, and for a burst of {found.burst_ratio:g} times the peak",
            titles=titles,
        ),
        Table(spans, title="GPUs over time, most of each span"),
    )


def over_time_assumptions(found: OverTime) -> tuple[Assumption, ...]:
    """Return what the figures over time rest on."""
    return (
        Assumption(f"a replica serves {found.start_up_s:g} s after it was asked for", "fleet.start_up"),
        Assumption(f"a burst is {found.burst_ratio:g} times the busiest minute", "fleet.burst"),
    )
