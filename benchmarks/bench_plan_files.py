"""CPU time of the commands that read a plan file, as ratios to the imports that any of them needs.

    python benchmarks/bench_plan_files.py

Each pair is run in turns, and the best of each side counts. Exits 1 where a ratio is over its limit.
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5
SCENARIO = "scenarios/support-chat.yaml"
BARE = "import typer, numpy, yaml, capplan.readers.record, capplan.questions.fleet"
COMMANDS = (
    # words after capplan, PLAN for the plan file, limit of the ratio
    ("diff PLAN PLAN", 1.6),
    (f"check {SCENARIO} --plan PLAN --max-price-age 9999", 2.2),
    ("explain PLAN usd_per_month", 1.8),
    ("explain PLAN ttft_s.p95", 2.0),
)


def cpu_s(words: list[str]) -> float:
    """Return the CPU time of one run, of user and system together."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print one line per command; return 1 where one is over its limit."""
    over = False
    program = [sys.executable, "-m", "capplan"]
    with tempfile.TemporaryDirectory() as folder:
        plan = f"{folder}/plan.json"
        cpu_s([*program, "fleet", SCENARIO, "-o", plan, "--offline"])
        for line, limit in COMMANDS:
            words = [*program, *line.replace("PLAN", plan).split(), "--offline"]
            pair = (words, [sys.executable, "-c", BARE])
            best = [min(t) for t in zip(*([cpu_s(w) for w in pair] for _ in range(ROUNDS)), strict=True)]
            ratio = best[0] / best[1]
            over |= ratio > limit
            verdict = "ok" if ratio <= limit else "OVER"
            print(
                f"{line}: {best[0]:.2f} s of CPU time, {ratio:.2f} x of bare imports ({best[1]:.2f} s), limit {limit} x: {verdict}"
            )
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
