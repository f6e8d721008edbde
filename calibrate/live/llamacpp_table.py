"""Loads of llama.cpp's server, measured and predicted: `python -m calibrate.live.llamacpp_table FOLDER`; writes FOLDER/llamacpp-table.json.

First with the server's own step times, so that what is left is the queue; then with the calibration that `capplan calibrate --endpoint` made.
"""

import json
import sys
from pathlib import Path
from statistics import median

from calibrate.live.llamacpp_loads import BATCH_TOKENS, CONTEXT, SLOTS
from calibrate.live.llamacpp_log import ServerLog
from calibrate.live.loads import CLOSED, OPEN
from calibrate.live.queueing import (
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


def main(words: list[str]) -> int:
    """Print and write the tables."""
    folder = Path(words[0])
    names = [f"llamacpp-{load.name}" for load in (CLOSED[0], CLOSED[-1], *OPEN)]
    records = {name: found for name in names if (found := records_of(folder, name))}
    logs = {}
    for name in records:
        paths = sorted(folder.glob(f"{name}.*.log"))
        logs[name] = [ServerLog(path.read_text(errors="replace").splitlines()) for path in paths]
    alone = names[0]
    outside = [
        log.outside_s(record["ttfts"]) for log, record in zip(logs[alone], records[alone], strict=True)
    ]
    print(f"outside the steps: {', '.join(f'{1e3 * seconds:.1f}' for seconds in outside)} ms a request")
    steps = {name: [log.recorded_steps() for log in found] for name, found in logs.items()}
    own = {
        name: [
            EngineSetup(RecordedClock(recorded, median(outside)), SCHEDULING, KV_BLOCKS)
            for recorded in repeats
        ]
        for name, repeats in steps.items()
    }
    replica = calibrated_replica(folder / "llamacpp.calibration.yaml", folder / "llamacpp-tiny")
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
    (folder / "llamacpp-table.json").write_text(json.dumps(tables, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
