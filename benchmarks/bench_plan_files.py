"""CPU time of the commands that read a plan file, beside the imports that any of them needs and the seconds asked of each.

    python benchmarks/bench_plan_files.py [--runs 3] [SCENARIO ...]

Without scenarios, all shipped ones whose plan is one fleet. Every command runs in turn with the imports, one process each; the
least of the runs counts, and the load average says how busy the machine was, since a busy one takes longer for the same work.
Exits 1 where a command takes over its multiple of the imports for support-chat.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = ROOT / "scenarios"
GATED = "support-chat"
BARE = "import typer, numpy, yaml, capplan.readers.record, capplan.questions.fleet"
COMMANDS = (
    # words after capplan, with {plan} and {scenario}; seconds asked; multiple of the imports that support-chat stays within
    ("diff {plan} {plan} --offline", 1.0, 1.6),
    ("check {scenario} --plan {plan} --max-price-age 9999 --offline", 1.0, 2.2),
    ("explain {plan} usd_per_month --offline", 1.0, 1.8),
    ("explain {plan} ttft_s.p95 --offline", 1.0, 2.0),
    ("export --plan {plan} --target k8s", 1.0, 1.6),
    ("report --plan {plan} -o {folder}/page.md --offline", 2.0, 4.5),
    ("report --plan {plan} -o {folder}/page.html --offline", 4.0, 8.0),
)
REFUSED = 2


def cpu_s(words: list[str]) -> tuple[float, int]:
    """Return the CPU time of one run, of user and system together, and its exit code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        words, cwd=ROOT, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.returncode


def measured(scenario: Path, folder: str, runs: int) -> bool:
    """Print one line per command; return whether support-chat is over one of its multiples."""
    plan, over = f"{folder}/{scenario.stem}.json", False
    program = [sys.executable, "-m", "capplan"]
    cpu_s([*program, "fleet", str(scenario), "-o", plan, "--offline"])
    print(f"{scenario.stem}, load average {os.getloadavg()[0]:.1f}")
    for line, asked_s, limit in COMMANDS:
        words = [*program, *line.format(plan=plan, scenario=scenario, folder=folder).split()]
        pairs = [(cpu_s(words), cpu_s([sys.executable, "-c", BARE])) for _ in range(runs)]
        if any(code == REFUSED for (_, code), _ in pairs):
            print(f"    {line.split()[0]}: refused")
            continue
        taken, bare = (min(pair[side][0] for pair in pairs) for side in (0, 1))
        over |= scenario.stem == GATED and taken > limit * bare
        print(
            f"    {line.format(plan='PLAN', scenario='SCENARIO', folder='.'):66} {taken:5.2f} of {asked_s:.0f} s,"
            f" {taken / bare:.2f} x the imports ({bare:.2f} s)"
        )
    return over


def main() -> int:
    """Measure the scenarios that are named, or all that are shipped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("scenarios", nargs="*", type=Path, default=sorted(SCENARIOS.glob("*.yaml")))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        over = [measured(path.resolve(), folder, given.runs) for path in given.scenarios]
    return int(any(over))


if __name__ == "__main__":
    sys.exit(main())
