"""The hardware catalogue: one YAML per device, found by name, alias or path, and the slices that devices can be cut into, as NVIDIA lists them for MIG."""

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from capplan.errors import InputError, nearest, unknown
from capplan.hardware.device import HOST, Device, Partition, machine_of, slice_of
from capplan.keys import Bytes, BytesPerS, FlopPerS, Watts
from capplan.readers.catalogue.offer_terms import (
    ASSUMED,
    KnownMachine,
    SourceRecord,
    known_machines,
    source_of,
)
from capplan.readers.record import Record, one_or_more, refuse_unlisted, validated
from capplan.readers.text_file import data_folder, path_of
from capplan.readers.yaml_file import Document, read_yaml

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
        refuse_unlisted(used - {ASSUMED}, self.sources)
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


SUFFIXES = (".yaml", ".yml")


def _one_line(written: str) -> str:
    if not written.strip() or not written.isprintable():
        raise ValueError("is blank, or has line ends or control characters; write one line of plain text")
    return written


OneLine = Annotated[str, AfterValidator(_one_line)]
"""Text that stays on its line wherever it is printed or exported."""


def _as_list(written: object) -> object:
    return [written] if isinstance(written, str) else written


SourceKeys = Annotated[
    list[str], BeforeValidator(_as_list), Field(min_length=1), one_or_more({"type": "string"})
]


class _Sourced(Record):
    source: SourceKeys
    """Key in `sources`, a list of such keys, or 'assumed' where none is known."""


class Size(_Sourced):
    """An amount of memory."""

    value: Bytes


class Rate(_Sourced):
    """Bytes per second."""

    value: BytesPerS


class Power(_Sourced):
    """Watts."""

    value: Watts


class Count(_Sourced):
    """A count."""

    value: Annotated[int, Field(ge=1)]


class Peak(_Sourced):
    """Arithmetic rate without sparsity; a multiply-add counts 2."""

    rate: FlopPerS


class Memory(Record):
    """Main memory of one device."""

    kind: str
    """HBM3e, GDDR6, ..."""
    capacity: Size
    """Nominal, as on the datasheet."""
    bandwidth: Rate
    """Peak, not derated: efficiencies belong in a calibration."""
    driver_total: Size | None = None
    """What nvidia-smi or rocm-smi prints as the total."""
    engine_total: Size | None = None
    """Total that a process sees (cudaMemGetInfo); engines budget with this."""


class PeakDense(Record):
    """Dense rates by the dtype of the operands; null or absent where the device has none."""

    fp32: Peak | None = None
    tf32: Peak | None = None
    bf16: Peak | None = None
    fp16: Peak | None = None
    fp8: Peak | None = None
    int8: Peak | None = None
    fp4: Peak | None = None


class Chip(Record):
    """The die."""

    multiprocessors: Count | None = None
    """SMs, compute units or cores."""
    l2: Size | None = None
    power: Power | None = None
    """Thermal design power of the module or card."""


class Link(Record):
    """The link of a device to its peers."""

    kind: str
    """nvlink4, xgmi, pcie5, ici, roce, ..."""
    bandwidth: Rate | None = None
    """Bandwidth per device and direction, over all its links."""
    devices: Count
    """Devices that reach each other over it."""


class Node(Record):
    """The usual server."""

    devices: Count
    network: Rate | None = None
    """Bandwidth between servers, per device and direction."""


class HardwareFile(Record):
    """One accelerator, as its vendor states it."""

    name: OneLine
    title: OneLine
    vendor: OneLine
    architecture: str
    """Family, such as hopper: a device without a calibration borrows the efficiencies of its family."""
    memory: Memory
    peak_dense: PeakDense
    chip: Chip
    link: Link
    pcie: Rate | None = None
    """Host link, per direction."""
    node: Node
    traps: tuple[str, ...] = ()
    """Caveats: figures in circulation that mean something else."""
    sources: dict[str, SourceRecord]

    @model_validator(mode="after")
    def _every_source_exists(self) -> "HardwareFile":
        used = {key for figure in _figures(self).values() for key in figure.source} - {ASSUMED}
        refuse_unlisted(used, self.sources)
        unused = sorted(self.sources.keys() - used)
        if unused:
            raise ValueError(f"the source {unused[0]!r} is listed but no figure uses it")
        if not _peaks(self):
            raise ValueError("peak_dense is empty; give at least one dense rate")
        return self


