"""Communication between devices: the library picks the fastest of a few algorithms, by size and link."""

from dataclasses import dataclass, replace

import numpy as np

from capplan.numbers import Number


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What the links of one device achieve with the collectives of one engine."""

    link_bytes_per_s: Number
    """Datasheet rate per device and direction inside the link domain (or PCIe where there is no link)."""
    network_bytes_per_s: Number
    """Datasheet rate per device and direction between domains."""
    domain_devices: Number
    """Devices connected to each other by the link."""
    ring_fraction: Number
    """Achieved fraction of the link in large messages between two devices."""
    ring_step_s: Number
    """One step of a ring."""
    ring_floor_s: Number
    ring_ramp_bytes: Number
    """Message size below which a ring does not reach its full rate."""
    crowding_exponent: Number
    """How the achieved fraction falls with the number of devices that share one path (PCIe); 0 behind a switch."""
    multicast_fraction: Number
    """Achieved fraction of the link when the switch reduces; near 0 without such a switch."""
    multicast_floor_s: Number
    all_to_all_fraction: Number
    """Achieved fraction of the link in an all-to-all, relative to a ring."""
    all_to_all_step_s: Number
    one_shot_fraction: Number
    """Achieved fraction of the link when every rank reads all others' whole buffers."""
    one_shot_step_s: Number
    one_shot_floor_s: Number
    two_shot_fraction: Number
    """Achieved fraction of the link in a direct reduce-scatter followed by an all-gather."""
    two_shot_step_s: Number
    two_shot_floor_s: Number
    direct_crowding_exponent: Number
    """`crowding_exponent` of the engine's own one-shot and two-shot kernels."""
    exchange_fraction: Number
    """Achieved fraction of the link when tokens are sent to their experts and back."""
    dispatch_floor_s: Number
    combine_floor_s: Number
    network_fraction: Number
    network_step_s: Number
    launch_s: Number = 0.0
    """Time between two launches outside a CUDA graph; not included in any time here."""
    ring_cards: Number = 1.0
    """Network cards over which a ring leaves a link domain: one for each device where a domain is a server or more."""


def between_groups(rates: LinkRates, group_ranks: Number) -> LinkRates:
    """Return the rates of a collective between groups of ranks, to which each group contributes one rank.

        d' = d / t,   c' = c / t,   at least 1

    Parameters
    ----------
    rates : of ranks next to each other; d devices of a domain, c cards of a ring
    group_ranks : [-]
        t, of each group

    Returns
    -------
    the rates; those of ranks next to each other where a domain is smaller than a server

    Examples
    --------
    Of groups of two, four are in a server of eight:

    >>> from dataclasses import fields
    >>> rates = LinkRates(**{field.name: 8.0 for field in fields(LinkRates)})
    >>> float(between_groups(rates, 2.0).domain_devices)
    4.0
    """
    part = np.where(np.asarray(rates.ring_cards) > 1.0, group_ranks, 1.0)
    return replace(
        rates,
        domain_devices=np.maximum(rates.domain_devices / part, 1.0),
        ring_cards=np.maximum(rates.ring_cards / part, 1.0),
    )


def _path_bytes_per_s(ranks: Number, rates: LinkRates, cards: Number = 1.0) -> Number:
    """Return the rate of one device: the link inside its domain, beyond it the network with so many of the cards of a domain."""
    crowd = (2.0 / np.maximum(ranks, 2.0)) ** rates.crowding_exponent
    link = rates.link_bytes_per_s * rates.ring_fraction * crowd
    network = rates.network_bytes_per_s * rates.network_fraction * cards
    return np.where(ranks <= rates.domain_devices, link, np.minimum(link, network))


def _ring_time_s(
    ranks: Number,
    sent_bytes: Number,
    steps: Number,
    step_s: Number,
    rates: LinkRates,
    cards: Number = 1.0,
    fraction: Number = 1.0,
) -> Number:
    """Return the time for every rank to send `sent_bytes` in `steps` steps, filling the ring first.

    A ring over several domains crosses the network once in each of them, over all `cards` of a domain at once, so that one of so many steps
    takes as long as a step over the network.
    """
    filling = rates.ring_ramp_bytes * sent_bytes / (sent_bytes + rates.ring_ramp_bytes + 1.0)
    far_s = step_s + (rates.network_step_s - step_s) / np.maximum(cards, 1.0)
    step_s = np.where(ranks <= rates.domain_devices, step_s, far_s)
    bytes_per_s = _path_bytes_per_s(ranks, rates, cards) * fraction
    return (sent_bytes + filling) / bytes_per_s + steps * step_s + rates.ring_floor_s


