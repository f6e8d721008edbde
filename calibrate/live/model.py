"""A small Llama without weights: what an engine needs to start with random ones."""

import json
from pathlib import Path
from typing import Any

VOCABULARY = 32000
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 10,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "use_cache": True,
}
"""About 85 million parameters."""
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": None,
    "decoder": None,
}
SPECIAL = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "w0",
    "bos_token": "w1",
    "eos_token": "w2",
    "pad_token": "w3",
    "model_max_length": 8192,
}


def write_model(folder: Path, config: dict[str, Any] = CONFIG) -> Path:
    """Write config and tokenizer into a folder; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tokens = {f"w{number}": number for number in range(config.get("text_config", config)["vocab_size"])}
    model = {"type": "WordLevel", "vocab": tokens, "unk_token": "w0"}
    (folder / "tokenizer.json").write_text(json.dumps({**TOKENIZER, "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL, indent=1) + "\n")
    return folder
