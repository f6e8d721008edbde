"""Comparisons say what differs, results of an engine are replayed beside a calibration; what cannot be used is one clear line."""

import json
from dataclasses import replace

import pytest

from capplan.calibrate.compare import (
    calibration_side,
    datasheet_side,
    differences,
    machine_differences,
    repeat_notes,
)
from capplan.readers.catalogue.efficiency import efficiency_for
from capplan.readers.catalogue.hardware import device
from tests.files import written_to
from tests.tables import table


def test_two_runs_say_how_far_they_agree(calibration):
    slower = replace(
        calibration,
        measurements=tuple(replace(m, median_s=1.1 * m.median_s) for m in calibration.measurements),
    )
    notes = repeat_notes(calibration, slower)
    assert any("constrained numbers" in note for note in notes)
    assert any("measured medians" in note and "10.0%" in note for note in notes)


def test_a_calibration_agrees_with_itself_and_not_with_a_faster_one(calibration, wide):
    same = differences(calibration_side(calibration), calibration_side(calibration))
    assert len(same) > 10
    assert all(row["agrees"] for row in same if row["ratio"] is not None)
    faster = replace(
        calibration,
        peaks=replace(calibration.peaks, memory_bytes_per_s=2 * calibration.peaks.memory_bytes_per_s),
    )
    rows = {
        row["quantity"]: row["ratio"]
        for row in differences(calibration_side(faster), calibration_side(calibration))
    }
    assert rows["peak memory bytes_per_s"] == pytest.approx(2.0)
    assert rows[f"elementwise/{wide} memory_bytes_per_s"] == pytest.approx(2.0)
    assert rows[f"elementwise/{wide} floor_s"] == pytest.approx(1.0)


def test_what_differs_between_two_machines_is_listed(calibration):
    other = replace(calibration.machine, driver="999.1")
    assert machine_differences(calibration.machine, other) == ["driver: None against 999.1"]


def test_the_datasheet_is_one_side_of_a_comparison(capplan, written):
    sheet = device("h100-sxm")
    side = datasheet_side(sheet, efficiency_for(sheet))
    assert side["peak bf16 flop_per_s"] == sheet.peak_flop_per_s["bf16"]
    rows = {
        row["quantity"]: row for row in capplan.result("calibrate", "--compare", written, "h100-sxm")["rows"]
    }
    assert rows["peak memory bytes_per_s"]["second"] == sheet.memory_bytes_per_s


def test_without_torch_the_extra_is_named(program, tmp_path):
    written_to(tmp_path / "sitecustomize.py", "import sys\nsys.modules['torch'] = None\n")
    ran = program(
        "calibrate", "--device", "cpu", "-o", str(tmp_path / "x.yaml"), env={"PYTHONPATH": f"{tmp_path}:."}
    )
    assert ran.code == 2
    assert "needs torch" in ran.err
    assert "capplan[calibrate]" in ran.err


@pytest.mark.parametrize(
    "words", [("--from", "result.json"), ("--endpoint", "http://localhost:9", "-o", "x.yaml")]
)
def test_a_refit_names_the_one_library_that_it_needs(program, tmp_path, words):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['scipy'] = None\n")
    (tmp_path / "result.json").write_text("{}")
    ran = program("calibrate", *words, env={"PYTHONPATH": f"{tmp_path}:."})
    assert ran.code == 2
    assert "calibrate needs scipy" in ran.err
    assert "pip install scipy" in ran.err
    plain = program(
        "calibrate", "--endpoint", "http://localhost:9", "--dry-run", env={"PYTHONPATH": f"{tmp_path}:."}
    )
    assert plain.code == 0, plain.err


@table
def test_a_result_file_that_tells_nothing_is_refused(capplan, tmp_path, text, said):
    path = written_to(tmp_path / "result.json", text)
    place = ("--model", "llama-3.1-8b", "--hardware", "h100-sxm", "--offline")
    ran = capplan("calibrate", "--from", path, *place, "-o", tmp_path / "x.calibration.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "result.json" in ran.err.splitlines()[0]
    assert not (tmp_path / "x.calibration.yaml").exists()


def test_calibrations_of_real_devices_are_compared_like_any_other(capplan, root):
    files = sorted((root / "calibrate" / "devices").glob("*.calibration.yaml"))
    assert files
    for path in files:
        assert all(
            row["agrees"]
            for row in capplan.result("calibrate", "--compare", path, path)["rows"]
            if row["ratio"] is not None
        )


def result(concurrency):
    return json.dumps(
        {
            "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B", "num_prompts": 40, "max_concurrency": concurrency,
            "request_rate": "inf", "completed": 40, "duration": 20.0, "total_input_tokens": 40 * 512,
            "total_output_tokens": 40 * 128, "request_throughput": 2.0, "output_throughput": 256.0,
            "mean_ttft_ms": 40.0, "median_ttft_ms": 38.0, "mean_tpot_ms": 9.0, "median_tpot_ms": 9.0,
        }
    )  # fmt: skip


@pytest.fixture
def measured(tmp_path, host_file):
    """A calibration whose host takes 20 ms a step, and two results."""
    calibration = written_to(tmp_path / "host.calibration.yaml", host_file)
    files = []
    for concurrency in (1, 4):
        files.append(tmp_path / f"run{concurrency}.json")
        files[-1].write_text(result(concurrency))
    return calibration, files


def test_results_of_an_engine_are_replayed_with_and_without_the_calibration(capplan, measured):
    calibration, files = measured
    found = capplan.result(
        f"calibrate --verify llama-3.1-8b --calibration {calibration} --hardware h100-sxm --results",
        *files,
        "--offline",
    )
    rows = {(row["result"].rpartition("/")[2], row["metric"]): row for row in found["rows"]}
    assert set(rows) == {(f"run{n}.json", metric) for n in (1, 4) for metric in ("tpot_s", "ttft_s")}
    one = rows["run1.json", "tpot_s"]
    assert one["measured_s"] == pytest.approx(0.009)
    assert one["predicted_s"] > 0.02
    assert one["error_fraction"] == pytest.approx(one["predicted_s"] / 0.009 - 1)
    assert found["median_ape"]["calibrated"] > 0


def test_results_that_say_nothing_are_refused_with_the_reason(capplan, measured):
    calibration, _ = measured
    empty = written_to(calibration.parent / "empty.json", "[]")
    assert "empty.json" in capplan.refused(
        f"calibrate --verify llama-3.1-8b --calibration {calibration} --hardware h100-sxm --results {empty} --offline"
    )
