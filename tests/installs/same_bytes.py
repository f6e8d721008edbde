"""The same questions under other interpreters and libraries: do the answers have the same bytes?

    python -m tests.installs.same_bytes --pythons python3.12 python3.13

The lowest numpy on this Python, and the tested versions on each other one; hash seeds, locales, time zones and workers are in
`tests/rules/test_same_bytes.py`. What differs is counted and named; a last digit of JSON may, where numpy sums in another order.
"""

import argparse
import json
import sys

from tests.installs.environment import CONSTRAINTS, ROOT, Environment, declared, empty, lowest, record


def answers(environment: Environment) -> dict[str, str]:
    """Return the digests of the answers of the installed program."""
    found: dict[str, str] = json.loads(
        environment.run("-P", str(ROOT / "tests" / "installs" / "answers.py"), cwd=environment.folder)
    )
    return found


def installed(environment: Environment, *, low: bool) -> None:
    """Install the program with the lowest or the tested versions."""
    if low:
        environment.install(*lowest(declared()))
    else:
        environment.install("--require-hashes", "--requirement", str(CONSTRAINTS / "plan.txt"))
    environment.install("--no-deps", "--no-build-isolation", str(ROOT))


def main() -> int:
    """Compare, and keep the figures; 1 where something people read differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pythons", nargs="*", default=[])
    asked = parser.parse_args()
    first: dict[str, str] = {}
    worse = 0
    for python, low in (
        (sys.executable, False),
        (sys.executable, True),
        *((p, False) for p in asked.pythons),
    ):
        with empty(python) as environment:
            installed(environment, low=low)
            found = answers(environment)
            about = environment.run(
                "-c", "import numpy, platform; print('Python', platform.python_version(), 'numpy', numpy.__version__)"
            ).strip()  # fmt: skip
        first = first or found
        differs = [name for name in first if found.get(name) != first[name]]
        worse += any(name.endswith(("table", "markdown")) for name in differs)
        record("same bytes", about, {"answers": len(first), "differ": differs})
        print(f"{about}: {len(first) - len(differs)} of {len(first)} answers have the same bytes; {differs}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
