"""Open loops of the live engine, measured and simulated with the same arrivals and lengths: with the engine's own step times, and with a calibration.

`python -m calibrate.live.queueing FOLDER [CALIBRATION MODEL]` prints the table.
"""

import json
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from calibrate.live.loads import CLOSED, OPEN, Load
from calibrate.live.python_core import outcome_of, python_engine
from capplan.engine.profile import Scheduling
from capplan.numbers import Array
from capplan.replica.replica import Replica, replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.requests import Requests, offered
from capplan.serving.step_table import StepClock, StepTable
from capplan.serving.terms import EngineSetup

SCHEDULING = Scheduling("mixed", 32, 512, block_tokens=128)
KV_BLOCKS = 408
"""1 GiB in float32."""
WARM_UP_REQUESTS = 3
ALONE = CLOSED[0].name
"""The load whose requests wait for nothing: what they spend outside the engine is theirs."""
TOKENS_ALIKE = 32
"""Steps with prompts are alike if their tokens round to the same multiple."""
LEAST_STEPS = 2
STATISTICS = tuple((metric, part) for metric in ("ttft", "tpot") for part in (50, 95, 99))
NEVER_IDLE_S = 0.005
"""A gap between the output of a step and the next plan that is shorter belongs to the step."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of the engine."""

    start_s: float
    """After the first request of the load."""
    prompt_tokens: int
    sequences: int
    """That decode."""
    seconds: float
    context: float = 0.0
    """Mean tokens in the cache per decoding sequence."""
    chunks: tuple[tuple[int, int], ...] = ()
    """New and cached tokens of each prompt."""


def steps_of(lines: Iterable[str]) -> list[RecordedStep]:
    """Return the steps, each up to the plan of the next one where the engine stays busy."""
    found: list[RecordedStep] = []
    begun: dict[str, Any] | None = None
    ended_s, first_s = 0.0, nan
    for line in lines:
        row = json.loads(line)
        if "added" in row and isnan(first_s):
            first_s = row["at_s"]
        if "batch" in row:
            if begun is not None:
                until_s = row["at_s"] if row["at_s"] - ended_s < NEVER_IDLE_S else ended_s
                found.append(_step(begun, until_s, first_s))
            begun = row
        elif "output_s" in row:
            ended_s = row["output_s"] + row["updated_s"]
    if begun is not None and ended_s > begun["at_s"]:
        found.append(_step(begun, ended_s, first_s))
    return found


def _step(row: dict[str, Any], until_s: float, first_s: float) -> RecordedStep:
    chunks = tuple((tokens, before) for _, tokens, before in row["batch"] if tokens > 1)
    contexts = [before for _, tokens, before in row["batch"] if tokens == 1]
    return RecordedStep(
        row["at_s"] - first_s, sum(new for new, _ in chunks), len(contexts), until_s - row["at_s"],
        fmean(contexts) if contexts else 0.0, chunks,
    )  # fmt: skip


def predicted_step_s(step: RecordedStep, clock: StepClock) -> float:
    """Return what a calibration says of the time of a recorded step."""
    if step.chunks:
        return clock.mixed_step_s(step.sequences, step.context, step.chunks)
    return clock.row(step.sequences).step_s(step.context)


def pace(steps: Sequence[RecordedStep], clock: StepClock) -> float:
    """Return how long all steps of a load took over what is predicted for the same batches: how slow the machine was meanwhile."""
    return sum(step.seconds for step in steps) / sum(predicted_step_s(step, clock) for step in steps)


class RecordedSteps:
    """Recorded steps that are alike, in order of their starts."""

    __slots__ = ("seconds", "starts")

    def __init__(self, steps: Sequence[RecordedStep]) -> None:
        """Take the steps of one kind."""
        ordered = sorted(steps, key=lambda step: step.start_s)
        self.starts = [step.start_s for step in ordered]
        self.seconds = [step.seconds for step in ordered]

    def nearest_s(self, at_s: float) -> float:
        """Return how long the step took that began nearest to a time.

        Examples
        --------
        >>> alike = RecordedSteps([RecordedStep(0.0, 0, 4, 0.03), RecordedStep(2.0, 0, 4, 0.05)])
        >>> alike.nearest_s(0.9), alike.nearest_s(1.1)
        (0.03, 0.05)
        """
        after = bisect_left(self.starts, at_s)
        near = [place for place in (after - 1, after) if 0 <= place < len(self.starts)]
        return self.seconds[min(near, key=lambda place: abs(self.starts[place] - at_s))]


