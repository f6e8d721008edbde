"""Engines as result files spell them: one of ours, or one clear line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.accuracy.benchmark import benchmark_of
from capplan.engine.lookup import ENGINES, profile
from capplan.engine.versions import SPELLINGS, named_engine
from capplan.errors import InputError
from capplan.questions.validation import replica_of_result
from capplan.recorded.results.record import BenchmarkResult
from capplan.scenario.flags import ServingFlags

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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("atom", "unknown engine 'atom'"),
        ("TGI", "unknown engine 'TGI'"),
        ("vlm", "unknown engine 'vlm': did you mean 'vllm'?"),
        ("nim", "engine: 'nim' does not say which engine runs inside"),
        ("nim(tgi)", "unknown engine 'nim(tgi)'"),
        (
            "sglang-disagg",
            "engine: 'sglang-disagg' serves disaggregated prefill and decode, which is not modelled",
        ),
        ("", "unknown engine ''"),
    ],
)
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
