"""What a service costs in all, line by line, and what each class and tenant pays of it."""

import re
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from typing import Any

from capplan.assumption import Assumption
from capplan.errors import InputError, TargetError
from capplan.fleet.load.demand import Demand
from capplan.fleet.plan import FleetAnswer, Group, Plan
from capplan.fleet.review import Question, phase_times, plan_spec
from capplan.fleet.search.simulated_layout import demand_at_replica
from capplan.keys import current_day, first_day
from capplan.model.parameters import weight_bytes
from capplan.money.cash import CostLine, MachineCharge, PaidTerm, machine_charge, other_lines, total_usd
from capplan.money.commitments import Mix, MixedPart, Offer
from capplan.money.hosted import HostedTraffic, hosted_traffic, outside_usd, tokens_of
from capplan.money.order import OWN, OrderLine, owned_price_text
from capplan.money.price import HOURS_PER_MONTH, ON_DEMAND, TERM_YEARS, usd_per_month
from capplan.money.who_pays import (
    ClassUse,
    PaidPool,
    WhoPays,
    decode_s_per_request,
    who_pays,
    who_pays_for_groups,
    who_pays_for_pools,
)
from capplan.questions.fleet import AskedFleet, parts_of, replicas_by_group
from capplan.questions.money.commitments import AskedMix, asked_mix, paid_terms, rent_warnings
from capplan.readers.catalogue.prices import machine_records, records_of
from capplan.replica.load import Load
from capplan.replica.replica import Replica, replica_of
from capplan.scenario.money_terms import memory_usd_per_month
from capplan.scenario.scenario_file import Scenario
from capplan.scenario.traffic import rate_line
from capplan.workload.request_class import RequestClass


def traffic_of(asked: AskedFleet, plan: Plan) -> tuple[HostedTraffic, ...]:
    """Return the requests of each class, as often as users ask at the response times of a plan."""
    demand = asked.question.demand
    responses_s = demand.responses_s(plan.responses_s)
    return tuple(map(hosted_traffic, demand.classes, responses_s))


def asked_other_lines(
    asked: AskedFleet, plan: Plan, machines_usd: float, hours: float
) -> tuple[CostLine, ...]:
    """Return what a plan takes in addition to GPUs and people, in the hours that it is paid for.

    Parameters
    ----------
    asked : the scenario
    plan : whose response times decide how often users ask
    machines_usd : [$]
        what its machines cost in that time
    hours : [h]
        of a month, or of a job
    """
    inputs, outputs = tokens_of(traffic_of(asked, plan), hours)
    networks = {group.weight_dtype: asked.question.networks[group.weight_dtype] for group in plan.groups}
    stored = sum(weight_bytes(network) for network in networks.values())
    months = hours / HOURS_PER_MONTH
    return other_lines(asked.scenario.file.prices.other, machines_usd, inputs, outputs, stored, months)


def total_cost(
    asked: AskedFleet, plan: Plan, mix: Mix | None, month_hours: float = HOURS_PER_MONTH
) -> tuple[CostLine, ...]:
    """Return every line of what a plan costs in a month, or until its job is done; empty without a price.

    Parameters
    ----------
    asked : the scenario
    plan : with a price
    mix : commitments that pay for its machines; None: rented at one price
    month_hours : [h]
        of the month
    """
    own, job_hours = asked.scenario.file.prices, plan.money.job_hours if plan.money else None
    hours = job_hours or month_hours
    machines = _mix_lines(mix, hours) if mix is not None and job_hours is None else _order_lines(plan, hours)
    if not machines:
        return ()
    memory = memory_usd_per_month(asked.scenario, plan)
    months = hours / HOURS_PER_MONTH
    machines += [
        CostLine(
            "host memory of offloaded caches", months, "months", memory, "scenario: prices.host_memory_per_gb"
        )
    ]
    machines_usd = sum(line.usd for line in machines)
    people = "assumed" if own.people_assumed else "scenario: prices.people"
    lines = (
        *machines,
        CostLine("overhead", machines_usd, "$ of machines", own.overhead, "scenario: prices.overhead"),
        CostLine("people", 1.0, "team", own.people_usd_per_month, people),
        *asked_other_lines(asked, plan, machines_usd, hours),
        CostLine("retrieval and tools", 1.0, "all requests", outside_usd(traffic_of(asked, plan)) * (1.0 if job_hours else months), "scenario: traffic, outside"),
    )  # fmt: skip
    return tuple(line for line in lines if line.usd or line.commitment == OWN)


