"""`capplan estimate`: latency and throughput of one replica."""

import typer

from capplan.cli import options as o
from capplan.cli.groups import grouped


@grouped
def command(
    context: typer.Context,
    *,
    model: o.Model,
    hardware: o.Hardware,
    load: o.Load,
    serving: o.Served,
    to: o.Output,
) -> int:
    """Estimate latency and throughput of one replica at a concurrency or at a request rate."""
    from capplan.accuracy.bounded import bounded_estimate
    from capplan.questions.replica import asked_replica
    from capplan.readers.catalogue.intervals import shipped_intervals
    from capplan.replica.replica import replica_of
    from capplan.report.answers.estimate import estimate_answer
    from capplan.report.show import show

    if serving.runner == "pooling":
        o.refuse_unread(context, ("output_tokens",), "--runner pooling generates no tokens; leave it out")
        load = load.of_prompts()
    asked = asked_replica(model, hardware, serving)
    replica = replica_of(asked.spec)
    bounded = bounded_estimate(replica, load, shipped_intervals())
    return show(estimate_answer(replica, load, bounded, asked.assumptions, asked.warnings), to)
