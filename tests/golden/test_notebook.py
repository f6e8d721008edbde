"""The notebook of the tutorials runs, and shows what its cells print; `make golden` writes the outputs.

Cells run in one namespace, as in Jupyter: a cell shows what it prints, and the value of its last line.
"""

import ast
import io
import json
import warnings
from contextlib import chdir, redirect_stdout
from pathlib import Path

import pytest

from capplan.library import Result

pytestmark = pytest.mark.usefixtures("shared_runs")
ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def outputs_of(source, names, number):
    """Run a cell, and return its outputs as a notebook keeps them."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = last and eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    found = []
    if printed.getvalue():
        found.append(
            {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if value is not None:
        shown = {"text/plain": repr(value)}
        if isinstance(value, Result):
            shown["text/html"] = value._repr_html_()
        found.append(
            {
                "data": {kind: text.splitlines(keepends=True) for kind, text in sorted(shown.items())},
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return found


def run(notebook, folder):
    """Return a notebook with the outputs of its cells, run one after the other in a folder."""
    names, number = {"__name__": "__main__"}, 0
    cells = []
    with chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("error")
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                outputs = outputs_of("".join(cell["source"]), names, number)
                cells.append({**cell, "execution_count": number, "outputs": outputs})
            else:
                cells.append(cell)
    return {**notebook, "cells": cells}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_print(path, tmp_path, golden, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    ran = run(json.loads(path.read_text(encoding="utf-8")), tmp_path)
    golden(path, json.dumps(ran, indent=1, ensure_ascii=False) + "\n", simulated=True)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_one_that_jupyter_opens(path):
    """What version 4.5 of the notebook format requires: https://nbformat.readthedocs.io/en/latest/format_description.html."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert isinstance(notebook["metadata"], dict)
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    assert all(1 <= len(name) <= 64 and name.replace("-", "").isalnum() for name in names)
    for cell in notebook["cells"]:
        wanted = {"cell_type", "id", "metadata", "source"}
        assert set(cell) == wanted | (
            {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        )
        assert all(line.endswith("\n") for line in cell["source"][:-1])


def test_the_tutorial_has_five_cells_and_three_of_them_draw():
    notebook = json.loads((ROOT / "docs" / "tutorials" / "five-cells.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown = [
        line for cell in cells for output in cell["outputs"] for line in output["data"].get("text/html", ())
    ]
    assert len(cells) == 5
    assert sum("<svg" in line for line in shown) == 3
