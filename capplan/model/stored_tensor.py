"""Tensors as GGUF files list them, and the weights and bytes of the blocks that they are stored in, scales and minima included.

    bits per weight = 8 x bytes of a block / weights of a block

Source: ggml, `ggml/src/ggml-common.h` (the block structures) and `ggml/include/ggml.h` (their numbers in files),
https://github.com/ggml-org/llama.cpp, read 2026-11-22.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

from capplan.assumption import Assumption


class Block(NamedTuple):
    """One block of a quantised tensor."""

    number: int
    """Number of the type in files."""
    elements: int
    """Weights of one block."""
    size_bytes: int
    """Bytes of one block."""


BLOCKS: dict[str, Block] = {
    "fp32": Block(0, 1, 4),
    "fp16": Block(1, 1, 2),
    "bf16": Block(30, 1, 2),
    "q4_0": Block(2, 32, 2 + 16),
    "q4_1": Block(3, 32, 2 + 2 + 16),
    "q5_0": Block(6, 32, 2 + 4 + 16),
    "q5_1": Block(7, 32, 2 + 2 + 4 + 16),
    "q8_0": Block(8, 32, 2 + 32),
    "q2_k": Block(10, 256, 2 + 2 + 16 + 64),
    "q3_k": Block(11, 256, 2 + 12 + 32 + 64),
    "q4_k": Block(12, 256, 2 + 2 + 12 + 128),
    "q5_k": Block(13, 256, 2 + 2 + 12 + 32 + 128),
    "q6_k": Block(14, 256, 2 + 16 + 64 + 128),
    "iq2_xxs": Block(16, 256, 2 + 64),
    "iq2_xs": Block(17, 256, 2 + 8 + 64),
    "iq3_xxs": Block(18, 256, 2 + 32 + 64),
    "iq1_s": Block(19, 256, 2 + 16 + 32),
    "iq4_nl": Block(20, 32, 2 + 16),
    "iq3_s": Block(21, 256, 2 + 4 + 8 + 32 + 64),
    "iq2_s": Block(22, 256, 2 + 16 + 64),
    "iq4_xs": Block(23, 256, 2 + 2 + 4 + 128),
    "iq1_m": Block(29, 256, 8 + 16 + 32),
    "tq1_0": Block(34, 256, 2 + 52),
    "tq2_0": Block(35, 256, 2 + 64),
    "mxfp4_gguf": Block(39, 32, 1 + 16),
    "nvfp4_gguf": Block(40, 64, 4 + 32),
}
"""Types of tensors that hold weights, by name: q2_k to q6_k with scales (and minima) of 16 or 32 weights in a block of 256, iq
with a codebook, tq ternary."""

BLOCK_NAMES: dict[int, str] = {block.number: name for name, block in BLOCKS.items()}
"""Name of a type by its number in files."""

OTHER_TYPES: dict[int, int] = {24: 1, 25: 2, 26: 4, 27: 8, 28: 8}
"""Bytes of an element of the types that hold tables, not weights: int8, int16, int32, int64, float64."""

_KEPT = frozenset({"fp32", "fp16", "bf16"})
BLOCK_DTYPES = tuple(name for name in BLOCKS if name not in _KEPT)
"""Block formats that no other file of weights has."""


def block_bits(name: str) -> float:
    """Return the bits of one weight, scales included.

    Parameters
    ----------
    name : of a block format

    Returns
    -------
    [bit]

    Examples
    --------
    A block of 256 weights in q4_k: 128 bytes of weights, 12 of scales and minima, two fp16 factors.

    >>> block_bits("q4_k"), block_bits("q6_k"), block_bits("iq4_xs")
    (4.5, 6.5625, 4.25)

    References
    ----------
    ggml, `ggml/src/ggml-common.h`: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h.
    """
    block = BLOCKS[name]
    return 8.0 * block.size_bytes / block.elements


def blend_name(elements: Mapping[str, int]) -> str:
    """Return the name of the format that tensors of several formats have together.

    Parameters
    ----------
    elements : elements by format

    Returns
    -------
    a format, or shares of several in smallest whole numbers, the largest first

    Examples
    --------
    Queries and keys in q4_k, values in q6_k:

    >>> blend_name({"q4_k": 20_971_520, "q6_k": 4_194_304})
    'q4_k*5+q6_k*1'
    """
    shares = {name: count for name, count in elements.items() if count}
    if len(shares) < 2:
        return next(iter(shares), "fp16")
    divisor = gcd(*shares.values())
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return "+".join(f"{name}*{count // divisor}" for name, count in ranked)


def blend_shares(name: str) -> dict[str, int] | None:
    """Return the shares that the name of a blend has, of formats of any kind; None for any other name.

    Parameters
    ----------
    name : as `blend_name` writes it

    Returns
    -------
    weights by format, relative

    Examples
    --------
    >>> blend_shares("q4_k*5+q6_k*1"), blend_shares("q4_k")
    ({'q4_k': 5, 'q6_k': 1}, None)
    """
    parts = [part.rpartition("*") for part in name.split("+")]
    if any(not of or not share.isdecimal() or share == "0" for of, _, share in parts):
        return None
    return {of: int(share) for of, _, share in parts}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a GGUF file."""

    name: str
    dtype: str
    """Name of its block format; empty for a table of another type."""
    shape: tuple[int, ...]
    """Sizes, the contiguous one first."""
    size_bytes: int
    """Bytes that it takes in the file."""

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class StoredModel:
    """What the header of a GGUF file says, or those of its parts together."""

    metadata: Mapping[str, Any]
    """Values by key; a list of texts is only counted."""
    tensors: tuple[StoredTensor, ...]
    parts: int = 1
    """Files that the model is split over."""

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors, without the header and without padding."""
        return sum(tensor.size_bytes for tensor in self.tensors)


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a tensor, or None where its rows are not whole blocks.

    Parameters
    ----------
    dtype : name of a block format
    shape : sizes, the contiguous one first

    Returns
    -------
    [B]

    Examples
    --------
    >>> tensor_bytes("q4_k", (256, 10)), tensor_bytes("q4_k", (255, 10))
    (1440, None)

    References
    ----------
    ggml, `ggml_row_size`: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml.c.
    """
    block = BLOCKS[dtype]
    if not shape or shape[0] % block.elements:
        return None
    rows = 1
    for size in shape[1:]:
        rows *= size
    return shape[0] // block.elements * block.size_bytes * rows


