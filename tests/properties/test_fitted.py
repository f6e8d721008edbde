"""Laws of tables made to fit a width: no word and no number is cut, and lines stay within the width where that is possible."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.report.answer import Answer, Table
from capplan.report.tables import plain_text, terminal_text

pytestmark = pytest.mark.usefixtures("shared_runs")
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
