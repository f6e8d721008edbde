"""The options that commands share, alone and in groups: one name, one short form, one help line."""

from collections.abc import Container
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from capplan.cli.completion import devices, kv_dtypes, models, plan_files, scenarios, weight_dtypes
from capplan.cli.groups import Group
from capplan.cli.kinds import fraction, measure, one_of, whole
from capplan.errors import InputError
from capplan.scenario.flags import (
    LOAD_RANGES,
    REQUEST_RANGES,
    SERVING_RANGES,
    LoadFlags,
    OutputFlags,
    ServingFlags,
)

_FORMATS = ("table", "json", "csv", "markdown")

MODEL = "Path of a config.json, its folder or a GGUF file, a shipped id or alias, or a Hugging Face id"
HARDWARE = typer.Option(
    "--hardware",
    metavar="NAME",
    help="Catalogue name or alias, or path of a hardware YAML.",
    autocompletion=devices,
)
TENSOR_PARALLEL = whole(
    "--tensor-parallel",
    "-tp",
    allowed=SERVING_RANGES["tensor_parallel"],
    says="Devices that every matrix is split over.",
)
PIPELINE_PARALLEL = whole(
    "--pipeline-parallel",
    "-pp",
    allowed=SERVING_RANGES["pipeline_parallel"],
    says="Stages that the layers are distributed over.",
)

Model: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"{MODEL}.", show_default=False, autocompletion=models)
]
Hardware: TypeAlias = Annotated[str, HARDWARE]
Scenario: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO",
        help="Scenario YAML, or a name of capplan list scenarios.",
        autocompletion=scenarios,
    ),
]
ScenarioOfPlan: TypeAlias = Annotated[
    Path | None,
    typer.Argument(
        metavar="[SCENARIO]",
        help="Scenario YAML or name; default: the one that --plan was made for.",
        autocompletion=scenarios,
    ),
]
PlanFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Plan written by capplan fleet -o plan.json, instead of a new search.",
        autocompletion=plan_files,
    ),
]
NeededPlan: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Plan written by capplan fleet -o plan.json.",
        autocompletion=plan_files,
    ),
]
SET = typer.Option(
    "--set", metavar="KEY=VALUE", help="A key of the scenario, such as 'slo.ttft_p95=600 ms'; repeatable."
)
Settings: TypeAlias = Annotated[list[str] | None, SET]
Picture: TypeAlias = Annotated[
    Path | None,
    typer.Option("--plot", "--picture", metavar="FILE", help="Draw a picture: .svg, .png or .pdf."),
]

