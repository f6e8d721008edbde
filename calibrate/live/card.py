"""vLLM on a GPU: the loads of a live engine with models of real size and random weights, and its own log of steps.

    python -m calibrate.live.card OUT [MODEL ...] [--seconds 150]

Needs a Python with vLLM. For each model: closed loops from one user on, single prompts, and open loops at three parts of the highest
rate of the closed loops; each is written as `vllm bench serve` writes it, with what the engine printed and what each of its steps did.
Nothing is downloaded. What does not fit into the time is left out, the open loops last.
"""

import argparse
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
from calibrate.live.server import QUIET, Engine, NoServerError, running
from capplan.calibrate.endpoint.client import Endpoint, Question, answered, endpoint_of
from capplan.calibrate.readings import tool_output

SECONDS = 150.0
START_S = 180.0
"""Longest start of a server, its compilation included."""
CONFIGS = Path(__file__).resolve().parents[2] / "model_configs"
MODELS = ("meta-llama--Llama-3.1-8B-Instruct", "Qwen--Qwen3-30B-A3B")
INPUT, OUTPUT = 512, 128
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
OPEN_S = 20.0
"""Time over which an open loop sends."""
CLOSED_S = 5.0
"""Time that is kept for any other load."""
LEAST = 10
"""Requests of an open loop at least."""


def measured(model: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Serve a model, send the loads, and return what ended when [s].

    Parameters
    ----------
    model : folder of its config
    folder : for records and logs
    seconds : for the loads [s]
    """
    begin_s = time.monotonic()
    config = json.loads((CONFIGS / model / "config.json").read_text(encoding="utf-8"))
    for key in ("quantization_config", "rope_scaling"):  # neither changes what a step of these loads takes
        config.pop(key, None)
    at = write_model(folder / "model", config)
    engine = Engine(
        (sys.executable, "-m", "vllm.entrypoints.cli.main"),
        ("--max-model-len", "16384", "--gpu-memory-utilization", "0.92"),
        {**QUIET, "PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    with running(engine, at, folder, within_s=START_S) as live:
        ready_s = time.monotonic()
        server = replace(endpoint_of(live.url), model="tiny")
        _loads(server, folder, ready_s + seconds)
    with gzip.open(folder / "steps.jsonl.gz", "wb") as packed:
        packed.write(live.steps.read_bytes())
    live.steps.unlink()
    shutil.rmtree(folder / "model")
    return {"started_s": ready_s - begin_s, "ended_s": time.monotonic() - begin_s}


def _loads(server: Endpoint, folder: Path, until_s: float) -> None:
    for count in (16, 512, 4096):
        answered(server, Question(tuple(range(10, 10 + count)), 16))
    rate = 0.0
    for load in (*CLOSED, *PROMPTS, *OPEN):
        if time.monotonic() > until_s - (OPEN_S if load.share else CLOSED_S):
            print(load.name, "is left out: no time", flush=True)
            continue
        per_s = load.share * rate
        lasting = replace(load, requests=max(LEAST, round(per_s * OPEN_S))) if load.share else load
        record = sent(lasting, server, per_s, folder / f"{load.name}.1.json")
        rate = max(rate, record["request_throughput"]) if load.output_tokens == OUTPUT else rate


def surroundings() -> dict[str, Any]:
    """Return device, driver and versions."""
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,power.limit,clocks.max.sm",
        "--format=csv,noheader",
    ]
    gpu = tool_output(query, 20.0).strip()
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
    for model in asked.models:
        try:
            about[model] = measured(model, asked.folder / model, asked.seconds)
        except (NoServerError, OSError, ValueError) as problem:  # the next model is measured all the same
            about[model] = {"failed": str(problem)}
            print(model, "failed:", problem, flush=True)
        (asked.folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
