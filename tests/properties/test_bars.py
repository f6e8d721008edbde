"""Laws of the pictures of a review: well-formed, inside their frame, proportional."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.report.charts.records import Bar, Bars
from capplan.report.charts.svg import svg_of

AMOUNT = st.floats(0.0, 1e12)
NAME = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=12)
SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture):
    return ET.fromstring(svg_of(picture, index=3))


@given(
    st.lists(
        st.tuples(NAME, st.lists(st.tuples(NAME, AMOUNT), min_size=1, max_size=5)), min_size=1, max_size=6
    ),
    st.none() | AMOUNT,
)
def test_a_picture_is_well_formed_and_stays_inside_its_frame(rows, limit):
    bars = tuple(Bar(label, tuple(parts)) for label, parts in rows)
    root = drawn(Bars("made <up> & drawn", "memory_bytes", bars, limit, "limit"))
    _, _, width, height = map(float, root.get("viewBox").split())
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("width")) >= 0.0
        assert float(rect.get("x")) + float(rect.get("width")) <= width + 0.2
        assert float(rect.get("y")) + float(rect.get("height")) <= height
    labels = [text.text for text in root.iter(f"{SVG}text")]
    assert all(label in labels for label, _ in rows)
    assert root.find(f"{SVG}title").text == "made <up> & drawn"


def test_bars_are_as_long_as_their_amounts_and_read_with_their_unit():
    root = drawn(
        Bars("time", "ttft_s", (Bar("a", (("x", 0.2),)), Bar("b", (("x", 0.4),), 0.2, 0.8)), 0.5, "limit")
    )
    first, second = (float(rect.get("width")) for rect in root.iter(f"{SVG}rect"))
    assert second == pytest.approx(2.0 * first, abs=0.2)
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"200 ms", "400 ms", "limit 500 ms"} <= set(words)


def test_nothing_at_all_is_drawn_as_nothing():
    root = drawn(Bars("empty", "usd_per_month", (Bar("a", (("x", 0.0),)),)))
    assert [rect.get("width") for rect in root.iter(f"{SVG}rect")] == ["0.0"]
