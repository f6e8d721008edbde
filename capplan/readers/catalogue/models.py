"""The MODEL of a command line: shipped models, paths, and files of the Hugging Face hub.

The models that ship with the package: found by id or alias, read from one small file each.

`model_configs/index.json` says which folder and which quantisation an id stands for, so that a look-up
reads two files. `catalogue_index` writes it from the folders and `variants.yaml`.

The MODEL of a command line -> a network and its source: a path, a shipped id or alias, or a Hugging Face id, in this order.

Files of a model on the Hugging Face hub: first from the local cache, then from the hub.

Endpoint, token, cache folder and time-outs come from the usual variables: HF_ENDPOINT, HF_TOKEN,
HF_HOME, HF_HUB_ETAG_TIMEOUT, HF_HUB_OFFLINE.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from capplan.errors import InputError, unknown
from capplan.families.model_config import read_gguf_network, read_network
from capplan.families.quantization.schemes import FILES, quantization_section
from capplan.model.network import Network
from capplan.model.stored_tensor import StoredModel
from capplan.model.weight_format import in_weight_format
from capplan.ranges import Revision
from capplan.readers.text_file import (
    data_folder,
    is_there,
    path_of,
    printable,
    read_json,
    read_text,
    whole_path,
)

if TYPE_CHECKING:
    from capplan.hardware.device import Source

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


_CHECKPOINT = re.compile(
    r"[-._](?:fp8|fp4|nvfp4|mxfp4|bf16|int4|int8|4bit|8bit|w\d+a\d+|awq|gptq|kv|dynamic|quantized|hf|(?<=instruct-)turbo|maas|instruct|chat|it|base)(?![a-z0-9])"
)
_FIRST_OWNER = re.compile(r"^(?:meta|mistralai|deepseek|qwen)-(?=llama|mistral|deepseek|qwen)")


def same_model(first: str, second: str) -> bool:
    """Return whether two ids are checkpoints of one model: in another format, under another owner, or its base and chat version; no other training.

    Examples
    --------
    >>> same_model("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct-Turbo")
    True
    >>> same_model("deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3"), same_model("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B")
    (False, False)
    """
    names = {
        _CHECKPOINT.sub("", _FIRST_OWNER.sub("", name.rpartition("/")[2].casefold()))
        for name in (first, second)
    }
    return len(names) == 1


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

    Raises
    ------
    InputError
        There is no such model, or its config cannot be modelled.
    """
    network = _read(name, revision, offline=offline)
    return in_weight_format(network, weight_dtype) if weight_dtype else network


def stored_model(name: str) -> StoredModel | None:
    """Return the tensors that MODEL lists, where it is a GGUF file.

    Returns
    -------
    the header of the file; None for anything else
    """
    path = path_of(name)
    if not _is_path(name, path):
        return None
    from capplan.readers.gguf_file import is_gguf, read_gguf

    return read_gguf(path) if is_gguf(path) else None


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


def model_source(name: str, revision: str | None = None) -> "Source":
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
    from capplan.hardware.device import Source
    from capplan.readers.yaml_file import read_yaml

    if is_there(path_of(name)):
        from capplan.readers.gguf_file import is_gguf

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
    from capplan.readers.gguf_file import is_gguf, read_gguf

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
    if quantization_section(config, place, scheme) is not None:
        from capplan.families.quantization.network_formats import quantised

        network = quantised(network, config, place, scheme)
    return replace(network, name=title)


LONGEST_S = 60.0
"""Time limit for one file of some kilobytes: the limits of the client are for each answer and each part of one, so a hub that sends a little now and then never reaches them."""
LISTENED_S = 0.1
"""Longest wait for a download at a time: Ctrl-C that comes as a wait begins is heard only after it."""
_REPOSITORY = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")


def is_repository(name: str) -> bool:
    """Return whether a name has the form of a hub id.

    Examples
    --------
    >>> is_repository("meta-llama/Llama-3.1-8B"), is_repository("./a/b"), is_repository("a/b/c")
    (True, False, False)
    """
    return bool(_REPOSITORY.match(name)) and ".." not in name and not name.endswith((".git", ".", "-"))


