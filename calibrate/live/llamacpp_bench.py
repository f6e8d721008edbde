"""The speed of llama.cpp on this processor, by format of the weights, in the JSON of llama-bench: `python -m calibrate.live.llamacpp_bench ENVIRONMENT FOLDER`.

The wheel has the server and no llama-bench. The server times a prompt and its generation itself, without HTTP, and says so with the answer.
"""

import http.client
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from calibrate.live.environment import LLAMACPP
from calibrate.live.llamacpp import PORT, serving
from calibrate.live.model import CONFIG, VOCABULARY, write_model
from calibrate.live.server import HOST
from capplan.readers.local_machine import local_machine

FORMATS = ("F32", "Q8_0", "Q4_0")
"""Formats of the matrices."""
PROMPT_TOKENS, GENERATED_TOKENS, SHORT = 512, 128, 8
REPEATS = 5
FIELDS = ("n_parallel=1", "n_ctx=2048", "n_batch=512", "n_ubatch=512", "cache_prompt=false")


def timings(prompt: Sequence[int], generated: int) -> dict[str, float]:
    """Return what the server says of the time of one request."""
    asked = {"prompt": list(prompt), "n_predict": generated, "ignore_eos": True, "temperature": 0}
    connection = http.client.HTTPConnection(HOST, PORT, timeout=600)
    connection.request("POST", "/completion", json.dumps(asked), {"Content-Type": "application/json"})
    said: dict[str, float] = json.load(connection.getresponse())["timings"]
    connection.close()
    return said


def measured(name: str) -> list[dict[str, Any]]:
    """Return a prompt and a generation of the running server, each as a row of llama-bench."""
    draw = Random(0)
    prompts = [[draw.randrange(300, VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(REPEATS + 1)]
    alone = [timings(prompt, 1) for prompt in prompts][1:]
    answers = [timings(prompt[:SHORT], GENERATED_TOKENS) for prompt in prompts][1:]
    rates = {
        (PROMPT_TOKENS, 0): [said["prompt_per_second"] for said in alone],
        (0, GENERATED_TOKENS): [said["predicted_per_second"] for said in answers],
    }
    shared = {
        "build_commit": LLAMACPP[0], "cpu_info": local_machine().host.printed, "backends": "CPU", "model_filename": f"tiny-{name}.gguf",
        "n_batch": 512, "n_ubatch": 512, "n_threads": 1, "type_k": "f16", "type_v": "f16", "n_gpu_layers": 0,
    }  # fmt: skip
    return [
        shared
        | {
            "n_prompt": prompt,
            "n_gen": generated,
            "n_depth": 0,
            "avg_ts": fmean(per_s),
            "stddev_ts": stdev(per_s),
        }
        | {"avg_ns": round((prompt + generated) / fmean(per_s) * 1e9)}
        for (prompt, generated), per_s in rates.items()
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Measure every format, and write the rows into FOLDER/llama-bench.json."""
    environment, folder = map(Path, sys.argv[1:] if words is None else words)
    rows = []
    for name in FORMATS:
        model = write_model(folder / f"tiny-{name}", {**CONFIG, "gguf_format": name})
        with serving(environment, model, folder / name, FIELDS):
            rows += measured(name)
    written = folder / "llama-bench.json"
    written.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(f"{row['model_filename']:<16} pp{row['n_prompt']} tg{row['n_gen']} {row['avg_ts']:.1f} tok/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
