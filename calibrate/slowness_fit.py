"""The distribution of slowness, from left-out runs of servers, and whether it is calibrated.

The logarithm of a slowness over its scale (`slowness_scale`) is known by a few quantiles, stretched about the median by one over
the groups of runs. The runs of a group repeat its setup, so it has as many votes as runs, at most `UNIT_ROWS`; plans are mostly
of open loops, few of which were measured, so all of them have as many votes as all closed loops. Runs whose client runs
the engine in its own process are not among them: no deployment runs so.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import log, pi, sin
from typing import cast, get_args

import numpy as np

from calibrate.interval_fit import capped_weights
from calibrate.slow_runs import SlowValue
from capplan.accuracy.score import weighted_quantile
from capplan.accuracy.slowness import (
    CLAIMED,
    PROBABILITIES,
    JointSlowness,
    Latency,
    Part,
    Slowness,
    SlownessRegime,
    SlownessTable,
    slowness_scale,
)
from capplan.numbers import Array
from capplan.workload.length import standard_normal_quantile

RELATIVE = 0.25
"""Part of the scale that goes with the step: its unit, as the widths of the regimes are multiples of the scale."""
HOST_S = 5e-4
"""What an unknown host adds to a step or saves: vLLM's step has 0.3 ms of a published host, and a cloud core launches half as fast as a
desktop core (an assumption: published runs do not tell; without it, and with it, left-out sources are predicted as well)."""
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LEAST_STEP = 1e-3
"""Between two quantiles: a distribution has no steps."""
P95 = float(standard_normal_quantile(0.95)) / float(standard_normal_quantile(0.99))
"""Where the 95th percentile lies between the median (0) and the 99th (1)."""

Form = Callable[[SlowValue], float]
"""The uncertain part of a value: the slowness of its replica, or simply measured over predicted."""


@dataclass(frozen=True, slots=True)
class SlowRun:
    """One latency of a run: the slowness up to which its targets would have to be met."""

    row: str
    regime: str
    group: str
    step_s: float
    log_slowness: float
    is_open: bool = True
    measured: bool = True
    """Not a mean that stands in for the percentile of this latency."""

    @property
    def model(self) -> str:
        """Return the name of its model."""
        return self.group.split("|")[1]

    @property
    def source(self) -> str:
        """Return its publisher."""
        return self.group.split("|")[0]


@dataclass(frozen=True, slots=True)
class Parts:
    """Logarithm of the slowness of a run by parts of the distribution of one latency; None of one that was not measured."""

    middle: float | None
    """By mean and median."""
    p95: float | None
    p99: float | None

    def at(self, part: Part) -> float | None:
        """Return that of a part; a 95th percentile that was not measured lies between the median and the 99th."""
        if part == "middle" or self.p99 is None:
            return self.middle
        if part == "p99" or self.middle is None:
            return self.p99
        return self.middle + P95 * (self.p99 - self.middle) if self.p95 is None else self.p95


def _parts(values: Sequence[SlowValue], quantity: str, form: Form) -> Parts:
    own = {
        value.column.rpartition("_")[2]: log(form(value))
        for value in values
        if value.column.startswith(quantity)
    }
    middles = [own[name] for name in ("mean", "p50") if name in own]
    return Parts(sum(middles) / len(middles) if middles else None, own.get("p95"), own.get("p99"))


def questions(values: Iterable[SlowValue], form: Form = lambda value: value.slowness) -> list[SlowRun]:
    """Return the slowness of each latency of each run, by the part of its distribution.

    Where no percentile of a latency was measured its mean stands in, so that the same runs answer for both and for each.
    """
    by_row: dict[str, list[SlowValue]] = {}
    for value in values:
        by_row.setdefault(value.row, []).append(value)
    out = []
    for own in by_row.values():
        known = {name: _parts(own, name, form) for name in ("ttft", "tpot")}
        for part in get_args(Part):
            for name, parts in known.items():
                stands_in = part != "middle" and parts.p99 is None
                slowness, (first, *_) = parts.at(part), own
                if slowness is not None:
                    of = first.row, f"{name}/{part}", first.group, first.step_s
                    out.append(SlowRun(*of, slowness, first.is_open, not stands_in))
    return out


def votes_of(runs: Sequence[SlowRun]) -> Array:
    """Return the votes of each run: a group has no more than a unit of the intervals, and open loops have together as many as closed ones."""
    _, units = np.unique([run.group for run in runs], return_inverse=True)
    votes = capped_weights(np.ones(len(runs)), units)
    is_open = np.array([run.is_open for run in runs])
    whole = np.where(is_open, votes[is_open].sum(), votes[~is_open].sum())
    shares: Array = votes / whole
    return shares


def regime_of(runs: Sequence[SlowRun], host_s: float) -> SlownessRegime:
    """Return the distribution of some runs."""
    scaled = np.array([run.log_slowness / slowness_scale(run.step_s, RELATIVE, host_s) for run in runs])
    groups, votes = len({run.group for run in runs}), votes_of(runs)
    quantiles = np.array([weighted_quantile(scaled, votes, probability) for probability in PROBABILITIES])
    steps = np.maximum(np.diff(quantiles), LEAST_STEP) * (1.0 + 1.0 / groups)
    half = PROBABILITIES.index(0.5)
    below, above = -np.cumsum(steps[:half][::-1])[::-1], np.cumsum(steps[half:])
    logs = np.concatenate([below, [0.0], above]) + quantiles[half]
    return SlownessRegime(tuple(logs.tolist()), len(runs), groups)


def slowness_table(values: Sequence[SlowValue]) -> SlownessTable:
    """Return the table of all regimes that occur."""
    runs = questions(values)
    regimes = {
        key: regime_of([run for run in runs if run.regime == key], HOST_S)
        for key in sorted({run.regime for run in runs})
    }
    classes = {
        name: len({value.group for value in values if value.is_open and value.network_class == name})
        for name in sorted({value.network_class for value in values})
    }
    apart = SlownessTable(RELATIVE, HOST_S, regimes, 0.0, classes, {})
    return replace(apart, correlation=correlation_of(runs, apart))


def correlation_of(runs: Sequence[SlowRun], table: SlownessTable) -> float:
    """Return the correlation of the normal scores of both latencies, mean over the parts of their distributions.

        r = sin(2 pi (P - 1/4))

    P is the share of the runs of which both latencies are within their medians: outliers count no more than others.

    References
    ----------
    Sheppard 1899, "On the application of the theory of error to cases of normal distribution and normal correlation",
    doi:10.1098/rsta.1899.0003.
    """
    scores: dict[Part, list[tuple[SlowRun, bool]]] = {}
    for (_, part), both in both_of(runs).items():
        quick = (
            run.log_slowness
            <= slowness_scale(run.step_s, table.relative, table.host_s) * table.regimes[run.regime].median
            for run in both
        )
        scores.setdefault(part, []).append((both[0], all(quick)))
    found = []
    for of_part in scores.values():
        own, within = zip(*of_part, strict=True)
        share = float(np.average(within, weights=votes_of(own)))
        found.append(sin(2.0 * pi * (share - 0.25)))
    return sum(found) / len(found)


def both_of(runs: Iterable[SlowRun]) -> dict[tuple[str, Part], tuple[SlowRun, SlowRun]]:
    """Return the first and the later tokens of each run of which both are known, by run and part of the distribution."""
    first = {(run.row, part): run for run in runs for name, part in [_named(run)] if name == "ttft"}
    later = {(run.row, part): run for run in runs for name, part in [_named(run)] if name == "tpot"}
    return {key: (first[key], later[key]) for key in first if key in later}


def _named(run: SlowRun) -> tuple[str, Part]:
    name, _, part = run.regime.partition("/")
    return name, cast("Part", part)


@dataclass(frozen=True, slots=True)
class Claim:
    """One latency of a run, or both, with the distribution from the other runs."""

    runs: tuple[SlowRun, ...]
    usual: JointSlowness

    @property
    def run(self) -> SlowRun:
        """The run, as its first latency shows it."""
        return self.runs[0]

    def held(self, level: float) -> bool:
        """Return whether the run stayed within the limits for a claimed probability, which are equally likely to hold."""
        limits = self.usual.equally(level).values()
        return all(run.log_slowness <= log(limit) for run, limit in zip(self.runs, limits, strict=True))


def joint_claims(claims: Sequence[Claim], correlation: float) -> list[Claim]:
    """Return the claims on both latencies at once of each run of which both are known."""
    own = {claim.run: claim for claim in claims}
    out = []
    for pair in both_of(own).values():
        usual: dict[Latency, Slowness] = {}
        for run in pair:
            usual.update(own[run].usual.by_latency)
        out.append(Claim(pair, JointSlowness(usual, correlation)))
    return out


def left_out_claims(runs: Sequence[SlowRun], left_out: str, host_s: float) -> list[Claim]:
    """Return every run next to the distribution of all other groups, models or sources, where there is any.

    Parameters
    ----------
    runs : what each says on each question
    left_out : group, model or source
    host_s : [s]
        the host's part of the scale
    """
    out = []
    for key, name in sorted({(run.regime, getattr(run, left_out)) for run in runs}):
        others = [run for run in runs if run.regime == key and getattr(run, left_out) != name]
        if not others:
            continue
        regime = regime_of(others, host_s)
        for run in runs:
            if run.regime == key and getattr(run, left_out) == name:
                usual = regime.scaled(slowness_scale(run.step_s, RELATIVE, host_s))
                latency = cast("Latency", _named(run)[0])
                out.append(Claim((run,), JointSlowness({latency: usual}, 0.0)))
    return out


def slowness_text(table: SlownessTable) -> str:
    """Return the file of distributions that comes with the package."""
    lines = [
        "# Logarithm of measured over predicted time of steps over its scale, among left-out runs of servers;",
        "# written by `python -m calibrate.fit_serving`.",
        f"relative: {table.relative:g}",
        f"host_s: {table.host_s:g}",
        "# class of network: groups of open-loop runs",
        "classes:",
        *(f"  {name}: {groups}" for name, groups in table.classes.items()),
        f"# class of network: published values within what is claimed with {CLAIMED:g}: share, values, models",
        "published:",
        *(f"  {name}: [{own.held:.3f}, {own.values}, {own.models}]" for name, own in table.published.items()),
        "# of the normal scores of both latencies of a run",
        f"correlation: {table.correlation:.4f}",
        f"# latency/part: [quantiles at {', '.join(map(str, PROBABILITIES))}, runs, groups]",
        "regimes:",
    ]
    for key, entry in table.regimes.items():
        numbers = ", ".join(f"{quantile:.4f}" for quantile in entry.quantiles)
        lines.append(f"  {key}: [{numbers}, {entry.rows}, {entry.groups}]")
    return "\n".join(lines) + "\n"
