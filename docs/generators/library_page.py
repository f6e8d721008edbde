"""The reference of `import capplan`: functions, results and errors as their docstrings state them; built with the site."""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from types import ModuleType

import capplan
from capplan import errors, library
from capplan.fleet import plan
from docs.generators.methodology import cell, sections, symbols

HEAD = """# Library reference

`import capplan` has one function for each question. [The guide](library.md) shows how to use them. Every function raises
[`InputError`](#inputerror) for a wrong name, number or file, with the text that the command prints.
Numbers are in base units: seconds, bytes, tokens, dollars.
"""
RESULTS = ((library, "Result"), (library, "FleetResult"), (plan, "Plan"))
ERRORS = ("CapplanError", "InputError", "DoesNotFitError", "TargetError")


def page() -> str:
    """Return the page."""
    names = [name for name in capplan.__all__ if not name.startswith("_")]
    parts = [HEAD, "## Functions\n", *(_function(name) for name in names)]
    parts += ["## Results\n", *(_class(module, name) for module, name in RESULTS)]
    return "\n".join([*parts, "## Errors\n", *(_error(name) for name in ERRORS)])


def signature_text(name: str) -> str:
    """Return the signature of a function of the library, with short names of types.

    Examples
    --------
    >>> signature_text("load_scenario")
    'load_scenario(path: str | PathLike[str], *settings: str) -> Scenario'
    """
    text = name + str(inspect.signature(getattr(capplan, name)))
    return re.sub(r"(?:collections\.abc|os|pathlib|capplan(?:\.\w+)*|typing)\.(?=[A-Z])", "", text)


def _function(name: str) -> str:
    head, parts = sections(inspect.getdoc(getattr(capplan, name)) or "")
    shown = _over_lines(signature_text(name))
    blocks = [f"### {name}\n", f"```python\n{shown}\n```\n", "\n".join(head).strip() + "\n"]
    if "Parameters" in parts:
        blocks.append(_table(("parameter", "meaning"), list(_meanings(parts["Parameters"]))))
    if returned := " ".join(line.strip() for line in parts.get("Returns", ())).strip():
        blocks.append(f"Returns {returned}.\n")
    if "Raises" in parts:
        blocks.append(_table(("error", "raised if"), list(_meanings(parts["Raises"]))))
    return "\n".join(blocks)


def _over_lines(signature: str) -> str:
    """Return a long signature with a parameter on each line.

    Examples
    --------
    >>> print(_over_lines("f(a: int, *, b: dict[str, int] = 2) -> float"))
    f(a: int, *, b: dict[str, int] = 2) -> float
    """
    if len(signature) <= len("    ") + 80:
        return signature
    start, end = signature.index("(") + 1, signature.rindex(") ->")
    listed = re.split(r", (?=\*|[a-z_]+:)", signature[start:end])
    return "\n".join([signature[:start], *(f"    {item}," for item in listed), signature[end:]])


def _meanings(lines: list[str]) -> Iterator[tuple[str, str]]:
    for names, unit, meaning in symbols(lines):
        yield f"`{names}`", f"{unit} {meaning}".strip()


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines) + "\n"


def _class(module: ModuleType, name: str) -> str:
    tree = ast.parse(inspect.getsource(module))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    rows = list(_attributes(found))
    return "\n".join(
        [f"### {name}\n", f"{ast.get_docstring(found)}\n", _table(("attribute", "meaning"), rows)]
    )


def _attributes(found: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the public fields, properties and methods of a class, each with the first paragraph of its text."""
    for node, below in zip(found.body, [*found.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = (
                below.value.value
                if isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
                else ""
            )
            yield f"`{node.target.id}`", f"`{ast.unparse(node.annotation)}` {text}"
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            method = not any(
                isinstance(item, ast.Name) and item.id == "property" for item in node.decorator_list
            )
            kind = ast.unparse(node.returns).strip("'") if node.returns else ""
            summary = (ast.get_docstring(node) or "").partition("\n\n")[0]
            yield f"`{node.name}{'()' * method}`", f"`{kind}` {summary}"


def _error(name: str) -> str:
    found = getattr(errors, name)
    return f"### {name}\n\n{inspect.getdoc(found)}\n\nExit code of the command: {found.exit_code}.\n"
