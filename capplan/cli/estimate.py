"""`capplan estimate`: latency and throughput of one replica."""

from dataclasses import replace
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import grouped

Model = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help=f"{o.MODEL}; default: the one of --launch.", show_default=False),
]
Launch = Annotated[
    str | None,
    typer.Option(
        "--launch",
        metavar="COMMAND",
        help="Command of an engine instead of flags: 'vllm serve ...', sglang.launch_server or trtllm-serve, as it is run.",
    ),
]
STATED = [name for name in o.SERVED if name not in ("engine_version", "calibration", "offline")]
"""Flags that the command of an engine states."""


@grouped
def command(
    context: typer.Context,
    *,
    model: Model = None,
    launch: Launch = None,
    hardware: o.Hardware,
    load: o.Load,
    serving: o.Served,
    picture: o.Picture = None,
    to: o.Output,
) -> int:
    """Estimate latency and throughput of one replica at a concurrency or at a request rate."""
    from capplan.accuracy.bounded import bounded_estimate
    from capplan.deploy.known_deployment import launched_replica
    from capplan.readers.catalogue.efficiency import shipped_intervals
    from capplan.replica.replica import replica_of
    from capplan.report.answers.replica import estimate_answer
    from capplan.report.charts.of_answers import compute_dtype_of, roofline_chart
    from capplan.report.charts.static import chart_picture
    from capplan.report.show import show, shown_anyway
    from capplan.scenario.replica import asked_replica

    if launch is not None:
        o.refuse_unread(context, STATED, "is said by --launch; leave one of them out")
    launched = launched_replica(model, launch, serving, load)
    if launched.serving.runner == "pooling":
        o.refuse_unread(
            context, ("output_tokens",), "a runner of vectors or scores generates no tokens; leave it out"
        )
        load = load.of_prompts()
    asked = asked_replica(launched.model, hardware, launched.serving)
    replica = replica_of(replace(asked.spec, typical_context_tokens=load.tokens))
    bounded = bounded_estimate(replica, load, shipped_intervals())
    warnings = (*launched.warnings, *asked.warnings)
    answer = estimate_answer(replica, load, bounded, asked.assumptions, warnings)
    if picture:
        compute, operators = compute_dtype_of(asked.spec), bounded.estimate.breakdown
        with shown_anyway(answer, to):
            chart_picture(picture, [roofline_chart(asked.spec.device, compute, operators)])
    return show(answer, to)
