"""What moves the number in a review, and what can be done about it: the levers of the scenario, or what the page computed by itself."""

from collections import Counter
from collections.abc import Iterator
from math import inf
from typing import Any

from capplan.fleet.answer import DEAR, FleetAnswer
from capplan.fleet.plan import Plan
from capplan.fleet.sweep import FEW_RATIOS, Swing, Turn, WhatIf
from capplan.money.price import HOURS_PER_MONTH, ChosenPrice
from capplan.questions.fleet import AskedFleet
from capplan.questions.levers.answer import Asking, checked_names, levers_beside, levers_of
from capplan.questions.levers.cores import usable_cores
from capplan.questions.sensitivity import CHANGE, Sensitivity
from capplan.report.answer import Answer, Table, row_of
from capplan.report.answers.fleet_money import (
    cash_tables,
    cash_texts,
    commitments_closing,
    commitments_tables,
    currency_texts,
    paid_usd,
)
from capplan.report.answers.fleet_outlook import energy_tables, growth_closing, growth_tables
from capplan.report.answers.fleet_words import above, layout_text, month_titles, thin_texts, unsure
from capplan.report.answers.levers import levers_answer
from capplan.report.charts.of_answers import Bar, Bars, Line, Lines, Tornado, Turned, amount_text
from capplan.report.show import row_progress
from capplan.review.findings import Findings, Section, sentence


def outlook_section(given: Findings) -> Section:
    """Return the cheapest mix of commitments, the fleet of each month and the energy, where the scenario asks for them."""
    scenario, outlook = given.asked.scenario, given.outlook
    return Section(
        "Commitments, growth and energy",
        tables=(
            *commitments_tables(outlook.mixes),
            *growth_tables(outlook.growth),
            *cash_tables(outlook.cash),
            *energy_tables(outlook.energy),
        ),
        lines=(
            *commitments_closing(outlook.mixes),
            *currency_texts(scenario.file.currency, paid_usd(given.answer, outlook)),
            *growth_closing(outlook.growth, scenario),
            *cash_texts(outlook.cash),
        ),
    )


TRAFFIC = "If traffic changes"
"""Title of the section with the slider."""
FEW_OFFERS = 3
"""A price from fewer offers is a risk."""
_SHOWN_RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)


def by_plan(plan: Plan) -> str:
    """Return the name of a plan in charts: device and layout, without the number of devices."""
    return f"{plan.hardware} {layout_text(plan)}"


def money_key(plan: Plan) -> str:
    """Return the column of what a plan is paid for: a job or a month."""
    return "usd_per_job" if plan.is_of_job else "usd_per_month"


def moves_section(given: Findings, plan: Plan) -> Section:
    """Return how far the cost moves if one thing turns out otherwise."""
    swings = given.sensitivity.swings
    if not swings:
        return Section("What moves the number")
    key = money_key(plan)
    planned = planned_usd(plan)
    rows: list[dict[str, Any]] = [
        {"what": swing.what, "if_it_is": turn.change, "gpus": turn.gpus}
        | {key: turn.usd, f"more_{key}": above(turn.usd, planned)}
        for swing in swings
        for turn in (swing.low, swing.high)
    ]
    titles = {key: "cost", f"more_{key}": "more than planned", **month_titles(given.answer)}
    text = (
        f"One thing at a time, everything else as planned: traffic and lengths {CHANGE:.0%} lower and higher, the cheapest and the dearest offer of "
        "the device, and replicas as fast and as slow as the best and the worst tenth of measured cases. The layout stays; its replicas "
        "are counted again by the same simulation.",
        *(
            ["Lengths of sessions follow from their turns, and are left out."]
            if given.asked.question.demand.has_sessions
            else []
        ),
    )
    return Section(
        "What moves the number",
        text=text,
        tables=(Table(rows, titles=titles),),
        pictures=_tornado(plan, swings, key),
    )


def planned_usd(plan: Plan) -> float | None:
    """Return what a plan costs for its job or a month."""
    return None if plan.usd_per_hour is None else plan.usd_per_hour * plan.paid_hours


def _tornado(plan: Plan, swings: tuple[Swing, ...], key: str) -> tuple[Tornado, ...]:
    planned = planned_usd(plan)
    of, what = ("gpus", "GPUs") if planned is None else ("usd", "Cost")
    turned = tuple(
        Turned(
            each.what,
            getattr(each.low, of),
            getattr(each.high, of),
            _end_name(each.low),
            _end_name(each.high),
        )
        for each in swings
    )
    base, quantity = (float(plan.gpus), of) if planned is None else (planned, key)
    return (Tornado(f"{what} if one thing turns out otherwise", quantity, base, turned),)


def _end_name(turn: Turn) -> str:
    return turn.change.replace("as fast as the ", "").replace("as slow as the ", "")


