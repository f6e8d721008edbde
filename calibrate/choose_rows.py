"""Choose the measured rows that the tests read where the large tables are not next to the project.

    python -m calibrate.choose_rows FOLDER

FOLDER holds the tables that docs/accuracy.md and docs/evidence/kernels.md are made of. Writes tests/data/*.csv: rows drawn with the
seed SEED and spread over devices, engines, formats and shapes, each with its source. No prediction is made here, so no row
can be chosen for its error.
"""

import csv
import gzip
import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor, log10
from pathlib import Path

from calibrate.choose_points import KEPT, Row, Spread, chosen_rows
from capplan.questions.validation import BUILT_IN_POINTS, is_core
from capplan.recorded.measured import measured_table

SEED = 20261122
CHOSEN = Path(__file__).resolve().parents[1] / "tests" / "data"

KERNEL_TABLES = {"dense": ("kernels_measured.csv", 80), "all": ("kernels_more.csv.gz", 110)}
"""Name of a table of timings -> its file, and how many rows are drawn."""
STARTS, MODELS, CACHE_FAMILIES = 54, 56, 30
RUNS, POINTS, ONE_SERVER = 34, 24, 16
"""Runs that are no built-in point, runs that are one, and runs of one server at several loads."""

KERNEL_COLUMNS = ("table", "id", "gpu", "family", "op_name", "dtype", "kv_dtype", "backend", "kernel", "shape", "latency_us", "source")  # fmt: skip
NOT_A_SHAPE = {*KERNEL_COLUMNS, "op", "file", "version", "flops", "min_bytes", "tflops", "gbps", "n_dups"}
START_COLUMNS = (
    "id", "engine", "engine_version", "model_hf_id", "quantization", "kv_cache_dtype", "gpu", "gpu_memory_gib", "tp", "pp",
    "dp_ep", "max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "block_size",
    "weights_gib", "available_kv_gib", "kv_cache_tokens", "max_concurrency", "activation_peak_gib", "status", "confidence",
    "notes", "source_url",
)  # fmt: skip
START_NOTES = {"eager": re.compile("eager", re.IGNORECASE), "MTP": re.compile("MTP")}
"""Words of a start's notes that its prediction reads."""
RUN_COLUMNS = (*KEPT, "source_family")
DIMENSIONS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "tie_word_embeddings", "sliding_window", "attention_bias", "moe_intermediate_size", "n_shared_experts",
    "decoder_sparse_step", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "num_kv_shared_layers", "global_head_dim", "first_k_dense", "n_experts", "experts_per_tok",
)  # fmt: skip
"""Columns of the facts about models that make up a config.json."""
CACHE_COLUMNS = ("family", "layer_class", "layers", "elements_24", "elements_48", "elements_96", "elements_192", "bytes_192")  # fmt: skip
ALWAYS_CACHED = ("deepseek_v4",)
"""Families that a test is about."""

KERNELS = Spread(
    "family", ("gpu", "backend", "dtype"), ("size", "kernel", "op_name", "n", "num_heads", "num_gpus")
)
LOGS = Spread(
    "log", ("engine_version", "gpu", "arch_class", "status"), ("model_hf_id", "quantization", "tp", "pp", "max_model_len")
)  # fmt: skip
FACTS = Spread("prov", ("text_model_type",), ("num_hidden_layers",))
LOADS = Spread("gpu", ("tp", "concurrency", "isl"), ("ttft_ms_mean",))


def plain(text: str) -> str:
    """Return a whole number without its `.0`."""
    return re.sub(r"^(-?\d+)\.0$", r"\1", text) if text.endswith(".0") else text


def named_values(row: Row, names: Iterable[str]) -> str:
    """Return the values that a row has, as `name=value` words.

    Examples
    --------
    >>> named_values({"m": "8.0", "n": "", "k": "64"}, ("m", "n", "k"))
    'm=8 k=64'
    """
    return " ".join(f"{name}={plain(row[name]).replace(' ', '')}" for name in names if row.get(name))


