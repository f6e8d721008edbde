"""What a fleet survives: the part of it that may fail while its targets hold, and how often machines fail."""

from dataclasses import dataclass
from math import ceil
from typing import Literal, TypeAlias

Domain: TypeAlias = Literal["replica", "machine", "rack", "zone"]
"""What fails as one."""
DOMAINS: tuple[Domain, ...] = ("replica", "machine", "rack", "zone")
MACHINES_PER_RACK = 4
"""Servers of eight GPUs that a rack of 40 kW powers and cools."""
ZONES = 3
"""Zones of a cloud region."""


BY_GPU, BY_SERVER, SERVER_DAYS = 268.0, 151.0, 2048.0 * 54.0
"""Interruptions caused by GPUs and their memory, all others, and the days of servers of eight H100 that they were counted on."""
REPAIR_S = 24.0 * 3600.0
"""Time until a failed machine is replaced; no provider publishes it."""


def failures_per_s(gpus: int) -> float:
    """Return how often a machine fails.

        f = (268 g / 8 + 151) / (2048 54 86400)

    Parameters
    ----------
    gpus : [-]
        g, of the machine; GPUs and their memory caused 268 of 419 interruptions of servers with eight of them

    Returns
    -------
    [1/s]
        f

    Examples
    --------
    A server of eight GPUs is interrupted every 264 days:

    >>> round(1.0 / failures_per_s(8) / 86400.0)
    264

    References
    ----------
    Llama Team 2024, "The Llama 3 herd of models", arXiv 2407.21783, table 5: 419 unexpected interruptions of 16,384 H100 in 54 days.
    """
    return (BY_GPU * gpus / 8.0 + BY_SERVER) / (SERVER_DAYS * 86400.0)


@dataclass(frozen=True, slots=True)
class Failures:
    """How often machines fail, and how long their repair takes."""

    time_to_failure_s: float | None = None
    """Mean time between two failures of one machine; None: by its GPUs, as published."""
    repair_s: float = REPAIR_S
    """Mean time until a failed machine is replaced."""

    def per_s(self, gpus: int) -> float:
        """Return the failures of one machine per second."""
        return failures_per_s(gpus) if self.time_to_failure_s is None else 1.0 / self.time_to_failure_s


@dataclass(frozen=True, slots=True)
class Survival:
    """Domains that may fail at once while the rest of the fleet carries the peak."""

    domain: Domain = "machine"
    count: int = 1
    machines_per_rack: int = MACHINES_PER_RACK
    zones: int = ZONES
    unavailable: int = 0
    """Replicas that a rolling update takes out at once, while the domains have failed."""
    failures: Failures = Failures()

    @property
    def lost_machines(self) -> int:
        """Machines that fail at once; zero if single replicas or whole zones fail."""
        return {
            "machine": self.count,
            "rack": self.count * self.machines_per_rack,
        }.get(self.domain, 0)

    def least_spares(self, busy: int) -> int:
        """Return the fewest replicas that any order loses with these domains.

        A machine that holds a replica holds at least one. Of z zones, in each of which as many replicas run as in another,
        n are lost and the others carry the peak:

            s = n + u                            replicas or machines
            s = n ceil((b + u) / (z - n)) + u    zones

        Parameters
        ----------
        busy : [-]
            b, replicas that carry the peak; an update takes u replicas out

        Returns
        -------
        [-]
            s

        Examples
        --------
        >>> Survival().least_spares(6), Survival("replica", 0).least_spares(6), Survival("zone", 1).least_spares(6)
        (1, 0, 3)
        """
        if self.domain == "zone":
            return self.count * ceil((busy + self.unavailable) / (self.zones - self.count)) + self.unavailable
        return (self.lost_machines or self.count) + self.unavailable

    def most_busy(self, replicas: int) -> int:
        """Return the most replicas that carry the peak among some, if a domain loses as few as possible; below 1 if there are too few.

        Examples
        --------
        >>> Survival("zone", 1).most_busy(9), Survival("zone", 1).most_busy(8), Survival().most_busy(1)
        (6, 5, 0)
        """
        busy = replicas - self.least_spares(1)
        while busy > 0 and busy + self.least_spares(busy) > replicas:
            busy -= max(1, (busy + self.least_spares(busy) - replicas) // (1 + self.count))
        return busy

    @property
    def key(self) -> str:
        """Key of the scenario that says so."""
        return "fleet.spare_replicas" if self.domain == "replica" else "fleet.survive"

    @property
    def what_fails(self) -> str:
        """What may fail, in words."""
        noun = self.domain if self.count == 1 else f"{self.domain}s"
        return f"{self.count} {noun}"


NO_LOSS = Survival("replica", 0)
"""Nothing may fail."""
