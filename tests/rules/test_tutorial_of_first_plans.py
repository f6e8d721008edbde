"""The tutorial of a first plan runs as it is written."""

import json
import re
import shlex
from pathlib import Path

import pytest

from capplan.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "first-plan.md"
TAKE_OFFLINE = ("init", "fleet", "levers")


@pytest.mark.long
@pytest.mark.usefixtures("shared_runs")
def test_every_command_of_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran = []
    for kind, text in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if kind == "json":
            (tmp_path / "bench.json").write_text(text)
            continue
        for line in text.strip().splitlines():
            program, *words = shlex.split(line)
            assert program == "capplan"
            code = main([*words, *(["--offline"] if words[0] in TAKE_OFFLINE else [])])
            printed = capsys.readouterr()
            assert code == (4 if words[0] == "verify-plan" else 0), f"{line}: {printed.err}"
            ran.append(words[0])
    assert ran == [
        "init",
        "fleet",
        "fleet",
        "explain",
        "levers",
        "report",
        "report",
        "export",
        "export",
        "verify-plan",
    ]
    assert json.loads((tmp_path / "plan.json").read_text())["result"]["chosen"]["gpus"] > 0
    assert {"chat.yaml", "plan.json", "plan.html", "plan.md", "chat.k8s.yaml"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert "recalibrate: time to first token" in printed.out
