"""Record the steps of a live engine under each setting: `python -m calibrate.live.record_scheduler ENVIRONMENT FOLDER [NAME ...]`."""

import shutil
import sys
from pathlib import Path

from calibrate.live.model import write_model
from calibrate.live.scheduler_runs import SETTINGS, SMALL, Setting, exchanged
from calibrate.live.server import NoServerError, on_processor, running


def record(setting: Setting, environment: Path, folder: Path) -> None:
    """Start the engine, send the traffic, and keep the log of its steps."""
    engine, at = on_processor(environment, asynchronous=setting.asynchronous), folder / setting.name
    with running(engine, write_model(folder / "model", SMALL), at, setting.options) as live:
        exchanged(setting.name, setting.traffic, live.url)
    shutil.copy(at / "steps.jsonl", folder / f"{setting.name}.jsonl")


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
