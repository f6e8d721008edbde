"""Refit from benchmark results instead of hardware: host times of an engine, and how its kernels overlap in a step.

Each result of a benchmark tool becomes the run to replay, and the values that it measured.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capplan.accuracy.benchmark import MOST_REQUESTS, Benchmark, Kind
from capplan.accuracy.replay import ONLINE_REQUESTS_PER_CLIENT, SERVER_KINDS, metrics_of, outcome_of
from capplan.engine.profile import OF_ROWS, EngineProfile, HostOverhead
from capplan.errors import CapplanError, InputError
from capplan.numbers import Array
from capplan.readers.calibration.record import FittedNumber, HostRefit, ResultPoint, StepPoint
from capplan.recorded.results.record import BenchmarkResult, Latency
from capplan.replica.replica import Replica, replica_of
from capplan.replica.spec import ReplicaSpec, deployed_as
from capplan.replica.tables import DeviceTables, ratio_at, table_of_plan, with_host
from capplan.serving.step_table import decode_step_s

FIRST_TOKEN_WEIGHT = 0.6
"""Weight of a time to first token relative to a time per token: repeats differ by 4 to 29 %, instead of 0.5 to 3.5 %."""
UNIFORM_MEAN = 0.9
"""Mean length over nominal length in InferenceX."""
MOST_TABLES = 8
"""Step times at other rates that a run keeps: a fit comes back to the last ones."""
MOST_REPLAYED = 5000
"""Maximum requests of one run that are replayed: a refit replays each run some forty times."""


@dataclass(frozen=True, slots=True)
class Value:
    """One measured value of a run."""

    metric: str
    """tpot_s, ttft_s, e2e_s or token_s."""
    column: str
    """Column of a replay that predicts it."""
    seconds: float
    weight: float


@dataclass(frozen=True, slots=True)
class Run:
    """One result, ready to be replayed with any host times."""

    result: BenchmarkResult
    benchmark: Benchmark
    replica: Replica
    values: tuple[Value, ...]

    @property
    def identity(self) -> object:
        """The run and what it measured: equal if one result was read twice."""
        return repr(self.benchmark), self.values, self.replica.spec.network.name

    tables: dict[tuple[float, float, float], DeviceTables] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Step times of the device at other rates, by their ratios."""

    def device_tables(self, host: HostOverhead) -> DeviceTables:
        """Return the step times of the device at the rates of these numbers."""
        ratios, spec = host.rate_ratios, self.replica.spec
        if ratios == spec.profile.host.rate_ratios:
            return self.replica.device_tables
        if ratios not in self.tables:
            if len(self.tables) >= MOST_TABLES:
                self.tables.clear()
            scaled = replica_of(replace(spec, profile=replace(spec.profile, host=host)))
            self.tables[ratios] = scaled.device_tables
        return self.tables[ratios]

    def replayed_s(self, host: HostOverhead) -> list[float]:
        """Return the replayed time of each value with these host times [s]; that of decode steps needs no replay."""
        spec, result = self.replica.spec, self.result
        table = table_of_plan(
            with_host(self.device_tables(host), host, spec.network, offline=spec.offline), 0
        )
        if result.kind == "decode" and self.values[0].metric == "tpot_s":
            return [float(decode_step_s(table, result.concurrency or 1.0, result.context_tokens or 0.0))]
        columns = metrics_of(outcome_of(self.benchmark, replace(self.replica, table=table)), spec.devices)
        return [_seconds(value.column, columns[value.column]) for value in self.values]


