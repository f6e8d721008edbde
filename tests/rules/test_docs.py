"""The documentation says what the program does: every command, every option, every example as printed."""

import ast
import re
from pathlib import Path

import pytest

from capplan.cli.commands import COMMANDS, FUNCTIONS

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_pages_are_current():
    from docs.generators.commands import documentation

    shown = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert shown == documentation(), "run: make docs"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_one_thin_function(name):
    file, _, wanted = FUNCTIONS[name].partition(".")
    path = ROOT / "capplan" / "cli" / f"{file}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == wanted)
    assert ast.get_docstring(function).splitlines()[0] == COMMANDS[name], "the summary in cli/commands.py"
    body = function.body[1:]
    assert body[-1].end_lineno - body[0].lineno < 30
    assert len(function.args.args + function.args.kwonlyargs) <= 10, (
        "options that belong together are a group"
    )
    operators = (ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)  # + joins lists
    assert [ast.unparse(n) for n in ast.walk(function) if isinstance(getattr(n, "op", None), operators)] == []


def test_the_architecture_names_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {p.name for p in (ROOT / "capplan").iterdir() if p.is_dir() and p.name[0] not in "_."}
    assert {room for room in rooms if f"`{room}`" not in text and f"`{room}/`" not in text} == set()


def test_links_of_the_documentation_lead_somewhere():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_scenario_is_read(path):
    from capplan.scenario.scenario import read_scenario

    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=")
    assert read_scenario(path).name == path.stem


def test_changes_are_listed_under_a_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text or re.search(r"^## \[\d+\.\d+\.\d+\]", text, re.MULTILINE)
