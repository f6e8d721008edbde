"""What a scenario says of several models: a cascade of two, or models that share devices; each part of it is a scenario for one model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from capplan.errors import InputError, unknown
from capplan.fleet.scenario import CascadePart, SharingTerms
from capplan.hardware.device import Device
from capplan.readers.catalogue.hardware import partitioned_devices, slices
from capplan.readers.yaml_file import Document, KeyPath
from capplan.scenario.exclusions import one_by_one
from capplan.scenario.reading import Reading, derived, key_of
from capplan.scenario.scenario_file import Cascade, Scenario, ScenarioFile, Sharing
from capplan.workload.multiples import thinned_arrival_cv
from capplan.workload.request_class import NOTHING_OUTSIDE, RequestClass

CASCADE = "cascade"
SAME_FOR_BOTH = ("name", "description", "model", "revision", "traffic", CASCADE)
"""Keys that the large model cannot have otherwise, or has its own key for."""


def _check_cascade(reading: Reading, cascade: Cascade, classes: Sequence[RequestClass]) -> None:
    """Reject what is not modelled with a cascade, and state its defaults."""
    for index, item in enumerate(classes):
        if (why := _not_split(item)) is not None:
            raise reading.refuse((CASCADE,), f"traffic[{index}] {why}")
    same = next((key for key in cascade.changes if key in SAME_FOR_BOTH), None)
    if same is not None:
        own = f"; give cascade.{same}" if same in ("model", "revision") else ""
        raise reading.refuse((CASCADE, "changes", same), f"is the same for both models{own}")
    if "after" not in cascade.model_fields_set:
        reading.assume("the small model answers every request in full before it is judged", "cascade.after")
    if "verdict_time" not in cascade.model_fields_set:
        reading.assume("the verdict on an answer, or on a request, takes no time", "cascade.verdict_time")
    reading.assume("requests that are escalated are as long as all others", "cascade.escalated")


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


def cascade_part_document(document: Document, scenario: Scenario, part: CascadePart) -> Document:
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
    terms, written = scenario.several, document.value[CASCADE]
    assert isinstance(terms, Cascade)
    share = {"first": terms.first_fraction, "second": terms.escalated, "alone": 1.0}[part]
    if share == 0.0:
        raise InputError(
            f"{document.place((CASCADE, 'part'))}: no request reaches the {part} fleet at an escalated share of "
            f"{terms.escalated:g}"
        )
    changes = {}
    if part != "first":
        changes = {
            **written.get("changes", {}),
            "model": written["model"],
            "revision": written.get("revision"),
        }
    made = derived(document, CASCADE, changes, (CASCADE, "changes"))
    pairs = zip(document.value["traffic"], scenario.classes, strict=True)
    made.value["traffic"] = [_share_of(line, item, share) for line, item in pairs]
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


SHARING = "sharing"
OWN = "own"
"""Name of the scenario's own model among those that share."""
SHARE = "gpu_memory_utilization"
SAME_FOR_ALL = ("name", "description", "model", "revision", SHARE, SHARING, "cascade")
"""Keys that a model has its own key for, or that are about all of them."""
UNSHARED = "has users, sessions, a trace, a job or something outside, which are not modelled on shared devices; give only request_rate"


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
    names = [OWN]
    for index, model in enumerate(sharing.models):
        if model.name in names:
            at: KeyPath = (SHARING, "models", index, "name")
            raise reading.refuse(at, f"{model.name!r} names two models; give each a different name")
        names.append(model.name)
        same = next((key for key in model.changes if key in SAME_FOR_ALL), None)
        if same is not None:
            raise reading.refuse(
                (SHARING, "models", index, "changes", same), "is not for one of the models only"
            )
    idle = frozenset(item.name for item in sharing.models if "traffic" not in item.changes)
    return SharingTerms(sharing.by, tuple(names), _memory_fractions(reading, file, sharing), idle)


