"""Money: `capplan compare`, `bill` and `cache`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import declared, grouped, measure, whole
from capplan.errors import unknown
from capplan.scenario.command_flags import BillFlags, CachePriceFlags

if TYPE_CHECKING:
    from capplan.fleet.answer import FleetAnswer
    from capplan.questions.fleet import AskedFleet
    from capplan.questions.money.who_pays import AskedBill
    from capplan.report.answer import Answer
    from capplan.scenario.scenario_file import Scenario

_API = typer.Option(
    "--api",
    metavar="PROVIDER/MODEL",
    help="Hosted API, such as openai/gpt-5; repeatable; default: all listed ones that serve the scenario's model.",
)


@grouped
def compare_command(
    *,
    scenario: o.ScenarioOfPlan = None,
    api: Annotated[list[str] | None, _API] = None,
    plan_file: o.PlanFile = None,
    settings: o.Settings = None,
    picture: o.Picture = None,
    offline: o.Offline = False,
    to: o.Assuming,
) -> int:
    """Compare a month of a scenario's fleet with hosted APIs, prompt caching included, and find the break-even traffic."""
    from capplan.keys import current_day
    from capplan.questions.fleet import prices_of_others
    from capplan.questions.fleet_answer import fleet_for
    from capplan.questions.money.comparison import asked_comparison, asked_prices
    from capplan.questions.plans.plan_file import asked_of_plan
    from capplan.report.answers.compare import compare_answer
    from capplan.report.charts.of_answers import cost_chart
    from capplan.report.show import row_progress, show_drawn

    asked, answer = asked_of_plan(scenario, plan_file, settings or (), offline=offline)
    prices = asked_prices(api or (), asked)
    with row_progress("plans") as progress:
        answer = answer or fleet_for(asked, progress)
    compared = asked_comparison(asked, answer, prices, current_day())
    shown = compare_answer(compared, asked.scenario.name, asked.scenario.file.currency)
    own = {group.hardware for group in compared.plan.groups}
    shown = replace(shown, counted=prices_of_others(asked, own))
    return show_drawn(shown, to, picture, lambda: [cost_chart(compared.comparison, asked.scenario.name)])


ROWS = ("class", "machine")

Billed = Annotated[BillFlags, declared(BillFlags, "The bill")]


def _refuse_odd_bill(context: typer.Context, billed: BillFlags) -> None:
    """Raise the error for options of a bill that say nothing together, or that have no such value."""
    from capplan.report.focus import VERSIONS

    if billed.actual is not None:
        unread = ("month", "focus", "by", "focus_version", "metrics")
        o.refuse_unread(
            context, unread, "is of a bill of the plan, and --actual has its own months; leave it out"
        )
    if billed.others:
        of_one = ("month", "focus", "by", "focus_version", "metrics", "actual")
        o.refuse_unread(context, of_one, "is of the bill of one plan; leave it or --with out")
    elif billed.budget is not None:
        o.refuse_unread(
            context, ("budget",), "is of several services; add --with FILE, or state budget in the scenario"
        )
    if billed.focus is None:
        o.refuse_unread(context, ("by",), "is what the rows of the FOCUS bill are of; give --focus FILE")
        o.refuse_unread(context, ("focus_version",), "is of the FOCUS bill; give --focus FILE")
    if billed.by not in ROWS:
        raise unknown("row", billed.by, ROWS, place="--by")
    if billed.focus_version not in VERSIONS:
        raise unknown("version of FOCUS", billed.focus_version, VERSIONS, place="--focus-version")


def _write(bill: "AskedBill", scene: "Scenario", period: tuple[int, int] | None, billed: BillFlags) -> None:
    """Write the files of a bill for other tools."""
    from capplan.report.cost_metrics import cost_metrics
    from capplan.report.focus import focus_text
    from capplan.report.show import send

    if billed.focus and period:
        text = focus_text(bill, scene, period, billed.by, billed.focus_version)
        send(text, billed.focus, option="--focus")
    if billed.metrics:
        send(cost_metrics(bill, scene), billed.metrics, option="--metrics")


def _shared(asked: "AskedFleet", answer: "FleetAnswer", billed: BillFlags, *, offline: bool) -> "Answer":
    """Return the bill of several services that share commitments."""
    from capplan.keys import current_day
    from capplan.questions.money.portfolio import asked_portfolio
    from capplan.questions.plans.plan_file import answered
    from capplan.report.answers.portfolio import portfolio_answer

    others = [answered(path, offline=offline)[:2] for path in billed.others or ()]
    return portfolio_answer(asked_portfolio([(asked, answer), *others], billed.budget, current_day()))


