"""Timings as calls of operators, and the prior of every number."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from capplan.accuracy.kernels import KernelCase
from capplan.numbers import Array
from capplan.operators.device_rates import RECORDS

START_AND_RANGE: dict[str, tuple[float, float, float]] = {
    "compute_fraction": (0.75, 0.03, 1.0), "memory_fraction": (0.8, 0.02, 1.0), "sharpness": (3.5, 1.0, 12.0),
    "floor_s": (5e-6, 5e-7, 3e-4), "tile_edge": (10.0, 0.01, 1000.0), "start_inputs": (100.0, 1.0, 2000.0),
    "wave_fraction": (0.5, 0.01, 1.0), "starved_exponent": (0.2, 0.001, 1.0), "sustained_loss": (0.1, 0.001, 0.6),
    "quantise_passes": (6.0, 2.0, 100.0), "routed_passes": (3.0, 0.1, 60.0), "token_passes": (2.0, 0.05, 40.0), "pair_passes": (1.0, 0.01, 20.0),
    "expert_s": (2e-8, 1e-10, 5e-7),
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
SERVED_ROUTER_SKEW = 1.1
"""Of the tokens that are routed together in a step of an engine: one number for all models, devices and engines, chosen on
closed loops together with the host times (docs/accuracy.md). Tokens of one text prefer the same experts, so a step of 8 to 128
tokens reads fewer experts' weights than as many independent draws."""
UNTOLD = {"network_fraction": 0.7, "network_step_s": 5e-6, "router_skew": SERVED_ROUTER_SKEW, "sustained_loss": 0.0, "launch_s": 0.0,
          "quantise_passes": 0.0}  # fmt: skip
"""Numbers that no timing determines: assumptions, see docs/assumptions."""
SHEET = frozenset(
    {"flop_per_s", "bytes_per_s", "multiprocessors", "link_bytes_per_s", "network_bytes_per_s",
     "domain_devices", "ring_cards"}
)  # fmt: skip
"""Fields of the records that the datasheet gives."""
QUANTISING = frozenset({"fp8", "fp8_block", "int8", "nvfp4"})
TYPICAL_ERROR = 0.05
"""Relative errors beyond this count less than squared: a tenth of the timings are off by half for no reason of
shape (a neighbour is not), and the numbers should not follow them."""
LARGEST_WEIGHT = 8.0
"""Of a timing of the first table (shapes of dense models) against one of the second (a sample of everything):
both tables weigh the same, up to this."""
FOLDS = 30
"""Parts of the shape families that are held out in turn: near to one family at a time, at a tenth of the cost."""
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
    """The fit to the timings of one part of one kernel."""

    numbers: dict[str, float]
    errors: Array
    """Relative, by timing, in-sample."""
    held_out_errors: Array
    """By timing, of fits with its shape family held out; NaN where none was made."""
    versions: tuple[str, ...]
    scored: tuple[tuple[str, str], ...] = ()
    """By timing: table and group."""
    told: float = 0.0
    """Numbers that the timings determine; one that n fits share counts 1/n."""
    interval: tuple[float, float] = (1.0, 1.0)
    """Of measured over predicted, 80 %."""


def timing_columns(own: Sequence[Timing]) -> dict[str, Array]:
    """Return the arguments of timings of one part as arrays by name."""
    return {
        name: np.array([t.case.arguments[name] for t in own], dtype=np.float64)
        for name in own[0].case.arguments
    }


def fold_of(case: KernelCase) -> int:
    """Return the part with which a timing is held out: by its shape family, so that a family is never split."""
    shape = ",".join(f"{case.arguments.get(name, 0.0):g}" for name in SHAPE[case.kernel])
    return zlib.crc32(shape.encode()) % FOLDS


def record_numbers(kernel: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return a value for every fitted field of a kernel's record."""
    return {
        f.name: UNTOLD.get(f.name, values.get(f.name, 0.0))
        for f in fields(RECORDS[kernel])
        if f.name not in SHEET
    }
