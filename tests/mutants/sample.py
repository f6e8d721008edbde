"""How many small faults the tests notice: put one into a clone of the tree, run the tests that import the file, count.

    make mutants                           100 faults, seed 7
    make mutants MUTANTS=40 SEED=3 ROOMS=operators,serving

A fault meets the doctests of its file and the tests that import the file, then those that import it through others, for 20 s of
processor time at most. What only distant tests would notice is missed; tests that noticed a fault are run without any at the end.

Oracles, laws, doctests and tests of bad input count; golden files and console blocks do not, since they notice
any change and judge none. The clone lies apart, so tests that need data beside the repository are skipped.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from tests.mutants.mutations import mutants, with_fault
from tests.mutants.nearby import Nearby

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
ROOMS = ("model", "operators", "memory", "phases", "replica", "serving", "fleet", "workload")
TESTS = ("tests/properties/*.py", "tests/oracles/*.py", "tests/rules/test_bad_*.py", "capplan/**/*.py")
# Files named on the command line would be read by the rewriter of assertions, and so without their fault.
MOST_S = 20.0  # of the tests that a fault meets by imports
FURTHER = 6  # files of tests that import the file of a fault through others, the nearest of them
LIBRARIES = (
    "numpy",
    "scipy.stats",
    "pydantic",
    "yaml",
    "typer",
    "hypothesis.strategies",
)  # read before any fork
CUT_OFF = 75  # the exit code where time was up before any test failed
OPTIONS = ["-q", "-x", "--no-header", "--tb=no", "--import-mode=importlib", "--assert=plain"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        copy_of_tree(clone)
        os.chdir(clone)
        sys.path.insert(0, str(clone))
        os.environ |= {"PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        for name in LIBRARIES:
            import_module(name)
        rooms = asked.rooms.split(",")
        every = faults(clone, rooms)
        sample = random.Random(asked.seed).sample(every, min(asked.mutants, len(every)))
        report(confirmed(run(sample, by_imports(clone), clone, asked.jobs), clone), rooms)


def copy_of_tree(clone):
    listing = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listing.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)


def faults(clone, rooms):
    """Return the faults of these rooms, without those that a person found to change nothing."""
    reviewed = {
        line.rpartition("  #")[0].rstrip() for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()
    }
    files = sorted(
        str(p.relative_to(clone)) for room in rooms for p in (clone / "capplan" / room).rglob("*.py")
    )
    every, met = [], set()
    for file in files:
        source = Path(file).read_text(encoding="utf-8")
        lines = source.splitlines()
        for mutant in mutants(file, source):
            name = f"{file}: {lines[mutant.line - 1].strip()}: {mutant.text}"
            if name in reviewed:
                met.add(name)
            else:
                every.append(mutant)
    for name in sorted(reviewed - met):
        if name.partition(": ")[0] in files:
            print(f"equivalent.txt names a fault that is not there: {name}", file=sys.stderr)
    return every


def by_imports(clone):
    """Return the function that finds the files of tests of a fault by what they import."""
    imports = {p: imported(p, clone) for p in sorted((clone / "capplan").rglob("*.py"))}
    imports |= {p: imported(p, clone) for pattern in TESTS for p in clone.glob(pattern)}

    def nearest(mutant):
        """Return `{file: ring}`: 0 for its own doctests and tests that import it, one more for each file in between."""
        path = clone / mutant.path
        rings = {path: 0} if ">>> " in path.read_text(encoding="utf-8") else {}
        seen = front = {path}
        ring = 0
        while front and (ring == 0 or sum(map(bool, rings.values())) < FURTHER):
            users = {p for p, files in imports.items() if files & front} - seen
            tests = sorted(
                (p for p in users if "tests" in p.parts), key=lambda p: (-len(imports[p] & front), p)
            )
            rings |= dict.fromkeys(tests[: FURTHER if ring else None], ring)
            front, seen, ring = users - set(tests), seen | users, ring + 1
        return {str(p): ring for p, ring in rings.items()}

    return nearest


def imported(path, clone):
    """Return the files of the package that a file imports by name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    files = (clone / (name.replace(".", "/") + ".py") for name in names if name.startswith("capplan."))
    return {file for file in files if file.exists()}


