"""`capplan serve`: the commands as an API and a page, for this machine or behind a token."""

import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped, measure, whole
from capplan.errors import InputError

NEEDED = "capplan serve needs FastAPI and uvicorn\n  install them: pip install 'capplan[serve]'"
LOOPBACK = "127.0.0.1"
SHORTEST_TOKEN = 16
MOST_CONNECTIONS = 1024

_HOST = typer.Option(
    "--host",
    metavar="ADDRESS",
    help=f"Address to listen at, with --token-file; default: {LOOPBACK}, this machine only.",
)
_TOKEN_FILE = typer.Option(
    "--token-file", metavar="FILE", help="File with the token that each request of the API must bring."
)
Port = Annotated[int, whole("--port", least=1, most=65535, says="Port to listen at.")]
_JOBS_AT_ONCE = whole(
    "--jobs", of="searches", most=1024, says="Searches at a time; default: one for each processor core."
)
TimeLimit = Annotated[float, measure("--time-limit", says="Longest time that one answer may take.")]


@grouped
def serve_command(
    *,
    host: Annotated[str | None, _HOST] = None,
    token_file: Annotated[Path | None, _TOKEN_FILE] = None,
    port: Port = 8080,
    jobs: Annotated[int | None, _JOBS_AT_ONCE] = None,
    time_limit: TimeLimit = 300.0,
    offline: o.Offline = False,
) -> int:
    """Serve every command that answers as an API and a page, on this machine or behind a token."""
    token = _token(token_file)
    if host is not None and not token:
        raise InputError("--host: others could ask this server; give --token-file FILE with it")
    _serve(host or LOOPBACK, port, token, jobs, time_limit, offline=offline)
    return 0


def _serve(host: str, port: int, token: str, jobs: int | None, time_limit: float, *, offline: bool) -> None:
    """Serve until Ctrl-C; InputError where a library is missing or the address cannot be had."""
    if not (find_spec("fastapi") and find_spec("uvicorn")):
        raise InputError(NEEDED)
    import uvicorn

    from capplan.cli.api.app import application
    from capplan.cli.api.guard import Guard, TimedHeaders
    from capplan.cli.api.jobs import Limits

    usual = Limits()
    limits = Limits(running=jobs or usual.running, seconds=time_limit)
    config = uvicorn.Config(
        Guard(application(limits, offline=offline), limits, port, token),
        http=TimedHeaders,
        ws="none",
        loop="asyncio",
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=2,
    )
    with _listening(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        print(f"serving http://{shown}:{port}/ (Ctrl-C ends it)", file=sys.stderr)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that files of processes are removed
        uvicorn.Server(config).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; InputError where the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(
            f"capplan serve: cannot listen at {host}, port {port}: {error.strerror}\n  choose another: --port N"
        ) from None


def _token(file: Path | None) -> str:
    """Return the token of a file; empty without one."""
    if file is None:
        return ""
    from capplan.readers.text_file import read_text

    token = read_text(file, kind="a file with a token").strip()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"--token-file: the token is not {SHORTEST_TOKEN} or more letters and digits\n"
            "  make one: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token
