"""Loads of llama.cpp's server, measured and predicted: `python -m calibrate.live.llamacpp_table FOLDER`; writes FOLDER/table.json.

First with the server's own step times, so that what is left is the queue; then with the calibration that `capplan calibrate --endpoint` made.
"""

import json
import sys
from pathlib import Path
from statistics import median

from calibrate.live.llamacpp_loads import BATCH_TOKENS, CONTEXT, LOADS, SLOTS
from calibrate.live.llamacpp_log import ServerLog
from calibrate.live.queueing import (
    ALONE,
    RecordedClock,
    calibrated_replica,
    pace,
    print_steps,
    printed,
    records_of,
    row,
)
from capplan.engine.profile import Scheduling
from capplan.serving.terms import EngineSetup

SCHEDULING = Scheduling("slots", SLOTS, BATCH_TOKENS)
KV_BLOCKS = SLOTS * CONTEXT // SCHEDULING.block_tokens


def logs_of(folder: Path, name: str) -> list[ServerLog]:
    """Return what the server did under a load, one log a repeat."""
    paths = sorted(folder.glob(f"{name}.*.log"))
    return [ServerLog(path.read_text(encoding="utf-8").splitlines()) for path in paths]


def outside_s(folder: Path) -> float:
    """Return what a request spends outside the steps before its first token [s], median over the repeats of single requests."""
    pairs = zip(logs_of(folder, ALONE), records_of(folder, ALONE), strict=True)
    return median(log.outside_s(record["ttfts"]) for log, record in pairs)


def main(words: list[str]) -> int:
    """Print and write the tables."""
    folder = Path(words[0])
    request_s = outside_s(folder)
    print(f"outside the steps: {1e3 * request_s:.1f} ms a request")
    records = {load.name: records_of(folder, load.name) for load in LOADS}
    steps = {name: [log.recorded_steps() for log in logs_of(folder, name)] for name in records}
    own = {
        name: [EngineSetup(RecordedClock(taken, request_s), SCHEDULING, KV_BLOCKS) for taken in repeats]
        for name, repeats in steps.items()
    }
    replica = calibrated_replica(folder / "endpoint.calibration.yaml", folder / "tiny")
    fitted = EngineSetup(replica.table, SCHEDULING, KV_BLOCKS)
    paces = {name: [pace(repeat, fitted.clock) for repeat in repeats] for name, repeats in steps.items()}
    tables = {
        "own_steps": [row(name, records[name], own[name]) for name in records],
        "endpoint": [row(name, records[name], [fitted]) for name in records],
        "endpoint_at_pace": [row(name, records[name], [fitted], paces[name]) for name in records],
    }
    for title, rows in tables.items():
        printed(title, rows)
    print_steps("endpoint", steps, fitted.clock)
    (folder / "table.json").write_text(json.dumps(tables, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
