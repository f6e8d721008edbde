"""The planning review of a scenario as data: its first screen, and sections of text, tables and pictures that every writer prints."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date as day
from math import inf
from typing import Any, Literal

from capplan.fleet.answer import CLEARLY_SURER, SMALL_EXTRA, FleetAnswer
from capplan.fleet.plan import Plan
from capplan.fleet.review import PlanDetail, target_margins
from capplan.hardware.device import Source
from capplan.keys import first_day
from capplan.money.ledger import total_usd
from capplan.money.price import HOURS_PER_MONTH, TERM_YEARS
from capplan.questions.fleet import AskedFleet
from capplan.questions.money.energy import Outlook, outlook_of
from capplan.questions.plans.facts import details_of
from capplan.questions.sensitivity import Sensitivity, sensitivity_of
from capplan.readers.catalogue.prices import records_of
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet import decision_tables, groups_tables
from capplan.report.answers.fleet_money import class_texts, mix_usd_per_month, paid_usd
from capplan.report.answers.fleet_words import (
    acquired_text,
    budget_text,
    budget_texts,
    cost_texts,
    measuring_texts,
    month_titles,
    owned_cost_text,
    pools_closing,
    pools_tables,
    purchase_text,
    relaxation_text,
    sure,
    surer_text,
    tight_texts,
)
from capplan.report.answers.order import ordered_texts, owned_texts
from capplan.report.answers.waterfall import waterfall_tables
from capplan.report.charts.of_answers import Chart, amount_text, certainty_chart, waterfall_chart
from capplan.report.screen_units import shown_money
from capplan.scenario.scenario_file import Scenario


@dataclass(frozen=True, slots=True)
class Section:
    """One heading with what stands under it, in this order."""

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Chart, ...] = ()
    lines: tuple[str, ...] = ()
    code: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Review:
    """A whole page."""

    title: str
    decision: str
    sections: tuple[Section, ...]
    answer: Answer
    """The review for JSON, CSV and the terminal."""
    byline: str = ""
    """Versions, dates, author."""
    sensitivity: Sensitivity = field(default_factory=Sensitivity)
    """Points of the slider of a page."""
    figures: tuple[tuple[str, str], ...] = ()
    """The numbers of the decision, each with what it is."""
    first_screen: int = 0
    """Sections that a reader sees at once."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the sections are written from."""

    asked: AskedFleet
    answer: FleetAnswer
    command: str
    """The command line as it was typed."""
    model_source: Source
    margins: tuple[tuple[Mapping[str, Any], ...], ...]
    """Margins of every plan."""
    details: tuple[PlanDetail, ...] = ()
    """Details of the chosen plan, one for each group; empty where there is no plan."""
    outlook: Outlook = field(default_factory=Outlook)
    """Commitments, growth and energy of the plans, and their replicas over time."""
    sensitivity: Sensitivity = field(default_factory=Sensitivity)
    date: str | None = None
    """Date of the page, YYYY-MM-DD; never that of the clock, so that the same inputs give the same bytes."""
    author: str | None = None
    levers: Answer | None = None
    """What every lever is worth, where that was asked for."""

    @property
    def chosen(self) -> Plan | None:
        """The plan to decide on."""
        return self.answer.chosen

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All plans, the one to decide on first."""
        chosen = self.chosen
        others = [plan for plan in self.answer.plans if plan != chosen]
        return (*((chosen,) if chosen else ()), *others)


def findings(
    asked: AskedFleet,
    answer: FleetAnswer,
    command: str,
    source: Source,
    *,
    date: str | None = None,
    author: str | None = None,
    levers: Answer | None = None,
    others: bool = True,
) -> Findings:
    """Return everything that a review needs to know about the plans of a search.

    Parameters
    ----------
    asked : the question
    answer : its plans
    command : as it was typed
    source : of the model
    date, author : of the page, as people say them
    levers : what every lever is worth, where that was asked for
    others : whether the plans of other devices are taken at other traffic too
    """
    chosen = answer.chosen
    found = Findings(asked, answer, command, source, margins=())
    return replace(
        found,
        margins=tuple(target_margins(plan, asked.question) for plan in found.plans),
        details=details_of(asked, chosen) if chosen else (),
        outlook=outlook_of(asked, answer, _page_day(asked.scenario, date)),
        sensitivity=sensitivity_of(asked, answer, others=others),
        date=date,
        author=author,
        levers=levers,
    )


def _page_day(scenario: Scenario, date: str | None) -> day | None:
    """Return the day that the prices of a page are judged old by: the one of the page, else that of the newest offer, so that the same inputs give the same page."""
    if date is not None:
        return day.fromisoformat(date)
    days = (first_day(record.date) for record in records_of(scenario)[0] if record.date)
    return max(days, default=None)


def anchor(title: str) -> str:
    """Return a title as an id and as a part of a file's name.

    Examples
    --------
    >>> anchor("Memory of one b200 (GB)")
    'memory-of-one-b200-gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


