"""Names, sizes, docstrings and words that keep the source readable."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    p
    for folder in ("capplan", "calibrate", "benchmarks", "docs/generators")
    for p in (ROOT / folder).rglob("*.py")
)
FORMULA_ROOMS = ("operators", "phases", "serving", "memory", "model")
FORMULA_FILES = [p for room in FORMULA_ROOMS for p in (ROOT / "capplan" / room).rglob("*.py")]
FORMULA_FILES += [p for p in [ROOT / "capplan" / "fleet" / "price.py"] if p.exists()]
FORMULA_FILES += sorted((ROOT / "capplan" / "fleet" / "money").rglob("*.py"))
NUMBERS = {"Number", "Array", "float"}
FRAGMENT = re.compile(
    r"\s*(?:Of|By|In|At|With|From|For|Above|Below|Under|Beside|Between|Within|Until|On|To|Before|After|Per|Off|Since|That|While)\b"
    r"|(?s:.*)the next (?:two|three|four)\b"
)
"""How a docstring begins that lacks its subject, or refers to other fields."""


def tracked():
    """Return the text files that git knows; a copy without git has none."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout
    for name in filter(None, listing.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


@pytest.fixture(scope="module")
def trees():
    """The syntax of every source, read once for all rules."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


def standing_alone(node):
    """Yield the strings of a body that are statements: docstrings of a module, a class, a function, a field or a constant."""
    for statement in node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else ():
        text = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield text


def shown(path):
    return str(path.relative_to(ROOT))


def test_files_are_named_for_their_subject():
    assert len(SOURCES) > 40
    vague = {"utils", "util", "helpers", "helper", "common", "core", "misc", "base", "tools"}
    assert [shown(p) for p in SOURCES if p.stem in vague] == []


def test_names_are_in_base_units_and_flop_is_an_amount(trees):
    # Columns of other tools' files keep the names they have there; those are strings, not names.
    banned = re.compile(r"(?i)flops|_pct$|_tflops|_gbps")
    wrong = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            name = next((v for v in (getattr(node, k, None) for k in ("id", "attr", "arg", "name")) if v), "")
            if banned.search(str(name)):
                wrong.append(f"{shown(path)}: {name}")
    assert wrong == []


def test_a_function_is_shorter_than_a_page(trees):
    wrong = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                docstring = node.body[0] if ast.get_docstring(node) else None
                lines = node.end_lineno - node.lineno
                lines -= docstring.end_lineno - docstring.lineno + 1 if docstring else 0
                if lines > 60:
                    wrong.append(f"{shown(path)}: {node.name} has {lines} lines without its docstring")
    assert wrong == []


def test_a_function_takes_at_most_ten_parameters(trees):
    wrong = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                taken = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
                if taken > 10:
                    wrong.append(f"{shown(path)}: {node.name} takes {taken}")
    assert wrong == []


def formulas(path):
    """Yield the public functions of numbers: every parameter and the result is a number or an array."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        kinds = [ast.unparse(a.annotation) if a.annotation else "" for a in arguments]
        result = ast.unparse(node.returns) if node.returns else ""
        if arguments and all(kind in NUMBERS for kind in kinds) and result in NUMBERS:
            yield node, arguments


def lacks(node, arguments):
    """Yield what the docstring of a formula leaves out."""
    text = ast.get_docstring(node) or ""
    for argument in arguments:
        own_line = rf"^(?:\w+, )*{argument.arg}(?:, \w+)* : .*"
        line = re.search(own_line, text, re.MULTILINE)
        if not line or not re.search(r"\[[^\]]+\]", line.group()):
            yield f"no line with [unit] for {argument.arg}"
    for section in ("Parameters", "Returns", "Examples", "References"):
        if not re.search(rf"^{section}\n-+$", text, re.MULTILINE):
            yield f"no section {section}"
    if ">>> " not in text:
        yield "no example that runs"
    if re.search(r"(?i)standard result|common knowledge|empirical\b", text.partition("References\n")[2]):
        yield "no source that a person can open"


def test_a_formula_states_units_an_example_and_its_source():
    found = [(path, *formula) for path in FORMULA_FILES for formula in formulas(path)]
    assert len(found) > 20
    wrong = [f"{shown(p)}: {node.name}: {what}" for p, node, args in found for what in lacks(node, args)]
    assert wrong == []


def test_the_repository_speaks_of_the_project_alone():
    machine = re.compile(
        r"(?<![\w.])/(?:work|root|home/\w+|opt)/|pypi\.org|pythonhosted|registry\.npmjs|(?i:\bai agent\b|(?<![\"`])\bsubagent)"
    )
    for path, text in tracked():
        if path.parent.name == "rules" or path.suffix in {".csv", ".gz"}:
            continue
        found = machine.search(text)
        assert not found, f"{shown(path)}: {found.group()!r}"


def test_nothing_is_left_to_be_written_later():
    marks = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|NotImplemented" + r"Error")
    for path, text in tracked():
        if path.suffix == ".py":
            found = marks.search(text)
            assert not found, f"{shown(path)}: {found.group()!r}"


def test_a_docstring_names_its_subject(trees):
    # "Of one replica." can be read only together with the name above it; "Devices of one replica." can be read by itself.
    wrong = []
    for path, tree in trees.items():
        if "capplan" not in path.relative_to(ROOT).parts[:1]:
            continue
        for node in ast.walk(tree):
            for text in standing_alone(node):
                if FRAGMENT.match(text.value):
                    wrong.append(f"{shown(path)}:{text.lineno}: {text.value.strip().splitlines()[0]}")
    assert wrong == []
