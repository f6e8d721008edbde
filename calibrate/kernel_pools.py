"""Which kernels are fitted together, and what is known of them beforehand."""

from collections.abc import Mapping

from capplan.accuracy.kernel_rows import KernelCase

EXPERT_LIBRARIES: Mapping[str, Mapping[str, float]] = {
    "cutlass": {"tile_load_ratio": 0.0, "largest_tile_rows": 128.0},
    "marlin": {"tile_load_ratio": 1.0, "largest_tile_rows": 64.0},
    "triton": {"tile_load_ratio": 2.0, "largest_tile_rows": 64.0},
    "trtllm-gen": {"tile_load_ratio": 1.0, "largest_tile_rows": 128.0},
}
"""Library of grouped matmuls -> how it chooses its tile; the best of a few on held-out shapes."""


def expert_library(variant: str, fmt: str) -> str:
    """Return the library that a kernel of routed experts comes from.

    Parameters
    ----------
    variant : name of the kernel in the tables
    fmt : of its weights

    Returns
    -------
    key of `EXPERT_LIBRARIES`

    Examples
    --------
    >>> expert_library("fused_moe_triton", "bf16"), expert_library("moe_torch_flow", "w4a8_mxfp4_mxfp8")
    ('triton', 'trtllm-gen')
    """
    if "marlin" in variant:
        return "marlin"
    if "triton" in variant or variant == "fused_moe":
        return "triton"
    return "trtllm-gen" if "trtllm" in variant or fmt == "w4a8_mxfp4_mxfp8" else "cutlass"


def pool_of(case: KernelCase) -> str | None:
    """Return the pool that a timing is fitted in, None where its kernel is fitted by itself."""
    return expert_library(case.variant, case.format) if case.kernel == "experts" else None


def known_numbers(case: KernelCase) -> Mapping[str, float]:
    """Return the numbers of a kernel that are not fitted."""
    return EXPERT_LIBRARIES[expert_library(case.variant, case.format)] if case.kernel == "experts" else {}
