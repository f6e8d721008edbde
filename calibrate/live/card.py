"""vLLM on a GPU: the loads of a live engine with models of real size and random weights, and its own log of steps.

    python -m calibrate.live.card OUT [MODEL ...] [--seconds 150]

Needs a Python with vLLM. For each model: closed loops from one user on, single prompts, open loops at three parts of the highest rate
of the closed loops, and some closed loops once more; each is written as `vllm bench serve` writes it, with what the engine printed
and what each of its steps did. Nothing is downloaded. What does not fit into the time is left out, the last loads first.

A MODEL is the id of a shipped model. Two with a plus between start together, each with the GiB of cache that stand behind its colon
(`Qwen/Qwen3-8B:12+openai/gpt-oss-20b:10`): half of the time of an engine is its start. They are measured one after the other.
"""

import argparse
import contextlib
import gzip
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from calibrate.live.loads import Load, sent
from calibrate.live.model import write_model
from calibrate.live.recorder import NO_CHAT
from calibrate.live.server import QUIET, Engine, NoServerError, await_answer, started
from capplan.calibrate.endpoint.client import Endpoint, Question, answered, endpoint_of
from capplan.readers.catalogue.models import shipped_config
from capplan.readers.local_machine import ask_tool

SECONDS = 150.0
START_S = 180.0
"""Longest start of a server, its compilation included."""
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B")
ALONE, SHARED = 0.92, 0.3
"""Fraction of the memory that an engine looks for at its start; one that shares the GPU has the cache that it is given."""
INPUT, OUTPUT = 512, 128
CONTEXT = 16384
"""Tokens of a request at most, prompt and output."""
CLOSED = tuple(
    Load(f"closed-{users}", users=users, requests=max(4, 3 * users), input_tokens=INPUT, output_tokens=OUTPUT, seed=users)
    for users in (1, 4, 16, 32, 64, 128)
)  # fmt: skip
PROMPTS = tuple(
    Load(f"prompt-{count}", users=1, requests=4, input_tokens=count, output_tokens=2, seed=1000 + count)
    for count in (64, 512, 2048, 8000)
)
OPEN = tuple(
    Load(f"open-{round(100 * share)}", share=share, input_tokens=INPUT, output_tokens=OUTPUT, seed=2000 + round(100 * share))
    for share in (0.3, 0.6, 0.8)
)  # fmt: skip
WARM = Load("warm", users=32, requests=64, input_tokens=INPUT, output_tokens=16, seed=3000)
"""Kernels that are compiled for the shape of a batch are compiled before anything is timed."""
AGAIN = tuple(replace(load, seed=4000 + load.users) for load in CLOSED if load.users in (1, 16, 64))
"""The same loads with other prompts; how far they differ is the noise."""
OPEN_S = 20.0
"""Time over which an open loop sends."""
CLOSED_S = 5.0
"""Time that is kept for any other load."""
LEAST = 10
"""Requests of an open loop at least."""


def written_model(model: str, folder: Path) -> tuple[Path, int]:
    """Write the config of a shipped model and a tokenizer as an engine loads them; return their folder and the tokens of a request at most."""
    shipped = shipped_config(model)
    if shipped is None:
        raise ValueError(f"no model {model} is shipped")
    config = shipped[0]
    if config.get("quantization_config", {}).get("quant_method") == "fp8":
        config["quantization_config"] = {"activation_scheme": "dynamic", **config["quantization_config"]}
    if config["model_type"] == "deepseek_v2":  # the engine does not know their defaults
        config |= {"n_group": 1, "topk_group": 1}
    if config["model_type"] == "gpt_oss":
        config["rope_scaling"] |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    return write_model(folder, config), min(CONTEXT, config["max_position_embeddings"])


def measured(models: Sequence[str], folder: Path, seconds: float) -> dict[str, dict[str, Any]]:
    """Start one model or several together, send each its loads, and return for each what ended when [s], or why it failed.

    Parameters
    ----------
    models : ids, each with the GiB of its cache behind a colon where several share the GPU
    folder : for records and logs, a folder a model
    seconds : for the loads of a model [s]
    """
    begin_s = time.monotonic()
    about: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as engines:
        starts, given = [], {}
        for place, word in enumerate(models):
            model, _, cache = word.partition(":")
            name = model.replace("/", "--")
            given[name] = cache
            share = ("--gpu-memory-utilization", f"{ALONE if len(models) == 1 else SHARED:g}")
            flags = ("--kv-cache-memory-bytes", f"{float(cache):g}G") if cache else ()
            at, context = written_model(model, folder / name / "model")
            engine = Engine(
                (sys.executable, "-m", "vllm.entrypoints.cli.main"),
                ("--max-model-len", str(context), *share, *flags),
                {**QUIET, NO_CHAT: "1", "PYTHONPATH": ":".join(path for path in sys.path if path)},
            )
            starts.append(
                (name, engines.enter_context(started(engine, at, folder / name, port=8123 + place)))
            )
        for name, (live, process) in starts:
            try:
                await_answer(process, live, START_S)
                ready_s = time.monotonic()
                _loads(replace(endpoint_of(live.url), model="tiny"), folder / name, ready_s + seconds)
                about[name] = {"started_s": ready_s - begin_s, "ended_s": time.monotonic() - begin_s}
                if cache := given[name]:
                    about[name]["cache_gib"] = float(cache)
            except (NoServerError, OSError, ValueError) as problem:  # the next model is measured all the same
                about[name] = {"failed": str(problem)}
                print(name, "failed:", problem, flush=True)
    for name, (live, _) in starts:
        if live.steps.exists():
            (folder / name / "steps.jsonl.gz").write_bytes(gzip.compress(live.steps.read_bytes(), 6))
            live.steps.unlink()
        shutil.rmtree(folder / name / "model")
    return about


def _loads(server: Endpoint, folder: Path, until_s: float) -> None:
    for count in (16, 512, 4096):
        answered(server, Question(tuple(range(10, 10 + count)), 16))
    sent(WARM, server, 0.0, folder / "warm.json")
    rate = 0.0
    for load in (*CLOSED, *PROMPTS, *OPEN, *AGAIN):
        if time.monotonic() > until_s - (OPEN_S if load.share else CLOSED_S):
            print(load.name, "is left out: no time", flush=True)
            continue
        per_s = load.share * rate
        lasting = replace(load, requests=max(LEAST, round(per_s * OPEN_S))) if load.share else load
        record = sent(lasting, server, per_s, folder / f"{load.name}.{2 if load in AGAIN else 1}.json")
        rate = max(rate, record["request_throughput"]) if load.output_tokens == OUTPUT else rate


def surroundings() -> dict[str, Any]:
    """Return device, driver and versions."""
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,power.limit,clocks.max.sm",
        "--format=csv,noheader",
    ]
    gpu = ask_tool(*query, longest_s=20.0).text.strip()
    versions = {name: metadata.version(name) for name in ("vllm", "torch", "triton", "transformers")}
    return {"gpu": gpu, "python": sys.version.split()[0], "date": time.strftime("%Y-%m-%d"), **versions}


def main(words: Sequence[str] | None = None) -> int:
    """Measure one model after the other; a model that fails leaves the log of its server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for the loads of each model")
    asked = parser.parse_args(words)
    asked.folder.mkdir(parents=True, exist_ok=True)
    about = surroundings()
    for words_of_group in asked.models:
        about |= measured(words_of_group.split("+"), asked.folder, asked.seconds)
        (asked.folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
