"""Calls of the library with values of every kind: an answer of finite numbers that may be, or an error of capplan's own.

    python -m tests.fuzz.library --seconds 600 --seed 1 [--kind kv_size]

A finding is printed with the call and the line that repeats it.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import capplan as cp
from capplan.errors import CapplanError
from capplan.library import ESTIMATE_OPTIONS, KV_OPTIONS
from tests.fuzz.commands import SIGNED, numbers
from tests.fuzz.readers import HOSTILE
from tests.fuzz.turns import asked_until_time_is_over

CASES = 1000
"""Of one function and seed, at most."""
TURN_S = 3.0
"""Processor time of one function and seed, at most."""
LONGEST_S = 20.0
MODELS = (
    "llama-3.2-1b",
    "llama-3.1-8b",
    "deepseek-v3",
    "bge-m3",
    "",
    "\x1b[2J",
    "nobody/none",
    5,
    None,
    b"llama",
    Path("/nonexistent"),
)
DEVICES = (
    "h100-sxm",
    "l4",
    "cpu",
    "mi300x",
    "rtx-4090",
    "apple-m2-ultra-76core",
    "",
    "h20",
    7,
    None,
    Path("/nonexistent.yaml"),
)
USUAL: Mapping[str, tuple[object, ...]] = {
    "tensor_parallel": (1, 2, 8), "pipeline_parallel": (1, 2), "expert_parallel": (1, 2), "data_parallel": (1, 2),
    "weight_dtype": ("bf16", "fp8", "int4"), "kv_dtype": ("bf16", "fp8", "int4"), "engine": ("vllm", "sglang", "trtllm", "llamacpp"), "engine_version": ("0.11.0", "1.2"),
    "max_model_len": (4096, 131072), "max_num_seqs": (1, 256), "max_num_batched_tokens": (512, 8192), "gpu_memory_utilization": (0.5, 0.9, 1.0),
    "calibration": (Path("nowhere"),), "revision": ("main",), "offline": (True,), "input_tokens": (1, 500, 100_000), "output_tokens": (1, 100),
    "concurrency": (1, 64), "request_rate": (0.5, 10.0), "prefix_hit_fraction": (0.0, 0.5, 1.0), "sequences": (1, 7),
    "backend": ("cuda", "metal", "vulkan"), "n_gpu_layers": (0, 8, 99), "tensor_split": ("3,1", "fastest"), "split_mode": ("layer", "none"), "main_gpu": (0, 1), "n_cpu_moe": (0, 4), "host_bandwidth": (5e10, 2e11), "host_memory": (1e10, 6.4e10),
    "cuda_graphs": (0, 1, 64),
}  # fmt: skip
"""Values that the options may have."""
ODD = (*HOSTILE, 1.5, -1e-9, 1 + 1e-9, 2**31, (1, 2), {1}, b"8", 10**30, complex(1, 1), float, range(3))
LAST: list[object] = []


def value_of(name: str, random: Random) -> object:
    """Return a value for an option: as often one that it may have as any other."""
    return random.choice(USUAL[name]) if random.random() < 0.6 else random.choice(ODD)


def options(known: Mapping[str, object], random: Random, *needed: str) -> dict[str, Any]:
    """Return some options with values of every kind."""
    chosen = {*needed, *random.sample(sorted(known), random.randint(0, 3))}
    return {name: value_of(name, random) for name in sorted(chosen)}


def kv_size(random: Random) -> Any:
    """Ask for the size of a cache."""
    contexts = random.choice(([1], [8192, 5], [random.choice(ODD)], random.choice(ODD), [10**9]))
    given = (random.choice(MODELS[:3] if random.random() < 0.8 else MODELS), contexts)
    more = options(KV_OPTIONS, random) | {"offline": True}
    LAST[:] = ["kv_size", given, more]
    return cp.kv_size(*given, **more)  # type: ignore[arg-type]


def estimate(random: Random) -> Any:
    """Ask for the latency of a replica."""
    sound = random.random() < 0.8
    given = (random.choice(MODELS[:3] if sound else MODELS), random.choice(DEVICES[:3] if sound else DEVICES))
    more = options(ESTIMATE_OPTIONS, random, random.choice(("concurrency", "request_rate"))) | {
        "offline": True
    }
    LAST[:] = ["estimate", given, more]
    return cp.estimate(*given, **more)  # type: ignore[arg-type]


def settings_of(random: Random) -> Any:
    """Read a scenario with other values of some keys."""
    keys = (
        "traffic[0].request_rate",
        "slo.ttft_p95",
        "fleet.headroom",
        "model",
        "fleet.hardware",
        "nothing",
        "prices",
    )
    written = [f"{random.choice(keys)}={random.choice(ODD)}" for _ in range(random.randint(1, 2))]
    given = [random.choice(ODD) if random.random() < 0.2 else word for word in written]
    LAST[:] = ["load_scenario", given]
    return cp.load_scenario(random.choice(("small-team", "small-team", 5, None, "")), *given)  # type: ignore[arg-type]


CALLS: Mapping[str, Callable[[Random], Any]] = {
    "kv_size": kv_size, "estimate": estimate, "load_scenario": settings_of,
}  # fmt: skip


def check(call: Callable[[Random], Any], random: Random) -> None:
    """Call the library once; whatever else it raises than its own errors is a finding."""
    began = time.process_time()
    try:
        answer = call(random)
    except CapplanError:
        answer = None
    took = time.process_time() - began
    assert took < LONGEST_S, f"took {took:.1f} s"
    for key, number in numbers(getattr(answer, "data", None)):
        assert math.isfinite(number), f"{key} is {number}"
        assert number >= 0.0 or SIGNED & set(key.split(".")), f"{key} is {number}"


def some(name: str, _folder: Path, number: int) -> int:
    """Call a function for a moment of processor time, and return how often; the same number gives the same calls."""
    random, done = Random(f"{name} {number}"), 0
    until, latest = time.process_time() + TURN_S, time.monotonic() + 10.0 * TURN_S
    while done < CASES and time.process_time() < until and time.monotonic() < latest:
        check(CALLS[name], random)
        done += 1
    return done


if __name__ == "__main__":
    sys.exit(
        asked_until_time_is_over(
            "library", __doc__, {name: partial(some, name) for name in CALLS}, lambda *_: LAST
        )
    )
