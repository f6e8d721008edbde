"""A mix of fleets for one service: its parts, the rule of the router, and what it saves."""

from typing import Any

from capplan.fleet.plan import FleetAnswer, Mix, Plan, RoutedRequests
from capplan.questions.plans.plan_row import plan_row
from capplan.report.answer import Table
from capplan.report.answers.fleet_words import purchase_text, router_text


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
        "gpus": mix.plan.gpus,
        "slo_met_probability": mix.plan.slo_met_probability,
        "tried": mix.tried,
        "parts": [
            {
                "requests": requests.rule,
                "classes": list(requests.classes),
                "request_fraction": requests.request_fraction,
                "plan": plan_row(part),
            }
            for part, requests in _routed(mix)
        ],
    }


def _routed(mix: Mix) -> list[tuple[Plan, RoutedRequests]]:
    """Return each group of a mix by itself, with the requests that the router sends to it."""
    return [(part, part.single.requests) for part in mix.parts if part.single.requests is not None]


def mix_tables(answer: FleetAnswer) -> list[Table]:
    """Return the fleets of a mix; none without one."""
    mix = answer.mix
    if not isinstance(mix, Mix):
        return []
    rows = [
        {
            "requests": requests.rule,
            "request_fraction": requests.request_fraction,
            "fleet": purchase_text(part),
            "usd_per_month": part.usd_per_month,
            "slo_met_probability": part.slo_met_probability,
        }
        for part, requests in _routed(mix)
    ]
    shown = tuple(rows[0])
    return [Table(rows, title="Mix: a fleet for each part of the requests", shown=shown)]


def mix_texts(answer: FleetAnswer) -> tuple[str, ...]:
    """Return what a mix costs and how requests are routed, or why there is none."""
    mix = answer.mix
    if mix is None:
        return ()
    if not isinstance(mix, Mix):
        return (f"no mix of fleets: {mix.reason} ({mix.tried} ways to divide the requests tried)",)
    rule = router_text(mix.plan)
    return (
        f"a mix costs ${mix.usd_per_month:,.0f} per month, {mix.saved_fraction:.1%} less than the ${mix.single_usd_per_month:,.0f} of "
        f"the cheapest fleet for all requests: {rule}; of {mix.tried} ways to divide the requests it is the cheapest",
    )
