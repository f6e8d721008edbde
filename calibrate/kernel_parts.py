"""Fit the numbers of kernels to timings: part by part, robustly, and again without each third of the shapes."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from capplan.accuracy.kernel_rows import KernelCase
from capplan.accuracy.kernels import PARTS, Part, eager_time_s, part_time_s
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Fit
from capplan.numbers import Array
from capplan.operators.device_rates import RECORDS, kernel_rates

START_AND_RANGE: dict[str, tuple[float, float, float]] = {
    "compute_fraction": (0.75, 0.03, 1.0), "memory_fraction": (0.8, 0.02, 1.0), "sharpness": (3.5, 1.0, 12.0),
    "floor_s": (5e-6, 5e-7, 3e-4), "tile_edge": (10.0, 0.01, 1000.0), "start_inputs": (100.0, 1.0, 2000.0),
    "wave_fraction": (0.5, 0.01, 1.0), "starved_exponent": (0.2, 0.001, 1.0), "sustained_loss": (0.1, 0.001, 0.6),
    "quantise_passes": (6.0, 2.0, 100.0), "routed_passes": (3.0, 0.1, 60.0), "token_passes": (2.0, 0.05, 40.0),
    "prefill_fraction": (0.8, 0.03, 1.0), "prefill_memory_fraction": (0.5, 0.02, 1.0),
    "prefill_ramp_tokens": (80.0, 0.1, 3000.0), "prefill_tail_fraction": (0.5, 0.01, 2.0),
    "softmax_width": (50.0, 0.1, 750.0), "prefill_sharpness": (2.5, 1.0, 12.0), "prefill_floor_s": (8e-6, 1e-7, 1e-4),
    "wide_head_exponent": (0.05, 0.001, 1.0), "decode_fraction": (0.85, 0.05, 1.0),
    "decode_compute_fraction": (0.1, 0.003, 1.0), "decode_tail_fraction": (0.3, 0.001, 3.0),
    "decode_pad_tokens": (50.0, 0.1, 1000.0), "decode_split_tokens": (256.0, 16.0, 4096.0),
    "decode_query_passes": (1.0, 0.5, 20.0), "decode_floor_s": (8e-6, 1e-7, 5e-5), "bmm_fraction": (0.6, 0.02, 1.0),
    "bmm_memory_fraction": (0.7, 0.02, 1.0), "bmm_floor_s": (3e-6, 1e-7, 5e-5), "chunk_fraction": (0.2, 0.005, 1.0),
    "chunk_memory_fraction": (0.6, 0.02, 1.0), "chunk_state_passes": (1.0, 0.01, 30.0),
    "chunk_step_s": (2e-6, 1e-8, 1e-4), "chunk_floor_s": (1.5e-5, 1e-6, 2e-4),
    "convolution_fraction": (0.5, 0.01, 1.0), "convolution_pad_tokens": (8.0, 1.0, 5000.0),
    "convolution_floor_s": (3e-6, 1e-7, 5e-5), "update_fraction": (0.5, 0.01, 1.0), "update_floor_s": (2e-6, 1e-7, 5e-5),
    "ring_fraction": (0.8, 0.05, 1.0), "ring_step_s": (7e-7, 1e-8, 5e-6), "ring_floor_s": (6e-6, 1e-6, 3e-5),
    "ring_ramp_bytes": (1e7, 1e4, 1e9), "crowding_exponent": (0.1, 0.001, 3.0), "multicast_fraction": (0.4, 1e-4, 2.0),
    "multicast_floor_s": (1.5e-5, 3e-6, 1e-4), "all_to_all_fraction": (1.0, 0.3, 3.0),
    "all_to_all_step_s": (5e-7, 1e-9, 5e-6), "one_shot_fraction": (0.5, 0.02, 1.0), "one_shot_step_s": (1e-7, 1e-9, 5e-6),
    "one_shot_floor_s": (4e-6, 5e-7, 3e-5), "two_shot_fraction": (0.5, 0.02, 1.0), "two_shot_step_s": (2e-7, 1e-9, 5e-6),
    "two_shot_floor_s": (6e-6, 1e-6, 1e-4), "direct_crowding_exponent": (0.1, 0.001, 3.0),
    "exchange_fraction": (0.5, 0.01, 1.0), "dispatch_floor_s": (5e-5, 1e-6, 5e-4), "combine_floor_s": (4e-5, 1e-6, 5e-4),
    "launch_s": (4e-5, 1e-6, 5e-4), "loop_l2_ratio": (1.3, 1.0, 6.0),
}  # fmt: skip
"""Start, least and largest value of every number."""
UNTOLD = {"network_fraction": 0.7, "network_step_s": 5e-6, "router_skew": 0.5, "sustained_loss": 0.0, "launch_s": 0.0,
          "quantise_passes": 0.0}  # fmt: skip
"""Numbers that no timing here tells: assumptions, see docs/assumptions."""
SHEET = frozenset(
    {"flop_per_s", "bytes_per_s", "multiprocessors", "l2_bytes", "link_bytes_per_s", "network_bytes_per_s",
     "domain_devices"}
)  # fmt: skip
"""Fields of the records that the datasheet gives."""
QUANTISING = frozenset({"fp8", "fp8_block", "int8", "nvfp4"})
TYPICAL_ERROR = 0.05
"""Relative errors beyond this count less than squared: a tenth of the timings are off by half for no reason of
shape (a neighbour is not), and the numbers should not follow them."""
PULL = 0.03
"""Weight that keeps a number that no timing tells at its start."""
LARGEST_WEIGHT = 8.0
"""Of a timing of the first table (shapes of dense models) against one of the second (a sample of everything):
both tables weigh the same, up to this."""
FOLDS = 3
SHAPE = {
    "matmul": ("inputs", "outputs"), "attention": ("query_heads", "kv_heads", "head_dim", "window_tokens"),
    "latent_attention": ("query_heads",), "latent_bmm": ("query_heads",), "link": ("message_bytes", "inputs"),
    "experts": ("experts", "inputs", "intermediate_size", "experts_per_token"),
    "linear_attention": ("channels",), "elementwise": ("moved_bytes",),
}  # fmt: skip
"""What makes a shape family: rows of one family are held out together."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One modelled row."""

    case: KernelCase
    seconds: float
    table: str
    version: str
    group: str
    """What it is scored under."""


