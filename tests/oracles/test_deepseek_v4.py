"""DeepSeek V4 and V4.1: parameters and elements of their checkpoints, cached elements, waiting tokens, formats."""

import json
from math import isqrt

import numpy as np
import pytest

from capplan.engine.lookup import profile
from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import quantised
from capplan.memory.layer_groups import cache_kinds
from capplan.memory.pool import compressed_layers, packed_layout, summed_capacity
from capplan.memory.ring_pools import _token_bytes, pooled_capacity, ring_bytes
from capplan.model.kv_cache import kv_bytes_per_sequence, kv_bytes_per_token, state_bytes
from capplan.model.mixers import CompressedAttention
from capplan.model.parameters import active_parameters, parameters, summary, weight_bytes
from capplan.model.weight_format import stored_formats
from capplan.readers.catalogue.models import read_model
from tests.families import config_of, network_of
from tests.tables import table

TINY = config_of("deepseek_v4, tiny")

# Seen in a model of TINY in transformers 5.23 after 24, 48, 131, 192 and 259 tokens.
TOKENS = np.array([24.0, 48.0, 131.0, 192.0, 259.0])
KEYS = [384, 496, 496, 496, 496]
"""Of the window, in every layer: 31 of 32 tokens stay between steps, the position itself is the 32nd."""
HEAVY = [0, 0, 16, 16, 32]
SPARSE = [144, 288, 768, 1152, 1536]
"""Entries of 128 tokens, and of 4 tokens with their index keys."""
HEAVY_WAITING = [768, 1536, 96, 2048, 96]
SPARSE_WAITING = [192, 192, 480, 192, 480]
"""Tokens that are no entry yet: value and gate, and those of the entry before where entries overlap."""


@pytest.fixture(scope="module")
def tiny():
    return read_network(TINY, "tiny")


def test_every_layer_caches_the_entries_that_were_seen(tiny):
    own = kv_bytes_per_sequence(tiny, TOKENS, 1.0)
    kept = [min(keys + 16 * (n >= 32), 512) for keys, n in zip(KEYS, TOKENS, strict=True)]
    seen = [4 * k + h + 2 * s for k, h, s in zip(kept, HEAVY, SPARSE, strict=True)]
    assert own.tolist() == seen


def test_the_fixed_state_is_the_most_that_waits(tiny):
    heavy, sparse = (float(state_bytes(tiny.layers[i].mixers[0])) / 4 for i in (1, 2))
    assert float(state_bytes(tiny.layers[0].mixers[0])) == 0
    assert heavy == 128 / 64 * HEAVY_WAITING[3]
    # Three of four tokens wait in the fullest case seen: the fourth adds two series of value and gate.
    assert sparse == SPARSE_WAITING[2] + 2 * 2 * (16 + 8)


def test_the_measured_table_says_the_same(measured):
    network = read_network(
        TINY | {"index_head_dim": 16, "compress_ratios": [128, 128, 128, 4]}, "as measured"
    )
    tokens = np.array([24.0, 48.0, 96.0, 192.0])
    table = measured.table("cache_elements")
    rows = {row["layer_class"]: row for row in table if row["family"] == "deepseek_v4"}
    for index, row, ratio, series in ((0, "DeepseekV4HCACache", 128, 1), (3, "DeepseekV4CSACache", 4, 2)):
        elements = np.array([float(rows[row][f"elements_{n:.0f}"]) for n in tokens])
        waiting = (tokens % ratio) * 2 * 16 * series * (2 if series == 2 else 1)
        before = 2 * ratio * 2 * 16 if series == 2 else 0
        one = kv_bytes_per_sequence(_only(network, index), tokens, 1.0)
        beyond = 16.0 * (tokens >= 32)
        assert (elements - waiting - before).tolist() == (one - beyond).tolist()


def _only(network, index):
    from dataclasses import replace

    return replace(network, layers=(network.layers[index],))


