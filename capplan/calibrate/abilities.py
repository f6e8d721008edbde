"""What torch's kernels can do: on a card by its compute capability, on a processor by what a product of each format takes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from capplan.readers.calibration.file import emulated_formats

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


def _product(name: str) -> Callable[[], torch.Tensor]:
    drawn = torch.Generator().manual_seed(ROWS)
    sizes = (ROWS, INPUTS), (OUTPUTS, INPUTS)
    first, second = (torch.randn(size, generator=drawn).mul_(10.0).to(_TORCH_DTYPES[name]) for size in sizes)
    weights = second.t()  # as a linear layer keeps them
    if name == "int8":
        int_mm: Callable[..., torch.Tensor] = getattr(torch, "_int_mm")  # noqa: B009 - private, in some releases
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