def _peaks(file: HardwareFile) -> dict[str, Peak]:
    peaks = {dtype: getattr(file.peak_dense, dtype) for dtype in PeakDense.model_fields}
    return {dtype: peak for dtype, peak in peaks.items() if peak is not None}


def _figures(file: HardwareFile) -> dict[str, _Sourced]:
    """Return the sourced figures of a file by the Device field that they fill."""
    named: dict[str, _Sourced | None] = {
        "memory_bytes": file.memory.capacity,
        "memory_bytes_per_s": file.memory.bandwidth,
        "driver_memory_bytes": file.memory.driver_total,
        "reported_memory_bytes": file.memory.engine_total,
        "multiprocessors": file.chip.multiprocessors,
        "l2_bytes": file.chip.l2,
        "tdp_w": file.chip.power,
        "link_bytes_per_s": file.link.bandwidth,
        "link_domain_devices": file.link.devices,
        "pcie_bytes_per_s": file.pcie,
        "node_devices": file.node.devices,
        "network_bytes_per_s": file.node.network,
        **{f"peak_flop_per_s.{dtype}": peak for dtype, peak in _peaks(file).items()},
    }
    return {name: figure for name, figure in named.items() if figure is not None}


def _label(file: HardwareFile, figure: _Sourced) -> str:
    if ASSUMED in figure.source:
        return ASSUMED
    labels = {file.sources[key].label for key in figure.source}
    return next((label for label in ("announced", "measured") if label in labels), "spec")


def _value(figure: Size | Rate | Power | Count | None) -> float | None:
    return None if figure is None else figure.value


def device_from(document: Document) -> Device:
    """Return the device that a hardware YAML describes."""
    file = validated(HardwareFile, document)
    figures = _figures(file)
    chip, link, node = file.chip, file.link, file.node
    return Device(
        name=file.name,
        title=file.title,
        vendor=file.vendor,
        architecture=file.architecture,
        memory_bytes=file.memory.capacity.value,
        reported_memory_bytes=_value(file.memory.engine_total),
        driver_memory_bytes=_value(file.memory.driver_total),
        memory_kind=file.memory.kind,
        memory_bytes_per_s=file.memory.bandwidth.value,
        peak_flop_per_s={dtype: peak.rate for dtype, peak in _peaks(file).items()},
        multiprocessors=chip.multiprocessors.value if chip.multiprocessors else None,
        l2_bytes=_value(chip.l2),
        tdp_w=_value(chip.power),
        link=link.kind,
        link_bytes_per_s=_value(link.bandwidth),
        link_domain_devices=link.devices.value,
        pcie_bytes_per_s=_value(file.pcie),
        node_devices=node.devices.value,
        network_bytes_per_s=_value(node.network),
        labels={name: _label(file, figure) for name, figure in figures.items()},
        figure_sources={name: tuple(figure.source) for name, figure in figures.items()},
        sources=tuple(source_of(key, source) for key, source in file.sources.items()),
        traps=file.traps,
    )


def normalised(name: str) -> str:
    """Return a name without case and punctuation; text in brackets is a remark.

    Examples
    --------
    >>> normalised("H100-80GB"), normalised("h100_80gb"), normalised("H100 80GB (lab)")
    ('h10080gb', 'h10080gb', 'h10080gb')
    """
    return re.sub(r"[^a-z0-9]+", "", re.sub(r"\([^()]*\)", "", name.lower()))


class AliasFile(Record):
    """Other names of catalogue entries."""

    aliases: dict[str, str]
    """Other name -> catalogue name."""


