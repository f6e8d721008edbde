"""What the words behind the program of an engine say: options that are read, that change nothing, for which something is assumed, or that are not modelled."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from capplan.deploy.replica_launch import EngineFlags, NotModelledError, engine_flags, json_object
from capplan.deploy.shell import Started
from capplan.errors import LONGEST_SHOWN, InputError

_Kept = TypeVar("_Kept")
_OPTION = re.compile(r"--?[A-Za-z]")
_ARGUMENTS = ("$@", "$*", "${@}", "${*}", "$$@", "$$*")
"""What a shell puts the arguments of its script in place of."""
_LIKENESS = 0.85
"""Likeness of two options from which on one is taken for the other misspelt."""
_AS_IT_IS = ("none", "auto", "0", "pytorch", "generate", "null", "{}", "[]")
"""Values with which an option changes nothing."""


@dataclass(slots=True)
class LaunchWords:
    """What the words of a command say, option by option."""

    model: str | None = None
    said: dict[str, str] = field(default_factory=dict)
    """Key of the table of flags -> value."""
    unread: list[str] = field(default_factory=list)
    assumed: dict[str, list[str]] = field(default_factory=dict)
    """What is assumed -> the options instead of which it is."""
    unmodelled: list[str] = field(default_factory=list)

    def state(self, key: str, name: str, value: str) -> None:
        """Take the value of an option that is read, or note that it is not stated; of one that stands twice the last value counts, as engines do."""
        if unknown := _unknown(key, value):
            self.unmodelled.append(f"{name} is {NOT_STATED}: {value} {unknown}")
            return
        if self.said.get(key, value) != value:
            first = f"{name} {self.said[key]}"
            self.assumed.setdefault("an option that stands twice has its last value", []).append(first)
        self.said[key] = value

    def judge(self, table: EngineFlags, name: str, value: str, place: str = "") -> None:
        """Note an option that is not read: that it changes nothing, what is assumed instead, or that it is not modelled.

        Parameters
        ----------
        table : of the engine
        name : of the option, with its keys
        value : of it
        place : file in which an unknown name may mean anything; empty: a command line
        """
        for known in (f"{name}={value.lower()}", *_with_parents(name)):
            if known in table.refused:
                if "=" in known or value.lower() not in _AS_IT_IS:
                    shown = f"{name} {value}" if "=" in known else name
                    self.unmodelled.append(f"{shown} {table.refused[known]}")
                return
            if known in table.assumed:
                if value.lower() not in _AS_IT_IS:
                    shown = f"{name} {value}".strip()[:LONGEST_SHOWN]
                    self.assumed.setdefault(table.assumed[known], []).append(shown)
                return
            if known in table.harmless:
                self.unread.append(known.partition("=")[0])
                return
        if place:
            self.unmodelled.append(f"{name} of {place} is not known")
        else:
            self.unread.append(name)

    def kept(self, place: str, read: Callable[[], _Kept | None]) -> _Kept | None:
        """Return what a value says; None, and a note, where that is not modelled."""
        try:
            return read()
        except NotModelledError as error:
            self.unmodelled.append(str(error).removeprefix(f"{place}: "))
            return None

    def assumptions(self) -> list[str]:
        """Return what is assumed instead of options, one sentence for each assumption."""
        return [f"{says} (not read: {', '.join(names)})" for says, names in self.assumed.items()]


def _with_parents(name: str) -> Iterator[str]:
    """Yield an option with its keys, and with ever fewer of them."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def options_of(table: EngineFlags, started: Started, place: str, folder: Path) -> LaunchWords:
    """Return what the options of a command say."""
    names = {name: key for key, flag in table.flags.items() for name in flag.names}
    every = _every_name(table.engine)
    read, objects = LaunchWords(), dict[str, dict[str, Any]]()
    rest = _with_config(read, table, started, place, folder)
    while rest:
        word = rest.pop(0)
        if word in _ARGUMENTS:
            read.unread.append(word)
            continue
        if word.startswith("$") and read.model is not None:
            read.unmodelled.append(f"{word} is a variable that nothing before it sets, and may hold options")
            continue
        if not _OPTION.match(word):
            if word.strip(".`") and read.model is not None:
                raise InputError(
                    f"{place}: {read.model!r} and {word!r} both stand where the model is; quote values with spaces"
                )
            read.model = word if word.strip(".`") else read.model
            continue
        name, key, value = _option(table, names, every, word, rest, place)
        base, dot, path = name.partition(".")
        taken = key in _OBJECTS[table.engine]
        if taken and not dot and (unknown := _unknown("", value)) and not value.lstrip().startswith("{"):
            read.unmodelled.append(f"{name} is {NOT_STATED}: {value} {unknown}")
            continue
        written = _object(value, name, place, needed=taken) if not dot and (key is None or taken) else None
        if dot or written is not None:
            _merge(objects.setdefault(base, {}), path, _literal(value) if written is None else written)
        elif key is None:
            _note(read, table, names, every, name, value, place)
        else:
            read.state(key, name, value)
    for base, values in objects.items():
        _read_object(read, table, names, base, values)
    return read


