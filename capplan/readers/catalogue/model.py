"""The MODEL of a command line -> a network and its source: a path, a shipped id or alias, or a Hugging Face id, in this order."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from capplan.errors import InputError, unknown
from capplan.families.model_config import read_gguf_network, read_network
from capplan.families.quantization.network_formats import quantised
from capplan.families.quantization.schemes import FILES
from capplan.hardware.device import Source
from capplan.model.network import Network
from capplan.model.stored_tensor import StoredModel
from capplan.model.weight_format import in_weight_format
from capplan.readers.catalogue.hub import hub_file, is_repository
from capplan.readers.catalogue.models import (
    FOLDER,
    shipped_config,
    shipped_folder,
    shipped_id,
    shipped_names,
    shipped_notes,
)
from capplan.readers.gguf_file import is_gguf, read_gguf
from capplan.readers.text_file import data_folder, is_there, path_of, printable, read_json, whole_path

_KIND = "a model's config.json"
_NAMED_FOR = {"quantize_config.json": ("gptq", "awq"), "quant_config.json": ("awq",)}
"""File of a quantiser -> what the id of a repository on the hub has in it where the file is asked for."""


def read_model(
    name: str, *, revision: str | None = None, offline: bool = False, weight_dtype: str | None = None
) -> Network:
    """Return the network that MODEL names.

    Parameters
    ----------
    name : path of a config.json, of the folder that holds one, or of a GGUF file; a shipped id or alias; a hub id
    revision : branch, tag or commit on the hub; asks the hub even where the model is shipped
    offline : never open a connection
    weight_dtype : dtype to hold the weights in; None leaves what the config says

    Returns
    -------
    the network, its quantisation applied

    Raises
    ------
    InputError
        There is no such model, or its config cannot be modelled.
    """
    network = _read(name, revision, offline=offline)
    return in_weight_format(network, weight_dtype) if weight_dtype else network


def stored_model(name: str) -> StoredModel | None:
    """Return the tensors that MODEL lists, where it is a GGUF file.

    Parameters
    ----------
    name : as given to `read_model`

    Returns
    -------
    the header of the file; None for anything else
    """
    path = path_of(name)
    return read_gguf(path) if _is_path(name, path) and is_gguf(path) else None


def shipped_networks() -> tuple[list[Network], list[str]]:
    """Return the shipped models that are modelled, and the names of those that are known and refused."""
    networks: list[Network] = []
    refused: list[str] = []
    for name in shipped_names():
        if "/" in name:
            try:
                networks.append(read_model(name))
            except InputError:
                refused.append(name)
    return networks, refused


def model_source(name: str, revision: str | None = None) -> Source:
    """Return where MODEL was read: a file, the shipped catalogue with its own source, or the hub.

    Parameters
    ----------
    name : as given to `read_model`
    revision : asks the hub even where the model is shipped

    Returns
    -------
    a source with a title, and an address where there is one

    Examples
    --------
    >>> model_source("llama-3.1-8b-instruct").title
    'meta-llama/Llama-3.1-8B-Instruct, config as shipped'
    """
    from capplan.readers.yaml_file import read_yaml

    if is_there(path_of(name)):
        what = "header" if is_gguf(path_of(name)) else "config"
        return Source("model", f"{what} of {Path(name).name}", note="a file next to the scenario")
    model = None if revision else shipped_id(name)
    if model is None:
        at = revision or "main"
        return Source("model", f"{name}, revision {at}", url=f"https://huggingface.co/{name}/tree/{at}")
    folder = shipped_folder(model)
    origin = read_yaml(data_folder(FOLDER) / folder / "source.yaml", kind="a model's source").value
    base = folder.replace("--", "/", 1)
    of = "" if base == model else f" (a variant of {base})"
    return Source("model", f"{model}, config as shipped{of}", note=str(origin.get("source") or "") or None)


def _read(name: str, revision: str | None, *, offline: bool) -> Network:
    path = path_of(name)
    if _is_path(name, path):
        if revision is not None:
            raise InputError(
                f"revision {revision!r}: {name} is a path, and only models on the hub have revisions\n"
                "  leave it out, or give a Hugging Face id (owner/name)"
            )
        return _from_path(path)
    shipped = None if revision else shipped_config(name)
    if shipped is not None:
        config, title = shipped
        network = _network(config, title, title)
        return replace(network, notes=(*network.notes, *shipped_notes(name)))
    name = shipped_id(name) or name
    if not is_repository(name) or "/" not in name:
        short = {known.rpartition("/")[2].lower() for known in shipped_names()}
        raise unknown(
            "model",
            name,
            short,
            hint="or give a Hugging Face id (owner/name), or the path of a config.json or a GGUF file",
        )
    return _from_hub(name, revision, offline=offline)


def _is_path(name: str, path: Path) -> bool:
    """Return whether a MODEL is a path: it exists, or has the form of a path."""
    try:
        if path.exists():
            return True
    except OSError as error:
        raise InputError(
            f"{name[:80]!r}: cannot be read ({(error.strerror or 'not a path').lower()})"
        ) from None
    except ValueError:
        raise InputError(f"{name[:80]!r} is not a file name") from None
    return name.startswith(("/", "./", "../", "~")) or path.suffix in {".json", ".gguf", ".safetensors"}


def _from_path(path: Path) -> Network:
    if is_gguf(path):
        return read_gguf_network(read_gguf(path), printable(path.stem), printable(str(path)))
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        weights = sorted(path.glob("*.gguf"))
        hint = f"; it has {printable(weights[0].name)}: give that file" if weights else ""
        raise InputError(
            f"{path}: this folder has no config.json{hint}\n"
            "  give the folder of a Hugging Face model, the path of its config.json, or a GGUF file"
        )
    title = printable(whole_path(file.parent).name if file.name == "config.json" else file.stem)
    quantization_file = next(filter(is_there, map(file.with_name, FILES)), None)
    return _network(
        read_json(file, kind=_KIND, infinities=True), title, printable(str(file)), quantization_file
    )


def _from_hub(name: str, revision: str | None, *, offline: bool) -> Network:
    try:
        file = hub_file(name, "config.json", revision=revision, offline=offline)
    except InputError as error:
        near = get_close_matches(name, shipped_names(), n=2, cutoff=0.8)
        raise InputError(
            f"{error}\n  shipped, of similar name: {', '.join(near)}" if near else str(error)
        ) from error
    assert file is not None
    wanted = (
        one for one in FILES if one not in _NAMED_FOR or any(of in name.lower() for of in _NAMED_FOR[one])
    )
    asked = (hub_file(name, one, revision=revision, offline=offline, optional=True) for one in wanted)
    quantization_file = next(filter(None, asked), None)
    return _network(
        read_json(file, kind=_KIND, infinities=True), name, f"{name}/config.json", quantization_file
    )


def _network(
    config: Mapping[str, Any], title: str, place: str, quantization_file: Path | None = None
) -> Network:
    network = read_network(config, title, place)
    scheme = (
        (quantization_file.name, read_json(quantization_file, kind=f"a model's {quantization_file.name}"))
        if quantization_file
        else None
    )
    return replace(quantised(network, config, place, scheme), name=title)
