"""Measured runs of vLLM, replayed request by request: `python tests/oracles/test_measured_serving.py docs/simulation.md` writes the figures.

Logs of 300 ShareGPT requests at 10 per second on RTX PRO 6000 and RTX 4090 (casys-kaist/LLMServingSim, commit 5daddb2, bench/examples,
vLLM 0.19.0), and the saturated stages of inference-perf on an H100-80GB (kubernetes-sigs/inference-perf, commit 7de5ef2,
demos/kubecon-na-2025, Llama-3.1-8B-Instruct, at most 440 requests in flight).
"""

import csv
import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from capplan.fleet.engine_use import Drafting, EngineUse
from capplan.fleet.simulation import BY_ITSELF, Stream, simulated_fleet
from capplan.fleet.sweep import middle_rate
from capplan.questions.flags import ServingFlags
from capplan.questions.replica import asked_replica
from capplan.readers.traces.trace import read_trace
from capplan.replica.replica import replica_of
from capplan.serving.requests import Requests
from capplan.workload.slo import Slo

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
HERE = pytest.mark.skipif(not TRACES.is_dir(), reason="the measured runs are not beside the repository")

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


def replayed_log(name):
    """Return measured and simulated mean TTFT and TPOT [s] of one log."""
    model, hardware = LOGS[name]
    path = TRACES / "llmservingsim_vllm" / f"{name}_requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ttft = np.mean([row["first_token_ts"] - row["queued_ts"] for row in rows])
    tpot = np.mean(
        [(row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in rows]
    )
    meta = json.loads((TRACES / "llmservingsim_vllm" / f"{name}_meta.json").read_text())
    asked = meta["engine_kwargs"]
    groups = asked["data_parallel_size"]
    spec = asked_replica(
        model,
        hardware,
        ServingFlags(
            tensor_parallel=asked["tensor_parallel_size"],
            data_parallel=groups,
            expert_parallel=groups if asked["enable_expert_parallel"] else 1,
            engine_version=meta["vllm_version"],
            max_model_len=asked["max_model_len"],
            max_num_seqs=asked["max_num_seqs"],
            max_num_batched_tokens=asked["max_num_batched_tokens"],
            offline=True,
        ),
    ).spec
    trace = read_trace(path)
    use = EngineUse(reuse_preempted=meta.get("kv_cache", {}).get("enable_prefix_caching", False))
    found = simulated_fleet(replica_of(spec), Stream(trace.requests(), ("sharegpt",)), slo=Slo(), use=use)
    return ttft, found.all.ttft_s.mean, tpot, found.all.tpot_s.mean


def saturated_rate(name):
    """Return measured and simulated requests per second with as many in flight as the client allows."""
    sequences, version, cached = STAGES[name]
    rates = [float(row["req_per_s"]) for row in measured_stages(name) if int(row["stage"]) >= 5]
    found = closed_loop(sequences, version, cached, IN_FLIGHT)
    return float(np.mean(rates)), middle_rate(found.parts[0])


def measured_stages(name):
    """Return the stages of one configuration, each at its own rate."""
    with (TRACES / "inference_perf_h100_summary.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["config"] == name]


def closed_loop(sequences, version, cached, clients, use=BY_ITSELF):
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
    stream = Stream(Requests(prompts, answers, cached_tokens=held), ("chat",), concurrency=clients)
    return simulated_fleet(replica_of(spec), stream, slo=Slo(), use=use)


def saturated_eagle():
    """Return measured and simulated requests per second of EAGLE if no draft is accepted.

    Then what a draft costs is told by the stage with one request a second, whose streams are as slow as rounds. (The time per
    token of the file counts chunks twice; from the first token to the last it is the latency without TTFT over the tokens.)
    """
    stages = measured_stages("vllm_eagle")
    alone, last = stages[0], stages[-1]
    round_s = (float(alone["latency_p50_s"]) - float(alone["ttft_p50_s"])) / (float(alone["output_mean"]) - 1)
    sequences, version, cached = STAGES["vllm_chunking_and_prefix_caching"]

    def eagle(draft_s, clients):
        use = EngineUse(drafting=Drafting(draft_s, 0.0, EAGLE_DRAFT_TOKENS))
        return closed_loop(sequences, version, cached, clients, use)

    free_s = eagle(0.0, 1).all.tpot_s.mean
    found = eagle((round_s - free_s) / EAGLE_DRAFT_TOKENS, IN_FLIGHT)
    return float(last["req_per_s"]), middle_rate(found.parts[0])


BOUNDS = {
    "RTXPRO6000_Llama-3.1-8B": (0.15, 0.30),
    "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507": (0.35, None),
    "RTXPRO6000_Qwen3-32B": (0.35, 0.60),
    "RTX4090_Llama-3.1-8B": (0.30, 0.30),
}
"""Largest errors of mean TPOT and mean TTFT. The aim is 15 % and 30 %; where it is missed, no kernel and no link of the device
was measured: both cards borrow the efficiencies of a relative, and two of them talk over PCIe. Where the queue is empty in the one
and not in the other, TTFT has no meaning as a ratio (None). See docs/simulation.md."""


@HERE
@pytest.mark.parametrize("name", LOGS)
def test_a_measured_log_is_replayed(name):
    ttft, simulated_ttft, tpot, simulated_tpot = replayed_log(name)
    tpot_bound, ttft_bound = BOUNDS[name]
    assert simulated_tpot == pytest.approx(tpot, rel=tpot_bound)
    if ttft_bound is not None:
        assert simulated_ttft == pytest.approx(ttft, rel=ttft_bound)


@HERE
def test_saturated_rates_on_an_h100_and_their_order():
    """Each rate within 25 %, and the configurations in the measured order."""
    found = {name: saturated_rate(name) for name in STAGES}
    for measured, simulated in found.values():
        assert simulated == pytest.approx(measured, rel=0.25)
    groups = [
        {"vllm_v0_engine"},
        {"vllm"},
        {"vllm_batch_size"},
        {"vllm_chunking_and_prefix_caching", "vllm_quantization"},
    ]
    for which in (0, 1):
        rates = [{found[name][which] for name in group} for group in groups]
        assert all(max(low) < min(high) for low, high in pairwise(rates))


@HERE
def test_drafts_that_nobody_accepts_cost_what_they_cost_alone():
    """EAGLE halves the rate of the configuration without it; within 25 % if none of its drafts is accepted."""
    measured, simulated = saturated_eagle()
    assert simulated == pytest.approx(measured, rel=0.25)
    assert simulated < 0.6 * saturated_rate("vllm_chunking_and_prefix_caching")[1]


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
"""How docs/simulation.md calls them."""
BEGIN, END = "<!-- measured runs -->", "<!-- end of measured runs -->"


def figures():
    """Return all runs as a Markdown table."""
    lines = ["| run | measured | simulated | |", "| --- | --- | --- | --- |"]
    for name, words in NAMES.items():
        if name in LOGS:
            was_ttft, is_ttft, was_tpot, is_tpot = replayed_log(name)
            off = f"{is_tpot / was_tpot - 1:+.0%}".replace("%", " %")
            lines.append(f"| {words}, mean TPOT | {was_tpot * 1e3:.1f} ms | {is_tpot * 1e3:.1f} ms | {off} |")
            off = f"{is_ttft / was_ttft - 1:+.0%}".replace("%", " %")
            lines.append(f"| the same, mean TTFT | {was_ttft:.2f} s | {is_ttft:.2f} s | {off} |")
        else:
            was, now = saturated_rate(name) if name in STAGES else saturated_eagle()
            off = f"{now / was - 1:+.0%}".replace("%", " %")
            lines.append(f"| {words} | {was:.1f} req/s | {now:.1f} req/s | {off} |")
    return "\n".join(lines)


if __name__ == "__main__":
    table = figures()
    print(table)
    for page in map(Path, sys.argv[1:]):
        before, rest = page.read_text().split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")
