"""Open loops without their source: predicted, written, read again, and told by source."""

from dataclasses import replace

import pytest

from calibrate.accuracy_text import OPEN_LOOPS_BEYOND
from calibrate.open_loops import (
    IN_CLIENT,
    LOADS,
    OpenValue,
    beyond_table,
    open_loops,
    open_loops_text,
    open_values,
    saturation_of,
    source_table,
    target_table,
    wrong_table,
)
from calibrate.targets import OPEN_LOOPS

ROW = {
    "id": "roleplay", "kind": "online_rate", "engine": "vllm", "engine_version": "0.15.1", "model_hf_id": "meta-llama/Llama-2-7b-hf",
    "weights_dtype": "fp16", "gpu": "h100-sxm", "num_gpus": "1", "tp": "1", "isl": "785.84", "osl": "251", "request_rate": "6",
    "stage_s": "60", "n_requests": "360", "ttft_ms_p50": "26.8", "tpot_ms_p50": "8.16", "stable": "1", "source_family": "inference-sim",
}  # fmt: skip


def usual(item):
    return item.replica.spec.profile.host


def test_an_open_loop_is_predicted_with_the_host_times_given():
    found = {value.column: value for value in open_values(ROW, 0, usual)}
    assert set(found) == {"ttft_ms_p50", "tpot_ms_p50", "stable"}
    assert {(value.source, value.load) for value in found.values()} == {("inference-sim", LOADS[0])}
    slower = {
        value.column: value
        for value in open_values(ROW, 0, lambda item: replace(usual(item), step_s=usual(item).step_s + 0.002))
    }
    assert slower["tpot_ms_p50"].predicted > found["tpot_ms_p50"].predicted + 1.5


def test_runs_of_an_engine_in_its_clients_process_are_told_apart():
    own = {"source_family": "accelmark", "engine_version": "0.7.3", "requests": "20"}
    found = open_values({**ROW, **own, "stage_s": "", "n_requests": ""}, 0, usual)
    assert {value.source for value in found} == {f"accelmark{IN_CLIENT}"}


def value(row, source, column, measured, predicted, load=LOADS[0]):
    return OpenValue(row, source, load, column, measured, predicted, 1.0)


VALUES = [
    value("a", "x", "stable", 1.0, 1.0),
    value("b", "x", "stable", 0.0, 1.0, LOADS[1]),
    value("c", "y", "stable", 1.0, None),
    value("a", "x", "tpot_ms_p50", 10.0, 11.0),
    value("a", "x", "ttft_ms_mean", 100.0, 120.0),
    value("c", "y", "ttft_ms_p50", 50.0, None),
]


def test_values_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "open.csv"
    path.write_text(open_loops_text(VALUES), encoding="utf-8")
    assert open_loops(path) == VALUES


def test_saturation_that_is_refused_is_not_right():
    assert saturation_of(VALUES) == (3, 1)


def test_tables_tell_errors_by_source_and_load():
    by_source = source_table(VALUES)
    assert "| x | within capacity | 1 | 1 of 1 | 10 % of 1 | 20 % of 1 |" in by_source
    assert "| x | saturated | 1 | 0 of 1 |" in by_source
    targets = target_table(VALUES)
    assert "| saturates or not | 3 | right in 95 % | 33 % |  | **no** |" in targets
    assert "| TPOT, p50 | 1 | 15 % | 10 % | x 10 % | yes |" in targets
    wrong = wrong_table(VALUES, {"b": "why"})
    assert "| b | saturated | stable | why |" in wrong
    assert "| c | stable | refused |  |" in wrong


@pytest.mark.parametrize("column", ["stable", "ttft_ms_p50"])
def test_a_row_that_cannot_be_replayed_is_refused(column):
    found = {v.column: v for v in open_values({**ROW, "spec_decode": "eagle"}, 0, usual)}
    assert found[column].predicted is None


def test_every_row_that_misses_a_target_is_listed_with_what_is_known():
    values = open_loops()
    lines = beyond_table(values, OPEN_LOOPS_BEYOND).splitlines()[2:]
    listed = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    tpot = next(target for target in OPEN_LOOPS if target.title == "TPOT, p50")
    for value in values:
        if value.load == "within capacity" and value.column == "tpot_ms_p50" and value.predicted:
            off = abs(value.predicted / value.measured - 1.0) > tpot.limit
            assert not off or f"**{value.predicted / value.measured:.2f}**" in listed[value.row]
    assert all("**" in line for line in lines)
    assert not [row for row, line in listed.items() if line.endswith("|  |")], "say what is known of it"
