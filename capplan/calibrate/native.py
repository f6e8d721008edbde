"""How fast a processor multiplies in each format, found in its first second: emulation shows in the time of one product."""

import time
from collections.abc import Callable, Mapping

import torch

from capplan.calibrate.abilities import PROCESSOR_FORMATS

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16, "int8": torch.int8}
ROWS, INPUTS, OUTPUTS = 256, 512, 512
"""Of the product: large enough for the kernels of many rows, 134 MFLOP."""
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
    first, second = (torch.randn(size, generator=drawn).mul_(10.0).to(TORCH_DTYPES[name]) for size in sizes)
    weights = second.t()  # as a linear layer keeps them
    if name == "int8":
        int_mm: Callable[..., torch.Tensor] = getattr(torch, "_int_mm")  # noqa: B009 - private, in some releases
        return lambda: int_mm(first, weights)
    return lambda: torch.mm(first, weights)
