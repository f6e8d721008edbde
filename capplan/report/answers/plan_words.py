"""Sentences about plans: how their replicas are grouped, what they cost, and what a budget pays for."""

from collections.abc import Sequence

from capplan.fleet.plan import FleetAnswer, Group, Plan
from capplan.questions.fleet import AskedFleet
from capplan.readers.catalogue.scenarios import scenario_word
from capplan.report.answers.pools import pools_text
from capplan.scenario.scenario_file import Scenario


def layout_text(plan: Plan, *, kv: bool = False) -> str:
    """Return parallelism and dtypes of one replica, of either pool, as short text, with the KV dtype where plans differ in it."""
    if plan.is_mix and len(plan.groups) > 1:
        return "; ".join(
            f"{name}: {group.layout.in_words(group.weight_dtype)}{_drafts_text(group.draft_tokens)}"
            for name, group in zip(plan.group_names, plan.groups, strict=True)
        )
    drafts = _drafts_text(plan.draft_tokens)
    if plan.has_pools:
        words = (f"{group.role} {group.layout.in_words(group.weight_dtype)}" for group in plan.groups)
        return ", ".join(words) + drafts
    return (
        plan.single.layout.in_words(plan.single.weight_dtype)
        + (f", KV {plan.single.layout.kv_format}" if kv else "")
        + drafts
    )


def _drafts_text(count: int | None) -> str:
    return "" if not count else ", 1 draft" if count == 1 else f", {count} drafts"


def several_kv_dtypes(plans: Sequence[Plan]) -> bool:
    """Return whether plans differ in the dtype of the KV cache."""
    return len({group.layout.kv_format for plan in plans for group in plan.groups}) > 1


def cost_texts(plan: Plan) -> list[str]:
    """Return what a plan costs: a month and a million tokens at the mean load, or the job."""
    if plan.usd_per_month is None or plan.money is None:
        return ["price unknown"]
    if plan.money.usd_per_million_output_tokens_at_mean is None and plan.money.usd_per_job is None:
        return [
            f"${plan.usd_per_month:,.0f} per month",
            f"${plan.money.usd_per_million_tokens_at_mean:.3g} per million tokens and ${plan.money.usd_per_thousand_requests:.3g} per thousand requests at the mean load",
        ]
    if plan.money.usd_per_job is not None and plan.money.job_hours is not None:
        return [
            f"${plan.money.usd_per_job:,.0f} for the job of {plan.money.job_hours:g} h",
            f"${plan.money.usd_per_thousand_requests:.3g} per thousand requests",
        ]
    return [
        f"${plan.usd_per_month:,.0f} per month",
        f"${plan.money.usd_per_million_output_tokens_at_mean:.3g} per million output tokens at the mean load",
    ]


def purchase_text(plan: Plan) -> str:
    """Return how many of which device, and how they are grouped."""
    if plan.has_pools:
        return pools_text(plan)
    if len(plan.groups) > 1:
        return " and ".join(
            f"{group.gpus} x {group.layout.device.name} for {name} ({_replicas_text(group)}; {group.layout.in_words(group.weight_dtype)})"
            for name, group in zip(plan.group_names, plan.groups, strict=True)
        )
    group = plan.single
    return f"{plan.gpus} x {group.layout.device.name} ({_replicas_text(group)}; {layout_text(plan)})"


def _replicas_text(group: Group) -> str:
    replicas = f"{group.replicas} {'replica' if group.replicas == 1 else 'replicas'}"
    each = f"{group.layout.devices} {'GPU' if group.layout.devices == 1 else 'GPUs'}"
    spare = f", {group.spare_replicas} of them spare" if group.spare_replicas else ""
    return f"{replicas} of {each}{spare}"


def router_text(plan: Plan) -> str:
    """Return the rule by which the router of a mix sends requests to its groups."""
    return "the router sends " + " and ".join(
        f"{name} to {group.layout.device.name}"
        for name, group in zip(plan.group_names, plan.groups, strict=True)
    )


def budget_text(scenario: Scenario) -> str:
    """Return a budget in words, with the part that is left for machines if it pays for more."""
    stated = scenario.budget
    if stated is None:
        return ""
    part = f", {stated.left_text()} of it for machines" if stated.includes else ""
    return f"the budget of ${stated.usd_per_month:,.0f} per month{part}"


def budget_texts(asked: AskedFleet, answer: FleetAnswer) -> tuple[str, ...]:
    """Return what the cheapest plan costs where none is within the budget, and by what a plan within it is paid."""
    budget, usd = asked.scenario.budget_usd_per_month, answer.over_budget_usd_per_month
    by_mix = asked.scenario.commitments is not None
    if budget is not None and by_mix and answer.chosen is not None:
        return (f"with its mix of commitments it is within {budget_text(asked.scenario)}",)
    if budget is None or answer.over_budget is None or usd is None:
        return ()
    how = " with its mix of commitments" if by_mix else ""
    times = f"{usd / budget:.3g} times the budget, " if budget > 0.0 else ""
    return (
        f"without {budget_text(asked.scenario)}: {purchase_text(answer.over_budget)}, ${usd:,.0f} per month{how}, "
        f"{times}${usd - budget:,.0f} too much",
        *_carried_texts(asked, answer),
    )


def _carried_texts(asked: AskedFleet, answer: FleetAnswer) -> tuple[str, ...]:
    """Return what a budget pays for that does not pay for all of the traffic."""
    carried, levers = (
        answer.carried,
        f"what lowers the cost: capplan levers {scenario_word(asked.scenario.path)}",
    )
    pools = answer.over_budget is not None and answer.over_budget.has_pools
    if pools or asked.scenario.fleet.mix != "off":
        return (levers,)
    if carried is None:
        return (
            "no share of the traffic fits the budget: even the smallest fleet with spares costs more",
            levers,
        )
    return (
        f"the budget pays for {carried.traffic_fraction:.0%} of the traffic: {purchase_text(carried.plan)}, "
        f"${carried.usd_per_month:,.0f} per month",
        levers,
    )