def all_reduce_time_s(ranks: Number, message_bytes: Number, rates: LinkRates) -> Number:
    """Return the time of an all-reduce with the fastest of four algorithms.

        ring      2 (n - 1) / n M / L + 2 (n - 1) t_s + t_r
        multicast M / L + t_m
        one-shot  (n - 1) (M / L + t_1s) + t_1
        two-shot  2 (n - 1) / n M / L + (n - 1) t_2s + t_2

    Over several link domains it is a ring, whose pieces cross the network over all cards of a domain at once: L is at most d times the rate
    of one of them.

    Parameters
    ----------
    ranks : [-]
        n.
    message_bytes : [B]
        M, buffer of one rank.
    rates : what the links achieve; the fraction of L differs by algorithm

    Returns
    -------
    [s]
        t, 0 for one rank.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1e-9, 9.0, 1.0, 0.0,
    ...                   1e-9, 0.0, 9.0, 1e-9, 0.0, 9.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> float(all_reduce_time_s(4.0, 200.0, rates)), float(all_reduce_time_s(1.0, 200.0, rates))
    (3.0, 0.0)

    References
    ----------
    Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH",
    doi:10.1177/1094342005051521; NVIDIA, nccl-tests, doc/PERFORMANCE.md.
    """
    others = np.maximum(ranks - 1.0, 0.0)
    twice = 2.0 * others / ranks * message_bytes
    ring_s = _ring_time_s(ranks, twice, 2.0 * others, rates.ring_step_s, rates, rates.ring_cards)
    filling = rates.ring_ramp_bytes * message_bytes / (message_bytes + rates.ring_ramp_bytes + 1.0)
    crowd = (2.0 / np.maximum(ranks, 2.0)) ** rates.crowding_exponent
    multicast_s = (message_bytes + filling) / (rates.link_bytes_per_s * rates.multicast_fraction * crowd)
    direct = rates.link_bytes_per_s * (2.0 / np.maximum(ranks, 2.0)) ** rates.direct_crowding_exponent
    one_s = others * (message_bytes / (direct * rates.one_shot_fraction) + rates.one_shot_step_s)
    two_s = twice / (direct * rates.two_shot_fraction) + others * rates.two_shot_step_s
    best_s = np.minimum(multicast_s + rates.multicast_floor_s, one_s + rates.one_shot_floor_s)
    best_s = np.minimum(best_s, two_s + rates.two_shot_floor_s)
    best_s = np.where(ranks <= rates.domain_devices, np.minimum(ring_s, best_s), ring_s)
    return np.asarray(np.where(ranks > 1.0, best_s, 0.0))[()]


def all_gather_time_s(ranks: Number, message_bytes: Number, rates: LinkRates) -> Number:
    """Return the time of an all-gather.

        t = (n - 1) / n M / L + (n - 1) t_s + t_0

    Parameters
    ----------
    ranks : [-]
        n.
    message_bytes : [B]
        M, the gathered result; each rank contributes M / n.
    rates : what the links achieve

    Returns
    -------
    [s]
        t, 0 for one rank.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1e-9, 9.0, 1.0, 0.0,
    ...                   1e-9, 0.0, 9.0, 1e-9, 0.0, 9.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> float(all_gather_time_s(4.0, 200.0, rates))
    1.5

    References
    ----------
    NVIDIA, nccl-tests, doc/PERFORMANCE.md, https://github.com/NVIDIA/nccl-tests
    """
    others = np.maximum(ranks - 1.0, 0.0)
    sent_bytes = others / ranks * message_bytes
    ring_s = _ring_time_s(ranks, sent_bytes, others, rates.ring_step_s, rates, rates.ring_cards)
    return np.asarray(np.where(ranks > 1.0, ring_s, 0.0))[()]


def reduce_scatter_time_s(ranks: Number, message_bytes: Number, rates: LinkRates) -> Number:
    """Return the time of a reduce-scatter.

        t = (n - 1) / n M / L + (n - 1) t_s + t_0

    Parameters
    ----------
    ranks : [-]
        n.
    message_bytes : [B]
        M, the input buffer of one rank; M / n remains.
    rates : what the links achieve

    Returns
    -------
    [s]
        t, 0 for one rank.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1e-9, 9.0, 1.0, 0.0,
    ...                   1e-9, 0.0, 9.0, 1e-9, 0.0, 9.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> float(reduce_scatter_time_s(4.0, 200.0, rates))
    1.5

    References
    ----------
    NVIDIA, nccl-tests, doc/PERFORMANCE.md, https://github.com/NVIDIA/nccl-tests
    """
    return all_gather_time_s(ranks, message_bytes, rates)


