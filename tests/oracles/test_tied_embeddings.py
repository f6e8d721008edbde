"""Is the LM head the embedding? Files with a text section, by what the top level says, what the section says, and who saved them.

Rows of release 5 and of no release: what Hugging Face transformers 5.23 builds (is `lm_head.weight` a parameter of its own?).
Rows of release 4: `PreTrainedModel.tie_weights` of 4.57 asks `config.get_text_config(decoder=True)`, the text section.
"""

import pytest

from capplan.families.model_config import read_network
from tests.families import ROWS

TEXT = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 320, "head_dim": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
        "moe_intermediate_size": 40, "layer_types": None}  # fmt: skip
QWEN = {"model_type": "qwen3_vl_moe_text", "num_experts": 4}


def _tied(kind, section, release, top, inner):
    text = {
        key: value
        for key, value in (TEXT | section | {"tie_word_embeddings": inner}).items()
        if value is not None
    }
    whole = {"transformers_version": release, "tie_word_embeddings": top}
    file = {key: value for key, value in whole.items() if value is not None}
    return read_network(file | {"model_type": kind, "text_config": text, "vision_config": {}}, kind)


@pytest.mark.parametrize(("kind", "section", "release", "top", "inner", "tied"), ROWS["tied"])
def test_embedding_and_head_are_one_tensor_where_the_class_makes_them_one(
    kind, section, release, top, inner, tied
):
    assert _tied(kind, section, release, top, inner).tied_embeddings is tied


@pytest.mark.parametrize(("kind", "section"), [("internvl", {"model_type": "qwen2"}), ("qwen3_vl_moe", QWEN)])
def test_a_key_that_releases_read_differently_is_named_where_nothing_decides(kind, section):
    silent, stated = (_tied(kind, section, None, top, None).notes for top in (None, False))
    assert sum("as transformers 5 reads it" in note for note in silent) == 1
    assert not any("as transformers 5 reads it" in note for note in stated)
