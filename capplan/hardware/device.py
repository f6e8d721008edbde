"""A device: its data sheet, never derated; what an engine sees of it; the fitted rates of its kernels; and its MIG slices."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from math import ceil
from operator import sub
from types import MappingProxyType
from typing import Literal, TypeAlias

from capplan.assumption import Assumption, Label
from capplan.errors import InputError


@dataclass(frozen=True, slots=True)
class Source:
    """Where a figure comes from."""

    key: str
    title: str
    url: str | None = None
    checked: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A profile of NVIDIA's Multi-Instance GPU (MIG): what an instance of it takes of the device that is cut."""

    device: str
    """Name of the whole device."""
    profile: str
    """Name of the profile in the driver, such as 3g.40gb."""
    compute_slices: int
    device_compute_slices: int
    """Compute slices of the whole device: 7, or 4."""
    memory_slices: int
    """Each with its part of the bandwidth."""
    device_memory_slices: int
    """Memory slices of the whole device: 8, or 4."""
    l2_slices: int
    """Parts of the L2 cache, of as many as there are memory slices."""
    multiprocessors: int
    reported_memory_bytes: float
    """What a process sees."""
    starts: tuple[int, ...]
    """Memory slices of the device that an instance may begin at."""
    labels: Mapping[str, str]
    """Field of a device -> spec | measured | assumed, for what only the slice states."""
    figure_sources: Mapping[str, tuple[str, ...]]
    """Field of a device -> keys of `sources`, or 'assumed'."""
    sources: tuple[Source, ...]

    @property
    def per_device(self) -> int:
        """Instances of this profile that one device is cut into."""
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. Unknown is None and stops the calculation that needs it."""

    name: str
    """Catalogue name, such as h100-sxm."""
    title: str
    vendor: str
    architecture: str
    """ampere, ada, hopper, blackwell, cdna3, tpu, gaudi, ... decides which efficiencies are borrowed."""
    memory_bytes: float
    """Nominal capacity as on the datasheet."""
    reported_memory_bytes: float | None
    """Total that a process sees (cudaMemGetInfo) and an engine budgets; slightly less than nvidia-smi prints."""
    memory_bytes_per_s: float
    """Peak rate."""
    peak_flop_per_s: Mapping[str, float]
    """Dense rate by compute dtype: fp32, tf32, bf16, fp16, fp8, int8, fp4; absent = not supported or unknown."""
    multiprocessors: int | None
    l2_bytes: float | None
    tdp_w: float | None
    link: str | None
    """nvlink4, nvlink5, xgmi, pcie4, ..."""
    link_bytes_per_s: float | None
    """Bandwidth per device and direction, over all links to its peers."""
    link_domain_devices: int
    """Devices connected to each other by `link`."""
    pcie_bytes_per_s: float | None
    """Bandwidth per direction."""
    node_devices: int
    """Devices in the usual server."""
    network_bytes_per_s: float | None
    """Bandwidth per device and direction between servers."""
    labels: Mapping[str, str]
    """Field name -> spec | measured | assumed; peaks as peak_flop_per_s.bf16."""
    sources: tuple[Source, ...] = ()
    driver_memory_bytes: float | None = None
    """What nvidia-smi or rocm-smi prints as the total."""
    memory_kind: str = ""
    """HBM3e, GDDR6, ..."""
    figure_sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Field name -> keys of `sources`, or 'assumed'."""
    traps: tuple[str, ...] = ()
    """Figures in circulation that mean something else."""
    partition: Partition | None = None
    """Set for a slice of a device."""
    emulated: tuple[str, ...] = ()
    """Dtypes that a measured device has no units for: none of their times is known, so nothing is predicted in them."""
    cards: tuple["Device", ...] = ()
    """Set for a machine of cards that are not alike, which counts as one device; in the order of llama.cpp."""