def _order_lines(plan: Plan, hours: float) -> list[CostLine]:
    """Return the machines of the order, and the electricity that is paid in addition to them."""
    order = plan.order
    if order is None or plan.usd_per_hour is None:
        return []
    lines = [
        CostLine(_machine_text(line), line.count * hours, "machine hours", line.machine.usd_per_hour, _machine_basis(line, powered=bool(plan.energy_usd_per_hour)), "machines", commitment=OWN if line.machine.is_owned else "",
                 provider="" if line.machine.is_owned else line.machine.provider, sku=line.machine.sku, region=line.machine.region, gpus=line.count * line.machine.gpus)
        for line in order.lines
    ]  # fmt: skip
    energy = plan.usd_per_hour - sum(line.usd for line in lines) / hours
    return [*lines, CostLine("electricity at design power", hours, "hours", energy if energy > 1e-9 * plan.usd_per_hour else 0.0, "scenario: prices.electricity")]  # fmt: skip


def _machine_text(line: OrderLine) -> str:
    machine = line.machine
    return f"{line.count} x {machine.name}{' of your own' if machine.is_owned else f', {machine.provider}'}"


def _machine_basis(line: OrderLine, *, powered: bool) -> str:
    machine = line.machine
    if machine.is_owned:
        return f"scenario: fleet.own, {owned_price_text(machine.usd_per_hour, powered=powered)}"
    place = f"{machine.region}, " if machine.region else ""
    return f"offer: {place}{machine.date or 'date unknown'}" if machine.source else "scenario"


def _mix_lines(mix: Mix, hours: float) -> list[CostLine]:
    """Return the parts of a mix, by the GPU hours that are paid for."""
    lines = []
    for part in mix.parts:
        gpus, offer, paid = part.gpus, part.offer, part.paid_gpus
        each = part.usd_per_hour / paid if paid else 0.0
        machines = f" in {part.units} x {part.sku}" if part.sku else ""
        lines.append(
            CostLine(
                f"{gpus} GPUs{machines}, {offer.name}", paid * hours, "GPU hours", each, offer.origin, "machines",
                commitment=offer.name, sku=part.sku or "", gpus=gpus,
            )
        )  # fmt: skip
    people = CostLine(
        "people for owned machines", hours / HOURS_PER_MONTH, "months", mix.people_usd_per_hour * HOURS_PER_MONTH, "scenario: commitments.owned.people",
    )  # fmt: skip
    return [*lines, people]


