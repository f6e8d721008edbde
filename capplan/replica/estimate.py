"""Latency and throughput of one replica at a load, and where the time goes."""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from capplan.errors import InputError
from capplan.model.weight_format import kv_bytes_per_element
from capplan.numbers import Array, Spread
from capplan.phases.cost import Bound, OperatorCost, bound, summed, total_s
from capplan.phases.step import decode_attention_costs, decode_step_costs, lone_prompt_costs
from capplan.replica.load import Load, check_load
from capplan.replica.offload import PartRates
from capplan.replica.plans import graph_sequences, parts_of
from capplan.replica.replica import Replica
from capplan.replica.spec import cards_of, refuse_prefixes, served_context_tokens
from capplan.serving.outcome import Outcome, spread
from capplan.serving.requests import Requests
from capplan.serving.step_table import launching_s
from capplan.workload.request_class import SIMULATED_REQUESTS, WARM_UP_SHARE, arrival_generator, drawn_gaps

GROWTH = 0.005
"""An open loop is saturated if its wait grows by more than this many seconds in a second, and at least doubles (an assumption)."""
RESPONSES_SEEN = 12.0
"""An open loop is simulated for at least as many mean response times, of which a quarter is warm-up (an assumption)."""
MOST_REQUESTS = 60_000
"""An open loop is simulated with at most as many requests: one whose responses take longer the longer it runs is saturated."""


