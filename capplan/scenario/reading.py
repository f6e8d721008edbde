"""A scenario file while it is resolved: the defaults it needs, the files it names, keys overridden on the command line, documents made of another."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, TypeVar

from capplan.assumption import Assumption
from capplan.errors import InputError, unknown
from capplan.readers.catalogue.hardware import SUFFIXES
from capplan.readers.record import Mistakes, checked
from capplan.readers.text_file import path_of, whole_path
from capplan.readers.yaml_file import Document, KeyPath, key_path, parse_yaml
from capplan.scenario.command_flags import FLAG_KEYS, ScenarioFlags
from capplan.scenario.scenario_file import ScenarioFile
from capplan.workload.request_class import METRICS, Target


def derived(document: Document, section: str, changes: Mapping[str, Any], at: KeyPath) -> Document:
    """Return a document without a section, and with the keys of one mapping in it in the place of the others.

    Parameters
    ----------
    document : with the section
    section : top-level key that is left out
    changes : keys that take the place of others, mappings key by key
    at : where the changes stand, for the lines of errors

    Returns
    -------
    Document; all else is that of the first one

    Examples
    --------
    >>> whole = Document("a.yaml", {"slo": {"a": 1, "b": 2}, "x": {"slo": {"b": 3}}}, {("slo",): 1, ("x", "slo"): 3})
    >>> derived(whole, "x", {"slo": {"b": 3}}, ("x",))
    Document(name='a.yaml', value={'slo': {'a': 1, 'b': 3}}, lines={('slo',): 3})
    """
    value = {key: item for key, item in document.value.items() if key != section}
    lines = {path: line for path, line in document.lines.items() if path[:1] != (section,)}
    lines |= {
        path[len(at) :]: line for path, line in document.lines.items() if path[: len(at)] == at and path != at
    }
    return Document(document.name, _changed(value, changes), lines)


def _changed(value: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys with others in their place, mappings key by key; null takes a key away."""
    both = {**value, **{key: _inside(value.get(key), new) for key, new in changes.items()}}
    return {key: item for key, item in both.items() if item is not None}


def _inside(old: Any, new: Any) -> Any:
    return _changed(old, new) if isinstance(old, Mapping) and isinstance(new, Mapping) else new


_PART = re.compile(r"\.?([A-Za-z_][\w-]*)|\[([0-9]{1,9})\]")
_EXAMPLE = "e.g. --set slo.ttft_p95='600 ms', --set 'traffic[0].request_rate=40 req/s'"


