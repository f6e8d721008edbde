"""The measured facts in tests/data: few, each with its source, and those that the seed draws."""

import csv
import gzip
import re
from fnmatch import fnmatch
from itertools import islice

import pytest

from calibrate import choose_rows, choose_traces

MOST_BYTES = 300_000
ROWS = ("kernels", "starts", "runs")


@pytest.fixture
def files(root):
    return {
        path: path.read_text(encoding="utf-8")
        for path in (root / "tests" / "data").rglob("*")
        if path.is_file() and path.suffix != ".gz"  # recorded steps of an engine, not rows
    }


def test_they_are_about_three_hundred_rows_in_a_small_folder(files, root):
    assert sum(map(len, files.values())) < MOST_BYTES
    counts = {path.stem: text.count("\n") - 1 for path, text in files.items() if path.suffix == ".csv"}
    assert 280 <= sum(counts[name] for name in ROWS) <= 330


def test_every_row_names_its_source(files, root):
    """In a column of its own; the table of the README has the source of every file."""
    folder = root / "tests" / "data"
    described = re.findall(r"^\| `([^`]+)` \|", files[folder / "README.md"], re.MULTILINE)
    for path, text in files.items():
        name = path.relative_to(folder).as_posix()
        assert name == "README.md" or any(fnmatch(name, pattern) for pattern in described), name
        rows = list(csv.DictReader(text.splitlines())) if path.suffix == ".csv" else []
        column = next((key for key in ("source_url", "source") if rows and key in rows[0]), None)
        assert column is None or all(row[column] for row in rows), name


def test_no_row_was_chosen_by_its_prediction(root):
    """What chooses reads which rows there are, and imports nothing that predicts."""
    for name in ("choose_rows", "choose_traces"):
        text = (root / "calibrate" / f"{name}.py").read_text(encoding="utf-8")
        imported = [line for line in text.splitlines() if line.startswith(("from capplan", "import capplan"))]
        assert all("validation" in line or "table" in line for line in imported)


@pytest.mark.long
def test_rows_are_those_that_the_seed_draws(shared, root):
    for chooser, folder in ((choose_rows, "data"), (choose_traces, "traces")):
        for name, rows in chooser.drawn_files(shared / folder).items():
            path = root / "tests" / "data" / f"{name}.csv"
            text = choose_rows.records_text(rows)
            assert path.read_text(encoding="utf-8") == text, f"python -m {chooser.__name__}"


def test_an_excerpt_in_its_published_format_is_the_beginning_of_the_trace(shared):
    for name in ("AzureLLMInferenceTrace_code.csv.gz", "mooncake_conversation_trace.jsonl.gz"):
        path = shared / "traces" / name
        (text,) = choose_traces.published_text(name, choose_traces.excerpt(path)).values()
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            published = [line.rstrip() for line in islice(lines, text.count("\n"))]
        assert text.splitlines() == published
