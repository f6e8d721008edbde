"""The lever of routing by prefix: what the caches of all replicas hold together, against what one of them holds."""

from dataclasses import replace

from capplan.errors import Reason
from capplan.fleet.engine_options import tier_in_tokens
from capplan.fleet.plan import FleetPlan
from capplan.fleet.search.cheapest import Sized, busy_replicas
from capplan.fleet.search.confirmed import plan_of
from capplan.fleet.search.one_layout import trial_of
from capplan.questions.fleet import terms_of
from capplan.questions.levers.as_it_is import Base, idle
from capplan.questions.levers.lever import Lever
from capplan.workload.reuse_by_age import hits_by_replica

NAME, CHANGE = "prefix-routing", "requests go where their prefix is cached"


def routing(base: Base) -> list[Lever]:
    """Return a router by prefix, whose replicas hold different prefixes, or why it changes nothing; slow."""
    classes = base.asked.scenario.classes
    plan = base.plan
    if not isinstance(plan, FleetPlan):
        why = "prompts have their own pool" if plan else "there is no plan whose requests could be routed"
        return [idle(NAME, CHANGE, why)]
    if base.asked.question.demand.has_sessions:
        return [idle(NAME, CHANGE, _kept_by_sessions(base, plan.busy_replicas))]
    if not any(item.reuse for item in classes):
        why = "no traffic has prefixes that differ from replica to replica"
        shared = ", ".join(item.name for item in classes if item.prefix_hit_fraction)
        if shared:
            why += f": each of the {plan.busy_replicas} replicas has the shared prefix of {shared} after its first request"
        return [idle(NAME, CHANGE, why)]
    if plan.busy_replicas == 1:
        return [idle(NAME, CHANGE, "one replica serves all requests, so there is nothing to route")]
    risk = "a router that follows the prefixes has to be run; the replica of a popular prefix may be busier than others"
    settings = ("fleet.routing=prefix_aware",)
    return [Lever(NAME, CHANGE, settings, risk, slow=True, sized=lambda: pooled_plan(base, plan))]


def pooled_plan(base: Base, plan: FleetPlan) -> FleetPlan | None:
    """Return the layout of a plan with the hits of all its caches together; None where it meets no targets.

    As many replicas are at least needed as their caches hold prefixes of: first with the caches of all replicas that there
    are, then with those of the ones that are left.
    """
    many = _sized(base, plan, plan.busy_replicas)
    few = None if many is None else _sized(base, plan, many.busy)
    return None if few is None else plan_of(few, terms_of(base.asked))


def _sized(base: Base, plan: FleetPlan, caches: int) -> Sized | None:
    """Return the replicas that the traffic takes if prompts find what so many caches hold."""
    question, layout, terms = base.asked.question, plan.layout, terms_of(base.asked)
    network, prompt = question.networks[plan.weight_dtype], float(question.demand.lengths.input_tokens)
    each = [
        tier_in_tokens(network, layout.device, layout.sharding, layout.kv_format, size, prompt)
        for size in question.demand.tiers
    ]
    tiers = [tier._replace(tokens=caches * tier.tokens) for tier in each]
    demand = question.demand.with_cache(caches * plan.kv_cache_tokens, tiers)
    trial = trial_of(replace(question, demand=demand), layout, plan.weight_dtype, terms)
    if isinstance(trial, Reason):
        return None
    busy = busy_replicas(trial, trial.limits, question.slo.confidence, terms)
    if busy is None:
        return None
    return Sized(trial, busy, (busy + terms.spare_replicas) * layout.devices)


def _kept_by_sessions(base: Base, busy: int) -> str:
    """Return that replicas are sized for turns that come back to them, and what they would find if dealt out in turn."""
    said = "replicas are sized for sessions whose turns come back to their replica"
    longest = base.asked.question.max_model_len
    found = []
    for item in base.asked.scenario.classes:
        if item.sessions is not None and busy > 1:
            kept, dealt = (hits_by_replica(item.sessions, count, longest) for count in (1, busy))
            found.append(
                f"dealt out in turn to {busy}, those of {item.name} would find {dealt:.0%} of their prompt tokens instead of {kept:.0%}"
            )
    return "; ".join([said, *found])
