"""What is written is used: no public function, dataclass field or constant that only tests refer to."""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USERS = ("capplan", "calibrate", "docs/generators", "docs/examples", "benchmarks")
ALLOWED = {
    "readers/local_machine.py: LocalHost.sockets": "`capplan detect` prints the whole record",
    "library/__init__.py: kv_size": "a function of `import capplan`, which finds it by name",
}
"""Place and name -> why it stays."""
READERS, COMMANDS = ROOT / "capplan/families/readers.json", ROOT / "capplan/cli/commands.json"
"""Data files that name functions."""


def is_named(node, name):
    return isinstance(node, ast.Assign) and any(getattr(t, "id", "") == name for t in node.targets)


class File:
    """What one file defines and what it refers to."""

    def __init__(self, path):
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        listed = next((n.value for n in self.tree.body if is_named(n, "__all__")), None)
        self.listed = {constant.value for constant in listed.elts} if listed else set()
        self.names, self.elsewhere = [], set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self.names.append((node.id, node.lineno))
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self.elsewhere.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                self.elsewhere |= {alias.name for alias in node.names} - self.listed
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("columns", "row_of"):
                # Names of columns, with a space between them.
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                self.elsewhere |= {word for text in texts for word in str(text).split()} - self.listed
            elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w.]+", str(node.value)):
                # getattr, columns by name, functions in a registry; never the sentences of docstrings and messages.
                self.elsewhere |= set(str(node.value).split(".")) - self.listed
        self.own = {name for name, _ in self.names}

    def refers_to(self, name, first, last):
        """Return whether the file reads a name of its own outside these lines."""
        return name in self.own and any(n == name and not first <= line <= last for n, line in self.names)

    def definitions(self):
        """Yield name, what to look for, whether a bare name of this file counts, and first and last line."""
        for node in self.tree.body:
            lines = node.lineno, node.end_lineno
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name, node.name, True, lines
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        yield target.id, target.id, True, lines
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                is_dataclass = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
                for part in node.body:
                    found = None
                    if isinstance(part, ast.FunctionDef):
                        found = part.name
                    elif is_dataclass and isinstance(part, ast.AnnAssign):
                        found = part.target.id
                    if found:
                        yield f"{node.name}.{found}", found, False, (part.lineno, part.end_lineno)


@pytest.mark.long
def test_nothing_is_there_for_tests_alone():
    files = [File(path) for folder in USERS for path in sorted((ROOT / folder).rglob("*.py"))]
    known = set().union(*(file.elsewhere for file in files))
    known |= set(re.findall(r"\w+", READERS.read_text(encoding="utf-8")))
    known |= {
        f"{name.replace('-', '_')}_command" for name in json.loads(COMMANDS.read_text(encoding="utf-8"))
    }
    dead = set()
    for file in files:
        if not file.path.is_relative_to(ROOT / "capplan"):
            continue
        place = file.path.relative_to(ROOT / "capplan").as_posix()
        for name, wanted, bare, lines in file.definitions():
            if wanted.startswith("_") or wanted in known or (bare and file.refers_to(wanted, *lines)):
                continue
            dead.add(f"{place}: {name}")
    assert len(files) > 200
    assert dead - ALLOWED.keys() == set(), (
        "nothing but tests refers to these: delete them, or say why they stay"
    )
    assert ALLOWED.keys() - dead == set(), "these are used now, or gone: take them off the list"
