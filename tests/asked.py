"""Questions about fleets, by the one door of the tests: of a scenario that ships, stands in a file, or is a text."""

from pathlib import Path

from capplan.fleet.answer import FleetAnswer
from capplan.questions.fleet import AskedFleet, asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.readers.yaml_file import parse_yaml
from capplan.scenario.scenario import read_scenario, scenario_from

ROOT = Path(__file__).resolve().parent.parent


def asked_of(scenario: str | Path, *settings: str) -> AskedFleet:
    """Return the question of a scenario, by its path or the name with which it ships, with some keys set."""
    return asked_fleet(read_scenario(scenario, settings), offline=True)


def asked_in(text: str) -> AskedFleet:
    """Return the question of a scenario that is a text."""
    return asked_fleet(scenario_from(parse_yaml(text, "scenario.yaml"), ROOT), offline=True)


def fleet_of(scenario: str | Path, *settings: str) -> FleetAnswer:
    """Return the plans of a scenario."""
    return fleet_for(asked_of(scenario, *settings))
