"""Does a plan hold in reality: its replica predicted under the load of a measurement, next to what was measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from capplan.accuracy.benchmark import Benchmark, Kind
from capplan.accuracy.bounded import Intervals, Operation, operation_interval, operation_of, served_by
from capplan.accuracy.replay import FINISHED, OVERLOAD_SHARE, metrics_of, outcome_of, overloaded
from capplan.accuracy.serving import LOADS
from capplan.errors import InputError, Reason
from capplan.fleet.engine_options import EngineOptions
from capplan.fleet.load.demand import drawn_requests
from capplan.fleet.load.routed import run_fleet
from capplan.fleet.load.session_load import peak_stream
from capplan.fleet.plan import Plan
from capplan.fleet.review import spec_of_layout
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.simulated_layout import demand_at_replica
from capplan.fleet.search.trial import Trial
from capplan.fleet.simulation import Stream
from capplan.numbers import FEWEST, TOO_FEW
from capplan.questions.fleet import AskedFleet, parts_of, terms_of
from capplan.questions.plans.plan_file import asked_of_plan
from capplan.questions.simulation import responses_s
from capplan.readers.catalogue.models import called_alike
from capplan.readers.text_file import is_there
from capplan.recorded.results.read import read_results
from capplan.recorded.results.record import BenchmarkResult, latency
from capplan.recorded.traces.trace import format_of, workload_of
from capplan.replica.estimate import estimate
from capplan.replica.load import Load
from capplan.replica.replica import Replica, replica_of
from capplan.scenario.command_flags import EngineFlags, SpeculationFlags
from capplan.scenario.engine_use import engine_use_of
from capplan.scenario.observed_traffic import ALIKE_FRACTION
from capplan.serving.outcome import Outcome
from capplan.serving.requests import Requests
from capplan.workload.length import Lengths as TokenLengths
from capplan.workload.request_class import ResponseTimes, with_scaled_rate

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
Verdict: TypeAlias = Literal["holds", "slower", "faster"]
Lengths: TypeAlias = Literal["of the plan", "of the results", "fixed"]
PROMETHEUS = "Prometheus metrics"
SENT = "capplan verify-plan --endpoint"
"""Traffic that capplan sent itself: turns of sessions follow the mean response."""
CALIBRATION_FILE = "own.calibration.yaml"
"""File that the printed command writes into the working folder, and the next version of the scenario reads."""
SEED = 0
"""Seed of the requests that are predicted, the default of `simulate`."""
RUNS = 8
"""Runs of the traffic of a plan, each with other requests: their mean is predicted, and how far one of them may be off."""
DEVIATIONS = 3.0
"""Standard deviations of a run by which the interval of the prediction is widened."""
SLOWNESS_STEP = 1.02
"""Ratio of the two bounds at which the search for the slowness of measured steps ends."""
CLOSED_REQUESTS = 1000
"""Requests of a closed loop whose number is not stated."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One quantity, predicted with its 80 % interval and measured, in base units."""

    quantity: str
    """Such as ttft_s.p95."""
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def inside(self) -> bool:
        """Return whether the measured value lies in the interval."""
        return self.low <= self.measured <= self.high

    @property
    def slower(self) -> bool:
        """Return whether the measured value is worse than the interval allows."""
        is_latency = self.quantity.partition(".")[0] in LATENCIES
        return self.measured > self.high if is_latency else self.measured < self.low


@dataclass(frozen=True, slots=True)
class Verification:
    """Measurements of a plan next to its predictions."""

    result: BenchmarkResult
    replicas: int
    """Replicas that were measured."""
    rows: tuple[Compared, ...]
    targets: tuple[Mapping[str, Any], ...]
    lengths: Lengths = "fixed"
    """Lengths of the requests that were predicted."""
    share: float | None = None
    """Share of the traffic of the plan that was sent; None: the load was that of the result."""
    as_measured: Mapping[str, Any] | None = None
    """None if the prediction holds, or no response was timed."""

    @property
    def verdict(self) -> Verdict:
        """Return holds where all that was measured lies in its interval; slower where anything is worse than that."""
        if any(row.slower for row in self.rows):
            return "slower"
        return "holds" if all(row.inside for row in self.rows) else "faster"

    @property
    def fits_means(self) -> bool:
        """Return whether a refit, which fits means, would show what was measured: a server that is slower has a mean above the predicted one."""
        means = [row for row in self.rows if row.quantity in ("ttft_s.mean", "tpot_s.mean", "e2e_s.mean")]
        if self.verdict != "slower" or not means:
            return True
        return any(row.measured > row.predicted for row in means)

    @property
    def culprits(self) -> tuple[str, ...]:
        """Return the latencies that are slower than predicted, each once."""
        return tuple(dict.fromkeys(row.quantity.partition(".")[0] for row in self.rows if row.slower))


