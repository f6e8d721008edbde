"""Each point of `what-if` is what `fleet` finds with its values; more load, a tighter target and more certainty never cost less."""

from itertools import product

import pytest

from capplan.fleet.search.layouts import search
from capplan.fleet.search.trial import Trial
from capplan.fleet.sweep import resized
from capplan.questions import what_if
from capplan.questions.fleet import terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.what_if import surface_of
from tests.asked import asked_in, asked_of, fleet_of
from tests.files import file_with
from tests.tables import table

SCENARIO = """\
name: small
model: Qwen/Qwen3-8B
traffic:
  - {name: chat, request_rate: 40 req/s, input_tokens: 1500, output_tokens: 200}
slo: {ttft_p95: 1 s, tpot_p95: 50 ms}
fleet: {hardware: [l40s, h100-sxm]}
"""
AXES = ("traffic_ratio", "ttft_limit_s", "confidence", "gpu_price_ratio")


path = file_with(SCENARIO, "small.yaml")


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def surface(path, told, few_requests):
    asked = asked_of(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(what_if, "LOADS", (0.25, 1.0, 4.0))
        patch.setattr(what_if, "LIMITS", (1.0, 0.5))
        return surface_of(asked, fleet_for(asked), found=told.extend)


def at(surface, load=1.0, limit=1.0, sure=0.8, price=1.0):
    (point,) = [
        point
        for point in surface.points
        if [getattr(point, axis) for axis in AXES] == [load, limit, sure, price]
    ]
    return point


def fleet(path, *settings):
    answer = fleet_of(path, *settings)
    return answer.choices.cheapest


def test_the_grid_is_whole_and_told_as_it_is_found(surface, told):
    axes = [sorted({getattr(point, axis) for point in surface.points}) for axis in AXES]
    assert [tuple(getattr(point, axis) for axis in AXES) for point in told] != list(product(*axes))
    assert {tuple(getattr(point, axis) for axis in AXES) for point in surface.points} == set(product(*axes))
    assert sorted(told, key=str) == sorted(surface.points, key=str)
    assert (told[0].traffic_ratio, told[0].ttft_limit_s) == (1.0, 1.0)


def test_as_it_is_it_is_the_plan(surface, path):
    best = fleet(path)
    point = at(surface)
    assert (point.hardware, point.gpus, point.usd_per_month) == (best.hardware, best.gpus, best.usd_per_month)


@pytest.mark.long
@table
def test_a_point_is_what_fleet_finds_there(surface, path, few_requests, moved, settings):
    best, point = fleet(path, *settings), at(surface, **moved)
    assert (point.hardware, point.gpus) == (best.hardware, best.gpus)
    assert point.usd_per_month == pytest.approx(best.usd_per_month, rel=1e-12)


def test_a_price_scales_the_dollars_of_its_gpu_until_another_is_cheaper(surface):
    for load, sure in product((0.25, 1.0, 4.0), (0.5, 0.8, 0.95)):
        today = at(surface, load, sure=sure)
        for price in (0.5, 0.75, 1.25, 1.5, 2.0):
            point = at(surface, load, sure=sure, price=price)
            if today.hardware == point.hardware == surface.hardware:
                assert point.usd_per_month == pytest.approx(today.usd_per_month * price)
                assert point.gpus == today.gpus
            assert point.usd_per_month <= today.usd_per_month * max(price, 1.0) * (1 + 1e-12)


def test_no_axis_makes_more_cost_less(surface):
    def cost(point):
        return float("inf") if point.usd_per_month is None else point.usd_per_month

    for worse, sign in (
        ("traffic_ratio", 1),
        ("ttft_limit_s", -1),
        ("confidence", 1),
        ("gpu_price_ratio", 1),
    ):
        others = [axis for axis in AXES if axis != worse]
        lines = {}
        for point in surface.points:
            lines.setdefault(tuple(getattr(point, axis) for axis in others), []).append(point)
        for line in lines.values():
            costs = [cost(point) for point in sorted(line, key=lambda p: sign * getattr(p, worse))]
            assert costs == sorted(costs), (worse, line)


def test_without_a_ttft_target_its_axis_has_no_value(path, few_requests):
    keys = ["slo={tpot_p95: 50 ms}", "fleet.hardware=h100-sxm"]
    asked = asked_of(path, *keys)
    surface = surface_of(asked, fleet_for(asked))
    assert surface.target is None
    assert {point.ttft_limit_s for point in surface.points} == {None}
    assert all(point.gpus for point in surface.points)


@pytest.mark.long
def test_separate_pools_keep_their_layouts(few_requests):
    asked = asked_of("disaggregated")
    answer = fleet_for(asked)
    assert answer.chosen.has_pools
    surface = surface_of(asked, answer)
    assert not surface.layouts_searched
    today = at(surface, limit=surface.points[0].ttft_limit_s, sure=asked.question.slo.confidence)
    assert (today.gpus, today.usd_per_month) == (answer.chosen.gpus, answer.chosen.usd_per_month)


@pytest.mark.long
def test_the_command_prints_a_table_of_each_axis_and_all_points_as_json(capplan, path, few_requests):
    shown = capplan("what-if", path, "--offline")
    titles = (
        "At another load",
        "At another TTFT target",
        "At another required confidence",
        "At another price of ",
    )
    assert all(title in shown.out for title in titles)
    result = capplan.result("what-if", path, "--offline")
    assert {"scenario", "hardware", "target", "points"} == set(result)
    assert result["target"] == "ttft_p95"


def test_no_plan_is_said(capplan, path):
    ran = capplan("what-if", path, "--offline", "--set", "slo.ttft_p95=1us")
    assert ran.code == 4
    assert "no plan meets the targets" in ran.out


TEXT = """name: agents
model: Qwen/Qwen3-30B-A3B
traffic: [{{name: agent, {load}, turns: {{mean: 8, p95: 20}}, think_time: 15 s, added_tokens: 900, input_tokens: 3000, output_tokens: 250}}]
slo: {{ttft_p95: 1 s, tpot_p95: 30 ms}}
fleet: {{hardware: [h100-sxm], tensor_parallel: 1, spare_replicas: 0, headroom: 0 %}}
prices: {{per_gpu_hour: {{h100-sxm: 4 $/h}}}}
"""


def asked(load):
    return asked_in(TEXT.format(load=load))


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("users", [200, 600])
def test_a_layout_takes_the_same_replicas_in_a_what_if_as_in_its_plan(users):
    question = asked(f"users: {users}")
    plan = fleet_for(question).chosen
    assert resized(question.question, plan, terms_of(question)) == (plan.single.busy_replicas,)


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("slowness", [1.0, 1.5])
def test_the_hits_of_a_run_are_those_of_its_own_response_times(slowness):
    question, replicas = asked("request_rate: 15 req/s").question, 14
    trial = Trial(search(question).candidates[0], question, {})
    seen = trial.fleet(replicas, slowness)
    hits = trial.with_hits(1.0 / replicas, tuple(slowness * wait_s for wait_s in seen.responses_s))
    again = trial._at(hits, trial.total_rate / replicas, replicas, slowness, {}, short=False)
    assert (again.ttft_s, again.responses_s) == (seen.ttft_s, seen.responses_s)
    assert hits.hit_fractions < trial.with_hits(1.0 / replicas, trial.responses_s).hit_fractions
