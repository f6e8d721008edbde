"""Which option of which engine says what, and the versions that know it: `flags.json`, as data with its sources."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from capplan.engine.lookup import version_key
from capplan.errors import InputError

FLAGS_FILE = Path(__file__).parent / "flags.json"


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of an engine."""

    names: tuple[str, ...]
    """The one that is written, then its other names."""
    first: str
    """First release that was looked at and knows it."""
    last: str | None = None
    """Last one that knows it; None: the newest does."""
    switch: bool = False
    """It takes no value."""
    many: bool = False
    """It takes several values, up to the next option."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values that came later than the option -> first release that knows them."""


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """The options of an engine that a launch is written with and read from."""

    engine: str
    source: str
    releases: tuple[str, ...]
    """That were looked at, oldest first."""
    flags: Mapping[str, Flag]
    """What it says -> the option."""
    refused: Mapping[str, str]
    """Options that change memory or speed and are not modelled -> what they do; empty: that they may is all that is known."""
    harmless: frozenset[str]
    """Options that change neither memory nor speed."""
    switches: frozenset[str]
    """Refused and harmless options without a value."""

    def knows(self, key: str, version: str, value: str | None = None) -> bool:
        """Return whether a version knows an option, and a value of it.

        A version between two that were looked at, of which the older does not know the option, counts as not knowing it.

        Examples
        --------
        >>> vllm = engine_flags("vllm")
        >>> [vllm.knows("host_cache", version) for version in ("0.10.2", "0.11.0", "0.11.2", "0.40.0")]
        [False, False, True, True]
        >>> vllm.knows("kv_dtype", "0.10.2", "bfloat16")
        False
        """
        flag = self.flags.get(key)
        if flag is None or (value is not None and flag.values and value not in flag.values):
            return False
        first = flag.first if value is None else flag.values.get(value, flag.first)
        after = flag.last is not None and _order(version) > _order(flag.last)
        return _order(version) >= _order(first) and not after

    def refuse_version(self, version: str) -> None:
        """Raise the error for a version that is older than all that were looked at."""
        oldest = self.releases[0]
        if _order(version) < _order(oldest):
            raise InputError(
                f"{self.engine} {version}: its options are not known; {oldest} is the oldest version whose are\n"
                f"  plan for a newer one: capplan fleet SCENARIO --set engine_version={self.releases[-1]} -o plan.json"
            )


def _order(version: str) -> tuple[int, int, int]:
    """Return a version as numbers that compare; one without numbers comes before all."""
    return version_key(version) or (0, 0, 0)


@cache
def engine_flags(engine: str) -> EngineFlags:
    """Return the options of an engine.

    Examples
    --------
    >>> engine_flags("sglang").flags["max_model_len"].names
    ('--context-length',)
    """
    from capplan.readers.json_file import read_json

    table = read_json(FLAGS_FILE)[engine]
    flags = {
        key: Flag(
            tuple(row["names"]),
            row["first"],
            row.get("last"),
            row.get("switch", False),
            row.get("many", False),
            row.get("values", {}),
        )
        for key, row in table["flags"].items()
    }
    kinds = ("valued", "switches")
    other, harmless = (
        {kind: " ".join(table[part][kind]).split() for kind in kinds} for part in ("other", "harmless")
    )
    return EngineFlags(
        engine,
        table["source"],
        tuple(table["releases"]),
        flags,
        {name: "" for kind in kinds for name in other[kind]} | table["refused"],
        frozenset(name for kind in kinds for name in harmless[kind]),
        frozenset(other["switches"] + harmless["switches"]),
    )
