"""Config files of public repositories, each with its address, are read exactly or rejected with the reason.

`tests/data/public_configs.jsonl.gz` has the keys that decide parameters, cache and heads. `reference` is the count of transformers 5.23.0
on the meta device (its text part, where a tower is not counted), for the types that it has; `refused` is our message.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from capplan.errors import InputError
from capplan.families.model_config import read_network
from capplan.model.parameters import parameters

FILE = Path(__file__).parents[1] / "data" / "public_configs.jsonl.gz"
ROWS = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]
OTHERWISE = {
    "stepfun-ai--Step-3.7-Flash": "its class has no gate on the heads of windows; the published shapes have",
    "hf_configs/llava": "its class knows no file of LLaVA's own code and builds its default",
}
"""Files whose model transformers builds otherwise, and why."""


def name_of(row: dict[str, Any]) -> str:
    """Return the end of an address, as pytest shows it."""
    return row["address"][-60:]


def test_a_hundred_files_have_an_address() -> None:
    """Every address names a repository, a commit and a path."""
    assert len(ROWS) >= 100
    assert all("@" in row["address"] and ":" in row["address"] for row in ROWS)


@pytest.mark.parametrize("row", [row for row in ROWS if "refused" not in row], ids=name_of)
def test_a_public_file_is_read_exactly(row: dict[str, Any]) -> None:
    """Our count of parameters is that of the reference, to the last one."""
    count = parameters(read_network(row["config"], "config.json"))
    assert count == row["parameters"]
    if not any(part in row["address"] for part in OTHERWISE):
        assert count == row.get("reference", count)


@pytest.mark.parametrize("row", [row for row in ROWS if "refused" in row], ids=name_of)
def test_a_public_file_is_rejected_with_the_reason(row: dict[str, Any]) -> None:
    """What is not modelled is named."""
    with pytest.raises(InputError) as error:
        read_network(row["config"], "config.json")
    assert row["refused"] in str(error.value)
