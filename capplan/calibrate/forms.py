"""The forms that are fitted to measured times, with the priors of their numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from capplan.calibrate.kernels.arena import ELEMENT_BYTES
from capplan.calibrate.kernels.case import NO_DETAIL
from capplan.numbers import Array
from capplan.operators import attention, collective, experts, latent_attention, matmul
from capplan.operators.matmul import ElementwiseRates, elementwise_time_s
from capplan.readers.calibration.file import MATMUL_BYTES, QUANTISED_FIRST
from capplan.readers.calibration.measured_fit import SHEET, tile_row_halvings
from capplan.readers.calibration.record import Machine, Measurement, Peaks


@dataclass(frozen=True, slots=True)
class Known:
    """Start and range of a number; its logarithm is within `log_width` of the start in two out of three cases."""

    start: float
    low: float
    high: float
    log_width: float


_MAIN, _SIDE = 2.0, 0.7
BY_NAME: Mapping[str, Known] = {
    "sharpness": Known(4.0, 1.0, 16.0, _MAIN),
    "prefill_sharpness": Known(4.0, 1.0, 16.0, _MAIN),
    "tile_edge": Known(16.0, 0.01, 1e3, _SIDE * 2),
    "start_inputs": Known(64.0, 0.01, 1e4, _SIDE * 2),
    "wave_fraction": Known(0.3, 1e-3, 1.0, _SIDE),
    "starved_exponent": Known(0.3, 1e-3, 2.0, _SIDE),
    "sustained_loss": Known(0.02, 1e-4, 2.0, _SIDE),
    "prefill_tail_fraction": Known(0.3, 1e-3, 1.0, _SIDE),
    "decode_tail_fraction": Known(0.3, 1e-3, 1.0, _SIDE),
    "softmax_width": Known(16.0, 1e-2, 1e4, _SIDE * 2),
    "wide_head_exponent": Known(0.3, 1e-3, 3.0, _SIDE),
    "decode_pad_tokens": Known(16.0, 1e-2, 1e3, _SIDE * 2),
    "decode_split_tokens": Known(256.0, 16.0, 1e5, _SIDE),
    "decode_query_passes": Known(4.0, 0.1, 1e3, _SIDE * 2),
    "routed_passes": Known(8.0, 0.1, 1e4, _MAIN),
    "token_passes": Known(4.0, 0.1, 1e4, _MAIN),
    "quantise_passes": Known(3.0, 0.1, 60.0, 1.0),
    "multicast_fraction": Known(0.01, 1e-6, 1.0, 3.0),
    "crowding_exponent": Known(0.1, 1e-3, 2.0, _SIDE),
    "ring_ramp_bytes": Known(1e5, 1.0, 1e8, 2.0),
    "all_to_all_fraction": Known(0.7, 1e-2, 4.0, _MAIN),
    "decode_compute_fraction": Known(0.3, 1e-4, 1.0, _MAIN),
}
BY_END: Mapping[str, Known] = {
    "_bytes_per_s": Known(1e10, 1e6, 1e14, 3.0),
    "_flop_per_s": Known(1e12, 1e8, 1e17, 3.0),
    "_fraction": Known(0.7, 1e-4, 1.0, _MAIN),
    "_exponent": Known(0.3, 1e-3, 3.0, _SIDE),
    "_floor_s": Known(3e-6, 1e-8, 1e-2, 3.0),
    "_s": Known(2e-6, 1e-9, 1e-1, 3.0),
    "_tokens": Known(64.0, 1e-2, 1e5, _SIDE * 2),
    "_passes": Known(4.0, 0.1, 1e4, _MAIN),
    "": Known(1.0, 1e-3, 1e3, _MAIN),
}
FAMILY_LOG_WIDTH = 0.5
"""Width where another device of the family has the number; fixed costs and rates may be further away."""


def known_beforehand(name: str, family: float | None = None) -> Known:
    """Return the prior of a number, centred on another device of the family where there is one.

    Parameters
    ----------
    name : of the number in its rates record
    family : its value on another device of the same architecture; None or 0 where there is none

    Returns
    -------
    start, range and width

    Examples
    --------
    >>> known_beforehand("prefill_floor_s").start, known_beforehand("sharpness", family=6.0).start
    (3e-06, 6.0)
    """
    prior = BY_NAME.get(name) or next(known for end, known in BY_END.items() if name.endswith(end))
    if not family or not prior.low < family < prior.high:
        return prior
    return replace(
        prior, start=family, log_width=min(prior.log_width, max(FAMILY_LOG_WIDTH, prior.log_width / 2))
    )


Columns = Mapping[str, Array]
Predicted = Callable[[Columns, str, Any], Any]
_LOSING = 1e3
SCALED = QUANTISED_FIRST | {"nvfp4"}
"""Formats with scales, whose products are not split along what is summed over."""
UNFITTED: Mapping[str, float] = {
    "launch_s": 0.0,
    "router_skew": 0.0,
    "tile_load_ratio": 0.0,
    "largest_tile_rows": 128.0,
    "largest_split": 4.0,
    "quantise_passes": 0.0,
    # torch does not have the all-reduce kernels of engines: they never win during the fit
    "one_shot_fraction": 1e-9,
    "one_shot_step_s": _LOSING,
    "one_shot_floor_s": _LOSING,
    "two_shot_fraction": 1e-9,
    "two_shot_step_s": _LOSING,
    "two_shot_floor_s": _LOSING,
    "direct_crowding_exponent": 0.0,
    "exchange_fraction": 1.0,
    "dispatch_floor_s": 0.0,
    "combine_floor_s": 0.0,
}
"""Numbers that are measured separately, or that these shapes cannot constrain."""


@dataclass(frozen=True, slots=True)
class Form:
    """One kernel of an efficiency file: its record, and the operators that constrain its numbers."""

    kernel: str
    record: type[Any]
    operators: Mapping[str, Predicted]

    def numbers(self, dtype: str = "") -> tuple[str, ...]:
        """Return the names of the numbers that are fitted in a format: the quantising step only where it is timed."""
        kept = {*SHEET, "tile_row_halvings", *UNFITTED}
        if self.kernel == "matmul" and dtype in QUANTISED_FIRST:
            kept.discard("quantise_passes")
        return tuple(f.name for f in fields(self.record) if f.name not in kept)


def _matmul(columns: Columns, dtype: str, rates: Any) -> Any:
    weight, activation = MATMUL_BYTES[dtype]
    return matmul.matmul_time_s(
        columns["rows"], columns["inputs"], columns["outputs"], weight, activation, rates
    )


def _prefill(columns: Columns, dtype: str, rates: Any) -> Any:
    return attention.prefill_attention_time_s(
        columns["sequences"], columns["new_tokens"], columns["past_tokens"], columns["query_heads"],
        columns["kv_heads"], columns["head_dim"], columns["head_dim"], _window(columns), ELEMENT_BYTES[dtype], rates,
    )  # fmt: skip


def _decode(columns: Columns, dtype: str, rates: Any) -> Any:
    return attention.decode_attention_time_s(
        columns["sequences"], columns["context_tokens"], columns["query_heads"], columns["kv_heads"],
        columns["head_dim"], columns["head_dim"], _window(columns), ELEMENT_BYTES[dtype], rates,
        columns["query_tokens"],
    )  # fmt: skip


def _window(columns: Columns) -> Array:
    return np.where(columns["window_tokens"] > 0.0, columns["window_tokens"], np.inf)


def _elementwise(columns: Columns, _dtype: str, rates: Any) -> Any:
    return elementwise_time_s(columns["moved_bytes"], rates)


def _experts(columns: Columns, dtype: str, rates: Any) -> Any:
    size = ELEMENT_BYTES[dtype]
    return experts.experts_time_s(
        columns["tokens"], columns["experts"], columns["experts"], columns["experts_per_token"],
        columns["inputs"], columns["intermediate"], 1.0, size, size, rates,
    )  # fmt: skip


def _latent_decode(columns: Columns, dtype: str, rates: Any) -> Any:
    return latent_attention.mla_attention_decode_time_s(
        columns["sequences"], columns["context_tokens"], columns["query_heads"], columns["latent"],
        columns["rope"], ELEMENT_BYTES[dtype], rates,
    )  # fmt: skip


def _latent_prefill(columns: Columns, _dtype: str, rates: Any) -> Any:
    # the benchmark writes no latent cache, so its width is 0 here
    return latent_attention.mla_prefill_time_s(
        columns["sequences"], columns["new_tokens"], 0.0, columns["query_heads"], 0.0, 0.0,
        columns["nope"] + columns["rope"], columns["value"], 0.0, rates,
    )  # fmt: skip


def _latent_bmm(columns: Columns, dtype: str, rates: Any) -> Any:
    return latent_attention.mla_bmm_time_s(
        columns["tokens"],
        columns["query_heads"],
        columns["inputs"],
        columns["outputs"],
        ELEMENT_BYTES[dtype],
        rates,
    )


def _collective(time_s: Callable[..., Any]) -> Predicted:
    return lambda columns, _dtype, rates: time_s(columns["ranks"], columns["message_bytes"], rates)


def _point_to_point(columns: Columns, _dtype: str, rates: Any) -> Any:
    return collective.point_to_point_time_s(columns["message_bytes"], rates, columns["ranks"])


FORMS = (
    Form("matmul", matmul.MatmulRates, {"matmul": _matmul}),
    Form(
        "attention",
        attention.AttentionRates,
        {"prefill_attention": _prefill, "decode_attention": _decode},
    ),
    Form("elementwise", ElementwiseRates, {"elementwise": _elementwise, "norm": _elementwise}),
    Form("experts", experts.ExpertRates, {"experts": _experts}),
    Form(
        "link",
        collective.LinkRates,
        {
            "all_reduce": _collective(collective.all_reduce_time_s),
            "all_gather": _collective(collective.all_gather_time_s),
            "reduce_scatter": _collective(collective.reduce_scatter_time_s),
            "all_to_all": _collective(collective.all_to_all_time_s),
            "point_to_point": _point_to_point,
        },
    ),
    Form(
        "latent_attention",
        latent_attention.LatentAttentionRates,
        {"latent_decode": _latent_decode, "latent_prefill": _latent_prefill, "latent_bmm": _latent_bmm},
    ),
)
"""Forms of the kernels that torch can run; all others keep the numbers of the device's family."""


