"""Laws of the pictures of a page and of files: well-formed, inside their frame, proportional, the same bytes every time."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.fleet.answer import Certainty
from capplan.memory.kv_sizes import kv_sizes
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.replica.estimate import OperatorRow
from capplan.report.charts.of_answers import (
    Bar,
    Bars,
    Line,
    Lines,
    Tornado,
    Turned,
    allocation_chart,
    certainty_chart,
    ridge_flop_per_byte,
    roof_flop_per_s,
    roofline_chart,
    ticks,
)
from capplan.report.charts.svg import svg_of, titled_svg
from tests.sweeps import examples

AMOUNT = st.floats(0.0, 1e12)
NAME = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=12)
SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture):
    return ET.fromstring(svg_of(picture, index=3))


@settings(max_examples=examples(20, 100))
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


FINITE = st.floats(1e-3, 1e9)


def inside(root):
    """Assert that every shape with a place lies in the frame; return the texts."""
    _, _, width, height = map(float, root.get("viewBox").split())
    for rect in root.iter(f"{SVG}rect"):
        assert -0.2 <= float(rect.get("x")) <= float(rect.get("x")) + float(rect.get("width")) <= width + 0.2
    for circle in root.iter(f"{SVG}circle"):
        assert 0.0 <= float(circle.get("cx")) <= width
        assert 0.0 <= float(circle.get("cy")) <= height
    return [text.text for text in root.iter(f"{SVG}text")]


@given(FINITE, st.lists(st.tuples(NAME, st.none() | FINITE, st.none() | FINITE), min_size=1, max_size=6))
def test_a_tornado_stays_inside_its_frame_and_names_every_end(base, rows):
    turned = tuple(Turned(label, low, high, "less", "more") for label, low, high in rows)
    root = drawn(Tornado("what moves it", "usd_per_month", base, turned))
    words = inside(root)
    assert all(label in words for label, _, _ in rows)
    missing = [row for row in turned if row.missing]
    assert len([text for text in words if text.endswith("no fleet is enough")]) == len(missing)
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert len(titles) == 1 + sum((row.low is not None) + (row.high is not None) for row in turned)


@given(
    st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=30),
    st.booleans(),
    st.sampled_from(["line", "step", "points"]),
)
def test_lines_stay_inside_their_axes_and_say_every_value(points, log, kind):
    x, y = zip(*sorted(points), strict=True)
    root = drawn(Lines("over time", "hours", "gpus", (Line("needed", x, y, kind),), log=log))
    inside(root)
    assert len(list(root.iter(f"{SVG}circle"))) == len(points)


@given(st.floats(1e-3, 1e9), FINITE, st.booleans())
def test_ticks_are_few_and_inside(low, span, log):
    """Inside to a millionth of the axis, which nobody sees."""
    marks = ticks(low, low + span, log=log)
    assert len(marks) <= 12
    assert all(low - 1e-6 * (low + span) <= mark <= (low + span) * (1.0 + 1e-6) for mark in marks)


def test_a_ridge_is_where_both_roofs_meet_and_no_operator_without_arithmetic_has_a_place():
    """An H100 in bf16: 989 TFLOP/s and 3.35 TB/s, so the ridge is at 295 FLOP/B (NVIDIA's datasheet)."""
    h100 = device("h100-sxm")
    ridge = ridge_flop_per_byte(h100, "bf16")
    assert ridge == pytest.approx(295.0, rel=0.01)
    assert roof_flop_per_s(h100, "bf16", ridge) == pytest.approx(h100.peak_flop_per_s["bf16"])
    assert roof_flop_per_s(h100, "bf16", 1.0) == h100.memory_bytes_per_s
    rows = [
        OperatorRow("gate_up", "decode", 1e-3, 1e10, 1e9, "memory"),
        OperatorRow("norm", "decode", 1e-4, 0.0, 1e6, "memory"),
    ]
    roof, decode = roofline_chart(h100, "bf16", rows).lines
    assert (decode.x, decode.y) == ((10.0,), (1e13,))
    assert roof.x[1] == ridge


def test_paging_saves_what_a_sequence_does_not_use():
    """Llama 3.1 8B keeps 131,072 bytes a token in bf16: a contiguous cache of its 131,072 tokens takes 17.2 GB from the start."""
    network = read_model("llama-3.1-8b", offline=True)
    one, longest = (kv_sizes(network, (tokens,), kv_dtype="bf16").rows[0] for tokens in (1000, 131_072))
    paged, whole = allocation_chart([one], longest).bars
    assert sum(amount for _, amount in whole.parts) == pytest.approx(131_072.0**2)
    (_, needed), (_, rounding) = paged.parts
    assert needed == 131_072.0 * 1000
    assert 0.0 <= rounding < 16 * 131_072.0


def test_a_certainty_that_no_fleet_reaches_has_no_bar():
    rows = [Certainty(0.8, "h100-sxm", 4, 5840.0), Certainty(0.95, None, None, None)]
    assert [bar.label for bar in certainty_chart(rows).bars] == ["80% confidence: 4 x h100-sxm"]
    assert certainty_chart(rows[1:]) is None


def test_files_of_charts_are_the_same_bytes_and_hold_their_titles_and_words():
    charts = [
        Bars("memory", "memory_bytes", (Bar("h100", (("weights", 16e9), ("cache", 50e9))),)),
        Tornado("what moves it", "usd_per_month", 7300.0, (Turned("traffic", 5840.0, None, "-20%", "+20%"),)),
        Lines("load", "hours", "gpus", (Line("a $b$ <c>", (0.0, 1.0), (3.0, 5.0), "step"), Line("d", (0.0, 1.0), (2.0, 2.0)))),
    ]  # fmt: skip
    words = titled_svg(charts)
    assert words == titled_svg(charts)
    for said in ("weights", "66.0 GB", "-20%: $5,840", "as planned $7,300 per month", "a $b$ &lt;c&gt;"):
        assert said in words
    root = ET.fromstring(words)
    below = 0.0
    for chart, drawing in zip(charts, root.findall(f"{SVG}svg"), strict=True):
        assert below < float(drawing.get("y"))
        below = float(drawing.get("y")) + float(drawing.get("height"))
        assert chart.title in [text.text for text in root.findall(f"{SVG}text")]
    assert below == float(root.get("viewBox").split()[3])
