"""The HTML of the page as it is written, without a browser: its tables are those of the JSON, and people who cannot see it can use it."""

import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise, product

import pytest

from capplan.cli.main import main
from capplan.report.answer import flattened

pytestmark = pytest.mark.usefixtures("shared_runs")


@pytest.fixture(scope="module")
def written(plan_of_page):
    """The page as HTML and as JSON, made from the same plan file."""
    for suffix in ("html", "json"):
        file = plan_of_page.with_name(f"static.{suffix}")
        assert main(["report", "--plan", str(plan_of_page), "--offline", "-o", str(file)]) == 0
    html = plan_of_page.with_name("static.html").read_text(encoding="utf-8")
    assert len(html.encode()) < 1_500_000
    result = json.loads(plan_of_page.with_name("static.json").read_text(encoding="utf-8"))["result"]
    return ET.fromstring(html.replace("<!DOCTYPE html>\n", "")), result


@pytest.fixture(scope="module")
def page(written):
    return written[0]


def local(element):
    return element.tag.rpartition("}")[2]


def words(element):
    return "".join(element.itertext()).strip()


@pytest.mark.long
def test_every_number_of_every_table_is_the_one_of_the_json(written):
    page, result = written
    sections = list(page.iter("section"))
    assert [next(section.iter("h2")).text for section in sections] == [
        row["title"] for row in result["sections"]
    ]
    seen = 0
    for shown, section in zip(sections, result["sections"], strict=True):
        for table, rows in zip(shown.iter("table"), section["tables"], strict=True):
            cells = {float(cell.get("data-value")) for cell in table.iter("td") if cell.get("data-value")}
            values = (value for row in rows for value in flattened(row).values())
            known = {float(value) for value in values if isinstance(value, (int, float))}
            seen += len(cells)
            assert cells <= known, section["title"]
    assert seen > 100


@pytest.mark.long
def test_headings_go_down_one_level_at_a_time(page):
    levels = [int(local(e)[1]) for e in page.iter() if re.fullmatch(r"h[1-6]", local(e))]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.long
def test_a_screen_reader_finds_its_way(page):
    """Language, title, one main part, a named list of sections that all exist, and a way past it."""
    assert page.get("lang") == "en"
    assert words(page.find("head/title")).startswith("Plan: ")
    (main_part,) = page.iter("main")
    skip = page.find("body")[0]
    assert (local(skip), skip.get("href")) == ("a", f"#{main_part.get('id')}")
    (nav,) = page.iter("nav")
    assert nav.get("aria-label")
    assert [a.get("href")[1:] for a in nav.iter("a")] == [s.get("id") for s in page.iter("section")]
    assert {local(part) for part in page.find("body")} == {"a", "nav", "main", "footer", "div", "script"}


def test_every_control_has_a_name(page):
    controls = [e for e in page.iter() if local(e) in {"input", "select", "button", "textarea"}]
    assert len(controls) == 2
    labels = {control: label for label in page.iter("label") for control in label.iter()}
    for control in controls:
        assert words(labels[control]).startswith(("Plan", "Peak traffic"))
    for reachable in (e for e in page.iter() if e.get("tabindex") == "0"):
        assert reachable.get("role")
        assert reachable.get("aria-label") or reachable.get("aria-labelledby")


def test_every_picture_has_a_name_and_what_it_shows(page):
    pictures = [e for e in page.iter() if local(e) == "svg"]
    ids = {e.get("id"): e for e in page.iter() if e.get("id")}
    assert len(pictures) >= 8
    for picture in pictures:
        assert picture.get("role") in {"img", "graphics-document"}
        name = picture.get("aria-label") or " ".join(
            words(ids[each]) for each in (picture.get("aria-labelledby") or "").split()
        )
        assert name.strip()


def test_every_column_has_a_heading_that_says_so(page):
    for table in page.iter("table"):
        head = list(table.find("thead/tr"))
        assert {(local(cell), cell.get("scope")) for cell in head} <= {("th", "col"), ("td", None)}
        assert all(words(cell) for cell in head if local(cell) == "th")
        assert all(len(list(row)) == len(head) for row in table.find("tbody"))


def colours(style, scheme):
    """Return the colours of the page by name, light or dark."""
    blocks = re.findall(r":root \{([^}]*)\}", style)
    named = {}
    for block in blocks[: 1 if scheme == "light" else 2]:
        named |= dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
    return named


def luminance(colour):
    """Return the relative luminance of WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255.0 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(page, scheme):
    """At least 7 to 1, which WCAG 2.2 asks for at level AAA; links 4.5 to 1, level AA."""
    named = colours(page.find("head/style").text, scheme)
    assert (luminance(named["ink"]) < luminance(named["paper"])) == (scheme == "light")
    for (front, least), behind in product((("ink", 7.0), ("accent", 4.5)), ("paper", "soft")):
        dark, bright = sorted((luminance(named[front]), luminance(named[behind])))
        assert (bright + 0.05) / (dark + 0.05) >= least, (front, behind)


def test_the_focus_is_never_hidden(page):
    style = page.find("head/style").text
    assert "svg:focus-visible { outline: 2px solid" in style
    assert not re.search(r"outline:\s*(none|0)", style)
