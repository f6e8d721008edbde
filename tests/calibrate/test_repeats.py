"""Repeats of published runs: rows of one run are compared, rows of others are not."""

import pytest

from calibrate.repeats import floor_of, repeats


def row(tpot, **other):
    return {"kind": "online_conc", "core": "1", "gpu": "a", "concurrency": "8", "tpot_ms_mean": tpot} | other


def test_only_rows_that_state_the_same_run_are_repeats():
    rows = [row("10"), row("12"), row("20", concurrency="16"), row("30", core="0"), row("")]
    assert repeats(rows) == {("online_conc", "tpot_ms_mean"): [[10.0, 12.0]]}


def test_a_floor_is_the_distance_from_the_mean():
    assert floor_of([10.0, 12.0]) == pytest.approx(1 / 11)
    assert floor_of([5.0, 5.0, 5.0]) == 0.0
