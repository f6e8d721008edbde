"""The machine that capplan runs on: its GPUs, processor and memory, as the tools of drivers and systems print them."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, log2
from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.hardware.device import engine_memory_bytes
from capplan.readers.catalogue.hardware import catalogue_name, device
from capplan.readers.catalogue.workstations import candidates_with, is_host, printed_candidates
from capplan.readers.text_file import system_text

LONGEST_S = 5.0
"""Longest time that one tool may take [s]."""
MEMINFO = Path("/proc/meminfo")

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "nvidia-smi": ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits"),
    "rocm-smi": ("--showproductname", "--showmeminfo", "vram", "--json"),
    "system_profiler": ("SPHardwareDataType", "SPDisplaysDataType", "-json"),
    "lscpu": (),
}
"""Tool -> its arguments."""
WIRED_LIMIT = ("sysctl", "-n", "iogpu.wired_limit_mb")
"""What a Mac gives its GPU where its owner chose it; 0 elsewhere."""


_without_shell = partial(subprocess.run, capture_output=True, text=True, errors="replace", check=False)


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool printed."""

    text: str
    problem: str | None = None
    """Why there is no text."""


def ask_tool(tool: str, *words: str, longest_s: float = LONGEST_S) -> Said:
    """Return what a tool prints, or why it prints nothing.

    Parameters
    ----------
    tool : a name, found on the path
    words : its arguments: fixed words of ours, never of a user
    longest_s : [s]
    """
    path = shutil.which(tool)
    if path is None:
        return Said("", "not found")
    try:
        done = _without_shell([path, *words], timeout=longest_s)
    except subprocess.TimeoutExpired:
        return Said("", f"no answer within {longest_s:.0f} s")
    except OSError as error:
        return Said("", f"cannot be started: {error.strerror or error}")
    if done.returncode != 0:
        return Said("", f"exit code {done.returncode}")
    return Said(str(done.stdout))


@dataclass(frozen=True, slots=True)
class PrintedDevice:
    """Equal devices, as a tool names them."""

    tool: str
    name: str
    count: int = 1
    memory_bytes: float | None = None
    """Total of one, where the tool prints it."""


def nvidia_smi_devices(text: str) -> Iterator[PrintedDevice]:
    """Yield the GPUs of `nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits`.

    Examples
    --------
    >>> [one.name for one in nvidia_smi_devices("NVIDIA GeForce RTX 3090, 24576")]
    ['NVIDIA GeForce RTX 3090']
    """
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, memory = line.rpartition(",")
        mib = memory.strip()
        yield PrintedDevice("nvidia-smi", name.strip(), 1, float(mib) * 2.0**20 if mib.isdigit() else None)


_ROCM_NAMES = ("Card Series", "Card series", "Device Name", "Card Model", "Card model")


def rocm_smi_devices(text: str) -> Iterator[PrintedDevice]:
    """Yield the GPUs of `rocm-smi --showproductname --showmeminfo vram --json`."""
    for card, facts in _json(text).items():
        if not card.startswith("card") or not isinstance(facts, dict):
            continue
        name = next((str(facts[key]) for key in _ROCM_NAMES if facts.get(key)), card)
        total = str(facts.get("VRAM Total Memory (B)", ""))
        yield PrintedDevice("rocm-smi", name, 1, float(total) if total.isdigit() else None)


def system_profiler_devices(text: str) -> Iterator[PrintedDevice]:
    """Yield the GPU of a Mac, with its cores, of `system_profiler SPHardwareDataType SPDisplaysDataType -json`."""
    said = _json(text)
    memory = mac_memory_bytes(text)
    for display in said.get("SPDisplaysDataType", ()):
        chip, cores = str(display.get("sppci_model", "")), str(display.get("sppci_cores", ""))
        if chip.startswith("Apple"):
            name = f"{chip} {cores}-core GPU" if cores.isdigit() else chip
            yield PrintedDevice("system_profiler", name, 1, memory)


def mac_memory_bytes(text: str) -> float | None:
    """Return the memory of a Mac [B]; None where system_profiler does not print it."""
    for hardware in _json(text).get("SPHardwareDataType", ()):
        amount, _, unit = str(hardware.get("physical_memory", "")).partition(" ")
        if amount.isdigit() and unit == "GB":
            return float(amount) * 2.0**30
    return None


def _json(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def lscpu_processor(text: str) -> tuple[str, int] | None:
    """Return the name of the processor and the number of its sockets of `lscpu`; None where it prints no name.

    Examples
    --------
    >>> lscpu_processor("Model name:  AMD EPYC 9355 32-Core Processor")
    ('AMD EPYC 9355 32-Core Processor', 1)
    """
    facts = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())
    }
    name = facts.get("Model name", "")
    sockets = facts.get("Socket(s)", "")
    return (name, int(sockets) if sockets.isdigit() else 1) if name else None


def meminfo_bytes(text: str) -> float | None:
    """Return the memory of the host of /proc/meminfo [B].

    Examples
    --------
    >>> meminfo_bytes("MemTotal:       131072000 kB") == 131072000 * 1024.0
    True
    """
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "MemTotal":
            return float(value.split()[0]) * 1024.0
    return None


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """Equal GPUs of this machine, and what the catalogue knows of them."""

    printed: str
    tool: str
    count: int
    memory_bytes: float | None
    """Total of one, as the tool prints it."""
    hardware: str | None
    """Name for --hardware; None where the catalogue does not have it, or does not tell it from others."""
    may_be: tuple[str, ...] = ()
    """Devices that the name does not tell apart."""
    memory_bytes_per_s: float | None = None
    usable_bytes: float | None = None
    """What a process may use of it."""


