"""The models of a scenario that share GPUs: what it states of them, and the ordinary scenario of each."""

from collections.abc import Sequence
from typing import Any

from capplan.errors import InputError, unknown
from capplan.fleet.scenario import SharingTerms
from capplan.readers.yaml_file import Document, KeyPath
from capplan.scenario.reading import Reading, derived
from capplan.scenario.scenario_file import Scenario, ScenarioFile, Sharing
from capplan.workload.request_class import NOTHING_OUTSIDE, RequestClass

AT = "sharing"
OWN = "own"
"""Name of the scenario's own model among those that share."""
SHARE = "gpu_memory_utilization"
SAME = ("name", "description", "model", "revision", SHARE, AT, "cascade")
"""Keys that a model has its own key for, or that are about all of them."""
UNSHARED = "has users, sessions, a trace, a job or something outside, which are not modelled on shared devices; give only request_rate"
_WHOLE = {
    "hour": "by the hour each model has the whole device",
    "mig": "each model has slices of its own, whose size is part of their name",
}
_TOGETHER = ("commitments", "kv_offload", "speculation")
_NOT_SHARED = {"hour": _TOGETHER, "device": _TOGETHER, "mig": ("commitments", "kv_offload")}
"""Keys that are not modelled: only each model on its slices may draft, and only a scenario of one model has commitments."""


def sharing_terms(
    reading: Reading, file: ScenarioFile, sharing: Sharing, classes: Sequence[RequestClass]
) -> SharingTerms:
    """Return which models share GPUs, and how.

    Raises
    ------
    InputError
        of what is not modelled with several models
    """
    for index, item in enumerate(classes):
        if is_unshared(item):
            raise reading.refuse(("traffic", index), UNSHARED)
    given = [key for key in _NOT_SHARED[sharing.by] if getattr(file, key)]
    given += ["fleet.disaggregation"] if file.fleet.disaggregation not in (None, "off") else []
    if given:
        raise reading.refuse((AT,), f"is not modelled with {given[0]}; leave one of them out")
    names = [OWN]
    for index, model in enumerate(sharing.models):
        if model.name in names:
            at: KeyPath = (AT, "models", index, "name")
            raise reading.refuse(at, f"{model.name!r} names two models; give each a different name")
        names.append(model.name)
        same = next((key for key in model.changes if key in SAME), None)
        if same is not None:
            raise reading.refuse((AT, "models", index, "changes", same), "is not for one of the models only")
    idle = frozenset(item.name for item in sharing.models if "traffic" not in item.changes)
    if idle and sharing.by == "hour":
        raise reading.refuse(
            (AT,), f"{min(idle)} has no traffic, so no hour needs it; give it some, or by: device"
        )
    return SharingTerms(sharing.by, tuple(names), _memory_fractions(reading, file, sharing), idle)


def _memory_fractions(reading: Reading, file: ScenarioFile, sharing: Sharing) -> tuple[float, ...]:
    """Return the part of the memory of a device that each model has; empty where a device or a slice has one model at a time."""
    if sharing.by != "device":
        given = next(
            (index for index, item in enumerate(sharing.models) if item.gpu_memory_utilization), None
        )
        if given is not None:
            raise reading.refuse((AT, "models", given, SHARE), f"is for by: device; {_WHOLE[sharing.by]}")
        return ()
    fractions = [file.gpu_memory_utilization, *(item.gpu_memory_utilization for item in sharing.models)]
    for index, fraction in enumerate(fractions):
        if fraction is None:
            at: KeyPath = (AT, "models", index - 1, SHARE) if index else (SHARE,)
            raise reading.refuse(
                at, "is missing: each model on a device has its own part of the memory; e.g. 0.45"
            )
    known = [fraction for fraction in fractions if fraction is not None]
    if sum(known) > 1.0 + 1e-9:
        raise reading.refuse(
            (AT,),
            f"the models have {' + '.join(f'{part:g}' for part in known)} of the memory of a device, more than all of it",
        )
    return tuple(known)


def is_unshared(item: RequestClass) -> bool:
    """Return whether a kind of traffic is more than requests at a rate, whose load is only the load of the devices."""
    parts = (item.users, item.sessions, item.trace, item.job_requests)
    return item.outside != NOTHING_OUTSIDE or any(given is not None for given in parts)


def model_document(document: Document, scenario: Scenario, name: str) -> Document:
    """Return the ordinary scenario of one of the models that share devices, as if it had its own.

    Parameters
    ----------
    document : of all models, without mistakes
    scenario : that was read from it
    name : of the model

    Raises
    ------
    InputError
        there is no model of this name, or it is idle
    """
    terms, models = scenario.several, document.value[AT]["models"]
    assert isinstance(terms, SharingTerms)
    if name not in terms.models:
        raise unknown("model", name, terms.models, place=document.place((AT, "part")))
    if name in terms.idle:
        raise InputError(
            f"{document.place((AT, 'part'))}: {name} has no traffic, so it needs no fleet of its own"
        )
    index = terms.models.index(name) - 1
    changes: dict[str, Any] = {}
    if index >= 0:
        written = models[index]
        changes = {
            **written.get("changes", {}),
            "name": name,
            "model": written["model"],
            "revision": written.get("revision"),
        }
    made = derived(document, AT, changes, (AT, "models", index, "changes"))
    if terms.by == "device":
        del made.value[SHARE]
    return made
