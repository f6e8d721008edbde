"""DeepSeek-V4.1-Flash: elements of its checkpoint, whose bytes are the `total_size` of its index, and what a sequence caches.

Keys from sgl-project/sglang (python/sglang/srt/configs/deepseek_v41.py and its tests), the size of all tensors from the index of
deepseek-ai/DeepSeek-V4.1-Flash@dba1be0; record sizes from vllm-project/vllm (vllm/models/deepseek_v41/attention.py).
"""

from math import isqrt

from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import quantised
from capplan.memory.layer_groups import cache_kinds
from capplan.model.mixers import CompressedAttention
from capplan.model.parameters import parameters
from tests.families import config_of, network_of

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
    assert (ring.elements, ring.held_elements, ring.state_format) == (2048, 8192, "fp32")
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
