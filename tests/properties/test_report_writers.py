"""Laws of the four formats and of tables made to fit a width: the same names and values, no word and no number cut."""

import csv
import io
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.assumption import Assumption
from capplan.money.ledger import Entry
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet_money import total_table
from capplan.report.screen_units import MOST_WORDS, UNITS, screen_of, shown_money, shown_number, unit_of
from capplan.report.show import FORMATS, answer_text
from capplan.report.tables import plain_text, terminal_text
from tests.tables import table

pytestmark = pytest.mark.usefixtures("shared_runs")


ROWS = [
    {
        "hardware": "h100-sxm",
        "kv_bytes_per_token": 131072,
        "ttft_s": {"mean": 0.2134, "p95": 0.8},
        "fits": True,
    },
    {
        "hardware": "l4",
        "kv_bytes_per_token": 16384.0,
        "ttft_s": {"mean": math.nan, "p95": math.inf},
        "fits": False,
    },
]


def an_answer(**more):
    table = Table(ROWS, assumed=frozenset({(0, "kv_bytes_per_token")}))
    return Answer(
        "check", {"rows": ROWS}, (table,), assumptions=(Assumption("KV in bf16", "--kv-dtype"),), **more
    )


@given(st.floats(min_value=1e-12, max_value=1e18))
def test_a_number_on_screen_is_right_to_three_digits(value):
    text = shown_number(value, 1.0)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.00501)


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_a_count_stays_exact(value):
    assert int(shown_number(value, 1.0).replace(",", "")) == value


@given(st.floats(min_value=1.0, max_value=1e15), st.sampled_from(["weight_bytes", "kv_bytes_per_token"]))
def test_the_unit_on_screen_leads_back_to_bytes(value, name):
    screen = screen_of(name, [value])
    prefix = screen.unit.split("/")[0].removesuffix("B")
    power = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}[prefix]
    assert screen.factor * 1000.0**power == pytest.approx(1.0)
    assert value < 1000 or 1.0 <= value * screen.factor < 1000.5 or prefix == "P"


@table
def test_a_name_says_its_heading_and_unit(name, value, heading, unit):
    screen = screen_of(name, [value])
    assert (screen.heading, screen.unit) == (heading, unit)


def test_json_is_strict_and_in_base_units():
    text = answer_text(an_answer(warnings=("context over the maximum",)), "json")
    envelope = json.loads(text, parse_constant=pytest.fail)
    assert list(envelope) == ["capplan", "command", "result", "assumptions", "warnings"]
    assert envelope["result"]["rows"][0]["kv_bytes_per_token"] == 131072
    assert envelope["result"]["rows"][1]["ttft_s"] == {"mean": None, "p95": None}
    assert envelope["assumptions"] == [{"assumption": "KV in bf16", "replace": "--kv-dtype"}]


def test_json_takes_numpy_values():
    answer = Answer("check", {"a": np.float64(1.5), "b": np.arange(2), "c": np.bool_(True)}, ())
    assert json.loads(answer_text(answer, "json"))["result"] == {"a": 1.5, "b": [0, 1], "c": True}


def test_csv_has_the_names_of_the_json_and_full_precision():
    rows = list(csv.DictReader(io.StringIO(answer_text(an_answer(), "csv"))))
    assert rows[0]["ttft_s.mean"] == "0.2134"
    assert rows[0]["fits"] == "true"
    assert rows[1]["ttft_s.p95"] == ""
    assert [row["kv_bytes_per_token"] for row in rows] == ["131072", "16384.0"]


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_what_was_assumed_is_marked_and_says_what_replaces_it(form):
    text = answer_text(an_answer(), form).replace("\\*", "*")
    assert "131*" in text
    assert "assumed (*)" in text
    assert "--kv-dtype" in text


@pytest.mark.parametrize("form", FORMATS)
def test_text_for_files_has_no_colour_codes_and_no_trailing_blanks(form):
    text = answer_text(an_answer(headline="check"), form)
    assert "\x1b" not in text
    assert text.endswith("\n")
    assert all(line == line.rstrip() for line in text.splitlines())


def test_markdown_columns_line_up_and_pipes_are_escaped():
    answer = Answer("check", {}, (Table([{"name": "a|b", "layers": 3}, {"name": "c", "layers": 1200}]),))
    lines = answer_text(answer, "markdown").splitlines()
    assert len({len(line) for line in lines}) == 1
    assert r"a\|b" in lines[2]
    assert lines[1].endswith("-: |")


