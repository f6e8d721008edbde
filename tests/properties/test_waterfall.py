"""The waterfall of a plan: every step adds to the one before, and the last one is the plan."""

from dataclasses import replace
from itertools import pairwise
from math import ceil, isclose

import pytest

from capplan.fleet.waterfall import waterfall
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.plans.plan_row import plan_row
from tests.asked import asked_of

pytestmark = pytest.mark.usefixtures("few_requests")
ORDER = ("saturated", "headroom", "confidence", "spares", "machines", "hours")
SMALL = "tests/golden/small.yaml"


def planned(root, *settings):
    settings = ("fleet.hardware=[l40s]", "fleet.tensor_parallel=1", *settings)
    asked = asked_of(root / SMALL, *settings)
    return fleet_for(asked).plans


@pytest.fixture(scope="module")
def plans(request, few_requests):
    return planned(request.config.rootpath)


def refuse_broken(plan):
    steps = waterfall(plan)
    assert [item.step for item in steps] == [name for name in ORDER if name in {item.step for item in steps}]
    assert [item.gpus for item in steps] == sorted(item.gpus for item in steps)
    assert steps[0].gpus > 0
    assert steps[-1].gpus == plan.gpus
    if plan.usd_per_month is None:
        assert {item.usd_per_month for item in steps} == {None}
        return
    usd = [item.usd_per_month for item in steps]
    assert all(after >= before * (1.0 - 1e-9) for before, after in pairwise(usd))
    assert isclose(usd[-1], plan.usd_per_month, rel_tol=1e-12)


def test_steps_chain_and_the_last_one_is_the_plan(plans):
    for plan in plans:
        refuse_broken(plan)
        for busy in (1, 7, 90):
            refuse_broken(plan.resized([busy]))


def test_every_cause_is_a_step_with_the_key_that_removes_it(plans):
    (plan, *_) = plans
    group = plan.single
    found = {item.step: item for item in waterfall(plan)}
    assert found["saturated"].key is None
    assert found["headroom"].key == "fleet.headroom"
    assert found["confidence"].key == "slo.confidence"
    assert found["spares"].key in ("fleet.survive", "fleet.spare_replicas")
    peak = plan.peak_requests_per_s
    least = ceil(peak / group.request_rate_limit_per_replica - 1e-9)
    assert found["saturated"].gpus == least * group.gpus_per_replica
    assert found["confidence"].gpus == group.busy_replicas * group.gpus_per_replica


def test_gpus_times_their_price_are_the_dollars_of_a_step(plans):
    for plan in plans:
        price = plan.single.quote.total_usd_per_hour
        for item in waterfall(plan):
            if item.step not in ("machines", "hours"):
                assert isclose(item.usd_per_month, item.gpus * price * 730.0, rel_tol=1e-9)


def test_without_headroom_and_spares_there_is_no_such_step(request):
    settings = ("fleet.headroom=0", "fleet.survive=null", "fleet.spare_replicas=0")
    for plan in planned(request.config.rootpath, *settings):
        assert not {"headroom", "spares"} & {item.step for item in waterfall(plan)}
        refuse_broken(plan)


def test_hours_below_the_peak_are_the_last_step(request):
    (plan, *_) = planned(request.config.rootpath, "traffic[0].mean_rate=5 req/s")
    *_, before, last = waterfall(plan)
    refuse_broken(plan)
    assert (last.step, last.key) == ("hours", "commitments")
    assert last.gpus == before.gpus
    assert isclose(before.usd_per_month / last.usd_per_month, 5.0 / plan.peak_requests_per_s, rel_tol=1e-6)


def test_separate_pools_begin_with_what_they_are_sized_for_at_once(request):
    settings = ("fleet.disaggregation=only", "fleet.kv_link=ethernet-100g")
    (plan, *_) = planned(request.config.rootpath, *settings, "traffic[0].mean_rate=5 req/s")
    steps = waterfall(plan)
    refuse_broken(plan)
    assert plan.has_pools
    assert [item.step for item in steps] == ["confidence", "spares", "hours"]
    assert isclose(steps[-2].usd_per_month / steps[-1].usd_per_month, 0.25, rel_tol=1e-6)


def test_a_plan_without_a_price_counts_gpus(plans):
    (plan, *_) = plans
    free = replace(plan, usd_per_hour=None, money=None, groups=(replace(plan.single, price=None),))
    refuse_broken(free)


def test_a_row_has_the_steps_of_its_plan(plans):
    for plan in plans:
        rows = plan_row(plan)["waterfall"]
        assert [tuple(row) for row in rows] == [("step", "gpus", "usd_per_month", "key")] * len(rows)
        assert (rows[-1]["gpus"], rows[-1]["usd_per_month"]) == (plan.gpus, plan.usd_per_month)
