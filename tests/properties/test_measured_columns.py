"""Facts of a measured run: a column says the same as a note, notes are read once at the edge, and nobody reads them later."""

import ast
import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.accuracy.benchmark import benchmark_of
from capplan.accuracy.memory import predict_memory_row
from capplan.errors import InputError
from capplan.questions.validation import validation
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.readers.catalogue.hardware import device
from capplan.readers.catalogue.models import read_model
from capplan.recorded.measured import NOTED, with_run_columns, with_start_columns

PACKAGE = Path(__file__).resolve().parents[2] / "capplan"
RUN = {
    "engine": "vllm", "engine_version": "0.11.0", "model_hf_id": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100-sxm",
    "weights_dtype": "bf16", "num_gpus": "1", "tp": "1", "isl": "500", "osl": "60", "concurrency": "4",
    "kind": "online_conc", "tpot_ms_mean": "9",
}  # fmt: skip
START = {
    "engine": "vllm", "engine_version": "0.22.0", "model_hf_id": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100-sxm",
    "tp": "1", "max_model_len": "8192", "gpu_memory_utilization": "0.9",
}  # fmt: skip
PUBLISHED = (
    "open loop 2.5 req/s for 600 s; max_num_seqs=128, max_num_batched_tokens=2048, kv_blocks=8253",
    "[1. Choosing the Inference Engine] ; ; n_requests=1000; dur_s=76.59; dp_attention=False",
    "closed loop max-concurrency, num_prompts=10x conc; random tokens; hw label h100",
    "Poisson arrivals, short run (69.1 s); achieved_qps=offered rate, not completion; suite A",
    "doc says enable_attention_dp for MoE; EP size not stated", "MTP n=3, enforce_eager", "100 requests submitted at once",
)  # fmt: skip
"""Notes as they stand beside published results."""

numbers = st.integers(1, 100_000)
prose = st.sampled_from(["", "; ", "closed loop, ", "dur_s=76.59; ", "tp=4 ", "[case 1] n=7; "])


@given(st.sampled_from(sorted(NOTED)), numbers, prose, prose)
def test_a_note_is_a_column(name, number, before, after):
    noted = with_run_columns({**RUN, "notes": f"{before}{name}={number}{after}"})
    stated = {**RUN, NOTED[name]: str(number)}
    assert benchmark_of(noted) == benchmark_of(stated)
    assert benchmark_of(stated) != benchmark_of(RUN)


@given(st.sampled_from(sorted(NOTED)), numbers, numbers)
def test_a_column_of_its_own_stands_before_a_note_and_a_note_before_a_recipe(name, own, noted):
    row = {**RUN, "source_family": "accelmark", "kind": "offline_burst", "notes": f"{name}={noted}"}
    assert with_run_columns({**row, NOTED[name]: str(own)})[NOTED[name]] == str(own)
    assert with_run_columns(row)[NOTED[name]] == str(noted)
    assert with_run_columns({**row, "notes": ""})["requests"] == "100"


@given(st.one_of(st.sampled_from(PUBLISHED), st.text(max_size=60)))
def test_what_is_replayed_does_not_depend_on_notes(notes):
    assert benchmark_of({**RUN, "notes": notes}) == benchmark_of(RUN)


@pytest.mark.parametrize("notes", PUBLISHED)
def test_what_a_start_holds_does_not_depend_on_notes(notes):
    network, gpu = read_model(START["model_hf_id"], offline=True), device(START["gpu"])
    assert predict_memory_row({**START, "notes": notes}, network, gpu) == predict_memory_row(
        START, network, gpu
    )


def test_notes_and_texts_of_a_start_change_what_it_holds_once_they_are_columns():
    network, gpu = read_model(START["model_hf_id"], offline=True), device(START["gpu"])

    def weights_and_cache(**texts):
        values = predict_memory_row(with_start_columns({**START, **texts}), network, gpu)
        return values["weights_gib"], values["available_kv_gib"]

    weights, cache = weights_and_cache()
    assert weights_and_cache(notes="MTP n=3")[0] > weights
    assert weights_and_cache(notes="--enforce-eager")[1] > cache
    assert weights_and_cache(quantization="FP8 W8A8 (compressed-tensors)")[0] < 0.7 * weights
    assert weights_and_cache(notes="MTP", draft_layer="0")[0] == weights


@given(st.integers(1, 200), st.floats(0.1, 50.0), st.integers(1, 64), st.floats(1.0, 2000.0))
def test_requests_follow_from_clients_or_from_the_time_that_they_came(each, rate, clients, seconds):
    closed = {**RUN, "concurrency": str(clients), "requests_per_client": str(each)}
    assert benchmark_of(closed).requests == each * clients
    loop = {
        **RUN,
        "kind": "online_rate",
        "concurrency": "",
        "request_rate": repr(rate),
        "duration_s": repr(seconds),
    }
    assert benchmark_of(loop).requests == max(1, round(rate * seconds))
    assert benchmark_of({**loop, "requests": "7"}).requests == 7
    with pytest.raises(InputError, match=r"requests: \d+ exceed the 1000000 that can be replayed"):
        benchmark_of({**closed, "concurrency": "2000000"})


def test_a_file_with_plain_columns_is_predicted_like_one_with_notes(tmp_path):
    predictions = []
    for row in ({**RUN, "notes": "n_requests=20"}, {**RUN, "requests": "20"}):
        path = tmp_path / f"{len(predictions)}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, row)
            writer.writeheader()
            writer.writerow(row)
        predictions.append(validation([path], intervals=shipped_intervals()).predictions)
    assert predictions[0] == predictions[1]
    assert predictions[0][0].predicted is not None


@pytest.mark.long
def test_the_column_of_notes_is_read_at_the_edge_alone():
    """`notes` as a key of a row: in the two readers of measured rows and nowhere else."""
    reading = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            key = None
            if isinstance(node, ast.Subscript):
                key = node.slice
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
            ):
                key = node.args[0] if node.args else None
            if isinstance(key, ast.Constant) and key.value == "notes":
                reading.append(path.relative_to(PACKAGE).as_posix())
    assert set(reading) == {"recorded/measured.py", "recorded/gguf_speeds.py"}
