"""What a request may say: the parameters that a command declares, as JSON and as the words of its command line.

A command that is added to the table of commands appears here by itself. Files that a command reads are sent in the request; files that it writes,
addresses that it connects to and the number of its processes are not offered.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from capplan.cli.api.jobs import Lane
from capplan.cli.commands import COMMANDS, FUNCTIONS
from capplan.cli.main import as_click
from capplan.cli.options import OUTPUTS
from capplan.errors import LONGEST_SHOWN, InputError, unknown

NOT_OFFERED = ("init", "replan", "calibrate", "detect", "prices", "mcp", "serve")
"""Commands that write files, ask another server, measure or read this machine, or serve by themselves."""
MANY_SEARCHES = ("levers", "what-if")
"""Commands that search again for each of many changes."""
CONTENTS = "contents"
PLAN_KEY = "capplan"
"""A plan file has it; a scenario has not."""
FORMATS = {
    "application/json": "json",
    "text/csv": "csv",
    "text/markdown": "markdown",
    "text/html": "html",
}
"""Media type -> the format of a command that writes it."""
MOST_FILES = 40
_OMITTED = {*OUTPUTS.values(), "--save", "--format", "--workers", "--window"}
_CONNECTING = ("URL", "ADDRESS")
_NUMBERS = {"whole number": ["integer", "string"], "float range": ["number"]}
_MAPPINGS = ("SCENARIO", "MODEL")
"""What an argument is called that may be a file of keys, although it is declared as a text."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@ -]{0,99}(/[A-Za-z0-9_][A-Za-z0-9_.@ -]{0,99}){0,3}")


@dataclass(frozen=True, slots=True)
class Flag:
    """One parameter of a command."""

    key: str
    """Its name in a request."""
    option: str
    """Its name on the command line; empty for an argument."""
    says: str
    kind: str
    """What it is read as: a path, a whole number, a quantity, or choices with bars between them."""
    names_file: bool
    required: bool
    several: bool

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of its value."""
        one: dict[str, Any] = {"type": _NUMBERS.get(self.kind, ["string", "number"])}
        if self.kind == "boolean":
            one = {"type": "boolean"}
        elif "|" in self.kind:
            one = {"type": "string", "enum": self.kind.split("|")}
        elif self.names_file:
            one = {"type": ["string", "object"]}
        whole = {"anyOf": [one, {"type": "array", "items": one}]} if self.several else one
        return {**whole, "description": self.says}


@dataclass(frozen=True, slots=True)
class Offered:
    """A command as a request sees it."""

    name: str
    says: str
    flags: tuple[Flag, ...]
    formats: tuple[str, ...]
    """Formats of its answer; none where it prints a text."""
    lane: Lane

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a request."""
        properties = {flag.key: flag.schema() for flag in self.flags}
        properties[CONTENTS] = {
            "type": "object",
            "description": "Files that the request or its scenario names, such as a trace: name -> content, as text or as an object.",
            "additionalProperties": {"type": ["string", "object", "array"]},
        }
        required = [flag.key for flag in self.flags if flag.required]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }


@cache
def offered() -> Mapping[str, Offered]:
    """Return the commands that are offered, by name."""
    return {name: _offered(name) for name in COMMANDS if name not in NOT_OFFERED}


def _offered(name: str) -> Offered:
    file, _, function = FUNCTIONS[name].partition(".")
    command = as_click(name, getattr(import_module(f"capplan.cli.{file}"), function))
    found = [flag for parameter in command.params if (flag := _flag(parameter)) is not None]
    by_key = {flag.key: flag for flag in sorted(found, key=lambda flag: bool(flag.option))}
    flags = tuple(flag for flag in found if by_key[flag.key] is flag)  # --plan rather than the argument PLAN
    formats: list[str] = next((p.type.name.split("|") for p in command.params if "--format" in p.opts), [])
    of_plans = any(flag.key in ("plan", "set") or (flag.kind == "path" and not flag.option) for flag in flags)
    lane = Lane.SEARCHES if name in MANY_SEARCHES else Lane.SEARCH if of_plans else Lane.QUICK
    return Offered(name, COMMANDS[name], flags, tuple(formats), lane)


