"""Sizes to time: those of serving on a card, scaled down for a processor."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """Sizes for one class of device."""

    rows: tuple[int, ...]
    matrices: tuple[tuple[int, int], ...]
    """(inputs, outputs) of linear layers."""
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
    odd_rows: tuple[int, ...] = ()
    odd_matrices: tuple[tuple[int, int], ...] = ()
    """Between the powers of two: part-filled tiles and waves."""
    detailed_heads: tuple[tuple[int, int, int], ...] = ()
    """Heads that are also timed with cached tokens, windows, several query tokens and pages."""
    continued: tuple[tuple[int, int, int], ...] = ()
    """(sequences, new tokens, cached tokens) of prompts whose beginning is cached."""
    windowed: tuple[tuple[int, int, int], ...] = ()
    """(sequences, tokens, window)."""
    drafted: tuple[tuple[int, int, int], ...] = ()
    """(sequences, context, query tokens) of speculative verification."""


def _powers(first: int, last: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(first, last + 1))


_MIB = float(2**20)
ACCELERATOR = Grid(
    rows=_powers(0, 13),
    matrices=(
        (4096, 4096), (4096, 6144), (4096, 28672), (14336, 4096), (8192, 8192), (8192, 10240), (8192, 28672),
        (28672, 8192), (2048, 5120), (1536, 24576), (5120, 1280), (4096, 128256),
    ),
    odd_rows=(3, 24, 96, 200, 384, 640, 1000, 1536, 3000, 6000),
    odd_matrices=((3584, 4608), (2880, 5120), (7168, 2112)),
    heads=((32, 8, 128), (64, 8, 128), (8, 1, 128), (32, 32, 128), (16, 2, 64), (16, 8, 256)),
    prompts=(
        (1, 128), (1, 512), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (1, 16384), (4, 1024), (8, 512),
        (1, 200), (1, 777), (3, 3000),
    ),
    contexts=(
        *((b, c) for b in (1, 4, 16, 64, 256) for c in (256, 1024, 4096, 16384, 65536) if b * c <= 2**21),
        (3, 300), (20, 1500), (100, 5000),
    ),
    detailed_heads=((32, 8, 128), (8, 1, 128), (16, 2, 64)),
    continued=((1, 512, 4096), (1, 2048, 8192), (4, 256, 2048), (1, 128, 16384)),
    windowed=((1, 4096, 1024), (1, 8192, 128), (2, 6000, 4096)),
    drafted=((1, 4096, 4), (16, 1024, 4), (64, 4096, 2), (8, 16384, 8)),
    passes=tuple(float(2**power) for power in range(14, 31, 2)),
    columns=4096,
    experts=((8, 2, 4096, 14336), (64, 8, 2048, 1024), (128, 8, 2048, 768), (256, 8, 7168, 256)),
    expert_tokens=(1, 4, 16, 64, 128, 256, 512, 1024, 4096),
    latent=((16, 512, 64, 128, 128), (64, 512, 64, 128, 128), (128, 512, 64, 128, 128)),
    copies=tuple(_MIB * 2**power for power in range(12)),
)  # fmt: skip
PROCESSOR = Grid(
    rows=_powers(0, 13),
    matrices=(
        (2048, 2048), (2048, 4096), (4096, 2048), (4096, 4096), (2048, 8192), (8192, 2048), (4096, 14336),
    ),
    heads=((8, 2, 128), (8, 8, 128), (16, 4, 128), (8, 1, 128)),
    prompts=(
        (1, 64), (1, 128), (1, 192), (1, 256), (1, 384), (1, 512), (1, 768), (1, 1024), (2, 128), (2, 256),
        (4, 128),
    ),
    contexts=(
        (1, 256), (1, 1024), (1, 4096), (1, 16384), (4, 256), (4, 1024), (4, 4096), (16, 256), (16, 1024),
    ),
    passes=tuple(part * 2**power for power in range(13, 26) for part in (1.0, 1.5)),
    columns=1024,
    experts=((8, 2, 512, 1024), (16, 4, 1024, 1024), (32, 8, 2048, 768)),
    expert_tokens=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    latent=((8, 512, 64, 128, 128), (16, 512, 64, 128, 128)),
    copies=tuple(_MIB * 2**power for power in range(-2, 9)),
)  # fmt: skip
