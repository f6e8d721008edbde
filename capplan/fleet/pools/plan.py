"""A fleet that prefills and decodes in separate pools, and the answer of the search for one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from capplan.accuracy.bounded import BoundedSpread
from capplan.fleet.pools.link import LinkTerms, LinkUse
from capplan.fleet.price import HOURS_PER_MONTH, ChosenPrice, usd_per_month
from capplan.fleet.replica_group import ReplicaGroup
from capplan.fleet.search.candidates import Layout, Rejection
from capplan.fleet.unit_costs import UnitCosts
from capplan.workload.outside import OutsideUse
from capplan.workload.request_class import ResponseTimes

POOLS = ("prefill", "decode")
"""Names of the pools, in the order of `PoolsPlan.groups`; each runs the phase of its name."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Identical replicas of one phase."""

    layout: Layout
    weight_dtype: str
    busy_replicas: int
    """In service, without spares."""
    spare_replicas: int
    busy_fraction: float
    """Time in steps over time in service, mean over its replicas at the peak."""
    kv_cache_tokens: float
    """Of one replica."""
    label: str
    concurrency_per_replica: float
    """Mean requests in a replica at the peak, those that wait for it included."""
    request_rate_per_replica: float
    """At the peak, spares idle [req/s]."""
    planned_rate_limit_per_replica: float
    """Largest rate that both pools were seen to carry, with headroom as predicted and with the confidence [req/s]."""
    price: ChosenPrice | None

    def sized_rate_per_replica(self, _headroom_fraction: float, /) -> float:
        """Return the largest rate of one replica [req/s]; it was sized with the headroom already."""
        return self.planned_rate_limit_per_replica

    @property
    def replicas(self) -> int:
        """Replicas with spares."""
        return self.busy_replicas + self.spare_replicas

    @property
    def gpus(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.layout.devices

    @property
    def usd_per_hour(self) -> float | None:
        """Of all devices, spares included; None without a price."""
        return None if self.price is None else self.price.total_usd_per_hour * self.gpus


def summed_usd_per_hour(pools: Iterable[Pool]) -> float | None:
    """Return dollars per hour of some pools; None if a price is unknown."""
    total = 0.0
    for pool in pools:
        if pool.usd_per_hour is None:
            return None
        total += pool.usd_per_hour
    return total


@dataclass(frozen=True, slots=True)
class PoolsPlan:
    """A prefill and a decode pool that serve the scenario together."""

    prefill: Pool
    decode: Pool
    link_terms: LinkTerms
    link: LinkUse
    """At the peak."""
    requests: int
    """Simulated at the peak, all of which the latencies count."""
    ttft_s: BoundedSpread
    tpot_s: BoundedSpread
    e2e_s: BoundedSpread
    slo_met_probability: float
    """Probability that all targets hold together."""
    few_open_loops_measured: bool
    usd_per_month: float | None
    money: UnitCosts | None
    """Costs at the mean load; None without a price."""
    target_probabilities: Mapping[str, float] | None = None
    """By target, the probability that it holds, whether or not the others do; None where it was not asked for."""
    usd_per_month_low: float | None = None
    """Cost of these layouts if replicas turn out as fast as in the best tenth of the cases ..."""
    usd_per_month_high: float | None = None
    """... or as slow as in the worst tenth; infinite if no number of replicas then meets the targets."""
    outside: OutsideUse | None = None
    """What requests take beside the devices; None where nothing is stated."""

    @property
    def responses_s(self) -> ResponseTimes:
        """Mean response time at the peak [s]."""
        return self.e2e_s.mean

    @property
    def pools(self) -> tuple[Pool, Pool]:
        """The prefill pool and the decode pool."""
        return self.prefill, self.decode

    @property
    def groups(self) -> tuple[ReplicaGroup, ...]:
        """The same, as any plan has them."""
        return self.pools

    def resized(self, replicas: Sequence[int]) -> "PoolsPlan":
        """Return the plan with other numbers of replicas, spares included: its cost follows, its range is not known."""
        prefill, decode = (
            replace(pool, busy_replicas=count - pool.spare_replicas)
            for pool, count in zip(self.pools, replicas, strict=True)
        )
        usd = summed_usd_per_hour((prefill, decode))
        before = summed_usd_per_hour(self.pools)
        return replace(
            self,
            prefill=prefill,
            decode=decode,
            usd_per_month=None if usd is None else float(usd_per_month(usd)),
            money=self.money.scaled(usd / before) if self.money and usd and before else None,
            usd_per_month_low=None,
            usd_per_month_high=None,
        )

    @property
    def gpus(self) -> int:
        """Devices of both pools, spares included."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def replicas(self) -> int:
        """Replicas of both pools, spares included."""
        return sum(pool.replicas for pool in self.pools)

    @property
    def hardware(self) -> str:
        """Devices by name: prefill, then decode where it is another one."""
        return " + ".join(dict.fromkeys(pool.layout.device.name for pool in self.pools))

    @property
    def usd_per_hour(self) -> float | None:
        """Of both pools; None if a price is unknown."""
        return None if self.usd_per_month is None else self.usd_per_month / HOURS_PER_MONTH

    @property
    def watts(self) -> float | None:
        """Thermal design power of all devices; None if it is unknown for some."""
        powers = [pool.layout.device.tdp_w for pool in self.pools]
        if any(power is None for power in powers):
            return None
        return sum((power or 0.0) * pool.gpus for power, pool in zip(powers, self.pools, strict=True))


@dataclass(frozen=True, slots=True)
class PoolsAnswer:
    """The plans with separate pools, cheapest first, and why there are no others."""

    plans: tuple[PoolsPlan, ...]
    rejected: tuple[Rejection, ...]
    evaluated: int
    simulated: int
    """Pairs of replica counts."""

    @property
    def chosen(self) -> PoolsPlan | None:
        """The cheapest; None if none meets the targets."""
        return self.plans[0] if self.plans else None
