"""The page on measured results names every column that is read, and its example is predicted."""

import re
from pathlib import Path

from capplan.accuracy.benchmark import LIMITS
from capplan.accuracy.memory import METRICS
from capplan.accuracy.serving import COLUMNS
from capplan.questions.validation import validation
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.readers.catalogue.recipes import RunColumns
from capplan.recorded.measured import NEEDED, NOTED, RANGES, with_start_columns
from tests.files import written_to

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "measured-results.md").read_text(encoding="utf-8")


def section(title):
    return re.search(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]


def named(title):
    """Return the columns that the items of a section begin with."""
    cells = [line.split(": ")[0] for line in section(title).splitlines() if line.startswith("- `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_page_names_every_column_of_serving_results():
    read = {
        *NEEDED["serving"],
        *RANGES["serving"],
        *COLUMNS,
        *LIMITS,
        *NOTED.values(),
        *RunColumns.model_fields,
    }
    assert read - named("Serving") - {"weight"} == set()


def test_the_page_names_every_column_of_engine_starts():
    read = {*NEEDED["memory"], *RANGES["memory"], *METRICS, *with_start_columns({})}
    assert read - named("Engine starts") == set()


def test_the_example_of_the_page_is_predicted(tmp_path):
    path = written_to(tmp_path / "results.csv", re.search(r"```csv\n(.*?)```", PAGE, re.DOTALL)[1])
    found = validation([path], intervals=shipped_intervals())
    assert [p.metric for p in found.predictions] == ["ttft_ms_p50", "output_tok_s"]
    assert not found.refused
