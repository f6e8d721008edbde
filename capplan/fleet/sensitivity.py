"""What a fleet costs if one thing turns out otherwise: the layout of a plan, sized again by the rule that sized it."""

from dataclasses import dataclass

import numpy as np

from capplan.errors import Reason
from capplan.fleet.cheapest import Terms, busy_replicas
from capplan.fleet.confirmed import RANGE, replicas_at_speed
from capplan.fleet.one_layout import trial_of
from capplan.fleet.over_time import replicas_over_time
from capplan.fleet.plan import FleetPlan
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.fleet.question import Question
from capplan.fleet.replica_group import planned_rate_per_replica
from capplan.fleet.search_cache import SearchCache
from capplan.fleet.trial import Trial

WHAT_IF_RATIOS = tuple(2.0 ** (step / 8.0) for step in range(-16, 17))
"""Traffic over today's, from a quarter to four times."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The fleet after one change."""

    change: str
    """In words, such as `-20 %`."""
    gpus: int | None
    """None: no number of replicas meets the targets."""
    usd: float | None
    """Of a month, or of the job; None where no price is known or no fleet is enough."""


@dataclass(frozen=True, slots=True)
class Swing:
    """One thing that may turn out otherwise, in both directions."""

    what: str
    low: Turn
    high: Turn

    @property
    def width(self) -> float:
        """Return how far apart the ends are: in dollars, in GPUs without a price, endless where an end has no fleet."""
        if self.low.gpus is None or self.high.gpus is None:
            return float("inf")
        if self.low.usd is None or self.high.usd is None:
            return float(abs(self.high.gpus - self.low.gpus))
        return abs(self.high.usd - self.low.usd)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A plan at another traffic."""

    traffic_ratio: float
    request_rate: float
    """At the peak [req/s]."""
    gpus: int
    usd: float | None
    """Of a month, or of the job."""


def paid_hours(plan: FleetPlan) -> float:
    """Return the hours that a plan is paid for: those of its job, else those of a month."""
    return plan.money.job_hours if plan.money and plan.money.job_hours else HOURS_PER_MONTH


def turned(change: str, plan: FleetPlan, busy: int | None, usd_per_gpu_hour: float | None) -> Turn:
    """Return the fleet of a plan with another number of replicas, or at another price."""
    if busy is None:
        return Turn(change, None, None)
    gpus = (busy + plan.spare_replicas) * plan.layout.devices
    usd = None if usd_per_gpu_hour is None else usd_per_gpu_hour * gpus * paid_hours(plan)
    return Turn(change, gpus, usd)


def resized(
    question: Question, plan: FleetPlan, terms: Terms, cache: SearchCache | None = None
) -> int | None:
    """Return the replicas without spares that the layout of a plan takes for a question; None if no number is enough."""
    trial = trial_of(question, plan.layout, plan.weight_dtype, terms, cache)
    if isinstance(trial, Reason):
        return None
    return busy_replicas(trial, trial.limits, question.slo.confidence, terms)


def speed_swing(trial: Trial, plan: FleetPlan, terms: Terms) -> Swing:
    """Return the fleets for replicas as fast as in the best tenth of the cases, and as slow as in the worst."""
    hourly = terms.hourly(plan.layout.device.name)
    fast, slow = (replicas_at_speed(trial, part, terms) for part in RANGE)
    return Swing(
        "kernel efficiency",
        turned("as fast as the best tenth", plan, fast, hourly),
        turned("as slow as the worst tenth", plan, slow, hourly),
    )


def what_if(plan: FleetPlan, headroom_fraction: float, hourly: float | None) -> tuple[WhatIf, ...]:
    """Return the fleets of a plan's layout for other traffic, by the rule that sizes it; today's is the plan itself.

    Parameters
    ----------
    plan : today's
    headroom_fraction : [-]
    hourly : of one device [$/h]; None where no price is known

    Returns
    -------
    one for each of WHAT_IF_RATIOS
    """
    peak = plan.request_rate_per_replica * plan.busy_replicas
    carried = planned_rate_per_replica(plan, headroom_fraction)
    needed = replicas_over_time(peak * np.array(WHAT_IF_RATIOS), carried)
    rows = []
    for ratio, count in zip(WHAT_IF_RATIOS, needed.tolist(), strict=True):
        busy = plan.busy_replicas if ratio == 1.0 else count
        fleet = turned("", plan, busy, hourly)
        rows.append(
            WhatIf(ratio, peak * ratio, (busy + plan.spare_replicas) * plan.layout.devices, fleet.usd)
        )
    return tuple(rows)