def machine_of(cards: Sequence[Device]) -> Device:
    """Return a machine of several cards as one device, with the memory, bandwidth and power of all; rates are those of each card.

    Parameters
    ----------
    cards : in the order in which llama.cpp gives them layers
    """
    memory = [engine_memory_bytes(card) for card in cards]
    powers = [card.tdp_w for card in cards if card.tdp_w is not None]
    return replace(
        cards[0],
        name="+".join(card.name for card in cards),
        title=", ".join(card.title for card in cards),
        memory_bytes=sum(card.memory_bytes for card in cards),
        reported_memory_bytes=sum(memory),
        driver_memory_bytes=None,
        memory_bytes_per_s=sum(card.memory_bytes_per_s for card in cards),
        peak_flop_per_s={},
        multiprocessors=None,
        l2_bytes=None,
        tdp_w=sum(powers) if len(powers) == len(cards) else None,
        link=None,
        link_bytes_per_s=None,
        link_domain_devices=1,
        node_devices=1,
        network_bytes_per_s=None,
        labels={},
        figure_sources={},
        cards=tuple(cards),
    )


NETWORKS: Mapping[str, float] = MappingProxyType(
    {
        "ethernet-25g": 3.125e9,
        "ethernet-100g": 12.5e9,
        "ethernet-200g": 25e9,
        "ethernet-400g": 50e9,
        "ethernet-800g": 100e9,
        "infiniband-edr": 12.5e9,
        "infiniband-hdr": 25e9,
        "infiniband-ndr": 50e9,
        "infiniband-xdr": 100e9,
    }
)
"""Name of a network -> data rate of one four-lane port per direction [B/s].

References
----------
InfiniBand Trade Association, "InfiniBand Roadmap" (EDR 100, HDR 200, NDR 400, XDR 800 Gb/s),
https://www.infinibandta.org/infiniband-roadmap/; IEEE 802.3by, 802.3ba, 802.3bs, 802.3df (25, 100, 200 and 400, 800 Gb/s Ethernet).
"""


HOST = "host"
"""Architecture of processors, which run models by themselves or hold what does not fit on a card."""
MERGED = "calibration_merge"
"""Key of the statement that says what a calibration changed; it marks nothing as uncertain."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted numbers of one kernel, and how well they describe what was measured."""

    numbers: Mapping[str, float]
    label: Label = "measured"
    """assumed where the numbers are borrowed."""
    rows: int = 0
    median_error_fraction: float | None = None
    mean_error_fraction: float | None = None
    held_out_median_error_fraction: float | None = None
    fitted_on: str = ""
    loop_l2_ratio: float = 1.0
    """Speed-up over main memory of a benchmark loop that re-reads data left in L2. It separates that effect from the
    other numbers; a serving step reads too much between two uses to benefit, so nothing else uses it."""
    fitted_numbers: float = 0.0
    """Count of numbers determined by the timings; one shared by n fits counts 1/n, a borrowed or preset one 0."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Kind of timing (prefill, decode, ...) -> 10th and 90th percentile of measured over predicted, on held-out
    shapes."""


Kinship: TypeAlias = Literal["sibling", "neighbour", "distant"]
"""How near a device is to the one whose fits it borrows: of its generation; a server chip of another one; a graphics card
and a server chip, or another vendor."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """How well borrowed fits describe a device: its timed kernels, predicted while its own fits were hidden."""

    says: str
    error_fraction: float
    """Median error of a kernel."""
    interval: tuple[float, float]
    """10th and 90th percentile of measured over predicted."""


BORROWED: Mapping[Kinship, Borrowed] = {
    "sibling": Borrowed("a device of the same generation", 0.092, (0.80, 1.31)),
    "neighbour": Borrowed("a device of another generation", 0.23, (0.64, 1.81)),
    "distant": Borrowed("a graphics card and a server chip", 0.31, (0.38, 1.69)),
}
"""Quality of borrowed fits by kinship; `python -m calibrate.hidden_devices` measures them (docs/evidence/kernels-and-memory.md)."""


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """Layers that follow each other over several devices, where all sequences pass together (`--split-mode layer` of llama.cpp)."""

    hand_over_s: float
    """Time of a step that generates for each further device [s]."""
    stage_ratio: float
    """Time of the slowest device between two pieces of a prompt, over its part of the layers."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """All fits of one device, by `kernel/format` or `kernel/format@engine`."""

    device: str
    """Device the numbers were fitted on."""
    fits: Mapping[str, Fit]
    borrowed: Assumption | None = None
    """Set where the device borrows the numbers of another one."""
    kinship: Kinship | None = None
    """How near that one is."""
    note: str = ""
    """Remarks about the fits."""
    merged: Assumption | None = None
    """Set where a calibration replaced or scaled fits: says which, and what it left as it was."""

    foreign: bool = False
    """No device of this vendor was timed, and no run on one was fitted."""
    offloaded: Mapping[str, Mapping[str, Fit]] = field(default_factory=dict)
    """Fits for weights in the memory of the host: of a token, which the host computes, and of a prompt, whose weights cross PCIe."""
    cards: tuple["Efficiency", ...] = ()
    """Efficiencies of each card of a machine whose cards are not alike."""
    longest_context_tokens: int | None = None
    """Longest context of which speeds are known; None: any."""
    layer_split: LayerSplit | None = None
    """What layers in turn on several devices cost; None: a pipeline keeps a micro-batch for each stage in flight."""
    spreads: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Kind of speed -> measured over predicted time at the quantiles of intervals, rows, devices and sources, where these numbers have their own."""

    @property
    def label(self) -> Label:
        """Whether the numbers were fitted on this device."""
        return "assumed" if self.borrowed else "measured"

    @property
    def unmeasured(self) -> int:
        """How far the timed device is: 0 of the same generation, 1 of another, 2 of another vendor."""
        return (self.kinship in ("neighbour", "distant")) + self.foreign