def test_every_price_per_hour_has_two_decimals(root):
    """All columns whose name says that they are of an hour, found in the code, and the prices of one machine hour in a total cost."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((root / "capplan").rglob("*.py")))
    names = set(re.findall(r'"((?:[a-z]+_)*usd_per_(?:[a-z]+_)?hour)"', text))
    assert len(names) > 8
    for name in names:
        screen = screen_of(name, [1.0])
        assert screen.unit.endswith("/h"), name
        shown = [shown_money(usd, screen.unit) for usd in (0.2054, 0.5, 4.0811, 55.04, 253.1776)]
        assert shown == ["0.21", "0.50", "4.08", "55.04", "253.18"]
    line = Entry("2 x p5.48xlarge, AWS", 1460.0, "machine hours", 55.04, "offer", "machines")
    answer = Answer("report", {}, (total_table([line]),), "a total", csv_rows=[])
    assert " 55.04 " in answer_text(answer, "table")


@pytest.mark.parametrize("name", sorted(UNITS))
def test_a_unit_is_the_same_in_tables_and_in_explanations_but_for_its_scale(name):
    """One table has both: whole names, with words before and behind them, and as keys of a path."""
    unit = UNITS[name]
    screen = screen_of(f"mean_{name}", [20.0])
    assert (
        unit_of(name)
        == unit_of(f"mean_{name}")
        == unit_of(f"plans[0].{name}")
        == unit_of(f"{name}.p95")
        == unit.base
    )
    assert screen.unit == unit.screen
    assert screen.factor == (unit.factor if unit.screen else 1.0)
    assert len(name.split("_")) <= MOST_WORDS


WORD = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=12)
WORDS = st.lists(WORD, min_size=1, max_size=5).map(" ".join)


@st.composite
def tables(draw):
    names = draw(st.lists(WORD, min_size=1, max_size=9, unique=True))
    numeric = draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names)))
    rows = draw(st.integers(1, 12))
    return Table(
        [
            {
                name: draw(st.integers(0, 10**9)) if number else draw(WORDS)
                for name, number in zip(names, numeric, strict=True)
            }
            for _ in range(rows)
        ],
        titles={name: name for name in names},
        spare=tuple(draw(st.permutations(names))[: draw(st.integers(0, len(names) - 1))]),
    )


@given(tables(), st.integers(20, 120))
def test_every_word_and_number_is_whole_or_its_column_is_named_as_left_out(table, width):
    lines = plain_text(Answer("made", {}, (table,)), width).splitlines()
    shown = set(" ".join(lines).split())
    said = " ".join(line for line in lines).partition("no room for: ")[2]
    left_out = said.partition(";")[0].split(", ") if said else []
    assert set(left_out) <= set(table.spare)
    for name in set(table.rows[0]) - set(left_out):
        for row in table.rows:
            text = f"{row[name]:,}" if isinstance(row[name], int) else row[name]
            assert set(text.split()) <= shown
    if width >= 29:  # the longest heading and the longest number beside each other
        assert max(map(len, lines)) <= width


@given(st.lists(WORD, min_size=2, max_size=12), st.sampled_from("/-_"), st.integers(24, 60))
def test_links_and_long_names_wrap_and_lose_no_letter(parts, separator, width):
    name = separator.join(("a", *parts))
    lines = plain_text(Answer("made", {}, (Table([{"name": name, "gpus": 3}]),)), width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["name", "GPUs"]
    assert (
        "".join("".join(line[:-1] if at == 0 else line for at, line in enumerate(lines[2:])).split()) == name
    )


@given(tables())
def test_without_a_width_rows_are_whole(table):
    text = plain_text(Answer("made", {}, (table,)))
    assert len(text.splitlines()) == 2 + len(table.rows)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_fleet_keeps_every_number_on_a_narrow_screen(capplan, monkeypatch, width):
    words = ("fleet", "tests/golden/small.yaml", "--offline")
    wide = capplan(*words)
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = capplan(*words)
    assert max(map(len, narrow.out.splitlines())) <= width
    assert "no room for" not in narrow.out
    assert set(re.findall(r"[0-9][0-9.,]*", wide.out)) == set(re.findall(r"[0-9][0-9.,]*", narrow.out))


@pytest.mark.parametrize("stated", ["", "0", "wide", "-3", "²"])
def test_columns_that_are_no_width_ask_for_none(capplan, monkeypatch, stated):
    words = ("kv-size", "llama-3.1-8b", "--context", "8192", "--offline")
    wide = capplan(*words)
    monkeypatch.setenv("COLUMNS", stated)
    assert capplan(*words).out == wide.out


def test_a_file_has_whole_rows_whatever_the_screen(capplan, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "40")
    words = ("kv-size", "llama-3.1-8b", "--context", "8192", "--offline")
    assert capplan(*words, "-o", tmp_path / "kv.txt").code == 0
    monkeypatch.delenv("COLUMNS")
    assert (tmp_path / "kv.txt").read_text(encoding="utf-8") == capplan(*words).out


def test_names_that_would_move_the_cursor_are_shown_and_not_obeyed():
    answer = Answer("made", {}, (Table([{"name": "a\x1b[2Jb"}]),), headline="x\x1b]0;title\x07")
    for text in (plain_text(answer, 30), terminal_text(answer, width=30, colour=False)):
        assert "\x1b" not in text
        assert "\x07" not in text