def all_to_all_time_s(ranks: Number, message_bytes: Number, rates: LinkRates) -> Number:
    """Return the time of an all-to-all.

        t = (n - 1) / n M / L + (n - 1) t_s + t_0

    Parameters
    ----------
    ranks : [-]
        n.
    message_bytes : [B]
        M, what one rank sends, its own part included.
    rates : what the links achieve

    Returns
    -------
    [s]
        t, 0 for one rank.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1e-9, 9.0, 1.0, 0.0,
    ...                   1e-9, 0.0, 9.0, 1e-9, 0.0, 9.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> float(all_to_all_time_s(4.0, 200.0, rates))
    1.5

    References
    ----------
    NVIDIA, nccl-tests, doc/PERFORMANCE.md, https://github.com/NVIDIA/nccl-tests
    """
    others = np.maximum(ranks - 1.0, 0.0)
    sent_bytes = others / ranks * message_bytes
    direct_s = _ring_time_s(
        ranks, sent_bytes, others, rates.all_to_all_step_s, rates, fraction=rates.all_to_all_fraction
    )
    return np.asarray(np.where(ranks > 1.0, direct_s, 0.0))[()]


def point_to_point_time_s(message_bytes: Number, rates: LinkRates, ranks: Number = 2.0) -> Number:
    """Return the time of sending one buffer from one rank to the next, as pipeline stages do.

        t = M / L + t_s + t_0

    Parameters
    ----------
    message_bytes : [B]
        M.
    rates : what the links achieve
    ranks : [-]
        devices of the whole replica; beyond the link domain the buffer crosses the network.

    Returns
    -------
    [s]
        t.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1e-9, 9.0, 1.0, 0.0,
    ...                   1e-9, 0.0, 9.0, 1e-9, 0.0, 9.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> float(point_to_point_time_s(200.0, rates))
    2.0

    References
    ----------
    Hockney 1994, "The communication challenge for MPP", doi:10.1016/S0167-8191(06)80021-9.
    """
    return _ring_time_s(ranks, message_bytes, 1.0, rates.ring_step_s, rates)


def expert_exchange_bytes(
    tokens: Number, ranks: Number, experts_per_token: Number, inputs: Number, bytes_per_element: Number
) -> Number:
    """Return the bytes one rank sends when each of its tokens goes once to every other rank that holds its experts.

        M = T (n - 1) (1 - (1 - 1 / n)^k) d b

    Parameters
    ----------
    tokens : [-]
        T, of one rank.
    ranks : [-]
        n.
    experts_per_token : [-]
        k.
    inputs : [-]
        d.
    bytes_per_element : [B]
        b: 1 when dispatched in fp8, 2 when combined in bf16.

    Returns
    -------
    [B]
        M.

    Examples
    --------
    The one expert of a token is on the other of two ranks every second time: half of 20 bytes.

    >>> expert_exchange_bytes(1.0, 2.0, 1.0, 10.0, 2.0)
    10.0

    References
    ----------
    DeepSeek-AI 2025, DeepEP, normal kernels, https://github.com/deepseek-ai/DeepEP
    """
    reached = (ranks - 1.0) * (1.0 - (1.0 - 1.0 / ranks) ** experts_per_token)
    return tokens * reached * inputs * bytes_per_element


def expert_exchange_time_s(
    tokens: Number,
    ranks: Number,
    experts_per_token: Number,
    inputs: Number,
    bytes_per_element: Number,
    floor_s: Number,
    rates: LinkRates,
) -> Number:
    """Return the time to dispatch tokens to their experts, or to combine the results.

        t = M / L + t_0

    Parameters
    ----------
    tokens : [-]
        of one rank.
    ranks : [-]
        of the expert group.
    experts_per_token : [-]
        chosen by the router.
    inputs : [-]
        width of a token.
    bytes_per_element : [B]
        as sent.
    floor_s : [s]
        t_0, `dispatch_floor_s` or `combine_floor_s` of the rates.
    rates : what the links achieve

    Returns
    -------
    [s]
        t, 0 for one rank.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1e-9, 9.0, 1.0, 0.0,
    ...                   1e-9, 0.0, 9.0, 1e-9, 0.0, 9.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    >>> float(expert_exchange_time_s(10.0, 2.0, 1.0, 10.0, 2.0, 0.5, rates))
    1.5

    References
    ----------
    DeepSeek-AI 2025, DeepEP, normal kernels, https://github.com/deepseek-ai/DeepEP
    """
    sent_bytes = expert_exchange_bytes(tokens, ranks, experts_per_token, inputs, bytes_per_element)
    link = rates.link_bytes_per_s * rates.exchange_fraction
    network = rates.network_bytes_per_s * rates.network_fraction
    bytes_per_s = np.where(ranks <= rates.domain_devices, link, np.minimum(link, network))
    return np.asarray(np.where(ranks > 1.0, sent_bytes / bytes_per_s + floor_s, 0.0))[()]