MONTHS = 12
_SHOWN = ("target", "verdict", "met_probability", "limit_s", "predicted_s", "low_s", "high_s")
_LIKELY = (
    (0.99, "virtually certain"), (0.95, "extremely likely"), (0.90, "very likely"), (0.66, "likely"),
    (0.33, "about as likely as not"), (0.10, "unlikely"), (0.0, "very unlikely"),
)  # fmt: skip
"""Least probability -> words: Mastrandrea et al. 2010, IPCC guidance note on consistent treatment of uncertainties, table 1."""


def likely(probability: float) -> str:
    """Return a probability in words.

    Examples
    --------
    >>> likely(0.87), likely(0.995), likely(0.5), likely(0.0)
    ('likely', 'virtually certain', 'about as likely as not', 'very unlikely')
    """
    return next(words for least, words in _LIKELY if probability >= least)


def shown(name: str, value: float) -> str:
    """Format one value with its unit, for people.

    Examples
    --------
    >>> shown("ttft_s", 0.519), shown("request_rate", 20.0)
    ('519 ms', '20.0 req/s')
    """
    return amount_text(name, value, value)


def decision_sentence(given: Findings) -> str:
    """Return what to buy, how many, for how much, and how surely it meets its targets."""
    plan, scenario = given.chosen, given.asked.scenario
    if plan is None:
        names = ", ".join(device.name for device in scenario.fleet.hardware)
        budget = f" and {budget_text(scenario)}" if given.answer.over_budget is not None else ""
        return f"No fleet of {names} serves {scenario.name} within its targets{budget}; do not buy on these terms."
    owned = all(group.price is not None and group.price.commitment == "owned" for group in plan.groups)
    said = acquired_text(plan, "buy" if owned else "rent")
    mixed = mix_usd_per_month(given.outlook)
    cost = (
        f" for {', '.join(cost_texts(plan, mixed)) if plan.usd_per_month is not None else 'an unknown price'}"
    )
    if free := owned_cost_text(plan):
        cost = f"{cost}, {free}" if plan.usd_per_month else f", {free}"
    return f"{said[:1].upper()}{said[1:]}{cost}. {_held_text(given, plan)}"


def decision_figures(given: Findings) -> tuple[tuple[str, str], ...]:
    """Return the numbers of the decision, each with what it is: dollars, GPUs, chance and dollars per million tokens."""
    plan = given.chosen
    if plan is None:
        return ()
    money, per_month = plan.money, mix_usd_per_month(given.outlook) or plan.usd_per_month
    usd, span = (
        (money.usd_per_job, "for the job") if money and money.usd_per_job else (per_month, "per month")
    )
    each = money and money.usd_per_million_output_tokens_at_mean
    figures = (
        (shown_money(usd, "$") if usd is not None else "", span),
        (f"{plan.gpus:,}", f"GPUs: {plan.hardware}"),
        (sure(plan.slo_met_probability) if given.margins[0] else "", "chance to meet the SLO targets"),
        (shown_money(each, "$") if each else "", "per million output tokens"),
    )
    return tuple(
        (f"${text}" if at in (0, 3) else text, what) for at, (text, what) in enumerate(figures) if text
    )


