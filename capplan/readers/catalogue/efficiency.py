"""Efficiency files of devices, prediction intervals and slownesses from the back-test."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.accuracy.bounded import Interval, Intervals, interval_of_ratios
from capplan.engine.profile import EngineProfile
from capplan.errors import InputError
from capplan.hardware.device import BORROWED, Device, Efficiency, Fit, Kinship, not_measured
from capplan.operators.device_rates import DeviceRatio, at_pace, at_ratio
from capplan.operators.llamacpp import ENGINE as LLAMACPP
from capplan.readers.catalogue import hardware
from capplan.readers.record import Record, validated
from capplan.readers.text_file import data_folder, read_text
from capplan.readers.yaml_file import parse_yaml, read_yaml, yaml_text

if TYPE_CHECKING:
    from capplan.accuracy.slowness import SlownessTable

SCHEMA_VERSION = 1
"""Version of the efficiency files; raised when a name changes its meaning."""

SIBLINGS: Mapping[str, tuple[str, ...]] = {
    "ada": ("l40s",), "ampere": ("a100",), "hopper": ("h200", "h100"), "blackwell": ("b200", "gb200"),
    "blackwell-ultra": ("b200", "gb200"), "grace-blackwell": ("gb200", "b200"),
}  # fmt: skip
"""Architecture -> fitted devices of its generation, nearest first."""
NEIGHBOURS: Mapping[str, tuple[str, ...]] = dict.fromkeys(("turing", "volta", "pascal"), ("a100",)) | {
    "rubin": ("b200", "gb200")
}
"""Architecture -> fitted devices of the generation next to it."""
OTHERS = ("h100", "h200", "a100")
"""Fitted devices for whatever has neither."""
CARDS = frozenset({"l40s"})
"""Fitted graphics cards. The others are server chips."""
CARD_ARCHITECTURES = frozenset({"ada", "blackwell-rtx"})
"""Architectures that only graphics cards have."""
SERVER_CHIPS_ON_CARDS = frozenset({"a30", "v100-pcie-32gb"})
"""PCIe cards with the chip and the stacked memory of an A100 or a V100 module, though with no more bandwidth than a graphics card."""

PCIE_CROWDING_EXPONENT = 0.3
"""How the reached share of PCIe falls with the devices of a server. The timed L40S server has 1.9: its cards share one
path. Served results of eight L40S show cards that do not, and a server bought for serving is taken to be like those."""


ROCM_COMPUTE, ROCM_MEMORY = 0.55, 0.75
"""Fractions of the peaks that AMD's kernels reach, over those of the H100's, which are borrowed: fitted to static batches of Llama 3.1 405B and
70B on MI300X and closed loops of DeepSeek-R1 on MI325X. Errors of TPOT in published runs of mixtures, which were not fitted, are 5 to 10 % instead of 14
to 30 %."""
ROCM_SCALED_S = 5e-5
"""Least time of a product of block-scaled fp8 on AMD, whose libraries quantise and multiply in kernels of their own: set on decode steps of DeepSeek-R1
on eight MI325X (SGLang 0.5.5), which took 12 to 16 ms longer than with the kernels of an H200 at 4 to 64 sequences and at both lengths."""


class EfficiencyRecord(Record):
    """All kernels of one device."""

    schema_version: int
    """Version of the schema of this file."""
    device: str
    """Device that was measured."""
    catalogue_names: list[str]
    """Hardware entries that are this device."""
    fits: dict[str, Fit]
    """Fit of each kernel/format or kernel/format@engine."""


def efficiency_folder() -> Path:
    """Return the folder of the shipped efficiency files."""
    return data_folder("hardware_specs") / "efficiency"


def read_efficiency(path: Path) -> tuple[Efficiency, tuple[str, ...]]:
    """Return the fits in one file, and the hardware entries that are its device.

    Returns
    -------
    the fits, and catalogue names
    """
    document = read_yaml(path, kind="an efficiency YAML", way_out="write one with: capplan calibrate -o FILE")
    record = validated(EfficiencyRecord, document)
    if record.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema_version {record.schema_version} is not read\n"
            f"  known: {SCHEMA_VERSION}\n  write the file again with: capplan calibrate -o FILE"
        )
    return Efficiency(record.device, record.fits), tuple(record.catalogue_names)


@cache
def shipped_efficiency(fitted: str) -> Efficiency:
    """Return the shipped fits of a fitted device."""
    return read_efficiency(efficiency_folder() / f"{fitted}.yaml")[0]


@cache
def fitted_devices() -> dict[str, str]:
    """Return hardware entry -> fitted device, from the lines above the fits of each shipped file: all fits together are half of all YAML."""
    fitted: dict[str, str] = {}
    for path in sorted(efficiency_folder().glob("*.yaml")):
        head, _, _ = read_text(path, kind="an efficiency YAML").partition("\nfits:")
        fitted |= dict.fromkeys(parse_yaml(head, str(path)).value["catalogue_names"], path.stem)
    return fitted


def lent(efficiency: Efficiency, device: Device) -> Efficiency:
    """Return the fits of a timed device as an untimed one borrows them: at the pace of its own multiprocessors, if they are of one generation."""
    if kinship_of(device, efficiency.device) != "sibling":
        return efficiency
    timed = next(name for name, of in fitted_devices().items() if of == efficiency.device)
    return replace(efficiency, fits=at_pace(efficiency.fits, device, hardware.device(timed)))


def nearest_device(device: Device, hidden: Collection[str] = ()) -> str:
    """Return the fitted device whose numbers an unfitted one borrows: of its generation first, then of the next.

    A graphics card without any link takes those of the L40S, if it is not older.

    Parameters
    ----------
    device : as the vendor states it
    hidden : fitted devices that are taken to be unknown, to see how well the others stand in for them

    Returns
    -------
    a fitted device
    """
    architecture = device.architecture.lower()
    siblings = SIBLINGS.get(architecture, ())
    if is_card(device) and device.link_bytes_per_s is None and architecture not in {"ampere", *NEIGHBOURS}:
        siblings = SIBLINGS["ada"]
    order = (*siblings, *NEIGHBOURS.get(architecture, ()), *OTHERS)
    return next(name for name in order if name not in hidden)


def is_card(device: Device) -> bool:
    """Return whether a device is a graphics card: of an architecture that has no other, or of little bandwidth and no link of its own."""
    narrow = device.memory_bytes_per_s < 1.2e12 and _over_pcie(device)
    narrow = narrow and device.name not in SERVER_CHIPS_ON_CARDS
    return device.vendor.lower() == "nvidia" and (narrow or device.architecture.lower() in CARD_ARCHITECTURES)


def kinship_of(device: Device, donor: str) -> Kinship:
    """Return how near the fitted device is that an unfitted one borrows from.

    Parameters
    ----------
    device : as the vendor states it
    donor : the fitted device
    """
    if device.vendor.lower() != "nvidia" or is_card(device) != (donor in CARDS):
        return "distant"
    return "sibling" if donor in SIBLINGS.get(device.architecture.lower(), ()) else "neighbour"


def efficiency_for(device: Device, engine: EngineProfile | None = None) -> Efficiency:
    """Return the fits of a device, or those of the nearest fitted device, labelled assumed.

    Parameters
    ----------
    device : as the vendor states it
    engine : llamacpp has kernels of its own, fitted by family of devices; those of all others are in one file
    """
    if engine is not None and engine.engine == LLAMACPP:
        from capplan.readers.catalogue.llamacpp import llamacpp_efficiency

        return llamacpp_efficiency(device, engine, shipped_efficiency(OTHERS[0]))
    if device.partition is not None:
        return _of_slice(replace(device, name=device.partition.device, partition=None), device.name)
    own = fitted_devices().get(device.name)
    nearest = own or nearest_device(device)
    efficiency = shipped_efficiency(nearest)
    taken = _uncrowded(efficiency) if _over_pcie(device) else efficiency
    if own is not None:
        return taken
    if device.vendor.lower() == "amd":
        taken = _with_floor(
            _at_ratio(taken, DeviceRatio(ROCM_COMPUTE, ROCM_MEMORY)), "matmul/fp8_block", ROCM_SCALED_S
        )
    known = device.vendor.lower() == "nvidia"
    kinship = kinship_of(device, nearest)
    what = f"kernel efficiencies of {device.name} are borrowed from {nearest}, which was measured"
    off = f"{BORROWED[kinship].error_fraction:.0%} off"
    if known:
        what += f"; as {BORROWED[kinship].says}, typically {off}"
    else:
        vendor = device.title.partition(" ")[0]
        what += f"; no device of {vendor} was measured, and kernels predicted from another kind of GPU are typically {off}"
    taken = lent(taken, device)
    found = Efficiency(nearest, taken.fits, kinship=kinship, foreign=not known)
    if found.unmeasured:
        from capplan.accuracy.bounded import unmeasured_width

        what += (
            f"; plans are sized for {unmeasured_width(found.unmeasured):.3g} times the usual spread of speed"
        )
    return replace(found, borrowed=not_measured(what))


def _of_slice(whole: Device, name: str) -> Efficiency:
    """Return the fits of a whole device for one of its slices, on which no kernel was timed."""
    efficiency = efficiency_for(whole)
    if efficiency.borrowed is not None:
        return efficiency
    what = f"kernels reach the same part of the peaks of {name} as of a whole {whole.name}; none was measured on a slice"
    return replace(efficiency, borrowed=not_measured(what), kinship="sibling")


def timed_efficiency(device: Device) -> Efficiency:
    """Return the fits of a device as they were timed, crowded paths of the timed server included.

    Parameters
    ----------
    device : as the vendor states it

    Returns
    -------
    for the back-test of kernel timings; `efficiency_for` is for serving
    """
    fitted = fitted_devices().get(device.name)
    return efficiency_for(device) if fitted is None else shipped_efficiency(fitted)


def _over_pcie(device: Device) -> bool:
    return (device.link or "pcie").startswith(("pcie", "none"))


def _at_ratio(efficiency: Efficiency, ratio: DeviceRatio) -> Efficiency:
    """Return the fits at a ratio of the rates that were timed; links are as they are."""
    fits = {
        key: fit if key.startswith("link/") else replace(fit, numbers=at_ratio(fit.numbers, ratio))
        for key, fit in efficiency.fits.items()
    }
    return replace(efficiency, fits=fits)


def _with_floor(efficiency: Efficiency, kernel: str, least_s: float) -> Efficiency:
    """Return the fits with at least this fixed time of a kernel in all of its libraries."""
    fits = {
        key: replace(fit, numbers={**fit.numbers, "floor_s": max(fit.numbers["floor_s"], least_s)})
        if key.partition("@")[0] == kernel
        else fit
        for key, fit in efficiency.fits.items()
    }
    return replace(efficiency, fits=fits)


def _uncrowded(efficiency: Efficiency) -> Efficiency:
    """Return the fits with PCIE_CROWDING_EXPONENT where the timed server's was larger."""
    fits = dict(efficiency.fits)
    for key, fit in fits.items():
        crowded = {
            name: min(value, PCIE_CROWDING_EXPONENT)
            for name, value in fit.numbers.items()
            if "crowding" in name
        }
        if crowded:
            fits[key] = replace(fit, numbers={**fit.numbers, **crowded})
    return replace(efficiency, fits=fits)


