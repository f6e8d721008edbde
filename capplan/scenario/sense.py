"""What can be read and computed, and yet is hardly what somebody means: rates and targets far from any service."""

from collections.abc import Sequence
from itertools import pairwise

from capplan.readers.yaml_file import KeyPath
from capplan.scenario.reading import Reading
from capplan.workload.request_class import METRICS, Target

LEAST_RATE_PER_S, MOST_RATE_PER_S = 1e-6, 1e9
"""One request in eleven days, and more than all people could send: beyond them times drown in rounding."""
LEAST_MEAN_FRACTION = 1e-6
"""A second of traffic in eleven days."""
LONGEST_WAIT_S = {"ttft": 600.0, "tpot": 10.0, "itl": 60.0, "e2e": 86400.0}
"""Limits above these promise nothing to a person who waits; they only warn."""


def plausible_rate(reading: Reading, rate: float | None, at: KeyPath) -> float | None:
    """Return a rate, raised to the least that a simulation tells from none; an error for one that no service has."""
    if rate is None or LEAST_RATE_PER_S <= rate <= MOST_RATE_PER_S:
        return rate
    if rate > MOST_RATE_PER_S:
        raise reading.refuse(
            at, f"{rate:.3g} req/s is out of range; at most {MOST_RATE_PER_S:g} req/s are allowed"
        )
    reading.warnings.append(
        f"{reading.document.place(at)}: {rate:.3g} req/s is planned for as {LEAST_RATE_PER_S:g} req/s, one request in "
        "eleven days: times between rarer ones drown in rounding"
    )
    return LEAST_RATE_PER_S


def refuse_rare_users(reading: Reading, users: float | None, think_s: float | None, at: KeyPath) -> None:
    """Refuse users who together ask less often than a simulation tells from never."""
    if users is not None and think_s is not None and users < LEAST_RATE_PER_S * max(think_s, 1.0):
        raise reading.refuse(
            at,
            f"{users:g} users who think for {think_s:g} s send fewer than {LEAST_RATE_PER_S:g} req/s, one request in eleven days",
        )


def refuse_idle_time(reading: Reading, fraction: float, at: KeyPath) -> None:
    """Refuse traffic whose mean is tiny compared with its peak: its cost per token has no meaning."""
    if fraction < LEAST_MEAN_FRACTION:
        raise reading.refuse(
            at,
            f"the mean rate is {fraction:.1g} of the peak, less than {LEAST_MEAN_FRACTION:g}; is the unit right?",
        )


def warn_of_odd_targets(reading: Reading, targets: Sequence[Target]) -> None:
    """Note targets that say nothing: limits nobody waits for, and a percentile looser than a higher one."""
    for target in targets:
        longest = LONGEST_WAIT_S[target.metric]
        if target.limit_s > longest:
            reading.warnings.append(
                f"slo.{target.key}: {target.limit_s:g} s is longer than the {longest:g} s that anybody waits; is the unit right?"
            )
    for metric in METRICS:
        by_percentile = [t for t in targets if t.metric == metric and t.statistic != "mean"]
        for lower, higher in pairwise(by_percentile):
            if lower.limit_s > higher.limit_s:
                reading.warnings.append(
                    f"slo.{lower.key}: {lower.limit_s:g} s says nothing compared with {higher.key} of {higher.limit_s:g} s, "
                    "which is stricter and covers more requests; are they swapped?"
                )
