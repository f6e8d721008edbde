"""Replay the benchmark behind a measured row on a modelled replica, and compute the columns of the row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, sqrt

import numpy as np

from capplan.accuracy.benchmark import MOST_REQUESTS, Benchmark
from capplan.accuracy.deployment import AGGREGATED, REQUESTS
from capplan.accuracy.lengths import SEED, drawn_lengths
from capplan.accuracy.shared_prompts import (
    SharedPrompts,
    conversations,
    id_tokens_of,
    order_of,
    with_cached_tokens,
    with_shared_blocks,
)
from capplan.assumption import Assumption
from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.numbers import Array
from capplan.replica.replica import Replica
from capplan.serving.block_cache import OffloadTier, PrefixCaching, PullLink
from capplan.serving.fleet_simulator import EnginePlan, simulate_disaggregated, simulate_fleet
from capplan.serving.outcome import Outcome
from capplan.serving.requests import ClosedLoopUsers, Requests, joined_requests
from capplan.serving.simulator import simulate
from capplan.serving.terms import BY_PREFIX, EngineSetup, KvLink

UNSTATED_REQUESTS = 1000
"""Requests of a burst or an open loop whose number is not stated (an assumption)."""

BATCHES = 4
"""Full batches of each replica in an offline maximum whose number of requests is not stated: two until it is steady, and two that count (an assumption)."""

OVERVIEW = "trtllm-perf-overview"
"""Source whose page states the requests of each run: NVIDIA's performance overview of TensorRT-LLM."""

ONLINE_REQUESTS_PER_CLIENT = 10
"""Requests per client of a closed loop, where the number is not stated: InferenceX's rule."""

SERVER_KINDS = frozenset(
    {
        "online_conc",
        "online_rate",
        "online_burst",
        "online_rate_slo",
        "decode_only",
        "prefill_only",
        "step_time",
    }
)
"""Kinds that go through an HTTP server; the others call the engine in its own process."""


OPEN_LOOPS = frozenset({"online_rate", "online_rate_slo"})

FULL_STEPS = 2.0
"""Full steps of prompts that always wait at a saturated prefill engine: one is computed while the next one is there."""

FINISHED = "finished_req_s"
"""Not a column of the row: requests that the replica finished per second, also where the row reports those sent."""

PERCENTS = (50, 90, 95, 99)

STABLE = "stable"
"""Column that is 1 where an open loop stays within what its engines serve, else 0."""
END_FRACTION = 0.1
"""Requests at either end of an open loop whose waits are compared."""
CHANCE_DEVIATIONS = 2.0
"""A wait that grows through a run by more than this many standard deviations of what arrivals at random make is one of overload (an
assumption)."""

FIRST_SLO_RATE = 1.0
MOST_SLO_RATE = 1e4
SLO_HALVINGS = 7
SLO_STAGE_S = 600.0
LEAST_SLO_REQUESTS = 500
MOST_SLO_REQUESTS = 20_000
"""The search for the largest rate of a replica under limits: where it starts and ends, and how many requests each run sends."""

OVERLOAD_SHARE = 0.8
"""A replica that finishes less than this share of the offered requests is overloaded: queues grow until the run ends."""


def overloaded(benchmark: Benchmark, columns: Mapping[str, float]) -> bool:
    """Return whether an open loop offers more than the replica can serve."""
    rate = benchmark.request_rate
    return (
        benchmark.kind in OPEN_LOOPS
        and rate is not None
        and columns.get(FINISHED, 0.0) < OVERLOAD_SHARE * rate
    )


def _states_requests(benchmark: Benchmark) -> bool:
    """Return whether the row of an offline maximum, or the page of its source, states how many requests were sent."""
    sent = (int(benchmark.input_tokens), int(benchmark.output_tokens))
    return benchmark.requests is not None or (benchmark.source == OVERVIEW and sent in REQUESTS)


