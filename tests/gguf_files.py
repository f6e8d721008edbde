"""Small GGUF files for tests: a header, and data that are a hole in the file."""

import struct

TYPES = {
    "fp32": (0, 1, 4), "fp16": (1, 1, 2), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210), "iq4_xs": (23, 256, 136), "bf16": (30, 1, 2), "mxfp4": (39, 32, 17),
}  # fmt: skip
"""Number of a type in files, weights and bytes of a block: docs/gguf.md and ggml-common.h of ggml."""


def text(value):
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(value):
    """Return the type and the value of one entry of the metadata."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    head = struct.pack("<I", 9)
    if value and isinstance(value[0], str):
        return head + struct.pack("<IQ", 8, len(value)) + b"".join(map(text, value))
    if value and isinstance(value[0], bool):
        return head + struct.pack(f"<IQ{len(value)}?", 7, len(value), *value)
    return head + struct.pack(f"<IQ{len(value)}I", 4, len(value), *value)


def size_of(dtype, shape):
    _, elements, size = TYPES[dtype]
    count = shape[0] // elements * size
    for rows in shape[1:]:
        count *= rows
    return count


def header(metadata, tensors, *, version=3, tensor_count=None, key_count=None, magic=b"GGUF"):
    """Return the bytes of a header, and those of the data behind it."""
    out = [magic, struct.pack("<I", version)]
    out.append(struct.pack("<Q", len(tensors) if tensor_count is None else tensor_count))
    out.append(struct.pack("<Q", len(metadata) if key_count is None else key_count))
    out += [text(key) + value_bytes(value) for key, value in metadata.items()]
    offset = 0
    for name, dtype, shape in tensors:
        out.append(text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        out.append(struct.pack("<IQ", TYPES[dtype][0], offset % 2**64))
        offset += -(-size_of(dtype, shape) // 32) * 32
    raw = b"".join(out)
    return raw + bytes(-len(raw) % 32), offset


def write_gguf(path, metadata, tensors, **more):
    raw, data = header(metadata, tensors, **more)
    path.write_bytes(raw)
    with path.open("r+b") as file:
        file.truncate(len(raw) + data)
    return path


def keys(architecture, **values):
    """Return metadata: dots of a key are written as two underscores."""
    own = {f"{architecture}.{key.replace('__', '.')}": value for key, value in values.items()}
    words = {"tokenizer.ggml.tokens": [f"word{i}" for i in range(96)], "tokenizer.chat_template": "{" * 9_000}
    return {"general.architecture": architecture, "general.name": "tiny", **own, **words}


HIDDEN, WIDE, QUERIES, KEYS, LENGTH, WORDS, LAYERS = 256, 512, 8, 2, 32, 96, 2
PLAIN = {
    "block_count": LAYERS,
    "context_length": 4096,
    "embedding_length": HIDDEN,
    "feed_forward_length": WIDE,
    "attention__head_count": QUERIES,
    "attention__head_count_kv": KEYS,
}


def llama(*, matrix="q4_k", value="q6_k", down="q6_k", tied=False, architecture="llama", extra=(), **more):
    """Return metadata and tensors of a tiny model that is built like Llama."""
    tensors = [("token_embd.weight", matrix, (HIDDEN, WORDS)), ("output_norm.weight", "fp32", (HIDDEN,))]
    tensors += [] if tied else [("output.weight", "q6_k", (HIDDEN, WORDS))]
    for layer in range(LAYERS):
        tensors += [
            (f"blk.{layer}.{name}", dtype, shape)
            for name, dtype, shape in (
                ("attn_norm.weight", "fp32", (HIDDEN,)),
                ("attn_q.weight", matrix, (HIDDEN, QUERIES * LENGTH)),
                ("attn_k.weight", matrix, (HIDDEN, KEYS * LENGTH)),
                ("attn_v.weight", value, (HIDDEN, KEYS * LENGTH)),
                ("attn_output.weight", matrix, (QUERIES * LENGTH, HIDDEN)),
                ("ffn_norm.weight", "fp32", (HIDDEN,)),
                ("ffn_gate.weight", matrix, (HIDDEN, WIDE)),
                ("ffn_up.weight", matrix, (HIDDEN, WIDE)),
                ("ffn_down.weight", down, (WIDE, HIDDEN)),
                *extra,
            )
        ]
    return keys(architecture, **{**PLAIN, **more}), tensors


def mixture(architecture, *, experts=4, used=2, wide=64, shared=0, extra=(), split=False, **more):
    """Return metadata and tensors of a tiny mixture of experts."""
    metadata, tensors = llama(architecture=architecture, expert_count=experts, expert_used_count=used, **more)
    tensors = [tensor for tensor in tensors if "ffn_" not in tensor[0] or "norm" in tensor[0]]
    for layer in range(LAYERS):
        routed = [
            ("ffn_gate_exps.weight", "q4_k", (HIDDEN, wide, experts)),
            ("ffn_up_exps.weight", "q4_k", (HIDDEN, wide, experts)),
            ("ffn_down_exps.weight", "q8_0", (wide, HIDDEN, experts)),
        ]
        if split:
            routed = [
                (f"{name[:-12]}.{i}.weight", dtype, shape[:2])
                for name, dtype, shape in routed
                for i in range(experts)
            ]
        beside = [
            *([("ffn_gate_inp_shexp.weight", "fp32", (HIDDEN,))] if architecture == "qwen2moe" else []),
            ("ffn_gate_shexp.weight", "q4_k", (HIDDEN, shared)),
            ("ffn_up_shexp.weight", "q4_k", (HIDDEN, shared)),
            ("ffn_down_shexp.weight", "q6_k", (shared, HIDDEN)),
        ]
        parts = [
            ("ffn_gate_inp.weight", "fp32", (HIDDEN, experts)),
            *routed,
            *(beside if shared else []),
            *extra,
        ]
        tensors += [(f"blk.{layer}.{name}", dtype, shape) for name, dtype, shape in parts]
    return metadata, tensors
