"""A plan next to what its engines did: what has drifted, what it costs to follow, and the plan that follows.

What lies within a tenth of the plan is taken to be as planned (an assumption); whether the plan still holds is not judged by that, but by the
checks of the plan under the traffic that was observed, and by the targets as they were measured.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import isclose
from pathlib import Path
from typing import Any, Literal

from capplan.accuracy.bounded import Intervals
from capplan.errors import InputError
from capplan.fleet.plan import Plan
from capplan.fleet.search.candidates import DEGREES
from capplan.fleet.search.one_layout import replicas_of_layout
from capplan.questions.fleet import AskedFleet, asked_fleet, terms_of
from capplan.questions.plans.plan_check import Check, Side, check_plan, side_of, side_of_file
from capplan.questions.plans.plan_file import chosen_in, scenario_beside
from capplan.questions.plans.plan_verification import PROMETHEUS, Compared, verified
from capplan.readers.plan_file import PlanFile
from capplan.recorded.results.record import BenchmarkResult, latency
from capplan.recorded.traces.prometheus_server import Observed
from capplan.scenario.observed_traffic import ALIKE_FRACTION, as_observed
from capplan.workload.statistics import HOUR_S

PricesOf = Literal["pinned", "today"]
MOST_REQUESTS = 10_000
"""Requests of the observed traffic that are simulated; the mean of more of them is hardly less certain."""
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Follow:
    """The replicas of the plan's layout that the observed traffic takes, and their cost."""

    busy_replicas: int
    gpus: int
    usd_per_month: float | None
    change_usd_per_month: float | None


