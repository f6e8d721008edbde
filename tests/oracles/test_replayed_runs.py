"""How published benchmarks were run: NVIDIA's tool, and servers whose launch scripts are public."""

from dataclasses import replace

import numpy as np
import pytest

from capplan.accuracy import deployment
from capplan.accuracy.benchmark import benchmark_of
from capplan.accuracy.lengths import DATASETS, drawn_lengths
from capplan.accuracy.replay import requests_of
from capplan.engine.lookup import ENGINES
from capplan.hardware.device import Efficiency, Fit, fit_of
from capplan.memory.capacity import reserved_bytes_per_sequence
from capplan.memory.launch import engine_launch
from capplan.questions.benchmark_spec import benchmark_network, benchmark_spec
from capplan.questions.validation import BUILT_IN_POINTS
from capplan.readers.catalogue.efficiency import PCIE_CROWDING_EXPONENT, efficiency_for, shipped_efficiency
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.recipes import recipe_columns, recipe_file, recipe_settings
from capplan.recorded.measured import measured_rows, with_run_columns
from capplan.replica.replica import replica_of
from tests.tables import table

CLOSED = {
    "kind": "online_conc", "source_family": "inferencex", "engine": "trtllm", "date": "2025-10-29",
    "model_hf_id": "meta-llama/Llama-3.1-70B", "weights_dtype": "fp8", "kv_dtype": "auto", "gpu": "h200-sxm",
    "num_gpus": "4", "tp": "4", "isl": "921.6", "osl": "921.6", "length_distribution": "uniform[0.8,1]", "concurrency": "32",
}  # fmt: skip
OFFLINE = {
    "kind": "offline_max", "engine": "trtllm", "engine_version": "1.0", "model_hf_id": "nvidia/Llama-3.3-70B-Instruct-FP8",
    "weights_dtype": "fp8", "kv_dtype": "auto", "gpu": "h200-sxm", "num_gpus": "1", "tp": "1", "isl": "1000", "osl": "1000",
}  # fmt: skip


@pytest.mark.parametrize(("printed", "tokens"), [("H200", 8192), ("h200-sxm", 8192), ("B200", 32768)])
def test_a_recipe_is_found_by_the_name_that_a_row_prints(printed, tokens):
    """The page on DeepSeek-V4 has launch settings of its own for V4-Pro on H200."""
    row = {
        "id": "v4", "kind": "online_conc", "engine": "sglang", "engine_version": "0.5.15", "model_hf_id": "deepseek-ai/DeepSeek-V4-Pro",
        "weights_dtype": "fp4", "gpu": printed, "num_gpus": "8", "tp": "8", "concurrency": "64", "isl": "4096", "osl": "512",
        "source": "SGLang docs DeepSeek-V4 benchmark snippet",
    }  # fmt: skip
    assert recipe_settings(benchmark_of(row)).max_num_batched_tokens == tokens


@pytest.mark.parametrize(
    ("printed", "speed", "card"),
    [("H20", 791.73, "h20-3e"), ("H20", 8.0, "h20"), ("h20", 791.73, "h20"), ("H20", None, "h20")],
)
def test_a_card_of_two_sizes_is_the_one_that_holds_what_decodes(printed, speed, card):
    """DeepSeek-V3.2 fills eight cards of 96 GB with its weights; 792 tokens/s of 100 ms each are 79 sequences."""
    row = {
        "id": "h20",
        "kind": "online_rate",
        "engine": "vllm",
        "model_hf_id": "deepseek-ai/DeepSeek-V3.2",
        "weights_dtype": "fp8",
        "gpu": printed,
        "num_gpus": "8",
        "tp": "8",
        "dp": "1",
        "isl": "2048",
        "osl": "1024",
        "request_rate": "10",
        "n_requests": "100",
        "tpot_ms_mean": "99.71",
    } | ({"output_tok_s": str(speed)} if speed else {})
    assert benchmark_spec(benchmark_of(row)).device.name == card


