"""The keys of a scenario about failures -> what its fleet survives, and how often machines fail."""

from collections.abc import Sequence

from capplan.fleet.survival import DOMAINS, NO_LOSS, Domain, Failures, Survival
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Fleet
from capplan.workload.request_class import RequestClass

_AT = ("fleet", "survive")


def survival(reading: Reading, fleet: Fleet, classes: Sequence[RequestClass]) -> Survival:
    """Return what the fleet of a scenario survives: as stated, one machine, or nothing for batch jobs."""
    domain, count = _domain(reading, fleet, classes)
    defaults = Survival()
    per_rack, zones = fleet.machines_per_rack, fleet.zones
    for key, stated, belongs in (("machines_per_rack", per_rack, "rack"), ("zones", zones, "zone")):
        if stated is not None and domain != belongs:
            why = f"belongs to survive: {{{belongs}: 1}}, and fleet.survive names {domain}"
            reading.note(reading.refuse(("fleet", key), why), ("fleet", key), _AT)
    if domain == "rack" and per_rack is None:
        words = f"a rack holds {defaults.machines_per_rack} machines, any of which may share one"
        reading.assume(words, "fleet.machines_per_rack")
    if domain == "zone":
        if zones is None:
            reading.assume(f"machines are spread evenly over {defaults.zones} zones", "fleet.zones")
        zones = zones or defaults.zones
        if count >= zones:
            why = f"{count} of {zones} zones may fail, so no replica is left; name fewer, or give fleet.zones"
            reading.note(reading.refuse(_AT, why), _AT)
            count = zones - 1
        for key in ("own", "max_machines"):
            if getattr(fleet, key) is not None:
                why = f"which zone has the machines is not known; leave fleet.{key} out, or survive a machine"
                reading.note(reading.refuse(_AT, why), _AT)
    return Survival(
        domain,
        count,
        per_rack or defaults.machines_per_rack,
        zones or defaults.zones,
        fleet.max_unavailable or 0,
        Failures(fleet.time_to_failure, fleet.time_to_repair or defaults.failures.repair_s),
    )


def _domain(reading: Reading, fleet: Fleet, classes: Sequence[RequestClass]) -> tuple[Domain, int]:
    stated = fleet.survive
    if stated is not None and fleet.spare_replicas is not None:
        why = f"spare_replicas: {fleet.spare_replicas} is survive: {{replica: {fleet.spare_replicas}}}; leave one of them out"
        reading.note(reading.refuse(_AT, why), _AT)
    if stated is not None:
        unknown = next((name for name in stated if name not in DOMAINS), None)
        if unknown is not None:
            reading.note(reading.unknown("domain", unknown, DOMAINS, _AT), _AT)
        elif len(stated) != 1:
            reading.note(reading.refuse(_AT, "names one domain, such as {machine: 1}"), _AT)
        else:
            ((name, count),) = stated.items()
            return next(domain for domain in DOMAINS if domain == name), count
        return Survival().domain, Survival().count
    if fleet.spare_replicas is not None:
        return "replica", fleet.spare_replicas
    if classes and all(item.job_requests is not None for item in classes):
        reading.assume("nothing may fail: a failure only delays a batch job", "fleet.survive")
        return NO_LOSS.domain, NO_LOSS.count
    reading.assume(
        "the fleet meets its targets at the peak with one machine gone; GPUs that are sold by the piece are one machine for each replica",
        "fleet.survive",
    )
    return Survival().domain, Survival().count
