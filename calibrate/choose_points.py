"""Choose the measured serving points that come with the package.

    python -m calibrate.choose_points FOLDER

FOLDER holds serving_measured.csv.gz. Writes capplan/accuracy/data/measured_points.csv: POINTS core rows, spread over
sources, engines, devices, model classes and kinds of load, drawn with the seed SEED. No prediction is made here, so no
point can be chosen for its error; rows that are refused stay in.
"""

import csv
import io
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from capplan.accuracy.benchmark import LIMITS
from capplan.accuracy.lengths import DATASETS
from capplan.questions.validation import BUILT_IN_POINTS, is_core
from capplan.recorded.measured import measured_table

POINTS = 200
SEED = 20261121

KEPT = (
    "id", "source", "source_url", "date", "engine", "engine_version", "model_hf_id", "weights_dtype", "kv_dtype",
    "gpu", "num_gpus", "tp", "pp", "ep", "dp", "isl", "osl", "length_distribution", "concurrency", "request_rate",
    "output_tok_s", "ttft_ms_mean", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_mean", "tpot_ms_p50", "e2e_ms_mean", "kind",
    "batch_static", "requests", "requests_per_client", "duration_s", "offered_rate_reported", "attention_data_parallel",
    *LIMITS, "core", "weight", "group",
)  # fmt: skip
"""Columns of the file: what names the run, what was measured, how it was sent, and where it was published."""

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Spread:
    """Columns over which a choice is spread."""

    source: str
    """Every value of it gets its share of the choice."""
    cell: tuple[str, ...]
    """Rows of one source are spread over the combinations of these columns that occur."""
    unlike: tuple[str, ...]
    """Within a cell the row is next that shares the fewest of these with the rows taken before."""


SERVING = Spread(
    source="source_family",
    cell=("engine", "gpu", "arch_class", "kind"),
    unlike=("model_hf_id", "concurrency", "request_rate", "batch_static", "isl", "osl", "tp"),
)


def shares(counts: Mapping[str, int], points: int) -> dict[str, int]:
    """Return how many points each source gets: in proportion to the square root of its rows, at least one.

    Parameters
    ----------
    counts : rows by source
    points : to be shared

    Returns
    -------
    points by source

    Examples
    --------
    >>> shares({"large": 400, "small": 100}, 30)
    {'large': 20, 'small': 10}
    """
    whole = sum(sqrt(count) for count in counts.values())
    out = {
        name: min(counts[name], max(1, int(points * sqrt(counts[name]) / whole))) for name in sorted(counts)
    }
    while sum(out.values()) < min(points, sum(counts.values())):
        short = max(
            out,
            key=lambda name: points * sqrt(counts[name]) / whole
            - out[name]
            - 1e9 * (out[name] >= counts[name]),
        )
        out[short] += 1
    return out


def chosen_rows(rows: Sequence[Row], points: int, seed: int, spread: Spread = SERVING) -> list[Row]:
    """Return rows of every source, spread over its cells.

    Parameters
    ----------
    rows : of the large file, each with its name in the column `id`
    points : how many to return
    seed : of the order within a cell
    spread : the columns that a choice is spread over

    Returns
    -------
    rows in the order of their names
    """
    order = random.Random(seed)
    sources: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["id"]):
        sources.setdefault(row[spread.source], []).append(row)
    counts = shares({name: len(members) for name, members in sources.items()}, points)
    out = [row for name in sorted(sources) for row in _spread(sources[name], counts[name], order, spread)]
    return sorted(out, key=lambda row: row["id"])


def _spread(rows: Sequence[Row], points: int, order: random.Random, spread: Spread) -> list[Row]:
    """Return one row of every cell in turn, each as different from those before it as the cell allows."""
    cells: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault(tuple(row[name] for name in spread.cell), []).append(row)
    for members in cells.values():
        order.shuffle(members)
    names = sorted(cells)
    order.shuffle(names)
    out: list[Row] = []
    while len(out) < points and any(cells.values()):
        # after the first turn the largest cells come first, so that dense regions get more points
        for name in sorted(names, key=lambda name: -len(cells[name]) if out else 0):
            if cells[name] and len(out) < points:
                found = min(cells[name], key=lambda row: _alike(row, out, spread.unlike))
                cells[name].remove(found)
                out.append(found)
    return out


def _alike(row: Row, taken: Sequence[Row], columns: Sequence[str]) -> int:
    """Return how often the values of a row were taken before."""
    return sum(row[name] == other[name] for other in taken for name in columns)


def point_of(row: Row) -> dict[str, str]:
    """Return a row in the columns of the shipped file."""
    point = {name: _plain(row.get(name, "")) for name in KEPT}
    known = row["length_distribution"]
    uniform = re.search(r"uniform\[[\d.]+,\s*[\d.]+\]", known)
    words = (*DATASETS, "sharegpt", "shared_prefix", "random", "fixed")
    point["length_distribution"] = (
        uniform.group(0) if uniform else next((w for w in words if w in known), known)
    )
    point["weight"] = "1"  # spread over cells already, so no point stands for many
    return point


def _plain(text: str) -> str:
    """Return a whole number without its `.0`."""
    return re.sub(r"^(\d+)\.0$", r"\1", text)


def points_text(rows: Sequence[Row]) -> str:
    """Return the shipped file."""
    out = io.StringIO()
    writer = csv.DictWriter(out, KEPT, lineterminator="\n")
    writer.writeheader()
    writer.writerows(point_of(row) for row in rows)
    return out.getvalue()


def main(arguments: Sequence[str]) -> int:
    """Choose and write."""
    _, every = measured_table(Path(arguments[0]) / "serving_measured.csv.gz", "serving")
    rows = [row for row in every if is_core(row)]
    chosen = chosen_rows(rows, POINTS, SEED)
    BUILT_IN_POINTS.write_text(points_text(chosen), encoding="utf-8")
    sys.stderr.write(f"{len(chosen)} of {len(rows)} core rows\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