def planned(plan_file: Path, group: int | None, *, offline: bool) -> tuple[AskedFleet, Plan]:
    """Return the question and the recommended plan of a plan file; of a mix those of one group, with the requests that it gets.

    Parameters
    ----------
    plan_file : written by `capplan fleet`
    group : of a mix, counted from 1
    offline : how its model is looked up

    Raises
    ------
    InputError
        separate pools, or a mix without the number of the group that was measured
    """
    asked, answer = asked_of_plan(None, plan_file, offline=offline)
    plan = answer.chosen if answer else None
    if plan is None or plan.has_pools:
        raise InputError(f"{plan_file}: has separate pools, and measurements of them are not compared yet")
    if plan.is_mix:
        named = [f"{number} ({name} on {of.layout.device.name})" for number, (name, of) in enumerate(zip(plan.group_names, plan.groups, strict=True), start=1)]  # fmt: skip
        if group is None or group > len(named):
            raise InputError(
                f"{plan_file}: is a mix, and what is measured is a replica of one of its groups; give --group: {', '.join(named)}"
            )
        return parts_of(asked, plan)[group - 1]
    if group is not None:
        raise InputError(f"--group {group}: all replicas of {plan_file} are alike; leave it out")
    return asked, plan


def measured_result(paths: Sequence[Path], interval_s: float | None) -> tuple[BenchmarkResult, float]:
    """Return one measurement, and the part of the prompt tokens that were found in the prefix cache.

    It is the result of a benchmark, or what the counters of a server say between two scrapes.

    Raises
    ------
    InputError
        it holds several runs, or counters without the time between them
    """
    if not is_there(paths[0]):
        raise InputError(
            f"{paths[0]}: no such file; the result of a benchmark tool, or Prometheus text, is expected"
        )
    if format_of(paths[0]) == "prometheus":
        return _of_counters(paths, interval_s)
    if len(paths) > 1 or interval_s is not None:
        raise InputError(
            f"{paths[-1]}: only two scrapes of Prometheus belong together; give one file of results, without --interval"
        )
    results = [result for result in read_results(paths[0]) if result.kind in ("serving", "offline")]
    if len(results) != 1:
        raise InputError(
            f"{paths[0]}: holds {len(results)} runs of a server, and one is compared with the plan; give a file with one"
        )
    if results[0].contradiction:
        raise InputError(f"{paths[0]}: {results[0].contradiction}")
    return with_load_of_log(with_carried_percentiles(results[0])), 0.0


def with_carried_percentiles(result: BenchmarkResult) -> BenchmarkResult:
    """Return a result without the percentiles that its requests do not carry, and a note if there are fewer than a 99th takes."""
    requests = result.requests
    if requests is None or requests >= FEWEST["p99"]:
        return result
    carried = {name: getattr(result, name).of_sample(requests) for name in LATENCIES}
    if all(getattr(result, name) == spread for name, spread in carried.items()):
        return result
    note = f"{requests} requests are {TOO_FEW}; what they cannot carry is left out"
    return replace(result, **carried, notes=(*result.notes, note))


def with_load_of_log(result: BenchmarkResult) -> BenchmarkResult:
    """Return a result with its mean concurrency, where it states no load and its log shows that requests came one after another.

    By Little's law: concurrency = rate of finished requests x mean response time.

    References
    ----------
    Little 1961, "A proof for the queuing formula: L = lambda W", doi:10.1287/opre.9.3.383.
    """
    response_s = result.e2e_s.mean
    stated = result.request_rate_per_s or result.concurrency
    if stated or not result.log or not response_s or not result.requests_per_s:
        return result
    arrivals_s = [request.arrival_s for request in result.log]
    if max(arrivals_s) - min(arrivals_s) <= response_s:  # all at once
        return result
    return replace(result, concurrency=max(1.0, round(result.requests_per_s * response_s)))


