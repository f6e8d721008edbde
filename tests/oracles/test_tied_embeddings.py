"""Is the LM head the embedding? Files with a text section, by what the top level says, what the section says, and who saved them.

Rows of release 5 and of no release: what Hugging Face transformers 5.23 builds (is `lm_head.weight` a parameter of its own?).
Rows of release 4: `PreTrainedModel.tie_weights` of 4.57 asks `config.get_text_config(decoder=True)`, the text section.
"""

import pytest

from capplan.families.model_config import read_network

TEXT = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "vocab_size": 320, "head_dim": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4,
        "moe_intermediate_size": 40, "layer_types": None}  # fmt: skip
LFM = {"model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 2}
STEP = {"model_type": "step3p5", "share_expert_dim": 56, "layer_types": ["full_attention"] * 4}
QWEN = {"model_type": "qwen3_vl_moe_text", "num_experts": 4}
LLAMA, LLAMA_4 = {"model_type": "llama"}, {"model_type": "llama4_text"}
# family, its text section, release that saved it, tie_word_embeddings at the top, in the section -> one tensor
ROWS = [
    ("qwen2_5_omni_thinker", {"model_type": "qwen2_5_omni_text"}, None, None, None, False),
    ("qwen2_5_omni_thinker", {"model_type": "qwen2_5_omni_text"}, "4.57.1", None, None, False),
    ("qwen2_5_omni_thinker", {"model_type": "qwen2_5_omni_text"}, "5.1.0", None, True, False),
    ("qwen3_vl_moe", QWEN, None, None, None, False),
    ("qwen3_vl_moe", QWEN, "4.57.1", None, None, False),
    ("internvl", {"model_type": "qwen2"}, None, None, None, True),
    ("internvl", {"model_type": "qwen2"}, "5.1.0", None, False, True),
    ("internvl", {"model_type": "qwen2"}, "4.57.1", None, None, False),
    ("mistral3", {"model_type": "mistral"}, "4.57.1", None, None, False),
    ("mistral3", {"model_type": "mistral"}, None, False, True, False),
    ("gemma3", {"model_type": "gemma3_text"}, "4.57.1", None, None, True),
    ("gemma3", {"model_type": "gemma3_text"}, "4.57.1", None, False, False),
    ("llava", LLAMA, "5.1.0", False, True, True),
    ("llava", LLAMA, "5.1.0", None, True, True),
    ("llava", LLAMA, None, None, None, False),
    ("llava_next", LLAMA, "5.1.0", False, True, False),
    ("llama4", LLAMA_4, "5.1.0", False, True, True),
    ("llama4", LLAMA_4, "5.1.0", True, False, False),
    ("lfm2_vl", LFM, "5.1.0", False, None, False),
    ("lfm2_vl", LFM, "5.1.0", True, False, True),
    ("step3p7", STEP, "5.1.0", None, True, False),
    ("step3p7", STEP, "5.1.0", True, False, True),
]  # fmt: skip


def _tied(kind, section, release, top, inner):
    text = {
        key: value
        for key, value in (TEXT | section | {"tie_word_embeddings": inner}).items()
        if value is not None
    }
    whole = {"transformers_version": release, "tie_word_embeddings": top}
    file = {key: value for key, value in whole.items() if value is not None}
    return read_network(file | {"model_type": kind, "text_config": text, "vision_config": {}}, kind)


@pytest.mark.parametrize(("kind", "section", "release", "top", "inner", "tied"), ROWS)
def test_embedding_and_head_are_one_tensor_where_the_class_makes_them_one(
    kind, section, release, top, inner, tied
):
    assert _tied(kind, section, release, top, inner).tied_embeddings is tied


@pytest.mark.parametrize(("kind", "section"), [("internvl", {"model_type": "qwen2"}), ("qwen3_vl_moe", QWEN)])
def test_a_key_that_releases_read_differently_is_named_where_nothing_decides(kind, section):
    silent, stated = (_tied(kind, section, None, top, None).notes for top in (None, False))
    assert sum("as transformers 5 reads it" in note for note in silent) == 1
    assert not any("as transformers 5 reads it" in note for note in stated)
