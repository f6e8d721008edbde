"""Command lines that make no sense are refused in one message with the place, what is allowed and the way out: rows of tests/rows/refused.yaml."""

import json

import pytest

from tests.tables import rows

SUBJECTS = rows("refused")


def cases():
    """Return the files of each case, its line, and what the message says and never says."""
    return [
        (subject.get("files", {}), f"{subject.get('line', '')} {line}".strip(), says, subject.get("never"))
        for subject in ({"rows": one} if isinstance(one, list) else one for one in SUBJECTS.values())
        for line, *says in subject["rows"]
    ]


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize(("files", "line", "says", "never"), cases())
def test_a_line_that_makes_no_sense_is_refused(files, line, says, never, capplan, tmp_path):
    if line.startswith("calibrate"):
        pytest.importorskip("torch", reason="a calibration needs the extra")
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    message = capplan.refused(line.replace("{folder}", str(tmp_path)))
    assert {path.name for path in tmp_path.iterdir()} == set(files)
    assert "Error" not in message.split(":")[0]
    assert not (never and never in message)
    for words in says:
        assert words in message


def test_a_place_of_5000_digits_in_a_list_is_no_key(capplan):
    setting = "traffic[" + "9" * 5000 + "].name=a"
    assert "is not a key of a scenario" in capplan.refused("fleet tests/golden/small.yaml --set", setting)
