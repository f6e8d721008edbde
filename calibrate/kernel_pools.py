"""Which kernels are fitted together, and their priors."""

from collections.abc import Mapping

from capplan.accuracy.kernels import KernelCase

EXPERT_LIBRARIES: Mapping[str, Mapping[str, float]] = {
    "cutlass": {"tile_load_ratio": 0.0, "largest_tile_rows": 128.0, "pair_passes": 0.0},
    "marlin": {"tile_load_ratio": 1.0, "largest_tile_rows": 64.0, "token_passes": 0.0},
    "triton": {"tile_load_ratio": 2.0, "largest_tile_rows": 64.0, "token_passes": 0.0},
    "trtllm-gen": {"tile_load_ratio": 1.0, "largest_tile_rows": 128.0, "pair_passes": 0.0},
}
"""Library of grouped matmuls -> how it chooses its tile, the best of a few on held-out shapes, and which passes it has none of: the
sources of vLLM and SGLang keep rows of all pairs for Triton and Marlin (`fused_moe.py`, `fused_marlin_moe.py`), and zero those of experts
on other ranks."""


WITHOUT_SPLITS = frozenset({"fp8", "fp8_block", "nvfp4", "int8"})
"""Formats whose matmuls do not split the summed dimension; better on held-out shapes than with splits."""


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


def pool_of(case: KernelCase) -> str:
    """Return the pool that a timing is fitted in: the kernels of one library, on all devices and in all formats.

    Pools are fitted in the order of their names, within a kernel.
    """
    if case.kernel == "experts":
        library = expert_library(case.variant, case.format)
        return "triton, then marlin" if library == "marlin" else library
    if case.kernel == "matmul":
        return f"{case.format.removesuffix('_plugin')}{' launched' if case.eager else ''}"
    if case.kernel == "link":
        return f"{LINK_POOLS[case.part]} {case.engine}{' over PCIe' if case.device == 'l40s' else ''}"
    if case.kernel == "elementwise":
        return case.format
    return case.engine if case.kernel == "latent_bmm" else case.variant or case.engine


LINK_POOLS: Mapping[str, str] = {"nccl": "1", "direct": "2", "dispatch": "3", "combine": "4"}
"""Engines' kernels fall back to the ring, and a combine sends as a dispatch does."""


def known_numbers(case: KernelCase, numbers: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the numbers of a kernel that its timings do not determine.

    Marlin's kernels sort tokens among experts as Triton's do: vLLM and SGLang call the same `moe_align_block_size` for both, and Marlin's timings
    tell it badly, since those in mxfp4 have one number of experts.
    vLLM calls DeepGEMM as SGLang does, but was timed outside CUDA graphs: only its launch is told.

    Parameters
    ----------
    case : one of its timings
    numbers : of the kernels of this device that were fitted before, by key

    Returns
    -------
    numbers by name
    """
    known = dict(numbers.get(case.key, {}))
    if case.kernel == "experts":
        library = expert_library(case.variant, case.format)
        known |= EXPERT_LIBRARIES[library]
        if library == "marlin":
            known |= _sorting_of_triton(numbers)
    if case.kernel == "link" and case.part != "nccl":
        known = {**numbers.get("link/bf16@nccl", {}), **known}
    if case.kernel == "matmul":
        known["largest_split"] = 1.0 if case.format in WITHOUT_SPLITS else 4.0
    if case.kernel == "matmul" and case.eager:
        keys = ("matmul/fp8_block@sglang", "matmul/fp8_block@trtllm")
        known |= next((dict(numbers[key]) for key in keys if key in numbers), {})
    return {name: value for name, value in known.items() if name != "loop_l2_ratio"}


def _sorting_of_triton(numbers: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the time per expert of a Triton kernel of the device; all kernels of the pool have the same."""
    for key, own in numbers.items():
        kernel, _, variant = key.partition(":")
        if (
            kernel.startswith("experts/")
            and expert_library(variant, kernel.partition("/")[2].partition("@")[0]) == "triton"
        ):
            return {"expert_s": own["expert_s"]}
    return {}
