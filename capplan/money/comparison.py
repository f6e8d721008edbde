"""A fleet of one's own against hosted APIs: a month of both for the same traffic, and the traffic at which they cost the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from capplan.money.hosted import (
    Hosted,
    HostedBill,
    HostedTraffic,
    billed_class,
    hosted_bill,
    provisioned_units,
)
from capplan.money.ledger import Entry, Growing, total_usd
from capplan.money.price import most_usd
from capplan.money.token_price import TokenPrice
from capplan.numbers import Array
from capplan.serving.steady_state import replicas_over_time
from capplan.workload.reuse import Repeated

MOST_REPLICAS = 20_000
"""If the fleet still costs more than an API at this size, no breakeven is searched for beyond it."""
FEWEST_OFFERS = 2
"""Hosted APIs from which on a comparison has a verdict."""
POINTS = 400
"""Points of the picture."""


@dataclass(frozen=True, slots=True)
class PaidReplicas:
    """Replicas of one layout, as they are paid for."""

    request_rate: float
    """Largest request rate that one replica is planned for [req/s]."""
    usd_of: Callable[[int], float]
    """Replicas that carry the peak -> cost of the cheapest order of them and of their spares, for a month or for one job [$]."""


@dataclass(frozen=True, slots=True)
class OwnFleet:
    """The plan as it is paid for at any traffic: whole machines at all hours, as many as the peak needs with its spares."""

    request_rate: float
    """Request rate at the peak today [req/s]."""
    groups: tuple[PaidReplicas, ...]
    """All replicas, or those that prefill and those that decode."""
    entries: tuple[Entry, ...]
    """The ledger of today's plan: of a month, or of one job."""

    @property
    def machines_usd(self) -> float:
        """Return the cost of the machines of today's plan [$]."""
        return total_usd(self.entries, "machines")

    @property
    def outside_usd(self) -> float:
        """Return the cost of retrieval and tools for today's requests [$]."""
        return total_usd(self.entries, "outside")

    @property
    def usd_today(self) -> float:
        """Return the cost of the plan, with what is outside the GPUs [$]."""
        return total_usd(self.entries)

    def beside_usd(self, grows_with: Growing) -> float:
        """Return what the entries other than machines cost today that grow with something [$]."""
        beside = (entry for entry in self.entries if entry.kind != "machines")
        return sum(entry.usd for entry in beside if entry.grows_with == grows_with)

    @property
    def per_machines_usd(self) -> float:
        """Return what overhead, a support plan and staging cost for each dollar of the machines."""
        beside = (entry for entry in self.entries if entry.kind != "machines")
        return sum(entry.usd_each for entry in beside if entry.grows_with == "machines")

    def usd(self, request_rate: float) -> float:
        """Return the cost at another peak rate, with what grows with every request."""
        return self.usd_served(request_rate) + self.usd_of_requests(request_rate)

    def usd_of_requests(self, request_rate: float) -> float:
        """Return what grows with every request, at another peak rate: what is outside the GPUs, and egress [$]."""
        return self.beside_usd("traffic") * request_rate / self.request_rate

    def usd_served(self, request_rate: float) -> float:
        """Return the cost at another peak rate, without what grows with every request [$]."""
        rates = np.array([request_rate])
        machines = sum(
            group.usd_of(int(replicas_over_time(rates, group.request_rate)[0])) for group in self.groups
        )
        return self.usd_with(machines)

    def usd_with(self, machines_usd: float) -> float:
        """Return the cost with machines at another price, without what grows with every request [$]."""
        return machines_usd * (1.0 + self.per_machines_usd) + self.beside_usd("nothing")

    def usd_at(self, request_rates: Array) -> Array:
        """Return the cost at other peak rates, without what grows with every request [$]."""
        return np.array([self.usd_served(float(rate)) for rate in request_rates])

    @property
    def step_rates(self) -> Array:
        """Return the peak rates from which on another replica is needed, ascending from zero, MOST_REPLICAS of them."""
        steps = [group.request_rate * np.arange(MOST_REPLICAS + 1) for group in self.groups]
        return np.unique(np.concatenate(steps))[: MOST_REPLICAS + 1]


