"""An empty environment with the lowest, the tested or the newest versions that pyproject.toml allows, and the smoke set in it.

    python -m tests.installs.ranges lowest [--python python3.11]
    python -m tests.installs.ranges tested --python python3.12
    python -m tests.installs.ranges newest --python python3.13

Without torch, which the smoke set does not need.
"""

import argparse
import re
import sys
import time

from tests.installs.environment import CONSTRAINTS, SMOKE, Environment, declared, empty, lowest, record

EXTRAS = ("plot", "dask", "test")
SHOWN = ("numpy", "pandas", "pydantic", "typer", "click", "rich", "huggingface-hub", "scipy", "distributed")


def installed(environment: Environment, which: str) -> None:
    """Install what the smoke set needs."""
    if which == "tested":
        environment.install("--require-hashes", "--requirement", str(CONSTRAINTS / "test.txt"))
    else:
        wanted = declared(*EXTRAS)
        environment.install(*(lowest(wanted) if which == "lowest" else ["--upgrade", *wanted]))
    environment.install("--no-deps", "--no-build-isolation", ".")


def main() -> int:
    """Build the environment, run the smoke set, and keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=("lowest", "tested", "newest"))
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environment")
    asked = parser.parse_args()
    began = time.monotonic()
    with empty(asked.python) as environment:
        installed(environment, asked.which)
        environment.run("-m", "pip", "check")
        said = environment.run("-m", "pytest", *SMOKE)
        version = environment.run("-c", "import platform; print(platform.python_version())").strip()
        versions = environment.versions(*SHOWN)
    passed = re.search(r"(\d+) passed", said)
    assert passed, said[-1000:]
    record(
        "ranges",
        f"{asked.which} on {version}",
        {"passed": int(passed[1]), "versions": versions, "seconds": round(time.monotonic() - began)},
    )
    print(
        f"{asked.which} versions on Python {version}: {passed[1]} passed; "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
