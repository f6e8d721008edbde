"""The page in a real browser: nothing is logged or loaded, pointer, keys and slider work, its tables are those of the JSON."""

import json

import pytest

from capplan.cli.main import main
from capplan.report.answer import flattened
from tests.browser import CHROMIUM, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed to open the page with")


@pytest.fixture(scope="module")
def result(plan_of_page):
    """The page as JSON, made from the same plan file."""
    file = plan_of_page.with_name("page.json")
    assert main(["report", "--plan", str(plan_of_page), "--offline", "-o", str(file)]) == 0
    return json.loads(file.read_text(encoding="utf-8"))["result"]


@pytest.fixture(scope="module")
def page(plan_of_page, tmp_path_factory):
    file = plan_of_page.with_name("page.html")
    assert main(["report", "--plan", str(plan_of_page), "--offline", "-o", str(file)]) == 0
    assert file.stat().st_size < 1_500_000
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.open(file.as_uri())
        yield opened


def test_nothing_is_logged_and_nothing_is_loaded(page):
    assert page.said("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") == []
    loaded = [event["request"]["url"] for event in page.said("Network.requestWillBeSent")]
    assert len(loaded) == 1
    assert loaded[0].endswith("page.html")


def test_every_number_of_every_table_is_the_one_of_the_json(page, result):
    cells = page.run(
        "Array.from(document.querySelectorAll('section')).map(s => [s.querySelector('h2').textContent, "
        "Array.from(s.querySelectorAll('table')).map(t => Array.from(t.querySelectorAll('td[data-value]')).map(c => c.dataset.value))])"
    )
    assert [title for title, _ in cells] == [section["title"] for section in result["sections"]]
    seen = 0
    for (title, tables), section in zip(cells, result["sections"], strict=True):
        for shown, rows in zip(tables, section["tables"], strict=True):
            known = {
                value for row in rows for value in flattened(row).values() if isinstance(value, (int, float))
            }
            seen += len(shown)
            assert {float(value) for value in shown} <= {float(value) for value in known}, title
    assert seen > 100


def test_a_pointer_on_a_mark_says_its_value(page):
    page.point_at("g.mark rect")
    said = page.run("document.getElementById('tip').textContent")
    assert said == page.run("document.querySelector('g.mark').dataset.said")
    assert "$" in said


def test_arrow_keys_walk_over_the_marks_of_a_chart(page):
    page.run("document.querySelector('svg.chart').focus()")
    marks = page.run(
        "Array.from(document.querySelector('svg.chart').querySelectorAll('g.mark')).map(m => m.dataset.said)"
    )
    page.press("ArrowRight")
    assert page.run("document.getElementById('tip').textContent") == marks[0]
    page.press("ArrowRight")
    assert page.run("document.getElementById('tip').textContent") == marks[1]
    page.press("Escape")
    assert page.run("document.getElementById('tip').textContent") == ""


def test_the_slider_and_the_switch_say_what_the_json_says(page, result):
    first = result["what_if"][: len(result["what_if"]) // len(result["plans"])]
    names = page.run(
        "Array.from(document.querySelector('div.what-if select').options).map(o => o.textContent)"
    )
    page.run("document.querySelector('div.what-if input').focus()")
    page.press("ArrowRight")
    today = next(at for at, row in enumerate(first) if row["traffic_ratio"] == 1.0)
    after = first[today + 1]
    said = page.run("document.querySelector('div.what-if output').textContent")
    assert f"{after['gpus']} GPUs" in said
    assert f"${after['usd_per_month']:,.0f} a month" in said
    assert page.run("document.querySelectorAll('#if-traffic-changes g.on').length") == 1
    page.run(
        "(s => { s.selectedIndex = 1; s.dispatchEvent(new Event('change')); })(document.querySelector('div.what-if select'))"
    )
    other = result["what_if"][len(first) + today + 1]
    assert names[1] == f"{other['hardware']} {other['plan']}"
    said = page.run("document.querySelector('div.what-if output').textContent")
    assert f"{other['gpus']} GPUs, ${other['usd_per_month']:,.0f} a month" in said


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways(page, width):
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
    )
    assert page.run("document.scrollingElement.scrollWidth") <= width
    page.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_paper(page, scheme):
    """At least 7 to 1, which WCAG 2.2 asks for at level AAA."""
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    ink, paper = (
        page.run(f"getComputedStyle(document.body).{name}.match(/\\d+/g).slice(0, 3).map(Number)")
        for name in ("color", "backgroundColor")
    )
    bright, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    assert (luminance(ink) < luminance(paper)) == (scheme == "light")
    assert (bright + 0.05) / (dark + 0.05) >= 7.0
    page.call("Emulation.setEmulatedMedia", features=[])


def luminance(colour):
    """Return the relative luminance of WCAG 2.2."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255.0 for part in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_paper_keeps_headings_with_what_they_are_about(page):
    page.call("Emulation.setEmulatedMedia", media="print")
    breaks = page.run(
        "Array.from(document.querySelectorAll('h2, h3, figcaption')).map(h => getComputedStyle(h).breakAfter)"
    )
    assert set(breaks) == {"avoid"}
    assert page.run("getComputedStyle(document.querySelector('div.what-if')).display") == "none"
    wide = page.run(
        "(s => { document.body.style.width = '273mm'; const most = Math.max(...Array.from(document.querySelectorAll('table, svg'))"
        ".map(t => t.getBoundingClientRect().right - document.body.getBoundingClientRect().left)); document.body.style.width = ''; "
        "return most; })()"
    )
    assert wide <= 273.0 / 25.4 * 96.0
    page.call("Emulation.setEmulatedMedia", media="")
