"""The page for the review shows the commitments, the growth and the energy of its plan, and nothing of them where nobody asks."""

import pytest

pytestmark = pytest.mark.usefixtures("shared_runs")
SMALL = "tests/golden/small.yaml"
ASKED = (
    "commitments={reserved_1y: {discount: 30 %}}", "growth={per_month: 20 %, months: 3}", "energy={grid: 400 g/kWh}",
    "traffic[0].daily_curve=office",
)  # fmt: skip


@pytest.mark.parametrize("asked", [True, False])
def test_the_review_shows_what_is_asked_for(capplan, asked):
    words = [part for setting in ASKED for part in ("--set", setting)] if asked else []
    ran = capplan("report", SMALL, "--offline", "--format", "markdown", *words)
    assert ran.code == 0, ran.err
    for text in (
        "## Commitments, growth and energy",
        "the cheapest mix for the load curve",
        "Power of a GPU by phase",
    ):
        assert (text in ran.out) == asked