def test_growth_is_the_mean_of_what_entries_add(tiny):
    # One vector of 16 per 128 tokens, and in two layers 16 + 8 per 4; beyond the window nothing else grows.
    assert kv_bytes_per_token(tiny, np.array([0.0, 100.0]), 2.0).tolist() == [
        2 * (4 * 16 + 16 / 128 + 2 * 24 / 4),
        2 * (16 / 128 + 2 * 24 / 4),
    ]


@pytest.mark.parametrize("tensor", [1.0, 8.0])
def test_v4_pro_at_a_million_tokens_needs_nine_gibibytes_in_bf16_on_every_rank(tensor):
    """30 layers x 262,144 entries x (512 + 128) + 31 x 8,192 x 512 + 61 windows of 128 x 512, two bytes each."""
    network = read_model("deepseek-ai/DeepSeek-V4-Pro", offline=True)
    need = kv_bytes_per_sequence(network, 1048576.0, 2.0, tensor)
    assert need == 2 * (30 * 262144 * 640 + 31 * 8192 * 512 + 61 * 128 * 512)
    assert need / 2**30 == pytest.approx(9.62, abs=0.01)


HEAVY_STATE, SPARSE_STATE = 128 * 2 * 512 * 4, 2 * 4 * 2 * 2 * (512 + 128) * 4
"""Of vLLM's `CompressorStateCache`: value and gate in fp32 of 128 tokens; of two entries of 4 tokens, two series, with index keys."""


@pytest.mark.parametrize("tensor", [1.0, 8.0])
def test_engines_keep_value_and_gate_of_every_waiting_token_on_every_rank(tensor):
    kinds = cache_kinds(read_model("deepseek-ai/DeepSeek-V4-Pro", offline=True), tensor, 2.0)
    states = {(kind.layers, float(kind.state_bytes)) for kind in kinds if kind.kind == "state"}
    assert states == {(30, SPARSE_STATE), (31, HEAVY_STATE)}


@table
def test_a_block_has_a_page_for_every_slot(model, element, block):
    """Vectors take 584 bytes in fp8 (448 + 2 x 64 + 7 + 1), index keys 132, and fp8 pages are padded to 576 bytes.

    So pages of 64 vectors take 65 x 576, of two 3 x 576, of 64 index keys 15 x 576; in 16 bit 64 KiB, 2 KiB and 64 x 132.
    """
    block_bytes, groups = packed_layout(compressed_layers(read_model(model, offline=True)), element)
    assert float(block_bytes) == block
    assert set(groups) == {(128.0, 64.0, 2), (8.0, 4.0, 1), (128.0, 8.0, 1)}


def test_other_engines_hold_the_vectors_of_v4_pro_and_nothing_else():
    """What is needed at 2^20 tokens, with index keys of 132 bytes and the waiting tokens of an engine."""
    mixers = compressed_layers(read_model("deepseek-ai/DeepSeek-V4-Pro", offline=True))
    vectors = 2 * 512 * (30 * 262144 + 31 * 8192 + 61 * 128) + 30 * 262144 * 132
    size = vectors + 30 * SPARSE_STATE + 31 * HEAVY_STATE
    flying = 61 * 8192 * 512 * 2
    _, sequences, each = summed_capacity(flying + 3.0 * size, mixers, 2.0, 1048576.0, 8192.0, 16.0)
    assert (float(sequences), float(each)) == (3.0, size)


