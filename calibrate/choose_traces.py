"""Cut excerpts of published traces, and carry over what was measured on them, for tests in a clone alone.

    python -m calibrate.choose_traces FOLDER

FOLDER holds the traces as they were published. Writes tests/data/traces: the first SECONDS of each trace in a shape of our
own, and `facts.csv`, what plain counting says of each excerpt; and next to it the requests, launches and results of the served
runs that are replayed. `published_text` writes an excerpt in the format that it was published in.
"""

import csv
import gzip
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from math import sqrt
from pathlib import Path
from statistics import fmean, pstdev, pvariance, quantiles

from calibrate.choose_points import Row
from calibrate.choose_rows import plain, table_rows, write_files

SEED = 20261122
SECONDS = 200.0
"""Of each trace of requests: three whole minutes and a rest."""
LONGER = {"AzureLLMInferenceTrace_code.csv.gz": 320.0}
"""Of a trace in which minutes go by without a request."""
LEAST_GAPS = 20
"""Gaps in a minute, from which its variation is told."""
CLIENTS, WINDOWS, WINDOW_S = 20, 12, 600.0
"""Of each trace of clients."""
LENGTHS = 99
"""Lengths of equal probability that stand for a distribution; of 100 the 95th percentile would lie between two."""

AZURE = "Azure/AzurePublicDataset@b469a113, CC-BY 4.0"
MOONCAKE = "kvcache-ai/Mooncake@3b5a5941, Apache-2.0"
SERVEGEN = "alibaba/ServeGen@f891d118, Apache-2.0"
TRACES = {
    "AzureLLMInferenceTrace_code.csv.gz": AZURE,
    "AzureLLMInferenceTrace_conv.csv.gz": AZURE,
    "mooncake_conversation_trace.jsonl.gz": MOONCAKE,
    "mooncake_synthetic_trace.jsonl.gz": MOONCAKE,
    "servegen_language_m-large_clients.csv.gz": SERVEGEN,
    "servegen_reason_deepseek-r1_clients.csv.gz": SERVEGEN,
}
"""Published file -> where it is from."""

SERVED = "casys-kaist/LLMServingSim@5daddb2, MIT: bench/examples"
STAGED = "kubernetes-sigs/inference-perf@7de5ef2, Apache-2.0: demos/kubecon-na-2025"
LOGS = (
    "RTXPRO6000_Llama-3.1-8B",
    "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507",
    "RTXPRO6000_Qwen3-32B",
    "RTX4090_Llama-3.1-8B",
)
WORKLOADS = {"llama": "sharegpt-llama-3.1-8b-300-sps10.csv", "qwen": "sharegpt-qwen3-30b-a3b-300-sps10.csv"}
STAGES = ("0", "5", "6")
"""One request a second, and the two stages far beyond what the server takes."""
START = datetime(2023, 11, 16, 18, 17, 3, 979960, tzinfo=UTC)
"""Of the published stamps, which name no zone."""


def runs_text(numbers: Sequence[int]) -> str:
    """Return whole numbers with their runs in short.

    Examples
    --------
    >>> runs_text([0, 14, 15, 16, 3])
    '0 14-16 3'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def numbers_of(text: str) -> list[int]:
    """Return what `runs_text` wrote.

    Examples
    --------
    >>> numbers_of("0 14-16 3")
    [0, 14, 15, 16, 3]
    """
    out: list[int] = []
    for word in text.split():
        first, _, last = word.partition("-")
        out += range(int(first), int(last or first) + 1)
    return out


def azure_excerpt(path: Path) -> list[dict[str, str]]:
    """Return the first requests of a table of times and token counts."""
    rows = table_rows(path)
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        {
            "arrival_s": f"{(time - times[0]).total_seconds():.6f}".rstrip("0").rstrip("."),
            "input_tokens": row["ContextTokens"],
            "output_tokens": row["GeneratedTokens"],
        }
        for time, row in zip(times, rows, strict=True)
        if (time - times[0]).total_seconds() < LONGER.get(path.name, SECONDS)
    ]


def mooncake_excerpt(path: Path) -> list[dict[str, str]]:
    """Return the first requests of a trace with hashed blocks of 512 tokens."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        {
            "arrival_s": plain(str(row["timestamp"] / 1e3)),
            "input_tokens": str(row["input_length"]),
            "output_tokens": str(row["output_length"]),
            "blocks": runs_text(row["hash_ids"]),
        }
        for row in rows
        if row["timestamp"] < SECONDS * 1e3
    ]