@dataclass(frozen=True, slots=True)
class PartFit:
    """What the timings of one part of one kernel say."""

    numbers: dict[str, float]
    errors: Array
    """Relative, by timing, in-sample."""
    held_out_errors: Array
    """By timing, of fits that had not seen its shape family; NaN where none was made."""
    versions: tuple[str, ...]


def timing_columns(own: Sequence[Timing]) -> dict[str, Array]:
    """Return the arguments of timings of one part as arrays by name."""
    return {
        name: np.array([t.case.arguments[name] for t in own], dtype=np.float64)
        for name in own[0].case.arguments
    }


def fold_of(case: KernelCase) -> int:
    """Return which third a timing belongs to: by its shape family, so that a family is never split."""
    shape = ",".join(f"{case.arguments.get(name, 0.0):g}" for name in SHAPE[case.kernel])
    return zlib.crc32(shape.encode()) % FOLDS


@dataclass(frozen=True, slots=True)
class _Problem:
    """One part of one kernel on one device, ready for the solver."""

    part: Part
    names: tuple[str, ...]
    columns: Mapping[str, Array]
    seconds: Array
    weights: Array
    rates: Any
    l2_bytes: float
    eager: NDArray[np.bool_]

    def predicted(self, logs: Array, keep: NDArray[np.bool_] | None = None) -> Array:
        values = dict(zip(self.names, np.exp(logs), strict=True))
        ratio = values.pop("loop_l2_ratio", 1.0)
        columns = (
            self.columns if keep is None else {name: column[keep] for name, column in self.columns.items()}
        )
        rates = replace(self.rates, **values)
        seconds = part_time_s(self.part, columns, rates, self.l2_bytes, ratio)
        eager = self.eager if keep is None else self.eager[keep]
        if eager.any():
            seconds = np.where(eager, eager_time_s(seconds, rates.launch_s), seconds)
        return np.asarray(seconds, dtype=np.float64)

    def solved(self, keep: NDArray[np.bool_], starts: Sequence[Array]) -> Array:
        low, high = (np.log([START_AND_RANGE[name][i] for name in self.names]) for i in (1, 2))
        middle = np.log([START_AND_RANGE[name][0] for name in self.names])
        measured, weights = np.log(self.seconds[keep]), np.sqrt(self.weights[keep])

        def residuals(logs: Array) -> Array:
            predicted = np.log(np.maximum(self.predicted(logs, keep), 1e-12))
            return np.concatenate([weights * (predicted - measured), PULL * (logs - middle)])

        best: Any = None
        for start in starts:
            inside = np.clip(start, low + 1e-4, high - 1e-4)
            found = least_squares(
                residuals,
                inside,
                bounds=(low, high),
                loss="soft_l1",
                f_scale=TYPICAL_ERROR,
                diff_step=3e-3,
                max_nfev=80,
            )
            best = found if best is None or found.cost < best.cost else best
        return np.asarray(best.x, dtype=np.float64)