def run_of(result: BenchmarkResult, spec: ReplicaSpec) -> Run | str:
    """Return the run behind a result, or why it cannot be replayed.

    Parameters
    ----------
    result : of any tool
    spec : the replica that it was measured on

    Returns
    -------
    the run; a sentence if the result lacks information
    """
    if result.contradiction:
        return result.contradiction
    result = result.of_one_replica()
    if result.accepted_tokens_per_step:
        return "it was measured with speculative decoding, which a refit does not replay"
    lengths = _lengths(result)
    if lengths is None:
        return "its prompt and output lengths are not known: give --input-tokens and --output-tokens"
    kind = _kind(result)
    if kind is None:
        return "neither its concurrency nor its request rate is known: give --concurrency"
    if kind == "offline_max" and not result.requests:
        return "the number of its requests is not known, which decides how long its end takes"
    values = _values(result)
    if not values:
        return "it has no time per output token, time to first token or rate of tokens"
    offline = kind not in SERVER_KINDS
    replica = replica_of(replace(spec, offline=offline, max_model_len=_context(spec, lengths)))
    benchmark = Benchmark(
        kind=kind,
        engine=spec.profile.engine,
        engine_version=spec.profile.version,
        model=spec.network.name,
        weight_format="auto",
        kv_format=spec.kv_format,
        device=spec.device.name,
        sharding=spec.sharding,
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        lengths="uniform[0.8,1]" if result.tool == "InferenceX" else "fixed",
        concurrency=_in_flight(result),
        request_rate=result.request_rate_per_s,
        requests=_requests(result, kind),
        static_batch=round(result.concurrency or 1) if kind == "static_batch" else None,
        limits={},
    )
    return Run(result, benchmark, replica, values)


def _lengths(result: BenchmarkResult) -> tuple[float, float] | None:
    """Return mean input and output tokens; a decode benchmark starts from its cache."""
    if result.kind == "prefill":
        return (max(result.input_tokens or 0.0, 1.0), 1.0) if result.input_tokens else None
    if result.kind == "decode":
        if result.context_tokens is None or not result.output_tokens:
            return None
        return max(result.context_tokens - result.output_tokens / 2.0, 1.0), result.output_tokens
    if not result.input_tokens or not result.output_tokens:
        return None
    ratio = UNIFORM_MEAN if result.tool == "InferenceX" else 1.0
    return ratio * result.input_tokens, max(ratio * result.output_tokens, 1.0)


def _kind(result: BenchmarkResult) -> Kind | None:
    if result.kind in ("static_batch", "prefill", "decode"):
        return "static_batch" if result.concurrency else None
    if result.kind == "offline":
        return "offline_max"
    if result.concurrency:
        return "online_conc"
    if result.request_rate_per_s:
        return "online_rate"
    if _in_flight(result):
        return "online_conc"
    return "online_burst" if result.requests and result.tool.startswith(("vllm", "sglang")) else None


def _in_flight(result: BenchmarkResult) -> int | None:
    """Return the concurrency: as stated, else the mean by Little's law from rate and latency."""
    if result.concurrency:
        return max(round(result.concurrency), 1)
    if result.requests_per_s and result.e2e_s.mean:
        return max(round(result.requests_per_s * result.e2e_s.mean), 1)
    return None


def _requests(result: BenchmarkResult, kind: Kind) -> int | None:
    if kind in ("static_batch", "online_burst", "offline_max"):
        return min(result.requests, MOST_REQUESTS) if result.requests else None
    known = result.requests or ONLINE_REQUESTS_PER_CLIENT * (_in_flight(result) or 50)
    return min(max(known, 20 if result.requests is None else 1), MOST_REPLAYED)


def _values(result: BenchmarkResult) -> tuple[Value, ...]:
    """Return the latencies, means rather than medians; if a tool reports none, the token rate."""
    one_token = (result.output_tokens or 2.0) <= 1.0
    runs = [
        _value("tpot", result.tpot_s, 1.0) if result.kind != "prefill" and not one_token else None,
        _value("ttft", result.ttft_s, FIRST_TOKEN_WEIGHT) if result.kind != "decode" else None,
    ]
    known = tuple(value for value in runs if value)
    if known:
        return known
    whole = _value("e2e", result.e2e_s, 1.0) if result.kind == "static_batch" else None
    if whole:
        return (whole,)
    for column, rate in (
        ("output_tok_s", result.output_tokens_per_s),
        ("total_tok_s", result.total_tokens_per_s),
    ):
        if rate:
            return (Value("token_s", column, 1.0 / rate, 1.0),)
    return ()


def _value(name: str, spread: Latency, weight: float) -> Value | None:
    for statistic, seconds in (("mean", spread.mean), ("p50", spread.p50)):
        if seconds and np.isfinite(seconds):
            return Value(f"{name}_s", f"{name}_ms_{statistic}", seconds, weight)
    return None