def _of_counters(paths: Sequence[Path], interval_s: float | None) -> tuple[BenchmarkResult, float]:
    if interval_s is None:
        raise InputError(
            f"{paths[-1]}: counters state no rate; give the time between two scrapes, or since the start of the server: --interval '10 min'"
        )
    summary = workload_of(list(paths), interval_s=interval_s)
    seen = summary.measured
    if seen is None or not summary.rate.mean:
        raise InputError(f"{paths[-1]}: its counters hold no requests or no latencies")
    result = BenchmarkResult(
        PROMETHEUS,
        str(paths[-1]),
        request_rate_per_s=summary.rate.mean,
        requests=summary.requests,
        input_tokens=summary.input_tokens.mean,
        output_tokens=summary.output_tokens.mean,
        ttft_s=latency(seen["ttft_s"]),
        tpot_s=latency(seen["tpot_s"]),
        e2e_s=latency(seen["e2e_s"]),
        requests_per_s=summary.rate.mean,
    )
    return result, summary.prefix_hit_fraction or 0.0


def verified(
    asked: AskedFleet,
    plan: Plan,
    result: BenchmarkResult,
    hit_fraction: float,
    replicas: int,
    intervals: Intervals,
    *,
    own_traffic: bool = False,
) -> Verification:
    """Return what was measured of a plan next to what is predicted for its replica under the same load.

    Parameters
    ----------
    asked : the question of the plan
    plan : whose replica was measured
    result : of a benchmark, or of counters
    hit_fraction : of prompt tokens that were found in the prefix cache
    replicas : that the result is of; each is taken to have had an equal part of the load
    intervals : by regime, as `capplan validate` measures them
    own_traffic : the replica got what one of the plan's busy replicas gets; otherwise the load is that of the result
    """
    share = 1.0 / plan.single.busy_replicas if own_traffic else None
    if replicas not in {1, result.replicas} and result.replicas > 1:
        raise InputError(
            f"{result.path}: states {result.replicas} replicas, and --replicas is {replicas}\n  leave the option out, or correct the file"
        )
    replicas = max(replicas, result.replicas)
    refuse_drafts(plan, result.path)
    _refuse_another_model(asked, plan, result)
    _refuse_another_layout(plan, result)
    for name in ("input_tokens", "output_tokens"):
        if not getattr(result, name):
            raise InputError(f"{result.path}: does not state {name}, which the prediction needs")
    replica = replica_of(spec_of_layout(plan.single.layout, asked.question))
    benchmark = _benchmark(asked, plan, result, replicas)
    lengths = "of the plan" if share is not None else _lengths(asked, result)
    luck: Mapping[str, float] = {}
    if lengths != "fixed":
        own = lengths == "of the results"
        load, predicted, luck = _of_requests(asked, replica, result, replicas, share, own=own)
    elif result.tool == PROMETHEUS:
        load, predicted = _of_steady_load(benchmark, replica, hit_fraction)
    else:
        load, predicted = _of_replay(benchmark, replica)
    in_flight = benchmark.concurrency or 1.0
    served = served_by(replica.spec, benchmark.input_tokens, benchmark.output_tokens, in_flight)
    measured, operation = _per_replica(result, replicas), operation_of(replica, served)
    rows = tuple(_rows(load, operation, predicted, luck, measured, intervals))
    if not rows:
        raise InputError(f"{result.path}: states none of the latencies and rates that are predicted")
    seen = Verification(result, replicas, rows, tuple(_targets(asked, plan, result)), lengths, share)
    if seen.verdict == "holds":
        return seen
    return replace(seen, as_measured=_as_measured(asked, plan, rows, load))


def _as_measured(asked: AskedFleet, plan: Plan, rows: Sequence[Compared], load: str) -> dict[str, Any] | None:
    """Return how many replicas of the measured speed the traffic of the plan takes; None if it is not known.

    `slowness` is the factor on the time of all steps with which the predicted mean response becomes the measured one, `busy_replicas` are the
    fewest that meet the targets at the peak with headroom, without spares (None if no number does), and `gpus` those of them with their spares.
    """
    terms, group = terms_of(asked), plan.single
    trial = trial_of(asked.question, group.layout, terms)
    ratio = _response_ratio(rows, float(asked.question.demand.lengths.output_tokens))
    if ratio is None or isinstance(trial, Reason):
        return None
    slowness = _slowness(trial, group.busy_replicas, ratio) if load == "open" else ratio
    peak_per_s = trial.total_rate / (1.0 - terms.headroom_fraction)
    needed = trial.replicas_for(peak_per_s, slowness, trial.limits)
    gpus = None if needed is None else terms.gpus(group.layout, needed)
    return {"slowness": slowness, "busy_replicas": needed, "gpus": gpus}


