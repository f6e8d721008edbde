"""Record the steps of a live engine under each setting: `python -m calibrate.live.record_scheduler ENVIRONMENT FOLDER [NAME ...]`."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from calibrate.live.model import write_model
from calibrate.live.scheduler_runs import SETTINGS, SMALL, Setting, traffic
from calibrate.live.server import NoServerError, on_processor, running
from capplan.calibrate.endpoint.client import Question, answered, endpoint_of


def record(setting: Setting, environment: Path, folder: Path) -> Path:
    """Start the engine, send the traffic, return the log of its steps."""
    model = write_model(folder / "model", SMALL)
    at = folder / setting.name
    with running(
        on_processor(environment, asynchronous=setting.asynchronous), model, at, setting.options
    ) as live:
        server = replace(endpoint_of(live.url), model="tiny")
        answered(server, Question((5, 6, 7), 4))
        sent = traffic(setting.traffic, server, seed=11)
        wrong = [answer.error for _, answer in sent if answer.error]
        print(f"{setting.name}: {len(sent)} requests, {len(wrong)} errors {wrong[:2]}", flush=True)
    shutil.copy(at / "steps.jsonl", folder / f"{setting.name}.jsonl")
    return folder / f"{setting.name}.jsonl"


def main(words: list[str]) -> int:
    """Record the named settings, or all of them."""
    environment, folder, *names = words
    for setting in SETTINGS:
        if not names or setting.name in names:
            try:
                record(setting, Path(environment), Path(folder))
            except NoServerError as problem:
                print(f"{setting.name}: {problem}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
