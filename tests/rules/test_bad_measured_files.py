"""Files of measured results with odd rows: a row that cannot be is refused with a reason, and the others are predicted."""

import csv
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capplan.cli.main import main
from capplan.errors import InputError
from capplan.questions.validation import BUILT_IN_POINTS, validation
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.recorded.measured import measured_kind, measured_rows
from capplan.report.answers.simulate import validate_answer
from tests.files import written_to
from tests.sweeps import examples
from tests.tables import rows

SERVING = {
    "id": "a", "engine": "vllm", "engine_version": "0.11.0", "model_hf_id": "meta-llama/Llama-3.1-8B-Instruct",
    "weights_dtype": "bf16", "kv_dtype": "auto", "gpu": "h100-sxm", "num_gpus": "1", "tp": "1", "pp": "1", "ep": "1",
    "dp": "1", "isl": "500", "osl": "60", "length_distribution": "fixed", "concurrency": "4", "request_rate": "",
    "tpot_ms_mean": "9", "ttft_ms_mean": "40", "kind": "online_conc", "batch_static": "", "notes": "n_requests=20",
    "core": "1", "weight": "1", "requests": "", "requests_per_client": "", "duration_s": "", "max_num_seqs": "",
    "attention_data_parallel": "", "offered_rate_reported": "", "prefill_gpus": "", "decode_gpus": "", "batch_per_gpu": "",
    "prefix_hit_fraction": "", "layout": "", "dcp": "", "tokens_per_gpu_step": "", "source": "",
}  # fmt: skip
MEMORY = {
    "id": "m", "engine": "vllm", "engine_version": "0.11.0", "model_hf_id": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "h100-sxm", "gpu_memory_gib": "79.19", "tp": "1", "pp": "1", "max_model_len": "8192",
    "gpu_memory_utilization": "0.9", "max_num_seqs": "", "weights_gib": "14.98", "status": "ok", "confidence": "A",
    "weights_dtype": "", "engine_release": "", "ep": "", "dcp": "", "draft_layer": "", "enforce_eager": "",
}  # fmt: skip
KERNEL = {
    "id": "k", "gpu": "h100_sxm", "family": "gemm", "op": "gemm", "dtype": "fp8", "backend": "vllm", "m": "64",
    "n": "4096", "k": "4096", "latency_us": "20",
}  # fmt: skip
GOOD = {"serving": SERVING, "memory": MEMORY, "kernel": KERNEL}


def written(folder, rows, name="results.csv"):
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written_to(folder / name, out.getvalue())


def validated(path, kind=None):
    return validation([path], kind=kind, intervals=shipped_intervals())


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_row_is_predicted(kind, tmp_path):
    found = validated(written(tmp_path, [GOOD[kind]]))
    assert found.predicted == 1
    assert not found.refused


def test_a_row_that_ran_and_does_not_fit_is_an_error_and_no_refusal(tmp_path):
    odd = {**SERVING, "model_hf_id": "meta-llama/Llama-3.1-405B", "id": "odd", "num_gpus": "2", "tp": "2"}
    found = validated(written(tmp_path, [odd, {**SERVING, "num_gpus": "1", "id": "good"}]))
    (reason,), (rows,) = found.misfits, found.misfits.values()
    assert (rows, found.refused, found.predicted) == (1, {}, 1)
    assert "does not fit" in reason
    answer = validate_answer(found, decisions=False)
    assert answer.result["misfits"] == {reason: 1}
    assert "of rows that ran, 1 do not fit by our memory plan" in answer.headline


@pytest.mark.parametrize(("kind", "key", "text", "words"), rows("measured")["odd"])
def test_an_odd_row_is_refused_with_its_reason_and_the_next_one_predicted(kind, key, text, words, tmp_path):
    odd = {"spec_decode": "", **GOOD[kind], key: text, "id": "odd"}
    good = {"spec_decode": "", **GOOD[kind], "id": "good"}
    found = validated(written(tmp_path, [odd, good]), kind)
    assert {p.row for p in found.predictions if p.predicted is not None} == {"good"}
    (reason,) = found.refused
    assert words in reason


@pytest.mark.parametrize("text", ["nan", "", "n/a", "inf", "fast", "-3", "0"])
def test_a_measured_cell_that_is_no_number_was_not_measured(text, tmp_path):
    found = validated(written(tmp_path, [{**SERVING, "ttft_ms_mean": text}]))
    assert [p.metric for p in found.predictions] == ["tpot_ms_mean"]


def test_files_that_are_no_table_are_refused_in_one_line(tmp_path):
    for content in (b"", b"\n\n", b"\x1f\x8bbroken", b"\xff\xfe\x00", b"a,b\n1,2\n"):
        path = tmp_path / "odd.csv"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"odd\.csv"):
            measured_kind(path, measured_rows(path), None)


def test_the_command_refuses_a_missing_file_and_a_wrong_kind(tmp_path, capplan):
    assert main(["validate", str(tmp_path / "none.csv")]) == 2
    assert "column 'engine' is missing" in capplan.refused(
        "validate", written(tmp_path, [KERNEL]), "--kind", "serving"
    )


ODD = st.sampled_from(
    [
        "",
        "nan",
        "inf",
        "-inf",
        "-1",
        "0",
        "0.5",
        "1e30",
        "1e9",
        "abc",
        "1,000",
        "None",
        "3.7",
        "fp9",
        "gpt2",
        "3",
        "é",
        "\x01",
    ]
)


@given(st.sampled_from(sorted(GOOD)), st.data())
@settings(
    max_examples=examples(100, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_cell_makes_a_validation_crash(tmp_path, kind, data):
    row = dict(GOOD[kind])
    for key in data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, max_size=3, unique=True)):
        row[key] = data.draw(ODD)
    for p in validated(written(tmp_path, [row]), kind).predictions:
        assert p.reason or (p.predicted is not None and p.predicted == p.predicted)


def test_built_in_points_have_their_sources():
    rows = measured_rows(BUILT_IN_POINTS)
    assert len(rows) == 200
    assert len({row["id"] for row in rows}) == 200
    for row in rows:
        assert row["source"]
        assert row["source_url"].startswith("https://")
        assert row["date"]
    for column, least in (
        ("source", 10),
        ("engine", 3),
        ("gpu", 12),
        ("kind", 6),
        ("model_hf_id", 30),
        ("group", 60),
    ):
        assert len({row[column] for row in rows}) >= least, column
