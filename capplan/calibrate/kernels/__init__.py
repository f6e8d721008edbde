"""What is timed: kernels by operator, the ways to run each, and rotated sets of operands."""

from collections.abc import Mapping

import torch

from capplan.calibrate.kernels import attention, engines, matmul
from capplan.calibrate.kernels.case import Case, Kernel, Way
from capplan.calibrate.machine import Abilities
from capplan.calibrate.timing import Call, rewind_arenas

LARGEST_SETS = 256
"""Rotated copies of the operands, at most."""
MOST_ROUTINGS = 64
"""Routings of one set of experts, at most."""

KERNELS: Mapping[str, Kernel] = {
    "read": engines.READ,
    "copy": engines.COPY,
    "launch": engines.LAUNCH,
    "matmul": matmul.MATMUL,
    "prefill_attention": attention.PREFILL,
    "decode_attention": attention.DECODE,
    "elementwise": engines.ELEMENTWISE,
    "norm": engines.NORM,
    "experts": matmul.EXPERTS,
    "latent_prefill": attention.LATENT_PREFILL,
    "latent_decode": attention.LATENT_DECODE,
    "latent_bmm": attention.LATENT_BMM,
    "host_to_device": engines.TO_DEVICE,
    "device_to_host": engines.TO_HOST,
}
"""Kernel of each operator, by the name of the operator."""


def ways_of(case: Case, able: Abilities) -> Mapping[str, Way]:
    """Return the ways to run a case that a device may have, by library."""
    if case.library:
        return {case.library: engines.ENGINES[case.operator, case.library]}
    ways = KERNELS[case.operator].ways
    if case.operator == "matmul":
        ways = matmul.BY_FORMAT.get(case.dtype, ways)
    return {name: way for name, way in ways.items() if way.suits(able, case.shape)}


def case_bytes(case: Case) -> float:
    """Return the device memory of one set of the operands of a case [B].

    Examples
    --------
    >>> case_bytes(Case("copy", "bf16", {"moved_bytes": 1000.0}))
    1000.0
    """
    return KERNELS[case.operator].operand_bytes(case.shape, case.dtype)


def operand_sets(operand_bytes: float, cold_bytes: float) -> int:
    """Return how many sets of operands to rotate: as many as the arena holds without sharing memory.

    One more would overlap the first, which the end of a pass would leave in the cache for the next pass.

    Examples
    --------
    >>> operand_sets(25.0, 100.0), operand_sets(30.0, 100.0), operand_sets(1e9, 100.0)
    (4, 3, 1)
    """
    return int(min(max(cold_bytes // operand_bytes, 1), LARGEST_SETS))


def routings(touched_bytes: float, sets: int, cold_bytes: float) -> int:
    """Return how many routings each set of experts needs, so that a pass reads as much as the caches must forget.

    Examples
    --------
    One token reads 88 MB of a set of 2.8 GB; the caches forget after 504 MB:

    >>> routings(88e6, sets=1, cold_bytes=504e6)
    6
    """
    return int(min(max(-(-cold_bytes // (touched_bytes * sets)), 1), MOST_ROUTINGS))


def calls_of(case: Case, way: Way, device: torch.device, cold_bytes: float) -> list[Call]:
    """Return one call per rotated set of operands, or several with other routings where a call reads only a part."""
    kernel = KERNELS[case.operator]
    sets = operand_sets(case_bytes(case), cold_bytes)
    rewind_arenas()
    if kernel.touched_bytes is None or way.routed is None or not cold_bytes:
        return [way.built(case.shape, case.dtype, device) for _ in range(sets)]
    each = routings(kernel.touched_bytes(case.shape, case.dtype), sets, cold_bytes)
    numbers = [range(one * each, (one + 1) * each) for one in range(sets)]
    of_sets = [way.routed(case.shape, case.dtype, device, some) for some in numbers]
    return [call for turn in zip(*of_sets, strict=True) for call in turn]