def _seconds(column: str, value: float) -> float:
    return 1e-3 * value if "_ms_" in column else 1.0 / value


def _context(spec: ReplicaSpec, lengths: tuple[float, float]) -> int:
    """Return the context that the replica is started for: as requested, else enough for the requests."""
    if spec.max_model_len:
        return spec.max_model_len
    wanted = max(2048, int(1.25 * sum(lengths)) + 256)
    return min(wanted, spec.network.max_context_tokens or wanted)


LEAST_RESULTS = 1
"""Results that a refit needs; with few of them the intervals are wide."""
TYPICAL_ERROR = 0.1
NOISE = 0.02
"""Relative error of one result at least, which sets the weight of the priors and the least width of intervals."""
MOST_GROUPS = 40
"""Most groups of results that are left out together: up to as many results, each is left out by itself."""
STEPS_WITHOUT = 3
"""Steps from the numbers of all results to those without some of them."""
AS_GOOD = 0.1
"""Part by which the other results may be replayed worse without some results than with them: replays are granular."""
MOST_HALVINGS = 4
"""Most halvings of the way to the numbers without some results."""
BY_NOISE = 1.25
"""Times the datasheet that kernels may reach where the interval includes the datasheet: few results leave it wide."""
NARROWED = 0.6
"""A number counts as constrained where the results narrow its prior to less than this fraction."""


@dataclass(frozen=True, slots=True)
class Free:
    """A number that is fitted."""

    high: float
    step: float
    """Step of its derivative: below this, the granularity of a replay shows."""
    usual: float
    """Width of the prior around the value of the engine version; at least that value. Of a ratio: of its logarithm."""
    is_ratio: bool = False
    """A ratio of rates, which is fitted by its logarithm."""

    @property
    def low(self) -> float:
        """Return the lower bound, of the logarithm for a ratio."""
        return -self.high if self.is_ratio else 0.0


FREE = {
    "step_s": Free(0.1, 1e-4, 2e-3),
    "sequence_s": Free(2e-3, 3e-6, 3e-5),
    "request_s": Free(2.0, 2e-3, 2e-2),
    "decode_excess_ratio": Free(6.0, 0.05, 0.5),
    "prefill_excess_ratio": Free(9.0, 0.1, 0.7),
    "compute_rate_ratio": Free(4.0, 0.03, 0.3, is_ratio=True),
    "memory_rate_ratio": Free(4.0, 0.03, 0.3, is_ratio=True),
    "link_rate_ratio": Free(4.0, 0.03, 0.3, is_ratio=True),
    "decode_attention_ratio": Free(3.0, 0.05, 0.7, is_ratio=True),
}
"""Fields of `HostOverhead` that results constrain. Rates have those of the datasheet or the calibration as prior. The others stay: launches outside graphs (eager_layer_s, graph_tokens), streaming of an embedded engine (stream_s)."""
ROWS_FREE = Free(1.0, 0.03, 0.3, is_ratio=True)
"""The ratio of steps of one size, on processors."""
UNKNOWN_RATE = 3.0
"""Times the usual width for the rates of a device whose kernels were not measured."""
OF_PROMPTS = ("request_s", "prefill_excess_ratio")


