"""The tutorial from a plan to an order runs as it is written."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from capplan.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "from-a-plan-to-an-order.md"
TAKE_OFFLINE = ("fleet", "explain", "check")


@pytest.mark.long
@pytest.mark.usefixtures("shared_runs")
def test_every_command_of_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran, printed = [], {}
    for kind, text in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if kind == "yaml":
            (tmp_path / "chat.yaml").write_text(text)
            continue
        for line in text.strip().splitlines():
            program, *words = shlex.split(line)
            assert program == "capplan"
            old_price = ["--max-price-age", "3650"] if words[0] == "check" else []
            code = main([*words, *old_price, *(["--offline"] if words[0] in TAKE_OFFLINE else [])])
            shown = capsys.readouterr()
            assert code == 0, f"{line}: {shown.err}"
            printed[line] = shown.out
            ran.append(words[0])
    assert ran == ["list", "hardware", "fleet", "fleet", "fleet", "explain", "export", "export", "check"]
    plan = json.loads((tmp_path / "plan.json").read_text())["result"]["chosen"]
    assert plan["survival"]["domain"] == "machine"
    assert all(
        line["provider"] == "AWS" and line["region"] and line["date"] for line in plan["order"]["machines"]
    )
    tasks = list(yaml.safe_load_all((tmp_path / "machines.yaml").read_text()))
    assert sum(task["num_nodes"] for task in tasks) == sum(
        line["count"] for line in plan["order"]["machines"]
    )