def _held_text(given: Findings, plan: Plan) -> str:
    margins = given.margins[0]
    if not margins:
        return "No target is set, so it is sized for throughput only."
    chance = plan.slo_met_probability
    what = {1: "its target", 2: "both targets"}.get(len(margins), f"all {len(margins)} targets")
    more = surer_text(plan, given.answer)
    return f"It is {likely(chance)} to meet {what} ({sure(chance)}){f'; {more}' if more else ''}."


def missing_section(given: Findings) -> Section:
    """Return what would have to give for a plan."""
    relaxed = map(relaxation_text, given.answer.relaxations)
    return Section("What would have to give", lines=(*budget_texts(given.asked, given.answer), *relaxed))


def sentence(text: str) -> str:
    """Return a line of the screen as a sentence of the page."""
    return f"{text[:1].upper()}{text[1:]}."


def decision_section(given: Findings, plan: Plan) -> Section:
    """Return what the plan costs a month and a year."""
    if plan.usd_per_month is None:
        return Section(
            "What it costs", text=("No price of this device is known; name one: prices.per_gpu_hour.",)
        )
    text = (
        "Low is the fleet for replicas as fast as in the best tenth of measured cases, at the lowest offers of its GPUs; high is the fleet for replicas "
        "as slow as in the worst tenth, at the highest offers. Both have the same headroom and spares"
        f"{'; the cost of the mix is scaled by the same ratios' if given.outlook.mixes else ''}.",
    )
    rows = [_cost_row(given, plan, span, times) for span, times in _spans(plan)]
    endless = "There is no high end: in the worst tenth of the cases no number of replicas meets the targets."
    return Section(
        "What it costs",
        text=(
            *text,
            *([endless] if plan.usd_per_month_high == inf else []),
            *_paid_texts(given, plan),
            *map(sentence, owned_texts(given.asked, given.answer)),
            *map(sentence, ordered_texts([plan])),
            *_mix_texts(given),
            *_total_texts(given, plan),
        ),
        tables=(Table(rows, titles={"span": "", "likely_usd": "planned"}),),
    )


def waterfall_section(given: Findings, plan: Plan) -> Section:
    """Return the GPUs and the cost that each cause adds to the plan; nothing if no cause adds any to its first replicas."""
    tables = waterfall_tables(plan, month_titles(given.answer))
    return Section("Why this number", pictures=(waterfall_chart(plan),) if tables else (), tables=tables)


def _mix_texts(given: Findings) -> tuple[str, ...]:
    """Return what the mix of commitments spares and commits, where the scenario names some."""
    if not given.outlook.mixes:
        return ()
    asked = given.outlook.mixes[0]
    mix, plan = asked.mix, asked.plan
    cost = f"All {plan.gpus} GPUs at all hours, without commitments: ${plan.usd_per_month or 0.0:,.0f} per month."
    bound = [
        f"commits {part.gpus} GPUs for {_term_text(part.offer.name, part.usd_per_hour)}"
        for part in mix.parts
        if part.offer.name in TERM_YEARS
    ]
    bound += [f"buys {part.gpus} GPUs" for part in mix.parts if part.offer.name == "owned"]
    hourly = sum(part.gpus for part in mix.parts if part.offer.name in _BY_THE_HOUR)
    rest = f"; you pay for the other {hourly} GPUs by the hour" if hourly else ""
    said = f"{cost} The mix {' and '.join(bound)}{rest}." if bound else f"{cost} The mix commits nothing."
    if asked.short_fraction:
        said += f" {asked.short_fraction:.1%} of the requests arrive while replicas start, and find fewer than they need."
    return (said,)


def machines_usd(given: Findings, plan: Plan) -> float:
    """Return what the first sentence says of the machines: the cost of a month, by the mix if there is one, or of the job [$]."""
    paid = paid_usd(given.answer, given.outlook) if plan == given.chosen else {}
    return next(iter(paid.values()), plan.usd_per_month or 0.0)


