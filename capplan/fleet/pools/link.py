"""The link that carries KV caches from prefill to decode replicas: transfer sizes, times and utilisation."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from capplan.assumption import Assumption
from capplan.errors import InputError, unknown
from capplan.fleet.engine_options import links_of
from capplan.hardware.device import NETWORKS, Device
from capplan.memory.layer_groups import held_state_bytes
from capplan.model.kv_cache import kv_bytes_per_sequence
from capplan.model.weight_format import kv_bytes_per_element
from capplan.replica.spec import ReplicaSpec
from capplan.serving.terms import KvLink, link_load_fraction, transfer_s


@dataclass(frozen=True, slots=True)
class LinkTerms:
    """A KV link as the user specifies it."""

    name: str = "network"
    """Name of a link of the devices or of a network, or the rate as it is written."""
    bytes_per_s: float | None = None
    """Bandwidth per device and direction; None: that of the link of this name in the catalogue."""
    latency_s: float = 0.0
    rate_ratio: float = 1.0
    """Factor on the rate; for times that are simulated in another unit."""
    key: str = "fleet.kv_link"
    """Key or flag that says so."""

    def known_to(self, device: Device) -> bool:
        """Return whether a device has the link, at a known rate."""
        return self.bytes_per_s is not None or links_of(device).get(self.name) is not None

    @property
    def assumption(self) -> Assumption:
        """Return the assumption behind the transfers."""
        after = f", each {self.latency_s * 1e6:g} us later" if self.latency_s else ", without latency"
        return Assumption(
            f"KV caches go over {self.name} at the datasheet rate of all devices of a replica, one prompt at a time{after}; "
            "either pool may have another parallelism, and both have one KV dtype and one engine version",
            self.key,
            self.key,
        )


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Size, time and load of the KV transfers of a fleet."""

    link: str
    bytes_per_request: float
    """KV cache of a prompt of mean length."""
    transfer_s: float
    """Time of that prompt, without waiting for others."""
    bytes_per_s: float
    """Traffic offered to all links at the peak."""
    prefill_load_fraction: float
    """Fraction of time for which the links of prefill replicas send."""
    decode_load_fraction: float
    """Fraction of time for which the links of decode replicas receive."""

    @property
    def load_fraction(self) -> float:
        """The larger of both; from 1 on transfers pile up."""
        return max(self.prefill_load_fraction, self.decode_load_fraction)


def kv_bytes_per_prompt_token(spec: ReplicaSpec, prompt_tokens: float) -> float:
    """Return the KV cache and state that a prompt sends, per token of a prompt of this length [B].

    Every element goes over the link once, whatever the parallelism of either side.
    """
    context = np.asarray(max(prompt_tokens, 1.0))
    held = kv_bytes_per_sequence(spec.network, context, kv_bytes_per_element(spec.kv_format), stored=True)
    return float((held + held_state_bytes(spec.network, 1.0, spec.profile.memory.recurrent_format)) / context)


def replica_link_bytes_per_s(spec: ReplicaSpec, terms: LinkTerms) -> float:
    """Return the rate of all devices of a replica [B/s].

    Raises
    ------
    InputError
        names the known links
    """
    return _device_bytes_per_s(spec.device, terms) * spec.devices * terms.rate_ratio


def _device_bytes_per_s(device: Device, terms: LinkTerms) -> float:
    if terms.bytes_per_s is not None:
        return terms.bytes_per_s
    links = links_of(device)
    if terms.name not in links:
        raise unknown("link", terms.name, {*links, *NETWORKS}, place=terms.key)
    rate = links[terms.name]
    if rate is None:
        raise InputError(
            f"{terms.key}: {terms.name}: the rate of {device.title} is not known\n"
            f"  known: {', '.join(link for link, known in links.items() if known is not None)}"
        )
    return rate


def check_known(devices: Iterable[Device], terms: LinkTerms) -> None:
    """Raise InputError if none of the devices has the link."""
    every = tuple(devices)
    if not any(terms.known_to(device) for device in every):
        _device_bytes_per_s(every[0], terms)


def reach_of(device: Device, terms: LinkTerms) -> int | None:
    """Return how many devices a link inside a server or a rack joins; None for a network, or for a rate by hand."""
    known = {"pcie": device.node_devices, str(device.link): device.link_domain_devices}
    return known.get(terms.name) if terms.bytes_per_s is None else None


def unlinked_reason(
    prefill: ReplicaSpec, decode: ReplicaSpec, replicas: tuple[int, int], terms: LinkTerms
) -> str:
    """Return why a link inside a server or a rack does not join all replicas of two pools; empty where it does."""
    first = prefill.device
    reach = reach_of(first, terms)
    if reach is None:
        return ""
    devices = replicas[0] * prefill.devices + replicas[1] * decode.devices
    if first.name != decode.device.name:
        return f"{terms.name} does not join {first.name} and {decode.device.name}"
    if devices > reach:
        return f"{terms.name} joins {reach} x {first.name}, and both pools have {devices}"
    return ""


def link_between(
    prefill: ReplicaSpec,
    decode: ReplicaSpec,
    terms: LinkTerms,
    prompt_tokens: float,
    draft: ReplicaSpec | None = None,
) -> KvLink:
    """Return the link from one prefill replica to one decode replica: the slower end decides.

    Parameters
    ----------
    prefill, decode : replicas of either pool
    terms : the link
    prompt_tokens : [tokens]
        of a typical prompt, whose KV bytes per token are used for all
    draft : the draft model of the prefill replica, whose KV cache is sent too; None: it has none

    Returns
    -------
    bytes per token [B], rate [B/s], latency [s]

    Raises
    ------
    InputError
        the devices have no such link, or the pools keep their caches in different dtypes
    """
    if prefill.kv_format != decode.kv_format:
        raise InputError(
            f"a KV cache in {prefill.kv_format} cannot be handed to decode replicas that keep it in {decode.kv_format}\n"
            "  give both pools one KV dtype"
        )
    rate = min(replica_link_bytes_per_s(spec, terms) for spec in (prefill, decode))
    sent = sum(kv_bytes_per_prompt_token(spec, prompt_tokens) for spec in (prefill, draft) if spec)
    return KvLink(sent, rate, terms.latency_s)


def link_use(
    prefill: ReplicaSpec,
    decode: ReplicaSpec,
    replicas: tuple[int, int],
    terms: LinkTerms,
    *,
    prompt_tokens: float,
    requests_per_s: float,
    draft: ReplicaSpec | None = None,
) -> LinkUse:
    """Return size, time and load of the KV transfers of a fleet at a request rate.

    Parameters
    ----------
    prefill, decode : replicas of either pool
    replicas : [-]
        of either pool
    terms : the link
    prompt_tokens : [tokens]
        mean prompt
    requests_per_s : [1/s]
        of the whole fleet
    draft : the draft model of the prefill replicas, whose KV cache is sent too; None: they have none
    """
    link = link_between(prefill, decode, terms, prompt_tokens, draft)
    offered = requests_per_s * prompt_tokens
    loads = [
        link_load_fraction(offered, link.bytes_per_token, count, replica_link_bytes_per_s(spec, terms))
        for spec, count in zip((prefill, decode), replicas, strict=True)
    ]
    return LinkUse(
        terms.name,
        prompt_tokens * link.bytes_per_token,
        transfer_s(prompt_tokens, link.bytes_per_token, link.bytes_per_s, link.latency_s),
        offered * link.bytes_per_token,
        *loads,
    )
