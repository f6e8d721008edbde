"""What several models cost together: a cascade of two against the large one by itself, and a pool of devices cut into slices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from capplan.errors import InputError
from capplan.hardware.device import Amounts, Partition, least_devices, packing
from capplan.money.comparison import OwnFleet
from capplan.numbers import Array


@dataclass(frozen=True, slots=True)
class CascadeFleets:
    """The fleets of a cascade as they are paid for at any share that is escalated."""

    first: OwnFleet
    seconds: tuple[OwnFleet, ...]
    """Fleets of the large model: layouts of which the cheaper one is taken."""
    routed: bool
    """Whether a router decides before the first model answers, and not a judge after it."""
    request_rate: float
    """Rate of all requests at the peak [req/s]."""

    def usd_at(self, escalated_fractions: Array) -> Array:
        """Return the cost of both fleets at shares of the requests; at the ends a fleet that nothing reaches costs nothing."""
        rate = self.request_rate
        firsts = (
            rate * (1.0 - escalated_fractions) if self.routed else np.full_like(escalated_fractions, rate)
        )
        seconds = rate * escalated_fractions
        large = np.min([fleet.usd_at(seconds) for fleet in self.seconds], axis=0)
        return np.where(firsts > 0.0, self.first.usd_at(firsts), 0.0) + np.where(seconds > 0.0, large, 0.0)

    @property
    def step_fractions(self) -> Array:
        """Return the shares at which a fleet grows or shrinks by a replica, ascending from 0 to 1."""
        steps = [_below_one(fleet, self.request_rate) for fleet in self.seconds]
        if self.routed:
            steps.append(1.0 - _below_one(self.first, self.request_rate))
        return np.unique(np.concatenate([[0.0, 1.0], *steps]))


def _below_one(fleet: OwnFleet, request_rate: float) -> Array:
    """Return the parts of a rate from which on a fleet needs another replica."""
    most = [np.arange(1, int(request_rate / group.request_rate) + 1) for group in fleet.groups]
    steps = [
        count * group.request_rate / request_rate for count, group in zip(most, fleet.groups, strict=True)
    ]
    return np.minimum(np.concatenate(steps), 1.0)


def breakeven_fraction(fleets: CascadeFleets, alone_usd: float) -> float | None:
    """Return the share of escalated requests up to which a cascade never costs more than the large model only.

    Both fleets cost the same between two shares at which one of them grows or shrinks, so each step is looked at once.

    Parameters
    ----------
    fleets : of the cascade
    alone_usd : [$]
        of the large model for all requests, over the same time

    Returns
    -------
    [-]; None where the cascade costs more with the first escalated request
    """
    steps = fleets.step_fractions
    dearer = fleets.usd_at((steps[:-1] + steps[1:]) / 2.0) > alone_usd
    if dearer[0]:
        return None
    return float(steps[int(np.argmax(dearer))]) if dearer.any() else 1.0


def wait_of_stages(means_s: Sequence[float], nines_s: Sequence[float]) -> dict[str, float]:
    """Return how long users wait for stages that follow each other, in the mean and at most nine in ten of them.

        m = sum_k m_k,   w = sum_k w_k

    Whatever the stages have to do with each other, P(sum X_k > sum w_k) <= sum_k P(X_k > w_k).

    Parameters
    ----------
    means_s : [s]
        m_k, of each stage
    nines_s : [s]
        w_k, percentiles of each stage that leave a tenth to all of them together: the 90th of one, the 95th of two

    Returns
    -------
    [s]
        m, and w, which is a bound if the stages are several

    Examples
    --------
    >>> wait_of_stages([2.0, 0.5], [4.0, 1.0])
    {'mean': 2.5, 'nine_in_ten': 5.0}

    References
    ----------
    Ross 2014, "A First Course in Probability", section 2.4: Boole's inequality.
    """
    return {"mean": sum(means_s), "nine_in_ten": sum(nines_s)}


MOST_WAYS = 20_000
"""Most ways to give each model one of the profiles that are tried."""


def fewest_when_cut(
    profiles: Sequence[Partition], replicas: Sequence[Mapping[int, int]]
) -> tuple[Amounts, tuple[Amounts, ...]] | None:
    """Return the profile of each model with which all replicas take the fewest devices, and what each device is cut into.

    Of choices that take as many devices it is the one with the fewest replicas. Branch and bound over the profile of each model, by a
    lower bound on devices; profiles that take more room for as many replicas are left out.

    Parameters
    ----------
    profiles : of one device
    replicas : [-]
        of each model, by the index of the profile that they would have; a model is on slices of one profile

    Returns
    -------
    index of the profile of each model, and instances on each device; None where a model fits no profile

    Raises
    ------
    InputError
        there are too many ways

    Examples
    --------
    One replica on a half, or three on quarters; with a half for the other model, two halves take one device less:

    >>> half = Partition("x", "2g", 2, 4, 2, 4, 2, 28, 12e9, (0, 2), {}, {}, ())
    >>> quarter = Partition("x", "1g", 1, 4, 1, 4, 1, 14, 6e9, (0, 1, 2, 3), {}, {}, ())
    >>> fewest_when_cut([half, quarter], [{0: 1, 1: 3}, {0: 1}])
    ((0, 0), ((2, 0),))
    """
    options = [_in_least_room(profiles, counts) for counts in replicas]
    if prod(map(len, options)) > MOST_WAYS:
        raise InputError(
            f"sharing: there are over {MOST_WAYS:,} ways to give each of {len(replicas)} models a slice\n"
            "  allow fewer: fleet.hardware with slices, such as h100-sxm:1g.10gb, for all or in changes of a model"
        )

    def wanted(choice: Amounts) -> Amounts:
        taken = list(zip(choice, options, strict=True))
        return tuple(sum(counts[at] for at, counts in taken if at == index) for index in range(len(profiles)))

    ways = [(way, wanted(way)) for way in product(*options)]
    order = sorted((least_devices(profiles, amounts), sum(amounts), way, amounts) for way, amounts in ways)
    best: tuple[int, int, Amounts, tuple[Amounts, ...]] | None = None
    for bound, number, way, amounts in order:
        if best is not None and (bound, number) >= best[:2]:
            continue
        devices = packing(profiles, amounts)
        if best is None or (len(devices), number) < best[:2]:
            best = len(devices), number, way, devices
    return None if best is None else best[2:]


def _in_least_room(profiles: Sequence[Partition], counts: Mapping[int, int]) -> dict[int, int]:
    """Return the replicas by profile without the profiles whose instances another one, with no more replicas, could stand in for."""

    def stands_in(other: int, at: int) -> bool:
        small, large = profiles[other], profiles[at]
        same = (small.memory_slices, small.starts) == (large.memory_slices, large.starts)
        inside = small.memory_slices <= large.memory_slices and set(large.starts) <= set(small.starts)
        return counts[other] <= counts[at] and inside and (not same or other < at) and other != at

    return {at: count for at, count in counts.items() if not any(stands_in(other, at) for other in counts)}
