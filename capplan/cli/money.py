"""Money: `capplan compare`, `bill` and `cache`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from capplan.cli import options as o
from capplan.cli.options import Group, grouped, measure, whole
from capplan.errors import unknown
from capplan.scenario.command_flags import CachePriceFlags

Api = Annotated[
    list[str] | None,
    typer.Option(
        "--api",
        metavar="PROVIDER/MODEL",
        help="Hosted API, such as openai/gpt-5; repeatable; default: all listed ones that serve the scenario's model.",
    ),
]


@grouped
def compare_command(
    *,
    scenario: o.ScenarioOfPlan = None,
    api: Api = None,
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
    from capplan.report.charts.static import cost_picture
    from capplan.report.show import row_progress, show, shown_anyway

    asked, answer = asked_of_plan(scenario, plan_file, settings or (), offline=offline)
    prices = asked_prices(api or (), asked)
    with row_progress("plans") as progress:
        answer = answer or fleet_for(asked, progress)
    compared = asked_comparison(asked, answer, prices, current_day())
    shown = compare_answer(compared, asked.scenario.name, asked.scenario.file.currency)
    own = {group.hardware for group in compared.plan.groups}
    shown = replace(shown, counted=prices_of_others(asked, own))
    if picture:
        with shown_anyway(shown, to):
            cost_picture(picture, compared.comparison, asked.scenario.name)
    return show(shown, to)


ROWS = ("class", "machine")

Focus = Annotated[
    Path | None,
    typer.Option(
        "--focus",
        metavar="FILE",
        help="Also write the bill as CSV in the columns of FOCUS 1.2, for FinOps tools.",
    ),
]
Month = Annotated[
    str | None,
    typer.Option(
        "--month",
        metavar="YYYY-MM",
        help="Month of the bill, with its own hours; default: the mean month, for --focus the next one.",
    ),
]

By = Annotated[
    str,
    typer.Option("--by", metavar="ROWS", help="Rows of the FOCUS bill: class or machine."),
]


@grouped
def bill_command(
    context: typer.Context,
    *,
    scenario: o.ScenarioOfPlan = None,
    plan_file: o.PlanFile = None,
    settings: o.Settings = None,
    focus: Focus = None,
    month: Month = None,
    by: By = "class",
    offline: o.Offline = False,
    to: o.Assuming,
) -> int:
    """Show who pays for a scenario's fleet, by class and tenant, by request, user and conversation; --focus exports it."""
    from capplan.keys import current_day
    from capplan.questions.fleet import prices_of_others
    from capplan.questions.fleet_answer import fleet_for
    from capplan.questions.money.who_pays import asked_bill, bill_month
    from capplan.questions.plans.plan_file import asked_of_plan
    from capplan.report.answers.compare import bill_answer
    from capplan.report.focus import focus_text
    from capplan.report.show import row_progress, send, show

    if focus is None:
        o.refuse_unread(context, ("by",), "is what the rows of the FOCUS bill are of; give --focus FILE")
    if by not in ROWS:
        raise unknown("row", by, ROWS, place="--by")
    asked, answer = asked_of_plan(scenario, plan_file, settings or (), offline=offline)
    place = "--month" if month else "--focus"
    period = bill_month(month, asked.scenario.classes, place) if focus or month else None
    with row_progress("plans") as progress:
        bill = asked_bill(asked, answer or fleet_for(asked, progress), current_day(), period)
    if focus and period:
        text = focus_text(
            bill, asked.scenario.name, asked.scenario.model, period, asked.scenario.file.currency, by
        )
        send(text, focus, option="--focus")
    written = str(focus) if focus else None
    shown = bill_answer(bill, asked.scenario.name, written, asked.scenario.file.currency, period)
    own = {group.hardware for group in bill.plan.groups}
    return show(replace(shown, counted=prices_of_others(asked, own)), to)


PrefixTokens = Annotated[
    int, whole("--prefix-tokens", of="tokens", metavar="TOKENS", says="Length of the shared prefix.")
]
RequestsPerDay = Annotated[
    float, measure("--requests-per-day", "COUNT", metavar="N", says="Requests with this prefix.")
]
SuffixTokens = Annotated[
    int,
    whole(
        "--suffix-tokens", of="tokens", least=0, metavar="TOKENS", says="Input of a request after the prefix."
    ),
]
TimeToLive = Annotated[
    float | None,
    measure(
        "--time-to-live",
        says="Of the cached prefix since its last use, such as '5 min'; default: the provider's, else 5 min.",
    ),
]
_OF = "Dollars per million tokens of"
Price = Annotated[
    CachePriceFlags,
    Group(
        "Traffic and prices",
        api=typer.Option("--api", metavar="PROVIDER/MODEL", help="Hosted API, such as openai/gpt-5."),
        input_price=measure("--input-price", "USD_PER_MILLION", metavar="PRICE", says=f"{_OF} plain input, instead of --api."),
        write_price=measure("--write-price", "USD_PER_MILLION", metavar="PRICE", says=f"{_OF} cache writes; default: that of input."),
        read_price=measure("--read-price", "USD_PER_MILLION", metavar="PRICE", says=f"{_OF} cache reads."),
        prices=typer.Option("--prices", metavar="FILE", help="Token-price YAML, or price file of LiteLLM or genai-prices, instead of the shipped list."),
        date=typer.Option("--date", metavar="DAY", help="Date of a list that states none, such as the files of LiteLLM and genai-prices."),
    ),
]  # fmt: skip


@grouped
def cache_command(
    *,
    prefix_tokens: PrefixTokens,
    requests_per_day: RequestsPerDay,
    price: Price,
    suffix_tokens: SuffixTokens = 0,
    time_to_live: TimeToLive = None,
    to: o.Output,
) -> int:
    """Show what prompt caching at a hosted API saves for a shared prefix, and from which request on it pays."""
    from capplan.keys import current_day
    from capplan.money.hosted import cached_prefix
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