def _total_texts(given: Findings, plan: Plan) -> tuple[str, ...]:
    """Return the total cost where it has lines besides the machines."""
    lines = given.outlook.total
    machines = machines_usd(given, plan)
    total = total_usd(lines) if lines else 0.0
    if not lines or abs(total - machines) < 0.5:  # dollars
        return ()
    span = "for the job" if plan.is_of_job else "per month"
    return (f"With staff, overhead and the other lines of the total cost: ${total:,.0f} {span}.",)


_BY_THE_HOUR = {"on-demand": "on demand", "spot": "at spot prices"}
"""Commitments that end with an hour, and how they are paid."""


def _term_text(commitment: str, usd_per_hour: float) -> str:
    years = TERM_YEARS[commitment]
    usd = usd_per_hour * HOURS_PER_MONTH * MONTHS * years
    return f"{years:g} year{'s' if years > 1.0 else ''} (${usd:,.0f} until the end of the term)"


def _paid_texts(given: Findings, plan: Plan) -> Iterator[str]:
    """Yield whom the plan pays, how, and what that commits; of a mix of commitments `_mix_texts` says it."""
    order, prices = plan.order, {group.price for group in plan.groups if group.price is not None}
    commitments = {price.commitment for price in prices}
    sellers = {line.machine.provider for line in order.lines if line.machine.source} if order else set()
    if given.outlook.mixes or len(commitments) != 1 or not sellers:
        return
    (commitment,) = commitments
    seller = " and ".join(sorted(sellers))
    if commitment in TERM_YEARS:
        yield f"You commit to {seller} for {_term_text(commitment, plan.usd_per_hour or 0.0)}."
        return
    if commitment not in _BY_THE_HOUR:
        return
    taken = " The provider may take machines back at any time." if commitment == "spot" else ""
    yield f"You pay {seller} by the hour, {_BY_THE_HOUR[commitment]}: the plan commits nothing beyond an hour.{taken}"


def _spans(plan: Plan) -> tuple[tuple[str, float], ...]:
    """Return what is paid for, and how many times the cost of a month it is."""
    if plan.money is not None and plan.money.usd_per_job is not None and plan.usd_per_month:
        return ((f"the job of {plan.money.job_hours:g} h", plan.money.usd_per_job / plan.usd_per_month),)
    return (("per month", 1.0), ("per year", float(MONTHS)))


def _cost_row(given: Findings, plan: Plan, span: str, times: float) -> dict[str, object]:
    """Return the cost of a span with its range: that of the replicas, at the lowest and the highest offers."""
    mix, rented = mix_usd_per_month(given.outlook), plan.usd_per_month or 0.0
    planned = rented if mix is None else mix
    offers = _offer_ratios(given, plan)

    def end(usd: float | None, side: Literal["low", "high"]) -> float | None:
        if usd == inf:
            return None
        return times * planned * offers[side] * (usd / rented if usd is not None and rented else 1.0)

    return {
        "span": span,
        "likely_usd": times * planned,
        "low_usd": end(plan.usd_per_month_low, "low"),
        "high_usd": end(plan.usd_per_month_high, "high"),
    }


def _offer_ratios(given: Findings, plan: Plan) -> dict[Literal["low", "high"], float]:
    """Return what the plan costs at the lowest and at the highest offers, over what it costs; one if a scenario states every price."""
    ends: tuple[Literal["low", "high"], ...] = ("low", "high")
    if given.outlook.mixes:
        mix = given.outlook.mixes[0].mix
        return {
            side: mix.usd_per_hour_at(side) / mix.usd_per_hour if mix.usd_per_hour else 1.0 for side in ends
        }
    costs = plan.offers
    return {side: costs[side][0] / plan.usd_per_hour if costs and plan.usd_per_hour else 1.0 for side in ends}


