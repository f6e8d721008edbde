"""`capplan simulate`: a scenario's fleet under its own traffic or a trace."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli.options import Form, Offline, Output, Seed, measure, whole

Scenario = Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario YAML; see scenarios/.")]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Replay these requests instead of the scenario's traffic."),
]
Until = Annotated[
    float | None,
    typer.Option(
        "--until",
        parser=measure("--until", "SECONDS"),
        metavar="TIME",
        help="Stop then, such as '10 min'; default: until all are answered.",
    ),
]
Hardware = Annotated[
    str | None,
    typer.Option("--hardware", metavar="NAME", help="Device; default: the plan that capplan fleet chooses."),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        parser=whole("--replicas", "replicas", most=100_000),
        metavar="N",
        help="That serve; default: the plan's, without spares.",
    ),
]
Cut = Annotated[
    int | None,
    typer.Option(
        "--tensor-parallel",
        "-tp",
        parser=whole("--tensor-parallel", "devices", most=4096),
        metavar="N",
        help="Devices that share every matrix.",
    ),
]
Stages = Annotated[
    int | None,
    typer.Option(
        "--pipeline-parallel",
        "-pp",
        parser=whole("--pipeline-parallel", "devices", most=4096),
        metavar="N",
        help="Stages that the layers are dealt out to.",
    ),
]
Waiting = Annotated[
    int | None,
    typer.Option(
        "--queue-limit",
        parser=whole("--queue-limit", "requests", least=0),
        metavar="N",
        help="A request that finds so many waiting in its replica is shed.",
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        "--deadline",
        parser=measure("--deadline", "SECONDS"),
        metavar="TIME",
        help="A request that has waited so long is shed.",
    ),
]


def command(
    scenario: Scenario,
    trace: TraceFile = None,
    until: Until = None,
    seed: Seed = 0,
    hardware: Hardware = None,
    tensor_parallel: Cut = None,
    pipeline_parallel: Stages = None,
    replicas: Replicas = None,
    queue_limit: Waiting = None,
    deadline: Deadline = None,
    offline: Offline = False,
    form: Form = None,
    output: Output = None,
) -> int:
    """Simulate a scenario's fleet, request by request, under its traffic or a trace."""
    from capplan.fleet.simulation import simulated_fleet
    from capplan.inputs.simulation import (
        admission_of,
        asked_scenario,
        asked_stream,
        chosen_plan,
        sharding_of,
        utilisation_of,
    )
    from capplan.replica.replica import replica_of
    from capplan.report.progress import row_progress
    from capplan.report.show import show
    from capplan.report.simulate_answer import simulate_answer

    asked = asked_scenario(scenario, offline=offline)
    with row_progress("plans") as progress:
        chosen = chosen_plan(
            asked, hardware=hardware, sharding=sharding_of(tensor_parallel, pipeline_parallel), replicas=replicas, progress=progress,
        )  # fmt: skip
    requests = asked_stream(chosen, trace, seed=seed, seconds=until)
    replica = replica_of(requests.spec)
    utilisation = utilisation_of(replica, requests, chosen.replicas)
    outcome = simulated_fleet(
        replica, requests.stream, replicas=chosen.replicas, slo=asked.scenario.slo,
        until_s=until or float("inf"), admission=admission_of(requests.stream, queue_limit, deadline),
    )  # fmt: skip
    return show(simulate_answer(chosen, requests, outcome, seed, utilisation), form, output)
