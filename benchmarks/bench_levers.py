"""How long all levers of a scenario take, as a multiple of its fleet search: some twenty changed questions and their combinations.

python benchmarks/bench_levers.py [--scenario scenarios/support-chat.yaml] [--runs 1]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from capplan.questions.fleet import asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.levers.answer import asked_levers, checked_names, levers_of
from capplan.scenario.scenario import read_scenario

ROOT = Path(__file__).resolve().parents[1]
ALLOWED_S = 10.0


def least_s(runs: int, work: Callable[[], object]) -> float:
    """Least CPU time of several runs."""
    times = []
    for _ in range(runs):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scenario", type=Path, default=ROOT / "scenarios" / "support-chat.yaml")
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()

    def fleet() -> None:
        fleet_for(asked_fleet(read_scenario(options.scenario), offline=True))

    def levers() -> int:
        asking, base = asked_levers(options.scenario, None, offline=True)
        return len(levers_of(asking, base, checked_names(None)).rows)

    rows = levers()
    searched, tried = least_s(options.runs, fleet), least_s(options.runs, levers)
    print(f"fleet    {searched:6.2f} s of one core")
    print(f"levers   {tried:6.2f} s for {rows} changes: {tried / searched:.1f} x the fleet search", end=" ")
    print(f"({tried / ALLOWED_S:.2f} x the allowed {ALLOWED_S:.0f} s)")


if __name__ == "__main__":
    main()
