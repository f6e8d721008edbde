"""The keys of a scenario about regions: whose users send which traffic, and where machines may be."""

from typing import Annotated

from pydantic import Field

from capplan.readers.record import KgPerKwh, Record, SecondsOrZero, UsdPerKwh


class Region(Record):
    """A region whose users send a part of the traffic, or in which machines may be."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """Name of the region, as in traffic[].region and fleet.location."""
    utc_offset: Annotated[float, Field(ge=-12, le=14)] | None = None
    """Hours by which the local time of its users, in which daily curves are written, is ahead of UTC."""
    delay: dict[str, SecondsOrZero] = Field(default_factory=dict)
    """Time of a round trip on the network from its users to the machines of another region, by name."""
    offers: Annotated[list[str], Field(min_length=1)] | None = None
    """Names that providers have for the region, in which machines may then be ordered, as fleet.regions says."""
    electricity: UsdPerKwh | None = None
    """Price of electricity there, instead of prices.electricity."""
    grid: KgPerKwh | None = None
    """Carbon dioxide of the electricity there, instead of energy.grid."""
