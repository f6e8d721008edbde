"""The answer of `capplan capacity`: the largest load, what limits it, and what changes add."""

from collections.abc import Sequence
from dataclasses import asdict

from capplan.assumption import Assumption
from capplan.questions.capacity import CapacityAnswer
from capplan.questions.fleet import AskedFleet
from capplan.questions.plans.plan_row import plan_row
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet_words import purchase_text
from capplan.report.answers.order import idle_texts, ordered_texts, used_by_texts

_NO_POOLS = "separate pools are not looked at here; capplan fleet looks at them for a stated load"
_CARRIED = ("request_rate", "users", "concurrency", "tokens_per_day")


def capacity_answer(asked: AskedFleet, answer: CapacityAnswer, assumed: Sequence[Assumption] = ()) -> Answer:
    """Return the largest load and what changes add; exit code 4 where not one request meets the targets.

    Parameters
    ----------
    asked : the question
    answer : what was found
    assumed : defaults of the command
    """
    plan, carried = answer.plan, answer.carried
    name = asked.scenario.name
    warnings = asked.warnings if asked.scenario.fleet.pools is None else (*asked.warnings, _NO_POOLS)
    if plan is None or carried is None:
        return Answer(
            "capacity",
            {"carried": None, "limit": answer.limit, "plan": None, "more": []},
            (Table([], shown=_CARRIED),),
            f"{name}: not one request meets the targets: {answer.limit}",
            assumptions=(*asked.assumptions, *assumed),
            warnings=warnings,
            exit_code=4,
        )
    usd = "" if plan.usd_per_month is None else f", ${plan.usd_per_month:,.0f} per month"
    more = [asdict(row) for row in answer.more]
    return Answer(
        "capacity",
        {"carried": asdict(carried), "limit": answer.limit, "plan": plan_row(plan), "more": more},
        (Table([asdict(carried)], upright=True), Table(more, title="What would carry more")),
        f"{name}: {purchase_text(plan)} carries {carried.request_rate:.3g} req/s{usd}",
        closing=(
            f"limit: {answer.limit}",
            *used_by_texts([plan]),
            *ordered_texts([plan]),
            *idle_texts(plan),
        ),
        assumptions=(*asked.assumptions, *assumed),
        warnings=warnings,
    )
