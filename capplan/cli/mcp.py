"""`capplan mcp`: the questions of capplan as read-only tools of the Model Context Protocol.

Each tool is the command of its name: it runs in a process of its own, which may read files, write none, and connect to the hub only. The answer is its JSON,
or the message of its error. An argument that a tool does not have, or of another type, is an error. A call that is cancelled, or takes too long, ends its process.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from capplan import __version__
from capplan.cli import options as o
from capplan.cli.options import grouped
from capplan.cli.serve import TimeLimit
from capplan.errors import CapplanError, InputError, unknown
from capplan.scenario.command_flags import FirstScenario
from capplan.scenario.flags import LoadFlags, ServingFlags

if TYPE_CHECKING:
    from capplan.cli.api.jobs import Jobs
    from capplan.readers.record import Record


@grouped
def mcp_command(*, time_limit: TimeLimit = 300.0, offline: o.Offline = False) -> int:
    """Serve fit, estimate, fleet, explain and check as read-only tools of the Model Context Protocol, over stdin and stdout."""
    return _serve(time_limit, offline=offline)


def _serve(time_limit: float, *, offline: bool) -> int:
    """Serve one client, and return the exit code; InputError where the SDK or a stream is missing."""
    from capplan.cli.api.jobs import Jobs, Limits

    if sys.stdin is None or sys.stdout is None:
        raise InputError("capplan mcp: a client talks over stdin and stdout, and one of them is closed")
    jobs = Jobs(Limits(seconds=time_limit), offline=offline, confined=False)
    serving, code = server(jobs), 0
    try:
        asyncio.run(_served(serving, jobs))
    except* BrokenPipeError:
        pass  # the client has gone
    except* asyncio.CancelledError:
        code = 128 + signal.SIGTERM
    return code


NEEDED = "capplan mcp needs the SDK of the Model Context Protocol\n  install it: pip install 'capplan[mcp]'"
LONGEST_LINE = 16_000_000
"""The longest message of a client [B]."""
_PARSE_ERROR, _INVALID_REQUEST = -32700, -32600
"""Codes of JSON-RPC 2.0, section 5.1."""


def line(command: str, arguments: Sequence[str], given: Mapping[str, object]) -> list[str]:
    """Return a command line that answers in JSON.

    Parameters
    ----------
    command : its name
    arguments : never read as options, however they begin: a tool writes no file
    given : options by name
    """
    return [command, *options(given), "--format", "json", "--", *arguments]


def options(given: Mapping[str, object]) -> list[str]:
    """Return keywords as the words of a command line; None is left out.

    Examples
    --------
    >>> options({"tensor_parallel": 4, "kv_dtype": None, "settings": ["slo.ttft_p95=1 s", "name=a"]})
    ['--tensor-parallel', '4', '--set', 'slo.ttft_p95=1 s', '--set', 'name=a']
    """
    words: list[str] = []
    for name, value in given.items():
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                words += [_OPTION.get(name, f"--{name.replace('_', '-')}"), str(item)]
    return words


_OPTION = {"settings": "--set"}


@dataclass(frozen=True)
class Tool:
    """A command as a tool: some of its arguments, and of the options that its records declare."""

    command: str
    says: str
    words: tuple[str, ...]
    """Keys that are arguments of the command."""
    keys: Mapping[str, tuple[Any, Any]]
    """Key -> its type and its default; `...` is none."""

    @cached_property
    def record(self) -> "type[Record]":
        """Return the record of its arguments: others are errors, and no text or truth value is a number."""
        from capplan.readers.record import strict_record

        return strict_record(self.command, self.keys)

    def __call__(self, *words: object, **options: object) -> list[str]:
        """Return the command line of a call; InputError for an argument that there is not, or of another type."""
        from capplan.readers.record import validated
        from capplan.readers.yaml_file import Document

        asked = {**dict(zip(self.keys, words, strict=False)), **options}
        given = dict(validated(self.record, Document(self.command, asked, {})))
        arguments = [given.pop(name) for name in self.words]
        return line(self.command, [word for word in arguments if word is not None], given)


def _options(record: type, *names: str) -> dict[str, tuple[Any, Any]]:
    """Return the types and defaults of some fields of a record of options."""
    return {one.name: (one.type, one.default) for one in fields(record) if one.name in names}


_REPLICA: dict[str, tuple[Any, Any]] = {"model": (str, ...), "hardware": (str, ...)}
_SETTINGS: tuple[Any, Any] = (list[str] | None, None)
_OPTIONAL: tuple[Any, Any] = (str | None, None)
fit = Tool(
    "fit",
    "Say whether a model fits on GPUs, what uses the memory, and what would make it fit (exit_code 3: it does not fit).",
    ("model",),
    _REPLICA
    | _options(
        ServingFlags, "tensor_parallel", "pipeline_parallel", "weight_dtype", "kv_dtype", "max_model_len"
    ),
)
estimate = Tool(
    "estimate",
    "Predict latency and throughput of one replica at a concurrency, or at a request rate such as '5 req/s'.",
    ("model",),
    _REPLICA
    | _options(LoadFlags, "concurrency", "input_tokens", "output_tokens")
    | _options(FirstScenario, "request_rate")
    | _options(ServingFlags, "tensor_parallel", "weight_dtype", "kv_dtype"),
)
fleet = Tool(
    "fleet",
    "Find the cheapest fleet for a scenario: a shipped name or the path of a YAML; settings such as 'slo.ttft_p95=600 ms' override its keys.",
    ("scenario",),
    {"scenario": (str, ...), "settings": _SETTINGS},
)
explain = Tool(
    "explain",
    "Explain a number of a plan file or a scenario: formula, inputs and sources; without a quantity, list what can be explained.",
    ("plan", "quantity"),
    {"plan": (str, ...), "quantity": _OPTIONAL},
)
check = Tool(
    "check",
    "Say whether a plan file still meets the targets, the budget and the prices of its scenario (exit_code 4: it does not).",
    ("scenario",),
    {"plan": (str, ...), "scenario": _OPTIONAL, "settings": _SETTINGS},
)
TOOLS = {tool.command: tool for tool in (fit, estimate, fleet, explain, check)}
QUICK = ("fit", "estimate")
"""Tools that do not wait behind those that search."""


async def answer(jobs: "Jobs", words: Sequence[str]) -> dict[str, Any]:
    """Return the JSON of a command line with its exit code; InputError with the message of a mistake."""
    from capplan.cli.api.jobs import Lane, say_bug

    command, *rest = words
    offline = ["--offline"] if jobs.offline else []
    lane = Lane.QUICK if command in QUICK else Lane.SEARCH
    done = await jobs.run_alone([command, *offline, *rest], lane=lane)
    if done.out.strip():
        printed: dict[str, Any] = json.loads(done.out)
        return {"exit_code": done.code, **printed}
    if done.code in (0, 1):
        say_bug(done)
        raise InputError("a bug of ours; its traceback is on stderr of the server")
    raise InputError(done.errors.strip())


def server(jobs: "Jobs") -> Any:
    """Return the server with its tools; InputError where the SDK is not installed."""
    try:
        import mcp_types as types
        from mcp.server.lowlevel import Server
    except ImportError:
        raise InputError(NEEDED) from None

    how = types.ToolAnnotations(read_only_hint=True, open_world_hint=not jobs.offline)
    listed = [
        types.Tool(
            name=name,
            description=tool.says,
            input_schema=tool.record.model_json_schema(),
            annotations=how,
        )
        for name, tool in TOOLS.items()
    ]

    async def list_tools(_context: Any, _params: Any) -> Any:
        return types.ListToolsResult(tools=listed)

    async def call_tool(_context: Any, params: Any) -> Any:
        try:
            if params.name not in TOOLS:
                raise unknown("tool", params.name, TOOLS)
            found = await answer(jobs, TOOLS[params.name](**(params.arguments or {})))
        except CapplanError as error:
            said = types.TextContent(type="text", text=str(error))
            return types.CallToolResult(content=[said], is_error=True)
        said = types.TextContent(type="text", text=json.dumps(found))
        return types.CallToolResult(content=[said], structured_content=found)

    return Server(
        "capplan",
        version=__version__,
        instructions="Capacity planning for LLM serving. Numbers are in base units: seconds, bytes, tokens, dollars.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _served(serving: Any, jobs: "Jobs") -> None:
    """Serve one client until it has gone; SIGTERM cancels what runs, as Ctrl-C does."""
    from mcp.server.stdio import stdio_server

    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    if own is not None:
        loop.add_signal_handler(signal.SIGTERM, own.cancel)
    sent = _Sent(_taken_over(1, os.O_WRONLY))
    heard = _Heard(_taken_over(0, os.O_RDONLY), sent)
    starting = asyncio.ensure_future(jobs.warm_up())
    try:
        async with stdio_server(heard, sent) as (read, write):
            await serving.run(read, write, serving.create_initialization_options())
    finally:
        await starting
        await jobs.ended()


def _taken_over(descriptor: int, flags: int) -> int:
    """Return another descriptor for stdin or stdout, and let nobody else read or write there."""
    taken, nowhere = os.dup(descriptor), os.open(os.devnull, flags)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return taken


class _Sent:
    """Messages to the client, written by a thread that nobody waits for at the end."""

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[tuple[bytes, asyncio.Future[None]]] = SimpleQueue()
        Thread(target=self._write_all, args=(descriptor,), daemon=True).start()

    async def write(self, text: str) -> None:
        """Write a message; BrokenPipeError where nobody reads it."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._waiting.put((text.encode("utf-8", "replace"), written))
        await written

    async def flush(self) -> None:
        """Do nothing: what was written is out."""

    def _write_all(self, descriptor: int) -> None:
        while True:
            left, written = self._waiting.get()
            failure: OSError | None = None
            try:
                while left:
                    left = left[os.write(descriptor, left) :]
            except OSError as error:
                failure = BrokenPipeError(*error.args)
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_settle, written, failure)


