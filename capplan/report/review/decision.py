"""The top of a review: what to buy, what it costs, which targets it meets and how surely."""

from capplan.fleet.recommended import CLEARLY_SURER, SENSIBLE_SHARE, SMALL_EXTRA
from capplan.fleet.review import TargetMargin
from capplan.report.answer import Table
from capplan.report.answers.fleet import (
    cost_texts,
    decision_tables,
    purchase_text,
    surer_text,
)
from capplan.report.answers.fleet_words import insensible_text, relaxation_text, sure
from capplan.report.review.findings import Findings, Section
from capplan.report.screen_units import screen_of, shown_number

INSENSIBLE = "Devices that do not suit these targets"


def shown(name: str, value: float) -> str:
    """Format one value with its unit, for people.

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
        return f"No fleet of {names} serves {scenario.name} within its targets; do not buy on these terms."
    verb = "Buy" if plan.price is not None and plan.price.commitment == "owned" else "Rent"
    cost = ", ".join(cost_texts(plan)) if plan.usd_per_month is not None else "an unknown price"
    more = surer_text(plan, given.answer)
    together = f", all of them {sure(plan.slo_met_probability)} sure" if len(given.margins[0]) > 1 else ""
    return f"{verb} {purchase_text(plan)} for {cost}. {_targets_text(given.margins[0])}{together}{f'; {more}' if more else ''}."


def _targets_text(margins: tuple[TargetMargin, ...]) -> str:
    if not margins:
        return "No target is set, so it is sized for throughput alone"
    return "Predicted at peak: " + ", ".join(_target_text(margin) for margin in margins)


def _target_text(margin: TargetMargin) -> str:
    screen = screen_of("s", [margin.predicted_s, margin.target.limit_s])
    predicted, limit = (
        shown_number(value, screen.factor) for value in (margin.predicted_s, margin.target.limit_s)
    )
    return f"{margin.target.key} {predicted} of {limit} {screen.unit} ({sure(margin.met_probability)} sure)"


def decision_section(given: Findings) -> Section:
    """Return the targets of the chosen plan, or what would have to give where there is no plan."""
    if given.chosen is None:
        return Section("Decision", lines=tuple(relaxation_text(item) for item in given.answer.relaxations))
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
            "Low and high are the 80% interval of the measured value; the margin is the share of the limit that is left. "
            f"All targets are met together with a probability of {sure(given.chosen.slo_met_probability)}. Steps that are slower than "
            "predicted affect every target, through the step time and through longer queues, so the errors of the targets are correlated; "
            "the probability beside a target is for that target alone.",
        ),
        tables=(Table(rows, titles={"met_probability": "probability met"}, assumed=assumed),),
    )


def choices_section(given: Findings) -> Section:
    """Return the three choices, why one of them is recommended, and the cost of more certainty."""
    choices = given.answer.choices
    if choices is None:
        return Section("Choices")
    return Section(
        "Choices",
        text=(
            f"Recommended: {purchase_text(choices.recommended)}; {choices.why}. The rule: the cheapest plan, unless one that costs less than "
            f"{SMALL_EXTRA - 1.0:.0%} more is surer by at least {100.0 * CLEARLY_SURER:.0f} percentage points.",
        ),
        tables=tuple(
            table for table in decision_tables(given.answer, promised=bool(given.margins[0])) if table.rows
        ),
    )


def insensible_section(given: Findings) -> Section:
    """Return the devices without a plan worth showing, each with what would change that."""
    if not given.answer.insensible:
        return Section(INSENSIBLE)
    return Section(
        INSENSIBLE,
        text=(
            f"Within the targets they can serve less than {SENSIBLE_SHARE:.0%} of their capacity, or nothing at all. Each is listed with the "
            "target that limits it, and the GPUs needed with a higher limit:",
        ),
        lines=tuple(insensible_text(row) for row in given.answer.insensible),
    )