def _plain(fit: Fit) -> dict[str, Any]:
    record: dict[str, Any] = {"numbers": {name: float(f"{value:.5g}") for name, value in fit.numbers.items()}}
    if (ratio := float(f"{fit.loop_l2_ratio:.4g}")) != 1.0:
        record["loop_l2_ratio"] = ratio
    record["rows"] = fit.rows
    record["fitted_numbers"] = float(f"{fit.fitted_numbers:.6g}")
    for name in ("median_error_fraction", "mean_error_fraction", "held_out_median_error_fraction"):
        value = getattr(fit, name)
        if value is not None:
            record[name] = round(float(value), 4)
    if fit.intervals:
        record["intervals"] = {
            name: [float(f"{end:.4g}") for end in ends] for name, ends in sorted(fit.intervals.items())
        }
    return {**record, "label": fit.label, "fitted_on": fit.fitted_on}


def efficiency_text(efficiency: Efficiency, names: Sequence[str], head: str) -> str:
    """Return the text of one efficiency file.

    Parameters
    ----------
    efficiency : the fits of one device
    names : hardware entries that are this device
    head : comment lines

    Returns
    -------
    YAML that `read_efficiency` reads back
    """
    record = {
        "schema_version": SCHEMA_VERSION,
        "device": efficiency.device,
        "catalogue_names": list(names),
        "fits": {key: _plain(fit) for key, fit in efficiency.fits.items()},
    }
    return head + yaml_text(record, short=False, width=110)