def _response_ratio(rows: Sequence[Compared], output_tokens: float) -> float | None:
    """Return the measured over the predicted mean response; of a run without it TTFT + (n - 1) TPOT; None if neither is known."""
    by_name = {row.quantity: row for row in rows}
    if whole := by_name.get("e2e_s.mean"):
        return whole.measured / whole.predicted
    first, each = by_name.get("ttft_s.mean"), by_name.get("tpot_s.mean")
    if first is None or each is None:
        return None
    later = max(output_tokens - 1.0, 0.0)
    return (first.measured + later * each.measured) / (first.predicted + later * each.predicted)


def _slowness(trial: Trial, busy: int, ratio: float) -> float:
    """Return the factor on the time of all steps with which the mean response of a fleet grows by a ratio.

    Under arrivals that do not wait for responses, these grow faster than the steps, so the factor is nearer to one than the ratio.
    """
    usual_s = trial.fleet(busy).e2e_s.mean
    low, high = sorted((1.0, ratio))
    while high > low * SLOWNESS_STEP:
        middle = (low * high) ** 0.5
        seen = trial.fleet(busy, middle)
        if seen.steady and middle * seen.e2e_s.mean <= ratio * usual_s:
            low = middle
        else:
            high = middle
    return float((low * high) ** 0.5)


def _lengths(asked: AskedFleet, result: BenchmarkResult) -> Lengths:
    """Return whose lengths a run is predicted with: its own requests, the traffic of the plan, or its mean lengths."""
    demand = asked.question.demand
    if result.log and not demand.has_sessions:
        return "of the results"
    drawn = drawn_requests(demand, result.requests or CLOSED_REQUESTS, SEED, _longest(asked))
    for stated, counts in (
        (result.input_tokens, drawn.input_tokens),
        (result.output_tokens, drawn.output_tokens),
    ):
        own = np.asarray(counts)
        luck = DEVIATIONS * own.std() * (2.0 / own.size) ** 0.5
        if abs((stated or 0.0) - own.mean()) > ALIKE_FRACTION * own.mean() + luck:
            return "fixed"
    return "of the plan"


def refuse_drafts(plan: Plan, place: str) -> None:
    """Raise the error for measurements of a plan with drafts; they come from `place`, a file or a server."""
    if plan.draft_tokens:
        raise InputError(f"{place}: the plan speculates, and measurements with drafts are not compared yet")


def _refuse_another_model(asked: AskedFleet, plan: Plan, result: BenchmarkResult) -> None:
    """Raise the error for a result whose model is called otherwise than that of the plan."""
    names = (asked.scenario.model, asked.question.networks[plan.single.weight_dtype].name)
    if result.model and not any(called_alike(name, result.model) for name in names):
        raise InputError(
            f"{result.path}: is of a model called {result.model}, and the plan serves {asked.scenario.model}\n"
            "  give results of that model; if it only has another name there, write the name of the plan into the file of results"
        )


def _refuse_another_layout(plan: Plan, result: BenchmarkResult) -> None:
    sharding = plan.single.layout.sharding
    for name, own in (("tensor_parallel", sharding.tensor), ("pipeline_parallel", sharding.pipeline)):
        stated = getattr(result, name)
        if stated is not None and stated != int(own):
            raise InputError(
                f"{result.path}: was measured with {name} {stated}, and the replicas of the plan have {own:g}\n"
                "  compare it with a plan of that layout, or score it by itself: capplan validate"
            )


