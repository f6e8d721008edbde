"""The lever of speculative decoding: heads, layers for several tokens, or drafts from the prompt."""

from dataclasses import replace

from capplan.fleet.question import spec_of_layout
from capplan.questions.levers.as_it_is import Base, idle
from capplan.questions.levers.lever import Lever
from capplan.replica.drafting import DraftPlan, Method, draft_of
from capplan.replica.replica import replica_of
from capplan.replica.speculation import speculation
from capplan.scenario.acceptance import Published, not_published, published_acceptance

TRIED: tuple[Method, ...] = ("ngram", "eagle", "mtp")
"""Methods that need nothing but the target: a head has to be trained, or is published for it."""
_WORDS: dict[Method, str] = {
    "ngram": "drafts from the prompt (ngram)",
    "eagle": "an EAGLE head",
    "mtp": "the model's own multi-token prediction",
}


def speculations(base: Base) -> list[Lever]:
    """Return the scenario without its speculation, or with each method that needs no other model."""
    name, scenario = "speculation", base.asked.scenario
    if scenario.speculation is not None:
        return [
            Lever(
                name, "without speculation", ("speculation=null",), "none: an engine setting", combines=True
            )
        ]
    return [_method(base, name, method) for method in TRIED]


def _method(base: Base, name: str, method: Method) -> Lever:
    change = f"speculation: {_WORDS[method]}"
    network = next(iter(base.asked.question.networks.values()))
    if method == "mtp" and not network.mtp_parameters:
        return idle(name, change, f"{network.name} has no layers for multi-token prediction")
    if base.asked.scenario.fleet.pools is not None:
        return idle(name, change, "not modelled with separate pools: --set fleet.disaggregation=off")
    if base.plan is not None and base.plan.groups[0].layout.sharding.pipeline > 1:
        return idle(
            name, change, "the plan as it is has pipeline stages, with which speculation is not modelled"
        )
    known = published_acceptance(method, network)
    if known is None:
        return idle(name, change, not_published(method, network).replace("\n ", ";"))
    settings = (f"speculation={{method: {method}}}",)
    accepted = known.acceptance_fractions[0]
    risk = f"pays by its acceptance, here {accepted:.0%}: measure it on your own traffic{_until(base, known)}"
    return Lever(name, change, settings, risk, combines=True)


def _until(base: Base, published: Published) -> str:
    """Return the load from which a method makes the plan as it is no faster, next to the load that it has."""
    plan, question = base.plan, base.asked.question
    if plan is None:
        return ""
    group = plan.groups[0]
    replica = replica_of(spec_of_layout(group.layout, group.weight_dtype, question))
    drafting = DraftPlan(published.method, published.acceptance_fractions, published.draft_tokens)
    context = float(question.demand.lengths.input_tokens + question.demand.lengths.output_tokens)
    rows = speculation(
        replica,
        draft_of(replace(drafting, draft_tokens=1), replica.spec),
        published.acceptance_fractions[0],
        draft_tokens=[published.draft_tokens] if published.draft_tokens else (1, 2, 3, 4),
        batches=(1,),
        context_tokens=context,
    )
    now = f"the plan has {group.concurrency_per_replica:.0f} at the peak"
    if rows.breakeven_batch is None:
        return f"; faster at every batch that fits ({rows.largest_batch}); {now}"
    return f"; no faster from {rows.breakeven_batch} sequences on; {now}"