def requests_of(benchmark: Benchmark) -> int:
    """Return how many requests the benchmark sends; those of an offline maximum that states none follow from its replica instead."""
    if benchmark.kind == "first_token":
        return 1
    if benchmark.kind == "static_batch":
        return benchmark.static_batch or benchmark.concurrency or 1
    if benchmark.requests:
        return benchmark.requests
    if benchmark.kind == "online_conc" and benchmark.concurrency:
        return max(20, ONLINE_REQUESTS_PER_CLIENT * benchmark.concurrency)
    if benchmark.kind == "offline_max" and _states_requests(benchmark):
        sent = (int(benchmark.input_tokens), int(benchmark.output_tokens))
        return REQUESTS[sent] * benchmark.deployment.replicas
    return UNSTATED_REQUESTS


def arrivals_of(benchmark: Benchmark, requests: int) -> Array | None:
    """Return the arrival times of an open loop; None for a burst or a closed loop."""
    if benchmark.kind not in OPEN_LOOPS or not benchmark.request_rate:
        return None
    if benchmark.arrivals == "constant":
        return np.arange(requests) / benchmark.request_rate
    if benchmark.stage_s:
        # A Poisson process whose count is known: its arrivals are spread evenly at random.
        return np.sort(np.random.default_rng(SEED + 1).uniform(0.0, benchmark.stage_s, requests))
    gaps = np.random.default_rng(SEED + 1).exponential(1.0 / benchmark.request_rate, requests)
    times: Array = np.cumsum(gaps) - gaps[0]
    return times


@dataclass(frozen=True, slots=True)
class Servers:
    """The engines behind a benchmark: one replica of all identical ones, or one of each pool."""

    replica: Replica
    """Replica of the engines; with separate pools, of prefill."""
    decode: Replica | None = None
    link: KvLink | None = None
    """Link between the pools, or between engines that pull cached prompts from each other."""
    host_cache: OffloadTier | None = None
    """Host memory of one replica for evicted blocks, in blocks of one token."""
    assumptions: tuple[Assumption, ...] = ()
    """What the row does not state of its drafts."""


