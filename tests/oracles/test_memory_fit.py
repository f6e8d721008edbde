"""Are the fitted memory numbers those of the logs, and do they hold for models that the fit did not see?"""

from pathlib import Path

import pytest

from calibrate.fit_memory import fitted, known_starts, left_out, predictions
from capplan.accuracy.score import scores_by_metric
from capplan.engine.lookup import profile
from capplan.readers.measured.table import measured_table

MEASURED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "memory_measured.csv"
pytestmark = pytest.mark.skipif(
    not MEASURED.exists(), reason="the measured starts are not beside the repository"
)


@pytest.fixture(scope="module")
def starts():
    return known_starts(row for row in measured_table(MEASURED)[1] if row["confidence"] in "AB")[0]


@pytest.mark.parametrize(("era", "version"), [("lean", "0.19.0"), ("sorting", "0.11.0")])
def test_profile_carries_the_numbers_of_the_fit(starts, era, version):
    found, rules = fitted(starts, era), profile("vllm", version).memory
    assert rules.sampler_bytes == pytest.approx(found.sampler_bytes, rel=0.01)
    assert rules.resident_copies == pytest.approx(found.resident_copies, rel=0.05)
    assert rules.activation_base_bytes == pytest.approx(found.activation_base_bytes, rel=0.05)


def test_errors_on_unseen_models_are_those_of_seen_ones(starts):
    seen, unseen = scores_by_metric(predictions(starts, {})), scores_by_metric(left_out(starts))
    for metric in ("available_kv_gib", "kv_cache_tokens", "max_concurrency"):
        assert unseen[metric].median_ape <= 1.5 * seen[metric].median_ape, metric
