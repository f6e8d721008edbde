"""A budget is a target: no plan is dearer, and one that pays for the cheapest plan changes nothing about it."""

import json
import re
from itertools import permutations, product
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.fleet.answer import Choices
from capplan.fleet.search.recommended import plan_of
from capplan.money.commitments import GroupUse, Offer, least_usd_per_hour, mix_of, use_fractions
from capplan.money.ledger import BudgetTerms, service_entries, total_usd
from capplan.money.price import OtherPrices, Prices
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.levers.answer import asked_levers
from capplan.questions.money.budget import PARTS, _affordable_choices, most_parts
from capplan.questions.money.energy import outlook_of
from capplan.report.answers.fleet_outlook import growth_closing
from tests.asked import asked_of, fleet_of

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
            known[budget] = fleet_of(path, *settings)
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
        asked = asked_of(path, MIX, *settings)
        found = fleet_for(asked)
        return found, outlook_of(asked, found)

    return answer


@pytest.mark.long
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


def test_with_a_budget_the_fewest_gpus_count_slices_as_their_part_of_one():
    """Ten sevenths of a GPU are fewer than two GPUs, with a budget as without one."""

    def plan(gpus, per_device):
        cut = SimpleNamespace(per_device=per_device) if per_device > 1 else None
        layout = SimpleNamespace(device=SimpleNamespace(partition=cut))
        group = SimpleNamespace(gpus=gpus, layout=layout)
        return SimpleNamespace(gpus=gpus, groups=(group,), slo_met_probability=0.9)

    whole, slices, more = plan(2, 1), plan(10, 7), plan(15, 7)
    choices = Choices(whole, whole, whole, whole, "it is the cheapest")
    for order in permutations((whole, slices, more)):
        assert _affordable_choices(choices, order, lambda _: True, "price").fewest is slices


EVERY = {
    "fleet.hardware": ("l40s", "h100-sxm"), "fleet.tensor_parallel": (1, 2, 4), "fleet.pipeline_parallel": (1, 2), "weight_dtype": ("bf16", "fp8"),
}  # fmt: skip
LAYOUTS = (
    "fleet.tensor_parallel=[1, 2, 4]", "fleet.pipeline_parallel=[1, 2]", "weight_dtype=bf16", "fleet.weight_dtypes=[fp8]",
)  # fmt: skip
"""The same for one search."""
SPOT = ("prices={file: own.yaml}", "commitments={spot: {headroom: 0 %, most: 100 %}}")
"""Spot of the h100 costs less than an l40s on demand: many small replicas follow the load, and cost more while all of them run."""


@pytest.fixture(scope="module")
def every_path(tmp_path_factory):
    """Return a scenario whose layouts are named by settings."""
    path = tmp_path_factory.mktemp("every") / "small.yaml"
    asks = (("l40s", "on-demand", 0.3), ("h100-sxm", "on-demand", 5.0), ("h100-sxm", "spot", 0.2))
    page = {"page": {"title": "page", "url": "https://example.org"}}
    offers = [
        {"device": device, "provider": "A", "commitment": commitment, "price": f"{usd} $/h", "date": "2026-11", "source": "page"}
        for device, commitment, usd in asks
    ]  # fmt: skip
    (path.parent / "own.yaml").write_text(json.dumps({"sources": page, "prices": offers}))
    one_layout = ", expert_parallel: 1, data_parallel: 1, spare_replicas: 0}"
    path.write_text(
        SCENARIO.replace("request_rate: 30 req/s", "request_rate: 90 req/s, daily_curve: office").replace(
            ", tensor_parallel: [1, 2], pipeline_parallel: 1}", one_layout
        )
    )
    return path


