"""What offers of GPUs, machines or hosted APIs state, and the machines that are on offer, by the lists that ship and those of one's own."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from capplan.hardware.device import Source
from capplan.keys import Bytes, BytesPerS, Commitment, Day, Term, Usd, UsdPerHour, Watts, first_day
from capplan.readers.record import Record, refuse_unlisted, validated
from capplan.readers.text_file import data_folder
from capplan.readers.yaml_file import read_yaml


class PageSource(Record):
    """A page that figures were read from."""

    title: str
    url: str


PROJECT_FOLDER = ".capplan"


class OwnFile(NamedTuple):
    """A file of prices, and what changes with its content."""

    path: Path
    changed_ns: int
    size: int


def user_folder() -> Path:
    """Return the folder of the user's own prices: capplan in $XDG_CONFIG_HOME, else in ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "capplan"


def own_files(kind: str) -> tuple[OwnFile, ...]:
    """Return the files of a kind, `machines` or `token_prices`, those that count more last."""
    found = []
    for folder in (user_folder(), Path(PROJECT_FOLDER)):
        for path in sorted((folder / kind).glob("[!.]*")):
            what = path.stat()
            found.append(OwnFile(path, what.st_mtime_ns, what.st_size))
    return tuple(found)


ASSUMED = "assumed"
"""Source of a figure for which none is known."""


class SourceRecord(Record):
    """A page or a measurement that figures come from."""

    title: str
    url: str | None = None
    label: Literal["spec", "measured", "announced"] = "spec"
    checked: str | None = None
    """The day when the figures were compared with the page."""
    note: str | None = None


def source_of(key: str, source: SourceRecord) -> Source:
    """Return a source of a catalogue file, by its key there."""
    return Source(key, source.title, source.url, source.checked, source.note)


class MachineOffer(Record):
    """A price of a machine by the hour."""

    region: str | None = None
    """The provider's name of the region; `any region`: the price holds in all of them."""
    commitment: Commitment | Term
    price: UsdPerHour
    """Price of the whole machine."""
    list_price: UsdPerHour | None = None
    """Price of the list, if the price has a discount of one's own."""
    date: Day | None
    """Day of the price; null: unknown."""
    source: str
    """Key in `sources`."""


class Purchase(Record):
    """What a server costs to buy."""

    price: Usd
    """Middle of the range."""
    low: Usd
    """Lowest price that the source states."""
    high: Usd
    """Highest price that the source states."""
    date: Day | None
    """Day of the price; null: unknown."""
    quality: Literal["list", "street", "estimate", "doubtful"]
    """Kind of price."""
    source: str
    """Key in `sources`."""


class ListedMachine(Record):
    """A machine as a provider sells it."""

    sku: str
    """The provider's name of the machine."""
    device: str
    """Catalogue name of its GPUs."""
    gpus: Annotated[int, Field(ge=1, le=1024)]
    """GPUs of the machine."""
    sold_by: Annotated[int, Field(ge=1, le=1024)] = 1
    """Machines that are sold at once, such as the 18 servers of a rack."""
    vcpus: Annotated[float, Field(gt=0)] | None = None
    """Virtual processors of the host."""
    memory: Bytes | None = None
    """Memory of the host."""
    disk: Bytes | None = None
    """Local disk."""
    network: BytesPerS | None = None
    """Rate of its network, all interfaces together."""
    network_kind: str | None = None
    """Kind of that network."""
    link: str | None = None
    """Link between its GPUs."""
    power: Watts | None = None
    """Power at the wall, at most."""
    rack_units: Annotated[float, Field(gt=0)] | None = None
    """Height in a rack."""
    purchase: Purchase | None = None
    """What it costs to buy."""
    source: str | None = None
    """Key in `sources`, of what the machine is."""
    offers: list[MachineOffer] = Field(default_factory=list)
    """Prices by region and commitment."""


class MachineFile(Record):
    """Machines of one provider."""

    provider: str
    """Name of the provider, `own` for servers to buy."""
    serverless: bool = False
    """Whether it runs containers by the second and rents no machines."""
    sources: dict[str, PageSource]
    machines: Annotated[list[ListedMachine], Field(min_length=1)]

    @model_validator(mode="after")
    def _every_source_exists(self) -> "MachineFile":
        used = {machine.source for machine in self.machines if machine.source}
        used |= {offer.source for machine in self.machines for offer in machine.offers}
        used |= {machine.purchase.source for machine in self.machines if machine.purchase}
        refuse_unlisted(used, self.sources)
        return self


@dataclass(frozen=True, slots=True)
class KnownMachine:
    """A machine of the catalogue with its provider and the pages that state it."""

    provider: str
    record: ListedMachine
    sources: dict[str, str]
    serverless: bool = False
    """Whether the provider runs containers by the second and rents no machines."""

    @property
    def name(self) -> str:
        """The sku, as the provider writes it."""
        return self.record.sku

    def offered(self, commitment: str, regions: Iterable[str | None] = ()) -> MachineOffer | None:
        """Return the newest offer of a commitment in some regions, any of them if none is named; the cheapest one of a tie."""
        wanted = set(regions)
        offers = [
            offer
            for offer in self.record.offers
            if offer.commitment == commitment and (not wanted or offer.region in wanted)
        ]
        return max(
            offers,
            key=lambda offer: (str(first_day(offer.date)) if offer.date else "", -offer.price),
            default=None,
        )


def known_machines() -> tuple[KnownMachine, ...]:
    """Return the machines that ship with the package, by provider, with the offers of one's own lists."""
    return _known_machines(own_files("machines"))


@lru_cache(maxsize=4)
def _known_machines(own: tuple[OwnFile, ...]) -> tuple[KnownMachine, ...]:
    folder = data_folder("hardware_specs") / "machines"
    known = [item for path in sorted(folder.glob("*.yaml")) for item in machines_in(path)]
    for file in own:
        known = _with_own(known, machines_in(file.path))
    return tuple(known)


def machines_in(path: Path) -> list[KnownMachine]:
    """Return the machines in a machine YAML."""
    file = validated(MachineFile, read_yaml(path, kind="a machine YAML"))
    urls = {key: source.url for key, source in file.sources.items()}
    return [KnownMachine(file.provider, record, urls, file.serverless) for record in file.machines]


def _with_own(known: list[KnownMachine], own: list[KnownMachine]) -> list[KnownMachine]:
    """Return machines with the offers of one's own, which replace those of the same region and commitment."""
    found = {(item.provider, item.name): item for item in known}
    for mine in own:
        item = found.get((mine.provider, mine.name))
        if item is None:
            found[mine.provider, mine.name] = mine
            continue
        replaced = {(offer.region, offer.commitment) for offer in mine.record.offers}
        kept = [offer for offer in item.record.offers if (offer.region, offer.commitment) not in replaced]
        record = item.record.model_copy(update={"offers": [*kept, *mine.record.offers]})
        found[mine.provider, mine.name] = replace(item, record=record, sources=item.sources | mine.sources)
    return list(found.values())
