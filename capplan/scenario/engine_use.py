"""How the engines and the fleet of a simulation are operated, by flags and scenario: schedulers, caches, failures, scaling."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from capplan.assumption import Assumption
from capplan.errors import InputError, unknown
from capplan.fleet.engine_options import EngineOptions, TierSize
from capplan.fleet.load.routed import Operation
from capplan.fleet.pools.link import LinkTerms
from capplan.hardware.device import NETWORKS
from capplan.quantity import BYTES, BYTES_PER_S, SECONDS, quantity
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import DraftPlan
from capplan.scenario.command_flags import EngineFlags, OperationFlags, SpeculationFlags
from capplan.scenario.scenario_file import Scenario, Speculation
from capplan.scenario.speculation import draft_beside, drafting_of, with_acceptance
from capplan.serving.terms import ROUTINGS, Autoscaling, Failure, Hedging, Routing


def failure_of(text: Any) -> Failure:
    """Return a failure written as REPLICA@TIME.

    Examples
    --------
    >>> failure_of("1@5 min")
    Failure(time_s=300.0, replica=1, repair_s=inf)
    """
    number, at, time = str(text).partition("@")
    if not at or not number.strip().isdecimal():
        raise InputError(f"--fail: {text!r} is not a replica and a time; write it as '1@5 min'")
    return Failure(quantity(time, SECONDS, "--fail"), int(number))


def autoscaling_of(text: str, start_s: float, rate_per_s: float) -> Autoscaling:
    """Return an autoscaler whose limits are written as MIN:MAX.

    Examples
    --------
    >>> autoscaling_of("2:8", 60.0, 4.0).max_replicas
    8
    """
    least, colon, most = text.partition(":")
    if not colon or not least.strip().isdecimal() or not most.strip().isdecimal():
        raise InputError(f"--autoscale: {text!r} is not a minimum and a maximum; write it as '2:8'")
    if not 1 <= int(least) <= int(most):
        raise InputError(
            f"--autoscale: {text!r} needs a minimum of at least 1 and a maximum not below it, such as '2:8'"
        )
    return Autoscaling(int(least), int(most), start_s=start_s, rate_per_s=rate_per_s)


def routing_of(text: str | None) -> Routing | None:
    """Return a routing by its name; None where none is given.

    Examples
    --------
    >>> routing_of("least_loaded")
    'least_loaded'
    """
    if text is None:
        return None
    for name in ROUTINGS:
        if name == text:
            return name
    raise unknown("routing", text, ROUTINGS, place="--routing")


def network_bytes_per_s(text: str, place: str) -> float | None:
    """Return the rate of a network by its name or as it is written; None for a name that only a device may know.

    Examples
    --------
    >>> network_bytes_per_s("infiniband-ndr", "fleet.kv_link"), network_bytes_per_s("25 GB/s", "fleet.kv_link")
    (50000000000.0, 25000000000.0)
    """
    if text in NETWORKS:
        return NETWORKS[text]
    return quantity(text, BYTES_PER_S, place) if text[:1].isdigit() else None


def link_terms_of(text: str, place: str, latency_s: float = 0.0) -> LinkTerms:
    """Return a link between pools: of the devices, of a standard, or a rate per device."""
    return LinkTerms(text, network_bytes_per_s(text, place), latency_s, key=place)


def operation_of(
    flags: OperationFlags, start_up_s: float, replicas: int | None, scaling_rate: Callable[[], float]
) -> Operation | None:
    """Return how the fleet is operated; None where no flag is given. An autoscaler counts with the rate of `scaling_rate` for each replica."""
    if replicas is not None and flags.prefill_replicas is not None:
        raise InputError(
            "--replicas: cannot be combined with --prefill-replicas and --decode-replicas, which set the size of each pool"
        )
    operation = Operation(
        routing=routing_of(flags.routing),
        failures=tuple(failure_of(text) for text in flags.fail or ()),
        autoscaling=None
        if flags.autoscale is None
        else autoscaling_of(flags.autoscale, start_up_s, scaling_rate()),
        hedging=None if flags.hedge_s is None else Hedging(flags.hedge_s),
        prefill_replicas=flags.prefill_replicas,
        decode_replicas=flags.decode_replicas,
        kv_link=None if flags.kv_link is None else link_terms_of(flags.kv_link, "--kv-link"),
    )
    return None if operation == Operation() else operation


DRAFT_TOKENS = 4
"""Draft tokens per round by default."""


def tier_of(text: Any) -> TierSize:
    """Return a tier written as NAME:CAPACITY or NAME:CAPACITY@RATE.

    Examples
    --------
    >>> tier_of("nvme:8 TB@14 GB/s")
    TierSize(name='nvme', capacity_bytes=8000000000000.0, bytes_per_s=14000000000.0)
    """
    name, colon, rest = str(text).partition(":")
    size, at, rate = rest.partition("@")
    if not colon or not name.strip():
        raise InputError(
            f"--kv-offload: {text!r} is not a name and a size; write it as 'host:512 GB' or 'nvme:8 TB@14 GB/s'"
        )
    capacity = quantity(size, BYTES, "--kv-offload")
    speed = quantity(rate, BYTES_PER_S, "--kv-offload") if at else None
    if not capacity > 0.0 or (speed is not None and not speed > 0.0):
        raise InputError(f"--kv-offload: {text!r} must have a size and a rate above zero")
    return TierSize(name.strip().lower(), capacity, speed)


def engine_use_of(
    scenario: Scenario,
    target: ReplicaSpec,
    flags: EngineFlags,
    speculation: SpeculationFlags,
    *,
    planned_drafts: int | None,
    offline: bool,
) -> tuple[EngineOptions, tuple[Assumption, ...]]:
    """Return the set-up of the engines; flags override the scenario.

    Parameters
    ----------
    scenario : may name tiers and a speculation
    target : the replica that is simulated
    flags : how steps are formed and prefixes kept
    speculation : with a draft model or its step time, here or in the scenario
    planned_drafts : [tokens]
        drafted in a round of the plan, where the scenario leaves that to the search
    offline : how a draft model is looked up

    Raises
    ------
    InputError
        a flag that cannot be read, or half a speculation
    """
    plan = _speculation(scenario.speculation, speculation)
    drafting: DraftPlan | None = None
    stated: tuple[Assumption, ...] = ()
    if plan is not None:
        plan = plan.model_copy(update={"draft_tokens": plan.draft_tokens or planned_drafts})
        drafting, stated = _drafting(plan, target, offline=offline)
    tiers = flags.kv_offload
    sizes = tuple(tier_of(text) for text in tiers) if tiers else scenario.kv_offload
    names = [size.name for size in sizes]
    if len(set(names)) < len(names):
        raise InputError(f"--kv-offload: {', '.join(names)}; give each tier a different name")
    scheduler: Any = flags.scheduling
    use = EngineOptions(
        scheduler,
        flags.batch_timeout_s,
        sizes,
        drafting,
        scenario.file.prefix_caching is not False,
        flags.reuse_preempted,
    )
    return use, stated


def _speculation(of_scenario: Speculation | None, flags: SpeculationFlags) -> Speculation | None:
    """Return the speculation of the scenario, overridden by the flags."""
    if flags == SpeculationFlags():
        return of_scenario
    drafts_named = flags.draft is not None or flags.draft_step_s is not None
    if flags.draft is not None and flags.draft_step_s is not None:
        raise InputError("give either --draft MODEL or --draft-step-time, not both")
    if not drafts_named and of_scenario is None:
        raise InputError(
            "speculation needs a draft model or the time of a draft step: --draft llama-3.2-1b or --draft-step-time '2 ms', "
            "or a speculation section in the scenario"
        )
    acceptance = flags.acceptance_fraction
    if acceptance is None and of_scenario is None:
        raise InputError("speculation needs the fraction of draft tokens that are accepted: --acceptance 0.7")
    default = Speculation() if of_scenario is None else of_scenario
    changed: dict[str, Any] = {
        "acceptance": default.acceptance if acceptance is None else [acceptance],
        "draft_tokens": flags.draft_tokens or default.draft_tokens,
    }
    if drafts_named:
        changed |= {"draft": flags.draft, "draft_step_time": flags.draft_step_s, "method": "draft-model"}
    return default.model_copy(update=changed)


def _drafting(
    plan: Speculation, target: ReplicaSpec, *, offline: bool
) -> tuple[DraftPlan, tuple[Assumption, ...]]:
    plan, assumed = with_acceptance(plan, target.network)
    most = DRAFT_TOKENS if len(plan.acceptance) == 1 else len(plan.acceptance)
    tokens = plan.draft_tokens or min(DRAFT_TOKENS, most)
    drafting, stated = drafting_of(plan, target.network, offline=offline)
    if plan.draft is not None:
        _, stated = draft_beside(plan.draft, target, offline=offline)
    elif plan.draft_step_time is not None:
        stated = (
            Assumption(
                f"one step of the draft takes {plan.draft_step_time * 1e3:g} ms, as given, and no memory",
                "--draft-step-time, --draft",
            ),
        )
    return replace(drafting, draft_tokens=tokens), (*assumed, *stated)