def test_every_recipe_names_things_that_exist():
    file = recipe_file()
    assert len(file.recipes) > 3
    assert {entry.source for entry in (*file.recipes, *file.runs, *file.scripts)} == set(file.sources)
    for recipe in file.recipes:
        assert recipe.where.engine in ENGINES
        for model in recipe.where.models:
            assert benchmark_network(model, "auto").layers
        for name in recipe.where.devices:
            assert device(name).name == name
        assert recipe.settings.model_dump(exclude_none=True), recipe.scripts
    columns = {
        *measured_rows(BUILT_IN_POINTS)[0],
        "prefix_tokens",
        "prefix_groups",
        "prompts_per_prefix",
        "prefix_state",
        "front_end_ms",
        "nominal_lengths",
        "prefix_hit_fraction",
    }
    for run in file.runs:
        assert set(run.where) < columns
        assert set(run.columns.model_dump(exclude_none=True)) <= columns, run.stated_in


def test_later_recipes_add_to_earlier_ones():
    """TensorRT-LLM holds prompts back in the 1024/1024 runs below eight ranks, and only there."""
    held = recipe_settings(benchmark_of(CLOSED))
    assert (held.kv_dtype, held.hold_steps, held.hold_share) == ("fp8", 20, 0.9)
    longer = recipe_settings(benchmark_of({**CLOSED, "isl": "7372.8"}))
    assert (longer.kv_dtype, longer.hold_steps) == ("fp8", None)
    assert recipe_settings(benchmark_of({**CLOSED, "num_gpus": "8", "tp": "8"})).hold_steps is None
    assert recipe_settings(benchmark_of({**CLOSED, "source_family": "mine"})).kv_dtype is None


@pytest.mark.parametrize(
    ("version", "sequences", "tokens"), [("0.7.3", 256, 2048), ("0.20.1+transformers-5.8.1", 128, 2048)]
)
def test_an_engine_without_a_server_has_the_limits_of_its_scheduler(version, sequences, tokens):
    """vLLM, `SchedulerConfig.DEFAULT_MAX_NUM_SEQS`: neither of LLM nor of a server; its first engine had one default for all."""
    row = {
        **CLOSED, "source_family": "accelmark", "engine": "vllm", "engine_version": version, "kind": "online_rate", "request_rate": "25",
        "model_hf_id": "meta-llama/Meta-Llama-3-8B-Instruct", "weights_dtype": "bf16", "gpu": "a100-sxm-80gb", "isl": "240", "osl": "348",
    }  # fmt: skip
    started = replica_of(benchmark_spec(benchmark_of(row))).scheduling
    assert (started.max_num_seqs, started.max_num_batched_tokens) == (sequences, tokens)


def test_a_recipe_reaches_the_replica_and_a_stated_dtype_wins():
    spec = benchmark_spec(benchmark_of(CLOSED))
    assert spec.kv_format == "fp8"
    assert spec.max_num_batched_tokens == 16384
    scheduling = replica_of(spec).scheduling
    assert (scheduling.hold_steps, scheduling.hold_tokens) == (20, int(0.9 * 16384))
    assert benchmark_spec(benchmark_of({**CLOSED, "kv_dtype": "bf16"})).kv_format == "bf16"


def test_the_tool_of_nvidia_sends_as_many_requests_as_its_page_says():
    published = {**OFFLINE, "source_family": "trtllm-perf-overview"}
    assert requests_of(benchmark_of(published)) == 3000
    assert requests_of(benchmark_of({**published, "isl": "128", "osl": "128"})) == 30000


@table
def test_limits_of_the_tool_by_hand(held, prompt, answer, stages, limits):
    assert deployment.limits(held, prompt, answer, stages) == tuple(limits)


def test_the_cache_that_the_tool_believes_in_by_hand():
    """0.95 (141 GiB - weights) over 2 x 80 layers x 8 heads x 128 x 1 byte x 2000 tokens."""
    spec = benchmark_spec(benchmark_of(OFFLINE))
    memory = 141.0 * 2.0**30
    weights = 70.6e9
    by_hand = 0.95 * (memory - weights) / (2.0 * 80 * 8 * 128 * 2000.0)
    found = deployment.cache_requests(spec.network, spec.sharding, memory, 1.0, 2000.0)
    assert found == pytest.approx(by_hand, rel=0.05)


