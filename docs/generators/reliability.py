"""Write docs/evidence/reliability.md from the figures that trials kept: `make reliability`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.generators.page_tables import Table

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "tests" / "installs" / "figures.json"
PAGE = ROOT / "docs" / "evidence" / "reliability.md"

HEAD = """# What was tried to break it

Written by `make reliability`: its figures are those of the last trials. The rules that capplan keeps are in [SECURITY](../../SECURITY.md).
"""
PROMISES = PAGE.with_name("promises.csv")
"""What happens, what capplan does, and the test that shows it; written by hand."""
KINDS = PAGE.with_name("random-input.csv")
"""Cases of random input by kind."""
PROMISED = """## What is promised, and the test that shows it

Each test meets the fault itself, except for the clock of a calibration; `make test` and `make long` run them. [Each fault with its test](promises.csv). In short:

| what happens | what capplan does |
| --- | --- |
| a file with faults, of another kind, too large, silent, or with code in it | uses it, or rejects it in one line with its place; runs no code |
| an output that cannot be written whole | leaves the file as it was |
| names with control characters, markup, formulas or commands | they stay text in answers, reviews and exports |
| a plan file that was edited or has another schema | names the edit, or the way out |
| `--offline`; odd answers of the model hub | opens no connection; reads or rejects in one line, and keeps nothing but a config |
| slow, cancelled or hostile calls of `capplan mcp` and `capplan serve` | a call blocks no other, has a limit, reads no file of the server, and ends with it |
| workers or schedulers that are killed or frozen | the same answer, computed elsewhere, or one line in a stated time |
| threads, forks, pickles, clocks that step, locales, hash seeds | the same bytes |
| Ctrl-C | exit code 130, without a traceback |
| actions, images and wheels of others | by commit, digest or hash |

A scenario has 1,000 classes at most, a refit or a comparison with results replays 500 of them at most, and a CSV file has 8 million cells at most. capplan rejects a Dask worker with another version of capplan.
"""


def sized(figures: Mapping[str, Any]) -> str:
    """Return the section on the largest inputs."""
    lines = ["## The largest inputs", "", "`python -m tests.installs.sizes`, on one core.", ""]
    lines += ["| question | processor time | peak memory |", "| --- | --: | --: |"]
    lines += [f"| {name} | {of['cpu_s']:.1f} s | {of['memory_mb']:,} MB |" for name, of in figures.items()]
    return "\n".join(lines) + "\n"


def fuzzed(figures: Mapping[str, Any]) -> str:
    """Return the section on random input."""
    lines = [
        "## Random input",
        "",
        "`make fuzz` with `RECORD=1`; cases of all recorded runs. Each finding is mended, and a test keeps it.",
        "",
    ]
    lines += ["| what | cases | kinds | processor time | findings |", "| --- | --: | --: | --: | --: |"]
    for name, of in sorted(figures.items()):
        lines.append(
            f"| {name} | {sum(of['cases'].values()):,} | {len(of['cases'])} | {of['cpu_s']:,} s | {of['findings']} |"
        )
    lines += ["", f"[Cases by kind]({KINDS.name})."]
    return "\n".join(lines) + "\n"


def kinds(figures: Mapping[str, Any]) -> Table:
    """Return the cases of random input by kind."""
    rows = [
        [what, kind, f"{count:,}"]
        for what, of in sorted(figures.items())
        for kind, count in of["cases"].items()
    ]
    return Table(["what", "kind", "cases"], rows)


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


def page(figures: Mapping[str, Any]) -> str:
    """Return the page; a part that was not tried is left out."""
    writers = (
        ("sizes", sized),
        ("fuzz", fuzzed),
        ("ranges", installed),
        ("same bytes", compared),
        ("build", built),
    )
    parts = [write(figures[kind]) for kind, write in writers if kind in figures]
    return "\n".join([HEAD, PROMISED, *parts])


def written() -> dict[Path, str]:
    """Return the page and the file of cases, by their paths."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    return {PAGE: page(figures), KINDS: kinds(figures["fuzz"]).csv()}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(path)
