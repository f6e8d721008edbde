"""Open loops of the live engine, measured and simulated with the same arrivals and lengths: with the engine's own step times, and with a calibration.

`python -m calibrate.live.queueing FOLDER [CALIBRATION MODEL]` prints the table.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from calibrate.live.loads import CLOSED, OPEN
from capplan.engine.profile import Scheduling
from capplan.numbers import Array
from capplan.replica.replica import replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup

SCHEDULING = Scheduling("mixed", 32, 512, block_tokens=128)
KV_BLOCKS = 408
"""1 GiB in float32."""
LEAST_STEPS = 4
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


def measured_table(steps: Sequence[tuple[int, int, float]], request_s: float) -> StepTable:
    """Return step times of an engine: medians by sequences of steps without prompts, and by tokens of steps with them."""
    decodes, prompts = defaultdict(list), defaultdict(list)
    for tokens, sequences, seconds in steps:
        if tokens:
            prompts[32 * round((tokens + sequences) / 32) or 1].append(seconds)
        else:
            decodes[sequences].append(seconds)
    by_sequences = _medians(decodes)
    by_tokens = _medians(prompts)
    one, zero = np.ones(1), np.zeros(1)
    sizes = np.array([n for n, _ in by_sequences], float)
    token_knots = np.array([n for n, _ in by_tokens], float)
    return StepTable(
        sequence_knots=sizes,
        decode_s=np.array([seconds for _, seconds in by_sequences]),
        head_s=np.zeros(sizes.size),
        context_knots=zero,
        decode_attention_s=np.zeros((sizes.size, 1)),
        token_knots=token_knots,
        mixed_s=np.array([seconds for _, seconds in by_tokens]),
        new_knots=one,
        past_knots=zero,
        prefill_attention_s=np.zeros((1, 1)),
        request_s=request_s,
    )


def _medians(groups: dict[int, list[float]]) -> list[tuple[int, float]]:
    return [(key, median(groups[key])) for key in sorted(groups) if len(groups[key]) >= LEAST_STEPS]


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
    outcome = simulate(replace(requests, arrival_s=None) if users else requests, engine, concurrency=users)
    return {"ttft": outcome.ttft_s, "tpot": outcome.tpot_s[np.isfinite(outcome.tpot_s)]}


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


def row(name: str, records: Sequence[dict[str, Any]], engine: EngineSetup) -> dict[str, Any]:
    """Return measured and predicted statistics, means over repeats, and the spread of the measured ones."""
    found: dict[str, Any] = {"load": name}
    for metric, part in STATISTICS:
        seen = [float(np.percentile(measured(record)[metric], part)) for record in records]
        own = [float(np.percentile(simulated(record, engine)[metric], part)) for record in records]
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


def main(words: list[str]) -> int:
    """Print the open loops with measured step times, then with a calibration."""
    folder = Path(words[0])
    logs = [path.read_text().splitlines() for path in sorted(folder.glob("steps.*.jsonl"))]
    steps = [step for lines in logs for step in steps_of(lines)]
    closed_log = next(iter(sorted(folder.glob("steps.closed-*.jsonl")))).read_text().splitlines()
    request_s = front_end_s(records_of(folder, CLOSED[0].name)[0], closed_log, 3)
    print(f"front end: {1e3 * request_s:.1f} ms a request; {len(steps)} steps")
    engines = {
        "step times of the engine's own log": EngineSetup(
            measured_table(steps, request_s), SCHEDULING, KV_BLOCKS
        )
    }
    for calibration in words[2:]:
        engines[Path(calibration).name] = calibrated_engine(Path(calibration), Path(words[1]))
    for title, engine in engines.items():
        names = [load.name for load in (*CLOSED, *OPEN) if records_of(folder, load.name)]
        printed(title, [row(name, records_of(folder, name), engine) for name in names])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
