"""The models that ship with the package: found by id or alias, read from one small file each.

`model_configs/index.json` says which folder and which quantisation an id stands for, so that a look-up
reads two files. `catalogue_index` writes it from the folders and `variants.yaml`.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from capplan.readers.text_file import data_folder, read_text

FOLDER = "model_configs"

_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])[^0-9a-z]+(?=[0-9])")
_PUNCTUATION = re.compile(r"[^0-9a-z|]")


def normalised(name: str) -> str:
    """Return a name without case and punctuation; what separates two digits stays a separator.

    Examples
    --------
    >>> normalised("meta-llama/Llama-3.1-70B") == normalised("Meta Llama llama 3.1 70b")
    True
    >>> normalised("opt-1.3b") == normalised("opt-13b")
    False
    """
    return _PUNCTUATION.sub("", _BETWEEN_DIGITS.sub("|", name.casefold()))


@cache
def _index() -> dict[str, Any]:
    index: dict[str, Any] = json.loads(_shipped(data_folder(FOLDER) / "index.json"))
    return index


def _shipped(path: Path) -> str:
    return read_text(path, kind="a file of the shipped models")


def shipped_names() -> list[str]:
    """Return the ids and short names of all shipped models.

    Examples
    --------
    >>> "meta-llama/Llama-3.1-70B-Instruct" in shipped_names()
    True
    """
    index = _index()
    return sorted([*index["models"], *index["aliases"]])


def model_rows() -> Iterator[dict[str, Any]]:
    """Yield every shipped model: its id, its quantisation where the config of a variant states one, and its folder.

    Examples
    --------
    >>> next(row["folder"] for row in model_rows() if row["model"] == "meta-llama/Llama-3.1-8B-Instruct")
    'meta-llama--Llama-3.1-8B-Instruct'
    """
    for model, entry in _index()["models"].items():
        yield {
            "model": model,
            "quantization": entry.get("quantization"),
            "folder": entry["folder"],
            "note": entry.get("note"),
        }


def shipped_id(name: str) -> str | None:
    """Return the id that a name or alias stands for, or None; case and punctuation do not matter.

    Parameters
    ----------
    name : an id (owner/name), the name without its owner, or an alias

    Returns
    -------
    the id of a shipped model

    Examples
    --------
    >>> shipped_id("llama 3.1 70B instruct")
    'meta-llama/Llama-3.1-70B-Instruct'
    """
    model_id: str | None = _index()["names"].get(normalised(name))
    return model_id


def called_alike(first: str, second: str) -> bool:
    """Return whether two names may mean one model: owners and case do not matter, and one name may go on, for example with the dtype of the weights.

    Examples
    --------
    >>> called_alike("Qwen/Qwen3-8B", "qwen3-8b-fp8"), called_alike("qwen3-8b", "qwen3-0.6b"), called_alike("qwen3-8b", "")
    (True, False, False)
    """
    names = [
        (shipped_id(name) or name).rstrip("/").rpartition("/")[2].lower().replace("_", "-")
        for name in (first, second)
    ]
    return all(names) and (names[0] in names[1] or names[1] in names[0])


def shipped_config(name: str) -> tuple[dict[str, Any], str] | None:
    """Return the config.json of a shipped model with its id, or None for a name that is not shipped.

    Parameters
    ----------
    name : an id (owner/name), the name without its owner, or an alias

    Returns
    -------
    the config, quantisation of the variant included, and the id it was found under

    Examples
    --------
    >>> config, model = shipped_config("llama-3.1-70b-instruct")
    >>> config["num_key_value_heads"], model
    (8, 'meta-llama/Llama-3.1-70B-Instruct')
    """
    model = shipped_id(name)
    if model is None:
        return None
    entry = _index()["models"][model]
    config = json.loads(_shipped(data_folder(FOLDER) / entry["folder"] / "config.json"))
    for key, value in entry.get("overrides", {}).items():
        section, _, inner = key.rpartition(".")
        target = config[section] if section else config
        target[inner] = value
    scheme = entry.get("quantization")
    if scheme is not None:
        for holder in (config, config.get("text_config") or {}):
            holder.pop("quantization_config", None)
        section_value = _index()["quantizations"][scheme]
        if section_value is not None:
            config["quantization_config"] = section_value
    return config, model


def shipped_notes(name: str) -> tuple[str, ...]:
    """Return what a reader should know about a shipped model: what is assumed where its files are not public.

    Examples
    --------
    >>> shipped_notes("llama-3.1-70b-instruct")
    ()
    """
    model = shipped_id(name)
    note = _index()["models"][model].get("note") if model else None
    return (note,) if note else ()


def shipped_folder(model: str) -> str:
    """Return the folder of `model_configs` that the config of a shipped id is in.

    Examples
    --------
    >>> shipped_folder("meta-llama/Llama-3.1-8B-Instruct")
    'meta-llama--Llama-3.1-8B-Instruct'
    """
    return str(_index()["models"][model]["folder"])
