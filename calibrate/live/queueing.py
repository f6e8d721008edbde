"""Open loops of the live engine, measured and simulated with the same arrivals and lengths: with the engine's own step times, and with a calibration.

`python -m calibrate.live.queueing FOLDER [CALIBRATION MODEL]` prints the table.
"""

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from calibrate.live.loads import CLOSED, OPEN, Load
from capplan.engine.profile import Scheduling
from capplan.numbers import Array
from capplan.replica.replica import replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.requests import Requests, offered
from capplan.serving.simulator import served
from capplan.serving.step_table import DecodeRow, StepClock, StepTable
from capplan.serving.terms import EngineSetup

SCHEDULING = Scheduling("mixed", 32, 512, block_tokens=128)
KV_BLOCKS = 408
"""1 GiB in float32."""
WARM_UP_REQUESTS = 3
IN_ORDER = (CLOSED[0].name, OPEN[0].name)
"""Loads whose requests reach the engine in the order in which they are sent."""
TOKENS_ALIKE = 32
"""Steps with prompts are alike if their tokens round to the same multiple."""
LEAST_STEPS = 2
STATISTICS = (("ttft", 50), ("ttft", 95), ("tpot", 50), ("tpot", 95))
NEVER_IDLE_S = 0.005
"""A gap between the output of a step and the next plan that is shorter belongs to the step."""


def steps_of(lines: Iterable[str]) -> list[tuple[int, int, float]]:
    """Return prompt tokens, decoding sequences and seconds of each step, up to the plan of the next one where the engine stays busy."""
    found: list[tuple[int, int, float]] = []
    begun: dict[str, Any] | None = None
    ended_s = 0.0
    for line in lines:
        row = json.loads(line)
        if "batch" in row:
            if begun is not None:
                until_s = row["at_s"] if row["at_s"] - ended_s < NEVER_IDLE_S else ended_s
                found.append(_step(begun, until_s))
            begun = row
        elif "output_s" in row:
            ended_s = row["output_s"] + row["updated_s"]
    if begun is not None and ended_s > begun["at_s"]:
        found.append(_step(begun, ended_s))
    return found


def _step(row: dict[str, Any], until_s: float) -> tuple[int, int, float]:
    prompts = [tokens for _, tokens, _ in row["batch"] if tokens > 1]
    return sum(prompts), len(row["batch"]) - len(prompts), until_s - row["at_s"]


class DrawnRow(DecodeRow):
    """Decode steps of one number of sequences, each as long as one that was recorded."""

    __slots__ = ("_draw", "_seconds")

    def __init__(self, seconds: Sequence[float], draw: random.Random) -> None:
        """Take the recorded times."""
        super().__init__(median(seconds), [0.0], [0.0])
        self._seconds, self._draw = seconds, draw

    def run(self, context: float, steps: int, limit_s: float = inf, growth: float = 1.0) -> tuple[int, float]:  # noqa: ARG002
        """Return how many steps run until the limit, and how long they take."""
        done, total = 0, 0.0
        while done < steps and (not done or total < limit_s):
            done, total = done + 1, total + self._draw.choice(self._seconds)
        return done, total


