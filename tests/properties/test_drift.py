"""A plan next to what its engines did: traffic as planned, more, less, longer, slower; and the plan that follows."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from capplan.errors import InputError
from capplan.keys import current_day
from capplan.questions.plans.drift import asked_as_observed, change_between, pinned_prices, replanned, watched
from capplan.readers.catalogue.efficiency import shipped_intervals
from capplan.readers.plan_file import read_plan_file
from capplan.report.answers.watched import replan_answer, watch_answer
from capplan.scenario.observed_traffic import as_observed
from tests.observed import seen_of
from tests.plan_files import fleet_plan

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    small, folder = ROOT / "tests/golden/small.yaml", tmp_path_factory.mktemp("drift")
    return read_plan_file(fleet_plan(small, "--set", "slo.tpot_p95=5.6 ms", at=folder / "plan.json"))


def watch_of(file, seen):
    asked = asked_as_observed(None, file, (), seen, offline=True)
    return asked, watched(asked, file, seen, shipped_intervals(), current_day(), 36_500)


def drifted(watch):
    return {row.quantity for row in watch.rows if not row.inside}


CASES = (
    # name, what engines did, drifted among these, holds, busy replicas to follow (2 in the plan)
    ("as planned", {}, set(), True, 2),
    ("within a tenth", {"rate": 21.0, "tokens": (420.0, 105.0)}, set(), True, 2),
    ("three times the load", {"rate": 60.0}, {"request_rate", "mean_request_rate"}, False, 4),
    ("a tenth of the load", {"rate": 2.0}, {"request_rate", "mean_request_rate"}, True, 1),
    ("longer outputs", {"tokens": (400.0, 300.0)}, {"output_tokens"}, None, None),
    ("hits that were not planned", {"hits": 0.5}, {"prefix_hit_fraction"}, True, None),
    ("late answers", {"late": 0.2}, set(), False, None),
    ("a replica less", {"engines": 1.0}, {"replicas"}, True, None),
)
PLANNED = SimpleNamespace(request_rate=20.0, input_tokens=400.0, output_tokens=100.0)
WATCHED = {
    "request_rate",
    "mean_request_rate",
    "input_tokens",
    "output_tokens",
    "prefix_hit_fraction",
    "replicas",
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("did", "expected", "holds", "busy"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_drift_is_named_and_only_what_no_longer_holds_fails(file, did, expected, holds, busy):
    _, watch = watch_of(file, seen_of(**did))
    assert drifted(watch) & WATCHED == expected
    if holds is not None:
        assert watch.holds == holds, [check for check in watch.checks if not check.holds]
    if busy is not None:
        assert watch.follow.busy_replicas == busy


@pytest.mark.long
def test_the_answer_has_the_interface_of_scripts_and_exits_4_if_the_plan_no_longer_holds(file):
    for rate, code in ((20.0, 0), (60.0, 4)):
        seen = seen_of(rate=rate)
        asked, watch = watch_of(file, seen)
        answer = watch_answer(asked, file, watch)
        assert answer.exit_code == code
        found = answer.result["observed"]
        assert {
            "request_rate",
            "input_tokens",
            "output_tokens",
            "prefix_hit_fraction",
            "ttft_s",
            "tpot_s",
        } <= set(found)
        assert found["request_rate"] == rate
        assert set(answer.result["drift"][0]) >= {"what", "planned", "observed", "inside"}
        json.dumps(answer.result, allow_nan=False)


@pytest.mark.long
def test_step_times_stand_next_to_what_is_predicted_at_the_observed_load(file):
    _, usual = watch_of(file, seen_of())
    rows = {row.quantity: row for row in usual.rows}
    assert rows["tpot_s.mean"].low < rows["tpot_s.mean"].predicted < rows["tpot_s.mean"].high
    _, slow = watch_of(file, seen_of(tpot_s=0.2))
    assert "tpot_s.mean" in drifted(slow)
    assert not slow.holds
    assert slow.follow is None
    _, slower = watch_of(file, seen_of(tpot_s=0.006))
    assert slower.follow.busy_replicas >= usual.follow.busy_replicas


@pytest.mark.long
def test_a_plan_is_kept_within_the_band_and_changed_beyond_it(file):
    asked, watch = watch_of(file, seen_of())
    kept = replanned(asked, file, watch, 0.1)
    assert kept.kept
    assert kept.change.started_replicas == kept.change.stopped_replicas == 0
    answer = replan_answer(asked, file, watch, kept)
    assert (answer.command, answer.result["kept"], answer.exit_code) == ("replan", True, 0)
    asked, watch = watch_of(file, seen_of(rate=60.0))
    more = replanned(asked, file, watch, 0.1)
    assert not more.kept
    assert more.after.chosen["replicas"] > more.before.chosen["replicas"]
    extra = more.after.chosen["replicas"] - more.before.chosen["replicas"]
    if more.after.chosen["hardware"] == more.before.chosen["hardware"]:
        assert (more.change.started_replicas, more.change.stopped_replicas) == (extra, 0)
    hours = more.change.start_up_s / 3600.0
    assert more.change.usd == pytest.approx(
        more.change.started_gpus * more.after.chosen["usd_per_gpu_hour"] * hours
    )
    assert [line["after"] - line["before"] for line in more.change.machines]
    result = replan_answer(asked, file, watch, more).result
    assert {"before", "after", "changes", "changing", "drift", "observed"} <= set(result)
    json.dumps(result, allow_nan=False)
    asked, watch = watch_of(file, seen_of(rate=2.0))
    assert not replanned(asked, file, watch, 0.1).kept
    assert replanned(asked, file, watch, 0.9).kept


def test_groups_that_are_started_alike_are_counted_together_and_others_apart():
    alike = {"hardware": "l4", "replicas": 3, "gpus_per_replica": 2, "usd_per_gpu_hour": 1.5}
    short, long = ({"requests": {"max_model_len": length}} for length in (4096, 32_768))
    before = {"groups": [alike, {**alike, "replicas": 1}, {**alike, **short}]}
    after = {
        "groups": [{**alike, "replicas": 6}, {**alike, **long}, {**alike, "draft_tokens": 2, "replicas": 1}]
    }
    change = change_between(before, after, 600.0)
    assert (change.started_replicas, change.stopped_replicas, change.started_gpus) == (2 + 3 + 1, 3, 12)
    assert change.usd == pytest.approx(12 * 1.5 / 6)
    assert change_between(before, before, 600.0).usd == 0.0
    unpriced = {"groups": [{**alike, "hardware": "x", "usd_per_gpu_hour": None}]}
    assert change_between(before, unpriced, 600.0).usd is None


@pytest.mark.long
def test_prices_are_pinned_where_those_of_today_are_others(file):
    today = asked_as_observed(None, file, (), seen_of(), offline=True)
    assert pinned_prices(file, today) == ()
    dearer = asked_as_observed(None, file, ("prices.per_gpu_hour.l40s=3 $/h",), seen_of(), offline=True)
    assert pinned_prices(file, dearer) == ("prices.per_gpu_hour.l40s=1.0 $/h",)


def test_classes_of_a_scenario_are_scaled_together_and_a_batch_job_is_refused():
    classes = [
        {"name": "a", "request_rate": "5 req/s"},
        {"name": "b", "request_rate": "15 req/s", "input_tokens": 9},
    ]
    scaled = json.loads(as_observed(classes, seen_of(rate=40.0), PLANNED).removeprefix("traffic="))
    assert [item["request_rate"] for item in scaled] == ["10 req/s", "30 req/s"]
    assert scaled[1]["input_tokens"] == 9
    with pytest.raises(InputError, match="do not tell such requests apart"):
        as_observed([{"requests": 1000, "within": "1 h"}], seen_of(), PLANNED)
    with pytest.raises(InputError, match="do not separate the classes"):
        as_observed([{"users": 3}, {"request_rate": 3}], seen_of(), PLANNED)


def test_one_class_keeps_what_counters_do_not_tell():
    stated = [{"name": "a", "users": 900, "think_time": "9 s", "tenant": "x", "shared_prefix": {"tokens": 5}}]
    (found,) = json.loads(as_observed(stated, seen_of(), PLANNED).removeprefix("traffic="))
    assert found["tenant"] == "x"
    assert found["request_rate"] == "20 req/s"
    assert found["daily_curve"] == [20.0] * 24
    assert found["shared_prefix"] == {"tokens": 5}
    assert not {"users", "think_time"} & set(found)


def test_lengths_of_which_only_the_mean_is_known_keep_the_spread_of_the_plan_or_are_refused():
    stated = [{"request_rate": "20 req/s", "input_tokens": {"mean": 400, "p95": 1200}, "output_tokens": 100}]
    (found,) = json.loads(as_observed(stated, seen_of(spread=False), PLANNED).removeprefix("traffic="))
    assert found["input_tokens"] == {"mean": 400, "p95": 1200}
    with pytest.raises(InputError, match="no buckets say how they are spread"):
        as_observed(stated, seen_of(tokens=(900.0, 100.0), spread=False), PLANNED)