def refitted(
    pairs: Sequence[tuple[BenchmarkResult, ReplicaSpec]],
    steps: Sequence[tuple[BenchmarkResult, ReplicaSpec]] = (),
) -> HostRefit:
    """Return the host times with which replays come closest to the measured results.

    Each result is replayed as `capplan validate` does, iteration by iteration, with the kernel times of its device;
    the numbers are those of `replica.tables.with_host`. Robust least squares on the logarithms of replayed over
    measured times, with the numbers of the engine version as priors.

    Parameters
    ----------
    pairs : results, each with the replica it was measured on; all of one engine on one device
    steps : decode steps of single numbers of sequences, with the same; no load, so none is left out

    Returns
    -------
    the numbers with intervals; the errors before, after, and with each result left out of the fit (many results: some at a time)
    """
    rows = _rows(pairs, steps)
    runs, left_out = _runs([(result, _with_rows(spec, rows)) for result, spec in pairs])
    seen = [run_of(result, _with_rows(spec, rows)) for result, spec in steps]
    first = runs[0].replica.spec
    _refuse_mixture(runs)
    before = first.profile.host
    steps_seen = (run for run in seen if isinstance(run, Run))
    problem = _Problem((*runs, *steps_seen), before, len(runs), pairs[0][1].profile.host)
    solution = problem.solved()
    jacobian = problem.jacobian(solution)
    rest = problem.residuals(solution)
    numbers, remarks = _numbers(problem, solution, jacobian, rest)
    _refuse_beyond_datasheet(runs, numbers)
    points = _points(problem, solution, jacobian, rest)
    return HostRefit(
        engine=first.profile.engine,
        engine_version=first.profile.asked_version or first.profile.version,
        hardware=first.device.name,
        tools=tuple(dict.fromkeys(run.result.tool for run in runs)),
        models=tuple(dict.fromkeys(_model(run.replica.spec) for run in runs)),
        numbers=numbers,
        kept={name: value for name, value in before.named.items() if name not in numbers},
        before_median_ape=_median_error(points, "before_s"),
        after_median_ape=_median_error(points, "after_s"),
        left_out_median_ape=_median_error(points, "left_out_s"),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        remarks=(*left_out, *remarks),
        points=points,
        policy="slots" if first.profile.policy == "slots" else None,
        steps=_step_points(problem, solution),
    )


def _rows(
    pairs: Sequence[tuple[BenchmarkResult, ReplicaSpec]], steps: Sequence[tuple[BenchmarkResult, ReplicaSpec]]
) -> list[float]:
    """Return the rows of steps that were measured: sequences of decode steps, and tokens of prompts; none on GPUs.

    The records of GPUs are of the kernels that engines run there, a calibration of a processor is of torch's own. Decode steps are
    those of `steps`, else those that closed loops have; a prompt longer than a step fills the step.
    """
    if not all(_on_processors(spec) for _, spec in pairs):
        return []
    sequences = {result.concurrency for result, _ in (*steps, *pairs) if result.concurrency}
    tokens = {
        min(result.input_tokens, replica_of(spec).scheduling.max_num_batched_tokens)
        for result, spec in pairs
        if result.input_tokens
    }
    return sorted({*map(round, sequences), *map(round, tokens)})


def _on_processors(spec: ReplicaSpec) -> bool:
    return spec.device.architecture == "cpu"


def _with_rows(spec: ReplicaSpec, rows: Sequence[float]) -> ReplicaSpec:
    """Return a replica that has ratios of steps with these rows, those of its profile, which are mostly 1.

    A processor runs kernels one after the other, as they were timed: what CUDA graphs hide or add on GPUs is not there.
    """
    host = spec.profile.host
    if _on_processors(spec):
        host = replace(host, decode_excess_ratio=1.0, prefill_excess_ratio=1.0)
    ratios = tuple(zip(rows, ratio_at(np.array(rows), host.row_ratios).tolist(), strict=True))
    return replace(spec, profile=replace(spec.profile, host=replace(host, row_ratios=ratios)))


def _runs(pairs: Sequence[tuple[BenchmarkResult, ReplicaSpec]]) -> tuple[list[Run], list[str]]:
    runs: list[Run] = []
    left_out = []
    seen: dict[object, str] = {}
    for result, spec in pairs:
        try:
            run = run_of(result, spec)
        except CapplanError as error:
            run = str(error).splitlines()[0]
        if isinstance(run, Run):
            copied = seen.get(run.identity)
            seen[run.identity] = copied or result.path
            run = f"holds the same run as {copied}" if copied else run
        if isinstance(run, str):
            left_out.append(f"left out: {result.path}: {run}")
        else:
            runs.append(run)
            engine_name, engine = (result.engine or "").lower(), spec.profile.engine
            if engine_name and not any(name in engine_name for name in (engine, "tensorrt", "trt")):
                left_out.append(f"engine {result.engine}: its results are replayed as those of {engine}")
    if len(runs) < LEAST_RESULTS:
        detail = "".join(f"\n  {line}" for line in left_out[:5])
        raise InputError(
            f"{len(runs)} usable results of {len(pairs)}: a refit needs at least {LEAST_RESULTS}{detail}\n"
            "  give more results, preferably at several concurrencies and lengths"
        )
    return runs, list(dict.fromkeys(left_out))


