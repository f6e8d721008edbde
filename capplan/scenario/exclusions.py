"""Keys of a scenario that exclude each other whatever their values are, and why."""

from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel

from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import ScenarioFile


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Keys of which at least one has to go."""

    at: str
    """Key that the mistake is of."""
    keys: tuple[str, ...]
    """All of them are stated, and none has its default."""
    why: str


_OF_TOKENS = "is of prices by the token, and hosted.provisioned rents throughput by the hour"
_MIX = {
    (
        "fleet.disaggregation",
    ): "each group would be a pair of pools, and pairs are not searched for part of the requests",
    (
        "fleet.max_gpus",
    ): "the cheapest fleets of the parts are found one by one, and the limit is on all of them; fleet.max_machines limits each kind",
    (
        "budget",
        "commitments",
    ): "the mix is the cheapest by the price of prices.commitment, so none within a budget by commitments would not mean that there is none",
    ("cascade",): "its two models have fleets of their own, and each is searched separately",
    ("sharing",): "services share the GPUs of one fleet",
}
EXCLUSIONS = (
    *(
        Exclusion(f"hosted.{key}", (f"hosted.{key}", "hosted.provisioned"), _OF_TOKENS)
        for key in ("batch_fraction", "discount", "surcharge", "service")
    ),
    *(
        Exclusion(
            f"commitments.{term}",
            (f"commitments.{term}.price", f"commitments.{term}.discount"),
            "price and discount are both given",
        )
        for term in ("reserved_1y", "reserved_3y")
    ),
    *(
        Exclusion(
            f"energy.{phase}",
            (f"energy.{phase}", f"energy.measured.{phase}"),
            f"is measured too, in energy.measured.{phase}",
        )
        for phase in ("idle", "decode", "prefill")
    ),
    *(
        Exclusion("fleet.mix", ("fleet.mix", *keys), f"not with {' and '.join(keys)}: {why}")
        for keys, why in _MIX.items()
    ),
)


def note_exclusions(reading: Reading, file: ScenarioFile) -> None:
    """Note the keys of a scenario that exclude each other."""
    for item in EXCLUSIONS:
        if all(_stated(file, key) for key in item.keys):
            reading.reject(tuple(item.at.split(".")), f"{item.why}; leave one of them out")


def _stated(record: Any, key: str) -> bool:
    """Return whether a key is stated and says something: nothing that is switched off, and not what holds without it."""
    *sections, last = key.split(".")
    for name in sections:
        record = getattr(record, name)
        if record is None:
            return False
    defaults = (
        {name: field.default for name, field in type(record).model_fields.items()}
        if isinstance(record, BaseModel)
        else {field.name: field.default for field in fields(record)}
    )
    return getattr(record, last) not in (None, "off", defaults[last])
