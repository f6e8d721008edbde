"""Launch settings by model, device and day, against what the scripts of InferenceX say at that commit (url in recipes.yaml)."""

from dataclasses import replace

import pytest

from capplan.accuracy.benchmark import benchmark_of
from capplan.engine.lookup import ENGINES
from capplan.questions.benchmark_spec import benchmark_network, benchmark_spec, recipe_limits
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.recipes import recipe_file, recipe_settings, script_change

ROW = {
    "kind": "online_conc", "source_family": "inferencex", "kv_dtype": "auto", "num_gpus": "8", "tp": "8",
    "isl": "921.6", "osl": "921.6", "length_distribution": "uniform[0.8,1]", "concurrency": "64",
}  # fmt: skip

SEVENTY_B = {"model_hf_id": "meta-llama/Llama-3.1-70B", "weights_dtype": "fp8", "gpu": "h200-sxm", "date": "2025-10-29"}  # fmt: skip
R1 = {
    "engine": "sglang",
    "model_hf_id": "deepseek-ai/DeepSeek-R1-0528",
    "weights_dtype": "fp8",
    "gpu": "b200",
}
GPTOSS = {"model_hf_id": "openai/gpt-oss-120b", "weights_dtype": "fp4(mxfp4)"}
M25 = {"engine": "vllm", "model_hf_id": "MiniMaxAI/MiniMax-M2.5", "gpu": "b200"}


def row(*parts, **columns):
    merged = dict(ROW)
    for part in (*parts, columns):
        merged |= part
    return benchmark_of(merged)


def settings(*parts, **columns):
    return recipe_settings(row(*parts, **columns)).model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("found", "stated"),
    [
        (settings(SEVENTY_B, engine="vllm"), {"asynchronous": True, "kv_dtype": "fp8", "max_num_seqs": "clients", "max_num_batched_tokens": 8192, "memory_fraction": 0.9}),
        (settings(SEVENTY_B, engine="vllm", gpu="b200"), {"asynchronous": True, "kv_dtype": "fp8", "max_num_seqs": 512, "max_num_batched_tokens": 8192, "memory_fraction": 0.9, "graph_tokens": 0}),
        (settings(SEVENTY_B, engine="trtllm"), {"kv_dtype": "fp8", "max_num_batched_tokens": 16384}),
        (settings(SEVENTY_B, engine="trtllm", tp="2", num_gpus="2"), {"kv_dtype": "fp8", "max_num_batched_tokens": 16384, "hold_steps": 20, "hold_share": 0.9}),
        (settings(R1, date="2025-12..2026-01"), {"kv_dtype": "fp8", "max_num_seqs": 128, "max_num_batched_tokens": 32768, "memory_fraction": 0.82, "poll_steps": 30, "expert_kernel": "trtllm"}),
        (settings(R1, date="2026-02-07", tp="4", num_gpus="4", concurrency="8"), {"kv_dtype": "fp8", "max_num_seqs": 32, "max_num_batched_tokens": 8192, "memory_fraction": 0.95, "poll_steps": 10, "expert_kernel": "trtllm"}),
        (settings(R1, gpu="h200-sxm", date="2026-03-25"), {"max_num_seqs": 512, "max_num_batched_tokens": 32768, "memory_fraction": 0.82}),
        (settings(R1, gpu="h200-sxm", date="2026-03-25", isl="7372.8"), {"max_num_seqs": 256, "max_num_batched_tokens": 32768, "memory_fraction": 0.82}),
        (settings(GPTOSS, engine="vllm", gpu="b200", date="2025-11-02"), {"asynchronous": True, "max_num_seqs": 512, "max_num_batched_tokens": 8192, "memory_fraction": 0.9, "graph_tokens": 2048}),
        (settings(GPTOSS, engine="vllm", gpu="b200", date="2026-02-25"), {"asynchronous": True, "kv_dtype": "fp8", "max_num_seqs": 512, "max_num_batched_tokens": 8192, "memory_fraction": 0.9, "graph_tokens": 2048}),
        (settings(GPTOSS, engine="vllm", gpu="h100", date="2026-03-27"), {"asynchronous": True, "max_num_seqs": "clients", "max_num_batched_tokens": 8192, "memory_fraction": 0.9, "graph_tokens": 2048, "expert_kernel": "marlin"}),
        (settings(M25, weights_dtype="fp8", date="2026-03-28"), {"memory_fraction": 0.95, "expert_kernel": "triton", "expert_parallel": True}),
        (settings(M25, weights_dtype="fp8", date="2026-04-03"), {"kv_dtype": "fp8", "memory_fraction": 0.9, "max_num_batched_tokens": "two_prompts", "graph_tokens": 2048}),
        (settings(M25, weights_dtype="fp4", date="2026-04-22"), {"kv_dtype": "fp8", "memory_fraction": 0.9, "max_num_batched_tokens": "two_prompts", "graph_tokens": 2048}),
    ],
)  # fmt: skip
def test_open_rows_are_started_as_their_script_said(found, stated):
    assert found == stated


