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
    """In a month, or in one job."""
    input_tokens: float
    """Of all of them."""
    output_tokens: float
    prefill_s: float
    """Time of a replica that the prefill of one request takes."""
    decode_s: float
    users: float | None = None
    requests_per_conversation: float | None = None
    outside_usd: float = 0.0
    """Of all of them, beside the GPUs."""

    @property
    def replica_s(self) -> float:
        """Time of a replica that all requests take."""
        return self.requests * (self.prefill_s + self.decode_s)


@dataclass(frozen=True, slots=True)
class Share:
    """What one class, or one tenant, pays."""

    use: ClassUse
    fraction: float
    """Of the time of the GPUs, and so of the cost where all of them are alike."""
    prefill_usd: float
    decode_usd: float

    @property
    def usd(self) -> float:
        """Return what the class pays, with what is outside the GPUs.

            c = p + d + x

        Returns
        -------
        [$]
            c: prefill p, decode d, and x outside
        """
        return self.prefill_usd + self.decode_usd + self.use.outside_usd

    @property
    def usd_per_request(self) -> float:
        """Return the cost of one request.

            u = c / n

        Returns
        -------
        [$]
            u, of n requests that cost c
        """
        return self.usd / self.use.requests

    @property
    def usd_per_user(self) -> float | None:
        """Return the cost of one user; None for classes without users.

            u = c / m

        Returns
        -------
        [$]
            u, of m users whose requests cost c
        """
        return None if self.use.users is None else self.usd / self.use.users

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
class WhoPays:
    """The cost of a fleet, shared by the time of its GPUs; idle time and spares are shared in the same proportion."""

    shares: tuple[Share, ...]
    machines_usd: float
    """Of a month, or of one job, without what is outside the GPUs."""
    busy_fraction: float
    """Of the time of the replicas that is paid for, spares included, in which they work on requests."""

    @property
    def usd(self) -> float:
        """Return all that is paid."""
        return self.machines_usd + sum(share.use.outside_usd for share in self.shares)


def who_pays(uses: Sequence[ClassUse], usd: float, paid_replica_s: float) -> WhoPays:
    """Return the cost of a fleet by class.

        c_k = C n_k (p_k + d_k) / sum_j n_j (p_j + d_j)

    Parameters
    ----------
    uses : classes k with their requests n, prefill p and decode d
    usd : [$]
        C
    paid_replica_s : [s]
        time of all replicas that is paid for

    Returns
    -------
    the shares, in the order of the classes; they add up to C and what each class pays outside
    """
    prefill, decode = _phase_s(uses)
    total = prefill + decode
    shares = tuple(
        Share(
            use,
            use.replica_s / total,
            usd * use.requests * use.prefill_s / total,
            usd * use.requests * use.decode_s / total,
        )
        for use in uses
    )
    return WhoPays(shares, usd, min(1.0, total / paid_replica_s))


def _phase_s(uses: Sequence[ClassUse]) -> tuple[float, float]:
    """Return the time of replicas that all prefills take, and that of all decodes."""
    return sum(use.requests * use.prefill_s for use in uses), sum(use.requests * use.decode_s for use in uses)


@dataclass(frozen=True, slots=True)
class PaidPool:
    """A pool of its own for prefill or decode."""

    usd: float
    """Of a month, or of one job."""
    devices: int
    """Of one replica."""
    paid_replica_s: float
    """Time of all its replicas that is paid for."""


def who_pays_for_pools(uses: Sequence[ClassUse], prefill: PaidPool, decode: PaidPool) -> WhoPays:
    """Return the cost of a fleet with separate pools by class: that of each pool by the time that it works for a class.

        c_k = C_p n_k p_k / sum_j n_j p_j + C_d n_k d_k / sum_j n_j d_j

    Parameters
    ----------
    uses : classes k with their requests n, prefill p on a replica of one pool and decode d on one of the other
    prefill, decode : cost C of either pool, and what its replicas are

    Returns
    -------
    the shares, in the order of the classes; they add up to the cost of both pools
    """
    prefill_s, decode_s = _phase_s(uses)
    total = prefill_s * prefill.devices + decode_s * decode.devices

    def share(use: ClassUse) -> Share:
        mine = use.requests * use.prefill_s, use.requests * use.decode_s
        return Share(
            use,
            (mine[0] * prefill.devices + mine[1] * decode.devices) / total,
            prefill.usd * mine[0] / prefill_s,
            decode.usd * (mine[1] / decode_s if decode_s else use.requests / sum(u.requests for u in uses)),
        )

    paid = prefill.paid_replica_s * prefill.devices + decode.paid_replica_s * decode.devices
    return WhoPays(tuple(share(use) for use in uses), prefill.usd + decode.usd, min(1.0, total / paid))


def who_pays_for_groups(groups: Sequence[tuple[Sequence[ClassUse], PaidPool]]) -> WhoPays:
    """Return the cost of a mix by class: that of each group of replicas by the time that it works for a class.

        c_k = C_g n_k (p_k + d_k) / sum_{j in g} n_j (p_j + d_j)

    Parameters
    ----------
    groups : classes k with their requests n, prefill p and decode d in the group g, and the cost C of the group

    Returns
    -------
    the shares, group by group; they add up to the cost of all groups
    """
    worked = [sum(_phase_s(uses)) * pool.devices for uses, pool in groups]
    paid = sum(pool.paid_replica_s * pool.devices for _, pool in groups)
    shares = []
    for (uses, pool), mine in zip(groups, worked, strict=True):
        for share in who_pays(uses, pool.usd, pool.paid_replica_s).shares:
            shares.append(replace(share, fraction=share.fraction * mine / sum(worked)))
    return WhoPays(tuple(shares), sum(pool.usd for _, pool in groups), min(1.0, sum(worked) / paid))


def by_tenant(shares: Sequence[Share]) -> dict[str, tuple[Share, ...]]:
    """Return the shares of each tenant, in the order of their first class."""
    tenants: dict[str, list[Share]] = {}
    for share in shares:
        tenants.setdefault(share.use.tenant, []).append(share)
    return {name: tuple(items) for name, items in tenants.items()}
