"""Serve random weights with llama.cpp's server: `python llamacpp_server.py MODEL.gguf FIELD=VALUE ...`, in an environment that has xllamacpp and gguf.

The fields are those of llama.cpp's `common_params`, such as n_parallel=4 (--parallel) or n_batch=256 (--batch-size). Nothing of capplan is needed here.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import xllamacpp  # type: ignore[import-not-found]

BYTES = 256
SPECIAL = 3
UNKNOWN, CONTROL, BYTE, NORMAL = 2, 3, 6, 1
"""Kinds of tokens."""
FIELDS = {
    "hidden_size": "add_embedding_length",
    "intermediate_size": "add_feed_forward_length",
    "num_hidden_layers": "add_block_count",
    "num_attention_heads": "add_head_count",
    "num_key_value_heads": "add_head_count_kv",
    "max_position_embeddings": "add_context_length",
    "rms_norm_eps": "add_layer_norm_rms_eps",
    "rope_theta": "add_rope_freq_base",
    "vocab_size": "add_vocab_size",
    "bos_token_id": "add_bos_token_id",
    "eos_token_id": "add_eos_token_id",
}
"""Fields of a config, and what writes each of them."""


def write_weights(config: dict[str, Any], path: Path) -> None:
    """Write a Llama with random weights, in float32 unless the config says another format, and a tokenizer of words; unless the file is there."""
    if path.exists():
        return
    writer = gguf.GGUFWriter(str(path), "llama")
    for field, name in FIELDS.items():
        getattr(writer, name)(config[field])
    head, width = config["head_dim"], config["hidden_size"]
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_value_length(head)
    count = config["vocab_size"] - SPECIAL - BYTES
    pieces = [f"<0x{byte:02X}>" for byte in range(BYTES)]
    words = [f"\u2581w{SPECIAL + BYTES + place}" for place in range(count)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *pieces, *words])
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL, *[BYTE] * BYTES, *[NORMAL] * count])
    writer.add_token_scores([0.0] * config["vocab_size"])
    writer.add_add_bos_token(False)
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    inner = config["intermediate_size"]
    matrices = {
        "attn_q": (queries, width), "attn_k": (keys, width), "attn_v": (keys, width), "attn_output": (width, queries),
        "ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner),
    }  # fmt: skip
    draw = np.random.default_rng(0)

    kind = gguf.GGMLQuantizationType[config.get("gguf_format", "F32")]

    def add(name: str, *shape: int) -> None:
        values = (0.02 * draw.standard_normal(shape)).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)

    rows = (0.02 * draw.standard_normal((config["vocab_size"], width))).astype(np.float32)
    rows[: SPECIAL + BYTES] = (
        0.0  # so none of them is ever the likeliest: a part of a letter would not be streamed
    )
    writer.add_tensor("token_embd.weight", rows)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(config["num_hidden_layers"]):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
        for name, shape in matrices.items():
            add(f"blk.{layer}.{name}", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(words: list[str]) -> None:
    """Serve until the process is ended."""
    model = Path(words[0])
    write_weights(json.loads((model.parent / "config.json").read_text(encoding="utf-8")), model)
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    for word in words[1:]:
        name, _, value = word.partition("=")
        *parts, field = name.split(".")
        at = params
        for part in parts:
            at = getattr(at, part)
        setattr(at, field, json.loads(value))
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(1.0)


if __name__ == "__main__":
    main(sys.argv[1:])
