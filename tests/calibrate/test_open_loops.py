"""Open loops without their source: predicted, written, read again, and told by source; and experiments on offline maxima."""

from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.host_rows import items_of
from calibrate.offline_causes import COOL, EVENLY, NO_SEQUENCE_TIME, PCIE, SETS, TRTLLM_GEN, changed, ratio_of
from calibrate.open_loop_causes import CAUSES_FILE, Cause, Known, cause_table, known_causes
from calibrate.open_loops import (
    IN_CLIENT,
    LOADS,
    OpenValue,
    beyond_table,
    causes_told,
    open_loops,
    open_loops_text,
    open_values,
    saturation_of,
    set_table,
    target_table,
    wrong_table,
)
from calibrate.targets import OPEN_LOOPS
from capplan.engine.lookup import profile, version_key
from capplan.engine.versions import RELEASES
from capplan.errors import InputError
from capplan.questions.validation import BUILT_IN_POINTS
from capplan.recorded.measured import measured_table
from tests.files import written_to

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
    path = written_to(tmp_path / "open.csv", open_loops_text(VALUES))
    assert open_loops(path) == VALUES


def test_saturation_that_is_refused_is_not_right():
    assert saturation_of(VALUES) == (3, 1)


KNOWN = Known((Cause("queue", ("set-2",), "no", "It waits.", "row 2"),), {"b": "why"}, ())


def test_tables_tell_errors_by_set_of_runs_and_load():
    rows = [replace(own, row={"a": "set-1", "b": "set-2", "c": "other-1"}[own.row]) for own in VALUES]
    by_set = str(set_table(rows, KNOWN))
    assert "| set | within capacity | 1 | 1 of 1 | 10 % of 1, met | 20 % of 1, met |  |  |  |" in by_set
    assert "| set | saturated | 1 | 0 of 1 |" in by_set
    slower = [
        *rows,
        value("set-2", "x", "tpot_ms_p50", 10.0, 20.0),
        value("set-3", "x", "tpot_ms_p50", 10.0, 20.0),
    ]
    assert "| **100 % of 3, missed** | 20 % of 1, met |  |  | queue |" in str(set_table(slower, KNOWN))
    targets = str(target_table(VALUES))
    assert "| saturates or not | 3 | right in 95 % | 33 % |  | **no** |" in targets
    assert "| TPOT, p50 | 1 | 15 % | 10 % | x 10 % | yes |" in targets
    wrong = str(wrong_table(VALUES, KNOWN.saturation))
    assert "| b | saturated | stable | why |" in wrong
    assert "| c | stable | refused |  |" in wrong


def test_targets_are_also_judged_without_runs_of_an_engine_in_its_clients_process():
    inside = [
        replace(own, row="d", source=f"x{IN_CLIENT}", predicted=2.0 * own.measured) for own in VALUES[3:5]
    ]
    told = str(target_table([*VALUES, *inside])).splitlines()
    assert sum("engine in a process of its own" in line for line in told) == 2
    assert "| TPOT, p50, engine in a process of its own | 1 | 15 % | 10 % | x 10 % | yes |" in told


def test_a_cause_is_told_with_what_misses_by_it():
    late = [value("set-2", "x", "ttft_ms_p50", 100.0, 50.0), value("set-1", "x", "tpot_ms_p50", 10.0, 20.0)]
    told = causes_told(late, KNOWN)
    assert [(cause.name, what) for cause, what in told] == [
        ("queue", "1 row: TTFT, p50 0.50 of what was measured in 1")
    ]
    assert cause_table(told).rows == [
        ["queue", "1 row: TTFT, p50 0.50 of what was measured in 1", "no", "It waits.", "row 2"]
    ]
    assert "| set-1 | **2.00** |  |  |  | not explained |" in str(beyond_table(late, KNOWN))
    assert "| set-2 |  | **0.50** |  |  | queue (explained: no) |" in str(beyond_table(late, KNOWN))


@pytest.mark.parametrize("lost", ["evidence: It", "source: row", "explained: in part"])
def test_a_cause_needs_evidence_a_source_and_how_far_it_explains(lost, tmp_path):
    text = "causes:\n  - {name: a, rows: [b], explained: in part, evidence: It, source: row}\nsaturation: {}\nunfollowed: []\n"
    path = written_to(tmp_path / "causes.yaml", text)
    assert [cause.name for cause in known_causes(path).causes] == ["a"]
    path.write_text(text.replace(lost, lost.partition(":")[0] + ": ''"), encoding="utf-8")
    with pytest.raises(InputError, match="needs evidence"):
        known_causes(path)


@pytest.mark.parametrize("column", ["stable", "ttft_ms_p50"])
def test_a_row_that_cannot_be_replayed_is_refused(column):
    found = {v.column: v for v in open_values({**ROW, "spec_decode": "unknown"}, 0, usual)}
    assert found[column].predicted is None


