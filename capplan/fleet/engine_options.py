"""Engine options beyond the defaults of a version: another scheduler, offload tiers, speculation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from capplan.assumption import Assumption
from capplan.engine.profile import Policy, Scheduling
from capplan.errors import InputError
from capplan.hardware.device import Device
from capplan.model.kv_cache import kv_bytes_per_sequence, state_bytes_per_sequence
from capplan.model.network import Network
from capplan.model.sharding import Sharding
from capplan.model.weight_format import kv_bytes_per_element
from capplan.replica.replica import Replica
from capplan.replica.spec import served_context_tokens
from capplan.replica.speculation import DraftPlan, best_speculating_replica
from capplan.serving.block_cache import OffloadTier, PrefixCaching
from capplan.serving.requests import Requests
from capplan.serving.terms import EngineSetup

Scheduler = Literal["static", "dynamic", "continuous", "chunked", "prefill-first", "slots"]


BATCH_TIMEOUT_S = 0.1
"""Default time that a dynamic batch waits to fill."""


@dataclass(frozen=True, slots=True)
class TierSize:
    """An offload tier of one replica: memory below that of its devices."""

    name: str
    capacity_bytes: float
    bytes_per_s: float | None = None
    """Bandwidth for the whole replica; None: that of the link implied by the name (host: PCIe, remote: network)."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of the engines; the defaults change nothing."""

    scheduler: Scheduler | None = None
    batch_timeout_s: float | None = None
    tiers: tuple[TierSize, ...] = ()
    drafting: DraftPlan | None = None
    """Speculative decoding, with the number of drafts of a round."""
    prefix_caching: bool = True
    """False: block ids are not used."""
    reuse_preempted: bool = False
    """A preempted request without block ids reuses those of its blocks that are still cached."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Identical engines, ready to be simulated."""

    replica: Replica
    setup: EngineSetup
    assumptions: tuple[Assumption, ...]


def engines_of(replica: Replica, use: EngineOptions, id_tokens: int, prompt_tokens: float) -> Engines:
    """Return engines with the given options.

    Parameters
    ----------
    replica : one of them
    use : the options
    id_tokens : [tokens]
        per block id of the prompts; 0 if they have none
    prompt_tokens : [tokens]
        of a typical prompt, whose KV bytes per token are used for all

    Raises
    ------
    InputError
        names options that cannot be combined
    """
    stated: list[Assumption] = []
    if use.scheduler is not None:
        scheduling = _scheduling(replica, use.scheduler, stated)
        table = replace(replica.table, separate_prefill_pass=scheduling.policy == "slots")
        replica = replace(replica, scheduling=scheduling, table=table)
    if use.batch_timeout_s is not None and use.scheduler != "dynamic":
        raise InputError("--batch-timeout: only --scheduling dynamic has a batch timeout")
    caching = _caching(replica, use.tiers, id_tokens if use.prefix_caching else 0, prompt_tokens, stated)
    if use.drafting is not None:
        replica = _speculating(replica, use.drafting, prompt_tokens, stated)
    setup = replace(replica.engine, caching=caching, batch_timeout_s=_timeout_s(use, stated))
    return Engines(replica, setup, tuple(stated))


def _caching(
    replica: Replica,
    sizes: Sequence[TierSize],
    id_tokens: int,
    prompt_tokens: float,
    stated: list[Assumption],
) -> PrefixCaching | None:
    """Return the prefix cache and its offload tiers; None, as stated, if the requests or the engine have no matching blocks."""
    policy, block = replica.scheduling.policy, replica.scheduling.block_tokens
    if sizes and policy == "slots":
        raise InputError(
            "--kv-offload: what slots hold is not offloaded in blocks\n  leave out --scheduling slots or --kv-offload"
        )
    if id_tokens and id_tokens % block == 0 and policy != "static":
        tiers = tuple(offload_tier(replica, size, id_tokens, prompt_tokens) for size in sizes)
        if tiers:
            stated.append(_tiers_stated(tiers))
        return PrefixCaching(id_tokens, tiers)
    if id_tokens:
        mismatch = f"block ids of {id_tokens} tokens are no multiple of the engine's block of {block}"
        why = "static batching has none" if policy == "static" else mismatch
        stated.append(Assumption(f"the prefix cache is not simulated: {why}", "--scheduling, the engine"))
    if sizes:
        why = "the requests have no block ids that match its blocks"
        if policy == "static":
            why = "static batching has no prefix cache"
        raise InputError(
            f"--kv-offload: {why}, so an offload tier would stay empty\n"
            "  replay a trace with hash_ids: --trace mooncake.jsonl"
        )
    return None


def _speculating(
    replica: Replica, drafting: DraftPlan, prompt_tokens: float, stated: list[Assumption]
) -> Replica:
    """Return the replica whose steps are rounds of drafts and their verification, as stated."""
    context = min(prompt_tokens, served_context_tokens(replica.spec))
    replica = best_speculating_replica(replica, drafting, 1.0, context)
    accepted = drafting.acceptance_fractions
    each = f"{accepted[0]:.0%}" if len(accepted) == 1 else ", ".join(f"{part:.0%}" for part in accepted)
    words = (
        f"every round yields {replica.tokens_per_step:.3g} tokens: {replica.draft_tokens} drafts, each accepted with "
        f"{each} probability if those before it were"
    )
    stated.append(Assumption(words, "--acceptance, --draft-tokens"))
    return replica


