"""The page in a real browser: nothing is logged or loaded, pointer, keys and slider work, axe finds nothing; in print it is whole."""

import json
from importlib.resources import files

import pytest

from capplan.cli.main import main
from tests.browser import CHROMIUM, browser
from tests.tables import table

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
    assert f"${after['usd_per_month']:,.0f} per month" in said
    assert page.run("document.querySelectorAll('#if-traffic-changes g.on').length") == 1
    page.run(
        "(s => { s.selectedIndex = 1; s.dispatchEvent(new Event('change')); })(document.querySelector('div.what-if select'))"
    )
    other = result["what_if"][len(first) + today + 1]
    assert names[1] == f"{other['hardware']} {other['plan']}"
    said = page.run("document.querySelector('div.what-if output').textContent")
    assert f"{other['gpus']} GPUs, ${other['usd_per_month']:,.0f} per month" in said


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways(page, width):
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
    )
    assert page.run("document.scrollingElement.scrollWidth") <= width
    page.call("Emulation.clearDeviceMetricsOverride")


@pytest.fixture(scope="module")
def axe(page):
    """Return what axe-core finds wrong with the page as it is now, by rule: how grave it is, and where."""
    script = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")

    def violations():
        page.run(f"(() => {{ {script} }})()")
        found = page.run(
            "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map("
            "v => [v.id, [v.impact, v.nodes.map(n => n.target.join(' '))]]))"
        )
        return dict(found)

    return violations


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page, axe, scheme, width):
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 400
    )
    try:
        assert axe() == {}
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
        page.call("Emulation.setEmulatedMedia", features=[])


@table
def test_axe_notices_a_page_that_is_broken(page, axe, breaking, mending, rule):
    page.run(breaking)
    found = axe()
    page.run(mending)
    assert found[rule][0] in {"serious", "critical"}
    assert axe() == {}


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


def test_the_numbers_of_the_decision_are_seen_from_across_the_table(page, result):
    shown = page.run(
        "Object.fromEntries(Array.from(document.querySelectorAll('dl.figures div')).map("
        "d => [d.querySelector('dt').textContent, d.querySelector('dd').textContent]))"
    )
    chosen = result["chosen"]
    assert shown["per month"] == f"${chosen['usd_per_month']:,.0f}"
    assert shown[f"GPUs: {chosen['hardware']}"] == f"{chosen['gpus']}"
    assert shown["per million output tokens"] == f"${chosen['usd_per_million_output_tokens_at_mean']:.2f}"
    chance = chosen["slo_met_probability"]
    assert shown["chance to meet the SLO targets"] == (
        "over 99%" if chance > 0.99 else f"{int(100 * chance)}%"
    )
    assert page.run("parseFloat(getComputedStyle(document.querySelector('dl.figures dd')).fontSize)") > 30


def test_sections_fold_and_the_contents_stay(page):
    sections = page.run("document.querySelectorAll('section').length")
    assert page.run("document.querySelectorAll('section > details[open] > summary > h2').length") == sections
    page.run("window.scrollTo(0, document.body.scrollHeight / 2)")
    assert 0 <= page.run("document.querySelector('nav').getBoundingClientRect().top") < 40
    page.run("window.scrollTo(0, 0)")


@pytest.mark.parametrize("width", [390, 800, 1280, 1920])
def test_no_label_is_cut_or_small_at_any_width_and_charts_fill_their_column(page, width):
    """At 390 px tables are cards; no page is wider than the window."""
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
    )
    try:
        assert page.run("document.documentElement.scrollWidth") <= width
        small = "Array.from(document.querySelectorAll('svg text')).map(t => 12 * (m => Math.hypot(m.a, m.b))(t.getScreenCTM()))"
        assert page.run(f"Math.min(...{small})") >= 11.0
        cut = (
            "Array.from(document.querySelectorAll('svg.chart')).flatMap(s => Array.from(s.querySelectorAll('text:not([transform])'))"
            ".filter(t => (b => b.x < 0 || b.x + b.width > s.viewBox.baseVal.width)(t.getBBox())).map(t => t.textContent))"
        )
        assert page.run(cut) == []
        narrow = "Array.from(document.querySelectorAll('svg.chart')).filter(s => s.clientWidth < s.parentElement.clientWidth - 1).length"
        assert page.run(narrow) == 0
        wide = "Array.from(document.querySelectorAll('td')).filter(t => t.getBoundingClientRect().right > innerWidth).length"
        assert width > 390 or page.run(wide) == 0
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
