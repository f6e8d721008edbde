"""Random operands, cut from memory that is filled once."""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from capplan.calibrate.machine import abilities_of, capability_of

SEED = 20
"""Seed of random operands and routings; the same in every run."""
LARGEST_DRAW = 2**20
"""Random elements generated at once; larger operands repeat them."""
ALIGNED = 1024
"""Operands start at multiples of this many elements."""
TORCH_DTYPES = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8,
}  # fmt: skip
STORED_IN = {"fp8_row": "fp8", "fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "int8", "w4a16": "int8"}
"""Format of a matmul -> dtype of the arena that its weights are cut from."""
ELEMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
_RESULTS = "results"
"""Name of the arena that large results are written to."""


@dataclass(slots=True)
class Arena:
    """Random data of one dtype, of which operands are consecutive slices.

    A pass over all slices reads the whole arena, so none of them is still in the cache when its turn comes, and
    creating operands costs nothing.
    """

    values: torch.Tensor
    position: int = 0

    def cut(self, count: int) -> torch.Tensor | None:
        """Return the next `count` elements; None where the arena is shorter than that."""
        size = self.values.numel()
        if count > size:
            return None
        if self.position + count > size:
            self.position = 0
        start = self.position
        self.position += -(-count // ALIGNED) * ALIGNED
        return self.values[start : start + count]


_ARENAS: dict[tuple[torch.device, str], Arena] = {}


def torch_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype as torch names it; fp8 is the kind that the device multiplies."""
    if name != "fp8":
        return TORCH_DTYPES[name]
    if device.type != "cuda":
        return torch.float8_e4m3fn
    able = abilities_of(capability_of(torch.cuda.get_device_properties(device)))
    return able.fp8 or torch.float8_e4m3fn


def prepare_arenas(device: torch.device, dtypes: Iterable[str], arena_bytes: float) -> None:
    """Fill the arenas of a run with random data, and drop those of an earlier run."""
    drop_arenas()
    torch.manual_seed(SEED)
    for dtype in dict.fromkeys(STORED_IN.get(name, name) for name in dtypes):
        with suppress(RuntimeError):  # a dtype that cannot be generated is skipped and reported case by case
            _ARENAS[device, dtype] = Arena(_drawn(int(arena_bytes / ELEMENT_BYTES[dtype]), dtype, device))
    _ARENAS[device, _RESULTS] = Arena(_drawn(int(arena_bytes / 2.0), "fp16", device).view(torch.bfloat16))


def drop_arenas() -> None:
    """Release the memory of all arenas."""
    _ARENAS.clear()


def rewind_arenas() -> None:
    """Let the next operands start at the beginning of their arena."""
    for arena in _ARENAS.values():
        arena.position = 0


def random_operand(sizes: Sequence[float], dtype: str, device: torch.device) -> torch.Tensor:
    """Return random data: with zeros or ones the device would draw less power and clock higher."""
    whole = tuple(int(size) for size in sizes)
    arena = _ARENAS.get((device, dtype))
    values = arena.cut(math.prod(whole)) if arena else None
    return (_drawn(math.prod(whole), dtype, device) if values is None else values).reshape(whole)


def result_space(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return memory for a result that is as cold as the operands."""
    arena = _ARENAS.get((device, _RESULTS))
    values = arena.cut(-(-like.numel() * like.element_size() // 2)) if arena else None
    if values is None or like.element_size() % 2:
        return torch.empty_like(like)
    return values.view(like.dtype).reshape(like.shape)


def _drawn(count: int, dtype: str, device: torch.device) -> torch.Tensor:
    kind = torch_dtype(dtype, device)
    some = min(count, LARGEST_DRAW)
    if dtype == "int8":
        drawn = torch.randint(-127, 128, (some,), dtype=kind, device=device)
    else:
        drawn = torch.randn(some, dtype=torch.float16 if dtype == "fp8" else kind, device=device).to(kind)
    return drawn if some == count else drawn.repeat(-(-count // some))[:count]
