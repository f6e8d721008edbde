"""The tutorial from a trace to a fleet runs as it is written."""

import re
import shlex
from pathlib import Path

import pytest

from capplan.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorials" / "from-a-request-trace-to-a-fleet.md"
MISSES = ("--replicas 1",)
"""Commands that are there to miss a target."""


@pytest.mark.long
def test_every_block_of_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = 0
    for kind, text in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if kind == "python":
            exec(compile(text, PAGE.name, "exec"), {})
        elif kind == "yaml":
            name = re.match(r"# file: (\S+)\n", text).group(1)
            (tmp_path / name).write_text(text)
        elif kind == "bash":
            for line in text.strip().splitlines():
                program, *words = shlex.split(line)
                assert program == "capplan"
                code = main([*words, "--offline"] if words[0] != "workload" else words)
                printed = capsys.readouterr()
                allowed = (0, 4) if any(part in line for part in MISSES) else (0,)
                assert code in allowed, f"{line}: {printed.err}"
                assert printed.out.strip()
                commands += 1
    assert commands == 8
    written = {path.name for path in tmp_path.iterdir()}
    assert {"trace.csv", "workload.yaml", "points.jsonl"} <= written


def test_the_picture_of_the_tutorial_is_there():
    assert (ROOT / "docs" / "pictures" / "support-chat-frontier.svg").read_text(encoding="utf-8").count(
        "<svg"
    ) == 1
