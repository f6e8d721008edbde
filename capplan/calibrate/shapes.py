"""The shapes to time: those of serving on an accelerator, scaled down for a processor."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from capplan.calibrate.kernels import Case
from capplan.calibrate.turns import interleaved
from capplan.readers.calibration.record import Measurement

HELD_OUT_FRACTION = 1.0 / 3.0
SEED = 20


@dataclass(frozen=True, slots=True)
class Grid:
    """Sizes for one class of device."""

    rows: tuple[int, ...]
    matrices: tuple[tuple[int, int], ...]
    """(inputs, outputs) of linear layers."""
    dtypes: tuple[str, ...]
    heads: tuple[tuple[int, int, int], ...]
    """(query heads, KV heads, head width)."""
    prompts: tuple[tuple[int, int], ...]
    """(sequences, tokens of each)."""
    contexts: tuple[tuple[int, int], ...]
    """(sequences, tokens in the cache of each)."""
    passes: tuple[float, ...]
    """Bytes moved by elementwise kernels."""
    columns: int
    experts: tuple[tuple[int, int, int, int], ...]
    """(experts, experts per token, width, inner width)."""
    expert_tokens: tuple[int, ...]
    latent: tuple[tuple[int, int, int, int, int], ...]
    """(heads, latent, rope, nope, value) of latent attention."""
    copies: tuple[float, ...]
    """Bytes read or copied for the bandwidth."""


def _powers(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    return tuple(2**power for power in range(first, last + 1, step))


_MIB = float(2**20)
ACCELERATOR = Grid(
    rows=_powers(0, 13),
    matrices=(
        (4096, 4096), (4096, 6144), (4096, 28672), (14336, 4096), (8192, 8192), (8192, 10240), (8192, 28672),
        (28672, 8192), (2048, 5120), (1536, 24576), (5120, 1280), (4096, 128256),
    ),
    dtypes=("bf16", "fp16", "fp8", "int8"),
    heads=((32, 8, 128), (64, 8, 128), (8, 1, 128), (32, 32, 128), (16, 2, 64), (16, 8, 256)),
    prompts=((1, 128), (1, 512), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (1, 16384), (4, 1024), (8, 512)),
    contexts=tuple((b, c) for b in (1, 4, 16, 64, 256) for c in (256, 1024, 4096, 16384, 65536) if b * c <= 2**21),
    passes=tuple(float(2**power) for power in range(14, 31, 2)),
    columns=4096,
    experts=((8, 2, 4096, 14336), (64, 8, 2048, 1024), (128, 8, 2048, 768), (256, 8, 7168, 256)),
    expert_tokens=(1, 4, 16, 64, 128, 256, 512, 1024, 4096),
    latent=((16, 512, 64, 128, 128), (128, 512, 64, 128, 128)),
    copies=tuple(_MIB * 2**power for power in range(12)),
)  # fmt: skip
PROCESSOR = Grid(
    rows=_powers(0, 13),
    matrices=(
        (2048, 2048),
        (2048, 4096),
        (4096, 2048),
        (4096, 4096),
        (2048, 8192),
        (8192, 2048),
        (4096, 14336),
    ),
    dtypes=("bf16", "fp32", "fp16", "int8"),
    heads=((8, 2, 128), (8, 8, 128), (16, 4, 128), (8, 1, 128)),
    prompts=(
        (1, 64),
        (1, 128),
        (1, 192),
        (1, 256),
        (1, 384),
        (1, 512),
        (1, 768),
        (1, 1024),
        (2, 128),
        (2, 256),
        (4, 128),
    ),
    contexts=(
        (1, 256),
        (1, 1024),
        (1, 4096),
        (1, 16384),
        (4, 256),
        (4, 1024),
        (4, 4096),
        (16, 256),
        (16, 1024),
    ),
    passes=tuple(part * 2**power for power in range(13, 26) for part in (1.0, 1.5)),
    columns=1024,
    experts=((8, 2, 512, 1024), (16, 4, 1024, 1024), (32, 8, 2048, 768)),
    expert_tokens=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    latent=((8, 512, 64, 128, 128), (16, 512, 64, 128, 128)),
    copies=tuple(_MIB * 2**power for power in range(-2, 9)),
)
MOST_ABSORBED_TOKENS = 128
"""Only decode absorbs the expansion of latents, so these products have few rows."""
ACCELERATOR_MOST_FLOP = 4e13
PROCESSOR_MOST_FLOP = {"bf16": 7e10, "fp16": 2e9, "fp32": 4e9, "int8": 2e10}
"""Maximum of one product; larger cases are left out."""
QUICK_DTYPES = {"cuda": ("bf16", "fp8"), "cpu": ("bf16",)}


def cases(*, accelerator: bool, quick: bool) -> list[Case]:
    """Return the cases of one run, interleaved over all kernels.

    Parameters
    ----------
    accelerator : serving shapes, else those of a processor
    quick : fewer shapes

    Returns
    -------
    cases in the order of `turns.interleaved`
    """
    grid = ACCELERATOR if accelerator else PROCESSOR
    first = [*_bandwidth(grid), Case("launch", "fp32", {}, graph=False), Case("launch", "fp32", {})]
    rest = [*_matmuls(grid, accelerator=accelerator, quick=quick), *_attention(grid), *_passes(grid)]
    rest += [*_experts(grid), *_latent(grid)]
    if accelerator:
        rest += list(_host_copies(grid))
        if quick:
            rest = interleaved(rest)[: len(rest) // 2]
    return interleaved(first + rest)


def held_out(measured: Iterable[Case | Measurement]) -> set[int]:
    """Return the positions held out of the fit: a random third of each operator and dtype.

    Groups of fewer than six shapes keep all of them in the fit.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for index, case in enumerate(measured):
        groups.setdefault((case.operator, case.dtype), []).append(index)
    chosen: set[int] = set()
    for number, (_, members) in enumerate(sorted(groups.items())):
        if len(members) >= 6:
            order = np.random.default_rng(SEED + number).permutation(len(members))
            chosen |= {members[position] for position in order[: round(len(members) * HELD_OUT_FRACTION)]}
    return chosen


