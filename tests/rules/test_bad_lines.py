"""Command lines that make no sense are refused in one message with the place, what is allowed and the way out: rows of tests/rows/refused.yaml."""

from pathlib import Path

import pytest
import yaml

PATH = Path(__file__).resolve().parents[1] / "rows" / "refused.yaml"
SUBJECTS = yaml.load(PATH.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize(
    ("line", "says"), [(line, says) for rows in SUBJECTS.values() for line, *says in rows]
)
def test_a_line_that_makes_no_sense_is_refused(line, says, capplan):
    message = capplan.refused(line)
    for words in says:
        assert words in message


def test_a_place_of_5000_digits_in_a_list_is_no_key(capplan):
    setting = "traffic[" + "9" * 5000 + "].name=a"
    assert "is not a key of a scenario" in capplan.refused("fleet tests/golden/small.yaml --set", setting)
