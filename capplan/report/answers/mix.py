"""A mix of fleets for one service: its parts, the rule of the router, and what it saves."""

from typing import Any

from capplan.fleet.plan import FleetAnswer, Mix
from capplan.questions.plans.plan_row import plan_row
from capplan.report.answer import Table
from capplan.report.answers.plan_words import purchase_text

_TITLES = {"requests": "requests", "request_fraction": "share of requests", "fleet": "fleet"}


def mix_result(answer: FleetAnswer) -> dict[str, Any] | None:
    """Return the mix with the keys of JSON; None if it was not asked for."""
    mix = answer.mix
    if mix is None:
        return None
    if not isinstance(mix, Mix):
        return {"reason": mix.reason, "tried": mix.tried}
    return {
        "by": mix.by,
        "threshold_tokens": mix.threshold_tokens,
        "usd_per_month": mix.usd_per_month,
        "single_usd_per_month": mix.single_usd_per_month,
        "saved_fraction": mix.saved_fraction,
        "gpus": mix.gpus,
        "slo_met_probability": mix.slo_met_probability,
        "tried": mix.tried,
        "parts": [
            {
                "requests": part.requests,
                "classes": list(part.classes),
                "request_fraction": part.request_fraction,
                "plan": plan_row(part.plan),
            }
            for part in mix.parts
        ],
    }


def mix_tables(answer: FleetAnswer) -> list[Table]:
    """Return the fleets of a mix; none without one."""
    mix = answer.mix
    if not isinstance(mix, Mix):
        return []
    rows = [
        {
            "requests": part.requests,
            "request_fraction": part.request_fraction,
            "fleet": purchase_text(part.plan),
            "usd_per_month": part.plan.usd_per_month,
            "slo_met_probability": part.plan.slo_met_probability,
        }
        for part in mix.parts
    ]
    shown = tuple(rows[0])
    return [Table(rows, title="Mix: a fleet for each part of the requests", shown=shown, titles=_TITLES)]


def mix_texts(answer: FleetAnswer) -> tuple[str, ...]:
    """Return what a mix costs and how requests are routed, or why there is none."""
    mix = answer.mix
    if mix is None:
        return ()
    if not isinstance(mix, Mix):
        return (f"no mix of fleets: {mix.reason} ({mix.tried} ways to divide the requests tried)",)
    rule = (
        "the router sends each request to the fleet of its class"
        if mix.threshold_tokens is None
        else f"the router sends prompts of at most {mix.threshold_tokens:,.0f} tokens to the first fleet, longer ones to the second"
    )
    return (
        f"a mix costs ${mix.usd_per_month:,.0f} per month, {mix.saved_fraction:.1%} less than the ${mix.single_usd_per_month:,.0f} of "
        f"the cheapest fleet for all requests: {rule}; of {mix.tried} ways to divide the requests it is the cheapest",
    )
