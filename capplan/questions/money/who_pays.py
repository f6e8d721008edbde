"""What each class and tenant pays of a plan."""

import re
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import date

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.answer import FleetAnswer
from capplan.fleet.group import Group
from capplan.fleet.load.demand import Demand
from capplan.fleet.plan import Plan
from capplan.fleet.review import Question, phase_times, plan_spec
from capplan.fleet.search.simulated_layout import demand_at_replica
from capplan.keys import current_day
from capplan.money.hosted import hosted_traffic
from capplan.money.ledger import total_usd
from capplan.money.price import HOURS_PER_MONTH
from capplan.money.who_pays import ClassUse, PaidPool, WhoPays, decode_s_per_request, who_pays
from capplan.questions.fleet import AskedFleet, parts_of
from capplan.questions.money.ledger import PaidPlan, own_assumptions, paid_plan
from capplan.replica.load import Load
from capplan.replica.replica import Replica, replica_of
from capplan.workload.request_class import RequestClass


@dataclass(frozen=True, slots=True)
class AskedBill(PaidPlan):
    """The ledger of a plan, and who pays it."""

    bill: WhoPays


@dataclass(frozen=True, slots=True)
class PlanUse:
    """The replicas of a plan under its traffic."""

    demand: Demand
    """Traffic with the prefix hits of the replicas that prefill."""
    prefill: Replica
    decode: Replica
    """The replica that decodes; that of `prefill` where the plan has no separate pools."""
    batch_sequences: float
    """Mean sequences of a decode step at the peak, at least one."""
    responses_s: tuple[float, ...]
    """Mean response time of each class."""


def plan_use(plan: Plan, question: Question) -> PlanUse:
    """Return what the classes of a question use of a plan."""
    first, last = plan.groups[0], plan.groups[-1]
    prefill = replica_of(plan_spec(first, question))
    decode = prefill if last is first else replica_of(plan_spec(last, question))
    demand = question.demand.of_plan(plan.responses_s, plan.class_prefix_hit_fractions)
    if not plan.class_prefix_hit_fractions:  # of a file that does not say
        demand = demand_at_replica(question.demand, prefill, 1.0 / first.busy_replicas, plan.e2e_s.mean)
    responses_s = demand.responses_s(plan.responses_s)
    return PlanUse(demand, prefill, decode, max(1.0, last.concurrency_per_replica), responses_s)


def class_use(index: int, use: PlanUse, month_hours: float = HOURS_PER_MONTH) -> ClassUse:
    """Return what a class asks of the replicas of a plan in a month of some hours, or in a job, at the batch of its peak."""
    item = use.demand.classes[index]
    inputs, outputs = item.input_tokens.mean_tokens, item.output_tokens.mean_tokens
    cached = use.demand.cached_tokens_of(index) / inputs
    load = Load(max(1, round(inputs)), max(1, round(outputs)), request_rate=1.0, prefix_hit_fraction=cached)
    prefill_s = phase_times(use.prefill, load, use.batch_sequences)["prefill"]
    step_s = phase_times(use.decode, load, use.batch_sequences)["decode"]
    traffic = hosted_traffic(item, use.responses_s[index])
    sequences = item.sequences_per_request
    months = 1.0 if item.job_requests is not None else month_hours / HOURS_PER_MONTH
    requests = traffic.requests * months / sequences
    return ClassUse(
        name=item.name,
        tenant=item.tenant or item.name,
        requests=requests,
        input_tokens=requests * sequences * inputs,
        output_tokens=requests * sequences * item.generated_tokens,
        prefill_s=sequences * prefill_s,
        decode_s=sequences * float(decode_s_per_request(max(outputs, 1.0), step_s, use.batch_sequences)),
        users=item.users,
        requests_per_conversation=item.requests_per_conversation,
        outside_usd=requests * item.outside.usd_per_request,
    )


