"""Every number of a plan, from the table of quantities: docs/numbers.md, written by `make docs`, and the pages that it links, built with the site."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from capplan.explain.table import formula_in
from capplan.report.quantities import ARGUMENTS, CHOSEN, NEXT_TO_A_PLAN, PLAN, Quantity
from capplan.report.screen_units import unit_of
from docs.generators.methodology import anchor, cell, formulas, page_of
from docs.generators.site import SITE

PAGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "plan": ("Replicas, rates, latencies and cost of a plan", ()),
    "memory": (
        "Memory of a GPU",
        ("usable_bytes_per_gpu", "weight_bytes_per_gpu", "activation_bytes_per_gpu", "non_torch_bytes_per_gpu", "cuda_graph_bytes_per_gpu",
         "kv_bytes_available_per_gpu", "reserved_bytes_per_sequence", "max_concurrency", "kv_bytes_per_token", "state_bytes_per_sequence"),
    ),
    "machines": (
        "Machines, failures, transfers and energy",
        ("order", "survival", "transfer", "outside", "energy"),
    ),
    "bills": ("Bills, commitments, growth and hosted APIs", ("total_cost", "prices_by_term", "bill", "compare", "commitments", "growth")),
    "questions": ("Simulations, and what would change a plan", ("simulate", "next_steps", "tight_target", "certainty")),
}  # fmt: skip
"""Page -> its title, and the first names of the paths that stand on it; all others stand on the first."""
HEAD = """# Numbers of a plan

Each number of a plan in JSON, CSV and plan files, by its path. `capplan explain PLAN PATH` works it out with the values of your plan.

"""
BELOW = f"""
`*` stands for any key, and `[]` for any position. A symbol of a formula is another number of the same row, or one of the [arguments]({SITE}numbers/arguments.html).
A plan of several groups has the numbers of each group below `groups[0]`, `groups[1]`, and so on. Other names are in the [glossary](glossary.md#names).
"""
ARGUMENT_HEAD = """# Arguments of numbers

What formulas of the [numbers of a plan](../numbers.md) take that is not a number of the plan itself. `explain` names the file, engine or offer of your plan where this list says it in general.

"""
_WORDS = re.compile(r"[a-z]{4,} [a-z]")
"""Beginning of a formula in words."""


def _entries(root: Path) -> dict[tuple[str, str], str]:
    """Return the place of each formula on the site by its room and name, where only one of the room has the name."""
    found = [((item.module.split(".")[1], item.name), item.module) for item in formulas(root)]
    keys = [key for key, _ in found]
    return {
        key: f"../methodology/{page_of(module)}.md#{anchor(key[1])}"
        for key, module in found
        if keys.count(key) == 1
    }


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


def _page_of(path: str) -> str:
    first = path.partition(".")[0].partition("[")[0]
    return next((page for page, (_, names) in PAGES.items() if first in names), next(iter(PAGES)))


def _items(rows: Mapping[str, Quantity], entries: dict[tuple[str, str], str]) -> Iterator[str]:
    """Yield a line for each number, which wraps on a phone; a long formula stands at the first number that has it."""
    above, first = "", dict[str, str]()
    for path, row in rows.items():
        unit, formula = unit_of(path), _worked_out(row, entries)
        meaning = row.meaning if unit in ("", "-") else f"{row.meaning} [{unit}]"
        sentence = formula[:1].upper() + formula[1:] if _WORDS.match(formula) else formula
        if formula == above:
            sentence = "The same formula"
        elif formula in first:
            sentence = f"The formula of `{first[formula]}`"
        yield f"- **`{path}`**: {meaning}. {sentence}."
        if len(formula.split()) > 8:
            first.setdefault(formula, path)
        above = formula if len(formula.split()) > 2 else ""


def index() -> str:
    """Return the text of docs/numbers.md, which links a page for each group of numbers."""
    rows = []
    for page, (title, _) in PAGES.items():
        paths = [path for path in {**PLAN, **NEXT_TO_A_PLAN} if _page_of(path) == page]
        names = list(dict.fromkeys(path.partition(".")[0].partition("[")[0] for path in paths))
        shown = ", ".join(f"`{name}`" for name in names[:6]) + (", ..." if len(names) > 6 else "")
        rows.append(f"- [{title}]({SITE}numbers/{page}.html): {shown}\n")
    return f"{HEAD}{''.join(rows)}{BELOW}"


def pages(root: Path) -> dict[str, str]:
    """Return the text of a page for each group of numbers and of the arguments, by their paths on the site."""
    entries, texts = _entries(root), {}
    for page, (title, _) in PAGES.items():
        own = {path: row for path, row in {**PLAN, **NEXT_TO_A_PLAN}.items() if _page_of(path) == page}
        texts[f"numbers/{page}.md"] = f"# {title}\n\n" + "\n".join([*_items(own, entries), ""])
    others = [f"- **`{name}`**: {cell(argument.source)}\n" for name, argument in ARGUMENTS.items()]
    return {**texts, "numbers/arguments.md": ARGUMENT_HEAD + "".join(others)}