@pytest.fixture(scope="module")
def by_hand(every_path):
    """Return the answer of one search over all layouts, and the cost of every layout alone, each a search of its own."""

    def asked(*settings):
        scenario = asked_of(every_path, *settings)
        found = fleet_for(scenario)
        return found, outlook_of(scenario, found)

    def all_layouts(*settings):
        return asked(*settings, *LAYOUTS)

    def each(*settings):
        for values in product(*EVERY.values()):
            found, outlook = asked(
                *settings, *(f"{key}={value}" for key, value in zip(EVERY, values, strict=True))
            )
            if outlook.mixes:
                yield from (730 * item.mix.usd_per_hour for item in outlook.mixes)
            else:
                yield from (plan.usd_per_month for plan in found.plans)

    return all_layouts, each


@pytest.mark.long
@pytest.mark.parametrize("terms", [(), SPOT], ids=["rented", "mixed"])
def test_a_plan_is_found_whenever_any_layout_has_one(by_hand, terms):
    """Against every layout searched alone: a budget just above the cheapest of them is met, one just below by none."""
    all_layouts, each = by_hand
    paid = sorted(each(*terms))
    assert len(paid) > 12
    least = paid[0]
    within, outlook = all_layouts(*terms, f"budget.usd_per_month={least * 1.0001!r}")
    usd = 730 * outlook.mixes[0].mix.usd_per_hour if terms else within.chosen.usd_per_month
    assert usd == pytest.approx(least)
    none, _ = all_layouts(*terms, f"budget.usd_per_month={least * 0.9999!r}")
    assert (none.chosen, none.plans) == (None, ())
    assert none.over_budget_usd_per_month == pytest.approx(least)


@pytest.mark.long
def test_levers_start_from_the_plan_within_the_budget(by_hand, every_path):
    all_layouts, each = by_hand
    budget = f"budget.usd_per_month={1.0001 * min(each(*SPOT))!r}"
    chosen = all_layouts(*SPOT, budget)[0].chosen
    _, base = asked_levers(every_path, None, (*SPOT, *LAYOUTS, budget), offline=True)
    assert base.plan == chosen


@pytest.mark.long
def test_the_best_combination_of_levers_is_within_the_budget(by_hand, every_path):
    """The plan that costs least on demand has a mix over the budget; the one that is returned has the cheapest mix of all."""
    all_layouts, each = by_hand
    budget = f"budget.usd_per_month={1.0001 * min(each(*SPOT))!r}"
    asking, base = asked_levers(every_path, None, (*SPOT, *LAYOUTS, budget), offline=True)
    confidence = base.asked.question.slo.confidence
    plan, _ = asking.cheapest(base.asked, confidence, inf)
    on_demand = asking.trials(base.asked).cheapest(confidence)
    assert plan == all_layouts(*SPOT, budget)[0].chosen
    assert plan != plan_of(on_demand, asking.trials(base.asked).terms)


@pytest.mark.long
def test_the_mixed_plan_is_one_that_the_price_on_demand_does_not_show(by_hand):
    """Otherwise the case above would hold without looking at every layout."""
    all_layouts, each = by_hand
    _, outlook = all_layouts(*SPOT)
    assert 730 * min(item.mix.usd_per_hour for item in outlook.mixes) > 1.2 * min(each(*SPOT))


@pytest.mark.parametrize("terms", [(), SPOT], ids=["rented", "mixed"])
def test_the_part_of_the_traffic_that_a_budget_pays_for(by_hand, terms):
    """A scenario with that part of the traffic is within the budget, one with a hundredth more is not."""
    all_layouts, _ = by_hand
    usd = all_layouts(*terms, "budget.usd_per_month=1")[0].over_budget_usd_per_month
    budget = f"budget.usd_per_month={0.55 * usd!r}"
    carried = all_layouts(*terms, budget)[0].carried
    assert carried.usd_per_month <= 0.55 * usd
    rates = [90 * carried.traffic_fraction, 90 * (carried.traffic_fraction + 0.01)]
    some, more = (all_layouts(*terms, budget, f"traffic[0].request_rate={rate!r} req/s")[0] for rate in rates)
    assert some.chosen is not None
    assert more.chosen is None


def test_a_budget_below_the_smallest_fleet_pays_for_no_traffic(answered):
    assert answered(1.0).carried is None