def device_names() -> tuple[str, ...]:
    """Return the devices with a file of their own, by its name: what servers have. `workstation_names` has the table of the others."""
    reserved = {"aliases", "partitions", "prices", "token_prices", "workstations"}
    names = (path.stem for path in data_folder("hardware_specs").glob("*.yaml"))
    return tuple(sorted(name for name in names if name not in reserved))


def file_of_device(name: str) -> str:
    """Return the name of the shipped file that states a device of the catalogue: its own, or the table of workstations.

    Examples
    --------
    >>> file_of_device("h100-sxm"), file_of_device("rtx-4060-ti:8gb")
    ('h100-sxm', 'workstations')
    """
    if name in device_names():
        return name
    from capplan.readers.catalogue.workstations import workstation_names

    return "workstations" if name.partition(":")[0] in workstation_names() else name


@lru_cache(maxsize=1)
def device_aliases() -> dict[str, str]:
    """Return other name -> catalogue name."""
    path = data_folder("hardware_specs") / "aliases.yaml"
    return dict(validated(AliasFile, read_yaml(path, kind="the list of aliases")).aliases)


@lru_cache(maxsize=1)
def _known_names() -> dict[str, str]:
    aliases = {normalised(alias): known for alias, known in device_aliases().items()}
    return aliases | {normalised(known): known for known in device_names()}


_UNSAID = {
    "nvidia",
    "amd",
    "intel",
    "tesla",
    "geforce",
    "instinct",
    "graphics",
    "oam",
    "vf",
    "ac",
    "hbm3",
    "hbm3e",
}
_UNSAID |= {"generation", "edition", "slice", "podslice"}
"""Words that drivers and labels print, and that distinguish no two devices."""


def words_of_name(name: str) -> frozenset[str]:
    """Return the words of a name in the spelling of the catalogue.

    Examples
    --------
    >>> sorted(words_of_name("NVIDIA A100-SXM4-80G"))
    ['80gb', 'a100', 'nvidia', 'sxm']
    """
    words = re.findall(r"[a-z0-9]+", re.sub(r"\([^()]*\)", " ", name.lower()))
    return frozenset(re.sub(r"^sxm\d$", "sxm", re.sub(r"^(\d+)g$", r"\1gb", word)) for word in words)


@lru_cache(maxsize=1)
def known_words() -> dict[frozenset[str], str]:
    """Return the words that say which device it is -> catalogue name; a name with an unsaid word is left out."""
    names = device_aliases() | {known: known for known in device_names()}
    return {words: known for alias, known in names.items() if not (words := words_of_name(alias)) & _UNSAID}


def catalogue_name(name: str) -> str | None:
    """Return the catalogue's name of a device, also where a driver or a label prints it; None for one that is not in it.

    Examples
    --------
    >>> catalogue_name("NVIDIA H100 80GB HBM3"), catalogue_name("nvidia-tesla-t4"), catalogue_name("RTX 4090 Laptop GPU")
    ('h100-sxm', 't4', 'rtx-4090-laptop')
    >>> catalogue_name("Apple M4 Pro 10P+4E+20GPU"), catalogue_name("Apple M4 Pro")
    ('apple-m4-pro-20core', None)
    >>> catalogue_name("RTX 4090+RTX 3090")
    'rtx-4090+rtx-3090'
    """
    if "+" in name and all(cards := [catalogue_name(card) or "" for card in name.split("+")]):
        return "+".join(cards)
    known = _known_names().get(normalised(name)) or known_words().get(words_of_name(name) - _UNSAID)
    return known or _workstation(name)


def _workstation(name: str) -> str | None:
    """Return the device of the table of workstations that a name means; None without one, and where it may be several."""
    from capplan.readers.catalogue.workstations import printed_candidates

    candidates = printed_candidates(name)
    return candidates[0] if len(candidates) == 1 else None


_SLICE_LABEL = re.compile(r"(.+?)[-_ ]MIG[-_ ](\d+g\.\d+gb)", re.IGNORECASE)
"""A MIG slice, as nvidia-smi, torch and GPU feature discovery print it."""
_SHARED_LABEL = re.compile(r"(.+)-SHARED", re.IGNORECASE)
"""A GPU that several pods use in turn, as GPU feature discovery prints it."""