def not_measured(what: str) -> Assumption:
    """Return the assumption made where numbers were not fitted on the device at hand.

    Parameters
    ----------
    what : kernel and format, and whose numbers are used instead

    Returns
    -------
    the assumption; a calibration of the device replaces it
    """
    return Assumption(what, "capplan calibrate, then --calibration FILE", "calibration")


def fit_of(
    efficiency: Efficiency, kernel: str, formats: tuple[str, ...], engine: str, variant: str = ""
) -> tuple[Fit, str]:
    """Return the fit of a kernel, format by format: the requested variant, else the engine's, else any engine's.

    Where an engine has several kernels (`kernel/format@engine:variant`), the first in the file is its default.

    Parameters
    ----------
    efficiency : fits of a device
    kernel : matmul, attention, experts, ...
    formats : wanted format first, then the nearest ones
    engine : vllm, sglang, trtllm
    variant : part of the name of the requested kernel; empty: the engine's default

    Returns
    -------
    the fit, and the format it was fitted for; the engine's default where no kernel of that format has such a name

    Examples
    --------
    No fit for fp8, so that of bf16:

    >>> numbers = Efficiency("x", {"matmul/bf16": Fit({"floor_s": 1e-6})})
    >>> fit_of(numbers, "matmul", ("fp8", "bf16"), "vllm")[1]
    'bf16'
    """
    for name in formats:
        exact, shared = f"{kernel}/{name}@{engine}", f"{kernel}/{name}"
        usual = next((key for key in (exact, shared) if key in efficiency.fits), None)
        if usual is not None and not variant:
            return efficiency.fits[usual], name
        of_format = [key for key in efficiency.fits if key == shared or key.startswith(f"{shared}@")]
        named = [key for key in of_format if variant and variant in key.partition(":")[2]]
        of_engine = [key for key in named if key.startswith(f"{exact}:")]
        default = [key for key in of_format if key.startswith(f"{exact}:")]
        for key in (*of_engine, *named, *([usual] if usual else ()), *default, *of_format):
            return efficiency.fits[key], name
    raise InputError(
        f"{efficiency.device}: no fitted numbers for {kernel} in {formats[0]}\n"
        f"  fitted: {', '.join(sorted(efficiency.fits))}\n"
        f"  choose one of these formats, or fit this one with capplan calibrate"
    )


Amounts = tuple[int, ...]
"""Number of each profile of a device, in a fixed order."""


