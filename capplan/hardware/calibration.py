"""What was measured on one machine on one day, and the numbers fitted to it: plain records."""

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA_VERSION = 2
"""Of a calibration file; raised when a name changes its meaning or a part is added."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The device that was in front of us, and what ran on it."""

    device: str
    """What torch calls it: cpu, cuda:0."""
    name: str
    """What the driver calls it, such as NVIDIA H200."""
    uuid_hash: str
    """First 12 hexadecimal digits of the SHA-256 of the device's UUID (of the processor's name on a CPU)."""
    driver: str | None
    cuda: str | None
    torch: str
    threads: int | None
    """Of a CPU; None on an accelerator."""
    memory_bytes: float
    """What the driver reports."""
    multiprocessors: int
    """Streaming multiprocessors; on a CPU the threads used."""
    l2_bytes: float
    tile_rows: Mapping[str, float] = field(default_factory=dict)
    """Rows of the smallest tile of a matrix product, by dtype; a dtype that is not named has those of GPU libraries."""
    clocks: Mapping[str, str] = field(default_factory=dict)
    """Clocks and power state that the driver showed, as it wrote them; never set by us."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One shape of one operator."""

    operator: str
    dtype: str
    shape: Mapping[str, float]
    seconds: float
    """Median of the repeats."""
    spread_fraction: float
    """Half the distance of the quartiles, over the median."""
    repeats: int
    held_out: bool = False
    """True where the fit did not see it."""
    fitted_s: float | None = None
    """What the fitted form says of this shape."""


@dataclass(frozen=True, slots=True)
class FittedNumber:
    """One number of a form, with the interval that the residuals leave it."""

    value: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    constrained: bool = True
    """False where the shapes do not tell this number, or it stands at the end of its range."""


@dataclass(frozen=True, slots=True)
class Score:
    """How well a fitted form describes one operator."""

    points: int
    held_out_points: int
    median_ape: float
    """Median of |fitted / measured - 1| over the shapes of the fit."""
    held_out_median_ape: float | None
    """The same over the shapes that the fit did not see; None without any."""
    remarks: tuple[str, ...] = ()
    """Where the form does not fit."""


@dataclass(frozen=True, slots=True)
class KernelFit:
    """The numbers of one kernel in one dtype; several operators may share them."""

    kernel: str
    """As efficiency files name it: matmul, attention, ..."""
    dtype: str
    numbers: Mapping[str, FittedNumber]
    scores: Mapping[str, Score]
    """By operator."""

    @property
    def key(self) -> str:
        """Name in files: kernel/dtype."""
        return f"{self.kernel}/{self.dtype}"


@dataclass(frozen=True, slots=True)
class Peaks:
    """Best rates seen: what the fitted fractions are fractions of."""

    memory_bytes_per_s: float
    flop_per_s: Mapping[str, float]
    """By dtype."""
    link_bytes_per_s: float | None = None
    """Best rate per rank and direction between the ranks of a group; None for one alone."""
    ranks: int = 1
    """Ranks of the group."""
    node_ranks: int = 1
    """Of them on this machine."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """One run of the microbenchmarks."""

    machine: Machine
    date: str
    seconds: float
    quick: bool
    partial: bool
    """True where it was interrupted, or ran out of its time."""
    peaks: Peaks
    fits: tuple[KernelFit, ...]
    measurements: tuple[Measurement, ...]
    remarks: tuple[str, ...] = ()
    """What was skipped or shrunk, and why."""

    def fit_of(self, key: str) -> KernelFit | None:
        """Return the fit called kernel/dtype; None where there is none."""
        return next((fit for fit in self.fits if fit.key == key), None)


@dataclass(frozen=True, slots=True)
class ResultPoint:
    """One value of one result of a serving benchmark, measured and replayed."""

    result: str
    """File name."""
    metric: str
    """tpot_s, ttft_s, e2e_s, or token_s: seconds per token of the whole replica."""
    model: str
    concurrency: float | None
    measured_s: float
    before_s: float
    """Replayed with the numbers that the engine has here."""
    after_s: float
    """Replayed with the refitted numbers."""
    left_out_s: float
    """Replayed with numbers refitted without this result."""


@dataclass(frozen=True, slots=True)
class HostRefit:
    """What results of a serving benchmark say of an engine's host and of its kernels in a step, on one device."""

    engine: str
    engine_version: str
    """The known version whose numbers these replace."""
    hardware: str
    """Catalogue name."""
    tools: tuple[str, ...]
    models: tuple[str, ...]
    """With their parallelism."""
    numbers: Mapping[str, FittedNumber]
    """By field of `HostOverhead`."""
    kept: Mapping[str, float]
    """The fields that were not refitted."""
    points: tuple[ResultPoint, ...]
    before_median_ape: float
    after_median_ape: float
    left_out_median_ape: float
    date: str
    remarks: tuple[str, ...] = ()

    @property
    def results(self) -> int:
        """How many results stand behind the numbers."""
        return len({point.result for point in self.points})


@dataclass(frozen=True, slots=True)
class CalibrationFile:
    """What one calibration file holds: kernels that were measured, a host that was refitted, or both."""

    kernels: Calibration | None
    host: HostRefit | None
    notes: tuple[str, ...] = ()
    """What was migrated on load."""
