"""Claimed and observed probabilities of left-out runs, as docs/evidence/chance-to-meet-the-slo.md."""

from collections.abc import Sequence
from math import exp

import numpy as np

from calibrate.accuracy_tables import percent
from calibrate.slow_runs import SlowValue, slow_runs
from calibrate.slowness_fit import (
    LEVELS,
    Claim,
    SlowRun,
    joint_claims,
    left_out_claims,
    questions,
    votes_of,
)
from capplan.accuracy.slowness import SlownessTable
from capplan.readers.catalogue.efficiency import shipped_slowness
from docs.generators.page_tables import Table

MEASURED = {
    "TTFT, mean or median": "ttft/middle",
    "TTFT, p99": "ttft/p99",
    "TPOT, mean or median": "tpot/middle",
    "TPOT, p99": "tpot/p99",
}
BOTH = {"both at once, mean or median": "middle", "both at once, p99": "p99"}
LOADS = {True: "open loops", False: "closed loops"}


def observed(claims: Sequence[Claim]) -> dict[float, float]:
    """Return the observed frequency of limits met, by claimed probability."""
    votes = votes_of([claim.run for claim in claims])
    return {
        level: float(np.average([claim.held(level) for claim in claims], weights=votes)) for level in LEVELS
    }


def claims_on(claims: Sequence[Claim], names: Sequence[str], *, is_open: bool | None = None) -> list[Claim]:
    """Return the claims on measured values of some regimes, or on both latencies at once in some parts of their distributions."""
    return [
        claim
        for claim in claims
        if (
            claim.run.regime in names if len(claim.runs) == 1 else claim.run.regime.partition("/")[2] in names
        )
        and (claim.run.measured or len(claim.runs) > 1)
        and (is_open is None or claim.run.is_open == is_open)
    ]


def claims_of(runs: Sequence[SlowRun], left_out: str, table: SlownessTable) -> list[Claim]:
    """Return the claims on each latency of the runs that are left out, and on both at once."""
    alone = left_out_claims(runs, left_out, table.host_s)
    return [*alone, *joint_claims(alone, table.correlation)]


def reliability_table(runs: Sequence[SlowRun], table: SlownessTable) -> Table:
    """Return how often limits were met, by latency and by what was left out."""
    rows = []
    claims = {ruler: claims_of(runs, ruler, table) for ruler in ("group", "model", "source")}
    measured, both = tuple(MEASURED.values()), tuple(BOTH.values())
    lines = [("all values", "group", claims_on(claims["group"], measured))]
    lines += [
        (words, "group", claims_on(claims["group"], [name])) for words, name in (MEASURED | BOTH).items()
    ]
    lines += [
        (f"{words}, {loaded}", ruler, claims_on(claims[ruler], names, is_open=is_open))
        for ruler in ("model", "source")
        for words, names in (("all values", measured), ("both at once", both))
        for is_open, loaded in LOADS.items()
    ]
    lines += [
        (f"all values of {name}", "source", [claim for claim in claims_on(claims["source"], measured) if claim.run.source == name])
        for name in sorted({claim.run.source for claim in claims["source"]})
    ]  # fmt: skip
    for words, left_out, own in lines:
        found = observed(own)
        rows.append([words, left_out, f"{len(own):,}", *(percent(found[level]) for level in LEVELS)])
    return Table(["limits on", "left out", "values", *(f"claimed {percent(x)}" for x in LEVELS)], rows)


def width_table(values: Sequence[SlowValue]) -> Table:
    """Return the spread of 90 % of the runs of open loops, as slowness of their replica and as a stretched latency."""
    slow, stretched = questions(values), questions(values, lambda value: value.ratio)
    rows = []
    for words, name in MEASURED.items():
        cells = [words]
        for runs in (slow, stretched):
            own = [run.log_slowness for run in runs if run.regime == name and run.is_open]
            low, middle, high = (exp(x) for x in np.quantile(own, [0.1, 0.5, 0.9]))
            cells += [f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]
        rows.append(cells)
    headings = ["latency", "slowness: median", "10 % to 90 %", "measured / predicted: median", "10 % to 90 %"]
    return Table(headings, rows)


def certainty_section() -> str:
    """Return claimed and observed probabilities, and the spread of slowness."""
    values = slow_runs()
    return (
        f"{reliability_table(questions(values), shipped_slowness())}\n\n"
        "The open loops, as the slowness of their replica and as a latency that is stretched:\n\n"
        f"{width_table(values)}\n"
    )