def _refuse_mixture(runs: Sequence[Run]) -> None:
    for what, names in (
        ("engines", {_engine(r.replica.spec.profile) for r in runs}),
        ("devices", {r.replica.spec.device.name for r in runs}),
    ):
        if len(names) > 1:
            raise InputError(
                f"these results are from several {what}: {', '.join(sorted(names))}\n"
                "  host times belong to one engine on one device: refit each separately"
            )


def _refuse_beyond_datasheet(runs: Sequence[Run], numbers: Mapping[str, FittedNumber]) -> None:
    """Refuse a refit whose kernels would beat the datasheet at the low end of the interval, or by more than noise: the results are of another replica.

    The rate is the fitted ratio times what the kernels reach of the datasheet: of its memory bandwidth, and of the fastest dtype that
    the model multiplies in, as one ratio holds for all of its kernels. A processor has no datasheet of rates.
    """
    first = runs[0].replica
    if _on_processors(first.spec):
        return
    rates = first.rates.rates
    kernels = [*rates.matmul.values(), *rates.experts.values()]
    fastest = max(float(kernel.flop_per_s) for kernel in kernels)
    computed = [float(kernel.compute_fraction * kernel.flop_per_s) / fastest for kernel in kernels]
    for name, verb, reached in (
        ("compute_rate_ratio", "compute", computed),
        ("memory_rate_ratio", "read memory", [float(kernel.memory_fraction) for kernel in kernels]),
    ):
        least, found = numbers[name].low * min(reached), numbers[name].value * min(reached)
        if least > 1.0 or found > BY_NOISE:
            raise InputError(
                f"{runs[0].result.path}: these results contradict the stated replica, {_model(first.spec)} on {first.spec.device.name}: "
                f"its kernels would {verb} at {found:.1f} times the datasheet\n"
                "  state the replica that was measured: --hardware, -tp, -pp, -dp, --weight-dtype, --kv-dtype"
            )


def _engine(profile: EngineProfile) -> str:
    return f"{profile.engine} {profile.asked_version or profile.version}"


def _model(spec: ReplicaSpec) -> str:
    return deployed_as(spec.network, spec.sharding, spec.kv_format)


