"""A result of a benchmark tool -> the run to replay, and the values it measured."""

from dataclasses import dataclass, field, replace

import numpy as np

from capplan.accuracy.benchmark import MOST_REQUESTS, Benchmark, Kind
from capplan.accuracy.replay import ONLINE_REQUESTS_PER_CLIENT, SERVER_KINDS, metrics_of, outcome_of
from capplan.engine.profile import HostOverhead
from capplan.recorded.results.record import BenchmarkResult, Spread
from capplan.replica.replica import Replica, replica_of
from capplan.replica.spec import ReplicaSpec
from capplan.replica.tables import DeviceTables, table_of_plan, with_host

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
        """Return the replayed time of each value with these host times [s]."""
        spec, network = self.replica.spec, self.replica.spec.network
        counts = len(network.layers), network.routed_layers
        table = table_of_plan(with_host(self.device_tables(host), host, *counts, offline=spec.offline), 0)
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
    if result.accepted_tokens_per_step:
        return "it was measured with speculative decoding, which a refit does not replay"
    lengths = _lengths(result)
    if lengths is None:
        return "its prompt and output lengths are not known: give --input-tokens and --output-tokens"
    kind = _kind(result)
    if kind is None:
        return "neither its concurrency nor its request rate is known: give --concurrency"
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


def _value(name: str, spread: Spread, weight: float) -> Value | None:
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
