"""Every formula as pages of the site, a page for each room, from the docstrings that state it; built with the site."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from capplan.report.quantities import NEXT_TO_A_PLAN, PLAN

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
BY_MODULE = ("memory", "operators", "money")
"""Rooms with so many formulas that each module has a page."""
SECTIONS = frozenset(
    {"Parameters", "Returns", "Raises", "Examples", "References", "Yields", "Notes", "Attributes"}
)
HEAD = """The formulas behind [how a plan is computed](../methodology.md).
"""
WIDTH = 44
"""Columns of a phone."""
_LETTER = re.compile(r"(?<![\w'])(?!(?:a|A|I) \w)(?:[A-Za-z]\w?|[A-Za-z]\w?_\w+)(?![\w'])")
"""A symbol, such as n, Q' or t_0, in a text; not an article."""
_SHORT = frozenset(
    {"of", "in", "on", "as", "is", "or", "at", "to", "by", "it", "if", "an", "be", "no", "so", "do"}
)


@dataclass(frozen=True, slots=True)
class Stated:
    """A function or class whose docstring states a formula."""

    module: str
    name: str
    """With the class that it is of: `Energy.kwh`."""
    lead: str
    """What stands above the formula."""
    formula: str
    rest: str
    """What stands below it, up to the first section."""
    symbols: tuple[tuple[str, str, str], ...]
    """Name, unit and meaning."""
    sources: str

    @property
    def explained(self) -> bool:
        """Return whether symbols, text or a source stand next to the formula."""
        return bool(self.symbols or self.rest or self.sources)


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
    """Yield every formula of the package, room by room, but those of which the page of a number says as much."""
    of_numbers = {row.function for row in (*PLAN.values(), *NEXT_TO_A_PLAN.values())}
    for room in ROOMS:
        for path in sorted((root / "capplan" / room).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            for name, doc in _documented(ast.parse(path.read_text(encoding="utf-8"))):
                found = stated(module, name, doc)
                if found and (found.explained or f"{module.partition('.')[2]}.{name}" not in of_numbers):
                    yield found


def _documented(within: ast.Module | ast.ClassDef, of: str = "") -> Iterator[tuple[str, str | None]]:
    """Yield names and docstrings of public functions and classes, in the order of the file."""
    for node in within.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield f"{of}{node.name}", ast.get_docstring(node)
            if isinstance(node, ast.ClassDef):
                yield from _documented(node, f"{node.name}.")


def anchor(name: str) -> str:
    """Return the anchor of a formula on its page.

    Examples
    --------
    >>> anchor("Energy.kg_co2")
    'energykg_co2'
    """
    return name.replace(".", "").lower()


def cell(text: str) -> str:
    """Return text as a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def is_symbol(name: str, meaning: str, formula: str) -> bool:
    """Return whether a parameter is in the formula, by its name or by a letter that its meaning states.

    Examples
    --------
    >>> is_symbol("rows", "m, tokens.", "F = 2 m k n"), is_symbol("rates", "of a device", "F = 2 m k n")
    (True, False)
    """
    stated = set(re.findall(r"[A-Za-z]\w*", formula))
    stated |= {word.partition("_")[0] for word in stated if word[1:2] == "_"}
    letters = set(_LETTER.findall(meaning)) - _SHORT
    return bool(stated & (letters | set(re.findall(r"\w+", name))))


def _legend(item: Stated) -> str:
    """Return what the symbols of a formula are, as one sentence, which wraps on a phone."""
    known = [symbol for symbol in item.symbols if is_symbol(symbol[0], symbol[2], item.formula)]
    return ", ".join(_symbol(*symbol) for symbol in known)


def _symbol(names: str, unit: str, meaning: str) -> str:
    """Return the names of parameters, the letter if there is one, and what else is said in brackets.

    Examples
    --------
    >>> _symbol("query_heads", "", "h, on this rank."), _symbol("flop", "[FLOP]", "F.")
    ('`query_heads` h (on this rank)', '`flop` F')
    """
    shown = unit if set(unit.split(", ")) - {"", "[-]"} and not _states(names, unit) else ""
    text = " ".join(meaning.split()).removesuffix(".")
    found = re.match(r"([A-Za-z]\w?'?(?:_\w+)?)(?:[,;] (.*)|$)", text)
    single = found and "," not in names and len(found[1].partition("_")[0]) <= 2
    letter, rest = (found[1], found[2] or "") if found and single else ("", text)
    named = ", ".join(f"`{name}`" for name in names.split(", "))
    return " ".join(part for part in (named, letter, shown, rest and f"({rest})") if part)


_ENDINGS = {
    "[s]": "_s",
    "[B]": "bytes",
    "[tokens]": "tokens",
    "[token]": "tokens",
    "[FLOP]": "flop",
    "[W]": "watts",
    "[months]": "months",
}
"""Unit -> last letters of names that state it."""


def _states(names: str, unit: str) -> bool:
    """Return whether the last words of names state their unit."""
    return all(name.endswith(_ENDINGS.get(unit, "?")) for name in names.split(", "))


def _broken(line: str) -> str:
    """Return a line of a formula that is wider than a phone broken before signs and behind commas outside of brackets.

    Examples
    --------
    >>> print(_broken("r = max_h sum_c r_ch (a_c - s_c f_c d_c + w o_c) / (3600 n), c = e - g f h"))
    r = max_h sum_c r_ch (a_c - s_c f_c d_c + w o_c)
      / (3600 n),
      c = e - g f h
    """
    if len(line) <= WIDTH:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    first, *parts = _pieces(line.strip())
    lines = [indent[2:] + first]
    for part in parts:
        defines = lines[-1].endswith((",", ";")) and re.match(r"\S+( \S+)? = ", part)
        if len(lines[-1]) + 1 + len(part) <= WIDTH and not defines:
            lines[-1] += f" {part}"
        else:
            lines.append(indent + part)
    return "\n".join(lines)


def _pieces(line: str) -> list[str]:
    """Return the parts of a line between which it may be broken: none is in brackets."""
    depth, start, found = 0, 0, []
    for place, character in enumerate(line):
        depth += (character in "([{") - (character in ")]}")
        before, after = line[:place], line[place:]
        sign = re.match(r" [-+/] | {3,}", after)
        if depth == 0 and character == " " and before[-1:] != " " and (sign or before[-1:] in ",;"):
            found.append(line[start:place].strip())
            start = place
    return [*found, line[start:].strip()]


def _entry(item: Stated, above: Stated | None) -> str:
    """Return a formula as a part of its page; a source that the formula above has too is not repeated."""
    legend = _legend(item)
    formula = "\n".join(map(_broken, item.formula.splitlines()))
    lead = item.lead.removeprefix("Return ")
    parts = [f"### {item.name}\n", f"{lead[:1].upper()}{lead[1:]}\n", f"```text\n{formula}\n```\n"]
    if legend:
        parts.append(f"With {legend}.\n")
    if item.rest:
        parts.append(item.rest + "\n")
    if item.sources:
        same = above is not None and item.sources == above.sources
        parts.append(f"Source: {'the same.' if same else ' '.join(item.sources.split())}\n")
    return "\n".join(parts)


def page_of(module: str) -> str:
    """Return the page of the formulas of a module, below methodology/ on the site and without its ending.

    Examples
    --------
    >>> page_of("capplan.operators.matmul"), page_of("capplan.fleet.search.trial")
    ('operators/matmul', 'fleet')
    """
    _, room, *rest = module.split(".")
    return "/".join([room, *rest]) if room in BY_MODULE else room


def pages(root: Path) -> dict[str, str]:
    """Return the text of each page by its name: one for a room, or for each module of a large room with an index."""
    found: dict[str, dict[str, list[Stated]]] = {}
    for item in formulas(root):
        found.setdefault(page_of(item.module), {}).setdefault(item.module, []).append(item)
    texts = {}
    for page, modules in found.items():
        room, _, subject = page.partition("/")
        entries = [
            part
            for module, items in modules.items()
            for part in ((f"## `{module}`\n",) if not subject else ())
            + tuple(map(_entry, items, (None, *items)))
        ]
        title = f"{ROOMS[room]}: {subject.replace('_', ' ')}" if subject else ROOMS[room]
        texts[page] = "\n".join([f"# {title}\n", *(() if subject else (HEAD,)), *entries]).replace(
            "\n### ", "\n## " if subject else "\n### "
        )
    for room in BY_MODULE:
        lines = [
            f"- [{page.partition('/')[2]}]({page}.md): {', '.join(item.name for items in modules.values() for item in items)}\n"
            for page, modules in found.items()
            if page.startswith(f"{room}/")
        ]
        texts[room] = "\n".join([f"# {ROOMS[room]}\n", HEAD, "".join(lines)])
    return texts
