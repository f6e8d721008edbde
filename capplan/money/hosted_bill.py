"""The bill of a hosted API: what decides it for one class of requests, and its parts."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class HostedBill:
    """Dollars of a month, or of one batch job."""

    input_usd: float = 0.0
    """Prompt tokens that are neither written to the cache nor read from it."""
    output_usd: float = 0.0
    cache_write_usd: float = 0.0
    cache_read_usd: float = 0.0
    storage_usd: float = 0.0
    outside_usd: float = 0.0
    """Retrieval and tools, which cost the same whoever serves the model."""

    @property
    def usd(self) -> float:
        """Return all of it.

            c = i + o + w + k + s + x

        Returns
        -------
        [$]
            c: input i, output o, cache writes w, reads k and storage s, and x outside
        """
        return float(sum(getattr(self, part.name) for part in fields(self)))

    def plus(self, other: "HostedBill") -> "HostedBill":
        """Return the sum of two bills."""
        return HostedBill(*(getattr(self, p.name) + getattr(other, p.name) for p in fields(self)))


@dataclass(frozen=True, slots=True)
class PerRequest:
    """Mean dollars of one request of a class."""

    input_usd: float
    output_usd: float
    prefix_input_usd: float = 0.0
    """Its prefix as plain input ..."""
    prefix_read_usd: float = 0.0
    prefix_write_usd: float = 0.0
    prefix_tokens: float = 0.0
    """The longest prefix that is kept."""
    mean_prefix_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class BilledClass:
    """What decides the cost of one class at a hosted API."""

    each: PerRequest
    requests: float
    batch_fraction: float
    """Off the price, for what is sent in batches."""
    prefix_fraction: float
    """Share of the requests that have the shared prefix."""
    hit_fraction: float
    """Share of those whose prefix the API still has."""
    stored_token_hours: float = 0.0
    """Tokens of prefixes by the hours that they are kept [10^6 token h]."""
    storage_usd: float = 0.0
    """Per million tokens and hour."""

    @property
    def paid_requests(self) -> float:
        """Return the requests, those in batches counted by what they pay.

            m = n (1 - q)

        Returns
        -------
        [requests]
            m, of n with the part q off
        """
        return self.requests * (1.0 - self.batch_fraction)

    @property
    def input_usd(self) -> float:
        """Return what prompts cost that the cache has no part in.

            u = m (a - s d)

        Returns
        -------
        [$]
            u: plain input a of a request, of which the share s has a prefix d
        """
        return self.paid_requests * (self.each.input_usd - self.prefix_fraction * self.each.prefix_input_usd)

    @property
    def output_usd(self) -> float:
        """Return what outputs cost.

            u = m o

        Returns
        -------
        [$]
            u: output o of a request
        """
        return self.paid_requests * self.each.output_usd

    @property
    def cache_write_usd(self) -> float:
        """Return what prefixes cost that the cache does not have.

            u = m s (1 - f) w

        Returns
        -------
        [$]
            u: the prefix w to write, of a request that has one and does not find it
        """
        missed = self.paid_requests * self.prefix_fraction * (1.0 - self.hit_fraction)
        return missed * self.each.prefix_write_usd

    @property
    def cache_read_usd(self) -> float:
        """Return what prefixes cost that the cache has.

            u = m s f k

        Returns
        -------
        [$]
            u: the prefix k to read, of a request that finds it
        """
        return self.paid_requests * self.prefix_fraction * self.hit_fraction * self.each.prefix_read_usd

    @property
    def cache_storage_usd(self) -> float:
        """Return what it costs to keep prefixes.

            u = h g

        Returns
        -------
        [$]
            u: h kept, at the price g
        """
        return self.stored_token_hours * self.storage_usd

    @property
    def bill(self) -> HostedBill:
        """Return all parts."""
        return HostedBill(
            self.input_usd, self.output_usd, self.cache_write_usd, self.cache_read_usd, self.cache_storage_usd
        )
