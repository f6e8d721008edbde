"""Virtual cards: what torch and the driver report of each, and how it differs from its record."""

from dataclasses import dataclass
from types import SimpleNamespace

from capplan.operators.device_rates import DeviceRatio
from capplan.readers.catalogue.hardware import device


@dataclass(frozen=True)
class Card:
    """One card as it sits in a machine."""

    entry: str
    """In the catalogue."""
    name: str
    """As the driver prints it."""
    capability: str
    ratio: DeviceRatio
    """Over its record."""
    library_gaps: tuple[str, ...] = ()
    """torch functions that raise NOT_SUPPORTED on it."""

    @property
    def device(self):
        return device(self.entry)

    @property
    def total_bytes(self):
        return int(self.device.reported_memory_bytes or self.device.memory_bytes)

    def properties(self):
        amd = self.capability.startswith("gfx")
        major, _, minor = ("9", "", "4") if amd else self.capability.partition(".")
        return SimpleNamespace(
            name=self.name,
            uuid=f"GPU-{self.entry}-0001",
            major=int(major),
            minor=int(minor),
            gcnArchName=f"{self.capability}:sramecc+:xnack-" if amd else None,
            multi_processor_count=self.device.multiprocessors,
            L2_cache_size=int(4 * 2**20 if amd else self.device.l2_bytes or 50 * 2**20),
            total_memory=self.total_bytes,
        )


def _ratio(compute, memory, floor):
    return DeviceRatio(compute, memory, floor, 1)


A100 = Card("a100-sxm-80gb", "NVIDIA A100-SXM4-80GB", "8.0", _ratio(0.88, 0.94, 1.15))
L4 = Card("l4", "NVIDIA L4", "8.9", _ratio(0.72, 0.9, 1.1))
H200 = Card("h200-sxm", "NVIDIA H200", "9.0", _ratio(0.9, 0.93, 1.2))
B200 = Card("b200", "NVIDIA B200", "10.0", _ratio(0.85, 0.9, 0.85))
RTX_4090 = Card("rtx-4090", "NVIDIA GeForce RTX 4090", "8.9", _ratio(0.82, 0.88, 0.85))
MI300X = Card("mi300x", "AMD Instinct MI300X", "gfx942", _ratio(0.6, 0.7, 1.3), library_gaps=("_int_mm",))
T4 = Card("t4", "Tesla T4", "7.5", _ratio(0.7, 0.85, 1.2))
CARDS = {card.entry: card for card in (A100, L4, H200, B200, RTX_4090, MI300X)}