def _option(
    table: EngineFlags,
    names: Mapping[str, str],
    every: Collection[str],
    word: str,
    rest: list[str],
    place: str,
) -> tuple[str, str | None, str]:
    """Return an option as the table spells it, its key and its value, which is taken from the words behind it; a switch that is false is its `--no-` form."""
    level = re.fullmatch(r"-O(\d)", word)
    name, equals, value = (f"--optimization-level={level[1]}" if level else word).partition("=")
    name = _spelled(name, names, every, table)
    key = names.get(name)
    switch = table.flags[key].switch if key else name in table.switches or _turned_off(name, every)
    if switch and (value or (rest and rest[0].lower() in ("true", "false"))):
        setting = value or rest.pop(0)
        if key and setting.lower() not in ("true", "false"):
            if not _unknown(key, setting):
                raise InputError(f"{place}: {name}={setting}: a switch is true or false")
            return name, key, setting
        if setting.lower() == "false":
            name = f"--no-{(table.flags[key].names[0] if key else name).removeprefix('--')}"
        return name, names.get(name), ""
    if not equals and not switch:
        known = key is not None or name.partition(".")[0] in every
        value = _values(table, key, name, rest, place, known=known)
    if (
        key is None
        and value
        and "." not in name
        and (stated := names.get(f"{name}={value.lower()}")) is not None
    ):
        return name, stated, f"{name}={value}"
    return name, key, value


@cache
def _every_name(engine: str) -> frozenset[str]:
    """Return all options of an engine that are known, by what they are called on a command line."""
    table = engine_flags(engine)
    listed = (*table.refused, *table.assumed, *table.harmless, *table.aliases)
    bare = (name.partition("=")[0].partition(".")[0] for name in listed)
    return frozenset([*bare, *(name for flag in table.flags.values() for name in flag.names)])


def _with_config(
    read: LaunchWords, table: EngineFlags, started: Started, place: str, folder: Path
) -> list[str]:
    """Return the words of a command with the options of the YAML that `--config` of vLLM and SGLang names; those of the command line count first."""
    words = [
        part
        for word in started.words
        for part in (word.split("=", 1) if word.startswith("--config=") else (word,))
    ]
    if table.engine in ("trtllm", "llamacpp") or "--config" not in words[:-1]:
        return words
    at = words.index("--config")
    path, kept = words[at + 1], words[:at] + words[at + 2 :]
    values = yaml_of(path, started, folder, f"{table.engine} --config", place)
    if values is None:
        read.unmodelled.append(f"--config {path} names a file that is not there and may hold any option")
        return kept
    given = {word.partition("=")[0].replace("_", "-") for word in kept}
    more: list[str] = []
    for key, value in values.items():
        name = f"--{str(key).replace('_', '-')}"
        if name == "--model" and table.engine == "vllm":
            more = [str(value), *more] if (kept[:1] and kept[0].startswith("-")) or not kept else more
        elif name not in given and value is not False and value is not None:
            shown = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
            more += [name] if value is True else [f"{name}={shown}"]
    return [*more, *kept]


def yaml_of(path: str, started: Started, folder: Path, what: str, place: str) -> Mapping[str, Any] | None:
    """Return the content of a YAML that a command names, of the script itself or a file; None where it is not there."""
    from capplan.readers.text_file import is_there
    from capplan.readers.yaml_file import parse_yaml, read_yaml

    if (written := started.files.get(path.removeprefix("./"))) is not None:
        value = parse_yaml(written, path).value
    elif is_there(folder / path):
        value = read_yaml(folder / path, kind=f"the YAML of {what}", way_out=f"named by {place}").value
    else:
        return None
    return value if isinstance(value, dict) else {}


NOT_STATED = "not stated"
_NAMED = frozenset(
    [
        "model",
        "draft",
        "config",
        "revision",
        "adapter_paths",
        "nodes",
        "node_rank",
        "leader",
        "data_parallel_leader",
        "alias",
        "repository",
        "repository_file",
        "override",
        "speculation",
        "transfer",
    ]
)
"""Keys of options whose value may be a variable: names, and objects whose keys are read one by one."""
_UNKNOWN = re.compile(
    r"(?P<command>\$\()|['\"]*\$\{?(?P<variable>[A-Za-z_]\w*)|(?P<argument>\$)|(?P<own><[^<>]+>|\{\{.*\}\})"
)
"""A value that a shell, a person or a template puts in: a command, a variable, an argument of a script, or `<N>`."""


def _unknown(key: str, value: str) -> str:
    """Return why the value of an option is not known, and what to do; empty where it is known, or may be any name."""
    match = None if key in _NAMED else _UNKNOWN.search(value)
    if match is None:
        return ""
    if match["command"]:
        return "is a command, and nothing is run; write what it prints"
    if match["variable"]:
        return f"is a variable that nothing before it sets; write {match['variable']}=...; before the command"
    return (
        "is an argument of its script; write its value"
        if match["argument"]
        else "stands for a value of yours; write it"
    )


