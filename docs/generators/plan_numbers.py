"""docs/numbers.md: every number of a plan, from the table of quantities; written by `make docs`, compared by a test."""

import re
from pathlib import Path

from capplan.explain.table import formula_in
from capplan.report.quantities import ARGUMENTS, CHOSEN, NEXT_TO_A_PLAN, PLAN, Quantity
from capplan.report.screen_units import screen_of, unit_of
from docs.generators.methodology import cell, formulas

HEAD = """# Numbers of a plan

Each number that JSON, CSV and plan files have of a plan, by its path. `capplan explain PLAN PATH` shows the formula with the values of your plan, and where each
argument is from. `*` stands for any key, and `[]` for any position. Next steps, energy, commitments, growth, the bill, the comparison and the simulation stand next to the plan; their arguments are numbers of the
same row or part. A plan of several groups has the numbers of each group below `groups[0]`, `groups[1]`, and so on. Other names are in the
[nomenclature](nomenclature.md).

| number | unit | title | meaning | formula | arguments |
| --- | --- | --- | --- | --- | --- |
"""
BELOW = """
## Arguments that are not numbers of a plan

`explain` names the file, engine or offer of your plan where the table says it in general.

| argument | label | where it is from |
| --- | --- | --- |
"""


def _entries(root: Path) -> dict[tuple[str, str], str]:
    """Return the place of each formula on the pages of methodology by its room and name, where only one of the room has the name."""
    found = [(item.module.split(".")[1], item.name) for item in formulas(root)]
    return {key: f"methodology/{key[0]}.md#{key[1]}" for key in found if found.count(key) == 1}


def _formula(row: Quantity, entries: dict[tuple[str, str], str]) -> str:
    if row.formula == CHOSEN:
        return "chosen by the search"
    text = cell(formula_in(row))
    if row.function is None:
        return text
    names = row.function.split(".")
    link = entries.get((names[0], names[-1]))
    return f"[{text}]({link})" if link else text


def _title(path: str) -> str:
    """Return the heading of a number in tables; empty if it says no more than the path."""
    title = screen_of(path.removesuffix(".*"), []).column()
    said = title.partition(" (")[0].replace(".", " ").lower()
    return "" if said == re.sub(r"[._*]+", " ", path).strip() else title


def page(root: Path) -> str:
    """Return the text of the page."""
    entries = _entries(root)
    rows = []
    for path, row in {**PLAN, **NEXT_TO_A_PLAN}.items():
        letters = ", ".join(
            f"`{name}`{f' {letter}' if letter else ''}" for name, letter in row.arguments.items()
        )
        cells = (f"`{path}`", unit_of(path), _title(path), row.meaning, _formula(row, entries), letters)
        rows.append(f"| {' | '.join(cells)} |")
    others = [
        f"| `{name}` | {argument.label} | {cell(argument.source)} |" for name, argument in ARGUMENTS.items()
    ]
    return "\n".join([HEAD.rstrip(), *rows, BELOW.rstrip(), *others]) + "\n"