@pytest.mark.parametrize(("drafts", "ring"), [(False, 128), (True, 256)])
def test_sglang_keeps_rings_for_all_sequences_and_windows_of_a_tenth_of_the_tokens(drafts, ring):
    """`DSV4PoolConfigurator`: 584 bytes of a vector, 132 of an index key; a ring for each of 257 requests, and one more with its end."""
    mixers = compressed_layers(read_model("deepseek-ai/DeepSeek-V4-Pro", offline=True))
    rows = -(-(257 * ring + ring + 1) // 128) * 128
    assert float(ring_bytes(mixers, 256.0, drafts=drafts)) == rows * 2 * 512 * 4 * 31
    each = 584 * (61 * 0.1 + 30 / 4 + 31 / 128) + 132 * 30 / 4
    each += 30 * 0.1 * 8 / 128 * 4 * (512 + 128) * 4
    assert float(_token_bytes(mixers, 1.0, 0.1)) == pytest.approx(each, rel=1e-12)
    assert profile("sglang", "0.5.15").memory.compressed_window_ratio == 0.1


@pytest.mark.parametrize("context", [100.0, 4608.0, 65536.0, 1048576.0])
def test_a_sequence_takes_its_tokens_or_what_its_last_piece_holds_of_the_windows(context):
    """More windows never hold fewer sequences of one size of pool in tokens; long contexts are as large as their pages."""
    mixers = compressed_layers(read_model("deepseek-ai/DeepSeek-V4-Pro", offline=True))
    tokens = []
    for ratio in (0.05, 0.1, 0.8, 1.0):
        each = float(_token_bytes(mixers, 1.0, ratio))
        _, sequences, size = pooled_capacity(1e11, mixers, 1.0, context, 8192.0, ratio)
        assert float(sequences * size) == pytest.approx(1e11)
        tokens.append(float(size) / each)
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[-1] == np.ceil(context / 256) * 256
    if context > 1e6:
        assert len(set(tokens)) == 1


@pytest.mark.parametrize(("element", "latent"), [(1.0, 656), (2.0, 1152)])
def test_v3_2_keeps_656_bytes_of_a_latent_in_fp8_and_132_of_an_index_key(element, latent):
    """VLLM, fp8_ds_mla: 512 in fp8, four scales in fp32, 64 rotated in bf16; `DeepseekV32IndexerCache`: 128 and a scale."""
    kinds = cache_kinds(read_model("deepseek-ai/DeepSeek-V3.2", offline=True), 8.0, element)
    assert [(kind.kind, kind.layers, float(kind.token_bytes)) for kind in kinds] == [
        ("full", 61, latent + 132)
    ]


@table
def test_counts_are_those_of_the_reference(model, total, active, mixers):
    network = read_model(model, offline=True)
    found = summary(network)
    assert found["parameters"] == total
    # The reference counts the last mixing of the streams too, which no layer holds.
    assert active_parameters(network) + network.embedding_parameters == active - network.other_parameters
    assert found["mixers"] == mixers
    assert found["attention_layers"] == len(network.layers)
    assert any("no measured kernel" in note for note in network.notes)


@table
def test_experts_are_in_their_own_format_and_compressors_in_16_bit(model, experts, gigabytes):
    network = read_model(model, offline=True)
    assert stored_formats(network)[0] == experts
    layer = next(layer for layer in network.layers if layer.mixers[0].index_heads)
    formats = {projection.name: projection.weight_format for projection in layer.projections}
    assert {formats[name] for name in ("q_a", "kv_a", "q_b", "o_a", "o", "index_q", "shared_down")} == {
        "fp8_block"
    }
    assert {formats[name] for name in ("compress", "index_compress", "mix_attention", "router")} == {"bf16"}
    assert weight_bytes(network) / 1e9 == pytest.approx(gigabytes, abs=0.1)


PUBLISHED = {
    "nvidia/DeepSeek-V4-Pro-NVFP4": {
        "quantization_config": {
            "quant_method": "fp8", "weight_block_size": [128, 128], "quant_algo": "MIXED_PRECISION",
            "moe_quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
            "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 16, "type": "float"},
                                          "input_activations": {"num_bits": 4, "group_size": 16, "type": "float"}}},
            "quantized_layers": {
                f"layers.{i}.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(61)
            },
        }
    },
    "sgl-project/DeepSeek-V4-Pro-FP8": {
        "model_type": "deepseek_ref", "expert_dtype": None,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
}  # fmt: skip
"""What differs from deepseek-ai/DeepSeek-V4-Pro in the config.json of each (ai-dynamo/aiconfigurator@095f58a51c)."""


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_shipped_variant_is_its_published_config(measured, model):
    configs = measured.configs()
    config = configs[model] if measured.whole else configs["deepseek-ai/DeepSeek-V4-Pro"] | PUBLISHED[model]
    published = quantised(read_network(config, model), config)
    assert published.layers == read_model(model, offline=True).layers