def clients_excerpt(path: Path) -> list[dict[str, str]]:
    """Return the first windows of some clients, and lengths of equal probability in place of the histogram."""
    rows = [row for row in table_rows(path) if float(row["start_s"]) < WINDOWS * WINDOW_S]
    names = sorted({row["client"] for row in rows}, key=int)
    drawn = set(random.Random(SEED).sample(names, min(CLIENTS, len(names))))
    columns = {"field": "client", "client": "client", "start_s": "start_s", "value": "rate_rps", "cv": "cv"}
    out = [
        {name: "rate" if name == "field" else row[of] for name, of in columns.items()}
        for row in rows
        if row["client"] in drawn
    ]
    lengths = table_rows(path.with_name(path.name.replace("_clients", "_length_hist")))
    for field in ("input_tokens", "output_tokens"):
        known = sorted((float(row["value"]), float(row["prob"])) for row in lengths if row["field"] == field)
        out += [
            {"field": field, "client": "", "start_s": "", "value": value, "cv": ""}
            for value in _equal_lengths(known)
        ]
    return out


def _equal_lengths(known: Sequence[tuple[float, float]]) -> Iterator[str]:
    total, reached, place = sum(share for _, share in known), 0.0, 0
    for value, share in known:
        reached += share / total
        while place < LENGTHS and reached >= (place + 0.5) / LENGTHS - 1e-12:
            yield plain(str(value))
            place += 1


def excerpt(path: Path) -> list[dict[str, str]]:
    """Return the excerpt of a published trace."""
    reader = {"A": azure_excerpt, "m": mooncake_excerpt, "s": clients_excerpt}[path.name[0]]
    return reader(path)


