"""No flag is accepted and ignored: two command lines that differ in one flag give different numbers, or a refusal with its reason.

Every flag and argument of every command has one case in tests/rows/flags.yaml; a new one fails the first test until it has a case.
"""

import json
import re
import shlex
from typing import NamedTuple

import pytest
import typer

from capplan.cli.commands import COMMANDS
from capplan.cli.main import app
from tests.tables import rows


class Case(NamedTuple):
    """A flag, or an argument in braces, and the line that it is added to."""

    value: str = ""
    """After the flag; of an argument what stands in its place."""
    line: str = ""
    """Instead of the command's usual line."""
    refused: str = ""
    """Words of the reason where the flag is refused, or of what a stand-in was told."""
    file: str = ""
    """What is written to this file differs, or there is none without the flag."""
    words: str = ""
    """What is printed differs, though no number needs to."""


ROWS = rows("flags")
LINES = ROWS["lines"]


def case_of(command, row):
    """Return the case of a row: a value alone, or its fields."""
    names = {"{command}": command, " {more}": f" {ROWS['more'][command]}" if command in ROWS["more"] else ""}
    fields = {key: str(value) for key, value in (row if isinstance(row, dict) else {"value": row}).items()}
    for name, text in names.items():
        fields["line"] = fields.get("line", "").replace(name, text)
    return Case(**fields)


CASES = {
    command: {flag: case_of(command, row) for flag, row in rows.items()}
    for command, rows in ROWS["cases"].items()
}
UNREAD = [(line, flag) for row in ROWS["unread"] for line, flags in row.items() for flag in flags]
"""Lines, and what is added to them that nothing there reads."""


def flags_of(command):
    """Return the options of a command, and its arguments in braces."""
    found = typer.main.get_command(app).get_command(None, command)
    return {p.opts[0] if p.opts[0].startswith("-") else f"{{{p.opts[0]}}}" for p in found.params}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_its_case(command):
    assert set(CASES[command]) == flags_of(command)


def with_flag(words, flag, value):
    """Return a line with a flag added, or set anew where the line has it; an argument in its place."""
    found, values = list(words), shlex.split(value)
    if flag.startswith("{"):
        arguments = [name for name in CASES[words[0]] if name.startswith("{")]
        found[1 + arguments.index(flag)] = value
    elif flag in found:
        at = found.index(flag) + 1
        found[at : at + len(values)] = values
    else:
        found += [flag, *values]
    return found


def written(path):
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize(("command", "flag"), [(c, f) for c in CASES for f in CASES[c]])
def test_a_flag_changes_what_is_answered(command, flag, line, numbers, small_files):
    if command == "calibrate":
        pytest.importorskip("torch", reason="a calibration needs the extra")
    case = CASES[command][flag]
    before = shlex.split(case.line or LINES[command])
    after = with_flag(before, flag, case.value)
    assert after != before
    if case.refused:
        first, second = line(before), line(after)
        assert second.code == 2
        assert re.search(case.refused, second.err), second.err
        assert not re.search(case.refused, first.err)
    elif case.file:
        found = []
        for words in (before, after):
            (small_files / case.file).unlink(missing_ok=True)
            assert line(words, anew=True).code != 2
            found.append(written(small_files / case.file))
        assert found[1] not in (b"", found[0])
    elif case.words:
        first, second = line(before), line(after)
        assert 2 not in (first.code, second.code)
        assert first.out != second.out
    else:
        asked = flag.strip("-").replace("-", "_")
        first, second = (line([*words, "--format", "json"]) for words in (before, after))
        assert 2 not in (first.code, second.code), (first.err, second.err)
        was, now = (
            numbers(json.loads(ran.out)["result"], asked) if ran.out else None for ran in (first, second)
        )
        assert was != now


def test_a_calibration_counts_in_a_sweep_of_a_scenario_too(line, numbers):
    swept = shlex.split("sweep small.yaml --hardware h100-sxm --request-rate 2 --offline --format json")
    first, second = (line([*swept, *more]) for more in ((), ("--calibration", "host.calibration.yaml")))
    assert (first.code, second.code) == (0, 0), (first.err, second.err)
    was, now = (numbers(json.loads(ran.out)["result"], "calibration") for ran in (first, second))
    assert was != now


@pytest.mark.parametrize(("start", "flag"), UNREAD)
def test_a_flag_that_nothing_reads_is_refused(start, flag, line):
    first, second = line(shlex.split(start)), line(shlex.split(f"{start} {flag}"))
    assert first.code != 2 or first.err.startswith("told: ")
    assert second.code == 2
    assert not second.err.startswith("told: ")