@dataclass(frozen=True, slots=True)
class LocalHost:
    """Processor and memory of this machine."""

    printed: str | None
    sockets: int
    memory_bytes: float | None
    hardware: str | None
    memory_bytes_per_s: float | None
    """Bandwidth of the fastest memory that the processor supports, in all channels of all sockets."""


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """What this machine has."""

    devices: tuple[LocalDevice, ...]
    host: LocalHost
    tools: Mapping[str, str | None]
    """Tool -> why it said nothing; None where it answered."""


def local_machine(ask: Callable[..., Said] = ask_tool, meminfo: Path = MEMINFO) -> LocalMachine:
    """Return the devices of this machine, by the tools that it has.

    Parameters
    ----------
    ask : what runs a tool
    meminfo : the kernel's file about memory
    """
    said = {tool: ask(tool, *words) for tool, words in COMMANDS.items()}
    limit = "" if said["system_profiler"].problem else ask(*WIRED_LIMIT).text.strip()
    text = system_text(meminfo) if meminfo.exists() else ""
    memory = meminfo_bytes(text) or mac_memory_bytes(said["system_profiler"].text)
    printed = (
        *nvidia_smi_devices(said["nvidia-smi"].text),
        *rocm_smi_devices(said["rocm-smi"].text),
        *system_profiler_devices(said["system_profiler"].text),
    )
    wired = float(limit) * 2.0**20 if limit.isdigit() and int(limit) else None
    found = tuple(_local_device(one, memory, wired) for one in _counted(printed))
    host = _host(lscpu_processor(said["lscpu"].text), memory)
    return LocalMachine(found, host, {tool: one.problem for tool, one in said.items()})


def _counted(printed: Sequence[PrintedDevice]) -> Iterator[PrintedDevice]:
    """Yield each kind of device once, with how many there are."""
    for one in dict.fromkeys(printed):
        yield PrintedDevice(one.tool, one.name, printed.count(one), one.memory_bytes)


def _local_device(one: PrintedDevice, host_bytes: float | None, wired_bytes: float | None) -> LocalDevice:
    names = printed_candidates(one.name)
    known = catalogue_name(one.name)
    memory = one.memory_bytes
    if known is not None:
        names = (known,)
    if names and device(names[0]).memory_kind.startswith("LPDDR") and one.tool != "system_profiler":
        memory = (memory or 0.0) + (host_bytes or 0.0) or None
    fitting = candidates_with(one.name, memory) if names and memory else names
    if len(fitting) != 1:
        return LocalDevice(one.name, one.tool, one.count, memory, None, fitting or names)
    entry = device(fitting[0])
    usable = wired_bytes if wired_bytes and one.tool == "system_profiler" else engine_memory_bytes(entry)
    return LocalDevice(
        one.name, one.tool, one.count, memory, fitting[0], (), entry.memory_bytes_per_s, usable
    )


def installed_gb(total_bytes: float) -> int:
    """Return the memory that a host has, of what its kernel gives out: a little less.

    Returns
    -------
    [GB]
        as names state it

    Examples
    --------
    >>> [installed_gb(total * 2.0**30) for total in (7.6, 15.4, 62.7, 188.5, 503.0, 1007.0)]
    [8, 16, 64, 192, 512, 1024]
    """
    total = total_bytes / 2.0**30
    step = max(4.0, 2.0 ** floor(log2(total)) / 16.0)
    return int(ceil(total / step) * step)


def _host(processor: tuple[str, int] | None, memory_bytes: float | None) -> LocalHost:
    if processor is None:
        return LocalHost(None, 1, memory_bytes, None, None)
    printed, sockets = processor
    known = catalogue_name(printed)
    if known is None:
        return LocalHost(printed, sockets, memory_bytes, None, None)
    name, _, stated = known.partition(":")
    rate = device(known).memory_bytes_per_s * sockets
    if is_host(name) and memory_bytes and not stated:
        known = f"{name}:{installed_gb(memory_bytes)}gb"
    return LocalHost(printed, sockets, memory_bytes, known, rate)


def device_here(machine: LocalMachine) -> str:
    """Return the name of this machine's device for --hardware: its GPU with most memory, else its processor.

    Raises
    ------
    InputError
        the catalogue has none of them; with what the tools printed
    """
    known = [one for one in machine.devices if one.hardware]
    if known:
        largest = max(known, key=lambda one: one.usable_bytes or 0.0)
        return str(largest.hardware)
    unknown_device = next(iter(machine.devices), None)
    if unknown_device is not None:
        which = ", ".join(unknown_device.may_be)
        has = f" with {unknown_device.memory_bytes / 1e9:.0f} GB" if unknown_device.memory_bytes else ""
        way_out = f"the catalogue has {which}" if which else "the catalogue has none of this name"
        raise InputError(
            f"--hardware this: {unknown_device.printed!r}{has} is not one device of the catalogue\n"
            f"  {way_out}; give --hardware NAME, or the path of a hardware YAML"
        )
    if machine.host.hardware is not None:
        return machine.host.hardware
    seen = machine.host.printed or "no processor"
    raise InputError(
        f"--hardware this: no GPU was found, and {seen!r} is not in the catalogue\n"
        "  give --hardware NAME; capplan detect shows what the tools said, capplan list hardware what there is"
    )
