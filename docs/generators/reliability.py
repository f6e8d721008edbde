"""Write docs/reliability.md from the figures that trials kept: `make reliability`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "tests" / "installs" / "figures.json"
PAGE = ROOT / "docs" / "reliability.md"

HEAD = """# What was tried to break it

Written by `make reliability`: its figures are those of the last trials. The rules that capplan keeps are in [SECURITY](../SECURITY.md).
"""
PROCESSES = """## Processes that end

`tests/properties/test_lost_workers.py` ends real processes in the middle of a sweep, in every `make test`.

| what ends | what happens |
| --- | --- |
| a process of `--workers` | it is replaced, its points are computed again, the answer is the same; after the fourth the run ends with one line |
| a worker of a Dask cluster | the scheduler gives its points to others; no point is lost, the answer is the same |
| all workers of a cluster, or there never was one | one line after 30 s; what was finished is printed and kept in `--points` |
| a worker is frozen, or the cluster finishes nothing for 10 s | one line; this process computes the open points too, and the answer is the same |
| the scheduler is killed or frozen | one line at once or within 10 s; this process computes what is left, and the answer is the same |
| a port that accepts and says nothing, or no scheduler at all | one line within 10 s |

The address of the dashboard is printed when a cluster answers. capplan rejects a worker with another version of capplan.
"""
TESTED = """## Tested at every run

Hash seeds, locales (C, POSIX, C.UTF-8, de_DE, tr_TR where they are installed), time zones, one and two workers: the same bytes
(`tests/rules/test_same_bytes.py`). ASCII stdout, a home folder that cannot be written, no links in the repository
(`tests/rules/test_installed_elsewhere.py`). Some hundred files of every kind with small faults (`tests/rules/test_small_fuzz.py`).
"""
MACHINES = """## Faults of machines

Each has a test that meets the fault itself, not a stand-in, but for the clock of a calibration.

| what happens | what capplan does |
| --- | --- |
| the clock jumps by 5 s or an hour, forward or back, in a calibration | no time is wrong; what the rest of the time does not allow is left out and named, or nothing is written (`tests/calibrate/test_pace.py`) |
| a hub answers slowly, or sends a letter now and then for ever | one line after the limit of the client, or after a minute; Ctrl-C ends the wait (`tests/rules/test_hub_access.py`) |
| the home folder is on a read-only disk | shipped models are read; for one of the hub a line names the cache and `HF_HOME` (the same file) |
| versions and processes share a file of `--points` | rows of another version are not read, a line that was cut costs its point, nothing is overwritten (`tests/properties/test_points_file.py`) |
| a plan file of another schema | one line with the version that wrote it and the way out (`tests/properties/test_plan_file_schema.py`) |
| a hub, a mirror or a proxy answers otherwise: 39 answers, such as a login page with status 200, half a file, 50 MB, a gzip bomb, a commit that is a path | a line, and nothing is kept (`tests/rules/test_hub_access.py`) |
| a client of `capplan mcp` cancels, goes, talks nonsense or waits too long | the work ends; the next call is answered (`tests/rules/test_mcp.py`) |
| 10,000 calls of the library; pickling; processes that are forked or spawned; a clock that steps | no memory, file or thread is kept, and the answer is the same (`tests/rules/test_faults_of_machines.py`) |
| 50 threads of one process ask at once, from the first import on | the answers of one thread (`tests/rules/test_faults_of_machines.py`) |

A scenario has 1,000 classes at most, a refit or a comparison with results replays 500 of them at most, and a CSV file has 8 million cells at most. Measured rows with other settings
than all others take about 10 ms each.
"""


def sized(figures: Mapping[str, Any]) -> str:
    """Return the section on the largest inputs."""
    lines = ["## The largest inputs", "", "`python -m tests.installs.sizes`, on one core.", ""]
    lines += ["| question | processor time | peak memory |", "| --- | --: | --: |"]
    lines += [f"| {name} | {of['cpu_s']:.1f} s | {of['memory_mb']:,} MB |" for name, of in figures.items()]
    return "\n".join(lines) + "\n"


def fuzzed(figures: Mapping[str, Any]) -> str:
    """Return the section on random input."""
    lines = ["## Random input", "", "`make fuzz` with `RECORD=1`; cases of all recorded runs.", ""]
    lines += ["| what | cases | kinds | processor time | findings |", "| --- | --: | --: | --: | --: |"]
    for name, of in sorted(figures.items()):
        lines.append(
            f"| {name} | {sum(of['cases'].values()):,} | {len(of['cases'])} | {of['cpu_s']:,} s | {of['findings']} |"
        )
    lines += ["", "| kind | cases |", "| --- | --: |"]
    lines += [
        f"| {kind} | {count:,} |" for _, of in sorted(figures.items()) for kind, count in of["cases"].items()
    ]
    return "\n".join(lines) + "\n"


def installed(figures: Mapping[str, Any]) -> str:
    """Return the section on versions."""
    lines = [
        "## Versions", "",
        "`python -m tests.installs.ranges` in empty environments: golden output, refusals, processes, the wheel, all doctests without torch.", "",
        "| environment | tests passed | versions |", "| --- | --: | --- |",
    ]  # fmt: skip
    for name, of in sorted(figures.items()):
        versions = ", ".join(f"{package} {version}" for package, version in of["versions"].items())
        lines.append(f"| {name} | {of['passed']} | {versions} |")
    return "\n".join(lines) + "\n"


def compared(figures: Mapping[str, Any]) -> str:
    """Return the section on other interpreters and libraries."""
    lines = ["## The same bytes elsewhere", "", "`python -m tests.installs.same_bytes`: ten questions in four formats.", ""]  # fmt: skip
    lines += ["| under | answers with the same bytes | others |", "| --- | --: | --- |"]
    for name, of in sorted(figures.items()):
        others = ", ".join(of["differ"]) or "none"
        lines.append(f"| {name} | {of['answers'] - len(of['differ'])} of {of['answers']} | {others} |")
    return "\n".join(lines) + "\n"


def built(figures: Mapping[str, Any]) -> str:
    """Return the section on builds."""
    of = figures["twice"]
    same = ", ".join(f"{how}: {'yes' if value else 'no'}" for how, value in of["same bytes"].items())
    image = f"- The steps of the Dockerfile, without a builder (`python -m tests.installs.container`): {figures['container']['mb']} MB next to the base image.\n"
    return (
        "## Builds\n\n`python -m tests.installs.built`: sdist and wheel, each twice from a clean copy, in another folder and time zone.\n\n"
        f"- The same bytes: {same}.\n- SBOM (CycloneDX 1.5): {of['components']} components.\n- pip-audit of the tested versions: {of['audit']}.\n{image}"
    )


def page() -> str:
    """Return the page; a part that was not tried is left out."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    writers = (
        ("sizes", sized),
        ("fuzz", fuzzed),
        ("ranges", installed),
        ("same bytes", compared),
        ("build", built),
    )
    parts = [write(figures[kind]) for kind, write in writers if kind in figures]
    return "\n".join([HEAD, PROCESSES, TESTED, MACHINES, *parts])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
