"""Clock, power and heat of a card while it is measured, and who else uses it: from NVML and the driver's tool on NVIDIA, from the kernel's files on AMD."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from capplan.readers.calibration.record import Range
from capplan.readers.text_file import system_text

BUSY_UTILISATION_PERCENT = 5.0
BUSY_MEMORY_FRACTION = 0.05
PCI_DEVICES = Path("/sys/bus/pci/devices")
QUERIES = (
    "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "pstate", "power.limit", "persistence_mode",
    "ecc.mode.current", "mig.mode.current",
)  # fmt: skip
"""What is written into the record, as the driver prints it."""
_without_shell = partial(subprocess.run, capture_output=True, text=True, check=False)


def smi(query: str, uuid: str) -> list[str]:
    """Return the output of nvidia-smi about one device; empty without that tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    command = [tool, f"--query-{query}", "--format=csv,noheader,nounits", f"--id={name}"]
    return [line.strip() for line in tool_output(command, 20.0).splitlines() if line.strip()]


def tool_output(command: Sequence[str], longest_s: float) -> str:
    """Return what a tool of a driver prints; empty where it is missing, fails or takes longer.

    Parameters
    ----------
    command : fixed words of ours, never of a user
    longest_s : [s]
    """
    try:
        done = _without_shell(command, timeout=longest_s)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return str(done.stdout) if done.returncode == 0 else ""


def driver_report(uuid: str) -> dict[str, str]:
    """Return what the driver shows of a device, by query."""
    lines = smi("gpu=" + ",".join(QUERIES), uuid)
    if not lines:
        return {}
    return dict(zip(QUERIES, (cell.strip() for cell in lines[0].split(",")), strict=False))


def busy_reason(properties: Any) -> str:
    """Return why a device counts as busy; empty if it is idle or unknown.

    Parameters
    ----------
    properties : of the device, as torch reports them
    """
    files = pci_folder(properties)
    if files is not None and (files / "gpu_busy_percent").exists():
        return _busy_amd(files)
    uuid = str(getattr(properties, "uuid", properties.name))
    own = str(os.getpid())
    rows = [
        [cell.strip() for cell in row.split(",")]
        for row in smi("compute-apps=pid,used_memory,process_name", uuid)
    ]
    others = [row for row in rows if row[0] != own]
    if others:
        name = f" ({others[0][2]})" if len(others[0]) > 2 else ""
        return f"{len(others)} other process(es), the first with pid {others[0][0]}{name}"
    figures = smi("gpu=memory.used,memory.total,utilization.gpu", uuid)
    cells = [cell.strip() for cell in figures[0].split(",")] if figures else []
    if len(cells) == 3 and all(cell.isdigit() for cell in cells):
        return _busy_by(*map(float, cells))
    return ""


def _busy_by(used_mib: float, total_mib: float, load_percent: float) -> str:
    if used_mib > BUSY_MEMORY_FRACTION * total_mib:
        return f"{used_mib:.0f} of {total_mib:.0f} MiB are in use"
    if load_percent > BUSY_UTILISATION_PERCENT:
        return f"utilisation is {load_percent:.0f} %"
    return ""


def pci_folder(properties: Any) -> Path | None:
    """Return the kernel's folder of a card; None where torch does not say on which slot it is."""
    places = [getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    if any(not isinstance(place, int) for place in places):
        return None
    domain, bus, slot = places
    folder = PCI_DEVICES / f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    return folder if folder.is_dir() else None


def _busy_amd(files: Path) -> str:
    try:
        figures = [
            float(system_text(files / name))
            for name in ("mem_info_vram_used", "mem_info_vram_total", "gpu_busy_percent")
        ]
    except ValueError:
        return ""
    used, total, load = figures
    return _busy_by(used / 2**20, total / 2**20, load)


LIBRARY = "libnvidia-ml.so.1"
SM_CLOCK, MEMORY_CLOCK = 1, 2
REASONS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal",
    0x80: "power brake", 0x2: "application clocks", 0x10: "sync boost", 0x100: "display clocks",
}  # fmt: skip
"""Bits of NVML's reasons to lower the clock; idle (0x1) is none."""
HOT = frozenset({"hardware slowdown", "software thermal", "hardware thermal", "power brake"})
"""Reasons that pass when the card cools: repeats under them are rejected. A power cap is how the card serves, and stays."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the sensors show at one moment; None where one of them is missing."""

    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    slowed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Sensors:
    """How to read the sensors of one device."""

    read: Callable[[], Reading] | None = None
    slowed: Callable[[], frozenset[str]] = frozenset
    """Only the reasons to lower the clock, which is quick."""


