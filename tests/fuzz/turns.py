"""Turns of cases until the time is over: every kind once, then again with the next seed; findings are printed, cases counted."""

import argparse
import contextlib
import io
import json
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import NamedTuple

from tests.installs.environment import FIGURES, add_cases

MOST_BYTES = 6 * 1024**3
"""Of address space: a case that wants more is a finding."""
MOST_SHOWN = 5
"""Laws that are printed of one answer."""

Turn = Callable[[Path, int], int]
"""Asks the cases of a seed in a folder, and returns how many."""


def arguments(about: str | None, kinds: Sequence[str]) -> argparse.Namespace:
    """Return what a fuzzer was asked for."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=kinds)
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"add the cases to {FIGURES.name}, for docs/evidence/reliability.md",
    )
    return parser.parse_args()


class Findings:
    """What turns raised, each printed at once with its place, its case and the line that repeats it; nothing raised leaves a turn."""

    def __init__(self, fuzzer: str, shown: Callable[[str], object]) -> None:
        self.fuzzer, self.shown = fuzzer, shown
        self.kinds: list[str] = []
        self.turn = ("", 0)

    def of(self, kind: str, number: int) -> "Findings":
        """Return itself, about to watch the turn of a kind with a seed."""
        self.turn = (kind, number)
        return self

    def __enter__(self) -> None:
        """Watch a turn."""

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        """Take in whatever is raised, for all but a refusal is a finding; Ctrl-C ends the run."""
        if not isinstance(error, Exception):
            return False
        kind, number = self.turn
        self.kinds.append(kind)
        place = traceback.extract_tb(trace)[-1]
        print(
            f"FOUND {kind}: {type(error).__name__}: {str(error)[:300]} at {place.filename}:{place.lineno}\n"
            f"  {str(self.shown(kind))[:2000]}\n"
            f"  again: python -m tests.fuzz.{self.fuzzer} --kind {kind} --seed {number} --seconds 1",
            flush=True,
        )
        return True


def asked_until_time_is_over(
    fuzzer: str, about: str | None, turns: Mapping[str, Turn], shown: Callable[[str, Path], object]
) -> int:
    """Ask what the command line says until the time is over and return 1 where there was a finding; a kind with a finding is asked no more."""
    asked = arguments(about, sorted(turns))
    turns = {asked.kind: turns[asked.kind]} if asked.kind else turns
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    until, began_s, number = time.monotonic() + asked.seconds, time.process_time(), asked.seed
    cases = dict.fromkeys(turns, 0)
    in_memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as name,
        contextlib.chdir(name),  # for what a command line writes
    ):
        found = Findings(fuzzer, lambda kind: shown(kind, Path(name)))
        while len(found.kinds) < len(turns) and time.monotonic() < until:
            kinds = [kind for kind in turns if kind not in found.kinds]
            Random(number).shuffle(
                kinds
            )  # where time is over before all had a turn, another seed asks others
            for kind in kinds:
                if time.monotonic() >= until:
                    break
                with found.of(kind, number):
                    cases[kind] += turns[kind](Path(name), number)
            number += 1
    took_s = time.process_time() - began_s
    if asked.record:
        add_cases(fuzzer, cases, len(found.kinds), took_s)
    print(
        f"{sum(cases.values()):,} cases of {len(turns)} kinds, seeds {asked.seed} to {number - 1}, "
        f"{took_s:,.0f} s of processor time, {len(found.kinds)} findings"
    )
    sys.stdout.flush()
    return 1 if found.kinds else 0


class Broken(NamedTuple):
    """A law that does not hold."""

    law: str
    words: str


def laws_until_time_is_over(
    fuzzer: str,
    about: str | None,
    kinds: Sequence[str],
    questions: Callable[[int, str | None], Iterable[tuple[str, int]]],
    broken_by: Callable[[str, int], Sequence[Broken]],
) -> int:
    """Ask the questions from a seed on, of one kind or of all, until the time is over; print the laws that answers break, and return 1 where there was one."""
    asked = arguments(about, kinds)
    until, began_s, broken = time.monotonic() + asked.seconds, time.process_time(), 0
    cases, number = Counter[str](), asked.seed
    for kind, number in questions(asked.seed, asked.kind):
        if time.monotonic() >= until:
            break
        found = broken_by(kind, number)
        cases[kind] += 1
        broken += bool(found)
        for item in found[:MOST_SHOWN]:
            print(f"FOUND {kind} {number}: {item.law}: {item.words}", flush=True)
    if asked.record:
        add_cases(fuzzer, cases, broken, time.process_time() - began_s)
    print(json.dumps({"questions": cases.total(), "broken": broken, "seed": asked.seed, "last": number}))
    return 1 if broken else 0


def quiet(run: Callable[[], int]) -> int:
    """Run a command line without what it prints, and return its exit code."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run()
