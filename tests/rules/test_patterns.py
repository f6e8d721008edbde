"""Every pattern of the package takes time in proportion to the text that it reads, whatever the text is."""

import ast
import re
import time
from pathlib import Path

import pytest

import capplan
from capplan.families.quantization.module_names import _MARK

PACKAGE = Path(capplan.__file__).parent
METHODS = ("match", "fullmatch", "search", "sub", "subn", "findall", "finditer", "split")
BOUNDED = {_MARK.pattern: "reads patterns of at most LONGEST letters"}
ALPHABET = (
    "(", "a", " ", "0", "[", "-", "0 ", "a.", ",1", "<", "1,", "_", "\n", '"', "{", "0.", "1e", "k=v,", "'", "\\", "*", "|", "`", "(a", "0-",
    "a:", "A", "((a)", "] ", "</", "$", "${", "[]", "{}", "\t",
)  # fmt: skip
SHORT, LONG = 4_000, 32_000
MOST_RATIO = 24.0
"""Of the times of texts that are 8 times as long: 8 in proportion, 64 where the time grows with the square."""


def patterns():
    """Yield file, line, method and pattern of every use of a pattern that is a constant."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "re.compile":  # fmt: skip
                pattern, *flags = node.value.args
                if isinstance(pattern, ast.Constant):
                    known = [getattr(re, flag.attr) for flag in flags if isinstance(flag, ast.Attribute)]
                    named[ast.unparse(node.targets[0])] = re.compile(pattern.value, *known)
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):  # fmt: skip
                continue
            owner = ast.unparse(node.func.value)
            if owner == "re" and isinstance(node.args[0], ast.Constant):
                yield path, node.lineno, node.func.attr, re.compile(node.args[0].value)
            elif owner in named:
                yield path, node.lineno, node.func.attr, named[owner]


def used_s(pattern, method, text):
    """Return the processor time of one use of a pattern."""
    began = time.process_time()
    found = pattern.sub("", text) if method in ("sub", "subn") else getattr(pattern, method)(text)
    if method == "finditer":
        list(found)
    return time.process_time() - began


@pytest.mark.long
def test_no_pattern_takes_the_square_of_its_text():
    uses, slow = list(patterns()), []
    assert len(uses) > 50
    for path, line, method, pattern in uses:
        if pattern.pattern in BOUNDED:
            continue
        for piece in ALPHABET:
            for end in ("", "!"):
                short, long = ((piece * count)[:count] + end for count in (SHORT, LONG))
                took = used_s(pattern, method, long)
                if took > 0.1:  # a pause of the machine is in one try, the cost of a pattern in each
                    took = min(used_s(pattern, method, long) for _ in range(5))
                if took > 0.1 and took > MOST_RATIO * min(used_s(pattern, method, short) for _ in range(5)):
                    slow.append(f"{path.relative_to(PACKAGE)}:{line} {pattern.pattern!r} on {piece!r}: {took:.2f} s")  # fmt: skip
    assert slow == []
