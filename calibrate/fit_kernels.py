"""Fit the efficiency files to published kernel timings, judge the fit, and write the files.

    python -m calibrate.fit_kernels FOLDER             refit, write hardware_specs/efficiency/*.yaml, score
    python -m calibrate.fit_kernels FOLDER --score     score the files as they are

FOLDER holds kernels_measured.csv and kernels_more.csv.gz (columns as in `accuracy.kernel_rows`).
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibrate.kernel_device import Pooled, fitted_device, pooled_parts
from calibrate.kernel_parts import Timing
from calibrate.kernel_scores import Unseen, group_of, score_table
from capplan.accuracy.kernels import DEVICES, KernelCase, kernel_case, predicted_latency
from capplan.hardware.device import Device, Efficiency, Fit
from capplan.readers.catalogue.efficiency import (
    efficiency_folder,
    efficiency_text,
    fitted_devices,
    shipped_efficiency,
    timed_efficiency,
)
from capplan.readers.catalogue.hardware import device

CATALOGUE_NAMES = {
    "a100-sxm-80gb": ("a100", ["a100-sxm-80gb", "a100-sxm-40gb"]),
    "h100-sxm": ("h100", ["h100-sxm"]),
    "h200-sxm": ("h200", ["h200-sxm"]),
    "b200": ("b200", ["b200"]),
    "gb200": ("gb200", ["gb200"]),
    "l40s": ("l40s", ["l40s"]),
}
"""Device that was measured -> name of its file, and hardware entries that are this device."""


HEAD = (
    "# What kernels reach on this device, fitted to published timings: python -m calibrate.fit_kernels.\n"
    "# Timings: AIConfigurator 0.12.0 kernel tables (Apache-2.0), https://github.com/ai-dynamo/aiconfigurator\n"
)
"""First lines of an efficiency file."""


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of both kernel tables, with `table` and `latency_us`.

    Parameters
    ----------
    folder : where the tables are

    Returns
    -------
    rows as a CSV reader gives them
    """
    rows: list[dict[str, Any]] = []
    for name in ("kernels_measured.csv", "kernels_more.csv.gz"):
        table = pd.read_csv(folder / name, low_memory=False)
        rows += [
            {str(k): v for k, v in row.items()}
            for row in table.assign(table=name.partition(".")[0]).to_dict("records")
        ]
    return rows


def timings(rows: Sequence[Mapping[str, Any]]) -> list[Timing]:
    """Return the rows that are modelled, as calls with their times.

    Parameters
    ----------
    rows : of `read_rows`

    Returns
    -------
    one per modelled row
    """
    found = []
    for row in rows:
        case = kernel_case(row)
        if isinstance(case, KernelCase):
            seconds = float(row["latency_us"]) * case.unit_s
            found.append(Timing(case, seconds, str(row["table"]), str(row["version"]), group_of(row)))
    return found


def with_missing_kernels(fits: Mapping[str, Fit], fitted: Mapping[str, Mapping[str, Fit]]) -> dict[str, Fit]:
    """Return the fits of a device; kernels that were not timed on it are borrowed from the next device that has them.

    Parameters
    ----------
    fits : of the device
    fitted : of all devices that were fitted together

    Returns
    -------
    the same, and what was taken over, labelled assumed
    """
    complete = dict(fits)
    have = {key.partition("/")[0] for key in fits}
    for name, others in fitted.items():
        for key, fit in others.items():
            if key.partition("/")[0] not in have and fit.label == "measured":
                complete[key] = replace(
                    fit, label="assumed", rows=0, fitted_numbers=0.0, median_error_fraction=None, mean_error_fraction=None,
                    held_out_median_error_fraction=None, fitted_on=f"numbers of the {name}: no timings here",
                )  # fmt: skip
        have = {key.partition("/")[0] for key in complete}
    return complete


def held_out_errors(pooled: Mapping[str, Pooled]) -> Unseen:
    """Return the errors of fits with the shape family held out, by table and group.

    Parameters
    ----------
    pooled : by device, then by key and part

    Returns
    -------
    relative errors
    """
    found: Unseen = {}
    for parts in pooled.values():
        for part in parts.values():
            for place, error in zip(part.scored, part.held_out_errors, strict=True):
                if np.isfinite(error):
                    found.setdefault(place, []).append(float(error))
    return found


def count_table() -> str:
    """Return how many numbers of each kernel were fitted, over all files."""
    counts: dict[str, list[float]] = {}
    for fitted in dict.fromkeys(fitted_devices().values()):
        for key, fit in shipped_efficiency(fitted).fits.items():
            own = counts.setdefault(key.partition("/")[0], [0.0, 0.0, 0.0])
            own[0] += fit.fitted_numbers
            own[1] += fit.label == "measured"
            own[2] += len(fit.numbers)
    lines = [
        f"{name:18} {fitted:8.0f} {fits:6.0f} {listed:8.0f}"
        for name, (fitted, fits, listed) in sorted(counts.items())
    ]
    total = [sum(own[i] for own in counts.values()) for i in range(3)]
    head = f"\n{'numbers':18} {'fitted':>8} {'fits':>6} {'listed':>8}"
    return "\n".join([head, *lines, f"{'all':18} {total[0]:8.0f} {total[1]:6.0f} {total[2]:8.0f}\n"])


def predictions(
    rows: Sequence[Mapping[str, Any]], efficiencies: Mapping[str, Efficiency]
) -> list[float | None]:
    """Return the predicted latency of every row, None where it is refused.

    Parameters
    ----------
    rows : of `read_rows`
    efficiencies : by catalogue name

    Returns
    -------
    latencies in the unit of the row's latency column
    """
    devices: dict[str, Device] = {name: device(name) for name in efficiencies}
    found: list[float | None] = []
    for row in rows:
        name = DEVICES.get(str(row.get("gpu")))
        found.append(None if name is None else predicted_latency(row, devices[name], efficiencies[name])[0])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    arguments : of the command line; None takes those of the process

    Returns
    -------
    exit code
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder with the kernel tables")
    parser.add_argument("--score", action="store_true", help="score the files as they are")
    parser.add_argument("--device", action="append", help="only this catalogue name; may be repeated")
    parser.add_argument(
        "--no-held-out", action="store_true", help="do not refit without each part of the shape families"
    )
    options = parser.parse_args(arguments)
    rows = read_rows(options.folder)
    chosen = options.device or list(CATALOGUE_NAMES)
    unseen: Unseen = {}
    if not options.score:
        every = timings(rows)
        fitted: dict[str, dict[str, Fit]] = {}
        held_out = not options.no_held_out
        devices = {name: device(name) for name in CATALOGUE_NAMES}
        pooled = pooled_parts(devices, every, held_out=held_out)
        unseen = held_out_errors(pooled)
        for name in chosen:
            own = [timing for timing in every if timing.case.device == name]
            fitted[name] = fitted_device(devices[name], own, pooled[name])
            sys.stderr.write(f"{name}: {len(fitted[name])} fits on {len(own)} timings\n")
        for name, fits in fitted.items():
            file, names = CATALOGUE_NAMES[name]
            text = efficiency_text(Efficiency(file, with_missing_kernels(fits, fitted)), names, HEAD)
            (efficiency_folder() / f"{file}.yaml").write_text(text, encoding="utf-8")
        shipped_efficiency.cache_clear()
        fitted_devices.cache_clear()
    rows = [row for row in rows if DEVICES.get(str(row["gpu"])) in chosen]
    predicted = predictions(rows, {name: timed_efficiency(device(name)) for name in chosen})
    sys.stdout.write(score_table(rows, predicted, unseen) + count_table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
