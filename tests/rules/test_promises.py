"""docs/evidence/reliability.md is what its generator writes, and each test that it names exists."""

import ast
from pathlib import Path

import pytest

from docs.generators.page_tables import table_in
from docs.generators.reliability import PROMISES, written

ROOT = Path(__file__).resolve().parents[2]
ROWS = [tuple(row["test"].partition("::")[::2]) for row in table_in(PROMISES)]


@pytest.mark.parametrize(("path", "text"), written().items(), ids=lambda own: getattr(own, "name", ""))
def test_what_is_generated_is_current(path, text):
    assert path.read_text(encoding="utf-8") == text, "run: make reliability"


def test_every_promise_has_a_test():
    assert len(ROWS) > 50
    assert all(where.startswith("tests/") and test for where, test in ROWS)


@pytest.mark.parametrize("path", sorted({path for path, _ in ROWS}))
def test_each_test_that_the_page_names_exists(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {test for where, test in ROWS if where == path} <= there


def test_the_answers_of_a_hub_are_counted():
    from tests.hub import ANSWERS

    assert any(f"{len(ANSWERS)} odd answers, " in row["what happens"] for row in table_in(PROMISES))