@dataclass(slots=True)
class Watch:
    """The readings of one run."""

    sensors: Sensors
    readings: list[Reading] = field(default_factory=list)
    rejected: int = 0
    """Repeats that ran while the device was slowing itself down."""

    def look(self) -> None:
        """Keep one reading."""
        if self.sensors.read is not None:
            self.readings.append(self.sensors.read())

    def is_hot(self) -> bool:
        """Return whether the device is slowing itself down for heat."""
        return bool(self.sensors.slowed() & HOT)

    def range(self, name: str) -> Range | None:
        """Return lowest, median and highest of one sensor."""
        values = [value for one in self.readings if (value := getattr(one, name)) is not None]
        if not values:
            return None
        low, median, high = np.quantile(values, (0.0, 0.5, 1.0))
        return Range(float(low), float(median), float(high))

    def slowed_fraction(self) -> Mapping[str, float]:
        """Return by reason the fraction of readings that showed it."""
        names = sorted({name for one in self.readings for name in one.slowed})
        return {name: sum(name in one.slowed for one in self.readings) / len(self.readings) for name in names}


def sensors_of(properties: Any) -> Sensors:
    """Return the sensors of a card; none where neither driver shows them."""
    files = pci_folder(properties)
    if files is not None and list(files.glob("hwmon/hwmon*")):
        return Sensors(lambda: _amd_reading(files))
    return _nvml_sensors(str(getattr(properties, "uuid", "")))


def _nvml_sensors(uuid: str) -> Sensors:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return Sensors()
    handle = ctypes.c_void_p()
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)):
        return Sensors()

    def number(call: Any, *words: Any) -> float | None:
        value = ctypes.c_uint()
        return None if call(handle, *words, ctypes.byref(value)) else float(value.value)

    def slowed() -> frozenset[str]:
        bits = ctypes.c_ulonglong()
        if library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(bits)):
            return frozenset()
        return frozenset(reason for bit, reason in REASONS.items() if bits.value & bit)

    def read() -> Reading:
        clock, memory = (number(library.nvmlDeviceGetClockInfo, kind) for kind in (SM_CLOCK, MEMORY_CLOCK))
        power = number(library.nvmlDeviceGetPowerUsage)
        return Reading(
            clock_hz=_scaled(clock, 1e6),
            memory_clock_hz=_scaled(memory, 1e6),
            power_w=_scaled(power, 1e-3),
            temperature_c=number(library.nvmlDeviceGetTemperature, 0),
            slowed=slowed(),
        )

    return Sensors(read, slowed)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _amd_reading(files: Path) -> Reading:
    """Return a reading from the files of the amdgpu driver: hertz, microwatts, thousandths of a degree."""
    return Reading(
        clock_hz=_file(files, "freq1_input", 1.0),
        memory_clock_hz=_file(files, "freq2_input", 1.0),
        power_w=_file(files, "power1_average", 1e-6) or _file(files, "power1_input", 1e-6),
        temperature_c=_file(files, "temp1_input", 1e-3),
    )


def _file(files: Path, name: str, unit: float) -> float | None:
    for path in files.glob(f"hwmon/hwmon*/{name}"):
        try:
            return float(system_text(path)) * unit
        except ValueError:
            return None
    return None
