"""What a scenario says about money beside the price of machines: people, overhead, how hosted APIs are used."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnTerms:
    """What a fleet costs beside its machines."""

    people_usd_per_month: float = 0.0
    overhead_fraction: float = 0.0
    """On the price of the machines: storage, network, support."""

    def usd(self, machines_usd: float) -> float:
        """Return the cost of a month with people and overhead."""
        return machines_usd * (1.0 + self.overhead_fraction) + self.people_usd_per_month


@dataclass(frozen=True, slots=True)
class HostedTerms:
    """What a scenario says of its use of hosted APIs."""

    time_to_live_s: float | None = None
    """Instead of the provider's."""
    prefixes: float = 1.0
    """Different shared prefixes, each with an equal part of the requests."""
    batch_fraction: float | None = None
    """Share of the requests that can wait a day; None: those of batch jobs that have a day."""
