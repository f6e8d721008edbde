"""Do the pool and the budget have the blocks, groups and sizes that engines logged or document?"""

import numpy as np
import pytest

from calibrate.fit_memory import fitted, known_starts, left_out, predictions
from capplan.accuracy.memory import disagreeing_starts, memory_predictions, predict_memory_row
from capplan.accuracy.score import scores_by_metric
from capplan.engine.lookup import default_memory_fraction, profile, scheduling, unsupported_reason
from capplan.errors import CapplanError, InputError
from capplan.memory.capacity import reserved_bytes_per_sequence, token_capacity
from capplan.memory.launch import default_memory_fractions, engine_launch, prefill_graphs
from capplan.memory.layer_groups import cache_kinds, group_layers
from capplan.memory.plan import memory_plan
from capplan.memory.pool import grouped_layout
from capplan.model.sharding import Sharding
from capplan.model.weight_format import in_weight_format
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.recorded.measured import with_start_columns
from tests.tables import rows, table

GIB = 2.0**30


def test_gemma_3_27b_gets_seventy_slots_for_sixty_two_layers():
    """52 sliding and 10 full layers in groups of ten (vLLM, design document of the hybrid cache manager)."""
    kinds = cache_kinds(read_model("google/gemma-3-27b-it", offline=True), 1.0, 2.0)
    layout = grouped_layout(kinds, 16.0, 8192.0, 8192.0)
    assert sum(kind.layers for kind in kinds) == 62
    assert layout.groups * group_layers(kinds) == 70


@pytest.mark.parametrize(
    ("model", "tensor", "kv_bytes", "block"),
    [("Qwen/Qwen3-Next-80B-A3B-Instruct", 2.0, 2.0, 544), ("Qwen/Qwen3.6-27B", 1.0, 1.0, 1568)],
)
def test_block_of_a_hybrid_grows_to_the_logged_size(model, tensor, kv_bytes, block):
    """VLLM logged "Setting attention block size to 544 tokens" (Qwen3-Next on two devices) and 1568 (27B, fp8 cache)."""
    kinds = cache_kinds(read_model(model, offline=True), tensor, kv_bytes)
    assert float(np.asarray(grouped_layout(kinds, 16.0, 16384.0, 2048.0).block_tokens)) == block


def test_405b_in_bf16_does_not_fit_eight_h100_and_does_in_fp8():
    """405.9 billion parameters x 2 bytes / 8 = 101 GB per device of 85 GB."""
    network = read_model("meta-llama/Meta-Llama-3.1-405B", offline=True)
    plans = [
        memory_plan(
            variant,
            engine_launch(profile("vllm"), Sharding(tensor=8.0), 79.19 * GIB, 1.0, 16384.0, 256.0, 8192.0),
            profile("vllm"),
        )
        for variant in (network, in_weight_format(network, "fp8"))
    ]
    assert [bool(plan.fits) for plan in plans] == [False, True]
    assert plans[0].limits == ("weights by themselves exceed the memory that the engine may use",)


def test_vllm_defaults_are_those_of_its_releases():
    """VLLM 0.33: 16384 and 1024 from 160 GiB, 8192 and 1024 from 70 GiB but for A100, else 2048 and 256."""
    devices = [(178.0, "blackwell"), (79.2, "hopper"), (79.2, "ampere"), (44.4, "ada")]
    chosen = [scheduling(profile("vllm", "0.33.0"), gib * GIB, name) for gib, name in devices]
    assert [(s.max_num_batched_tokens, s.max_num_seqs) for s in chosen] == [
        (16384, 1024), (8192, 1024), (2048, 256), (2048, 256),
    ]  # fmt: skip
    assert scheduling(profile("vllm", "0.25.1"), 178.0 * GIB, "blackwell").max_num_batched_tokens == 8192
    assert profile("vllm", "0.17.1").memory.default_fraction == 0.9
    assert profile("vllm", "0.25.1").memory.default_fraction == 0.92


def test_sglang_keeps_what_its_arguments_say():
    """Server arguments of SGLang: 512 + 1.5 x 8192 + 2 x 512 + 1024 MiB on eight H100, 14.5 GiB of 79.2."""
    fraction = default_memory_fraction(profile("sglang"), 79.2 * GIB, 8.0, "hopper")
    assert fraction == pytest.approx((79.2 - 14.5) / 79.2, abs=6e-4)


