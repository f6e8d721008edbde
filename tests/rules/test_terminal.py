"""Colour only on a terminal, NO_COLOR honoured, lines within its width, completion of names."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_stay_within_the_terminal_and_no_digit_is_lost(columns):
    shown = on_a_terminal(*WORDS, columns=columns, NO_COLOR="1")
    assert max(len(line) for line in shown.splitlines()) <= columns
    assert "8,192" in shown
    assert "…" not in shown


def test_names_are_completed(program):
    def completed(words, index):
        ran = program(
            env={"_CAPPLAN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(index)}
        )
        return ran.out.split()

    assert completed("capplan kv", 1) == ["kv-size"]
    assert completed("capplan fit --hard", 2) == ["--hardware"]
    assert completed("capplan fit --format ", 3) == ["table", "json", "csv", "markdown"]


def test_help_names_every_command_and_the_exit_codes(capplan):
    from capplan.cli.commands import COMMANDS

    ran = capplan("--help")
    assert ran.code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", ran.out, re.MULTILINE)
    assert "3 does not fit" in " ".join(ran.out.split())