def test_every_row_that_misses_a_target_is_listed_with_its_cause():
    values, known = open_loops(), known_causes()
    lines = str(beyond_table(values, known)).splitlines()[2:]
    listed = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    tpot = next(target for target in OPEN_LOOPS if target.title == "TPOT, p50")
    for value in values:
        if value.load == "within capacity" and value.column == "tpot_ms_p50" and value.predicted:
            off = abs(value.predicted / value.measured - 1.0) > tpot.limit
            assert not off or f"**{value.predicted / value.measured:.2f}**" in listed[value.row]
    assert all("**" in line for line in lines)
    assert not [row for row, line in listed.items() if "(explained:" not in line], (
        f"add it to {CAUSES_FILE.name}"
    )


def test_every_cause_has_rows_that_miss_a_target():
    told = {cause.name for cause, _ in causes_told(open_loops(), known_causes())}
    assert told == {cause.name for cause in known_causes().causes}


def test_evidence_of_causes_is_what_the_rows_say():
    """Figures of open_loop_causes.yaml, from the measured values."""
    values = {(own.row, own.column): own for own in open_loops()}

    def handled_ms(row):
        return values[row, "ttft_ms_mean"].measured - 2.5 * values[row, "tpot_ms_mean"].measured

    runs = [f"inference-sim-ground-truth-{n:04}" for n in (5, 6, 17, 18, 19)]
    runs += [f"inference-sim-training-{n:04}" for n in (1, 2, 3, 9, 10, 19, 20, 21, 22, 23)]
    handled = sorted(handled_ms(row) for row in runs)
    assert len(handled) == 15
    assert (round(handled[0], 1), round(handled[12], 1)) == (6.6, 9.4)
    assert [round(own) for own in handled[13:]] == [10, 11]
    scout = [values[f"inference-sim-ground-truth-{n:04}", "tpot_ms_mean"] for n in (1, 2, 3, 4, 7, 8)]
    *short, long = [own.measured - own.predicted for own in scout]
    assert min(short) == pytest.approx(5.0, abs=0.05)
    assert max(short) == pytest.approx(5.8, abs=0.05)
    assert long == pytest.approx(10.2, abs=0.05)
    tails = [values[f"llmd-optimized-baseline-{n:04}", "ttft_ms_p90"].measured for n in range(34, 66, 2)]
    assert (min(tails[:4]), max(tails[:4])) == (148, 244)
    assert (min(tails[4:8]), max(tails[4:8])) == (152, 161)


@pytest.fixture(scope="module")
def runs():
    rows = [row for row in measured_table(BUILT_IN_POINTS)[1] if row["kind"] == "offline_max"]
    return items_of(rows)


def run_named(runs, name):
    return next(run for run in runs if run.row["id"] == name)


def test_a_run_on_an_unchanged_replica_is_predicted_as_before(runs):
    assert ratio_of(changed(runs[0], lambda spec: spec)) == ratio_of(runs[0])


def test_links_matter_to_cards_on_pcie_in_the_order_of_their_sharing(runs):
    run = next(r for r in runs if r.parts["device"] == "l40s" and float(r.replica.spec.sharding.tensor) > 1.0)
    ratios = {name.split(" ")[0]: ratio_of(changed(run, change)) for name, change in PCIE}
    assert ratios["all"] < ratio_of(run) < ratios["no"]
    assert ratios["half"] < ratio_of(run)


def test_kernels_and_host_times_change_what_they_name(runs):
    mixture = run_named(runs, "trtllm-perf-overview-v1-1--0002")
    assert ratio_of(changed(mixture, TRTLLM_GEN[1])) > 1.05 * ratio_of(mixture)
    assert ratio_of(changed(mixture, NO_SEQUENCE_TIME[1])) > ratio_of(mixture)
    card = next(r for r in runs if r.parts["device"] == "l40s")
    assert ratio_of(changed(card, COOL[1])) > ratio_of(card)
    assert (
        EVENLY[1](mixture.replica.spec).efficiency.fits.keys() == mixture.replica.spec.efficiency.fits.keys()
    )


def test_sets_of_runs_do_not_overlap(runs):
    for run in runs:
        assert sum(own.holds(run) for own in SETS) <= 1, run.row["id"]


def states(engine, since, told):
    """Return the different states of a profile over the releases from a version on, and the count of these."""
    found = [profile(engine, version) for _, version in RELEASES[engine] if version_key(version) >= since]
    return len({told(own) for own in found}), len(found)


def test_the_page_counts_what_is_data_by_version():
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "what-was-tried.md").read_text(encoding="utf-8")
    table = page[page.index("## Kernels and graphs by version") :]
    for name, told in (
        ("kernel of routed experts", lambda own: own.expert_kernels),
        ("largest decode batch in a CUDA graph", lambda own: frozenset((t.graph_max_sequences, t.wide_graph_max_sequences) for t in own.tiers if not t.only)),
        ("steps with prompts in CUDA graphs: time", lambda own: (own.host.graph_tokens, own.graph_tokens_of)),
        ("steps with prompts in CUDA graphs: memory", lambda own: own.memory.prefill_capture),
        ("step planned while the last one runs", lambda own: own.asynchronous),
        ("default cache dtype by model", lambda own: own.cache_rules),
    ):  # fmt: skip
        line = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
        for engine, since in (("vllm", (0, 11, 0)), ("sglang", (0, 5, 6))):
            count, releases = states(engine, since, told)
            assert f"{count} in {releases}" in line, (name, engine, count, releases)
