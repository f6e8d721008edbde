"""docs/numbers.md: every number of a plan, from the table of quantities; written by `make docs`, compared by a test."""

from pathlib import Path

from capplan.explain.table import formula_in
from capplan.report.quantities import ARGUMENTS, CHOSEN, NEXT_TO_A_PLAN, PLAN, Quantity
from capplan.report.screen_units import unit_of
from docs.generators.methodology import anchor, cell, formulas

HEAD = """# Numbers of a plan

Each number of a plan in JSON, CSV and plan files, by its path. `capplan explain PLAN PATH` works it out with the values of your plan.

`*` stands for any key, and `[]` for any position. A symbol of a formula is another number of the same row, or one of the [arguments](#arguments-that-are-not-numbers-of-a-plan) below.
A plan of several groups has the numbers of each group below `groups[0]`, `groups[1]`, and so on. Other names are in the [nomenclature](nomenclature.md).

| number | meaning | formula |
| --- | --- | --- |
"""
BELOW = """
## Arguments that are not numbers of a plan

`explain` names the file, engine or offer of your plan where the table says it in general.

| argument | where it is from |
| --- | --- |
"""


def _entries(root: Path) -> dict[tuple[str, str], str]:
    """Return the place of each formula on the pages of methodology by its room and name, where only one of the room has the name."""
    found = [(item.module.split(".")[1], item.name) for item in formulas(root)]
    return {key: f"methodology/{key[0]}.md#{anchor(key[1])}" for key in found if found.count(key) == 1}


def _formula(row: Quantity, entries: dict[tuple[str, str], str]) -> str:
    if row.formula == CHOSEN:
        return "chosen by the search"
    text = cell(formula_in(row))
    if row.function is None:
        return text
    names = row.function.split(".")
    method = names[-2][:1].isupper()
    link = entries.get((names[0], ".".join(names[-2:]) if method else names[-1]))
    return f"[{text}]({link})" if link else text


def _worked_out(row: Quantity, entries: dict[tuple[str, str], str]) -> str:
    """Return a formula with its arguments; of a formula that is one argument, its name."""
    formula = _formula(row, entries)
    named = [f"{letter} `{name}`".strip() for name, letter in row.arguments.items()]
    if len(named) == 1 and named[0].startswith(f"{formula} `"):
        return named[0].removeprefix(f"{formula} ")
    return "; ".join([formula, ", ".join(named)]) if named else formula


def page(root: Path) -> str:
    """Return the text of the page."""
    entries = _entries(root)
    rows = []
    for path, row in {**PLAN, **NEXT_TO_A_PLAN}.items():
        unit = unit_of(path)
        meaning = row.meaning if unit in ("", "-") else f"{row.meaning} [{unit}]"
        cells = (f"`{path}`", meaning, _worked_out(row, entries))
        rows.append(f"| {' | '.join(cells)} |")
    others = [f"| `{name}` | {cell(argument.source)} |" for name, argument in ARGUMENTS.items()]
    return "\n".join([HEAD.rstrip(), *rows, BELOW.rstrip(), *others]) + "\n"