def slice_of(device: Device, partition: Partition) -> Device:
    """Return a slice of a device as a device of its own.

        P_s = P u_s / u,  B_s = B m_s / m

    with u multiprocessors, m memory slices. A slice has no link to others, and shares power and the host link with as many
    like it as fit on the device.

    Parameters
    ----------
    device : whole, with P [FLOP/s] and B [B/s]
    partition : one of its profiles

    References
    ----------
    NVIDIA, "Multi-Instance GPU user guide", chapters "Concepts" (a memory slice has about an eighth of capacity and bandwidth)
    and "Deployment considerations" (no transfers between devices in MIG mode).
    """
    compute = partition.multiprocessors / (device.multiprocessors or partition.multiprocessors)
    memory = partition.memory_slices / partition.device_memory_slices
    share = 1.0 / partition.per_device
    reported = partition.reported_memory_bytes
    return replace(
        device,
        name=f"{device.name}:{partition.profile}",
        title=f"{partition.profile} of {device.title}",
        memory_bytes=device.memory_bytes * memory,
        reported_memory_bytes=min(reported, device.reported_memory_bytes or reported),
        driver_memory_bytes=None,
        memory_bytes_per_s=device.memory_bytes_per_s * memory,
        peak_flop_per_s={dtype: peak * compute for dtype, peak in device.peak_flop_per_s.items()},
        multiprocessors=partition.multiprocessors,
        l2_bytes=_part(device.l2_bytes, partition.l2_slices / partition.device_memory_slices),
        tdp_w=_part(device.tdp_w, share),
        link=None,
        link_bytes_per_s=None,
        link_domain_devices=1,
        pcie_bytes_per_s=_part(device.pcie_bytes_per_s, share),
        node_devices=1,
        network_bytes_per_s=None,
        labels={**device.labels, **partition.labels},
        sources=(*device.sources, *partition.sources),
        figure_sources={**device.figure_sources, **partition.figure_sources},
        partition=partition,
    )


def _part(whole: float | None, fraction: float) -> float | None:
    return None if whole is None else whole * fraction


def cuts(profiles: Sequence[Partition]) -> tuple[Amounts, ...]:
    """Return the ways to cut one device that leave no room for another instance: how many of each profile.

    An instance begins at a memory slice that its profile allows, and has no memory slice in common with another one.

    Examples
    --------
    >>> half = Partition("x", "2g", 2, 4, 2, 4, 2, 28, 12e9, (0, 2), {}, {}, ())
    >>> quarter = Partition("x", "1g", 1, 4, 1, 4, 1, 14, 6e9, (0, 1, 2, 3), {}, {}, ())
    >>> cuts([half, quarter])
    ((0, 4), (1, 2), (2, 0))
    """
    slots = max(profile.device_memory_slices for profile in profiles)

    def from_slot(slot: int) -> Iterator[Amounts]:
        if slot >= slots:
            yield (0,) * len(profiles)
            return
        yield from from_slot(slot + 1)
        for index, profile in enumerate(profiles):
            if slot in profile.starts:
                for rest in from_slot(slot + profile.memory_slices):
                    yield (*rest[:index], rest[index] + 1, *rest[index + 1 :])

    return _largest(set(from_slot(0)))


def _largest(ways: set[Amounts]) -> tuple[Amounts, ...]:
    """Return the ways that no other way contains."""

    def within(way: Amounts, other: Amounts) -> bool:
        return way != other and all(mine <= theirs for mine, theirs in zip(way, other, strict=True))

    return tuple(sorted(way for way in ways if not any(within(way, other) for other in ways)))


def least_devices(profiles: Sequence[Partition], wanted: Amounts) -> int:
    """Return a lower bound on the devices that hold some instances: by compute, by memory, and by each profile by itself.

    Parameters
    ----------
    profiles : of one device
    wanted : [-]
        instances of each

    Returns
    -------
    [-]
        g

    Examples
    --------
    Three of four eighths of the memory each:

    >>> least_devices([Partition("x", "3g", 3, 7, 4, 8, 4, 60, 40e9, (0, 4), {}, {}, ())], (3,))
    2
    """
    pairs = [(profile, count) for profile, count in zip(profiles, wanted, strict=True) if count]
    if not pairs:
        return 0
    compute = sum(count * profile.compute_slices for profile, count in pairs)
    memory = sum(count * profile.memory_slices for profile, count in pairs)
    first = profiles[0]
    return max(
        ceil(compute / first.device_compute_slices),
        ceil(memory / first.device_memory_slices),
        *(ceil(count / profile.per_device) for profile, count in pairs),
    )


