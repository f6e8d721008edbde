"""Files next to docs/evidence/live.md, from what runs of live engines brought: `python -m calibrate.live.evidence_files`."""

from collections.abc import Mapping
from pathlib import Path

from calibrate.live.card_table import table
from calibrate.live.results import KEPT
from docs.generators.page_tables import Table, table_in

FOLDER = Path(__file__).parents[2] / "docs" / "evidence"
LOADS = {
    "table": "vLLM, calibrate --from",
    "endpoint": "vLLM, calibrate --endpoint",
    "llamacpp": "llama.cpp's server, calibrate --endpoint, 2026-11-26",
    "llamacpp-again": "llama.cpp's server, calibrate --endpoint, 2026-11-27",
}
"""File of records -> how the page calls its run."""
CLAIMS = {"claims": "2026-11-26, a core for the engine", "claims-again": "2026-11-26, busy neighbours"}
PREDICTED = {
    "predicted with its own steps": ("own_steps",),
    "predicted with the calibration of the device": ("device",),
    "predicted with the calibration of the engine": ("fitted", "endpoint"),
    "predicted with the calibration of the engine, at the pace": ("fitted_at_pace", "endpoint_at_pace"),
}
"""Heading -> columns of the records, the first that a file has."""


def _loads() -> Table:
    rows = []
    for name, run in LOADS.items():
        for row in table_in(KEPT / f"{name}.csv"):
            predicted = [
                next((row[f"{column}_s"] for column in columns if f"{column}_s" in row), "")
                for columns in PREDICTED.values()
            ]
            rows.append(
                [run, *(row[key] for key in ("load", "statistic", "measured_s", "noise")), *predicted]
            )
    head = ["run", "load", "statistic", "measured [s]", "largest less smallest repeat, over their mean"]
    return Table([*head, *(f"{title} [s]" for title in PREDICTED)], rows)


def _claims() -> Table:
    keys = ("load", "statistic", "measured_s", "predicted_s")
    rows = [
        [run, *(row[key] for key in keys)]
        for name, run in CLAIMS.items()
        for row in table_in(KEPT / f"{name}.csv")
    ]
    return Table(["run", "load", "statistic", "measured [s]", "predicted [s]"], rows)


def _memory() -> Table:
    found = [list(row.values()) for row in table_in(KEPT / "memory.csv")]
    rows = [row for row in found if row[1].isdecimal()]  # others are models that the engine does not start
    sequences = "requests of 4,096 tokens in 1 GiB"
    return Table(["model", "blocks", f"{sequences}, engine", f"{sequences}, predicted"], rows)


def files() -> Mapping[str, str]:
    """Return the text of each file, by its name."""
    tables = {
        "live-loads": _loads(),
        "live-claims": _claims(),
        "live-memory": _memory(),
        "live-h100": table(),
    }
    return {f"{name}.csv": found.csv() for name, found in tables.items()}


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
