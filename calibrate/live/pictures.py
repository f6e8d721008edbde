"""Draw an open loop, measured and simulated: `python -m calibrate.live.pictures FOLDER LOAD FILE.svg`."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.live.loads import CLOSED, OPEN
from calibrate.live.queueing import (
    ALONE,
    KV_BLOCKS,
    SCHEDULING,
    RecordedClock,
    logged_steps,
    measured,
    simulated,
)
from capplan.numbers import Array
from capplan.report.charts.of_answers import Line, Lines
from capplan.report.charts.svg import titled_svg
from capplan.serving.terms import EngineSetup


def in_system(start_s: Array, end_s: Array, at_s: Array) -> Array:
    """Return how many requests have been sent and not answered at each time."""
    counted = np.searchsorted(np.sort(start_s), at_s, side="right") - np.searchsorted(np.sort(end_s), at_s)
    return counted.astype(np.float64)


def draw(folder: Path, load: str, file: Path, repeat: int = 1) -> None:
    """Draw the distribution of TTFT and the requests in the system over time, measured and simulated."""
    record: dict[str, Any] = json.loads((folder / f"{load}.{repeat}.json").read_text())
    steps, _ = logged_steps(folder, OPEN, repeat)[load]
    _, request_s = logged_steps(folder, CLOSED, repeat)[ALONE]
    engine = EngineSetup(RecordedClock(steps, request_s), SCHEDULING, KV_BLOCKS)
    own, seen = simulated(record, engine), measured(record)
    start = np.array(record["start_times"])
    at_s, order = np.linspace(0.0, float(np.max(start)) + 3.0, 400), np.sort(start)
    waits = [
        Line(name, np.sort(values).tolist(), (np.arange(1, values.size + 1) / values.size).tolist(), "step")
        for name, values in (("measured", seen["ttft"]), ("simulated", own["ttft"]))
    ]
    counts = [
        Line(name, at_s.tolist(), in_system(begin, begin + lasts_s, at_s).tolist(), "step")
        for name, begin, lasts_s in (
            ("measured", start, np.array(record["latencies"])),
            ("simulated", order, own["e2e"]),
        )
    ]
    charts = (
        Lines(load, "ttft_s", "fraction", tuple(waits), x_title="time to first token", y_title="share of requests"),
        Lines("requests in the system", "s", "count", tuple(counts), x_title="time", y_title="sent and not answered"),
    )  # fmt: skip
    file.write_text(titled_svg(charts), encoding="utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