LLAMACPP_FILE = data_folder("hardware_specs") / "llamacpp" / "speed.yaml"
"""Speeds of llama.cpp, which `readers.catalogue.llamacpp` reads."""
INTERVALS_FILE = Path(__file__).parents[2] / "accuracy" / "data" / "intervals.yaml"


@lru_cache(maxsize=1)
def shipped_intervals() -> Intervals:
    """Return the prediction intervals of the back-test, by regime; of llama.cpp those of its speeds, on devices that its fit did not see."""
    return intervals_in(INTERVALS_FILE) | intervals_in(LLAMACPP_FILE, f"/{LLAMACPP}")


def intervals_in(path: Path, engine: str = "") -> dict[str, Interval]:
    """Return the intervals of a file by regime, to whose names an engine may be added."""
    document = read_yaml(path, kind="a table of intervals")
    return {
        f"{key}{engine}": interval_of_ratios(
            tuple(map(float, ratios)), int(values), int(models), int(sources)
        )
        for key, (*ratios, values, models, sources) in document.value["intervals"].items()
    }


SLOWNESS_FILE = Path(__file__).parents[2] / "accuracy" / "data" / "slowness.yaml"


@lru_cache(maxsize=1)
def shipped_slowness() -> "SlownessTable":
    """Return the slowness of replicas, as it was measured in open loops."""
    from capplan.accuracy.slowness import PublishedClaim, SlownessRegime, SlownessTable

    table = read_yaml(SLOWNESS_FILE, kind="a table of slownesses").value
    return SlownessTable(
        relative=float(table["relative"]),
        host_s=float(table["host_s"]),
        regimes={
            key: SlownessRegime(tuple(float(quantile) for quantile in quantiles), int(rows), int(groups))
            for key, (*quantiles, rows, groups) in table["regimes"].items()
        },
        correlation=float(table["correlation"]),
        classes={name: int(groups) for name, groups in table["classes"].items()},
        published={
            name: PublishedClaim(float(held), int(values), int(models))
            for name, (held, values, models) in table["published"].items()
        },
    )