def _benchmark(asked: AskedFleet, plan: Plan, result: BenchmarkResult, replicas: int) -> Benchmark:
    """Return the run as one of the replicas had it."""
    rate, clients = result.request_rate_per_s, result.concurrency
    kind: Kind = "online_rate" if rate else "online_conc" if clients else "online_burst"
    each = None if clients is None else max(1, round(clients / replicas))
    return Benchmark(
        kind=kind,
        engine=asked.scenario.engine,
        engine_version=asked.question.profile.version,
        model=asked.scenario.model,
        weight_format=plan.single.weight_dtype,
        kv_format=plan.single.layout.kv_format,
        device=plan.single.layout.device.name,
        sharding=plan.single.layout.sharding,
        input_tokens=float(result.input_tokens or 0.0),
        output_tokens=float(result.output_tokens or 0.0),
        lengths="fixed",
        concurrency=each,
        request_rate=rate and rate / replicas,
        requests=result.requests and max(1, round(result.requests / replicas)),
        static_batch=None,
        limits={},
    )


def _per_replica(result: BenchmarkResult, replicas: int) -> dict[str, float]:
    """Return the measured values by quantity; rates of one replica."""
    found = {
        f"{latency}.{statistic}": value
        for latency, statistic in product(LATENCIES, STATISTICS)
        if (value := getattr(getattr(result, latency), statistic))
    }
    for name in ("output_tokens_per_s", "requests_per_s"):
        if value := getattr(result, name):
            found[name] = value / replicas
    return found


def _of_replay(benchmark: Benchmark, replica: Replica) -> tuple[str, dict[str, float]]:
    """Return the kind of load, and what a replica would measure of the requests of a benchmark.

    The rates of an open loop that keeps up are those that it was offered, so they say nothing of the replica.
    """
    outcome = outcome_of(benchmark, replica)
    columns = metrics_of(outcome, replica.spec.devices)
    late = overloaded(benchmark, columns | {FINISHED: columns["req_s"]})
    predicted = {
        f"{latency}.{statistic}": value
        for latency, statistic in product(LATENCIES, STATISTICS)
        if (value := _statistic(outcome, latency, statistic))
    }
    if late or benchmark.kind != "online_rate":
        predicted |= {"output_tokens_per_s": columns["output_tok_s"], "requests_per_s": columns["req_s"]}
    return "overload" if late else LOADS[benchmark.kind], predicted


def _of_requests(
    asked: AskedFleet,
    replica: Replica,
    result: BenchmarkResult,
    replicas: int,
    share: float | None,
    *,
    own: bool,
) -> tuple[str, dict[str, float], dict[str, float]]:
    """Return the kind of load, what replicas would measure, and how far one run is off by the luck of its requests.

    With `own`, the requests are those of the run. Otherwise they are a share of the traffic of the plan, by default the one that makes up
    the rate of the run, or a closed loop if the run states no rate. The rates of an open loop that keeps up are
    those that it was offered, so they say nothing of the replica.
    """
    rate = result.request_rate_per_s
    counted = asked.question.demand.users or result.tool == PROMETHEUS
    if rate is None and share is None and counted and not result.concurrency:
        rate = result.requests_per_s
    seconds = result.requests and result.requests / (rate or result.requests_per_s or inf)
    use, slo = _engine_use(asked, replica), asked.scenario.slo
    runs = []
    for seed in (SEED,) if own else range(RUNS):
        if own:
            stream = _logged_stream(asked, replica, result, rate)
        elif share is not None or rate is not None:
            part = share_at_rate(asked, replica, rate or 0.0, replicas, seed) if share is None else share
            stream = planned_stream(
                asked,
                replica,
                part,
                seconds=seconds,
                replicas=replicas,
                seed=seed,
                turns_wait=result.tool != SENT,
            )
        else:
            stream = _closed_stream(asked, replica, result, seed)
        runs.append(run_fleet(replica, stream, None, replicas=replicas, slo=slo, use=use).all)
    late = rate is not None and min(seen.requests_per_s for seen in runs) < OVERLOAD_SHARE * rate
    columns = {
        f"{latency}.{statistic}": [float(getattr(getattr(seen, latency), statistic)) for seen in runs]
        for latency, statistic in product(LATENCIES, STATISTICS)
    }
    if late or rate is None:
        for name in ("output_tokens_per_s", "requests_per_s"):
            columns[name] = [getattr(seen, name) / replicas for seen in runs]
    columns = {
        name: values for name, values in columns.items() if np.isfinite(values).all() and min(values) > 0.0
    }
    means, luck = (
        {name: float(np.mean(values)) for name, values in columns.items()},
        dict.fromkeys(columns, 0.0),
    )
    if len(runs) > 1:
        wider = (1.0 + 1.0 / len(runs)) ** 0.5
        luck = {name: DEVIATIONS * float(np.std(values, ddof=1)) * wider for name, values in columns.items()}
    load = "overload" if late else "open" if rate or share else "closed" if result.concurrency else "burst"
    return load, means, luck


