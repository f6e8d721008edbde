"""Turns of cases until the time is over: every kind once, then again with the next seed; findings are printed, cases counted."""

import argparse
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.installs.environment import FIGURES, add_cases

MOST_BYTES = 6 * 1024**3
"""Of address space: a case that wants more is a finding."""

Turn = Callable[[Path, int], int]
"""Asks the cases of a seed in a folder, and returns how many."""


def arguments(about: str | None, kinds: Sequence[str]) -> argparse.Namespace:
    """Return what a fuzzer was asked for."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=kinds)
    parser.add_argument(
        "--record", action="store_true", help=f"add the cases to {FIGURES.name}, for docs/reliability.md"
    )
    return parser.parse_args()


def asked_until_time_is_over(
    fuzzer: str, turns: Mapping[str, Turn], asked: argparse.Namespace, shown: Callable[[str, Path], object]
) -> int:
    """Ask until the time is over and return 1 where there was a finding; a kind with a finding is asked no more."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    until, began_s = time.monotonic() + asked.seconds, time.process_time()
    open_turns, number, findings = dict(turns), asked.seed, 0
    cases = dict.fromkeys(turns, 0)
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as name:
        while open_turns and time.monotonic() < until:
            for kind in list(open_turns):
                if time.monotonic() >= until:
                    break
                try:
                    cases[kind] += open_turns[kind](Path(name), number)
                except Exception as error:  # noqa: BLE001 - whatever is not a refusal is a finding
                    findings += 1
                    del open_turns[kind]
                    place = traceback.extract_tb(error.__traceback__)[-1]
                    print(
                        f"FOUND {kind}: {type(error).__name__}: {str(error)[:300]} at {place.filename}:{place.lineno}\n"
                        f"  {str(shown(kind, Path(name)))[:2000]}\n"
                        f"  again: python -m tests.fuzz.{fuzzer} --kind {kind} --seed {number} --seconds 1",
                        flush=True,
                    )
            number += 1
    took_s = time.process_time() - began_s
    if asked.record:
        add_cases(fuzzer, cases, findings, took_s)
    print(
        f"{sum(cases.values()):,} cases of {len(turns)} kinds, seeds {asked.seed} to {number - 1}, "
        f"{took_s:,.0f} s of processor time, {findings} findings"
    )
    sys.stdout.flush()
    return 1 if findings else 0
