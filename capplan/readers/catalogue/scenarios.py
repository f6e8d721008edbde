"""The scenarios that ship with the package, found by their names."""

import os
from functools import cache
from itertools import takewhile
from pathlib import Path
from shlex import quote

from capplan.errors import unknown
from capplan.readers.text_file import data_folder, is_there, read_text

FOLDER = "scenarios"


@cache
def shipped_scenarios() -> dict[str, Path]:
    """Return the files of the shipped scenarios by name.

    Examples
    --------
    >>> shipped_scenarios()["support-chat"].name
    'support-chat.yaml'
    """
    return {path.stem: path for path in sorted(data_folder(FOLDER).glob("*.yaml"))}


def scenario_text(name: str) -> str:
    """Return the text of a shipped scenario."""
    return read_text(shipped_scenarios()[name], kind="a shipped scenario")


def described(name: str) -> str:
    """Return the comment at the top of a shipped scenario, in one line.

    Examples
    --------
    >>> described("support-chat").partition(":")[0]
    'A support assistant behind one long system prompt'
    """
    lines = scenario_text(name).splitlines()[1:]
    comments = takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.removeprefix("#").strip() for line in comments).strip()


def scenario_file(path: str | os.PathLike[str]) -> Path:
    """Return the file of a scenario that is named by its path, or by the name of a shipped one.

    Raises
    ------
    InputError
        it is a mere name, and neither a file nor a shipped scenario
    """
    file = Path(path)
    if file.suffix or file.parent != Path() or is_there(file):
        return file
    shipped = shipped_scenarios()
    if file.name.lower() not in shipped:
        raise unknown(
            "scenario", str(path), shipped, hint="or the path of a scenario YAML; new ones: capplan init"
        )
    return shipped[file.name.lower()]


def scenario_word(path: str | os.PathLike[str]) -> str:
    """Return a scenario as a command line names it: a shipped one by its name, a file below the working folder by its relative path.

    Examples
    --------
    >>> scenario_word(shipped_scenarios()["support-chat"]), scenario_word("my plans/chat.yaml")
    ('support-chat', "'my plans/chat.yaml'")
    """
    file = Path(path)
    if shipped_scenarios().get(file.stem) == file:
        return file.stem
    here = Path.cwd()
    return quote(str(file.relative_to(here) if file.is_relative_to(here) else file))