def values_of(words: str) -> dict[str, str]:
    """Return what `named_values` wrote.

    Examples
    --------
    >>> values_of("m=8 k=64")
    {'m': '8', 'k': '64'}
    """
    return dict(word.split("=", 1) for word in words.split())


def kernel_record(table: str, row: Row) -> dict[str, str]:
    """Return a timing in the columns of tests/data/kernels.csv."""
    operation = row.get("op_name") or row.get("op") or ""
    source = re.sub(r"^.*?(systems/data/|0\.12\.0 )", "", row["source"])
    shape = named_values(row, (name for name in row if name not in NOT_A_SHAPE))
    changed = {"table": table, "op_name": operation, "source": source, "shape": shape}
    return {name: plain(changed.get(name, row.get(name, ""))) for name in KERNEL_COLUMNS}


def kernel_row(record: Row) -> dict[str, str]:
    """Return a record of tests/data/kernels.csv in the columns of the published tables."""
    return dict(record) | values_of(record["shape"])


def start_record(row: Row) -> dict[str, str]:
    """Return an engine's start in the columns of tests/data/starts.csv."""
    notes = "; ".join(word for word, pattern in START_NOTES.items() if pattern.search(row["notes"]))
    return {name: notes if name == "notes" else plain(row[name]) for name in START_COLUMNS}


def run_record(row: Row) -> dict[str, str]:
    """Return a serving run in the columns of tests/data/runs.csv."""
    return {name: plain(row.get(name, "")) for name in RUN_COLUMNS}


def model_record(row: Row, cache: Mapping[str, Row]) -> dict[str, str]:
    """Return the facts about a model in the columns of tests/data/models.csv."""
    kept = cache.get(row["hf_id"], {})
    record = {
        "model": row["hf_id"],
        "type": row["text_model_type"],
        "confirmed": "yes" if row["prov"] in ("S", "M") else "",
        "parameters": row["meta_params"],
        "vision_parameters": row["meta_vision_audio"],
        "dimensions": named_values(row, DIMENSIONS),
        "kv_bytes_per_token": kept.get("kv_bytes_per_token_full_bf16", ""),
        "window": kept.get("window", ""),
        "window_bytes": kept.get("swa_bytes_cap_bf16", "") if kept.get("window") else "",
        "source": row["config_source"],
    }
    return {name: plain(value) for name, value in record.items()}


def cache_record(row: Row) -> dict[str, str]:
    """Return the measured content of a cache in the columns of tests/data/cache_elements.csv."""
    named = {"layers": "n_layers", "bytes_192": "bytes_bf16_model_N192"}
    named |= {f"elements_{n}": f"elements_N{n}" for n in (24, 48, 96, 192)}
    return {name: plain(row[named.get(name, name)]) for name in CACHE_COLUMNS}


def of_one_server(row: Row) -> bool:
    """Return whether a run is one of those from which the host times of one server are refitted."""
    wanted = {
        "engine": "vllm",
        "engine_version": "0.13.0",
        "gpu": "b200",
        "model_hf_id": "openai/gpt-oss-120b",
    }
    return (
        all(row[name] == value for name, value in wanted.items())
        and row["kind"] == "online_conc"
        and bool(row["concurrency"])
        and float(row["concurrency"]) <= 8
        and float(row["osl"]) < 2000
    )


