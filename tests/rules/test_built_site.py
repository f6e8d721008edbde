"""The site as it is built: nothing comes from elsewhere, no page scrolls sideways, and the search finds what a newcomer looks for."""

import json
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser import CHROMIUM, browser

pytest.importorskip("material", reason="the site is built with the docs extra")
pytestmark = pytest.mark.long
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed to open the site with")
ROOT = Path(__file__).resolve().parents[2]
FOUND = {
    "confidence": "how-to/choose-headroom-and-confidence.html",
    "does not fit": "how-to/check-that-a-model-fits.html",
    "HF_TOKEN": "how-to/troubleshoot.html",
    "pull request": "tutorials/review-in-a-pull-request.html",
    "quantisation": "how-to/choose-dtypes.html",
    "plan_fleet": "library-reference.html",
}
FIRST = "document.querySelector('.md-search-result__item a')?.href"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; a warning stops the build."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as page:
        page.open("about:blank")
        yield page


def go(page, address):
    page.events.clear()
    page.call("Page.navigate", url=address)
    while not page.said("Page.loadEventFired"):
        page.events.append(page._next())


def pages_of(site):
    return [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]


class Links(HTMLParser):
    """What a page of the site links to or loads, and the anchors that it has."""

    def __init__(self, page):
        super().__init__()
        self.targets, self.anchors = [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, _, attrs):
        values = dict(attrs)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        self.targets += [values[key] for key in ("href", "src") if values.get(key)]


def test_the_schemas_that_files_name_are_on_the_site(site):
    assert {"scenario.json", "workload.json"} <= {path.name for path in (site / "schema").iterdir()}


def test_every_link_and_anchor_of_the_site_is_there(site):
    pages = {page: Links(page) for page in pages_of(site)}
    broken = []
    for page, links in pages.items():
        for target in map(urlsplit, links.targets):
            if target.scheme or target.netloc:
                continue
            file = (page.parent / unquote(target.path)).resolve() if target.path else page
            known = file not in pages or unquote(target.fragment) in {"", *pages[file].anchors}
            if not (file.is_file() and known):
                broken.append(f"{page.relative_to(site)}: {target.geturl()}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site):
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(https?:[^\"' >]+)")
    for page in pages_of(site):
        text = re.sub(r"<link rel=\"canonical\"[^>]*>", "", page.read_text(encoding="utf-8"))
        assert loads.findall(text) == [], page.relative_to(site)


def test_the_reference_and_the_report_are_built_with_it(site):
    reference = (site / "library-reference.html").read_text(encoding="utf-8")
    for heading in ("estimate", "fleetresult", "targeterror"):
        assert f'id="{heading}"' in reference
    assert "support-chat" in (site / "examples" / "report.html").read_text(encoding="utf-8")


def test_the_search_leaves_out_the_evidence(site):
    (index,) = (site / "search").glob("search_index.json")
    found = {page["location"].partition("#")[0] for page in json.loads(index.read_text())["docs"]}
    assert "accuracy.html" in found
    assert not any(page.startswith("evidence/") for page in found)


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_scrolls_sideways_or_logs_a_fault(site, opened, width):
    opened.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
    )
    for page in pages_of(site):
        go(opened, page.as_uri())
        wide = opened.run("document.scrollingElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{page.relative_to(site)}: {wide} px at {width}"
        assert opened.said("Runtime.exceptionThrown", "Log.entryAdded") == [], page.relative_to(site)


BLOCKS = """[...document.querySelectorAll('pre > code')].filter(code => code.scrollWidth > code.clientWidth + 1)
    .map(code => Boolean(code.closest('.language-console')))"""
"""Whether each code block that scrolls inside itself is what a terminal prints."""
TALLEST = 13_700
"""Pixels of a page on a phone; the reference of the library and the sample report are one page each."""
ONE_PAGE = {"library-reference.html", "examples/report.html"}


@needs_browser
def test_on_a_phone_no_page_is_endless_and_only_what_a_terminal_prints_scrolls(site, opened):
    """`pytest -s -k phone tests/rules/test_built_site.py` prints the figures."""
    opened.call("Emulation.setDeviceMetricsOverride", width=390, height=900, deviceScaleFactor=1, mobile=True)
    heights, scrolling = {}, {}
    for page in pages_of(site):
        go(opened, page.as_uri())
        name = page.relative_to(site).as_posix()
        heights[name] = opened.run("document.scrollingElement.scrollHeight")
        scrolling[name] = opened.run(BLOCKS)
    tall = {name: height for name, height in heights.items() if height > TALLEST}
    print(
        f"{sum(map(len, scrolling.values()))} blocks scroll; tallest: {sorted(heights.items(), key=lambda own: -own[1])[:5]}"
    )
    assert [name for name, terminal in scrolling.items() if not all(terminal)] == []
    assert tall.keys() <= ONE_PAGE, tall


@needs_browser
@pytest.mark.parametrize("words", FOUND)
def test_the_search_finds_the_page_that_helps_first(site, opened, words):
    go(opened, f"{(site / 'index.html').as_uri()}?q={words.replace(' ', '+')}")
    for _ in range(100):
        first = opened.run(FIRST)
        if first:
            break
        time.sleep(0.1)
    assert first, "the search found nothing"
    assert FOUND[words] in first