_VGPU_LABEL = re.compile(r"(.+)-(\d{1,3})[QCBA]")
"""A part of a GPU with some GB of its memory, as the vGPU software of NVIDIA prints it."""
_NODE_LABEL = re.compile(r"[\w.-]+/[\w.-]+(?:=|:\s+)([\w.:-]+)")
"""A label of a Kubernetes node, whose value is a name."""
_ARCHITECTURES = {"gfx942": ("mi300x", "mi325x"), "gfx950": ("mi350x", "mi355x")}
"""What ROCm calls the architecture of a GPU -> the GPUs of it in the catalogue."""


_MEMORY = re.compile(r"(\d{1,5}) ?gb", re.IGNORECASE)
"""Memory of a device that is sold with several, after a colon."""


def sku_of(name: str) -> KnownMachine | None:
    """Return the machine of a sku, with or without the `Standard_` that Azure writes first; None if there is none of this name."""
    wanted = normalised(name.lower().removeprefix("standard_"))
    return next((known for known in known_machines() if normalised(known.record.sku) == wanted), None)


def network_of_sku(sku: str) -> float | None:
    """Return the network of a machine for each of its devices [B/s]; None where no list states it.

    Examples
    --------
    >>> network_of_sku("a3-highgpu-8g"), network_of_sku("mine")
    (15625000000.0, None)
    """
    known = sku_of(sku)
    return known.record.network / known.record.gpus if known and known.record.network else None


def _unknown_device(name: str) -> InputError:
    """Return the error for a name that is not in the catalogue: a machine, a shared GPU, or no name that is known."""
    if (sold := sku_of(name)) is not None:
        gpus, known = sold.record.gpus, sold.record.device
        return InputError(
            f"hardware {name!r} is a machine with {gpus} x {known}\n"
            f"  name its GPU: --hardware {known}; what machines cost: capplan list machines"
        )
    shared = _SHARED_LABEL.fullmatch(name)
    if shared is not None and (whole := catalogue_name(shared[1])) is not None:
        return InputError(
            f"hardware {name!r} is one {whole} that several pods use in turn, which is not modelled\n"
            f"  for the whole GPU: --hardware {whole}"
        )
    part = _VGPU_LABEL.fullmatch(name)
    if part is not None and (whole := catalogue_name(part[1])) is not None:
        return InputError(
            f"hardware {name!r} is a vGPU with {part[2]} GB of one {whole}, whose time others may share, which is not modelled\n"
            f"  for the whole GPU: --hardware {whole}"
        )
    from capplan.readers.catalogue.workstations import printed_candidates, workstation_names

    several_bins = printed_candidates(name) or _ARCHITECTURES.get(name.lower().partition(":")[0], ())
    if len(several_bins) > 1:
        return InputError(
            f"hardware {name!r} may be any of: {', '.join(several_bins)}\n  name one of them; capplan hardware NAME shows its figures"
        )
    short = (alias for alias in device_aliases() if re.fullmatch(r"[a-z]+\d+[a-z]?", alias))
    several = "one name each: --hardware A --hardware B, or hardware: [A, B] in a scenario"
    file = "to add one: give the path of its YAML; docs/how-to/add-a-price-or-gpu.md says how"
    return unknown(
        "hardware",
        name,
        {*device_names(), *nearest(name, workstation_names()), *short},
        hint=several if "," in name else file,
    )


@lru_cache(maxsize=256)
def _read(path: Path, _changed_ns: int) -> Device:
    kind = "a hardware YAML"
    return device_from(read_yaml(path, kind=kind, way_out="the format is in hardware_specs/README.md"))


MEASURED_NAMES = ("cpu", "measured")
"""Names for the device of a calibration, which need not be in the catalogue."""


