"""What the pages show of the program is what it prints. `make docs` writes it anew."""

import re
from pathlib import Path

import pytest

from capplan.cli.main import main
from docs.generators.accuracy_quotes import quoted_text, with_quotes
from docs.generators.commands import pages
from docs.generators.console_blocks import MOST_LINES, WIDTH, blocks_of, commands_of, with_output
from tests.sweeps import long_but, size_on_few_requests

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- output written by `make docs` -->"
MARKED = [page for page in pages(ROOT) if list(blocks_of(page.read_text(encoding="utf-8")))]
SAMPLE = {
    ROOT / name for name in ("docs/how-to/check-that-a-model-fits.md", "docs/how-to/plan-batch-jobs.md")
}
"""Pages whose commands take seconds together; the searches on the others take ten to twenty a page."""


@pytest.fixture(scope="module")
def known():
    """Keep what commands printed: many pages show the same one."""
    return {}


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize("page", long_but(SAMPLE, MARKED), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_shows_what_the_program_prints(page, known, monkeypatch, same_but_for_rounding):
    monkeypatch.chdir(ROOT)
    shown = page.read_text(encoding="utf-8")
    written = with_output(with_quotes(shown, quoted_text(ROOT)), main, known)
    same_but_for_rounding(shown, written, "run: make docs")


def test_no_block_is_cut_by_the_line_or_ends_in_a_heading():
    """A block names the tables that it shows; each stands below its own command, whole, on a screen of a page's width."""
    for page in MARKED:
        text = page.read_text(encoding="utf-8")
        for command in commands_of(text):
            assert "|" not in command, f"{page.name}: {command}"
        for block in blocks_of(text):
            for output in re.split(r"(?m)^\$ .*$", block)[1:]:
                lines = output.strip("\n").splitlines()
                assert not (lines and lines[-1].startswith("───")), (
                    f"{page.name}: ends in a heading: {lines[-2:]}"
                )
                assert len(lines) <= MOST_LINES, f"{page.name}: {lines[0]}"
                assert max(map(len, lines), default=0) <= WIDTH, f"{page.name}: {max(lines, key=len)}"


def test_a_block_is_followed_by_what_to_conclude():
    blocks = re.compile(
        r"<!-- output written by `make docs`[^\n]*-->\n```console\n(.*?)^```\n", re.DOTALL | re.MULTILINE
    )
    for page in MARKED:
        text = page.read_text(encoding="utf-8")
        for block in blocks.finditer(text):
            sentence = text[block.end() :].lstrip("\n").partition("\n")[0]
            named = f"{page.name}: after {block[1].splitlines()[0]}: {sentence!r}"
            assert sentence, named
            assert not sentence.startswith(("#", "```", "<!--", "|", "![")), named


def test_running_a_page_twice_changes_nothing():
    named = MARK.replace(" -->", ": decision -->").replace("docs` :", "docs`:")
    page = f"before\n\n{named}\n```console\n$ capplan x\nold\n$ capplan y\n```\n\nafter\n"

    def program(words):
        print(*words, "one")
        print("\ntwo")
        return 0

    once = with_output(page, program)
    assert once == (
        f"before\n\n{named}\n```console\n$ capplan x\nx one\n\n$ capplan y\ny one\n```\n\nafter\n"
    )
    assert with_output(once, program) == once


def test_a_block_that_names_what_no_command_prints_is_refused():
    page = MARK.replace(" -->", ": Plans -->") + "\n```console\n$ capplan x\n```\n"
    with pytest.raises(ValueError, match="prints none of Plans"):
        with_output(page, lambda _: print("one") or 0)


def test_a_block_runs_nothing_but_the_program():
    with pytest.raises(ValueError, match="runs only capplan"):
        with_output(f"{MARK}\n```console\n$ rm -r .\n```\n", main)


@pytest.mark.long
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