_MANY_DOTS = 8
"""Most keys of an option, one inside the other."""
_OBJECTS = {"vllm": ("speculation", "transfer"), "sglang": (), "trtllm": (), "llamacpp": ()}
"""Engine -> modelled options that take a JSON object."""
_OF_DRAFTS = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
_OF_TRANSFERS = ("kv_connector", "kv_role")


def _object(value: str, name: str, place: str, *, needed: bool) -> Mapping[str, Any] | None:
    """Return the JSON object that an option takes; None for another value, which only an option that is read must not have."""
    if needed:
        return json_object(value, name, place)
    parsed = _literal(value) if value.lstrip().startswith("{") else None
    return parsed if isinstance(parsed, dict) else None


def _literal(value: str) -> Any:
    """Return the value of a key as JSON has it, which need not be quoted here."""
    try:
        return json.loads(value.lower() if value in ("True", "False") else value)
    except (ValueError, RecursionError):
        return value


def _merge(values: dict[str, Any], path: str, value: Any) -> None:
    """Put a value where its keys say, or the keys of an object next to those that are there."""
    if not path:
        values.update(value)
        return
    *outer, last = path.split(".")[:_MANY_DOTS]
    for key in outer:
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            values[key] = inner = {}
        values = inner
    values[last] = value


def _read_object(
    read: LaunchWords, table: EngineFlags, names: Mapping[str, str], base: str, values: Mapping[str, Any]
) -> None:
    """Take the object of an option that is modelled, and judge the keys of one that is not."""
    key = names.get(base)
    own: tuple[str, ...] = {"speculation": _OF_DRAFTS, "transfer": _OF_TRANSFERS}.get(str(key), ())
    if key is not None:
        read.said[key] = json.dumps(values)
    for name, value in leaves(base, values):
        if (stated := names.get(f"{name}={value.lower()}") or names.get(name)) is not None:
            read.said[stated] = value
        elif name.removeprefix(f"{base}.") not in own and key != "transfer":
            read.judge(table, name, value)


def leaves(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the keys of an object with their values, as options with dots."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(f"{name}.{key}", inner)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _values(
    table: EngineFlags, key: str | None, name: str, rest: list[str], place: str, *, known: bool
) -> str:
    """Take the values of an option from the words behind it."""
    if key is not None and (not rest or rest[0].startswith("--")):
        raise InputError(f"{place}: {name} has no value behind it")
    if not rest or (_OPTION.match(rest[0]) and not known) or rest[0].startswith("--"):
        return ""
    found = [rest.pop(0)]
    several = table.flags[key].many if key else name in table.many or not known
    while several and rest and not _OPTION.match(rest[0]):
        found.append(rest.pop(0))
    return " ".join(found)


def _turned_off(name: str, every: Collection[str]) -> bool:
    """Return whether an option turns a switch off that is known by its other name."""
    return name not in every and name.startswith("--no-") and f"--{name.removeprefix('--no-')}" in every


def _spelled(name: str, names: Mapping[str, str], every: Collection[str], table: EngineFlags) -> str:
    """Return an option as the table spells it: with - or _ between its words, in its long form, or shortened as argparse allows."""
    base, dot, path = name.partition(".")
    hyphened = f"--{base[2:].replace('_', '-')}" if base.startswith("--") else base
    base = table.aliases.get(hyphened, hyphened if dot else base)
    if "." in base:
        return base
    forms = (base, base[:2] + base[2:].replace("_", "-"), base[:2] + base[2:].replace("-", "_"))
    known = next((form for form in forms if form in every or _turned_off(form, every)), None)
    if known is None and base.startswith("--") and len(base) > _SHORTEST and table.engine != "trtllm":
        longer = {each for each in every if each.startswith(forms[1])}
        keys = {names.get(each, each) for each in longer}
        known = min(longer, key=len) if len(keys) == 1 else None
    return f"{known or base}{dot}{path}"


_SHORTEST = 6
"""Letters of an option that is taken for the start of a longer one."""


def _note(
    read: LaunchWords,
    table: EngineFlags,
    names: Mapping[str, str],
    every: Collection[str],
    name: str,
    value: str,
    place: str,
) -> None:
    """Note an option without a key in the table of flags, or raise the error for one that is probably misspelt."""
    if _turned_off(name, every):
        return
    if name.partition("=")[0] in every or name in every:
        read.judge(table, name, value)
        return
    near = _elsewhere(table, name) or next(
        iter(get_close_matches(name, sorted(names), n=1, cutoff=_LIKENESS)), None
    )
    if near is not None:
        raise InputError(
            f"{place}: {name} is no option of {table.engine} that is known; did you mean {near}?"
        )
    read.unread.append(name)


def _elsewhere(table: EngineFlags, name: str) -> str | None:
    """Return what an engine calls an option that another engine calls by this name; None where neither does.

    Examples
    --------
    >>> _elsewhere(engine_flags("sglang"), "--max-model-len"), _elsewhere(engine_flags("vllm"), "--afd-role")
    ('--context-length', None)
    """
    for engine in ("vllm", "sglang", "trtllm"):
        for key, flag in engine_flags(engine).flags.items():
            if name in flag.names and key in table.flags:
                return table.flags[key].names[0]
    return None
