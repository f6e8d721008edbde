"""What was promised of the predictions: one line for each figure that the page on accuracy judges."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Statistic: TypeAlias = Literal["median_ape", "mean_ape", "p90_ape", "within_20"]


@dataclass(frozen=True, slots=True)
class AccuracyTarget:
    """One promise: a statistic of some predictions, and the value it should reach."""

    title: str
    statistic: Statistic
    limit: float
    groups: tuple[str, ...]
    """Of kernels: families; of serving: kinds of load."""
    columns: tuple[str, ...] = ("latency_us",)
    own_process: bool = False
    """Of open loops: only those whose engine has a process of its own, as every deployment's has."""

    def met(self, value: float | None) -> bool:
        """Return whether a value keeps the promise."""
        if value is None:
            return False
        return value >= self.limit if self.statistic == "within_20" else value <= self.limit


KERNELS = (
    AccuracyTarget("matmul in bf16", "mean_ape", 0.06, ("gemm bfloat16",)),
    AccuracyTarget("matmul in fp8", "mean_ape", 0.10, ("gemm fp8",)),
    AccuracyTarget("matmul in fp8 with block scales", "mean_ape", 0.10, ("gemm fp8_block",)),
    AccuracyTarget("prefill attention", "mean_ape", 0.06, ("attention_context",)),
    AccuracyTarget("decode attention", "mean_ape", 0.07, ("attention_decode",)),
    AccuracyTarget("collectives from 64 KiB", "mean_ape", 0.15, ("comm >= 64 KiB",)),
)
"""Timings in shapes of dense models."""

MORE_KERNELS = (
    AccuracyTarget("matmul, all formats", "median_ape", 0.07, ("gemm",)),
    AccuracyTarget("attention", "median_ape", 0.08, ("context_attention", "generation_attention")),
    AccuracyTarget("routed experts", "median_ape", 0.12, ("moe",)),
    AccuracyTarget("MLA", "median_ape", 0.12, ("mla", "mla_bmm")),
    AccuracyTarget("linear attention, Mamba-2", "median_ape", 0.15, ("linear_attention",)),
    AccuracyTarget("collectives", "median_ape", 0.15, ("comm",)),
)
"""Timings of all kernels of three engines; a family stands for all its formats and sizes."""

_TPOT, _TTFT, _OUTPUT = ("tpot_ms_mean", "tpot_ms_p50"), ("ttft_ms_mean", "ttft_ms_p50"), ("output_tok_s",)

SERVING = (
    AccuracyTarget("TPOT, closed loop", "median_ape", 0.05, ("online_conc",), _TPOT[:1]),
    AccuracyTarget("TPOT, closed loop", "within_20", 0.93, ("online_conc",), _TPOT[:1]),
    AccuracyTarget("mean TTFT, closed loop", "median_ape", 0.10, ("online_conc",), _TTFT[:1]),
    AccuracyTarget("median TTFT, closed loop", "median_ape", 0.18, ("online_conc",), _TTFT[1:]),
    AccuracyTarget("output tokens/s, offline maximum", "median_ape", 0.08, ("offline_max",), _OUTPUT),
    AccuracyTarget("output tokens/s, static batch", "median_ape", 0.055, ("static_batch",), _OUTPUT),
    AccuracyTarget(
        "TPOT, open loop, engine in its own process",
        "median_ape",
        0.10,
        ("online_rate",),
        _TPOT,
        own_process=True,
    ),
    AccuracyTarget(
        "TTFT, open loop, engine in its own process",
        "median_ape",
        0.10,
        ("online_rate",),
        _TTFT,
        own_process=True,
    ),
    AccuracyTarget("TPOT, open loop", "median_ape", 0.10, ("online_rate",), _TPOT),
    AccuracyTarget("TTFT, open loop", "median_ape", 0.10, ("online_rate",), _TTFT),
)
"""Columns of equal standing are tried in order: the mean where a row has one, else the median."""

_DECODED, _PREFILLED = ("output_tok_s", "output_tok_s_per_gpu"), ("input_tok_s", "input_tok_s_per_gpu")
PUBLISHED = (
    AccuracyTarget("decode pools, output tokens/s", "median_ape", 0.20, ("decode pool",), _DECODED),
    AccuracyTarget("decode pools, output tokens/s, nine of ten", "p90_ape", 0.35, ("decode pool",), _DECODED),
    AccuracyTarget("prefill pools, input tokens/s", "median_ape", 0.20, ("prefill pool",), _PREFILLED),
    AccuracyTarget("separate pools, output tokens/s", "median_ape", 0.20, ("separate pools",), _DECODED),
    AccuracyTarget("TTFT at low load", "median_ape", 0.20, ("low load",), ("ttft_ms_p50", "ttft_ms_mean")),
    AccuracyTarget("one server, closed loop, TPOT", "median_ape", 0.10, ("one server",), _TPOT),
    AccuracyTarget("one server, closed loop, output tokens/s", "median_ape", 0.10, ("one server",), _DECODED),
)
"""Published deployments of large mixtures of experts, by what they count as (`calibrate/published_tables.py`). First calls warm up within the
mean TTFT of runs of ten requests, so the median is tried first."""


SATURATION = 0.95
"""Share of open loops of which it is predicted rightly whether they saturate."""

OPEN_LOOPS = (
    AccuracyTarget("TPOT, p50", "median_ape", 0.15, ("online_rate",), ("tpot_ms_p50", "tpot_ms_mean")),
    AccuracyTarget("TTFT, p50", "median_ape", 0.25, ("online_rate",), ("ttft_ms_p50", "ttft_ms_mean")),
    AccuracyTarget(
        "TTFT, p95, p99 or p90",
        "median_ape",
        0.30,
        ("online_rate",),
        ("ttft_ms_p95", "ttft_ms_p99", "ttft_ms_p90"),
    ),
    AccuracyTarget("response time, p50", "median_ape", 0.15, ("online_rate",), ("e2e_ms_p50", "e2e_ms_mean")),
)
"""Latencies of open loops whose source was left out of the fit. Of a response time nothing was promised: it is held to the target of TPOT."""

MEMORY = (
    AccuracyTarget("weights", "median_ape", 0.005, (), ("weights_gib",)),
    AccuracyTarget("memory for the cache", "median_ape", 0.02, (), ("available_kv_gib",)),
    AccuracyTarget("cache tokens", "median_ape", 0.03, (), ("kv_cache_tokens",)),
    AccuracyTarget("concurrency", "median_ape", 0.03, (), ("max_concurrency",)),
)

COVERAGE = 0.97
"""Share of core rows that are predicted."""
