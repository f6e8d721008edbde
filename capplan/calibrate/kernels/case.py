"""One shape of one kernel to time, and how a kernel is described."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from capplan.calibrate.machine import Abilities
from capplan.calibrate.timing import Call

Shape = Mapping[str, float]
Builder = Callable[[Shape, str, torch.device], Call]
NO_DETAIL = {"past_tokens": 0.0, "window_tokens": 0.0, "query_tokens": 1.0, "page_tokens": 0.0}
"""Sizes that most shapes leave at these values: no cached prefix, no window, one query token, no pages."""
LEAST_SHRUNK = 64


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of one kernel to time."""

    operator: str
    dtype: str
    shape: Shape
    graph: bool = True
    """Timed under a CUDA graph, on devices that have them."""
    library: str = ""
    """An engine's library; empty: the quickest of torch's own kernels."""

    @property
    def title(self) -> str:
        """The case in one line."""
        sizes = " ".join(f"{n}={v:g}" for n, v in self.shape.items() if NO_DETAIL.get(n) != v)
        return f"{self.operator} {self.dtype} {sizes}" + (f" {self.library}" if self.library else "")

    @property
    def kind(self) -> tuple[str, str, str]:
        """What is measured and fitted together: operator, dtype and library."""
        return self.operator, self.dtype, self.library

    @property
    def kind_title(self) -> str:
        """The kind in words."""
        return f"{self.operator} in {self.dtype}" + (f" of {self.library}" if self.library else "")


def _everywhere(_able: Abilities, _shape: Shape) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run an operator."""

    built: Builder
    suits: Callable[[Abilities, Shape], bool] = _everywhere
    """Whether a device and a shape are worth trying."""
    routed: Callable[[Shape, str, torch.device, range], list[Call]] | None = None
    """Calls that share one set of operands, each with the routing of that number."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """How one operator is run."""

    operand_bytes: Callable[[Shape, str], float]
    """Bytes of one set of operands and results."""
    ways: Mapping[str, Way]
    """Ways to run the operator, by library. The quickest of a shape is taken."""
    shrinks: tuple[str, ...] = ()
    """Sizes that may be halved if memory does not suffice."""
    touched_bytes: Callable[[Shape, str], float] | None = None
    """Bytes that one call reads, where it reads only a part of its operands."""


def shrunk(case: Case, shrinks: tuple[str, ...]) -> Case | None:
    """Return the case with its largest shrinkable size halved; None if nothing is left to halve.

    Examples
    --------
    >>> shrunk(Case("copy", "bf16", {"moved_bytes": 4096.0}), ("moved_bytes",)).shape
    {'moved_bytes': 2048.0}
    """
    sizes = {name: case.shape[name] for name in shrinks if case.shape[name] >= LEAST_SHRUNK}
    if not sizes:
        return None
    largest = max(sizes, key=lambda name: sizes[name])
    return replace(case, shape={**case.shape, largest: sizes[largest] // 2})