def test_sglang_sets_aside_what_graphs_of_prefill_steps_and_of_attention_groups_take():
    """`reserve_for_graph_mb` of SGLang: 8 MiB for each of 58 sizes up to 8,192 tokens, 1.5 GiB with latents, 4.5 x 512 x 8 MiB for eight groups.

    Off with pipeline stages, on AMD, with most towers, with KDA since 0.5.17 and with DeepSeek V4; with latents in 0.5.15 and 0.5.16.
    """
    models = {
        name: read_model(name, offline=True)
        for name in ("meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-VL-8B-Instruct",
                     "Qwen/Qwen3.5-35B-A3B", "moonshotai/Kimi-K3", "zai-org/GLM-5.3-Flash", "deepseek-ai/DeepSeek-V4-Flash")
    }  # fmt: skip
    plain, latent, tower, kept, *others = models.values()

    def captured(network, version, **layout):
        of = {"pipelined": False, "grouped": False, "cuda": True} | layout
        return prefill_graphs(network, profile("sglang", version), **of)

    assert [captured(plain, version) for version in ("0.5.9", "0.5.10", "0.5.23")] == [
        "none",
        "plain",
        "plain",
    ]
    versions = ("0.5.9", "0.5.14", "0.5.16", "0.5.17")
    assert [captured(latent, version) for version in versions] == ["none", "latent", "none", "latent"]
    assert [captured(plain, "0.5.23", **{what: on}) for what, on in (("pipelined", True), ("cuda", False), ("grouped", True))] == [
        "none", "none", "plain",
    ]  # fmt: skip
    assert [captured(model, "0.5.23") for model in (tower, kept, *others)] == [
        "none", "plain", "latent", "latent", "none",
    ]  # fmt: skip
    memory, mebibyte = 79.2 * GIB, 2.0**20
    fractions = [
        default_memory_fraction(
            profile("sglang"), memory, 8.0, attention_groups=groups, prefill_graphs=graphs
        )
        for groups, graphs in ((1.0, "none"), (1.0, "plain"), (1.0, "latent"), (8.0, "none"))
    ]
    more = [(fractions[0] - fraction) * memory / mebibyte for fraction in fractions[1:]]
    assert more == pytest.approx([464.0, 1536.0, 18432.0], abs=0.0011 * memory / mebibyte)


def test_sglang_has_the_fraction_of_its_model_and_layout():
    network = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)
    fractions = [
        default_memory_fractions(profile("sglang", version), 79.2 * GIB, Sharding(), network)
        for version in ("0.5.9", "0.5.23")
    ]
    assert [float(fraction) for fraction in fractions] == [0.834, 0.829]


def test_unknown_engine_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'vllm'"):
        profile("vlllm")


def test_unknown_version_is_an_assumption_and_not_silent():
    assert "nightly" in profile("vllm", "nightly").assumptions[0].what
    assert "newer" in profile("sglang", "9.1").assumptions[0].what
    assert profile("vllm", "0.11.0").assumptions == ()


@table
def test_dtypes_run_where_engines_support_them(engine, architecture, weights, cache, runs):
    assert (unsupported_reason(profile(engine), architecture, weights, cache) is None) == runs


def test_hybrid_cache_holds_more_tokens_than_its_engine_prints():
    """VLLM printed 154,496 tokens for Qwen3-Next and a concurrency of 33.47 at 16,384 tokens: 548,000 tokens."""
    network = read_model("Qwen/Qwen3-Next-80B-A3B-Instruct", offline=True)
    engine, sharding = profile("vllm", "0.13.0"), Sharding(tensor=2.0)
    reserved = reserved_bytes_per_sequence(
        network, engine_launch(engine, sharding, 80e9, 2.0, 16384.0, 1.0, 2048.0), engine
    )
    assert token_capacity(7.09 * GIB, reserved, 16384.0) == pytest.approx(33.47 * 16384, rel=0.005)


