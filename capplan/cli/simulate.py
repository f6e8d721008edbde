"""`capplan simulate`: a scenario's fleet under its own traffic or a trace."""

from pathlib import Path
from typing import Annotated

import typer

from capplan.cli.options import Form, Offline, Output, Seed, fraction, measure, one_of, whole

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

Route = Annotated[
    str | None,
    typer.Option(
        "--routing",
        parser=one_of("--routing", "routing", ("round_robin", "least_loaded", "prefix_aware")),
        metavar="NAME",
        help="Router before the replicas: round_robin, least_loaded or prefix_aware.",
    ),
]
Fail = Annotated[
    list[str] | None,
    typer.Option(
        "--fail",
        metavar="REPLICA@TIME",
        help="A replica, from 0, that stops then, such as '1@5 min', several times; its requests go elsewhere.",
    ),
]
Autoscale = Annotated[
    str | None,
    typer.Option(
        "--autoscale",
        metavar="MIN:MAX",
        help="Replicas follow the load; the scenario says how long a start takes.",
    ),
]
Hedge = Annotated[
    float | None,
    typer.Option(
        "--hedge",
        parser=measure("--hedge", "SECONDS"),
        metavar="TIME",
        help="A request without a token by then gets a copy in another replica.",
    ),
]
PrefillReplicas = Annotated[
    int | None,
    typer.Option(
        "--prefill-replicas",
        parser=whole("--prefill-replicas", "replicas", most=100_000),
        metavar="N",
        help="Replicas for prompts alone; with --decode-replicas and --kv-link.",
    ),
]
DecodeReplicas = Annotated[
    int | None,
    typer.Option(
        "--decode-replicas",
        parser=whole("--decode-replicas", "replicas", most=100_000),
        metavar="N",
        help="Replicas for all tokens but the first.",
    ),
]
Between = Annotated[
    str | None,
    typer.Option(
        "--kv-link",
        metavar="NAME",
        help="What the cache goes over: network, pcie or the device's link, such as nvlink4.",
    ),
]
Scheduling = Annotated[
    str | None,
    typer.Option(
        "--scheduling",
        parser=one_of(
            "--scheduling", "scheduling", ("static", "dynamic", "continuous", "chunked", "prefill-first")
        ),
        metavar="NAME",
        help="static, dynamic (with a timeout), continuous (prompts uncut), chunked or prefill-first; default: the engine's.",
    ),
]
BatchTimeout = Annotated[
    float | None,
    typer.Option(
        "--batch-timeout",
        parser=measure("--batch-timeout", "SECONDS"),
        metavar="TIME",
        help="A dynamic batch starts when its oldest request has waited so long; default: 100 ms.",
    ),
]
Offload = Annotated[
    list[str] | None,
    typer.Option(
        "--kv-offload",
        metavar="NAME:SIZE[@RATE]",
        help="Memory of a replica for prefixes that the devices have no room for, such as 'host:512 GB' or "
        "'nvme:8 TB@14 GB/s', several times, the fastest first; for a trace with block hashes.",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option("--draft", metavar="MODEL", help="Speculative decoding with this draft model."),
]
DraftStepTime = Annotated[
    float | None,
    typer.Option(
        "--draft-step-time",
        parser=measure("--draft-step-time", "SECONDS"),
        metavar="TIME",
        help="One step of the draft, such as '1 ms', instead of --draft.",
    ),
]
DraftTokens = Annotated[
    int | None,
    typer.Option(
        "--draft-tokens",
        parser=whole("--draft-tokens", "tokens", most=64),
        metavar="N",
        help="Drafted in one round; default: the scenario's, else 4.",
    ),
]
Acceptance = Annotated[
    float | None,
    typer.Option(
        "--acceptance",
        parser=fraction("--acceptance"),
        metavar="FRACTION",
        help="Chance that a draft token is accepted given that all before it were.",
    ),
]
Reuse = Annotated[
    bool,
    typer.Option(
        "--reuse-preempted",
        help="A preempted request finds those of its blocks that nobody has overwritten, as with a prefix cache.",
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
    routing: Route = None,
    fail: Fail = None,
    autoscale: Autoscale = None,
    hedge: Hedge = None,
    prefill_replicas: PrefillReplicas = None,
    decode_replicas: DecodeReplicas = None,
    kv_link: Between = None,
    scheduling: Scheduling = None,
    batch_timeout: BatchTimeout = None,
    kv_offload: Offload = None,
    draft: Draft = None,
    draft_step_time: DraftStepTime = None,
    draft_tokens: DraftTokens = None,
    acceptance: Acceptance = None,
    reuse_preempted: Reuse = False,
    offline: Offline = False,
    form: Form = None,
    output: Output = None,
) -> int:
    """Simulate a scenario's fleet, request by request, under its traffic or a trace."""
    from capplan.fleet.routed import most_replicas, run_fleet
    from capplan.questions import simulation as inputs
    from capplan.questions.engine_use import SpeculationFlags, engine_use_of
    from capplan.questions.operation import operation_of
    from capplan.replica.replica import replica_of
    from capplan.report.progress import row_progress
    from capplan.report.show import show
    from capplan.report.simulate_answer import say_overload, simulate_answer

    asked = inputs.asked_scenario(scenario, offline=offline)
    with row_progress("plans") as progress:
        chosen = inputs.chosen_plan(
            asked, hardware=hardware, sharding=inputs.sharding_of(tensor_parallel, pipeline_parallel),
            replicas=replicas, progress=progress,
        )  # fmt: skip
    pools = (prefill_replicas, decode_replicas, kv_link)
    operation = operation_of(routing, fail, autoscale, hedge, pools, asked.scenario.fleet.start_up_s, replicas)  # fmt: skip
    requests = inputs.asked_stream(chosen, trace, seed=seed, seconds=until)
    replica = replica_of(requests.spec)
    speculation = SpeculationFlags(draft, draft_step_time, draft_tokens, acceptance)
    use, stated = engine_use_of(
        asked.scenario, requests.spec, scheduler=scheduling, batch_timeout_s=batch_timeout, tiers=kv_offload,
        speculation=speculation, reuse_preempted=reuse_preempted, offline=offline,
    )  # fmt: skip
    utilisation = inputs.utilisation_of(replica, requests, most_replicas(operation, chosen.replicas), use)
    say_overload(requests, utilisation)
    outcome = run_fleet(
        replica, requests.stream, operation, replicas=chosen.replicas, slo=asked.scenario.slo, use=use, until_s=until or float("inf"),
        admission=inputs.admission_of(requests.stream, queue_limit, deadline, asked.scenario.classes),
    )  # fmt: skip
    return show(simulate_answer(chosen, requests, outcome, seed, utilisation, stated), form, output)
