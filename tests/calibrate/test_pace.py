"""A calibration keeps the time that it announces, on processors of any speed: a clock that every call moves by a known time."""

import re
import zlib
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from capplan.calibrate import fit, measure, run, timing
from capplan.calibrate.kernels import KERNELS
from capplan.calibrate.machine import processor_abilities
from capplan.calibrate.measure import FIT_FRACTION, QUICK_BUDGET_S, calibrated, planned_run
from capplan.calibrate.shapes import FIRST, cases
from capplan.errors import InputError

FAST = {"fp32": 100e9, "bf16": 200e9, "int8": 400e9}
"""Rates of a thread with units for bf16 [FLOP/s]."""
OLD = {"fp32": 60e9, "bf16": 8e9, "fp16": 8e9, "int8": 100e9}
"""Of one without."""
BYTES_PER_S = 10e9
BUILD_S = 0.01
CALL_S = 4e-6


class Clock:
    """Time that passes only where a call or the making of operands says so."""

    def __init__(self):
        self.now = 0.0
        self.slow_from = np.inf
        self.slow_by = 1.0
        self.jump_at, self.jump_s = np.inf, 0.0

    def read(self):
        self.now += 1e-6
        if self.now > self.jump_at:
            self.jump_at = np.inf
            self.now += self.jump_s
        return self.now

    monotonic = perf_counter = thread_time = read

    def sleep(self, seconds):
        self.now += seconds * (self.slow_by if self.now > self.slow_from else 1.0)


def call_s(case, rates):
    """Return the time of one call: arithmetic counted from the sizes, with kernels up to three times slower than their products."""
    sizes = dict(case.shape)
    tokens = sizes.get("rows") or sizes.get("new_tokens") or sizes.get("tokens") or 1.0
    width = {
        "matmul": lambda: 2 * sizes["inputs"] * sizes["outputs"],
        "experts": lambda: 6 * sizes["experts_per_token"] * sizes["inputs"] * sizes["intermediate"],
        "prefill_attention": lambda: 4
        * sizes["sequences"]
        * sizes["query_heads"]
        * sizes["head_dim"]
        * tokens,
        "latent_prefill": lambda: 512 * sizes["sequences"] * sizes["query_heads"] * tokens,
        "latent_bmm": lambda: 2 * sizes["query_heads"] * sizes["inputs"] * sizes["outputs"],
    }.get(case.operator, lambda: 0.0)()
    odd = 1.0 + 2.0 * (zlib.crc32(str(case.kind).encode()) % 100) / 100.0
    moved = KERNELS[case.operator].operand_bytes(case.shape, case.dtype)
    return CALL_S + odd * tokens * width / rates.get(case.dtype, 60e9) + moved / BYTES_PER_S


@pytest.fixture
def processor(target, monkeypatch):
    """Put a processor of known rates into this machine; return its target and its clock."""

    def put(rates):
        clock = Clock()
        for module in (measure, timing):
            monkeypatch.setattr(module, "time", clock)

        def calls_of(case, _way, _device, _cold_bytes):
            clock.sleep(BUILD_S)
            return [lambda: clock.sleep(call_s(case, rates))] * 4

        for module in (run, measure):
            monkeypatch.setattr(module, "calls_of", calls_of)
        monkeypatch.setattr(measure, "prepare_arenas", lambda *_words: clock.sleep(0.5))
        monkeypatch.setattr(measure, "fit_all", lambda *_words: None)
        return replace(target, abilities=processor_abilities(rates), free_bytes=8e9), clock

    return put


def slower(rates, times):
    return {name: rate / times for name, rate in rates.items()}


def said_minutes(lines):
    (line,) = (line for line in lines if " min and the fit" in line)
    return float(re.search(r"about ([0-9.]+) min", line)[1]), line


@pytest.mark.parametrize("rates", [FAST, OLD], ids=["with bf16", "without"])
@pytest.mark.parametrize("times", [1, 4, 16, 64])
def test_a_calibration_ends_when_it_said_however_slow_the_processor_is(times, rates, processor):
    target, clock = processor(slower(rates, times))
    lines = []
    found = calibrated(target, quick=True, tell=lines.append)
    minutes, _ = said_minutes(lines)
    assert minutes * 60 <= QUICK_BUDGET_S["cpu"] + 3.0
    assert clock.now <= minutes * 60 * 1.05 + 3.0
    assert found.seconds <= QUICK_BUDGET_S["cpu"] * 1.02
    kept = Counter((m.operator, m.dtype) for m in found.measurements)
    planned = Counter(
        case.kind[:2] for case in cases(target.abilities, quick=True) if case.operator not in FIRST
    )
    for kind, count in planned.items():
        assert kept[kind] >= min(count, 8 if times <= 16 else 4), kind


