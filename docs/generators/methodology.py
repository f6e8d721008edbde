"""docs/methodology/: every formula, a page for each room, from the docstrings that state it; written by `make docs`, compared by a test."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = {
    "model": "Parameters of a model",
    "memory": "Memory of a GPU",
    "operators": "Time of an operator",
    "phases": "Time of a step",
    "replica": "One replica",
    "serving": "Many requests on one replica",
    "workload": "Traffic",
    "fleet": "Number of replicas, and the chance to meet the SLO",
    "money": "Money",
    "accuracy": "Intervals and errors",
}
"""Rooms in the order of the pages, with what they answer."""
SECTIONS = frozenset(
    {"Parameters", "Returns", "Raises", "Examples", "References", "Yields", "Notes", "Attributes"}
)
HEAD = """Each entry is the docstring of a function of the package, so the page shows what runs: the formula, its symbols with units, and its source.
[Methodology](../methodology.md) says how the rooms work together. `capplan explain` shows the same formulas with the numbers of your plan.
"""


@dataclass(frozen=True, slots=True)
class Stated:
    """A function or class whose docstring states a formula."""

    module: str
    name: str
    lead: str
    """What stands above the formula."""
    formula: str
    rest: str
    """What stands below it, up to the first section."""
    symbols: tuple[tuple[str, str, str], ...]
    """Name, unit and meaning."""
    sources: str


def sections(doc: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the lines of a docstring above its first section, and the lines of every section."""
    lines = doc.splitlines()
    head: list[str] = []
    parts: dict[str, list[str]] = {}
    current = head
    for number, line in enumerate(lines):
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if line in SECTIONS and below.startswith("---"):
            current = parts.setdefault(line, [])
        elif not (line.startswith("---") and lines[number - 1] in SECTIONS):
            current.append(line)
    return head, parts


def symbols(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield names, unit and meaning of a section of parameters."""
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        if line and not line.startswith(" "):
            entries.append((line, []))
        elif line and entries:
            entries[-1][1].append(line.strip())
    for head, below in entries:
        names, _, said = head.partition(" : ")
        unit, meaning = (said, " ".join(below)) if said.startswith("[") else ("", " ".join([said, *below]))
        yield names, unit, meaning.strip()


def stated(module: str, name: str, doc: str | None) -> Stated | None:
    """Return what a docstring states, None where it states no formula.

    Examples
    --------
    >>> stated("m", "area_m2", "    A = l w").formula
    'A = l w'
    """
    head, parts = sections(doc or "")
    places = [number for number, line in enumerate(head) if line.startswith("    ")]
    if not places:
        return None
    first, last = places[0], places[-1]
    formula = "\n".join(line[4:] for line in head[first : last + 1])
    listed = tuple(symbols(parts.get("Parameters", [])))
    sources = "\n".join(parts.get("References", [])).strip()
    lead, rest = ("\n".join(part).strip() for part in (head[:first], head[last + 1 :]))
    return Stated(module, name, lead, formula, rest, listed, sources)


def formulas(root: Path) -> Iterator[Stated]:
    """Yield every formula of the package, room by room."""
    for room in ROOMS:
        for path in sorted((root / "capplan" / room).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    found = stated(module, node.name, ast.get_docstring(node))
                    if found:
                        yield found


def cell(text: str) -> str:
    """Return text as a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _entry(item: Stated) -> str:
    parts = [f"## {item.name}\n", f"`{item.module}`\n", item.lead + "\n", f"```text\n{item.formula}\n```\n"]
    if item.rest:
        parts.append(item.rest + "\n")
    if item.symbols:
        rows = (f"| {' | '.join(map(cell, symbol))} |" for symbol in item.symbols)
        parts.append("\n".join(["| symbol | unit | meaning |", "| --- | --- | --- |", *rows]) + "\n")
    if item.sources:
        parts.append(f"Source: {' '.join(item.sources.split())}\n")
    return "\n".join(parts)


def pages(root: Path) -> dict[str, str]:
    """Return the text of each page by the name of its room."""
    found: dict[str, list[str]] = {}
    for item in formulas(root):
        found.setdefault(item.module.split(".")[1], []).append(_entry(item))
    return {room: "\n".join([f"# {ROOMS[room]}\n", HEAD, *entries]) for room, entries in found.items()}
