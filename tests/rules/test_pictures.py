"""The pictures of README and docs are of today: what `make pictures` draws of commands is what the commands print."""

import pytest

from capplan.report.charts.svg import svg_file
from docs.generators.pictures import CHARTS, COLUMNS, PHOTOGRAPH, PICTURES, TERMINALS, decision, terminal

REDRAW = "make pictures"


@pytest.mark.long
@pytest.mark.parametrize("name", TERMINALS)
def test_a_picture_of_a_terminal_shows_what_the_command_prints(name, root, monkeypatch):
    monkeypatch.chdir(root)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert terminal(*TERMINALS[name]) + "\n" == (PICTURES / name).read_text(encoding="utf-8"), REDRAW


@pytest.mark.long
@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_that_of_the_answer_of_today(name, root, monkeypatch):
    monkeypatch.chdir(root)
    assert svg_file(CHARTS[name]()) == (PICTURES / name).read_text(encoding="utf-8"), REDRAW


@pytest.mark.long
def test_the_photograph_of_the_review_page_has_the_decision_of_today(root):
    """A PNG holds its description as it is."""
    assert decision().encode("latin-1") in (root / PICTURES / PHOTOGRAPH).read_bytes(), REDRAW
