"""How long a person waits before the first line, as ratios to bare imports measured in the same run.

    python benchmarks/bench_startup.py

Each pair is run in turns, and the best of each side counts: what else the machine does adds time
and never takes it away. Exits 1 where a ratio is over its limit.
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 9
PAIRS = (
    # what, the program's words, what it is compared with, limit of the ratio
    ("capplan --help", ("--help",), "import typer, rich", 1.5),
    ("capplan kv-size", ("kv-size", "llama-3.1-8b", "--context", "8192"), "import numpy", 1.8),
)


def seconds(words: list[str]) -> float:
    """Return the wall time of one run."""
    start = time.perf_counter()
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    """Print one line per pair; return 1 where one is over its limit."""
    over = False
    for what, words, bare, limit in PAIRS:
        pair = ([sys.executable, "-m", "capplan", *words], [sys.executable, "-c", bare])
        for command in pair:
            seconds(command)  # the first run fills the disk cache
        best = [
            min(times) for times in zip(*([seconds(c) for c in pair] for _ in range(ROUNDS)), strict=True)
        ]
        ratio = best[0] / best[1]
        over |= ratio > limit
        verdict = "ok" if ratio <= limit else "OVER"
        print(
            f"{what}: {best[0]:.3f} s, {ratio:.2f} x of `{bare}` ({best[1]:.3f} s), limit {limit} x: {verdict}"
        )
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
