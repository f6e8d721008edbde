"""The file of left-out scores is written and read again, and the page on accuracy is made of it."""

import gzip
import re
from dataclasses import replace

import numpy as np
import pytest

from calibrate.accuracy_page import coverage_text, fitted_section, interval_table, separated_table
from calibrate.accuracy_tables import (
    carried_table,
    group_table,
    judged_table,
    refusal_table,
    serving_judgements,
    worst_table,
)
from calibrate.fit_serving import fit_all
from calibrate.host_fit import (
    LEAST_NOISE,
    NUMBERS,
    Slopes,
    noise_of,
    numbers_of,
    prior_host,
    slopes_of,
    solved,
    typical_host,
)
from calibrate.host_rows import items_of, predicted_row
from calibrate.left_out import left_out_text
from calibrate.left_out_scores import left_out_interval_coverage, left_out_scores
from calibrate.targets import SERVING
from capplan.errors import InputError
from capplan.questions.validation import BUILT_IN_POINTS, validation
from capplan.readers.catalogue.intervals import shipped_intervals
from capplan.readers.measured.table import measured_table


def quick_rows():
    rows = [
        row for row in measured_table(BUILT_IN_POINTS)[1] if row["kind"] in {"online_conc", "static_batch"}
    ]
    return [row for row in rows if (float(row["concurrency"] or 0) <= 16 and row["weights_dtype"] == "fp8")]


def test_scores_are_read_as_they_were_written(tmp_path):
    items = items_of(quick_rows())[:25]
    own = [predicted_row(item, item.replica.spec.profile.host) for item in items]
    path = tmp_path / "left_out.yaml"
    path.write_text(left_out_text(own, own, 0.8), encoding="utf-8")
    assert left_out_interval_coverage(path) == 0.8
    found = left_out_scores(path)
    assert ("load", "online_conc", "tpot_ms_mean") in found
    for entry in found.values():
        assert entry.values > 0
        assert entry.left_out_median_error >= 0.0
        assert 0.0 <= entry.left_out_within_20 <= 1.0


KINDS = ("closed/ttft", "closed/tpot")
NOISE = dict.fromkeys(KINDS, 0.08)


def test_noise_is_the_usual_error_of_each_kind():
    rng = np.random.default_rng(6)
    rows = [
        Slopes("g", KINDS, np.ones(2), rng.normal(size=2) * [0.3, 0.05], np.zeros((2, 1)))
        for _ in range(2000)
    ]
    found = noise_of(rows)
    assert found["closed/ttft"] == pytest.approx(0.3, rel=0.08)
    assert found["closed/tpot"] == pytest.approx(0.05, rel=0.08)
    assert (
        noise_of([Slopes("g", KINDS, np.ones(2), np.zeros(2), np.zeros((2, 1)))])["closed/tpot"]
        == LEAST_NOISE
    )


def rows_of(true, count, outliers=0):
    """Rows whose errors vanish at known numbers, but for a few that are wrong for another reason."""
    rng = np.random.default_rng(5)
    spread = np.array([number.spread for number in NUMBERS])
    rows = []
    for place in range(count):
        slopes = rng.normal(size=(2, len(NUMBERS))) * 0.3 / spread
        errors = slopes @ (numbers_of(prior_host()) - true)
        if place < outliers:
            errors = errors + 2.0
        rows.append(Slopes(f"group {place}", KINDS, np.ones(2), errors, slopes))
    return rows


@pytest.mark.parametrize("outliers", [0, 25])
def test_the_fit_finds_the_numbers_behind_the_rows(outliers):
    """Errors that are linear in the numbers are fitted exactly, in spite of rows that are far off."""
    spread = np.array([number.spread for number in NUMBERS])
    true = numbers_of(prior_host()) + 0.4 * spread
    found = numbers_of(solved(rows_of(true, 200, outliers), prior_host(), NOISE, prior_host(), 1.0))
    assert np.abs((found - true) / spread).max() < 0.001


def test_a_fit_without_rows_is_the_prior_and_stays_near_with_few():
    spread = np.array([number.spread for number in NUMBERS])
    true = numbers_of(prior_host()) + 0.9 * spread
    assert solved([], prior_host(), NOISE, prior_host()) == prior_host()
    weak = [Slopes("g", KINDS, np.full(2, 1e-3), row.errors, row.slopes) for row in rows_of(true, 1)]
    found = numbers_of(solved(weak, prior_host(), NOISE, prior_host()))
    assert np.abs((found - numbers_of(prior_host())) / spread).max() < 0.01


def test_slopes_of_a_replay_tell_what_it_does_when_a_number_moves():
    """First order: a step of a quarter moves the errors as the slopes say, to a third of the move."""
    item = items_of(quick_rows())[0]
    host = item.replica.spec.profile.host
    here = slopes_of(item, host)
    place = [number.name for number in NUMBERS].index("step_s")
    moved = slopes_of(item, replace(host, step_s=host.step_s + NUMBERS[place].step / 4))
    expected = here.slopes[:, place] * NUMBERS[place].step / 4
    assert (
        np.abs(moved.errors - here.errors - expected).max() < np.abs(expected).max() / 3 + 0.01 * LEAST_NOISE
    )


def test_an_era_that_no_row_tells_is_named_before_the_search():
    with pytest.raises(InputError, match=r"no measured row tells the host of .*vllm 0\.8\.0"):
        fit_all([], 1, 1.0, anew=True)


def test_typical_numbers_are_medians():
    hosts = [replace(prior_host(), step_s=step_s) for step_s in (1e-3, 2e-3, 9e-3)]
    assert typical_host(hosts).step_s == pytest.approx(2e-3)
    assert typical_host([]) == prior_host()


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
        worst_table(found.scored, lambda _: None), carried_table(judged, found.scored, lambda _: None),
    ]  # fmt: skip
    for target in SERVING:
        assert target.title in page[0]
    for table in page:
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"\|", line)) for line in lines}) <= 1, table
