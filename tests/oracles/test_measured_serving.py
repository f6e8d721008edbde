"""Measured runs of vLLM, replayed request by request: `python tests/oracles/test_measured_serving.py docs/evidence/measured-runs.md` writes the figures.

Logs of 300 ShareGPT requests at 10 per second on RTX PRO 6000 and RTX 4090 (casys-kaist/LLMServingSim, commit 5daddb2, bench/examples,
vLLM 0.19.0), and the saturated stages of inference-perf on an H100-80GB (kubernetes-sigs/inference-perf, commit 7de5ef2,
demos/kubecon-na-2025, Llama-3.1-8B-Instruct, at most 440 requests in flight).
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from calibrate.choose_traces import log_records, stage_records
from capplan.fleet.engine_options import EngineOptions
from capplan.fleet.simulation import ENGINE_DEFAULTS, Stream, simulated_fleet
from capplan.fleet.sweep import middle_rate
from capplan.recorded.traces.trace import read_trace
from capplan.replica.replica import replica_of
from capplan.replica.speculation import DraftPlan
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.serving.requests import ClosedLoopUsers, Requests
from capplan.workload.request_class import Slo

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
"""The logs as they were published; in a clone alone tests/data has the requests, the launches and the means."""

LOGS = {
    "RTXPRO6000_Llama-3.1-8B": ("llama-3.1-8b", "rtx-pro-6000-workstation"),
    "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507": (
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "rtx-pro-6000-workstation",
    ),
    "RTXPRO6000_Qwen3-32B": ("Qwen/Qwen3-32B", "rtx-pro-6000-workstation"),
    "RTX4090_Llama-3.1-8B": ("llama-3.1-8b", "rtx-4090"),
}
IN_FLIGHT = 440
OFFERED_PER_S = 250.0
"""The requests of a stage come faster than any configuration serves them (its rate is not in the file), until as many are in flight as the client allows."""
STAGES = {
    "vllm": (128, "0.11.0", 0),
    "vllm_batch_size": (192, "0.11.0", 0),
    "vllm_chunking_and_prefix_caching": (128, "0.11.0", 192),
    "vllm_quantization": (128, "0.11.0", 192),
    "vllm_v0_engine": (128, "0.7.3", 0),
}
"""Configuration -> max_num_seqs, version, prompt tokens in the cache. A hundred prompts are sent over and over, so all their
whole blocks are found. The quantisation is the configuration before it: its manifest passes "--quantization bitsandbytes" as one
word, and both run at the same rate. 0.9.0 with VLLM_USE_V1=0 is the first engine, whose last version here is 0.7. EAGLE is
apart, for neither how many drafts were accepted nor what they cost was measured."""
EAGLE_DRAFT_TOKENS = 4


def logged_requests(name):
    """Return the requests of a log as they came."""
    return read_trace(TRACES / "llmservingsim_vllm" / f"{name}_requests.jsonl").requests()


def planned_requests(log, rows):
    """Return the requests that the client of a log was to send; they came up to 37 ms apart from that."""
    columns = ("arrival_s", f"{log['requests']}_input_tokens", f"{log['requests']}_output_tokens")
    arrivals, prompts, answers = (np.array([float(row[name]) for row in rows]) for name in columns)
    return Requests(prompts.astype(np.int64), answers.astype(np.int64), arrivals - arrivals[0])


def replayed_log(log, requests):
    """Return measured and simulated mean TTFT and TPOT [s] of one log."""
    model, hardware = LOGS[log["log"]]
    limits = {
        name: int(log[name])
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
        if log[name]
    }
    spec = asked_replica(
        model,
        hardware,
        ServingFlags(
            tensor_parallel=int(log["tensor_parallel"]),
            data_parallel=int(log["data_parallel"]),
            expert_parallel=int(log["expert_parallel"]),
            engine_version=log["engine_version"],
            offline=True,
            **limits,
        ),
    ).spec
    use = EngineOptions(reuse_preempted=log["prefix_caching"] == "yes")
    found = simulated_fleet(replica_of(spec), Stream(requests, ("sharegpt",)), slo=Slo(), use=use)
    return float(log["ttft_s"]), found.all.ttft_s.mean, float(log["tpot_s"]), found.all.tpot_s.mean


def saturated_rate(stages, name):
    """Return measured and simulated requests per second with as many in flight as the client allows."""
    sequences, version, cached = STAGES[name]
    rates = [float(row["req_per_s"]) for row in stages if row["config"] == name and int(row["stage"]) >= 5]
    found = closed_loop(sequences, version, cached, IN_FLIGHT)
    return float(np.mean(rates)), middle_rate(found.parts[0])


def closed_loop(sequences, version, cached, clients, use=ENGINE_DEFAULTS):
    """Return what the H100 does with so many of the benchmark's requests in flight."""
    spec = asked_replica(
        "llama-3.1-8b-instruct",
        "h100-sxm",
        ServingFlags(
            engine_version=version,
            max_model_len=512,
            max_num_seqs=sequences,
            gpu_memory_utilization=0.9,
            offline=True,
        ),
    ).spec
    count = 6000 if clients > 1 else 50
    prompts, answers = np.full(count, 204), np.full(count, 62)
    held = np.full(count, cached) if cached else None
    asked, begun = Requests(prompts, answers, cached_tokens=held), np.arange(count)
    begin_s = np.where(begun < clients, begun / OFFERED_PER_S, 0.0)
    stream = Stream(None, ("chat",), crowd=ClosedLoopUsers(asked, clients, begin_s))
    return simulated_fleet(replica_of(spec), stream, slo=Slo(), use=use)


