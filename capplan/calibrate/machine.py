"""The device to measure: what it is, whether it is idle, and how much of its memory may be used."""

import hashlib
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

import torch

from capplan.calibrate.abilities import (
    PROCESSOR,
    Abilities,
    abilities_of,
    capability_of,
    processor_abilities,
    product_rates,
)
from capplan.calibrate.busy import busy_reason, driver_report
from capplan.calibrate.readings import Sensors, sensors_of
from capplan.errors import InputError
from capplan.readers.calibration.record import Machine
from capplan.readers.text_file import system_text

USABLE_MEMORY_FRACTION = 0.6
"""Fraction of the free memory that the benchmarks may use."""
ARENA_FRACTION = 1.0 / 16.0
"""Maximum fraction of the usable memory for the random data of one dtype; there are up to six dtypes."""
SLACK_RATIOS = {"cuda": 1.25, "cpu": 4.0}
"""Memory of one case over that of its operands: results of every rotated set, workspaces of libraries, and on a processor
freed blocks that are not returned at once (seen: 0.9 GB beside the arenas, where the largest case has 0.27)."""
COLD_CACHES_CUDA = 4.0
"""Operands rotate over this many times the L2 size, so that they have been evicted when they are read again."""
COLD_CACHES_CPU = 1.25
"""The same for the last-level cache of a processor, which other processes share."""
UNKNOWN_L2_BYTES = 1024**2
UNKNOWN_CARD_L2_BYTES = 50 * 1024**2
UNKNOWN_LAST_LEVELS = 64.0
"""Size of an unknown last-level cache, in second-level caches."""
CPU_TILE_ROWS = {"bf16": 16.0, "int8": 16.0, "fp16": 2.0, "fp32": 2.0}
"""Rows of the smallest tile: of a matrix register (AMX), and of vector kernels according to timings."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device to measure."""

    device: torch.device
    machine: Machine
    free_bytes: float
    """Free memory of the device at the start."""
    sensors: Sensors = field(default_factory=Sensors)
    """Clock, power and heat; empty where the driver shows none."""
    busy: str = ""
    """Who else uses the device; empty if nobody is seen."""
    abilities: Abilities = PROCESSOR
    """What the device's kernels can do."""

    @property
    def is_cuda(self) -> bool:
        """True on an accelerator that torch drives as CUDA (NVIDIA and AMD)."""
        return bool(self.device.type == "cuda")

    @property
    def emulated_words(self) -> str:
        """Formats that the device has no units for, and what is timed instead; empty if it has all of them."""
        able = self.abilities
        if not able.emulated:
            return ""
        times = [
            able.flop_per_s[able.wide] / able.flop_per_s[n] for n in able.emulated if able.flop_per_s.get(n)
        ]
        slower = f", {min(times):.1f} times slower than {able.wide} or more" if times else ""
        names = " and ".join(able.emulated)
        return f"{self.machine.name} only emulates {names}{slower}: {able.wide} is timed, and {names} not"

    @property
    def usable_bytes(self) -> float:
        """Memory that the benchmarks may use."""
        return USABLE_MEMORY_FRACTION * self.free_bytes

    @property
    def slack_ratio(self) -> float:
        """Memory of one case over that of its operands."""
        return SLACK_RATIOS[self.device.type]

    @property
    def cold_bytes(self) -> float:
        """Total size of rotated operands at which none of them stays in the cache."""
        if self.is_cuda:
            caches = COLD_CACHES_CUDA * max(self.machine.l2_bytes, self.machine.cache_bytes or 0.0)
        else:
            caches = COLD_CACHES_CPU * (_cache_bytes(3) or UNKNOWN_LAST_LEVELS * self.machine.l2_bytes)
        return min(caches, ARENA_FRACTION * self.usable_bytes)


def default_device() -> str:
    """Return the device to measure where none is named."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def opened(name: str, *, threads: int = 1, force: bool = False) -> Target:
    """Return the device called `name` (cpu, cuda, cuda:1), or raise an error that says why it cannot be measured.

    Parameters
    ----------
    name : as torch writes it
    threads : of a CPU [-]
    force : measure even if others use the device

    Returns
    -------
    the device, with its free memory
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}\n  write cpu, cuda or cuda:N") from None
    if device.type == "cpu":
        return _cpu(threads)
    if device.type != "cuda":
        raise InputError(f"device {name!r} is not measured\n  write cpu, cuda or cuda:N")
    return _cuda(device, force=force)


def _cpu(threads: int) -> Target:
    if threads < 1 or threads > (os.cpu_count() or 1):
        raise InputError(f"--threads {threads}: this machine has {os.cpu_count()}")
    torch.set_num_threads(threads)
    name = _processor_name()
    abilities = processor_abilities(product_rates(threads))
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    machine = Machine(
        device="cpu",
        name=name,
        uuid_hash=_hashed(name),
        driver=None,
        cuda=None,
        torch=str(torch.__version__),
        threads=threads,
        memory_bytes=float(os.sysconf("SC_PHYS_PAGES") * size),
        multiprocessors=threads,
        l2_bytes=float(_cache_bytes(2) or UNKNOWN_L2_BYTES),
        tile_rows=CPU_TILE_ROWS,
        clocks={"capability": torch.backends.cpu.get_cpu_capability()},
        emulated=abilities.emulated,
    )
    return Target(torch.device("cpu"), machine, float(pages * size), abilities=abilities)


def _processor_name() -> str:
    for line in system_text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cache_bytes(level: int) -> int | None:
    """Return the size of a data cache of the first processor; None if the system does not report it."""
    text = system_text(Path("/sys/devices/system/cpu/cpu0/cache") / f"index{level}" / "size")
    try:
        return int(text.rstrip("KM")) * (1024 if text.endswith("K") else 1024**2)
    except ValueError:
        return None


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _cuda(device: torch.device, *, force: bool) -> Target:
    if not torch.cuda.is_available():
        raise InputError(
            "no CUDA device: torch sees none\n"
            f"  torch {torch.__version__} was built for {torch.version.cuda or 'CPU only'}\n"
            "  to measure the processor instead: --device cpu"
        )
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise InputError(f"no device cuda:{index}: torch sees {torch.cuda.device_count()}")
    device = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", properties.name))
    seen = driver_report(uuid)
    reason = busy_reason(properties)  # before this process has a context, which the driver would list
    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info(device)
    if reason and not force:
        raise InputError(
            f"cuda:{index} ({properties.name}) is in use: {reason}\n"
            "  timings beside another load do not describe the device; free it, or pass --force"
        )
    capability = capability_of(properties)
    abilities = abilities_of(capability)
    machine = Machine(
        device=str(device),
        name=properties.name,
        uuid_hash=_hashed(uuid),
        driver=seen.pop("driver_version", None),
        cuda=torch.version.cuda or getattr(torch.version, "hip", None),
        torch=str(torch.__version__),
        threads=None,
        memory_bytes=float(total),
        multiprocessors=properties.multi_processor_count,
        l2_bytes=float(getattr(properties, "L2_cache_size", 0) or UNKNOWN_CARD_L2_BYTES),
        clocks=seen,
        capability=capability,
        cache_bytes=abilities.cache_bytes,
        emulated=abilities.emulated,
    )
    return Target(device, machine, float(free), sensors_of(properties), reason, abilities)
