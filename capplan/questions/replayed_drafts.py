"""The drafts of a measured run -> how its replica drafts: acceptance as the row states it, as it was published for the model, or by a rule of thumb."""

from dataclasses import replace

from capplan.accuracy.drafts import Drafts
from capplan.assumption import Assumption
from capplan.model.network import Network
from capplan.replica.speculation import DraftPlan, Method
from capplan.scenario.speculation import Published, acceptance_by_position, published_acceptance

USUAL_ACCEPTANCE = acceptance_by_position((1.85, 2.55, 3.1))
"""Acceptance by position of an MTP or EAGLE head for which none was published: the middle of what operators count of DeepSeek-R1 and GLM-5.2,
1.8 to 1.9, 2.4 to 2.7 and 2.9 to 3.3 tokens a round of 1, 2 and 3 drafts (https://lmsys.org/blog/2025-09-26-sglang-ant-group/;
wide-EP guide of https://github.com/llm-d/llm-d)."""

_STATED = "spec_decode: MTP3 accept 2.9"
"""What a file writes to state drafts and their acceptance."""
_USUAL = Assumption(
    "drafts are accepted as DeepSeek-R1's and GLM-5.2's usually are: 1.85, 2.55 and 3.1 tokens a round of 1, 2 and 3 drafts",
    _STATED,
)
_AS_MANY = Assumption("as many drafts in a round as are best at the load", "spec_decode: MTP3")


def method_on(method: Method, network: Network) -> Method:
    """Return how a head drafts on a model: SGLang runs MTP heads as EAGLE, and a model without MTP layers has a head of its own."""
    if method in {"mtp", "eagle"}:
        return "mtp" if network.mtp_parameters else "eagle"
    return method


def drafting_of_run(drafts: Drafts, network: Network) -> tuple[DraftPlan, tuple[Assumption, ...]]:
    """Return how the replicas of a run draft, and what was assumed.

    Parameters
    ----------
    drafts : as the row names them
    network : of the target
    """
    method = method_on(drafts.method, network)
    plan = DraftPlan(method, (), drafts.draft_tokens, drafts.verified_tokens)
    unstated = () if drafts.draft_tokens is not None else (_AS_MANY,)
    if drafts.acceptance_fraction is not None:
        return replace(plan, acceptance_fractions=(drafts.acceptance_fraction,)), drafts.assumptions
    known, wanted = published_acceptance(method, network), drafts.draft_tokens
    if known is not None and _covers(known, wanted):
        own = replace(
            plan,
            acceptance_fractions=known.acceptance_fractions,
            verified_tokens=plan.verified_tokens or known.verified_tokens,
        )
        return own, (Assumption(known.assumption.what, _STATED), *unstated)
    # Positions beyond those that were counted are accepted like the last of them.
    usual = (*USUAL_ACCEPTANCE, *[USUAL_ACCEPTANCE[-1]] * ((wanted or 0) - len(USUAL_ACCEPTANCE)))
    return replace(plan, acceptance_fractions=usual), (_USUAL, *unstated)


def _covers(known: Published, draft_tokens: int | None) -> bool:
    """Return whether what was published of a method holds for so many drafts; None is any number."""
    for_any = len(known.acceptance_fractions) == 1 and known.draft_tokens is None
    if draft_tokens is None:
        return known.draft_tokens is None
    return for_any or draft_tokens <= len(known.acceptance_fractions)