def with_named_blocks(requests: Requests, block_tokens: int) -> Requests:
    """Return the requests with unique block ids, so that a request can hit only blocks that it computed itself.

    Requests with cached tokens keep those instead.

    Examples
    --------
    >>> requests = with_named_blocks(Requests(np.array([40, 16]), np.array([1, 1])), 16)
    >>> requests.block_ids, requests.block_counts
    (array([0, 1, 2]), array([2, 1]))
    """
    counts = requests.input_tokens // block_tokens
    if requests.cached_tokens is not None:
        counts = np.where(requests.cached_tokens > 0, 0, counts)
    return replace(requests, block_ids=np.arange(int(counts.sum())), block_counts=counts)


def _timeout_s(use: EngineOptions, stated: list[Assumption]) -> float:
    if use.scheduler == "dynamic" and use.batch_timeout_s is None:
        words = f"a batch starts at the latest when its oldest request has waited for {BATCH_TIMEOUT_S * 1e3:g} ms"
        stated.append(Assumption(words, "--batch-timeout"))
        return BATCH_TIMEOUT_S
    return inf if use.batch_timeout_s is None else use.batch_timeout_s


_POLICIES: Mapping[Scheduler, Policy] = {
    "static": "static",
    "dynamic": "static",
    "prefill-first": "prefill_first",
    "slots": "slots",
}


def _scheduling(replica: Replica, scheduler: Scheduler, stated: list[Assumption]) -> Scheduling:
    """Return another scheduler with the engine's limits; without chunked prefill, a step must hold the longest prompt."""
    scheduling = replica.scheduling
    policy = _POLICIES.get(scheduler, "mixed")
    chunked = scheduler in {"chunked", "slots"}
    budget = scheduling.max_num_batched_tokens
    longest = served_context_tokens(replica.spec)
    if not chunked and budget < longest:
        budget = longest
        words = f"max_num_batched_tokens is {budget}, the longest context, as there is no chunked prefill"
        stated.append(Assumption(words, "--scheduling"))
    if policy == "slots":
        each = replica.engine.kv_blocks // scheduling.max_num_seqs * scheduling.block_tokens
        words = f"each of {scheduling.max_num_seqs} slots has {each:,} tokens of the cache; a longer request is shed"
        stated.append(Assumption(words, "max_num_seqs"))
    return replace(
        scheduling,
        policy=policy,
        chunked=chunked,
        max_num_batched_tokens=budget,
        asynchronous=scheduling.asynchronous and policy != "slots",
    )


def links_of(device: Device) -> dict[str, float | None]:
    """Return the links of a device by name, with their rates per device and direction [B/s]."""
    links = {"pcie": device.pcie_bytes_per_s, "network": device.network_bytes_per_s}
    if device.link is not None:
        links[device.link] = device.link_bytes_per_s
    return links


LINK_OF_TIER = {"host": "pcie", "remote": "network"}
"""The link from a tier to the devices, for tiers without a bandwidth."""


class TierTokens(NamedTuple):
    """An offload tier in tokens of one replica."""

    tokens: float
    load_s_per_token: float


def offload_tier(replica: Replica, size: TierSize, id_tokens: int, prompt_tokens: float) -> OffloadTier:
    """Return a tier in blocks of the trace.

    A tier stores every block once. Each rank loads its part over the link of its device, replicated heads included; a
    bandwidth that is given is that of the whole replica.

    Raises
    ------
    InputError
        the bandwidth of the tier is unknown
    """
    spec = replica.spec
    tier = tier_in_tokens(spec.network, spec.device, spec.sharding, spec.kv_format, size, prompt_tokens)
    return OffloadTier(int(tier.tokens / id_tokens), tier.load_s_per_token * id_tokens, size.name)


def tier_in_tokens(
    network: Network,
    device: Device,
    sharding: Sharding,
    kv_format: str,
    size: TierSize,
    prompt_tokens: float,
) -> TierTokens:
    """Return the capacity of a tier for one replica in tokens, and the time to load a token back; see offload_tier."""
    context = np.asarray(max(prompt_tokens, 1.0))
    element = kv_bytes_per_element(kv_format)

    def bytes_per_token(ranks: float) -> float:
        held = kv_bytes_per_sequence(network, context, element, ranks, stored=True)
        return float((held + state_bytes_per_sequence(network, ranks)) / context)

    rate, sent = size.bytes_per_s, bytes_per_token(1.0)
    capacity = size.capacity_bytes / sent
    if rate is None:
        link = LINK_OF_TIER.get(size.name)
        per_device = links_of(device)[link] if link else None
        if per_device is None:
            raise InputError(
                f"kv_offload {size.name}: its bandwidth to {device.name} is not known\n"
                f"  give one: --kv-offload '{size.name}:{size.capacity_bytes / 1e9:g} GB@10 GB/s', or bandwidth: 10 GB/s"
            )
        sent = bytes_per_token(float(sharding.tensor))
        rate = per_device * float(sharding.pipeline) * float(sharding.data)
    return TierTokens(capacity, sent / rate)


def _tiers_stated(tiers: Sequence[OffloadTier]) -> Assumption:
    each = ", ".join(
        f"{tier.name} {tier.capacity_blocks:,} blocks at {tier.load_s_per_block * 1e3:.3g} ms"
        for tier in tiers
    )
    return Assumption(
        f"offload tiers of a replica: {each}; evicted blocks move down at no cost, and are loaded back over one link per "
        "tier while other requests run",
        "--kv-offload",
    )
