"""`capplan spec`: speculative decoding, and when it pays."""

from typing import TYPE_CHECKING, Annotated

import typer

from capplan.cli import options as o

if TYPE_CHECKING:
    from capplan.replica.replica import Replica
    from capplan.replica.spec import ReplicaSpec

Acceptance = Annotated[
    float,
    typer.Option(
        "--acceptance",
        parser=o.fraction("--acceptance"),
        metavar="FRACTION",
        help="Chance that a draft token is accepted given that all before it were.",
    ),
]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="The target; not needed where both step times are given.", show_default=False
    ),
]
Hardware = Annotated[
    str | None,
    typer.Option("--hardware", metavar="NAME", help="Catalogue name or alias, or path of a hardware YAML."),
]
Draft = Annotated[
    str | None, typer.Option("--draft", metavar="MODEL", help="Draft model, with the tokens of the target.")
]
DraftStepTime = Annotated[
    float | None,
    typer.Option(
        "--draft-step-time",
        parser=o.measure("--draft-step-time", "SECONDS"),
        metavar="TIME",
        help="One step of the draft, such as '2 ms', instead of --draft.",
    ),
]
TargetStepTime = Annotated[
    float | None,
    typer.Option(
        "--target-step-time",
        parser=o.measure("--target-step-time", "SECONDS"),
        metavar="TIME",
        help="One decode step of the target, such as '35 ms', instead of MODEL.",
    ),
]
DraftTokens = Annotated[
    list[int] | None,
    typer.Option(
        "--draft-tokens",
        parser=o.whole("--draft-tokens", "tokens", most=1024),
        metavar="N",
        help="Drafted in one round; may be given several times; default: 1 to 8.",
    ),
]
Batch = Annotated[
    list[int] | None,
    typer.Option(
        "--batch",
        parser=o.whole("--batch", "sequences", most=65536),
        metavar="B",
        help="Sequences that decode at once; may be given several times; default: 1, 2, 4 ... 256.",
    ),
]
DraftWeightDtype = Annotated[
    str | None,
    typer.Option("--draft-weight-dtype", metavar="DTYPE", help="Default: what the config of the draft says."),
]
DraftTensorParallel = Annotated[
    int | None,
    typer.Option(
        "--draft-tensor-parallel",
        parser=o.whole("--draft-tensor-parallel", "devices", most=4096),
        metavar="N",
        help="Devices that share the draft; default: as the target.",
    ),
]


_OF_STATED_TIMES = (
    "acceptance", "model", "hardware", "draft", "draft_step_time", "target_step_time", "draft_tokens", "batch", "form",
    "output", "offline",
)  # fmt: skip


def command(
    context: typer.Context,
    acceptance: Acceptance,
    model: Target = None,
    hardware: Hardware = None,
    draft: Draft = None,
    draft_step_time: DraftStepTime = None,
    target_step_time: TargetStepTime = None,
    draft_tokens: DraftTokens = None,
    batch: Batch = None,
    draft_weight_dtype: DraftWeightDtype = None,
    draft_tensor_parallel: DraftTensorParallel = None,
    tensor_parallel: o.TensorParallel = 1,
    pipeline_parallel: o.PipelineParallel = 1,
    expert_parallel: o.ExpertParallel = 1,
    data_parallel: o.DataParallel = 1,
    weight_dtype: o.WeightDtype = None,
    kv_dtype: o.KvDtype = None,
    engine: o.Engine = "vllm",
    engine_version: o.EngineVersion = None,
    max_model_len: o.MaxModelLen = None,
    max_num_seqs: o.MaxNumSeqs = None,
    max_num_batched_tokens: o.MaxNumBatchedTokens = None,
    gpu_memory_utilization: o.GpuMemoryUtilization = None,
    input_tokens: o.InputTokens = 1024,
    output_tokens: o.OutputTokens = 256,
    calibration: o.Calibration = None,
    revision: o.Revision = None,
    offline: o.Offline = False,
    form: o.Form = None,
    output: o.Output = None,
) -> int:
    """Show what speculative decoding brings by batch and draft length, and where it stops paying."""
    from capplan.questions.speculation import asked_speculation
    from capplan.replica.speculation import BATCHES, DRAFT_TOKENS, speculation
    from capplan.report.show import show
    from capplan.report.spec_answer import spec_answer

    stated = draft_step_time is not None and target_step_time is not None
    _refuse_unread(context, draft, both_stated=stated)
    asked = asked_speculation(
        model, hardware, draft=draft, draft_step_s=draft_step_time, target_step_s=target_step_time,
        draft_weight_dtype=draft_weight_dtype, draft_tensor_parallel=draft_tensor_parallel,
        tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel, expert_parallel=expert_parallel,
        data_parallel=data_parallel, weight_dtype=weight_dtype, kv_dtype=kv_dtype, engine=engine,
        engine_version=engine_version, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens, gpu_memory_utilization=gpu_memory_utilization,
        calibration=calibration, revision=revision, offline=offline,
    )  # fmt: skip
    target = _built(asked.target, input_tokens, output_tokens)
    found = speculation(
        target,
        asked.draft,
        acceptance,
        draft_tokens=draft_tokens or DRAFT_TOKENS,
        batches=batch or ((1,) if isinstance(target, float) else BATCHES),
        context_tokens=input_tokens + output_tokens / 2.0,
    )
    return show(
        spec_answer(found, asked.target, asked.draft, asked.assumptions, asked.warnings), form, output
    )


def _refuse_unread(context: typer.Context, draft: str | None, *, both_stated: bool) -> None:
    if both_stated:
        names = {p.name or "" for p in context.command.params}.difference(_OF_STATED_TIMES)
        why = "belongs to a MODEL, which is not read where both step times are stated"
        o.refuse_unread(context, names, why)
    elif draft is None:
        names = {"draft_weight_dtype", "draft_tensor_parallel"}
        o.refuse_unread(context, names, "belongs to --draft, and none is given")


def _built(target: "ReplicaSpec | float", input_tokens: int, output_tokens: int) -> "Replica | float":
    """Return the replica of a target that can hold such requests, or its stated time."""
    from capplan.replica.load import Load, check_load
    from capplan.replica.replica import replica_of
    from capplan.replica.spec import served_context_tokens

    if isinstance(target, float):
        return target
    check_load(Load(input_tokens, output_tokens, concurrency=1), served_context_tokens(target))
    return replica_of(target)