@dataclass(frozen=True, slots=True)
class _Problem:
    """Replayed against measured times, as a function of the free numbers."""

    runs: tuple[Run, ...]
    """Loads, then decode steps."""
    before: HostOverhead
    loads: int
    """Runs that are loads."""
    shipped: HostOverhead
    """Numbers of the engine version, without a refit."""

    @property
    def free(self) -> dict[str, Free]:
        """Return the numbers that are fitted: those of every engine, and the ratios of rows that were measured."""
        return FREE | {name: ROWS_FREE for name in self.before.named if OF_ROWS.fullmatch(name)}

    @property
    def start(self) -> Array:
        named = self.before.named
        return np.array([np.log(named[n]) if free.is_ratio else named[n] for n, free in self.free.items()])

    @property
    def measured(self) -> Array:
        return np.array([value.seconds for run in self.runs for value in run.values])

    @property
    def weights(self) -> Array:
        return np.array([value.weight for run in self.runs for value in run.values])

    @property
    def owners(self) -> Array:
        """Which run each value belongs to."""
        return np.array([place for place, run in enumerate(self.runs) for _ in run.values])

    def host(self, numbers: Array) -> HostOverhead:
        fitted = {
            n: _natural(free, x) for (n, free), x in zip(self.free.items(), numbers.tolist(), strict=True)
        }
        return HostOverhead.of_named(self.before.named | fitted)

    def replayed(self, numbers: Array) -> Array:
        host = self.host(numbers)
        return np.array([seconds for run in self.runs for seconds in run.replayed_s(host)])

    def residuals(self, numbers: Array) -> Array:
        """Return weighted logarithms of replayed over measured times."""
        return np.log(self.replayed(numbers) / self.measured) * self.weights

    def jacobian(self, numbers: Array) -> Array:
        """Return their derivatives, over steps larger than the granularity of a replay."""
        here = self.residuals(numbers)
        columns = []
        for place, (name, free) in enumerate(self.free.items()):
            if name in self.unreached:
                columns.append(np.zeros_like(here))
                continue
            step = free.step if numbers[place] + free.step <= free.high else -free.step
            moved = numbers.copy()
            moved[place] += step
            columns.append((self.residuals(moved) - here) / step)
        return np.stack(columns, axis=1)

    @property
    def widths(self) -> Array:
        """Return the standard deviation of the prior of each number."""
        known = all(run.replica.label != "assumed" for run in self.runs)
        usual = [
            free.usual * (UNKNOWN_RATE if name.endswith("_rate_ratio") and not known else 1.0)
            for name, free in self.free.items()
        ]
        return np.maximum(usual, np.where([free.is_ratio for free in self.free.values()], 0.0, self.start))

    @property
    def fixed(self) -> frozenset[str]:
        """Return the numbers that are not fitted: on processors what CUDA graphs hide, on GPUs the rate of decode attention."""
        if _on_processors(self.runs[0].replica.spec):
            return frozenset({"decode_excess_ratio", "prefill_excess_ratio"})
        return frozenset({"decode_attention_ratio"})

    @property
    def unreached(self) -> frozenset[str]:
        """Return the numbers that no result depends on: the fixed ones, and links of one device."""
        linked = any(run.replica.spec.devices > 1 for run in self.runs)
        return self.fixed | (frozenset() if linked else {"link_rate_ratio"})

    def informed(self, residuals: Array, numbers: Array) -> Array:
        """Return the residuals, followed by the deviations of the numbers from their priors."""
        return np.concatenate([residuals, NOISE / self.widths * (numbers - self.start)])

    def fitted(self, residuals: Any, start: Array, **options: Any) -> Array:
        """Return the numbers with the smallest robust error."""
        from scipy.optimize import least_squares  # only a fit needs scipy, which a plain installation lacks

        high = np.array([free.high for free in self.free.values()])
        low = np.array([free.low for free in self.free.values()])
        inside = np.clip(start, np.where(low < 0.0, 0.999 * low, 1e-3 * self.widths), 0.999 * high)
        solved = least_squares(
            residuals, inside, bounds=(low, high), loss="soft_l1", f_scale=TYPICAL_ERROR,
            x_scale=self.widths, **options,
        )  # fmt: skip
        return np.asarray(solved.x)

    def solved(self) -> Array:
        """Return the numbers that explain the results best."""
        pull = np.diag(NOISE / self.widths)
        return self.fitted(
            lambda numbers: self.informed(self.residuals(numbers), numbers),
            self.start,
            jac=lambda numbers: np.concatenate([self.jacobian(numbers), pull]),
            max_nfev=60,
            xtol=1e-4,
            ftol=1e-5,
        )

    def without(self, runs: Sequence[int], solution: Array, jacobian: Array, rest: Array) -> Array:
        """Return the numbers without some results: refitted from the solution, with the derivatives there.

        The residuals are replayed again at each step. Far from the solution the derivatives no longer hold; the way to the numbers is
        halved until replays of the other results are about as good as at the solution. What these do not constrain goes back to its prior.
        """
        keep = ~np.isin(self.owners, runs)

        def error(numbers: Array, residuals: Array) -> float:
            return _robust_sum(self.informed(residuals[keep], numbers))

        most = error(solution, rest) * (1.0 + AS_GOOD)
        here, best = (solution, rest), (inf, solution)
        for _ in range(STEPS_WITHOUT):
            numbers = self._stepped(here, jacobian, keep)
            here = numbers, self.residuals(numbers)
            best = min(best, (error(*here), numbers), key=lambda found: found[0])
        least, numbers = best
        for _ in range(MOST_HALVINGS):
            if least <= most:
                return numbers
            numbers = 0.5 * (numbers + solution)
            least = error(numbers, self.residuals(numbers))
        return numbers

    def _stepped(self, here: tuple[Array, Array], jacobian: Array, keep: NDArray[np.bool_]) -> Array:
        """Return the numbers that are best for some values, which are linear in the numbers around those here."""
        start, rest = here

        def residuals(numbers: Array) -> Array:
            return self.informed((rest + jacobian @ (numbers - start))[keep], numbers)

        return self.fitted(residuals, start)


