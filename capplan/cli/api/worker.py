"""A process that answers one request: it runs the command and can reach nothing that the request may not.

Whatever a command does, an audit hook of the interpreter lets it write only the folder of the request and the cache of the hub, start no program, and connect
only to the hub. A confined one runs in that folder and reads only it, the shipped data, the libraries and the cache. It ends with the server.
"""

import errno
import json
import os
import resource
import site
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import parent_process
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

OUT, ERRORS, PROGRESS, WORK = "stdout", "stderr", "progress", "work"
"""Files and the folder of a job."""
MOST_MEMORY = 8 * 1024**3
MOST_WRITTEN = 256 * 1024**2
_HUB = ("huggingface.co", "hf.co")
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ON_PATHS = {
    "os.chmod": 1, "os.chown": 1, "os.link": 2, "os.mkdir": 1, "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.symlink": 2,
    "os.truncate": 1, "os.utime": 1, "shutil.rmtree": 1,
}  # fmt: skip
"""Event that changes files -> how many of its arguments are paths."""
_STARTING = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn",
             "socket.bind", "ctypes.dlopen", "os.kill")  # fmt: skip


def answer(folder: str, words: Sequence[str], offline: bool, confined: bool, most_seconds: int) -> None:
    """Run a command and exit with its code; what it prints is in the folder of the job."""
    os.setsid()
    Thread(target=_end_with_server, daemon=True).start()
    sys.dont_write_bytecode = True
    job = Path(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, OUT), (2, ERRORS)):
        opened = os.open(job / name, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    progress = os.open(job / PROGRESS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for limit, most in (
        (resource.RLIMIT_CPU, most_seconds),
        (resource.RLIMIT_AS, MOST_MEMORY),
        (resource.RLIMIT_FSIZE, MOST_WRITTEN),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    if confined:
        os.chdir(job / WORK)

    from capplan.cli.main import main
    from capplan.readers.text_file import confine_paths
    from capplan.report.show import tell_progress

    tell_progress(_written(progress))
    if confined:
        confine_paths()
    sys.addaudithook(_guard((job / WORK).resolve(), offline=offline, confined=confined))
    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_with_server() -> None:
    """End when the server has ended, however it did."""
    server = parent_process()
    if server is not None:
        server.join()
        os._exit(1)


def _written(descriptor: int) -> Callable[[Mapping[str, Any]], None]:
    """Return what writes each step as a line of JSON."""

    def told(step: Mapping[str, Any]) -> None:
        os.write(descriptor, json.dumps(step).encode() + b"\n")

    return told


def _guard(work: Path, *, offline: bool, confined: bool) -> Callable[[str, tuple[object, ...]], None]:
    """Return the audit hook of a request."""
    cache = _hub_cache()
    writable = (str(work), *(() if offline else (cache,)), os.devnull)
    readable = (*writable, cache, *_libraries(), *_shipped(), "/dev/urandom", "/usr/share/zoneinfo")
    if not confined:
        readable = ("",)  # below the root: everything
    hosts = _hosts()

    def within(path: object, roots: Sequence[str]) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return True  # opened before
        real = os.path.realpath(os.fsdecode(path))
        return any(real == root or real.startswith(root + os.sep) for root in roots)

    def refuse(what: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", what)

    def hook(event: str, given: tuple[object, ...]) -> None:
        if event == "open":
            path, mode, flags = given
            bits = flags if isinstance(flags, int) else 0
            written = any(letter in str(mode or "") for letter in "wax+") or bits & _WRITING
            if not within(path, writable if written else readable):
                refuse(path)
        elif event in ("os.listdir", "os.scandir", "os.walk", "os.chdir"):
            if not within(given[0] if given[0] is not None else ".", readable):
                refuse(given[0])
        elif event in _ON_PATHS:
            for path in given[: _ON_PATHS[event]]:
                if not within(path, writable):
                    refuse(path)
        elif event in _STARTING or (event == "socket.connect" and offline):
            refuse(event)
        elif event == "socket.getaddrinfo":
            host = given[0].decode() if isinstance(given[0], bytes) else str(given[0])
            if offline or not any(host == known or host.endswith(f".{known}") for known in hosts):
                refuse(host)

    return hook


def _libraries() -> list[str]:
    loaded = [sys.modules[name].__file__ for name in ("os", "numpy", "pydantic") if name in sys.modules]
    folders = [sys.prefix, sys.base_prefix, *site.getsitepackages()]
    folders += [str(Path(file).parents[file.endswith("__init__.py")]) for file in loaded if file]
    return list(map(os.path.realpath, folders))


def _shipped() -> list[str]:
    from capplan.readers.text_file import data_folder

    package = Path(__file__).parents[2]
    folders = [package, *map(data_folder, ("hardware_specs", "model_configs", "scenarios", "docs/schema"))]
    return [str(folder.resolve()) for folder in folders]


def _hub_cache() -> str:
    around = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return os.path.realpath(Path(os.environ.get("HF_HUB_CACHE") or around).expanduser())


def _hosts() -> tuple[str, ...]:
    """Return the hosts that may be asked: the hub, or the endpoint and the proxy that the environment names instead."""
    named = [
        os.environ.get("HF_ENDPOINT"),
        *(os.environ.get(n) or os.environ.get(n.upper()) for n in _PROXIES),
    ]
    return (*_HUB, *(host for address in named if address and (host := urlsplit(address).hostname)))
