"""Sentences of `capplan fleet`: what would let rejected layouts through, and separate pools next to identical replicas."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from math import ceil, inf
from typing import Any, TypeVar

from capplan.accuracy.bounded import network_class
from capplan.accuracy.slowness import CLAIMED
from capplan.assumption import Assumption, by_what_to_do
from capplan.fleet.answer import CarriedTraffic, FleetAnswer, NextSteps, PoolsSearch, Relaxation, Uneconomical
from capplan.fleet.group import Group
from capplan.fleet.plan import Plan, cost_of, costs_less, orderable_first
from capplan.model.parameters import is_large_mixture
from capplan.money.order import owned_price_text
from capplan.money.price import HOURS_PER_MONTH, usd_per_month
from capplan.questions.fleet import AskedFleet
from capplan.questions.plans.plan_row import plan_row
from capplan.report.answer import Table, columns, row_of
from capplan.scenario.money_terms import host_bytes, memory_usd_per_month
from capplan.scenario.scenario_file import Scenario

WITH_MIX = "with its mix of commitments"
SURER = 0.9
"""The confidence whose cost is said next to the recommended plan."""


def seconds_text(value_s: float) -> str:
    """Return a latency for people."""
    return f"{1e3 * value_s:.3g} ms" if value_s < 1.0 else f"{value_s:.3g} s"


def surer_text(plan: Plan, answer: FleetAnswer) -> str:
    """Return what a required confidence of 90% costs: more of the same device and layout, or another plan that costs less; empty where the plan already is."""
    row = next((row for row in answer.certainty if row.confidence == SURER), None)
    if row is None or plan.slo_met_probability >= SURER:
        return ""
    steps = answer.next_steps.surer if answer.next_steps and plan == answer.chosen else ()
    own = next((step for step in steps if step.confidence == SURER and step.gpus is not None), None)
    if own is not None and (own.usd_per_month or 0.0) > (row.usd_per_month or inf):
        own = None
    gpus, usd = (row.gpus, row.usd_per_month) if own is None else (own.gpus, own.usd_per_month)
    if gpus is None:
        return f"no plan reaches {SURER:.0%}"
    other = " in another layout" if own is None and steps and row.hardware == plan.hardware else ""
    fleet = f"{gpus} x {row.hardware if own is None else plan.hardware}{other}"
    return (
        f"{SURER:.0%} takes {fleet}"
        if usd is None
        else f"{SURER:.0%} costs {paid_text(answer, usd)} ({fleet})"
    )


def most_assumed_texts(assumptions: Sequence[Assumption]) -> Iterator[str]:
    """Yield the assumption that bears most on an answer, in its first clause: of kernels that nobody timed, else of the traffic, else the first one."""
    for item in [item for items in by_what_to_do(assumptions).values() for item in items][:1]:
        yield f"assumed: {item.what.partition('; ')[0]}; replace with {item.replace}"


def narrower_text(plan: Plan, narrower: Plan | None) -> str:
    """Return what narrower weights make of the cost of a plan with the same layout; empty where they save nothing."""
    if narrower is None:
        return ""
    return f"{narrower.weight_dtype} with this layout: ${plan.usd_per_month or 0.0:,.0f} to ${narrower.usd_per_month:,.0f}"


def more_text(assumptions: int, plans: int = 0, *, page: bool = True) -> str:
    """Return where everything is that a first screen leaves out.

    Parameters
    ----------
    assumptions : that the answer rests on, the one on the screen included
    plans : that the screen leaves out
    page : whether `capplan report` has a page of the answer

    Examples
    --------
    >>> more_text(13), more_text(2, 1, page=False)
    ('more: --full, --assumptions (12 more), capplan report', 'more: --full (1 plan), --assumptions (1 more)')
    """
    parts = [f"--full ({plans} plan{'s' * (plans > 1)})" if plans else "--full"]
    parts += [f"--assumptions ({assumptions - 1} more)"] * (assumptions > 1) + ["capplan report"] * page
    return f"more: {', '.join(parts)}"


def thin_texts(plans: Iterable[Plan]) -> Iterator[str]:
    """Yield that probabilities rest on few open-loop measurements, if those of any plan do."""
    if any(plan.few_open_loops_measured for plan in plans):
        yield "few results of similar networks were measured under open load: the probabilities rest on a widened spread"


def published_texts(plan: Plan, asked: AskedFleet) -> Iterator[str]:
    """Yield how many published runs of large mixtures of the class of a plan kept what is claimed of them."""
    networks = [asked.question.networks[group.weight_dtype] for group in plan.groups]
    classes = {network_class(network) for network in networks if is_large_mixture(network)}
    for claim in map(asked.question.slowness_table.published.get, sorted(classes)):
        if claim is not None:
            yield (
                f"published runs: {claim.held:.0%} of {claim.values} met an {CLAIMED:.0%} claim; "
                "measure first: capplan verify-plan"
            )


def usd_per_job(answer: FleetAnswer, usd_per_month: float | None) -> float | None:
    """Return the cost of a job for a fleet of this monthly cost; None for continuous traffic."""
    hours = answer.chosen.money.job_hours if answer.chosen and answer.chosen.money else None
    return None if hours is None or usd_per_month is None else usd_per_month / HOURS_PER_MONTH * hours


def paid_text(answer: FleetAnswer, usd: float) -> str:
    """Return the cost of a plan as it is paid: for the job, or a month; with commitments that of all replicas at all hours without them."""
    job = usd_per_job(answer, usd)
    if job is not None:
        return f"${job:,.0f} for the job"
    return f"${usd:,.0f} per month{f' {ALL_HOURS}' if answer.by_commitments else ''}"


ALL_HOURS = "at all hours"
"""What a month costs without commitments, where the scenario names some."""


def month_titles(answer: FleetAnswer) -> dict[str, str]:
    """Return the headings of monthly costs that no commitment lowers, where the scenario names some."""
    return {"usd_per_month": ALL_HOURS} if answer.by_commitments else {}


def uneconomical_text(row: Uneconomical, answer: FleetAnswer) -> str:
    """Return why a device has no plan among those shown, with the number that decides, and what would change that."""
    if row.reason:
        return f"{row.hardware} has no plan: {row.reason}"
    value, limit = (None if value is None else seconds_text(value) for value in (row.value_s, row.limit_s))
    relaxed = ", and ".join(
        f"{each.gpus:,} GPUs are enough with a limit of {seconds_text(each.limit_s)}" for each in row.gpus_at
    )
    if row.gpus is not None:
        text = f"{row.hardware} takes {row.gpus:,} GPUs"
        if row.usd_per_month is not None:
            text += f" for {paid_text(answer, row.usd_per_month)}"
            text += (
                f", {row.cost_ratio:.2g} times the cost of the cheapest plan"
                if row.cost_ratio is not None
                else ""
            )
        if not relaxed:
            return f"{text}: {row.dear}" if row.dear else text
        return f"{text}; its {row.target} is {value} on an idle replica, the limit is {limit}, and {relaxed}"
    sure_s = row.sure_value_s
    if sure_s is None or row.limit_s is None or sure_s <= row.limit_s:
        text = f"{row.hardware} has no plan: its {row.target} is {value} on an idle replica, and at no load that was tried is it within the limit of {limit}"
    elif sure_s == row.value_s:
        text = f"{row.hardware} has no plan: its {row.target} is at least {value} with the required confidence, even at the lightest load, and the limit is {limit}"
    else:
        text = (
            f"{row.hardware} has no plan: its {row.target} on an idle replica is predicted to be {value}, and may be {seconds_text(sure_s)} "
            f"with the required confidence; the limit is {limit}"
        )
    return f"{text}; {relaxed}" if relaxed else text


def tight_texts(answer: FleetAnswer) -> Iterator[str]:
    """Yield the target that makes the recommended plan large, where it uses a small part of what its GPUs can do."""
    tight, plan = answer.tight, answer.chosen
    if tight is None or plan is None:
        return
    counts = [
        f"the recommended plan uses {tight.used_fraction:.0%} of the throughput of its {plan.gpus} x {plan.hardware}: {tight.target} decides, "
        f"which is {seconds_text(tight.value_s)} on an idle replica with a limit of {seconds_text(tight.limit_s)}"
    ]
    for each in tight.gpus_at:
        usd = _saved_usd_per_month(plan, each.gpus)
        saved = "" if usd is None else f", which saves {paid_text(answer, usd)}" if usd >= 1.0 else ""
        counts.append(f"{each.gpus:,} GPUs are enough with a limit of {seconds_text(each.limit_s)}{saved}")
    yield "; ".join(counts)


def _saved_usd_per_month(plan: Plan, gpus: int) -> float | None:
    """Return what the machines of a plan cost more than those of so many GPUs of its layout, spares included; None without a price."""
    group = plan.single
    replicas = gpus // group.gpus_per_replica
    fits = (busy for busy in range(replicas, 0, -1) if busy + group.spares_for(busy) <= replicas)
    busy = next(fits, None)
    fewer = None if busy is None else group.usd_per_hour_of(busy)
    return (
        None
        if fewer is None or plan.usd_per_hour is None
        else float(usd_per_month(plan.usd_per_hour - fewer))
    )


def measuring_texts(answer: FleetAnswer) -> Iterator[str]:
    """Yield what a benchmark would save: of the recommended replica, and of devices whose kernels were not measured."""
    steps, plan = answer.next_steps, answer.chosen
    if steps is None or plan is None:
        return
    if (saving := measured_saving(answer)) is not None:
        usd = saving[1]
        cost = "" if usd is None else f", {paid_text(answer, usd)}"
        yield (
            f"the required confidence takes {plan.gpus - steps.as_predicted.gpus} of the {plan.gpus} GPUs{cost}: {steps.as_predicted.gpus} are enough for replicas as fast as predicted; "
            "a benchmark of one replica for ten minutes decides, and capplan verify-plan compares it with the plan"
        )
    for device in steps.unmeasured:
        assert device.usd_per_month is not None
        usd = (plan.usd_per_month or 0.0) - device.usd_per_month
        yield (
            f"no kernel of {device.hardware} was measured, so its chance to meet the SLO is lower: as predicted, {device.gpus} x {device.hardware} are enough for "
            f"{paid_text(answer, device.usd_per_month)}, which saves {paid_text(answer, usd)}; measure one with capplan calibrate"
        )


def measured_saving(answer: FleetAnswer) -> tuple[NextSteps, float | None] | None:
    """Return the next steps and what is saved a month if replicas are as fast as predicted; None if that is no GPU or less than a dollar."""
    steps, plan = answer.next_steps, answer.chosen
    if steps is None or plan is None or steps.as_predicted.gpus >= plan.gpus:
        return None
    if steps.as_predicted.usd_per_month is None or plan.usd_per_month is None:
        return steps, None
    saved = plan.usd_per_month - steps.as_predicted.usd_per_month
    return (steps, saved) if saved >= 1.0 else None


Amount = TypeVar("Amount", int, float)


def above(amount: Amount | None, other: Amount | None) -> Amount | None:
    """Return by how much an amount is more than another one; None if one of them is unknown."""
    return None if amount is None or other is None else amount - other


def next_steps_rows(answer: FleetAnswer) -> list[dict[str, Any]]:
    """Return the recommended layout sized for more confidence; nothing where separate pools are recommended."""
    steps, plan = answer.next_steps, answer.chosen
    if steps is None or plan is None:
        return []
    return [
        {
            **row_of(step, "confidence gpus"),
            "more_gpus": above(step.gpus, plan.gpus),
            "usd_per_month": step.usd_per_month,
            "more_usd_per_month": above(step.usd_per_month, plan.usd_per_month),
        }
        for step in steps.surer
    ]


def next_steps_result(answer: FleetAnswer) -> dict[str, Any] | None:
    """Return the next steps of the recommended plan with the keys of JSON; None where it has none."""
    steps, plan = answer.next_steps, answer.chosen
    if steps is None or plan is None:
        return None
    predicted = steps.as_predicted
    return {
        "surer": next_steps_rows(answer),
        "as_predicted": {
            "gpus": predicted.gpus,
            "fewer_gpus": plan.gpus - predicted.gpus,
            "usd_per_month": predicted.usd_per_month,
            "saved_usd_per_month": above(plan.usd_per_month, predicted.usd_per_month),
        },
        "unmeasured": [asdict(device) for device in steps.unmeasured],
    }


def relaxation_text(relaxation: Relaxation) -> str:
    """Return the change to one target that would let a plan through."""
    layout = relaxation.layout
    return (
        f"relax {relaxation.target} from {relaxation.limit_s:g} s to {relaxation.needed_s:.3g} s: "
        f"replicas of {layout.devices} x {layout.device.name} would then do"
    )


def slices_texts(plans: Iterable[Plan]) -> Iterator[str]:
    """Yield what the slices of each plan are in whole GPUs, which is what most providers rent."""
    for plan in plans:
        cut = plan.single.layout.device.partition
        if cut is None:
            continue
        wholes, price = ceil(plan.gpus / cut.per_device), plan.single.price
        cost = ""
        if price is not None and price.is_by_the_gpu(1):
            usd = usd_per_month(price.total_usd_per_hour * cut.per_device * wholes)
            cost = f", ${usd:,.0f} per month where slices are not sold one by one"
        yield f"{plan.gpus} x {plan.hardware} are cut from {wholes} whole GPUs{cost}"


def rejected_text(answer: FleetAnswer) -> str:
    """Return how many candidates were rejected, and what became of the others, so that the counts add up."""
    rejected = sum(item.count for item in answer.rejected)
    title = f"Rejected: {rejected:,} of {answer.evaluated:,} candidates (every layout at a range of loads)"
    left = answer.evaluated - rejected
    if not left:
        return title
    if answer.chosen is None:
        return f"{title}; the other {left:,} meet the targets by a first estimate, but no plan came of them"
    return f"{title}; the other {left:,} meet the targets, at a lower load or a higher cost"


def against_text(usd: float, other_usd: float) -> str:
    """Return how a cost stands to another one.

    Examples
    --------
    >>> against_text(60.0, 80.0), against_text(88.0, 80.0)
    ('25% less than', '10% more than')
    """
    if usd == other_usd:
        return "as much as"
    return (
        f"{1.0 - usd / other_usd:.0%} less than"
        if usd < other_usd
        else f"{usd / other_usd - 1.0:.0%} more than"
    )


def sure(probability: float) -> str:
    """Format a probability for people, rounded down; never as certain.

    Examples
    --------
    >>> sure(0.616), sure(0.9999), sure(0.0001)
    ('61%', 'over 99%', 'under 1%')
    """
    if probability > 0.99:
        return "over 99%"
    return "under 1%" if probability < 0.01 else f"{int(100.0 * probability)}%"


def unsure(probability: float) -> str:
    """Format what a probability leaves for people, rounded up, so that it adds up with `sure`; never as impossible.

    Examples
    --------
    >>> unsure(0.616), unsure(0.9999), unsure(0.0001)
    ('39%', 'under 1%', 'over 99%')
    """
    if probability > 0.99:
        return "under 1%"
    return "over 99%" if probability < 0.01 else f"{100 - int(100.0 * probability)}%"


def host_memory_texts(asked: AskedFleet, answer: FleetAnswer) -> Iterator[str]:
    """Yield what the host memory of offload tiers costs on top of the recommended plan, where it has a price."""
    plan = answer.chosen
    usd = 0.0 if plan is None else memory_usd_per_month(asked.scenario, plan)
    if plan is None or not usd:
        return
    each, kind = host_bytes(asked.scenario) * 1e-9, "prefill replicas" if plan.has_pools else "replicas"
    yield f"on top of it, {each:,.0f} GB of host memory for each of {plan.prefilling_replicas} {kind}: ${usd:,.0f} per month"


def layout_text(plan: Plan, *, kv: bool = False) -> str:
    """Return parallelism and dtypes of one replica, of either pool, as short text, with the KV dtype where plans differ in it."""
    if plan.is_mix and len(plan.groups) > 1:
        return "; ".join(
            f"{name}: {group.layout.in_words()}{_drafts_text(group.draft_tokens)}"
            for name, group in zip(plan.group_names, plan.groups, strict=True)
        )
    drafts = _drafts_text(plan.draft_tokens)
    if plan.has_pools:
        words = (f"{group.role} {group.layout.in_words()}" for group in plan.groups)
        return ", ".join(words) + drafts
    return plan.single.layout.in_words() + (f", KV {plan.single.layout.kv_format}" if kv else "") + drafts


def _drafts_text(count: int | None) -> str:
    return "" if not count else ", 1 draft" if count == 1 else f", {count} drafts"


def several_kv_dtypes(plans: Sequence[Plan]) -> bool:
    """Return whether plans differ in the dtype of the KV cache."""
    return len({group.layout.kv_format for plan in plans for group in plan.groups}) > 1


def cost_texts(plan: Plan, mix_usd_per_month: float | None = None) -> list[str]:
    """Return what a plan costs: a month and a million tokens at the mean load, or the job.

    Parameters
    ----------
    plan : with the cost of all replicas at all hours
    mix_usd_per_month : [$/month]
        what its mix of commitments costs; None without commitments
    """
    money, rented = plan.money, plan.usd_per_month
    if rented is None or money is None:
        return ["price unknown"]
    if money.usd_per_job is not None and money.job_hours is not None:
        return [
            f"${money.usd_per_job:,.0f} for the job of {money.job_hours:g} h",
            f"${money.usd_per_thousand_requests:.3g} per thousand requests",
        ]
    usd = rented if mix_usd_per_month is None else mix_usd_per_month
    costs = money.scaled(usd / rented) if rented else money
    month = f"${usd:,.0f} per month{'' if mix_usd_per_month is None else f' {WITH_MIX}'}"
    tokens = f"${costs.usd_per_million_tokens_at_mean or 0.0:.3g} per million tokens and ${costs.usd_per_thousand_requests or 0.0:.3g} per thousand requests"
    if costs.usd_per_million_output_tokens_at_mean is not None:
        tokens = f"${costs.usd_per_million_output_tokens_at_mean:.3g} per million output tokens"
    return [month, f"{tokens} at the mean load"]


def purchase_text(plan: Plan) -> str:
    """Return how many of which device, and how they are grouped."""
    if plan.has_pools:
        return pools_text(plan)
    if len(plan.groups) > 1:
        return " and ".join(
            f"{group.gpus} x {group.layout.device.name} for {_named_group_text(group, name)}"
            for name, group in zip(plan.group_names, plan.groups, strict=True)
        )
    group = plan.single
    return f"{plan.gpus} x {group.layout.device.name} ({_replicas_text(group)}; {layout_text(plan)})"


def found_text(plan: Plan) -> str:
    """Return what a plan is and costs, as the search tells it."""
    usd = plan.usd_per_month
    return purchase_text(plan) if usd is None else f"{purchase_text(plan)} for ${usd:,.0f} per month"


def by_the_gpu_text(group: Group) -> str:
    """Return what the price of GPUs is of which no machine is listed."""
    assert group.price is not None
    noun = "provider" if group.price.offers == 1 else "providers"
    return f"at a price per GPU of {group.price.offers} {noun}"


def unlisted_texts(answer: FleetAnswer, plan: Plan) -> Iterator[str]:
    """Yield which GPUs would cost less than a plan that can be ordered, if a machine of them were listed."""
    if orderable_first(plan)[0]:
        return
    usd = {
        item.hardware: f"{item.hardware} ({paid_text(answer, item.usd_per_month)})"
        for item in reversed(answer.plans)
        if item.usd_per_month is not None and orderable_first(item)[0] and costs_less(item, plan)
    }
    if usd:
        yield f"cheaper, but in no machine that a list states: {', '.join(reversed(usd.values()))}"


def row_text(plan: Plan, *, kv: bool) -> str:
    """Return the layout of a plan in a row of a table, and whether its price is one of GPUs of which no machine is listed."""
    pieces = dict.fromkeys(by_the_gpu_text(group) for group in plan.groups if group.is_by_the_gpu)
    return "; ".join((layout_text(plan, kv=kv), *pieces))


def acquired_text(plan: Plan, verb: str = "order") -> str:
    """Return what to order for a plan, and what of one's own to use; GPUs are those of its replicas.

    Parameters
    ----------
    plan : whose machines may be there already
    verb : how the others are acquired
    """
    owned = plan.gpus_owned
    if not owned:
        return f"{verb} {purchase_text(plan)}"
    if plan.has_pools or len(plan.groups) == 1:
        what = "GPUs" if plan.has_pools else f"x {plan.hardware}"
        more = f" and {verb} {plan.gpus - owned} more" if owned < plan.gpus else ""
        rest = purchase_text(plan).removeprefix(f"{plan.gpus} {what}")
        return f"use {owned} {what} of your own{more}{rest}"
    said = []
    for name, group in zip(plan.group_names, plan.groups, strict=True):
        owned, what = group.gpus_owned, f"x {group.hardware}"
        more = f" and {verb} {group.gpus - owned} more" if owned < group.gpus else ""
        taken = f"use {owned} {what} of your own{more}" if owned else f"{verb} {group.gpus} {what}"
        said.append(f"{taken} for {_named_group_text(group, name)}")
    return " and ".join(said)


def _named_group_text(group: Group, name: str) -> str:
    return f"{name} ({_replicas_text(group)}; {group.layout.in_words()})"


def owned_cost_text(plan: Plan) -> str:
    """Return what the machines of a plan that are there already are counted as; empty without any, or with a stated price."""
    order = plan.order
    lines = order.lines if order is not None else ()
    owned = [line.machine for line in lines if line.machine.is_owned]
    if not owned or any(machine.usd_per_hour for machine in owned):
        return ""
    price = owned_price_text(0.0, powered=bool(plan.energy_usd_per_hour))
    return price if len(owned) == len(lines) else f"your own {price}"


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


def budget_texts(asked: AskedFleet, answer: FleetAnswer) -> Iterator[str]:
    """Yield what the cheapest plan costs where none is within the budget, and by what a plan within it is paid."""
    budget, usd = asked.scenario.budget_usd_per_month, answer.over_budget_usd_per_month
    by_mix = asked.scenario.file.commitments is not None
    if budget is not None and by_mix and answer.chosen is not None:
        yield f"with its mix of commitments it is within {budget_text(asked.scenario)}"
        return
    if budget is None and answer.carried is not None:
        yield _carried_text(answer.carried, f"fleet.max_gpus of {asked.scenario.file.fleet.max_gpus} carries")
    if budget is None or answer.over_budget is None or usd is None:
        return
    how = " with its mix of commitments" if by_mix else ""
    times = f"{usd / budget:.3g} times the budget, " if budget > 0.0 else ""
    yield (
        f"without {budget_text(asked.scenario)}: {purchase_text(answer.over_budget)}, ${usd:,.0f} per month{how}, "
        f"{times}${usd - budget:,.0f} too much"
    )
    yield from _carried_texts(asked, answer)


def _carried_texts(asked: AskedFleet, answer: FleetAnswer) -> Iterator[str]:
    """Yield what a budget pays for that does not pay for all of the traffic."""
    pools = answer.over_budget is not None and answer.over_budget.has_pools
    if not pools and asked.scenario.fleet.mix == "off":
        none = "no share of the traffic fits the budget: even the smallest fleet with spares costs more"
        yield _carried_text(answer.carried, "the budget pays for") if answer.carried else none
    yield f"what lowers the cost: capplan levers {asked.scenario.command_words()}"


def _carried_text(carried: CarriedTraffic, what: str) -> str:
    """Return what part of the traffic is carried instead of all of it."""
    usd = "" if carried.usd_per_month is None else f", ${carried.usd_per_month:,.0f} per month"
    return f"{what} {carried.traffic_fraction:.0%} of the traffic: {purchase_text(carried.plan)}{usd}"


_TITLES = {"way": "", "bytes_per_s": "all prompts"}
_SHOWN = columns(
    "way prefill decode gpus usd_per_month ttft_s.p95 tpot_s.p95 prefill_busy_fraction "
    "decode_busy_fraction slo_met_probability"
)
_SENT = columns(
    "way link bytes_per_request transfer_s bytes_per_s prefill_load_fraction decode_load_fraction"
)


def pool_text(pool: Group) -> str:
    """Return one pool as short text, such as '4 x 2 h200-sxm (TP2, fp8)', spares included."""
    layout = pool.layout
    return f"{pool.replicas} x {layout.devices} {layout.device.name} ({layout.in_words()})"


def pools_text(plan: Plan) -> str:
    """Return what to buy for a plan."""
    prefill, decode = plan.groups
    spare = prefill.spare_replicas
    spares = f", {spare} of each spare" if spare else ""
    return f"{plan.gpus} GPUs, prefill on {pool_text(prefill)} and decode on {pool_text(decode)}{spares}"


def pools_result(answer: FleetAnswer) -> dict[str, Any] | None:
    """Return the plans with separate pools and why there are no others; None where none were asked for."""
    if answer.pools is None:
        return None
    return {
        "recommended": answer.chosen is not None and answer.chosen.has_pools,
        "plans": [plan_row(plan) for plan in answer.with_pools],
        "rejected": [asdict(item) for item in answer.pools.rejected],
        **row_of(answer.pools, "evaluated simulated_pairs"),
        "smaller_chunks": [
            {"max_num_batched_tokens": tokens, **row_of(plan, "gpus usd_per_month")}
            for tokens, plan in answer.pools.chunked.items()
        ],
    }


def pools_tables(answer: FleetAnswer) -> list[Table]:
    """Return the plans of either way, cheapest first, what their links carry, and why other devices have no plan."""
    if answer.pools is None:
        return []
    rows = [
        {
            **plan_row(plan),
            "way": f"apart {place}",
            **{group.role: pool_text(group) for group in plan.groups},
            **{f"{group.role}_busy_fraction": group.busy_fraction for group in plan.groups},
        }
        for place, plan in enumerate(answer.with_pools, start=1)
    ]
    sent = [{"way": row["way"], **row["transfer"]} for row in rows]
    if answer.together is not None:
        rows.append(_together(answer.together, "together"))
    rows += [
        _together(plan, f"together, {tokens:,} tokens a step")
        for tokens, plan in answer.pools.chunked.items()
    ]
    no_plan = [
        asdict(item) for item in answer.pools.rejected if " + " in item.hardware or not answer.with_pools
    ]
    return [
        Table(
            rows,
            title="Disaggregated prefill and decode, against aggregated replicas",
            shown=_SHOWN,
            titles=_TITLES,
            spare=("decode_busy_fraction", "prefill_busy_fraction", "tpot_s.p95", "ttft_s.p95"),
        ),
        Table(
            sent, title="KV caches sent at the peak, and how busy the links are", shown=_SENT, titles=_TITLES
        ),
        Table(
            no_plan,
            title="No plan with separate pools",
            shown=("hardware", "reason", "count"),
            titles={"count": "candidates"},
        ),
    ]


def _together(plan: Plan, way: str) -> dict[str, Any]:
    return {
        "way": way,
        "prefill": pool_text(plan.single),
        "decode": "the same",
        **row_of(plan, "gpus usd_per_month"),
        "ttft_s": asdict(plan.ttft_s),
        "tpot_s": asdict(plan.tpot_s),
        **dict.fromkeys(("prefill_busy_fraction", "decode_busy_fraction")),
        "slo_met_probability": plan.slo_met_probability,
    }


def pools_closing(answer: FleetAnswer) -> tuple[str, ...]:
    """Return whether separate pools pay."""
    if answer.pools is None:
        return ()
    apart, together = next(iter(answer.with_pools), None), answer.together
    if apart is None:
        return (*first_pools_texts(answer),) or ("separate pools: no plan meets the targets",)
    if together is None:
        return (f"recommended: {pools_text(apart)}",)
    which = "recommended" if answer.chosen == apart else "not recommended"
    said = f"separate pools are {which}: {pools_text(apart)}, {_compared(apart, together)}"
    cost = min(cost_of(apart), cost_of(together))
    cheaper = (tokens for tokens, plan in answer.pools.chunked.items() if cost_of(plan) < cost)
    words = "cheaper than both: identical replicas with --set max_num_batched_tokens"
    return (said, *(f"{words}={tokens}" for tokens in cheaper))


def first_pools_texts(answer: FleetAnswer) -> Iterator[str]:
    """Yield what separate pools save, or why they are not recommended, in one line; nothing where they were not looked at."""
    apart, together = next(iter(answer.with_pools), None), next(iter(answer.alike), None)
    if answer.pools is None or answer.chosen is None or together is None:
        return
    usd = (None if apart is None else apart.usd_per_month, together.usd_per_month)
    if apart is None:
        yield f"not disaggregated: {_no_pools_text(answer.pools, together)}"
    elif answer.chosen.has_pools:
        cost = "" if None in usd else f", ${usd[0]:,.0f} instead of ${usd[1]:,.0f} per month"
        gpus = "GPUs either way" if apart.gpus == together.gpus else f"instead of {together.gpus:,} GPUs"
        yield f"disaggregated: {apart.gpus:,} {gpus}{cost}"
    elif usd[0] is None or not usd[1]:
        yield f"not disaggregated: separate pools take {apart.gpus:,} GPUs, aggregated replicas {together.gpus:,}"
    else:
        unlisted = orderable_first(apart) > orderable_first(together) and usd[0] < usd[1]
        why = (
            "of which no list states a machine"
            if unlisted
            else f"{against_text(usd[0], usd[1])} aggregated replicas"
        )
        yield f"not disaggregated: separate pools take {apart.gpus:,} GPUs for ${usd[0]:,.0f} per month, {why}"


def engines_texts(asked: AskedFleet, answer: FleetAnswer) -> Iterator[str]:
    """Yield the engines that may save over a tenth, and what finds out; nothing without any."""
    if answer.engines:
        command = f"capplan levers {asked.scenario.command_words()} --lever engine"
        yield f"another engine: {' or '.join(answer.engines)} may cost over a tenth less; to find out: {command}"


def _no_pools_text(pools: PoolsSearch, together: Plan) -> str:
    """Return why no plan has separate pools: what they cost at least, or what they miss."""
    least = pools.least_usd_per_hour
    if together.usd_per_hour is not None and least is not None and least >= together.usd_per_hour:
        return f"prefill and decode by themselves take ${usd_per_month(least):,.0f} a month or more"
    if pools.unmet:
        return pools.unmet
    return "no pair of pools costs less than aggregated replicas"


def _compared(apart: Plan, together: Plan) -> str:
    if apart.usd_per_month is None or together.usd_per_month is None:
        return f"against {together.gpus} GPUs together"
    more = apart.usd_per_month - together.usd_per_month
    part = f"{abs(more) / together.usd_per_month:.0%} " if together.usd_per_month else ""
    words = f"{part}{'more' if more > 0.0 else 'less'} than" if more else "as much as"
    return f"${apart.usd_per_month:,.0f} per month, {words} ${together.usd_per_month:,.0f} together"
