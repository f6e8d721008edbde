"""The devices of workstations, laptops, Macs and hosts: one table, one line each, found by whatever a tool prints of them."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from capplan.errors import InputError
from capplan.hardware.device import BINARY_OVER_DECIMAL, Device, Source
from capplan.keys import Bytes, BytesPerS, FlopPerS, Watts
from capplan.readers.catalogue.hardware import catalogue_name, device, device_aliases, device_names
from capplan.readers.catalogue.offer_terms import ASSUMED, SourceRecord, source_of
from capplan.readers.record import Record, one_or_more, refuse_unlisted, validated
from capplan.readers.text_file import data_folder
from capplan.readers.yaml_file import read_yaml

PAGE = "page"
"""Key of the page of a device at the first source."""
BYTES_PER_TRANSFER = 8.0
"""Bytes that a channel of host memory moves at once: 64 bits."""


def _listed(written: object) -> object:
    return written if isinstance(written, list) else [written]


Keys = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1), one_or_more({"type": "string"})]


class GpuShare(Record):
    """The part of a shared memory that its GPU may use."""

    memory: Bytes
    """Largest memory that the part is of."""
    share: Annotated[float, Field(gt=0, le=1)]


class WorkstationDevice(Record):
    """One device of the table; what is the same for its family may stand there."""

    title: str
    memory: Annotated[
        list[Bytes],
        BeforeValidator(_listed),
        Field(min_length=1),
        one_or_more({"type": "string"}),
    ]
    """Memory that it is sold with, smallest first; of a host the most that it takes."""
    kind: str
    """GDDR6, LPDDR5X, DDR5, ..."""
    bandwidth: BytesPerS | None = None
    """Peak; of a host what its channels move."""
    channels: Annotated[int, Field(ge=1)] | None = None
    """Memory channels of a host."""
    transfers: Annotated[int, Field(ge=1)] | None = None
    """Fastest memory that a host supports, in millions of transfers per second."""
    fp32: FlopPerS | None = None
    fp32_source: Keys | None = None
    """Source of the rate, where it is not that of the device."""
    fp16_per_fp32: Annotated[float, Field(gt=0)] | None = None
    """Dense rate in fp16 with sums in fp32, over the rate in fp32."""
    fp16_source: Keys | None = None
    units: Annotated[int, Field(ge=1)] | None = None
    """Multiprocessors, compute units or cores of the GPU."""
    power: Watts | None = None
    link: str | None = None
    """pcie3, pcie4 or pcie5."""
    pcie: BytesPerS | None = None
    """Host link, per direction."""
    vendor: str | None = None
    architecture: str | None = None
    page: str | None = None
    """End of the address of its page at the first source."""
    source: Keys | None = None
    aliases: list[str] = Field(default_factory=list)
    """Other names that tools print."""
    printed: str | None = None
    """Pattern of the names of processors, without vendor and clock."""

    @model_validator(mode="after")
    def _has_a_bandwidth_and_a_source(self) -> "WorkstationDevice":
        if (self.bandwidth is None) == (self.channels is None or self.transfers is None):
            raise ValueError("needs a bandwidth, or channels and transfers")
        if self.page is None and self.source is None:
            raise ValueError("has no page and no source")
        if self.memory != sorted(set(self.memory)):
            raise ValueError("its memory is not listed from small to large")
        return self

    @property
    def memory_bytes_per_s(self) -> float:
        """Peak bandwidth of the memory [B/s]."""
        if self.bandwidth is not None:
            return self.bandwidth
        return (self.channels or 0) * (self.transfers or 0) * 1e6 * BYTES_PER_TRANSFER


class Family(Record):
    """Devices that have much in common."""

    vendor: str | None = None
    architecture: str | None = None
    """Family of the kernels, such as ada."""
    fp16_per_fp32: Annotated[float, Field(gt=0)] | None = None
    """Dense rate in fp16 with sums in fp32, over the rate in fp32."""
    fp16_source: Keys | None = None
    bf16: bool = False
    """The rate in fp16 is that in bf16 too."""
    gpu_share: list[GpuShare] = Field(default_factory=list)
    """What the GPU may use of a memory that it shares with the host, smallest memory first."""
    gpu_share_source: str | None = None
    any_memory: bool = False
    """The owner chooses the memory, up to the size that the device states."""
    devices: Annotated[dict[str, WorkstationDevice], Field(min_length=1)]


class WorkstationFile(Record):
    """The whole table."""

    unsaid_words: list[str]
    """Words that tools print and that tell no two devices apart."""
    sources: dict[str, SourceRecord]
    families: Annotated[dict[str, Family], Field(min_length=1)]

    @model_validator(mode="after")
    def _every_source_exists(self) -> "WorkstationFile":
        used: set[str] = set()
        for family in self.families.values():
            used |= {family.gpu_share_source or ASSUMED, *(family.fp16_source or ())}
            for row in family.devices.values():
                used |= {*(row.source or ()), *(row.fp32_source or ()), *(row.fp16_source or ())}
        refuse_unlisted(used - {ASSUMED}, self.sources)
        return self


Entry = tuple[Family, WorkstationDevice]


@lru_cache(maxsize=1)
def _file() -> WorkstationFile:
    path = data_folder("hardware_specs") / "workstations.yaml"
    return validated(WorkstationFile, read_yaml(path, kind="the table of workstation devices"))


@lru_cache(maxsize=1)
def _entries() -> Mapping[str, Entry]:
    return {
        name: (family, row) for family in _file().families.values() for name, row in family.devices.items()
    }


def workstation_names() -> tuple[str, ...]:
    """Return the names in the table."""
    return tuple(_entries())


def is_host(name: str) -> bool:
    """Return whether a device of the table is a processor, whose owner chooses the memory."""
    return name in _entries() and _entries()[name][0].any_memory


def gpu_names() -> tuple[str, ...]:
    """Return the names in the table but for processors."""
    return tuple(name for name in workstation_names() if not is_host(name))


_SAME = {"mobile": "laptop", "al": "ai", "sxm2": "sxm"}
_SIZE = re.compile(r"(?:(?<=[\W_])|^)(\d+)[ _]?gi?b\b")
_CORES = re.compile(r"\b(?:\d+p\+\d+e\+(\d+)gpu|(\d+)[- ](?:core gpu|gpu cores))\b")
_GLUED = re.compile(r"\b(\d{4})(ti|super|xtx?|gre)\b")
_REMARK = re.compile(r"\([^()]*\)")


def _read_name(printed: str) -> tuple[frozenset[str], int | None]:
    """Return the words that say which device it is, and the memory that the name states [GB].

    Examples
    --------
    >>> words, memory_gb = _read_name("NVIDIA GeForce RTX 4060 Ti 16GB")
    >>> sorted(words), memory_gb
    (['4060', 'ti'], 16)
    """
    text = _CORES.sub(lambda cores: f"{cores[1] or cores[2]}core", printed.lower().replace("\u2011", "-"))
    named = _REMARK.sub(" ", text)
    sizes = _SIZE.findall(named) or _SIZE.findall(text)
    words = re.findall(r"[a-z0-9]+", _GLUED.sub(r"\1 \2", _SIZE.sub(" ", named)))
    known = frozenset(_SAME.get(word, word) for word in words).difference(_file().unsaid_words)
    return known, int(sizes[-1]) if sizes else None


_CHIP = re.compile(r"(apple-m\d.*)-\d+core")
"""A chip of Apple with its GPU cores, which most tools do not print."""


@lru_cache(maxsize=1)
def _by_words() -> Mapping[frozenset[str], tuple[str, ...]]:
    """Return the words of every name -> the devices that have it, those of the catalogue's own files too."""
    spellings = [
        (spelling, name) for name, (_, row) in _entries().items() for spelling in (name, *row.aliases)
    ]
    spellings += [(chip[1], name) for name in workstation_names() if (chip := _CHIP.fullmatch(name))]
    spellings += [*device_aliases().items(), *((name, name) for name in device_names())]
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for spelling, name in spellings:
        words, _ = _read_name(spelling)
        found[words] = tuple(dict.fromkeys((*found.get(words, ()), name)))
    return found


