"""Who else uses a card: what the driver's tool lists on NVIDIA, what the kernel's files show on AMD."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
