"""Laws of what fits and of what a sequence keeps, asked as a person asks them: through the command line."""

import shlex

import pytest

from tests.tables import table

ENGINES = ("vllm", "sglang", "trtllm")
MODELS = ("llama-3.1-8b", "deepseek-v3", "gemma-3-27b-it", "qwen3-next-80b-a3b-instruct", "gpt-oss-20b")


@pytest.fixture
def asked(capplan):
    def run(*words):
        return capplan.result(*words, code=(0, 3))

    return run


def kv_rows(asked, model, *words):
    return asked("kv-size", model, *words)["rows"]


@pytest.mark.parametrize("model", MODELS)
def test_need_grows_with_context_and_in_proportion_to_sequences(asked, model):
    words = ("--kv-dtype", "bf16", "--context", "100", "--context", "5000", "--context", "32768")
    one = kv_rows(asked, model, *words)
    seven = kv_rows(asked, model, *words, "--sequences", "7")
    sizes = [row["kv_bytes_total"] for row in one]
    assert sizes == sorted(sizes)
    assert [row["kv_bytes_total"] for row in seven] == pytest.approx([7 * size for size in sizes])
    assert all(row["kv_bytes_per_gpu"] == row["kv_bytes_total"] for row in one)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("words", [("h100", "1"), ("l4", "2"), ("b200", "8")])
def test_the_waterfall_ends_at_the_cache(asked, engine, words):
    found = asked("fit", "llama-3.1-70b", "--hardware", words[0], "-tp", words[1], "--engine", engine)
    *steps, cache = found["waterfall"]
    assert cache["memory_bytes"] == found["kv_bytes_available_per_gpu"]
    assert steps[-1]["left_bytes"] == pytest.approx(cache["memory_bytes"], abs=1.0)
    assert sum(step["memory_bytes"] for step in steps) == pytest.approx(cache["memory_bytes"], abs=1.0)


@table
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


def test_figures_of_a_replica_are_those_of_all_of_its_groups(capplan):
    """Eight attention groups share no cache: every count of the replica is eight times that of a group."""
    words = shlex.split("fit deepseek-v3 --hardware b200 -dp 8 -ep 8 --offline --format json")
    found = capplan.result(*words)
    assert found["attention_groups"] == 8
    for name in ("max_num_seqs", "kv_cache_tokens", "max_concurrency"):
        assert found[name] == pytest.approx(8 * found[f"{name}_per_group"]), name
