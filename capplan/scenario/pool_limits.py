"""The keys of a scenario about separate prefill and decode pools -> what the search may choose from."""

from collections.abc import Callable
from functools import partial

from capplan.fleet.pools.link import LinkTerms
from capplan.fleet.scenario import PoolsLimits
from capplan.hardware.device import Device
from capplan.scenario.engine_use import link_terms_of
from capplan.scenario.reading import Reading
from capplan.scenario.scenario_file import Fleet, ScenarioFile
from capplan.workload.request_class import RequestClass

POOL_KEYS = ("prefill_hardware", "decode_hardware", "kv_link", "kv_link_latency")
LEFT_OUT = "fleet.disaggregation is left out, so nothing would read it; give disaggregation: allowed, or leave it out too"

Devices = Callable[[str, list[str]], tuple[Device, ...]]
"""(key of fleet, names) -> devices."""


def pools_limits(
    reading: Reading, file: ScenarioFile, hardware: tuple[Device, ...], devices: Devices
) -> PoolsLimits | None:
    """Return what pools may be made of; None where the fleet has none.

    Parameters
    ----------
    reading : notes mistakes and defaults
    file : the scenario as it is written
    hardware : devices of the fleet, for a pool that names none
    devices : looks up the devices of a key
    """
    fleet = file.fleet
    if fleet.disaggregation == "off":
        return None  # keys of pools stay, so that pools can be switched off and on
    if fleet.disaggregation is None:
        for key in POOL_KEYS:
            if getattr(fleet, key) is not None:
                reading.note(reading.refuse(("fleet", key), LEFT_OUT), ("fleet", key))
        return None
    pools = {
        key: devices(key, names) if (names := getattr(fleet, key)) else hardware
        for key in ("prefill_hardware", "decode_hardware")
    }
    reading.assume(
        "spare replicas stand by in each of the two pools, as one of the other pool has to be started again",
        "fleet.survive",
    )
    link = reading.attempt(partial(_link, fleet), LinkTerms(), ("fleet", "kv_link"))
    reading.assumptions.append(link.assumption)
    return PoolsLimits(
        pools["prefill_hardware"], pools["decode_hardware"], link, only=fleet.disaggregation == "only"
    )


def _link(fleet: Fleet) -> LinkTerms:
    name = LinkTerms().name if fleet.kv_link is None else fleet.kv_link
    return link_terms_of(name, "fleet.kv_link", fleet.kv_link_latency or 0.0)


def refuse_with_pools(reading: Reading, file: ScenarioFile, classes: tuple[RequestClass, ...]) -> None:
    """Note what is not modelled with separate pools: conversations of users."""
    at = ("fleet", "disaggregation")
    if file.fleet.disaggregation in (None, "off"):
        return
    if any(item.users is not None for item in classes):
        reading.assume(
            "separate pools are sized for requests that arrive at random at the rate that the users send",
            "fleet.disaggregation",
        )
    if any(item.users is not None and item.sessions is not None for item in classes):
        what = "separate pools are not modelled with conversations of users (traffic[].users with turns); give request_rate"
        reading.note(reading.refuse(at, what), at)
