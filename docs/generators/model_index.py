"""Write `model_configs/index.json`: `python -m docs.generators.model_index`.

Reads every folder's `source.yaml` and `variants.yaml`; a test checks that the written file is current.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from capplan.errors import InputError
from capplan.readers.catalogue.models import FOLDER, normalised
from capplan.readers.text_file import data_folder
from capplan.readers.yaml_file import read_yaml


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Source(_Strict):
    """`source.yaml` of one model: where its config comes from and what its parameters are."""

    id: str
    """Hugging Face id."""
    source: str
    """Where the keys of config.json were read."""
    revision: str | None
    """Commit of the model's own repository, where it is known."""
    published_parameters: str | None
    """As the model card or name says."""
    published_active_parameters: str | None = None
    exact_parameters: int
    """Counted, tied LM head once, without multi-token-prediction layers."""
    exact_by: str
    """Who counted."""
    counts_vision: bool = False
    """Whether the exact count includes vision towers."""
    note: str | None = None


class Quantisation(_Strict):
    """How a checkpoint is quantised, as its `quantization_config` would say."""

    source: str
    config: dict[str, Any] | None
    """Null takes a base's own quantisation away."""


class Variant(_Strict):
    """An id that differs from a base in training, context or quantisation only."""

    base: str
    quantization: str | None = None
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Keys of config.json that differ; `text_config.key` for a nested one."""
    note: str | None = None


class Variants(_Strict):
    """`variants.yaml`."""

    quantizations: dict[str, Quantisation]
    variants: dict[str, Variant]
    aliases: dict[str, str]


def read_sources(folder: Path) -> dict[str, Source]:
    """Return the `source.yaml` of each folder, by folder name."""
    found = {}
    for path in sorted(folder.glob("*/source.yaml")):
        found[path.parent.name] = Source.model_validate(read_yaml(path, kind="a model's source.yaml").value)
    return found


def read_variants(folder: Path) -> Variants:
    """Return `variants.yaml`."""
    return Variants.model_validate(read_yaml(folder / "variants.yaml", kind="the list of variants").value)


def built_index(folder: Path) -> dict[str, Any]:
    """Return what `index.json` has to hold.

    Parameters
    ----------
    folder : the folder of the shipped models

    Returns
    -------
    `models` (id -> folder, quantisation, overrides), `names` (normalised name -> id), `aliases`, `quantizations`
    """
    models: dict[str, dict[str, Any]] = {}
    for name, source in read_sources(folder).items():
        models[source.id] = {"folder": name} | ({"note": source.note} if source.note else {})
    described = read_variants(folder)
    for model, variant in described.variants.items():
        if model in models:
            raise InputError(f"variants.yaml: {model} is a folder already")
        models[model] = _variant_entry(model, variant, models, described)
    names: dict[str, str] = {}
    for model in models:
        _claim(names, model, model, models)
    for alias, model in described.aliases.items():
        if model not in models:
            raise InputError(f"variants.yaml: aliases.{alias}: no model {model!r}")
        _claim(names, alias, model, models)
    for model in models:
        names.setdefault(normalised(model.rpartition("/")[2]), model)
    return {
        "models": models,
        "aliases": sorted(described.aliases),
        "names": names,
        "quantizations": {name: entry.config for name, entry in described.quantizations.items()},
    }


def _variant_entry(
    model: str, variant: Variant, models: dict[str, dict[str, Any]], described: Variants
) -> dict[str, Any]:
    if variant.base not in models:
        raise InputError(f"variants.yaml: variants.{model}.base: no model {variant.base!r} above it")
    if variant.quantization is not None and variant.quantization not in described.quantizations:
        raise InputError(f"variants.yaml: variants.{model}.quantization: no entry {variant.quantization!r}")
    entry = dict(models[variant.base])
    entry.pop("note", None)
    if variant.quantization is not None:
        entry["quantization"] = variant.quantization
    if variant.overrides:
        entry["overrides"] = {**entry.get("overrides", {}), **variant.overrides}
    if variant.note:
        entry["note"] = variant.note
    return entry


def _claim(names: dict[str, str], name: str, model: str, models: dict[str, dict[str, Any]]) -> None:
    key = normalised(name)
    if names.get(key, model) != model:
        raise InputError(f"variants.yaml: {name!r} names both {names[key]} and {model}")
    if name != model and key in {normalised(other) for other in models if other != model}:
        raise InputError(f"variants.yaml: alias {name!r} is also an id")
    names[key] = model


def index_text(folder: Path) -> str:
    """Return the text of `index.json`, one model per line."""
    index = built_index(folder)
    parts = []
    for key, value in index.items():
        if isinstance(value, dict):
            lines = ",\n".join(
                f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items()
            )
            parts.append(f"{json.dumps(key)}: {{\n{lines}\n}}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    """Write the index."""
    folder = data_folder(FOLDER)
    (folder / "index.json").write_text(index_text(folder), encoding="utf-8")
    sys.stderr.write(f"{folder / 'index.json'}: {len(built_index(folder)['models'])} models\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
