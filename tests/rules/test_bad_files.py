"""Files that nothing can use are refused in one clear line with the file, the place and what is allowed: rows of tests/rows/bad_files.yaml."""

from functools import partial
from pathlib import Path

import pytest

from capplan.errors import InputError
from capplan.readers.catalogue.hardware import device
from capplan.readers.text_file import read_json
from capplan.readers.yaml_file import read_yaml
from capplan.recorded.results.read import read_results
from capplan.recorded.traces.trace import read_trace, workload_of
from capplan.scenario.scenario import read_scenario
from tests.tables import rows

ROOT = Path(__file__).resolve().parents[2]
SUBJECTS = rows("bad_files")
READERS = {
    "scenario": ("my scenario ü.yaml", read_scenario),
    "hardware": ("gpu.yaml", lambda path: device(str(path))),
    "yaml": ("x.yaml", partial(read_yaml, kind="a scenario YAML")),
    "json": ("config ü.json", read_json),
    "trace": ("t.csv", read_trace),
    "traffic": ("t.csv", lambda path: workload_of([path])),
    "results": ("odd.json", read_results),
}
"""What reads a file, and the name that the file has."""


def content(subject, row):
    """Return the content of a file of a row, and what is said of it."""
    if "base" not in subject and "text" not in subject:
        text, *says = row
        return text.encode("latin-1"), says
    text = subject.get("text") or (ROOT / subject["base"]).read_text(encoding="utf-8")
    old, new, *says = row
    assert old in text
    return text.replace(old, new, 1 if "text" in subject else -1).encode(), says


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize(
    ("subject", "row"), [(name, row) for name, subject in SUBJECTS.items() for row in subject["rows"]]
)
def test_a_file_that_nothing_can_use_is_refused_in_one_line(subject, row, tmp_path):
    name, read = READERS[SUBJECTS[subject]["read"]]
    path = tmp_path / name
    data, says = content(SUBJECTS[subject], row)
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read(path)
    first = str(caught.value).splitlines()[0]
    assert caught.value.exit_code == 2
    assert str(tmp_path) in first
    for words in says:
        assert words in (str(caught.value) if "text" in SUBJECTS[subject] else first)


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_not_there_and_a_folder_are_named(reader, tmp_path):
    name, read = READERS[reader]
    with pytest.raises(InputError, match=f"{name}: no such file"):
        read(tmp_path / name)
    with pytest.raises(InputError, match=r"is a folder") as caught:
        read(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
