"""The ledger of a plan: every entry of what a service costs in a month or for its job, from which all pages of money take."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

from capplan.assumption import Assumption
from capplan.errors import InputError, TargetError
from capplan.fleet.answer import FleetAnswer
from capplan.fleet.plan import Plan
from capplan.hardware.device import Device
from capplan.keys import first_day
from capplan.model.parameters import weight_bytes
from capplan.money.commitments import Mix, MixedPart, Offer, PaidTerm
from capplan.money.hosted import HostedTraffic, hosted_traffic, outside_usd, tokens_of
from capplan.money.ledger import Entry, committed_entry, rented_entry, service_entries, total_usd
from capplan.money.order import OWN, Machine, OrderLine, owned_price_text
from capplan.money.price import (
    HOURS_PER_MONTH,
    ON_DEMAND,
    TERM_YEARS,
    ChosenPrice,
    PriceRecord,
    prices_by_term,
    usd_per_month,
)
from capplan.questions.fleet import AskedFleet, replicas_by_group
from capplan.questions.money.commitments import AskedMix, age_remark, asked_mix, rent_warnings
from capplan.readers.catalogue.prices import machine_records, records_of
from capplan.scenario.money_terms import memory_usd_per_month
from capplan.scenario.scenario_file import Scenario
from capplan.scenario.traffic import rate_line


def traffic_of(asked: AskedFleet, plan: Plan) -> tuple[HostedTraffic, ...]:
    """Return the requests of each class, as often as users ask at the response times of a plan."""
    demand = asked.question.demand
    responses_s = demand.responses_s(plan.responses_s)
    return tuple(map(hosted_traffic, demand.classes, responses_s))


def ledger_of(
    asked: AskedFleet,
    plan: Plan,
    mix: Mix | None,
    month_hours: float = HOURS_PER_MONTH,
    month: tuple[int, int] | None = None,
) -> tuple[Entry, ...]:
    """Return every entry of what a plan costs in a month, or until its job is done; empty without a price.

    Parameters
    ----------
    asked : the scenario
    plan : with a price
    mix : commitments that pay for its machines; None: rented at one price
    month_hours : [h]
        of the month
    month : year and month, which terms may begin in; None: the first one
    """
    if plan.order is None or plan.usd_per_hour is None:
        return ()
    hours = (plan.money.job_hours if plan.money else None) or month_hours
    months = hours / HOURS_PER_MONTH
    passed = _months_passed(asked.scenario, month)
    parts = _rented_parts(asked.scenario, plan) if mix is None else mix.parts
    to_entry = rented_entry if mix is None else committed_entry
    machines: list[Entry] = [
        to_entry(
            part, hours, begins=part.offer.term is not None and passed % round(part.offer.term.months) == 0
        )
        for part in parts
    ]
    energy = (plan.order.energy_usd_per_hour or 0.0) if mix is None else 0.0
    people = mix.people_usd_per_hour if mix else 0.0
    memory = memory_usd_per_month(asked.scenario, plan)
    machines += [
        Entry("electricity at design power", hours, "hours", energy, "scenario: prices.electricity", "machines"),
        Entry("people for owned machines", months, "months", people * HOURS_PER_MONTH, "scenario: commitments.owned.people", "machines"),
        Entry("host memory of offloaded caches", months, "months", memory, "scenario: prices.host_memory_per_gb", "machines"),
    ]  # fmt: skip
    traffic, own = traffic_of(asked, plan), asked.scenario.file.prices
    networks = {group.weight_dtype: asked.question.networks[group.weight_dtype] for group in plan.groups}
    stored = sum(weight_bytes(network) for network in networks.values())
    outside = outside_usd(traffic) * (1.0 if plan.is_of_job else months)
    return (
        *machines,
        *service_entries(own, total_usd(machines), *tokens_of(traffic, hours), stored, months),
        Entry("retrieval and tools", 1.0, "all requests", outside, "scenario: traffic, outside", "outside", "traffic"),
    )  # fmt: skip


def _months_passed(scenario: Scenario, month: tuple[int, int] | None) -> int:
    """Return how many months a month is after the one in which the terms of a scenario begin."""
    terms = scenario.file.commitments
    if month is None or terms is None or terms.begin is None:
        return 0
    begin = first_day(terms.begin)
    passed = 12 * (month[0] - begin.year) + month[1] - begin.month
    if passed < 0:
        raise InputError(
            f"--month: the month is before commitments.begin of {scenario.path}; give {begin:%Y-%m} or a later one"
        )
    return passed


def _rented_parts(scenario: Scenario, plan: Plan) -> list[MixedPart]:
    """Return the machines of a plan that are paid for at one price; of reserved ones nothing is paid upfront."""
    paid_as, parts = scenario.prices.paid_as, []
    listed = records_of(scenario)[0] if scenario.price_file is not None else None
    for place, group in enumerate(plan.groups):
        for line in group.order.lines if group.order else ():
            machine, owned = line.machine, line.machine.is_owned
            each, reserved = machine.usd_per_hour / machine.gpus, paid_as in TERM_YEARS and not owned
            contracted, ratio = _on_demand(machine, paid_as, listed)
            term = PaidTerm(12.0 * TERM_YEARS[paid_as], 0.0, float(usd_per_month(each))) if reserved else None
            offer = Offer(
                OWN if owned else paid_as,
                each if reserved else 0.0,
                0.0 if reserved else each,
                origin=_machine_basis(line, powered=bool(plan.energy_usd_per_hour)),
                list_usd_per_hour=None if owned or contracted is None else contracted / ratio,
                discounted_ratio=ratio,
                term=term,
            )
            device = machine.device or group.layout.device.name
            machine = replace(machine, device=device, most=None, begun=0)
            usd = line.count * machine.usd_per_hour
            parts.append(MixedPart(offer, line.count, 1.0, usd, machine.gpus, place, machine=machine))
    return parts


def _on_demand(
    machine: Machine, paid_as: str, listed: Sequence[PriceRecord] | None
) -> tuple[float | None, float]:
    """Return the price on demand of a GPU of a machine, None if none is known, and that price over the one of the list."""
    if paid_as == ON_DEMAND:
        ratio = machine.usd_per_hour / (machine.list_usd_per_hour or machine.usd_per_hour or 1.0)
        return machine.usd_per_hour / machine.gpus, ratio or 1.0
    found = [record for record in machine_records(machine, listed) if record.commitment == ON_DEMAND]
    best = min(found, key=lambda record: record.usd_per_hour, default=None)
    return (None, 1.0) if best is None else (best.usd_per_hour, best.discounted_ratio or 1.0)


def _machine_basis(line: OrderLine, *, powered: bool) -> str:
    machine = line.machine
    if machine.is_owned:
        return f"scenario: fleet.own, {owned_price_text(machine.usd_per_hour, powered=powered)}"
    place = f"{machine.region}, " if machine.region else ""
    return f"offer: {place}{machine.date or 'date unknown'}" if machine.source else "scenario"


@dataclass(frozen=True, slots=True)
class TermPrice:
    """The public price of a GPU of a plan for one way to commit to it."""

    hardware: str
    gpus: int
    """GPUs of the plan that are paid for, those that are there already left out."""
    hours: float
    """Hours of a month, or of the job."""
    price: ChosenPrice
    discounted: tuple[PriceRecord, ...]
    """Offers that count by the discount of their provider, applied to the median price on demand."""
    remark: str | None
    """What is to be known of the day of the price."""

    @property
    def basis(self) -> str:
        """What the price is of, in words."""
        by_discount = self.price.records[0] in self.discounted
        return f"{self.price.basis}, by its discount" if by_discount else self.price.basis


def term_prices(scenario: Scenario, plan: Plan, today: date | None = None) -> tuple[TermPrice, ...]:
    """Return what the GPUs of a plan cost on demand, on terms and owned, as far as prices are public; nothing for a price that the scenario states.

    Prices are judged old by a day, if one is given.
    """
    gpus = Counter[str]()
    for group in plan.groups:
        lines = group.order.lines if group.order else ()
        gpus[group.hardware] += sum(
            line.count * line.machine.gpus for line in lines if not line.machine.is_owned
        )
    devices = {group.hardware: group.layout.device for group in plan.groups}
    records, hours = records_of(scenario)[0], (plan.money.job_hours if plan.money else None)
    return tuple(
        TermPrice(
            name,
            count,
            hours or HOURS_PER_MONTH,
            price,
            _discounted(price, records, devices[name]),
            age_remark(price.records[0], today) if today else None,
        )
        for name, count in gpus.items()
        for price in (prices_by_term(records, devices[name], scenario.prices) if count else ())
    )


def _discounted(
    price: ChosenPrice, records: Sequence[PriceRecord], device: Device
) -> tuple[PriceRecord, ...]:
    share = 1.0 / device.partition.per_device if device.partition else 1.0
    listed = [record.shared(share) for record in records if record.commitment == price.commitment]
    used = (*price.records, price.lowest, price.highest)
    return tuple(
        record for record in used if record and price.commitment in TERM_YEARS and record not in listed
    )


@dataclass(frozen=True, slots=True)
class PaidPlan:
    """A plan with its ledger, and what that rests on."""

    plan: Plan
    mix: AskedMix | None
    """Commitments that pay for the machines; None: rented at one price."""
    entries: tuple[Entry, ...]
    """What is paid for in those hours."""
    hours: float
    """Hours that the plan is paid for: a month, or until the job is done."""
    terms: tuple[TermPrice, ...]
    """Public prices of its GPUs by term."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]

    @property
    def machines_usd(self) -> float:
        """Cost of the machines, with the host memory of offload tiers; without people and overhead [$]."""
        return total_usd(self.entries, "machines")

    @property
    def group_fractions(self) -> tuple[float, ...]:
        """Fraction of that cost for each group of replicas; owned machines share their people alike."""
        usd = [group.usd_per_hour or 0.0 for group in self.plan.groups]
        if self.mix is not None:
            usd = [
                sum(part.usd_per_hour for part in self.mix.mix.parts if part.group == place)
                for place in range(len(usd))
            ]
        total = sum(usd)
        return tuple(one / total if total else 1.0 / len(usd) for one in usd)

    @property
    def group_gpus(self) -> tuple[float, ...]:
        """GPUs of each group that are paid for, mean over the hours: those of the order, or of the parts of the mix while they are paid."""
        groups = enumerate(self.plan.groups)
        return tuple(self.mix.mix.paid_gpus(at) if self.mix else group.ordered_gpus for at, group in groups)


