"""The options that commands share: one name, one short form, one help line, one way to read them."""

import math
from collections.abc import Callable, Container
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from capplan.errors import InputError, unknown


def whole(option: str, noun: str, *, least: int = 1, most: int = 1_000_000_000) -> Callable[[Any], int]:
    """Return a reader of whole numbers that says what is allowed."""
    of = f" of {noun}" if noun else ""
    example = "8192" if noun == "tokens" else "8"

    def read(text: Any) -> int:
        digits = str(text).replace("_", "").replace(",", "")
        if not digits.lstrip("+-").isdecimal():
            raise InputError(f"{option}: {text!r} is not a whole number{of}; write it as '{example}'")
        if not least <= int(digits[:40]) <= most:
            raise InputError(
                f"{option}: {text!r} is out of range; {least} to {most}{' ' if noun else ''}{noun} are allowed"
            )
        return int(digits)

    read.__name__ = "whole number"
    return read


def fraction(option: str) -> Callable[[Any], float]:
    """Return a reader of shares of one: 0.9 or 90 %."""

    def read(text: Any) -> float:
        if isinstance(text, float):
            return text
        from capplan.readers.quantity import FRACTION, quantity

        value = quantity(text, FRACTION, option)
        if not 0.0 <= value <= 1.0:
            raise InputError(f"{option}: {text!r} is out of range; 0 to 1 (or 0 % to 100 %) is allowed")
        return value

    read.__name__ = "fraction"
    return read


def measure(option: str, unit: str, *, bare: bool = False) -> Callable[[Any], float]:
    """Return a reader of positive quantities with a unit, `unit` being a name of `inputs.quantity`.

    `bare` takes a number alone to be in the base unit.
    """

    def read(text: Any) -> float:
        if isinstance(text, float):
            return text
        from capplan.readers import quantity

        wanted: quantity.Unit = getattr(quantity, unit)
        try:
            value = float(text) if bare else math.nan
        except ValueError:
            value = math.nan
        if math.isnan(value):
            value = quantity.quantity(text, wanted, option)
        if not 0.0 < value < math.inf:
            raise InputError(f"{option}: {text!r} is not above zero; e.g. '{wanted.example}'")
        return value

    read.__name__ = "quantity"
    return read


def one_of(option: str, kind: str, names: tuple[str, ...]) -> Callable[[Any], str]:
    """Return a reader of names from a short list; case does not matter."""

    def read(text: Any) -> str:
        name = str(text).lower()
        if name not in names:
            raise unknown(kind, str(text), names, place=option)
        return name

    read.__name__ = "|".join(names)
    return read


def _option(*names: str, parser: Callable[[Any], Any], help: str, metavar: str, **more: Any) -> Any:  # noqa: A002  (typer's own word)
    return typer.Option(*names, parser=parser, help=help, metavar=metavar, **more)


def _ranks(long: str, short: str, what: str) -> Any:
    return _option(long, short, parser=whole(long, "devices", most=4096), help=what, metavar="N")


