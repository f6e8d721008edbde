"""Cache that the live engine allocates, for models of many kinds with random weights, next to what `capplan kv-size` says.

`python -m calibrate.live.memory ENVIRONMENT FOLDER [NAME ...]` prints a line for each model and writes FOLDER/memory.json.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from calibrate.live.model import VOCABULARY, write_model
from calibrate.live.server import started

ROOT = Path(__file__).resolve().parents[2]
CACHE_BYTES = 2.0**30
CONTEXT = 2048
MODELS = (
    "Qwen--Qwen3-0.6B", "meta-llama--Llama-3.1-8B-Instruct", "mistralai--Mistral-7B-v0.1", "google--gemma-2-2b-it", "google--gemma-3-1b-it",
    "allenai--Olmo-3-1125-32B", "mistralai--Mixtral-8x7B-v0.1", "Qwen--Qwen3-30B-A3B", "deepseek-ai--DeepSeek-V2-Lite",
    "openai--gpt-oss-20b", "Qwen--Qwen3-Next-80B-A3B-Instruct", "state-spaces--mamba-2.8b-hf", "ai21labs--AI21-Jamba-1.5-Large",
    "nvidia--Nemotron-H-56B-Base-8K", "LGAI-EXAONE--EXAONE-4.0-32B", "facebook--opt-125m", "EleutherAI--pythia-1.4b",
    "microsoft--phi-4", "ibm-granite--granite-3.1-2b-instruct", "HuggingFaceTB--SmolLM2-135M", "google--gemma-4-E2B", "Qwen--Qwen3.5-4B",
    "gemma-3n", "deepseek-ai--DeepSeek-V3", "tiiuae--falcon-mamba-7b", "zai-org--GLM-4.7-Flash", "tiiuae--falcon-7b",
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
PRINTED = re.compile(
    r"KV cache size: ([0-9,]+) tokens, Maximum concurrency for ([0-9,]+) tokens per request: ([0-9.]+)x"
)
PORT = 8124
"""Other than that of the loads, so that both may run."""
LONGEST_S = 150.0


def smaller(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with few layers and narrow matrices; what a layer keeps in the cache stays."""
    found = {**config, **{name: value for name, value in SMALLER.items() if name in config}}
    for section in ("text_config",):
        if isinstance(found.get(section), dict):
            found[section] = smaller(found[section])
    layers = next((name for name in ("num_hidden_layers", "n_layer") if name in found), None)
    if layers:
        most = min(found[layers], LAYERS)
        found[layers] = most
        for name, value in found.items():
            if isinstance(value, list) and len(value) == config[layers]:
                found[name] = value[:most]
        if isinstance(found.get("hybrid_override_pattern"), str):
            found["hybrid_override_pattern"] = found["hybrid_override_pattern"][:most]
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if name in found:
            found[name] = 1
    found.pop("quantization_config", None)
    return found


def small_config(name: str) -> dict[str, Any]:
    """Return the config of a model with its layers as they are, in a small number."""
    if name == "gemma-3n":
        return GEMMA_3N
    return smaller(json.loads((ROOT / "model_configs" / name / "config.json").read_text()))


def printed_concurrency(environment: Path, model: Path, folder: Path) -> float | str:
    """Return how many requests of the longest context the engine says that its cache holds, or why it did not start."""
    flags = [
        "--max-model-len",
        str(CONTEXT),
        "--dtype",
        "bfloat16",
        "--max-num-seqs",
        "4",
        "--skip-tokenizer-init",
        "--no-enable-prefix-caching",
    ]
    until_s = time.monotonic() + LONGEST_S
    with started(environment, model, folder, flags, port=PORT) as (live, process):
        while time.monotonic() < until_s:
            text = live.log.read_text(errors="replace")
            match = PRINTED.search(text)
            if match:
                return float(match.group(3))
            if process.poll() is not None:
                return _reason(text)
            time.sleep(0.5)
    return f"did not start in {LONGEST_S:g} s"


def _reason(log: str) -> str:
    """Return the first error in a log, without what stands before it."""
    lines = [line for line in log.splitlines() if "WARNING" not in line]
    found = [
        match.group(0) for line in lines if (match := re.search(r"[A-Za-z]*(Error|Exception): .+", line))
    ]
    return found[0][:160] if found else "ended without an error in its log"


def predicted_concurrency(model: Path) -> float | str:
    """Return the same as capplan predicts it."""
    words = [
        sys.executable, "-m", "capplan", "kv-size", str(model), "--context", str(CONTEXT), "--kv-dtype", "bf16", "--engine-version", "0.32.0",
        "--offline", "--format", "json",
    ]  # fmt: skip
    ran = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)  # noqa: S603  # the words above
    if ran.returncode:
        return ran.stderr.splitlines()[0]
    (row,) = json.loads(ran.stdout)["result"]["rows"]
    return CACHE_BYTES / float(row["engine_reserved_bytes_per_sequence"])


def main(words: list[str]) -> int:
    """Compare all models, or the named ones."""
    environment, folder, *names = words
    rows = []
    for name in names or MODELS:
        model = write_model(Path(folder) / "models" / name, small_config(name))
        own = predicted_concurrency(model)
        seen = printed_concurrency(Path(environment), model, Path(folder) / "memory")
        rows.append({"model": name, "printed": seen, "predicted": own})
        error = f"{own / seen - 1.0:+.1%}" if isinstance(own, float) and isinstance(seen, float) else ""
        print(f"{name:45} printed {seen!s:12} predicted {own!s:12} {error}", flush=True)
        (Path(folder) / "memory.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
