"""Plans of frontier mixtures of experts at one load, each taken apart: what fills the replicas, what the targets, headroom and confidence take, and the spares.

    python -m benchmarks.plans_of_mixtures [--model NAME] [--hardware NAME]

The table of docs/evidence/frontier-mixtures.md. One row is a pool of the recommended plan.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODELS = (
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3.2",
    "moonshotai/Kimi-K2.5",
    "zai-org/GLM-5",
    "Qwen/Qwen3-235B-A22B-FP8",
    "openai/gpt-oss-120b",
)
SERVED_IN = {"zai-org/GLM-5": "weight_dtype: fp8\n"}
"""Line of the scenario of a model that is published in bf16 and served in another dtype."""
DEVICES = ("h100-sxm", "h200-sxm", "b200", "gb200", "mi300x")
SCENARIO = """name: mixture
model: {model}
{dtype}traffic:
  - {{name: chat, request_rate: 60 req/s, input_tokens: {{mean: 1500, p95: 3000}}, output_tokens: 300}}
slo: {{ttft_p95: 2 s, tpot_p95: 50 ms}}
fleet: {{hardware: [{device}]}}
"""
STEPS = ("n", "h", "c", "s")
"""Symbols of `explain`: replicas as predicted, with headroom, at the stated confidence, and spares."""


def printed(*words: str) -> dict[str, Any]:
    """Return the result of a command as JSON, or its error."""
    ran = subprocess.run(
        [sys.executable, "-m", "capplan", *words, "--offline", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        return {"error": ran.stderr.strip().splitlines()[0] if ran.stderr.strip() else "no plan"}
    result: dict[str, Any] = json.loads(ran.stdout)["result"] if ran.stdout else {}
    return result


def layout(group: dict[str, Any]) -> str:
    """Return the layout of a pool."""
    names = (
        ("TP", "tensor_parallel"),
        ("PP", "pipeline_parallel"),
        ("DP", "data_parallel"),
        ("EP", "expert_parallel"),
    )
    return " ".join(f"{word}{group[key]}" for word, key in names if group[key] > 1 or word == "TP")


def rows_of(model: str, device: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for each pool of the plan that is recommended."""
    scenario, plan = folder / "mixture.yaml", folder / "plan.json"
    scenario.write_text(
        SCENARIO.format(model=model, device=device, dtype=SERVED_IN.get(model, "")), encoding="utf-8"
    )
    name = model.partition("/")[2]
    answer = printed("fleet", str(scenario), "-o", str(plan))
    if not plan.is_file():
        yield (name, device, answer.get("error", ""), *("",) * 8)
        return
    chosen = json.loads(plan.read_text(encoding="utf-8"))["result"]["chosen"]
    for place, group in enumerate(chosen["groups"]):
        asked = ("explain", str(plan), f"groups[{place}].replicas")
        inputs = printed(*asked).get("inputs", []) if group["role"] != "serve" else []
        step = {
            item["symbol"]: "none" if item["value"] is None else f"{item['value']:g}" for item in inputs
        } or {"s": str(group["spare_replicas"])}
        month = chosen["usd_per_month"]
        per_token = chosen["usd_per_million_output_tokens_at_mean"]
        whole = (
            f"{chosen['gpus']:,}",
            "" if month is None else f"{month:,.0f}",
            "" if per_token is None else f"{per_token:.2f}",
            f"{chosen['slo_met_probability']:.0%}",
        )
        yield (
            name if not place else "",
            device if not place else "",
            f"{group['role']} {group['replicas']} x {group['gpus_per_replica']} ({layout(group)})",
            *(step.get(symbol, "") for symbol in STEPS),
            *(whole if not place else ("",) * 4),
        )
    plan.unlink()


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", action="append")
    parser.add_argument("--hardware", action="append")
    options = parser.parse_args()
    print(
        "| model | GPU | pool | as predicted | with headroom | confident | spare | GPUs | $/month | $/Mtok out | chance |"
    )
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.model or MODELS:
            for device in options.hardware or DEVICES:
                for row in rows_of(model, device, Path(folder)):
                    print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