class DrawnClock(StepClock):
    """Times of steps as they were recorded: each is drawn from the recorded steps that are most like it."""

    __slots__ = ("_decodes", "_draw", "_drawn_rows", "_prompts")

    def __init__(self, steps: Sequence[tuple[int, int, float]], request_s: float, seed: int) -> None:
        """Group the recorded steps: without prompts by sequences, with them by tokens."""
        one, zero = np.ones(1), np.zeros(1)
        table = StepTable(
            one, one, zero, one, zero[None], one, one, one, zero, zero[None], request_s=request_s
        )
        super().__init__(table)
        self._draw = random.Random(seed)
        decodes, prompts = defaultdict(list), defaultdict(list)
        for tokens, sequences, seconds in steps:
            if tokens:
                prompts[TOKENS_ALIKE * round((tokens + sequences) / TOKENS_ALIKE)].append(seconds)
            else:
                decodes[sequences].append(seconds)
        self._decodes = {key: values for key, values in decodes.items() if len(values) >= LEAST_STEPS}
        self._prompts = {key: values for key, values in prompts.items() if len(values) >= LEAST_STEPS}
        self._drawn_rows: dict[int, DrawnRow] = {}

    def row(self, sequences: int) -> DrawnRow:
        """Return the decode steps of this number of sequences, or of the nearest number that was recorded."""
        if sequences not in self._drawn_rows:
            nearest = min(self._decodes, key=lambda key: abs(key - sequences))
            self._drawn_rows[sequences] = DrawnRow(self._decodes[nearest], self._draw)
        return self._drawn_rows[sequences]

    def mixed_step_s(
        self,
        sequences: int,
        context: float,  # noqa: ARG002
        chunks: Sequence[tuple[int, int]],
        query_tokens: int = 1,
    ) -> float:
        """Return the time of a step with prompts: of one with about as many tokens, or in proportion where none was recorded."""
        tokens = sequences * query_tokens + sum(new for new, _ in chunks)
        nearest = min(self._prompts, key=lambda key: abs(key - tokens))
        far = abs(nearest - tokens) > TOKENS_ALIKE
        return self._draw.choice(self._prompts[nearest]) * (tokens / nearest if far else 1.0)


def front_end_s(record: dict[str, Any], lines: Sequence[str], skip: int) -> float:
    """Return the median time that a request spends outside the engine before its first token.

    Parameters
    ----------
    record : of a load, in the order in which requests were sent
    lines : log of the server
    skip : [-]
        requests in the log before those of the load
    """
    added: dict[str, float] = {}
    sizes: dict[str, int] = {}
    first: dict[str, float] = {}
    waiting: list[str] = []
    for line in lines:
        row = json.loads(line)
        if "added" in row:
            added[row["added"]], sizes[row["added"]] = row["at_s"], row["prompt_tokens"]
        elif "batch" in row:
            waiting = [name for name, tokens, before in row["batch"] if before + tokens == sizes[name]]
        elif "output_s" in row:
            for name in waiting:
                first.setdefault(name, row["output_s"] + row["updated_s"])
    names = list(added)[skip : skip + len(record["ttfts"])]
    outside = [
        float(ttft) - (first[name] - added[name]) for name, ttft in zip(names, record["ttfts"], strict=True)
    ]
    return median(outside)


def simulated(record: dict[str, Any], engine: EngineSetup) -> dict[str, Array]:
    """Return TTFT and TPOT by request [s] of the requests of a record, at the times when they were sent."""
    order = np.argsort(record["start_times"], kind="stable")
    requests = Requests(
        np.array(record["input_lens"], dtype=np.int64)[order],
        np.array(record["output_lens"], dtype=np.int64)[order],
        np.array(record["start_times"])[order],
    )
    users = record["max_concurrency"]
    load, crowd = offered(replace(requests, arrival_s=None) if users else requests, users, None)
    outcome = served(load, engine, crowd=crowd)
    return {
        "ttft": outcome.ttft_s,
        "tpot": outcome.tpot_s[np.isfinite(outcome.tpot_s)],
        "e2e": outcome.e2e_s,
    }


def measured(record: dict[str, Any]) -> dict[str, Array]:
    """Return TTFT and TPOT by request [s]."""
    ttft, e2e = np.array(record["ttfts"]), np.array(record["latencies"])
    more = np.array(record["output_lens"]) - 1
    return {"ttft": ttft, "tpot": ((e2e - ttft) / np.maximum(more, 1))[more > 0]}


def calibrated_engine(calibration: Path, model: Path) -> EngineSetup:
    """Return the engine as a calibration describes it."""
    flags = ServingFlags(
        calibration=calibration, weight_dtype="fp32", kv_dtype="fp32", engine="vllm", engine_version="0.32.0",
        max_model_len=4096, max_num_seqs=32, max_num_batched_tokens=512, offline=True,
    )  # fmt: skip
    spec = replace(asked_replica(str(model), "measured", flags).spec, offline=False)
    return EngineSetup(replica_of(spec).table, SCHEDULING, KV_BLOCKS)


