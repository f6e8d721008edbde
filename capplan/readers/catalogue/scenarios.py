"""The scenarios that ship with the package, found by their names."""

import os
from functools import cache
from itertools import takewhile
from pathlib import Path
from shlex import quote

from capplan.errors import LONGEST_SHOWN, InputError, nearest
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
    """Return the file of a scenario that is named by its path, or by the name of a shipped one; the name of a model as it is.

    Raises
    ------
    InputError
        it is a mere name, and neither a file nor a shipped scenario or model
    """
    file = Path(path)
    if file.suffix[1:].isalpha() or file.parent != Path() or is_there(file):
        return file
    shipped = shipped_scenarios()
    if names_a_model(path):
        return file
    if file.name.lower() not in shipped:
        from capplan.readers.catalogue.models import shipped_names

        near = nearest(str(path), [*shipped, *shipped_names()])
        question = f": did you mean {' or '.join(map(repr, near[:2]))}?" if near else ""
        raise InputError(
            f"{str(path)[:LONGEST_SHOWN]!r} is neither a scenario nor a model{question}\n"
            "  capplan list scenarios, capplan list models; or the path of a scenario YAML or a config.json, or OWNER/NAME on the hub"
        )
    return shipped[file.name.lower()]


def names_a_model(path: str | os.PathLike[str]) -> bool:
    """Return whether a model is named in the place of a scenario: it is no file or name of a scenario.

    Examples
    --------
    >>> [names_a_model(name) for name in ("qwen3-32b", "Qwen/Qwen3-32B", "support-chat", "chat.yaml")]
    [True, True, False, False]
    """
    file, shipped = Path(path), shipped_scenarios()
    if is_there(file):
        return is_there(file / "config.json") or file.name == "config.json" or file.suffix.lower() == ".gguf"
    if file.suffix.lower() in {".yaml", ".yml", ".json"} or str(path).lower() in shipped:
        return False
    from capplan.readers.catalogue.models import is_repository, shipped_id

    if shipped_id(str(path)) is not None:
        return True
    return file.parent != Path() and not file.parent.is_dir() and is_repository(str(path))


def scenario_folder(file: Path) -> Path:
    """Return the folder that paths in a scenario are relative to: that of its file, or the working folder for a model and flags."""
    return Path.cwd() if names_a_model(file) else file.resolve().parent


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