_FORMATS = ("table", "json", "csv", "markdown")
_ENGINES = ("vllm", "sglang", "trtllm")

Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Path of a config.json or its folder, a shipped id or alias, or a Hugging Face id.",
        show_default=False,
    ),
]
Hardware: TypeAlias = Annotated[
    str,
    typer.Option("--hardware", metavar="NAME", help="Catalogue name or alias, or path of a hardware YAML."),
]
TensorParallel: TypeAlias = Annotated[
    int, _ranks("--tensor-parallel", "-tp", "Devices that share every matrix.")
]
PipelineParallel: TypeAlias = Annotated[
    int, _ranks("--pipeline-parallel", "-pp", "Stages that the layers are dealt out to.")
]
ExpertParallel: TypeAlias = Annotated[
    int, _ranks("--expert-parallel", "-ep", "Groups that whole experts are dealt out to.")
]
DataParallel: TypeAlias = Annotated[
    int, _ranks("--data-parallel", "-dp", "Attention groups, each with its own sequences.")
]
WeightDtype: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--weight-dtype",
        metavar="DTYPE",
        help="fp32, bf16, fp16, fp8, int8, int4, nvfp4, mxfp4, or a form like w4a16-g128; default: what the config says.",
    ),
]
KvDtype: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--kv-dtype",
        metavar="DTYPE",
        help="fp32, bf16, fp16, fp8, int8 or int4; default: what the config asks for, else the dtype of the activations.",
    ),
]
Engine: TypeAlias = Annotated[
    str,
    _option(
        "--engine",
        parser=one_of("--engine", "engine", _ENGINES),
        help="vllm, sglang or trtllm.",
        metavar="NAME",
    ),
]
EngineVersion: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--engine-version", metavar="X.Y.Z", help="Release of the engine; default: the newest known."
    ),
]
MaxModelLen: TypeAlias = Annotated[
    int | None,
    _option(
        "--max-model-len",
        parser=whole("--max-model-len", "tokens"),
        help="Longest sequence, prompt and output; default: the model's maximum.",
        metavar="TOKENS",
    ),
]
MaxNumSeqs: TypeAlias = Annotated[
    int | None,
    _option(
        "--max-num-seqs",
        parser=whole("--max-num-seqs", "sequences"),
        help="Most sequences in one step; default: the engine's.",
        metavar="N",
    ),
]
MaxNumBatchedTokens: TypeAlias = Annotated[
    int | None,
    _option(
        "--max-num-batched-tokens",
        parser=whole("--max-num-batched-tokens", "tokens"),
        help="Most tokens in one step; default: the engine's.",
        metavar="TOKENS",
    ),
]
GpuMemoryUtilization: TypeAlias = Annotated[
    float | None,
    _option(
        "--gpu-memory-utilization",
        parser=fraction("--gpu-memory-utilization"),
        help="Share of the device that weights, activations and KV may fill together; default: the engine's.",
        metavar="FRACTION",
    ),
]
InputTokens: TypeAlias = Annotated[
    int,
    _option(
        "--input-tokens",
        parser=whole("--input-tokens", "tokens"),
        help="Mean prompt length.",
        metavar="TOKENS",
    ),
]
OutputTokens: TypeAlias = Annotated[
    int,
    _option(
        "--output-tokens",
        parser=whole("--output-tokens", "tokens"),
        help="Mean output length.",
        metavar="TOKENS",
    ),
]
Concurrency: TypeAlias = Annotated[
    int | None,
    _option(
        "--concurrency",
        parser=whole("--concurrency", "requests"),
        help="Requests in flight at any time (closed loop).",
        metavar="N",
    ),
]
RequestRate: TypeAlias = Annotated[
    float | None,
    _option(
        "--request-rate",
        parser=measure("--request-rate", "REQUESTS_PER_S", bare=True),
        help="Arrivals, such as '5 req/s' (open loop).",
        metavar="RATE",
    ),
]
PrefixHitFraction: TypeAlias = Annotated[
    float,
    _option(
        "--prefix-hit-fraction",
        parser=fraction("--prefix-hit-fraction"),
        help="Share of prompt tokens found in the prefix cache.",
        metavar="FRACTION",
    ),
]
Calibration: TypeAlias = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="Efficiencies measured with capplan calibrate."),
]
Revision: TypeAlias = Annotated[
    str | None, typer.Option("--revision", metavar="REV", help="Branch, tag or commit on the hub.")
]
Seed: TypeAlias = Annotated[
    int,
    _option("--seed", parser=whole("--seed", "", least=0), help="Of what is drawn at random.", metavar="N"),
]
Picture: TypeAlias = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE", help="Draw it: .svg, .png or .pdf.")
]
Offline: TypeAlias = Annotated[bool, typer.Option("--offline", help="Never open a connection.")]
Form: TypeAlias = Annotated[
    str | None,
    _option(
        "--format",
        parser=one_of("--format", "format", _FORMATS),
        help="table, json, csv or markdown; default: by the suffix of --output, else table.",
        metavar="FORMAT",
        autocompletion=lambda: list(_FORMATS),
    ),
]
Output: TypeAlias = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout, whole or not at all."),
]


def refuse_unread(context: typer.Context, unread: Container[str], why: str) -> None:
    """Raise the error for an option that the command line has and that nothing reads in this case; nothing is ignored."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in unread and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"{parameter.opts[0]}: {why}\n  see: {context.command_path} --help")