@given(st.integers(0, PARTS - 1), st.integers(-5, 2 * PARTS))
def test_the_most_parts_are_found_from_any_guess(most, guess):
    parts, found = most_parts(lambda at: (at, float(at)) if at <= most else None, guess)
    assert parts == most
    assert found == ((most, float(most)) if most else None)


USD = st.floats(0.0, 9.0)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=9).filter(any),
    st.lists(st.tuples(USD, USD, st.sampled_from([0.3, 1.0])), min_size=1, max_size=4),
)
def test_no_mix_costs_less_than_the_bound(counts, prices):
    offers = [Offer("on-demand", 0.0, 9.0), *(Offer("way", *usd) for *usd, most in prices if most == 1.0)]
    limited = [Offer("spot", *usd, most_fraction=most) for *usd, most in prices if most < 1.0][:1]
    used = use_fractions(np.array(counts))
    mix = mix_of([GroupUse(used, [*offers, *limited], 2)])
    assert least_usd_per_hour(float(np.mean(counts)), [*offers, *limited], 2) <= mix.usd_per_hour + 1e-9


OTHERS = {
    "people": "9000 $/month",
    "overhead": "12 %",
    "other": {"egress_per_gb": "0.09 $", "load_balancers": "50 $/month", "weights_per_gb": "0.5 $/month", "cpu_nodes": 2, "cpu_node": "150 $/month", "support": "10 %"},
}  # fmt: skip


def with_others(path, *settings):
    """Return the answer and the bill of a scenario with people, overhead and other costs."""
    added = [f"prices.{key}={json.dumps(value)}" for key, value in OTHERS.items()]
    asked = asked_of(path, *added, *settings)
    answer = fleet_for(asked)
    return asked, answer, total_usd(outlook_of(asked, answer).total)


EVERYTHING = "budget.includes=[people, overhead, other]"


@pytest.mark.parametrize("mix", [(), (MIX,)], ids=["rented", "mixed"])
def test_a_budget_for_everything_is_the_total_of_the_bill(tmp_path, mix):
    """Each line of the total cost is added up; a budget of a little more has the plan, one of a little less none."""
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO.replace("request_rate: 30 req/s", "request_rate: 30 req/s, daily_curve: office"))
    _, free, usd = with_others(path, *mix)
    cheapest = free.choices.cheapest if not mix else free.chosen
    assert cheapest == free.chosen
    _, within, same = with_others(path, *mix, f"budget.usd_per_month={1.0001 * usd!r}", EVERYTHING)
    assert (within.chosen, same) == (free.chosen, pytest.approx(usd))
    _, none, _ = with_others(path, *mix, f"budget.usd_per_month={0.9999 * usd!r}", EVERYTHING)
    if not mix:
        assert none.chosen is None
    else:
        assert none.chosen != free.chosen


@given(
    usd=st.floats(1e3, 1e6), people=st.floats(0, 900), overhead=st.floats(0, 1), support=st.floats(0, 1), egress=st.floats(0, 0.2), nodes=st.integers(0, 3),
)  # fmt: skip
def test_what_a_budget_leaves_for_machines_adds_up_to_it(usd, people, overhead, support, egress, nodes):
    """Machines for what is left, and every line beside them, cost the budget."""
    other = OtherPrices(
        False, egress, 300.0, 10.0, 0.02, nodes, 50.0, support, logs_per_gb=0.5, staging=support / 2
    )
    own = Prices(people=people, overhead=overhead, other=other)
    left = BudgetTerms(usd, entries=service_entries(own, 1.0, 1e9, 1e8, 1e10, 1.0)).machines_usd_per_month()
    every = total_usd(service_entries(own, left, 1e9, 1e8, 1e10, 1.0), "other")
    assert left * (1 + overhead) + people + every == pytest.approx(usd)


