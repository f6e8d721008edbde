"""What goes wrong on real cards, on a virtual one: the run goes on, or ends with a file that says what it lacks."""

import pytest
import torch

from capplan.calibrate.kernels.case import Case
from capplan.calibrate.measure import calibrated
from capplan.calibrate.run import Run
from capplan.readers.calibration.file import calibration_text, read_calibration
from tests.calibrate.faked.card import A100, H200, MI300X
from tests.calibrate.faked.cuda import CudaError
from tests.files import written_to

STREAMS = [Case("read", "fp32", {"moved_bytes": float(2**power)}) for power in range(16, 28)]


ROWS = range(1, 21)


def products(dtype="fp8", rows=ROWS):
    return [Case("matmul", dtype, {"rows": float(m), "inputs": 4096.0, "outputs": 4096.0}) for m in rows]


def failing(name, when, message="CUDA error: CUBLAS_STATUS_NOT_SUPPORTED"):
    """Return a fault of one function of torch, wherever the sizes of its first tensor are such."""

    def fault(called, tensors):
        if called == name and when(tuple(tensors[0].shape)):
            raise CudaError(message if isinstance(message, str) else message(tuple(tensors[0].shape)))

    return fault


def measured(target, planned, **words):
    return calibrated(target, quick=True, planned=[*STREAMS, *planned], **words)


def test_one_shape_that_fails_leaves_all_others(insert):
    state, target = insert(H200)
    state.faults.append(failing("_scaled_mm", lambda size: size[0] == 7))
    found = measured(target, products())
    rows = {m.shape["rows"] for m in found.measurements if m.dtype == "fp8"}
    assert rows == set(map(float, range(1, 21))) - {7.0}
    assert any("1 shape(s) failed: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED" in line for line in found.remarks)
    assert not found.missing
    assert not found.partial


def test_a_kernel_is_dropped_after_three_different_failures_and_is_missing_in_the_file(insert):
    state, target = insert(H200)
    tried = []
    state.faults.append(
        failing("_scaled_mm", lambda size: tried.append(size) or True, lambda size: f"no kernel for {size}")
    )
    found = measured(target, products())
    assert found.missing == ("matmul in fp8",)
    assert found.partial
    assert any("matmul in fp8 is skipped: no kernel" in line for line in found.remarks)
    assert len(tried) == 3


def test_a_sticky_error_ends_the_run_and_keeps_what_was_measured(insert, tmp_path):
    state, target = insert(H200)

    def breaking(called, tensors):
        if called == "mm" and tensors[0].shape[0] == 12:
            state.broken = "CUDA error: an illegal memory access was encountered"
            state.check()

    state.faults.append(breaking)
    found = measured(target, [*products("bf16"), *products("fp8")])
    path = written_to(tmp_path / "broken.calibration.yaml", calibration_text(found))
    back = read_calibration(path)
    assert back.partial
    assert back.missing == ("matmul in fp8",)
    assert any("the device failed after" in line and "illegal memory access" in line for line in back.remarks)
    assert len([m for m in back.measurements if m.dtype == "bf16"]) == 11
    assert "matmul/bf16" in back.fitted


@pytest.mark.parametrize("in_graph", [False, True])
def test_running_out_of_memory_is_no_failure_of_the_kernel(in_graph, insert):
    state, target = insert(A100)

    def full(called, tensors):
        if called == "mm" and tensors[1].numel() > 4096 * 1024 and (state.capturing is not None) == in_graph:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    state.faults.append(full)
    found = measured(target, products("bf16"))
    assert any("was measured as" in line for line in found.remarks)
    assert not found.missing


def test_a_kernel_that_no_way_runs_is_named_and_the_rest_is_measured(insert):
    _, target = insert(MI300X)
    found = calibrated(
        target, quick=True, planned=[*STREAMS, *products("int8", range(32, 40)), *products("bf16")]
    )
    assert found.missing == ("matmul in int8",)
    assert "matmul/bf16" in found.fitted


def test_what_a_library_raises_is_its_own_affair(insert):
    state, target = insert(H200)

    def odd(called, _tensors):
        if called == "layer_norm":
            raise AttributeError("module has no attribute 'rms'")

    state.faults.append(odd)
    norms = [Case("norm", "bf16", {"moved_bytes": float(2**p), "columns": 4096.0}) for p in range(18, 26)]
    found = measured(target, norms)
    assert found.missing == ("norm in bf16",)


