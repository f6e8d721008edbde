"""Communication between devices: the library picks the fastest of a few algorithms, by size and link."""

from dataclasses import dataclass

import numpy as np

from capplan.numbers import Number


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What the links of one device reach, with the collectives of one engine."""

    link_bytes_per_s: Number
    """Datasheet rate per device and direction inside the link domain (or PCIe where there is no link)."""
    network_bytes_per_s: Number
    """Datasheet rate per device and direction between domains."""
    domain_devices: Number
    """Devices that reach each other over the link."""
    ring_fraction: Number
    """Reached share of the link in large messages."""
    ring_step_s: Number
    """One step of a ring."""
    ring_floor_s: Number
    one_shot_fraction: Number
    """Reached share of the link when every rank reads all others' whole buffers."""
    one_shot_floor_s: Number
    two_shot_fraction: Number
    """Reached share of the link in a direct reduce-scatter followed by an all-gather."""
    two_shot_floor_s: Number
    multicast_fraction: Number
    """Reached share of the link when the switch reduces; 0 without such a switch."""
    multicast_floor_s: Number
    network_fraction: Number
    network_step_s: Number


def _ring_time_s(ranks: Number, sent_bytes: Number, rounds: Number, rates: LinkRates) -> Number:
    """Return the time of a ring that sends `sent_bytes` per rank in `rounds` x (n - 1) steps."""
    inside = ranks <= rates.domain_devices
    bytes_per_s = np.where(
        inside,
        rates.link_bytes_per_s * rates.ring_fraction,
        rates.network_bytes_per_s * rates.network_fraction,
    )
    step_s = np.where(inside, rates.ring_step_s, rates.network_step_s)
    return np.asarray(sent_bytes / bytes_per_s + rounds * (ranks - 1.0) * step_s + rates.ring_floor_s)[()]


def all_reduce_time_s(ranks: Number, message_bytes: Number, rates: LinkRates) -> Number:
    """Return the time in which all ranks sum their buffers: the fastest of four algorithms.

        ring      2 (n - 1) / n M / L + 2 (n - 1) t_s
        one-shot  (n - 1) M / L + t_1
        two-shot  2 (n - 1) / n M / L + t_2
        multicast M / L + t_m

    Parameters
    ----------
    ranks : [-]
        n.
    message_bytes : [B]
        M, buffer of one rank.
    rates : what the links reach

    Returns
    -------
    [s]
        t, 0 for one rank.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 1.0, 9.0, 1.0, 9.0, 0.0, 9.0, 1.0, 0.0)
    >>> float(all_reduce_time_s(4.0, 200.0, rates)), float(all_reduce_time_s(1.0, 200.0, rates))
    (3.0, 0.0)

    References
    ----------
    Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH",
    doi:10.1177/1094342005051521; NVIDIA, nccl-tests, doc/PERFORMANCE.md.
    """
    link = rates.link_bytes_per_s
    share = (ranks - 1.0) / ranks
    ring_s = _ring_time_s(ranks, 2.0 * share * message_bytes, 2.0, rates)
    one_s = (ranks - 1.0) * message_bytes / (link * rates.one_shot_fraction) + rates.one_shot_floor_s
    two_s = 2.0 * share * message_bytes / (link * rates.two_shot_fraction) + rates.two_shot_floor_s
    cast_s = message_bytes / (link * np.maximum(rates.multicast_fraction, 1e-9)) + rates.multicast_floor_s
    direct_s = np.minimum(np.minimum(one_s, two_s), cast_s)
    best_s = np.where(ranks <= rates.domain_devices, np.minimum(ring_s, direct_s), ring_s)
    return np.asarray(np.where(ranks > 1.0, best_s, 0.0))[()]


def all_gather_time_s(ranks: Number, message_bytes: Number, rates: LinkRates) -> Number:
    """Return the time in which every rank collects the parts of all.

        t = (n - 1) / n M / L + (n - 1) t_s + t_0

    Parameters
    ----------
    ranks : [-]
        n.
    message_bytes : [B]
        M, the gathered whole; each rank holds M / n before.
    rates : what the links reach

    Returns
    -------
    [s]
        t, 0 for one rank.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 1.0, 9.0, 1.0, 9.0, 0.0, 9.0, 1.0, 0.0)
    >>> float(all_gather_time_s(4.0, 200.0, rates))
    1.5

    References
    ----------
    NVIDIA, nccl-tests, doc/PERFORMANCE.md, https://github.com/NVIDIA/nccl-tests
    """
    ring_s = _ring_time_s(ranks, (ranks - 1.0) / ranks * message_bytes, 1.0, rates)
    return np.asarray(np.where(ranks > 1.0, ring_s, 0.0))[()]


def reduce_scatter_time_s(ranks: Number, message_bytes: Number, rates: LinkRates) -> Number:
    """Return the time in which every rank gets its part of the sum.

        t = (n - 1) / n M / L + (n - 1) t_s + t_0

    Parameters
    ----------
    ranks : [-]
        n.
    message_bytes : [B]
        M, the whole buffer of one rank; M / n remains.
    rates : what the links reach

    Returns
    -------
    [s]
        t, 0 for one rank.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 1.0, 9.0, 1.0, 9.0, 0.0, 9.0, 1.0, 0.0)
    >>> float(reduce_scatter_time_s(4.0, 200.0, rates))
    1.5

    References
    ----------
    NVIDIA, nccl-tests, doc/PERFORMANCE.md, https://github.com/NVIDIA/nccl-tests
    """
    return all_gather_time_s(ranks, message_bytes, rates)


def all_to_all_time_s(ranks: Number, message_bytes: Number, rates: LinkRates) -> Number:
    """Return the time in which every rank sends a different part to every other.

        t = (n - 1) / n M / L + t_s + t_0

    Parameters
    ----------
    ranks : [-]
        n.
    message_bytes : [B]
        M, what one rank sends, its own part included.
    rates : what the links reach

    Returns
    -------
    [s]
        t, 0 for one rank.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 1.0, 9.0, 1.0, 9.0, 0.0, 9.0, 1.0, 0.0)
    >>> float(all_to_all_time_s(4.0, 200.0, rates))
    1.5

    References
    ----------
    NVIDIA, nccl-tests, doc/PERFORMANCE.md, https://github.com/NVIDIA/nccl-tests
    """
    direct_s = _ring_time_s(
        ranks, (ranks - 1.0) / ranks * message_bytes, 1.0 / np.maximum(ranks - 1.0, 1.0), rates
    )
    return np.asarray(np.where(ranks > 1.0, direct_s, 0.0))[()]


def point_to_point_time_s(message_bytes: Number, rates: LinkRates, ranks: Number = 2.0) -> Number:
    """Return the time of sending one buffer from one rank to the next, as pipeline stages do.

        t = M / L + t_s + t_0

    Parameters
    ----------
    message_bytes : [B]
        M.
    rates : what the links reach
    ranks : [-]
        devices of the whole replica; beyond the link domain the buffer crosses the network.

    Returns
    -------
    [s]
        t.

    Examples
    --------
    >>> rates = LinkRates(100.0, 10.0, 8.0, 1.0, 0.0, 0.0, 1.0, 9.0, 1.0, 9.0, 0.0, 9.0, 1.0, 0.0)
    >>> float(point_to_point_time_s(200.0, rates))
    2.0

    References
    ----------
    Hockney 1994, "The communication challenge for MPP", doi:10.1016/S0167-8191(06)80021-9.
    """
    return _ring_time_s(ranks, message_bytes, 1.0 / np.maximum(ranks - 1.0, 1.0), rates)