def row(name: str, records: Sequence[dict[str, Any]], engines: Sequence[EngineSetup]) -> dict[str, Any]:
    """Return measured and predicted statistics, means over repeats, and the spread of the measured ones.

    Parameters
    ----------
    name : of the load
    records : one a repeat
    engines : for each repeat, or one for all
    """
    found: dict[str, Any] = {"load": name}
    pairs = list(zip(records, engines if len(engines) > 1 else list(engines) * len(records), strict=True))
    runs = [(measured(record), simulated(record, engine)) for record, engine in pairs]
    for metric, part in STATISTICS:
        seen = [float(np.percentile(run[metric], part)) for run, _ in runs]
        own = [float(np.percentile(run[metric], part)) for _, run in runs]
        mean = float(np.mean(seen))
        found[f"{metric}_p{part}"] = {
            "measured_s": mean,
            "predicted_s": float(np.mean(own)),
            "error": float(np.mean(own)) / mean - 1.0,
            "noise": (max(seen) - min(seen)) / mean,
        }
    return found


def printed(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print measured, predicted, error and noise of each statistic."""
    print(f"\n{title}\n{'load':14}" + "".join(f"{f'{m} p{p}':>34}" for m, p in STATISTICS))
    for found in rows:
        cells = []
        for metric, part in STATISTICS:
            cell = found[f"{metric}_p{part}"]
            cells.append(
                f"{1e3 * cell['measured_s']:9.0f} {1e3 * cell['predicted_s']:7.0f} {cell['error']:+7.0%} ±{cell['noise']:6.0%}"
            )
        print(f"{found['load']:14}" + "".join(f"{cell:>34}" for cell in cells))


def records_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the records of a load, one a repeat."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}.*.json"))]


def logged_steps(
    folder: Path, loads: Sequence[Load], repeat: int
) -> dict[str, tuple[list[tuple[int, int, float]], float]]:
    """Return the steps of each load of a series and what a request spends outside the engine, from the log of one server."""
    lines = (folder / f"steps.{loads[0].name}.{repeat}.jsonl").read_text().splitlines()
    found, first, sent = {}, 0, WARM_UP_REQUESTS
    starts = [place for place, line in enumerate(lines) if line.startswith('{"added"')]
    for load in loads:
        record = json.loads((folder / f"{load.name}.{repeat}.json").read_text())
        until = sent + len(record["ttfts"])
        first, last = starts[sent], starts[until] if until < len(starts) else len(lines)
        found[load.name] = steps_of(lines[first:last]), front_end_s(record, lines, sent)
        sent = until
    return found


def main(words: list[str]) -> int:
    """Print the loads with the steps that were recorded under them, then with each calibration; write FOLDER/table.json."""
    folder = Path(words[0])
    repeats = {load.name: len(records_of(folder, load.name)) for load in (*CLOSED, *OPEN)}
    logs = [
        logged_steps(folder, loads, repeat)
        for loads in (CLOSED, OPEN)
        for repeat in range(1, 1 + min(repeats[load.name] for load in loads))
    ]
    outside = [log[name][1] for log in logs for name in IN_ORDER if name in log]
    print(
        f"outside the engine: {1e3 * min(outside):.1f} to {1e3 * max(outside):.1f} ms a request, median {1e3 * median(outside):.1f}"
    )
    own: dict[str, list[EngineSetup]] = defaultdict(list)
    for seed, log in enumerate(logs):
        for name, (steps, _) in log.items():
            own[name].append(EngineSetup(DrawnClock(steps, median(outside), seed), SCHEDULING, KV_BLOCKS))
    tables = {"the steps of the engine's own log": own}
    for calibration in words[2:]:
        engine = calibrated_engine(Path(calibration), Path(words[1]))
        tables[Path(calibration).name] = {name: [engine] for name in own}
    written = {}
    for title, engines in tables.items():
        written[title] = [row(name, records_of(folder, name), engines[name]) for name in own]
        printed(title, written[title])
    (folder / "table.json").write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
