"""What a plan was meant to cost next to what was paid, and what explains the difference: prices, hours, load and idle GPUs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from math import isclose
from pathlib import Path

from capplan.errors import InputError
from capplan.fleet.answer import FleetAnswer
from capplan.money.ledger import machines_of
from capplan.questions.fleet import AskedFleet
from capplan.questions.money.who_pays import AskedBill, asked_bill
from capplan.readers.catalogue.hardware import normalised
from capplan.recorded.paid import IDLE, PaidCharge, PaidFile, read_paid
from capplan.scenario.scenario_file import Scenario

_MOST_MONTHS = 36


@dataclass(frozen=True, slots=True)
class Costs:
    """GPU hours, and what they cost."""

    gpu_hours: float = 0.0
    usd: float = 0.0


def _summed(charges: Iterable[tuple[str, float, float]]) -> dict[str, Costs]:
    """Return the sum of GPU hours and dollars by name."""
    found: dict[str, Costs] = {}
    for name, gpu_hours, usd in charges:
        known = found.get(name, Costs())
        found[name] = Costs(known.gpu_hours + gpu_hours, known.usd + usd)
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """Planned and paid costs of one thing, and why they differ."""

    name: str
    planned: Costs
    paid: Costs

    @property
    def usd(self) -> float:
        """Return what was paid less what was planned [$]; nothing if they are the same but for rounding."""
        return (
            0.0
            if isclose(self.paid.usd, self.planned.usd, rel_tol=1e-9)
            else self.paid.usd - self.planned.usd
        )

    @property
    def price_usd(self) -> float:
        """Return the part of the difference that is of the price of a GPU hour.

            d = h1 (c1 / h1 - c0 / h0)

        Returns
        -------
        [$]
            d: h1 hours that were paid for at c1, planned were h0 at c0; nothing where no hours were planned or paid for
        """
        return self.usd - self.hours_usd

    @property
    def hours_usd(self) -> float:
        """Return the part of the difference that is of hours, at the planned price.

            d = (h1 - h0) c0 / h0

        Returns
        -------
        [$]
            d: h1 hours that were paid for, h0 planned at c0; all of the difference where no hours were planned
        """
        planned, paid = self.planned.gpu_hours, self.paid.gpu_hours
        if not planned or not paid:
            return self.usd
        return 0.0 if isclose(planned, paid, rel_tol=1e-9) else (paid - planned) * self.planned.usd / planned


@dataclass(frozen=True, slots=True)
class MonthPaid:
    """A month of a plan and of an export, over the time that the export covers."""

    year: int
    month: int
    hours: float
    """Hours of the month that the export covers."""
    machines: tuple[Difference, ...]
    """Differences by machine; empty if the export names none."""
    classes: tuple[Difference, ...]
    """Differences by class of requests, and of idle GPUs; empty if the export names none."""

    @property
    def rows(self) -> tuple[Difference, ...]:
        """The differences that add up to that of the month: by class if the export has classes."""
        return self.classes or self.machines

    @property
    def idle_usd(self) -> float | None:
        """Return the part of the difference that is of the hours of idle GPUs [$]; None if the export does not tell them from others."""
        idle = [row.hours_usd for row in self.classes if row.name == IDLE]
        return sum(idle) if idle else None

    @property
    def load_usd(self) -> float | None:
        """Return the part of the difference that the hours of the classes cause [$]; None if the export has no separate idle GPUs."""
        if self.idle_usd is None:
            return None
        return sum(row.hours_usd for row in self.classes if row.name != IDLE)


def paid_of(path: Path, scenario: Scenario) -> PaidFile:
    """Return what an export says was paid, in dollars: it may be in the currency of the scenario."""
    if all(item.job_requests is not None for item in scenario.classes):
        raise InputError("--actual: a batch job is paid for once, and an export has months; leave it out")
    currency = scenario.file.currency
    return read_paid(path, {"USD": 1.0} | ({currency.name: currency.usd} if currency else {}))


def paid_months(
    asked: AskedFleet, answer: FleetAnswer, file: PaidFile, today: date
) -> tuple[tuple[MonthPaid, ...], AskedBill]:
    """Return planned and paid costs by month, and the last bill of the plan.

    Parameters
    ----------
    asked : the scenario; charges count that have all of its tags, or all charges of GPUs if it has none
    answer : with a plan
    file : what was paid
    today : that prices are judged old by
    """
    tags = asked.scenario.file.tags
    charges = [charge for charge in file.charges if tags.items() <= charge.tags.items()]
    if not charges:
        raise InputError(
            f"no charge has the tags of the scenario, {', '.join(f'{key}: {value}' for key, value in tags.items())}; "
            "tag the machines, or leave tags out"
        )
    months: dict[tuple[int, int], list[PaidCharge]] = {}
    for charge in charges:
        months.setdefault((charge.start.year, charge.start.month), []).append(charge)
    if len(months) > _MOST_MONTHS:
        raise InputError(f"the export has {len(months)} months, at most {_MOST_MONTHS} are compared; cut it")
    found, bill = [], None
    for (year, month), rows in sorted(months.items()):
        bill = asked_bill(asked, answer, today, (year, month))
        found.append(_month(bill, year, month, rows))
    assert bill is not None
    return tuple(found), bill


def _month(bill: AskedBill, year: int, month: int, charges: Sequence[PaidCharge]) -> MonthPaid:
    first = min(charge.start for charge in charges)
    last = min(max(charge.end for charge in charges), _next_month(charges[0].start))
    covered = (last - first) / timedelta(hours=1)
    share = covered / bill.hours
    by_machine = _differences(_planned_machines(bill), charges, lambda charge: charge.machine, share)
    by_class = _differences(_planned_classes(bill), charges, lambda charge: charge.name, share)
    return MonthPaid(year, month, covered, by_machine, by_class)


def _next_month(moment: datetime) -> datetime:
    start = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (start + timedelta(days=32)).replace(day=1)


def _planned_machines(bill: AskedBill) -> dict[str, Costs]:
    """Return what the machines of a plan cost in its month, by name; GPUs by the piece have the name of the device."""
    return _summed(
        (
            entry.part.sku or bill.plan.groups[entry.part.group].hardware,
            entry.part.paid_gpus * bill.hours,
            entry.paid.effective_usd,
        )
        for entry in machines_of(bill.entries)
    )


def _planned_classes(bill: AskedBill) -> dict[str, Costs]:
    """Return what the classes of a plan use of its machines in its month, and what waits."""
    return _summed(
        (
            taken.who.use.name if taken.who else IDLE,
            taken.share * taken.entry.part.paid_gpus * bill.hours,
            taken.paid.effective_usd,
        )
        for taken in bill.bill.allocated(bill.entries)
        if taken.share or taken.who is None
    )


def _differences(
    planned: dict[str, Costs],
    charges: Iterable[PaidCharge],
    name_of: Callable[[PaidCharge], str],
    share: float,
) -> tuple[Difference, ...]:
    """Return planned and paid costs by name; none if not one charge has a name."""
    names = {normalised(name): name for name in planned}

    def name(charge: PaidCharge) -> str:
        written = name_of(charge)
        return names.get(normalised(written.lower().removeprefix("standard_")), written)

    paid = _summed((name(charge), charge.gpu_hours, charge.usd) for charge in charges)
    if set(paid) <= {""}:
        return ()
    covered = {name: Costs(part.gpu_hours * share, part.usd * share) for name, part in planned.items()}
    every = dict.fromkeys((*planned, *paid))
    return tuple(Difference(name, covered.get(name, Costs()), paid.get(name, Costs())) for name in every)