def _engine_use(asked: AskedFleet, replica: Replica) -> EngineOptions:
    """Return the options of the engines, as `simulate` sets them."""
    flags = EngineFlags(), SpeculationFlags()
    return engine_use_of(asked.scenario, replica.spec, *flags, planned_drafts=None, offline=True)[0]


def share_at_rate(asked: AskedFleet, replica: Replica, rate_per_s: float, replicas: int, seed: int) -> float:
    """Return the share of the traffic of a plan that makes up a rate on some replicas: with fewer or more users and sessions."""
    demand = asked.question.demand
    share = rate_per_s / sum(demand.rates_per_s(0.0))
    return rate_per_s / sum(demand.rates_per_s(_responses_s(asked, replica, share, replicas, seed)))


def _responses_s(
    asked: AskedFleet, replica: Replica, share: float, replicas: int, seed: int
) -> ResponseTimes:
    """Return about how long responses take, if anybody waits for them."""
    demand = asked.question.demand
    if not demand.users and not demand.has_sessions:
        return 0.0
    at_replica = demand_at_replica(demand, replica, share / replicas)
    return responses_s(replica, at_replica, replicas / share, seed, _longest(asked))


def planned_stream(
    asked: AskedFleet,
    replica: Replica,
    share: float,
    *,
    seconds: float | None,
    replicas: int,
    seed: int,
    turns_wait: bool = True,
) -> Stream:
    """Return a share of the traffic of the plan, on some replicas: users and sessions are fewer or more.

    Parameters
    ----------
    asked : the question of the plan
    replica : one of them
    share : [-]
        of the whole traffic
    seconds : [s]
        that count; None: the default of `peak_stream`
    replicas : [-]
        that serve this share
    seed : of all random draws
    turns_wait : see `peak_stream`
    """
    demand, longest = asked.question.demand, _longest(asked)
    response = _responses_s(asked, replica, share, replicas, seed)
    at_replica = demand_at_replica(demand, replica, share / replicas, response)
    return peak_stream(
        replace(at_replica, classes=tuple(with_scaled_rate(item, share) for item in at_replica.classes)),
        replicas=replicas,
        seed=seed,
        longest=longest,
        seconds=seconds,
        response_s=response,
        routing=asked.scenario.file.fleet.routing,
        turns_wait=turns_wait,
    )


def _closed_stream(asked: AskedFleet, replica: Replica, result: BenchmarkResult, seed: int) -> Stream:
    """Return requests of the plan without arrival times: a number of them in flight, or all at once."""
    demand = demand_at_replica(asked.question.demand, replica)
    drawn = drawn_requests(demand, result.requests or CLOSED_REQUESTS, seed, _longest(asked))
    drawn = replace(drawn, arrival_s=None)
    clients = None if result.concurrency is None else max(1, round(result.concurrency))
    return Stream(drawn, tuple(item.name for item in demand.classes), concurrency=clients, seed=seed)


def _logged_stream(
    asked: AskedFleet, replica: Replica, result: BenchmarkResult, rate_per_s: float | None
) -> Stream:
    """Return the requests of a log, with the part of their prompts that the plan finds in the prefix cache."""
    demand = demand_at_replica(asked.question.demand, replica)
    cached = float(np.max(demand.lengths.cached_tokens)) / float(demand.lengths.input_tokens)
    log = sorted(result.log, key=lambda record: record.arrival_s)
    inputs = np.array([max(1, record.input_tokens) for record in log])
    requests = Requests(
        input_tokens=inputs,
        output_tokens=np.array([max(1, record.output_tokens) for record in log]),
        arrival_s=None
        if rate_per_s is None and result.concurrency
        else np.array([record.arrival_s for record in log]),
        cached_tokens=np.minimum((cached * inputs).astype(np.int64), inputs - 1),
    )
    clients = None if requests.arrival_s is not None else max(1, round(result.concurrency or 1))
    return Stream(requests, ("requests",), concurrency=clients, seed=SEED)