@pytest.mark.parametrize(
    "moment", ["at the start", "while a graph is recorded", "between cases", "in the fit"]
)
def test_ctrl_c_at_any_moment_keeps_what_was_measured(moment, insert, monkeypatch, tmp_path):
    state, target = insert(H200)
    seen = []

    def stop(called, tensors):
        if (
            called == "mm"
            and tensors[0].shape[0] == 15
            and (state.capturing is not None) == ("graph" in moment)
        ):
            raise KeyboardInterrupt

    def interrupted(*_words):
        raise KeyboardInterrupt

    if moment == "at the start":
        monkeypatch.setattr("capplan.calibrate.measure.warmed_up", interrupted)
    elif moment == "in the fit":
        monkeypatch.setattr("capplan.calibrate.measure.fit_all", interrupted)
    else:
        state.faults.append(stop)
    run = Run()
    if moment == "at the start":
        with pytest.raises(KeyboardInterrupt):  # exit code 130, like any other command
            measured(target, products("bf16"), run=run, tell=seen.append)
        assert any(line.startswith("interrupted after 0 of") for line in seen)
        assert "nothing is written" in seen[-1]
        assert run.stopped
        return
    found = measured(target, products("bf16"), run=run, tell=seen.append)
    assert run.stopped
    assert found.partial
    assert len(found.measurements) >= len(STREAMS)
    assert any("interrupted" in line for line in seen)
    path = written_to(tmp_path / "stopped.calibration.yaml", calibration_text(found))
    assert len(read_calibration(path).measurements) == len(found.measurements)


def test_repeats_of_a_hot_card_are_rejected_and_counted(insert):
    state, target = insert(H200)
    hot = {"left": 6}

    def heat(state):
        state.slowed = 0x40 if hot["left"] > 0 else 0
        state.slow_by = 2.0 if hot["left"] > 0 else 1.0
        hot["left"] -= state.host_s > 2.5

    state.heat = heat
    found = measured(target, products("bf16"))
    assert found.conditions.rejected_repeats > 0
    assert "hardware thermal" in found.conditions.slowed_fraction
    truth = state.truth
    late = [m for m in found.measurements if m.operator == "matmul" and not m.throttled]
    assert late
    for m in late:
        assert m.median_s == pytest.approx(truth.matmul_s(m.shape["rows"], 4096, 4096), rel=0.02)


def test_a_card_that_stays_hot_is_measured_marked_and_not_fitted(insert):
    state, target = insert(H200)
    state.slowed = 0x8
    found = measured(target, products("bf16"))
    assert all(m.throttled for m in found.measurements)
    assert "matmul/bf16" not in found.fitted
    assert found.conditions.slowed_fraction == {"hardware slowdown": 1.0}


def test_a_power_cap_is_recorded_and_rejects_nothing(insert):
    state, target = insert(H200)
    state.slowed = 0x4
    state.heat = lambda one: setattr(one, "slow_by", 1.2 if one.host_s > 1.0 else 1.0)
    found = measured(target, products("bf16"))
    conditions = found.conditions
    assert conditions.rejected_repeats == 0
    assert conditions.slowed_fraction == {"power cap": 1.0}
    assert conditions.sustained.first_flop_per_s == pytest.approx(
        1.2 * conditions.sustained.flop_per_s, rel=0.02
    )
    assert conditions.clock_hz.low < conditions.clock_hz.high
    assert found.machine.clocks["ecc.mode.current"] == "Enabled"
    assert found.machine.clocks["mig.mode.current"] == "Disabled"


def test_the_warm_up_takes_two_seconds_and_time_that_is_left_goes_into_passes(insert):
    _, target = insert(H200, passes=5)
    found = measured(target, products("bf16", range(1, 9)))
    assert found.conditions.passes == 5
    assert found.seconds >= 2.0
    assert min(m.repeats for m in found.measurements) >= 5 * 3


def test_a_budget_that_ends_marks_the_file_partial(insert):
    state, target = insert(H200)
    state.slow_by = 100.0
    found = measured(target, [*products("bf16"), *products("fp8")], minutes=0.05)
    assert found.partial
    assert any("out of time after" in line for line in found.remarks)
