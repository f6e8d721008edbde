"""A real run on the CPU: what it measures, writes, and changes."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capplan.calibrate.kernels import KERNELS, case_bytes
from capplan.calibrate.kernels.case import Case
from capplan.calibrate.machine import abilities_of, opened
from capplan.calibrate.measure import calibrated, peak_bytes
from capplan.calibrate.shapes import cases
from capplan.errors import InputError
from capplan.operators.device_rates import device_rates
from capplan.readers.calibration.file import read_calibration
from capplan.readers.calibration.measured_device import (
    device_from_calibration,
    efficiency_from_calibration,
    refuse_other_machine,
)
from capplan.readers.catalogue.hardware import device, named_device
from tests.interrupts import started

ROOT = Path(__file__).resolve().parents[2]


def test_every_kernel_is_measured_and_judged_on_shapes_that_the_fit_did_not_see(calibration, wide):
    kernels = ("matmul", "attention", "experts", "latent_attention", "elementwise")
    assert calibration.fitted.keys() >= {f"{kernel}/{wide}" for kernel in kernels}
    for fit in calibration.fitted.values():
        for name, score in fit.operators.items():
            if score.points >= 6:
                assert score.held_out_points >= score.points / 6, name
                assert score.held_out_median_ape is not None


def test_the_fit_describes_most_of_what_was_measured(calibration):
    """The stated aim is a median of 15 % on a shared CPU; a loaded test machine is given twice that."""
    errors = [abs(m.fitted_s / m.median_s - 1) for m in calibration.measurements if m.held_out and m.fitted_s]
    assert len(errors) >= len(calibration.measurements) / 4
    assert np.median(errors) < 0.30


def test_peaks_are_the_best_rates_seen_so_no_measured_product_beats_them(calibration):
    for m in calibration.measurements:
        if m.operator == "matmul":
            rate = 2 * m.shape["rows"] * m.shape["inputs"] * m.shape["outputs"] / m.median_s
            assert rate <= calibration.peaks.flop_per_s[m.dtype] * (1 + 1e-9)


def test_more_work_of_one_kind_takes_longer(calibration):
    sizes = {m.shape["moved_bytes"]: m.median_s for m in calibration.measurements if m.operator == "copy"}
    assert sizes[max(sizes)] > 5 * sizes[min(sizes)]


def test_a_calibration_of_another_device_is_refused(written, calibration):
    with pytest.raises(InputError, match=r"was measured on .* not on h100-sxm"):
        efficiency_from_calibration(written, device("h100-sxm"))
    other = replace(calibration.machine, uuid_hash="0" * 12)
    with pytest.raises(InputError, match="and this is"):
        refuse_other_machine(written, calibration.machine, other)


def test_the_measured_cpu_is_a_device_with_rates_for_every_kernel(written, calibration, wide):
    own = device_from_calibration(written)
    assert (own.architecture, own.labels["memory_bytes_per_s"]) == ("cpu", "measured")
    efficiency = efficiency_from_calibration(written, own)
    rates = device_rates(own, efficiency, weight_format=wide, kv_format=wide, engine="vllm")
    assert rates.matmul.bytes_per_s == pytest.approx(calibration.peaks.memory_bytes_per_s, rel=1e-5)
    assert rates.matmul.compute_fraction <= 1.0
    assert efficiency.fits[f"matmul/{wide}"].label == "measured"
    others = [fit.label for key, fit in efficiency.fits.items() if key.startswith("linear_attention/")]
    assert set(others) == {"assumed"}


def test_fractions_are_turned_into_those_of_the_peaks_of_the_device(written, wide):
    own = device_from_calibration(written)
    twice = replace(own, memory_bytes_per_s=2 * own.memory_bytes_per_s)
    once, halved = (
        efficiency_from_calibration(written, d).fits[f"elementwise/{wide}"].numbers for d in (own, twice)
    )
    assert halved["memory_fraction"] == pytest.approx(once["memory_fraction"] / 2)
    assert halved["floor_s"] == once["floor_s"]


def test_cpu_is_a_device_only_with_a_calibration(written):
    assert named_device("cpu", written).title == read_calibration(written).machine.name
    assert named_device("h100-sxm", None).name == "h100-sxm"
    with pytest.raises(InputError, match="known from a calibration only"):
        named_device("cpu", None)


def test_the_cases_of_an_accelerator_span_what_serving_uses():
    planned = cases(abilities_of("9.0"), quick=False)
    rows = {case.shape["rows"] for case in planned if case.operator == "matmul"}
    assert {1, 8192} <= rows
    assert {case.dtype for case in planned if case.operator == "matmul"} == {
        "bf16",
        "fp16",
        "fp8",
        "int8",
        "fp8_row",
        "fp8_block",
        "w4a16",
    }
    assert {case.operator for case in planned} == set(KERNELS)
    assert max(case_bytes(case) for case in planned) < 60e9


@pytest.mark.long
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not say what a process held"
)
def test_the_stated_memory_is_what_a_run_takes():
    """In a process of its own: what it holds more at the end of its largest moment is under what it said before."""
    script = (
        "from capplan.calibrate.machine import opened\n"
        "from capplan.calibrate.measure import calibrated, peak_bytes\n"
        "from capplan.calibrate.shapes import cases\n"
        "import scipy.optimize, torch\n"
        "status = lambda: open('/proc/self/status').read()\n"
        "most = lambda: 1024 * int(status().partition('VmHWM:')[2].split()[0])\n"
        "target = opened('cpu')\n"
        "planned = [c for c in cases(target.abilities, quick=True) if c.operator in ('copy', 'read', 'elementwise')]\n"
        "before = most()\n"
        "calibrated(target, quick=True, minutes=0.5, planned=planned)\n"
        "print(most() - before, peak_bytes(planned, target))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True
    )
    taken, stated = map(float, done.stdout.split())
    assert stated / 4 < taken < stated


def test_memory_stays_under_three_fifths_of_what_is_free_and_large_cases_shrink(target):
    lines = []
    little = replace(target, free_bytes=60e6)
    planned = [Case("copy", "bf16", {"moved_bytes": float(2**28)})]
    planned += [Case("read", "fp32", {"moved_bytes": float(2**power)}) for power in range(14, 24)]
    assert peak_bytes(planned, little) <= 0.6 * 60e6
    found = calibrated(little, quick=True, minutes=0.5, planned=planned, tell=lines.append)
    assert max(m.shape["moved_bytes"] for m in found.measurements) <= 0.6 * 60e6
    assert any("was measured as" in line for line in lines)
    assert any("GB free" in line for line in lines)


def test_what_the_device_cannot_do_is_skipped_and_said(target):
    lines = []
    planned = [Case("read", "fp32", {"moved_bytes": float(2**power)}) for power in range(10, 22)]
    broken = Case(
        "prefill_attention",
        "int8",
        {"sequences": 1, "query_heads": 2, "kv_heads": 2, "head_dim": 8, "new_tokens": 8},
    )
    found = calibrated(target, quick=True, minutes=0.5, planned=[broken, *planned], tell=lines.append)
    assert any("prefill_attention in int8: 1 shape(s) failed" in line for line in lines)
    assert any("prefill_attention in int8" in remark for remark in found.remarks)
    assert found.missing == ("prefill_attention in int8",)


def test_too_few_shapes_write_nothing(target):
    with pytest.raises(InputError, match="nothing is written"):
        calibrated(target, quick=True, planned=[Case("launch", "fp32", {})])


@pytest.mark.parametrize(
    ("name", "words"), [("abacus", "unknown device"), ("meta", "is not measured"), ("cuda:7", "CUDA|cuda")]
)
def test_a_device_that_is_not_there_is_named(name, words):
    with pytest.raises(InputError, match=words):
        opened(name)


def test_more_threads_than_the_machine_has_are_refused():
    with pytest.raises(InputError, match="--threads"):
        opened("cpu", threads=10_000)


def run(*words, stderr=subprocess.PIPE):
    command = [sys.executable, "-m", "capplan", "calibrate", *words]
    return started(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=stderr)


def shown_on(terminal):
    """Return everything that a process writes to a pseudo-terminal until it ends."""
    shown = b""
    try:
        while part := os.read(terminal, 65536):
            shown += part
    except OSError:
        pass  # the other end is closed
    os.close(terminal)
    return shown.decode()


@pytest.mark.long
def test_the_command_writes_a_file_and_the_promised_result_and_shows_the_time_that_is_left(wide, tmp_path):
    path = tmp_path / "cpu.calibration.yaml"
    ours, theirs = pty.openpty()
    words = ("--device", "cpu", "--quick", "--minutes", "0.1", "-o", str(path), "--format", "json")
    process = run(*words, stderr=theirs)
    os.close(theirs)
    shown = shown_on(ours)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0, shown
    result = json.loads(out)["result"]
    assert {"device", "fitted", "held_out", "seconds"} <= set(result)
    assert result["fitted"][f"matmul/{wide}"]["compute_fraction"] > 0
    assert all({"n", "median_ape"} == set(row) for row in result["held_out"].values())
    assert read_calibration(path).partial == result["partial"]
    left = [60 * int(m) + int(s) for m, s in re.findall(r"\[#* *\] +\d+% (\d+):(\d\d) left", shown)]
    assert len(left) > 10
    assert left[0] >= left[-1]


@pytest.mark.long
def test_ctrl_c_writes_what_was_measured_marked_partial(tmp_path):
    path = tmp_path / "partial.calibration.yaml"
    ours, theirs = pty.openpty()
    process = run("--device", "cpu", "--quick", "-o", str(path), stderr=theirs)
    os.close(theirs)
    shown = b""
    while shown.count(b"left  ") < 20 or shown.count(b"left  copy") < 2:  # so that a bandwidth is measured
        shown += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    shown += shown_on(ours).encode()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, shown
    assert "(partial)" in out
    back = read_calibration(path)
    assert back.partial
    assert any("interrupted after" in remark for remark in back.remarks)


@pytest.mark.long
def test_two_ranks_measure_their_collectives(tmp_path):
    path = tmp_path / "ranks.calibration.yaml"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "capplan",
    ]
    words = [
        "calibrate",
        "--device",
        "cpu",
        "--quick",
        "--minutes",
        "0.1",
        "-o",
        str(path),
        "--format",
        "json",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    back = read_calibration(path)
    assert (back.peaks.ranks, back.peaks.node_ranks) == (2, 2)
    assert {"all_reduce", "all_gather"} <= set(back.fitted["link/bf16"].operators)
    assert device_from_calibration(path).link_bytes_per_s == pytest.approx(back.peaks.link_bytes_per_s)


MISSED = {
    "intel-xeon-1-thread.calibration": {"matmul/fp32 matmul"},
    "h100-sxm.calibration": {
        "matmul/fp16 matmul",
        "matmul/w4a16 matmul",
        "attention/bf16 prefill_attention",
        "latent_attention/bf16 latent_decode",
    },
}
"""Shipped file -> fits whose held-out shapes miss the aim: fp32 products of up to four rows, three times faster than the form; on the
H100 4-bit products of up to 16 rows, prompts over a long cache, and latent decode of 128 heads, for which torch has no kernel of its own."""


@pytest.mark.parametrize(
    "path", sorted((ROOT / "calibrate" / "devices").glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_shipped_calibration_is_whole_and_within_its_stated_error(path):
    """15 % is the aim for the median of held-out shapes on a shared CPU, 6 % on a GPU; what misses it is known by name."""
    own = read_calibration(path)
    assert not own.partial
    most = 0.15 if own.machine.device == "cpu" else 0.06
    held = {
        f"{key} {name}": s.held_out_median_ape
        for key, fit in own.fitted.items()
        for name, s in fit.operators.items()
        if s.held_out_points >= 5
    }
    assert len(held) > 5
    assert {name for name, error in held.items() if error > most} == MISSED.get(path.stem, set())
    every = [abs(m.fitted_s / m.median_s - 1) for m in own.measurements if m.held_out and m.fitted_s]
    assert np.median(every) < most
