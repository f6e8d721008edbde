"""The speculation of a scenario -> how any replica drafts: its method, its acceptance with the source, its draft model."""

from dataclasses import dataclass
from pathlib import Path

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.scenario import SpeculationPlan
from capplan.model.network import Network
from capplan.readers.catalogue.model import read_model
from capplan.readers.yaml_file import KeyPath
from capplan.recorded.traces.accepted_drafts import accepted_drafts
from capplan.replica.drafting import DraftPlan, Method
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Speculation

OF_ITSELF: tuple[Method, ...] = ("eagle", "mtp", "medusa", "ngram")
"""Methods that need neither a draft model nor the time of a draft."""


@dataclass(frozen=True, slots=True)
class Published:
    """The acceptance of a method where a scenario states none."""

    acceptance_fractions: tuple[float, ...]
    source: str
    draft_tokens: int | None = None
    verified_tokens: int | None = None


_SPEC_BENCH = "Spec-Bench, mean over its six tasks, greedy, https://github.com/hemingkx/Spec-Bench/blob/main/Leaderboard.md"
PUBLISHED: dict[Method, Published] = {
    "ngram": Published((0.36,), f"1.55 tokens a round of prompt lookup with Vicuna-33B: {_SPEC_BENCH}"),
    "draft-model": Published((0.50,), f"2.01 tokens a round of a 68M draft with Vicuna-33B: {_SPEC_BENCH}"),
    "medusa": Published(
        (0.59,), f"2.33 tokens a round of four heads and a tree with Vicuna-33B: {_SPEC_BENCH}", 4, 64
    ),
    "eagle": Published(
        (0.70,),
        "3.20 tokens a round of 7 drafts of one layer (MTP of DeepSeek-V3) over MT-bench, HumanEval and GSM8K: "
        "https://huggingface.co/nebius/MTP-DeepSeek-V3-0324",
    ),
    "mtp": Published(
        (0.85,),
        "85 to 90 % of the second tokens of DeepSeek-V3: arXiv:2412.19437, section 5.4.3",
        draft_tokens=1,
    ),
}
"""Acceptance depends on the task: code and quotations do better, free text worse, and a head trained on other text far worse."""


def speculation_plan(
    reading: Reading, section: Speculation | None, draft: str | None
) -> SpeculationPlan | None:
    """Return the speculation that a scenario states, with the acceptance of its method where it states none.

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
    default = PUBLISHED.get(method)
    fractions = _acceptance(reading, section, method)
    tokens = section.draft_tokens or (default.draft_tokens if default else None)
    if len(fractions) > 1 and (tokens or 0) > len(fractions):
        at: KeyPath = ("speculation", "draft_tokens")
        raise reading.refuse(
            at, f"{tokens} drafts need as many acceptances, one for each position; there are {len(fractions)}"
        )
    if tokens is None:
        reading.assume(
            "as many drafts in a round as are best at half of the largest rate", "speculation.draft_tokens"
        )
    verified = section.verified_tokens or (
        default.verified_tokens if default and not (section.acceptance or section.metrics) else None
    )
    return SpeculationPlan(
        fractions, tokens, draft, section.draft_step_time, method, verified, section.exit_layers
    )


def _acceptance(reading: Reading, section: Speculation, method: Method) -> tuple[float, ...]:
    """Return the acceptance that a scenario states, that an engine counted, or that is published."""
    if section.acceptance is not None and section.metrics is not None:
        raise reading.refuse(("speculation", "metrics"), "acceptance is stated already; give one of them")
    if section.acceptance is not None:
        return tuple(section.acceptance)
    if section.metrics is not None:
        paths = [Path(reading.resolved(name)) for name in section.metrics]
        seen = accepted_drafts(paths, section.draft_tokens)
        shares = ", ".join(f"{fraction:.1%}" for fraction in seen.fractions)
        reading.assume(
            f"drafts are accepted with {shares} probability, given those before them: {paths[-1].name} counted {seen.counted}",
            "speculation.acceptance",
        )
        return seen.fractions
    if method not in PUBLISHED:
        raise reading.refuse(
            ("speculation",),
            f"acceptance is missing, and none is published for {method}; e.g. acceptance: 0.7",
        )
    published = PUBLISHED[method]
    reading.assume(
        f"a draft is accepted with {published.acceptance_fractions[0]:.0%} probability: {published.source}",
        "speculation.acceptance",
    )
    return published.acceptance_fractions


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
        a draft with another vocabulary; a head or layers that the target does not have
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
    drafting = DraftPlan(
        plan.method,
        plan.acceptance_fractions,
        plan.draft_tokens,
        plan.verified_tokens,
        network,
        plan.draft_step_s,
        plan.exit_layers,
    )
    return drafting, (_COST_OF[plan.method] if plan.draft_step_s is None else _AS_GIVEN,)


def check_vocabulary(draft: Network, target: Network, place: str, instead: str) -> None:
    """Refuse a draft whose tokens the target does not have; `instead` is how the time of a draft is given."""
    if draft.vocabulary_size != target.vocabulary_size:
        raise InputError(
            f"{place}: {draft.name} has {draft.vocabulary_size:,} tokens, {target.name} has {target.vocabulary_size:,}; a target can only "
            f"verify drafts in its own vocabulary\n  take a draft of the same family, or give the step time of a head: {instead}"
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