def served_outcome(benchmark: Benchmark, servers: Servers) -> Outcome:
    """Return the outcome of the benchmark's requests on all engines that served them, a warm-up left out."""
    deployment, shared = benchmark.deployment, benchmark.shared
    if (
        deployment == AGGREGATED
        and shared is None
        and not benchmark.conversation
        and not benchmark.cached_fraction
    ):
        return outcome_of(benchmark, servers.replica)
    requests = _sent_requests(benchmark)
    count, inputs = len(requests), requests.input_tokens
    engine = _engine(benchmark, servers.replica, int(inputs.max()))
    crowd: ClosedLoopUsers | None = None
    warm_up = 0
    if benchmark.cached_fraction:
        requests = replace(requests, cached_tokens=(benchmark.cached_fraction * inputs).astype(np.int64))
    if benchmark.conversation:
        ids = id_tokens_of(benchmark.input_tokens, engine.scheduling.block_tokens)
        talks = max(1, count // benchmark.conversation.turns)
        crowd = conversations(benchmark.conversation, talks, benchmark.concurrency or 1, ids)
        engine = _caching(engine, ids, servers)
    elif benchmark.kind == "online_conc":
        crowd = ClosedLoopUsers(replace(requests, arrival_s=None), benchmark.concurrency or 1)
    if shared is not None:
        if deployment.replicas == 1 and _all_fit(shared, requests, engine):
            sent = order_of(shared, count, np.random.default_rng(SEED + 2))
            requests = with_cached_tokens(requests, shared, sent, engine.scheduling.block_tokens)
        else:
            ids = id_tokens_of(benchmark.input_tokens, engine.scheduling.block_tokens)
            requests, warm_up = _shared_requests(requests, shared, ids, engine)
            engine = _caching(engine, ids, servers)
        if crowd is not None:
            crowd = replace(crowd, requests=replace(requests, arrival_s=None))
    return _measured(_run(benchmark, servers, engine, requests, crowd), warm_up)


def _run(
    benchmark: Benchmark,
    servers: Servers,
    engine: EngineSetup,
    requests: Requests,
    crowd: ClosedLoopUsers | None,
) -> Outcome:
    deployment = benchmark.deployment
    asked = None if crowd is not None else requests
    routing = deployment.routing
    if routing in BY_PREFIX and engine.caching is None:
        routing = deployment.unshared
    if deployment.pools is None:
        return simulate_fleet(asked, engine, deployment.replicas, routing=routing, crowd=crowd).outcome
    assert servers.decode is not None
    assert servers.link is not None
    (prefill, _), (decode, _) = deployment.pools
    after = _engine(benchmark, servers.decode, int(benchmark.input_tokens))
    plans = EnginePlan(engine, prefill, routing), EnginePlan(after, decode)
    return simulate_disaggregated(asked, *plans, servers.link, crowd=crowd).outcome


def _engine(benchmark: Benchmark, replica: Replica, longest_prompt: int) -> EngineSetup:
    limits = scheduling_for(benchmark, replica.scheduling, longest_prompt)
    return replace(replica.engine, scheduling=limits)


def _caching(engine: EngineSetup, id_tokens: int, servers: Servers) -> EngineSetup:
    """Return an engine that caches prompts by block ids, with host memory behind its own and a link to other caches where it has them."""
    host, link = servers.host_cache, servers.link
    tiers = (
        ()
        if host is None
        else (OffloadTier(host.capacity_blocks // id_tokens, host.load_s_per_block * id_tokens, host.name),)
    )
    pull = None
    if link is not None and servers.decode is None:
        pull = PullLink(id_tokens * link.bytes_per_token / link.bytes_per_s, link.latency_s)
    return replace(engine, caching=PrefixCaching(id_tokens, tiers, pull))


def _all_fit(shared: SharedPrompts, requests: Requests, engine: EngineSetup) -> bool:
    """Return whether all different prompts fit into half of the cache of one engine."""
    own = float(requests.input_tokens.mean()) - shared.prefix_tokens
    endings = shared.distinct if shared.per_prefix else 0
    tokens = shared.groups * shared.prefix_tokens + endings * own
    return tokens < 0.5 * engine.kv_blocks * engine.scheduling.block_tokens


def _shared_requests(
    requests: Requests, shared: SharedPrompts, id_tokens: int, engine: EngineSetup
) -> tuple[Requests, int]:
    """Return the requests with their block ids, behind a warm-up where their prompts were sent before, and the size of the warm-up.

    A warm-up sends one prompt of each group and, once these are done, the others: a router that looks for prefixes sends each to
    the engine that has its prefix.
    """
    count = len(requests)
    sent = order_of(shared, count, np.random.default_rng(SEED + 2))
    if not shared.warm:
        return with_shared_blocks(requests, shared, sent, id_tokens), 0
    each = shared.per_prefix or 1
    later = np.random.default_rng(SEED + 3).permutation(shared.distinct)
    bursts = [np.arange(shared.groups) * each, later[later % each > 0]]
    mean = int(requests.input_tokens.mean())
    one = Requests(np.full(1, mean), np.ones(1, dtype=np.int64))
    # All prompts on one engine, one after another, would be done by then.
    alone_s = float(simulate(one, engine).ttft_s[0])
    parts, start_s = [], 0.0
    for burst in bursts:
        size = burst.size
        parts.append(Requests(np.full(size, mean), np.ones(size, dtype=np.int64), np.full(size, start_s)))
        start_s += size * alone_s
    parts.append(replace(requests, arrival_s=requests.times_s + start_s))
    prompts = np.concatenate([*bursts, sent])
    return with_shared_blocks(joined_requests(parts), shared, prompts, id_tokens), prompts.size - count


def _measured(outcome: Outcome, warm_up: int) -> Outcome:
    """Return the rows of an outcome behind its warm-up, and the time from their first arrival."""
    if not warm_up:
        return outcome
    names = (
        "status",
        "arrival_s",
        "queue_s",
        "ttft_s",
        "tpot_s",
        "e2e_s",
        "input_tokens",
        "output_tokens",
        "class_index",
    )
    rows = {name: getattr(outcome, name)[warm_up:] for name in names}
    return replace(outcome, **rows, seconds=outcome.seconds - float(rows["arrival_s"][0]))


def outcome_of(benchmark: Benchmark, replica: Replica) -> Outcome:
    """Return the outcome of the benchmark's requests on the replica."""
    requests = _sent_requests(benchmark)
    closed = benchmark.concurrency if benchmark.kind == "online_conc" else None
    engine = _engine(benchmark, replica, int(requests.input_tokens.max()))
    return simulate(requests, engine, concurrency=closed)


def _sent_requests(benchmark: Benchmark) -> Requests:
    """Return the requests of a benchmark, their lengths drawn, with the times at which an open loop sends them."""
    count, means = requests_of(benchmark), (benchmark.input_tokens, benchmark.output_tokens)
    inputs, outputs = drawn_lengths(benchmark.lengths, means, count)
    return Requests(inputs.astype(np.int64), outputs.astype(np.int64), arrivals_of(benchmark, count))


def scheduling_for(benchmark: Benchmark, scheduling: Scheduling, longest_prompt: int) -> Scheduling:
    """Return the scheduler limits of the run.

    A static batch starts together, whatever the engine's default limit; an engine that does not split
    prompts was given a token budget that holds the longest one along with all decoding sequences.
    """
    sequences, tokens = scheduling.max_num_seqs, scheduling.max_num_batched_tokens
    if benchmark.kind == "static_batch":
        sequences = max(sequences, requests_of(benchmark))
    if not scheduling.chunked:
        tokens = max(tokens, longest_prompt + min(sequences, benchmark.concurrency or sequences))
    return replace(scheduling, max_num_seqs=sequences, max_num_batched_tokens=max(tokens, sequences))


def replayed_columns(benchmark: Benchmark, servers: Servers) -> dict[str, float]:
    """Return the columns of a benchmark's row, as its engines would have produced them.

    Of `online_rate_slo` only the largest rate that they serve within the limits.
    """
    servers = _behind_front_end(benchmark, servers)
    if benchmark.kind in ONE_PHASE:
        return ONE_PHASE[benchmark.kind](benchmark, servers)
    if benchmark.kind == "online_rate_slo":
        rate = largest_rate(benchmark, servers)
        return {"request_rate": rate, FINISHED: rate}
    unbounded = benchmark.kind == "online_conc" and benchmark.concurrency is None
    if unbounded or (benchmark.kind == "offline_max" and not _states_requests(benchmark)):
        return _steady_maximum(benchmark, servers)
    if benchmark.kind == "offline_max" and benchmark.deployment.pools is None:
        return _of_all_replicas(benchmark, servers)
    outcome = served_outcome(benchmark, servers)
    columns = metrics_of(outcome, devices_of(benchmark, servers))
    if benchmark.gaps_reported:
        columns |= {
            f"tpot_ms_p{percent}": 1e3 * outcome.itl.percentile(percent / 100.0) for percent in PERCENTS
        }
    columns[FINISHED] = columns["req_s"]
    if benchmark.deployment.pools is not None:
        columns |= _of_each_pool(benchmark, servers, columns)
    if benchmark.kind in OPEN_LOOPS:
        columns[STABLE] = float(not queue_grows(outcome))
    if benchmark.offered_rate_reported and benchmark.request_rate:
        columns["req_s"] = benchmark.request_rate
    return columns


def decode_columns(benchmark: Benchmark, servers: Servers) -> dict[str, float]:
    """Return the columns of a full decode engine by itself: a batch that decodes at the mean context of its requests.

        T = t(S, P + O / 2) / E,   X = S / T

    S sequences of the engine, each with its prompt of P and half of its O output tokens in the cache, take t for a step, in which each gains
    E tokens (1, or the mean of a round of drafts).

    References
    ----------
    LMSYS 2025, "Deploying DeepSeek with PD Disaggregation and Large-Scale Expert Parallelism on 96 H100 GPUs",
    https://lmsys.org/blog/2025-05-05-large-scale-ep/.
    """
    replica, devices = servers.replica, servers.replica.spec.devices
    mean_context = benchmark.input_tokens + benchmark.output_tokens / 2.0
    if benchmark.batch_per_gpu is None:
        whole = max(benchmark.input_tokens + benchmark.output_tokens, 1.0)
        held = replica.kv_blocks * replica.scheduling.block_tokens / whole
        sequences = max(1, int(min(float(replica.scheduling.max_num_seqs), held)))
    else:
        sequences = max(1, round(benchmark.batch_per_gpu * devices))
    each_s = replica.clock.row(sequences).step_s(mean_context) / replica.tokens_per_step
    rate = benchmark.deployment.replicas * sequences / each_s
    columns = {f"tpot_ms_{statistic}": 1e3 * each_s for statistic in ("mean", "p50")}
    columns |= {"output_tok_s": rate, "output_tok_s_per_gpu": rate / devices / benchmark.deployment.replicas}
    return columns | {FINISHED: rate / max(benchmark.output_tokens, 1.0)}


def prefill_columns(benchmark: Benchmark, servers: Servers) -> dict[str, float]:
    """Return the columns of a prefill engine by itself: a closed loop of prompts that yield one token each.

    Where the row states no clients, so many that two full steps of prompts always wait; first tokens then measure that queue, so there are none.
    """
    replica, replicas = servers.replica, benchmark.deployment.replicas
    clients = benchmark.concurrency and max(1, benchmark.concurrency // replicas)
    full = FULL_STEPS * replica.scheduling.max_num_batched_tokens / benchmark.input_tokens
    one = replace(
        benchmark,
        kind="online_conc",
        output_tokens=1.0,
        concurrency=clients or ceil(full) + 2 * int(replica.spec.sharding.data),
        deployment=AGGREGATED,
    )
    devices = replica.spec.devices
    columns = metrics_of(served_outcome(one, servers), devices)
    rate = columns["input_tok_s"]
    out = {
        "input_tok_s": replicas * rate,
        "input_tok_s_per_gpu": rate / devices,
        "req_s": replicas * columns["req_s"],
    }
    if clients:
        out |= {name: value for name, value in columns.items() if name.startswith(("ttft", "e2e"))}
    return out | {FINISHED: out["req_s"]}


def step_columns(benchmark: Benchmark, servers: Servers) -> dict[str, float]:
    """Return the time of one step with one prompt of each group of attention, or as many as the row states [ms], and of each layer in it [us]."""
    replica = servers.replica
    each = max(1, round((benchmark.batch_per_gpu or 1.0) * float(replica.spec.sharding.tensor)))
    chunks = [(round(benchmark.input_tokens), 0)] * each * int(replica.spec.sharding.data)
    seconds = replica.clock.mixed_step_s(0, 0.0, chunks)
    return {"step_ms": 1e3 * seconds, "layer_us": 1e6 * seconds / len(replica.spec.network.layers)}


ONE_PHASE: Mapping[str, Callable[[Benchmark, Servers], dict[str, float]]] = {
    "decode_only": decode_columns,
    "prefill_only": prefill_columns,
    "step_time": step_columns,
}
"""Kind of a run of one phase -> what replays it."""


def _of_each_pool(benchmark: Benchmark, servers: Servers, columns: Mapping[str, float]) -> dict[str, float]:
    """Return the rates by GPU of separate pools: output by those that decode, input by those that prefill, as InferenceX divides them."""
    assert benchmark.deployment.pools is not None
    assert servers.decode is not None
    (prefill, _), (decode, _) = benchmark.deployment.pools
    return {
        "output_tok_s_per_gpu": columns["output_tok_s"] / (decode * servers.decode.spec.devices),
        "input_tok_s_per_gpu": columns["input_tok_s"] / (prefill * servers.replica.spec.devices),
    }


def _behind_front_end(benchmark: Benchmark, servers: Servers) -> Servers:
    """Return servers whose requests all take the stated time before they reach an engine."""
    if not benchmark.front_end_s:
        return servers
    table = servers.replica.table
    later = replace(table, request_s=table.request_s + benchmark.front_end_s)
    return replace(servers, replica=replace(servers.replica, table=later))


def _of_all_replicas(benchmark: Benchmark, servers: Servers) -> dict[str, float]:
    """Return the columns of an offline maximum: replicas do not wait for each other, so one of them stands for all."""
    replicas = benchmark.deployment.replicas
    one = replace(benchmark, deployment=AGGREGATED, requests=-(-requests_of(benchmark) // replicas))
    columns = metrics_of(served_outcome(one, servers), servers.replica.spec.devices)
    rates = ("output_tok_s", "total_tok_s", "req_s")
    columns |= {name: replicas * columns[name] for name in rates}
    return columns | {FINISHED: columns["req_s"]}


def _steady_maximum(benchmark: Benchmark, servers: Servers) -> dict[str, float]:
    """Return the rates of an offline maximum whose number of requests is not stated: those of replicas that stay full.

    So many requests are sent that each replica fills its batch `BATCHES` times, more if its run shows that they were too few. Latencies follow
    from the number of requests, so there are none.
    """
    if benchmark.deployment.pools is not None:
        raise InputError(
            "requests: missing; an offline maximum of separate pools is replayed with the number of its requests"
        )
    replicas, engine = benchmark.deployment.replicas, servers.replica.engine
    mean_tokens = benchmark.input_tokens + benchmark.output_tokens / 2.0
    cached = engine.kv_blocks * engine.scheduling.block_tokens / mean_tokens
    count = max(UNSTATED_REQUESTS, BATCHES * ceil(min(engine.scheduling.max_num_seqs, cached)))
    while count <= MOST_REQUESTS:
        one = replace(benchmark, deployment=AGGREGATED, requests=count)
        outcome = served_outcome(one, servers)
        rates = steady_rates(outcome)
        if rates is not None:
            per_s, inputs, outputs = (replicas * rate for rate in rates)
            each = outputs / (replicas * servers.replica.spec.devices)
            columns = {"output_tok_s": outputs, "output_tok_s_per_gpu": each, "total_tok_s": inputs + outputs}
            return columns | {"req_s": per_s, FINISHED: per_s}
        count *= 2
    raise InputError(
        f"requests: missing; {MOST_REQUESTS:,} do not keep a replica full for two batches, so that the end of the run decides its rate"
    )


def steady_rates(outcome: Outcome) -> tuple[float, float, float] | None:
    """Return the rates of requests, input and output tokens while the engine is full, of a run of all requests at once; None if it is never full for long.

        r = m b / (a_(2b + m b) - a_(2b))

    While others wait, requests begin as fast as they end. The first two batches, whose requests begin
    together, and the end of the run are left out.

    Parameters
    ----------
    outcome : b is the largest number of requests at work together, a_i when the i-th request began, and m the most whole batches

    Returns
    -------
    [1/s], [tokens/s], [tokens/s]

    Examples
    --------
    See `tests/oracles/test_offline_maxima.py`: slots of one second each.

    References
    ----------
    MLCommons, Inference rules, "Offline" scenario,
    https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc.
    """
    begin_s, end_s = outcome.arrival_s + outcome.queue_s, outcome.arrival_s + outcome.e2e_s
    order = np.argsort(begin_s, kind="stable")
    begun = np.sort(begin_s)
    at_work = np.arange(1, begun.size + 1) - np.searchsorted(np.sort(end_s), begun, side="right")
    batch = int(at_work.max())
    batches = (begun.size - 1) // batch - 2
    if batches < 1:
        return None
    first, last = 2 * batch, (2 + batches) * batch
    seconds = float(begun[last] - begun[first])
    if seconds <= 0.0:
        return None
    counted = order[first:last]
    tokens = (outcome.input_tokens[counted].sum(), outcome.output_tokens[counted].sum())
    return batches * batch / seconds, float(tokens[0]) / seconds, float(tokens[1]) / seconds


def devices_of(benchmark: Benchmark, servers: Servers) -> int:
    """Return the devices of all engines of a benchmark."""
    pools = benchmark.deployment.pools
    if pools is None or servers.decode is None:
        return benchmark.deployment.replicas * servers.replica.spec.devices
    return pools[0][0] * servers.replica.spec.devices + pools[1][0] * servers.decode.spec.devices


def queue_grows(outcome: Outcome) -> bool:
    """Return whether the wait for the first token grows through an open loop, as it does where more comes than is served.

    At a load of rho > 1 the last of n requests waits for (rho - 1) T if they came for a time T. At a load of 1 the wait is a random walk, whose
    standard deviation at its end is T / sqrt(n) for arrivals at random: a wait that grows by less than two of these can be chance.
    """
    ends = max(1, round(END_FRACTION * outcome.ttft_s.size))
    ttft = np.where(np.isfinite(outcome.ttft_s), outcome.ttft_s, np.inf)
    sent_s = float(outcome.arrival_s[-1] - outcome.arrival_s[0])
    grown_s = float(np.median(ttft[-ends:])) - float(np.median(ttft[:ends]))
    return grown_s > CHANCE_DEVIATIONS * sent_s / sqrt(ttft.size) > 0.0


def largest_rate(benchmark: Benchmark, servers: Servers) -> float:
    """Return the largest rate at which the 99th percentiles of the latencies stay within their limits [1/s]; 0 where none does."""
    if benchmark.deployment.pools is not None:
        raise InputError("online_rate_slo: not replayed on separate pools")

    def holds(rate: float) -> bool:
        seconds = benchmark.stage_s or SLO_STAGE_S
        count = int(np.clip(rate * seconds, LEAST_SLO_REQUESTS, MOST_SLO_REQUESTS))
        stage_s = count / rate
        run = replace(
            benchmark,
            kind="online_rate",
            request_rate=rate,
            requests=count,
            stage_s=stage_s,
            deployment=AGGREGATED,
        )
        outcome = served_outcome(run, servers)
        columns = metrics_of(outcome, 1)
        limits = (("ttft", benchmark.slo_ttft_s), ("tpot", benchmark.slo_tpot_s))
        return not queue_grows(outcome) and all(
            columns.get(f"{name}_ms_p99", 0.0) <= 1e3 * limit for name, limit in limits if limit is not None
        )

    low, high = 0.0, FIRST_SLO_RATE
    while holds(high) and high < MOST_SLO_RATE:
        low, high = high, 2.0 * high
    for _ in range(SLO_HALVINGS):
        middle = sqrt(max(low, high / 4.0) * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low * benchmark.deployment.replicas


def metrics_of(outcome: Outcome, devices: int) -> dict[str, float]:
    """Return the columns of a measured row, in the units of the row (ms, tokens/s)."""
    done = outcome.finished
    if not done.any():
        raise InputError(
            f"isl, osl: no request of {float(outcome.input_tokens.max()):,.0f} input tokens fits in the cache of its engine\n"
            "  check the lengths, the layout and the dtypes"
        )
    columns: dict[str, float] = {}
    for name, values in (("ttft", outcome.ttft_s), ("tpot", outcome.tpot_s), ("e2e", outcome.e2e_s)):
        known = values[done & np.isfinite(values)]
        if known.size:
            columns[f"{name}_ms_mean"] = 1e3 * float(known.mean())
            for percent, value in zip(PERCENTS, np.percentile(known, PERCENTS).tolist(), strict=True):
                columns[f"{name}_ms_p{percent}"] = 1e3 * value
    output = float(outcome.output_tokens[done].sum()) / outcome.seconds
    prompts = float(outcome.input_tokens[done].sum()) / outcome.seconds
    columns |= {"output_tok_s": output, "output_tok_s_per_gpu": output / devices}
    columns |= {"input_tok_s": prompts, "input_tok_s_per_gpu": prompts / devices}
    columns["total_tok_s"] = output + prompts
    columns["req_s"] = float(done.sum()) / outcome.seconds
    return columns
