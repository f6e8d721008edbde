"""Datasheet figures of one device and its links, as the vendor states them; never derated here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


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
    """As the driver names it: 3g.40gb."""
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
