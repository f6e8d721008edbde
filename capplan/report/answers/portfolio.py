"""What `capplan bill --with` shows: several services that share commitments and a budget."""

from collections.abc import Iterator
from dataclasses import asdict

from capplan.money.price import HOURS_PER_MONTH
from capplan.questions.money.portfolio import Portfolio
from capplan.report.answer import Answer, Table
from capplan.report.answers.compare import rates_texts

_TITLES = {"name": ""}


def portfolio_answer(found: Portfolio) -> Answer:
    """Return what each service costs by itself and with the others, the shared mix, and its rates."""
    rows = [
        {
            "name": service.name,
            "hardware": service.bill.plan.hardware,
            "gpus": service.bill.plan.gpus,
            "separate_usd": service.bill.bill.usd,
            "shared_usd": service.usd,
        }
        for service in found.services
    ]
    mix = [
        {
            "commitment": part.offer.name,
            "sku": part.sku,
            "gpus": part.gpus,
            "used_fraction": part.used_fraction,
            "usd_per_month": part.usd_per_hour * HOURS_PER_MONTH,
        }
        for part in found.mix.parts
    ]
    saved = found.separate_usd - found.usd
    names = " + ".join(service.name for service in found.services)
    return Answer(
        command="bill",
        result={
            "services": rows,
            "usd_per_month": found.usd,
            "separate_usd_per_month": found.separate_usd,
            "mix": mix,
            "rates": asdict(found.rates) if found.rates else None,
            "separate_rates": asdict(found.separate_rates) if found.separate_rates else None,
            "budget_usd_per_month": found.budget_usd,
            "over_budget_usd_per_month": found.over_budget_usd,
        },
        tables=(
            Table(rows, title="Services", titles=_TITLES),
            Table(mix, title="Shared commitments", titles=_TITLES),
        ),
        headline=f"{names}: ${found.usd:,.0f} per month with shared commitments, ${saved:,.0f} less than with a mix of each",
        closing=tuple(_closing(found)),
        assumptions=found.assumptions,
        warnings=found.warnings,
        csv_rows=rows,
        exit_code=4 if (found.over_budget_usd or 0.0) > 0.0 else 0,
    )


def _closing(found: Portfolio) -> Iterator[str]:
    """Yield the budget, and the rates of the shared commitments and of each service's own."""
    over = found.over_budget_usd
    if over is not None:
        words = f"${over:,.0f} too much" if over > 0.0 else f"${-over:,.0f} are left"
        yield f"the budget of all services is ${found.budget_usd:,.0f} per month: {words}"
    yield from rates_texts(found.rates, "shared: ")
    yield from rates_texts(found.separate_rates, "separate: ")