HEAD = ("lm_head", "logit_gather", "sampling")
"""Operators that are on the device wherever the layers are."""
LAUNCHES = "launches"
"""Operator of a breakdown that is the wait for launches."""
FRONT_END = "front_end"
"""Operator of a breakdown that is the handling of a request outside the engine."""


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of one phase."""

    operator: str
    phase: str
    seconds: float
    flop: float
    bytes: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class Estimate:
    """Steady state of one replica under a load."""

    ttft_s: Spread[float]
    tpot_s: Spread[float]
    e2e_s: Spread[float]
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    output_tokens_per_s_per_gpu: float
    concurrency: float
    """Mean requests in flight, waiting ones included: `requests_per_s` times the mean E2E latency."""
    bottleneck: str
    breakdown: tuple[OperatorRow, ...]
    saturated: bool
    kv_occupancy_fraction: float
    preemptions: int


def closed_loop_requests(concurrency: int) -> int:
    """Return how many requests of a closed loop are simulated after the warm-up, which takes as many as are in flight.

        n = min(max(4 c, 200), 8000)

    Parameters
    ----------
    concurrency : [-]
        c

    Examples
    --------
    >>> [closed_loop_requests(count) for count in (1, 64, 4096)]
    [200, 256, 8000]
    """
    return int(np.clip(4 * concurrency, 200, 8000))


def closed_loop_time_s(arrival_s: Array, unseen: int) -> tuple[float, float]:
    """Return when the first and the last request are sent that figures of a closed loop count, without its ramp and its drain [s].

    Parameters
    ----------
    arrival_s : [s]
        of all requests
    unseen : [-]
        requests that are left out at both ends, less than half of all

    Examples
    --------
    >>> closed_loop_time_s(np.array([0.0, 0.0, 1.0, 2.0, 3.0, 4.0]), 2)
    (1.0, 2.0)
    """
    ordered = np.sort(arrival_s)
    return float(ordered[unseen]), float(ordered[-1 - unseen])


def requests_for(load: Load, in_flight: float = 0.0) -> tuple[Requests, int]:
    """Return the requests to simulate, and how many of the first ones are warm-up.

    Parameters
    ----------
    load : of one replica
    in_flight : mean requests in flight of an open loop, as far as they are known

    Examples
    --------
    >>> requests, warm = requests_for(Load(1000, 200, concurrency=8))
    >>> len(requests), warm
    (208, 8)
    """
    if load.concurrency is not None:
        warm = load.concurrency
        count = warm + (load.requests or closed_loop_requests(load.concurrency))
        arrival: Array | None = None
    else:
        in_flight = min(in_flight, MOST_REQUESTS)
        seen = min(ceil(RESPONSES_SEEN * in_flight), MOST_REQUESTS)
        count = load.requests or max(SIMULATED_REQUESTS, seen)
        warm = max(int(WARM_UP_SHARE * count), min(ceil(3.0 * in_flight), count // 4))
        gaps = drawn_gaps(arrival_generator(load.seed), 1.0, count)
        with np.errstate(over="ignore"):  # of rates that hardly send anything
            arrival = np.cumsum(gaps) / (load.request_rate or 1.0)
    inputs = np.full(count, load.input_tokens, dtype=np.int64)
    outputs = np.full(count, load.output_tokens, dtype=np.int64)
    cached = np.minimum((inputs * load.prefix_hit_fraction).astype(np.int64), inputs - 1)
    return Requests(inputs, outputs, arrival, cached), warm


def _rows(costs: list[OperatorCost], phase: str) -> list[OperatorRow]:
    return [
        OperatorRow(
            cost.operator,
            phase,
            float(cost.seconds),
            float(cost.flop),
            float(cost.moved_bytes + cost.sent_bytes),
            bound(cost),
        )
        for cost in costs
        if float(cost.seconds) > 0
    ]


def breakdown_of(replica: Replica, load: Load, sequences: float) -> tuple[OperatorRow, ...]:
    """Return the operators of the prefill of one prompt, and of one decode step at the mean batch and context.

    For a pipeline they are those of one micro-batch in all stages; of llama.cpp, whose devices work on several pieces of a prompt at once, those of all pieces. `launches` is what a prompt waits for because the host launches its kernels
    more slowly than the device runs them, and a decode step where none runs as a CUDA graph.
    """
    spec, rates = replica.spec, replica.rates.rates
    kv_bytes = kv_bytes_per_element(spec.kv_format)
    past = load.input_tokens * load.prefix_hit_fraction
    split = spec.efficiency.layer_split
    sharding = spec.sharding if split is None else replace(spec.sharding, pipeline=1.0)
    network, parts = cards_of(spec)[-1].network, parts_of(spec)
    prefill = lone_prompt_costs(network, load.input_tokens - past, past, sharding, kv_bytes, rates)
    for part in parts:
        read = lone_prompt_costs(
            part.network, load.input_tokens - past, past, spec.sharding, kv_bytes, part.prompt
        )
        prefill += _of_part(read, part)
    prefill = summed(prefill)
    launched = (load.input_tokens - past) * float(sharding.data)
    waits_s = float(launching_s(replica.table, launched) - total_s(prefill))
    prefill.append(OperatorCost(LAUNCHES, max(waits_s, 0.0)))
    context = load.input_tokens + load.output_tokens / 2.0
    batch = max(1.0, sequences / float(sharding.pipeline))
    if not spec.network.generates:
        return (*_rows(prefill, "prefill"),)
    decode = decode_step_costs(network, batch, context, sharding, kv_bytes, rates)
    further = spec.devices - 1 + sum(not part.on_host for part in parts)
    if split is not None and further:
        decode.append(OperatorCost("hand_over", split.hand_over_s * further))
    for part in parts:
        read = decode_step_costs(part.network, batch, context, spec.sharding, kv_bytes, part.token)
        decode += _of_part(read, part)
    decode = summed(decode)
    host = spec.profile.host
    of_process = max(1.0, sequences / float(spec.sharding.data))
    step_s = host.each_step_s(spec.ranks)
    if of_process > graph_sequences(spec) * float(spec.sharding.pipeline):
        cache = decode_attention_costs(spec.network, batch, context, spec.sharding, kv_bytes, rates)
        launched_s = float(launching_s(replica.table, np.inf) - step_s)
        decode.append(OperatorCost(LAUNCHES, max(launched_s - total_s(decode) + total_s(cache), 0.0)))
    decode.append(OperatorCost("host", step_s + host.token_s(offline=spec.offline) * of_process))
    return (*_rows(prefill, "prefill"), *_rows(decode, "decode"))


def front_end_of(replica: Replica, load: Load) -> OperatorRow:
    """Return what the front end takes for one prompt, which no device waits for: HTTP, tokenising, the first streamed chunk."""
    table = replica.table
    seconds = table.request_s + table.prompt_token_s * load.input_tokens
    return OperatorRow(FRONT_END, "prefill", seconds, 0.0, 0.0, "latency")


def _of_part(costs: list[OperatorCost], part: PartRates) -> list[OperatorCost]:
    """Return the operators of layers that are elsewhere than the LM head; those of a host are named after it."""
    named = [cost.named(f"host_{cost.operator}") if part.on_host else cost for cost in costs]
    return [cost for cost, plain in zip(named, costs, strict=True) if plain.operator not in HEAD]


def bottleneck_of(rows: tuple[OperatorRow, ...], output_tokens: int, sequences: float) -> str:
    """Return the phase, bound and operator that take the largest part of a request's device time.

    Examples
    --------
    A prompt of 50 ms counts once, a step of 10 ms a hundred times, shared by four sequences:

    >>> prompt = OperatorRow("gate_up", "prefill", 0.05, 1e12, 1e9, "compute")
    >>> step = OperatorRow("attention", "decode", 0.01, 1e9, 1e9, "memory")
    >>> bottleneck_of((prompt, step), 100, 4.0)
    'decode memory (attention)'
    """
    weight = {"prefill": 1.0, "decode": output_tokens / max(1.0, sequences)}
    parts: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row.phase, row.bound)
        parts[key] = parts.get(key, 0.0) + row.seconds * weight[row.phase]
    phase, kind = max(parts, key=lambda key: parts[key])
    largest = max((r for r in rows if (r.phase, r.bound) == (phase, kind)), key=lambda r: r.seconds)
    return f"{phase} {kind} ({largest.operator})"


def _refuse_unserved(outcome: Outcome, replica: Replica, load: Load) -> None:
    """Raise the error for requests that the engine rejects, each and every one."""
    if outcome.finished.any():
        return
    steps = replica.scheduling
    if not steps.chunked and load.input_tokens > steps.max_num_batched_tokens:
        raise InputError(
            f"input {load.input_tokens} tokens exceeds the {steps.max_num_batched_tokens} tokens of a step, and the engine does not "
            "cut prompts into chunks, so it rejects them all\n  raise --max-num-batched-tokens"
        )
    raise InputError(
        f"input {load.input_tokens} + output {load.output_tokens} = {load.tokens} tokens exceeds the KV cache of "
        f"{replica.kv_blocks * steps.block_tokens} tokens, so the engine rejects all requests\n"
        "  use more or larger devices, or a smaller --weight-dtype or --kv-dtype"
    )


def estimate(replica: Replica, load: Load) -> Estimate:
    """Return latency and throughput of the replica under the load, without the warm-up.

    The load is simulated on the step times of the replica, as in every other prediction.
    """
    network = replica.spec.network
    refuse_prefixes(network, load.prefix_hit_fraction)
    generated = load.output_tokens if network.generates else 0
    check_load(load, served_context_tokens(replica.spec), generated)
    outcome, warm = _steady_run(replica, load)
    _refuse_unserved(outcome, replica, load)
    steady = _steady(outcome, warm, closed=load.concurrency is not None)
    mean_s, saturated = float(np.mean(outcome.e2e_s[steady])), False
    if load.concurrency is not None:
        rate = load.concurrency / mean_s
    else:
        assert load.request_rate is not None
        saturated = _queue_grows(outcome.arrival_s[steady], outcome.ttft_s[steady])
        rate = min(_finished_per_s(outcome, warm), load.request_rate) if saturated else load.request_rate
    in_engine = outcome.batch_mean
    rows = breakdown_of(replica, load, in_engine)
    return Estimate(
        ttft_s=spread(outcome.ttft_s[steady]),
        tpot_s=spread(outcome.tpot_s[steady]),
        e2e_s=spread(outcome.e2e_s[steady]),
        output_tokens_per_s=rate * generated,
        total_tokens_per_s=rate * (generated + load.input_tokens),
        requests_per_s=rate,
        output_tokens_per_s_per_gpu=rate * generated / replica.spec.devices,
        concurrency=rate * mean_s,
        bottleneck=bottleneck_of(rows, load.output_tokens, in_engine),
        breakdown=tuple(
            sorted((*rows, front_end_of(replica, load)), key=lambda row: row.phase, reverse=True)
        ),
        saturated=saturated,
        kv_occupancy_fraction=0.0 if network.bidirectional else outcome.kv_occupancy_mean,
        preemptions=outcome.preemptions,
    )


def _steady_run(replica: Replica, load: Load) -> tuple[Outcome, int]:
    """Return a run that is long next to its responses, and how many of its first requests are warm-up."""
    from capplan.serving.simulator import simulate

    in_flight = 0.0
    while True:
        requests, warm = requests_for(load, in_flight)
        outcome = simulate(requests, replica.engine, concurrency=load.concurrency)
        longer = (
            (load.request_rate or 0.0) * float(np.nanmean(outcome.e2e_s)) if outcome.finished.any() else 0.0
        )
        enough = RESPONSES_SEEN * longer <= len(requests) or len(requests) >= MOST_REQUESTS
        if load.request_rate is None or load.requests is not None or enough:
            return outcome, warm
        in_flight = 1.25 * max(longer, in_flight)


def _steady(outcome: Outcome, warm: int, *, closed: bool) -> NDArray[np.bool_]:
    """Return which requests are of the steady state: sent after the warm-up, and in a closed loop before the last ones, as many as are in flight.

    All requests after the warm-up count if there are no others.
    """
    arrival = outcome.arrival_s
    sent = (np.arange(arrival.size) >= warm) & outcome.finished
    if not closed or 2 * warm >= arrival.size:
        return sent
    begin, end = closed_loop_time_s(arrival, warm)
    seen = (arrival >= begin) & (arrival <= end) & outcome.finished
    return seen if seen.any() else sent


def _queue_grows(arrival_s: Array, ttft_s: Array) -> bool:
    """Return whether requests wait the longer the later they come: the least-squares slope of the wait is above GROWTH, and it doubles."""
    if arrival_s.size < 8 or arrival_s[0] == arrival_s[-1]:
        return False
    span_s = float(arrival_s[-1])
    growth_s = float(np.polyfit(arrival_s / span_s, ttft_s, 1)[0])
    quarter = arrival_s.size // 4
    first, last = float(np.mean(ttft_s[:quarter])), float(np.mean(ttft_s[-quarter:]))
    return growth_s > GROWTH * span_s and last > 2.0 * first


def _finished_per_s(outcome: Outcome, warm: int) -> float:
    """Return the requests that finish per second from the first arrival after the warm-up to the last arrival."""
    ends = outcome.arrival_s + outcome.e2e_s
    begin, end = float(outcome.arrival_s[warm]), float(outcome.arrival_s[-1])
    return float(np.sum((ends > begin) & (ends <= end))) / (end - begin)
