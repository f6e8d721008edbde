"""The table of keys that exclude each other names keys that there are, and all that apply are said at once."""

import json

import pytest

from capplan.cli.main import main
from capplan.readers.record import keys_of, record_of
from capplan.scenario.exclusions import _ROWS, EXCLUSIONS
from capplan.scenario.scenario_file import ScenarioFile

LINE = {"request_rate": "5 req/s", "input_tokens": 900, "output_tokens": 90}
SMALL = {"name": "small", "model": "llama-3.1-8b", "traffic": [LINE], "fleet": {"hardware": ["h100-sxm"]}}


@pytest.mark.parametrize("row", range(len(EXCLUSIONS)))
def test_a_row_names_keys_of_a_scenario(row):
    stated, absent, why = _ROWS[row]
    for key in (*stated, *absent):
        record = ScenarioFile
        for name in key.partition(": ")[0].replace("[]", "").split("."):
            assert name in keys_of(record), key
            record = record_of(keys_of(record)[name].annotation)
    assert why.strip() == why


def test_all_that_exclude_each_other_are_said_at_once(tmp_path, capsys):
    path = tmp_path / "small.yaml"
    line = LINE | {"samples": 4, "retries": {"invalid": 0.1, "attempts": 3}, "turns": 8, "region": "europe"}
    path.write_text(json.dumps(SMALL | {"traffic": [LINE | {"name": "plain"}, line], "kv_dtype": "fp9"}))
    assert main(["fleet", str(path), "--offline"]) == 2
    said = capsys.readouterr().err.splitlines()
    keys = ["samples", "retries", "turns", "region"]
    assert [sum(f"traffic[1].{key}: " in one for one in said) for key in keys] == [1, 1, 1, 1], said
    assert len(said) == 5