@dataclass(frozen=True, slots=True)
class ComparedApi:
    """One hosted API for the same traffic."""

    price: TokenPrice
    bill: HostedBill
    traffic: tuple[HostedTraffic, ...]
    """Requests of the scenario, and what the cache of this API finds of prompts that repeat earlier ones."""
    breakeven_request_rate: float | None
    """Peak rate above which the self-hosted fleet never costs more; None where the API stays cheaper."""
    ways: tuple[str, ...] = ()
    """How each class uses the cache: the cheapest way."""


@dataclass(frozen=True, slots=True)
class ComparedMonth:
    """The fleet and the cheapest API in one month to come."""

    month: int
    """1 is today."""
    request_rate: float
    """Request rate at the peak [req/s]."""
    own_usd: float
    """The self-hosted fleet, with people and what its service takes."""
    api: str
    """The cheapest API of the month."""
    api_usd: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The self-hosted fleet and the APIs, cheapest first."""

    own: OwnFleet
    apis: tuple[ComparedApi, ...]
    traffic: tuple[HostedTraffic, ...]
    terms: Hosted

    @property
    def cheaper(self) -> str | None:
        """`own`, or PROVIDER/MODEL; None of one offer, which is no verdict on what is on sale."""
        best = self.apis[0]
        if len(self.apis) < FEWEST_OFFERS:
            return None
        return "own" if self.own.usd_today <= best.bill.usd else best.price.name

    @property
    def even_price_ratio(self) -> float | None:
        """Return how many times its prices the cheapest API could ask until both cost the same.

            x = (c - o) / (a - o)

        Returns
        -------
        [-]
            x: the fleet costs c, the API a, and what is outside either o; None if the API asks for nothing
        """
        own, api = self.own, self.apis[0].bill
        asked = api.usd - api.outside_usd
        return (own.usd_today - own.outside_usd) / asked if asked > 0.0 else None

    @property
    def even_machines_ratio(self) -> float | None:
        """Return how many times their price the machines could cost until the fleet costs as much as the cheapest API.

            y = 1 + (a - c) / (m (1 + f) + s)

        Returns
        -------
        [-]
            y: the fleet costs c and the API a, machines m with overhead f, and s of a support plan and staging; None if that is at no price, or without one
        """
        own = self.own
        machines = own.machines_usd + own.beside_usd("machines")
        if machines <= 0.0:
            return None
        ratio = 1.0 + (self.apis[0].bill.usd - own.usd_today) / machines
        return ratio if ratio > 0.0 else None


def breakeven_rate(
    own_usd: Callable[[int], float], step_rates: Array, hosted_usd: Callable[[float], float]
) -> float | None:
    """Return the peak rate above which the self-hosted fleet never costs more than the API.

    The fleet costs the same on the whole step from r_(n-1) to r_n, an API more with every request. The fleet is dearer
    somewhere on the step n exactly where it is dearer just above r_(n-1), so the last such step has the answer.

    Parameters
    ----------
    own_usd : cost of a month on each step n [$], not falling; that of n = 0 is not used
    step_rates : [1/s]
        r, ascending from zero; steps beyond the last are not looked at
    hosted_usd : cost of a month at a peak rate [$], not falling

    Returns
    -------
    [1/s], or None where the fleet is dearer on the last step too

    Examples
    --------
    Replicas of $30 that carry 10 requests a second, in addition to people of $20, and an API at $5 for each request a second:

    >>> breakeven_rate(lambda n: 20.0 + 30.0 * n, 10.0 * np.arange(1000), lambda rate: 5.0 * rate)
    22.0
    """
    last = _last_dearer_step(own_usd, step_rates, hosted_usd)
    if last == step_rates.size - 1:
        return None
    if last == 0:
        return 0.0
    start, end = float(step_rates[last - 1]), float(step_rates[last])
    goal = own_usd(last)
    for _ in range(100):
        middle_rate = (start + end) / 2.0
        start, end = (start, middle_rate) if hosted_usd(middle_rate) >= goal else (middle_rate, end)
    return float(f"{end:.12g}")


def _last_dearer_step(
    own_usd: Callable[[int], float], step_rates: Array, hosted_usd: Callable[[float], float]
) -> int:
    """Return the last step on which the fleet is dearer somewhere, 0 if there is none.

    Two groups of replicas step at their own rates, so dearer and cheaper steps take turns. A span of steps has no dearer one
    where its last step costs no more than the API at its start, as neither cost falls; others are halved, the later half first.
    Costs that differ by rounding are the same.
    """
    spans = [(1, step_rates.size - 1)]
    while spans:
        first, last = spans.pop()
        if own_usd(last) <= most_usd(hosted_usd(float(step_rates[first - 1]))):
            continue
        if first == last:
            return first
        middle = (first + last) // 2
        spans += [(first, middle), (middle + 1, last)]
    return 0


def compare(
    own: OwnFleet,
    traffic: tuple[HostedTraffic, ...],
    prices: tuple[TokenPrice, ...],
    terms: Hosted,
    repeated: Mapping[str, Repeated],
) -> Comparison:
    """Return a month of the plan and of every API for the same traffic, the APIs cheapest first.

    Parameters
    ----------
    own : the plan at any traffic, with its ledger
    traffic : its requests, class by class
    prices : of the APIs
    terms : how the APIs are used
    repeated : by class, what its prompts repeat, where a trace names their blocks or sessions send them again
    """
    step_rates = own.step_rates

    def own_usd(step: int) -> float:
        return own.usd_served(float(step_rates[step]))

    compared = []
    for price in prices:
        seen = tuple(_with_reuse(part, repeated.get(part.request_class.name), price) for part in traffic)

        def usd_at(
            rate: float,
            price: TokenPrice = price,
            seen: tuple[HostedTraffic, ...] = seen,
            own: OwnFleet = own,
        ) -> float:
            if rate <= 0.0:
                return 0.0
            bill = hosted_bill(seen, price, terms, rate / own.request_rate)
            return bill.usd - own.usd_of_requests(rate)

        even = breakeven_rate(own_usd, step_rates, usd_at)
        ways = tuple(billed_class(part, price, terms).way.name for part in seen)
        if terms.provisioned is not None:
            ways = (f"{provisioned_units(seen, price, terms):g} units rented",)
        compared.append(ComparedApi(price, hosted_bill(seen, price, terms), seen, even, ways))
    compared.sort(key=lambda api: (api.bill.usd, api.price.name))
    return Comparison(own, tuple(compared), traffic, terms)


def compared_month(
    comparison: Comparison, month: int, request_rate: float, machines_usd: float, token_ratio: float
) -> ComparedMonth:
    """Return the fleet and the cheapest API at the traffic of a month to come.

        a = k (b - o) + o

    Parameters
    ----------
    comparison : of today
    month : [-]
        1 is today
    request_rate : [1/s]
        at its peak
    machines_usd : [$]
        what the machines cost in it
    token_ratio : [-]
        k, prices of APIs over those of today

    Returns
    -------
    ComparedMonth; the API costs a, of a bill b at the prices of today with o outside the model
    """
    own = comparison.own

    def usd_of(api: ComparedApi) -> float:
        bill = hosted_bill(api.traffic, api.price, comparison.terms, request_rate / own.request_rate)
        return token_ratio * (bill.usd - bill.outside_usd) + bill.outside_usd

    usd, api = min((usd_of(api), api.price.name) for api in comparison.apis)
    paid = own.usd_with(machines_usd) + own.usd_of_requests(request_rate)
    return ComparedMonth(month, request_rate, paid, api, usd)


def _with_reuse(traffic: HostedTraffic, repeated: Repeated | None, price: TokenPrice) -> HostedTraffic:
    """Return a class with what of its prompts an API finds again, which keeps no prefix below its shortest one."""
    if repeated is None:
        return traffic
    return replace(traffic, reuse=repeated.kept_from(price.minimum_prefix_tokens))


def cost_lines(comparison: Comparison) -> tuple[Array, Array, dict[str, Array]]:
    """Return peak rates, the cost of the self-hosted fleet at them, and that of each API [$], for a picture.

    The rates reach to twice today's peak, or beyond the furthest break-even within ten times of it.
    """
    own = comparison.own
    even = [api.breakeven_request_rate for api in comparison.apis]
    far = max([1.3 * rate for rate in even if rate and rate < 10.0 * own.request_rate], default=0.0)
    rates = np.linspace(0.0, max(2.0 * own.request_rate, far), POINTS)[1:]
    lines = {
        api.price.name: np.array(
            [
                hosted_bill(api.traffic, api.price, comparison.terms, float(rate) / own.request_rate).usd
                for rate in rates
            ]
        )
        for api in comparison.apis
    }
    return rates, np.array([own.usd(float(rate)) for rate in rates]), lines