def _memory_fractions(reading: Reading, file: ScenarioFile, sharing: Sharing) -> tuple[float, ...]:
    """Return the part of the memory of a device that each model has; empty where a slice has one model."""
    if sharing.by != "device":
        given = next(
            (index for index, item in enumerate(sharing.models) if item.gpu_memory_utilization), None
        )
        if given is not None:
            raise reading.refuse(
                (SHARING, "models", given, SHARE),
                "is for by: device; each model has slices of its own, whose size is part of their name",
            )
        return ()
    fractions = [file.gpu_memory_utilization, *(item.gpu_memory_utilization for item in sharing.models)]
    for index, fraction in enumerate(fractions):
        if fraction is None:
            at: KeyPath = (SHARING, "models", index - 1, SHARE) if index else (SHARE,)
            raise reading.refuse(
                at, "is missing: each model on a device has its own part of the memory; e.g. 0.45"
            )
    known = [fraction for fraction in fractions if fraction is not None]
    if sum(known) > 1.0 + 1e-9:
        raise reading.refuse(
            (SHARING,),
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
    terms, models = scenario.several, document.value[SHARING]["models"]
    assert isinstance(terms, SharingTerms)
    if name not in terms.models:
        raise unknown("model", name, terms.models, place=document.place((SHARING, "part")))
    if name in terms.idle:
        raise InputError(
            f"{document.place((SHARING, 'part'))}: {name} has no traffic, so it needs no fleet of its own"
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
    made = derived(document, SHARING, changes, (SHARING, "models", index, "changes"))
    if terms.by == "device":
        del made.value[SHARE]
    return made


OF_ONE_MODEL = ("name", "description", "model", "revision", "traffic", SHARE, CASCADE, SHARING)
"""Keys that --set changes for the model of the scenario only."""


def several_terms(
    reading: Reading, file: ScenarioFile, classes: Sequence[RequestClass]
) -> Cascade | SharingTerms | None:
    """Return what a scenario says of further models; None where it has only one.

    Raises
    ------
    InputError
        of what is not modelled with several
    """
    if file.cascade is not None:
        _check_cascade(reading, file.cascade, classes)
        return file.cascade
    return None if file.sharing is None else sharing_terms(reading, file, file.sharing, classes)


def refuse_several(scenario: Scenario) -> None:
    """Raise the error for a scenario of several fleets where a question is about one."""
    if scenario.several is not None:
        section = CASCADE if isinstance(scenario.several, Cascade) else SHARING
        raise InputError(
            f"{scenario.path}: {section}: has several fleets, which capplan fleet plans together; every command answers for\n"
            f"  {one_by_one(section)}"
        )


def asks_for_a_part(document: Document) -> bool:
    """Return whether a document has several fleets and asks for one of them."""
    value = document.value if isinstance(document.value, dict) else {}
    sections = (value.get(section) for section in (CASCADE, SHARING))
    return any(isinstance(section, dict) and section.get("part") is not None for section in sections)


def part_document(document: Document, scenario: Scenario) -> Document:
    """Return the ordinary scenario of the fleet that a document asks for; `scenario` was read from it without mistakes."""
    if isinstance(scenario.several, Cascade):
        return cascade_part_document(document, scenario, document.value[CASCADE]["part"])
    return model_document(document, scenario, document.value[SHARING]["part"])


def of_all(settings: Sequence[str]) -> list[str]:
    """Return the overrides, each KEY=VALUE, that hold for all models, whatever differs for one of them in the file."""
    return [item for item in settings if key_of(item.partition("=")[0].strip())[0] not in OF_ONE_MODEL]


def refuse_with_slices(reading: Reading, file: ScenarioFile, hardware: Sequence[Device]) -> None:
    """Note the mistakes of a scenario that asks of slices what is counted in whole GPUs."""
    cut = next((device.name for device in hardware if device.partition), None)
    if cut is None:
        return
    asked: dict[str, tuple[KeyPath, object]] = {
        "energy": (("energy",), file.energy),
        "commitments.owned": (("commitments", "owned"), file.commitments and file.commitments.owned),
        "fleet.disaggregation": (
            ("fleet", "disaggregation"),
            file.fleet.disaggregation not in (None, "off"),
        ),
    }
    for key, (at, given) in asked.items():
        if given:
            why = (
                f"is counted in whole GPUs, and {cut} is a slice of one; leave {key} out, or give whole GPUs"
            )
            reading.reject(at, why)


def in_slices(scenario: Scenario) -> Scenario:
    """Return a scenario whose whole devices are taken apart into all of their slices; replicas are of one slice each.

    Raises
    ------
    InputError
        a device cannot be cut
    """
    hardware: list[Device] = []
    for device in scenario.fleet.hardware:
        parts = (device,) if device.partition else slices(device)
        if not parts:
            raise InputError(
                f"{scenario.path}: fleet.hardware: no MIG slices of {device.name} are known\n"
                f"  known: {', '.join(partitioned_devices())}"
            )
        hardware += [part for part in parts if part not in hardware]
    limits = replace(
        scenario.fleet,
        hardware=tuple(hardware),
        ranges=replace(scenario.fleet.ranges, max_devices_per_replica=1),
    )
    return replace(scenario, fleet=limits)
