"""What the class of a model_type says: its keys with their defaults, names of old releases, classes of its sections.

`classes.json` is written by `python -m docs.generators.model_classes` from the configuration classes of transformers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("classes.json")

_SAME_CLASS = {"kimi_k2": "deepseek_v3", "code_llama": "llama", "minimax_m3": "minimax_m3_vl_text"}
"""Types without a class, and the one that they are read with."""


@dataclass(frozen=True, slots=True)
class ModelClass:
    """One configuration class."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Every key that may change parameters or cache, with what a file means that lacks it; null: decided by others."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Another name of a key -> the key."""
    sections: Mapping[str, str] = field(default_factory=dict)
    """Key of a section -> model_type of its class."""
    section_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Key of a section -> defaults there that differ from those of the section's own class."""
    ties: bool = True
    """Whether the class can share the embedding with the LM head."""
    ties_by_text: bool = False
    """Whether it shares them where only its text section says so."""

    def same(self, key: str) -> tuple[str, ...]:
        """Return the key and its other names, the key itself first."""
        name = self.names.get(key, key)
        return (key, *(k for k in (name, *(o for o, n in self.names.items() if n == name)) if k != key))


@cache
def _classes() -> dict[str, Any]:
    classes: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))["classes"]
    return classes


@cache
def model_class(model_type: str) -> ModelClass | None:
    """Return the class of a model_type; None where transformers has none.

    Examples
    --------
    >>> model_class("mistral").defaults["sliding_window"], model_class("deepseek_v3").same("num_local_experts")
    (4096, ('num_local_experts', 'n_routed_experts'))
    """
    entry = _classes().get(_SAME_CLASS.get(model_type, model_type))
    return None if entry is None else ModelClass(**entry)
