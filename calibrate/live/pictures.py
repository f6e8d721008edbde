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
from capplan.serving.terms import EngineSetup


def in_system(start_s: Array, end_s: Array, at_s: Array) -> Array:
    """Return how many requests have been sent and not answered at each time."""
    counted = np.searchsorted(np.sort(start_s), at_s, side="right") - np.searchsorted(np.sort(end_s), at_s)
    return counted.astype(np.float64)


def draw(folder: Path, load: str, file: Path, repeat: int = 1) -> None:
    """Draw the distribution of TTFT and the requests in the system over time, measured and simulated."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "live"
    record: dict[str, Any] = json.loads((folder / f"{load}.{repeat}.json").read_text())
    steps, _ = logged_steps(folder, OPEN, repeat)[load]
    _, request_s = logged_steps(folder, CLOSED, repeat)[ALONE]
    engine = EngineSetup(RecordedClock(steps, request_s), SCHEDULING, KV_BLOCKS)
    own, seen = simulated(record, engine), measured(record)
    start = np.array(record["start_times"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    for values, name in ((seen["ttft"], "measured"), (own["ttft"], "simulated")):
        left.step(
            1e3 * np.sort(values), np.arange(1, values.size + 1) / values.size, where="post", label=name
        )
    left.set(xlabel="time to first token (ms)", ylabel="share of requests", title=load)
    left.legend()
    at_s = np.linspace(0.0, float(np.max(start)) + 3.0, 400)
    right.step(at_s, in_system(start, start + np.array(record["latencies"]), at_s), label="measured")
    order = np.sort(start)
    right.step(at_s, in_system(order, order + own["e2e"], at_s), label="simulated")
    right.set(xlabel="time (s)", ylabel="requests sent and not answered")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
