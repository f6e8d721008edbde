"""How well the fits of one device stand in for another: timed kernels, predicted while a device's own fits are hidden.

    python -m calibrate.hidden_devices FOLDER

FOLDER holds kernels_measured.csv and kernels_more.csv.gz. Prints the table of docs/evidence/kernels-and-memory.md and the figures that
`capplan.hardware.device.BORROWED` carries.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrate.accuracy_tables import percent
from capplan.accuracy.kernels import DEVICES, predicted_latency
from capplan.accuracy.score import Prediction, scored
from capplan.hardware.device import BORROWED, Kinship
from capplan.numbers import Array
from capplan.readers.catalogue.efficiency import (
    SIBLINGS,
    efficiency_for,
    fitted_devices,
    kinship_of,
    lent,
    nearest_device,
    shipped_efficiency,
)
from capplan.readers.catalogue.hardware import device
from capplan.recorded.measured import measured_table
from docs.generators.page_tables import Table

TABLES = ("kernels_measured.csv", "kernels_more.csv.gz")
EVERY = 5
"""One row of so many is predicted: 900 of each device."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """The kernels of one device, predicted with the fits of another."""

    device: str
    donor: str
    kinship: Kinship
    ratios: Array
    """Measured over predicted, shape (timings,)."""

    @property
    def error_fraction(self) -> float:
        """Return the median error of a kernel."""
        return float(np.median(np.abs(1.0 / self.ratios - 1.0)))


def stand_ins(rows: Sequence[Mapping[str, str]]) -> Iterator[StandIn]:
    """Yield every fitted device as its nearest relative would describe it, and as it would if its generation were unknown.

    Parameters
    ----------
    rows : of the kernel tables
    """
    for name, catalogue in DEVICES.items():
        gpu = device(catalogue)
        own = fitted_devices()[gpu.name]
        timed = [row for row in rows if row["gpu"] == name]
        donors: list[str] = []
        for hidden in ({own}, {own, *SIBLINGS.get(gpu.architecture, ())}):
            donor = nearest_device(gpu, hidden)
            if donor not in donors:
                donors.append(donor)
                lends = lent(shipped_efficiency(donor), gpu)
                ratios = [
                    float(row["latency_us"]) / predicted
                    for row in timed
                    if (predicted := predicted_latency(row, gpu, lends)[0])
                ]
                yield StandIn(gpu.name, donor, kinship_of(gpu, donor), np.array(ratios))


def pooled(found: Sequence[StandIn], kinship: Kinship) -> tuple[float, tuple[float, float]]:
    """Return the median error and the 10th and 90th percentile of measured over predicted, devices weighted equally."""
    own = [entry for entry in found if entry.kinship == kinship]
    error = float(np.mean([entry.error_fraction for entry in own]))
    low, high = np.mean([np.quantile(entry.ratios, (0.1, 0.9)) for entry in own], axis=0)
    return error, (float(low), float(high))


def sampled(folder: Path) -> list[Mapping[str, str]]:
    """Return every fifth row of the kernel tables that states a time."""
    rows = [row for name in TABLES for row in measured_table(folder / name, "kernel")[1]]
    return [row for row in rows[::EVERY] if row.get("latency_us")]


def stand_in_table(found: Sequence[StandIn]) -> Table:
    """Return one line for each device and donor, and one for each kinship."""
    lines = []
    for entry in found:
        low, high = np.quantile(entry.ratios, (0.1, 0.9))
        interval = f"{low:.2f} to {high:.2f}"
        lines.append(
            [
                entry.device,
                entry.donor,
                entry.kinship,
                str(len(entry.ratios)),
                percent(entry.error_fraction),
                interval,
            ]
        )
    for kinship in BORROWED:
        error, (low, high) = pooled(found, kinship)
        lines.append(["all", "", kinship, "", percent(error), f"{low:.2f} to {high:.2f}"])
    head = [
        "device",
        "predicted with",
        "kinship",
        "timings",
        "median error",
        "80 % of measured over predicted",
    ]
    return Table(head, lines)


def served_table(predictions: Sequence[Prediction]) -> Table:
    """Return how well runs on devices that nobody timed are predicted, by kinship of the device whose fits they borrow."""
    own: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        kinship = efficiency_for(device((prediction.groups or {})["device"])).kinship
        if kinship:
            own[kinship].append(prediction)
    lines = []
    for kinship in BORROWED:
        for metric in ("output_tok_s", "tpot_ms_mean", "ttft_ms_mean", "ttft_ms_p50"):
            values = [p for p in own[kinship] if p.metric == metric and p.predicted]
            score = scored(values)
            if score.n:
                names = ", ".join(sorted({(p.groups or {})["device"] for p in values}))
                held = percent(score.interval_coverage)
                lines.append([kinship, names, metric, str(score.n), percent(score.median_ape), held])
    head = ["kinship", "devices", "value", "values", "median error", "in the 80 % interval"]
    return Table(head, lines)


if __name__ == "__main__":
    print(stand_in_table(list(stand_ins(sampled(Path(sys.argv[1]))))))
