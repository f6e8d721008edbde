"""The cost of a fleet by class of requests and by tenant: by the time that their prefill and decode take of the GPUs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from capplan.money.ledger import Entry, MachineEntry, Paid, machines_of
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
    groups: tuple[int, int] = (0, 0)
    """Positions of the replicas that prefill for it, and of those that decode."""

    @property
    def phases_s(self) -> tuple[float, float]:
        """Time of replicas that the prefills of all requests take, and their decodes."""
        return self.requests * self.prefill_s, self.requests * self.decode_s

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
        """Return what the class pays, its part of the idle GPUs included.

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
    busy_replica_s: float = 0.0
    """Time of its replicas that requests take."""

    @property
    def busy_fraction(self) -> float:
        """Return the fraction of the time that is paid for, spares included, in which the replicas work on requests.

            b = min(1, t / T)

        Returns
        -------
        [-]
            b: requests take t of T of replica time

        Examples
        --------
        A quarter of the time is used; people are not idle:

        >>> pool = PaidPool(1000.0, 1, 400.0, 60.0, 100.0)
        >>> pool.busy_fraction, pool.busy_usd, pool.idle_usd
        (0.25, 310.0, 750.0)
        """
        return min(1.0, self.busy_replica_s / self.paid_replica_s)

    @property
    def busy_usd(self) -> float:
        """Return the cost of that time, people and the rest included: what the classes share.

            w = b M + S

        Returns
        -------
        [$]
            w: the busy part b of the machines M, and S that is shared whatever they do
        """
        return self.busy_fraction * self.usd + self.shared_usd

    @property
    def idle_usd(self) -> float:
        """Return the cost of the machines for the rest of the time.

            i = (1 - b) M

        Returns
        -------
        [$]
            i: the idle part of the machines M, of which b is busy

        References
        ----------
        OpenCost specification, "Cluster idle costs": asset cost less the cost of what uses it, https://opencost.io/docs/specification/.
        """
        return (1.0 - self.busy_fraction) * self.usd


Phase: TypeAlias = Literal["prefill", "decode", "idle"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
"""What replicas do for a class, in the order of its groups."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """A part of what machines cost, by who takes it."""

    who: Share | None
    """The class; None: the GPUs wait for requests."""
    phase: Phase
    entry: MachineEntry
    share: float
    """Share of the entry."""

    @property
    def paid(self) -> Paid:
        """Return what it costs."""
        return self.entry.paid.times(self.share)


@dataclass(frozen=True, slots=True)
class WhoPays:
    """The cost of a fleet: what classes use of it by the time of its GPUs, and what idle GPUs cost."""

    shares: tuple[Share, ...]
    pools: tuple[PaidPool, ...]
    busy_fraction: float
    """Fraction of the GPU time that is paid for, spares included, in which the GPUs work on requests."""

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

    def allocated(self, entries: Sequence[Entry]) -> Iterator[Allocated]:
        """Yield the part of the machines of a ledger that each class takes for prefill and for decode, and the part of each pool that waits."""
        of_pool = [
            [entry for entry in machines_of(entries) if entry.part.group == place and entry.part.paid_gpus]
            for place in range(len(self.pools))
        ]
        for share in self.shares:
            paid = (share.prefill_usd, share.decode_usd)
            for phase, usd, place in zip(PHASES, paid, share.use.groups, strict=True):
                pool = self.pools[place]
                part = usd / pool.busy_usd * pool.busy_fraction if pool.busy_usd else 0.0
                yield from (Allocated(share, phase, entry, part) for entry in of_pool[place])
        for pool, mine in zip(self.pools, of_pool, strict=True):
            if pool.busy_fraction < 1.0:
                yield from (Allocated(None, "idle", entry, 1.0 - pool.busy_fraction) for entry in mine)


def who_pays(uses: Sequence[ClassUse], *pools: PaidPool) -> WhoPays:
    """Return the cost of a fleet by class: that of each pool by the time that it works for a class.

        c_k = W_p n_k p_k / T_p + W_d n_k d_k / T_d,   T_g = sum of the work n_j p_j or n_j d_j of all classes j in the pool g

    Parameters
    ----------
    uses : classes k with their requests n, prefill p in the pool of their first place and decode d in the one of their second
    pools : W is what the busy time of each costs; one with no work is shared by requests

    Returns
    -------
    the shares, in the order of the classes; with the idle GPUs they add up to the cost of all pools and what each class pays outside
    """
    works = [
        [sum(work for work, at in zip(use.phases_s, use.groups, strict=True) if at == place) for use in uses]
        for place in range(len(pools))
    ]
    costs = [replace(pool, busy_replica_s=sum(work)) for pool, work in zip(pools, works, strict=True)]
    worked = [sum(work) * pool.devices for pool, work in zip(pools, works, strict=True)]
    requests = sum(use.requests for use in uses)

    def part(place: int, work_s: float, use: ClassUse) -> float:
        return work_s / sum(works[place]) if worked[place] else use.requests / requests

    def share(at: int, use: ClassUse) -> Share:
        prefill, decode = (
            costs[place].busy_usd * part(place, work_s, use)
            for place, work_s in zip(use.groups, use.phases_s, strict=True)
        )
        mine = {place: works[place][at] for place in use.groups}
        fraction = sum(work_s * pools[place].devices for place, work_s in mine.items()) / sum(worked)
        idle = sum(costs[place].idle_usd * part(place, work_s, use) for place, work_s in mine.items())
        return Share(use, fraction, prefill, decode, idle)

    paid = sum(pool.paid_replica_s * pool.devices for pool in pools)
    shares = tuple(share(at, use) for at, use in enumerate(uses))
    return WhoPays(shares, tuple(costs), min(1.0, sum(worked) / paid))


def by_tenant(shares: Sequence[Share]) -> dict[str, tuple[Share, ...]]:
    """Return the shares of each tenant, in the order of their first class."""
    tenants: dict[str, list[Share]] = {}
    for share in shares:
        tenants.setdefault(share.use.tenant, []).append(share)
    return {name: tuple(items) for name, items in tenants.items()}