def test_layer_types_say_what_compress_ratios_say(tiny):
    kinds = ["sliding_attention", "heavily_compressed_attention"] + ["compressed_sparse_attention"] * 2
    named = {key: value for key, value in TINY.items() if key != "compress_ratios"} | {"layer_types": kinds}
    assert read_network(named, "tiny").layers == tiny.layers


FILE = config_of("DeepSeek-V4.1-Flash")
TEXT = FILE["text_config"]
HIDDEN, WIDTH = 5120, 512
BIASES = 2 * (40 * 384 + 3 * 128)
"""Corrections of the routers, for text and for images: buffers, which are no parameters."""


class Tensors:
    """Sums of elements and of bytes as the checkpoint stores them."""

    def __init__(self) -> None:
        """Start empty."""
        self.elements = self.bytes = 0

    def add(self, count: int, size: float) -> None:
        """Add elements of so many bytes each."""
        self.elements += count
        self.bytes += round(count * size)

    def fp8(self, rows: int, columns: int) -> None:
        """Add a matrix with a scale of one byte for 32 x 32 elements."""
        self.elements += rows * columns
        self.bytes += rows * columns + rows * columns // 1024

    def block(self, experts: int, ratio: int = 0, *, makes: bool = False, selects: bool = False) -> None:
        """Add one block."""
        self.add(64, 4)
        for rows, columns in (
            (1280, HIDDEN),
            (64 * WIDTH, 1280),
            (WIDTH, HIDDEN),
            (8 * 1024, 8 * WIDTH),
            (HIDDEN, 8192),
        ):
            self.fp8(rows, columns)
        self.add(1280 + WIDTH + 2 * HIDDEN, 2)
        self.add(2 * (24 * 4 * HIDDEN + 24 + 3), 4)
        self.add(experts * HIDDEN, 2)
        self.add(experts * 3 * HIDDEN * 2304, 17 / 32)
        for _ in range(3):
            self.fp8(HIDDEN, 2304)
        if makes:
            self.add(WIDTH + (2 if ratio == 2 else 1) * WIDTH * HIDDEN + 128 * WIDTH + 128, 2)
        if selects:
            self.fp8(32 * 128, 1280)
            self.add(32 * HIDDEN, 2)


def published() -> tuple[Tensors, Tensors]:
    """Return the tensors of the model, and those of its drafter."""
    model, drafter = Tensors(), Tensors()
    model.add(2 * 129280 * HIDDEN + HIDDEN, 2)
    for index in range(40):
        makes, selects = index in TEXT["kv_source_layer_ids"], index in TEXT["index_source_layer_ids"]
        model.block(384, TEXT["compress_ratios"][index], makes=makes, selects=selects)
    for rows in TEXT["engram_num_embeddings"]:
        model.add(rows * 256, 33 / 32)
        model.fp8(5 * HIDDEN, 24 * 256)
        model.add(2 * 4 * HIDDEN, 2)
    tower = 588 * 1024 + 1024 + 32 * (2 * 1024 + 4 * 1024 * 1024 + 4 * 1024 + 3 * 2816 * 1024) + 1024
    model.add(tower + (9 * 1024 + HIDDEN + 2) * HIDDEN + 3 * HIDDEN, 2)
    for _ in range(3):
        drafter.block(128)
    drafter.fp8(HIDDEN, 3 * HIDDEN)
    drafter.add(2 * HIDDEN + 2 * 129280 * 256 + HIDDEN + 256, 2)
    return model, drafter