@grouped
def bill_command(
    context: typer.Context,
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    settings: o.Settings = None,
    billed: Billed,
    offline: o.Offline = False,
    to: o.Assuming,
) -> int:
    """Show who pays for a scenario's fleet, by class and tenant, by request, user and conversation; --focus exports it."""
    from capplan.keys import current_day
    from capplan.questions.fleet import prices_of_others
    from capplan.questions.fleet_answer import fleet_for
    from capplan.questions.money.actual import paid_months, paid_of
    from capplan.questions.money.who_pays import asked_bill, bill_month
    from capplan.questions.plans.plan_file import asked_of_plan
    from capplan.report.answers.actual import actual_answer
    from capplan.report.answers.compare import bill_answer
    from capplan.report.show import row_progress, show

    _refuse_odd_bill(context, billed)
    asked, answer = asked_of_plan(scenario, plan_file, settings or (), offline=offline)
    scene, focus, month, today = asked.scenario, billed.focus, billed.month, current_day()
    period = bill_month(month, scene.classes, "--month" if month else "--focus") if focus or month else None
    paid = paid_of(billed.actual, scene) if billed.actual else None
    with row_progress("plans") as progress:
        answer = answer or fleet_for(asked, progress)
    if billed.others:
        return show(_shared(asked, answer, billed, offline=offline), to)
    if paid is not None:
        months, bill = paid_months(asked, answer, paid, today)
        shown = actual_answer(months, bill, paid, scene.name)
    else:
        bill = asked_bill(asked, answer, today, period)
        _write(bill, scene, period, billed)
        shown = bill_answer(bill, scene, str(focus) if focus else None, period)
    priced = prices_of_others(asked, {group.hardware for group in bill.plan.groups})
    return show(replace(shown, counted=priced), to)


_PREFIX_TOKENS = whole("--prefix-tokens", of="tokens", metavar="TOKENS", says="Length of the shared prefix.")
_REQUESTS_PER_DAY = measure("--requests-per-day", "COUNT", metavar="N", says="Requests with this prefix.")
_SUFFIX_TOKENS = whole(
    "--suffix-tokens", of="tokens", least=0, metavar="TOKENS", says="Input of a request after the prefix."
)
_TIME_TO_LIVE = measure(
    "--time-to-live",
    says="Time that a prefix is kept after its last use, such as '5 min'; default: the provider's, else 5 min.",
)
Price = Annotated[CachePriceFlags, declared(CachePriceFlags, "Traffic and prices")]


@grouped
def cache_command(
    *,
    prefix_tokens: Annotated[int, _PREFIX_TOKENS],
    requests_per_day: Annotated[float, _REQUESTS_PER_DAY],
    price: Price,
    suffix_tokens: Annotated[int, _SUFFIX_TOKENS] = 0,
    time_to_live: Annotated[float | None, _TIME_TO_LIVE] = None,
    to: o.Output,
) -> int:
    """Show what prompt caching at a hosted API saves for a shared prefix, and from which request on it pays."""
    from capplan.keys import current_day
    from capplan.money.token_price import cached_prefix
    from capplan.questions.money.comparison import cache_price
    from capplan.questions.plans.plan_check import (
        age_warnings,
        change_warnings,
        life_warnings,
    )
    from capplan.report.answers.compare import cache_answer
    from capplan.report.show import show

    today = current_day()
    offer = cache_price(price, prefix_tokens, time_to_live, today)
    day = cached_prefix(offer, prefix_tokens, requests_per_day, suffix_tokens, time_to_live)
    warnings = [
        *(age_warnings([offer], today) if price.api else ()),
        *change_warnings([offer]),
        *life_warnings([offer], time_to_live),
    ]
    return show(cache_answer(day, offer, prefix_tokens, time_to_live, warnings), to)


_PRICE_FILES = typer.Argument(
    metavar="FILE",
    help="Price list in JSON of LiteLLM, AWS, Azure or GCP, or a CSV of your own offers; repeatable.",
)
_ACTION = typer.Argument(metavar="ACTION", help="update: read price lists into your own layer.")
_PRICE_DAY = typer.Option("--date", metavar="DAY", help="Date of files that state none, such as 2026-11-01.")
_PROJECT = typer.Option("--project", help="Write to the folder .capplan here instead of the one of the user.")
_PLANS = typer.Option(
    "--plan", metavar="PLAN", help="Plan file whose dollars are shown before and after; repeatable."
)


@grouped
def prices_command(
    *,
    action: Annotated[str, _ACTION],
    files: Annotated[list[Path], _PRICE_FILES],
    date: Annotated[str | None, _PRICE_DAY] = None,
    project: Annotated[bool, _PROJECT] = False,
    plans: Annotated[list[Path] | None, _PLANS] = None,
    offline: o.Offline = False,
    to: o.Output,
) -> int:
    """Read price lists that you have into a dated layer of your own over the lists that ship, and show what changed in dollars."""
    from capplan.keys import current_day
    from capplan.questions.money.own_prices import plan_costs, price_update
    from capplan.report.answers.own_prices import price_update_answer
    from capplan.report.show import show, write_whole

    if action != "update":
        raise unknown("action", action, ("update",), place="ACTION")
    today = current_day()
    update = price_update(files, date, project=project)
    before = plan_costs(plans or (), today, offline=offline)
    for path, text in update.texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return show(price_update_answer(update, before, plan_costs(plans or (), today, offline=offline)), to)
