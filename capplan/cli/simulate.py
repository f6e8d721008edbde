"""`capplan simulate`: a scenario's fleet under its own traffic or a trace."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.completion import devices, models
from capplan.cli.options import Group, fraction, grouped, measure, one_of, whole
from capplan.scenario.flags import (
    PLAN_RANGES,
    EngineFlags,
    OperationFlags,
    PlanFlags,
    RequestFlags,
    SpeculationFlags,
)

Requests = Annotated[
    RequestFlags,
    Group(
        "Requests",
        trace=typer.Option(
            "--trace", metavar="FILE", help="Replay these requests instead of the scenario's traffic."
        ),
        until_s=measure(
            "--until",
            says="Stop after this simulated time, such as '10 min'; default: when all requests are done.",
        ),
        seed=o.SEED,
        warm_up_s=measure(
            "--warm-up",
            says="Leave requests that arrive before this time out of all figures; default: the first 15% of drawn requests, the time in which sessions fill the caches, nothing of a trace.",
            or_zero=True,
        ),
    ),
]
Plan = Annotated[
    PlanFlags,
    Group(
        "Plan",
        hardware=typer.Option(
            "--hardware",
            metavar="NAME",
            help="Device; default: the plan that capplan fleet chooses.",
            autocompletion=devices,
        ),
        tensor_parallel=o.TENSOR_PARALLEL,
        pipeline_parallel=o.PIPELINE_PARALLEL,
        replicas=whole(
            "--replicas",
            allowed=PLAN_RANGES["replicas"],
            says="Replicas in service; default: the plan's, without spares.",
        ),
    ),
]
Running = Annotated[
    OperationFlags,
    Group(
        "Operation",
        queue_limit=whole(
            "--queue-limit",
            of="requests",
            least=0,
            says="Requests that arrive at a replica with this many waiting are shed.",
        ),
        deadline_s=measure("--deadline", says="Requests that waited longer than this are shed."),
        routing=one_of(
            "--routing",
            ("round_robin", "random", "least_loaded", "prefix_aware", "gpu_prefix_aware"),
            says="Router before the replicas: round_robin, random, least_loaded, prefix_aware or gpu_prefix_aware.",
        ),
        fail=typer.Option(
            "--fail",
            metavar="REPLICA@TIME",
            help="A replica (from 0) and the time at which it fails, such as '1@5 min'; its requests are rerouted; repeatable.",
        ),
        autoscale=typer.Option(
            "--autoscale",
            metavar="MIN:MAX",
            help="Autoscale the replicas with the load; the start-up time is that of the scenario.",
        ),
        hedge_s=measure(
            "--hedge", says="A request without a token after this time is copied to another replica."
        ),
        prefill_replicas=whole(
            "--prefill-replicas",
            of="replicas",
            most=100_000,
            says="Replicas for prefill only; with --decode-replicas and --kv-link.",
        ),
        decode_replicas=whole(
            "--decode-replicas",
            of="replicas",
            most=100_000,
            says="Replicas for decode: all tokens but the first.",
        ),
        kv_link=typer.Option(
            "--kv-link",
            metavar="NAME",
            help="Link for the transfer of the KV cache: network, pcie or the device's link, such as nvlink4.",
        ),
    ),
]
Engine = Annotated[
    EngineFlags,
    Group(
        "Engine",
        scheduling=one_of(
            "--scheduling",
            ("static", "dynamic", "continuous", "chunked", "prefill-first", "slots"),
            says="static, dynamic (with a timeout), continuous (prompts not split), chunked, prefill-first or slots (llama.cpp); default: the engine's.",
        ),
        batch_timeout_s=measure(
            "--batch-timeout",
            says="A dynamic batch starts once its oldest request has waited this long; default: 100 ms.",
        ),
        kv_offload=typer.Option(
            "--kv-offload",
            metavar="NAME:SIZE[@RATE]",
            help="Memory of a replica for prefixes that no longer fit on its devices, such as 'host:512 GB' or "
            "'nvme:8 TB@14 GB/s'; repeatable, fastest first; for a trace with block hashes.",
        ),
        reuse_preempted=typer.Option(
            "--reuse-preempted",
            help="A preempted request reuses its blocks that were not overwritten, as with a prefix cache.",
        ),
    ),
]
Speculation = Annotated[
    SpeculationFlags,
    Group(
        "Speculation",
        draft=typer.Option(
            "--draft",
            metavar="MODEL",
            help="Speculative decoding with this draft model.",
            autocompletion=models,
        ),
        draft_step_s=measure(
            "--draft-step-time", says="One step of the draft, such as '1 ms', instead of --draft."
        ),
        draft_tokens=whole(
            "--draft-tokens",
            of="tokens",
            most=64,
            says="Draft tokens per round; default: the scenario's, else 4.",
        ),
        acceptance_fraction=fraction(
            "--acceptance", says="Probability that a draft token is accepted, given that all before it were."
        ),
    ),
]


@dataclass(frozen=True, slots=True)
class ScenarioChanges:
    """Keys that replace those of the scenario."""

    settings: list[str] | None = None
    """KEY=VALUE of each."""
    calibration: Path | None = None


Changed = Annotated[ScenarioChanges, Group("Scenario", settings=o.SET, calibration=o.SERVING["calibration"])]


@grouped
def command(
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    requests: Requests,
    plan: Plan,
    running: Running,
    engine: Engine,
    speculation: Speculation,
    changed: Changed,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Simulate a scenario's fleet, request by request, under its traffic or a trace."""
    from capplan.library.calls import SimulationRecords, simulated
    from capplan.questions.plans.plan_file import asked_of_plan
    from capplan.report.show import row_progress, show
    from capplan.scenario.reading import settings_of

    settings = settings_of(changed.settings, calibration=changed.calibration)
    asked, answer = asked_of_plan(scenario, plan_file, settings, offline=offline)
    records = SimulationRecords(requests, plan, running, engine, speculation)
    with row_progress("plans") as progress:
        found = simulated(asked, answer, records, progress, offline=offline)
    return show(found, to)
