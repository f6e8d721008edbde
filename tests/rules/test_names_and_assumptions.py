"""The pages on names and assumptions say what the code says."""

import ast
import re
from dataclasses import fields
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

from capplan.explain.table import formula_in, function_of
from capplan.fleet.unit_costs import UnitCosts
from capplan.readers.plan_file import StatedGroup, StatedPlan
from capplan.report.quantities import ARGUMENTS, MEMORY, NEXT_TO_A_PLAN, OF_SEVERAL_GROUPS, PLAN, quantity_of
from capplan.report.screen_units import TITLES, screen_of, unit_of
from docs.generators import plan_numbers
from docs.generators.page_tables import table_in
from docs.generators.site import SITE
from tests.letters import symbols_of

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    p
    for p in (ROOT / "capplan").rglob("*.py")
    if not p.is_relative_to(ROOT / "capplan" / "calibrate") and p.name != "__init__.py"
]


GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
NAMES = [
    (name, unit or "-")
    for names, unit in re.findall(r"^- (`[^:\[]+`)(?: \[(.*?)\])?: ", GLOSSARY, re.MULTILINE)
    for name in re.findall(r"`(\w+)`", names)
]
CONSTANTS = [
    (row["constant"], row["value"])
    for row in table_in(ROOT / "docs" / "evidence" / "constants.csv")
    if row["constant"].startswith("capplan.")
]
SPELT = {"tokens": "token", "req/s": "1/s", "tokens/s": "token/s"}
"""Unit as the page writes it -> as results have it."""


def test_every_name_is_used_and_listed_once():
    words = {word for path in SOURCES for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    assert len(NAMES) > 80
    assert [name for name, _ in NAMES if name not in words] == []
    listed = [name for name, _ in NAMES]
    assert sorted({name for name in listed if listed.count(name) > 1}) == []


@pytest.mark.parametrize(("name", "unit"), NAMES)
def test_a_name_ends_in_its_unit(name, unit):
    expected = unit_of(name)
    assert expected in ("-", SPELT.get(unit, unit)) or (expected[0] == unit[0] == "$")


def test_the_columns_of_a_plan_are_listed():
    """What a fleet prints is explained, but for what is a count or a word by itself."""
    columns = [
        *(field.name for kind in (StatedPlan, StatedGroup, UnitCosts) for field in fields(kind)),
        *("offers", "outside", "order", "survival"),
    ]
    keys = set(columns) - {"money"}
    by_themselves = {
        "hardware", "bottleneck", "watts", "checked", "concurrency_per_replica", "role", "model",
    }  # fmt: skip
    of_plans = {path.partition(".")[0] for path in PLAN}
    assert keys - {name for name, _ in NAMES} - of_plans - by_themselves == set()


def test_the_index_of_numbers_is_current_and_each_number_stands_on_one_of_its_pages():
    shown = (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8")
    assert shown == plan_numbers.index(), "run: make docs"
    pages = plan_numbers.pages(ROOT)
    assert all(f"{SITE}{page.replace('.md', '.html')}" in shown for page in pages)
    listed = re.findall(r"^- \*\*`(.*?)`\*\*: ", "".join(pages.values()), re.MULTILINE)
    assert sorted(listed) == sorted([*PLAN, *NEXT_TO_A_PLAN, *ARGUMENTS])


@pytest.mark.parametrize(
    ("path", "row"), [*(PLAN | NEXT_TO_A_PLAN).items(), *OF_SEVERAL_GROUPS.items()],
    ids=[*(PLAN | NEXT_TO_A_PLAN), *(f"{name} of groups" for name in OF_SEVERAL_GROUPS)],
)  # fmt: skip
def test_a_number_of_a_plan_has_a_formula_whose_letters_are_its_arguments(path, row):
    """A formula is stated once, in words or by the function that computes it; arguments are other numbers, or stated elsewhere."""
    formula = formula_in(row)
    assert formula
    assert (ROOT / row.page).exists()
    for name, letter in row.arguments.items():
        of_group = name.replace("groups[].", "groups[0].")
        places = (f"{path.rpartition('.')[0]}.{name}", f"{path.partition('.')[0]}.{name}", name, of_group)
        assert name in ARGUMENTS or any(quantity_of(place) is not None for place in places), name
        assert not letter or letter in re.split(r"[^\w]+", formula) or row.page == MEMORY, letter
    if row.function is not None and row.page != MEMORY:  # figures of memory are sums over layers
        letters = {letter for letter, _ in symbols_of(function_of(row)).values()}
        assert letters <= set(row.arguments.values()), letters


def test_an_argument_of_a_plan_is_an_argument_of_a_number():
    rows = [*(PLAN | NEXT_TO_A_PLAN).values(), *OF_SEVERAL_GROUPS.values()]
    assert set(ARGUMENTS) == {name for row in rows for name in row.arguments if name in ARGUMENTS}
    assert all(
        argument.label in ("spec", "config", "derived", "measured", "assumed")
        for argument in ARGUMENTS.values()
    )


@pytest.mark.parametrize(("path", "value"), CONSTANTS)
def test_a_listed_constant_has_the_value_that_is_written(path, value):
    module, _, name = path.rpartition(".")
    assert getattr(import_module(module), name) == ast.literal_eval(value)


def test_every_constant_that_calls_itself_an_assumption_is_listed():
    listed = {path for path, _ in CONSTANTS}
    assert len(listed) > 15
    missing = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for statement, after in pairwise(ast.parse(text).body) if "(an assumption)" in text else ():
            said = (
                isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and str(after.value.value)
            )
            if isinstance(statement, ast.Assign) and said and "(an assumption)" in said:
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                missing += [f"{module}.{t.id}" for t in statement.targets if f"{module}.{t.id}" not in listed]
    assert missing == []


@pytest.fixture(scope="module")
def headings():
    """Return file, quantity and heading wherever a table has a heading of its own."""
    return list(headings_of_tables())


def headings_of_tables():
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "titles" in text.lower() else ():
            named = isinstance(node, ast.Assign) and "titles" in ast.unparse(node.targets[0]).lower()
            titles = node.value if named or (isinstance(node, ast.keyword) and node.arg == "titles") else None
            if isinstance(titles, ast.Dict):
                for key, title in zip(titles.keys, titles.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(title, ast.Constant):
                        yield path.name, key.value, title.value


def test_no_table_states_a_heading_that_the_quantity_has_already(headings):
    assert len(headings) > 50
    assert [line for line in headings if screen_of(line[1], [1.0]).heading == line[2]] == []


GENERIC = {"count", "date", "gpus", "name", "request_rate"}
"""What tables have of anything: how many, of which day, how many GPUs each, its name, its rate at the peak."""
IN_ANOTHER_LIGHT = {
    "usd_per_hour": {"one machine", "cost"},
    "usd_per_month": {"cost"},
    "usd_per_job": {"the job"},
    "slo_met_probability": {"chance"},
}
"""Quantity -> what a table calls it that has it beside others of its unit, or little room."""


def test_a_quantity_has_one_title(headings):
    """What two tables call alike has its title in the table of titles, and no other title without a reason."""
    own, files = {}, {}
    for file, name, title in headings:
        own.setdefault(name, set()).add(title)
        files.setdefault((name, title), set()).add(file)
    assert {name: titles for name, titles in own.items() if name in TITLES} == IN_ANOTHER_LIGHT
    alike = {name for (name, title), where in files.items() if len(where) > 1 and name not in TITLES}
    assert alike == GENERIC
