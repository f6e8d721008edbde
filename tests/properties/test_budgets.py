"""A budget is a target: no plan is dearer, and one that pays for the cheapest plan changes nothing about it."""

import pytest

from capplan.questions.fleet import asked_fleet, fleet_for
from capplan.questions.outlook import outlook_of
from capplan.scenario.scenario import read_scenario

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
SCENARIO = """name: small
model: meta-llama/Llama-3.1-8B-Instruct
traffic: [{request_rate: 30 req/s, input_tokens: 900, output_tokens: 150}]
slo: {ttft_p95: 2 s, tpot_p95: 60 ms}
fleet: {hardware: [l40s, h100-sxm], tensor_parallel: [1, 2], pipeline_parallel: 1}
prices: {per_gpu_hour: {l40s: 1 $/h, h100-sxm: 2.5 $/h}}
"""


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    path = tmp_path_factory.mktemp("budget") / "small.yaml"
    path.write_text(SCENARIO)
    known = {}

    def answer(budget=None):
        if budget not in known:
            settings = () if budget is None else (f"budget.usd_per_month={budget!r}",)
            known[budget] = fleet_for(asked_fleet(read_scenario(path, settings), offline=True))
        return known[budget]

    return answer


@pytest.mark.parametrize("ratio", [1.0, 1.03, 1.3, 4.0])
def test_plans_within_a_budget_are_never_dearer_and_the_cheapest_stays(answered, ratio):
    free = answered()
    budget = free.choices.cheapest.usd_per_month * ratio
    within = answered(budget)
    every = (*within.plans, within.choices.surest, within.choices.fewest, within.choices.recommended)
    assert max(plan.usd_per_month for plan in every) <= budget * (1 + 1e-9)
    assert within.choices.cheapest == free.choices.cheapest


def test_a_budget_below_the_cheapest_plan_leaves_none_and_names_it(answered):
    free = answered()
    none = answered(free.choices.cheapest.usd_per_month * 0.999)
    assert none.plans == ()
    assert none.over_budget == free.chosen
    assert {row.code for row in none.rejected} >= {"budget"}


MIX = "commitments={reserved_1y: {discount: 40 %}}"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Plans under the load of an office day, with a budget and a reservation of 40 % off."""
    path = tmp_path_factory.mktemp("mix") / "small.yaml"
    path.write_text(SCENARIO.replace("request_rate: 30 req/s", "request_rate: 30 req/s, daily_curve: office"))

    def answer(*settings):
        asked = asked_fleet(read_scenario(path, (MIX, *settings)), offline=True)
        found = fleet_for(asked)
        return found, outlook_of(asked, found)

    return answer


def test_with_commitments_a_budget_is_for_the_mix_that_is_paid(mixed):
    """Every plan costs more than its mix; a budget between the two of them keeps it, and one below all mixes names the least."""
    free, outlook = mixed()
    paid = [(item.plan, 730 * item.mix.usd_per_hour) for item in outlook.mixes]
    assert len(paid) > 1
    assert all(usd < plan.usd_per_month for plan, usd in paid)
    for _, budget in paid:
        within, _ = mixed(f"budget.usd_per_month={1.001 * budget!r}")
        mine = [plan for plan, usd in paid if usd <= 1.001 * budget]
        assert len(within.plans) == len(mine)
        assert all(plan in mine for plan in within.plans)
        assert within.choices.cheapest == within.plans[0]
        assert within.chosen == (free.chosen if free.chosen in mine else within.plans[0])
    least, usd = min(paid, key=lambda pair: pair[1])
    none, _ = mixed(f"budget.usd_per_month={usd * 0.999!r}")
    assert (none.plans, none.choices, none.over_budget) == ((), None, least)
    assert none.over_budget_usd_per_month == pytest.approx(usd)
    assert sum(row.count for row in none.rejected if row.code == "budget") >= len(free.plans)


def test_a_large_budget_changes_nothing(answered):
    assert answered(1e9).plans == answered().plans
    assert answered(1e9).choices == answered().choices
