"""Timed kernels -> predictions, with device and efficiency looked up by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import TypeAlias

from capplan.accuracy.intervals import Intervals, interval_of
from capplan.accuracy.kernel_rows import DEVICES, kernel_case
from capplan.accuracy.kernels import predicted_latency
from capplan.accuracy.score import Prediction
from capplan.errors import CapplanError
from capplan.hardware.device import Device
from capplan.hardware.efficiency import BORROWED, Efficiency
from capplan.questions.benchmark_spec import row_efficiency
from capplan.readers.catalogue.efficiency import timed_efficiency
from capplan.readers.catalogue.hardware import device
from capplan.recorded.measured.row_ranges import impossible_number

_Supply: TypeAlias = Callable[[str], tuple[Device, Efficiency]]

METRIC = "latency_us"


def kernel_groups(row: Mapping[str, str]) -> dict[str, str]:
    """Return the groups that a timing is reported under.

    Small and large messages are separate groups: below 64 KiB latency dominates a collective.

    Examples
    --------
    >>> kernel_groups({"family": "gemm", "gpu": "h100_sxm", "dtype": "fp8", "backend": "vllm"})["family"]
    'gemm fp8'
    """
    family = row.get("family") or "unknown"
    if family == "gemm":
        family = f"gemm {row.get('dtype') or ''}".strip()
    elif row.get("message_bytes"):
        family += " >= 64 KiB" if (_number(row, "message_bytes") or 0.0) >= 65536.0 else " < 64 KiB"
    return {
        "family": family,
        "gpu": row.get("gpu") or "unknown",
        "dtype": row.get("dtype") or "unknown",
        "backend": row.get("backend") or "unknown",
    }


def _number(row: Mapping[str, str], key: str) -> float | None:
    try:
        value = float(row.get(key) or "nan")
    except ValueError:
        return None
    return value if isfinite(value) else None


def kernel_row_predictions(
    rows: Sequence[Mapping[str, str]], calibration: Path | None, intervals: Intervals
) -> Iterator[list[Prediction]]:
    """Return the prediction of each timed kernel, in order; a refusal is one without a value.

    Parameters
    ----------
    rows : of a kernel table, text by column name
    calibration : fitted numbers for the rows of the device that it was measured on
    intervals : by regime, for kernels whose fit has none
    """

    @lru_cache(maxsize=64)
    def supply(name: str) -> tuple[Device, Efficiency]:
        gpu = device(DEVICES.get(name, name))
        return gpu, row_efficiency(gpu, calibration) if calibration else timed_efficiency(gpu)

    for number, row in enumerate(rows):
        name, groups = row.get("id") or str(number), kernel_groups(row)
        measured = _number(row, METRIC)
        if measured is None or measured <= 0.0:
            yield []
            continue
        predicted, reason = _predicted(row, supply)
        prediction = Prediction(name, METRIC, measured, predicted, reason=reason, groups=groups)
        yield [
            prediction
            if predicted is None
            else _bounded(prediction, predicted, _ratios(row, supply, intervals))
        ]


def _bounded(prediction: Prediction, predicted: float, ratios: tuple[float, float] | None) -> Prediction:
    return (
        prediction
        if ratios is None
        else replace(prediction, low=predicted * ratios[0], high=predicted * ratios[1])
    )


def _ratios(row: Mapping[str, str], supply: _Supply, intervals: Intervals) -> tuple[float, float] | None:
    """Return the 80 % interval of measured over predicted: of the fit, of one in its place, or of all kernels."""
    case = kernel_case(row)
    if isinstance(case, str):
        return None
    key = case.key
    if case.part.endswith("_module"):
        key = f"latent_module/{case.part.partition('_')[0]}@{case.engine}"
    efficiency = supply(row.get("gpu") or "")[1]
    if efficiency.kinship:
        return BORROWED[efficiency.kinship].interval
    fits = efficiency.fits
    near = [fit for name, fit in fits.items() if name.partition("/")[0] == key.partition("/")[0]]
    for fit in [fits[key], *near] if key in fits else near:
        if case.part in fit.intervals:
            return fit.intervals[case.part]
    bounds = interval_of(intervals, ("kernel",))
    return None if bounds is None else (bounds.low_ratio, bounds.high_ratio)


def _predicted(row: Mapping[str, str], supply: _Supply) -> tuple[float | None, str]:
    wrong = impossible_number(row, "kernel")
    if wrong:
        return None, wrong
    try:
        value, reason = predicted_latency(row, *supply(row.get("gpu") or ""))
    except CapplanError as error:
        return None, str(error).partition("\n")[0]
    if value is None or not isfinite(value) or value <= 0.0:
        return None, reason or "the shape lacks a column that this kernel needs"
    return value, ""
