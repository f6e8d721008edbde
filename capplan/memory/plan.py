"""Memory of one device of a plan: what it holds, what is left for the KV cache, and why a plan cannot start."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from capplan.numbers import Number

LIMITS = (
    "fits",
    "weights alone exceed the memory that the engine may use",
    "activations and runtime leave nothing for the KV cache",
    "the KV cache is smaller than one sequence of the maximum context",
    "CUDA graphs and the sampler do not fit beside the KV cache",
)
"""Reasons why a plan cannot start, by code."""

CONTEXT_TOO_LONG = 3
"""Code of a cache that is smaller than one sequence."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of one device of a replica, of the pipeline stage with the smallest cache; numbers or arrays."""

    weight_bytes: Number
    """Weights and lookup tables, as an engine logs them after loading."""
    activation_bytes: Number
    """Peak working memory."""
    non_torch_bytes: Number
    """Kernels, handles, collective buffers."""
    cuda_graph_bytes: Number
    usable_bytes: Number
    """Total that the engine may use."""
    kv_bytes_available: Number
    kv_cache_tokens: Number
    """As the engine prints it."""
    max_concurrency: Number
    """Sequences of the maximum context that the cache holds at once."""
    reserved_bytes_per_sequence: Number
    """Cache that one sequence of the maximum context reserves."""
    headroom_bytes: Number
    """Left on the device once the cache is allocated, graphs are captured and the sampler has warmed up."""

    def at(self, plan: int) -> "MemoryPlan":
        """Return one plan of an array of plans, as numbers."""
        return MemoryPlan(*(float(np.asarray(getattr(self, field.name))[plan]) for field in fields(self)))

    @property
    def limit_codes(self) -> NDArray[np.intp]:
        """Index into `LIMITS` of the first reason that prevents a start; 0 where the plan fits."""
        usable = np.asarray(self.usable_bytes, dtype=np.float64)
        conditions = np.broadcast_arrays(
            np.asarray(self.weight_bytes) >= usable,
            np.asarray(self.kv_bytes_available) <= 0,
            np.asarray(self.max_concurrency) < 1,
            np.asarray(self.headroom_bytes) < 0,
        )
        codes: NDArray[np.intp] = np.select(conditions, [1, 2, 3, 4], default=0).astype(np.intp)
        return codes

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether the engine starts and holds at least one sequence of the maximum context."""
        good: NDArray[np.bool_] = np.asarray(self.limit_codes == 0)
        return good

    @property
    def limits(self) -> tuple[str, ...]:
        """Reasons that prevent a start, in words; for arrays, all that occur."""
        return tuple(LIMITS[code] for code in np.unique(self.limit_codes).tolist() if code)
