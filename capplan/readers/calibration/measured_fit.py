"""A measured fit as fractions of the datasheet, completed with that of its kind, and how one card differs from its kind."""

import math
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np

from capplan.errors import InputError
from capplan.hardware.device import Device, Efficiency, Fit
from capplan.numbers import Array
from capplan.operators.device_rates import OF_PEAK, RECORDS, RELATIVE_FRACTIONS, DeviceRatio, kernel_rates
from capplan.operators.matmul import matmul_time_s
from capplan.operators.roofline import TILES
from capplan.readers.calibration.file import COMPUTE_DTYPE
from capplan.readers.calibration.record import Calibration, Machine, Measurement

KERNEL = "matmul/bf16"
"""Key of the record: every engine calls the same library, and so does torch."""
WIDE = ("bf16", "fp16")
LEAST_SHAPES = 12
NOISE = 0.05
"""Error of one shape, relative: beyond it errors count less than squared."""
PRIOR_WIDTH = 0.3
"""Two cards of one kind, or of one family, differ by less than this in two out of three cases (logarithm)."""
STEPS = 20
LARGEST_LOG = 1.5


def device_ratio(calibration: Calibration, device: Device, family: Efficiency) -> DeviceRatio:
    """Return the ratio of a measured card to its record.

        min over c, b, f:  sum of rho(ln t_record(c, b, f) - ln t_measured) + (ln^2 c + ln^2 b + ln^2 f) / w^2

    Parameters
    ----------
    calibration : of the card
    device : whose datasheet the record's fractions are of
    family : the record: fits of the card, or of its relative

    Returns
    -------
    one for each where fewer than `LEAST_SHAPES` matmuls can be compared

    References
    ----------
    Huber 1964, "Robust estimation of a location parameter", doi:10.1214/aoms/1177703732, for rho.
    """
    rows = [
        m for m in calibration.measurements if m.operator == "matmul" and m.dtype in WIDE and not m.throttled
    ]
    wide = next((dtype for dtype in WIDE if any(m.dtype == dtype for m in rows)), "")
    rows = [m for m in rows if m.dtype == wide]
    fit = family.fits.get(KERNEL)
    if fit is None or len(rows) < LEAST_SHAPES:
        return DeviceRatio()
    rates = kernel_rates("matmul", device, "bf16", fit)
    measured = np.log([m.median_s for m in rows])

    def errors(logs: Array) -> Array:
        return np.log(_times(rows, rates, logs)) - measured

    compute, memory, floor = np.exp(_solved(errors))
    return DeviceRatio(float(compute), float(memory), float(floor), len(rows))


def _times(rows: Sequence[Measurement], rates: Any, logs: Array) -> Array:
    compute, memory, floor = np.exp(logs)
    changed = replace(
        rates,
        compute_fraction=rates.compute_fraction * compute,
        memory_fraction=rates.memory_fraction * memory,
        floor_s=rates.floor_s * floor,
    )
    shapes = [np.array([m.shape[name] for m in rows]) for name in ("rows", "inputs", "outputs")]
    return np.asarray(matmul_time_s(shapes[0], shapes[1], shapes[2], 2.0, 2.0, changed))


def _solved(errors: Any) -> Array:
    """Return the logarithms that make the errors smallest: Gauss-Newton with the weights of Huber."""
    logs = np.zeros(3)
    for _ in range(STEPS):
        now = errors(logs)
        slope = np.stack([(errors(logs + step) - now) / 1e-4 for step in 1e-4 * np.eye(3)], axis=1)
        weights = np.minimum(1.0, NOISE / np.maximum(np.abs(now), 1e-12)) / NOISE**2
        normal = slope.T @ (slope * weights[:, None]) + np.eye(3) / PRIOR_WIDTH**2
        gradient = slope.T @ (weights * now) + logs / PRIOR_WIDTH**2
        step = np.linalg.solve(normal, gradient)
        logs = np.clip(logs - np.clip(step, -0.5, 0.5), -LARGEST_LOG, LARGEST_LOG)
        if np.abs(step).max() < 1e-6:
            break
    return logs


EFFICIENCY_KERNELS = frozenset({"matmul", "attention", "latent_attention", "experts", "elementwise", "link"})
"""Kernels of efficiency records; launches and copies are shown, and used only where stated."""
NOT_MEASURED = (
    "launch_s", "router_skew", "quantise_passes", "one_shot_fraction", "one_shot_step_s", "one_shot_floor_s",
    "two_shot_fraction", "two_shot_step_s", "two_shot_floor_s", "direct_crowding_exponent", "exchange_fraction",
    "dispatch_floor_s", "combine_floor_s",
)  # fmt: skip
"""Numbers that the benchmarks leave out: uneven routers, quantising where it was not timed, kernels specific to engines."""
NETWORK = ("network_fraction", "network_step_s")
"""Numbers that need ranks on several machines."""
LINK_FRACTIONS = frozenset({"ring_fraction", "multicast_fraction"})
"""Fractions of the link between devices."""
SHEET = frozenset(
    {"flop_per_s", "bytes_per_s", "multiprocessors", "l2_bytes"}
    | {"link_bytes_per_s", "network_bytes_per_s", "domain_devices"}
)
"""Numbers of a kernel that come from the datasheet, or from the best rate seen."""


