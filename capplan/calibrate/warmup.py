"""Warm-up before a run: one large matmul for about two seconds, which warms the card up and shows the rate that its power allows."""

import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch

from capplan.calibrate.kernels.arena import random_operand
from capplan.calibrate.machine import Target
from capplan.calibrate.readings import Watch
from capplan.readers.calibration.record import Sustained

WARM_S = 2.0
WARM_EDGE = 8192
"""Rows, inputs and outputs of the matmul."""
SMALL_WARM_EDGE = 4096
LARGE_CARD_BYTES = 12e9
LEAST_PARTS = 8
LOOKS = 20
"""Readings of the sensors during the warm-up."""


def warmed_up(target: Target, dtype: str, watch: Watch) -> Sustained | None:
    """Run one matmul over and over, and return its rates; None on a processor, or where it does not run.

    Parameters
    ----------
    target : the device
    dtype : 16-bit dtype to multiply in
    watch : keeps the readings of the sensors
    """
    if not target.is_cuda:
        return None
    edge = WARM_EDGE if target.usable_bytes > LARGE_CARD_BYTES else SMALL_WARM_EDGE
    try:
        rates = _rates(_product(edge, dtype, target.device), 2.0 * edge**3, watch, WARM_S)
    except RuntimeError:  # the cases say what does not run
        return None
    ends = max(len(rates) // 10, 1), max(len(rates) // 4, 1)
    return Sustained(float(np.median(rates[-ends[1] :])), float(np.median(rates[: ends[0]])), WARM_S, dtype)


def _product(edge: int, dtype: str, device: torch.device) -> Callable[[], object]:
    first, second = (random_operand((edge, edge), dtype, device) for _ in range(2))
    result = torch.empty_like(first)
    return lambda: torch.mm(first, second, out=result)


def _rates(call: Callable[[], object], flop: float, watch: Watch, seconds: float) -> list[float]:
    """Return the rate of each call in order [FLOP/s]."""
    call()
    torch.cuda.synchronize()
    rates: list[float] = []
    begin, looked = time.monotonic(), 0
    while (elapsed := time.monotonic() - begin) < seconds or len(rates) < LEAST_PARTS:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(5)]
        for event in events:
            event.record()
            if event is not events[-1]:
                call()
        events[-1].synchronize()
        rates += [flop / (one.elapsed_time(two) * 1e-3) for one, two in pairwise(events)]
        if looked <= LOOKS * elapsed / seconds:
            watch.look()
            looked += 1
    return rates
