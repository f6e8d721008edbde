"""Measured rows of several engines: replicas, pools, shared prompts, stages and rates under limits, as published rows state them."""

from types import SimpleNamespace

import numpy as np
import pytest

from capplan.accuracy.benchmark import benchmark_of
from capplan.accuracy.deployment import deployment_of, routing_named
from capplan.accuracy.replay import arrivals_of, queue_grows
from capplan.accuracy.shared_prompts import conversation_of, shared_prompts_of
from capplan.errors import InputError
from capplan.questions.benchmark_spec import benchmark_servers
from capplan.questions.validation import serving_predictions
from capplan.readers.catalogue.efficiency import shipped_intervals
from tests.tables import table

POOLS = {
    "kind": "online_rate", "disagg": "1", "engine": "vllm", "engine_version": "0.27.1", "model_hf_id": "openai/gpt-oss-120b",
    "weights_dtype": "fp4(mxfp4)", "gpu": "h200-sxm", "num_gpus": "16", "pp": "1", "ep": "1", "dp": "1", "isl": "5000", "osl": "250",
    "request_rate": "45", "replicas": "8P+2D", "stage_s": "20", "n_requests": "900", "ttft_ms_mean": "518", "tpot_ms_mean": "7.378",
    "req_s": "44.27", "stable": "1", "router": "llm-d precise prefix 3, queue 2",
    "config_basis": "prefill 8 x TP1 on one node, decode 2 x TP4 on a second, NIXL over RDMA",
}  # fmt: skip
"""llm-d, guides/pd-disaggregation at 3cfabd6, its cleanest point, with a sixth of its stage."""
SHARED = {
    "kind": "online_rate", "engine": "vllm", "date": "2026-02-17", "model_hf_id": "meta-llama/Llama-2-7b-hf", "weights_dtype": "fp16",
    "gpu": "h100-sxm", "num_gpus": "1", "tp": "1", "isl": "785.84", "osl": "251", "request_rate": "6", "stage_s": "1200", "n_requests": "7200",
    "prefix_tokens": "150", "prefix_groups": "10", "prompts_per_prefix": "10",
    "prefix_state": "100 distinct prompts repeated all stage: whole prompt cached", "max_num_seqs": "128",
    "max_num_batched_tokens": "2048", "ttft_ms_p50": "26.8281", "tpot_ms_p50": "8.1568", "tpot_ms_p95": "9.1", "stable": "1",
}  # fmt: skip
"""inference-sim/training at ed5c1d26, Llama-2-7B, roleplay; arrivals are Poisson with a fixed count."""


def predicted(row):
    (found,) = serving_predictions([row], None, shipped_intervals())
    return {p.metric: p for p in found}


def test_the_layouts_of_pools_are_read_from_the_text_that_states_them():
    prefill, decode = benchmark_of(POOLS).deployment.pools
    assert (prefill[0], float(prefill[1].tensor)) == (8, 1.0)
    assert (decode[0], float(decode[1].tensor)) == (2, 4.0)
    assert benchmark_of({**POOLS, "replicas": "8P(TP1)+2D(TP4)", "config_basis": ""}).deployment.pools == (
        prefill,
        decode,
    )
    with pytest.raises(InputError, match="the pools of '8P\\+2D' have 10 GPUs"):
        benchmark_of({**POOLS, "config_basis": "", "tp": "1"})
    with pytest.raises(InputError, match="does not name one prefill and one decode pool"):
        benchmark_of({**POOLS, "replicas": "P-long DP8 + P-short DP8 + D DP8"})


def test_a_published_run_of_pools_is_predicted():
    found = predicted(POOLS)
    assert found["tpot_ms_mean"].predicted == pytest.approx(7.378, rel=0.2)
    assert found["stable"].predicted == 1.0
    assert found["req_s"].predicted == pytest.approx(44.27, rel=0.1)
    assert found["ttft_ms_mean"].predicted > 150.0