def published_text(name: str, rows: Sequence[Row]) -> dict[str, str]:
    """Return an excerpt in the format that it was published in: file name -> text."""
    name = name.removesuffix(".gz")
    if name.startswith("Azure"):
        times = [START + timedelta(seconds=float(row["arrival_s"])) for row in rows]
        cells = [
            f"{time:%Y-%m-%d %H:%M:%S.%f}0,{row['input_tokens']},{row['output_tokens']}\n"
            for time, row in zip(times, rows, strict=True)
        ]
        return {name: "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(cells)}
    if name.startswith("mooncake"):
        objects = (
            {
                "timestamp": round(float(row["arrival_s"]) * 1e3), "input_length": int(row["input_tokens"]),
                "output_length": int(row["output_tokens"]), "hash_ids": numbers_of(row["blocks"]),
            }
            for row in rows
        )  # fmt: skip
        return {name: "".join(json.dumps(value) + "\n" for value in objects)}
    rates = [f"{r['client']},{r['start_s']},{r['value']},{r['cv']}\n" for r in rows if r["field"] == "rate"]
    lengths = [f"{row['field']},{row['value']},{1 / LENGTHS}\n" for row in rows if row["field"] != "rate"]
    return {
        name: "client,start_s,rate_rps,cv\n" + "".join(rates),
        name.replace("_clients", "_length_hist"): "field,value,prob\n" + "".join(lengths),
    }


def request_facts(rows: Sequence[Row]) -> dict[str, float]:
    """Return the facts of a trace of individual requests, by plain counting."""
    arrivals = sorted(float(row["arrival_s"]) for row in rows)
    seconds = arrivals[-1] - arrivals[0]
    repeats = list(Counter(arrivals).values())
    gaps = [after - before for before, after in pairwise(arrivals)]
    shared = len(repeats) < len(arrivals) / 2
    minutes = Counter(int((arrival - arrivals[0]) // 60.0) for arrival in arrivals)
    peak = max(minutes[minute] for minute in range(int(seconds // 60.0))) / 60.0
    facts = {
        "requests": float(len(rows)),
        "rate": len(rows) / seconds,
        "peak_ratio": peak * seconds / len(rows),
    }
    facts["cv"] = sqrt(pvariance(repeats) / fmean(repeats)) if shared else pstdev(gaps) / fmean(gaps)
    facts["cv_within_minutes"] = 0.0 if shared else _cv_within_minutes([at - arrivals[0] for at in arrivals])
    for name, column in (("in", "input_tokens"), ("out", "output_tokens")):
        tokens = [float(row[column]) for row in rows]
        facts |= {
            f"mean_{name}": fmean(tokens),
            f"p95_{name}": quantiles(tokens, n=20, method="inclusive")[18],
        }
    return facts


def _cv_within_minutes(arrivals: Sequence[float]) -> float:
    """Return the variation of gaps about the mean of their own minute; minutes with fewer than LEAST_GAPS are left out."""
    minutes = [list(times) for _, times in groupby(arrivals, lambda at: int(at // 60.0))]
    gaps = [[after - before for before, after in pairwise(times)] for times in minutes]
    known = [own for own in gaps if len(own) >= LEAST_GAPS]
    return sqrt(sum(len(own) * pvariance(own) / fmean(own) ** 2 for own in known) / sum(map(len, known)))


def client_facts(rows: Sequence[Row]) -> dict[str, float]:
    """Return the facts of clients and their lengths, by plain counting."""
    rates = [row for row in rows if row["field"] == "rate"]
    windows: dict[int, float] = {}
    for row in rates:
        window = int(float(row["start_s"]) // WINDOW_S)
        windows[window] = windows.get(window, 0.0) + float(row["value"])
    total, spanned = sum(windows.values()), max(windows) - min(windows) + 1
    facts = {"requests": float(round(total * WINDOW_S)), "rate": total / spanned}
    facts["peak_ratio"] = max(windows.values()) * spanned / total
    facts["cv"] = sum(float(row["value"]) * float(row["cv"]) for row in rates) / total
    facts["cv_within_minutes"] = 0.0
    for name, column in (("in", "input_tokens"), ("out", "output_tokens")):
        tokens = sorted(float(row["value"]) for row in rows if row["field"] == column)
        facts |= {f"mean_{name}": fmean(tokens), f"p95_{name}": tokens[95 * len(tokens) // 100]}
    return facts


def fact_records(excerpts: Mapping[str, Sequence[Row]]) -> list[dict[str, str]]:
    """Return the facts of all excerpts in the columns of tests/data/traces/facts.csv."""
    out = []
    for name, rows in excerpts.items():
        facts = client_facts(rows) if "client" in rows[0] else request_facts(rows)
        out.append(
            {"trace": name, **{key: f"{value:.9g}" for key, value in facts.items()}, "source": TRACES[name]}
        )
    return out


def log_records(folder: Path) -> list[dict[str, str]]:
    """Return how the served runs were launched, and their mean TTFT and time per output token [s]."""
    out = []
    for name in LOGS:
        path = folder / "llmservingsim_vllm"
        rows = [json.loads(line) for line in (path / f"{name}_requests.jsonl").read_text().splitlines()]
        meta = json.loads((path / f"{name}_meta.json").read_text())
        asked = meta["engine_kwargs"]
        ttft = fmean(row["first_token_ts"] - row["queued_ts"] for row in rows)
        tpot = fmean(
            (row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in rows
        )
        launch = {
            "tensor_parallel": asked["tensor_parallel_size"],
            "data_parallel": asked["data_parallel_size"],
            "expert_parallel": asked["data_parallel_size"] if asked["enable_expert_parallel"] else 1,
            "engine_version": meta["vllm_version"],
            "max_model_len": asked["max_model_len"] or "",
            "max_num_seqs": asked["max_num_seqs"],
            "max_num_batched_tokens": asked["max_num_batched_tokens"],
            "prefix_caching": "yes" if meta.get("kv_cache", {}).get("enable_prefix_caching") else "",
        }
        figures = {"ttft_s": f"{ttft:.6g}", "tpot_s": f"{tpot:.6g}", "source": SERVED}
        requests = "llama" if "Llama" in name else "qwen"
        out.append(
            {"log": name, "requests": requests, **{key: str(of) for key, of in launch.items()}, **figures}
        )
    return out


def stage_records(folder: Path) -> list[dict[str, str]]:
    """Return what was measured at the load stages of a benchmark."""
    with (folder / "inference_perf_h100_summary.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["stage"] in STAGES]
    kept = ("config", "stage", "req_per_s", "ttft_p50_s", "latency_p50_s", "output_mean")
    return [{**{name: row[name] for name in kept}, "source": STAGED} for row in rows]


def served_records(folder: Path) -> list[dict[str, str]]:
    """Return when the 300 requests of the served runs came, and their lengths under two tokenizers."""
    tables = {key: table_rows(folder / "llmservingsim_vllm" / name) for key, name in WORKLOADS.items()}
    out = []
    for llama, qwen in zip(tables["llama"], tables["qwen"], strict=True):
        assert llama["arrival_time_s"] == qwen["arrival_time_s"]
        record = {"arrival_s": llama["arrival_time_s"]}
        for key, row in (("llama", llama), ("qwen", qwen)):
            record |= {f"{key}_input_tokens": row["input_toks"], f"{key}_output_tokens": row["output_toks"]}
        out.append(record)
    return out


TABLES: Mapping[str, Callable[[Path], list[dict[str, str]]]] = {
    "served_logs": log_records,
    "served_stages": stage_records,
    "served_requests": served_records,
}
"""Name of a file in tests/data -> its records, from the folder of traces."""


def drawn_files(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Return the records of every file that is written, by its name in tests/data."""
    excerpts = {name: excerpt(folder / name) for name in TRACES}
    files = {f"traces/{name.partition('.')[0]}": rows for name, rows in excerpts.items()}
    files["traces/facts"] = fact_records(excerpts)
    return files | {name: records(folder) for name, records in TABLES.items()}


def main(arguments: Sequence[str]) -> int:
    """Cut and write."""
    write_files(drawn_files(Path(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