class RecordedClock(StepClock):
    """Times of steps as they were recorded: each takes as long as the recorded step that is most like it and nearest in time.

    So what slowed the machine for a while slows the same steps here, and what is left to compare is the queue.
    """

    __slots__ = ("_decodes", "_prompts")

    def __init__(self, steps: Sequence[RecordedStep], request_s: float) -> None:
        """Group the recorded steps: without prompts by sequences, with them by tokens."""
        one, zero = np.ones(1), np.zeros(1)
        table = StepTable(
            one, one, zero, one, zero[None], one, one, one, zero, zero[None], request_s=request_s
        )
        super().__init__(table)
        decodes, prompts = defaultdict(list), defaultdict(list)
        for step in steps:
            if step.prompt_tokens:
                prompts[_rounded(step.prompt_tokens + step.sequences)].append(step)
            else:
                decodes[step.sequences].append(step)
        self._decodes, self._prompts = _grouped(decodes), _grouped(prompts)

    def time(self, engine: Any) -> None:
        """Let the steps of an engine of `python_engine` take as long as the recorded ones."""

        def run(sequences: int, context: float, steps: int, limit_s: float) -> float:
            del context
            alike = self._decodes[min(self._decodes, key=lambda key: abs(key - sequences))]
            done, total = 0, 0.0
            while done < steps and (not done or total < limit_s):
                done, total = done + 1, total + alike.nearest_s(engine.now_s + total)
            engine.step += done
            return total

        def step_s(decoding: int, context: float) -> float:
            del context
            tokens = decoding + sum(engine.chunk_tokens[: engine.chunks])
            nearest = min(self._prompts, key=lambda key: abs(key - tokens))
            far = abs(nearest - tokens) > TOKENS_ALIKE
            return self._prompts[nearest].nearest_s(engine.now_s) * (tokens / nearest if far else 1.0)

        engine.run, engine.step_s = run, step_s


def _rounded(tokens: int) -> int:
    return max(TOKENS_ALIKE * round(tokens / TOKENS_ALIKE), TOKENS_ALIKE)


def _grouped(found: Mapping[int, Sequence[RecordedStep]]) -> dict[int, RecordedSteps]:
    """Return the kinds of step that were recorded often enough; all of them where none was."""
    often = {key: steps for key, steps in found.items() if len(steps) >= LEAST_STEPS}
    return {key: RecordedSteps(steps) for key, steps in (often or found).items()}


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
    """Return TTFT, TPOT and end-to-end latency by request [s] of the requests of a record, at the times when they were sent."""
    order = np.argsort(record["start_times"], kind="stable")
    requests = Requests(
        np.array(record["input_lens"], dtype=np.int64)[order],
        np.array(record["output_lens"], dtype=np.int64)[order],
        np.array(record["start_times"])[order],
    )
    users = record["max_concurrency"]
    load, crowd = offered(replace(requests, arrival_s=None) if users else requests, users, None)
    clock = engine.clock
    core = python_engine(load, replace(engine, table=clock), crowd=crowd)
    if isinstance(clock, RecordedClock):
        clock.time(core)
    outcome = outcome_of(core)
    return {
        "ttft": outcome.ttft_s,
        "tpot": outcome.tpot_s[np.isfinite(outcome.tpot_s)],
        "e2e": outcome.e2e_s,
    }


def slowed(record: dict[str, Any], engine: EngineSetup, slowness: float) -> dict[str, Array]:
    """Return the same of a replica whose every step takes `slowness` times as long."""
    quicker = {**record, "start_times": [at_s / slowness for at_s in record["start_times"]]}
    return {metric: slowness * values for metric, values in simulated(quicker, engine).items()}


