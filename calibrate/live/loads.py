"""Loads for times: closed loops for the fit, open loops that are not in it, each repeated: `python -m calibrate.live.loads ENVIRONMENT FOLDER closed|open`."""

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from calibrate.live.bench_files import bench_record
from calibrate.live.model import write_model
from calibrate.live.scheduler_runs import tokens
from calibrate.live.server import LIMITS, Live, on_processor, running
from capplan.calibrate.endpoint.client import Answered, Endpoint, Question, answered, endpoint_of
from capplan.calibrate.endpoint.series import open_loop, shared_loop

INPUT, OUTPUT = 128, 32


@dataclass(frozen=True, slots=True)
class Load:
    """One run."""

    name: str
    users: int = 0
    share: float = 0.0
    """Rate of an open loop over the highest rate of the closed loops."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of gaps; 1 is Poisson, less is bursty."""
    sigma: float = 0.0
    """Of lognormal lengths; 0: all alike."""
    requests: int = 60
    input_tokens: int = INPUT
    output_tokens: int = OUTPUT
    seed: int = 1
    """Of prompts and arrivals: repeats are the same load."""


CLOSED = tuple(
    Load(f"closed-{users}", users=users, requests=max(8, 5 * users)) for users in (1, 2, 4, 6, 8, 12)
)
OPEN = (
    Load("open-30", share=0.3, requests=30),
    Load("open-60", share=0.6),
    Load("open-80", share=0.8, requests=80),
    Load("open-95", share=0.95, requests=90),
    Load("bursty-60", share=0.6, burstiness=0.25),
    Load("lognormal-60", share=0.6, sigma=0.7),
    Load("lognormal-bursty-70", share=0.7, burstiness=0.4, sigma=0.7, requests=70),
)


def questions(load: Load, draw: random.Random) -> list[Question]:
    """Return the requests of a load, no two with the same prompt."""

    def length(mean: int) -> int:
        if not load.sigma:
            return mean
        return max(4, min(1500, round(mean * draw.lognormvariate(-(load.sigma**2) / 2, load.sigma))))

    return [
        Question(tokens(draw, length(load.input_tokens)), length(load.output_tokens))
        for _ in range(load.requests)
    ]


def run(load: Load, server: Endpoint, rate: float) -> list[Answered]:
    """Send a load; the rate [1/s] is that of an open loop."""
    draw = random.Random(load.seed)  # lengths and times
    asked = questions(load, draw)
    if load.users:
        return shared_loop(server, asked, load.users)
    times, now_s = [], 0.0
    for _ in asked:
        times.append(now_s)
        now_s += draw.gammavariate(load.burstiness, 1.0 / (rate * load.burstiness))
    return open_loop(server, asked, times)


def capacity_per_s(folder: Path) -> float:
    """Return the highest rate of the closed loops in a folder [1/s], mean over their repeats."""
    rates = [
        fmean(
            json.loads(path.read_text())["request_throughput"] for path in folder.glob(f"{load.name}.*.json")
        )
        for load in CLOSED
    ]
    return max(rates)


def measured(
    loads: Sequence[Load],
    environment: Path,
    folder: Path,
    repeat: int,
    rate: Callable[[Load], float],
) -> None:
    """Start the engine, warm it, run the loads, and write a record each and the log of its steps.

    Parameters
    ----------
    loads : in turn
    environment : of the engine
    folder : for the records
    repeat : [-]
        number in the names of the files
    rate : of an open loop [1/s]
    """
    model = write_model(folder / "tiny")
    with running(on_processor(environment), model, folder / "server", LIMITS) as live:
        sent_in_turn(loads, live, folder, repeat, rate)


def sent_in_turn(
    loads: Sequence[Load], live: Live, folder: Path, repeat: int, rate: Callable[[Load], float]
) -> None:
    """Warm a running engine, run loads, and write a record each and the log of their steps; see `measured`."""
    server = replace(endpoint_of(live.url), model="tiny")
    before = live.steps.stat().st_size
    warmed(server)
    for load in loads:
        sent(load, server, 0.0 if load.users else rate(load), folder / f"{load.name}.{repeat}.json")
    with live.steps.open("rb") as log:
        log.seek(before)
        (folder / f"steps.{loads[0].name}.{repeat}.jsonl").write_bytes(log.read())


def warmed(server: Endpoint) -> None:
    """Send a few requests that no load counts."""
    for count in (16, 128, 512):
        answered(server, Question(tuple(range(10, 10 + count)), 8))


def sent(load: Load, server: Endpoint, per_s: float, path: Path) -> dict[str, Any]:
    """Send a load, write its record to a file, and return it; the rate [1/s] is that of an open loop."""
    record = bench_record(
        run(load, server, per_s),
        model=server.model,
        request_rate=per_s or None,
        max_concurrency=load.users or None,
        burstiness=load.burstiness,
    )
    path.write_text(json.dumps(record) + "\n")
    shown = {name: round(record.get(f"mean_{name}_ms", 0.0), 1) for name in ("ttft", "tpot")}
    print(
        path.stem, shown, f"{record['request_throughput']:.2f} per s", record["failed"], "failed", flush=True
    )
    return record


def main(words: list[str]) -> int:
    """Run one series, as often as there are repeats; each sends the same requests at the same times."""
    environment, folder, series, *repeats = words
    at = Path(folder)
    for repeat in map(int, repeats or ["1", "2"]):
        loads = CLOSED if series == "closed" else OPEN
        measured(loads, Path(environment), at, repeat, lambda load: load.share * capacity_per_s(at))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