def test_experts_without_a_stated_size_ran_with_attention_data_parallelism():
    row = {
        **OFFLINE,
        "source_family": "trtllm-perf-overview",
        "source": "trtllm-perf-overview-v1.0",
        "num_gpus": "8",
        "tp": "8",
        "ep": "",
    }
    sharding = benchmark_of(with_run_columns(row)).sharding
    assert (sharding.tensor, sharding.data, sharding.expert) == (1.0, 8.0, 8.0)
    assert benchmark_of(with_run_columns({**row, "ep": "1"})).sharding.tensor == 8.0
    assert benchmark_of({**row, "ep": "1", "attention_data_parallel": "1"}).sharding == sharding


@table
def test_runs_of_accelmark_send_as_many_requests_as_its_suites_say(kind, model, prompt, requests):
    """Request Count Design of suites/README.md, https://github.com/FreedomIntelligence/AccelMark."""
    row = {"source_family": "accelmark", "kind": kind, "model_hf_id": model, "isl": prompt}
    assert int(recipe_columns(row)["requests"]) == requests
    assert recipe_columns({**row, "source_family": "mine"}) == {}


def test_an_engine_that_exploits_no_windows_reads_and_keeps_every_token():
    mistral = {
        **OFFLINE,
        "model_hf_id": "mistralai/Mistral-7B-v0.1",
        "weights_dtype": "fp16",
        "isl": "20000",
        "osl": "2000",
    }
    old = benchmark_spec(benchmark_of({**mistral, "engine_version": "0.14.0"}))
    new = benchmark_spec(benchmark_of(mistral))
    assert all(mixer.window_tokens is None for layer in old.network.layers for mixer in layer.mixers)
    assert any(mixer.window_tokens for layer in new.network.layers for mixer in layer.mixers)
    windowed = replace(new.profile, memory=replace(new.profile.memory, whole_windows=False))
    sizes = [
        reserved_bytes_per_sequence(
            new.network, engine_launch(profile, new.sharding, 80e9, 2.0, 22000.0, 1.0, 2048.0), profile
        )
        for profile in (new.profile, windowed)
    ]
    assert sizes[0] > 3.0 * sizes[1]


@pytest.mark.parametrize(("name", "spread"), [(name, own) for name, own in DATASETS.items()])
def test_lengths_of_a_data_set_keep_their_mean_and_their_limit(name, spread):
    means = {
        "sharegpt_standard_v1": (240.0, 345.0),
        "sharegpt_edge_v1": (72.0, 208.0),
        "mlperf-deepseek-r1": (803.79, 3898.37),
    }.get(name, (28650.0, 256.0))
    prompts, answers = drawn_lengths(name, means, 5000)
    _, longest_prompt, _, longest_answer = spread
    assert prompts.max() <= longest_prompt
    assert answers.max() <= longest_answer
    assert np.mean(prompts) == pytest.approx(means[0], rel=0.03)
    assert np.mean(answers) == pytest.approx(means[1], rel=0.03)


def test_a_server_of_cards_shares_less_of_its_path_than_the_timed_one():
    """The collectives that were timed on the L40S keep their own number; a served one takes that of served results."""
    timed = shipped_efficiency("l40s")
    key = next(key for key in timed.fits if key.startswith("link/"))
    assert timed.fits[key].numbers["crowding_exponent"] > 1.0
    assert efficiency_for(device("l40s")).fits[key].numbers["crowding_exponent"] == PCIE_CROWDING_EXPONENT
    linked = efficiency_for(device("h100-sxm"))
    assert linked.fits == shipped_efficiency("h100").fits


def test_a_kernel_that_was_asked_for_is_taken_from_whoever_timed_it():
    fits = Efficiency(
        "x",
        {
            "experts/bf16@trtllm": Fit({"floor_s": 1.0}),
            "experts/bf16@sglang:fused_triton": Fit({"floor_s": 2.0}),
            "experts/bf16@vllm:triton_oai": Fit({"floor_s": 3.0}),
        },
    )
    assert fit_of(fits, "experts", ("bf16",), "trtllm")[0].numbers["floor_s"] == 1.0
    assert fit_of(fits, "experts", ("bf16",), "trtllm", "oai")[0].numbers["floor_s"] == 3.0
    assert fit_of(fits, "experts", ("bf16",), "vllm", "triton")[0].numbers["floor_s"] == 3.0
    assert fit_of(fits, "experts", ("bf16",), "trtllm", "unheard of")[0].numbers["floor_s"] == 1.0
