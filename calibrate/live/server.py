"""Start vLLM on this machine and end it with all its processes.

`python -m calibrate.live.server ENVIRONMENT FOLDER COMMAND ...` runs a command while the engine of the loads answers at http://127.0.0.1:8123.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from calibrate.live.model import write_model
from calibrate.live.recorder import ASYNCHRONOUS, LOG, write_plugin

HOST = "127.0.0.1"
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""Nothing is fetched or sent."""
ENGINE = {
    **QUIET,
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
"""One thread for the engine, so that the other core is free for client and HTTP server."""


LIMITS = (
    "--max-model-len",
    "4096",
    "--max-num-seqs",
    "32",
    "--max-num-batched-tokens",
    "512",
    "--no-enable-prefix-caching",
)
"""Of the engine of the loads."""


@dataclass(frozen=True, slots=True)
class Live:
    """A running server."""

    url: str
    steps: Path
    """Log of the recorder, one line of JSON an event."""
    log: Path
    """What the server printed."""


class NoServerError(RuntimeError):
    """The server ended, or did not answer in time."""


def answers(url: str) -> bool:
    """Return whether the server is ready."""
    try:
        with urlopen(f"{url}/health", timeout=2.0) as answer:  # noqa: S310  # the address is this machine
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


@dataclass(frozen=True, slots=True)
class Engine:
    """How a vLLM is started."""

    words: tuple[str, ...]
    """Command, up to `serve`."""
    flags: tuple[str, ...]
    variables: dict[str, str]


def on_processor(environment: Path, cache_gib: float = 1, *, asynchronous: bool = False) -> Engine:
    """Return the engine of an environment that serves on this processor.

    Parameters
    ----------
    environment : folder of the virtual environment that has vLLM
    cache_gib : [GiB]
        KV cache
    asynchronous : plan a step while the one before it runs, as on GPUs
    """
    return Engine(
        (str(environment / "bin" / "vllm"),),
        ("--dtype", "float32", "--enforce-eager"),
        {
            **ENGINE,
            "VLLM_CPU_KVCACHE_SPACE": f"{cache_gib:g}",
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            ASYNCHRONOUS: "1" if asynchronous else "",
        },
    )


@contextlib.contextmanager
def started(
    engine: Engine, model: Path, folder: Path, flags: Sequence[str] = (), *, port: int = 8123
) -> Iterator[tuple[Live, subprocess.Popen[bytes]]]:
    """Yield a server of vLLM with random weights that starts; it and its processes end with the block, Ctrl-C included.

    Parameters
    ----------
    engine : how it is started
    model : folder with config and tokenizer
    folder : where logs go
    flags : more options of `vllm serve`; the last one of a name counts
    port : [-]
        port on this machine
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_plugin(folder / "plugin")
    live = Live(f"http://{HOST}:{port}", folder / "steps.jsonl", folder / "server.log")
    if answers(live.url):
        raise NoServerError(f"another server answers at {live.url}; end it or choose another port")
    live.steps.unlink(missing_ok=True)
    words = [
        *engine.words, "serve", str(model), "--load-format", "dummy", "--host", HOST, "--port", str(port),
        "--served-model-name", "tiny", *engine.flags, *flags,
    ]  # fmt: skip
    found = os.pathsep.join((str(folder / "plugin"), *filter(None, [engine.variables.get("PYTHONPATH")])))
    variables = {**os.environ, **engine.variables, "PYTHONPATH": found, LOG: str(live.steps.resolve())}
    with launched(words, variables, live.log) as process:
        yield live, process


@contextlib.contextmanager
def launched(
    words: Sequence[str], variables: Mapping[str, str], printed: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that writes what it prints into a file; it and its own processes end with the block."""
    with printed.open("w") as log:
        process = subprocess.Popen(  # noqa: S603  # the words of the caller
            words, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            _end(process)


@contextlib.contextmanager
def running(
    engine: Engine, model: Path, folder: Path, flags: Sequence[str] = (), *, within_s: float = 300.0
) -> Iterator[Live]:
    """Yield a server that answers, or fail after a time; see `started`."""
    with started(engine, model, folder, flags) as (live, process):
        await_answer(process, live, within_s)
        yield live


def await_answer(process: subprocess.Popen[bytes], live: Live, within_s: float) -> None:
    """Wait until a server is ready; raise NoServerError with the end of its log if it ends before, or takes too long."""
    until_s = time.monotonic() + within_s
    while not answers(live.url):
        if process.poll() is not None or time.monotonic() > until_s:
            tail = "\n".join(live.log.read_text(errors="replace").splitlines()[-12:])
            state = "ended" if process.poll() is not None else f"did not answer within {within_s:g} s"
            raise NoServerError(f"the server {state}; its log {live.log} ends with\n{tail}")
        time.sleep(0.5)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group of the server: first politely, then for good."""
    for kind, patience_s in ((signal.SIGINT, 10.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        try:
            process.wait(patience_s)
            break
        except subprocess.TimeoutExpired:
            continue
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main(words: list[str]) -> int:
    """Run a command next to the engine; return how it ended."""
    environment, folder = map(Path, words[:2])
    with running(on_processor(environment), write_model(folder / "tiny"), folder / "server", LIMITS):
        return subprocess.run(words[2:], check=False).returncode  # noqa: S603  # what was asked for


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
