"""Files of a model on the Hugging Face hub: first from the local cache, then from the hub.

Endpoint, token, cache folder and time-outs come from the usual variables: HF_ENDPOINT, HF_TOKEN,
HF_HOME, HF_HUB_ETAG_TIMEOUT, HF_HUB_OFFLINE.
"""

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Thread

from capplan.errors import InputError

LONGEST_S = 60.0
"""Time limit for one file of some kilobytes: the limits of the client are for each answer and each part of one, so a hub that sends a little now and then never reaches them."""
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
        The model is not there, is gated, or the hub does not answer.
    """
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
    thread.join(LONGEST_S)
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