@dataclass(frozen=True, slots=True)
class Watch:
    """A plan next to what its engines did."""

    seen: Observed
    rows: tuple[Compared, ...]
    checks: tuple[Check, ...]
    """Checks of the plan under the observed traffic, and of its targets as measured."""
    follow: Follow | None
    """None for separate pools and mixes, or if no number of replicas is enough."""
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Return whether the plan still holds."""
        return all(check.holds for check in self.checks)


def asked_as_observed(
    scenario: Path | None, file: PlanFile, settings: Sequence[str], seen: Observed, *, offline: bool
) -> AskedFleet:
    """Return the question of a scenario, or of the one a plan was made for, with the traffic that its engines had."""
    planned = scenario_beside(scenario, file, settings)
    traffic = as_observed(planned.written["traffic"], seen, file.inputs)
    return asked_fleet(scenario_beside(scenario, file, (*settings, traffic)), offline=offline)


def watched(
    asked: AskedFleet,
    file: PlanFile,
    seen: Observed,
    intervals: Intervals,
    today: date,
    max_price_age_days: int,
) -> Watch:
    """Return a plan next to what its engines did.

    Parameters
    ----------
    asked : the question with the observed traffic
    file : the plan
    seen : counters of all its engines
    intervals : of predictions, as `capplan validate` measures them
    today, max_price_age_days : as in `check_plan`
    """
    checks, notes = list(check_plan(asked, file, today, max_price_age_days)), list(seen.summary.notes)
    rows = list(_load(file, seen))
    plan = None
    if any(check.name.startswith(("slo.", "capacity")) for check in checks):
        plan = chosen_in(file, asked)
        checks += _targets(asked, plan, seen, notes)
    if plan is None or plan.has_pools or plan.is_mix:
        notes.append("step times and the cost to follow are compared for plans of one group only")
        return Watch(seen, tuple(rows), tuple(checks), None, tuple(notes))
    group = plan.single
    needed = replicas_of_layout(asked.question, group.layout, terms_of(asked))
    try:
        steps, slower = _steps(asked, plan, seen, intervals)
        rows += steps
        if slower is not None:
            have, busy = group.busy_replicas, slower["busy_replicas"]
            enough = busy is not None and busy <= have
            checks.append(Check("capacity at the measured speed", have, busy, enough))
            needed = None if needed is None or busy is None else max(needed, busy)
    except InputError as error:
        notes.append(f"step times are not compared: {str(error).splitlines()[0]}")
    follow = None if needed is None else _follow(plan, needed)
    return Watch(seen, tuple(rows), tuple(checks), follow, tuple(notes))


def _load(file: PlanFile, seen: Observed) -> Iterator[Compared]:
    """Yield load, lengths, hits and replicas next to those of the plan."""
    inputs, summary, chosen = file.inputs, seen.summary, file.answer.chosen
    mean = float(file.result["demand"]["mean_requests_per_s"])
    pairs = (
        ("request_rate", inputs.request_rate, summary.rate.peak_60s),
        ("mean_request_rate", mean, summary.rate.mean),
        ("input_tokens", inputs.input_tokens, summary.input_tokens.mean),
        ("output_tokens", inputs.output_tokens, summary.output_tokens.mean),
    )
    for what, planned, found in pairs:
        if found is not None:
            yield Compared(
                what, planned, planned * (1 - ALIKE_FRACTION), planned * (1 + ALIKE_FRACTION), found
            )
    if summary.prefix_hit_fraction is not None:
        hits = inputs.cached_tokens / inputs.input_tokens if inputs.input_tokens else 0.0
        yield Compared(
            "prefix_hit_fraction",
            hits,
            max(hits - ALIKE_FRACTION, 0.0),
            min(hits + ALIKE_FRACTION, 1.0),
            summary.prefix_hit_fraction,
        )
    if seen.engines is not None and len(chosen.groups) == 1:
        (group,) = chosen.groups
        ran = seen.engines / group.data_parallel  # each attention group is an engine
        yield Compared("replicas", group.replicas, group.busy_replicas, group.replicas, ran)


def _targets(asked: AskedFleet, plan: Plan, seen: Observed, notes: list[str]) -> Iterator[Check]:
    """Yield the targets of the plan as its engines met them, percentiles interpolated within the buckets of a histogram."""
    for target in asked.question.slo.targets:
        metric, _, statistic = target.key.partition("_")
        limit_s = plan.engine_limit_s(target)
        name = f"slo.{target.key} as measured"
        if statistic == "mean":
            value = (seen.summary.measured or {}).get(f"{metric}_s")
            if value is not None:
                yield Check(name, limit_s, value, value <= limit_s)
            continue
        fraction = _PERCENTILES.get(statistic)
        share = seen.share_within(metric, limit_s)
        if fraction is None or share is None:
            notes.append(f"{target.key}: the histograms of the engines do not tell whether it is met")
            continue
        yield Check(name, limit_s, seen.percentile_s(metric, fraction), share >= fraction)


def _steps(
    asked: AskedFleet, plan: Plan, seen: Observed, intervals: Intervals
) -> tuple[list[Compared], Mapping[str, Any] | None]:
    """Return mean latencies next to those predicted at the observed load, and what the plan's traffic takes at the measured speed if that is slower."""
    summary = seen.summary
    measured = summary.measured or {}
    result = BenchmarkResult(
        PROMETHEUS,
        seen.source,
        request_rate_per_s=summary.rate.mean,
        requests=min(summary.requests, MOST_REQUESTS),
        input_tokens=summary.input_tokens.mean,
        output_tokens=summary.output_tokens.mean,
        ttft_s=latency(measured.get("ttft_s")),
        tpot_s=latency(measured.get("tpot_s")),
        e2e_s=latency(measured.get("e2e_s")),
        requests_per_s=summary.rate.mean,
    )
    group = plan.single
    replicas = group.replicas
    if seen.engines is not None:
        replicas = max(round(seen.engines / float(group.layout.sharding.data)), 1)
    found = verified(asked, plan, result, summary.prefix_hit_fraction or 0.0, replicas, intervals)
    rows = [row for row in found.rows if row.quantity.endswith("_s.mean")]
    return rows, found.as_measured if found.verdict == "slower" else None


def _follow(plan: Plan, busy: int) -> Follow:
    resized = plan.resized([busy])
    before, after = plan.usd_per_month, resized.usd_per_month
    change = None if before is None or after is None else after - before
    return Follow(busy, resized.gpus, after, change)


@dataclass(frozen=True, slots=True)
class Change:
    """What it takes to go from one plan to another."""

    started_replicas: int
    """Replicas of a layout that the plan before has fewer of."""
    stopped_replicas: int
    started_gpus: int
    start_up_s: float
    """Time until a started replica serves."""
    usd: float | None
    """Price of the started GPUs until they serve; None without a price."""
    machines: tuple[Mapping[str, Any], ...]
    """Machines that are ordered or given back, whole as they are sold."""
    idle_gpus: int
    """GPUs of the order afterwards that no replica uses."""


