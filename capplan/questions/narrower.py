"""The recommended plan with weights in fp8 instead of 16 bits, for the time of sizing one layout."""

from dataclasses import replace

from capplan.errors import CapplanError, Reason
from capplan.fleet.plan import Plan
from capplan.fleet.search.cheapest import busy_replicas
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.recommended import confirmed
from capplan.model.weight_format import stored_formats
from capplan.questions.fleet import AskedFleet, asked_fleet, terms_of

WIDE = ("fp32", "bf16", "fp16")
"""Weight formats instead of which fp8 is tried."""
NARROWER = "fp8"


def narrower_weights(asked: AskedFleet, plan: Plan) -> Plan | None:
    """Return the layout of a plan of identical replicas with weights in fp8, sized again; None where that costs no less, or cannot be."""
    scenario, before = asked.scenario, plan.usd_per_month
    of_job = plan.money is not None and plan.money.usd_per_job is not None
    if before is None or of_job or len(plan.groups) > 1 or scenario.file.commitments is not None:
        return None
    group = plan.single
    tried = NARROWER in scenario.weight_dtypes
    if tried or stored_formats(asked.question.networks[group.weight_dtype])[0] not in WIDE:
        return None
    try:
        changed = asked_fleet(replace(scenario, weight_dtypes=(NARROWER,)), offline=True)
    except CapplanError:
        return None
    question, terms = changed.question, terms_of(changed)
    layout = replace(group.layout, weight_format=NARROWER)
    if layout.kv_format not in question.kv_formats:
        return None
    trial = trial_of(question, layout, terms, asked.cache)
    if isinstance(trial, Reason):
        return None
    busy = busy_replicas(trial, trial.limits, question.slo.confidence, terms, group.busy_replicas)
    found = busy and confirmed(terms.sized(trial, busy), terms)
    after = found.plan.usd_per_month if found else None
    if not found or after is None or after >= before:
        return None
    return found.plan
