"""docs/evidence/reliability.md is what its generator writes, and each test that it names exists."""

import ast
import re
from pathlib import Path

import pytest

from docs.generators.reliability import PAGE, PROMISES, page

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(r"^\| (.+) \| (.+) \| `(tests/[\w/]+\.py)::(\w+)` \|$", PROMISES, re.MULTILINE)


def test_the_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_promise_has_a_test():
    lines = [line for line in PROMISES.splitlines() if line.startswith("|")]
    headings = [line for line in lines if line.startswith(("| what happens", "| ---"))]
    assert len(ROWS) == len(lines) - len(headings) > 50


@pytest.mark.parametrize("path", sorted({path for _, _, path, _ in ROWS}))
def test_each_test_that_the_page_names_exists(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {test for _, _, where, test in ROWS if where == path} <= there


def test_the_answers_of_a_hub_are_counted():
    from tests.hub import ANSWERS

    assert f"| {len(ANSWERS)} odd answers, " in PROMISES
