"""What vLLM did on a GPU next to what is predicted: decode steps, launches, whole loads, cache: `python -m calibrate.live.card_table [FOLDER]`.

Reads what `calibrate.live.card` wrote, packed by `calibrate.live.card_table --pack RAW [FOLDER]`; the kept records are those of an H100.
"""

import csv
import gzip
import io
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from calibrate.live.queueing import RecordedStep, measured, predicted_step_s, simulated
from capplan.hardware.device import Efficiency
from capplan.model.weight_format import FORMATS
from capplan.replica.replica import Replica, replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.terms import EngineSetup
from docs.generators.page_tables import Table

KEPT = Path(__file__).parent / "results" / "h100"
HARDWARE = "h100-sxm"
STATISTICS = ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95")
COLUMNS = ("planned_s", "output_s", "sequences", "context", "prompts")
CROWD = 64
"""Sequences of a decode step that reach nearly all experts of a model of this size where they are spread."""
BATCHES = (1, 4, 8, 16, 32, 64, 128)
"""Decode steps are grouped from one of these up to the next."""


def pack(raw: Path, to: Path) -> None:
    """Keep records, versions and cache sizes of a run, and of its steps what the table reads."""
    about = json.loads((raw / "about.json").read_text(encoding="utf-8"))
    for folder in sorted(path for path in raw.iterdir() if (path / "steps.jsonl.gz").exists()):
        kept = to / folder.name
        kept.mkdir(parents=True, exist_ok=True)
        records = {
            path.stem.removesuffix(".1"): json.loads(path.read_text()) for path in folder.glob("*.[12].json")
        }
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(_rows(folder / "steps.jsonl.gz"))
        _write(kept / "steps.csv.gz", text.getvalue())
        _write(kept / "records.json.gz", json.dumps(records, sort_keys=True))
        log = (folder / "server.log").read_text(encoding="utf-8", errors="replace")
        size = log.partition("GPU KV cache size: ")[2].partition(" tokens")[0]
        about[folder.name] = {**about.get(folder.name, {}), "kv_cache_tokens": int(size.replace(",", ""))}
    known = to / "about.json"
    before = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    about = {
        name: value for name, value in about.items() if not isinstance(value, dict) or "failed" not in value
    }
    known.write_text(json.dumps({**before, **about}, indent=1) + "\n", encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _rows(log: Path) -> Iterator[list[Any]]:
    """Yield a row for each step; the output of a step is the next one that is reported, also where a later step is planned before."""
    planned: list[dict[str, Any]] = []
    first_s = None
    with gzip.open(log, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if row.get("batch"):
                planned.append(row)
                first_s = first_s or row["at_s"]
            elif "output_s" in row and planned and first_s is not None:
                step = planned.pop(0)
                prompts = " ".join(f"{new}+{past}" for _, new, past in step["batch"] if new > 1)
                contexts = [past for _, new, past in step["batch"] if new == 1]
                yield [
                    f"{step['at_s'] + step['planned_s'] - first_s:.5f}", f"{row['output_s'] - first_s:.5f}",
                    len(contexts), round(sum(contexts) / max(len(contexts), 1)), prompts,
                ]  # fmt: skip


Timed = tuple[float, float, RecordedStep]
"""When a step was planned, when its output was there, and the step."""


def steps_of(folder: Path) -> list[Timed]:
    """Return the steps of a model; a step lasts from the output before it, or from its plan where the engine was idle."""
    found: list[Timed] = []
    with gzip.open(folder / "steps.csv.gz", "rt") as lines:
        for row in csv.DictReader(lines):
            planned_s, output_s = float(row["planned_s"]), float(row["output_s"])
            start_s = max(planned_s, found[-1][1]) if found else planned_s
            pairs = [pair.split("+") for pair in row["prompts"].split()]
            chunks = tuple((int(new), int(past)) for new, past in pairs)
            new = sum(count for count, _ in chunks)
            step = RecordedStep(
                start_s, new, int(row["sequences"]), output_s - start_s, float(row["context"]), chunks
            )
            found.append((planned_s, output_s, step))
    return found


def replica(model: str, version: str) -> Replica:
    """Return the replica, with a router that spreads tokens evenly over experts, as random weights do."""
    flags = ServingFlags(
        engine="vllm", engine_version=version, max_model_len=16384, gpu_memory_utilization=0.92, offline=True
    )
    spec = asked_replica(model.replace("--", "/"), HARDWARE, flags).spec
    return replica_of(replace(spec, efficiency=_evenly_routed(spec.efficiency), offline=False))


def with_cache(own: Replica, gib: float) -> Replica:
    """Return the replica with the cache that an engine was given [GiB]."""
    return replace(own, kv_blocks=int(own.kv_blocks * gib * 2**30 / float(own.memory.kv_bytes_available)))


def _evenly_routed(efficiency: Efficiency) -> Efficiency:
    fits = {
        key: replace(fit, numbers={**fit.numbers, "router_skew": 0.0})
        if "router_skew" in fit.numbers
        else fit
        for key, fit in efficiency.fits.items()
    }
    return replace(efficiency, fits=fits)


def decode_rows(steps: Sequence[Timed], own: Replica) -> Iterator[tuple[int, int, float, float]]:
    """Yield sequences, steps, and their median time measured and predicted [s]; steps that follow one without prompts count."""
    clock = EngineSetup(own.table, own.scheduling, own.kv_blocks).clock
    groups: dict[int, list[RecordedStep]] = defaultdict(list)
    for (_, before_s, last), (planned_s, _, step) in pairwise(steps):
        if not step.chunks and not last.chunks and planned_s < before_s:
            groups[max(batch for batch in BATCHES if batch <= step.sequences)].append(step)
    for batch, alike in sorted(groups.items()):
        own_s = median(predicted_step_s(step, clock) for step in alike)
        yield batch, len(alike), median(step.seconds for step in alike), own_s


def launch_rows(steps: Sequence[Timed], graph_tokens: float) -> dict[str, list[float]]:
    """Return how long the host launched each step with prompts [s]: until it looked for the output of the step before, or, under graphs, the whole of a short step."""
    found: dict[str, list[float]] = {"eager": [], "captured": []}
    for (_, before_s, _), (planned_s, output_s, step) in pairwise(steps):
        tokens = step.prompt_tokens + step.sequences
        if step.chunks and tokens > graph_tokens and before_s > planned_s:
            found["eager"].append(before_s - planned_s)
        elif step.chunks and tokens <= graph_tokens / 4 and before_s <= planned_s:
            found["captured"].append(output_s - planned_s)
    return found


def load_rows(records: Mapping[str, Any], own: Replica) -> Iterator[dict[str, Any]]:
    """Yield measured and simulated TTFT and TPOT of each load [s]."""
    engine = EngineSetup(own.table, own.scheduling, own.kv_blocks)
    for name, record in sorted(
        records.items(), key=lambda item: (item[0].split("-")[0], float(item[0].split("-")[1]))
    ):
        seen, expected = measured(record), simulated(record, engine)
        row: dict[str, Any] = {"load": name, "requests": len(record["ttfts"])}
        for key in STATISTICS:
            metric, _, part = key.partition("_p")
            values = [
                float(np.percentile(side[metric], float(part))) if side[metric].size else 0.0
                for side in (seen, expected)
            ]
            row[key] = values
        yield row


def paces(steps: Sequence[Timed], own: Replica) -> float:
    """Return the time of all steps over their predicted time, while the engine was busy."""
    clock = EngineSetup(own.table, own.scheduling, own.kv_blocks).clock
    seen = sum(step.seconds for _, _, step in steps)
    return seen / sum(predicted_step_s(step, clock) for _, _, step in steps)


def crowded(steps: Sequence[Timed], own: Replica) -> bool:
    """Return whether decode steps of 64 sequences are shorter than reading the experts that 64 even draws reach.

    Some random weights send all tokens of a step to the same few experts, which no router of a trained model does.
    """
    experts = [layer.experts for layer in own.spec.network.layers if layer.experts is not None]
    if not experts:
        return False
    reached = 1.0 - (1.0 - experts[0].experts_per_token / experts[0].experts) ** CROWD
    read_bytes = reached * sum(
        each.experts * elements * FORMATS[name].bytes_per_element
        for each in experts
        for name, elements, _ in each.matrices
    )
    alike = [step.seconds for _, _, step in steps if step.sequences == CROWD and not step.chunks]
    return median(alike) < read_bytes / own.spec.device.memory_bytes_per_s


Compared = dict[str, Any]
"""What one model did and what is predicted."""


def compared(folder: Path, about: Mapping[str, Any]) -> Compared:
    """Return what a model did and what is predicted."""
    own, steps = replica(folder.name, about["vllm"]), steps_of(folder)
    if "cache_gib" in about[folder.name]:
        own = with_cache(own, about[folder.name]["cache_gib"])
    records = json.loads(gzip.decompress((folder / "records.json.gz").read_bytes()))
    return {
        "model": folder.name.partition("--")[2],
        "cache": (about[folder.name]["kv_cache_tokens"], own.kv_blocks * own.scheduling.block_tokens),
        "crowded": crowded(steps, own),
        "pace": paces(steps, own),
        "decodes": {batch: (seen, expected) for batch, _, seen, expected in decode_rows(steps, own)},
        "layers": len(own.spec.network.layers),
        "launches": launch_rows(steps, own.spec.profile.host.graph_tokens),
        "loads": {row["load"]: row for row in load_rows(records, own)},
    }


Cell = Callable[[Compared], str]
"""What stands in a row of the table for a model."""


def _spread(cell: Cell) -> Cell:
    """Return a cell that is empty for models whose random weights do not spread the tokens over the experts."""
    return lambda found: "" if found["crowded"] else cell(found)


def _error(pair: Sequence[float]) -> float:
    return pair[1] / pair[0] - 1.0


def _range(found: Compared, statistic: str) -> str:
    errors = [_error(row[statistic]) for name, row in found["loads"].items() if name.startswith("closed")]
    return f"{min(errors):+.0%} to {max(errors):+.0%}"


def _decode(found: Compared, batch: int) -> str:
    return f"{1e3 * found['decodes'][batch][0]:.2f} ms, {_error(found['decodes'][batch]):+.0%}"


def _launch(found: Compared) -> str:
    each_s = median(found["launches"]["eager"])
    return f"{1e3 * each_s:.1f} ms, {1e3 * each_s / found['layers']:.2f} a layer"


def _open(found: Compared, metric: str, load: str) -> str:
    row = found["loads"].get(load)
    if row is None:
        return ""
    return ", ".join(f"{_error(row[f'{metric}_{part}']):+.0%}" for part in ("p50", "p95"))


def _alone(found: Compared) -> str:
    seen, expected = found["loads"]["closed-1"]["ttft_p50"]
    return f"{1e3 * seen:.1f} ms, {1e3 * expected:.1f}"


def _noise(found: Compared) -> str:
    """Largest change of a load that was sent twice."""
    loads = found["loads"]
    twice = [(loads[name.removesuffix(".2")], row) for name, row in loads.items() if name.endswith(".2")]
    if not twice:
        return ""
    changes = [
        max(abs(second[key][0] / first[key][0] - 1.0) for first, second in twice)
        for key in ("tpot_p50", "ttft_p50")
    ]
    return ", ".join(f"{change:.0%}" for change in changes)


ROWS: tuple[tuple[str, Cell], ...] = (
    ("cache: printed by the engine, predicted", lambda found: "{:,}, {:,} tokens".format(*found["cache"])),
    ("all steps, measured over predicted", _spread(lambda found: f"{found['pace']:.2f}")),
    ("decode step of 1 sequence: measured, predicted", lambda found: _decode(found, 1)),
    ("decode step of 8 to 15", _spread(lambda found: _decode(found, 8))),
    ("decode step of 32 to 63", _spread(lambda found: _decode(found, 32))),
    ("decode step of 128", _spread(lambda found: _decode(found, 128))),
    ("launches of a step with more than 512 tokens", _launch),
    ("closed loops of 1 to 128 users: TPOT p50", _spread(lambda found: _range(found, "tpot_p50"))),
    ("closed loops of 1 to 128 users: TTFT p50", _spread(lambda found: _range(found, "ttft_p50"))),
    (
        "open loop at 30 % of the highest rate: TPOT p50, p95",
        _spread(lambda found: _open(found, "tpot", "open-30")),
    ),
    ("open loop at 60 %: TPOT p50, p95", _spread(lambda found: _open(found, "tpot", "open-60"))),
    ("open loop at 30 %: TTFT p50, p95", _spread(lambda found: _open(found, "ttft", "open-30"))),
    ("open loop at 60 %: TTFT p50, p95", _spread(lambda found: _open(found, "ttft", "open-60"))),
    ("one user: TTFT measured, predicted", _alone),
    ("a closed loop again, with other prompts: TPOT p50, TTFT p50", _noise),
)
"""Rows of the table, and what stands in them for a model."""


def table(kept: Path = KEPT) -> Table:
    """Return what each model did and what is predicted, as docs/evidence/live-h100.csv."""
    about = json.loads((kept / "about.json").read_text(encoding="utf-8"))
    found = [compared(folder, about) for folder in sorted(kept.iterdir()) if folder.is_dir()]
    rows = [[title, *(cell(each) for each in found)] for title, cell in ROWS]
    return Table(["what", *(each["model"] for each in found)], rows)


def main(words: Sequence[str]) -> int:
    """Pack a run, or print the table of a kept one."""
    if words and words[0] == "--pack":
        to = Path(words[2]) if len(words) > 2 else KEPT
        to.mkdir(parents=True, exist_ok=True)
        pack(Path(words[1]), to)
        return 0
    print(table(Path(words[0]) if words else KEPT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
