"""What can be done about the number, in a review: the levers of the scenario, or what the page computed by itself."""

from pathlib import Path
from typing import Any

from capplan.errors import InputError
from capplan.fleet.plan import FleetAnswer, Plan
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.fleet.sensitivity import paid_hours
from capplan.questions.fleet import AskedFleet
from capplan.questions.levers.answer import Asking, checked_names, levers_beside, levers_of
from capplan.questions.plans.plan_row import plan_row
from capplan.readers.catalogue.scenarios import scenario_word
from capplan.readers.levers_file import AGAIN, LeverRow, LeversRow, levers_row, read_levers_file
from capplan.report.answer import Table
from capplan.report.answers.levers import levers_answer
from capplan.report.charts.records import Bar, Bars
from capplan.report.data_text import plain
from capplan.report.show import row_progress
from capplan.review.findings import Findings, Section
from capplan.review.moves import money_key, planned_usd

CHARTED = 10
"""Levers in the chart, most saved first."""
_TITLES = {
    "usd_per_month": "cost",
    "confidence_fraction": "SLO attainment",
    "risk": "what it takes",
    "reason": "why",
}
_FALLS = {
    "input length": "prompts rewritten, or less retrieved",
    "output length": "users get less text",
    "traffic": "the rest is turned away, cached or moved off the peak",
    "price of a GPU": "the cheapest offer known, wherever it is",
}
"""What it takes to lower one of the things that move the number."""


def wanted_levers(
    asking: Asking | None, file: Path | None, asked: AskedFleet, answer: FleetAnswer
) -> LeversRow | None:
    """Return what every lever is worth: tried by searches of its own, or as saved in a file; None where neither is wanted."""
    if file is not None:
        return saved_levers(file, answer.chosen)
    if asking is None:
        return None
    _, base = levers_beside(asking, asked, answer)
    with row_progress("levers") as progress:
        tried = levers_of(asking, base, checked_names(None), progress)
    return levers_row(plain(levers_answer(asking, base, tried).result))


def saved_levers(path: Path, plan: Plan | None) -> LeversRow:
    """Return the levers in a file; InputError where the plan that they were tried on is not the one of the page."""
    levers = read_levers_file(path)
    now = None if plan is None else plan_row(plan)
    if levers.base is None or now is None or any(now[key] != value for key, value in levers.base):
        was = "no plan" if levers.base is None else f"{levers.base.gpus} x {levers.base.hardware}"
        here = "no plan" if plan is None else f"{plan.gpus} x {plan.hardware}"
        raise InputError(f"{path}: was written for another plan ({was}, and the page has {here})\n  {AGAIN}")
    return levers


def levers_section(given: Findings) -> Section:
    """Return what every lever is worth, separately and combined, where that was asked for; else what the page itself computed."""
    if given.levers is None:
        return _own_section(given)
    levers = given.levers
    tried = [row for row in levers.levers if row.gpus is not None]
    missed = [_why(row) for row in levers.levers if row.applicable and row.gpus is None]
    idle = [_why(row) for row in levers.levers if not row.applicable]
    shown = ("lever", "change", "gpus", "usd_per_month", "usd_per_month_saved", "ttft_p95_s", "tpot_p95_s", "confidence_fraction", "risk")  # fmt: skip
    tables = (
        Table(_compared(levers), title="As it is, and at best", titles=_TITLES),
        Table(
            [_line(row) for row in tried],
            title="Each lever separately, most saved first",
            shown=shown,
            titles=_TITLES,
        ),
        Table(missed, title="No plan meets the targets", titles=_TITLES),
        Table(idle, title="Levers that do not apply, or were not tried", titles=_TITLES),
    )
    saving = [(row, row.usd_per_month_saved) for row in tried]
    bars = tuple(Bar(row.change, (("saved", usd),)) for row, usd in saving if usd is not None and usd > 0.0)
    return Section(
        "Levers",
        text=(
            "Each lever changes the scenario in one way and is sized by the same search as the plan as it is. "
            "Only levers that keep targets and traffic, need no capital and no interruptible machines are combined.",
            _best_text(levers),
        ),
        tables=tuple(table for table in tables if table.rows),
        pictures=(Bars("Saved by each lever separately", "usd_per_month", bars[:CHARTED]),) if bars else (),
    )


def _line(row: LeverRow) -> dict[str, Any]:
    return {**row.model_dump(exclude={"applicable", "reason"}), "confidence_fraction": row.confidence}


def _why(row: LeverRow) -> dict[str, Any]:
    return {"lever": row.lever, "change": row.change, "reason": row.reason}


def _compared(levers: LeversRow) -> list[dict[str, Any]]:
    """Return the plan as it is and the best one."""
    before = levers.base_usd_per_month
    plans = {
        "as it is": (levers.base, before),
        "best combination": (levers.best if levers.best_levers else None, levers.best_usd_per_month),
    }
    return [
        {
            "choice": name,
            "hardware": plan.hardware,
            "gpus": plan.gpus,
            "usd_per_month": usd,
            "usd_per_month_saved": None if before is None or usd is None else before - usd,
        }
        for name, (plan, usd) in plans.items()
        if plan is not None
    ]


def _best_text(levers: LeversRow) -> str:
    if not levers.best_levers:
        return f"No combination of them costs less ({levers.combinations} were tried)."
    return f"The best of {levers.combinations} combinations: {', '.join(levers.best_levers)}."


def _own_section(given: Findings) -> Section:
    """Return what the page itself computed that lowers the bill, most saved first, and the command for all levers."""
    plan = given.chosen
    if plan is None or plan.usd_per_hour is None:
        return Section("Levers")
    planned = planned_usd(plan) or 0.0
    options = [*_lever_turns(given), *_lever_choices(given, plan)]
    key = money_key(plan)
    rows = [
        {"lever": what, "gpus": gpus, key: usd, "saved_usd": planned - usd, "price_to_pay": risk}
        for what, gpus, usd, risk in sorted(options, key=lambda option: option[2])
        if usd < planned
    ]
    return Section(
        "Levers",
        text=(
            "What would lower the bill among the cases above."
            if rows
            else "None of the cases above lowers the bill.",
            "The other levers (dtypes, caching, speculation, engine settings, commitments, their "
            "combination) each take a search of their own: --levers adds them to this page.",
        ),
        tables=(Table(rows, titles={key: "cost", "price_to_pay": "what it takes"}),) if rows else (),
        code=(f"capplan levers {scenario_word(given.asked.scenario.path)}",),
    )


def _lever_turns(given: Findings) -> list[tuple[str, int, float, str]]:
    return [
        (f"{swing.what} {swing.low.change}", swing.low.gpus, swing.low.usd, _FALLS[swing.what])
        for swing in given.sensitivity.swings
        if swing.what in _FALLS and swing.low.gpus is not None and swing.low.usd is not None
    ]


def _lever_choices(given: Findings, plan: Plan) -> list[tuple[str, int, float, str]]:
    """Return fewer certainties and spares as levers."""
    hours = paid_hours(plan)
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
