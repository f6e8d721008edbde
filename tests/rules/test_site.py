"""The pages as a site: every page is in its navigation, every link leads somewhere, and every formula is on the page of formulas."""

import csv
import posixpath
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from capplan.readers.yaml_file import parse_yaml
from docs.generators.methodology import ROOMS, anchor, formulas, stated
from docs.generators.site import (
    LINK,
    OUTSIDE,
    PAGE_OF_SITE,
    REPOSITORY,
    SITE,
    changelog_pages,
    generated_pages,
    on_config,
    site_page,
    site_text,
)

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    *OUTSIDE,
    *(
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "docs").rglob("*"))
        if path.suffix in (".md", ".ipynb") and "generators" not in path.parts
    ),
]
GENERATED = generated_pages()


def navigation(entries):
    for entry in entries:
        for item in [entry] if isinstance(entry, str) else entry.values():
            yield from navigation(item) if isinstance(item, list) else [item]


EVIDENCE = sorted(path.name for path in (ROOT / "docs" / "evidence").glob("*.md"))
NAV = parse_yaml((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), "mkdocs.yml").value["nav"]


def test_every_page_is_in_the_navigation_once_but_those_of_the_evidence():
    """The page of each command stands below the index of commands."""
    menu = [*navigation(on_config(SimpleNamespace(nav=NAV)).nav)]
    changes = changelog_pages((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    pages = {*map(site_page, SOURCES), *GENERATED, *changes} - {f"evidence/{name}" for name in EVIDENCE}
    assert sorted(menu) == sorted([*pages, "evidence/index.md"])


def test_the_index_of_the_evidence_names_every_page_of_it():
    text = (ROOT / "docs" / "evidence" / "index.md").read_text(encoding="utf-8")
    assert sorted(["index.md", *re.findall(r"^\| \[[^]]+\]\(([^)/]+)\)", text, re.MULTILINE)]) == EVIDENCE


TABLES = sorted((ROOT / "docs" / "evidence").glob("*.csv"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_file_of_the_evidence_is_linked_from_its_page_and_has_whole_rows(path):
    pages = (ROOT / "docs" / "evidence").glob("*.md")
    assert any(f"]({path.name})" in page.read_text(encoding="utf-8") for page in pages)
    headings, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
    assert all(headings)
    assert len(set(headings)) == len(headings)
    assert rows
    assert {len(row) for row in rows} == {len(headings)}


def test_ten_pages_explain_each_on_two_screens():
    """A screen holds some 350 words with their tables; what a command prints does not count."""
    (explained,) = (part["How it works"] for part in NAV if "How it works" in part)
    pages = list(navigation(explained))
    assert len(pages) <= 10
    for page in pages:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        words = re.sub(r"```.*?```|<!--.*?-->|\]\([^)]*\)|[|-]+", " ", text, flags=re.DOTALL).split()
        assert len(words) <= 800, f"{page}: {len(words)} words"


@pytest.mark.parametrize("source", SOURCES)
def test_every_link_of_a_page_leads_to_a_page_or_a_file_of_the_site(source):
    text = (ROOT / source).read_text(encoding="utf-8")
    for link in LINK.findall(re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)):
        path, _, _ = link.partition("#")
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        assert (ROOT / inside).exists(), link
        assert inside in SOURCES or inside.startswith("docs/"), f"{link}: not on the site"


@pytest.mark.parametrize("source", SOURCES)
def test_a_link_to_a_page_that_only_the_site_has_leads_to_one_of_its_headings(source):
    text = (ROOT / source).read_text(encoding="utf-8")
    for match in PAGE_OF_SITE.finditer(text):
        place = re.match(r"#([\w-]+)", text[match.end() :])
        headings = re.findall(r"^#+ (.*)$", GENERATED[f"{match[1]}.md"], re.MULTILINE)
        assert place is None or place[1] in map(anchor, headings), match[0]


def test_links_between_pages_inside_and_outside_docs():
    assert site_text("[a](docs/money.md#terms)", "README.md") == "[a](money.md#terms)"
    assert site_text("[a](../calibrate/README.md)", "docs/calibration.md") == "[a](calibrate.md)"
    assert site_text("[a](../money.md)", "docs/tutorials/x.md") == "[a](../money.md)"
    assert site_text("[a](https://x.org/b.md) [c](#d)", "README.md") == "[a](https://x.org/b.md) [c](#d)"


def test_links_to_the_repository_and_to_pages_of_the_site_alone_stay_on_the_site():
    assert site_text(f"[a]({REPOSITORY}docs/money.md#terms)", "README.md") == "[a](money.md#terms)"
    assert site_text(f"[a]({REPOSITORY}LICENSE)", "README.md") == f"[a]({REPOSITORY}LICENSE)"
    assert (
        site_text(f"[a]({SITE}library-reference.html#errors)", "docs/library.md")
        == "[a](library-reference.md#errors)"
    )
    assert site_text(f"[a]({SITE}methodology/money/price.html)", "docs/numbers/plan.md") == (
        "[a](../methodology/money/price.md)"
    )


def test_the_documentation_stays_short():
    """It had 159,000 words once, of which nobody read half; what only a maintainer needs is evidence, rows are files, and what docstrings say is built with the site."""
    evidence = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "evidence").glob("*.md")]
    assert sum(len(text.split()) for text in evidence) <= 19_400
    words = {
        path.relative_to(ROOT / "docs").as_posix(): len(path.read_text(encoding="utf-8").split())
        for path in (ROOT / "docs").rglob("*.md")
        if "evidence" not in path.parts
    }
    assert sum(words.values()) <= 57_500
    assert not {page: count for page, count in words.items() if count > 2_000 and page != "models.md"}
    assert sum(len(text.split()) for text in GENERATED.values()) <= 32_000


def test_the_overview_links_the_formulas_of_every_room():
    overview = (ROOT / "docs" / "methodology.md").read_text(encoding="utf-8")
    assert all(f"]({SITE}methodology/{room}.html)" in overview for room in ROOMS)


def test_the_reference_of_the_library_has_every_function_option_and_error():
    text = GENERATED["library-reference.md"]
    for heading in ("compare", "estimate", "kv_size", "load_scenario", "plan_fleet", "simulate", "Result", "FleetResult", "Plan", "InputError", "DoesNotFitError", "TargetError"):  # fmt: skip
        assert f"\n### {heading}\n" in text
    assert "| `max_num_seqs` | most requests of one step; None: the default of the engine |" in text
    assert "| `chosen` | `Plan` Return the recommended plan" in text


def test_formulas_of_every_room_are_there_with_their_symbols():
    found = list(formulas(ROOT))
    assert {item.module.split(".")[1] for item in found} == set(ROOMS)
    names = {item.name for item in found}
    assert {"decode_attention_time_s", "soft_maximum", "matmul_time_s"} <= names
    assert all(item.symbols or item.rest or item.lead for item in found)


def test_an_entry_has_a_legend_of_the_symbols_of_its_formula_and_no_other_argument():
    text = GENERATED["methodology/operators/matmul.md"]
    entry = text[text.index("## matmul_time_s\n") :].partition("\nSource:")[0]
    assert entry.splitlines()[4:8] == [
        "```text",
        "t = tiled(m, k, n, Q) + x m k / B + t_0",
        "```",
        "",
    ]
    assert entry.splitlines()[8] == (
        "With `rows` m (tokens), `inputs` k, `outputs` n (on this rank), `rates` (what the device achieves; x is its `quantise_passes`)."
    )


def test_a_docstring_is_taken_apart_at_its_sections():
    sections = ["Parameters\n----------\nmoved_bytes : [B]\n    Q\nrates : B of the device", "References\n----------\nWilliams et al. 2009."]  # fmt: skip
    item = stated(
        "m", "time_s", "\n\n".join(["Return the time.", "    t = Q / B", "with nothing else.", *sections])
    )
    assert (item.lead, item.formula, item.rest) == ("Return the time.", "t = Q / B", "with nothing else.")
    assert item.symbols == (("moved_bytes", "[B]", "Q"), ("rates", "", "B of the device"))
    assert item.sources == "Williams et al. 2009."
    assert stated("m", "f", "Return nothing.") is None