def table_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, gzipped or not."""
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        return list(csv.DictReader(file))


def kernel_records(folder: Path, table: str, *, every: bool) -> list[dict[str, str]]:
    """Return the timings of one table, or those that are drawn from it."""
    name, count = KERNEL_TABLES[table]
    rows = table_rows(folder / name)
    if not every:
        sized = [{**row, "size": str(floor(log10(float(row["latency_us"]))))} for row in rows]
        sized = [{"op_name": "", "num_heads": "", "n": "", **row} for row in sized]
        taken = {row["id"] for row in chosen_rows(sized, count, SEED, KERNELS)}
        rows = [row for row in rows if row["id"] in taken]
    return [kernel_record(table, row) for row in rows]


def start_records(folder: Path, *, every: bool) -> list[dict[str, str]]:
    """Return the logged starts that are scored (confidence A and B), or those that are drawn."""
    rows = [row for row in table_rows(folder / "memory_measured.csv") if row["confidence"] in ("A", "B")]
    if not every:
        named = [{**row, "log": re.sub(r"\d.*", "", row["id"])} for row in rows]
        rows = [dict(row) for row in chosen_rows(named, STARTS, SEED, LOGS)]
    return [start_record(row) for row in rows]


def run_records(folder: Path, *, every: bool) -> list[dict[str, str]]:
    """Return the serving runs, or those that are drawn."""
    rows = measured_table(folder / "serving_measured.csv.gz")[1]
    if every:
        return [run_record(row) for row in rows]
    built_in = {row["id"] for row in measured_table(BUILT_IN_POINTS)[1]}
    core = [row for row in rows if is_core(row)]
    drawn = [
        *chosen_rows([row for row in core if row["id"] not in built_in], RUNS, SEED),
        *chosen_rows([row for row in core if row["id"] in built_in], POINTS, SEED),
        *chosen_rows([row for row in core if of_one_server(row)], ONE_SERVER, SEED, LOADS),
    ]
    return [
        run_record(row)
        for row in sorted({row["id"]: row for row in drawn}.values(), key=lambda row: row["id"])
    ]


def model_records(folder: Path, *, every: bool) -> list[dict[str, str]]:
    """Return the facts about published models, or about those that are drawn."""
    rows = [{**row, "id": row["hf_id"]} for row in table_rows(folder / "model_facts.csv")]
    cache = {row["hf_id"]: row for row in table_rows(folder / "kv_flagship.csv")}
    taken = rows if every else chosen_rows(rows, MODELS, SEED, FACTS)
    return [model_record(row, cache) for row in taken]


def cache_records(folder: Path, *, every: bool) -> list[dict[str, str]]:
    """Return the measured caches of tiny models, of all families or of those that are drawn."""
    rows = table_rows(folder / "oracle_kv_table.csv")
    families = {row["family"]: {"id": row["family"], "all": "", "class": row["cache_class"]} for row in rows}
    drawn = chosen_rows(list(families.values()), CACHE_FAMILIES, SEED, Spread("all", ("class",), ()))
    taken = {*(row["id"] for row in drawn), *ALWAYS_CACHED}
    return [cache_record(row) for row in rows if every or row["family"] in taken]


def _kernels(folder: Path, *, every: bool) -> list[dict[str, str]]:
    return [record for table in KERNEL_TABLES for record in kernel_records(folder, table, every=every)]


Records = Callable[..., list[dict[str, str]]]
TABLES: Mapping[str, Records] = {
    "kernels": _kernels,
    "starts": start_records,
    "runs": run_records,
    "models": model_records,
    "cache_elements": cache_records,
}
"""Name of a file in tests/data -> its records, drawn or all (`every`), from the folder of large tables."""


def records_text(records: Sequence[Row]) -> str:
    """Return records as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def drawn_files(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Return the records of every file that is written, by its name in tests/data."""
    return {name: records(folder, every=False) for name, records in TABLES.items()}


def write_files(files: Mapping[str, list[dict[str, str]]]) -> None:
    """Write records into tests/data, by the name of the file."""
    for name, rows in files.items():
        (CHOSEN / f"{name}.csv").write_text(records_text(rows), encoding="utf-8")
        sys.stderr.write(f"{name}: {len(rows)} rows\n")


def main(arguments: Sequence[str]) -> int:
    """Choose and write."""
    write_files(drawn_files(Path(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