def hub_file(
    repository: str,
    filename: str,
    *,
    revision: str | None,
    offline: bool,
    optional: bool = False,
) -> Path | None:
    """Return the local path of a file of a hub model, downloaded if it is not cached.

    Parameters
    ----------
    repository : hub id, such as meta-llama/Llama-3.1-8B-Instruct
    filename : file in it
    revision : branch, tag or commit; None is main
    offline : look in the local cache only, never open a connection
    optional : a repository without this file is no error, and a hub that cannot say so is a warning on stderr

    Returns
    -------
    path in the local cache; None only where `optional` and there is none

    Raises
    ------
    InputError
        The model is not there, is gated, or the hub does not answer; or the revision is no git reference.
    """
    if revision is not None:
        Revision().check(revision, f"model {repository!r}: revision")
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(repository, filename, revision=revision)
    except (OSError, ValueError) as error:  # a file of the cache that is no text, or that cannot be read
        raise InputError(
            f"model {repository!r}: its folder in the local Hugging Face cache cannot be read ({type(error).__name__})\n"
            "  delete that folder, or give the path of a config.json"
        ) from None
    if isinstance(cached, str):
        return Path(cached)
    absent = cached is not None  # the cache records that the hub has no such file
    if optional and (offline or absent):
        return None
    if offline:
        raise InputError(
            f"model {repository!r}: not shipped, and its {filename} is not in the local Hugging Face cache\n"
            "  --offline never connects: run once without it, or give the path of a config.json"
        )
    try:
        return _fetched(repository, filename, revision, optional=optional)
    except InputError as error:
        if not optional:
            raise
        if not constants.HF_HUB_OFFLINE:
            _warn(f"{str(error).splitlines()[0]}; read without a {filename}, as under --offline")
        return None


@cache
def _warn(text: str) -> None:
    """Print a warning to stderr."""
    sys.stderr.write(f"warning: {text}\n")


def _fetched(repository: str, filename: str, revision: str | None, *, optional: bool) -> Path | None:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
    from huggingface_hub.utils import disable_progress_bars
    from huggingface_hub.utils import logging as hub_logging

    disable_progress_bars()
    hub_logging.set_verbosity_error()
    # The HTTP library below the client changed twice; the base of its errors is the first base of the client's own.
    refusals = (OSError, ValueError, HfHubHTTPError.__mro__[1])

    def download() -> Path:
        # Checked once before the download, whose retries would take minutes.
        url = hf_hub_url(repository, filename, revision=revision)
        get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        return Path(hf_hub_download(repository, filename, revision=revision))

    try:
        return _in_time(download)
    except refusals as error:
        absent = isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError)
        if optional and absent:
            return None
        raise InputError(_message(repository, filename, revision, error)) from error


def _in_time(download: Callable[[], Path]) -> Path:
    """Return what a download returns, or raise what it raises; TimeoutError after `LONGEST_S`, and Ctrl-C at any time."""
    found: list[Path] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(download())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            raised.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    until_s = monotonic() + LONGEST_S
    while thread.is_alive() and monotonic() < until_s:
        thread.join(LISTENED_S)
    if raised:
        raise raised[0]
    if not found:
        raise TimeoutError(f"did not send the whole file within {LONGEST_S:g} s")
    return found[0]


def _message(repository: str, filename: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    path = "or give the path of a config.json"
    if isinstance(error, errors.GatedRepoError):
        token = "HF_TOKEN has no access" if os.environ.get("HF_TOKEN") else "no HF_TOKEN is set"
        return (
            f"model {repository!r} is gated on {hub}, and {token}\n"
            f"  accept its terms at {hub}/{repository} and set HF_TOKEN, {path}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"model {repository!r}: not shipped, not in the local cache, and {hub} has no model of that name\n"
            f"  capplan model lists what is shipped; a private model needs HF_TOKEN; {path}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"model {repository!r} has no revision {revision!r} on {hub}\n  leave --revision out for main, {path}"
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"model {repository!r} has no {filename} on {hub}\n"
            f"  adapters and GGUF repositories have none: name the base model, {path}"
        )
    if isinstance(error, OSError) and error.filename:
        return (
            f"model {repository!r}: the local Hugging Face cache cannot be written: {error.filename!s}: {error.strerror}\n"
            f"  set HF_HOME to a folder that can, {path}"
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"model {repository!r}: {hub} refuses access (status {status})\n  set HF_TOKEN to a token that may read it, {path}"
    return f"model {repository!r}: {_silence(hub, error, status)}\n  try again, set HF_ENDPOINT, {path}"


def _silence(hub: str, error: BaseException, status: int | None) -> str:
    """Return whether the hub was slow, unreachable or failing, from the chain of errors."""
    if status is not None:
        return f"{hub} answered with status {status}"
    if isinstance(error, TimeoutError):
        return f"{hub} {error}"
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    names = " ".join(type(e).__name__ for e in chain)
    if "Timeout" in names:
        return f"{hub} did not answer in time (HF_HUB_ETAG_TIMEOUT sets the limit)"
    if "OfflineMode" in names:
        return f"not in the local cache, and HF_HUB_OFFLINE forbids asking {hub}"
    said = (str(chain[-1]).strip().splitlines() or [type(chain[-1]).__name__])[0]
    return f"{hub} cannot be reached ({said[:160]})"