@dataclass(frozen=True, slots=True)
class PaidPlan:
    """A plan with what its machines cost, and what that rests on."""

    plan: Plan
    machines_usd: float
    """Cost of a month, or of one job, with the host memory of offload tiers; without people and overhead."""
    group_fractions: tuple[float, ...]
    """Fraction of that cost for each group of replicas: all of them, or prefill and decode."""
    group_gpus: tuple[float, ...]
    """GPUs of each group that are paid for, mean over the hours: those of the order, or of the parts of the mix while they are paid."""
    hours: float
    """Hours that the plan is paid for: a month, or until the job is done."""
    of_job: bool
    """Whether the cost is of one batch job instead of a month."""
    mix: Mix | None
    """Commitments that pay for the machines; None: rented at one price."""
    other: tuple[CostLine, ...]
    """What the service takes in addition to GPUs and people, in the same time."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]

    @property
    def other_usd(self) -> float:
        """What all of that costs [$]."""
        return total_usd(self.other)

    @property
    def by_mix(self) -> bool:
        """Whether a mix of commitments pays for the machines."""
        return self.mix is not None


def paid_plan(
    asked: AskedFleet, answer: FleetAnswer, otherwise: str, today: date, hours: float = HOURS_PER_MONTH
) -> PaidPlan:
    """Return the recommended plan and what its machines cost.

    Parameters
    ----------
    asked : the scenario
    answer : with a plan
    otherwise : what cannot be said where there is none, for people
    today : that prices are judged old by
    hours : [h]
        of the month, the mean one or a stated one

    Raises
    ------
    TargetError
        no plan meets the targets
    InputError
        the price of the plan is not known
    """
    scenario, plan = asked.scenario, answer.chosen
    if plan is None:
        raise TargetError(
            f"{scenario.path}: no plan meets the targets, so {otherwise}\n"
            f"  what is in the way: capplan fleet {scenario.command_words()}"
        )
    if plan.usd_per_month is None:
        raise InputError(
            f"{scenario.path}: the price of {plan.hardware} is not known; give prices.per_gpu_hour"
        )
    line = rate_line(scenario, plan.responses_s)
    mix = asked_mix(scenario, plan, line, replicas_by_group(asked, plan))
    monthly = plan.usd_per_month if mix is None else float(usd_per_month(mix.mix.usd_per_hour))
    job = plan.money.usd_per_job if plan.money else None
    hours = (plan.money.job_hours if plan.money else None) or hours
    months = hours / HOURS_PER_MONTH
    rented = monthly * months if job is None else job
    machines_usd = rented + memory_usd_per_month(scenario, plan) * months
    return PaidPlan(
        plan,
        machines_usd,
        _group_fractions(plan, mix),
        tuple(
            mix.mix.paid_gpus(place) if mix else group.ordered_gpus for place, group in enumerate(plan.groups)
        ),
        hours,
        job is not None,
        mix.mix if mix else None,
        asked_other_lines(asked, plan, machines_usd, hours),
        mix.assumptions if mix else (),
        (*(mix.warnings if mix else ()), *rent_warnings(plan, today)),
    )


def _group_fractions(plan: Plan, mix: AskedMix | None) -> tuple[float, ...]:
    """Return how the cost of the machines is shared by the groups of a plan; owned machines share their people alike."""
    if mix is None:
        usd = [group.usd_per_hour or 0.0 for group in plan.groups]
    else:
        usd = [
            sum(part.usd_per_hour for part in mix.mix.parts if part.group == place)
            for place in range(len(plan.groups))
        ]
    total = sum(usd)
    return tuple(one / total if total else 1.0 / len(usd) for one in usd)


def own_assumptions(scenario: Scenario) -> list[Assumption]:
    """Return the assumptions about costs other than machines."""
    stated = []
    if not scenario.file.prices.people_usd_per_month:
        stated.append(Assumption("nobody is paid for running the self-hosted fleet", "prices.people"))
    if not scenario.file.prices.overhead:
        stated.append(Assumption("no overhead on the price of the machines", "prices.overhead"))
    return stated


@dataclass(frozen=True, slots=True)
class AskedBill(PaidPlan):
    """The bill of a plan, and what it rests on."""

    bill: WhoPays
    lines: tuple[CostLine, ...]
    """The same cost by what is bought: machines, people and the rest."""
    charges: tuple[MachineCharge, ...]
    """What the machines cost, by group and what pays for them, as it is billed and as it is used up."""


@dataclass(frozen=True, slots=True)
class PlanUse:
    """The replicas of a plan under its traffic."""

    demand: Demand
    """Traffic with the prefix hits of the replicas that prefill."""
    prefill: Replica
    decode: Replica
    """The same, where the plan has no separate pools."""
    sequences: float
    """Mean in a replica that decodes, at the peak."""
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
    prefill_s = phase_times(use.prefill, load, use.sequences)["prefill"]
    step_s = phase_times(use.decode, load, use.sequences)["decode"]
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
        decode_s=sequences * float(decode_s_per_request(max(outputs, 1.0), step_s, use.sequences)),
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
    paid = paid_plan(asked, answer, "there is nothing to pay for", today, hours)
    plan = paid.plan
    own, seconds = asked.scenario.file.prices, paid.hours * 3600.0
    pools = [
        PaidPool(
            own.machines_usd(paid.machines_usd) * fraction,
            group.layout.devices,
            gpus / group.layout.devices * seconds,
            (own.people_usd_per_month + paid.other_usd) * fraction,
        )
        for fraction, gpus, group in zip(paid.group_fractions, paid.group_gpus, plan.groups, strict=True)
    ]
    if plan.is_mix:
        parts = [_uses(part.question, alone, hours) for part, alone in parts_of(asked, plan)]
        bill = who_pays_for_groups(list(zip(parts, pools, strict=True)))
    elif plan.has_pools:
        bill = who_pays_for_pools(_uses(asked.question, plan, hours), pools[0], pools[1])
    else:
        bill = who_pays(_uses(asked.question, plan, hours), pools[0])
    shared = (_shared_by_time(plan), *own_assumptions(asked.scenario))
    stated = {
        "assumptions": (*shared, *paid.assumptions, *asked.assumptions),
        "warnings": (*paid.warnings, *asked.warnings),
    }
    known: dict[str, Any] = {field.name: getattr(paid, field.name) for field in fields(paid)}
    lines, charges = total_cost(asked, plan, paid.mix, hours), _machine_charges(asked.scenario, paid, month)
    return AskedBill(**known | stated, bill=bill, lines=lines, charges=charges)


def _machine_charges(
    scenario: Scenario, paid: PaidPlan, month: tuple[int, int] | None
) -> tuple[MachineCharge, ...]:
    """Return what the machines of a plan cost in a month, by group and what pays for them."""
    commitments = scenario.file.commitments
    if paid.mix is None or commitments is None:
        parts, terms = _rented_parts(scenario, paid.plan)
    else:
        parts, terms = paid.mix.parts, paid_terms(commitments, (paid.mix,))
    begin = first_day(commitments.begin) if commitments and commitments.begin else None
    passed = 0 if month is None or begin is None else 12 * (month[0] - begin.year) + month[1] - begin.month
    if passed < 0:
        raise InputError(
            f"--month: the month is before commitments.begin of {scenario.path}; give {begin:%Y-%m} or a later one"
        )
    return tuple(
        machine_charge(part, term, paid.hours, begins=term is not None and passed % round(term.months) == 0)
        for part in parts
        for term in (terms.get(part.offer),)
    )


def _rented_parts(scenario: Scenario, plan: Plan) -> tuple[tuple[MixedPart, ...], dict[Offer, PaidTerm]]:
    """Return the machines of a plan that are paid for at one price, and the terms of reserved ones: nothing upfront."""
    paid_as, records = scenario.prices.paid_as, records_of(scenario)[0]
    parts, terms = [], {}
    for place, group in enumerate(plan.groups):
        for line in group.order.lines if group.order else ():
            machine, of_file = line.machine, records if scenario.price_file is not None else None
            each = machine.usd_per_hour / machine.gpus
            found = [each for each in machine_records(machine, of_file) if each.commitment == ON_DEMAND]
            on_demand = min(found, key=lambda record: record.usd_per_hour, default=None)
            ratio = on_demand.discounted_ratio if on_demand else 1.0
            contracted = on_demand.usd_per_hour if on_demand else None
            if paid_as == ON_DEMAND:
                ratio, contracted = (
                    each * machine.gpus / (machine.list_usd_per_hour or machine.usd_per_hour or 1.0),
                    each,
                )
            reserved = paid_as.startswith("reserved") and not machine.is_owned
            name = OWN if machine.is_owned else paid_as
            offer = Offer(
                name,
                each * reserved,
                each * (not reserved),
                origin=_machine_basis(line, powered=bool(plan.energy_usd_per_hour)),
                list_usd_per_hour=None
                if machine.is_owned or contracted is None
                else contracted / (ratio or 1.0),
                discounted_ratio=ratio or 1.0,
            )
            if reserved:
                months = 12.0 * TERM_YEARS.get(paid_as, 1.0)
                terms[offer] = PaidTerm(months, 0.0, float(usd_per_month(each)))
            parts.append(
                MixedPart(
                    offer,
                    line.count,
                    1.0,
                    line.count * machine.usd_per_hour,
                    machine.gpus,
                    group=place,
                    machine=machine,
                )
            )
    return tuple(parts), terms


def _uses(question: Question, plan: Plan, hours: float) -> list[ClassUse]:
    """Return what each class of a question asks of the replicas of a plan: together as much of their time as the load of the plan takes.

    A prefill by itself and a part of a decode step say how classes differ, and not how steps are shared, so both are scaled.
    """
    use = plan_use(plan, question)
    uses = [class_use(index, use, hours) for index in range(len(use.demand.classes))]
    sent = sum(
        each.requests * item.sequences_per_request
        for each, item in zip(uses, use.demand.classes, strict=True)
    )
    first, last = plan.groups[0], plan.groups[-1]
    if plan.has_pools:
        prefill = _scale(first, sent, sum(each.requests * each.prefill_s for each in uses))
        decode = _scale(last, sent, sum(each.requests * each.decode_s for each in uses))
    else:
        prefill = decode = _scale(first, sent, sum(each.replica_s for each in uses))
    return [
        replace(each, prefill_s=prefill * each.prefill_s, decode_s=decode * each.decode_s) for each in uses
    ]


def _scale(group: Group, requests: float, alone_s: float) -> float:
    """Return the replica time that requests take of a group, over what they take one by one; 1 where the load of a replica is not known."""
    each_s = group.replica_s_per_request
    return 1.0 if each_s is None or not alone_s else requests * each_s / alone_s


def _shared_by_time(plan: Plan) -> Assumption:
    where = (
        "prefill is paid by its own pool and decode by its own, each shared by the time of its GPUs: "
        if plan.has_pools
        else "cost is shared by the time of the GPUs: "
    )
    batches = " or ".join(
        f"{max(1.0, group.concurrency_per_replica):.3g}"
        for group in (plan.groups[-1:] if plan.has_pools else plan.groups)
    )
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