@pytest.mark.parametrize(
    ("columns", "stated"),
    [
        ({"engine": "sglang", "model_hf_id": "Qwen/Qwen3.5-397B-A17B-FP8", "gpu": "b200", "date": "2026-03-10"}, ("fp8", 0.82, 128, 32768)),
        ({"engine": "sglang", "model_hf_id": "Qwen/Qwen3.5-397B-A17B-FP8", "gpu": "b200", "date": "2026-05-05"}, ("fp8", 0.8, None, 16384)),
        ({"engine": "sglang", "model_hf_id": "Qwen/Qwen3.5-397B-A17B", "gpu": "b300", "date": "2026-05-05"}, (None, 0.82, 128, 32768)),
        ({"engine": "sglang", "model_hf_id": "zai-org/GLM-5-FP8", "gpu": "b200", "date": "2026-03-25"}, ("fp8", 0.85, "clients", 32768)),
        ({"engine": "sglang", "model_hf_id": "nvidia/GLM-5-NVFP4", "gpu": "b300", "date": "2026-05"}, ("fp8", 0.9, None, 32768)),
        ({"engine": "vllm", "model_hf_id": "moonshotai/Kimi-K2.5", "gpu": "h200", "date": "2026-03-05"}, (None, 0.95, "clients", None)),
        ({"engine": "vllm", "model_hf_id": "nvidia/Kimi-K2.5-NVFP4", "gpu": "b200", "date": "2026-05-05"}, ("fp8", 0.9, "clients", "two_prompts")),
        ({"engine": "vllm", "model_hf_id": "MiniMaxAI/MiniMax-M3-MXFP8", "gpu": "b300", "date": "2026-07-01"}, ("fp8", 0.9, None, "two_prompts")),
        ({"engine": "vllm", "model_hf_id": "deepseek-ai/DeepSeek-V4-Pro", "gpu": "b200", "date": "2026-05-05", "isl": "7372.8"}, ("fp8", None, None, 8192)),
        ({"engine": "trtllm", "model_hf_id": "nvidia/DeepSeek-R1-0528-FP4-V2", "gpu": "b200", "date": "2025-12-15"}, ("fp8", 0.8, None, "prompt_and_clients")),
        ({"engine": "sglang", "model_hf_id": "deepseek-ai/DeepSeek-R1-0528", "gpu": "mi300x", "date": "2026-01-05"}, (None, 0.8, None, 196608)),
    ],
)  # fmt: skip
def test_models_without_open_rows_are_started_as_their_script_said(columns, stated):
    found = recipe_settings(row(columns, weights_dtype="auto"))
    assert (found.kv_dtype, found.memory_fraction, found.max_num_seqs, found.max_num_batched_tokens) == stated


def test_every_launch_names_things_that_exist_and_stands_once():
    (family,) = recipe_file().scripts
    served = [tuple(launch.rows.model_dump().values()) for launch in family.launches]
    assert len(served) == len(set(served)) >= 100
    for launch in family.launches:
        assert launch.rows.engine in ENGINES
        assert device(launch.rows.device).name == launch.rows.device
        days = [change.since for change in launch.changes]
        assert days == sorted(set(days))
        assert days
    assert {launch.rows.model for launch in family.launches} == set(family.models)
    for model in (
        "Qwen/Qwen3.5-397B-A17B",
        "moonshotai/Kimi-K2.5",
        "zai-org/GLM-5",
        "deepseek-ai/DeepSeek-V4-Pro",
    ):
        assert benchmark_network(model, "auto").layers


def test_a_row_takes_the_newest_change_by_its_day():
    days = ("2025-01", "2025-09-22", "2025-09-23", "2026-01", "2026-01-12", "")
    found = [script_change(row(R1, date=day)).since for day in days]
    assert found == ["2025-09-15", "2025-09-15", "2025-09-23", "2026-01-13", "2025-09-23", "2026-01-13"]
    assert script_change(row(R1, date="2026-01", source_family="mine")) is None
    assert script_change(row(R1, date="2026-01", gpu="l4")) is None
    distilled = {"model_hf_id": "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"}
    assert script_change(row(R1, distilled, date="2026-01")) is None


def test_limits_in_words_by_hand():
    """(8192 + 64 clients + 64 tokens) is 130 whole 64s; SGLang shares its limits out to the groups of attention."""
    long_prompts = row(R1, engine="trtllm", date="2025-12-15", isl="7372.8")
    assert recipe_limits(recipe_settings(long_prompts), long_prompts) == (None, 130 * 64)
    whole = row(R1, date="2026-01-20")
    assert recipe_limits(recipe_settings(whole), whole) == (128, 32768)
    grouped = replace(whole, sharding=replace(whole.sharding, tensor=1.0, data=8.0, expert=8.0))
    assert recipe_limits(recipe_settings(grouped), grouped) == (16, 4096)


def test_a_script_reaches_the_replica_of_a_model_without_open_rows():
    spec = benchmark_spec(
        row({"engine": "vllm", "model_hf_id": "nvidia/Kimi-K2.5-NVFP4", "gpu": "b200", "date": "2026-05-05", "weights_dtype": "fp4"})
    )  # fmt: skip
    assert (spec.kv_format, spec.max_num_seqs, spec.max_num_batched_tokens) == ("fp8", 64, 2048)
    assert spec.gpu_memory_utilization == 0.9


def test_a_script_that_runs_attention_in_groups_by_itself_says_so():
    """dsr1_fp8_b200_trt_slurm.sh at ec90f3f: enable_attention_dp from 65 clients on; rows of that day count no groups."""
    r1 = {"engine": "trtllm", "date": "2025-11-02", "concurrency": "256"}
    spec = benchmark_spec(row(R1, r1))
    assert (spec.sharding.tensor, spec.sharding.data, spec.sharding.expert) == (1.0, 8.0, 8.0)
    few = benchmark_spec(row(R1, r1, concurrency="8"))
    assert (few.sharding.tensor, few.sharding.data, few.sharding.expert) == (8.0, 1.0, 8.0)
