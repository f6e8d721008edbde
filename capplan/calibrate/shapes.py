"""The cases of one run: the sizes of serving, by what the device can do, which are held out, and the order in which they are timed.

Kinds of kernels are interleaved, the most informative shapes of each first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from capplan.calibrate.kernels.attention import PAGE_TOKENS
from capplan.calibrate.kernels.case import Case
from capplan.calibrate.kernels.engines import ENGINE_FORMATS, ENGINES, FP8_CACHE, engines_on
from capplan.calibrate.machine import PROCESSOR as ABLE_PROCESSOR
from capplan.calibrate.machine import Abilities
from capplan.numbers import Array
from capplan.readers.calibration.record import Measurement

FIRST = ("copy", "read", "launch")
"""Bandwidth and launches: every fit needs them."""


def interleaved(planned: Sequence[Case]) -> list[Case]:
    """Return the cases with their kinds interleaved, so that every kind gets its share of a limited time.

    Returns
    -------
    bandwidth and launches first, then the first shape of every kernel and dtype, the second of each, ...; within
    a kind each shape is the one furthest from those before it

    Examples
    --------
    >>> sizes = [Case("norm", "bf16", {"moved_bytes": float(2**p)}) for p in range(5)] + [Case("launch", "fp32", {})]
    >>> [case.shape.get("moved_bytes") for case in interleaved(sizes)]
    [None, 1.0, 16.0, 4.0, 2.0, 8.0]
    """
    first = [case for case in planned if case.operator in FIRST]
    kinds: dict[tuple[str, str], list[Case]] = {}
    for case in planned:
        if case.operator not in FIRST:
            kinds.setdefault((case.operator, case.dtype), []).append(case)
    lines = [[line[place] for place in furthest_first(_places(line))] for line in kinds.values()]
    longest = max((len(line) for line in lines), default=0)
    return first + [line[turn] for turn in range(longest) for line in lines if turn < len(line)]


def _places(cases: Sequence[Case]) -> Array:
    """Return the shapes as points: the logarithm of every size."""
    names = sorted(cases[0].shape)
    return np.log([[max(case.shape[name], 1.0) for name in names] for case in cases]).reshape(len(cases), -1)


def furthest_first(points: Array) -> list[int]:
    """Return the order of points in which each is as far as possible from all before it, starting with the smallest.

    Examples
    --------
    >>> furthest_first(np.array([[0.0], [1.0], [2.0], [4.0]]))
    [0, 3, 2, 1]

    References
    ----------
    Gonzalez 1985, "Clustering to minimize the maximum intercluster distance", section 2, doi:10.1016/0304-3975(85)90224-5.
    """
    order = [int(np.argmin(points.sum(axis=1)))]
    nearest = np.abs(points - points[order[0]]).sum(axis=1)
    while len(order) < len(points):
        nearest[order] = -1.0
        order.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.abs(points - points[order[-1]]).sum(axis=1))
    return order


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
    """Matrices between the powers of two: part-filled tiles and waves."""
    detailed_heads: tuple[tuple[int, int, int], ...] = ()
    """Heads that are also timed with cached tokens, windows, several query tokens and pages."""
    continued: tuple[tuple[int, int, int], ...] = ()
    """(sequences, new tokens, cached tokens) of prompts whose beginning is cached."""
    windowed: tuple[tuple[int, int, int], ...] = ()
    """(sequences, tokens, window)."""
    drafted: tuple[tuple[int, int, int], ...] = ()
    """(sequences, context, query tokens) of speculative verification."""


_POWERS = tuple(2**power for power in range(14))
_MIB = float(2**20)
ACCELERATOR = Grid(
    rows=_POWERS,
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
    rows=_POWERS,
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


HELD_OUT_FRACTION = 1.0 / 3.0
LEAST_HELD_OUT_OF = 6
"""Shapes of a kind from which a part is held out."""
LEAST_CONFIGURATIONS = 3
"""Matrices or head configurations of a kind from which whole ones are held out."""
SEED = 20
CONFIGURATION = {
    "matmul": ("inputs", "outputs"),
    "prefill_attention": ("query_heads", "kv_heads", "head_dim"),
    "decode_attention": ("query_heads", "kv_heads", "head_dim"),
    "experts": ("experts", "experts_per_token", "inputs", "intermediate"),
    "latent_decode": ("query_heads",),
    "latent_prefill": ("query_heads",),
    "latent_bmm": ("query_heads",),
}
"""Operator -> the sizes that a model decides: held out together."""
MOST_ABSORBED_TOKENS = 128
"""Only decode absorbs the expansion of latents, so these products have few rows."""
ACCELERATOR_MOST_FLOP = 4e13
"""Maximum of one product on a card; larger cases are left out."""
PROCESSOR_LONGEST_S = 0.07
"""Maximum of one product on a processor, at the rate that it showed for the format."""
LEAST_INT8_ROWS = 17
"""torch's int8 product needs more than 16 rows on CUDA."""
FEW = 3
"""Formats besides 16 bits and fp8 are timed on every third matrix, and on every second count of rows."""