def key_of(text: str) -> KeyPath:
    """Return the parts of a key path.

    Examples
    --------
    >>> key_of("traffic[0].request_rate")
    ('traffic', 0, 'request_rate')
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or (text[at] == "." and not parts):
            raise InputError(f"--set: {text!r} is not a key of a scenario\n  {_EXAMPLE}")
        parts.append(part[1] if part[2] is None else int(part[2]))
        at = part.end()
    if not parts or not isinstance(parts[0], str):
        raise InputError(f"--set: {text!r} is not a key of a scenario\n  {_EXAMPLE}")
    return tuple(parts)


def overridden(document: Document, settings: Sequence[str]) -> Document:
    """Return a document with some keys overridden, each as KEY=VALUE with a YAML value, or as --FLAG=VALUE; checked like the file itself."""
    value, lines, flags = deepcopy(document.value), document.lines, dict(document.flags)
    for setting in settings:
        name, equals, text = by_key(setting).partition("=")
        if not equals:
            raise InputError(f"--set: {setting!r} is not KEY=VALUE\n  {_EXAMPLE}")
        path = key_of(name.strip())
        _put(value, path, parse_yaml(text, f"--set {name.strip()}").value)
        lines = {at: line for at, line in lines.items() if at[: len(path)] != path} | {path: 0}
        flags = {at: flag for at, flag in flags.items() if at[: len(path)] != path}
        flags |= {path: setting.partition("=")[0]} if setting.startswith("--") else {}
    return replace(document, value=value, lines=lines, flags=flags)


def by_key(setting: str) -> str:
    """Return a setting as KEY=VALUE, also one that is a flag.

    Examples
    --------
    >>> by_key("--ttft-p95=1 s"), by_key("--hardware=h100,l40s"), by_key("slo.tpot_p95=40 ms")
    ('slo.ttft_p95="1 s"', 'fleet.hardware=["h100", "l40s"]', 'slo.tpot_p95=40 ms')
    """
    flag, _, text = setting.partition("=")
    if not flag.startswith("--"):
        return setting
    field_name = flag[2:].replace("-", "_")
    if field_name not in FLAG_KEYS:
        raise InputError(f"--set: {setting!r} is not KEY=VALUE\n  {_EXAMPLE}")
    value: object = written_number(text)
    if field_name == "hardware":
        value = listed(text)
    elif field_name in {"input_tokens", "output_tokens"}:
        value = written_length(text, flag)
    elif field_name == "users":
        value = _written_users(text)
    elif field_name == "confidence":
        return f"{FLAG_KEYS[field_name]}={text}"  # the record reads `90 %` and 0.9, and says what else it is
    return f"{FLAG_KEYS[field_name]}={json.dumps(value)}"


def listed(text: str) -> list[str]:
    """Return the parts of a text between commas."""
    return [part.strip() for part in text.split(",")]


def written_length(text: str, flag: str = "") -> object:
    """Return a length as a scenario has it: the mean, or the mean and its 95th percentile."""
    mean, *rest = listed(text)
    if len(rest) > 1:
        place = f"{flag}: " if flag else ""
        raise InputError(f"{place}{text!r}: write a mean, or a mean and a 95th percentile, such as 1500,4500")
    return {"mean": written_number(mean), "p95": written_number(rest[0])} if rest else written_number(mean)


def _written_users(text: str) -> object:
    """Return users as a scenario has them: a number, or a share of employees.

    Examples
    --------
    >>> _written_users("400"), _written_users("20 % of 2000")
    (400, {'employees': 2000, 'active': '20 %'})
    """
    share, of, employees = text.partition(" of ")
    return (
        {"employees": written_number(employees.strip()), "active": share.strip()}
        if of
        else written_number(text)
    )


def written_number(text: str) -> object:
    """Return a whole number for digits, any other text as it is."""
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else text


def _put(value: Any, path: KeyPath, new: Any) -> None:
    first = path[0]
    if isinstance(value, dict) and first not in value and first not in ScenarioFile.model_fields:
        raise unknown(
            "key", str(first), ScenarioFile.model_fields, place=f"--set: {key_path(path)}", hint=_EXAMPLE
        )
    for at, part in enumerate(path[:-1]):
        if isinstance(value, dict) and isinstance(part, str) and part not in value:
            value[part] = [] if isinstance(path[at + 1], int) else {}
        value = _inside_of_overrides(value, part, path)
    last = path[-1]
    if isinstance(value, dict) and isinstance(last, str):
        value[last] = new
    else:
        _inside_of_overrides(value, last, path)
        value[last] = new


def _inside_of_overrides(value: Any, part: str | int, path: KeyPath) -> Any:
    fits = isinstance(value, list) and isinstance(part, int) and part < len(value)
    if fits or (isinstance(value, dict) and part in value):
        return value[part]
    entries = f"; it has {len(value)} entries, numbered from 0" if isinstance(value, list) else ""
    raise InputError(f"--set: the scenario has no {part!r} for {key_path(path)}{entries}\n  {_EXAMPLE}")


def settings_of(flags: ScenarioFlags) -> tuple[str, ...]:
    """Return the overrides of the flags that stand for a key, each as --FLAG=VALUE, and those of --set, each as KEY=VALUE.

    Files on the command line are found from the current folder, those in a scenario from that of the scenario.
    """

    def here(name: object) -> str:
        return str(whole_path(path_of(str(name))))

    changed = []
    for name in FLAG_KEYS:
        value = getattr(flags, name)
        if name == "hardware" and value:
            names = [part for text in value for part in listed(text)]
            value = ",".join(here(one) if one.lower().endswith(SUFFIXES) else one for one in names)
        elif name in {"trace", "calibration"} and value is not None:
            value = here(value)
        if value:
            changed.append(f"--{name.replace('_', '-')}={value}")
    return (*changed, *(flags.settings or ()))


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
    excluded: list[KeyPath] = field(default_factory=list)
    """Keys that another one excludes; errors that follow from them are not reported."""

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
        if any(
            above[: len(below)] == below[: len(above)]
            for above, below in product((*self.broken, *self.excluded), about)
        ):
            return
        if error.line is None and about:
            error.line, error.belongs_to = self.document.line(about[0]), self.document.place(about[0])
        self.mistakes.append(error)

    def reject(self, path: KeyPath, message: str, *about: KeyPath) -> None:
        """Keep the error for a key for later, unless what it is about could not be read: the key itself, if nothing else is named."""
        self.note(self.refuse(path, message), *(about or (path,)))

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
        return outcome, Reading(document, folder, list(document.assumed))
    reading = Reading(
        document,
        folder,
        list(document.assumed),
        mistakes=list(outcome.errors),
        broken=(*outcome.paths, *outcome.meant),
    )
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


LEAST_RATE_PER_S, MOST_RATE_PER_S = 1e-6, 1e9
"""One request in eleven days, and more than all people could send: beyond them times drown in rounding."""
LEAST_MEAN_FRACTION = 1e-6
"""A second of traffic in eleven days."""
LONGEST_WAIT_S = {"ttft": 600.0, "tpot": 10.0, "itl": 60.0, "e2e": 86400.0}
"""Limits above these promise nothing to a person who waits; they only warn."""


def plausible_rate(reading: Reading, rate: float | None, at: KeyPath) -> float | None:
    """Return a rate, raised to the least that a simulation tells from none; an error for one that no service has."""
    if rate is None or LEAST_RATE_PER_S <= rate <= MOST_RATE_PER_S:
        return rate
    if rate > MOST_RATE_PER_S:
        raise reading.refuse(
            at, f"{rate:.3g} req/s is out of range; at most {MOST_RATE_PER_S:g} req/s are allowed"
        )
    reading.warnings.append(
        f"{reading.document.place(at)}: {rate:.3g} req/s is planned for as {LEAST_RATE_PER_S:g} req/s, one request in "
        "eleven days: times between rarer ones drown in rounding"
    )
    return LEAST_RATE_PER_S


def refuse_rare_users(reading: Reading, users: float | None, think_s: float | None, at: KeyPath) -> None:
    """Refuse users who together ask less often than a simulation tells from never."""
    if users is not None and think_s is not None and users < LEAST_RATE_PER_S * max(think_s, 1.0):
        raise reading.refuse(
            at,
            f"{users:g} users who think for {think_s:g} s send fewer than {LEAST_RATE_PER_S:g} req/s, one request in eleven days",
        )


def refuse_idle_time(reading: Reading, fraction: float, at: KeyPath) -> None:
    """Refuse traffic whose mean is tiny compared with its peak: its cost per token has no meaning."""
    if fraction < LEAST_MEAN_FRACTION:
        raise reading.refuse(
            at,
            f"the mean rate is {fraction:.1g} of the peak, less than {LEAST_MEAN_FRACTION:g}; is the unit right?",
        )


def warn_of_odd_targets(reading: Reading, targets: Sequence[Target]) -> None:
    """Note targets that say nothing: limits nobody waits for, and a percentile looser than a higher one."""
    for target in targets:
        longest = LONGEST_WAIT_S[target.metric]
        if target.limit_s > longest:
            reading.warnings.append(
                f"slo.{target.key}: {target.limit_s:g} s is longer than the {longest:g} s that anybody waits; is the unit right?"
            )
    for metric in METRICS:
        by_percentile = [t for t in targets if t.metric == metric and t.statistic != "mean"]
        for lower, higher in pairwise(by_percentile):
            if lower.limit_s > higher.limit_s:
                reading.warnings.append(
                    f"slo.{lower.key}: {lower.limit_s:g} s says nothing compared with {higher.key} of {higher.limit_s:g} s, "
                    "which is stricter and covers more requests; are they swapped?"
                )
