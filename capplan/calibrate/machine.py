"""The device that a calibration measures: what it can do, whether it is idle, and its clock, power and heat meanwhile.

Clock, power and heat come from NVML and the driver's tool on NVIDIA, from the kernel's files on AMD.

Abilities follow on a card from its compute capability, on a processor from what a product of each format takes.
"""

import ctypes
import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from capplan.errors import InputError
from capplan.readers.calibration.file import emulated_formats
from capplan.readers.calibration.record import Machine, Range
from capplan.readers.local_machine import ask_tool
from capplan.readers.text_file import system_text

BUSY_UTILISATION_PERCENT = 5.0
BUSY_MEMORY_FRACTION = 0.05
PCI_DEVICES = Path("/sys/bus/pci/devices")
QUERIES = (
    "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "pstate", "power.limit", "persistence_mode",
    "ecc.mode.current", "mig.mode.current",
)  # fmt: skip
"""What is written into the record, as the driver prints it."""


def smi(query: str, uuid: str) -> list[str]:
    """Return the output of nvidia-smi about one device; empty without that tool."""
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    words = (f"--query-{query}", "--format=csv,noheader,nounits", f"--id={name}")
    text = ask_tool("nvidia-smi", *words, longest_s=20.0).text
    return [line.strip() for line in text.splitlines() if line.strip()]


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
        return f"utilisation is {load_percent:.0f}%"
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


Reading: TypeAlias = Mapping[str, Any]
"""What the sensors show at one moment: clocks, power, temperature, each None where it is missing, and why the device slows itself down."""


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
        values = [value for one in self.readings if (value := one[name]) is not None]
        if not values:
            return None
        low, median, high = np.quantile(values, (0.0, 0.5, 1.0))
        return Range(float(low), float(median), float(high))

    def slowed_fraction(self) -> Mapping[str, float]:
        """Return by reason the fraction of readings that showed it."""
        names = sorted({name for one in self.readings for name in one["slowed"]})
        return {
            name: sum(name in one["slowed"] for one in self.readings) / len(self.readings) for name in names
        }


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
        return {
            "clock_hz": _scaled(clock, 1e6),
            "memory_clock_hz": _scaled(memory, 1e6),
            "power_w": _scaled(power, 1e-3),
            "temperature_c": number(library.nvmlDeviceGetTemperature, 0),
            "slowed": slowed(),
        }

    return Sensors(read, slowed)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _amd_reading(files: Path) -> Reading:
    """Return a reading from the files of the amdgpu driver: hertz, microwatts, thousandths of a degree."""
    return {
        "clock_hz": _file(files, "freq1_input", 1.0),
        "memory_clock_hz": _file(files, "freq2_input", 1.0),
        "power_w": _file(files, "power1_average", 1e-6) or _file(files, "power1_input", 1e-6),
        "temperature_c": _file(files, "temp1_input", 1e-3),
        "slowed": frozenset(),
    }


def _file(files: Path, name: str, unit: float) -> float | None:
    for path in files.glob(f"hwmon/hwmon*/{name}"):
        try:
            return float(system_text(path)) * unit
        except ValueError:
            return None
    return None


INFINITY_CACHE_BYTES = 256 * 2.0**20
"""Last cache of an AMD Instinct MI300 (256 MB), between the L2 of its dies and memory."""
WITH_INFINITY_CACHE = ("gfx940", "gfx941", "gfx942", "gfx950")
WITH_FNUZ = ("gfx940", "gfx941", "gfx942")
"""Architectures whose fp8 has no negative zero: torch.float8_e4m3fnuz instead of e4m3fn."""
GROUPED_PRODUCTS = ((9, 0), (10, 0), (10, 3))
"""Capabilities on which torch's grouped product is one kernel. Elsewhere it copies offsets to the host, which no CUDA graph
can contain."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """Formats and kernels of one device."""

    wide: str
    """The dtype that engines would run in and that is measured: bf16, fp16 on cards without units for bf16, fp32 on processors
    that only emulate both."""
    fp8: torch.dtype | None = None
    formats: tuple[str, ...] = ()
    """Formats of matmuls besides `wide`."""
    grouped_products: bool = False
    varlen: bool = False
    """FlashAttention with pages and windows in torch."""
    is_card: bool = True
    """False for a processor."""
    is_amd: bool = False
    cache_bytes: float | None = None
    """Last cache before memory, where it is not the L2."""
    emulated: tuple[str, ...] = ()
    """Formats that the device has no units for: torch converts every element. They are never timed."""
    flop_per_s: Mapping[str, float] = field(default_factory=dict)
    """Rate of one product in each format of a processor, timed before anything is planned."""


PROCESSOR_FORMATS = ("bf16", "fp32", "fp16", "int8")
"""What processors multiply in, if not all of them natively."""
_SEEN = {"bf16": 1e12, "fp32": 6e10, "fp16": 3e10, "int8": 3e11}
"""Rates of one thread of a processor with matrix registers, for plans without a processor."""
_TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16, "int8": torch.int8}
ROWS, INPUTS, OUTPUTS = 256, 512, 512
"""Sizes of the product: large enough for the kernels of many rows, 134 MFLOP."""
REPEATS = 5
LONGEST_S = 0.2
"""Time for one format, after the first repeat."""


def product_rates(threads: int) -> Mapping[str, float]:
    """Return the best rate of one product in each format that torch multiplies on this processor [FLOP/s].

    Parameters
    ----------
    threads : that torch uses; one is timed by its own clock, so that other processes do not count
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    rates = {}
    for name in PROCESSOR_FORMATS:
        try:
            call = _product(name)
            call()
        except (RuntimeError, AttributeError):  # this build of torch has no kernel for it
            continue
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < REPEATS and (not times or time.perf_counter() - begin < LONGEST_S):
            start = clock()
            call()
            times.append(clock() - start)
        rates[name] = 2.0 * ROWS * INPUTS * OUTPUTS / max(min(times), 1e-9)
    return rates