def gigabytes(memory_bytes: float) -> int:
    """Return a size as names state it [GB]."""
    return round(memory_bytes / 1e9)


def _sizes_of(name: str) -> tuple[int, ...]:
    """Return the memory that a device is sold with, smallest first [GB]."""
    if name in _entries():
        return tuple(gigabytes(each) for each in _entries()[name][1].memory)
    return (gigabytes(device(name).memory_bytes),)


def _sold_with(candidates: tuple[str, ...], size: int | None) -> tuple[str, ...]:
    """Return the candidates that are sold with a memory, each with the size where there is a choice of several."""
    if size is None:
        usual = tuple(name for name in candidates if _read_name(name)[1] is None)
        return usual or candidates
    sold = {name: _sizes_of(name) for name in candidates}
    return tuple(
        name if len(sizes) == 1 else f"{name}:{size}gb" for name, sizes in sold.items() if size in sizes
    )


_UNNAMED = re.compile(r"@.*|\b(processor|cpu|vm|(\d+|eight)-cores?|intel|amd|core|(w/|with) radeon.*)(?!\S)")


def _host(printed: str) -> str | None:
    """Return the family of a processor by its name."""
    text = " ".join(_UNNAMED.sub(" ", _REMARK.sub(" ", printed.lower().replace("(tm)-", "-"))).split())
    text = re.sub(r"^1[1-4]th gen ", "", text)
    families = ((name, row.printed) for name, (_, row) in _entries().items() if row.printed is not None)
    return next((name for name, pattern in families if re.fullmatch(pattern, text)), None)