def traffic_section(given: Findings, plan: Plan) -> Section:
    """Return every plan at other traffic, which the page lets a reader slide."""
    if not given.sensitivity.what_if:
        return Section(TRAFFIC)
    key, first = money_key(plan), given.sensitivity.what_if[0][1][0]
    rows = [
        {
            **row_of(point, "traffic_ratio request_rate"),
            "plan": by_plan(each),
            "gpus": point.gpus,
            key: point.usd,
        }
        for each, points in given.sensitivity.what_if
        for point in points
        if point.traffic_ratio in _SHOWN_RATIOS or len(points) == len(FEW_RATIOS)
    ]
    lines = tuple(
        Line(
            by_plan(each),
            tuple(point.request_rate for point in points),
            tuple(point.usd or 0.0 for point in points),
            labels=tuple(point_text(point, key) for point in points),
        )
        for each, points in given.sensitivity.what_if
        if charted(each, given.sensitivity)
    )
    today = first.request_rate / first.traffic_ratio
    titles = {
        "traffic_ratio": "times today",
        "request_rate": "peak",
        key: "cost",
        **month_titles(given.answer),
    }
    picture = Lines(
        "Cost by peak traffic", "request_rate", key, lines, mark=today, mark_name="today", x_title="peak traffic",
        y_title="cost",
    )  # fmt: skip
    return Section(
        TRAFFIC,
        text=(
            "The layout of a plan stays, and its replicas are counted again at every traffic by the simulation that sized it, with the same "
            "headroom, confidence and spares: every point is a simulation.",
        ),
        tables=(Table(rows, titles=titles),),
        pictures=(picture,) if lines else (),
    )


def charted(plan: Plan, sensitivity: Sensitivity) -> bool:
    """Return whether a plan has a line in the chart: its price is known, and it is not so expensive that it flattens the other lines."""
    costs = [each.usd_per_month for each, _ in sensitivity.what_if if each.usd_per_month is not None]
    return plan.usd_per_month is not None and plan.usd_per_month <= DEAR * min(costs)


def what_if_rows(sensitivity: Sensitivity) -> list[dict[str, Any]]:
    """Return every plan at every traffic that the slider of the page goes to."""
    return [
        {
            "hardware": plan.hardware,
            "plan": layout_text(plan),
            **row_of(point, "traffic_ratio request_rate gpus"),
            money_key(plan): point.usd,
        }
        for plan, points in sensitivity.what_if
        for point in points
    ]


def point_text(point: WhatIf, key: str) -> str:
    """Return a plan at some traffic in words."""
    cost = "" if point.usd is None else f", {amount_text(key, point.usd, point.usd)}"
    return f"{point.request_rate:.3g} req/s ({point.traffic_ratio:.2f} times today): {point.gpus} GPUs{cost}"


def risks_section(given: Findings, plan: Plan) -> Section:
    """Return what may go wrong, from what the plan rests on."""
    lines = [*_speed_risks(given, plan), *_price_risks(plan), *_operation_risks(given, plan)]
    return Section("Risks", lines=(*lines, *given.asked.warnings))


def _speed_risks(given: Findings, plan: Plan) -> Iterator[str]:
    if given.margins[0]:
        yield f"Replicas may be slower than predicted: with a probability of {unsure(plan.slo_met_probability)} a target is missed at the peak."
    if plan.usd_per_month_high == inf:
        yield "In the worst tenth of the cases no number of replicas of this layout that was tried meets the targets."
    names = dict.fromkeys(group.layout.device.name for group in plan.groups if group.label == "assumed")
    if names:
        yield f"Kernels of {' and '.join(names)} were not measured but borrowed; capplan calibrate on that GPU replaces them in at most 12 minutes."
    yield from map(sentence, thin_texts([plan]))


def _price_risks(plan: Plan) -> list[str]:
    """Return the risks of the prices, once for each device."""
    gpus: Counter[str] = Counter()
    for group in plan.groups:
        gpus[group.layout.device.name] += group.gpus - group.gpus_owned
    prices = {group.layout.device.name: group.quote for group in plan.groups}
    return [
        line for name, price in prices.items() if gpus[name] for line in _price_risk(name, gpus[name], price)
    ]


def _price_risk(name: str, gpus: int, price: ChosenPrice | None) -> Iterator[str]:
    if price is None:
        yield f"No price of {name} is known."
        return
    if price.offers < FEW_OFFERS and price.records:
        yield f"The price of {name} is {price.basis}: ask for a quote before deciding."
    dates = [record.date for record in price.records if record.date]
    if dates:
        yield f"The price is of {max(dates)}; availability of {gpus} x {name} is not known to capplan."


