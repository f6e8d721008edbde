"""The list of what a release of an engine has that the catalogue lacks."""

import zipfile

from capplan.engine.lookup import ENGINES, version_key
from capplan.engine.versions import RELEASES, version_of
from docs.generators.engine_gaps import found, is_read, known_options, served, sources


def test_model_types_and_options_are_found_in_a_wheel(tmp_path):
    wheel = tmp_path / "engine.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("engine/configs/new.py", 'class New:\n    model_type: str = "new_1"\n')
        file.writestr(
            "engine/srt/arg_groups/fields/memory.py",
            "class Memory:\n    page_size: A[int, Arg()] = 1\n    _seen: A[bool, Arg(no_cli=True)] = False\n",
        )
        file.writestr("engine/server_args.py", 'parser.add_argument("--new-option")\n')
        file.writestr("engine/other.py", 'model_type = "no_configuration"\n')
    assert found(sources(wheel)) == ({"new_1"}, {"--new-option", "--page-size"})


def test_classes_are_found_where_each_engine_lists_them():
    """The tables of vLLM and of TensorRT-LLM (`_arch_index.py`), and the entries of SGLang's files; drafts are no models by themselves."""
    files = [
        ("vllm/model_executor/models/registry.py", '    "FreshForCausalLM": ("fresh", "FreshForCausalLM"),\n    "EagleFreshForCausalLM": 1,\n'),
        ("tensorrt_llm/_torch/models/_arch_index.py", '    "NewerForConditionalGeneration": "modeling_newer",\n'),
        ("sglang/srt/models/newest.py", "EntryClass = [NewestForCausalLM]\n"),
        ("vllm/model_executor/models/new.py", 'raise ValueError("OtherForCausalLM")\n'),
    ]  # fmt: skip
    assert served(files) == {"FreshForCausalLM", "NewerForConditionalGeneration", "NewestForCausalLM"}
    assert not any(is_read(name) for name in served(files))
    assert is_read("Step3VLForConditionalGeneration")


def test_the_server_of_diffusion_models_is_left_out(tmp_path):
    (tmp_path / "multimodal_gen").mkdir()
    (tmp_path / "multimodal_gen" / "server_args.py").write_text('add("--pixels")')
    assert found(sources(tmp_path)) == (set(), set())


def test_a_folder_is_read_as_a_wheel_is(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "one.py").write_text('model_type = "one"')
    assert found(sources(tmp_path)) == ({"one"}, set())


def test_options_that_are_read_refused_or_harmless_are_known():
    assert {"--max-model-len", "--enforce-eager", "--api-key"} <= known_options("vllm")


def test_releases_ascend_and_reach_the_newest_profiles():
    for engine, profiles in ENGINES.items():
        keys = [version_key(version) for _, version in RELEASES[engine]]
        assert keys == sorted(keys)
        assert keys[-1] >= version_key(profiles[-1].version)


def test_a_day_finds_the_version_that_was_out():
    """Published: vllm 0.22.0 on 2026-05-29, sglang 0.5.20 on 2026-09-18, tensorrt-llm 1.2.1 on 2026-04-20, 1.3.0rc0 on 2026-01-22."""
    assert [version_of("vllm", day) for day in ("2026-05-28", "2026-05-29", "2026-06")] == [
        "0.21.0",
        "0.22.0",
        "0.23.0",
    ]
    assert version_of("sglang", "2026-09-20") == "0.5.20"
    assert version_of("trtllm", "2026-05-01") == "1.3.0rc0"
    assert version_of("trtllm", "2026-05-01", candidates=False) == "1.2.1"