def sheet(form: Form, dtype: str, machine: Machine, peaks: Peaks) -> dict[str, float]:
    """Return the fields of a rates record that are not fitted: the best measured rates stand in for the datasheet."""
    link = peaks.link_bytes_per_s or 1.0
    # attention multiplies in 16 bits whatever its cache holds, unless the device emulates them
    multiplied = dtype if form.kernel in ("matmul", "experts") or dtype == "fp32" else "bf16"
    wide = peaks.flop_per_s.get("bf16") or peaks.flop_per_s.get("fp16")
    known = {
        "flop_per_s": peaks.flop_per_s.get(multiplied) or wide or max(peaks.flop_per_s.values(), default=1.0),
        "bytes_per_s": peaks.memory_bytes_per_s,
        "multiprocessors": float(machine.multiprocessors),
        "tile_row_halvings": tile_row_halvings(machine, dtype),
        "link_bytes_per_s": link,
        "network_bytes_per_s": link,
        "domain_devices": float(peaks.node_ranks),
        **UNFITTED,
    }
    if dtype in SCALED:
        known["largest_split"] = 1.0
    names = {f.name for f in fields(form.record)}
    return {name: value for name, value in known.items() if name in names}


def columns_of(measurements: Sequence[Measurement]) -> dict[str, Array]:
    """Return the shapes of measurements of one operator as arrays by name; details that older files lack have none."""
    names = dict.fromkeys([*measurements[0].shape, *NO_DETAIL])
    return {name: np.array([m.shape.get(name, NO_DETAIL.get(name)) for m in measurements]) for name in names}