def test_growth_exceeds_a_budget_for_everything_in_the_month_whose_bill_does(tmp_path):
    """The total of each month line by line: machines and what follows their price, egress of its traffic, people and the rest."""
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    dear = "prices.other.egress_per_gb=4 $"
    grows = "growth={per_month: 12 %, months: 9}"
    asked, free, today = with_others(path, dear, grows)
    outlook = outlook_of(asked, free)
    lines = {line.what: line.usd for line in outlook.total}
    egress = lines["egress of streamed output"]
    fixed = lines["people"] + lines["load balancers"] + lines["CPU nodes"] + lines["storage of weights"]
    months = [
        row.usd_per_month * (1 + 0.12 + 0.1) + fixed + egress * 1.12 ** (row.month - 1)
        for row in outlook.growth.months
    ]
    assert months[0] == pytest.approx(today)
    for month in (2, 5, 8):
        usd = (months[month - 2] + months[month - 1]) / 2
        asked, answer, _ = with_others(path, dear, grows, f"budget.usd_per_month={usd!r}", EVERYTHING)
        assert answer.chosen == free.chosen
        (text,) = growth_closing(outlook_of(asked, answer).growth, asked.scenario)
        assert text.endswith(f"is exceeded in month {month}")


@pytest.mark.long
@pytest.mark.parametrize("mix", [(), (MIX,)], ids=["rented", "mixed"])
@pytest.mark.parametrize(("egress_usd", "part"), [(2, 0.8), (40, 0.5)])
def test_the_part_of_the_traffic_counts_the_egress_of_that_part(tmp_path, mix, egress_usd, part):
    """A part of the budget pays for the part whose own bill is within it, and not for a hundredth more; even if all egress is above the budget."""
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO.replace("request_rate: 30 req/s", "request_rate: 30 req/s, daily_curve: office"))
    dear = f"prices.other.egress_per_gb={egress_usd} $"
    asked, free, _ = with_others(path, dear, *mix)
    lines = outlook_of(asked, free).total
    usd = total_usd(lines)
    egress = next(line.usd for line in lines if line.what == "egress of streamed output")
    assert (egress > part * usd) == (egress_usd == 40)
    budget = (*mix, f"budget.usd_per_month={part * usd!r}", EVERYTHING, dear)
    _, over, _ = with_others(path, *budget)
    assert over.chosen is None
    share = over.carried.traffic_fraction
    (_, some, paid), (_, more, _) = (
        with_others(path, *budget, f"traffic[0].request_rate={30 * each!r} req/s")
        for each in (share, share + 0.01)
    )
    assert some.chosen is not None
    assert paid <= part * usd
    assert more.chosen is None
    _, free, unlimited = with_others(path, dear, f"traffic[0].request_rate={30 * (share + 0.01)!r} req/s")
    assert mix or unlimited > part * usd


@pytest.mark.long
def test_egress_above_a_budget_leaves_nothing_for_machines_and_some_for_a_part(capplan, tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    words = ("--offline", "--set", "prices.other.egress_per_gb=40 $", "--set", "budget={usd_per_month: 70000, includes: [other]}")  # fmt: skip
    ran = capplan("fleet", path, *words)
    assert ran.code == 4
    said = ran.out + ran.err
    assert "per month, nothing of it for machines" in said
    assert "times the budget" not in said
    assert re.search(r"the budget pays for \d\d% of the traffic", said)
    most = capplan.result("fleet", path, *words, code=4)
    assert 0 < most["carried"]["usd_per_month"] < 70000
    page = capplan("report", path, *words, "-o", tmp_path / "page.md")
    assert page.code == 4
    written = " ".join((tmp_path / "page.md").read_text().split())
    assert "within its targets and the budget of $70,000 per month, nothing of it for machines;" in written
    assert f"the budget pays for {most['carried']['traffic_fraction']:.0%} of the traffic" in written
    rents = path.read_text().partition("prices:")[0]
    (tmp_path / "own.yaml").write_text(rents)
    own = capplan("fleet", tmp_path / "own.yaml", *words, "--set", "fleet.own={8 x h100-sxm: 4}")
    assert re.search(r"the budget pays for \d\d% of the traffic: .*, \$0 per month", own.out + own.err)
    little = capplan("fleet", path, "--offline", "--set", "prices.other.egress_per_gb=9000 $", *words[3:])
    assert "no share of the traffic fits the budget" in little.out + little.err
