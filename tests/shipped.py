"""Every fleet of the scenarios that are shipped: of one with several models, each of them."""

from pathlib import Path
from typing import NamedTuple

SCENARIOS = sorted((Path(__file__).resolve().parents[1] / "scenarios").glob("*.yaml"))
PARTS = {
    "cascade": ("cascade.part=first", "cascade.part=second", "cascade.part=alone"),
    "shared-gpus": ("sharing.part=own", "sharing.part=guard", "sharing.part=summaries"),
    "mig-slices": ("sharing.part=own", "sharing.part=guard", "sharing.part=summaries"),
    "by-the-hour": ("sharing.part=own", "sharing.part=reports"),
}
"""Scenario -> the settings that ask for one of its fleets."""


class Fleet(NamedTuple):
    """A scenario, and the settings that ask for one of its fleets."""

    path: Path
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For the name of a test."""
        return "-".join([self.path.stem, *(text.partition("=")[2] for text in self.settings)])


FLEETS = [
    Fleet(path, settings)
    for path in SCENARIOS
    for settings in ([(part,) for part in PARTS[path.stem]] if path.stem in PARTS else [()])
]
