"""What was measured on one machine on one day, and the numbers fitted to it, host times of engines included: the schema of a calibration file.

The file is these records as YAML: names, order, what is allowed and which figures are rounded stand only here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PlainSerializer

SCHEMA_VERSION = 4
"""Version of a calibration file; raised when a name changes its meaning or a part is added."""
SIGNIFICANT_DIGITS = 6
"""Significant digits of a rounded figure."""


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


Exact: TypeAlias = Annotated[float, PlainSerializer(float)]
"""A figure that is written as it is."""
Rounded: TypeAlias = Annotated[float, PlainSerializer(_rounded)]
"""A figure that is rounded to its significant digits."""
ZeroOrMore: TypeAlias = Annotated[Rounded, Field(ge=0)]
Positive: TypeAlias = Annotated[Rounded, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class Machine:
    """The device that was measured, and its software."""

    device: str
    """Name of the device in torch, such as cpu or cuda:0."""
    name: str
    """Name of the device in the driver, such as NVIDIA H200."""
    uuid_hash: Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
    """First 12 hexadecimal digits of the SHA-256 of the device's UUID (of the processor's name on a CPU)."""
    driver: str | None
    cuda: str | None
    torch: str
    threads: int | None
    """Threads of a CPU; None on an accelerator."""
    memory_bytes: Annotated[Exact, Field(gt=0)]
    """What the driver reports."""
    multiprocessors: Annotated[int, Field(gt=0)]
    """Streaming multiprocessors; on a CPU the threads used."""
    l2_bytes: Annotated[Exact, Field(gt=0)]
    tile_rows: Mapping[str, Annotated[Exact, Field(gt=0)]] = field(default_factory=dict)
    """Rows of the smallest tile of a matrix product, by dtype; a dtype that is not named has those of GPU libraries."""
    clocks: Mapping[str, str] = field(default_factory=dict)
    """Clocks, power state, ECC, MIG and persistence that the driver showed, as it wrote them; never set by us."""
    capability: str = ""
    """Compute capability (9.0) or architecture (gfx942); empty on a CPU."""
    cache_bytes: Annotated[Exact, Field(gt=0)] | None = None
    """Last cache before memory, where it is not the L2: the Infinity Cache."""
    emulated: tuple[str, ...] = ()
    """Formats that the device has no units for, so that none of their times is here."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One shape of one operator."""

    operator: str
    dtype: str
    shape: Mapping[str, Exact]
    median_s: Positive
    """Median time of the repeats."""
    spread_fraction: ZeroOrMore
    """Half the distance of the quartiles, over the median."""
    repeats: Annotated[int, Field(gt=0)]
    held_out: bool = False
    """True for a held-out shape."""
    fitted_s: Positive | None = None
    """Time predicted by the fitted form."""
    library: str = ""
    """What ran it, the quickest where several could."""
    throttled: bool = False
    """True where every repeat ran while the device slowed itself down for heat: no fit sees it."""


@dataclass(frozen=True, slots=True)
class FittedNumber:
    """One number of a form, with the interval that follows from the residuals."""

    value: Rounded
    low: Rounded
    """Lower end of the 95 % interval."""
    high: Rounded
    constrained: bool = True
    """False where the shapes do not determine this number, or it is at the end of its range."""


@dataclass(frozen=True, slots=True)
class Score:
    """How well a fitted form describes one operator."""

    points: Annotated[int, Field(ge=0)]
    held_out_points: Annotated[int, Field(ge=0)]
    median_ape: ZeroOrMore
    """Median of |fitted / measured - 1| over the shapes of the fit."""
    held_out_median_ape: ZeroOrMore | None
    """Median of |fitted / measured - 1| over held-out shapes; None without any."""
    remarks: tuple[str, ...] = ()
    """Shapes that the form does not fit."""


@dataclass(frozen=True, slots=True)
class KernelFit:
    """The numbers of one kernel in one dtype, which several operators may share."""

    numbers: Mapping[str, FittedNumber]
    operators: Mapping[str, Score]
    """How well the form describes each of them."""
    libraries: tuple[str, ...] = ()
    """What ran the shapes, most frequent first."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Best rates seen: the denominators of the fitted fractions."""

    memory_bytes_per_s: Positive
    flop_per_s: Mapping[str, Rounded]
    """Best rate of each dtype."""
    link_bytes_per_s: Positive | None = None
    """Best rate per rank and direction between the ranks of a group; None for a single one."""
    ranks: Annotated[int, Field(gt=0)] = 1
    """Ranks of the group."""
    node_ranks: Annotated[int, Field(gt=0)] = 1
    """Ranks of the group on this machine."""


