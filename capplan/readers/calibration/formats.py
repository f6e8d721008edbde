"""The formats of matmuls that a calibration measures: bytes per element, and the dtype that they multiply in."""

MATMUL_BYTES = {
    "fp32": (4.0, 4.0), "bf16": (2.0, 2.0), "fp16": (2.0, 2.0), "int8": (1.0, 1.0), "fp8": (1.0, 1.0),
    "fp8_row": (1.0, 1.0), "fp8_block": (1.0, 1.0), "mxfp8": (1.03125, 1.03125), "nvfp4": (0.5625, 0.5625),
    "w4a16": (0.53125, 2.0),
}  # fmt: skip
"""Format -> bytes per weight, and per input as the product reads it; scales included."""
COMPUTE_DTYPE = {"fp8_row": "fp8", "fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "w4a16": "bf16"}
"""Format -> dtype it multiplies in, where that has another name."""
QUANTISED_FIRST = frozenset({"fp8", "fp8_row", "fp8_block", "mxfp8"})
"""Formats whose inputs arrive in 16 bits and are quantised in the time measured."""