def printed_candidates(printed: str) -> tuple[str, ...]:
    """Return the devices that a printed name may mean: none, the one, or several that it does not tell apart.

    Examples
    --------
    >>> printed_candidates("NVIDIA GeForce RTX 4070 Laptop GPU"), printed_candidates("Apple M3 Max")
    (('rtx-4070-laptop',), ('apple-m3-max-30core', 'apple-m3-max-40core'))
    >>> printed_candidates("AMD EPYC 9355 32-Core Processor"), printed_candidates("Apple M3 Max 64 GB")
    (('epyc-9005',), ('apple-m3-max-40core:64gb',))
    """
    if printed in _entries():
        return (printed,)
    words, size = _read_name(printed)
    if words and (found := _sold_with(_by_words().get(words, ()), size)):
        return found
    host = _host(printed)
    return () if host is None else (host,)


MEMORY_SPREAD = 0.08
"""Share by which a driver's total may be off the size that a device is sold with."""


def candidates_with(printed: str, memory_bytes: float) -> tuple[str, ...]:
    """Return the devices that a printed name may mean which have the memory that a driver prints, each with its size.

    Parameters
    ----------
    printed : by a driver
    memory_bytes : [B]
        its total

    Examples
    --------
    >>> candidates_with("NVIDIA GeForce RTX 3060", 8192 * 2.0**20), candidates_with("NVIDIA GeForce RTX 4060 Ti", 16380 * 2.0**20)
    (('rtx-3060-8gb',), ('rtx-4060-ti:16gb',))
    """
    words, _ = _read_name(printed)
    known = catalogue_name(printed)
    named = _by_words().get(words, ()) or ((known.partition(":")[0],) if known else ())
    found: list[str] = []
    for name in named:
        sizes = _sizes_of(name)
        nearest = min(sizes, key=lambda size: abs(memory_bytes - size * 2.0**30))
        if abs(memory_bytes / (nearest * 2.0**30) - 1.0) <= MEMORY_SPREAD:
            found.append(name if len(sizes) == 1 else f"{name}:{nearest}gb")
    return tuple(found)


_PARTS = re.compile(r" \+ |, (?=[A-Z])| on (?=[A-Z])")
"""What stands between the devices of a machine where a tool or a table prints them in one line."""
_TIMES = re.compile(r"^(\d+) ?x | x ?(\d+)\b(?: hosts)?")


def machine_parts(printed: str) -> tuple[tuple[str, int], ...]:
    """Return the names of the devices that a line lists, each with how many there are.

    Examples
    --------
    >>> machine_parts("2x NVIDIA GeForce RTX 3090 + EPYC 9355")
    (('NVIDIA GeForce RTX 3090', 2), ('EPYC 9355', 1))
    """
    found: dict[str, int] = {}
    for part in _PARTS.split(printed):
        times = _TIMES.search(part)
        name = _TIMES.sub("", part).strip()
        found[name] = found.get(name, 0) + (int(times[1] or times[2]) if times else 1)
    return tuple(found.items())


