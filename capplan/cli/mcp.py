"""`capplan mcp`: the questions of capplan as read-only tools of the Model Context Protocol.

Each tool runs the command of its name and returns its JSON, or the message of its error. Tools read files and write none. The protocol owns
stdout, so what a command prints is collected. An argument that a tool does not have, or of another type, is an error.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, wraps
from inspect import signature
from threading import Lock
from typing import TYPE_CHECKING, Any, ParamSpec

from capplan.cli.options import grouped
from capplan.errors import InputError

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from capplan.readers.record import Record


@grouped
def mcp_command() -> int:
    """Serve fit, estimate, fleet, explain and check as read-only tools of the Model Context Protocol, over stdin and stdout."""
    server().run()
    return 0


NEEDED = "capplan mcp needs the SDK of the Model Context Protocol\n  install it: pip install 'capplan[mcp]'"


_ONE_AT_A_TIME = Lock()
"""What a command prints is collected from the stdout of the process, which calls in several threads share."""


def run(command: str, arguments: Sequence[str], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the JSON of a command with its exit code; ValueError with the message of a mistake.

    Parameters
    ----------
    command : its name
    arguments : never read as options, however they begin: a tool writes no file
    given : options by name
    """
    from capplan.cli.main import main

    words = [command, *options(given), "--format", "json", "--", *arguments]
    with _ONE_AT_A_TIME, redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        code = main(words)
    if not out.getvalue().strip():
        raise ValueError(errors.getvalue().strip())
    answer: dict[str, Any] = json.loads(out.getvalue())
    return {"exit_code": code, **answer}


def options(given: Mapping[str, object]) -> list[str]:
    """Return keywords as the words of a command line; None is left out.

    Examples
    --------
    >>> options({"tensor_parallel": 4, "kv_dtype": None, "set": ["slo.ttft_p95=1 s", "name=a"]})
    ['--tensor-parallel', '4', '--set', 'slo.ttft_p95=1 s', '--set', 'name=a']
    """
    words: list[str] = []
    for name, value in given.items():
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                words += [f"--{name.replace('_', '-')}", str(item)]
    return words


Taken = ParamSpec("Taken")


@cache
def arguments_of(tool: Callable[..., dict[str, Any]]) -> "type[Record]":
    """Return the record of the arguments of a tool, with its names and types: others are errors, and no text or truth value is a number."""
    from capplan.readers.record import strict_record

    return strict_record(
        tool.__name__,
        {
            name: (one.annotation, ... if one.default is one.empty else one.default)
            for name, one in signature(tool).parameters.items()
        },
    )


def checked(tool: Callable[Taken, dict[str, Any]]) -> Callable[Taken, dict[str, Any]]:
    """Return a tool that raises ValueError for an argument that it does not have, or of another type."""

    @wraps(tool)
    def with_checked(*words: Taken.args, **options: Taken.kwargs) -> dict[str, Any]:
        from capplan.readers.record import validated
        from capplan.readers.yaml_file import Document

        given = {**dict(zip(signature(tool).parameters, words, strict=False)), **options}
        try:
            validated(arguments_of(tool), Document(tool.__name__, given, {}))
        except InputError as error:
            raise ValueError(str(error)) from None
        return tool(*words, **options)

    return with_checked


@checked
def fit(
    model: str,
    hardware: str,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    max_model_len: int | None = None,
) -> dict[str, Any]:
    """Say whether a model fits on GPUs, what uses the memory, and what would make it fit (exit_code 3: it does not fit)."""
    given = {
        "hardware": hardware,
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "weight_dtype": weight_dtype,
        "kv_dtype": kv_dtype,
        "max_model_len": max_model_len,
    }
    return run("fit", [model], given)


@checked
def estimate(
    model: str,
    hardware: str,
    concurrency: int | None = None,
    request_rate: str | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    tensor_parallel: int = 1,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> dict[str, Any]:
    """Predict latency and throughput of one replica at a concurrency, or at a request rate such as '5 req/s'."""
    given = {
        "hardware": hardware,
        "concurrency": concurrency,
        "request_rate": request_rate,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "tensor_parallel": tensor_parallel,
        "weight_dtype": weight_dtype,
        "kv_dtype": kv_dtype,
    }
    return run("estimate", [model], given)


@checked
def fleet(scenario: str, settings: list[str] | None = None) -> dict[str, Any]:
    """Find the cheapest fleet for a scenario: a shipped name or the path of a YAML; settings such as 'slo.ttft_p95=600 ms' override its keys."""
    return run("fleet", [scenario], {"set": settings})


@checked
def explain(plan: str, quantity: str | None = None) -> dict[str, Any]:
    """Explain a number of a plan file or a scenario: formula, inputs and sources; without a quantity, list what can be explained."""
    return run("explain", [plan, *([quantity] if quantity else [])], {})


@checked
def check(plan: str, scenario: str | None = None, settings: list[str] | None = None) -> dict[str, Any]:
    """Say whether a plan file still meets the targets, the budget and the prices of its scenario (exit_code 4: it does not)."""
    return run("check", [scenario] if scenario else [], {"plan": plan, "set": settings})


TOOLS: tuple[Callable[..., dict[str, Any]], ...] = (fit, estimate, fleet, explain, check)


def server() -> "MCPServer":
    """Return the server with its tools; InputError where the SDK is not installed."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.server.mcpserver.tools import Tool
        from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
        from mcp_types import ToolAnnotations
    except ImportError:
        raise InputError(NEEDED) from None

    class Unchecked(FuncMetadata):  # type: ignore[misc]
        """Passes arguments as they are to the tool, which checks them: the SDK leaves unknown ones out."""

        def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
            """Return the arguments."""
            return arguments_to_validate

    def offered(tool: Callable[..., dict[str, Any]]) -> Tool:
        @wraps(tool)
        def answered(**options: Any) -> dict[str, Any]:
            try:
                return tool(**options)
            except ValueError as error:
                raise ToolError(str(error)) from None

        read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        made = Tool.from_function(answered, annotations=read_only)
        metadata = Unchecked(**dict(made.fn_metadata))
        schema = arguments_of(tool).model_json_schema()
        return made.model_copy(update={"fn_metadata": metadata, "parameters": schema})

    return MCPServer(
        "capplan",
        instructions="Capacity planning for LLM serving. Numbers are in base units: seconds, bytes, tokens, dollars.",
        tools=[offered(tool) for tool in TOOLS],
    )
