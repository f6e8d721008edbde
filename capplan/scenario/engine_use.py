"""How the engines of a simulation are set up by flags and scenario: scheduler, offload tiers, speculation."""

from dataclasses import replace
from typing import Any

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.engine_options import Drafting, EngineOptions, TierSize
from capplan.fleet.scenario import Scenario, SpeculationPlan
from capplan.readers.quantity import BYTES, BYTES_PER_S, quantity
from capplan.replica.drafting import draft_of
from capplan.replica.spec import ReplicaSpec
from capplan.replica.speculation import DraftModel
from capplan.scenario.drafting import drafting_of, with_acceptance
from capplan.scenario.simulation_flags import EngineFlags, SpeculationFlags
from capplan.scenario.speculation import draft_beside

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

    Returns
    -------
    the set-up, and what was assumed

    Raises
    ------
    InputError
        a flag that cannot be read, or half a speculation
    """
    plan = _speculation(scenario.speculation, speculation)
    drafting: Drafting | None = None
    stated: tuple[Assumption, ...] = ()
    if plan is not None:
        plan = replace(plan, draft_tokens=plan.draft_tokens or planned_drafts)
        drafting, stated = _drafting(plan, target, offline=offline)
    tiers = flags.kv_offload
    sizes = tuple(tier_of(text) for text in tiers) if tiers else scenario.kv_offload
    names = [size.name for size in sizes]
    if len(set(names)) < len(names):
        raise InputError(f"--kv-offload: {', '.join(names)}; give each tier a different name")
    scheduler: Any = flags.scheduling
    use = EngineOptions(
        scheduler, flags.batch_timeout_s, sizes, drafting, scenario.prefix_caching, flags.reuse_preempted
    )
    return use, stated


def _speculation(said: SpeculationPlan | None, flags: SpeculationFlags) -> SpeculationPlan | None:
    """Return the speculation of the scenario, overridden by the flags."""
    if flags == SpeculationFlags():
        return said
    given = flags.draft is not None or flags.draft_step_s is not None
    if flags.draft is not None and flags.draft_step_s is not None:
        raise InputError("give either --draft MODEL or --draft-step-time, not both")
    if not given and said is None:
        raise InputError(
            "speculation needs a draft model or the time of a draft step: --draft llama-3.2-1b or --draft-step-time '2 ms', "
            "or a speculation section in the scenario"
        )
    acceptance = flags.acceptance_fraction
    if acceptance is None and said is None:
        raise InputError("speculation needs the fraction of draft tokens that are accepted: --acceptance 0.7")
    default = SpeculationPlan((0.0,), None) if said is None else said
    stated = replace(
        default,
        acceptance_fractions=default.acceptance_fractions if acceptance is None else (acceptance,),
        draft_tokens=flags.draft_tokens or default.draft_tokens,
    )
    if not given:
        return stated
    return replace(
        stated, draft=flags.draft, draft_step_s=flags.draft_step_s, method="draft-model", exit_layers=None
    )


def _drafting(
    plan: SpeculationPlan, target: ReplicaSpec, *, offline: bool
) -> tuple[Drafting, tuple[Assumption, ...]]:
    plan, assumed = with_acceptance(plan, target.network)
    fractions = plan.acceptance_fractions
    accepted = fractions[0] if len(fractions) == 1 else fractions
    most = DRAFT_TOKENS if len(fractions) == 1 else len(fractions)
    tokens = plan.draft_tokens or min(DRAFT_TOKENS, most)
    if plan.draft is not None:
        draft: DraftModel | float
        draft, stated = draft_beside(plan.draft, target, offline=offline)
        return Drafting(draft, accepted, tokens, plan.verified_tokens), (*assumed, *stated)
    drafting, stated = drafting_of(plan, target.network, offline=offline)
    if plan.draft_step_s is not None:
        stated = (
            Assumption(
                f"one step of the draft takes {plan.draft_step_s * 1e3:g} ms, as given, and no memory",
                "--draft-step-time, --draft",
            ),
        )
    draft = draft_of(replace(drafting, draft_tokens=tokens), target)
    return Drafting(draft, accepted, tokens, plan.verified_tokens), (*assumed, *stated)