def saturated_eagle(table):
    """Return measured and simulated requests per second of EAGLE if no draft is accepted.

    Then what a draft costs is told by the stage with one request a second, whose streams are as slow as rounds. (The time per
    token of the file counts chunks twice; from the first token to the last it is the latency without TTFT over the tokens.)
    """
    stages = [row for row in table if row["config"] == "vllm_eagle"]
    alone, last = stages[0], stages[-1]
    round_s = (float(alone["latency_p50_s"]) - float(alone["ttft_p50_s"])) / (float(alone["output_mean"]) - 1)
    sequences, version, cached = STAGES["vllm_chunking_and_prefix_caching"]

    def eagle(draft_s, clients):
        use = EngineOptions(drafting=DraftPlan("eagle", (0.0,), EAGLE_DRAFT_TOKENS, step_s=draft_s))
        return closed_loop(sequences, version, cached, clients, use)

    free_s = eagle(0.0, 1).all.tpot_s.mean
    found = eagle((round_s - free_s) / EAGLE_DRAFT_TOKENS, IN_FLIGHT)
    return float(last["req_per_s"]), middle_rate(found.parts[0])


BOUNDS = {
    "RTXPRO6000_Llama-3.1-8B": (0.10, 0.20),
    "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507": (0.18, None),
    "RTXPRO6000_Qwen3-32B": (0.28, 0.34),
    "RTX4090_Llama-3.1-8B": (0.28, 0.23),
}
"""Largest errors of mean TPOT and mean TTFT, as found with a little room. The aim is 15 % and 30 %; where it is missed, no kernel
and no link of the device was measured: both cards borrow the efficiencies of a relative, and two of them talk over PCIe. Where the
queue is empty in the one and not in the other, TTFT has no meaning as a ratio (None). See docs/evidence/measured-runs.md."""
RATE_BOUNDS = {
    "vllm": 0.02,
    "vllm_batch_size": 0.02,
    "vllm_chunking_and_prefix_caching": 0.11,
    "vllm_quantization": 0.11,
    "vllm_v0_engine": 0.16,
}
"""Largest errors of the saturated rate. Prompts that are found in the cache leave the host as the limit, which is known less than
the kernels; the first engine ran here in a later version than the last that is known."""


