"""Colour only on a terminal, NO_COLOR honoured, lines within its width, completion of names."""

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tables import table

pytestmark = pytest.mark.usefixtures("shared_runs")

ROOT = Path(__file__).resolve().parents[2]


def on_a_terminal(*words, columns=100, **env):
    """Run the program on a pseudo-terminal and return what it shows."""
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", str(columns), "rows", "50"], stdin=theirs, check=True)
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    running = subprocess.Popen(
        [sys.executable, "-m", "capplan", *words],
        cwd=ROOT,
        stdout=theirs,
        stderr=theirs,
        env={**clean, "TERM": "xterm", **env},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert running.wait(timeout=30) == 0
    return shown.decode().replace("\r\n", "\n")


WORDS = ("kv-size", "llama-3.1-8b", "--context", "8192", "-tp", "2", "--sequences", "4")


def test_a_terminal_gets_headings_set_off():
    assert "\x1b[" in on_a_terminal(*WORDS)


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_colour_gets_none(env):
    assert "\x1b" not in on_a_terminal(*WORDS, **env)


def test_a_terminal_is_told_which_file_was_written(tmp_path):
    file = tmp_path / "kv.json"
    shown = on_a_terminal(*WORDS, "-o", str(file), columns=300)
    headline = on_a_terminal(*WORDS, columns=300, NO_COLOR="1").splitlines()[0]
    assert shown.splitlines() == [f"wrote {file}", f"  {headline}"]
    assert '"kv-size"' in file.read_text()


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_stay_within_the_terminal_and_no_digit_is_lost(columns):
    shown = on_a_terminal(*WORDS, columns=columns, NO_COLOR="1")
    assert max(len(line) for line in shown.splitlines()) <= columns
    assert "8,192" in shown
    assert "…" not in shown


@table
def test_names_are_completed(program, words, index, expected):
    ran = program(env={"_CAPPLAN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(index)})
    assert ran.out.split() == expected


def test_every_model_that_is_completed_is_found():
    from capplan.cli.completion import models
    from capplan.readers.catalogue.models import shipped_id

    names = [name for name in models("") if not name.endswith(("/", ".json", ".gguf"))]
    assert len(names) > 200
    assert all(shipped_id(name) for name in names)


def test_every_dtype_that_is_completed_is_one():
    from capplan.cli.completion import KV_DTYPES, WEIGHT_DTYPES
    from capplan.memory.kv_sizes import cache_dtype
    from capplan.model.weight_format import in_weight_format
    from capplan.readers.catalogue.models import read_model

    network = read_model("llama-3.2-1b", offline=True)
    for name in WEIGHT_DTYPES:
        assert in_weight_format(network, name).name == network.name
    assert [cache_dtype(network, name)[0] for name in KV_DTYPES] == list(KV_DTYPES)


@pytest.mark.parametrize("name", ["simulate", "fit", "report", "sweep"])
def test_help_has_groups_and_an_example(capplan, name):
    from capplan.cli.commands import EXAMPLES

    text = capplan(name, "--help").out
    assert "\nOutput:\n" in text
    assert f"For example: {EXAMPLES[name]}" in " ".join(text.split())
    groups = re.split(r"^[A-Z][\w\s-]*:\n", text, flags=re.MULTILINE)
    assert all(len(re.findall(r"^  (?:-\w+, )?--", group, re.MULTILINE)) <= 14 for group in groups)


@pytest.mark.long
def test_the_example_of_every_help_runs(capplan, tmp_path, monkeypatch):
    """In the order of the help, in an empty folder; not those that read a file of one's own, need a card or wait for a client."""
    from capplan.cli.commands import EXAMPLES

    monkeypatch.chdir(tmp_path)
    failed = []
    for name, example in EXAMPLES.items():
        if name not in ("workload", "verify-plan", "replan", "prices", "calibrate", "mcp", "serve"):
            ran = capplan(*shlex.split(example)[1:])
            if ran.code:
                failed.append((example, ran.code, ran.err))
    assert failed == []


def test_every_command_has_an_example():
    from capplan.cli.commands import COMMANDS, EXAMPLES

    assert set(EXAMPLES) == set(COMMANDS)
    assert all(line.startswith(f"capplan {name}") for name, line in EXAMPLES.items())


def test_help_names_every_command_and_the_exit_codes(capplan):
    from capplan.cli.commands import COMMANDS

    ran = capplan("--help")
    assert ran.code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", ran.out, re.MULTILINE)
    assert "3 does not fit" in " ".join(ran.out.split())


@table
def test_a_command_that_writes_a_file_says_which_in_a_pipe_too(words, name, capplan, tmp_path):
    ran = capplan(*words, tmp_path / name)
    assert re.findall(r"^wrote (.+)$", ran.err, re.MULTILINE) == [str(tmp_path / name)]
