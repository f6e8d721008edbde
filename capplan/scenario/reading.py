"""A scenario file while it is being resolved: the defaults it needs, and all of its errors."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from capplan.assumption import Assumption
from capplan.errors import InputError, unknown
from capplan.readers.record import Mistakes, checked
from capplan.readers.text_file import path_of, whole_path
from capplan.readers.yaml_file import Document, KeyPath
from capplan.scenario.scenario_file import ScenarioFile

T = TypeVar("T")
F = TypeVar("F")

_STAND_INS = {"name": "", "model": "", "traffic": [{}]}
"""Placeholders for required keys that are missing, so that the other errors can be listed; never used."""
_MOST_ROUNDS = 20


@dataclass(slots=True)
class Reading:
    """The document being read, the defaults it needed, and its errors so far."""

    document: Document
    folder: Path
    assumptions: list[Assumption] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    mistakes: list[InputError] = field(default_factory=list)
    broken: tuple[KeyPath, ...] = ()
    """Keys that could not be read; errors that follow from them are not reported."""

    def refuse(self, path: KeyPath, message: str) -> InputError:
        """Return the error for a key, with its place in the file."""
        error = InputError(f"{self.document.place(path)}: {message}")
        error.line = self.document.line(path)
        return error

    def unknown(self, kind: str, name: str, known: Iterable[str], path: KeyPath) -> InputError:
        """Return the error for a name that is not in a list, with its place in the file."""
        error = unknown(kind, name, known, place=self.document.place(path))
        error.line = self.document.line(path)
        return error

    def note(self, error: InputError, *about: KeyPath) -> None:
        """Keep an error for later, unless it is about keys that could not be read."""
        if any(above[: len(below)] == below[: len(above)] for above, below in product(self.broken, about)):
            return
        if error.line is None and about:
            error.line, error.belongs_to = self.document.line(about[0]), self.document.place(about[0])
        self.mistakes.append(error)

    def attempt(self, read: Callable[[], T], otherwise: F, *about: KeyPath) -> T | F:
        """Return the value read; where that fails, keep the error for later and return `otherwise`."""
        try:
            return read()
        except InputError as error:
            self.note(error, *about)
            return otherwise

    def assume(self, what: str, replace: str) -> None:
        """Record the default of a missing key."""
        self.assumptions.append(Assumption(what, replace))

    def resolved(self, path: str) -> str:
        """Return a path named in the file, relative to its folder, as an absolute path."""
        return str(whole_path(self.folder / path_of(path)))


def scenario_record(document: Document, folder: Path) -> tuple[ScenarioFile, Reading]:
    """Return the record of a scenario, and the reading to continue with.

    Parameters
    ----------
    document : Document
    folder : base of relative paths in it

    Returns
    -------
    the record, without the keys that cannot be read; the reading has their errors
    """
    outcome = checked(ScenarioFile, document)
    if not isinstance(outcome, Mistakes):
        return outcome, Reading(document, folder)
    reading = Reading(document, folder, mistakes=list(outcome.errors), broken=outcome.paths)
    rest, paths = deepcopy(document.value), outcome.paths
    for _ in range(_MOST_ROUNDS):
        for path in paths:
            _take_away(rest, path)
        again = checked(ScenarioFile, replace(document, value=_STAND_INS | rest))
        if not isinstance(again, Mistakes):
            return again, reading
        paths = again.paths
    return ScenarioFile.model_validate(_STAND_INS), reading


def _take_away(value: dict[str, Any], path: KeyPath) -> None:
    """Remove a key from nested mappings and lists: with an entry its whole list, with a missing key its parent."""
    *parents, last = path
    place: Any = value
    for part in parents:
        if isinstance(place, dict) and part not in place:
            return  # removed with an earlier error
        place = place[part]
    if isinstance(last, str) and isinstance(place, dict) and last in place:
        del place[last]
    elif len(parents) == 1 and parents[0] == "traffic":
        place[last] = {}  # the other entries keep their numbers
    elif parents:
        _take_away(value, tuple(parents))