def _robust_sum(residuals: Array) -> float:
    """Return what a fit makes as small as it can: the soft L1 loss of `least_squares`."""
    return float(np.sum(np.sqrt(1.0 + (residuals / TYPICAL_ERROR) ** 2) - 1.0))


def _numbers(
    problem: _Problem, solution: Array, jacobian: Array, rest: Array
) -> tuple[dict[str, FittedNumber], list[str]]:
    """Return the numbers with 95 % intervals, and which of them the results do not constrain."""
    widths = problem.widths
    deviation = _deviation(rest, len(widths))
    information = jacobian.T @ jacobian / deviation**2 + np.diag(1.0 / widths**2)
    half = np.sqrt(np.diag(np.linalg.inv(information)))
    prompts = any(value.metric == "ttft_s" for run in problem.runs for value in run.values)
    numbers, remarks = {}, []
    for place, (name, free) in enumerate(problem.free.items()):
        if name in problem.fixed:
            continue
        value, reach = float(solution[place]), 1.96 * float(half[place])
        constrained = bool(half[place] < NARROWED * widths[place]) and value < 0.99 * free.high
        ends = max(value - reach, free.low), min(value + reach, free.high)
        low, high = (_natural(free, end) for end in ends)
        numbers[name] = FittedNumber(_natural(free, value), low, high, constrained)
        if not constrained and name not in problem.unreached:
            lacking = name in OF_PROMPTS and not prompts
            needed = "times to first token" if lacking else "more different concurrencies and lengths"
            remarks.append(f"{name} is not constrained by these results: it needs {needed}")
    return numbers, remarks


def _natural(free: Free, number: float) -> float:
    """Return a number as it is written: a ratio of rates is fitted by its logarithm."""
    return float(np.exp(number)) if free.is_ratio else number


def _deviation(rest: Array, numbers: int) -> float:
    """Return the deviation of one value; with no more values than numbers, that of a typical model."""
    freedom = len(rest) - numbers
    if freedom <= 0:
        return TYPICAL_ERROR
    return max(1.4826 * float(np.median(np.abs(rest))) * float(np.sqrt(len(rest) / freedom)), NOISE)


def _points(problem: _Problem, solution: Array, jacobian: Array, rest: Array) -> tuple[ResultPoint, ...]:
    before, after = (
        [seconds for run in problem.runs for seconds in run.replayed_s(host)]
        for host in (problem.shipped, problem.host(solution))
    )
    count = problem.loads
    groups = [range(first, count, MOST_GROUPS) for first in range(min(count, MOST_GROUPS))]
    hosts = [problem.host(problem.without(group, solution, jacobian, rest)) for group in groups]
    points = []
    row = 0
    for place, run in enumerate(problem.runs[:count]):
        alone = run.replayed_s(hosts[place % MOST_GROUPS])
        for value, left_out in zip(run.values, alone, strict=True):
            points.append(
                ResultPoint(
                    result=run.result.path.rpartition("/")[2],
                    metric=value.metric,
                    model=_model(run.replica.spec),
                    concurrency=run.result.concurrency,
                    measured_s=value.seconds,
                    before_s=before[row],
                    after_s=after[row],
                    left_out_s=float(left_out),
                    input_tokens=run.benchmark.input_tokens,
                    output_tokens=run.benchmark.output_tokens,
                    request_rate_per_s=run.benchmark.request_rate
                    if run.benchmark.kind == "online_rate"
                    else None,
                )
            )
            row += 1
    return tuple(points)


def _step_points(problem: _Problem, solution: Array) -> tuple[StepPoint, ...]:
    """Return the decode steps that were measured, with those of the refit."""
    host = problem.host(solution)
    return tuple(
        StepPoint(
            sequences=run.result.concurrency or 1.0,
            context_tokens=run.result.context_tokens or 0.0,
            measured_s=run.values[0].seconds,
            after_s=run.replayed_s(host)[0],
        )
        for run in problem.runs[problem.loads :]
    )


def _median_error(points: Sequence[ResultPoint], field: str) -> float:
    return float(np.median([abs(getattr(point, field) / point.measured_s - 1.0) for point in points]))
