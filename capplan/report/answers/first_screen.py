"""What `capplan fleet` shows first: the decision in a sentence, a table that fits 80 columns, and what decides."""

from collections.abc import Sequence
from typing import Any

from capplan.assumption import Assumption
from capplan.fleet.plan import FleetAnswer, Plan
from capplan.questions.fleet import AskedFleet
from capplan.questions.plans.plan_row import plan_row
from capplan.report.answer import Answer, Table
from capplan.report.answers.fleet_words import (
    measured_saving,
    paid_text,
    seconds_text,
    sure,
    surer_text,
    usd_per_job,
)
from capplan.report.answers.order import failure_text, idle_texts, ordered_texts
from capplan.report.answers.plan_words import budget_texts, layout_text, purchase_text, several_kv_dtypes

_SHOWN = ("hardware", "layout", "replicas", "gpus", "cost", "slo_met_probability")
_SPARE = ("replicas", "layout")


def first_screen(
    asked: AskedFleet, answer: FleetAnswer, kernels: Sequence[Assumption], others: Sequence[Assumption]
) -> Answer | None:
    """Return the answer in few lines; None where no plan is recommended: the whole answer says why.

    Parameters
    ----------
    asked, answer : the question, and what was found
    kernels : that nobody timed on the devices of the recommended plan
    others : all other assumptions
    """
    plan = answer.chosen
    if plan is None:
        return None
    job = usd_per_job(answer, plan.usd_per_month) is not None
    cost, promised = "usd_per_job" if job else "usd_per_month", bool(asked.scenario.slo.targets)
    kv = several_kv_dtypes(answer.plans)
    rows: list[dict[str, Any]] = [
        {**plan_row(item), "layout": layout_text(item, kv=kv)} for item in answer.plans
    ]
    guessed = [
        at for at, item in enumerate(answer.plans) if any(group.label == "assumed" for group in item.groups)
    ]
    columns = tuple(cost if name == "cost" else name for name in _SHOWN[: None if promised else -1])
    table = Table(
        rows,
        title="Plans, cheapest first",
        shown=columns,
        assumed=frozenset((at, "slo_met_probability") for at in guessed),
        titles={"slo_met_probability": "attainment", cost: ""},
        spare=_SPARE,
    )
    return Answer(
        command="fleet",
        result=None,
        tables=(table,),
        headline=decision_sentence(asked, answer),
        closing=(
            *(("*: no kernel of this GPU was timed, so it is less certain",) if guessed and promised else ()),
            *_uneconomical_texts(answer),
            *_bottleneck_texts(answer, plan),
            *(_certainty_texts(answer, plan) if promised else ()),
            *_assumed_texts(kernels, others),
            *ordered_texts([plan]),
            *idle_texts(plan),
            failure_text(plan),
            *budget_texts(asked, answer),
            "more: --full, or capplan report for the review",
        ),
    )


def decision_sentence(asked: AskedFleet, answer: FleetAnswer) -> str:
    """Return what to buy, for how much, and how likely it meets its targets; or that nothing is enough."""
    plan = answer.chosen
    if plan is None:
        budget = " within the budget" if asked.scenario.budget_usd_per_month is not None else ""
        return f"{asked.scenario.name}: no plan meets the SLO targets on the allowed hardware{budget}"
    usd = plan.usd_per_month
    cost = "at an unknown price" if usd is None else f"for {paid_text(answer, usd)}"
    sentence = f"{asked.scenario.name}: order {purchase_text(plan)} {cost}"
    if not asked.scenario.slo.targets:
        return f"{sentence}, sized for throughput only"
    return f"{sentence}; the SLO attainment probability is {sure(plan.slo_met_probability)}"


def _uneconomical_texts(answer: FleetAnswer) -> tuple[str, ...]:
    """Return the devices of which no plan is worth a row, in one line."""
    said = [
        f"{row.hardware} (no plan)"
        if row.cost_ratio is None
        else f"{row.hardware} ({row.gpus:,} GPUs, {row.cost_ratio:.2g} times the cost)"
        for row in answer.uneconomical
    ]
    return (f"left out: {', '.join(said)}",) if said else ()


def _bottleneck_texts(answer: FleetAnswer, plan: Plan) -> tuple[str, ...]:
    """Return what a replica spends its time on, and the SLO target that leaves its GPUs idle, if one does."""
    texts = [f"bottleneck: {plan.bottleneck}"] if plan.bottleneck else []
    tight = answer.tight
    if tight is not None and plan == answer.chosen:
        texts.append(
            f"{tight.target} decides: it is {seconds_text(tight.value_s)} on an idle replica and may be "
            f"{seconds_text(tight.limit_s)}, so the fleet uses {tight.used_fraction:.0%} of its throughput"
        )
    return tuple(texts)


def _certainty_texts(answer: FleetAnswer, plan: Plan) -> tuple[str, ...]:
    """Return what a higher required confidence costs, and what a measurement would save."""
    parts = [text] if (text := surer_text(plan, answer)) else []
    if (saving := measured_saving(answer)) is not None and plan == answer.chosen:
        steps, usd = saving
        saved = "" if usd is None else f", which saves {paid_text(answer, usd)}"
        parts.append(
            f"{steps.as_predicted.gpus} GPUs are enough if replicas are as fast as predicted{saved}: measure one (capplan verify-plan)"
        )
    return (f"confidence: {'; '.join(parts)}",) if parts else ()


def _assumed_texts(kernels: Sequence[Assumption], others: Sequence[Assumption]) -> tuple[str, ...]:
    """Return the assumption that bears most on the answer: of kernels that nobody timed, else of the traffic, else the first one."""
    by_traffic = sorted(others, key=lambda item: not item.replace.startswith("traffic"))
    most, *rest = (*kernels, *by_traffic) or (None,)
    if most is None:
        return ()
    more = f" ({len(rest)} more with --full)" if rest else ""
    return (f"assumed: {most.what}; replace with {most.replace}{more}",)
