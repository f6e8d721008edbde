"""One replica: `capplan fit`, `estimate` and `spec`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from capplan.assumption import Assumption
from capplan.cli import options as o
from capplan.cli.completion import models
from capplan.cli.options import declared, fraction, grouped, whole
from capplan.errors import InputError
from capplan.scenario.command_flags import DraftFlags
from capplan.scenario.flags import MODEL, LoadFlags, OutputFlags, ServingFlags

Serving = Annotated[ServingFlags, o.SERVED.only(*(name for name in o.SERVED if name != "calibration"))]


_OF_ONE = {*o.SERVED, "picture"}.difference(
    (
        "weight_dtype",
        "kv_dtype",
        "max_model_len",
        "pipeline_parallel",
        "host_bandwidth",
        "host_memory",
        "offline",
    )
)
"""Options that count only for a model that is named."""


@grouped
def fit_command(
    context: typer.Context,
    *,
    model: o.Model,
    hardware: o.Hardware,
    serving: Serving,
    picture: o.Picture = None,
    to: o.Output,
) -> int:
    """Show whether a model fits, what uses the memory, and how many sequences there is room for; of `any` which models fit."""
    here = hardware.lower() == "this"
    if here:
        from capplan.readers.local_machine import device_here, local_machine

        machine = local_machine()
        hardware = device_here(machine)
    if model.lower() == "any":
        o.refuse_unread(context, _OF_ONE, "fit any takes none; name a model")
        return _fit_any(hardware, serving, to, machine if here else None)
    from capplan.fleet.fit import fit
    from capplan.readers.catalogue.hardware import device, device_names
    from capplan.report.answers.replica import fit_answer, waterfall
    from capplan.report.show import show_drawn
    from capplan.scenario.replica import asked_replica

    asked = asked_replica(model, hardware, serving)
    memory = fit(asked.spec, [device(name) for name in device_names()])
    answer = fit_answer(memory, asked.assumptions, asked.warnings)

    def charts() -> "list[Chart]":
        from capplan.report.charts.of_answers import memory_chart

        return [memory_chart(asked.spec.device.name, waterfall(memory))]

    return show_drawn(answer, to, picture, charts)


def _fit_any(hardware: str, serving: ServingFlags, to: OutputFlags, machine: "LocalMachine | None") -> int:
    """Show the models that run on a device."""
    from capplan.questions.runnable import models_that_run
    from capplan.readers.catalogue.hardware import device
    from capplan.report.answers.local_machine import more_here, runnable_answer
    from capplan.report.show import row_progress, show

    entry = device(hardware)
    with row_progress("models") as progress:
        rows = models_that_run(entry, serving, progress)
    more = more_here(machine, hardware) if machine else ()
    kv_dtype, devices = serving.kv_dtype or "fp16", serving.pipeline_parallel
    return show(runnable_answer(entry, rows, kv_dtype, devices, more), to)


_MODEL = typer.Argument(metavar="[MODEL]", help=f"{MODEL}; default: the one of --launch.", show_default=False)
_LAUNCH = typer.Option(
    "--launch",
    metavar="COMMAND",
    help="Command of an engine instead of flags: 'vllm serve ...', sglang.launch_server, trtllm-serve or llama-server, as it is run.",
)
STATED = [
    name
    for name in o.SERVED
    if name not in ("engine_version", "backend", "host_bandwidth", "host_memory", "calibration", "offline")
]
"""Flags that the command of an engine states."""


@grouped
def estimate_command(
    context: typer.Context,
    *,
    model: Annotated[str | None, _MODEL] = None,
    launch: Annotated[str | None, _LAUNCH] = None,
    ignore_unmodelled: o.IgnoreUnmodelled = False,
    hardware: o.Hardware,
    load: o.Load,
    serving: o.Served,
    picture: o.Picture = None,
    to: o.Output,
) -> int:
    """Estimate latency and throughput of one replica at a concurrency or at a request rate."""
    from capplan.accuracy.bounded import bounded_estimate
    from capplan.readers.catalogue.efficiency import shipped_intervals
    from capplan.replica.replica import replica_of
    from capplan.report.answers.replica import estimate_answer
    from capplan.report.show import show_drawn
    from capplan.scenario.replica import asked_replica

    named, serving, unread, assumed = _served(
        context, model, launch, serving, load, ignore_unmodelled=ignore_unmodelled
    )
    if serving.runner == "pooling":
        o.refuse_unread(
            context, ("output_tokens",), "a runner of vectors or scores generates no tokens; leave it out"
        )
        load = load.of_prompts()
    asked = asked_replica(named, hardware, serving)
    replica = replica_of(replace(asked.spec, typical_context_tokens=load.tokens))
    bounded = bounded_estimate(replica, load, shipped_intervals())
    answer = estimate_answer(
        replica, load, bounded, (*assumed, *asked.assumptions), (*unread, *asked.warnings)
    )

    def charts() -> "list[Chart]":
        from capplan.report.charts.of_answers import roofline_of

        return [roofline_of(asked.spec, bounded.estimate.breakdown)]

    return show_drawn(answer, to, picture, charts)


def _served(
    context: typer.Context,
    model: str | None,
    launch: str | None,
    serving: ServingFlags,
    load: LoadFlags,
    *,
    ignore_unmodelled: bool,
) -> tuple[str, ServingFlags, tuple[str, ...], tuple[Assumption, ...]]:
    """Return the model, how it is served, a warning that names what was not read of the command of an engine, and what is assumed of it."""
    if launch is not None:
        from capplan.deploy.known_deployment import launched_replica

        o.refuse_unread(context, STATED, "is said by --launch; leave one of them out")
        return launched_replica(model, launch, serving, load, ignore_unmodelled=ignore_unmodelled)
    o.refuse_unread(context, ("ignore_unmodelled",), "is for the command of --launch; leave it out")
    if model is None:
        raise InputError(
            "no model is given\n  name one, or the command of an engine: --launch 'vllm serve OWNER/NAME'"
        )
    return model, serving, (), ()


if TYPE_CHECKING:
    from capplan.readers.local_machine import LocalMachine
    from capplan.replica.replica import Replica
    from capplan.replica.spec import ReplicaSpec
    from capplan.report.charts.of_answers import Chart

_ACCEPTANCE = fraction(
    "--acceptance",
    says="Probability that a draft token is accepted, given that all before it were; default: the published one of --method.",
)
_TARGET = typer.Argument(
    metavar="MODEL",
    help="Target model; not needed if both step times are given.",
    show_default=False,
    autocompletion=models,
)
Hardware = Annotated[str | None, o.HARDWARE]
Draft = Annotated[DraftFlags, declared(DraftFlags, "Draft")]
_DRAFT_TOKENS = whole(
    "--draft-tokens",
    of="tokens",
    most=1024,
    says="Draft tokens per round; repeatable; default: 1 to 8.",
)
_BATCH = whole(
    "--batch",
    of="sequences",
    most=65536,
    metavar="B",
    says="Batch size: sequences that decode at once; repeatable; default: 1, 2, 4 ... 256.",
)


_OF_STATED_TIMES = (
    "acceptance", "model", "hardware", "draft", "method", "draft_step_s", "target_step_s", "draft_tokens", "batch", "form",
    "file", "offline",
)  # fmt: skip


@grouped
def spec_command(
    context: typer.Context,
    *,
    acceptance: Annotated[float | None, _ACCEPTANCE] = None,
    model: Annotated[str | None, _TARGET] = None,
    hardware: Hardware = None,
    draft: Draft,
    draft_tokens: Annotated[list[int] | None, _DRAFT_TOKENS] = None,
    batch: Annotated[list[int] | None, _BATCH] = None,
    lengths: o.Lengths,
    serving: o.Serving,
    to: o.Output,
) -> int:
    """Show the speedup of speculative decoding by batch size and draft length, and where it stops paying off."""
    from capplan.replica.speculation import BATCHES, DRAFT_TOKENS, speculation
    from capplan.report.answers.replica import spec_answer
    from capplan.report.show import show
    from capplan.scenario.speculation import asked_speculation

    _refuse_unread(context, draft)
    asked = asked_speculation(model, hardware, draft, serving, acceptance)
    target = _built(asked.target, lengths)
    speculated = speculation(
        target,
        asked.draft,
        asked.acceptance_fractions,
        draft_tokens=draft_tokens or DRAFT_TOKENS,
        batches=batch or ((1,) if isinstance(target, float) else BATCHES),
        context_tokens=lengths.mean_context_tokens,
    )
    return show(spec_answer(speculated, asked.target, asked.draft, asked.assumptions, asked.warnings), to)


def _refuse_unread(context: typer.Context, draft: DraftFlags) -> None:
    if draft.draft_step_s is not None and draft.target_step_s is not None:
        names = {p.name or "" for p in context.command.params}.difference(_OF_STATED_TIMES)
        why = "belongs to a MODEL, which is not used where both step times are given"
        o.refuse_unread(context, names, why)
    elif draft.draft is None:
        o.refuse_unread(context, {"draft_tensor_parallel"}, "belongs to --draft, and none is given")


def _built(target: "ReplicaSpec | float", lengths: LoadFlags) -> "Replica | float":
    """Return the replica of a target that can hold such requests, or the step time given."""
    from dataclasses import replace

    from capplan.replica.load import check_load
    from capplan.replica.replica import replica_of
    from capplan.replica.spec import served_context_tokens

    if isinstance(target, float):
        return target
    check_load(replace(lengths, concurrency=1), served_context_tokens(target))
    return replica_of(target)