def test_elements_are_those_of_the_published_checkpoint() -> None:
    """The same sum in bytes is the size of all tensors in its index, to the byte; ours has the same elements."""
    model, drafter = published()
    assert model.bytes + drafter.bytes + 4 * BIASES == 510_286_023_000
    read = network_of("DeepSeek-V4.1-Flash")
    assert (parameters(read), read.mtp_parameters) == (model.elements, drafter.elements)


def test_rows_of_the_tables_are_primes_that_are_never_used_twice() -> None:
    """What `engram_num_embeddings` states follows from the lower bound: three n-grams of eight heads, in two layers."""
    seen: set[int] = set()
    sums = []
    for _ in range(2):
        rows = 0
        for _ in range(3):
            found = 0
            number = 16_000_000
            while found < 8:
                if number not in seen and all(number % divisor for divisor in range(2, isqrt(number) + 1)):
                    seen.add(number)
                    rows, found = rows + number, found + 1
                number += 1
        sums.append(rows)
    assert sums == TEXT["engram_num_embeddings"]


def test_a_sequence_caches_windows_and_the_entries_of_four_layers() -> None:
    """Windows of 128 records of 584 bytes in 40 layers; three sources of an entry for two tokens, one of an entry for each."""
    kinds = cache_kinds(network_of("DeepSeek-V4.1-Flash"), 1.0, 1.0)
    windows = [kind for kind in kinds if kind.kind == "window"]
    assert sum(kind.layers for kind in windows) == 40
    assert {float(kind.token_bytes) for kind in windows} == {584.0}
    record = 584.0 + 132.0
    assert (
        sum(kind.layers * float(kind.token_bytes) for kind in kinds if kind.kind == "full")
        == 3 * record / 2 + record
    )


def test_waiting_tokens_are_a_ring_of_eight_rows() -> None:
    """Value and gate in fp32, where two tokens share an entry."""
    states = {
        mixer.entry_tokens: mixer.description.state_parts
        for layer in network_of("DeepSeek-V4.1-Flash").layers
        for mixer in layer.mixers
        if isinstance(mixer, CompressedAttention) and mixer.owns_entries
    }
    [ring] = states[2]
    assert (ring.elements, ring.allocated_elements, ring.state_format) == (2048, 8192, "fp32")
    assert states[1] == ()


def test_experts_in_four_bits() -> None:
    """The text part says so, the section states fp8 in blocks of 32 x 32."""
    file = FILE | {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"}
    }
    read = quantised(read_network(file, "config.json"), file)
    assert {layer.experts.weight_format for layer in read.layers if layer.experts} == {"mxfp4"}
    table = next(one for one in read.layers[1].projections if one.name == "ngram_table")
    assert (table.weight_format, read.layers[1].projections[1].weight_format) == ("mxfp8", "fp8_block-32x32")


@pytest.mark.parametrize(("limit", "sequences"), [("", 256), ("max_num_seqs: 64\n", 64)])
def test_a_fleet_under_sglang_is_started_with_the_limit_of_the_model(capplan, tmp_path, limit, sequences):
    """`max_running_requests` of deepseek_v4_hook.py, unless stated: every sequence that may run has a ring."""
    scenario = tmp_path / "v4.yaml"
    scenario.write_text(
        "name: v4\nmodel: deepseek-ai/DeepSeek-V4-Flash\nengine: sglang\nfleet: {hardware: [b200]}\n"
        "slo: {ttft_p95: 3 s, tpot_p95: 50 ms}\ntraffic:\n"
        "  - {name: chat, request_rate: 2 req/s, input_tokens: {p50: 1500, p95: 6000}, output_tokens: {mean: 350, p95: 900}}\n"
        + limit
    )
    plan = tmp_path / "plan.json"
    plan.write_text(capplan("fleet", scenario, "--format", "json").out)
    assert (
        json.loads(plan.read_text())["result"]["plan_file"]["inputs"]["launch"]["max_num_seqs"] == sequences
    )
    assert "waiting_ring_bytes" in capplan("explain", plan, "kv_bytes_available_per_gpu").out