def workstation_device(name: str, memory_gb: int | None = None) -> Device:
    """Return a device of the table.

    Parameters
    ----------
    name : in the table
    memory_gb : [GB]
        that it has, where it is sold with several; None: the largest, marked as assumed

    Raises
    ------
    InputError
        it is not sold with this memory
    """
    family, row = _entries()[name]
    sizes = [gigabytes(each) for each in row.memory]
    chosen = sizes[-1] if memory_gb is None else memory_gb
    if chosen not in sizes and not (family.any_memory and 0 < chosen <= sizes[-1]):
        most = (
            f"at most {sizes[-1]} GB"
            if family.any_memory
            else ", ".join(f"{name}:{each}gb" for each in sizes)
        )
        raise InputError(f"{name}:{chosen}gb: {name} is not sold with {chosen} GB\n  it is sold with: {most}")
    open_choice = memory_gb is None and (len(sizes) > 1 or family.any_memory)
    figures = dict(_figures(family, row, assumed_memory=open_choice))
    return Device(
        name=name if memory_gb is None or sizes == [chosen] else f"{name}:{chosen}gb",
        title=row.title if len(sizes) == 1 and not family.any_memory else f"{row.title}, {chosen} GB",
        vendor=row.vendor or family.vendor or "",
        architecture=row.architecture or family.architecture or "",
        memory_bytes=chosen * 1e9,
        reported_memory_bytes=_gpu_bytes(family, chosen * 1e9),
        memory_bytes_per_s=row.memory_bytes_per_s,
        peak_flop_per_s=_peaks(family, row),
        multiprocessors=row.units,
        l2_bytes=None,
        tdp_w=row.power,
        link=row.link or "none",
        link_bytes_per_s=row.pcie,
        link_domain_devices=8 if row.pcie else 1,
        pcie_bytes_per_s=row.pcie,
        node_devices=8 if row.pcie else 1,
        network_bytes_per_s=None,
        labels={field: ASSUMED if ASSUMED in keys else "spec" for field, keys in figures.items()},
        sources=tuple(_sources_of(row, figures)),
        memory_kind=row.kind,
        figure_sources=figures,
    )


def _gpu_bytes(family: Family, memory_bytes: float) -> float | None:
    """Return what the GPU may use of a shared memory [B], in the binary units in which it is sold; None where it is its own."""
    shares = (each.share for each in family.gpu_share if memory_bytes <= each.memory)
    share = next(shares, None)
    return None if share is None else memory_bytes * BINARY_OVER_DECIMAL * share


def _peaks(family: Family, row: WorkstationDevice) -> dict[str, float]:
    if row.fp32 is None:
        return {}
    ratio = row.fp16_per_fp32 or family.fp16_per_fp32
    half = ("fp16", "bf16") if family.bf16 else ("fp16",)
    return {"fp32": row.fp32} | (dict.fromkeys(half, row.fp32 * ratio) if ratio else {})


def _figures(
    family: Family, row: WorkstationDevice, *, assumed_memory: bool
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each figure of a device with the keys of its sources."""
    own = tuple(row.source or (PAGE,))
    yield "memory_bytes", (ASSUMED,) if assumed_memory else own
    yield "memory_bytes_per_s", own
    if family.gpu_share:
        yield "reported_memory_bytes", (family.gpu_share_source or ASSUMED,)
    for field, value in (("multiprocessors", row.units), ("tdp_w", row.power)):
        if value is not None:
            yield field, own
    if row.pcie is not None:
        yield "pcie_bytes_per_s", own
        yield "link_bytes_per_s", (ASSUMED,)
    for dtype in _peaks(family, row):
        stated = row.fp32_source if dtype == "fp32" else row.fp16_source or family.fp16_source
        yield f"peak_flop_per_s.{dtype}", tuple(stated or own)


def _sources_of(row: WorkstationDevice, figures: Mapping[str, tuple[str, ...]]) -> Iterator[Source]:
    """Yield the sources that the figures of a device name; its own page is one of the first source."""
    listed = _file().sources
    for key in dict.fromkeys(key for keys in figures.values() for key in keys):
        if key == PAGE:
            first = next(iter(listed.values()))
            yield source_of(key, first.model_copy(update={"url": f"{first.url}{row.page}"}))
        elif key != ASSUMED:
            yield source_of(key, listed[key])
