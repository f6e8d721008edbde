"""Keys that change neither parameters nor cache in any class: tokens, positions, activations, training, generation.

A family reads its keys; every other key of a file must be here or equal the default of its class, or the reader of the
result is told that it was not read. `make oracle` changes each of these keys and would find one that counts.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """Return a data file of this folder.

    `readers`: model_type -> folder, file and function; to keep start-up fast, reading a model imports only its file.
    `classes`: keys, defaults and sections of the configuration classes of transformers, written by `python -m docs.generators.model_classes`.
    `inert`: names and endings of such keys, and those of one model_type that its class does not have, or has and does not use.
    """
    found: dict[str, Any] = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    return found


@cache
def _inert() -> dict[str, Any]:
    keys = table("inert")
    return {**keys, "names": frozenset(keys["names"]), "endings": tuple(keys["endings"])}


def is_inert(key: str, model_type: str = "") -> bool:
    """Return whether a key changes neither parameters nor cache, whatever its value.

    Examples
    --------
    >>> is_inert("bos_token_id"), is_inert("rope_theta"), is_inert("num_experts")
    (True, True, False)
    """
    inert = _inert()
    general = key in inert["names"] or key.endswith(inert["endings"]) or key.startswith("_")
    return general or key in inert["of_type"].get(model_type, ())
