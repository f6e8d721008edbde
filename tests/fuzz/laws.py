"""Laws over random inputs, asked new questions until the time is over; `make test` always asks the same ones.

    python -m tests.fuzz.laws --seconds 600 --seed 1 [--only tests/properties/test_model.py]

A finding is printed with the question and the line that repeats it: the same seed asks the same questions.
"""

import argparse
import math
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.installs.environment import add_cases

ROOT = Path(__file__).resolve().parent.parent.parent
QUIET = ["-o", "addopts=--import-mode=importlib", "-p", "no:terminal", "-p", "no:cacheprovider"]


class UntilTimeIsOver:
    """Every law once, in an order of its own, until the time is over, which begins once they are collected; a finding is printed at once, and once."""

    def __init__(self, number: int, seconds: float, found: set[str]) -> None:
        self.number, self.seconds, self.found = number, seconds, found
        self.asked, self.until_s = 0, math.inf

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.found]
        Random(self.number).shuffle(items)

    def pytest_collection_finish(self) -> None:
        self.until_s = time.monotonic() + self.seconds

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if time.monotonic() >= self.until_s:
            item.session.shouldstop = "the time is over"
            pytest.skip("the time is over")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.asked += report.when == "call" and not report.skipped
        if report.failed:
            self.found.add(report.nodeid)
            print(
                f"FOUND {report.nodeid}\n{report.longreprtext}\n  again: {repeated(report.nodeid, self.number)}"
            )


def repeated(test: str, number: int) -> str:
    """Return the command that asks a law the same questions again."""
    return f"python -m pytest '{test}' --hypothesis-profile new --hypothesis-seed {number}"


def files_of_laws(only: str) -> list[str]:
    """Return the files of a folder that ask laws, for collecting all others takes longer than to ask a law; else what was named."""
    folder = ROOT / only
    if not folder.is_dir():
        return [str(folder)]
    return [
        str(path)
        for path in sorted(folder.rglob("test_*.py"))
        if "hypothesis" in path.read_text(encoding="utf-8")
    ]


def main() -> int:
    """Ask until the time is over; 1 where there was a finding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="tests", help="a file of tests, or one test")
    parser.add_argument(
        "--record", action="store_true", help="add the cases to those of docs/evidence/reliability.md"
    )
    asked = parser.parse_args()
    left_s, began_s = asked.seconds, time.process_time()
    number, laws, found = asked.seed, 0, set[str]()
    while left_s > 0.0:
        run = UntilTimeIsOver(number, left_s, found)
        how = ["-m", "hypothesis", "--hypothesis-profile", "new", "--hypothesis-seed", str(number)]
        code = pytest.main([*files_of_laws(asked.only), *how, *QUIET], plugins=[run])
        laws, number, left_s = laws + run.asked, number + 1, run.until_s - time.monotonic()
        if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
            print(f"pytest stopped with {code!r}", file=sys.stderr)
            return 2
    if asked.record:
        add_cases("laws", {"laws": laws}, len(found), time.process_time() - began_s)
    print(f"{laws:,} laws asked, seeds {asked.seed} to {number - 1}, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
