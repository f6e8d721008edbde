"""A file of a model that is broken or out of all proportion: one clear line from every command that reads it, and no traceback.

How long a refusal takes is not asserted; by hand, each took at most 0.36 s of CPU, of which 0.3 s are the start of the program.
"""

import json

import pytest

from tests.gguf_files import header, llama

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
COMMANDS = ("model", "kv-size", "fit", "estimate")


def nested(kind, depth):
    config = LLAMA
    for _ in range(depth):
        config = {"model_type": kind, "text_config": config}
    return config


def gguf(**counts):
    metadata, tensors = llama()
    raw, _ = header(metadata, tensors, **counts)
    return raw


BROKEN = {
    "a GGUF cut in its header": ("cut.gguf", lambda: gguf()[: len(gguf()) // 2], "is cut short: tokenizer.chat_template"),
    "a GGUF cut in its data": ("data.gguf", gguf, "is cut short: token_embd.weight"),
    "10^12 tensors": ("tensors.gguf", lambda: gguf(tensor_count=10**12), "1,000,000,000,000"),
    "10^12 keys": ("keys.gguf", lambda: gguf(key_count=10**12), "1,000,000,000,000"),
    "100,000 layers": ("layers.json", lambda: LLAMA | {"num_hidden_layers": 100_000}, "num_hidden_layers: 100000"),
    "a number of 400 digits": ("digits.json", lambda: LLAMA | {"num_hidden_layers": 10**400}, "num_hidden_layers"),
    "text_config ten deep": ("ten.json", lambda: nested("gemma3", 10), "text_config"),
    "text_config ten deep, wrapped": ("wrapped.json", lambda: nested("llava", 10), "'llava' is not modelled"),
    "two million layer types": (
        "types.json",
        lambda: LLAMA | {"layer_types": ["full_attention"] * 2_000_000},
        "larger than 8 MB",
    ),
    "objects 100,000 deep": ("deep.json", lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested"),
}  # fmt: skip
"""Name of the file, its content, and words of the line."""


@pytest.mark.parametrize("case", BROKEN)
def test_every_command_refuses_it_in_one_line_that_names_file_and_fault(case, tmp_path, capplan):
    name, content, words = BROKEN[case]
    path, made = tmp_path / name, content()
    path.write_bytes(made if isinstance(made, bytes) else json.dumps(made).encode())
    lines = set()
    for command in COMMANDS:
        more = () if command in ("model", "kv-size") else ("--hardware", "h100")
        load = ("--concurrency", "4") if command == "estimate" else ()
        ran = capplan(command, path, *more, *load)
        assert (ran.code, ran.out) == (2, "")
        assert "Traceback" not in ran.err
        lines.add(ran.err.splitlines()[0])
    (line,) = lines
    assert name in line
    assert words in line
    assert len(line) < 300 + len(str(path))
