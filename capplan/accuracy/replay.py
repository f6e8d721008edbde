"""Replay the benchmark behind a measured row on a modelled replica, and compute the columns of the row."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from capplan.accuracy import trtllm_bench
from capplan.accuracy.benchmark import SEED, Benchmark, lengths_of
from capplan.engine.profile import Scheduling
from capplan.numbers import Array
from capplan.replica.replica import Replica
from capplan.serving.outcome import Outcome
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate

OFFLINE_REQUESTS = 1000
"""Requests of an offline run whose number is not stated: several times the largest batch (an assumption)."""

ONLINE_REQUESTS_PER_CLIENT = 10
"""Requests per client of a closed loop, where the number is not stated: InferenceX's rule."""

SERVER_KINDS = frozenset({"online_conc", "online_rate", "online_burst"})
"""Kinds that go through an HTTP server; the others call the engine in its own process."""


FINISHED = "finished_req_s"
"""Not a column of the row: requests that the replica finished per second, also where the row reports those sent."""

OVERLOAD_SHARE = 0.8
"""A replica that finishes less than this share of the offered requests is overloaded: queues grow until the run ends."""


def overloaded(benchmark: Benchmark, columns: Mapping[str, float]) -> bool:
    """Return whether an open loop offers more than the replica can serve."""
    rate = benchmark.request_rate
    return (
        benchmark.kind == "online_rate"
        and rate is not None
        and columns.get(FINISHED, 0.0) < OVERLOAD_SHARE * rate
    )


def requests_of(benchmark: Benchmark) -> int:
    """Return how many requests the benchmark sends."""
    if benchmark.kind == "first_token":
        return 1
    if benchmark.kind == "static_batch":
        return benchmark.static_batch or benchmark.concurrency or 1
    if benchmark.requests:
        return benchmark.requests
    if benchmark.kind == "online_conc" and benchmark.concurrency:
        return max(20, ONLINE_REQUESTS_PER_CLIENT * benchmark.concurrency)
    sent = (int(benchmark.input_tokens), int(benchmark.output_tokens))
    if benchmark.kind == "offline_max" and benchmark.engine == "trtllm":
        return trtllm_bench.REQUESTS.get(sent, OFFLINE_REQUESTS)
    return OFFLINE_REQUESTS


def arrivals_of(benchmark: Benchmark, requests: int) -> Array | None:
    """Return Poisson arrival times of an open loop; None for a burst or a closed loop."""
    if benchmark.kind != "online_rate" or not benchmark.request_rate:
        return None
    gaps = np.random.default_rng(SEED + 1).exponential(1.0 / benchmark.request_rate, requests)
    times: Array = np.cumsum(gaps) - gaps[0]
    return times


def outcome_of(benchmark: Benchmark, replica: Replica) -> Outcome:
    """Return the outcome of the benchmark's requests on the replica."""
    count = requests_of(benchmark)
    inputs, outputs = lengths_of(benchmark, count)
    requests = Requests(
        input_tokens=inputs.astype(np.int64),
        output_tokens=outputs.astype(np.int64),
        arrival_s=arrivals_of(benchmark, count),
    )
    limits = scheduling_for(benchmark, replica.scheduling, int(inputs.max()))
    closed = benchmark.concurrency if benchmark.kind == "online_conc" else None
    return simulate(requests, replace(replica.engine, scheduling=limits), concurrency=closed)


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


def replayed_columns(benchmark: Benchmark, replica: Replica) -> dict[str, float]:
    """Return the columns of a benchmark's row, as the replica would have produced them."""
    columns = metrics_of(outcome_of(benchmark, replica), replica.spec.devices)
    columns[FINISHED] = columns["req_s"]
    if benchmark.offered_rate_reported and benchmark.request_rate:
        columns["req_s"] = benchmark.request_rate
    return columns


def metrics_of(outcome: Outcome, devices: int) -> dict[str, float]:
    """Return the columns of a measured row, in the units of the row (ms, tokens/s)."""
    done = outcome.finished
    columns: dict[str, float] = {}
    for name, values in (("ttft", outcome.ttft_s), ("tpot", outcome.tpot_s), ("e2e", outcome.e2e_s)):
        known = values[done & np.isfinite(values)]
        if known.size:
            columns[f"{name}_ms_mean"] = 1e3 * float(known.mean())
            median, slow = np.percentile(known, (50, 99)).tolist()
            columns[f"{name}_ms_p50"], columns[f"{name}_ms_p99"] = 1e3 * median, 1e3 * slow
    output = float(outcome.output_tokens[done].sum()) / outcome.seconds
    columns["output_tok_s"] = output
    columns["output_tok_s_per_gpu"] = output / devices
    columns["total_tok_s"] = output + float(outcome.input_tokens[done].sum()) / outcome.seconds
    columns["req_s"] = float(done.sum()) / outcome.seconds
    return columns
