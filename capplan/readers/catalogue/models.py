"""The MODEL of a command line to a network and its source: a path, a shipped id or alias, or a Hugging Face id, in this order.

`model_configs/index.json` says which folder and which quantisation an id stands for, so that a look-up
reads two files. `catalogue_index` writes it from the folders and `variants.yaml`.

Endpoint, token, cache folder and time-outs come from the usual variables: HF_ENDPOINT, HF_TOKEN,
HF_HOME, HF_HUB_ETAG_TIMEOUT, HF_HUB_OFFLINE.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from shlex import quote
from threading import Thread, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from capplan.errors import LONGEST_SHOWN, InputError, unknown
from capplan.families.model_config import read_gguf_network, read_network
from capplan.families.quantization.schemes import FILES, quantization_section
from capplan.model.network import Network
from capplan.model.stored_tensor import StoredModel
from capplan.ranges import Revision
from capplan.readers.text_file import (
    MAX_BYTES,
    data_folder,
    is_there,
    json_of,
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
    return checkpoint_name(first) == checkpoint_name(second)


def checkpoint_name(name: str) -> str:
    """Return what the ids of all checkpoints of one model have in common.

    Examples
    --------
    >>> checkpoint_name("meta-llama/Meta-Llama-3.1-8B-Instruct-FP8") == checkpoint_name("Llama-3.1-8B")
    True
    """
    return _CHECKPOINT.sub("", _FIRST_OWNER.sub("", name.rpartition("/")[2].casefold()))


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


_KIND = "a model's config.json"
_NAMED_FOR = {"quantize_config.json": ("gptq", "awq"), "quant_config.json": ("awq",)}
"""File of a quantiser -> what the id of a repository on the hub has in it where the file is asked for."""


def read_model(name: str, *, revision: str | None = None, offline: bool = False) -> Network:
    """Return the network that MODEL names.

    Parameters
    ----------
    name : path of a config.json, of the folder that holds one, or of a GGUF file; a shipped id or alias; a hub id
    revision : branch, tag or commit on the hub; asks the hub even where the model is shipped
    offline : never open a connection

    Raises
    ------
    InputError
        There is no such model, or its config cannot be modelled.
    """
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


def cached_names() -> tuple[str, ...]:
    """Return the models in the cache of the hub: ids with a config.json, and the paths of GGUF files."""
    from huggingface_hub import constants

    found: list[str] = []
    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        snapshots = list((folder / "snapshots").glob("*"))
        if any((snapshot / "config.json").exists() for snapshot in snapshots):
            found.append(folder.name.removeprefix("models--").replace("--", "/"))
        found += [str(path) for snapshot in snapshots for path in sorted(snapshot.rglob("*.gguf"))]
    return tuple(found)


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
    folder = str(_index()["models"][model]["folder"])
    origin = read_yaml(data_folder(FOLDER) / folder / "source.yaml", kind="a model's source").value
    base = folder.replace("--", "/", 1)
    of = "" if base == model else f" (a variant of {base})"
    return Source("model", f"{model}, config as shipped{of}", note=str(origin.get("source") or "") or None)


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
    beside = next(filter(is_there, map(file.with_name, FILES)), None)
    scheme = (beside.name, read_json(beside, kind=f"a model's {beside.name}")) if beside else None
    return _network(read_json(file, kind=_KIND, infinities=True), title, printable(str(file)), scheme)


def _from_hub(name: str, revision: str | None, *, offline: bool) -> Network:
    try:
        file = hub_file(name, "config.json", revision=revision, offline=offline)
    except InputError as error:
        near = get_close_matches(name, shipped_names(), n=2, cutoff=0.8)
        raise InputError(
            f"{error}\n  shipped, of similar name: {', '.join(near)}" if near else str(error)
        ) from error
    assert file is not None
    config = _cached_json(file, _KIND, infinities=True)
    wanted = (
        one for one in FILES if one not in _NAMED_FOR or any(of in name.lower() for of in _NAMED_FOR[one])
    )
    asked = (hub_file(name, one, revision=revision, offline=offline, optional=True) for one in wanted)
    found = next(filter(None, asked), None)
    scheme = (found.name, _cached_json(found, f"a model's {found.name}")) if found else None
    return _network(config, name, f"{name}/config.json", scheme)


def _cached_json(file: Path, kind: str, *, infinities: bool = False) -> dict[str, Any]:
    """Return the object of a file of the local cache; the error says how it is fetched again."""
    try:
        return read_json(file, kind=kind, infinities=infinities)
    except InputError as error:
        raise InputError(f"{error}\n  delete it, and it is fetched again: rm {quote(str(file))}") from None


def _network(
    config: Mapping[str, Any],
    title: str,
    place: str,
    scheme: tuple[str, Mapping[str, Any]] | None = None,
) -> Network:
    network = read_network(config, title, place)
    if quantization_section(config, place, scheme) is not None:
        from capplan.families.quantization.network_formats import quantised

        network = quantised(network, config, place, scheme)
    return replace(network, name=title)


LONGEST_S = 60.0
"""Time limit for one file of some kilobytes: the limits of the client are for each answer and each part of one, so a hub that sends a little now and then never reaches them."""
LISTENED_S = 0.1
"""Longest wait for a download at a time: Ctrl-C that comes as a wait begins is heard only after it."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
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
    _refuse_variables()
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


