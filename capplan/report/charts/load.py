"""Load against fleet over time, as a chart."""

import numpy as np

from capplan.fleet.over_time import OverTime
from capplan.report.charts.records import Line, Lines

POINTS = 96
"""A quarter of an hour each over a day."""


def load_chart(over_time: OverTime, pool: str = "") -> Lines:
    """Return the GPUs that the load needs, that an autoscaler pays for, and that a static fleet has, by the hour; of one pool, if it is named.

    Of every span the maximum is drawn, so that no peak is lost.
    """
    width = -(-over_time.needed.size // POINTS)
    starts = np.arange(0, over_time.needed.size, width)
    hours = tuple((starts * over_time.window_s / 3600.0).tolist())
    gpus = over_time.gpus_per_replica
    rates = np.maximum.reduceat(over_time.rates_per_s, starts)

    def line(name: str, replicas: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Line:
        counted = np.maximum.reduceat(replicas, starts) * gpus
        said = tuple(
            f"{count} GPUs at {rate:.3g} req/s, hour {hour:.3g}"
            for count, rate, hour in zip(counted.tolist(), rates.tolist(), hours, strict=True)
        )
        return Line(name, hours, tuple(map(float, counted.tolist())), "step", said)

    static = np.full_like(over_time.needed, over_time.static_replicas)
    return Lines(
        f"GPUs of the {pool} pool over time" if pool else "GPUs over time",
        "hours",
        "gpus",
        (
            line("static", static),
            line("autoscaled, paid for", over_time.paid),
            line("needed", over_time.needed),
        ),
        x_title="hours from the start",
        y_title="GPUs",
    )
