"""What is not modelled of several models, or makes no sense, is refused in one line that names the place and the way out."""

import pytest

pytestmark = pytest.mark.usefixtures("shared_runs")
CASCADE = "cascade={model: qwen3-4b, escalated: 30 %}"
SLICE = "fleet.hardware=[h100-sxm:3g.40gb]"


def test_a_mistake_of_the_second_model_is_said_before_the_fleet_of_the_first_is_searched(
    capplan, monkeypatch
):
    searched = []
    monkeypatch.setattr("capplan.questions.several_models.fleet_for", lambda *asked: searched.append(asked))
    ran = capplan(
        "fleet tests/golden/small.yaml --offline --set", CASCADE, "--set", "cascade.model=qwen3-4bb"
    )
    assert (ran.code, searched) == (2, [])
    assert "unknown model 'qwen3-4bb'" in ran.err


def test_a_model_that_meets_no_target_is_named_by_its_fleet(capplan):
    ran = capplan(
        "fleet tests/golden/small.yaml --offline --set",
        CASCADE,
        "--set",
        "cascade.changes={slo: {ttft_p95: 1 us}}",
    )
    assert ran.code == 4
    assert "no plan meets the targets, so the cascade has no second fleet" in ran.err
    assert "--set cascade.part=second" in ran.err


def test_a_picture_is_of_one_fleet(capplan, tmp_path):
    ran = capplan("fleet tests/golden/small.yaml --offline --set", CASCADE, "--plot", tmp_path / "x.svg")
    assert (ran.code, ran.err[:27]) == (2, "--plot: draws one fleet, an")
    assert list(tmp_path.iterdir()) == []


def test_a_replica_on_slices_has_one_of_them(capplan):
    ran = capplan(
        "fleet tests/golden/small.yaml --offline --set", SLICE, "--set", "fleet.tensor_parallel=[2]"
    )
    assert ran.code == 4
    assert "slices of a GPU have no links to each other, so a replica has one" in ran.out
    assert "slices of a GPU have no links to each other" in capplan.refused(
        "fit qwen3-4b --hardware h100:3g.40gb -tp 2 --offline"
    )
