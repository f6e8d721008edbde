"""Plans of frontier mixtures of experts at one load, each taken apart: what fills the replicas, what the targets, headroom and confidence take, and the spares.

    python -m benchmarks.plans_of_mixtures [--model NAME] [--hardware NAME]

Writes docs/evidence/frontier-mixtures.csv, where one row is a pool of the recommended plan, and the page next to it; with a name, prints the rows of that model or GPU.
Says on stderr what each plan took.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.generators.page_tables import Table, table_in

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
FILE = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "frontier-mixtures.csv"
HEAD = ("model", "GPU", "pool", "as predicted", "with headroom", "confident", "spare", "GPUs", "$/month", "$/Mtok out", "chance")  # fmt: skip
TEXT = """# Frontier mixtures on five GPUs

60 requests/s of 1,500 tokens in (95% below 3,000) and 300 out, TTFT p95 below 2 s, TPOT p95 below 50 ms, on-demand prices, by `python -m benchmarks.plans_of_mixtures` (2026-11-30).
[Each pool on each GPU](frontier-mixtures.csv), with its replicas as predicted, with headroom and at the confidence. The cheapest GPU of each model:
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


def cpu_s() -> float:
    """Return the processor time of the commands so far [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
    before_s = cpu_s()
    answer = printed("fleet", str(scenario), "-o", str(plan))
    print(f"{name} on {device}: {cpu_s() - before_s:.1f} CPU seconds", file=sys.stderr, flush=True)
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
            name,
            device,
            f"{group['role']} {group['replicas']} x {group['gpus_per_replica']} ({layout(group)})",
            *(step.get(symbol, "") for symbol in STEPS),
            *(whole if not place else ("",) * 4),
        )
    plan.unlink()


def page(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the page: the GPU with the cheapest plan of each model.

    Parameters
    ----------
    rows : of the file, by heading
    """
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        plans = [row for row in rows if row["model"] == model and row["$/month"]]
        best = min(plans, key=lambda row: float(row["$/month"]))
        pools = [row["pool"] for row in rows if (row["model"], row["GPU"]) == (model, best["GPU"])]
        month = f"{float(best['$/month']):,.0f}"
        lines.append([model, best["GPU"], "; ".join(pools), best["GPUs"], month, best["$/Mtok out"]])
    return f"{TEXT}\n{Table(['model', 'GPU', 'pools', 'GPUs', '$/month', '$/Mtok out'], lines)}\n"


def main() -> None:
    """Write the file and the page, or print some rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", action="append")
    parser.add_argument("--hardware", action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for model in options.model or MODELS
            for device in options.hardware or DEVICES
            for row in rows_of(model, device, Path(folder))
        ]
    table = Table(HEAD, rows)
    if options.model or options.hardware:
        print(table)
        return
    FILE.write_text(table.csv(), encoding="utf-8")
    FILE.with_suffix(".md").write_text(page(table_in(FILE)), encoding="utf-8")


if __name__ == "__main__":
    main()
