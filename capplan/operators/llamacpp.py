"""What llama.cpp's kernels reach of a device: fractions of its bandwidth and peak by family of devices and format of weights.

A step is the sum of its operators, each of which takes

    t = max(Q / (B m), F / (P c)) + t_0

with Q bytes at the bandwidth B, F FLOP at the peak P, and the start t_0 of an operator by backend. No table has a number of a model or of a
device: the fractions m and c are those of a family, times those of the format that is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from capplan.hardware.device import Fit
from capplan.hardware.weight_kernel import WeightKernel
from capplan.model.stored_tensor import BLOCKS, blend_shares
from capplan.numbers import Array, Number

ENGINE = "llamacpp"
"""Name of the engine whose kernels these are."""

SHARPNESS = 64.0
"""Exponent with which the soft maximum is the maximum to 1%."""

_LEGACY = frozenset({"q4_0", "q4_1", "q5_0", "q5_1"})


def rate_class(weight_format: str) -> str:
    """Return the formats whose kernels are alike: 16bit, q8_0, legacy (q4_0 to q5_1), k, i or mxfp4; of several, that of most weights.

    Examples
    --------
    >>> [rate_class(name) for name in ("bf16", "q8_0", "q4_k*5+q6_k*1", "iq4_xs", "q5_0", "mxfp4")]
    ['16bit', 'q8_0', 'k', 'i', 'legacy', 'mxfp4']
    """
    shares = blend_shares(weight_format)
    name = max(shares, key=shares.__getitem__) if shares else weight_format
    if name.startswith("mxfp4"):
        return "mxfp4"
    if name in _LEGACY or name == "q8_0":
        return "legacy" if name in _LEGACY else name
    if name not in BLOCKS or BLOCKS[name].elements == 1:
        return "16bit"
    return "k" if name.endswith("_k") else "i"


def block_kernel(weight_format: str) -> WeightKernel:
    """Return how llama.cpp multiplies a weight format: fractions of compute are those of the peak in fp32."""
    return WeightKernel("fp32", 2.0, (rate_class(weight_format),))


@dataclass(frozen=True, slots=True)
class Fractions:
    """The two fractions of a kernel: of the bandwidth and of the peak."""

    memory: float
    compute: float

    def times(self, other: "Fractions") -> "Fractions":
        """Return the product of two."""
        return Fractions(self.memory * other.memory, self.compute * other.compute)

    def at_most(self, other: "Fractions") -> "Fractions":
        """Return the smaller of two."""
        return Fractions(min(self.memory, other.memory), min(self.compute, other.compute))


@dataclass(frozen=True, slots=True)
class BlockRates:
    """The fitted numbers of one family of devices."""

    family: str
    own: Fractions
    """Fractions of matrices in 16 bits."""
    most: Fractions
    """All there is: 1 of the bandwidth, and of the peak in fp32 what the matrix units do."""
    start_s: float
    """Start of an operator."""
    formats: Mapping[str, Fractions]
    """Rate class -> fractions relative to those in 16 bits."""
    vectors: Mapping[str, float]
    """Rate class -> fraction of the peak in fp32 of products with few rows, which unpack their weights without matrix units."""
    experts: Fractions
    """Fractions of routed experts, relative to a dense matrix of the same format."""
    attention: Fractions
    """Fractions of attention, relative to matrices in 16 bits."""
    recurrent: Fractions
    """Fractions of linear attention and state spaces, relative to matrices in 16 bits."""
    sharpness: float = SHARPNESS
    """Exponent of the soft maximum of reading and computing: 1 where one follows the other."""
    decode_attention: float = 1.0
    """A further fraction of the bandwidth in attention of generated tokens: below 1 without flash attention."""


PIECES_IN_FLIGHT = 4.0
"""Pieces of a prompt that llama.cpp computes at once, on as many devices (GGML_SCHED_MAX_COPIES)."""


def split_prompt_ratio(pieces: Number, largest_fraction: Number, stage_ratio: Number) -> Array:
    """Return the time of a prompt on several devices that have layers in turn, over that on one.

        r = (1 + (n - 1) f) / n,   f = min(g max(f_1, 1 / 4), 1)

    Parameters
    ----------
    pieces : [-]
        n, that a prompt is computed in, at least one
    largest_fraction : [-]
        f_1, largest share of the layers on one device
    stage_ratio : [-]
        g, time of the slowest device between two pieces over its part of the layers

    Returns
    -------
    [-]
        r, at most 1; within 18% of runs whose device was left out in the median, up to twice too low for prompts of a large model on four cards

    Examples
    --------
    A single piece passes four devices one after the other; of eight pieces the others follow:

    >>> [float(split_prompt_ratio(pieces, 0.25, 1.0)) for pieces in (1.0, 8.0)]
    [1.0, 0.34375]

    References
    ----------
    llama.cpp, pipeline parallelism, https://github.com/ggml-org/llama.cpp/pull/6017.
    """
    fraction = np.minimum(stage_ratio * np.maximum(largest_fraction, 1.0 / PIECES_IN_FLIGHT), 1.0)
    fraction = np.where(np.asarray(largest_fraction) < 1.0, fraction, 1.0)
    return np.asarray((1.0 + (pieces - 1.0) * fraction) / pieces)


def block_fits(rates: BlockRates) -> dict[str, Fit]:
    """Return the fits of all kernels of a family, in the form in which those of other engines are kept: one step time for all engines."""
    start_s, most = rates.start_s, rates.most
    attention = rates.own.times(rates.attention)
    attention = attention.times(Fractions(rates.decode_attention, 1.0)).at_most(most)
    fits = {
        "attention/bf16": _attention(attention, start_s),
        "latent_attention/bf16": _attention(attention, start_s, latent=True),
        "linear_attention/bf16": _recurrent(rates.own.times(rates.recurrent).at_most(most), start_s),
        "elementwise/quantise": {"memory_fraction": rates.own.memory, "floor_s": start_s},
    }
    for name, relative in rates.formats.items():
        dense = rates.own.times(relative)
        experts = dense.times(rates.experts).at_most(most)
        fits[f"matmul/{name}"] = _product(dense.at_most(most), rates) | {
            "largest_split": 1.0,
            "vector_fraction": rates.vectors[name],
        }
        fits[f"experts/{name}"] = _product(experts, rates) | {
            "tile_edge": 0.0,
            "start_inputs": 0.0,
            "wave_fraction": 0.0,
            "starved_exponent": 0.0,
            "routed_passes": 0.0,
            "token_passes": 0.0,
            "router_skew": 0.0,
            "vector_fraction": rates.vectors[name],
        }
    return {key: Fit(numbers, fitted_on=rates.family) for key, numbers in fits.items()}


def _product(of: Fractions, rates: BlockRates) -> dict[str, float]:
    """Return the numbers of a matrix product; nothing is lost to waves of tiles."""
    return {
        "compute_fraction": of.compute,
        "memory_fraction": of.memory,
        "sharpness": rates.sharpness,
        "floor_s": rates.start_s,
        "multiprocessors": 1.0,
    }


def _attention(of: Fractions, start_s: float, *, latent: bool = False) -> dict[str, float]:
    numbers = {
        "multiprocessors": 1.0,
        "prefill_fraction": of.compute,
        "prefill_memory_fraction": of.memory,
        "prefill_ramp_tokens": 0.0,
        "prefill_tail_fraction": 0.0,
        "softmax_width": 0.0,
        "prefill_sharpness": SHARPNESS,
        "prefill_floor_s": start_s,
        "decode_fraction": of.memory,
        "decode_compute_fraction": of.compute,
        "decode_tail_fraction": 0.0,
        "decode_pad_tokens": 0.0,
        "decode_split_tokens": 512.0,
        "decode_query_passes": 1.0,
        "decode_floor_s": start_s,
    }
    if not latent:
        return numbers
    return numbers | {
        "bmm_fraction": of.compute,
        "bmm_memory_fraction": of.memory,
        "bmm_floor_s": start_s,
    }


def _recurrent(of: Fractions, start_s: float) -> dict[str, float]:
    memory = dict.fromkeys(
        ("chunk_memory_fraction", "decode_fraction", "convolution_fraction", "update_fraction"), of.memory
    )
    starts = dict.fromkeys(
        ("chunk_floor_s", "decode_floor_s", "convolution_floor_s", "update_floor_s"), start_s
    )
    return {
        "chunk_fraction": of.compute,
        "chunk_state_passes": 1.0,
        "chunk_step_s": 0.0,
        "convolution_pad_tokens": 0.0,
        **memory,
        **starts,
    }
