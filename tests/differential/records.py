"""A file that is read twice, and what transformers makes of it; no heavy import, so that stored samples can be judged."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class File:
    """One config.json and how it came about."""

    kind: str
    """Its model_type."""
    change: str
    """What distinguishes it from the small model of the type."""
    form: str
    """typed, by hand, 4 or 5 (the version of transformers that saved it), or the default of the class."""
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reference:
    """What the reference implementation holds of a file."""

    parameters: int = 0
    text_parameters: int = 0
    """Without towers and projectors."""
    cache: dict[str, int] = field(default_factory=dict)
    """Tokens of a prefill -> elements that it leaves in the cache; empty where the model was not run."""
    failed: str = ""
    """Why transformers does not build or run the file."""