@dataclass(frozen=True, slots=True)
class Range:
    """Lowest, middle and highest of what was read during a run."""

    low: ZeroOrMore
    median: ZeroOrMore
    high: ZeroOrMore


@dataclass(frozen=True, slots=True)
class Sustained:
    """One large matmul repeated for about two seconds, at the start of a run."""

    flop_per_s: Positive
    """Rate in the last quarter of the run: the rate that power and heat allow."""
    first_flop_per_s: Positive
    """Rate in the first tenth of the run, before the device lowered its clock."""
    seconds: Positive
    dtype: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the driver showed while the benchmarks ran."""

    readings: Annotated[int, Field(ge=0)]
    """Times that the sensors were read; 0 where there are none."""
    clock_hz: Range | None = None
    memory_clock_hz: Range | None = None
    power_w: Range | None = None
    temperature_c: Range | None = None
    slowed_fraction: Mapping[str, ZeroOrMore] = field(default_factory=dict)
    """Reason to lower the clock -> fraction of the readings that showed it."""
    rejected_repeats: Annotated[int, Field(ge=0)] = 0
    """Repeats dropped because the device was slowing itself down for heat."""
    passes: Annotated[int, Field(ge=0)] = 0
    """Complete passes over all shapes."""
    seed: int = 0
    """Seed of routings and random operands."""
    sustained: Sustained | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """One run of the microbenchmarks."""

    date: str
    seconds: ZeroOrMore
    quick: bool
    partial: bool
    """True where it was interrupted, or ran out of its time."""
    machine: Machine
    peaks: Peaks
    fitted: Mapping[str, KernelFit]
    """Fit of each kernel/dtype, with kernels named as in efficiency files: matmul, attention, ..."""
    remarks: tuple[str, ...]
    """What was skipped or shrunk, and why."""
    measurements: tuple[Measurement, ...]
    missing: tuple[str, ...] = ()
    """Kernels and dtypes that were planned but not measured."""
    conditions: Conditions | None = None
    """Clocks, power and heat during the run; None in older files."""


@dataclass(frozen=True, slots=True)
class ResultPoint:
    """One value of one result of a serving benchmark, measured and replayed."""

    result: str
    """File name."""
    metric: str
    """tpot_s, ttft_s, e2e_s, or token_s: seconds per token of the whole replica."""
    model: str
    concurrency: Exact | None
    measured_s: Positive
    before_s: Positive
    """Replayed with the shipped numbers of the engine."""
    after_s: Positive
    """Replayed with the refitted numbers."""
    left_out_s: Positive
    """Replayed with numbers refitted without this result."""
    input_tokens: Positive | None = None
    """Mean input tokens of its requests; None in older files."""
    output_tokens: Positive | None = None
    request_rate_per_s: Positive | None = None
    """Rate of an open loop; None for a closed one, and in older files."""


@dataclass(frozen=True, slots=True)
class StepPoint:
    """Decode steps of one number of sequences, as clients of a running server saw them."""

    sequences: Positive
    context_tokens: ZeroOrMore
    """Tokens of a sequence in the cache, mean over the sequences."""
    measured_s: Positive
    after_s: Positive
    """What the refitted numbers predict."""


@dataclass(frozen=True, slots=True)
class HostRefit:
    """Host times of an engine, and of its kernels in a step, fitted to results of a serving benchmark on one device."""

    engine: str
    engine_version: str
    """The known version whose numbers these replace."""
    hardware: str
    """Catalogue name."""
    tools: tuple[str, ...]
    models: tuple[str, ...]
    """Models with their parallelism."""
    numbers: Mapping[str, FittedNumber]
    """Fitted number of each field of `HostOverhead`."""
    kept: Mapping[str, Exact]
    """The fields that were not refitted."""
    before_median_ape: ZeroOrMore
    after_median_ape: ZeroOrMore
    left_out_median_ape: ZeroOrMore
    date: str
    remarks: tuple[str, ...]
    points: tuple[ResultPoint, ...]
    policy: Literal["slots"] | None = None
    """Scheduler of the server where it is not the engine's own: the slots of llama.cpp's server."""
    steps: tuple[StepPoint, ...] = ()
    """Decode steps that streams of a running server showed; none of results, nor in older files."""
    pace: Range | None = None
    """Steps of the loads of a running server: what they took over the same steps at the mean pace of all loads."""

    @property
    def results(self) -> int:
        """Number of results that the numbers rest on."""
        return len({point.result for point in self.points})


@dataclass(frozen=True, slots=True)
class CalibrationFile:
    """The content of a calibration file: measured kernels, refitted host times, or both."""

    kernels: Calibration | None
    host: HostRefit | None
