"""A cascade of two models against the large one by itself: the cost of both at any share that is escalated, and where they are equal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capplan.fleet.scenario import CascadeStage
from capplan.money.comparison import OwnFleet
from capplan.numbers import Array


@dataclass(frozen=True, slots=True)
class CascadeFleets:
    """The fleets of a cascade as they are paid for at any share that is escalated."""

    first: OwnFleet
    seconds: tuple[OwnFleet, ...]
    """Fleets of the large model: layouts of which the cheaper one is taken."""
    after: CascadeStage
    request_rate: float
    """Rate of all requests at the peak [req/s]."""

    def usd_at(self, escalated_fractions: Array) -> Array:
        """Return the cost of both fleets at shares of the requests; at the ends a fleet that nothing reaches costs nothing."""
        rate, routed = self.request_rate, self.after == "router"
        firsts = rate * (1.0 - escalated_fractions) if routed else np.full_like(escalated_fractions, rate)
        seconds = rate * escalated_fractions
        large = np.min([fleet.usd_at(seconds) for fleet in self.seconds], axis=0)
        return np.where(firsts > 0.0, self.first.usd_at(firsts), 0.0) + np.where(seconds > 0.0, large, 0.0)

    @property
    def step_fractions(self) -> Array:
        """Return the shares at which a fleet grows or shrinks by a replica, ascending from 0 to 1."""
        steps = [_below_one(fleet, self.request_rate) for fleet in self.seconds]
        if self.after == "router":
            steps.append(1.0 - _below_one(self.first, self.request_rate))
        return np.unique(np.concatenate([[0.0, 1.0], *steps]))


def _below_one(fleet: OwnFleet, request_rate: float) -> Array:
    """Return the parts of a rate from which on a fleet needs another replica."""
    most = [np.arange(1, int(request_rate / group.request_rate) + 1) for group in fleet.groups]
    steps = [
        count * group.request_rate / request_rate for count, group in zip(most, fleet.groups, strict=True)
    ]
    return np.minimum(np.concatenate(steps), 1.0)


def breakeven_fraction(fleets: CascadeFleets, alone_usd: float) -> float | None:
    """Return the share of escalated requests up to which a cascade never costs more than the large model only.

    Both fleets cost the same between two shares at which one of them grows or shrinks, so each step is looked at once.

    Parameters
    ----------
    fleets : of the cascade
    alone_usd : [$]
        of the large model for all requests, over the same time

    Returns
    -------
    [-]; None where the cascade costs more with the first escalated request
    """
    steps = fleets.step_fractions
    dearer = fleets.usd_at((steps[:-1] + steps[1:]) / 2.0) > alone_usd
    if dearer[0]:
        return None
    return float(steps[int(np.argmax(dearer))]) if dearer.any() else 1.0


@dataclass(frozen=True, slots=True)
class Wait:
    """How long users wait for something that comes in stages."""

    mean_s: float
    nine_in_ten_s: float
    """Nine in ten requests take no longer; of several stages a bound."""


def wait_of_stages(means_s: Sequence[float], nines_s: Sequence[float]) -> Wait:
    """Return the wait for stages that follow each other.

        m = sum_k m_k,   w = sum_k w_k

    Whatever the stages have to do with each other, P(sum X_k > sum w_k) <= sum_k P(X_k > w_k).

    Parameters
    ----------
    means_s : [s]
        m_k, of each stage
    nines_s : [s]
        w_k, percentiles of each stage that leave a tenth to all of them together: the 90th of one, the 95th of two

    Returns
    -------
    Wait

    Examples
    --------
    >>> wait_of_stages([2.0, 0.5], [4.0, 1.0])
    Wait(mean_s=2.5, nine_in_ten_s=5.0)

    References
    ----------
    Ross 2014, "A First Course in Probability", section 2.4: Boole's inequality.
    """
    return Wait(sum(means_s), sum(nines_s))