def packing(profiles: Sequence[Partition], wanted: Amounts) -> tuple[Amounts, ...]:
    """Return what the fewest devices that hold some instances are cut into, each as the placement rules allow; exact.

    Parameters
    ----------
    profiles : of the device
    wanted : [-]
        of each profile

    Returns
    -------
    instances on each device

    Examples
    --------
    Four sevenths of the compute fit on a device once, and leave room for three:

    >>> four = Partition("x", "4g", 4, 7, 4, 8, 4, 64, 40e9, (0,), {}, {}, ())
    >>> three = Partition("x", "3g", 3, 7, 4, 8, 4, 60, 40e9, (0, 4), {}, {}, ())
    >>> packing([four, three], (2, 3))
    ((1, 1), (1, 1), (0, 1))
    """
    ways = cuts(profiles)

    @cache
    def fitted(left: Amounts, devices: int) -> tuple[Amounts, ...] | None:
        if not any(left):
            return ()
        if least_devices(profiles, left) > devices:
            return None
        hardest = max(
            (profiles[at].memory_slices, -profiles[at].per_device, at) for at, n in enumerate(left) if n
        )[2]
        used = {tuple(map(min, left, way)) for way in ways if way[hardest]}
        for way in sorted(_largest(used), key=sum, reverse=True):
            rest = fitted(tuple(map(sub, left, way)), devices - 1)
            if rest is not None:
                return (way, *rest)
        return None

    for devices in count(least_devices(profiles, wanted)):
        found = fitted(wanted, devices)
        if found is not None:
            break
    return found or ()


DRIVER_RESERVED_BYTES = 0.5 * 2.0**30
"""What the driver withholds from the total it prints: 0.44 to 0.6 GiB on the devices where both were logged."""

BINARY_OVER_DECIMAL = 2.0**30 / 1e9
"""Memory sold as 24 GB is 24 GiB: the driver prints more than the decimal figure on every device logged."""


FAST_LINKS = ("nvlink", "xgmi")
"""Links over which engines set up additional all-reduce buffers."""

PADDED_INPUTS = {"amd": 256.0}
"""Multiple to which the inputs of mxfp4 experts are padded, by vendor."""

USUAL_PADDED_INPUTS = 128.0


def has_fast_links(device: Device) -> bool:
    """Return whether tensor-parallel ranks communicate over a GPU link instead of PCIe.

    Examples
    --------
    >>> has_fast_links(Device("x", "X", "v", "hopper", 80e9, None, 1.0, {}, None, None, None, "nvlink4", None, 1, None, 8, None, {}))
    True
    """
    return device.link is not None and device.link.startswith(FAST_LINKS)


def padded_inputs_multiple(device: Device) -> float:
    """Return the multiple to which kernels of a device pad the inputs of mxfp4 experts.

    Returns
    -------
    [elements]

    Examples
    --------
    >>> padded_inputs_multiple(Device("x", "X", "AMD", "cdna3", 1e9, None, 1.0, {}, None, None, None, None, None, 1, None, 8, None, {}))
    256.0
    """
    return PADDED_INPUTS.get(device.vendor.lower(), USUAL_PADDED_INPUTS)


def engine_memory_bytes(device: Device) -> float:
    """Return the device memory that an engine budgets.

    Returns
    -------
    [B]
        what a process sees, where that is known; else what the driver prints, or the nominal capacity
        in binary units, less what the driver withholds

    Examples
    --------
    >>> from dataclasses import replace
    >>> blank = Device("x", "X", "v", "hopper", 80e9, None, 1.0, {}, None, None, None, None, None, 1, None, 8, None, {})
    >>> engine_memory_bytes(blank) == 79.5 * 2**30
    True
    >>> engine_memory_bytes(replace(blank, reported_memory_bytes=85e9))
    85000000000.0
    """
    if device.reported_memory_bytes is not None:
        return device.reported_memory_bytes
    if device.driver_memory_bytes is not None:
        return device.driver_memory_bytes - DRIVER_RESERVED_BYTES
    return device.memory_bytes * BINARY_OVER_DECIMAL - DRIVER_RESERVED_BYTES
