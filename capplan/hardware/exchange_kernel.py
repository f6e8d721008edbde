"""Kernels that send tokens to the ranks of their experts, and the results back: what was published of them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What a kernel achieves over the links of one architecture."""

    link_fraction: float
    """Achieved fraction of the rate of the link."""
    dispatch_floor_s: float
    """Time of a dispatch of a handful of tokens inside one link domain."""
    combine_floor_s: float


@dataclass(frozen=True, slots=True)
class ExchangeKernel:
    """One kind of all-to-all for experts, fitted to published timings (tests/oracles/test_expert_exchange.py has each with its error)."""

    per_expert: bool
    """A token is sent once for each of its experts. Otherwise it is sent once to each server, which forwards it once to each rank."""
    links: Mapping[str, LinkSpeed]
    """Architecture of a device -> speed over its links; `*` for every other architecture."""
    network_fraction: float
    """Achieved fraction of the rate between servers."""
    network_floor_s: float
    """What a network between the ranks adds to each of both."""
    wait_s: float
    """Wait of a dispatch inside a model for ranks that are behind, on top of its time in a benchmark of the kernel."""
    multiprocessors: int
    """Multiprocessors that it occupies while it sends."""
    captured: bool
    """It runs in a CUDA graph. Otherwise the host waits for the number of tokens that a rank receives, in every layer."""
    dispatched_bytes: Mapping[str, float]
    """Weight format of the experts -> bytes of one element as dispatched, scales included; bf16 for every other one. Results are combined
    in bf16."""


IN_MODEL_WAIT_S = 110e-6
"""LMSYS saw 0.17 ms for a dispatch of DeepEP in each layer of a model, and 0.06 ms in its unit test (https://lmsys.org/blog/2025-05-05-large-scale-ep/)."""

_FP8_BLOCK = {"fp8_block": 1.0 + 4.0 / 128.0}

DEEPEP_LOW_LATENCY = ExchangeKernel(
    per_expert=True,
    links={
        "*": LinkSpeed(0.57, 13e-6, 13e-6),
        "blackwell": LinkSpeed(0.72, 22e-6, 22e-6),
        "blackwell-ultra": LinkSpeed(0.72, 22e-6, 22e-6),
        "grace-blackwell": LinkSpeed(0.75, 17e-6, 17e-6),
    },
    network_fraction=0.88,
    network_floor_s=14e-6,
    wait_s=IN_MODEL_WAIT_S,
    multiprocessors=0,
    captured=True,
    dispatched_bytes=_FP8_BLOCK,
)
"""DeepEP's kernels for decode: a fixed place for each token of each rank, so that they run in a CUDA graph. Timings: DeepEP, docs/legacy.md (H800,
128 tokens, 8 to 256 ranks); NVIDIA, aiconfigurator (H100, H200, B200, GB200; 1 to 128 tokens on 8 ranks).
https://github.com/deepseek-ai/DeepEP/blob/main/docs/legacy.md, https://github.com/ai-dynamo/aiconfigurator"""

DEEPEP_NORMAL = ExchangeKernel(
    per_expert=False,
    links={
        "*": LinkSpeed(0.67, 35e-6, 50e-6),
        "blackwell": LinkSpeed(0.43, 50e-6, 80e-6),
        "blackwell-ultra": LinkSpeed(0.43, 50e-6, 80e-6),
        "grace-blackwell": LinkSpeed(0.53, 40e-6, 50e-6),
    },
    network_fraction=0.88,
    network_floor_s=14e-6,
    wait_s=IN_MODEL_WAIT_S,
    multiprocessors=20,
    captured=False,
    dispatched_bytes=_FP8_BLOCK,
)
"""DeepEP's kernels for prefill. Timings: DeepEP, docs/legacy.md (H800, 4,096 tokens, 8 to 64 ranks); NVIDIA, aiconfigurator (H100, B200, GB200; 1,024 to
16,384 tokens on 8 ranks). The second version of DeepEP reaches up to 1.3 times as much."""

NVLINK_ONE_SIDED = ExchangeKernel(
    per_expert=True,
    links={"*": LinkSpeed(0.73, 19e-6, 31e-6)},
    network_fraction=0.88,
    network_floor_s=0.0,
    wait_s=0.0,
    multiprocessors=0,
    captured=True,
    dispatched_bytes=_FP8_BLOCK | {"mxfp8": 1.0 + 1.0 / 32.0, "nvfp4": 0.5 + 1.0 / 16.0},
)
"""Ranks write into each other's memory over one NVLink domain: TensorRT-LLM's one-sided all-to-all, which FlashInfer has too. Timings: TensorRT-LLM on
GB200, 8 to 64 ranks, 1 to 2,048 tokens. https://github.com/NVIDIA/TensorRT-LLM/blob/main/tests/microbenchmarks/bench_moe_comm.py"""

EXCHANGE_KERNELS = {
    "deepep_low_latency": DEEPEP_LOW_LATENCY,
    "deepep_normal": DEEPEP_NORMAL,
    "nvlink_one_sided": NVLINK_ONE_SIDED,
}
"""Name of a kernel, as `EngineProfile` gives it."""
