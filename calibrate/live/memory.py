"""Cache that the live engine allocates, for models of many kinds with random weights, next to what capplan predicts.

`python -m calibrate.live.memory ENVIRONMENT FOLDER [NAME ...]` prints a line for each model and writes FOLDER/memory.json.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.live import engine_blocks
from calibrate.live.model import VOCABULARY, write_model
from calibrate.live.server import ENGINE
from capplan.engine.lookup import profile
from capplan.errors import CapplanError
from capplan.memory.capacity import reserved_bytes_per_sequence
from capplan.memory.launch import engine_launch
from capplan.model.sharding import Sharding
from capplan.model.weight_format import kv_bytes_per_element
from capplan.readers.catalogue.models import read_model

ROOT = Path(__file__).resolve().parents[2]
CACHE_BYTES = 2.0**30
CONTEXT = 4096
BLOCK = 128
"""Tokens that the engine gives a block on processors, where it gives 16 on GPUs."""
BUDGET = 512
"""Tokens of a step: a sliding window keeps its own and those of the step."""
MODELS = (
    "Qwen--Qwen3-0.6B", "meta-llama--Llama-3.1-8B-Instruct", "mistralai--Mistral-7B-v0.1", "google--gemma-2-2b-it", "google--gemma-3-1b-it",
    "allenai--Olmo-3-1125-32B", "mistralai--Mixtral-8x7B-v0.1", "Qwen--Qwen3-30B-A3B", "deepseek-ai--DeepSeek-V2-Lite",
    "openai--gpt-oss-20b", "Qwen--Qwen3-Next-80B-A3B-Instruct", "state-spaces--mamba-2.8b-hf", "ai21labs--AI21-Jamba-1.5-Large",
    "nvidia--Nemotron-H-56B-Base-8K", "LGAI-EXAONE--EXAONE-4.0-32B", "facebook--opt-125m", "EleutherAI--pythia-1.4b",
    "microsoft--phi-4", "ibm-granite--granite-3.1-2b-instruct", "HuggingFaceTB--SmolLM2-135M", "google--gemma-4-E2B", "Qwen--Qwen3.5-4B",
    "gemma-3n", "deepseek-ai--DeepSeek-V3", "tiiuae--falcon-mamba-7b", "zai-org--GLM-4.7-Flash",
)  # fmt: skip
SMALLER = {
    "vocab_size": VOCABULARY,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "ffn_dim": 512,
}
"""Sizes that no cache depends on."""
GEMMA_3N: dict[str, Any] = {
    "architectures": ["Gemma3nForCausalLM"],
    "model_type": "gemma3n_text",
    "hidden_size": 2048,
    "intermediate_size": [512] * 15,
    "num_hidden_layers": 15,
    "num_kv_shared_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 3,
    "activation_sparsity_pattern": [0.0] * 15,
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 256,
    "altup_num_inputs": 4,
    "laurel_rank": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
"""What a layer of Gemma 3n E4B keeps (the default config of transformers), in 15 layers instead of 35; it is not among the shipped configs."""
LAYERS = 12
"""Two periods of most hybrids."""


def smaller(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with few layers and narrow matrices; what a layer keeps in the cache stays."""
    found = {**config, **{name: value for name, value in SMALLER.items() if name in config}}
    for section in ("text_config",):
        if isinstance(found.get(section), dict):
            found[section] = smaller(found[section])
    layers = next((name for name in ("num_hidden_layers", "n_layer") if name in found), None)
    if layers:
        most = min(found[layers], LAYERS)
        if found.get("num_kv_shared_layers"):
            found["num_kv_shared_layers"] = found["num_kv_shared_layers"] * most // found[layers]
        found[layers] = most
        for name, value in found.items():
            if isinstance(value, list) and len(value) == config[layers]:
                found[name] = value[:most]
        if isinstance(found.get("hybrid_override_pattern"), str):
            found["hybrid_override_pattern"] = found["hybrid_override_pattern"][:most]
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if name in found:
            found[name] = 1
    for name in ("quantization_config", "rope_scaling"):
        found.pop(name, None)
    if "max_position_embeddings" in found:
        found["max_position_embeddings"] = max(found["max_position_embeddings"], CONTEXT)
    return found


def small_config(name: str) -> dict[str, Any]:
    """Return the config of a model with its layers as they are, in a small number."""
    if name == "gemma-3n":
        return GEMMA_3N
    return smaller(json.loads((ROOT / "model_configs" / name / "config.json").read_text()))


def allocated(environment: Path, models: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield for each model what the engine's cache holds, or why the engine did not start."""
    variables = {
        **os.environ, **ENGINE, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
    }  # fmt: skip
    words = [
        str(environment / "bin" / "python"),
        engine_blocks.__file__,
        str(CONTEXT),
        str(BUDGET),
        *map(str, models),
    ]
    with subprocess.Popen(  # noqa: S603  # the words above
        words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as engine:
        for line in engine.stdout or ():
            if line.startswith("{"):
                yield json.loads(line)


def predicted_concurrency(folder: Path) -> float | str:
    """Return the same as capplan predicts it, with blocks and recurrent states as the engine has them on processors."""
    try:
        network = read_model(str(folder), offline=True)
    except CapplanError as problem:
        return str(problem).splitlines()[0]
    known = profile("vllm", "0.32.0")
    engine = replace(known, block_tokens=BLOCK, memory=replace(known.memory, recurrent_format="fp32"))
    launch = engine_launch(
        engine, Sharding(), CACHE_BYTES, kv_bytes_per_element("bf16"), float(CONTEXT), 1.0, float(BUDGET)
    )
    return CACHE_BYTES / float(np.max(reserved_bytes_per_sequence(network, launch, engine)))


def main(words: list[str]) -> int:
    """Compare all models, or the named ones."""
    environment, folder = map(Path, words[:2])
    names = words[2:] or MODELS
    models = [write_model((folder / "models" / name).resolve(), small_config(name)) for name in names]
    rows = []
    for model, seen in zip(models, allocated(environment, models), strict=False):
        own = predicted_concurrency(model)
        held = seen.get("concurrency", seen.get("reason"))
        rows.append(
            {"model": model.name, "blocks": seen.get("blocks"), "engine_holds": held, "predicted": own}
        )
        error = f"{own / held - 1.0:+.1%}" if isinstance(own, float) and isinstance(held, float) else ""
        print(f"{model.name:45} engine {held!s:20} predicted {own!s:20} {error}", flush=True)
        (folder / "memory.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if len(rows) == len(models) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