def named_device(hardware: str, calibration: str | os.PathLike[str] | None) -> Device:
    """Return the device of the catalogue, or the one that a calibration measured where it is called `cpu`.

    Parameters
    ----------
    hardware : name or path; cpu (or measured) means the device of the calibration
    calibration : file, if any
    """
    if hardware.lower() in MEASURED_NAMES:
        if calibration is None:
            raise InputError(
                f"hardware {hardware!r} is known from a calibration only\n"
                "  measure it, then give the file with --calibration: capplan calibrate --device cpu -o cpu.calibration.yaml"
            )
        from capplan.readers.calibration.measured_device import device_from_calibration

        return device_from_calibration(calibration)
    return device(hardware)


def planned_device(hardware: str, calibration: str | None) -> Device:
    """Return the device that a scenario names: the catalogue's, or the one that its calibration measured.

    Parameters
    ----------
    hardware : name or path; cpu means the processor that the calibration measured, measured any device that it did
    calibration : file, if any
    """
    if calibration is not None and hardware.lower() in MEASURED_NAMES:
        from capplan.readers.calibration.file import read_calibration_file

        kernels = read_calibration_file(calibration).kernels
        if kernels is not None and (kernels.machine.device == "cpu" or hardware.lower() == "measured"):
            return named_device(hardware, calibration)
    return device(hardware)


def device(name: str) -> Device:
    """Return a device by catalogue name, alias or path of a hardware YAML.

    A colon separates a MIG slice, as in h100-sxm:3g.40gb, or the memory of a device that is sold with several, as in rtx-4060-ti:8gb. A plus
    joins the cards of one machine, as in rtx-4090+rtx-3060:12gb.

    Parameters
    ----------
    name : str
        Case and punctuation do not matter; something that ends in .yaml or holds a / is a path.

    Raises
    ------
    InputError
        No such name (with the nearest ones), or a file that does not match the schema.
    """
    if not isinstance(name, str) or not name.strip():
        raise InputError("the hardware name is empty; e.g. h100-sxm")
    if (label := _NODE_LABEL.fullmatch(name)) and not Path(name).exists():
        name = label[1]
    if cut_label := _SLICE_LABEL.fullmatch(name):
        name = f"{cut_label[1]}:{cut_label[2]}"
    if name.lower().endswith(SUFFIXES) or os.sep in name or name.startswith((".", "~")):
        return _in_file(path_of(name))
    if "+" in name and "+" in (catalogue_name(name) or name):
        cards = [device(card) for card in name.split("+")]
        if host := next((card.name for card in cards if card.architecture == HOST), None):
            raise InputError(
                f"hardware {name!r}: {host} is no card\n  --host-bandwidth keeps layers in the memory of a processor, next to one card"
            )
        return machine_of(cards)
    whole, colon, part = name.partition(":")
    memory = _MEMORY.fullmatch(part)
    if colon and memory is None:
        cut = device(whole)
        return slice_of(cut, partition_of(cut.name, part))
    known = catalogue_name(whole) if normalised(whole) else None
    if known is None:
        raise _unknown_device(name)
    known, _, stated = known.partition(":")
    if known not in device_names():
        from capplan.readers.catalogue.workstations import workstation_device

        size = memory[1] if memory else stated.removesuffix("gb")
        return workstation_device(known, int(size) if size else None)
    found = _in_file(data_folder("hardware_specs") / f"{known}.yaml")
    if memory is not None and int(memory[1]) != round(found.memory_bytes / 1e9):
        raise InputError(f"{name}: {known} has {found.memory_bytes / 1e9:.0f} GB\n  leave out the memory")
    return found


def _in_file(path: Path) -> Device:
    """Return the device of a hardware YAML, read again when it changed."""
    try:
        changed_ns = path.stat().st_mtime_ns
    except (OSError, ValueError):
        changed_ns = 0
    return _read(path, changed_ns)


def slices(whole: Device) -> tuple[Device, ...]:
    """Return the MIG slices of a device, each as a device of its own; none where it cannot be cut."""
    return tuple(slice_of(whole, partition) for partition in partitions(whole.name))
