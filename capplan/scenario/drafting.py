"""The speculation of a scenario -> how any replica drafts: its method, its acceptance with the source, its draft model."""

from dataclasses import replace
from pathlib import Path

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.scenario import SpeculationPlan
from capplan.model.network import Network
from capplan.readers.catalogue.model import read_model
from capplan.readers.yaml_file import KeyPath
from capplan.recorded.traces.accepted_drafts import accepted_drafts
from capplan.replica.drafting import DraftPlan, Method
from capplan.scenario.acceptance import not_published, published_acceptance
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Speculation

OF_ITSELF: tuple[Method, ...] = ("eagle", "mtp", "medusa", "ngram")
"""Methods that need neither a draft model nor the time of a draft."""


def speculation_plan(
    reading: Reading, section: Speculation | None, draft: str | None
) -> SpeculationPlan | None:
    """Return the speculation that a scenario states; without an acceptance where it states none.

    Parameters
    ----------
    reading : of the file
    section : of the scenario
    draft : its draft model, as a path or a name

    Raises
    ------
    InputError
        half a method, or two
    """
    if section is None:
        return None
    method = section.method or "draft-model"
    _check_source(reading, section, method)
    fractions = _acceptance(reading, section)
    tokens = section.draft_tokens
    if len(fractions) > 1 and (tokens or 0) > len(fractions):
        at: KeyPath = ("speculation", "draft_tokens")
        raise reading.refuse(
            at, f"{tokens} drafts need as many acceptances, one for each position; there are {len(fractions)}"
        )
    return SpeculationPlan(
        fractions,
        tokens,
        draft,
        section.draft_step_time,
        method,
        section.verified_tokens,
        section.exit_layers,
    )


def _acceptance(reading: Reading, section: Speculation) -> tuple[float, ...]:
    """Return the acceptance that a scenario states, or that an engine counted; none where the published one is used."""
    if section.acceptance is not None and section.metrics is not None:
        raise reading.refuse(("speculation", "metrics"), "acceptance is stated already; give one of them")
    if section.acceptance is not None:
        return tuple(section.acceptance)
    if section.metrics is None:
        return ()
    paths = [Path(reading.resolved(name)) for name in section.metrics]
    seen = accepted_drafts(paths, section.draft_tokens)
    shares = ", ".join(f"{fraction:.1%}" for fraction in seen.fractions)
    reading.assume(
        f"drafts are accepted with {shares} probability, given those before them: {paths[-1].name} counted {seen.counted}",
        "speculation.acceptance",
    )
    return seen.fractions


def with_acceptance(plan: SpeculationPlan, target: Network) -> tuple[SpeculationPlan, tuple[Assumption, ...]]:
    """Return a speculation with the published acceptance of its method on a target, where it states none, and what was assumed.

    Raises
    ------
    InputError
        No acceptance of the method is published for the target or its kin, or for fewer drafts than are wanted.
    """
    stated: list[Assumption] = []
    if not plan.acceptance_fractions:
        known = published_acceptance(plan.method, target)
        if known is None:
            raise InputError(not_published(plan.method, target))
        tokens = plan.draft_tokens or known.draft_tokens
        positions = len(known.acceptance_fractions)
        if 1 < positions < (tokens or 0):
            raise InputError(
                f"speculation.draft_tokens: {tokens} is above {positions}, for as many drafts is an acceptance published: {known.source}\n"
                "  state your own: acceptance: 0.7"
            )
        plan = replace(
            plan,
            acceptance_fractions=known.acceptance_fractions,
            draft_tokens=tokens,
            verified_tokens=plan.verified_tokens or known.verified_tokens,
        )
        stated.append(known.assumption)
    if plan.draft_tokens is None:
        stated.append(_AS_MANY)
    return plan, tuple(stated)


def _check_source(reading: Reading, section: Speculation, method: Method) -> None:
    """Refuse a method without what it drafts with, or with what it does not use."""
    given = [name for name in ("draft", "draft_step_time") if getattr(section, name) is not None]
    if len(given) > 1 or (method == "draft-model" and not given):
        raise reading.refuse(
            ("speculation",),
            "give either draft or draft_step_time, e.g. draft_step_time: 2 ms, or a method that needs none of them: "
            f"{', '.join(OF_ITSELF)}",
        )
    if section.draft is not None and method != "draft-model":
        raise reading.refuse(
            ("speculation", "draft"), f"is for method: draft-model; {method} drafts by itself"
        )
    if (section.exit_layers is not None) != (method == "early-exit"):
        raise reading.refuse(
            ("speculation",),
            "exit_layers belongs to method: early-exit, e.g. {method: early-exit, exit_layers: 8}",
        )


def drafting_of(
    plan: SpeculationPlan, target: Network, *, offline: bool
) -> tuple[DraftPlan, tuple[Assumption, ...]]:
    """Return how replicas of a target draft, and what was assumed.

    Raises
    ------
    InputError
        a draft with another vocabulary; a head or layers that the target does not have; no acceptance
    """
    network = None
    if plan.draft is not None:
        network = read_model(plan.draft, offline=offline)
        check_vocabulary(network, target, "speculation.draft", "draft_step_time: 2 ms")
    if plan.method == "mtp" and not target.mtp_parameters:
        raise InputError(
            f"speculation.method: mtp: {target.name} has no layers for multi-token prediction\n  try eagle or ngram"
        )
    if plan.exit_layers is not None and plan.exit_layers >= len(target.layers):
        raise InputError(
            f"speculation.exit_layers: {plan.exit_layers} is not below the {len(target.layers)} layers of {target.name}"
        )
    plan, accepted = with_acceptance(plan, target)
    drafting = DraftPlan(
        plan.method,
        plan.acceptance_fractions,
        plan.draft_tokens,
        plan.verified_tokens,
        network,
        plan.draft_step_s,
        plan.exit_layers,
    )
    return drafting, (*accepted, _COST_OF[plan.method] if plan.draft_step_s is None else _AS_GIVEN)


def check_vocabulary(draft: Network, target: Network, place: str, instead: str) -> None:
    """Refuse a draft whose tokens the target does not have; `instead` is how the time of a draft is given."""
    if draft.vocabulary_size != target.vocabulary_size:
        raise InputError(
            f"{place}: {draft.name} has {draft.vocabulary_size:,} tokens, {target.name} has {target.vocabulary_size:,}; a target can only "
            f"verify drafts in its own vocabulary\n  take a draft of the same family, or give the step time of a head: {instead}"
        )


_AS_MANY = Assumption(
    "as many drafts in a round as are best at half of the largest rate", "speculation.draft_tokens"
)
_AS_GIVEN = Assumption("a draft takes as long as given, and no memory", "speculation.draft_step_time")
_HEAD = Assumption(
    "a draft head is one more layer of the target, with its embedding and its LM head",
    "speculation.draft_step_time",
)
_COST_OF: dict[Method, Assumption] = {
    "eagle": _HEAD,
    "mtp": _HEAD,
    "medusa": Assumption(
        "a Medusa head is one more LM head of the target, in 16 bits", "speculation.draft_step_time"
    ),
    "ngram": Assumption("drafts from the prompt take no time on the device", "speculation.draft_step_time"),
    "draft-model": Assumption(
        "the draft runs on all devices of its target; its prefill of the prompts is not counted",
        "speculation.draft_step_time",
    ),
    "early-exit": Assumption(
        "the first layers and the LM head of the target draft, without memory of their own",
        "speculation.draft_step_time",
    ),
}
