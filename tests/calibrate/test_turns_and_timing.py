"""Whatever time there is, every kind of kernel gets its share of it; a slow case does not eat the others' time."""

import os
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from capplan.calibrate.machine import abilities_of
from capplan.calibrate.measure import load_beside
from capplan.calibrate.shapes import FIRST, cases, furthest_first, interleaved
from capplan.calibrate.timing import Effort, Sample, repeated
from capplan.operators.matmul import MatmulRates, matmul_time_s


@pytest.mark.parametrize(
    ("capability", "quick"), [("", True), ("", False), ("9.0", True), ("8.0", False), ("gfx942", True)]
)
def test_any_beginning_of_a_run_has_as_many_shapes_of_every_kind(capability, quick):
    planned = cases(abilities_of(capability), quick=quick)
    kinds = Counter((case.operator, case.dtype) for case in planned if case.operator not in FIRST)
    for length in range(len(planned)):
        begun = Counter(
            (case.operator, case.dtype) for case in planned[:length] if case.operator not in FIRST
        )
        open_kinds = [begun[kind] for kind in kinds if begun[kind] < kinds[kind]]
        if begun and open_kinds:
            assert max(begun.values()) - min(open_kinds) <= 1


def test_turns_lose_no_case():
    planned = cases(abilities_of("9.0"), quick=False)
    assert sorted(case.title for case in interleaved(planned)) == sorted(case.title for case in planned)


def test_the_first_shapes_of_a_kind_are_its_extremes():
    points = np.array([[float(m), float(n)] for m in range(5) for n in range(4)])
    first = points[furthest_first(points)[:2]]
    assert first.tolist() == [[0.0, 0.0], [4.0, 3.0]]


def test_repeats_stop_when_the_median_is_known_and_go_on_while_it_is_not():
    effort = Effort(5, 60, 10.0)
    assert len(repeated(lambda: 1.0, 1, effort)) == 5
    noisy = iter(np.random.default_rng(1).uniform(0.5, 1.5, 1000))
    assert len(repeated(lambda: next(noisy), 1, effort)) == 60


def test_a_case_that_is_far_too_slow_is_repeated_three_times_only():
    import time

    assert len(repeated(lambda: time.sleep(0.02) or 0.02, 1, Effort(9, 60, 0.001))) == 3


def test_a_pass_in_a_noisy_minute_does_not_move_the_median():
    quiet = (1.0, 1.0, 1.1)
    assert Sample((quiet, quiet)).beside(Sample(((3.0, 3.1, 3.2),))).seconds == 1.0


def test_a_processor_has_tiles_of_sixteen_rows():
    """At 16 rows or fewer the arithmetic is that of 16; a GPU's smallest tile has 64."""
    gpu = MatmulRates(1e9, 1e15, 1.0, 1.0, 1.0, 8.0, 0.0)
    cpu = MatmulRates(1e9, 1e15, 1.0, 1.0, 1.0, 8.0, 0.0, tile_row_halvings=2.0)
    times = {
        rows: float(matmul_time_s(rows, 1000.0, 640.0, 2.0, 2.0, cpu)) for rows in (1.0, 16.0, 17.0, 64.0)
    }
    assert times[1.0] == pytest.approx(times[16.0])
    assert times[17.0] == pytest.approx(2 * times[16.0])
    assert times[64.0] == pytest.approx(4 * times[16.0])
    assert float(matmul_time_s(1.0, 1000.0, 640.0, 2.0, 2.0, gpu)) == pytest.approx(times[64.0])


@pytest.mark.parametrize("size", [2**15, 3 * 2**16, 5 * 2**18, 2**22])
def test_sets_that_take_turns_share_no_memory(size, monkeypatch):
    """Whatever was cut before: a set that lies where another one does would be found in the cache."""
    import torch

    from capplan.calibrate import timing
    from capplan.calibrate.kernels import calls_of, engines
    from capplan.calibrate.kernels.case import Case

    cut = []
    real = timing.random_operand
    monkeypatch.setattr(engines, "random_operand", lambda *words: cut.append(real(*words)) or cut[-1])
    device, cold_bytes = torch.device("cpu"), float(2**23)
    timing.prepare_arenas(device, ("bf16",), cold_bytes)
    timing.random_operand((12_345_67,), "bf16", device)
    case = Case("copy", "bf16", {"moved_bytes": 4.0 * size / 2})
    calls = calls_of(case, engines.COPY.ways["copy_"], device, cold_bytes)
    places = sorted((one.data_ptr(), one.data_ptr() + one.numel() * 2) for one in cut)
    assert len(places) == len(calls) >= 1
    assert all(first[1] <= second[0] for first, second in pairwise(places))


@pytest.mark.parametrize(("load", "said"), [(0.2, ""), (64.0, "a load of 64.0")])
def test_a_machine_that_others_use_is_said(load, said, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert said in load_beside()
    assert bool(said) == bool(load_beside())