def _longest(asked: AskedFleet) -> int:
    return asked.question.max_model_len or asked.question.demand.longest_tokens


def _of_steady_load(
    benchmark: Benchmark, replica: Replica, hit_fraction: float
) -> tuple[str, dict[str, float]]:
    """Return the kind of load, and the mean latencies of a replica that serves requests at a steady rate."""
    lengths = (max(1, round(benchmark.input_tokens)), max(1, round(benchmark.output_tokens)))
    load = Load(*lengths, request_rate=benchmark.request_rate, prefix_hit_fraction=hit_fraction)
    known = estimate(replica, load)
    return "open", {f"{latency}.mean": getattr(known, latency).mean for latency in LATENCIES}


def _rows(
    load: str,
    operation: Operation,
    predicted: Mapping[str, float],
    luck: Mapping[str, float],
    measured: Mapping[str, float],
    intervals: Intervals,
) -> Iterator[Compared]:
    for quantity, value in measured.items():
        if (known := predicted.get(quantity)) is None:
            continue
        latency, _, statistic = quantity.partition(".")
        name = latency.removesuffix("_s") if latency in LATENCIES else "throughput"
        bounds = operation_interval(intervals, name, load, operation, statistic or "mean")
        off = luck.get(quantity, 0.0)
        low, high = max(known - off, 0.0) * bounds.low_ratio, (known + off) * bounds.high_ratio
        yield Compared(quantity, known, low, high, value)


def _statistic(outcome: Outcome, latency: str, statistic: str) -> float | None:
    values = getattr(outcome, latency)
    known = values[outcome.finished & np.isfinite(values)]
    if not known.size:
        return None
    return float(known.mean() if statistic == "mean" else np.percentile(known, float(statistic[1:])))


def _targets(asked: AskedFleet, plan: Plan, result: BenchmarkResult) -> Iterator[dict[str, Any]]:
    """Yield the targets of the plan, what was measured of each, and whether that is within it."""
    for target in asked.question.slo.targets:
        metric, _, statistic = target.key.partition("_")
        spread = getattr(result, f"{metric}_s", None)
        value = getattr(spread, statistic, None) if spread is not None else None
        if value is not None:
            limit_s = plan.engine_limit_s(target)
            yield {"target": target.key, "limit_s": limit_s, "measured_s": value, "holds": value <= limit_s}


def next_settings(asked: AskedFleet, verification: Verification) -> tuple[str, ...]:
    """Return what the scenario says next, each KEY=VALUE: the measured lengths, and the efficiencies to measure where it was slower.

    Only the counters of a server replace lengths, because they are those of users; who runs a benchmark chooses its lengths. A scenario with
    several kinds of requests keeps its lengths: what was measured is their mixture. So does one whose lengths the run had; other mean lengths
    keep the spread of those of the scenario, which a result does not state.
    """
    result, traffic = verification.result, asked.scenario.written["traffic"]
    settings = []
    of_users = result.tool == PROMETHEUS
    one_kind = len(traffic) == 1 and asked.scenario.fleet.mix == "off" and not traffic[0].get("trace")
    if of_users and one_kind and verification.lengths != "of the plan":
        (stated,) = asked.scenario.classes
        settings += [
            f"traffic[0].{name}={_scaled(getattr(stated, name), value)}"
            for name in ("input_tokens", "output_tokens")
            if (value := getattr(result, name))
        ]
    if verification.verdict != "holds" and verification.fits_means:
        settings.append(f"calibration={_from_scenario(asked)}")
    return tuple(settings)


def _from_scenario(asked: AskedFleet) -> str:
    """Return the calibration file in the working folder as the scenario names it: paths in a scenario start at its own folder."""
    here = Path.cwd()
    beside = Path(asked.scenario.path).resolve().parent == here
    return CALIBRATION_FILE if beside else str(here / CALIBRATION_FILE)


def _scaled(stated: TokenLengths, mean_tokens: float) -> str:
    """Return lengths of another mean with the same spread, as a scenario has them."""
    if stated.kind == "fixed":
        return f"{mean_tokens:.0f}"
    p95 = float(stated.quantile(0.95)) * mean_tokens / stated.mean_tokens
    return f"{{mean: {mean_tokens:.0f}, p95: {p95:.0f}}}"