def _settle(written: "asyncio.Future[None]", failure: OSError | None) -> None:
    if written.done():
        return
    if failure is None:
        written.set_result(None)
    else:
        written.set_exception(failure)


class _Heard:
    """Messages of the client, read by a thread that nobody waits for; what is none gets its error as the answer."""

    def __init__(self, descriptor: int, sent: _Sent) -> None:
        self._loop, self._sent = asyncio.get_running_loop(), sent
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        Thread(target=self._read_all, args=(descriptor,), daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield each message."""
        while (message := await self._lines.get()) is not None:
            if not message.strip():
                continue
            if fault := _fault(message):
                await self._sent.write(fault)
            else:
                yield message.decode()

    def _read_all(self, descriptor: int) -> None:
        rest, ended = b"", False
        with suppress(RuntimeError):  # the loop has ended
            while not ended:
                try:
                    piece = os.read(descriptor, 2**16)
                except OSError:
                    piece = b""
                *lines, rest = (rest + (piece or b"\n")).split(b"\n")
                rest = rest[: LONGEST_LINE + 1]
                ended = not piece
                for message in lines:
                    self._loop.call_soon_threadsafe(self._lines.put_nowait, message)
            self._loop.call_soon_threadsafe(self._lines.put_nowait, None)


def _fault(message: bytes) -> str:
    """Return the answer to a line that is no message; empty for one that is."""
    from mcp_types import jsonrpc_message_adapter

    if len(message) > LONGEST_LINE:
        return _error(None, _PARSE_ERROR, f"a message is longer than {LONGEST_LINE / 1e6:g} MB")
    try:
        jsonrpc_message_adapter.validate_json(message, by_name=False)
    except ValueError:
        try:
            given = json.loads(message)
        except (ValueError, RecursionError):
            return _error(None, _PARSE_ERROR, "a message is one line of JSON")
        of = given.get("id") if isinstance(given, dict) else None
        said = of if isinstance(of, (int, str)) and not isinstance(of, bool) else None
        return _error(said, _INVALID_REQUEST, "this is no request of JSON-RPC 2.0")
    return ""


def _error(of: int | str | None, code: int, says: str) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": of, "error": {"code": code, "message": says}}) + "\n"