def tile_row_halvings(machine: Machine, dtype: str) -> float:
    """Return how often the rows of the tiles of `operators` are halved to be those of a machine.

    Examples
    --------
    >>> cpu = Machine("cpu", "a processor", "0" * 12, None, None, "2", 1, 1e9, 1, 1e6, tile_rows={"bf16": 16.0})
    >>> tile_row_halvings(cpu, "bf16"), tile_row_halvings(cpu, "fp32")
    (2.0, 0.0)
    """
    rows = machine.tile_rows.get(dtype)
    return math.log2(TILES[0][0] / rows) if rows else 0.0


def measured_fit(
    fitted: str, calibration: Calibration, device: Device, family: Efficiency, name: str, path: str
) -> Fit:
    """Return a measured fit as numbers of the device's peaks, with what is not measured from the device's family.

    Parameters
    ----------
    fitted : key of the fit in the calibration
    calibration : where it was measured
    device : whose peaks the fractions are to be of
    family : shipped fits of the device, or of its relative
    name : of the file, for the source of the fit
    path : of the file, for errors
    """
    measured = calibration.fitted[fitted]
    kernel, _, dtype = fitted.partition("@")[0].partition("/")
    numbers = {
        key: number.value * _peak_ratio(key, kernel, dtype, calibration, device)
        for key, number in measured.numbers.items()
    }
    relatives = [
        f.numbers for key, f in family.fits.items() if key.partition("@")[0] == fitted.partition("@")[0]
    ]
    relatives += [f.numbers for key, f in family.fits.items() if key.startswith(f"{kernel}/")]
    near = relatives[0] if relatives else {}
    unseen = [*NOT_MEASURED, *(NETWORK if calibration.peaks.ranks == calibration.peaks.node_ranks else ())]
    numbers |= {key: near[key] for key in unseen if key in near and key not in numbers}
    if kernel == "matmul":
        numbers["tile_row_halvings"] = tile_row_halvings(calibration.machine, dtype)
    launch = next((f for key, f in calibration.fitted.items() if key.startswith("launch/")), None)
    if "launch_s" in near and launch is not None:
        numbers["launch_s"] = launch.numbers["launch_s"].value
    scores = measured.operators.values()
    held = [score.held_out_median_ape for score in scores if score.held_out_median_ape is not None]
    fit = Fit(
        numbers=numbers,
        label="measured",
        rows=sum(score.points for score in scores),
        median_error_fraction=max(score.median_ape for score in scores),
        held_out_median_error_fraction=max(held, default=None),
        fitted_on=f"{name}, {calibration.machine.name}, torch {calibration.machine.torch}, {calibration.date[:10]}",
    )
    _refuse_other_numbers(f"{path}: fitted.{fitted}.numbers", kernel, fit)
    return fit


def partial_note(calibration: Calibration) -> str:
    """Return what a partial calibration lacks, in words; empty for a complete one."""
    if not calibration.partial:
        return ""
    missing = f"; not measured: {', '.join(calibration.missing)}" if calibration.missing else ""
    return f"interrupted before all shapes were measured{missing}"


def _refuse_other_numbers(place: str, kernel: str, fit: Fit) -> None:
    """Refuse a fit whose numbers are not those that this version of capplan prices the kernel with."""
    known = {f.name: f.default is MISSING for f in fields(RECORDS[kernel]) if f.name not in SHEET}
    missing = [name for name, is_needed in known.items() if is_needed and name not in fit.numbers]
    odd = [name for name in fit.numbers if name not in known]
    if missing or odd:
        why = f"{missing[0]} is missing" if missing else f"{odd[0]} is not known"
        raise InputError(
            f"{place}: {why}\n  known: {', '.join(known)}\n"
            "  another version of capplan fitted them; measure again with: capplan calibrate -o FILE"
        )


def _peak_ratio(number: str, kernel: str, dtype: str, calibration: Calibration, device: Device) -> float:
    if not number.endswith("_fraction") or number in RELATIVE_FRACTIONS:
        return 1.0
    if kernel == "link":
        link = device.link_bytes_per_s or device.pcie_bytes_per_s
        link_rate = calibration.peaks.link_bytes_per_s
        return link_rate / link if link_rate and link and number in LINK_FRACTIONS else 1.0
    if number not in OF_PEAK:
        return calibration.peaks.memory_bytes_per_s / device.memory_bytes_per_s
    seen = calibration.peaks.flop_per_s
    # attention and experts multiply in the 16-bit dtype, which a device may list under the other name
    if kernel in ("attention", "latent_attention"):
        dtype = "bf16" if "bf16" in seen else "fp16"
    peaks = device.peak_flop_per_s
    wanted = peaks.get(COMPUTE_DTYPE.get(dtype, dtype)) or peaks.get("bf16") or peaks.get("fp16")
    best = seen.get(dtype) or seen.get("bf16") or max(seen.values(), default=0.0)
    return best / wanted if wanted and best else 1.0
