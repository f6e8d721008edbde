"""A scenario and its plan -> what each class and tenant pays."""

from dataclasses import dataclass

from capplan.assumption import Assumption
from capplan.fleet.money.hosted import hosted_traffic
from capplan.fleet.money.who_pays import ClassUse, WhoPays, decode_s_per_request, who_pays
from capplan.fleet.plan import FleetAnswer, FleetPlan
from capplan.fleet.price import HOURS_PER_MONTH, usd_per_month
from capplan.fleet.review import phase_times, plan_spec
from capplan.fleet.scenario import Scenario
from capplan.questions.commitments import asked_mix
from capplan.questions.fleet import AskedFleet
from capplan.questions.plan_over_time import plan_over_time
from capplan.questions.priced_plan import priced_plan
from capplan.questions.rate_line import rate_line
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
        output_tokens=requests * sequences * outputs,
        prefill_s=sequences * times["prefill"],
        decode_s=sequences * float(decode_s_per_request(max(outputs, 1.0), times["decode"], batch)),
        users=item.users,
        requests_per_conversation=item.requests_per_conversation,
    )


def asked_bill(asked: AskedFleet, answer: FleetAnswer) -> AskedBill:
    """Return what each class and tenant pays for the recommended plan.

    Raises
    ------
    TargetError
        no plan meets the targets
    InputError
        the price of the plan is not known
    """
    scenario = asked.scenario
    plan = priced_plan(scenario, answer, "there is nothing to pay for")
    assert plan.usd_per_month is not None
    demand = asked.question.demand
    replica = replica_of(plan_spec(plan, asked.question))
    uses = [class_use(item, replica, plan) for item in demand.classes]
    job = plan.money.usd_per_job if plan.money else None
    mix = (
        asked_mix(scenario, plan, plan_over_time(scenario, plan, rate_line(scenario)))
        if job is None
        else None
    )
    machines = plan.usd_per_month if mix is None else float(usd_per_month(mix.mix.usd_per_hour))
    usd = scenario.own.usd(machines if job is None else job)
    hours = plan.money.job_hours if job is not None and plan.money else HOURS_PER_MONTH
    assert hours is not None
    bill = who_pays(uses, usd, plan.replicas * hours * 3600.0)
    return AskedBill(
        plan,
        bill,
        job is not None,
        mix is not None,
        (*_assumptions(scenario, plan), *(mix.assumptions if mix else ()), *asked.assumptions),
        (*(mix.warnings if mix else ()), *asked.warnings),
    )


def _assumptions(scenario: Scenario, plan: FleetPlan) -> list[Assumption]:
    stated = [
        Assumption(
            "cost is shared by the time of the GPUs: a prefill by itself, of a decode step the part of one of "
            f"{plan.concurrency_per_replica:.3g} sequences, the batch at the peak; idle time and spares in the same proportion",
            "traffic[0].tenant",
        )
    ]
    if not scenario.own.people_usd_per_month:
        stated.append(Assumption("nobody is paid for running the fleet", "prices.people"))
    if not scenario.own.overhead_fraction:
        stated.append(Assumption("no overhead on the price of the machines", "prices.overhead"))
    return stated