def test_a_stated_front_end_delays_first_tokens_and_no_other():
    own = {**SHARED, "stage_s": "60", "n_requests": "360"}
    plain, behind = predicted(own), predicted({**own, "front_end_ms": "82"})
    assert behind["ttft_ms_p50"].predicted == pytest.approx(plain["ttft_ms_p50"].predicted + 82.0, rel=0.02)
    assert behind["tpot_ms_p50"].predicted == pytest.approx(plain["tpot_ms_p50"].predicted, rel=0.02)
    assert benchmark_of({**own, "front_end_ms": ""}).front_end_s == 0.0


def test_repeated_prompts_are_found_in_the_cache():
    """The published TTFT hardly grows with the prompt: 600 to 1,000 tokens are found. Without that the prompts are computed."""
    cached, computed = predicted(SHARED), predicted({**SHARED, "prefix_state": "prefix caching off"})
    assert cached["ttft_ms_p50"].predicted == pytest.approx(26.8, rel=0.35)
    assert cached["tpot_ms_p50"].predicted == pytest.approx(8.16, rel=0.15)
    assert cached["tpot_ms_p50"].predicted <= cached["tpot_ms_p95"].predicted
    assert computed["ttft_ms_p50"].predicted > 1.2 * cached["ttft_ms_p50"].predicted


def test_a_stage_sends_its_requests_within_its_time():
    times = arrivals_of(benchmark_of(SHARED), 7200)
    assert 0.0 <= times[0] <= times[-1] <= 1200.0
    steady = arrivals_of(benchmark_of({**SHARED, "arrivals": "constant"}), 4)
    assert np.diff(steady) == pytest.approx(1.0 / 6.0)
    with pytest.raises(InputError, match="arrivals"):
        benchmark_of({**SHARED, "arrivals": "bursty"})


def test_a_rate_under_limits_is_the_one_metric_of_its_row():
    row = {
        **SHARED,
        "kind": "online_rate_slo",
        "slo_ttft_ms": "2000",
        "slo_tpot_ms": "60",
        "prefix_tokens": "",
        "stage_s": "60",
        "n_requests": "",
    }
    found = predicted({**row, "osl": "60", "request_rate": "30"})
    assert set(found) == {"request_rate"}
    tight = predicted({**row, "osl": "60", "request_rate": "30", "slo_tpot_ms": "12"})
    assert 0.0 < tight["request_rate"].predicted < found["request_rate"].predicted
    twice = predicted({**row, "osl": "60", "request_rate": "30", "replicas": "2", "num_gpus": "2"})
    assert twice["request_rate"].predicted == pytest.approx(2.0 * found["request_rate"].predicted, rel=0.1)
    with pytest.raises(InputError, match="slo_ttft_ms"):
        benchmark_of({**row, "slo_ttft_ms": "", "slo_tpot_ms": ""})


@table
def test_what_cannot_be_replayed_is_refused_with_its_reason(changed, reason):
    with pytest.raises(InputError, match=reason):
        benchmark_of({**SHARED, **changed})


def test_words_of_routers_and_states_of_caches():
    assert routing_named("Kubernetes Service round robin") == "round_robin"
    assert routing_named("llm-d prefix affinity + load") == "prefix_aware"
    assert routing_named("load only") == "least_loaded"
    seen, unseen = "llm-d precise; CPU index weight 0.4", "llm-d precise; CPU index weight 0.0"
    assert (routing_named(seen), routing_named(unseen)) == ("prefix_aware", "gpu_prefix_aware")
    scores = {
        "replicas": "8",
        "router": "llm-d precise prefix 3, queue 2, kv-util 2; decode active-request 2",
    }
    assert deployment_of(scores, split=False).unshared == "reported_load"
    assert (
        deployment_of({**scores, "router": "SGLang router, prefix"}, split=False).unshared == "least_loaded"
    )
    stated = {"prefix_tokens": "16000", "prefix_groups": "250", "prompts_per_prefix": "5"}
    assert shared_prompts_of({**stated, "prefix_state": "mostly cold"}).warm is False
    assert shared_prompts_of({**stated, "prefix_state": "working set 4.64M tokens"}).warm is True
    assert shared_prompts_of({**stated, "prefix_state": "none: random prompts"}) is None
    own = deployment_of({"replicas": "8", "config_basis": "88 GiB CPU tier", "router": "load"}, split=False)
    assert own.host_cache_bytes == 88 * 2.0**30
    text = "multi-turn: 49,152-token document + 6 turns x 256 in / 256 requested out (mean out 619-625)"
    assert conversation_of({"length_distribution": text}).output_tokens == 622.0


