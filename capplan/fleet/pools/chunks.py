"""Identical replicas with smaller chunks of prompts: what separate pools have to be compared with."""

from dataclasses import replace

from capplan.fleet.plan import ChunkedPlan, FleetPlan
from capplan.fleet.question import Question, spec_of_layout
from capplan.fleet.search.cheapest import Search, Terms
from capplan.fleet.search.confirmed import plan_of
from capplan.fleet.search.layouts import search
from capplan.replica.plans import engine_scheduling

DIVISORS = (4, 8)
"""Of the tokens that a step takes by default."""


def smaller_chunks(question: Question, terms: Terms, now: FleetPlan) -> tuple[ChunkedPlan, ...]:
    """Return the cheapest fleets whose steps take fewer tokens, which delays prompts and speeds up decoding.

    Parameters
    ----------
    question : of the fleet
    terms : headroom, spares, prices
    now : the plan as it is

    Returns
    -------
    plans; empty where the scenario sets the tokens of a step, or the engine does not split prompts
    """
    scheduling = engine_scheduling(spec_of_layout(now.layout, now.weight_dtype, question))
    if question.max_num_batched_tokens is not None or not scheduling.chunked or scheduling.policy != "mixed":
        return ()
    plans = []
    for divisor in DIVISORS:
        tokens = scheduling.max_num_batched_tokens // divisor
        if tokens < scheduling.max_num_seqs:
            continue
        smaller = replace(question, max_num_batched_tokens=tokens)
        fleet = Search(smaller, search(smaller).candidates, terms).cheapest(question.slo.confidence)
        if fleet is not None:
            plans.append(ChunkedPlan(tokens, plan_of(fleet, terms)))
    return tuple(plans)
