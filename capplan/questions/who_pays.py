"""A scenario and its plan -> what each class and tenant pays."""

from dataclasses import dataclass
from datetime import date

from capplan.assumption import Assumption
from capplan.fleet.money.hosted import hosted_traffic
from capplan.fleet.money.who_pays import ClassUse, WhoPays, decode_s_per_request, who_pays
from capplan.fleet.plan import FleetAnswer, FleetPlan
from capplan.fleet.review import phase_times, plan_spec
from capplan.questions.fleet import AskedFleet
from capplan.questions.paid_plan import paid_plan
from capplan.replica.load import Load
from capplan.replica.replica import Replica, replica_of
from capplan.workload.request_class import RequestClass


@dataclass(frozen=True, slots=True)
class AskedBill:
    """The bill of a plan, and what it rests on."""

    plan: FleetPlan
    bill: WhoPays
    of_job: bool
    """Of one batch job, not of a month."""
    by_mix: bool
    """The machines are paid for by a mix of commitments."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


def class_use(item: RequestClass, replica: Replica, plan: FleetPlan) -> ClassUse:
    """Return what a class asks of a replica, at the batch that the plan has at its peak."""
    inputs, outputs = item.input_tokens.mean_tokens, item.output_tokens.mean_tokens
    cached = item.cached_input_tokens / inputs
    load = Load(max(1, round(inputs)), max(1, round(outputs)), request_rate=1.0, prefix_hit_fraction=cached)
    times = phase_times(replica, load, plan.concurrency_per_replica)
    batch = max(1.0, plan.concurrency_per_replica)
    traffic = hosted_traffic(item, plan.e2e_s.mean)
    sequences = item.sequences_per_request
    requests = float(traffic.rates_per_s.mean()) * traffic.hours * 3600.0 / sequences
    return ClassUse(
        name=item.name,
        tenant=item.tenant or item.name,
        requests=requests,
        input_tokens=requests * sequences * inputs,
        output_tokens=requests * sequences * item.generated_tokens,
        prefill_s=sequences * times["prefill"],
        decode_s=sequences * float(decode_s_per_request(max(outputs, 1.0), times["decode"], batch)),
        users=item.users,
        requests_per_conversation=item.requests_per_conversation,
    )


def asked_bill(asked: AskedFleet, answer: FleetAnswer, today: date) -> AskedBill:
    """Return what each class and tenant pays for the recommended plan; its prices are judged old by the day.

    Raises
    ------
    TargetError
        no plan meets the targets
    InputError
        the price of the plan is not known
    """
    paid = paid_plan(asked, answer, "there is nothing to pay for", today)
    plan = paid.plan
    replica = replica_of(plan_spec(plan, asked.question))
    uses = [class_use(item, replica, plan) for item in asked.question.demand.classes]
    usd = asked.scenario.own.usd(paid.machines_usd)
    bill = who_pays(uses, usd, plan.replicas * paid.hours * 3600.0)
    return AskedBill(
        plan,
        bill,
        paid.of_job,
        paid.by_mix,
        (_shared_by_time(plan), *paid.assumptions, *asked.assumptions),
        (*paid.warnings, *asked.warnings),
    )


def _shared_by_time(plan: FleetPlan) -> Assumption:
    return Assumption(
        "cost is shared by the time of the GPUs: a prefill by itself, of a decode step the part of one of "
        f"{plan.concurrency_per_replica:.3g} sequences, the batch at the peak; idle time and spares in the same proportion",
        "traffic[0].tenant",
    )
