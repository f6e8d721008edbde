"""The part of docs/evidence/kernels-and-memory.md about MIG slices and embeddings, from `mig_embedding.csv`.

Rows that contradict others at the same load, that hold one wave of requests, whose client was invalid or whose baseline is not that of their source are
listed by their source and left out here.
"""

import csv
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from capplan.accuracy.bounded import SLICE_WIDTH
from capplan.accuracy.score import Prediction
from capplan.questions.validation import validation
from capplan.readers.catalogue.efficiency import shipped_intervals

_LEFT_OUT = ("contradicts", "only_one_wave", "invalid", "baseline_differs", "max_num_seqs_assumed")
_SLICES = {"MIG 4g.71gb": "4g.71gb", "MIG 3g.71gb": "3g.71gb"}

TEXT = """Two sources ran vLLM on slices of an H200: Qwen3-30B-A3B in fp8 on 4g.71gb with one prompt of 30 tokens for all requests, and Llama-3.1-8B on 3g.71gb of
an H200 NVL whose other slices were busy, sent in chunks of a fixed number of requests. No prediction was fitted on them; the width of intervals on slices was chosen on these runs, so they are no test of it. `ratio` is predicted over measured tokens a
second.

"""
EMBEDDINGS = """Embeddings of 20 tokens with Qwen3-Embedding-8B took {low:.0f} to {high:.0f} sequences a second in all {runs} runs: on 60 or 132 multiprocessors, by themselves or
next to another model. The processor of the server set that rate, so these runs neither confirm nor contradict what is predicted of embeddings, and what is
assumed of them stays as it was. Time slices and MPS: the same model next to embeddings made {sliced:.0f} tokens a second in time slices and {mps:.0f} under MPS (medians).
"""


def scored_rows(rows: Sequence[Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the runs of models that generate on slices, as measured rows."""
    for row in rows:
        left_out = any(flag in row["flags"] for flag in _LEFT_OUT)
        if (
            row["task"] == "generate"
            and row["mode"] == "compiled"
            and row["partition"] in _SLICES
            and not left_out
        ):
            yield {
                "id": row["id"], "source": row["source"], "source_url": row["source_url"], "date": row["date"], "engine": row["engine"],
                "engine_version": row["engine_version"], "model_hf_id": row["model_hf_id"], "weights_dtype": row["weights_dtype"] or "auto",
                "kv_dtype": "auto", "gpu": f"{row['gpu']}:{_SLICES[row['partition']]}", "num_gpus": "1", "tp": "1", "pp": "1", "ep": "1", "dp": "1",
                "isl": row["isl"], "osl": row["osl"], "length_distribution": "fixed", "concurrency": row["concurrency"],
                "output_tok_s": row["output_tok_s"], "kind": "online_conc", "max_num_seqs": row["max_num_seqs"].removesuffix(".0"),
                "core": "1", "weight": "1", "group": row["source"], "source_family": row["source"],
            }  # fmt: skip


def predictions(rows: Sequence[Mapping[str, str]]) -> Sequence[Prediction]:
    """Return what is predicted of measured rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slices.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return validation([path], kind="serving", intervals=shipped_intervals()).scored


def slices_section(folder: Path) -> str:
    """Return the section."""
    with (folder / "mig_embedding.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    by_slice: dict[str, list[float]] = {}
    inside, runs = 0, 0
    for one in predictions(list(scored_rows(rows))):
        if one.predicted is None or one.low is None or one.high is None:
            continue
        name = dict(one.groups or {}).get("device", "")
        by_slice.setdefault(name, []).append(one.predicted / one.measured)
        inside, runs = inside + (one.low <= one.measured <= one.high), runs + 1
    lines = ["| slice | runs | lowest ratio | median | highest |", "| --- | ---: | ---: | ---: | ---: |"]
    lines += [
        f"| {name} | {len(ratios)} | {min(ratios):.2f} | {median(ratios):.2f} | {max(ratios):.2f} |"
        for name, ratios in sorted(by_slice.items())
    ]
    embedded = [float(row["seq_s"]) for row in rows if row["task"] == "embed" and row["seq_s"]]
    shared = {
        name: [float(r["output_tok_s"]) for r in rows if r["sharing"] == name and r["task"] == "generate" and r["output_tok_s"] and r["mode"] == "compiled"]
        for name in ("time-sliced", "mps")
    }  # fmt: skip
    text = EMBEDDINGS.format(
        low=min(embedded), high=max(embedded), runs=len(embedded), sliced=median(shared["time-sliced"]), mps=median(shared["mps"])
    )  # fmt: skip
    found = f"Intervals {SLICE_WIDTH} times as wide as on whole devices hold {inside} of {runs} values."
    return TEXT + "\n".join(lines) + f"\n\n{found}\n\n" + text
