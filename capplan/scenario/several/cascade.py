"""The cascade of a scenario: what it states, and the ordinary scenarios of its fleets."""

from collections.abc import Mapping, Sequence
from typing import Any

from capplan.errors import InputError
from capplan.fleet.scenario import CascadePart, CascadeTerms
from capplan.readers.yaml_file import Document
from capplan.scenario.reading import Reading, derived
from capplan.scenario.scenario_file import Cascade, Scenario, ScenarioFile
from capplan.workload.multiples import thinned_arrival_cv
from capplan.workload.request_class import NOTHING_OUTSIDE, RequestClass

AT = "cascade"
SAME = ("name", "description", "model", "revision", "traffic", AT)
"""Keys that the large model cannot have otherwise, or has its own key for."""


def cascade_terms(
    reading: Reading, file: ScenarioFile, cascade: Cascade, classes: Sequence[RequestClass]
) -> CascadeTerms:
    """Return the cascade of a scenario, its defaults filled in.

    Raises
    ------
    InputError
        of what is not modelled with one
    """
    for index, item in enumerate(classes):
        if (why := _not_split(item)) is not None:
            raise reading.refuse((AT,), f"traffic[{index}] {why}")
    if file.runner == "pooling":
        raise reading.refuse((AT,), "is about answers, and runner: pooling gives none; leave one of them out")
    same = next((key for key in cascade.changes if key in SAME), None)
    if same is not None:
        own = f"; give cascade.{same}" if same in ("model", "revision") else ""
        raise reading.refuse((AT, "changes", same), f"is the same for both models{own}")
    if cascade.after is None:
        reading.assume("the small model answers every request in full before it is judged", "cascade.after")
    if cascade.verdict_time is None:
        reading.assume("the verdict on an answer, or on a request, takes no time", "cascade.verdict_time")
    reading.assume("requests that are escalated are as long as all others", "cascade.escalated")
    return CascadeTerms(
        cascade.model, cascade.escalated, cascade.after or "answer", cascade.verdict_time or 0.0
    )


def _not_split(item: RequestClass) -> str | None:
    """Return why a share of a line of traffic cannot be told apart; None where it can."""
    if item.users is not None or item.sessions is not None:
        return "has users or sessions, who send what follows from their answers; give request_rate, or requests with within"
    if item.trace is not None:
        return "is a trace, which does not say what is escalated; give request_rate, or requests with within"
    if item.sequences_per_request != 1.0:
        return "has several sequences a request, which are not escalated one by one; leave samples, retries and documents out"
    if item.outside != NOTHING_OUTSIDE:
        return "takes time or money outside the GPUs, which does not say for which of the two answers; leave outside out"
    return None


def part_document(document: Document, scenario: Scenario, part: CascadePart) -> Document:
    """Return the ordinary scenario of one fleet of a cascade.

    Parameters
    ----------
    document : of the cascade, without mistakes
    scenario : that was read from it
    part : of which fleet

    Raises
    ------
    InputError
        no request reaches this fleet
    """
    terms, cascade = scenario.several, document.value[AT]
    assert isinstance(terms, CascadeTerms)
    share = {"first": terms.first_fraction, "second": terms.escalated_fraction, "alone": 1.0}[part]
    if share == 0.0:
        raise InputError(
            f"{document.place((AT, 'part'))}: no request reaches the {part} fleet at an escalated share of "
            f"{terms.escalated_fraction:g}"
        )
    changes = {}
    if part != "first":
        changes = {
            **cascade.get("changes", {}),
            "model": cascade["model"],
            "revision": cascade.get("revision"),
        }
    made = derived(document, AT, changes, (AT, "changes"))
    pairs = zip(document.value["traffic"], scenario.classes, strict=True)
    made.value["traffic"] = [_share_of(written, item, share) for written, item in pairs]
    return made


def _share_of(written: Mapping[str, Any], item: RequestClass, share: float) -> dict[str, Any]:
    """Return a line of traffic with a share of its requests, in base units; `item` is what was read from it."""
    if share == 1.0:
        return dict(written)
    rate = item.request_rate_at() * share
    scaled = (
        {"requests": (item.job_requests or 0.0) * share} if "requests" in written else {"request_rate": rate}
    )
    if "mean_rate" in written:
        scaled["mean_rate"] = rate * item.mean_rate_fraction
    return {**written, **scaled, "arrival_cv": float(thinned_arrival_cv(item.arrival_cv, share))}