def _flag(parameter: Any) -> Flag | None:
    """Return a declared parameter; None for one that is not offered."""
    option = next((word for word in parameter.opts if word.startswith("--")), "")
    shown = str(parameter.metavar or "")
    if option in _OMITTED or shown in _CONNECTING:
        return None
    key = (option.strip("-") or parameter.name.removesuffix("_file")).replace("-", "_")
    kind = str(parameter.type.name)
    names_file = kind == "path" or (not option and any(name in shown for name in _MAPPINGS))
    several = bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1
    return Flag(key, option, parameter.help or "", kind, names_file, bool(parameter.required), several)


def words(command: Offered, given: Mapping[str, Any], folder: Path, *, offline: bool) -> list[str]:
    """Return a request as the words of a command line, with the files that it brings written to a folder.

    Parameters
    ----------
    command : what is asked
    given : the JSON object of the request, without its format
    folder : that belongs to this request, where relative paths are looked up
    offline : add `--offline` where the command has it

    Raises
    ------
    InputError
        a key is unknown, missing or of another type, or a value names a file of the server
    """
    known = {flag.key: flag for flag in command.flags}
    for key in given:
        if key not in known and key != CONTENTS:
            raise unknown("key", key, [*known, CONTENTS], place=command.name)
    _write_contents(given.get(CONTENTS), folder)
    options: list[str] = []
    arguments: list[str] = []
    for flag in command.flags:
        value = given.get(flag.key)
        if flag.option == "--offline" and offline and value is None:
            value = True
        if value is None:
            if flag.required:
                raise InputError(f"{flag.key}: is missing\n  {flag.says}")
            continue
        if flag.kind == "boolean":
            wanted = _truth(flag, value) or (offline and flag.option == "--offline")
            options += [flag.option] if wanted else []
            continue
        items = value if flag.several and isinstance(value, list) else [value]
        read = [_word(flag, item, folder, at) for at, item in enumerate(items)]
        if flag.option:
            options += [f"{flag.option}={word}" for word in read]
        else:
            arguments += read
    return [command.name, *options, "--", *arguments]


def _truth(flag: Flag, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{flag.key}: {_shown(value)} is not true or false")
    return value


def _word(flag: Flag, value: object, folder: Path, at: int) -> str:
    if isinstance(value, dict) and flag.names_file:
        is_scenario = flag.key == "scenario" and PLAN_KEY not in value
        name = f"{flag.key}{at or ''}.{'yaml' if is_scenario else 'json'}"
        _write(folder / name, json.dumps(value, ensure_ascii=False))
        return name
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        kinds = "a text, a number or an object" if flag.names_file else "a text or a number"
        raise InputError(f"{flag.key}: {_shown(value)} is not {kinds}")
    word = str(value)
    outside = word.startswith(("/", "~", "\\")) or ".." in re.split(r"[/\\]", word)
    if outside or (flag.names_file and "\\" in word):
        raise InputError(
            f"{flag.key}: {_shown(word)} names a file of the server, which no request may\n"
            f"  send its content: {CONTENTS}: {{NAME: CONTENT}}, and {flag.key}: NAME"
        )
    return word


def _write_contents(contents: object, folder: Path) -> None:
    if contents is None:
        return
    if not isinstance(contents, dict):
        raise InputError(f"{CONTENTS}: is not an object of names and contents")
    if len(contents) > MOST_FILES:
        raise InputError(f"{CONTENTS}: more than {MOST_FILES} files")
    for name, content in contents.items():
        if not _NAME.fullmatch(name):
            raise InputError(f"{CONTENTS}: {_shown(name)} is not a name of a file, such as trace.csv")
        if not isinstance(content, (str, dict, list)):
            raise InputError(f"{CONTENTS}: {name}: is not a text, an object or a list")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        _write(folder / name, text)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    except OSError as error:
        raise InputError(f"{CONTENTS}: {path.name!r} cannot be kept: {error.strerror}") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
