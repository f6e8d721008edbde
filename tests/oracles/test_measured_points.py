"""The measured points that come with the package: replayed as the published rows, and predicted as well as promised."""

from pathlib import Path

import pytest

from capplan.accuracy.benchmark import benchmark_of
from capplan.accuracy.score import scored
from capplan.errors import CapplanError
from capplan.questions.validation import BUILT_IN_POINTS, is_core, validation
from capplan.readers.catalogue.intervals import shipped_intervals
from capplan.readers.measured.table import measured_table

MEASURED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "serving_measured.csv.gz"
needs_measured = pytest.mark.skipif(not MEASURED.exists(), reason="the measured results are not here")


@pytest.fixture(scope="module")
def found():
    return validation([BUILT_IN_POINTS], intervals=shipped_intervals())


def test_nearly_all_points_are_predicted(found):
    assert found.predicted >= 0.97 * found.rows


def test_time_per_token_of_closed_loops_is_near_what_was_measured(found):
    """Half of the points within 12 %: looser than the page on accuracy, for points spread evenly hold more hard ones."""
    own = [
        p
        for p in found.scored
        if (p.groups or {}).get("load") == "online_conc" and p.metric == "tpot_ms_mean"
    ]
    assert scored(own).median_ape <= 0.12


def test_most_values_lie_in_their_interval(found):
    assert scored(found.scored).interval_coverage >= 0.65


@needs_measured
def test_points_are_those_that_the_seed_draws():
    from calibrate.choose_points import POINTS, SEED, chosen_rows, points_text

    rows = [row for row in measured_table(MEASURED)[1] if is_core(row)]
    text = points_text(chosen_rows(rows, POINTS, SEED))
    assert text == BUILT_IN_POINTS.read_text(encoding="utf-8"), "python -m calibrate.choose_points"


@needs_measured
def test_a_point_describes_the_same_run_as_the_published_row():
    published = {row["id"]: row for row in measured_table(MEASURED)[1]}
    for point in measured_table(BUILT_IN_POINTS)[1]:
        try:
            whole = benchmark_of(published[point["id"]])
        except CapplanError as error:
            with pytest.raises(CapplanError, match=str(error)[:20]):
                benchmark_of(point)
            continue
        own = benchmark_of(point)
        for name in (
            "kind",
            "engine",
            "model",
            "device",
            "sharding",
            "input_tokens",
            "output_tokens",
            "requests",
            "limits",
            "offered_rate_reported",
        ):
            assert getattr(own, name) == getattr(whole, name), (point["id"], name)
