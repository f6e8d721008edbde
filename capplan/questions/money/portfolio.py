"""Several services that share commitments and one budget: what each costs by itself, and what all of them cost together."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from capplan.assumption import Assumption
from capplan.errors import InputError
from capplan.fleet.answer import FleetAnswer
from capplan.money.commitments import GroupUse, Mix, mix_of, pooled_use
from capplan.money.ledger import CommitmentRates, commitment_rates, committed_entry
from capplan.money.price import HOURS_PER_MONTH, usd_per_month
from capplan.questions.fleet import AskedFleet
from capplan.questions.money.who_pays import AskedBill, asked_bill
from capplan.scenario.scenario_file import Commitments


@dataclass(frozen=True, slots=True)
class Service:
    """One service of a portfolio."""

    name: str
    bill: AskedBill
    """What the service would cost with a mix of its own."""
    usd: float
    """Cost of a month with its part of the shared machines, by what its own would cost, and its host memory."""


@dataclass(frozen=True, slots=True)
class Portfolio:
    """Several services with shared commitments."""

    services: tuple[Service, ...]
    mix: Mix
    """The cheapest mix for the load of all of them together."""
    separate_rates: CommitmentRates | None
    rates: CommitmentRates | None
    """Coverage, utilisation and savings of the shared mix."""
    budget_usd: float | None
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]

    @property
    def separate_usd(self) -> float:
        """Cost of a month of all services if each has a mix of its own."""
        return sum(service.bill.bill.usd for service in self.services)

    @property
    def usd(self) -> float:
        """Cost of a month of all services."""
        return sum(service.usd for service in self.services)

    @property
    def over_budget_usd(self) -> float | None:
        """What they cost beyond the budget, below zero within it; None without one."""
        return None if self.budget_usd is None else self.usd - self.budget_usd


def asked_portfolio(
    asked: Sequence[tuple[AskedFleet, FleetAnswer]], budget_usd: float | None, today: date
) -> Portfolio:
    """Return several services with one mix of commitments for all machines that they have alike.

        m_i' = m_i M / sum(m)

    Parameters
    ----------
    asked : scenarios and their answers
    budget_usd : [$/month]
        of all of them; None: no limit
    today : that prices are judged old by

    Returns
    -------
    Portfolio; the shared machines of M dollars are divided by what each service's own machines m cost

    Raises
    ------
    InputError
        the commitments are not the same, or one of them is a batch job
    """
    terms = _shared_terms(asked)
    bills = [asked_bill(each, answer, today) for each, answer in asked]
    mix = _pooled_mix(bills, terms)
    shared = [committed_entry(part, HOURS_PER_MONTH, begins=False) for part in mix.parts]
    mixes = [float(usd_per_month(bill.mix.mix.usd_per_hour)) if bill.mix else 0.0 for bill in bills]
    separate = sum(mixes)
    ratio = (
        float(usd_per_month(mix.usd_per_hour)) / separate if separate else 1.0
    )  # all machines are there already
    services = tuple(
        _service(each, bill, own, ratio) for (each, _), bill, own in zip(asked, bills, mixes, strict=True)
    )
    stated = Assumption(
        "all services have their days by the same clock; a machine or a GPU of one kind may be started for any of them",
        "commitments",
    )
    return Portfolio(
        services,
        mix,
        commitment_rates([entry for bill in bills for entry in bill.entries]),
        commitment_rates(shared),
        budget_usd,
        tuple(dict.fromkeys((stated, *(one for bill in bills for one in bill.assumptions)))),
        tuple(dict.fromkeys(one for bill in bills for one in bill.warnings)),
    )


def _shared_terms(asked: Sequence[tuple[AskedFleet, FleetAnswer]]) -> Commitments:
    """Return the commitments that all scenarios name; an error if they are not the same."""
    first = asked[0][0].scenario
    for each, _ in asked:
        named = each.scenario.file.commitments
        if named is None or named != first.file.commitments:
            why = "names no commitments" if named is None else f"has other commitments than {first.name}"
            raise InputError(
                f"{each.scenario.path}: {why}, so there is nothing to share\n  give all of them the same section, e.g. commitments: {{reserved_1y: {{}}}}"
            )
    assert first.file.commitments is not None
    return first.file.commitments


def _pooled_mix(bills: Sequence[AskedBill], terms: Commitments) -> Mix:
    """Return the cheapest mix for all machines of several services, those of one kind together."""
    pooled: dict[object, list[GroupUse]] = {}
    for bill in bills:
        for use in bill.mix.uses if bill.mix else ():
            device = bill.plan.groups[use.group].layout.device.name
            pooled.setdefault((device, use.machine, *use.offers), []).append(use)
    people = terms.owned.people / float(usd_per_month(1.0)) if terms.owned else 0.0
    return mix_of([pooled_use(uses) for uses in pooled.values()], people)


def _service(asked: AskedFleet, bill: AskedBill, separate_usd: float, ratio: float) -> Service:
    """Return a service with its part of the shared machines; what grows with their price follows it."""
    machines = bill.machines_usd + (ratio - 1.0) * separate_usd
    beside = (entry for entry in bill.entries if entry.kind != "machines")
    others = sum(
        machines * entry.usd_each if entry.grows_with == "machines" else entry.usd for entry in beside
    )
    return Service(asked.scenario.name, bill, machines + others)