SERVING = Group(
    "Replica",
    tensor_parallel=TENSOR_PARALLEL,
    pipeline_parallel=PIPELINE_PARALLEL,
    expert_parallel=whole(
        "--expert-parallel",
        "-ep",
        allowed=SERVING_RANGES["expert_parallel"],
        says="Groups that whole experts are distributed over.",
    ),
    data_parallel=whole(
        "--data-parallel",
        "-dp",
        allowed=SERVING_RANGES["data_parallel"],
        says="Attention groups, each with different sequences.",
    ),
    weight_dtype=typer.Option(
        "--weight-dtype",
        metavar="DTYPE",
        help="fp32, bf16, fp16, fp8, int8, int4, int2, nvfp4, mxfp4, a form like w4a16-g128, or a mixture like q4_k_m; default: that of the config.",
        autocompletion=weight_dtypes,
    ),
    kv_dtype=typer.Option(
        "--kv-dtype",
        metavar="DTYPE",
        help="fp32, bf16, fp16, fp8, int8 or int4; default: that of the config, else the activation dtype.",
        autocompletion=kv_dtypes,
    ),
    engine=one_of("--engine", ("vllm", "sglang", "trtllm"), says="vllm, sglang or trtllm."),
    engine_version=typer.Option(
        "--engine-version", metavar="X.Y.Z", help="Release of the engine; default: the newest known."
    ),
    max_model_len=whole(
        "--max-model-len",
        metavar="TOKENS",
        allowed=SERVING_RANGES["max_model_len"],
        says="Longest sequence, input and output; default: the model's maximum.",
    ),
    max_num_seqs=whole(
        "--max-num-seqs",
        allowed=SERVING_RANGES["max_num_seqs"],
        says="Maximum sequences in one step; default: the engine's.",
    ),
    max_num_batched_tokens=whole(
        "--max-num-batched-tokens",
        metavar="TOKENS",
        allowed=SERVING_RANGES["max_num_batched_tokens"],
        says="Maximum tokens in one step; default: the engine's.",
    ),
    gpu_memory_utilization=fraction(
        "--gpu-memory-utilization",
        says="Fraction of device memory for weights, activations and KV cache together; default: the engine's.",
    ),
    calibration=typer.Option(
        "--calibration", metavar="FILE", help="Efficiencies measured with capplan calibrate."
    ),
    revision=typer.Option("--revision", metavar="REV", help="Branch, tag or commit on the hub."),
    offline=typer.Option("--offline", help="Never open a connection."),
)
SERVED = Group(
    "What it serves",
    SERVING,
    runner=one_of(
        "--runner",
        ("generate", "pooling"),
        says="generate, or pooling for the vectors and scores of embedding models and rerankers.",
    ),
    max_loras=whole(
        "--max-loras", allowed=SERVING_RANGES["max_loras"], says="Slots of LoRA adapters, all in use."
    ),
    max_lora_rank=whole(
        "--max-lora-rank", allowed=SERVING_RANGES["max_lora_rank"], says="Rank of the adapters; default 16."
    ),
)
"""Options of commands that also judge one replica by what it is served for."""
LOAD = Group(
    "Load",
    input_tokens=whole(
        "--input-tokens", metavar="TOKENS", allowed=LOAD_RANGES["input_tokens"], says="Mean input length."
    ),
    output_tokens=whole(
        "--output-tokens", metavar="TOKENS", allowed=LOAD_RANGES["output_tokens"], says="Mean output length."
    ),
    concurrency=whole(
        "--concurrency",
        allowed=LOAD_RANGES["concurrency"],
        says="Requests in flight at any time (closed loop).",
    ),
    request_rate=measure(
        "--request-rate",
        "REQUESTS_PER_S",
        metavar="RATE",
        says="Arrivals, such as '5 req/s' (open loop).",
    ),
    prefix_hit_fraction=fraction(
        "--prefix-hit-fraction", says="Fraction of input tokens that hit in the prefix cache."
    ),
)
OUTPUT = Group(
    "Output",
    form=one_of(
        "--format",
        _FORMATS,
        metavar="FORMAT",
        says="table, json, csv or markdown; default: by the suffix of --output, else table.",
    ),
    file=typer.Option(
        "--output", "-o", metavar="FILE", help="Write to this file instead of stdout, atomically."
    ),
)


def refuse_unread(context: typer.Context, unread: Container[str], why: str) -> None:
    """Raise the error for an option that is given but would have no effect: nothing is ignored silently."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in unread and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"{parameter.opts[0]}: {why}\n  see: {context.command_path} --help")


Serving: TypeAlias = Annotated[ServingFlags, SERVING]
Served: TypeAlias = Annotated[ServingFlags, SERVED]
Load: TypeAlias = Annotated[LoadFlags, LOAD]
Lengths: TypeAlias = Annotated[LoadFlags, LOAD.only("input_tokens", "output_tokens")]
Output: TypeAlias = Annotated[OutputFlags, OUTPUT]
Calibration: TypeAlias = Annotated[Path | None, SERVING["calibration"]]
Offline: TypeAlias = Annotated[bool, SERVING["offline"]]
SEED = whole("--seed", allowed=REQUEST_RANGES["seed"], says="Seed of the random draws.")