def confirmed(results, clone):
    """Yield the results, and say so where a test that noticed a fault fails without any, too."""
    yield from results
    noted = (
        sorted(set(notes(clone).read_text(encoding="utf-8").splitlines())) if notes(clone).exists() else []
    )
    again = fork(lambda: pytest.main([*OPTIONS, *noted], [Nearby(notes(clone), 1e9)])) if noted else 0
    if again and wait_for(again) == pytest.ExitCode.TESTS_FAILED:
        print("the score is too high, one of these fails without a fault:", *noted, sep="\n  ")


def notes(clone):
    return clone.parent / "noticed.txt"


def run(sample, reach, clone, jobs):
    """Yield each fault with what became of it: 0 where all tests pass or there are none, CUT_OFF where time was up first."""
    under_way = {}
    waiting = list(reversed(sample))
    while waiting or under_way:
        while waiting and len(under_way) < jobs:
            mutant = waiting.pop()
            reached = reach(mutant)
            if reached:
                under_way[fork(partial(killed, mutant, reached, clone))] = (
                    mutant,
                    len(reached),
                    time.monotonic(),
                )
            else:
                yield mutant, 0, 0, 0.0
        if under_way:
            pid, status = os.wait()
            mutant, reached, start = under_way.pop(pid)
            yield mutant, os.waitstatus_to_exitcode(status), reached, time.monotonic() - start


def killed(mutant, rings, clone):
    """Run the nearest tests against a fault; 0 where all pass, CUT_OFF where time was up before one failed."""
    put_in(mutant, clone)
    nearby = Nearby(notes(clone), MOST_S, rings, places_of(mutant, clone))
    code = pytest.main([*OPTIONS, *rings], [nearby])
    if nearby.enough and not nearby.failed:
        return CUT_OFF
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


def places_of(mutant, clone):
    """Return the names of the functions and classes around a fault, innermost first, then of those that use them, and so on."""
    tree = ast.parse((clone / mutant.path).read_text(encoding="utf-8"))
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    said = {n.name: {getattr(m, "id", None) for m in ast.walk(n)} for n in nodes}
    around = [n.name for n in reversed(nodes) if n.lineno <= mutant.line <= n.end_lineno]
    places, more = [], [*mutant.names, *around]
    while more:
        places += more
        more = [name for name, used in said.items() if name not in places and not used.isdisjoint(places)]
    return places


def put_in(mutant, clone):
    """Let this process import a file with its fault."""
    path = clone / mutant.path
    tree = with_fault(path.read_text(encoding="utf-8"), mutant.number)
    loaded = SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda self, name: (
        compile(tree, self.path, "exec") if Path(self.path) == path else loaded(self, name)
    )


def fork(job, said=os.devnull):
    """Run a job in a copy of this process, which has read the libraries already, and return its number."""
    pid = os.fork()
    if pid:
        return pid
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    code = 70  # where a fault breaks the run of the tests itself
    try:
        code = int(job())
    finally:
        os._exit(code)


def wait_for(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def report(results, rooms):
    """Print every fault that nobody noticed, then how many were, by room, and what that says about all faults."""
    count, noticed, cut_off = Counter(), Counter(), 0
    start = time.monotonic()
    for mutant, code, reached, seconds in results:
        room = mutant.path.split("/")[1]
        survived = code in (0, CUT_OFF)
        count[room] += 1
        noticed[room] += not survived
        cut_off += code == CUT_OFF
        if survived:
            until = ", cut off" if code == CUT_OFF else ""
            print(
                f"{mutant.path}:{mutant.line}  {mutant.text}  ({reached} tests, {seconds:.0f} s{until})",
                flush=True,
            )
    for room in rooms:
        if count[room]:
            print(f"{room:12}{noticed[room]:4} of {count[room]:4} noticed")
    all_noticed, total = sum(noticed.values()), sum(count.values())
    low, high = wilson(all_noticed, total)
    print(f"score {all_noticed / total:.0%} of {total} faults, 90 % interval {low:.0%} to {high:.0%}", end="")
    if cut_off:
        print(f", {cut_off} cut off before all their tests had run", end="")
    print(f", in {(time.monotonic() - start) / 60:.1f} min")


def wilson(noticed, total, deviations=1.645):
    """Return the interval of a proportion (Wilson 1927, doi:10.1080/01621459.1927.10502953)."""
    share, spread = noticed / total, deviations**2 / total
    middle = (share + spread / 2) / (1 + spread)
    half = deviations / (1 + spread) * (share * (1 - share) / total + spread / (4 * total)) ** 0.5
    return middle - half, middle + half


if __name__ == "__main__":
    main()
