"""Every fleet of the scenarios that are shipped: of one with several models, each of them."""

from pathlib import Path
from typing import NamedTuple

from capplan.assumption import Assumption
from capplan.money.price import ChosenPrice

SCENARIOS = sorted((Path(__file__).resolve().parents[1] / "scenarios").glob("*.yaml"))
PARTS = {
    "cascade": ("cascade.part=first", "cascade.part=second", "cascade.part=alone"),
    "shared-gpus": ("sharing.part=own", "sharing.part=guard", "sharing.part=summaries"),
    "mig-slices": ("sharing.part=own", "sharing.part=guard", "sharing.part=summaries"),
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


def price_by_hand(usd_per_hour):
    """Return the price of a GPU as a scenario states it."""
    stated = Assumption(f"a GPU costs {usd_per_hour} $/h", "prices.per_gpu_hour")
    return ChosenPrice(usd_per_hour, "on-demand", (), 0, None, None, stated)
