"""Refit the memory numbers of the vLLM profiles to logged starts, and score them on held-out models.

    python -m calibrate.fit_memory memory_measured.csv [folder of config.json files named owner--model.json]

Fitted, per era of the engine: bytes of the sampler per logit, hidden-state tensors alive next to it, a constant;
memory outside the tensor allocator on one and on several devices. Printed next to the numbers in use.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from capplan.accuracy.memory import (
    disagreeing_starts,
    memory_predictions,
    predict_memory_row,
    row_launch,
    row_network,
    row_profile,
)
from capplan.accuracy.score import Prediction, scores_by_metric
from capplan.engine.lookup import version_key
from capplan.engine.profile import MemoryRules
from capplan.errors import CapplanError
from capplan.hardware.device import Device
from capplan.memory.capacity import stages_of
from capplan.memory.launch import Launch
from capplan.memory.rank import rank_activation_bytes
from capplan.model.network import Network
from capplan.model.weight_format import FORMATS
from capplan.numbers import GIB, Number
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.recorded.measured import measured_table

ENOUGH_FOR_ALL = 12
"""Starts below which only the bytes of the sampler are fitted."""
LEAN_SAMPLER = (0, 17, 0)
"""From this version on the sampler works without sorting copies."""

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Start:
    """One logged start that can be modelled."""

    row: Row
    network: Network
    device: Device

    @property
    def era(self) -> str:
        """Name of the set of numbers that applies."""
        engine = row_profile(self.row)
        if engine.engine != "vllm":
            return engine.engine
        return "lean" if (version_key(engine.version) or (0, 0, 0)) >= LEAN_SAMPLER else "sorting"


@dataclass(frozen=True, slots=True)
class Fitted:
    """Numbers of one era."""

    sampler_bytes: float
    resident_copies: float
    activation_base_bytes: float

    def applied(self, rules: MemoryRules) -> MemoryRules:
        """Return the rules with these numbers."""
        return replace(
            rules,
            sampler_bytes=self.sampler_bytes,
            resident_copies=self.resident_copies,
            activation_base_bytes=self.activation_base_bytes,
        )


def known_starts(rows: Iterable[Row], configs: Path | None = None) -> tuple[list[Start], dict[str, str]]:
    """Return the starts whose model and device are known, and why the others are not."""
    starts, refused = [], {}
    for row in rows:
        name = row["model_hf_id"]
        try:
            path = configs / f"{name.replace('/', '--')}.json" if configs else None
            network = read_model(str(path) if path and path.exists() else name, offline=True)
            starts.append(Start(row, network, device(row["gpu"])))
        except CapplanError as error:
            refused[row["id"]] = str(error).splitlines()[0]
    return starts, refused


def fitted(starts: Sequence[Start], era: str) -> Fitted | None:
    """Return the least-squares numbers of an era, from starts whose peak is the sampler's."""
    columns, targets = [], []
    for start in starts:
        if start.era != era or not start.row["activation_peak_gib"] or float(start.row["pp"]) > 1:
            continue
        if start.network.vision_parameters:
            continue  # images have a number of their own
        engine = row_profile(start.row)
        network = row_network(start.row, start.network)
        launch = _arrays(row_launch(start.row, network, start.device, engine))
        element = FORMATS[network.activation_format].bytes_per_element
        stage = stages_of(network, 1)[0]
        silent = replace(
            engine.memory, sampler_bytes=-element, resident_copies=0.0, activation_base_bytes=0.0
        )
        layers = _single(rank_activation_bytes(stage, network, launch, replace(engine, memory=silent)))
        buffers = replace(silent, hidden_copies=-1e9)
        kept = _single(rank_activation_bytes(stage, network, launch, replace(engine, memory=buffers)))
        measured = float(start.row["activation_peak_gib"]) * GIB
        if layers > 0.97 * measured:
            continue
        sequences, tokens = _single(launch.max_num_seqs), _single(launch.max_num_batched_tokens)
        logits = sequences * network.vocabulary_size
        columns.append((logits, tokens * network.hidden_size * element, GIB))
        targets.append(measured - kept - logits * element)
    if not columns:
        return None
    design, target = np.asarray(columns), np.asarray(targets)
    now = next(row_profile(start.row).memory for start in starts if start.era == era)
    copies, base = now.resident_copies, now.activation_base_bytes
    if len(columns) < ENOUGH_FOR_ALL:
        target = target - copies * design[:, 1] - base
        design = design[:, :1]
    scale = design.max(axis=0)
    solution = np.linalg.lstsq(design / scale, target, rcond=None)[0] / scale
    if len(solution) > 1:
        copies, base = float(solution[1]), float(solution[2]) * GIB
    return Fitted(float(solution[0]), copies, base)