def measured(record: dict[str, Any]) -> dict[str, Array]:
    """Return TTFT, TPOT and end-to-end latency by request [s]."""
    ttft, e2e = np.array(record["ttfts"]), np.array(record["latencies"])
    more = np.array(record["output_lens"]) - 1
    return {"ttft": ttft, "tpot": ((e2e - ttft) / np.maximum(more, 1))[more > 0], "e2e": e2e}


def calibrated_replica(calibration: Path, model: Path) -> Replica:
    """Return the replica as a calibration describes it."""
    flags = ServingFlags(
        calibration=calibration, weight_dtype="fp32", kv_dtype="fp32", engine="vllm", engine_version="0.32.0",
        max_model_len=4096, max_num_seqs=32, max_num_batched_tokens=512, offline=True,
    )  # fmt: skip
    spec = replace(asked_replica(str(model), "measured", flags).spec, offline=False)
    return replica_of(spec)


def engine_of(replica: Replica) -> EngineSetup:
    """Return the engine with the limits of the loads."""
    return EngineSetup(replica.table, SCHEDULING, KV_BLOCKS)


def row(
    name: str,
    records: Sequence[dict[str, Any]],
    engines: Sequence[EngineSetup],
    paces: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return measured and predicted statistics, means over repeats, and the spread of the measured ones.

    Parameters
    ----------
    name : of the load
    records : one a repeat
    engines : for each repeat, or one for all
    paces : how slow the machine was in each repeat; None: as fast as the engines say
    """
    found: dict[str, Any] = {"load": name}
    pairs = list(zip(records, engines if len(engines) > 1 else list(engines) * len(records), strict=True))
    speeds = paces or [1.0] * len(pairs)
    runs = [
        (measured(record), slowed(record, engine, speed))
        for (record, engine), speed in zip(pairs, speeds, strict=True)
    ]
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
) -> dict[str, tuple[list[RecordedStep], float]]:
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
        for loads in (tuple(load for load in series if repeats[load.name]) for series in (CLOSED, OPEN))
        for repeat in range(1, 1 + min(repeats[load.name] for load in loads))
    ]
    outside = [log[ALONE][1] for log in logs if ALONE in log]
    print(
        f"outside the engine: {1e3 * min(outside):.1f} to {1e3 * max(outside):.1f} ms a request, median {1e3 * median(outside):.1f}"
    )
    own: dict[str, list[EngineSetup]] = defaultdict(list)
    for log in logs:
        for name, (recorded, _) in log.items():
            own[name].append(EngineSetup(RecordedClock(recorded, median(outside)), SCHEDULING, KV_BLOCKS))
    tables = {"own_steps": [row(name, records_of(folder, name), own[name]) for name in own]}
    printed("own_steps", tables["own_steps"])
    for calibration in words[2:]:
        title = Path(calibration).name.partition(".")[0]
        engine = engine_of(calibrated_replica(Path(calibration), Path(words[1])))
        taken = {name: [log[name][0] for log in logs if name in log] for name in own}
        paces = {name: [pace(of_repeat, engine.clock) for of_repeat in taken[name]] for name in own}
        tables[title] = [row(name, records_of(folder, name), [engine]) for name in own]
        tables[f"{title}_at_pace"] = [
            row(name, records_of(folder, name), [engine], paces[name]) for name in own
        ]
        for shown in (title, f"{title}_at_pace"):
            printed(shown, tables[shown])
        print_steps(title, taken, engine.clock)
    (folder / "table.json").write_text(json.dumps(tables, indent=1) + "\n")
    return 0


def print_steps(title: str, steps: Mapping[str, Sequence[Sequence[RecordedStep]]], clock: StepClock) -> None:
    """Print measured over predicted step times by load: the pace of each repeat, and the spread over single steps."""
    print(f"\n{title}: steps, measured over predicted")
    for name, repeats in steps.items():
        ratios = [step.seconds / predicted_step_s(step, clock) for repeat in repeats for step in repeat]
        paces = ", ".join(f"{pace(repeat, clock):.2f}" for repeat in repeats)
        low, middle, high = np.percentile(ratios, (10, 50, 90))
        print(f"{name:20} pace {paces:24} single steps {low:.2f}, {middle:.2f}, {high:.2f}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
