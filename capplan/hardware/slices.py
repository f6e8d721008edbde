"""Slices of a device (MIG): what one of them is as a device of its own, and how many devices some of them take."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from math import ceil
from operator import sub

from capplan.hardware.device import Device, Partition

Amounts = tuple[int, ...]
"""Number of each profile of a device, in a fixed order."""


def slice_of(device: Device, partition: Partition) -> Device:
    """Return a slice of a device as a device of its own.

        P_s = P u_s / u,  B_s = B m_s / m

    with u multiprocessors, m memory slices. A slice has no link to others, and shares power and the host link with as many
    like it as fit on the device.

    Parameters
    ----------
    device : whole, with P [FLOP/s] and B [B/s]
    partition : one of its profiles

    Returns
    -------
    Device

    References
    ----------
    NVIDIA, "Multi-Instance GPU user guide", chapters "Concepts" (a memory slice has about an eighth of capacity and bandwidth)
    and "Deployment considerations" (no transfers between devices in MIG mode).
    """
    compute = partition.multiprocessors / (device.multiprocessors or partition.multiprocessors)
    memory = partition.memory_slices / partition.device_memory_slices
    share = 1.0 / partition.per_device
    reported = partition.reported_memory_bytes
    return replace(
        device,
        name=f"{device.name}:{partition.profile}",
        title=f"{partition.profile} of {device.title}",
        memory_bytes=device.memory_bytes * memory,
        reported_memory_bytes=min(reported, device.reported_memory_bytes or reported),
        driver_memory_bytes=None,
        memory_bytes_per_s=device.memory_bytes_per_s * memory,
        peak_flop_per_s={dtype: peak * compute for dtype, peak in device.peak_flop_per_s.items()},
        multiprocessors=partition.multiprocessors,
        l2_bytes=_part(device.l2_bytes, partition.l2_slices / partition.device_memory_slices),
        tdp_w=_part(device.tdp_w, share),
        link=None,
        link_bytes_per_s=None,
        link_domain_devices=1,
        pcie_bytes_per_s=_part(device.pcie_bytes_per_s, share),
        node_devices=1,
        network_bytes_per_s=None,
        labels={**device.labels, **partition.labels},
        sources=(*device.sources, *partition.sources),
        figure_sources={**device.figure_sources, **partition.figure_sources},
        partition=partition,
    )


def _part(whole: float | None, fraction: float) -> float | None:
    return None if whole is None else whole * fraction


def cuts(profiles: Sequence[Partition]) -> tuple[Amounts, ...]:
    """Return the ways to cut one device that leave no room for another instance: how many of each profile.

    An instance begins at a memory slice that its profile allows, and has no memory slice in common with another one.

    Parameters
    ----------
    profiles : of one device

    Examples
    --------
    >>> half = Partition("x", "2g", 2, 4, 2, 4, 2, 28, 12e9, (0, 2), {}, {}, ())
    >>> quarter = Partition("x", "1g", 1, 4, 1, 4, 1, 14, 6e9, (0, 1, 2, 3), {}, {}, ())
    >>> cuts([half, quarter])
    ((0, 4), (1, 2), (2, 0))
    """
    slots = max(profile.device_memory_slices for profile in profiles)

    def from_slot(slot: int) -> Iterator[Amounts]:
        if slot >= slots:
            yield (0,) * len(profiles)
            return
        yield from from_slot(slot + 1)
        for index, profile in enumerate(profiles):
            if slot in profile.starts:
                for rest in from_slot(slot + profile.memory_slices):
                    yield (*rest[:index], rest[index] + 1, *rest[index + 1 :])

    return _largest(set(from_slot(0)))


def _largest(ways: set[Amounts]) -> tuple[Amounts, ...]:
    """Return the ways that no other way contains."""

    def within(way: Amounts, other: Amounts) -> bool:
        return way != other and all(mine <= theirs for mine, theirs in zip(way, other, strict=True))

    return tuple(sorted(way for way in ways if not any(within(way, other) for other in ways)))


def least_devices(profiles: Sequence[Partition], wanted: Amounts) -> int:
    """Return a lower bound on the devices that hold some instances: by compute, by memory, and by each profile by itself.

    Parameters
    ----------
    profiles : of one device
    wanted : [-]
        instances of each

    Returns
    -------
    [-]
        g

    Examples
    --------
    Three of four eighths of the memory each:

    >>> least_devices([Partition("x", "3g", 3, 7, 4, 8, 4, 60, 40e9, (0, 4), {}, {}, ())], (3,))
    2
    """
    pairs = [(profile, count) for profile, count in zip(profiles, wanted, strict=True) if count]
    if not pairs:
        return 0
    compute = sum(count * profile.compute_slices for profile, count in pairs)
    memory = sum(count * profile.memory_slices for profile, count in pairs)
    first = profiles[0]
    return max(
        ceil(compute / first.device_compute_slices),
        ceil(memory / first.device_memory_slices),
        *(ceil(count / profile.per_device) for profile, count in pairs),
    )


def packing(profiles: Sequence[Partition], wanted: Amounts) -> tuple[Amounts, ...]:
    """Return what the fewest devices that hold some instances are cut into, each as the placement rules allow; exact.

    Parameters
    ----------
    profiles : of the device
    wanted : [-]
        of each profile

    Returns
    -------
    instances on each device

    Examples
    --------
    Four sevenths of the compute fit on a device once, and leave room for three:

    >>> four = Partition("x", "4g", 4, 7, 4, 8, 4, 64, 40e9, (0,), {}, {}, ())
    >>> three = Partition("x", "3g", 3, 7, 4, 8, 4, 60, 40e9, (0, 4), {}, {}, ())
    >>> packing([four, three], (2, 3))
    ((1, 1), (1, 1), (0, 1))
    """
    ways = cuts(profiles)

    @cache
    def fitted(left: Amounts, devices: int) -> tuple[Amounts, ...] | None:
        if not any(left):
            return ()
        if least_devices(profiles, left) > devices:
            return None
        hardest = max(
            (profiles[at].memory_slices, -profiles[at].per_device, at) for at, n in enumerate(left) if n
        )[2]
        used = {tuple(map(min, left, way)) for way in ways if way[hardest]}
        for way in sorted(_largest(used), key=sum, reverse=True):
            rest = fitted(tuple(map(sub, left, way)), devices - 1)
            if rest is not None:
                return (way, *rest)
        return None

    for devices in count(least_devices(profiles, wanted)):
        found = fitted(wanted, devices)
        if found is not None:
            break
    return found or ()
