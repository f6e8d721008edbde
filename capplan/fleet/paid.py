"""The load that is paid for: tokens at the mean of the traffic, and jobs by the job."""

from dataclasses import dataclass

from capplan.fleet.demand import Demand
from capplan.fleet.price import usd_per_million_tokens


@dataclass(frozen=True, slots=True)
class Money:
    """What a fleet costs by what it does, in the mean over the time that is paid."""

    usd_per_million_output_tokens: float
    usd_per_million_tokens: float
    """Prompts and answers together."""
    job_hours: float | None = None
    """Of a batch job; None where traffic has no end."""
    usd_per_job: float | None = None
    usd_per_thousand_requests: float | None = None


def mean_tokens_per_s(demand: Demand, response_s: float) -> tuple[float, float]:
    """Return prompt and answer tokens per second, mean over the time that is paid.

        i = sum_k r_k f_k I_k,   o = sum_k r_k f_k O_k

    Parameters
    ----------
    demand : classes k with their peak rate r, mean over peak f, and mean lengths I, O
    response_s : [s]
        that users wait for an answer

    Returns
    -------
    i, o [token/s]
    """
    rates = [item.request_rate_at(response_s) * item.mean_rate_fraction for item in demand.classes]
    prompts = sum(r * c.input_tokens.mean_tokens for r, c in zip(rates, demand.classes, strict=True))
    answers = sum(r * c.output_tokens.mean_tokens for r, c in zip(rates, demand.classes, strict=True))
    return prompts, answers


def job_hours(demand: Demand) -> float | None:
    """Return the hours in which all jobs are done; None where some traffic has no end."""
    hours = [
        item.job_requests / item.request_rate_at() / 3600.0 for item in demand.classes if item.job_requests
    ]
    return max(hours) if len(hours) == len(demand.classes) else None


def money_at_mean(demand: Demand, usd_per_hour: float, response_s: float) -> Money:
    """Return what a fleet costs by the token at the mean load, and by the job.

    Parameters
    ----------
    demand : the traffic
    usd_per_hour : [$/h]
        of the whole fleet, paid at all hours; a job pays until it is done
    response_s : [s]
        that users wait for an answer

    Returns
    -------
    Money

    References
    ----------
    See `capplan.fleet.price.usd_per_million_tokens`.
    """
    prompts, answers = mean_tokens_per_s(demand, response_s)
    hours = job_hours(demand)
    job = None if hours is None else hours * usd_per_hour
    requests = sum(item.job_requests or 0.0 for item in demand.classes)
    return Money(
        float(usd_per_million_tokens(usd_per_hour, answers)),
        float(usd_per_million_tokens(usd_per_hour, prompts + answers)),
        hours,
        job,
        None if job is None else 1000.0 * job / requests,
    )
