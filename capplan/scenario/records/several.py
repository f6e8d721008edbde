"""The keys of a scenario about more models than one."""

from typing import Annotated, Any

from pydantic import Field

from capplan.fleet.scenario import CascadePart, CascadeStage, SharedBy
from capplan.readers.record import Fraction, Record, SecondsOrZero, Share

Changed = Annotated[dict[str, Any], Field(max_length=100)]


class Cascade(Record):
    """A large model that a share of the requests is escalated to; the model of the scenario is the small one."""

    model: str
    """The large one: Hugging Face id, shipped alias, or path relative to this file."""
    revision: str | None = None
    """Branch, tag or commit of the large model on the hub."""
    escalated: Fraction
    """Share of the requests that the large one answers."""
    after: CascadeStage | None = None
    """What a request is escalated after: the whole answer of the small model, or the verdict of a router before it."""
    verdict_time: SecondsOrZero | None = None
    """Time of the judge of an answer, or of the router, for every request; both run on other machines than the fleets."""
    changes: Changed = Field(default_factory=dict)
    """Keys of the scenario that differ for the large one, nested as there; null takes a key away."""
    part: CascadePart | None = None
    """Plan this fleet alone: first (small), second (large, what is escalated), alone (large, all requests)."""


class SharedModel(Record):
    """A model that shares devices with that of the scenario."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """As shown in results."""
    model: str
    """Hugging Face id, shipped alias, or path relative to this file."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    gpu_memory_utilization: Share | None = None
    """Fraction of the memory of each device that is this model's, with by: device; that of the scenario is its own model's."""
    changes: Changed = Field(default_factory=dict)
    """Keys of the scenario that differ for it, nested as there; without traffic among them it is idle."""


class Sharing(Record):
    """Models that share devices with that of the scenario."""

    by: SharedBy
    """What is shared: every device, in slices of its time and memory; devices cut into MIG slices, each with one model; or all devices, each with
    one model at a time, by the hour."""
    models: Annotated[list[SharedModel], Field(min_length=1, max_length=20)]
    """The others."""
    part: str | None = None
    """Plan the fleet of this model alone, by its name; own: of the scenario's own model."""