@pytest.mark.parametrize("times", [16, 64])
def test_what_is_left_out_is_said_and_counted(times, processor):
    target, _ = processor(slower(OLD, times))
    lines = []
    found = calibrated(target, quick=True, tell=lines.append)
    planned = cases(target.abilities, quick=True)
    (said,) = (line for line in found.remarks if line.startswith("left out to keep the time"))
    gone = re.findall(r"(\d+) of (\d+) shapes of ([^,]+)", said)
    assert sum(int(count) for count, _, _ in gone) == len(planned) - len(found.measurements)
    every = Counter(case.kind_title for case in planned)
    assert all(int(total) == every[kind] for _, total, kind in gone)
    assert f"of {len(planned)} shapes" in said_minutes(lines)[1]


def test_what_is_left_out_is_slow_shapes_and_no_kind_of_kernel(processor):
    target, _ = processor(slower(OLD, 64))
    found = calibrated(target, quick=True)
    assert not found.missing
    assert max(m.median_s for m in found.measurements) < 0.02 * QUICK_BUDGET_S["cpu"]


@pytest.mark.parametrize("times", [2.0, 4.0, 8.0])
def test_a_processor_that_slows_down_later_still_ends_in_time(times, processor):
    """Others begin to use it, at any moment; the shape that is measured then may end late, and no other one."""
    late = []
    for start_s in np.linspace(5.0, 95.0, 10):
        target, clock = processor(slower(OLD, 8))
        clock.slow_from, clock.slow_by = start_s, times
        calibrated(target, quick=True)
        late.append(clock.now - QUICK_BUDGET_S["cpu"])
    assert max(late) <= 1.0 + (times - 1.0) * 0.02 * QUICK_BUDGET_S["cpu"]
    assert np.median(late) <= 0.03 * QUICK_BUDGET_S["cpu"]


@pytest.mark.parametrize("minutes", [0.3, 1.0, 5.0])
def test_the_minutes_asked_for_are_kept(minutes, processor):
    target, clock = processor(slower(OLD, 10))
    calibrated(target, quick=False, minutes=minutes)
    assert clock.now <= minutes * 60 * 1.05


def test_a_dry_run_announces_what_the_run_announces(processor):
    target, clock = processor(slower(OLD, 16))
    plan, _ = planned_run(target, quick=True, minutes=None)
    taken, lines = clock.now, []
    calibrated(target, quick=True, tell=lines.append)
    minutes, line = said_minutes(lines)
    assert f" {plan['shapes']} of " in line
    assert plan["seconds"] == pytest.approx(60 * minutes, abs=4.0)
    assert taken < 0.1 * plan["seconds"]


def test_a_fit_that_is_late_starts_from_one_point(calibration, monkeypatch):
    """The rest of the starts are tried only while there is time."""
    starts = []
    real = fit._best_of_starts
    monkeypatch.setattr(fit, "_best_of_starts", lambda *words: starts.append(len(words[3])) or real(*words))
    fitting = fit.Fitting([m for m in calibration.measurements if m.operator == "elementwise"])
    fit.fit_all(fitting, calibration.machine, calibration.peaks, None, lambda: True)
    assert set(starts) == {1}
    assert fitting.fits
    assert 0.0 < FIT_FRACTION < 0.5


def test_the_pace_knows_a_slow_shape_from_quicker_ones(processor):
    """Predicted from calls of at most a tenth of a second, and never a third of the truth for the slowest."""
    target, _ = processor(slower(OLD, 16))
    chosen = [
        case
        for case in cases(target.abilities, quick=True)
        if case.operator not in ("launch", "launch_eager")
    ]
    effort = SimpleNamespace(seconds=0.05)
    *_, known = measure.announced(target, chosen, effort, 100.0, 4e9)
    rates = slower(OLD, 16)
    truth = [(case, call_s(case, rates)) for case in chosen if call_s(case, rates) > 0.1]
    assert len(truth) > 20
    for case, seconds in truth:
        assert known.call_s(case) > seconds / 3, case.title


def timed(target, lines):
    """Return the calibration of a processor and the median time of each of its shapes."""
    some = cases(target.abilities, quick=True)[::3]
    found = calibrated(target, quick=True, tell=lines.append, planned=some)
    return found, {(m.operator, m.dtype, *m.shape.items()): m.median_s for m in found.measurements}


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, 5.0, -5.0])
def test_a_clock_that_jumps_spoils_no_time_and_the_run_ends(jump_s, processor):
    """Forward as when the machine is suspended, and backward; before anything is timed, then, and in each pass."""
    _, undisturbed = timed(processor(FAST)[0], [])
    refusals = []
    for moment_s in (0.3, 0.6, 1.5, 30.0, 70.0):
        target, clock = processor(FAST)
        clock.jump_at, clock.jump_s = moment_s, jump_s
        lines = []
        try:
            found, times = timed(target, lines)
        except InputError as refusal:
            refusals.append(str(refusal))
            continue
        common = times.keys() & undisturbed.keys()
        assert {shape: times[shape] for shape in common} == pytest.approx(
            {shape: undisturbed[shape] for shape in common}, rel=0.02
        )
        assert found.partial == any("out of time after" in line for line in lines)
        assert found.partial or len(times) > 0.9 * len(undisturbed)
    assert all("nothing is written" in refusal for refusal in refusals)
    assert len(refusals) == (2 if jump_s == 3600.0 else 0)
