"""What layers of torch cannot prove: results of an engine beside the predictions of a calibration."""

import json

import pytest

from tests.files import written_to


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
