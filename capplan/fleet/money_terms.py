"""What a scenario says about money in addition to the price of machines: people, overhead, how hosted APIs are used."""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import ceil


@dataclass(frozen=True, slots=True)
class OtherTerms:
    """Prices of what a service takes in addition to GPUs and people; zero: it costs nothing, or nobody asked for it."""

    egress_usd_per_gb: float = 0.0
    bytes_per_token: float = 300.0
    """Bytes that leave the provider for an output token: one event of a stream."""
    load_balancers_usd_per_month: float = 0.0
    weights_usd_per_gb_month: float = 0.0
    cpu_nodes: float = 0.0
    """Nodes for gateways, control plane and monitoring."""
    cpu_node_usd_per_month: float = 0.0
    support_fraction: float = 0.0
    """Support plan of the provider, over the price of the machines."""
    assumed: tuple[str, ...] = ()
    """Keys whose price is a default."""


@dataclass(frozen=True, slots=True)
class OwnTerms:
    """What a fleet costs in addition to its machines."""

    people_usd_per_month: float = 0.0
    overhead_fraction: float = 0.0
    """Overhead as a fraction of the price of the machines: storage, network, support."""
    host_usd_per_gb_month: float | None = None
    """Price of host memory in offload tiers; None: the price of the machines includes it."""
    other: OtherTerms = field(default_factory=OtherTerms)
    people_assumed: bool = False
    """Whether the price of the people is a default."""

    def usd(self, machines_usd: float, other_usd: float = 0.0) -> float:
        """Return the cost of a month with people, overhead and what else a service takes.

            c = m (1 + f) + p + x

        Parameters
        ----------
        machines_usd : [$]
            m; f is the overhead, p what people cost.
        other_usd : [$]
            x, the lines of prices.other.

        Returns
        -------
        [$]
            c
        """
        return self.machines_usd(machines_usd) + self.people_usd_per_month + other_usd

    def machines_usd(self, usd: float) -> float:
        """Return what machines cost with the overhead on their price [$].

        Examples
        --------
        >>> OwnTerms(overhead_fraction=0.25).machines_usd(1000.0)
        1250.0
        """
        return usd * (1.0 + self.overhead_fraction)

    def machines_usd_within(self, usd: float, includes: Collection[str], other_usd: float = 0.0) -> float:
        """Return what a budget leaves for machines.

            m = (c - p - x) / (1 + f + s)

        Parameters
        ----------
        usd : [$]
            c.
        includes : what the budget pays for in addition to the machines: `people` p, `overhead` f, and `other`: x, and the support plan s
        other_usd : [$]
            x, the lines of prices.other that do not follow the price of the machines

        Returns
        -------
        [$]
            m, below zero if people and the rest cost more than the budget

        Examples
        --------
        >>> OwnTerms(14_000.0, 0.25).machines_usd_within(64_000.0, ("people", "overhead"))
        40000.0
        """
        people = self.people_usd_per_month if "people" in includes else 0.0
        overhead = self.overhead_fraction if "overhead" in includes else 0.0
        support, others = (self.other.support_fraction, other_usd) if "other" in includes else (0.0, 0.0)
        return (usd - people - others) / (1.0 + overhead + support)


@dataclass(frozen=True, slots=True)
class BudgetTerms:
    """A budget as a scenario states it."""

    usd_per_month: float
    includes: tuple[str, ...] = ()
    """What it pays for in addition to the machines: people, overhead, other."""
    beside_usd_per_month: float = 0.0
    """What that takes of it."""
    usd_per_traffic: float = 0.0
    """What machines lose of it if the traffic doubles: it pays for egress too."""

    def machines_usd_per_month(self, traffic_ratio: float = 1.0) -> float:
        """Return what is left for machines at some times the traffic [$/month].

        Examples
        --------
        >>> BudgetTerms(50_000.0, ("people", "other"), 12_000.0, 3000.0).machines_usd_per_month(2.0)
        35000.0
        """
        return self.usd_per_month - self.beside_usd_per_month - self.usd_per_traffic * (traffic_ratio - 1.0)

    def left_text(self, traffic_ratio: float = 1.0) -> str:
        """Return what is left for machines in words.

        Examples
        --------
        >>> terms = BudgetTerms(5000.0, ("other",), 4000.0, 3000.0)
        >>> terms.left_text(), terms.left_text(2.0)
        ('$1,000', 'nothing')
        """
        left = self.machines_usd_per_month(traffic_ratio)
        return f"${left:,.0f}" if left > 0.0 else "nothing"


@dataclass(frozen=True, slots=True)
class ProvisionedTerms:
    """Throughput that is rented from a hosted API by the hour, in units."""

    usd_per_unit_hour: float
    tokens_per_s: float
    """Rate that one unit takes: input tokens that the cache does not have, and weighted output tokens."""
    output_weight: float = 1.0
    """Input tokens that one output token counts as."""
    least_units: float = 1.0
    step_units: float = 1.0
    """Units are sold in multiples of it."""

    def units(self, tokens_per_s: float) -> float:
        """Return the units that take a load.

            n = max(l, s ceil(r / (t s)))

        Parameters
        ----------
        tokens_per_s : [token/s]
            r, at the peak; t tokens a second each, sold from l on in steps of s

        Returns
        -------
        [-]
            n

        Examples
        --------
        >>> ProvisionedTerms(1.0, 40.0, least_units=15.0, step_units=5.0).units(700.0)
        20.0
        """
        steps = ceil(tokens_per_s / (self.tokens_per_s * self.step_units) - 1e-9)
        return max(self.least_units, self.step_units * steps)


@dataclass(frozen=True, slots=True)
class HostedTerms:
    """What a scenario says of its use of hosted APIs."""

    time_to_live_s: float | None = None
    """Time that a cached prefix stays after its last use, instead of the provider's."""
    prefixes: float = 1.0
    """Different shared prefixes, each with an equal part of the requests."""
    batch_fraction: float | None = None
    """Share of the requests that can wait a day; None: those of batch jobs that have a day."""
    price_ratio: float = 1.0
    """Prices paid over those listed, by a discount and a surcharge."""
    service: str = "standard"
    """Service tier: standard, flex or priority."""
    caching: str = "cheapest"
    """How its cache is used: in the cheapest way, or by `default`, if requests ask for nothing."""
    provisioned: ProvisionedTerms | None = None
    """Throughput that is rented by the hour; None: paid by the token."""
    file: str | None = None
    """List of prices; None: the one that ships."""
    date: str | None = None
    """Day of prices that do not state it."""
