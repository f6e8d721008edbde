"""A tensor as a file of weights lists it: its name, type and shape, not its values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