def verdicts_section(given: Findings, plan: Plan) -> Section:
    """Return a plain verdict for each target, with the numbers behind it."""
    if not given.margins[0]:
        return Section("Does it hold")
    rows = [
        {"target": margin["target"], "verdict": verdict(margin["met_probability"])}
        | {"met_probability": margin["met_probability"], **margin}
        for margin in given.margins[0]
    ]
    predicted = ("predicted_s", "low_s", "high_s", "margin_fraction", "met_probability")
    unmeasured = kernels_label(plan) == "assumed"
    assumed = frozenset((i, name) for i in range(len(rows)) for name in predicted if unmeasured)
    chance, confidence = plan.slo_met_probability, given.asked.scenario.slo.confidence
    enough = "at least" if chance >= confidence else "less than"
    return Section(
        "Does it hold",
        text=(
            *(f"{target_words(row)}: {row['verdict']}." for row in rows),
            *(f"{text}." for text in class_texts(plan, given.asked.scenario.slo)),
            f"All targets together hold with a probability of {sure(chance)}, {enough} the {confidence:.0%} that the scenario asks for. "
            "Low and high are the latency of replicas that are as fast as in the best tenth of the measured cases, and as slow as in the worst tenth: "
            "the probability rests on the same cases, so it is 90% or more exactly where high is within the limit.",
        ),
        tables=(
            Table(rows, shown=_SHOWN, titles={"met_probability": "probability"}, assumed=assumed),
            *groups_tables(plan),
        ),
    )


def kernels_label(plan: Plan) -> str:
    """Return whether all kernels of a plan were measured on their devices, or some are assumed."""
    return "assumed" if any(group.label == "assumed" for group in plan.groups) else "measured"


def target_words(margin: Mapping[str, Any]) -> str:
    """Return a target as a person says it, with its limit."""
    names = {
        "ttft": "Time to first token", "tpot": "Time per output token", "itl": "Time between tokens", "e2e": "Whole response",
    }  # fmt: skip
    metric, _, statistic = margin["target"].partition("_")
    of = "mean" if statistic == "mean" else f"{statistic[1:]}% of requests"
    return f"{names[metric]}, {of}, at most {shown('s', margin['limit_s'])} ({margin['target']})"


def verdict(probability: float) -> str:
    """Return whether a target holds, in words.

    Examples
    --------
    >>> verdict(0.87), verdict(0.4), verdict(0.05)
    ('likely to hold', 'about as likely as not to hold', 'very unlikely to hold')
    """
    return f"{likely(probability)} to hold"


def certainty_section(given: Findings) -> Section:
    """Return what the cheapest fleet costs at each confidence."""
    _, table, steps = decision_tables(given.answer, promised=bool(given.margins and given.margins[0]))
    if not table.rows:
        return Section("What required confidence costs")
    chart = None if "usd_per_job" in table.shown else certainty_chart(given.answer.certainty)
    return Section(
        "What required confidence costs",
        text=(
            "The cheapest fleet that meets all targets, by required confidence; then more replicas of the recommended plan.",
            *map(sentence, (*measuring_texts(given.answer), *tight_texts(given.answer))),
        ),
        tables=(untitled(table), steps),
        pictures=() if chart is None else (chart,),
    )


def untitled(table: Table) -> Table:
    """Return a table under the heading of its section, with all of its columns."""
    return replace(table, title="", spare=())


def choices_section(given: Findings, plan: Plan) -> Section:
    """Return the three choices, and why one of them is recommended; separate pools next to identical replicas, if pools are recommended."""
    choices = given.answer.choices
    if plan.has_pools:
        both, *_ = pools_tables(given.answer)
        titles = dict(both.titles) | {"way": ""}
        closing = map(sentence, pools_closing(given.answer))
        return Section("The choices", text=tuple(closing), tables=(replace(untitled(both), titles=titles),))
    if choices is None:
        return Section("The three choices")
    promised = bool(given.margins[0])
    table = decision_tables(given.answer, promised=promised)[0]
    rule = (
        f" The rule: the cheapest plan, unless the chance to meet the SLO of a plan that costs less than {SMALL_EXTRA - 1.0:.0%} more "
        f"is at least {100.0 * CLEARLY_SURER:.0f} percentage points higher."
    )
    return Section(
        "The three choices",
        text=(
            f"Recommended: {purchase_text(choices.recommended)}; {choices.why}.{rule if promised else ''}",
        ),
        tables=(untitled(table),),
    )