class _Content(BytesIO):
    """What a hub sends, unpacked; capplan rejects more than a config may have while it is sent."""

    def write(self, sent: Any) -> int:
        """Keep what was sent."""
        if self.tell() + len(sent) > MAX_BYTES:
            raise _OtherFileError(f"more than {MAX_BYTES / 1e6:g} MB")
        return super().write(sent)


class _OtherFileError(Exception):
    """A hub sent something else than the file that it was asked for."""


def _fetched(repository: str, filename: str, revision: str | None, *, optional: bool) -> Path | None:
    """Return a file that was asked for, judged, and then kept in the local cache; what a hub says of its size and its ETag is not used."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars
    from huggingface_hub.utils import logging as hub_logging

    disable_progress_bars()
    hub_logging.set_verbosity_error()

    def download() -> tuple[str | None, bytes]:
        url, content = hf_hub_url(repository, filename, revision=revision), _Content()
        about = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        http_get(url, content, headers=build_hf_headers())
        return about.commit_hash, content.getvalue()

    try:
        commit, content = _in_time(download)
    except Exception as error:  # those of httpx, requests, sockets and TLS have no other class in common
        if (
            isinstance(error, EntryNotFoundError)
            and not isinstance(error, LocalEntryNotFoundError)
            and optional
        ):
            return None
        raise InputError(_message(repository, filename, revision, error)) from error
    try:
        return _kept(repository, filename, revision, commit, content)
    except (OSError, _OtherFileError) as error:
        raise InputError(_message(repository, filename, revision, error)) from error


def _kept(repository: str, filename: str, revision: str | None, commit: str | None, content: bytes) -> Path:
    """Write a file to the local cache as the client lays it out, and return its path; nothing is written unless it is JSON."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    if not _COMMIT.fullmatch(commit or ""):
        raise _OtherFileError("no commit")
    try:
        json_of(content, filename, kind=f"a model's {filename}")
    except InputError as error:
        raise _OtherFileError(str(error).removeprefix(f"{filename}: ")) from None
    folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repository, repo_type="model"))
    file = folder / "snapshots" / str(commit) / filename
    _replace(file, content)
    if revision != commit:
        _replace(folder / "refs" / (revision or constants.DEFAULT_REVISION), str(commit).encode())
    return file


def _replace(file: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}.{get_ident()}.part")
    try:
        part.write_bytes(content)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


_Downloaded = TypeVar("_Downloaded")


def _in_time(download: Callable[[], _Downloaded]) -> _Downloaded:
    """Return what a download returns, or raise what it raises; TimeoutError after `LONGEST_S`, and Ctrl-C at any time."""
    found: list[_Downloaded] = []
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


_TIMEOUTS = ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_PROXIES = ("http", "https", "socks5", "socks5h")


def _refuse_variables() -> None:
    """Raise the error for a variable that the client of the hub cannot read: it would end its import."""
    for name in _TIMEOUTS:
        value = os.environ.get(name)
        if value and not (value.isdecimal() and len(value) < 7 and int(value)):
            raise InputError(
                f"{name}: {value[:LONGEST_SHOWN]!r} is not a whole number of seconds\n  write e.g. {name}=10, or leave it out"
            )
    address = os.environ.get("HF_ENDPOINT")
    if address and not _is_address(address, ("http", "https")):
        raise InputError(
            f"HF_ENDPOINT: {_without_password(address)!r} is not the address of a hub\n"
            "  write e.g. HF_ENDPOINT=https://huggingface.co, or leave it out"
        )


def _faulty_proxy() -> str:
    """Return which variable names a proxy that the client cannot use, and why; empty where it can use them."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        proxy = os.environ.get(name)
        if not proxy:
            continue
        if not _is_address(proxy if "://" in proxy else f"http://{proxy}", _PROXIES):
            return f"{name}: {_without_password(proxy)!r} is not the address of a proxy, such as http://proxy:3128"
        if proxy.startswith("socks") and not (find_spec("socksio") or find_spec("socks")):
            return f"{name}: a SOCKS proxy needs the package socksio"
    return ""


def _is_address(written: str, schemes: Collection[str]) -> bool:
    try:
        parts = urlsplit(written)
        return parts.scheme in schemes and bool(_HOST.fullmatch(parts.hostname or "")) and parts.port != 0
    except ValueError:
        return False


def _without_password(text: str) -> str:
    """Return a text without what addresses in it say before their host."""
    return re.sub(r"(?<=://)[^/\s]*@", "", text)[:160]


def _message(repository: str, filename: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import constants, errors

    hub = _without_password(constants.ENDPOINT)
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
    if isinstance(error, _OtherFileError):
        odd = "does not answer as a hub" if str(error) == "no commit" else f"sent another {filename}: {error}"
        return f"model {repository!r}: {hub} {odd}\n  nothing is kept: run again once it answers, set HF_ENDPOINT, {path}"
    if faulty := _faulty_proxy():
        return f"model {repository!r}: {faulty}\n  change or unset it, {path}"
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
    return f"{hub} cannot be reached ({_without_password(said)})"
