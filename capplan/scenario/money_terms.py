"""The keys of a scenario about money -> plain values, their defaults filled in."""

from capplan.fleet.money_terms import CommitmentTerms, OwnedTerms, PowerTerms, ReservedTerms, SpotTerms
from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.scenario.records.money import Commitments, MeasuredPower, Owned, Power, Reserved, Spot
from capplan.scenario.scenario_file import ScenarioFile


def commitment_terms(record: Commitments | None) -> CommitmentTerms | None:
    """Return the commitments of a scenario, their defaults filled in; None where it names none."""
    if record is None:
        return None
    return CommitmentTerms(
        reserved_1y=_reserved(record.reserved_1y),
        reserved_3y=_reserved(record.reserved_3y),
        spot=_spot(record.spot),
        owned=_owned(record.owned),
        min_replicas=record.min_replicas or 1,
        max_replicas=record.max_replicas,
    )


def _reserved(record: Reserved | None) -> ReservedTerms | None:
    return None if record is None else ReservedTerms(record.discount, record.price)


def _spot(record: Spot | None) -> SpotTerms | None:
    if record is None:
        return None
    defaults = SpotTerms()
    return SpotTerms(
        _or(record.headroom, defaults.headroom_fraction), _or(record.most, defaults.most_fraction)
    )


def _owned(record: Owned | None) -> OwnedTerms | None:
    if record is None:
        return None
    defaults = OwnedTerms(record.capex)
    return OwnedTerms(
        record.capex,
        life_years=_or(record.life, defaults.life_years),
        interest_fraction=_or(record.interest, defaults.interest_fraction),
        upkeep_fraction=_or(record.upkeep, defaults.upkeep_fraction),
        usd_per_kwh=record.electricity,
        facility_ratio=_or(record.facility_ratio, defaults.facility_ratio),
        idle_fraction=_or(record.idle, defaults.idle_fraction),
        watts=record.power,
        people_usd_per_month=_or(record.people, defaults.people_usd_per_month),
    )


def _or(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given


def power_terms(record: Power | None, facility_ratio: float | None) -> PowerTerms | None:
    """Return what a scenario says of power; None where it does not ask for energy."""
    if record is None:
        return None
    ratio = record.facility_ratio if record.facility_ratio is not None else facility_ratio
    measured, defaults = record.measured or MeasuredPower(), PowerTerms()
    return PowerTerms(
        idle_fraction=record.idle,
        decode_fraction=record.decode,
        prefill_fraction=record.prefill,
        idle_watts=measured.idle,
        decode_watts=measured.decode,
        prefill_watts=measured.prefill,
        host_fraction=record.host,
        facility_ratio=_or(ratio, defaults.facility_ratio),
        kg_co2_per_kwh=record.grid,
        rack_limit_watts=record.rack_limit,
        gpus_per_server=record.gpus_per_server or defaults.gpus_per_server,
    )


def note_odd_money(reading: Reading, file: ScenarioFile) -> None:
    """Note what contradicts itself in the keys about money."""
    section = file.commitments
    for term in ("reserved_1y", "reserved_3y"):
        item = getattr(section, term) if section else None
        if item is not None and item.price is not None and item.discount is not None:
            at: KeyPath = ("commitments", term)
            reading.note(reading.refuse(at, "price and discount are both given; leave one of them out"), at)
    if all(item.requests is not None for item in file.traffic):
        for key in ("commitments", "budget"):
            if getattr(file, key) is not None:
                at = (key,)
                what = "is for continuous traffic; a batch job is paid until it is done, so leave it out"
                reading.note(reading.refuse(at, what), at)
    least, most = (section.min_replicas or 1, section.max_replicas) if section else (1, None)
    if most is not None and most < least:
        at = ("commitments", "max_replicas")
        reading.note(reading.refuse(at, f"{most} is below min_replicas of {least}"), at)
    power = file.energy
    for phase in ("idle", "decode", "prefill"):
        if (
            power
            and power.measured
            and getattr(power, phase) is not None
            and getattr(power.measured, phase) is not None
        ):
            at = ("energy", phase)
            reading.note(
                reading.refuse(at, f"is measured too, in energy.measured.{phase}; leave one of them out"), at
            )
    if power and power.gpus_per_server is not None and power.rack_limit is None:
        at = ("energy", "gpus_per_server")
        reading.note(
            reading.refuse(at, "belongs to rack_limit, and none is given; e.g. rack_limit: 40 kW"), at
        )
    stated = file.prices.file or ""
    if file.prices.date is not None and not stated.lower().endswith(".csv"):
        at = ("prices", "date")
        what = "no prices.file needs it: every price of a YAML has its own date, and a catalogue CSV of SkyPilot has none"
        reading.note(reading.refuse(at, what), at)