def cases(able: Abilities = ABLE_PROCESSOR, *, quick: bool) -> list[Case]:
    """Return the cases of one run, interleaved over all kernels.

    Parameters
    ----------
    able : what the device can do; a processor gets smaller shapes
    quick : fewer shapes

    Returns
    -------
    cases in the order of `turns.interleaved`
    """
    grid = ACCELERATOR if able.is_card else PROCESSOR
    first = [*_bandwidth(grid), Case("launch", "fp32", {}, graph=False), Case("launch", "fp32", {})]
    rest = [*_matmuls(grid, able, quick=quick), *_attention(grid, able), *_passes(grid, able)]
    rest += [*_experts(grid, able), *_latent(grid, able), *_engines(grid, able)]
    if able.is_card:
        rest += list(_host_copies(grid))
        if quick:
            rest = interleaved(rest)[: len(rest) // 2]
    return interleaved(first + rest)


def held_out(measured: Iterable[Case | Measurement]) -> set[int]:
    """Return the positions held out of the fit: about a third of each kind, by whole matrices or head configurations.

    A fit of shapes between shapes that it saw interpolates; a model that nobody timed has matrices of its own. Kinds with
    fewer than three configurations, or without any (copies), hold out a random third of their shapes, and kinds of fewer
    than six shapes none.
    """
    groups: dict[tuple[str, str, str], list[int]] = {}
    listed = list(measured)
    for index, case in enumerate(listed):
        library = case.library if isinstance(case, Case) else library_of(case)
        groups.setdefault((case.operator, case.dtype, library), []).append(index)
    chosen: set[int] = set()
    for number, (_, members) in enumerate(sorted(groups.items())):
        if len(members) >= LEAST_HELD_OUT_OF:
            draw = np.random.default_rng(SEED + number)
            chosen |= _held_of([listed[index] for index in members], members, draw)
    return chosen


def library_of(measurement: Measurement) -> str:
    """Return the engine library whose kernel was timed; empty for torch's own."""
    return measurement.library if (measurement.operator, measurement.library) in ENGINES else ""


def _held_of(
    group: Sequence[Case | Measurement], members: Sequence[int], draw: np.random.Generator
) -> set[int]:
    names = CONFIGURATION.get(group[0].operator, ())
    owners = [tuple(case.shape[name] for name in names) for case in group]
    distinct = list(dict.fromkeys(owners))
    wanted = round(len(group) * HELD_OUT_FRACTION)
    if not names or len(distinct) < LEAST_CONFIGURATIONS:
        return {members[place] for place in draw.permutation(len(group))[:wanted]}
    held: set[int] = set()
    for place in draw.permutation(len(distinct)):
        some = {member for member, owner in zip(members, owners, strict=True) if owner == distinct[place]}
        if not held or len(held) + len(some) / 2 <= wanted:
            held |= some
    return held


def _named(names: str, values: Iterable[float]) -> Mapping[str, float]:
    return dict(zip(names.split(), map(float, values), strict=True))


def _bandwidth(grid: Grid) -> Iterator[Case]:
    for operator, dtype in (("copy", "bf16"), ("read", "fp32")):
        for size in grid.copies:
            yield Case(operator, dtype, {"moved_bytes": size})


def _matmuls(grid: Grid, able: Abilities, *, quick: bool) -> Iterator[Case]:
    if not able.is_card:
        for dtype in (able.wide,) if quick else (able.wide, *able.formats):
            most_flop = PROCESSOR_LONGEST_S * able.flop_per_s[dtype]
            yield from _products(dtype, grid.matrices, grid.rows, most_flop)
        return
    main = [able.wide, *(f for f in ("fp8",) if f in able.formats)]
    for dtype in main:
        yield from _products(dtype, grid.matrices, grid.rows, ACCELERATOR_MOST_FLOP)
        yield from _products(dtype, grid.odd_matrices, grid.odd_rows, ACCELERATOR_MOST_FLOP)
    others = [f for f in able.formats if f not in main] + (["fp16"] if able.wide == "bf16" else [])
    for dtype in [] if quick else others:
        rows = [r for r in grid.rows[:: FEW - 1] if dtype != "int8" or r >= LEAST_INT8_ROWS]
        yield from _products(dtype, grid.matrices[::FEW], rows, ACCELERATOR_MOST_FLOP)


def _products(
    dtype: str, matrices: Iterable[tuple[int, int]], rows: Iterable[int], most_flop: float, library: str = ""
) -> Iterator[Case]:
    for (inputs, outputs), count in product(matrices, rows):
        if 2.0 * count * inputs * outputs <= most_flop:
            shape = _named("rows inputs outputs", (count, inputs, outputs))
            yield Case("matmul", dtype, shape, library=library)


def prefill_case(
    sizes: Sequence[float], dtype: str, *, past: float = 0.0, window: float = 0.0, library: str = ""
) -> Case:
    """Return one shape of prefill attention: sequences, query heads, KV heads, head width, new tokens."""
    shape = dict(_named("sequences query_heads kv_heads head_dim new_tokens", sizes))
    details = {"past_tokens": past, "window_tokens": window}
    return Case("prefill_attention", dtype, shape | details, library=library)


def decode_case(
    sizes: Sequence[float],
    dtype: str,
    *,
    queries: float = 1.0,
    page: float = 0.0,
    library: str = "",
) -> Case:
    """Return one shape of decode attention: sequences, query heads, KV heads, head width, context."""
    shape = dict(_named("sequences query_heads kv_heads head_dim context_tokens", sizes))
    details = {"query_tokens": queries, "window_tokens": 0.0, "page_tokens": page}
    return Case("decode_attention", dtype, shape | details, library=library)


def _attention(grid: Grid, able: Abilities) -> Iterator[Case]:
    for heads, (sequences, tokens) in product(grid.heads, grid.prompts):
        yield prefill_case((sequences, *heads, tokens), able.wide)
    for heads, (sequences, context) in product(grid.heads, grid.contexts):
        yield decode_case((sequences, *heads, context), able.wide)
    for heads in grid.detailed_heads:
        for sequences, tokens, past in grid.continued:
            yield prefill_case((sequences, *heads, tokens), able.wide, past=past)
        for sequences, context, queries in grid.drafted:
            yield decode_case((sequences, *heads, context), able.wide, queries=queries)
        if not able.varlen:
            continue
        for sequences, tokens, window in grid.windowed:
            yield prefill_case((sequences, *heads, tokens), able.wide, window=window)
        for sequences, context in grid.contexts[1::4]:
            yield decode_case((sequences, *heads, context), able.wide, page=PAGE_TOKENS)


def _passes(grid: Grid, able: Abilities) -> Iterator[Case]:
    for size in grid.passes:
        yield Case("elementwise", able.wide, {"moved_bytes": size})
        if size >= 8.0 * grid.columns:
            yield Case("norm", able.wide, {"moved_bytes": size, "columns": float(grid.columns)})


def _experts(grid: Grid, able: Abilities, library: str = "") -> Iterator[Case]:
    names = "tokens experts experts_per_token inputs intermediate"
    for expert, tokens in product(grid.experts, grid.expert_tokens):
        yield Case("experts", able.wide, _named(names, (tokens, *expert)), library=library)


def _latent(grid: Grid, able: Abilities) -> Iterator[Case]:
    for heads, latent, rope, nope, value in grid.latent:
        yield from _latent_decodes(grid, able, (heads, latent, rope))
        for sequences, tokens in grid.prompts:
            sizes = (sequences, heads, rope, nope, value, tokens)
            yield Case(
                "latent_prefill", able.wide, _named("sequences query_heads rope nope value new_tokens", sizes)
            )
        decoding = [tokens for tokens in grid.expert_tokens if tokens <= MOST_ABSORBED_TOKENS]
        for rows, (inputs, outputs) in product(decoding, ((nope, latent), (latent, value))):
            shape = _named("tokens query_heads inputs outputs", (rows, heads, inputs, outputs))
            yield Case("latent_bmm", able.wide, shape)


def _latent_decodes(
    grid: Grid, able: Abilities, sizes: tuple[int, int, int], library: str = ""
) -> Iterator[Case]:
    for sequences, context in grid.contexts:
        shape = _named("sequences query_heads latent rope context_tokens", (sequences, *sizes, context))
        yield Case("latent_decode", able.wide, shape, library=library)


def _engines(grid: Grid, able: Abilities) -> Iterator[Case]:
    """Yield the shapes of engines' own kernels, where their libraries are installed."""
    for operator, library in engines_on(able):
        if operator == "matmul":
            for dtype in ENGINE_FORMATS[library]:
                yield from _products(dtype, grid.matrices, grid.rows[::2], ACCELERATOR_MOST_FLOP, library)
        elif operator == "experts":
            yield from _experts(grid, able, library)
        elif operator == "latent_decode":
            for query_heads, latent, rope, *_ in grid.latent:
                yield from _latent_decodes(grid, able, (query_heads, latent, rope), library)
        elif operator == "prefill_attention":
            for heads, (sequences, tokens) in product(grid.heads, grid.prompts):
                yield prefill_case((sequences, *heads, tokens), able.wide, library=library)
        else:
            caches = (able.wide, "fp8") if library in FP8_CACHE and able.fp8 else (able.wide,)
            for cache, heads, (sequences, context) in product(caches, grid.heads, grid.contexts):
                yield decode_case((sequences, *heads, context), cache, library=library)


def _host_copies(grid: Grid) -> Iterator[Case]:
    for operator, size in product(("host_to_device", "device_to_host"), grid.copies):
        if size <= 512 * _MIB:
            yield Case(operator, "int8", {"moved_bytes": size}, graph=False)
