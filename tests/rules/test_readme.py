"""The README is what a package index shows: short, with links that lead somewhere from anywhere."""

import re
from pathlib import Path

from docs.generators.site import REPOSITORY

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RAW = "https://raw.githubusercontent.com/OWNER/capplan/main/"


def test_the_readme_is_short():
    assert 600 <= len(TEXT.split()) <= 800


def test_every_link_is_absolute_and_leads_to_a_file_of_the_repository():
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", TEXT)
    for link in (written or pictured for written, pictured in links):
        assert link.startswith("https://"), link
        for start in (REPOSITORY, RAW):
            if link.startswith(start):
                assert (ROOT / link.removeprefix(start).partition("#")[0]).is_file(), link


def test_the_order_is_that_of_a_newcomer():
    headings = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert headings == [
        "Try it: no GPU, no account",
        "Plan your own service",
        "How accurate is it?",
        "What it can do",
        "What it cannot do",
        "From Python",
        "In CI",
        "Documentation",
        "Licence",
    ]


def test_the_scenario_of_the_readme_is_ten_lines_of_yaml():
    (scenario,) = re.findall(r"```yaml\n# file: chat\.yaml\n(.*?)```", TEXT, re.DOTALL)
    assert len(scenario.splitlines()) <= 10