LAUNCH = ("engine", "engine_version", "model_hf_id", "quantization", "kv_cache_dtype", "gpu", "tp", "pp",
          "max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens")  # fmt: skip
PRINTED = ("weights_gib", "available_kv_gib", "kv_cache_tokens", "max_concurrency")
H100 = ("1", "8192", "0.95", "1024", "8192")


def row_of(launch, status="ok"):
    return with_start_columns({**dict(zip(LAUNCH, launch, strict=True)), "status": status})


def predicted(row):
    return predict_memory_row(row, read_model(row["model_hf_id"], offline=True), device(row["gpu"]))


@pytest.mark.parametrize(
    ("launch", "printed"), rows("starts")["started"], ids=lambda value: "-".join(map(str, value[:8]))
)
def test_budget_is_what_the_engine_printed(launch, printed):
    found = predicted(row_of(launch))
    for name, value in zip(PRINTED, printed, strict=True):
        relative = 0.005 if name == "weights_gib" else 0.012
        assert found[name] == pytest.approx(value, rel=relative, abs=0.006), name


def test_start_that_ran_out_of_memory_after_the_cache_is_refused():
    """gpt-oss-20b at 0.95 of an H100 failed in the sampler's warm-up, with one and with two devices; at 0.90 it ran."""
    one = ("vllm", "0.19.0", "openai/gpt-oss-20b", "mxfp4", "auto", "h100", "1", *H100)
    two = (*one[:6], "2", *H100)
    lower = (*two[:9], "0.90", *two[10:])
    assert [bool(predicted(row_of(launch))["starts"]) for launch in (one, two, lower)] == [False, False, True]


def test_context_beyond_the_cache_is_refused():
    """VLLM 0.6 refused 29,000 tokens on an RTX 3090 with room for 23,648, and took 20,000."""
    long = (
        "vllm",
        "0.6.3",
        "meta-llama/Llama-3.1-8B-Instruct",
        "bfloat16",
        "auto",
        "rtx-3090",
        "1",
        "1",
        "29000",
        "0.90",
        "",
        "",
    )
    found = predicted(row_of(long))
    assert not found["starts"]
    assert predicted(row_of((*long[:8], "20000", *long[9:])))["starts"]
    assert found["kv_cache_tokens"] == pytest.approx(23648, rel=0.02)


def scored(rows):
    """Return the records of logged starts."""
    records = []
    for row in rows:
        try:
            found, reason = predicted(row), ""
        except CapplanError as error:
            found, reason = None, str(error)
        records += memory_predictions(row, row["id"], found, reason)
    return records


@pytest.fixture(scope="module")
def records(measured):
    return scored(measured.table("starts"))


@table
def test_median_error_of_measured_starts_stays_below_half_a_percent(records, metric, median):
    """Logs print two decimals of a GiB: 0.1 % of what these starts hold. The targets were 0.5, 2, 3 and 3 %."""
    score = scores_by_metric(records)[metric]
    assert score.predicted == score.n
    assert score.median_ape <= median


def test_every_measured_start_is_judged_rightly(measured, records):
    judged, wrong = disagreeing_starts(records)
    assert judged >= (80 if measured.whole else 45)
    assert wrong == ()


@pytest.fixture(scope="module")
def starts(measured):
    return known_starts(measured.table("starts"))[0]


@pytest.mark.parametrize(("era", "version"), [("lean", "0.19.0"), ("sorting", "0.11.0")])
def test_profile_carries_the_numbers_of_the_fit(starts, era, version):
    found, rules = fitted(starts, era), profile("vllm", version).memory
    # the profile has three digits
    assert rules.sampler_bytes == pytest.approx(found.sampler_bytes, rel=0.002)
    assert rules.resident_copies == pytest.approx(found.resident_copies, rel=0.005)
    assert rules.activation_base_bytes == pytest.approx(found.activation_base_bytes, rel=0.005)


def test_errors_on_unseen_models_are_those_of_seen_ones(starts):
    seen, unseen = scores_by_metric(predictions(starts, {})), scores_by_metric(left_out(starts))
    for metric in ("available_kv_gib", "kv_cache_tokens", "max_concurrency"):
        assert unseen[metric].median_ape <= 1.1 * seen[metric].median_ape, metric
