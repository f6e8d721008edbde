"""Files and scenarios of the largest sizes that are answered, and what each question about them costs.

    python -m tests.installs.sizes

Writes processor time and peak memory of every question for docs/evidence/reliability.md; `tests/rules/test_faults_of_machines.py` asks the same
questions without a clock.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.installs.environment import ROOT, record

ROWS = 200_000
CLASSES = 500
SERVED = {
    "engine": "vllm", "engine_version": "0.7.3", "model_hf_id": "Qwen/Qwen2.5-0.5B-Instruct", "weights_dtype": "bf16", "gpu": "l4",
    "num_gpus": 1, "tp": 1, "isl": 72, "osl": 100, "length_distribution": "fixed", "kind": "online_conc",
}  # fmt: skip
SCENARIO: Mapping[str, Any] = {
    "name": "s",
    "model": "llama-3.1-8b-instruct",
    "traffic": [{"request_rate": "4 req/s", "input_tokens": 512, "output_tokens": 200}],
    "slo": {"ttft_p95": "2 s", "tpot_p95": "60 ms"},
    "fleet": {"hardware": ["h100-sxm"]},
}


def measured_rows(path: Path, count: int) -> None:
    """Write so many measured rows of eight different settings."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*SERVED, "concurrency", "ttft_ms_p50", "output_tok_s"])
        writer.writeheader()
        for number in range(count):
            users = 1 + number % 8
            writer.writerow(
                SERVED | {"concurrency": users, "ttft_ms_p50": 27 + number % 5, "output_tok_s": 100 * users}
            )


def request_log(path: Path, count: int) -> dict[str, Any]:
    """Write the detailed result of a vLLM server that answered so many requests, and return it without their list."""
    each = {"input_lens": 512, "output_lens": 200, "ttfts": 0.19, "latencies": 1.583}
    whole = {
        "date": "20260101-000000", "backend": "vllm", "model_id": SCENARIO["model"], "num_prompts": count, "max_concurrency": 16,
        "completed": count, "failed": 0, "duration": 0.1 * count, "total_input_tokens": 512 * count, "total_output_tokens": 200 * count,
        "request_throughput": 10.0, "output_throughput": 2000.0, "mean_ttft_ms": 190.0, "median_ttft_ms": 190.0, "p99_ttft_ms": 190.0,
        "mean_tpot_ms": 7.0, "median_tpot_ms": 7.0, "p99_tpot_ms": 7.0,
    }  # fmt: skip
    lists = {key: [value] * count for key, value in each.items()} | {
        "start_times": [0.1 * number for number in range(count)]
    }
    path.write_text(json.dumps(whole | lists))
    return whole


def many_results(path: Path, count: int) -> None:
    """Write so many results, each of a run of its own."""
    one = request_log(path, 1)
    path.write_text(
        "\n".join(json.dumps(one | {"max_concurrency": 1 + number % 64}) for number in range(count))
    )


def scenario_of_classes(path: Path, count: int, longer: int = 0, **each: object) -> None:
    """Write a scenario of so many classes; the prompts of each are so many tokens longer than those of the one before."""
    (whole,) = SCENARIO["traffic"]
    traffic = [
        {
            "name": f"class{number}",
            "input_tokens": whole["input_tokens"] + longer * number,
            "output_tokens": whole["output_tokens"],
            **each,
        }
        for number in range(count)
    ]
    path.write_text(json.dumps({**SCENARIO, "traffic": traffic}))


QUESTIONS: Sequence[tuple[str, Sequence[str], Sequence[int]]] = (
    (f"`validate`, {ROWS:,} rows of 8 settings", ("validate", "rows.csv"), (0,)),
    (f"`calibrate --from`, a log of {ROWS:,} requests", ("calibrate", "--from", "log.json", "--hardware", "h100-sxm", "--offline"), (0,)),
    (f"`calibrate --from`, {ROWS:,} results: rejected, 500 are replayed at most", ("calibrate", "--from", "many.jsonl", "--hardware", "h100-sxm", "--offline"), (2,)),
    (f"`verify-plan`, a log of {ROWS:,} requests", ("verify-plan", "--plan", "plan.json", "--results", "log.json", "--offline"), (0, 4)),
    (f"`fleet`, {CLASSES} classes", ("fleet", "classes.yaml", "--offline"), (0,)),
    (f"`fleet`, {CLASSES} classes of users, no two alike", ("fleet", "users.yaml", "--offline"), (0,)),
)  # fmt: skip


def cost_of(words: Sequence[str], folder: Path, codes: Sequence[int] = (0,)) -> dict[str, float]:
    """Return processor time and peak memory of a command, which has to end with one of the exit codes."""
    running = subprocess.Popen(
        [sys.executable, "-m", "capplan", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(running.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in codes, f"{' '.join(words)}: exit code {code}"
    return {"cpu_s": round(used.ru_utime + used.ru_stime, 1), "memory_mb": round(used.ru_maxrss * 1024 / 1e6)}


def main() -> int:
    """Ask every question and keep what it costs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measured_rows(folder / "rows.csv", ROWS)
        request_log(folder / "log.json", ROWS)
        many_results(folder / "many.jsonl", ROWS)
        scenario_of_classes(folder / "classes.yaml", CLASSES, request_rate="0.02 req/s")
        scenario_of_classes(folder / "users.yaml", CLASSES, longer=4, users=2, think_time="20 s")
        (folder / "s.yaml").write_text(json.dumps(SCENARIO))
        cost_of(("fleet", "s.yaml", "--offline", "-o", "plan.json"), folder)
        for title, words, codes in QUESTIONS:
            cost = cost_of(words, folder, codes)
            record("sizes", title, cost)
            print(title, cost, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
