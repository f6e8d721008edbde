"""The regions of a scenario -> the requests of one fleet, what its machines, its electricity and the way to it are there, and which failures it survives."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from capplan.money.order import DOMAINS, NO_LOSS, Domain, Failures, Survival
from capplan.readers.catalogue.prices import refuse_unknown_region
from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Fleet, Region, ScenarioFile
from capplan.workload.daily_curve import HOURS, in_utc, together_at_peak
from capplan.workload.request_class import RequestClass, with_scaled_rate

AT: KeyPath = ("regions",)
WHERE: KeyPath = ("fleet", "location")


def located(
    reading: Reading, file: ScenarioFile, classes: tuple[RequestClass, ...]
) -> tuple[ScenarioFile, tuple[RequestClass, ...]]:
    """Return the requests of one fleet in a region, and the scenario with what is stated there; as they are without regions.

    Raises
    ------
    InputError
        a name that no region has, a delay that is missing, or users who are not in any region
    """
    if not file.regions:
        return file, classes
    places = _named(reading, file)
    homes = [_home(reading, item.region, index, places) for index, item in enumerate(file.traffic)]
    where = _location(reading, file, places, homes, classes)
    alone = file.fleet.serves == "location"
    pairs = [(item, home) for item, home in zip(classes, homes, strict=True) if not alone or home is where]
    if not pairs:
        raise reading.refuse(
            ("fleet", "serves"), f"location: no traffic is from {where.name}; name another fleet.location"
        )
    served = _at_the_busiest_hour(reading, pairs)
    waiting = tuple(
        _delayed(item, _delay_s(reading, home, where, places))
        for item, (_, home) in zip(served, pairs, strict=True)
    )
    if where.offers is not None and file.fleet.regions is not None:
        at: KeyPath = (*AT, list(places).index(where.name), "offers")
        raise reading.refuse(
            at, "says where machines are ordered, and so does fleet.regions; give one of them"
        )
    return _as_there(file, where), waiting


def _named(reading: Reading, file: ScenarioFile) -> dict[str, Region]:
    names = [region.name for region in file.regions]
    twice = next((place for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise reading.refuse(
            (*AT, twice, "name"), f"{names[twice]!r} names two regions; give each a different name"
        )
    places = {region.name: region for region in file.regions}
    for index, region in enumerate(file.regions):
        for other in region.delay:
            if other not in places:
                raise reading.unknown("region", other, places, (*AT, index, "delay", other))
        for offer in region.offers or ():
            refuse_unknown_region(offer, reading.document.place((*AT, index, "offers")))
    return places


def _home(reading: Reading, name: str | None, index: int, places: dict[str, Region]) -> Region:
    at: KeyPath = ("traffic", index, "region")
    if name is None:
        raise reading.refuse(
            at, f"is missing: from which region its requests come, e.g. region: {next(iter(places))}"
        )
    if name not in places:
        raise reading.unknown("region", name, places, at)
    return places[name]


def _location(
    reading: Reading,
    file: ScenarioFile,
    places: dict[str, Region],
    homes: Sequence[Region],
    classes: Sequence[RequestClass],
) -> Region:
    """Return the region of the machines: the one that is named, else the one of most requests."""
    name = file.fleet.location
    if name is not None:
        if name not in places:
            raise reading.unknown("region", name, places, WHERE)
        return places[name]
    if file.fleet.serves == "location":
        raise reading.refuse(
            ("fleet", "serves"), f"location: needs fleet.location, e.g. location: {next(iter(places))}"
        )
    rates = dict.fromkeys(places, 0.0)
    for item, home in zip(classes, homes, strict=True):
        rates[home.name] += item.request_rate_at()
    most = max(rates, key=lambda place: rates[place])
    reading.assume(f"all machines are in {most}, from which most requests come", "fleet.location")
    return places[most]


def _at_the_busiest_hour(
    reading: Reading, pairs: Sequence[tuple[RequestClass, Region]]
) -> list[RequestClass]:
    """Return classes with the traffic that each has when all of them together have most, and their curves in UTC."""
    hours = [
        in_utc(item.hourly_rate_fractions or (1.0,) * HOURS, home.utc_offset or 0.0) for item, home in pairs
    ]
    curves = np.array([np.array(curve) / max(curve) for curve in hours])
    work = np.array(
        [
            item.request_rate_at()
            * np.array([1.0, item.input_tokens.mean_tokens, item.output_tokens.mean_tokens])
            for item, _ in pairs
        ]
    )
    parts, hour = together_at_peak(curves, work)
    if len(pairs) > 1 and hour is not None:
        reading.assume(
            f"sized for the busiest hour of all its traffic, {hour:02d}:00 UTC: no other hour has more requests, input or output tokens",
            "traffic[0].daily_curve",
        )
    return [
        _at_part(item, part, curve)
        for (item, _), part, curve in zip(pairs, parts.tolist(), hours, strict=True)
    ]


def _at_part(item: RequestClass, part: float, curve: Sequence[float]) -> RequestClass:
    """Return a class whose peak is a part of its own, with a curve in UTC; its traffic over the day is what it was."""
    if not item.hourly_rate_fractions:
        return item
    scaled = with_scaled_rate(item, part)
    if item.users is not None:  # whole users
        whole = max(float(round(item.users * part)), 1.0)
        scaled, part = replace(scaled, users=whole), whole / item.users
    return replace(
        scaled,
        mean_rate_fraction=item.mean_rate_fraction / part,
        hourly_rate_fractions=tuple(fraction / part for fraction in curve),
    )


def _delay_s(reading: Reading, home: Region, where: Region, places: dict[str, Region]) -> float:
    """Return the round trip between users and machines, stated for either of the two regions."""
    if home is where:
        return 0.0
    stated = home.delay.get(where.name, where.delay.get(home.name))
    if stated is None:
        at: KeyPath = (*AT, list(places).index(home.name), "delay")
        raise reading.refuse(at, f"has no delay to {where.name}, e.g. delay: {{{where.name}: 90 ms}}")
    return stated


def _delayed(item: RequestClass, delay_s: float) -> RequestClass:
    """Return a class whose requests take a round trip more before their first token."""
    if not delay_s:
        return item
    think_s, sessions = item.think_time_s, item.sessions
    return replace(
        item,
        outside=replace(item.outside, wait_s=item.outside.wait_s + delay_s),
        think_time_s=None if think_s is None else think_s + delay_s,
        sessions=sessions and replace(sessions, think_time_s=sessions.think_time_s + delay_s),
    )


def _as_there(file: ScenarioFile, where: Region) -> ScenarioFile:
    """Return a scenario with the offers, the price of electricity and the grid of a region."""
    fleet, prices, energy = file.fleet, file.prices, file.energy
    if where.offers is not None:
        fleet = fleet.model_copy(update={"regions": where.offers})
    if where.electricity is not None:
        prices = replace(prices, electricity=where.electricity)
    if where.grid is not None and energy is not None:
        energy = energy.model_copy(update={"grid": where.grid})
    return file.model_copy(update={"fleet": fleet, "prices": prices, "energy": energy})


_AT = ("fleet", "survive")


def survival(reading: Reading, fleet: Fleet, classes: Sequence[RequestClass]) -> Survival:
    """Return what the fleet of a scenario survives: as stated, one machine, or nothing for batch jobs."""
    domain, count = _domain(reading, fleet, classes)
    defaults = Survival()
    per_rack, zones = fleet.machines_per_rack, fleet.zones
    for key, stated, belongs in (("machines_per_rack", per_rack, "rack"), ("zones", zones, "zone")):
        if stated is not None and domain != belongs:
            why = f"belongs to survive: {{{belongs}: 1}}, and fleet.survive names {domain}"
            reading.reject(("fleet", key), why, ("fleet", key), _AT)
    if domain == "rack" and per_rack is None:
        words = f"a rack holds {defaults.machines_per_rack} machines, any of which may share one"
        reading.assume(words, "fleet.machines_per_rack")
    if domain == "zone":
        if zones is None:
            reading.assume(f"machines are spread evenly over {defaults.zones} zones", "fleet.zones")
        zones = zones or defaults.zones
        if count >= zones:
            why = f"{count} of {zones} zones may fail, so no replica is left; name fewer, or give fleet.zones"
            reading.reject(_AT, why)
            count = zones - 1
        for key in ("own", "max_machines"):
            if getattr(fleet, key) is not None:
                why = f"which zone has the machines is not known; leave fleet.{key} out, or survive a machine"
                reading.reject(_AT, why)
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
    if stated is not None:
        unknown = next((name for name in stated if name not in DOMAINS), None)
        if unknown is not None:
            reading.note(reading.unknown("domain", unknown, DOMAINS, _AT), _AT)
        elif len(stated) != 1:
            reading.reject(_AT, "names one domain, such as {machine: 1}")
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