def fitted_part(
    device: Device, own: Sequence[Timing], fixed: Mapping[str, float], *, held_out: bool,
    starts: int = 4, free: tuple[str, ...] | None = None,
) -> PartFit:  # fmt: skip
    """Return the numbers of one part, its in-sample errors, and those of thirds that were not seen.

    Parameters
    ----------
    device : as the vendor states it
    own : timings of one device, kernel key and part
    fixed : numbers of the same record that other timings tell
    held_out : whether to refit without each third
    starts : random starts of the solver
    free : numbers to fit, where not all that the part tells

    Returns
    -------
    the numbers and errors
    """
    case = own[0].case
    part = PARTS[case.kernel, case.part]
    names = tuple(
        name
        for name in (part.numbers if free is None else free)
        if name != "quantise_passes" or case.format in QUANTISING
    )
    eager = np.array([timing.case.eager for timing in own])
    if eager.any():
        names = (*names, "launch_s")
    if part.read_bytes is not None and free is None:
        names = (*names, "loop_l2_ratio")
    seconds = np.array([timing.seconds for timing in own])
    first = np.array([timing.table == "kernels_measured" for timing in own])
    balance = np.clip((~first).sum() / max(first.sum(), 1), 1.0, LARGEST_WEIGHT)
    weights = np.where(first, balance, 1.0)
    base = {name: START_AND_RANGE[name][0] for name in START_AND_RANGE}
    rates = kernel_rates(
        case.kernel, device, case.format, Fit({**record_numbers(case.kernel, base), **fixed})
    )
    problem = _Problem(
        part, names, timing_columns(own), seconds, weights, rates, device.l2_bytes or 0.0, eager
    )
    random = np.random.default_rng(0)
    middle = np.log([START_AND_RANGE[name][0] for name in names])
    guesses = [middle + (random.normal(0.0, 0.5, len(names)) if i else 0.0) for i in range(starts)]
    everything = np.ones(len(own), dtype=bool)
    best = problem.solved(everything, guesses)
    errors = np.abs(problem.predicted(best) / seconds - 1.0)
    unseen = np.full(len(own), np.nan)
    if held_out:
        folds = np.array([fold_of(timing.case) for timing in own])
        for fold in range(FOLDS):
            keep = folds != fold
            if keep.sum() > len(names) and (~keep).any():
                again = problem.solved(keep, [middle, best])
                unseen[~keep] = np.abs(problem.predicted(again, ~keep) / seconds[~keep] - 1.0)
    versions = tuple(sorted({f"{timing.case.engine or 'all engines'} {timing.version}" for timing in own}))
    return PartFit(dict(zip(names, (float(v) for v in np.exp(best)), strict=True)), errors, unseen, versions)


def record_numbers(kernel: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return a value for every fitted field of a kernel's record."""
    return {
        f.name: UNTOLD.get(f.name, values.get(f.name, 0.0))
        for f in fields(RECORDS[kernel])
        if f.name not in SHEET
    }
