"""The top of a review: what to buy, what it costs, which targets it meets and how surely."""

from capplan.fleet.decision import CLEARLY_SURER, SENSIBLE_SHARE, SMALL_EXTRA
from capplan.fleet.review import TargetMargin
from capplan.report.answer import Table
from capplan.report.answers.fleet import (
    cost_texts,
    decision_tables,
    insensible_text,
    purchase_text,
    relaxation_text,
    sure,
    surer_text,
)
from capplan.report.review.findings import Findings, Section
from capplan.report.screen_units import screen_of, shown_number

INSENSIBLE = "Devices that do not suit these targets"


def shown(name: str, value: float) -> str:
    """Return one value as people read it, with its unit.

    Examples
    --------
    >>> shown("ttft_s", 0.519), shown("request_rate", 20.0)
    ('519 ms', '20.0 req/s')
    """
    screen = screen_of(name, [value])
    return f"{shown_number(float(value), screen.factor)} {screen.unit}".rstrip()


def decision_sentence(given: Findings) -> str:
    """Return what to buy, how many, for how much, and which targets it meets with which probability."""
    plan, scenario = given.chosen, given.asked.scenario
    if plan is None:
        names = ", ".join(device.name for device in scenario.fleet.hardware)
        return f"No fleet of {names} serves {scenario.name} within its targets; nothing should be bought on these terms."
    verb = "Buy" if plan.price is not None and plan.price.commitment == "owned" else "Rent"
    cost = ", ".join(cost_texts(plan)) if plan.usd_per_month is not None else "a price that is not known"
    more = surer_text(plan, given.found)
    together = f", {sure(plan.slo_met_probability)} sure together" if len(given.margins[0]) > 1 else ""
    return f"{verb} {purchase_text(plan)} for {cost}: {_targets_text(given.margins[0])}{together}{f'; {more}' if more else ''}."


def _targets_text(margins: tuple[TargetMargin, ...]) -> str:
    if not margins:
        return "no target is set, so it is sized for throughput alone"
    return "predicted at peak are " + ", ".join(_target_text(margin) for margin in margins)


def _target_text(margin: TargetMargin) -> str:
    screen = screen_of("s", [margin.predicted_s, margin.target.limit_s])
    predicted, limit = (
        shown_number(value, screen.factor) for value in (margin.predicted_s, margin.target.limit_s)
    )
    return f"{margin.target.key} {predicted} of {limit} {screen.unit} ({sure(margin.met_probability)} sure)"


def decision_section(given: Findings) -> Section:
    """Return the targets of the chosen plan, or what would have to give where there is no plan."""
    if given.chosen is None:
        return Section("Decision", lines=tuple(relaxation_text(item) for item in given.found.relaxations))
    rows = [
        {
            "target": margin.target.key,
            "limit_s": margin.target.limit_s,
            "predicted_s": margin.predicted_s,
            "low_s": margin.low_s,
            "high_s": margin.high_s,
            "margin_fraction": margin.margin_fraction,
            "met_probability": margin.met_probability,
        }
        for margin in given.margins[0]
    ]
    if not rows:
        return Section("Decision")
    predicted = ("predicted_s", "low_s", "high_s", "margin_fraction", "met_probability")
    unmeasured = given.chosen.label == "assumed"
    assumed = frozenset((i, name) for i in range(len(rows)) for name in predicted if unmeasured)
    return Section(
        "Decision",
        text=(
            "Low and high bound what will be measured in 80 % of the cases; the margin is what is left of the limit. "
            f"All targets hold together in {sure(given.chosen.slo_met_probability)} of the cases: steps take longer or shorter than "
            "predicted, and that moves every target at once, so this is how often the steps are not too slow for any of them, with the "
            "queue that slower steps make. What stands beside a target is for that one alone.",
        ),
        tables=(Table(rows, titles={"met_probability": "met with probability"}, assumed=assumed),),
    )


def choices_section(given: Findings) -> Section:
    """Return the three choices, why one of them is recommended, and what more certainty would cost."""
    choices = given.found.choices
    if choices is None:
        return Section("Choices")
    return Section(
        "Choices",
        text=(
            f"Recommended: {purchase_text(choices.recommended)}; {choices.why}. The rule: the cheapest, unless a plan that costs less than "
            f"{SMALL_EXTRA - 1.0:.0%} more is at least {100.0 * CLEARLY_SURER:.0f} points surer.",
        ),
        tables=tuple(
            table for table in decision_tables(given.found, promised=bool(given.margins[0])) if table.rows
        ),
    )


def insensible_section(given: Findings) -> Section:
    """Return the devices that are no row, each with what would make it one."""
    if not given.found.insensible:
        return Section(INSENSIBLE)
    return Section(
        INSENSIBLE,
        text=(
            f"The targets leave them less than {SENSIBLE_SHARE:.0%} of the requests that they could serve, or none at all. Each with the "
            "target that is in the way, and how many GPUs looser ones would take:",
        ),
        lines=tuple(insensible_text(row) for row in given.found.insensible),
    )
