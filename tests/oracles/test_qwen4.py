"""Qwen3.8-Flash-Next: bytes of its checkpoint, and what vLLM allocates for a sequence.

Keys and shapes from steadfastgaze/MoEspresso@6b96f27 (src/moespresso/inventory/qwen4/static.py), which states the `total_size` of
model.safetensors.index.json; caches and states from vllm-project/vllm (vllm/models/qwen4_exp/common/qsa_cache.py).
"""

import pytest

from capplan.memory.layer_groups import cache_kinds
from capplan.model.kv_cache import kv_bytes_per_sequence
from capplan.model.mixers import Attention, ShortConvolution
from capplan.model.parameters import parameters
from tests.families import network_of

NAME = "Qwen3.8-Flash-Next"
INTEGERS = 35 * 8
"""Bytes of the multipliers, sizes and offsets of the hashed tables, which are no parameters."""


def test_checkpoint_has_the_published_bytes() -> None:
    """Text, vision tower, next-token layer and the table of n-grams: all tensors of the index, to the byte."""
    read = network_of(NAME)
    assert (parameters(read) + read.mtp_parameters) * 2 + INTEGERS == 359_999_963_128


@pytest.mark.parametrize("kv_bytes", [2.0, 1.0])
def test_a_token_takes_what_the_engine_allocates(kv_bytes: float) -> None:
    """Keys and values of every token in 12 layers, an index key of 128 x 2 B for four tokens, whatever the cache dtype."""
    [full] = [kind for kind in cache_kinds(network_of(NAME), 1.0, kv_bytes) if kind.kind == "full"]
    assert (full.layers, float(full.token_bytes)) == (12, 2 * 2 * 256 * kv_bytes + 256 / 4)
    stored, reference = (
        kv_bytes_per_sequence(network_of(NAME), 4096.0, kv_bytes, stored=as_stored)
        for as_stored in (True, False)
    )
    assert stored == reference


def test_states_of_a_sequence() -> None:
    """A ring of four raw keys with three positions of eight bytes; nine columns of all streams, whole on every rank."""
    read = network_of(NAME)
    [attending] = {mixer for layer in read.layers for mixer in layer.mixers if isinstance(mixer, Attention)}
    [ring] = attending.description.state_parts
    assert (ring.allocated_elements, ring.state_format, ring.pieces) == (4 * (128 + 12), "bf16", 1)
    [convolution] = [
        mixer for layer in read.layers for mixer in layer.mixers if isinstance(mixer, ShortConvolution)
    ]
    [columns] = convolution.description.state_parts
    assert (columns.allocated_elements, columns.pieces) == (4 * 2560 * 9, 1)


def test_eight_bit_table() -> None:
    """A file may keep the table of n-grams in fp8, which halves 102 GB."""
    [table] = [
        one
        for one in network_of(NAME, text_config={"ple_embedding_dtype": "float8_e4m3fn"})
        .layers[1]
        .projections
        if one.name == "ngram_table"
    ]
    assert (table.weight_format, table.inputs, table.outputs) == ("fp8", 320_001_536, 160)
