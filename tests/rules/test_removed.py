"""What was removed is refused with one line that says what to write instead."""

import pytest

from capplan.cli.commands import DROPPED, FUNCTIONS
from capplan.cli.main import main
from capplan.scenario.scenario_file import ScenarioFile


@pytest.mark.parametrize("option", DROPPED)
def test_a_removed_option_says_what_to_write(option, capsys):
    command, name = option.split(" ")
    assert command in FUNCTIONS
    assert main([command, "MODEL", name, "x"]) == 2
    assert capsys.readouterr().err == f"{name}: was removed: {DROPPED[option]}\n"


@pytest.mark.parametrize("key", ScenarioFile.removed)
def test_a_removed_value_says_what_to_write(key, capsys):
    name, _, value = key.partition(": ")
    assert main(["fleet", "shared-gpus", "--set", f"{name}={value}", "--offline"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{name}: {value} was removed: {ScenarioFile.removed[key]}")
