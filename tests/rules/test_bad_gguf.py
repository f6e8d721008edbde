"""GGUF files that are cut, damaged or hostile: one line each, whatever they claim."""

import contextlib
import struct
from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capplan.errors import InputError
from capplan.model.parameters import parameters
from capplan.readers.catalogue.models import read_model
from tests.gguf_files import LAYERS, header, keys, llama, text, write_gguf

METADATA, TENSORS = llama()
WHOLE, DATA = header(METADATA, TENSORS)
OWN_DIRECTORY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
TERA = 10**12
PARAMETERS = sum(prod(shape) for _, _, shape in TENSORS)


def read(tmp_path, content, size=None):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with path.open("r+b") as file:
        file.truncate(len(content) if size is None else size)
    return read_model(str(path))


def refused(tmp_path, content, *words, size=None):
    with pytest.raises(InputError) as caught:
        read(tmp_path, content, size)
    first = str(caught.value).split("\n")[0]
    assert "model.gguf: " in first
    assert len(first) < 400
    for word in words:
        assert word in str(caught.value)


def claims(**counts):
    return header(METADATA, TENSORS, **counts)[0]


@OWN_DIRECTORY
@given(st.integers(0, len(WHOLE) + DATA - 1))
def test_a_file_cut_anywhere_is_refused(tmp_path, size):
    refused(tmp_path, WHOLE[:size], size=size)


@OWN_DIRECTORY
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), st.sampled_from([1, 4, 8]))
def test_a_damaged_header_is_used_or_refused(tmp_path, place, byte, length):
    damaged = WHOLE[:place] + bytes([byte]) * length + WHOLE[place + length :]
    with contextlib.suppress(InputError):
        assert parameters(read(tmp_path, damaged, len(WHOLE) + DATA)) == PARAMETERS


@pytest.mark.parametrize("size", [None, 10**12])
def test_claims_beyond_the_file_are_refused_at_once(tmp_path, size):
    refused(tmp_path, claims(tensor_count=TERA), "claims 1,000,000,000,000 tensors", size=size)
    refused(tmp_path, claims(key_count=TERA), "claims 1,000,000,000,000 keys", size=size)
    refused(tmp_path, claims(tensor_count=2**64 - 1), "tensors", size=size)


def head(kind, rest, *, name="a"):
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(name) + struct.pack("<I", kind) + rest


@pytest.mark.parametrize("size", [None, 10**12])
@pytest.mark.parametrize("item", [0, 4, 8, 9, 12])
def test_a_list_of_10_to_the_12_is_refused_at_once(tmp_path, item, size):
    refused(tmp_path, head(9, struct.pack("<IQ", item, TERA) + bytes(64)), size=size)


def test_lists_in_each_other_and_long_texts_are_refused(tmp_path):
    refused(tmp_path, head(9, struct.pack("<IQ", 9, 1) * 40_000), "list of type 9")
    refused(tmp_path, head(8, struct.pack("<Q", TERA) + bytes(64)), "cut short")
    refused(tmp_path, head(99, bytes(64)), "type 99")
    refused(tmp_path, head(4, bytes(64), name="k" * 5_000), "5,000 bytes")
    refused(tmp_path, head(4, bytes(64), name=b"\xff\xfe"), "not UTF-8")


def test_other_files_are_refused_with_what_they_are(tmp_path):
    refused(tmp_path, header(METADATA, TENSORS, magic=b"GGML")[0], "not GGUF")
    refused(tmp_path, header(METADATA, TENSORS, version=1)[0], "GGUF version 1")
    refused(tmp_path, b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian")
    refused(tmp_path, b"", "is empty")
    folder = tmp_path / "folder"
    folder.mkdir()
    write_gguf(folder / "tiny.gguf", METADATA, TENSORS)
    with pytest.raises(InputError, match=r"it has tiny\.gguf: give that file"):
        read_model(str(folder))


@pytest.mark.parametrize(
    ("metadata", "tensors", "words"),
    [
        (keys("llama"), TENSORS, ["llama.embedding_length", "missing"]),
        ({**METADATA, "general.architecture": "rwkv7"}, TENSORS, ["'rwkv7' is not modelled", "qwen3moe"]),
        ({**METADATA, "general.architecture": "clip"}, TENSORS, ["clip tower"]),
        ({**METADATA, "llama.block_count": "two"}, TENSORS, ["llama.block_count", "not a whole number"]),
        ({**METADATA, "llama.block_count": LAYERS + 1}, TENSORS, ["blk.2"]),
        ({**METADATA, "llama.block_count": LAYERS - 1}, TENSORS, ["blk.1.", "is not one of the model"]),
        ({**METADATA, "llama.block_count": 100_000}, TENSORS, ["out of range"]),
        ({**METADATA, "llama.attention.head_count_kv": 4}, TENSORS, ["blk.0: qkv", "98,304 elements"]),
        ({**METADATA, "llama.attention.head_count_kv": [2, 4]}, TENSORS, ["differs from layer to layer"]),
        ({**METADATA, "llama.attention.value_length": 64}, TENSORS, ["value_length"]),
        ({**METADATA, "general.alignment": 3}, TENSORS, ["power of two"]),
        (METADATA, [*TENSORS, ("blk.0.ssm_a", "fp32", (4,))], ["'blk.0.ssm_a' is not one of the model"]),
        (METADATA, [*TENSORS, ("blk.0.attn_q.bias", "fp32", (256,))], ["norms and biases"]),
        (METADATA, [*TENSORS, TENSORS[0]], ["listed twice"]),
        (METADATA, TENSORS[1:], ["no tensor token_embd.weight"]),
        (METADATA, [("token_embd.weight", "fp32", (2**40, 2**40)), *TENSORS[1:]], ["has the shape"]),
    ],
)  # fmt: skip
def test_what_is_not_a_model_that_is_known_is_refused(tmp_path, metadata, tensors, words):
    raw, data = header(metadata, tensors)
    refused(tmp_path, raw, *words, size=min(len(raw) + data, 10**12))
