"""Why rows of open loops miss a target: causes with their evidence, from a committed file that no prediction reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from capplan.errors import InputError
from capplan.readers.yaml_file import read_yaml
from docs.generators.page_tables import Table

CAUSES_FILE = Path(__file__).parent / "open_loop_causes.yaml"

Explained = Literal["yes", "in part", "no"]


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause, and the rows that have it."""

    name: str
    rows: tuple[str, ...]
    """Beginnings of names of rows, or endings of their source."""
    explained: Explained
    """Whether what is stated reproduces the rows."""
    evidence: str
    source: str

    def fits(self, row: str, source: str) -> bool:
        """Return whether a row has this cause.

        Examples
        --------
        >>> cause = Cause("hits", ("tiered", ", in the client"), "no", "unknown", "its page")
        >>> cause.fits("tiered-0017", "llm-d"), cause.fits("a-1", "b, in the client"), cause.fits("a-1", "b")
        (True, True, False)
        """
        return any(row.startswith(text) or source.endswith(text) for text in self.rows)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of open loops that are predicted wrongly."""

    causes: tuple[Cause, ...]
    saturation: Mapping[str, str]
    """Row whose saturation is predicted wrongly -> what other rows say of it."""
    unfollowed: tuple[str, ...]
    """Columns that no model of an engine can follow."""

    def cause_of(self, row: str, source: str) -> Cause | None:
        """Return the first cause that fits a row; None where none does."""
        return next((cause for cause in self.causes if cause.fits(row, source)), None)


def known_causes(path: Path = CAUSES_FILE) -> Known:
    """Return what the file says; InputError where a cause has no evidence or source, or another word for how far it explains."""
    document = read_yaml(path, kind="a list of causes").value
    causes = []
    for entry in document["causes"]:
        explained = next((word for word in get_args(Explained) if word == entry["explained"]), None)
        if explained is None or not (entry["evidence"] and entry["source"]):
            raise InputError(
                f"{path.name}: {entry['name']}: needs evidence, source, and explained yes, in part or no"
            )
        causes.append(
            Cause(entry["name"], tuple(entry["rows"]), explained, entry["evidence"], entry["source"])
        )
    return Known(tuple(causes), document["saturation"], tuple(document["unfollowed"]))


def cause_table(told: Sequence[tuple[Cause, str]]) -> Table:
    """Return each cause with what misses by it, its evidence and its source.

    Parameters
    ----------
    told : cause, and what of its rows misses
    """
    rows = [
        [cause.name, what, cause.explained, " ".join(cause.evidence.split()), cause.source]
        for cause, what in told
    ]
    return Table(["cause", "rows that miss a target by it", "explained", "evidence", "source"], rows)
