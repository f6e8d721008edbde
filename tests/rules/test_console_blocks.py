"""What the pages show of the program is what it prints. `make docs` writes it anew."""

import re
from pathlib import Path

import pytest

from capplan.cli.main import main
from docs.generators.commands import pages
from docs.generators.console_blocks import MARK, with_output
from tests.sweeps import long_but, size_on_few_requests

ROOT = Path(__file__).resolve().parents[2]
MARKED = [page for page in pages(ROOT) if MARK in page.read_text(encoding="utf-8")]
SAMPLE = {
    ROOT / name
    for name in (
        "README.md",
        "docs/deploy.md",
        "docs/plans.md",
        "docs/report.md",
    )
}
"""Pages whose commands take a second each; the searches on the others take ten to twenty a page."""


@pytest.fixture(scope="module")
def known():
    """Keep what commands printed: many pages show the same one."""
    return {}


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize("page", long_but(SAMPLE, MARKED), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_shows_what_the_program_prints(page, known, monkeypatch, same_but_for_rounding):
    monkeypatch.chdir(ROOT)
    shown = page.read_text(encoding="utf-8")
    same_but_for_rounding(shown, with_output(shown, main, known), "run: make docs")


def test_every_output_of_capplan_in_the_readme_is_run():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(.*)\n```console\n\$ capplan", text)
    assert len(blocks) >= 3
    assert set(blocks) == {MARK}


def test_running_a_page_twice_changes_nothing():
    page = f"before\n\n{MARK}\n```console\n$ capplan x | head -1\nold\n$ capplan y\n```\n\nafter\n"

    def program(words):
        print(*words, "one")
        print("two")
        return 0

    once = with_output(page, program)
    assert once == (
        f"before\n\n{MARK}\n```console\n$ capplan x | head -1\nx one\n\n$ capplan y\ny one\ntwo\n```\n\nafter\n"
    )
    assert with_output(once, program) == once


def test_a_block_runs_nothing_but_the_program():
    with pytest.raises(ValueError, match="runs capplan alone"):
        with_output(f"{MARK}\n```console\n$ rm -r .\n```\n", main)


@pytest.mark.usefixtures("shared_runs")
def test_the_scenario_and_the_library_of_the_readme_run(tmp_path, monkeypatch, capsys, capplan):
    size_on_few_requests(monkeypatch)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (scenario,) = re.findall(r"```yaml\n# file: chat\.yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "chat.yaml").write_text(scenario)
    ran = capplan("fleet", tmp_path / "chat.yaml", "--offline")
    assert ran.code == 0, ran.err
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(compile(program, "README.md", "exec"), {})
    best, heading, *rows = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+ \S+ [\d.]+", best)
    assert heading.split() == ["hardware", "gpus", "usd_per_month", "slo_met_probability"]
    assert best.split()[1] in [row.split()[1] for row in rows]


def test_every_command_is_in_the_readme():
    from capplan.cli.commands import COMMANDS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`capplan {name}" not in text] == []