SCALES_OF_INT2 = Assumption(
    "int2 means one fp16 scale per 128 weights and no zero points, 2.125 bits per weight",
    "--weight-dtype w2a16-g64, aqlm-1x16-g8, quip-2, ...",
    "weight_dtype",
)
"""Assumption behind the bare name int2."""

CODEBOOKS = Assumption(
    "AQLM and QuIP# weights take the bits that their name states; codebooks and scales, which are small, are not counted",
    "a format with group scales, such as w2a16-g64",
    "weight_dtype",
)
"""Assumption behind formats with codebooks."""

MIXTURE = Assumption(
    "{dtype} is what llama-quantize writes without an importance matrix: embedding and LM head are quantised too, norms, biases "
    "and routers are in fp32",
    "the GGUF file itself as MODEL",
    "weight_dtype",
)
"""Assumption behind the mixtures of GGUF files."""

_CODES = re.compile(r"aqlm-(?P<books>[1-8])x(?P<bits>\d{1,2})-g(?P<group>\d{1,4})|quip-(?P<whole>[234])")


def coded_bits(name: str) -> float | None:
    """Return the bits of a weight that is an entry of codebooks, as its name states them, or None.

        AQLM: bits = codebooks x bits of a code / weights of a group; QuIP#: 2, 3 or 4 bits

    Parameters
    ----------
    name : `aqlm-2x8-g8` (two codebooks of 8-bit codes over 8 weights), `quip-2`

    Returns
    -------
    [bit]
        without codebooks and scales; None for any other name

    Examples
    --------
    >>> coded_bits("aqlm-1x16-g8"), coded_bits("quip-2"), coded_bits("int4")
    (2.0, 2.0, None)

    References
    ----------
    Egiazarian et al. 2024, "AQLM", arXiv:2401.06118, section 3; Tseng et al. 2024, "QuIP#", arXiv:2402.04396, section 4.
    """
    match = _CODES.fullmatch(name)
    if match is None:
        return None
    if match["whole"]:
        return float(match["whole"])
    books, bits, group = int(match["books"]), int(match["bits"]), int(match["group"])
    return books * bits / group if 1 <= bits <= 16 and 1 <= group <= 1024 else None