@dataclass(frozen=True, slots=True)
class Replan:
    """The plan for the observed traffic, next to the one before."""

    before: Side
    after: Side
    kept: bool
    """The plan before still holds, and no other one saves more than the band."""
    band_fraction: float
    cheapest_usd_per_month: float | None
    """Cost of the cheapest plan for the observed traffic; None if no plan meets the targets."""
    change: Change


def asked_again(file: PlanFile, seen: Observed, prices: PricesOf, *, offline: bool) -> AskedFleet:
    """Return the question of a plan with the traffic that its engines had, at the prices of the plan or of today."""
    today = asked_as_observed(None, file, (), seen, offline=offline)
    settings = pinned_prices(file, today) if prices == "pinned" else ()
    return asked_as_observed(None, file, settings, seen, offline=offline) if settings else today


def pinned_prices(file: PlanFile, today: AskedFleet) -> tuple[str, ...]:
    """Return the settings that keep the prices of a plan where those of today are others; machines then have no names."""
    return tuple(
        f"prices.per_gpu_hour.{row.hardware}={row.usd_per_gpu_hour!r} $/h"
        for row in file.inputs.prices
        if (price := today.prices.get(row.hardware)) is None
        or not isclose(price.usd_per_hour, row.usd_per_gpu_hour, rel_tol=1e-9)
    )


def replanned(
    asked: AskedFleet,
    file: PlanFile,
    watch: Watch,
    band_fraction: float,
    progress: Callable[[int, int], None] | None = None,
) -> Replan:
    """Return the cheapest plan for the observed traffic, or the one before where it holds and the other saves too little.

    Parameters
    ----------
    asked : the question with the observed traffic
    file : the plan before
    watch : how it stands
    band_fraction : of its cost; a plan that saves less is not worth a change
    progress : of the search
    """
    from capplan.questions.fleet_answer import fleet_for

    before = side_of_file(file)
    cheapest = fleet_for(asked, progress).chosen
    after = side_of(file.path, asked, cheapest)
    was, now = file.answer.chosen.usd_per_month, cheapest.usd_per_month if cheapest else None
    saves = was is not None and now is not None and now < was * (1.0 - band_fraction)
    kept = watch.holds and not saves
    if kept:
        after = replace(after, chosen=before.chosen)
    change = change_between(before.chosen or {}, after.chosen or {}, asked.scenario.fleet.start_up_s)
    return Replan(before, after, kept, band_fraction, now, change)


_LAUNCH = ("role", "model", "hardware", "weight_dtype", "kv_dtype", *DEGREES, "max_num_batched_tokens")


def _started_with(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the replicas of a group are started with; replicas that have it in common need not be started again."""
    return (
        *map(group.get, _LAUNCH),
        group.get("draft_tokens"),
        (group.get("requests") or {}).get("max_model_len"),
    )


def change_between(before: Mapping[str, Any], after: Mapping[str, Any], start_up_s: float) -> Change:
    """Return what it takes to go from one plan to another, both as JSON has them."""
    groups: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    more: Counter[tuple[Any, ...]] = Counter()
    for side, sign in ((before, -1), (after, 1)):
        for group in side.get("groups", ()):
            groups[_started_with(group)] = group
            more[_started_with(group)] += sign * group["replicas"]
    started = [(groups[key], count) for key, count in more.items() if count > 0]
    gpus = [count * group["gpus_per_replica"] for group, count in started]
    prices = [group["usd_per_gpu_hour"] for group, _ in started]
    usd = None
    if None not in prices:
        usd = sum(price * each for price, each in zip(prices, gpus, strict=True)) * start_up_s / HOUR_S
    return Change(
        sum(count for _, count in started),
        -sum(min(count, 0) for count in more.values()),
        sum(gpus),
        start_up_s,
        usd,
        tuple(_machines(before, after)),
        (after.get("order") or {}).get("gpus_idle", 0),
    )


def _machines(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the machines whose ordered number differs between two plans."""
    names = ("sku", "provider", "region", "hardware", "gpus")
    counts: dict[tuple[Any, ...], list[int]] = {}
    for side, chosen in enumerate((before, after)):
        for line in (chosen.get("order") or {}).get("machines", ()):
            key = tuple(line[name] for name in names)
            counts.setdefault(key, [0, 0])[side] += line["count"]
    for key, (was, now) in counts.items():
        if was != now:
            yield {**dict(zip(names, key, strict=True)), "before": was, "after": now}