def unpublished(name: str) -> Callable[..., torch.Tensor]:
    """Return an operator that torch has under a private name only, in some of the supported releases."""
    operator: Callable[..., torch.Tensor] = getattr(torch, name)
    return operator


def _product(name: str) -> Callable[[], torch.Tensor]:
    drawn = torch.Generator().manual_seed(ROWS)
    sizes = (ROWS, INPUTS), (OUTPUTS, INPUTS)
    first, second = (torch.randn(size, generator=drawn).mul_(10.0).to(_TORCH_DTYPES[name]) for size in sizes)
    weights = second.t()  # as a linear layer keeps them
    if name == "int8":
        int_mm = unpublished("_int_mm")
        return lambda: int_mm(first, weights)
    return lambda: torch.mm(first, weights)


def processor_abilities(flop_per_s: Mapping[str, float]) -> Abilities:
    """Return what a processor can do, from the rate of one product in each format.

    Parameters
    ----------
    flop_per_s : [FLOP/s] by format, fp32 among them; a format that torch cannot multiply is not named

    Returns
    -------
    16 bits where they are native, fp32 elsewhere; the narrower formats that are emulated

    Examples
    --------
    A processor with AVX2 converts every element of bf16 and fp16:

    >>> old = processor_abilities({"fp32": 100e9, "bf16": 20e9, "fp16": 20e9, "int8": 200e9})
    >>> old.wide, old.formats, old.emulated
    ('fp32', ('int8',), ('bf16', 'fp16'))
    """
    emulated = emulated_formats(flop_per_s)
    native = [name for name in PROCESSOR_FORMATS if name in flop_per_s and name not in emulated]
    wide = next(name for name in ("bf16", "fp16", "fp32") if name in native)
    return Abilities(
        wide=wide,
        formats=tuple(name for name in native if name != wide),
        is_card=False,
        emulated=emulated,
        flop_per_s=flop_per_s,
    )


PROCESSOR = processor_abilities(_SEEN)


def abilities_of(capability: str) -> Abilities:
    """Return what a card can do.

    Parameters
    ----------
    capability : compute capability such as 9.0, or architecture such as gfx942; empty for a processor

    Returns
    -------
    formats and kernels; whether a kernel really runs shows in the first shapes

    Examples
    --------
    >>> abilities_of("7.5").wide, abilities_of("8.0").formats, abilities_of("gfx942").fp8
    ('fp16', ('int8', 'w4a16'), torch.float8_e4m3fnuz)
    """
    if not capability:
        return PROCESSOR
    if capability.startswith("gfx"):
        return _amd(capability.partition(":")[0])
    major, _, minor = capability.partition(".")
    version = (int(major), int(minor or 0))
    if version < (8, 0):
        return Abilities(wide="fp16", formats=("int8",) if version >= (7, 5) else (), emulated=("bf16",))
    formats = ["int8", "w4a16"]
    if version >= (8, 9):
        formats += ["fp8", "fp8_row"]
    if version == (9, 0):
        formats.append("fp8_block")
    if version >= (10, 0):
        formats += ["mxfp8", "nvfp4"]
    return Abilities(
        wide="bf16",
        fp8=torch.float8_e4m3fn if version >= (8, 9) else None,
        formats=tuple(formats),
        grouped_products=version in GROUPED_PRODUCTS,
        varlen=True,
    )


def _amd(architecture: str) -> Abilities:
    has_fp8 = architecture in WITH_INFINITY_CACHE or architecture.startswith("gfx12")
    fp8 = torch.float8_e4m3fnuz if architecture in WITH_FNUZ else torch.float8_e4m3fn
    return Abilities(
        wide="bf16",
        fp8=fp8 if has_fp8 else None,
        formats=("int8", "fp8", "fp8_row") if has_fp8 else ("int8",),
        is_amd=True,
        cache_bytes=INFINITY_CACHE_BYTES if architecture in WITH_INFINITY_CACHE else None,
    )


def capability_of(properties: object) -> str:
    """Return the capability in the properties that torch reports of a device."""
    architecture = str(getattr(properties, "gcnArchName", "") or "")
    if torch.version.hip and architecture:
        return architecture.partition(":")[0]
    return f"{getattr(properties, 'major', 0)}.{getattr(properties, 'minor', 0)}"


USABLE_MEMORY_FRACTION = 0.6
"""Fraction of the free memory that the benchmarks may use."""
ARENA_FRACTION = 1.0 / 16.0
"""Maximum fraction of the usable memory for the random data of one dtype; there are up to six dtypes."""
SLACK_RATIOS = {"cuda": 1.25, "cpu": 4.0}
"""Memory of one case over that of its operands: results of every rotated set, workspaces of libraries, and on a processor
freed blocks that are not returned at once (seen: 0.9 GB next to the arenas, where the largest case has 0.27)."""
COLD_CACHES_CUDA = 4.0
"""Operands rotate over this many times the L2 size, so that they have been evicted when they are read again."""
COLD_CACHES_CPU = 1.25
"""Operands rotate over this many times the last-level cache of a processor, which other processes share."""
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
            "  timings under another load do not describe the device; free it, or pass --force"
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
