"""CPU-seconds of whole commands, start-up included, next to their targets and as multiples of a pure loop timed in the same run.

    python benchmarks/bench_commands.py [--random 40] [--only fleet]

Each command is a process of its own. Questions drawn at random are those of the law tests (`tests/fuzz/answers.py`), of which
`fleet` answers as many as `--random` says.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOOP = "total = 0\nfor number in range(20_000_000):\n    total += number * number"
"""What everything is compared with: it takes a second or two of any processor."""
NUMPY = "import numpy"
COMMANDS = (
    # what, the program's words, target in CPU-seconds
    ("fleet of requests", ("fleet", "scenarios/support-chat.yaml"), 2.5),
    ("fleet of users", ("fleet", "scenarios/small-team.yaml"), 5.0),
    ("fleet of users and requests", ("fleet", "scenarios/code-assistant.yaml"), 5.0),
    ("fleet of sessions", ("fleet", "scenarios/agent-sessions.yaml"), 8.0),
    ("fleet of models on MIG slices", ("fleet", "scenarios/mig-slices.yaml"), 6.0),
    ("levers", ("levers", "scenarios/support-chat.yaml"), 6.0),
)
SIMULATED = ("simulate of users, round robin", "scenarios/small-team.yaml", 3.0)
"""A plan of `fleet` is simulated; the time that `fleet` takes for it does not count."""
KV_SIZE = ("kv-size", ("kv-size", "llama-3.1-8b", "--context", "8192"), 1.8)
"""Its target is a multiple of `import numpy`."""
RANDOM_MEDIAN_S, RANDOM_LARGEST_S = 1.5, 6.0
FIRST_NUMBER = 300_000
RUNS = 5
"""Runs of short commands, of which the quickest counts."""


def cpu_s(words: Sequence[str]) -> float:
    """Return the user and system time of a process; questions without an answer (exit 3 or 4) count too."""
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 3, 4}:
        raise SystemExit(f"{' '.join(words)}: exit {process.returncode}")
    return used.ru_utime + used.ru_stime


def capplan(words: Sequence[str]) -> list[str]:
    """Return how this checkout runs a command without the network."""
    return [sys.executable, "-m", "capplan", *words]


def python(code: str) -> float:
    """Return the least CPU time of a line of Python."""
    return min(cpu_s([sys.executable, "-c", code]) for _ in range(RUNS))


def said(what: str, seconds: float, loop_s: float, target: float, unit: str = "s") -> None:
    """Print a figure next to its target."""
    verdict = "ok" if seconds <= target else f"{seconds / target:.1f} x the target"
    print(f"{what:32} {seconds:6.2f} {unit:12} {seconds / loop_s:6.2f} loops   target {target:g}: {verdict}")


def random_questions(count: int, folder: Path) -> list[Path]:
    """Write the random questions, as many of each kind."""
    sys.path.insert(0, str(ROOT))
    from tests.fuzz.answers import KINDS, asked_question

    paths = []
    for place in range(count):
        kind, number = KINDS[place % len(KINDS)], FIRST_NUMBER + place // len(KINDS)
        paths.append(folder / f"{kind}-{number}.yaml")
        paths[-1].write_text(asked_question(kind, number)[0], encoding="utf-8")
    return paths


def simulation_s(folder: Path) -> float:
    """Return the CPU time of the simulation of a plan of users behind a router in turn."""
    plan = folder / "plan.json"
    words = ("--set", "fleet.routing=round_robin", "--offline", "-o", str(plan))
    cpu_s(capplan(("fleet", SIMULATED[1], *words)))
    return cpu_s(capplan(("simulate", "--plan", str(plan), "--offline")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, default=40, help="random questions; 0 leaves them out")
    parser.add_argument("--only", default="", help="only what has this in its name")
    options = parser.parse_args()
    loop_s = python(LOOP)
    print(f"a pure loop takes {loop_s:.2f} s of this processor")
    for what, words, target in COMMANDS:
        if options.only in what:
            said(what, cpu_s(capplan((*words, "--offline"))), loop_s, target)
    with tempfile.TemporaryDirectory() as name:
        if options.only in SIMULATED[0]:
            said(SIMULATED[0], simulation_s(Path(name)), loop_s, SIMULATED[2])
        if options.only in KV_SIZE[0]:
            seconds = min(cpu_s(capplan(KV_SIZE[1])) for _ in range(RUNS)) / python(NUMPY)
            print(
                f"{KV_SIZE[0]:32} {seconds:6.2f} x import numpy   target {KV_SIZE[2]:g}: {'ok' if seconds <= KV_SIZE[2] else 'over'}"
            )
        if options.random and options.only in "random":
            times = {path.stem: cpu_s(capplan(("fleet", str(path), "--offline")))
                     for path in random_questions(options.random, Path(name))}  # fmt: skip
            worst = max(times, key=lambda item: times[item])
            said(f"{len(times)} random, median", statistics.median(times.values()), loop_s, RANDOM_MEDIAN_S)
            said(f"{len(times)} random, largest", times[worst], loop_s, RANDOM_LARGEST_S)
            print(f"the largest is {worst}")


if __name__ == "__main__":
    main()
