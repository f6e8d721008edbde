"""Identical replicas that are bought together: all of a fleet, or one pool of it."""

from typing import Protocol

from capplan.fleet.price import ChosenPrice
from capplan.fleet.search.candidates import Layout


class ReplicaGroup(Protocol):
    """What money, growth and replicas over time need to know of them."""

    @property
    def layout(self) -> Layout:
        """Of one replica."""

    @property
    def weight_dtype(self) -> str:
        """Of the network that they serve."""

    @property
    def replicas(self) -> int:
        """Spares included."""

    @property
    def spare_replicas(self) -> int:
        """Which stand by."""

    @property
    def busy_replicas(self) -> int:
        """Without spares."""

    @property
    def gpus(self) -> int:
        """Of all replicas."""

    @property
    def concurrency_per_replica(self) -> float:
        """Mean requests in a replica at the peak."""

    @property
    def request_rate_per_replica(self) -> float:
        """At the peak, spares idle [req/s]."""

    def sized_rate_per_replica(self, headroom_fraction: float, /) -> float:
        """Return the largest rate of one replica [req/s]: as predicted less headroom, and with the confidence."""

    @property
    def kv_cache_tokens(self) -> float:
        """Of one replica."""

    @property
    def label(self) -> str:
        """Whether its kernels were measured on its device, or assumed."""

    @property
    def price(self) -> ChosenPrice | None:
        """Of one device."""

    @property
    def usd_per_hour(self) -> float | None:
        """Of all devices; None without a price."""


def planned_rate_per_replica(group: ReplicaGroup, headroom_fraction: float) -> float:
    """Return the largest rate that one replica is planned for [req/s].

    A simulated plan may carry a little more than its bounds say, never less than it carries today.
    """
    return max(group.sized_rate_per_replica(headroom_fraction), group.request_rate_per_replica)