@pytest.mark.parametrize("name", LOGS)
def test_a_measured_log_is_replayed(measured, name):
    (log,) = (row for row in measured.table("served_logs") if row["log"] == name)
    planned = planned_requests(log, measured.table("served_requests"))
    ttft, simulated_ttft, tpot, simulated_tpot = replayed_log(
        log, logged_requests(name) if measured.whole else planned
    )
    tpot_bound, ttft_bound = BOUNDS[name]
    assert simulated_tpot == pytest.approx(tpot, rel=tpot_bound)
    if ttft_bound is not None:
        assert simulated_ttft == pytest.approx(ttft, rel=ttft_bound)


def test_saturated_rates_on_an_h100_and_their_order(measured):
    """Each rate within its bound, and the configurations in the measured order."""
    stages = measured.table("served_stages")
    found = {name: saturated_rate(stages, name) for name in STAGES}
    for name, (was, simulated) in found.items():
        assert simulated == pytest.approx(was, rel=RATE_BOUNDS[name]), name
    groups = [
        {"vllm_v0_engine"},
        {"vllm"},
        {"vllm_batch_size"},
        {"vllm_chunking_and_prefix_caching", "vllm_quantization"},
    ]
    for which in (0, 1):
        rates = [{found[name][which] for name in group} for group in groups]
        assert all(max(low) < min(high) for low, high in pairwise(rates))


def test_drafts_that_nobody_accepts_cost_what_they_cost_alone(measured):
    """EAGLE leaves 40 % of the rate of the configuration without it, which is itself 10 % high; within 18 % if no draft is accepted."""
    stages = measured.table("served_stages")
    was, simulated = saturated_eagle(stages)
    assert simulated == pytest.approx(was, rel=0.18)
    assert simulated < 0.45 * saturated_rate(stages, "vllm_chunking_and_prefix_caching")[1]


NAMES = {
    "vllm": "Llama-3.1-8B, H100-80GB, vLLM 0.11.0, 128 sequences, saturated",
    "vllm_batch_size": "the same, 192 sequences",
    "vllm_chunking_and_prefix_caching": "the same, 128 sequences, prefix caching",
    "vllm_quantization": "the same with a quantisation that was not switched on",
    "vllm_v0_engine": "vLLM 0.9.0 with the first engine, 128 sequences",
    "vllm_eagle": "vLLM 0.11.0 with EAGLE-3, four drafts, none accepted",
    "RTXPRO6000_Llama-3.1-8B": "Llama-3.1-8B, RTX PRO 6000, 300 requests at 10/s",
    "RTX4090_Llama-3.1-8B": "Llama-3.1-8B, RTX 4090, the same requests",
    "RTXPRO6000_Qwen3-32B": "Qwen3-32B, two RTX PRO 6000 in TP2",
    "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507": "Qwen3-30B-A3B, two RTX PRO 6000 in DP2 with EP2",
}
"""How docs/evidence/measured-runs.md calls them."""
BEGIN, END = "<!-- measured runs -->", "<!-- end of measured runs -->"


def figures():
    """Return all runs as a Markdown table."""
    logs = {row["log"]: row for row in log_records(TRACES)}
    stages = stage_records(TRACES)
    lines = ["| run | measured | simulated | |", "| --- | --- | --- | --- |"]
    for name, words in NAMES.items():
        if name in LOGS:
            was_ttft, is_ttft, was_tpot, is_tpot = replayed_log(logs[name], logged_requests(name))
            off = f"{is_tpot / was_tpot - 1:+.0%}".replace("%", " %")
            lines.append(f"| {words}, mean TPOT | {was_tpot * 1e3:.1f} ms | {is_tpot * 1e3:.1f} ms | {off} |")
            off = f"{is_ttft / was_ttft - 1:+.0%}".replace("%", " %")
            lines.append(f"| the same, mean TTFT | {was_ttft:.2f} s | {is_ttft:.2f} s | {off} |")
        else:
            was, now = saturated_rate(stages, name) if name in STAGES else saturated_eagle(stages)
            off = f"{now / was - 1:+.0%}".replace("%", " %")
            lines.append(f"| {words} | {was:.1f} req/s | {now:.1f} req/s | {off} |")
    return "\n".join(lines)


if __name__ == "__main__":
    table = figures()
    print(table)
    for page in map(Path, sys.argv[1:]):
        before, rest = page.read_text().split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")
