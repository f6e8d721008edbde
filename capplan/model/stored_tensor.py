"""A tensor as a file of weights lists it: its name, type and shape, not its values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capplan.assumption import Assumption
from capplan.model.block_formats import BLOCKS


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
