"""Tokens sent to the ranks of their experts and back, over links inside a domain and the network between domains."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capplan.assumption import Assumption
from capplan.engine.profile import LOW_LATENCY_STEP_TOKENS, EngineProfile
from capplan.hardware.device import Device
from capplan.hardware.exchange_kernel import EXCHANGE_KERNELS
from capplan.model.sharding import Sharding
from capplan.numbers import Number
from capplan.operators.collective import LinkRates
from capplan.operators.device_rates import multiprocessors

GROUPED_DOMAINS = 4.0
"""Most servers that the experts of one token are on, where the router chooses groups of experts first (DeepSeek-AI 2024, "DeepSeek-V3",
arXiv:2412.19437, section 2.1.2, node-limited routing)."""


@dataclass(frozen=True, slots=True)
class ExchangeRates:
    """What a device achieves when tokens are sent to their experts; see `ExchangeKernel`."""

    used: Number = 0.0
    """1 where tokens are sent to the ranks of their experts; 0 where all ranks gather all tokens."""
    per_expert: Number = 1.0
    """1 where a token is sent once for each of its experts; 0 where it is sent once to each domain and each rank."""
    link_bytes_per_s: Number = 1.0
    network_bytes_per_s: Number = 1.0
    domain_devices: Number = 1.0
    dispatch_floor_s: Number = 0.0
    combine_floor_s: Number = 0.0
    network_floor_s: Number = 0.0
    """What a network between the ranks adds."""
    overlapping: Number = 0.0
    """1 where the engine overlaps the exchange of one half of a batch with the work of the other half."""
    wait_s: Number = 0.0
    """Wait for ranks that are behind, in every layer; a rank that overlaps two halves of a batch works on the other half."""
    busy_fraction: Number = 0.0
    """Fraction of the multiprocessors that the kernel occupies while it sends."""


GATHERED = ExchangeRates()
"""No all-to-all: all ranks gather all tokens."""


def exchange_kernels(
    engine: EngineProfile, device: Device, sharding: Sharding, step_tokens: float
) -> tuple[str, str]:
    """Return the all-to-all kernels of decode steps and of steps with prompts; no names where all ranks gather all tokens.

    Parameters
    ----------
    engine : which kernels it has, and whether a replica is started with those of one kind (`EngineProfile.one_exchange`)
    device : devices of a server and of an NVLink domain
    sharding : [-]
        parallelism of one replica, numbers
    step_tokens : [tokens]
        largest step of one rank

    Examples
    --------
    >>> from capplan.engine.lookup import profile
    >>> from capplan.readers.catalogue.hardware import device
    >>> of = lambda engine, n, tokens: exchange_kernels(profile(engine), device("h100-sxm"), Sharding(expert=n, data=n), tokens)
    >>> of("sglang", 8.0, 8192.0), of("sglang", 16.0, 8192.0)
    (('', ''), ('deepep_low_latency', 'deepep_normal'))
    >>> of("vllm", 16.0, 1024.0), of("vllm", 16.0, 8192.0)
    (('deepep_low_latency', 'deepep_low_latency'), ('deepep_normal', 'deepep_normal'))
    """
    ranks = float(sharding.tensor * sharding.data)
    if sharding.data <= 1 or sharding.expert < ranks or ranks <= device.node_devices:
        return "", ""
    if ranks <= device.link_domain_devices and engine.rack_exchange:
        return engine.rack_exchange
    decode, prefill = engine.servers_exchange or ("", "")
    if not engine.one_exchange:
        return decode, prefill
    kernel = decode if step_tokens <= LOW_LATENCY_STEP_TOKENS else prefill
    return kernel, kernel


def exchange_assumption(decode: str, prefill: str) -> Assumption:
    """Return what is assumed where tokens are sent to experts over several servers.

    Examples
    --------
    >>> exchange_assumption("deepep_low_latency", "deepep_normal").what
    'experts over servers: deepep_low_latency in decode steps, deepep_normal with prompts, at published rates; a balancer places the experts'
    """
    kernels = decode if decode == prefill else f"{decode} in decode steps, {prefill} with prompts"
    words = f"experts over servers: {kernels}, at published rates; a balancer places the experts"
    return Assumption(words, "a benchmark of one replica: capplan verify-plan", "calibration")


def is_captured(kernel: str) -> bool:
    """Return whether steps with this all-to-all kernel run as CUDA graphs; True without one."""
    return not kernel or EXCHANGE_KERNELS[kernel].captured


def exchange_rates(
    kernel: str, device: Device, link: LinkRates, *, overlapping: bool = False
) -> ExchangeRates:
    """Return what a kernel achieves on a device; no name: ranks gather all tokens.

    Parameters
    ----------
    kernel : key of EXCHANGE_KERNELS, or nothing
    device : as the vendor states it
    link : rates of its links and of the network between servers
    overlapping : the engine overlaps two halves of a batch
    """
    if not kernel:
        return GATHERED
    of = EXCHANGE_KERNELS[kernel]
    speed = of.links.get(device.architecture.lower(), of.links["*"])
    return ExchangeRates(
        used=1.0,
        per_expert=float(of.per_expert),
        link_bytes_per_s=speed.link_fraction * link.link_bytes_per_s,
        network_bytes_per_s=of.network_fraction * link.network_bytes_per_s,
        domain_devices=float(max(device.link_domain_devices, device.node_devices)),
        dispatch_floor_s=speed.dispatch_floor_s,
        combine_floor_s=speed.combine_floor_s,
        network_floor_s=of.network_floor_s,
        overlapping=float(overlapping),
        wait_s=of.wait_s,
        busy_fraction=of.multiprocessors / multiprocessors(device),
    )


def dispatched_bytes(kernel: str, formats: Sequence[str]) -> dict[str, float]:
    """Return the bytes of one element as a kernel dispatches it, by weight format of the experts.

    Examples
    --------
    >>> dispatched_bytes("deepep_normal", ["bf16", "fp8_block"])
    {'bf16': 2.0, 'fp8_block': 1.03125}
    """
    known = EXCHANGE_KERNELS[kernel].dispatched_bytes if kernel else {}
    return {name: known.get(name, 2.0) for name in formats}


def link_copies(
    ranks: Number, domain_devices: Number, experts_per_token: Number, per_expert: Number
) -> Number:
    """Return how often a token crosses the links inside domains on its way to its experts.

        c = k (d - 1) / n                                 once for each expert
        c = n (1 - (1 - 1 / n)^k) (d - 1) / d             once for each rank, forwards of what came over the network included

    Parameters
    ----------
    ranks : [-]
        n, that the experts are spread over.
    domain_devices : [-]
        d, of one link domain; at most n.
    experts_per_token : [-]
        k.
    per_expert : [-]
        1 or 0.

    Returns
    -------
    [-]
        c, for experts drawn evenly.

    Examples
    --------
    >>> float(link_copies(16.0, 8.0, 8.0, 1.0)), round(float(link_copies(8.0, 8.0, 8.0, 0.0)), 2)
    (3.5, 4.59)

    References
    ----------
    DeepSeek-AI 2025, DeepEP, https://github.com/deepseek-ai/DeepEP/blob/main/docs/legacy.md.
    """
    near = np.minimum(domain_devices, ranks)
    reached = ranks * (1.0 - (1.0 - 1.0 / ranks) ** experts_per_token)
    each = experts_per_token * (near - 1.0) / ranks
    return np.where(np.asarray(per_expert) > 0, each, reached * (near - 1.0) / near)[()]


def network_copies(
    ranks: Number,
    domain_devices: Number,
    experts_per_token: Number,
    per_expert: Number,
    most_domains: Number = np.inf,
) -> Number:
    """Return how often a token crosses the network between link domains on its way to its experts.

        c = k (n - d) / n                                                    once for each expert
        c = m (1 - (1 - 1 / m)^k) (N - 1) / N,  N = n / d,  m = min(N, M)     once for each domain

    Parameters
    ----------
    ranks : [-]
        n, that the experts are spread over.
    domain_devices : [-]
        d, of one link domain; at most n.
    experts_per_token : [-]
        k.
    per_expert : [-]
        1 or 0.
    most_domains : [-]
        M, domains that the router limits a token to (`GROUPED_DOMAINS`).

    Returns
    -------
    [-]
        c, for experts drawn evenly; 0 inside one domain.

    Examples
    --------
    >>> float(network_copies(16.0, 8.0, 8.0, 1.0)), round(float(network_copies(64.0, 8.0, 8.0, 0.0, 4.0)), 2)
    (4.0, 3.15)

    References
    ----------
    DeepSeek-AI 2025, DeepEP, https://github.com/deepseek-ai/DeepEP/blob/main/docs/legacy.md.
    """
    near = np.minimum(domain_devices, ranks)
    domains = ranks / near
    chosen = np.minimum(domains, most_domains)
    reached = chosen * (1.0 - (1.0 - 1.0 / chosen) ** experts_per_token)
    each = experts_per_token * (ranks - near) / ranks
    return np.where(np.asarray(per_expert) > 0, each, reached * (domains - 1.0) / domains)[()]


def exposed_exchange_s(
    exchange_s: Number, half_exchange_s: Number, work_s: Number, half_work_s: Number, busy_fraction: Number
) -> Number:
    """Return what an exchange adds to the work of a layer if a batch in two halves overlaps both.

        t = max(2 w_h / (1 - s), 2 x_h) - w,   at least 0 and at most x

    While one half exchanges its tokens the other computes; weights are read twice. An engine leaves the batch whole if halves gain nothing.

    Parameters
    ----------
    exchange_s, half_exchange_s : [s]
        x and x_h, of the whole batch and of half of it.
    work_s, half_work_s : [s]
        w and w_h, of the layer without attention over cached tokens.
    busy_fraction : [-]
        s, multiprocessors that the exchange occupies.

    Returns
    -------
    [s]
        t.

    Examples
    --------
    >>> float(exposed_exchange_s(4.0, 2.0, 5.0, 2.75, 0.0)), float(exposed_exchange_s(4.0, 2.0, 1.0, 1.0, 0.0))
    (0.5, 3.0)

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section 3.4; SGLang, `--enable-two-batch-overlap`.
    """
    overlapped = np.maximum(2.0 * half_work_s / (1.0 - busy_fraction), 2.0 * half_exchange_s) - work_s
    return np.minimum(exchange_s, np.maximum(overlapped, 0.0))


def exchange_bytes(
    tokens: Number,
    ranks: Number,
    experts_per_token: Number,
    token_bytes: Number,
    rates: ExchangeRates,
    most_domains: Number = np.inf,
) -> Number:
    """Return the bytes that a rank sends to the experts of its tokens, over links and network together.

        M = T (c_l + c_n) b

    Parameters
    ----------
    tokens : [-]
        T, of one rank.
    ranks : [-]
        n, that the experts are spread over.
    experts_per_token : [-]
        k; copies c_l and c_n: see `link_copies`, `network_copies`.
    token_bytes : [B]
        b, of one token as sent.
    rates : how often a token is sent
    most_domains : [-]
        domains that the router limits a token to.

    Returns
    -------
    [B]
        M.

    Examples
    --------
    Seven of eight copies leave the rank:

    >>> float(exchange_bytes(2.0, 8.0, 8.0, 10.0, ExchangeRates(domain_devices=8.0)))
    140.0

    References
    ----------
    DeepSeek-AI 2025, DeepEP, https://github.com/deepseek-ai/DeepEP/blob/main/docs/legacy.md.
    """
    domain, once = rates.domain_devices, rates.per_expert
    link = link_copies(ranks, domain, experts_per_token, once)
    copies = link + network_copies(ranks, domain, experts_per_token, once, most_domains)
    return tokens * copies * token_bytes


def exchange_time_s(
    tokens: Number,
    ranks: Number,
    experts_per_token: Number,
    token_bytes: Number,
    floor_s: Number,
    rates: ExchangeRates,
    most_domains: Number = np.inf,
) -> Number:
    """Return the time to send the tokens of every rank to their experts, or the results back.

        t = max(T c_l b / L, T c_n b / N) + t_0 (+ t_n over several domains)

    Links and network work at the same time; the slower of both is waited for.

    Parameters
    ----------
    tokens : [-]
        T, of one rank.
    ranks : [-]
        n, that the experts are spread over.
    experts_per_token : [-]
        k; copies c_l and c_n: see `link_copies`, `network_copies`.
    token_bytes : [B]
        b, of one token as sent.
    floor_s : [s]
        t_0, `dispatch_floor_s` or `combine_floor_s` of the rates.
    rates : what the kernel achieves
    most_domains : [-]
        domains that the router limits a token to.

    Returns
    -------
    [s]
        t, 0 for one rank. Within 13 % of published timings of 128 tokens and more, within a third of those of fewer.

    Examples
    --------
    Half of eight copies of 128 tokens of 7,392 bytes leave a server, at 44 GB/s:

    >>> rates = ExchangeRates(1.0, 1.0, 250e9, 44e9, 8.0, 14e-6, 14e-6, 13e-6)
    >>> round(1e6 * float(exchange_time_s(128.0, 16.0, 8.0, 7392.0, rates.dispatch_floor_s, rates)))
    113

    References
    ----------
    DeepSeek-AI 2025, DeepEP, https://github.com/deepseek-ai/DeepEP/blob/main/docs/legacy.md: 118 us.
    """
    ranks = np.maximum(ranks, 1.0)
    domain = rates.domain_devices
    link = link_copies(ranks, domain, experts_per_token, rates.per_expert) / rates.link_bytes_per_s
    network = network_copies(ranks, domain, experts_per_token, rates.per_expert, most_domains)
    network_s = network / rates.network_bytes_per_s
    sent_s = tokens * token_bytes * np.maximum(link, network_s)
    floor_s = floor_s + np.where(ranks > domain, rates.network_floor_s, 0.0)
    return np.asarray(np.where(ranks > 1.0, sent_s + floor_s, 0.0))[()]
