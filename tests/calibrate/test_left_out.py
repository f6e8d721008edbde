"""The file of left-out scores is written and read again, and the page on accuracy is made of it."""

import gzip
import re

from capplan.accuracy.targets import SERVING
from capplan.calibrate.fit_serving import items_of, predictions_with
from capplan.calibrate.left_out import left_out_text
from capplan.inputs.intervals import shipped_intervals
from capplan.inputs.left_out import left_out_scores
from capplan.inputs.measured import measured_rows
from capplan.inputs.validation import BUILT_IN_POINTS, validation
from capplan.report.accuracy_page import coverage_text, fitted_section, interval_table, separated_table
from capplan.report.accuracy_tables import (
    group_table,
    judged_table,
    refusal_table,
    serving_judgements,
    worst_table,
)


def quick_rows():
    rows = [row for row in measured_rows(BUILT_IN_POINTS) if row["kind"] in {"online_conc", "static_batch"}]
    return [row for row in rows if (float(row["concurrency"] or 0) <= 16 and row["weights_dtype"] == "fp8")]


def test_scores_are_read_as_they_were_written(tmp_path):
    items = items_of(quick_rows())[:25]
    own = [pair for item in items for pair in predictions_with([item], item.replica.spec.profile.host)]
    path = tmp_path / "left_out.yaml"
    path.write_text(left_out_text(own, own), encoding="utf-8")
    found = left_out_scores(path)
    assert ("load", "online_conc", "tpot_ms_mean") in found
    for entry in found.values():
        assert entry.median_error == entry.left_out_median_error
        assert 0.0 <= entry.within_20 <= 1.0


def test_a_missing_file_leaves_the_scores_empty(tmp_path):
    assert left_out_scores(tmp_path / "none.yaml") == {}


def test_the_page_has_every_target_and_whole_tables(tmp_path):
    text = BUILT_IN_POINTS.read_text(encoding="utf-8").splitlines()
    rows = {row["id"] for row in quick_rows()}
    path = tmp_path / "points.csv.gz"
    path.write_bytes(
        gzip.compress("\n".join([text[0], *(x for x in text if x.split(",")[0] in rows)]).encode())
    )
    found = validation([path], intervals=shipped_intervals())
    judged = serving_judgements(found.scored, SERVING, {})
    page = [
        judged_table(judged, left_out=True), group_table(found.scored, "device", {}), coverage_text(found), fitted_section(),
        interval_table(found.scored, shipped_intervals()), separated_table(found.scored), refusal_table(found.scored),
        worst_table(found.scored, lambda _: None),
    ]  # fmt: skip
    for target in SERVING:
        assert target.title in page[0]
    for table in page:
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"\|", line)) for line in lines}) <= 1, table
