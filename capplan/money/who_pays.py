"""The cost of a fleet by class of requests and by tenant: by the time that their prefill and decode take of the GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capplan.numbers import Number


def decode_s_per_request(output_tokens: Number, step_s: Number, sequences: Number) -> Number:
    """Return the time of a replica that the decode of one request takes: its part of every step that it is in.

        d = (o - 1) t / n

    Parameters
    ----------
    output_tokens : [tokens]
        o; the first of them comes with the prefill.
    step_s : [s]
        t, of one decode step.
    sequences : [-]
        n, that share a step, at least 1.

    Returns
    -------
    [s]
        d.

    Examples
    --------
    101 tokens in steps of 20 ms, shared by 10 sequences:

    >>> decode_s_per_request(101.0, 0.02, 10.0)
    0.2

    References
    ----------
    Cost allocation by resource time, FinOps Framework, https://www.finops.org/framework/capabilities/allocation/.
    """
    return (output_tokens - 1.0) * step_s / sequences


@dataclass(frozen=True, slots=True)
class ClassUse:
    """What one class of requests asks of a fleet, mean over the time that is paid for."""

    name: str
    tenant: str
    requests: float
    """Requests in a month, or in one job."""
    input_tokens: float
    """Input tokens of all these requests."""
    output_tokens: float
    prefill_s: float
    """Time of a replica that the prefill of one request takes."""
    decode_s: float
    users: float | None = None
    requests_per_conversation: float | None = None
    outside_usd: float = 0.0
    """Cost of all these requests outside the GPUs."""

    @property
    def replica_s(self) -> float:
        """Time of a replica that all requests take."""
        return self.requests * (self.prefill_s + self.decode_s)


@dataclass(frozen=True, slots=True)
class Share:
    """What one class, or one tenant, pays."""

    use: ClassUse
    fraction: float
    """Share of the busy time of the GPUs."""
    prefill_usd: float
    """Cost of the time in which GPUs prefill for it, and of what else a service takes in the same proportion."""
    decode_usd: float
    idle_usd: float
    """Its part of the line of idle GPUs, in the same proportion; not in `usd`."""
    groups: tuple[int, int] = (0, 0)
    """Positions of the replicas that prefill for it, and of those that decode."""

    @property
    def usd(self) -> float:
        """Return what the class pays, with what is outside the GPUs and without idle GPUs.

            c = p + d + x

        Returns
        -------
        [$]
            c: prefill p, decode d, and x outside
        """
        return self.prefill_usd + self.decode_usd + self.use.outside_usd

    @property
    def with_idle_usd(self) -> float:
        """Return what the class pays with its part of the idle GPUs.

            a = c + i

        Returns
        -------
        [$]
            a: its own cost c, idle GPUs i
        """
        return self.usd + self.idle_usd

    @property
    def usd_per_request(self) -> float:
        """Return the cost of one request, idle GPUs included.

            u = a / n

        Returns
        -------
        [$]
            u, of n requests that cost a
        """
        return self.with_idle_usd / self.use.requests

    @property
    def usd_per_user(self) -> float | None:
        """Return the cost of one user, idle GPUs included; None for classes without users.

            u = a / m

        Returns
        -------
        [$]
            u, of m users whose requests cost a
        """
        return None if self.use.users is None else self.with_idle_usd / self.use.users

    @property
    def usd_per_thousand_conversations(self) -> float | None:
        """Return the cost of a thousand conversations; None where the requests of a conversation are not stated.

            v = 1000 k u

        Returns
        -------
        [$/1000 conversations]
            v, of k requests each, at u
        """
        each = self.use.requests_per_conversation
        return None if each is None else 1000.0 * each * self.usd_per_request


@dataclass(frozen=True, slots=True)
class PaidPool:
    """Replicas that are paid for together: all of them, or those that prefill or decode."""

    usd: float
    """Cost of the machines of the pool, for a month or for one job."""
    devices: int
    """Devices of one replica."""
    paid_replica_s: float
    """Time of all its replicas that is paid for."""
    shared_usd: float = 0.0
    """Cost of people and what else a service takes, which is never idle."""


@dataclass(frozen=True, slots=True)
class PoolCost:
    """What is known of a pool once its work is."""

    busy_fraction: float
    """Fraction of the time that is paid for, spares included, in which the replicas of the pool work on requests."""
    busy_usd: float
    """Cost of that time, people and the rest included: what the classes share."""
    idle_usd: float
    """Cost of the machines for the rest of the time."""
    shared_usd: float
    """Part of the cost of the busy time that is of people and what else a service takes."""

    @property
    def usd(self) -> float:
        """Return all that the pool costs."""
        return self.busy_usd + self.idle_usd


@dataclass(frozen=True, slots=True)
class WhoPays:
    """The cost of a fleet: what classes use of it by the time of its GPUs, and what idle GPUs cost."""

    shares: tuple[Share, ...]
    pools: tuple[PoolCost, ...]
    busy_fraction: float
    """Fraction of the GPU time that is paid for, spares included, in which the GPUs work on requests."""

    @property
    def machines_usd(self) -> float:
        """Return the cost of a month, or of one job, without what is outside the GPUs."""
        return sum(pool.usd for pool in self.pools)

    @property
    def idle_usd(self) -> float:
        """Return what GPUs cost while they wait for requests."""
        return sum(pool.idle_usd for pool in self.pools)

    @property
    def usd(self) -> float:
        """Return all that is paid.

            C = sum_k c_k + i

        Returns
        -------
        [$]
            C: what classes pay c, idle GPUs i
        """
        return sum(share.usd for share in self.shares) + self.idle_usd


def pool_cost(pool: PaidPool, busy_replica_s: float) -> PoolCost:
    """Return the cost of a pool, split into the time that its replicas work and the time that they wait.

        b = min(1, t / T),   w = b M + S,   i = (1 - b) M

    Parameters
    ----------
    pool : its machines cost M for T of replica time; S is shared whatever they do
    busy_replica_s : [s]
        t, of replica time that requests take

    Examples
    --------
    A quarter of the time is used; people are not idle:

    >>> pool_cost(PaidPool(1000.0, 1, 400.0, 60.0), 100.0)
    PoolCost(busy_fraction=0.25, busy_usd=310.0, idle_usd=750.0, shared_usd=60.0)

    References
    ----------
    OpenCost specification, "Cluster idle costs": asset cost less the cost of what uses it, https://opencost.io/docs/specification/.
    """
    busy = min(1.0, busy_replica_s / pool.paid_replica_s)
    return PoolCost(busy, busy * pool.usd + pool.shared_usd, (1.0 - busy) * pool.usd, pool.shared_usd)


def who_pays(uses: Sequence[ClassUse], pool: PaidPool) -> WhoPays:
    """Return the cost of a fleet by class.

        c_k = W n_k (p_k + d_k) / sum_j n_j (p_j + d_j)

    Parameters
    ----------
    uses : classes k with their requests n, prefill p and decode d
    pool : all replicas; W is what their busy time costs

    Returns
    -------
    the shares, in the order of the classes; with the idle GPUs they add up to the cost of the pool and what each class pays outside
    """
    total = sum(_phase_s(uses))
    paid = pool_cost(pool, total)
    shares = tuple(
        Share(
            use,
            use.replica_s / total,
            paid.busy_usd * use.requests * use.prefill_s / total,
            paid.busy_usd * use.requests * use.decode_s / total,
            paid.idle_usd * use.replica_s / total,
        )
        for use in uses
    )
    return WhoPays(shares, (paid,), paid.busy_fraction)


def _phase_s(uses: Sequence[ClassUse]) -> tuple[float, float]:
    """Return the time of replicas that all prefills take, and that of all decodes."""
    return sum(use.requests * use.prefill_s for use in uses), sum(use.requests * use.decode_s for use in uses)


def who_pays_for_pools(uses: Sequence[ClassUse], prefill: PaidPool, decode: PaidPool) -> WhoPays:
    """Return the cost of a fleet with separate pools by class: that of each pool by the time that it works for a class.

        c_k = W_p n_k p_k / sum_j n_j p_j + W_d n_k d_k / sum_j n_j d_j

    Parameters
    ----------
    uses : classes k with their requests n, prefill p on a replica of one pool and decode d on one of the other
    prefill, decode : the pools; W is what the busy time of either costs

    Returns
    -------
    the shares, in the order of the classes; with the idle GPUs they add up to the cost of both pools
    """
    prefill_s, decode_s = _phase_s(uses)
    total = prefill_s * prefill.devices + decode_s * decode.devices
    first, last = pool_cost(prefill, prefill_s), pool_cost(decode, decode_s)
    requests = sum(use.requests for use in uses)

    def share(use: ClassUse) -> Share:
        mine = use.requests * use.prefill_s, use.requests * use.decode_s
        parts = mine[0] / prefill_s, mine[1] / decode_s if decode_s else use.requests / requests
        return Share(
            use,
            (mine[0] * prefill.devices + mine[1] * decode.devices) / total,
            first.busy_usd * parts[0],
            last.busy_usd * parts[1],
            first.idle_usd * parts[0] + last.idle_usd * parts[1],
            (0, 1),
        )

    paid = prefill.paid_replica_s * prefill.devices + decode.paid_replica_s * decode.devices
    return WhoPays(tuple(share(use) for use in uses), (first, last), min(1.0, total / paid))


def who_pays_for_groups(groups: Sequence[tuple[Sequence[ClassUse], PaidPool]]) -> WhoPays:
    """Return the cost of a mix by class: that of each group of replicas by the time that it works for a class.

        c_k = W_g n_k (p_k + d_k) / sum_{j in g} n_j (p_j + d_j)

    Parameters
    ----------
    groups : classes k with their requests n, prefill p and decode d in the group g, and its replicas; W is what their busy time costs

    Returns
    -------
    the shares, group by group; with the idle GPUs they add up to the cost of all groups
    """
    worked = [sum(_phase_s(uses)) * pool.devices for uses, pool in groups]
    paid = sum(pool.paid_replica_s * pool.devices for _, pool in groups)
    bills = [who_pays(uses, pool) for uses, pool in groups]
    shares = tuple(
        replace(share, fraction=share.fraction * mine / sum(worked), groups=(place, place))
        for place, (bill, mine) in enumerate(zip(bills, worked, strict=True))
        for share in bill.shares
    )
    return WhoPays(shares, tuple(cost for bill in bills for cost in bill.pools), min(1.0, sum(worked) / paid))


def by_tenant(shares: Sequence[Share]) -> dict[str, tuple[Share, ...]]:
    """Return the shares of each tenant, in the order of their first class."""
    tenants: dict[str, list[Share]] = {}
    for share in shares:
        tenants.setdefault(share.use.tenant, []).append(share)
    return {name: tuple(items) for name, items in tenants.items()}
