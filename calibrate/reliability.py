"""Claimed and observed probabilities of left-out open-loop runs, as docs/evidence/chance-to-meet-the-slo.md."""

from collections.abc import Sequence
from math import exp

import numpy as np

from calibrate.accuracy_tables import markdown, percent
from calibrate.slow_runs import SlowValue, slow_runs
from calibrate.slowness_fit import LEVELS, Claim, SlowRun, left_out_claims, questions
from capplan.readers.catalogue.efficiency import shipped_slowness

MEASURED = {
    "TTFT, mean or median": "ttft/middle",
    "TTFT, p99": "ttft/p99",
    "TPOT, mean or median": "tpot/middle",
    "TPOT, p99": "tpot/p99",
}
BOTH = {"both at once, mean or median": "both/middle", "both at once, p99": "both/p99"}
LOADS = {"open": "within capacity", "overload": "overload"}


def observed(claims: Sequence[Claim]) -> dict[float, float]:
    """Return the observed frequency of limits met, by claimed probability."""
    return {level: float(np.mean([claim.held(level) for claim in claims])) for level in LEVELS}


def _of(claims: Sequence[Claim], names: Sequence[str], load: str = "") -> list[Claim]:
    return [
        claim
        for claim in claims
        if claim.run.regime.rpartition("/")[0] in names
        and (not load or claim.run.regime.endswith(f"/{load}"))
    ]


def reliability_table(runs: Sequence[SlowRun], host_s: float) -> str:
    """Return how often limits were met, by latency and by what was left out."""
    rows = []
    claims = left_out_claims(runs, "group", host_s)
    measured, both = tuple(MEASURED.values()), tuple(BOTH.values())
    lines = [("all values", "group", _of(claims, measured))]
    lines += [(f"all values, {words}", "group", _of(claims, measured, load)) for load, words in LOADS.items()]
    lines += [(words, "group", _of(claims, [name])) for words, name in MEASURED.items()]
    lines += [(words, "group", _of(claims, [name])) for words, name in BOTH.items()]
    lines += [(f"both at once, {words}", "group", _of(claims, both, load)) for load, words in LOADS.items()]
    models = left_out_claims(runs, "model", host_s)
    lines += [("all values", "model", _of(models, measured)), ("both at once", "model", _of(models, both))]
    sources = left_out_claims(runs, "source", host_s)
    lines += [
        (f"all values of {name}", "source", [claim for claim in _of(sources, measured, "open") if claim.run.source == name])
        for name in sorted({claim.run.source for claim in sources if claim.run.regime.endswith("/open")})
    ]  # fmt: skip
    for words, left_out, own in lines:
        found = observed(own)
        rows.append([words, left_out, f"{len(own):,}", *(percent(found[level]) for level in LEVELS)])
    return markdown(["limits on", "left out", "values", *(f"claimed {percent(x)}" for x in LEVELS)], rows)


def width_table(values: Sequence[SlowValue]) -> str:
    """Return the spread of 90 % of the runs, as slowness of their replica and as a stretched latency."""
    slow, stretched = questions(values), questions(values, lambda value: value.ratio)
    rows = []
    for words, name in (MEASURED | BOTH).items():
        for load, loaded in LOADS.items():
            cells = [f"{words}, {loaded}"]
            for runs in (slow, stretched):
                own = [run.log_slowness for run in runs if run.regime == f"{name}/{load}"]
                low, middle, high = (exp(x) for x in np.quantile(own, [0.1, 0.5, 0.9]))
                cells += [f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]
            rows.append(cells)
    headings = ["latency", "slowness: median", "10 % to 90 %", "measured / predicted: median", "10 % to 90 %"]
    return markdown(headings, rows)


def certainty_section() -> str:
    """Return claimed and observed probabilities, and the spread of slowness."""
    values = slow_runs()
    return (
        reliability_table(questions(values), shipped_slowness().host_s)
        + "\n\nThe same runs, as the slowness of their replica and as a latency that is stretched:\n\n"
        + width_table(values)
        + "\n"
    )
