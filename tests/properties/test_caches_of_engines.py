"""What an engine takes by itself: the dtype of a cache that nobody asks for, what tensor and data parallelism mean, and how engines are spelt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.accuracy.benchmark import benchmark_of
from capplan.engine.lookup import ENGINES, profile
from capplan.engine.versions import SPELLINGS, named_engine
from capplan.errors import InputError
from capplan.fleet.engine_options import EngineOptions, engines_of
from capplan.questions.benchmark_spec import benchmark_spec
from capplan.questions.validation import replica_of_result
from capplan.recorded.results.record import BenchmarkResult
from capplan.replica.plans import engine_scheduling
from capplan.replica.replica import replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica
from tests.asked import asked_of
from tests.tables import table

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


@table
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
    assert tuple(asked_of(written).question.kv_formats) == (dtype,)


def warnings(engine, tensor, data):
    flags = ServingFlags(engine=engine, tensor_parallel=tensor, data_parallel=data)
    return [text for text in asked_replica("qwen3-30b-a3b", "h100-sxm", flags).warnings if "dp-size" in text]


def test_the_words_of_sglang_for_attention_groups_are_explained():
    """SGLang, `--dp-size` with `--enable-dp-attention`: the attention groups divide the ranks of `--tp-size`."""
    (text,) = warnings("sglang", 4, 2)
    assert "are 8 devices here" in text
    assert text.endswith("--tensor-parallel 2 --data-parallel 2")


@pytest.mark.parametrize(("engine", "tensor", "data"), [("vllm", 4, 2), ("sglang", 1, 8), ("sglang", 4, 1)])
def test_nothing_is_said_where_the_numbers_mean_the_same(engine, tensor, data):
    assert warnings(engine, tensor, data) == []


NIM = {
    "kind": "online_conc", "engine": "nim(trtllm)", "engine_version": "NIM 1.8.0", "date": "2025-10", "gpu": "h100-sxm",
    "model_hf_id": "meta-llama/Llama-3.1-8B-Instruct", "isl": "1000", "osl": "1000", "concurrency": "8",
}  # fmt: skip


@given(
    st.sampled_from([(engine, spelled) for engine, names in SPELLINGS.items() for spelled in names]),
    st.sampled_from(["{}", " {} ", "nim({})", "NIM ({})", "nvidia-nim/{}", "dynamo-{}", "triton_{}"]),
    st.sampled_from([str.lower, str.upper, str.title]),
    st.sampled_from("-_ "),
)
def test_every_spelling_means_its_engine_in_any_case_and_package(named, package, case, joint):
    engine, spelled = named
    text = case(package.format(spelled.replace("-", joint)))
    assert named_engine(text) == (engine, package.strip() not in {"{}"})
    assert profile(text).engine == engine


@table
def test_other_engines_are_refused_in_one_line(text, line):
    with pytest.raises(InputError) as caught:
        named_engine(text)
    assert str(caught.value).splitlines()[0] == line


def test_the_version_of_a_package_is_not_that_of_its_engine():
    assert set(SPELLINGS) == set(ENGINES)
    found = benchmark_of(NIM)
    assert (found.engine, found.engine_version) == ("trtllm", "1.0.0")
    assert (
        benchmark_of({**NIM, "engine": "TensorRT-LLM", "engine_version": "1.1.0"}).engine_version == "1.1.0"
    )


def test_a_result_of_another_engine_is_not_taken_for_vllm():
    run = {"tool": "t", "path": "p", "model": "meta-llama/Llama-3.1-8B-Instruct", "hardware": "h100-sxm"}
    found = {
        name: replica_of_result(BenchmarkResult(engine=name, **run), ServingFlags()).profile.engine
        for name in (None, "TensorRT-LLM", "sglang-oai")
    }
    assert found == {None: "vllm", "TensorRT-LLM": "trtllm", "sglang-oai": "sglang"}
    with pytest.raises(InputError, match="unknown engine 'tgi'"):
        replica_of_result(BenchmarkResult(engine="tgi", **run), ServingFlags())


LLAMA = {
    "kind": "online_conc", "model_hf_id": "meta-llama/Llama-3.1-8B-Instruct", "weights_dtype": "bf16", "gpu": "h100-sxm", "num_gpus": "1", "tp": "1",
    "isl": "512", "osl": "128", "concurrency": "4",
}  # fmt: skip


@table
def test_engines_plan_ahead_by_version_on_gpus_without_stages(engine, version, columns, ahead):
    row = {**LLAMA, "engine": engine, "engine_version": version, **columns}
    assert replica_of(benchmark_spec(benchmark_of(row))).scheduling.asynchronous is ahead


def test_slots_are_filled_when_a_step_has_ended():
    replica = replica_of(
        benchmark_spec(benchmark_of({**LLAMA, "engine": "vllm", "engine_version": "0.33.0"}))
    )
    assert not engines_of(replica, EngineOptions(scheduler="slots"), 0, 512.0).replica.scheduling.asynchronous
    assert engines_of(replica, EngineOptions(scheduler="chunked"), 0, 512.0).replica.scheduling.asynchronous
