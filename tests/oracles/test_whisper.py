"""Whisper against the code of vLLM and SGLang, and the cache that transformers fills; test_families.py has its published sizes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capplan.engine.lookup import profile
from capplan.errors import InputError
from capplan.memory.kv_sizes import kv_sizes
from capplan.model.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token
from capplan.replica.spec import profile_as_served, refuse_prefixes
from tests.families import ROWS, network_of

LARGE = ROWS["bases"]["whisper"]


def test_a_sequence_holds_its_text_and_the_positions_of_its_source():
    """`EncoderDecoderCache` of transformers: 2 x layers x width for each of 448 tokens, and for each of 1,500 positions from the first on."""
    network, vector = network_of("whisper-large-v3"), 2 * 32 * 1280
    assert [float(kv_bytes_per_sequence(network, tokens, 2.0)) for tokens in (1.0, 448.0)] == [
        2.0 * vector * (1500 + tokens) for tokens in (1.0, 448.0)
    ]
    assert float(kv_bytes_per_token(network, 1.0, 2.0)) == 2.0 * vector
    assert float(kv_bytes_per_sequence(network, 448.0, 2.0, tensor_parallel=4.0)) == 2.0 * vector * 1948 / 4


def test_vllm_reserves_blocks_for_both():
    """`CrossAttentionManager` of vLLM 0.33: ceil(1500 / 16) blocks besides those of the text, in groups of 32 layers."""
    (size,) = kv_sizes(network_of("whisper-large-v3"), [100], kv_dtype="fp16").rows
    assert size.engine_reserved_bytes_per_sequence == (7 + 94) * 16 * 2 * 2 * 32 * 1280


def test_a_slot_of_sglang_is_for_every_layer():
    """SGLang 0.5.23, `num_attention_layers`: encoder + 2 x decoder; `pad_input_ids` prepends the positions of the source to the prompt."""
    turbo = network_of("whisper-large-v3-turbo")
    (size,) = kv_sizes(turbo, [100], kv_dtype="fp16", engine="sglang").rows
    assert size.engine_reserved_bytes_per_sequence == (100 + 1500) * (32 + 2 * 4) * 2 * 2 * 1280


def test_prompts_are_whole_and_not_reused():
    """`SchedulerConfig.__post_init__` of vLLM switches chunked prefill and prefix caching off."""
    network, engine = network_of("whisper-large-v3"), profile("vllm")
    assert not profile_as_served(engine, network, None).chunked
    with pytest.raises(InputError, match="cannot be cut into chunks"):
        profile_as_served(engine, network, True)
    with pytest.raises(InputError, match="none can reuse a prefix"):
        refuse_prefixes(network, 0.5)
    plain = replace(network, encoder=None)
    assert profile_as_served(engine, plain, None).chunked


def test_an_estimate_reads_the_source_once_and_holds_it(tmp_path, capplan):
    """An L4 has room for some 60 sources of 1,500 positions, not for the 250 sequences whose text alone would fit."""
    words = ("--hardware", "l4", "--input-tokens", "4", "--output-tokens", "100", "--format", "json")
    answer = capplan.result(
        "estimate", write(tmp_path, LARGE), *words, "--concurrency", "200", "--engine-version", "0.13.0"
    )
    once = {row["operator"]: row for row in answer["breakdown"] if row["operator"].startswith("encoder_")}
    assert {row["phase"] for row in once.values()} == {"prefill"}
    assert once["encoder_up"]["flop"] == 2.0 * 1500 * 1280 * 5120 * 32
    assert once["encoder_cross_kv"]["flop"] == 2.0 * 1500 * 1280 * 2560 * 32
    fits = capplan.result("fit", write(tmp_path, LARGE), "--hardware", "l4")
    assert 56 < fits["max_concurrency"] < 57
    assert 0.9 < answer["kv_occupancy_fraction"] <= 1.0


def write(folder: Path, config: dict[str, object]) -> str:
    """Return a folder with the file."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)
