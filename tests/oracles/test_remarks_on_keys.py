"""Does a remark on a key that was not read appear only where the key can change a number?"""

import pytest

from capplan.families.model_config import read_network
from capplan.readers.catalogue.models import shipped_config, shipped_names


def unread(network):
    return [note for note in network.notes if note.startswith("not read")]


@pytest.mark.parametrize("model", [name for name in shipped_names() if "/" in name])
def test_published_files_have_no_remark(model):
    config, name = shipped_config(model)
    expected = ["attn_res_block_size"] if name.endswith(("Kimi-K3", "Kimi-K3-NVFP4")) else []
    remarks = unread(read_network(config, name))
    assert len(remarks) == len(expected)
    assert all(key in remarks[0] for key in expected)


LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "vocab_size": 320}  # fmt: skip


@pytest.mark.parametrize(
    "keys",
    [
        {"use_rmsnorm": True},
        {"qk_norm": False},
        {"num_nextn_predict_layers": 0},
        {"num_mtp_modules": 3},
        {"n_extra": 0},
        {"extra": None},
    ],
)
def test_a_key_that_cannot_change_a_number_is_not_remarked_on(keys):
    assert unread(read_network(LLAMA | keys, "n")) == []


@pytest.mark.parametrize(
    "keys", [{"n_memory_tokens": 4}, {"shared_expert_intermediate_size": 128}, {"cross_layers": [1]}]
)
def test_a_key_that_could_is(keys):
    assert any(next(iter(keys)) in remark for remark in unread(read_network(LLAMA | keys, "n")))
