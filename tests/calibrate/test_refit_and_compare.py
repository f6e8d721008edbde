"""Refits from result files find the overhead that the results were made with; comparisons say what differs."""

import json
from dataclasses import replace

import pytest

from capplan.calibrate.compare import calibration_side, datasheet_side, differences, machine_differences
from capplan.calibrate.refit import point_of, refitted
from capplan.errors import InputError
from capplan.inputs.efficiency import efficiency_for
from capplan.inputs.hardware import device
from capplan.inputs.results.record import BenchmarkResult, Spread
from capplan.inputs.results.replica import replica_of_result

MODEL = "llama-3.1-8b"


def result(concurrency, tpot_s=None, **more):
    values = {"tool": "t", "path": f"{concurrency}.json", "model": MODEL, "hardware": "h100-sxm"}
    lengths = {"input_tokens": 1000.0, "output_tokens": 200.0}
    return BenchmarkResult(**(values | lengths | more), concurrency=concurrency, tpot_s=Spread(tpot_s))


@pytest.fixture(scope="module")
def replica():
    return replica_of_result(result(1.0), offline=True)


def results_with(
    replica, ratio, step_s, sequence_s, concurrencies=(1, 2, 4, 8, 16, 32, 64, 128), lengths=(200.0, 1000.0)
):
    made = []
    for concurrency in map(float, concurrencies):
        for tokens in lengths:
            bare = point_of(result(concurrency, 1.0, output_tokens=tokens), replica)
            tpot_s = ratio * bare.kernel_s + step_s + sequence_s * concurrency
            made.append((result(concurrency, tpot_s, output_tokens=tokens), replica))
    return made


def test_the_error_falls_and_the_times_are_explained(replica):
    found = refitted(results_with(replica, ratio=1.3, step_s=3e-3, sequence_s=2e-5))
    assert found.after_median_ape < 0.02 < found.before_median_ape
    assert found.numbers["kernel_time_ratio"].low <= 1.3 <= found.numbers["kernel_time_ratio"].high
    assert len(found.points) == 16


def test_numbers_that_the_results_cannot_tell_are_said(replica):
    found = refitted(results_with(replica, 1.3, 3e-3, 2e-5, concurrencies=(8,), lengths=(200.0,)) * 6)
    assert not all(number.constrained for number in found.numbers.values())
    assert any("not constrained" in remark for remark in found.remarks)


def test_a_refit_needs_its_stated_number_of_points(replica):
    with pytest.raises(InputError, match="3 usable results of 4: a refit needs at least 6") as raised:
        refitted([*results_with(replica, 1.0, 0.0, 0.0, (1, 2, 4), (200.0,)), (result(4.0), replica)])
    assert "no time per output token" in str(raised.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"concurrency": None}, "concurrency is not known"),
        ({"input_tokens": None}, "lengths are not known"),
        ({"kind": "prefill"}, "no time per output token"),
    ],
)
def test_a_result_that_cannot_be_used_says_why(changed, words, replica):
    assert words in point_of(replace(result(4.0, 0.01), **changed), replica)


def test_a_result_without_model_or_hardware_names_the_flags():
    with pytest.raises(InputError, match="give --model and --hardware"):
        replica_of_result(replace(result(1.0), model=None, hardware=None))


def test_the_command_refits_from_files(capplan, tmp_path, replica):
    paths = []
    for made, _ in results_with(replica, 1.2, 2e-3, 1e-5, lengths=(200.0,)):
        values = {
            "completed": 10, "duration": 1.0, "total_input_tokens": 10_000, "total_output_tokens": 2_000, "model_id": "alias",
            "max_concurrency": made.concurrency, "mean_ttft_ms": 1.0, "mean_tpot_ms": made.tpot_s.mean * 1e3,
        }  # fmt: skip
        paths.append(tmp_path / f"{made.concurrency:g}.json")
        paths[-1].write_text(json.dumps(values))
    ran = capplan(
        "calibrate",
        "--from",
        *paths,
        "--model",
        MODEL,
        "--hardware",
        "h100-sxm",
        "--offline",
        "--format",
        "json",
    )
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["result"]
    assert found["after"]["median_ape"] < found["before"]["median_ape"]
    assert set(found["fitted"]) == {"kernel_time_ratio", "step_s", "sequence_s"}


def test_a_calibration_agrees_with_itself_and_not_with_a_faster_one(calibration):
    same = differences(calibration_side(calibration, "a"), calibration_side(calibration, "b"))
    assert len(same) > 10
    assert all(row.agrees for row in same if row.ratio is not None)
    faster = replace(
        calibration,
        peaks=replace(calibration.peaks, memory_bytes_per_s=2 * calibration.peaks.memory_bytes_per_s),
    )
    rows = {
        d.quantity: d for d in differences(calibration_side(faster, "f"), calibration_side(calibration, "c"))
    }
    assert rows["peak memory bytes_per_s"].ratio == pytest.approx(2.0)
    assert rows["elementwise/bf16 memory_bytes_per_s"].ratio == pytest.approx(2.0)
    assert rows["elementwise/bf16 floor_s"].ratio == pytest.approx(1.0)


def test_what_differs_between_two_machines_is_listed(calibration):
    other = replace(calibration.machine, driver="999.1")
    assert machine_differences(calibration.machine, other) == ["driver: None against 999.1"]


def test_the_datasheet_is_one_side_of_a_comparison(capplan, written):
    sheet = device("h100-sxm")
    side = datasheet_side(sheet, efficiency_for(sheet))
    assert side.quantities["peak bf16 flop_per_s"] == sheet.peak_flop_per_s["bf16"]
    ran = capplan("calibrate", "--compare", written, "h100-sxm", "--format", "json")
    rows = {row["quantity"]: row for row in json.loads(ran.out)["result"]["rows"]}
    assert rows["peak memory bytes_per_s"]["second"] == sheet.memory_bytes_per_s


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "cpu"), "name it with -o"),
        (("--device", "cpu", "-o", "/no/such/folder/x.yaml"), "does not exist"),
        (("--device", "abacus", "-o", "x.yaml"), "unknown device"),
        (("stray.json", "-o", "x.yaml"), "are read with --from"),
        (("--from", "no-such.json"), "no such file"),
        (("--compare", "a.calibration.yaml", "b.calibration.yaml"), "a.calibration.yaml"),
        (("--verify", "no-such-model", "--offline", "-o", "x.yaml"), "no-such-model"),
        (("--minutes", "0", "-o", "x.yaml"), "--minutes"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_2(capplan, words, said):
    ran = capplan("calibrate", *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_without_torch_the_extra_is_named(program, tmp_path):
    blocked = tmp_path / "sitecustomize.py"
    blocked.write_text("import sys\nsys.modules['torch'] = None\n")
    ran = program(
        "calibrate", "--device", "cpu", "-o", str(tmp_path / "x.yaml"), env={"PYTHONPATH": f"{tmp_path}:."}
    )
    assert ran.code == 2
    assert "needs torch" in ran.err
    assert "capplan[calibrate]" in ran.err