def _operation_risks(given: Findings, plan: Plan) -> Iterator[str]:
    limits = given.asked.scenario.fleet
    spare = min(group.spare_replicas for group in plan.groups)
    if plan.is_mix:
        counts = [
            f"{group.spare_replicas} of {group.replicas} on {group.layout.device.name}"
            for group in plan.groups
        ]
        yield (
            f"Spare replicas: {' and '.join(counts)}. A group does not stand in for the other: without a spare one, its part of the peak is "
            "not carried while a replica fails or is updated."
        )
    elif not spare:
        yield "There is no spare replica: while one fails or is updated, the peak is not carried."
    elif not plan.has_pools:
        yield f"{spare} of {plan.replicas} replicas may be down at the peak; a further one costs the headroom, then the targets."
    else:
        yield (
            f"{spare} replica{'s' if spare > 1 else ''} of each pool may be down at the peak; a further one costs the headroom, then the targets. "
            "A pool does not stand in for the other."
        )
    carried = plan.carried_requests_per_s
    yield (
        f"Traffic above {carried:.3g} req/s ({carried / plan.peak_requests_per_s - 1.0:+.0%} over the peak that was planned for) is more than "
        f"the busy replicas are predicted to carry{' within the targets' if given.margins[0] else ''}; "
        f"a new replica takes {limits.start_up_s:g} s to start."
    )


CHARTED = 10
"""Levers in the chart, most saved first."""
_FALLS = {
    "input length": "prompts rewritten, or less retrieved",
    "output length": "users get less text",
    "traffic": "the rest is turned away, cached or moved off the peak",
    "price of a GPU": "the cheapest offer known, wherever it is",
}
"""What it takes to lower one of the things that move the number."""


def tried_levers(asking: Asking, asked: AskedFleet, answer: FleetAnswer) -> Answer:
    """Return what `capplan levers` shows of the plan of a page: every lever, tried by a search of its own."""
    _, base = levers_beside(asking, asked, answer)
    with row_progress("levers") as progress:
        tried = levers_of(asking, base, checked_names(None), progress, cores=usable_cores())
    return levers_answer(asking, base, tried)


def levers_section(given: Findings) -> Section:
    """Return what every lever is worth, separately and combined, where that was asked for; else what the page itself computed."""
    if given.levers is None:
        return _own_section(given)
    levers, tries = given.levers.result, given.levers.result["combinations"]
    saving = [(row["change"], row["usd_per_month_saved"]) for row in levers["levers"]]
    bars = tuple(Bar(change, (("saved", usd),)) for change, usd in saving if usd is not None and usd > 0.0)
    return Section(
        "Levers",
        text=(
            "Each lever changes the scenario in one way and is sized by the same search as the plan as it is. "
            "Only levers that keep targets and traffic, need no capital and no interruptible machines are combined.",
            f"The best of {tries} combinations: {', '.join(levers['best_levers'])}."
            if levers["best_levers"]
            else f"No combination of them costs less ({tries} were tried).",
        ),
        tables=given.levers.tables,
        pictures=(Bars("Saved by each lever separately", "usd_per_month", bars[:CHARTED]),) if bars else (),
    )


def _own_section(given: Findings) -> Section:
    """Return what the page itself computed that lowers the bill, most saved first, and the command for all levers."""
    plan = given.chosen
    if plan is None or plan.usd_per_hour is None:
        return Section("Levers")
    planned = planned_usd(plan) or 0.0
    options = [
        (f"{swing.what} {swing.low.change}", swing.low.gpus, swing.low.usd, _FALLS[swing.what])
        for swing in given.sensitivity.swings
        if swing.what in _FALLS and swing.low.gpus is not None and swing.low.usd is not None
    ]
    options += _lever_choices(given, plan)
    key = money_key(plan)
    rows = [
        {"lever": what, "gpus": gpus, key: usd, "saved_usd": planned - usd, "price_to_pay": risk}
        for what, gpus, usd, risk in sorted(options, key=lambda option: option[2])
        if usd < planned
    ]
    titles = {key: "cost", "price_to_pay": "what it takes", **month_titles(given.answer)}
    lower = "What would lower the bill among the cases above."
    return Section(
        "Levers",
        text=(
            lower if rows else "None of the cases above lowers the bill.",
            "The other levers (dtypes, caching, speculation, engine settings, commitments, their "
            "combination) each take a search of their own: --levers adds them to this page.",
        ),
        tables=(Table(rows, titles=titles),),
        code=(f"capplan levers {given.asked.scenario.command_words()}",),
    )


def _lever_choices(given: Findings, plan: Plan) -> list[tuple[str, int, float, str]]:
    """Return fewer certainties and spares as levers."""
    hours = plan.paid_hours
    found = [
        (f"{row.confidence:.0%} required confidence: {row.gpus} x {row.hardware}", row.gpus, row.usd_per_month / HOURS_PER_MONTH * hours, "targets are missed more often")
        for row in given.answer.certainty
        if row.gpus is not None and row.usd_per_month is not None
    ]  # fmt: skip
    if any(group.spare_replicas for group in plan.groups):
        gpus = sum(group.busy_replicas * group.layout.devices for group in plan.groups)
        risk = "a failure at the peak costs the headroom, then the targets"
        found.append(("no spare replica", gpus, hours * plan.usd_per_hour_without_spares, risk))
    return found