def plan_mix(asked: AskedFleet, plan: Plan) -> AskedMix | None:
    """Return the cheapest mix of commitments for a plan under its load; None if the scenario names none."""
    line = rate_line(asked.scenario, plan.responses_s)
    return asked_mix(asked.scenario, plan, line, replicas_by_group(asked, plan))


def paid_plan(
    asked: AskedFleet,
    answer: FleetAnswer,
    otherwise: str,
    today: date,
    hours: float = HOURS_PER_MONTH,
    month: tuple[int, int] | None = None,
) -> PaidPlan:
    """Return the recommended plan with its ledger.

    Parameters
    ----------
    asked : the scenario
    answer : with a plan
    otherwise : what cannot be said where there is none, for people
    today : that prices are judged old by
    hours : [h]
        of the month, the mean one or a stated one
    month : year and month; None: the first one

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
    mix = plan_mix(asked, plan)
    warnings = (*(mix.warnings if mix else ()), *rent_warnings(plan, today))
    return PaidPlan(
        plan,
        mix,
        ledger_of(asked, plan, mix.mix if mix else None, hours, month),
        (plan.money.job_hours if plan.money else None) or hours,
        term_prices(scenario, plan, today),
        mix.assumptions if mix else (),
        warnings,
    )


def own_assumptions(scenario: Scenario) -> list[Assumption]:
    """Return the assumptions about costs other than machines."""
    stated = []
    if not scenario.file.prices.people_usd_per_month:
        stated.append(Assumption("nobody is paid for running the self-hosted fleet", "prices.people"))
    if not scenario.file.prices.overhead:
        stated.append(Assumption("no overhead on the price of the machines", "prices.overhead"))
    return stated