def asked_bill(
    asked: AskedFleet, answer: FleetAnswer, today: date, month: tuple[int, int] | None = None
) -> AskedBill:
    """Return what each class and tenant pays for the recommended plan; its prices are judged old by the day.

    Parameters
    ----------
    asked : the scenario
    answer : with a plan
    today : that prices are judged old by
    month : year and month, whose own hours count; None: the mean month of 730 h

    Raises
    ------
    TargetError
        no plan meets the targets
    InputError
        the price of the plan is not known
    """
    hours = HOURS_PER_MONTH if month is None else 24.0 * monthrange(*month)[1]
    paid = paid_plan(asked, answer, "there is nothing to pay for", today, hours, month)
    plan, seconds = paid.plan, paid.hours * 3600.0
    machines_usd = total_usd(paid.entries, "machines") + total_usd(paid.entries, "overhead")
    shared_usd = total_usd(paid.entries, "people") + total_usd(paid.entries, "other")
    pools = [
        PaidPool(
            machines_usd * fraction,
            group.layout.devices,
            gpus / group.layout.devices * seconds,
            shared_usd * fraction,
        )
        for fraction, gpus, group in zip(paid.group_fractions, paid.group_gpus, plan.groups, strict=True)
    ]
    if plan.is_mix:
        parts = enumerate(parts_of(asked, plan))
        uses = [use for at, (part, alone) in parts for use in _uses(part.question, alone, hours, (at, at))]
    else:
        uses = _uses(asked.question, plan, hours, (0, len(pools) - 1))
    known = {field.name: getattr(paid, field.name) for field in fields(paid)} | {
        "assumptions": (
            _shared_by_time(plan),
            *own_assumptions(asked.scenario),
            *paid.assumptions,
            *asked.assumptions,
        ),
        "warnings": (*paid.warnings, *asked.warnings),
    }
    return AskedBill(**known, bill=who_pays(uses, *pools))


def _uses(question: Question, plan: Plan, hours: float, groups: tuple[int, int]) -> list[ClassUse]:
    """Return what each class of a question asks of the replicas of a plan: together as much of their time as the load of the plan takes.

    A prefill by itself and a part of a decode step say how classes differ, and not how steps are shared, so both are scaled.
    """
    use = plan_use(plan, question)
    uses = [class_use(index, use, hours) for index in range(len(use.demand.classes))]
    sent = sum(
        each.requests * item.sequences_per_request
        for each, item in zip(uses, use.demand.classes, strict=True)
    )
    prefill, decode = (_scale(group, sent, uses) for group in (plan.groups[0], plan.groups[-1]))
    return [
        replace(each, prefill_s=prefill * each.prefill_s, decode_s=decode * each.decode_s, groups=groups)
        for each in uses
    ]


def _scale(group: Group, requests: float, uses: Sequence[ClassUse]) -> float:
    """Return the replica time that requests take of a group, over what they take one by one; 1 where the load of a replica is not known."""
    each_s, role = group.replica_s_per_request, group.role
    alone_s = sum(use.replica_s if role == "serve" else use.phases_s[role == "decode"] for use in uses)
    return 1.0 if each_s is None or not alone_s else requests * each_s / alone_s


def _shared_by_time(plan: Plan) -> Assumption:
    where = (
        "prefill is paid by its own pool and decode by its own, each shared by the time of its GPUs: "
        if plan.has_pools
        else "cost is shared by the time of the GPUs: "
    )
    batches = " or ".join(f"{max(1.0, group.concurrency_per_replica):.3g}" for group in plan.generating)
    return Assumption(
        f"{where}a prefill by itself, of a decode step the part of one of {batches} sequences, the batch at the peak; "
        "people and other costs in the same proportion; idle GPUs, spares included, are a line of their own",
        "traffic[0].tenant",
    )


def bill_month(text: str | None, classes: Sequence[RequestClass], place: str) -> tuple[int, int]:
    """Return year and month of a bill; without a text those of the next month. A batch job has no bill of a month.

    Examples
    --------
    >>> bill_month("2026-12", (), "--month")
    (2026, 12)
    """
    if any(item.job_requests is not None for item in classes):
        raise InputError(
            f"{place}: a batch job is paid for once, and this bill is of a month; leave {place} out"
        )
    if text is None:
        today = current_day()
        return today.year + today.month // 12, today.month % 12 + 1
    if re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", text) is None:
        raise InputError(f"--month: {text[:40]!r} is not a month; write it as 2026-12")
    year, month = text.split("-")
    return int(year), int(month)