def test_a_queue_grows_where_more_comes_than_is_served():
    steady = predicted({**SHARED, "stage_s": "60", "n_requests": "360"})
    flooded = predicted(
        {
            **SHARED,
            "stage_s": "60",
            "n_requests": "6000",
            "request_rate": "100",
            "prefix_state": "prefix caching off",
            "stable": "0",
        }
    )
    assert (steady["stable"].predicted, flooded["stable"].predicted) == (1.0, 0.0)


def test_a_wait_that_chance_explains_is_no_growing_queue():
    """Of n requests that come at random at full load, the last waits T / sqrt(n) longer than the first, in the standard deviation."""

    def grows(seconds, count):
        sent = np.linspace(0.0, 100.0, count)
        return queue_grows(SimpleNamespace(ttft_s=np.linspace(0.0, seconds, count), arrival_s=sent))

    assert (grows(20.0, 100), grows(25.0, 100)) == (False, True)
    assert (grows(2.0, 10_000), grows(2.5, 10_000)) == (False, True)


def test_of_failed_runs_and_uncounted_responses_saturation_is_predicted():
    row = {**SHARED, "stage_s": "60", "n_requests": "360", "e2e_ms_p50": "2000"}
    failed = predicted({**row, "n_failed": "300"})
    assert failed["stable"].predicted == 1.0
    assert failed["ttft_ms_p50"].predicted is None
    assert failed["ttft_ms_p50"].reason.startswith("n_failed: 83% of the requests failed")
    counted = predicted(row)
    ended = predicted({**row, "osl": "", "flags": "prefix_cached;output_len_unreliable"})
    assert ended["stable"].predicted == 1.0
    assert 0.0 < ended["ttft_ms_p50"].predicted <= counted["ttft_ms_p50"].predicted
    assert ended["e2e_ms_p50"].predicted is ended["tpot_ms_p50"].predicted is None


PULLED = {
    "kind": "online_rate", "engine": "vllm", "engine_version": "0.26.0", "model_hf_id": "openai/gpt-oss-120b",
    "weights_dtype": "fp4(mxfp4)", "gpu": "h200-sxm", "num_gpus": "16", "replicas": "16", "tp": "1", "isl": "49408", "osl": "64",
    "request_rate": "24", "n_requests": "700", "stage_s": "29.2", "prefix_tokens": "49152", "prefix_groups": "128",
    "prefix_state": "recomputed on most requests", "config_basis": "88 GiB CPU tier", "source_family": "llm-d",
}  # fmt: skip
"""llm-d, guides/p2p-kv-cache-sharing at 067fe1b, uniform pool: 24 requests/s saturate a router by load, and not if engines pull prompts."""


def test_engines_that_pull_prompts_from_each_other_serve_more():
    state = {"prefix_state": "pulled from a peer or local", "stable": "1", "e2e_ms_p50": "700"}
    pulls = predicted({**PULLED, **state, "router": "load + pull"})
    alone = predicted({**PULLED, "router": "load only", "stable": "0", "e2e_ms_p50": "40000"})
    assert (pulls["stable"].predicted, alone["stable"].predicted) == (1.0, 0.0)
    assert pulls["e2e_ms_p50"].predicted == pytest.approx(700.0, rel=0.5)


def test_a_published_launch_file_states_the_memory_of_the_engines():
    """KV tokens of an engine as its page states them: 1.22 million, with the launch file's share of memory and context."""
    replica = benchmark_servers(benchmark_of(PULLED)).replica
    assert replica.spec.max_model_len == 65536
    assert replica.memory.kv_cache_tokens == pytest.approx(1.22e6, rel=0.05)
