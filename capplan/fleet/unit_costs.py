"""Cost of a fleet by what it delivers: per token at the mean load, and per batch job."""

from dataclasses import dataclass, fields, replace

from capplan.fleet.load.demand import Demand
from capplan.money.price import usd_per_million_tokens
from capplan.workload.request_class import ResponseTimes


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Cost per token, per job and per request, mean over the time that is paid for."""

    usd_per_million_output_tokens_at_mean: float | None
    """None where no tokens are generated."""
    usd_per_million_tokens_at_mean: float
    """Input and output together."""
    job_hours: float | None = None
    """Duration of a batch job; None for traffic without an end."""
    usd_per_job: float | None = None
    usd_per_thousand_requests: float | None = None
    """Cost per thousand requests of a batch job, or where no tokens are generated."""

    def scaled(self, ratio: float) -> "UnitCosts":
        """Return the costs of the same traffic on a fleet that costs some times as much; a job takes its time as before."""
        costs = {
            field.name: ratio * getattr(self, field.name)
            for field in fields(self)
            if field.name.startswith("usd_") and getattr(self, field.name) is not None
        }
        return replace(self, **costs)


def usd_per_million(usd_per_hour: float | None, tokens_per_s: float) -> float | None:
    """Return the cost of a million tokens at a rate; None without a price, or where there are no tokens."""
    if usd_per_hour is None or not tokens_per_s:
        return None
    return float(usd_per_million_tokens(usd_per_hour, tokens_per_s))


def mean_tokens_per_s(demand: Demand, response_s: ResponseTimes) -> tuple[float, float]:
    """Return input and output tokens per second, mean over the time that is paid for.

        i = sum_k r_k f_k I_k,   o = sum_k r_k f_k O_k

    Parameters
    ----------
    demand : classes k with their peak rate r, mean over peak f, and mean lengths I, O
    response_s : [s]
        response times that users wait for, of all classes or of each

    Returns
    -------
    i, o [token/s]
    """
    rates = [
        rate * item.mean_rate_fraction
        for rate, item in zip(demand.rates_of_classes(response_s), demand.classes, strict=True)
    ]
    prompts = sum(r * c.input_tokens.mean_tokens for r, c in zip(rates, demand.classes, strict=True))
    outputs = sum(r * c.generated_tokens for r, c in zip(rates, demand.classes, strict=True))
    return prompts, outputs


def mean_requests_per_s(demand: Demand, response_s: ResponseTimes) -> float:
    """Return requests per second, mean over the time that is paid for; those of several sequences count once.

    Parameters
    ----------
    demand : classes with their peak rate, mean over peak, and sequences of a request
    response_s : [s]
        response times that users wait for, of all classes or of each

    Returns
    -------
    [request/s]
    """
    return sum(
        rate * item.mean_rate_fraction / item.sequences_per_request
        for rate, item in zip(demand.rates_of_classes(response_s), demand.classes, strict=True)
    )


def job_hours(demand: Demand) -> float | None:
    """Return the hours until all jobs are done; None if some traffic has no end.

        h = max n_k / (3600 r_k)

    Parameters
    ----------
    demand : classes k of n_k requests, sent at r_k

    Returns
    -------
    [h]
        h

    Examples
    --------
    14,400 requests at 2 a second take two hours:

    >>> from capplan.serving.steady_state import Lengths
    >>> from capplan.workload.length import fixed
    >>> from capplan.workload.request_class import RequestClass
    >>> night = RequestClass("night", fixed(3000), fixed(400), 2.0, job_requests=14_400.0)
    >>> job_hours(Demand((night,), Lengths(3000.0, 400.0), 3400))
    2.0
    """
    hours = [
        request_class.job_requests / request_class.request_rate_at() / 3600.0
        for request_class in demand.classes
        if request_class.job_requests
    ]
    return max(hours) if len(hours) == len(demand.classes) else None


def unit_costs_at_mean(demand: Demand, usd_per_hour: float, response_s: ResponseTimes) -> UnitCosts:
    """Return the cost of a fleet per token at the mean load, and per job.

    Parameters
    ----------
    demand : the traffic
    usd_per_hour : [$/h]
        of the whole fleet, paid at all hours; for a job, until it is done
    response_s : [s]
        response times that users wait for, of all classes or of each

    References
    ----------
    See `capplan.money.price.usd_per_million_tokens`.
    """
    prompts, outputs = mean_tokens_per_s(demand, response_s)
    hours = job_hours(demand)
    job = None if hours is None else hours * usd_per_hour
    per_thousand = None
    if job is not None:
        requests = sum((item.job_requests or 0.0) / item.sequences_per_request for item in demand.classes)
        per_thousand = 1000.0 * job / requests
    elif not outputs:
        per_thousand = 1000.0 * usd_per_hour / 3600.0 / mean_requests_per_s(demand, response_s)
    return UnitCosts(
        usd_per_million(usd_per_hour, outputs),
        float(usd_per_million_tokens(usd_per_hour, prompts + outputs)),
        hours,
        job,
        per_thousand,
    )
