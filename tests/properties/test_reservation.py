"""Does an engine ever set aside less than a sequence needs? Asked of every shipped model."""

import json

import numpy as np
import pytest

from capplan.engine.lookup import profile
from capplan.memory.capacity import reserved_bytes_per_sequence
from capplan.memory.kv_sizes import kv_sizes
from capplan.memory.launch import engine_launch
from capplan.model.kv_cache import kv_bytes_per_sequence, state_bytes_per_sequence
from capplan.model.sharding import Sharding
from capplan.readers.catalogue.models import FOLDER, read_model
from capplan.readers.text_file import data_folder

FOLDERS = sorted(path.parent.name for path in data_folder(FOLDER).glob("*/source.yaml"))
CONTEXTS = np.array([1, 3, 8, 17, 46, 100, 127, 1000, 4097, 8192, 30001, 131072, 1048576], float)
RANKS = np.array([[1.0], [2.0], [8.0], [16.0]])
SMALLER_STATE = 0.48
"""The reference keeps recurrent states in fp32, engines those of gated delta nets in 16 bit and one convolution
column less: their share of the need may shrink to less than half, never the rest."""


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_an_engine_reserves_at_least_what_the_architecture_needs(folder, engine):
    network = read_model(folder.replace("--", "/", 1), offline=True)
    for element in (4.0, 2.0, 1.0):
        need = kv_bytes_per_sequence(network, CONTEXTS, element, RANKS, stored=True)
        need = need + SMALLER_STATE * state_bytes_per_sequence(network, RANKS)
        reserved = reserved_bytes_per_sequence(
            network,
            engine_launch(profile(engine), Sharding(tensor=RANKS), 80e9, element, CONTEXTS, 1.0, 8192.0),
            profile(engine),
        )
        short = np.argwhere(np.broadcast_to(reserved, need.shape) < need * (1 - 1e-9))
        assert not short.size, [(RANKS[i, 0], CONTEXTS[j], element) for i, j in short[:3]]


def test_the_index_keys_of_minimax_m3_are_reserved():
    """57 of 60 layers hold one key of 128 elements per token beside four KV heads of 128 (config.json)."""
    network = read_model("MiniMaxAI/MiniMax-M3", offline=True)
    assert json.dumps(network.keys_used).count("sparse_index_dim")
    (row,) = kv_sizes(network, [131072], kv_dtype="bf16").rows
    assert row.engine_reserved_bytes_per_sequence >= row.kv_bytes_per_sequence == 131072 * (122880 + 57 * 256)
