"""docs/methodology.md: every formula, out of the docstrings that state it; written by `make docs`, held current by a test."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = {
    "operators": "Work of one operator, and the time that a device takes for it",
    "model": "Parameters and what a network is made of",
    "memory": "What a device holds",
    "phases": "A step: prompts and decoding",
    "replica": "One engine on its devices",
    "serving": "Many requests on one replica",
    "workload": "Traffic",
    "fleet": "Replicas, their price, and how certain they are",
    "money": "What choices cost over time",
    "accuracy": "What a prediction is worth",
}
"""Rooms in the order of the page, with what they answer."""
SECTIONS = frozenset(
    {"Parameters", "Returns", "Raises", "Examples", "References", "Yields", "Notes", "Attributes"}
)
INTRODUCTION = """# Methodology

Every formula that an answer rests on, as its function states it: symbols with units, and where it comes from. This page is made of the docstrings
of the package, so it says what runs. `capplan explain` shows the same formulas with the numbers of a plan put in; how wrong the answers are is in
[accuracy.md](accuracy.md), what is assumed in [assumptions.md](assumptions.md), the kernels behind the operators in [kernels.md](kernels.md).
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


def _sections(doc: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the lines above the first section, and the lines of every section."""
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


def _symbols(lines: list[str]) -> Iterator[tuple[str, str, str]]:
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
    head, parts = _sections(doc or "")
    places = [number for number, line in enumerate(head) if line.startswith("    ")]
    if not places:
        return None
    first, last = places[0], places[-1]
    formula = "\n".join(line[4:] for line in head[first : last + 1])
    symbols = tuple(_symbols(parts.get("Parameters", [])))
    sources = "\n".join(parts.get("References", [])).strip()
    lead, rest = ("\n".join(part).strip() for part in (head[:first], head[last + 1 :]))
    return Stated(module, name, lead, formula, rest, symbols, sources)


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


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _entry(item: Stated) -> str:
    parts = [f"### {item.name}\n", f"`{item.module}`\n", item.lead + "\n", f"```text\n{item.formula}\n```\n"]
    if item.rest:
        parts.append(item.rest + "\n")
    if item.symbols:
        rows = (f"| {' | '.join(map(_cell, symbol))} |" for symbol in item.symbols)
        parts.append("\n".join(["| symbol | unit | meaning |", "| --- | --- | --- |", *rows]) + "\n")
    if item.sources:
        parts.append(f"Source: {' '.join(item.sources.split())}\n")
    return "\n".join(parts)


def page(root: Path) -> str:
    """Return the page."""
    parts, room = [INTRODUCTION], ""
    for item in formulas(root):
        own = item.module.split(".")[1]
        if own != room:
            room = own
            parts.append(f"## {ROOMS[room]}\n")
        parts.append(_entry(item))
    return "\n".join(parts)
