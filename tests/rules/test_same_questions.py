"""Every run asks the laws the same questions: alone or among others, on every machine."""

import importlib.util
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

OWN_QUESTIONS = re.compile(r"derandomize\s*=|database\s*=|@seed\(|\.examples?\(\)|load_profile")
UNSEEDED = re.compile(r"default_rng\(\s*\)|\bRandom\(\s*\)")


def drawn():
    """Return what a law is asked."""
    asked = []

    @settings(max_examples=300)
    @given(st.integers(), st.floats(allow_nan=False), st.text(max_size=3))
    def law(number, ratio, text):
        asked.append((number, ratio, text))

    law()
    return asked


def test_a_law_is_asked_the_same_whatever_is_loaded(tmp_path):
    before = drawn()
    constants = ", ".join(map(str, range(100_001, 100_400)))
    path = tmp_path / "constants_of_some_module.py"
    path.write_text(f"NUMBERS = [{constants}]\nWORDS = {[f'w{i}' for i in range(99)]}\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        assert drawn() == before


def test_no_test_draws_questions_of_its_own(root):
    for path in sorted((root / "tests").rglob("test_*.py")):
        if path.name != "test_same_questions.py":
            text = path.read_text(encoding="utf-8")
            for pattern in (OWN_QUESTIONS, UNSEEDED):
                found = pattern.search(text)
                place = path.relative_to(root)
                assert found is None, f"{place}: {found[0]}: the profile in tests/conftest.py decides"


def test_what_make_test_leaves_out_is_asked_by_make_check(root):
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    asked = dict(re.findall(r"^(\w+): .*\n\t.* -m pytest .*-m (.*)$", makefile, re.MULTILINE))
    site = "long tests/rules/test_built_site.py tests/rules/test_pictures.py"
    assert asked == {"test": '"not long"', "long": "long", "site": site}
    (check,) = re.findall(r"^check: (.*)$", makefile, re.MULTILINE)
    assert {"lint", *asked} <= set(check.split())
    run = (root / ".ci" / "run").read_text(encoding="utf-8")
    assert {"make lint", "make test", "make site"} <= set(run.splitlines())
    assert "\nmake fuzz SECONDS=" in run
