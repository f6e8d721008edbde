"""Is a cache that nobody asks for in the dtype that the engine takes by itself, and do as many sequences run as it admits?

vLLM 0.33: `_resolve_dsv4_kv_cache_dtype` (vllm/models/deepseek_v4/attention.py), `GlmMoeDsaForCausalLM` and `Glm5NextModelConfig`
(vllm/model_executor/models/config.py), `_canonicalize_sparse_mla_kv_cache_dtype` (layers/attention/mla_attention.py). SGLang 0.5.23:
`_dsa_kv_cache_dtype_default` and `_deepseek_v4_kv_cache_dtype` (srt/arg_groups/overrides.py).
"""

import pytest

from capplan.errors import InputError
from capplan.questions.fleet import asked_fleet
from capplan.replica.plans import engine_scheduling
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from capplan.scenario.scenario import read_scenario

CASES = [
    ("deepseek-v4-flash", "vllm", None, "h200-sxm", "fp8"),
    ("deepseek-v4-flash", "vllm", None, "rtx-pro-6000-server", "fp8"),
    ("deepseek-v4-flash", "vllm", None, "b200", "bf16"),
    ("deepseek-v4-flash", "sglang", None, "b200", "fp8"),
    ("deepseek-v4-flash", "sglang", None, "h200-sxm", "fp8"),
    ("deepseek-v3.2", "vllm", None, "b200", "bf16"),
    ("deepseek-v3.2", "vllm", None, "rtx-pro-6000-server", "fp8"),
    ("deepseek-v3.2", "sglang", None, "b200", "fp8"),
    ("deepseek-v3.2", "sglang", None, "h200-sxm", "bf16"),
    ("glm-5.3-flash", "vllm", None, "b300", "fp8"),
    ("glm-5.3-flash", "vllm", "0.32.0", "b300", "bf16"),
    ("glm-5.3-flash", "vllm", None, "h200-sxm", "bf16"),
    ("glm-5-nvfp4", "sglang", None, "b200", "fp8"),
    ("llama-3.1-8b", "sglang", None, "b200", "bf16"),
    ("llama-3.1-8b", "vllm", None, "h100-sxm", "bf16"),
]


def asked(model, engine, version, hardware, *, drafts=False, **more):
    flags = ServingFlags(engine=engine, engine_version=version, tensor_parallel=8, offline=True, **more)
    return asked_replica(model, hardware, flags, drafts=drafts)


@pytest.mark.parametrize(
    ("model", "engine", "version", "drafts", "sequences"),
    [
        ("deepseek-v4-flash", "sglang", None, False, 256),
        ("llama-3.1-8b", "sglang", None, True, 48),
        ("llama-3.1-8b", "sglang", None, False, 2048),
        ("llama-3.1-8b", "sglang", "0.4.0", True, 2048),
        ("llama-3.1-8b", "vllm", None, True, 1024),
    ],
)
def test_as_many_sequences_run_as_the_engine_admits_by_default(model, engine, version, drafts, sequences):
    """SGLang 0.5.23, srt/arg_groups/deepseek_v4_hook.py and speculative_hook.py: 256 with DeepSeek V4, 48 with drafts, unless told otherwise."""
    said = asked(model, engine, version, "b200", drafts=drafts)
    assert engine_scheduling(said.spec).max_num_seqs == sequences
    assert any(item.replace == "--max-num-seqs" for item in said.assumptions) == (sequences in (48, 256))
    stated = asked(model, engine, version, "b200", drafts=drafts, max_num_seqs=100)
    assert engine_scheduling(stated.spec).max_num_seqs == 100


@pytest.mark.parametrize(("model", "engine", "version", "hardware", "dtype"), CASES)
def test_the_cache_has_the_dtype_that_the_engine_takes(model, engine, version, hardware, dtype):
    spec = asked(model, engine, version, hardware).spec
    assert spec.kv_format == dtype


def test_the_dtype_that_is_asked_for_or_published_comes_first():
    assert asked("deepseek-v3.2", "sglang", None, "b200", kv_dtype="bf16").spec.kv_format == "bf16"
    said = asked("deepseek-v3.2", "sglang", None, "b200").assumptions
    assert any("KV cache in fp8, which sglang takes for deepseek_v32" in item.what and item.replace == "--kv-dtype" for item in said)  # fmt: skip


def test_a_cache_that_the_engine_does_not_run_is_refused():
    with pytest.raises(InputError, match="vllm runs deepseek_v4 on hopper with a KV cache in fp8 only"):
        asked("deepseek-v4-flash", "vllm", None, "h200-sxm", kv_dtype="bf16")


@pytest.mark.parametrize(("model", "dtype"), [("deepseek-v4-flash", "fp8"), ("glm-5.3-flash", "bf16")])
def test_a_fleet_takes_what_some_device_needs(tmp_path, model, dtype):
    """Without a device the dtype is one that every device runs, so that a device alone has the plan that it has among others."""
    written = tmp_path / "fleet.yaml"
    written.write_text(
        f"name: fleet\nmodel: {model}\ntraffic:\n  - {{name: chat, request_rate: 2 req/s, input_tokens: 1000, output_tokens: 200}}\n"
        "slo: {ttft_p95: 2 s}\nfleet: {hardware: [h200-sxm, b200]}\n"
    )
    assert tuple(asked_fleet(read_scenario(written), offline=True).question.kv_formats) == (dtype,)
