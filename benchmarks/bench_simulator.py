"""How many simulated requests per second one core reaches, and how much memory a long trace takes.

python benchmarks/bench_simulator.py [--requests 100000] [--long 1000000, 0 leaves it out]
"""

import argparse
import resource
import time
from dataclasses import replace
from typing import Any

import numpy as np

from capplan.engine.profile import Scheduling
from capplan.serving.block_cache import OffloadTier, PrefixCaching
from capplan.serving.fleet_simulator import simulate_fleet
from capplan.serving.requests import Admission, ClosedLoopUsers, Requests
from capplan.serving.simulator import simulate
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup, Hedging

TARGET_REQUESTS_PER_S = 20_000
TARGET_BYTES = 500e6


def chat_table() -> StepTable:
    """Steps of about a 70B model on four H100: 14 ms alone, 25 ms with 128 sequences of 2000 tokens."""
    sequences = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], dtype=float)
    contexts = np.array([0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072], dtype=float)
    tokens = np.array([1, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384], dtype=float)
    past = np.array([0, 1024, 4096, 16384, 65536], dtype=float)
    return StepTable(
        sequence_knots=sequences,
        decode_s=0.013 + 2e-5 * sequences,
        head_s=2e-4 + 1e-6 * sequences,
        context_knots=contexts,
        decode_attention_s=1e-4 + np.outer(sequences, contexts) * 2.6e-8,
        token_knots=tokens,
        mixed_s=np.maximum(0.013, 4e-5 * tokens),
        new_knots=tokens,
        past_knots=past,
        prefill_attention_s=1e-4 + 3e-9 * tokens[:, None] * (tokens[:, None] / 2 + past[None, :]),
        request_s=0.004,
    )


def chat_requests(count: int, seed: int, *, rate: float, start_s: float = 0.0) -> Requests:
    """Poisson arrivals; lognormal prompts of mean 1800 and outputs of mean 350."""
    rng = np.random.default_rng(seed)
    return Requests(
        input_tokens=np.clip(rng.lognormal(7.1, 0.9, count), 8, 16000).astype(np.int64),
        output_tokens=np.clip(rng.lognormal(5.6, 0.7, count), 1, 4000).astype(np.int64),
        arrival_s=start_s + np.cumsum(rng.exponential(1 / rate, count)),
    )


def chats_with_blocks(requests: Requests) -> Requests:
    """Name the blocks of 512 tokens: the leading ones are those of one of 2,000 chats, the last one is new."""
    counts = requests.input_tokens // 512
    chats = np.random.default_rng(5).integers(0, 2000, counts.size)
    starts = np.cumsum(counts) - counts
    place = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    ids = np.repeat(chats, counts) * 1000 + place
    last = np.repeat(counts, counts) - 1 == place
    return replace(
        requests,
        block_ids=np.where(last, 10**9 + np.arange(ids.size), ids),
        block_counts=counts,
    )


def in_two_classes(requests: Requests) -> Requests:
    """Divide requests into those that matter and those that can wait."""
    return replace(requests, class_index=np.arange(len(requests)) % 2)


def policies(quarter: Requests, table: StepTable, mixed: Scheduling) -> None:
    """Print what the other policies cost."""
    engine = EngineSetup(table, mixed, 40_000)
    ranks = Admission(deadline_s=(5.0, 30.0), priority=(0, 1))
    named = chats_with_blocks(quarter)
    tiers = (OffloadTier(20_000, 1e-3, "host"), OffloadTier(100_000, 5e-3, "nvme"))
    rounds = replace(engine, tokens_per_step=2.8, query_tokens=5)
    for name, traffic, used, admission in (
        ("prefix cache by blocks", named, replace(engine, caching=PrefixCaching(512)), Admission()),
        (
            "prefix cache with two tiers",
            named,
            replace(engine, caching=PrefixCaching(512, tiers)),
            Admission(),
        ),
        ("speculation, 2.8 tokens a round", quarter, rounds, Admission()),
        ("priorities and deadlines", in_two_classes(quarter), engine, ranks),
    ):
        begin = time.process_time()
        outcome = simulate(traffic, used, admission=admission)
        seconds = time.process_time() - begin
        print(
            f"{name:34} {len(quarter) / seconds:9.0f} requests/s  batch {outcome.batch_mean:6.1f}  "
            f"TTFT {np.nanmean(outcome.ttft_s):7.3f} s  TPOT {np.nanmean(outcome.tpot_s):6.4f} s  found {outcome.hit_blocks}"
        )


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--long", type=int, default=1_000_000)
    arguments = parser.parse_args()
    table = chat_table()
    mixed = Scheduling("mixed", max_num_seqs=256, max_num_batched_tokens=8192)
    prefill_first = Scheduling("prefill_first", max_num_seqs=256, max_num_batched_tokens=8192)
    requests = chat_requests(arguments.requests, 1, rate=5.0)
    think_s = np.random.default_rng(2).exponential(10.0, len(requests))
    for name, scheduling, crowd in (
        ("open loop, 5/s, mixed", mixed, None),
        ("open loop, 5/s, prefill first", prefill_first, None),
        ("closed loop of 64, mixed", mixed, ClosedLoopUsers(requests, 64)),
        ("closed loop of 256, prefill first", prefill_first, ClosedLoopUsers(requests, 256)),
        ("100 users who think 10 s, mixed", mixed, ClosedLoopUsers(requests, 100, think_s)),
    ):
        begin = time.process_time()
        clocked = requests if crowd is None else None
        outcome = simulate(clocked, EngineSetup(table, scheduling, 40_000), crowd=crowd)
        seconds = time.process_time() - begin
        rate = len(requests) / seconds
        print(
            f"{name:34} {rate:9.0f} requests/s (target {TARGET_REQUESTS_PER_S})  batch {outcome.batch_mean:6.1f}  "
            f"TTFT {np.nanmean(outcome.ttft_s):7.3f} s  TPOT {np.nanmean(outcome.tpot_s):6.4f} s  "
            f"preemptions {outcome.preemptions}"
        )
    quarter = requests.between(0, arguments.requests // 4)
    options: dict[str, Any]
    for name, options in (
        ("four replicas, round robin", {}),
        ("four replicas, least loaded", {"routing": "least_loaded"}),
        ("four replicas, hedged after 500 ms", {"hedging": Hedging(0.5)}),
    ):
        begin = time.process_time()
        run = simulate_fleet(quarter, EngineSetup(table, mixed, 40_000), 4, **options)
        seconds = time.process_time() - begin
        print(
            f"{name:34} {len(quarter) / seconds:9.0f} requests/s  batch {run.outcome.batch_mean:6.1f}  "
            f"TTFT {np.nanmean(run.outcome.ttft_s):7.3f} s  TPOT {np.nanmean(run.outcome.tpot_s):6.4f} s"
        )
    policies(quarter, table, mixed)
    if arguments.long:
        begin = time.process_time()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        simulate(chat_requests(arguments.long, 1, rate=5.0), EngineSetup(table, mixed, 40_000))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            f"{arguments.long} requests in {time.process_time() - begin:.0f} s, peak memory {peak / 1e3:.0f} MB "
            f"(before {before / 1e3:.0f} MB, target {TARGET_BYTES / 1e6:.0f} MB)"
        )


if __name__ == "__main__":
    main()
