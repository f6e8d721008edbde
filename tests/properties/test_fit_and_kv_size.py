"""Laws of what fits and of what a sequence keeps, asked as a person asks them: through the command line."""

import json
import shlex

import pytest

ENGINES = ("vllm", "sglang", "trtllm")
MODELS = ("llama-3.1-8b", "deepseek-v3", "gemma-3-27b-it", "qwen3-next-80b-a3b-instruct", "gpt-oss-20b")


@pytest.fixture
def asked(capplan):
    def run(*words):
        ran = capplan(*words, "--format", "json")
        assert ran.code in (0, 3), ran.err
        return json.loads(ran.out)["result"]

    return run


def kv_rows(asked, model, *words):
    return asked("kv-size", model, *words)["rows"]


def test_llama_3_70b_keeps_1_25_gib_at_4096_tokens(asked):
    """80 layers x 8 KV heads x 128 x (key + value) x 2 bytes: DESIGN figures that guides print wrongly as 1.07 and 34.4 GB."""
    short, long = kv_rows(
        asked, "llama-3.1-70b", "--kv-dtype", "fp16", "--context", "4096", "--context", "131072"
    )
    assert short["kv_bytes_per_sequence"] == 1_342_177_280
    assert long["kv_bytes_per_sequence"] == pytest.approx(42.95e9, rel=1e-3)


def test_an_mla_latent_is_held_whole_on_every_rank(asked):
    """DeepSeek-V3 (arXiv:2412.19437): 61 layers x (512 + 64) elements, not divided by tensor parallelism."""
    (row,) = kv_rows(asked, "deepseek-v3", "--kv-dtype", "bf16", "--context", "1000", "-tp", "8")
    assert row["kv_bytes_per_token"] == 61 * 576 * 2
    assert row["kv_bytes_per_gpu"] == row["kv_bytes_total"] == 1000 * 61 * 576 * 2


@pytest.mark.parametrize("model", MODELS)
def test_need_grows_with_context_and_in_proportion_to_sequences(asked, model):
    words = ("--kv-dtype", "bf16", "--context", "100", "--context", "5000", "--context", "32768")
    one = kv_rows(asked, model, *words)
    seven = kv_rows(asked, model, *words, "--sequences", "7")
    sizes = [row["kv_bytes_total"] for row in one]
    assert sizes == sorted(sizes)
    assert [row["kv_bytes_total"] for row in seven] == pytest.approx([7 * size for size in sizes])
    assert all(row["kv_bytes_per_gpu"] == row["kv_bytes_total"] for row in one)


@pytest.mark.parametrize("model", MODELS)
def test_half_the_bytes_per_element_halve_keys_and_values(asked, model):
    (wide,), (narrow,) = (
        kv_rows(asked, model, "--context", "9000", "--kv-dtype", d) for d in ("bf16", "fp8")
    )
    assert narrow["kv_bytes_per_sequence"] * 2 == wide["kv_bytes_per_sequence"]
    assert narrow["state_bytes_per_sequence"] == wide["state_bytes_per_sequence"]


def test_the_cache_dtype_does_not_follow_from_the_weights(asked):
    plain = asked("fit", "llama-3.1-8b", "--hardware", "h100", "--max-model-len", "8192")
    narrow = asked(
        "fit", "llama-3.1-8b", "--hardware", "h100", "--max-model-len", "8192", "--weight-dtype", "fp8"
    )
    assert plain["kv_dtype"] == narrow["kv_dtype"] == "bf16"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("words", [("h100", "1"), ("l4", "2"), ("b200", "8")])
def test_the_waterfall_ends_at_the_cache(asked, engine, words):
    found = asked("fit", "llama-3.1-70b", "--hardware", words[0], "-tp", words[1], "--engine", engine)
    *steps, cache = found["waterfall"]
    assert cache["memory_bytes"] == found["kv_bytes_available_per_gpu"]
    assert steps[-1]["left_bytes"] == pytest.approx(cache["memory_bytes"], abs=1.0)
    assert sum(step["memory_bytes"] for step in steps) == pytest.approx(cache["memory_bytes"], abs=1.0)


@pytest.mark.parametrize(
    "words",
    [
        ("llama-3.1-70b", "--hardware", "h100"),
        ("llama-3.1-8b", "--hardware", "l4"),
        ("deepseek-v3", "--hardware", "h100", "-tp", "8"),
        ("mixtral-8x7b-v0.1", "--hardware", "l40s", "--engine", "sglang"),
    ],
)
def test_every_change_that_is_offered_makes_it_fit(asked, words):
    found = asked("fit", *words)
    assert found["fits"] is False
    assert found["limits"]
    assert found["changes"]
    for change in found["changes"]:
        changed = list(words)
        flags = change["change"].split()
        for flag, value in zip(flags[::2], flags[1::2], strict=True):
            short = {"--tensor-parallel": "-tp"}.get(flag, flag)
            if short in changed:
                changed[changed.index(short) + 1] = value
            else:
                changed += [flag, value]
        after = asked("fit", *changed)
        assert after["fits"] is True, change
        assert after["gpus"] == change["gpus"]


def test_the_longest_context_fits_and_one_block_more_does_not(asked):
    words = ("fit", "llama-3.1-8b", "--hardware", "l4", "--kv-dtype", "bf16")
    longest = asked(*words)["longest_context_tokens"]
    assert asked(*words, "--max-model-len", longest)["fits"] is True
    assert asked(*words, "--max-model-len", longest + 16)["fits"] is False


def test_more_memory_and_fewer_bytes_never_hold_less(asked):
    words = shlex.split(
        "fit llama-3.1-8b --max-model-len 8192 --max-num-seqs 256 --max-num-batched-tokens 8192"
    )
    sizes = [
        asked(*words, "--hardware", name)["max_concurrency"]
        for name in ("l4", "l40s", "h100", "h200", "b200")
    ]
    assert sizes == sorted(sizes)
    wide = asked(*words, "--hardware", "l40s", "--kv-dtype", "bf16")["max_concurrency"]
    narrow = asked(*words, "--hardware", "l40s", "--kv-dtype", "fp8")["max_concurrency"]
    assert narrow >= wide


def test_figures_of_a_replica_are_those_of_all_of_its_groups(capplan):
    """Eight attention groups share no cache: every count of the replica is eight times that of a group."""
    words = shlex.split("fit deepseek-v3 --hardware b200 -dp 8 -ep 8 --offline --format json")
    found = capplan.result(*words)
    assert found["attention_groups"] == 8
    for name in ("max_num_seqs", "kv_cache_tokens", "max_concurrency"):
        assert found[name] == pytest.approx(8 * found[f"{name}_per_group"]), name
