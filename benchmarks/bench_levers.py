"""How long `levers` and `fleet` of the shipped scenarios take: seconds waited, and processor seconds of all processes.

python -m benchmarks.bench_levers [SCENARIO ...] [--cores 2]
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
ALLOWED_S = 30.0
"""Seconds that the levers of a shipped scenario may take on two quiet cores."""


class Wait(NamedTuple):
    """What a command took."""

    waited_s: float
    worked_s: float
    """Processor time of the command and of the processes that it started."""
    refused: bool


def wait_of(command: str, scenario: Path, cores: int) -> Wait:
    """Return what a command takes on some cores of this machine; one core is one process."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    words = [sys.executable, "-m", "capplan", command, str(scenario), "--offline", "--format", "json"]
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        words, capture_output=True, check=False, preexec_fn=lambda: os.sched_setaffinity(0, chosen)
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Wait(time.monotonic() - begin, worked_s, done.returncode != 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenarios", type=Path, nargs="*", default=sorted(SCENARIOS.glob("*.yaml")))
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    print(f"{'on ' + str(options.cores) + ' cores':<20}{'levers, s':>12}{'worked, s':>12}{'fleet, s':>12}")
    slowest = 0.0
    for scenario in options.scenarios:
        levers, fleet = (wait_of(command, scenario, options.cores) for command in ("levers", "fleet"))
        slowest = max(slowest, levers.waited_s)
        shown = ("refused", "") if levers.refused else (f"{levers.waited_s:.1f}", f"{levers.worked_s:.1f}")
        print(f"{scenario.stem:<20}{shown[0]:>12}{shown[1]:>12}{fleet.waited_s:>12.1f}", flush=True)
    print(f"slowest: {slowest:.1f} s, {slowest / ALLOWED_S:.2f} x the allowed {ALLOWED_S:.0f} s")


if __name__ == "__main__":
    main()
