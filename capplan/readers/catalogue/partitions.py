"""The slices that devices can be cut into, as NVIDIA lists them for MIG."""

from functools import lru_cache
from typing import Annotated

from pydantic import Field, model_validator

from capplan.errors import InputError, unknown
from capplan.hardware.device import Partition
from capplan.readers.catalogue.source_record import ASSUMED, SourceRecord, source_of
from capplan.readers.data_folder import data_folder
from capplan.readers.record import Bytes, Record, validated
from capplan.readers.yaml_file import read_yaml

Slices = Annotated[int, Field(ge=1)]


class Profile(Record):
    """One profile of a device."""

    compute: Slices
    """Compute slices."""
    memory: Slices
    """Memory slices, each with its part of the bandwidth."""
    l2: Slices
    """Parts of the L2 cache, of as many as there are memory slices."""
    multiprocessors: Slices
    engine_total: Bytes
    """Total that a process sees."""
    starts: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    """Memory slices that an instance may begin at."""


class Table(Record):
    """The profiles of some devices."""

    devices: Annotated[list[str], Field(min_length=1)]
    """Catalogue names."""
    source: str
    """Source of the slices and starts: a key in `sources`."""
    multiprocessors_source: str
    """Source of the multiprocessors: a key in `sources`, or 'assumed'."""
    engine_total_source: str
    """Source of the memory: a key in `sources`, or 'assumed'."""
    compute_slices: Slices
    """Compute slices of the whole device."""
    memory_slices: Slices
    """Memory slices of the whole device."""
    profiles: Annotated[dict[str, Profile], Field(min_length=1)]
    """Name, as the driver prints it -> what it takes."""


class PartitionFile(Record):
    """MIG profiles by device."""

    sources: dict[str, SourceRecord]
    tables: Annotated[list[Table], Field(min_length=1)]

    @model_validator(mode="after")
    def _every_source_exists(self) -> "PartitionFile":
        used = {
            key
            for table in self.tables
            for key in (table.source, table.multiprocessors_source, table.engine_total_source)
        }
        missing = sorted(used - {ASSUMED} - self.sources.keys())
        if missing:
            raise ValueError(f"the source {missing[0]!r} is used but not listed under 'sources'")
        return self


@lru_cache(maxsize=1)
def partition_file() -> PartitionFile:
    """Return the file that ships."""
    path = data_folder("hardware_specs") / "partitions.yaml"
    return validated(PartitionFile, read_yaml(path, kind="the list of MIG slices"))


@lru_cache(maxsize=1)
def _by_device() -> dict[str, tuple[Partition, ...]]:
    file = partition_file()
    return {
        name: tuple(
            _partition(name, profile, figures, table, file) for profile, figures in table.profiles.items()
        )
        for table in file.tables
        for name in table.devices
    }


def _partition(device: str, profile: str, figures: Profile, table: Table, file: PartitionFile) -> Partition:
    used = {
        "multiprocessors": table.multiprocessors_source,
        "reported_memory_bytes": table.engine_total_source,
    }
    keys = dict.fromkeys((table.source, *used.values()))
    return Partition(
        device=device,
        profile=profile,
        compute_slices=figures.compute,
        device_compute_slices=table.compute_slices,
        memory_slices=figures.memory,
        device_memory_slices=table.memory_slices,
        l2_slices=figures.l2,
        multiprocessors=figures.multiprocessors,
        reported_memory_bytes=figures.engine_total,
        starts=tuple(figures.starts),
        labels={name: ASSUMED if key == ASSUMED else file.sources[key].label for name, key in used.items()},
        figure_sources={name: (key,) for name, key in used.items()},
        sources=tuple(source_of(key, file.sources[key]) for key in keys if key != ASSUMED),
    )


def partitions(device: str) -> tuple[Partition, ...]:
    """Return the profiles of a device by its catalogue name; none where it cannot be cut."""
    return _by_device().get(device, ())


def partitioned_devices() -> tuple[str, ...]:
    """Return the catalogue names of the devices that can be cut."""
    return tuple(_by_device())


def partition_of(device: str, profile: str) -> Partition:
    """Return one profile of a device.

    Parameters
    ----------
    device : catalogue name
    profile : as the driver names it; case does not matter

    Raises
    ------
    InputError
        the device cannot be cut, or not like this
    """
    known = {partition.profile: partition for partition in partitions(device)}
    if not known:
        raise InputError(
            f"{device}:{profile}: no MIG slices of {device} are known\n  known: {', '.join(partitioned_devices())}"
        )
    found = known.get(profile.strip().lower())
    if found is None:
        raise unknown(f"slice of {device}", profile, known)
    return found