def _arrays(launch: Launch) -> Launch:
    return Launch(*(np.asarray([getattr(launch, field.name)], dtype=np.float64) for field in fields(Launch)))


def _single(value: Number) -> float:
    return float(np.ravel(np.asarray(value))[0])


def predictions(starts: Sequence[Start], numbers: Mapping[str, Fitted | None]) -> list[Prediction]:
    """Return the predictions of the budget for the starts with numbers by era; an era without keeps those in use."""
    records = []
    for start in starts:
        engine = row_profile(start.row)
        changed = numbers.get(start.era)
        if changed is not None:
            engine = replace(engine, memory=changed.applied(engine.memory))
        try:
            found = predict_memory_row(start.row, start.network, start.device, engine)
            records += memory_predictions(start.row, start.row["id"], found)
        except CapplanError as error:
            records += memory_predictions(start.row, start.row["id"], None, str(error).splitlines()[0])
    return records


def left_out(starts: Sequence[Start]) -> list[Prediction]:
    """Return predictions of every model with numbers fitted only on the other models."""
    records: list[Prediction] = []
    eras = sorted({start.era for start in starts})
    for model in sorted({start.row["model_hf_id"] for start in starts}):
        rest = [start for start in starts if start.row["model_hf_id"] != model]
        own = [start for start in starts if start.row["model_hf_id"] == model]
        records += predictions(own, {era: fitted(rest, era) for era in eras})
    return records


def _scored(records: Iterable[Prediction], confidence: str) -> list[Prediction]:
    return [r for r in records if (r.groups or {}).get("confidence", "") in confidence]


def _report(title: str, records: Sequence[Prediction]) -> None:
    sys.stdout.write(f"{title}\n")
    for metric, score in scores_by_metric(records).items():
        if metric != "starts" and score.median_ape is not None and score.p90_ape is not None:
            sys.stdout.write(
                f"  {metric:18} n {score.n:3}  median {score.median_ape:7.2%}  p90 {score.p90_ape:7.2%}\n"
            )
    judged, wrong = disagreeing_starts(records)
    sys.stdout.write(f"  starts judged {judged}, wrongly {', '.join(wrong) or 'none'}\n")


def main(arguments: Sequence[str]) -> None:
    """Print the numbers in use, the refitted ones, and the scores of both, with whole models left out."""
    _, rows = measured_table(Path(arguments[0]), "memory")
    starts, refused = known_starts(rows, Path(arguments[1]) if len(arguments) > 1 else None)
    for name, reason in refused.items():
        sys.stdout.write(f"left out {name}: {reason}\n")
    for era in ("sorting", "lean"):
        sys.stdout.write(f"{era}: {fitted(starts, era)}\n")
    _report("numbers in use, confidence A and B", _scored(predictions(starts, {}), "AB"))
    _report("each model with numbers fitted on the others", _scored(left_out(starts), "AB"))
    worst = [
        r for r in _scored(predictions(starts, {}), "AB") if r.metric == "available_kv_gib" and r.predicted
    ]
    worst.sort(key=lambda r: -abs((r.predicted or 0.0) / r.measured - 1.0))
    sys.stdout.write("largest errors of the memory left for the cache\n")
    for record in worst[:12]:
        model = (record.groups or {}).get("model_hf_id", "")
        sys.stdout.write(
            f"  {record.row:8} {(record.predicted or 0.0) / record.measured - 1.0:+7.1%}  {model}\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