def _named(names: str, values: Iterable[float]) -> Mapping[str, float]:
    return dict(zip(names.split(), map(float, values), strict=True))


def _bandwidth(grid: Grid) -> Iterator[Case]:
    for operator, dtype in (("copy", "bf16"), ("read", "fp32")):
        for size in grid.copies:
            yield Case(operator, dtype, {"moved_bytes": size})


def _matmuls(grid: Grid, *, accelerator: bool, quick: bool) -> Iterator[Case]:
    dtypes = QUICK_DTYPES["cuda" if accelerator else "cpu"] if quick else grid.dtypes
    for dtype, (inputs, outputs), rows in product(dtypes, grid.matrices, grid.rows):
        most = ACCELERATOR_MOST_FLOP if accelerator else PROCESSOR_MOST_FLOP[dtype]
        if 2.0 * rows * inputs * outputs > most:
            continue
        if accelerator and dtype == "int8" and rows <= 16:
            continue  # torch's int8 product needs more than 16 rows on CUDA
        yield Case("matmul", dtype, _named("rows inputs outputs", (rows, inputs, outputs)))


def _attention(grid: Grid) -> Iterator[Case]:
    for heads, (sequences, tokens) in product(grid.heads, grid.prompts):
        sizes = (sequences, *heads, tokens)
        yield Case(
            "prefill_attention", "bf16", _named("sequences query_heads kv_heads head_dim new_tokens", sizes)
        )
    for heads, (sequences, context) in product(grid.heads, grid.contexts):
        sizes = (sequences, *heads, context)
        yield Case(
            "decode_attention",
            "bf16",
            _named("sequences query_heads kv_heads head_dim context_tokens", sizes),
        )


def _passes(grid: Grid) -> Iterator[Case]:
    for size in grid.passes:
        yield Case("elementwise", "bf16", {"moved_bytes": size})
        if size >= 8.0 * grid.columns:
            yield Case("norm", "bf16", {"moved_bytes": size, "columns": float(grid.columns)})


def _experts(grid: Grid) -> Iterator[Case]:
    names = "tokens experts experts_per_token inputs intermediate"
    for expert, tokens in product(grid.experts, grid.expert_tokens):
        yield Case("experts", "bf16", _named(names, (tokens, *expert)))


def _latent(grid: Grid) -> Iterator[Case]:
    for heads, latent, rope, nope, value in grid.latent:
        for sequences, context in grid.contexts:
            shape = _named(
                "sequences query_heads latent rope context_tokens", (sequences, heads, latent, rope, context)
            )
            yield Case("latent_decode", "bf16", shape)
        for sequences, tokens in grid.prompts:
            sizes = (sequences, heads, rope, nope, value, tokens)
            yield Case(
                "latent_prefill", "bf16", _named("sequences query_heads rope nope value new_tokens", sizes)
            )
        decoding = [tokens for tokens in grid.expert_tokens if tokens <= MOST_ABSORBED_TOKENS]
        for rows, (inputs, outputs) in product(decoding, ((nope, latent), (latent, value))):
            yield Case(
                "latent_bmm",
                "bf16",
                _named("tokens query_heads inputs outputs", (rows, heads, inputs, outputs)),
            )


def _host_copies(grid: Grid) -> Iterator[Case]:
    for operator, size in product(("host_to_device", "device_to_host"), grid.copies):
        if size <= 512 * _MIB:
            yield Case(operator, "int8", {"moved_bytes": size}, graph=False)
