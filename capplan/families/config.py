"""One config.json, read by key: every value is checked, every key that is read is recorded."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.families.inert import is_inert, table

T = TypeVar("T")

LARGEST_DIMENSION = 100_000_000
"""Limit above any published vocabulary, context length or width; a larger number is a mistake."""
LARGEST_RATIO = 1_000.0
"""Limit above any widening factor; a larger number is a mistake."""
MOST_LAYERS = 2_000
"""A network is held as a list of its layers; the deepest published ones have about 130."""
MOST_KEYS_NAMED = 12
"""Keys that one remark names; the rest are counted."""

_ALWAYS_STATED = frozenset(
    [
        "hidden_size",
        "n_embd",
        "d_model",
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "num_attention_heads",
        "n_head",
        "n_heads",
        "vocab_size",
        "intermediate_size",
    ]
)
"""Sizes that no published file leaves out at its top level: missing, they are a mistake rather than a default."""


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
    optional_sections: Mapping[str, str] = field(default_factory=dict)
    """Key of a section that a model has only where its file states it -> model_type of its class."""
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
def model_class(model_type: str) -> ModelClass | None:
    """Return the class of a model_type; None where transformers has none.

    Examples
    --------
    >>> model_class("mistral").defaults["sliding_window"], model_class("deepseek_v3").same("num_local_experts")
    (4096, ('num_local_experts', 'n_routed_experts'))
    """
    entry = table("classes")["classes"].get(_SAME_CLASS.get(model_type, model_type))
    return None if entry is None else ModelClass(**entry)


@dataclass(slots=True)
class Config:
    """A config.json or one of its sections.

    A key that is absent or null is "missing"; several keys are alternative names, tried in order.
    """

    values: Mapping[str, Any]
    place: str
    """The file, as errors name it."""
    section_path: str = ""
    """Dotted path of this section with a trailing dot; empty for the file itself."""
    keys_used: dict[str, None] = field(default_factory=dict)
    """Dotted keys that were read, in order; shared with the sections."""
    notes: list[str] = field(default_factory=list)
    """Remarks for readers of the result; shared with the sections."""
    doubts: list[Assumption] = field(default_factory=list)
    """Assumptions that may make figures too small; shared with the sections."""
    settled: set[str] = field(default_factory=set)
    """Dotted keys that were asked for, be they null, or that the family declares to change nothing; shared."""
    outer: "Config | None" = None
    """The file, for a section of it."""
    sections: list["Config"] = field(default_factory=list)
    """Every section that was opened; shared with the sections."""
    stated_class: ModelClass | None = None
    """What the class of this section says; None where there is no such class."""

    def __post_init__(self) -> None:
        """Find the class by `model_type`."""
        if self.stated_class is None and isinstance(kind := self.values.get("model_type"), str):
            self.stated_class = model_class(kind)
        self.sections.append(self)

    def first_present(self, *keys: str) -> tuple[str, Any]:
        """Return the first key that is present and not null, with its value; else the first key and None.

        A key also answers to the other names that the class gives it. One that the file lacks altogether has the
        default of the class, and a remark says so; null is an answer, not a default.
        """
        known = self.stated_class
        names = keys if known is None else [name for key in keys for name in known.same(key)]
        self.unused(*names)
        for key in names:
            value = self.values.get(key)
            if value is not None:
                self.keys_used[self.section_path + key] = None
                return key, value
        if known is None or any(key in self.values for key in names):
            return keys[0], None
        for key in names:
            value = known.defaults.get(key)
            if value is not None:
                self._note_default(key, value)
                return key, value
        return keys[0], None

    def _note_default(self, key: str, value: Any) -> None:
        if value is not False and value != []:
            note = f"{self.section_path}{key} is missing: {json.dumps(value)}, the default of this model_type"
            if note not in self.notes:
                self.notes.append(note)

    def uncounted(self, what: str) -> None:
        """Remark on a part of the model whose weights are not counted."""
        self.notes.append(what)
        self.doubts.append(Assumption(what, "the config.json of the text model only"))

    def unused(self, *keys: str) -> None:
        """Declare keys that change neither parameters nor cache of this network, whatever they say."""
        self.settled.update(self.section_path + key for key in keys)

    def stated(self, *keys: str) -> bool:
        """Return whether the file itself has one of the keys, be it null."""
        known = self.stated_class
        return any(name in self.values for key in keys for name in (known.same(key) if known else (key,)))

    def unread_keys(self) -> list[str]:
        """Return the dotted keys that may matter, were not read, and differ from the default."""
        known = self.stated_class or ModelClass()
        kind = str(self.values.get("model_type"))
        unread = []
        for key, value in self.values.items():
            usual = next((known.defaults[name] for name in known.same(key) if name in known.defaults), None)
            off = value is None or value is False or value in ([], {}, "", 0)
            settled = any(self.section_path + name in self.settled for name in known.same(key))
            if settled or is_inert(key, kind) or value == usual or (off and not usual):
                continue
            unread.append(self.section_path + key)
        return unread

    def ties_embeddings(self, default: bool, *names: str) -> bool:
        """Return whether embedding and LM head are one tensor; `names` where the class calls the key otherwise.

        The top level of a file decides; some classes also ask the text section there. Where the top level is silent,
        transformers 4 asked the text section, and transformers 5, which always writes the key, its class. A file of
        neither is read by its text section too. Where that is silent as well, the class of the whole decides, except
        that transformers 4 tied nothing which either class leaves apart.
        """
        names = names or ("tie_word_embeddings",)
        whole = self.outer or self
        known = whole.stated_class or ModelClass()
        whole.unused(*names)
        self.unused(*names)
        if not known.ties:
            return False
        release = whole.text("transformers_version")
        decided = whole.stated(*names) or (bool(known.sections) and release.startswith("5."))
        if not decided and (self.stated(*names) or not known.sections):
            return self.flag(*names, default=default)
        tied = whole.flag(*names)
        if decided:
            return tied or (known.ties_by_text and self.flag(*names, default=default))
        if self.flag(*names, default=default) == tied:
            return tied
        if not release:
            self.notes.append(f"{names[-1]} is missing: {json.dumps(tied)}, as transformers 5 reads it")
        return tied and not release

    def has(self, *keys: str) -> bool:
        """Return whether one of the keys is present and not null."""
        return self.first_present(*keys)[1] is not None

    def where(self, key: str = "") -> str:
        """Return the place of a key, or of this section, as an error names it."""
        return f"{self.place}: {self.section_path}{key}".rstrip(".: ")

    def error(self, key: str, problem: str, allowed: str = "") -> InputError:
        """Return the error for one key of this file."""
        first = f"{self.where(key)}: {problem}"
        return InputError(f"{first}\n  {allowed}" if allowed else first)

    def missing(self, *keys: str) -> InputError:
        """Return the error for a missing key that the network depends on."""
        model_type = self.values.get("model_type", "?")
        near = get_close_matches(keys[0], list(map(str, self.values)), n=1, cutoff=0.7)
        names = " or ".join(keys)
        hint = (
            f"; the file has {near[0]!r}: did you mean {keys[0]!r}?" if near and near[0] not in keys else ""
        )
        return self.error(names, f"missing{hint}", f"every config of model_type {model_type!r} needs it")

    def _checked(self, key: str, value: Any, least: int, most: int) -> int:
        allowed = f"allowed: a whole number from {least} to {most}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, f"{value!r} is not a number", allowed)
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(key, f"{value!r} is not a finite number", allowed)
        if value != int(value):
            raise self.error(key, f"{value!r} is not a whole number", allowed)
        if not least <= value <= most:
            raise self.error(key, f"{_short(value)} is out of range", allowed)
        return int(value)

    def optional(self, *keys: str, least: int = 1, most: int = LARGEST_DIMENSION) -> int | None:
        """Return a whole number, or None where no key has one."""
        key, value = self.first_present(*keys)
        return None if value is None else self._checked(key, value, least, most)

    def dimension(
        self, *keys: str, default: int | None = None, least: int = 1, most: int = LARGEST_DIMENSION
    ) -> int:
        """Return a whole number of at least one; using the default adds a note."""
        needed = default is None and self.outer is None and not _ALWAYS_STATED.isdisjoint(keys)
        if needed and not self.stated(*keys):
            raise self.missing(*keys)
        value = self.optional(*keys, least=least, most=most)
        if value is not None:
            return value
        if default is None:
            raise self.missing(*keys)
        if not self.stated(*keys):
            self._note_default(keys[0], default)
        return default

    def count(self, *keys: str, default: int = 0) -> int:
        """Return a whole number that may be zero; missing means the default."""
        value = self.optional(*keys, least=0)
        return default if value is None else value

    def layers(self, *keys: str) -> int:
        """Return the number of layers."""
        return self.dimension(*(keys or ("num_hidden_layers",)), most=MOST_LAYERS)

    def flag(self, *keys: str, default: bool = False) -> bool:
        """Return a yes or no."""
        key, value = self.first_present(*keys)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if value in (0, 1) and isinstance(value, int):
            return bool(value)
        raise self.error(key, f"{value!r} is not true or false", "allowed: true, false")

    def text(self, *keys: str, default: str = "") -> str:
        """Return a string."""
        key, value = self.first_present(*keys)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, f"{value!r} is not a string")
        return value

    def items(self, *keys: str, length: int | None = None) -> Sequence[Any] | None:
        """Return a list, or None where it is missing; with at least `length` items where that is given."""
        key, value = self.first_present(*keys)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(key, f"{_short(value)} is not a list")
        if length is not None and len(value) < length:
            raise self.error(
                key, f"has {len(value)} entries for {length} layers", "allowed: one entry per layer"
            )
        return value

    def kinds(
        self, *keys: str, layers: int, known: Mapping[str, T], default: Sequence[T] | None = None
    ) -> list[T]:
        """Return what each layer is, from a list of names; `known` has what every known name stands for."""
        names = self.items(*keys, length=layers)
        if names is None:
            if default is None:
                raise self.missing(*keys)
            return list(default)
        key = self.first_present(*keys)[0]
        for index, name in enumerate(names[:layers]):
            if not isinstance(name, str) or name not in known:
                raise self.error(f"{key}[{index}]", f"{name!r} is not known", f"allowed: {', '.join(known)}")
        return [known[name] for name in names[:layers]]

    def per_layer(self, *keys: str, layers: int, default: int | None = None) -> tuple[int, ...]:
        """Return one whole number per layer, from a list or from one number for all."""
        key, value = self.first_present(*keys)
        if isinstance(value, list):
            entries = self.items(key, length=layers) or ()
            numbers = [self._checked(f"{key}[{i}]", v, 0, LARGEST_DIMENSION) for i, v in enumerate(entries)]
            return tuple(numbers[:layers])
        number = self.dimension(*keys, default=default, least=0)
        return (number,) * layers

    def whole_numbers(self, *keys: str, most: int = LARGEST_DIMENSION) -> tuple[int, ...] | None:
        """Return a list of whole numbers, written as a list or with commas, or None where it is missing."""
        key, value = self.first_present(*keys)
        if isinstance(value, str):
            value = [
                int(part) if part.strip().isdecimal() else part for part in value.split(",") if part.strip()
            ]
        elif value is not None and not isinstance(value, list):
            raise self.error(key, f"{_short(value)} is not a list")
        if value is None:
            return None
        return tuple(self._checked(f"{key}[{i}]", v, 0, most) for i, v in enumerate(value))

    def ratio(self, *keys: str, default: float | None = None) -> float:
        """Return a number above zero that need not be whole."""
        key, value = self.first_present(*keys)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.missing(*keys)
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not 0 < value < LARGEST_RATIO:
            raise self.error(
                key, f"{_short(value)} is not a ratio", f"allowed: above 0, below {LARGEST_RATIO:g}"
            )
        return float(value)

    def section(self, *keys: str) -> "Config | None":
        """Return a nested object, or None where it is missing."""
        key, value = self.first_present(*keys)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, f"{_short(value)} is not an object")
        path = f"{self.section_path}{key}."
        known = self.stated_class
        kind = None if known is None else known.sections.get(key) or known.optional_sections.get(key)
        if kind is not None and not value.get("model_type"):
            value = {**value, "model_type": kind}
        whole = self.outer or self
        inside = Config(
            value,
            self.place,
            path,
            self.keys_used,
            self.notes,
            self.doubts,
            self.settled,
            whole,
            self.sections,
        )
        differing = known.section_defaults.get(key) if known and inside.model_type == kind else None
        if differing and inside.stated_class:
            inside.stated_class = replace(
                inside.stated_class, defaults={**inside.stated_class.defaults, **differing}
            )
        return inside

    def needed_section(self, *keys: str) -> "Config":
        """Return a nested object that the network depends on."""
        section = self.section(*keys)
        if section is None:
            raise self.missing(*keys)
        return section

    def divisible(self, name: str, number: int, divisor_name: str, divisor: int) -> int:
        """Return number / divisor, which must be a whole number."""
        if divisor == 0 or number % divisor:
            raise self.error(
                name,
                f"{number} is not divisible by {divisor_name} = {divisor}",
                f"allowed: a multiple of {divisor}",
            )
        return number // divisor

    @property
    def model_type(self) -> str:
        """The `model_type` of this section; empty where it has none."""
        return self.text("model_type")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
