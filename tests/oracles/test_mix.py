"""Several fleets for one service: against every division, against one kind of GPU, and as a router sends the requests."""

import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.fleet.mix import Costs, cheapest_division, partitions
from capplan.workload.length import fixed, lognormal
from capplan.workload.multiples import prompt_tokens, split_by_prompt_length, thresholds
from capplan.workload.request_class import RequestClass
from tests.files import file_with
from tests.plan_files import choice, fleet_plan

pytestmark = pytest.mark.usefixtures("shared_runs")
TWO = """name: two
model: meta-llama/Llama-3.1-8B-Instruct
traffic:
  - {name: chat, request_rate: 30 req/s, input_tokens: 200, output_tokens: 60}
  - {name: documents, request_rate: 1 req/s, input_tokens: 8000, output_tokens: 100}
slo: {ttft_p95: 2 s, tpot_p95: 100 ms, confidence: 50 %}
fleet: {hardware: [l4, h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, headroom: 0 %, survive: {machine: 0}}
prices: {per_gpu_hour: {l4: 0.4 $/h, h100-sxm: 4 $/h}}
"""


def groups_of(items):
    """Return every partition by giving each item the number of its group."""
    found = set()
    for numbers in itertools.product(range(len(items)), repeat=len(items)):
        groups = {n: frozenset(i for i, m in zip(items, numbers, strict=True) if m == n) for n in numbers}
        found.add(frozenset(groups.values()))
    return found


def test_partitions_are_all_there_are():
    for count in range(1, 6):
        mine = [frozenset(map(frozenset, division)) for division in partitions(tuple(range(count)))]
        assert len(mine) == len(set(mine))
        assert set(mine) == groups_of(range(count))


def test_brute_force_on_2000_random_divisions_finds_nothing_cheaper():
    """Random costs of groups, with bounds that are off by a random part of them."""
    dice = random.Random(27)
    for _ in range(2000):
        count = dice.randint(1, 4)
        groups = [g for size in range(1, count + 1) for g in itertools.combinations(range(count), size)]
        cost = {group: dice.uniform(1.0, 10.0) for group in groups}
        bound = {group: usd * dice.uniform(0.2, 1.0) for group, usd in cost.items()}
        divisions = list(partitions(tuple(range(count))))
        under = dice.uniform(2.0, 30.0)
        best = cheapest_division(divisions, costs_of(bound, cost), under)
        least = min(sum(cost[group] for group in division) for division in divisions)
        if least >= under - 1e-9:
            assert best is None
        else:
            assert sum(cost[group] for group in best[0]) == pytest.approx(least)
            assert best[1] == best[0]


def costs_of(bound, cost):
    return Costs(bound.__getitem__, lambda group, most: (cost[group], group) if cost[group] < most else None)


def test_a_division_is_looked_at_although_one_before_it_costs_too_much_by_now():
    """The cost of a is found to be 8 or more while a and b are tried, so a and c cost 10; d, which was third, costs 5."""
    bound = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 4.0}
    cost = {"a": 10.0, "b": 1.0, "c": 2.0, "d": 5.0}
    assert cheapest_division([("a", "b"), ("a", "c"), ("d",)], costs_of(bound, cost), 9.0) == (("d",), ("d",))


LENGTHS = st.one_of(
    st.integers(10, 5000).map(float).map(fixed),
    st.tuples(st.floats(50.0, 3000.0), st.floats(0.1, 1.2)).map(lambda p: lognormal(p[0], p[1])),
)


@given(LENGTHS, st.floats(5.0, 20_000.0), st.floats(0.1, 100.0))
def test_a_class_cut_in_two_is_the_class(lengths, tokens, rate):
    item = RequestClass("chat", lengths, fixed(10.0), rate)
    parts = [part for part in split_by_prompt_length(item, tokens) if part is not None]
    assert sum(part.request_rate_at() for part in parts) == pytest.approx(rate)
    mean = sum(part.request_rate_at() * prompt_tokens(part.input_tokens).mean() for part in parts) / rate
    assert mean == pytest.approx(prompt_tokens(lengths).mean(), rel=0.01)
    below, above = split_by_prompt_length(item, tokens)
    if below is not None and above is not None:
        assert prompt_tokens(below.input_tokens).max() <= tokens < prompt_tokens(above.input_tokens).min()


def test_thresholds_are_quantiles_of_all_requests():
    short, long = (
        RequestClass(str(n), fixed(n), fixed(1.0), rate) for n, rate in ((100.0, 9.0), (5000.0, 1.0))
    )
    assert thresholds((short, long), (0.5, 0.95)) == (100.0,)


two = file_with(TWO, "two.yaml")


def fleet(capplan, path, *words):
    return capplan.result("fleet", path, "--offline", *words)


@pytest.fixture(scope="module")
def saving(tmp_path_factory):
    """Chats in such numbers that small GPUs serve them for less, beside documents that small GPUs cannot serve in time.

    Documents are three of 203 requests, so a 99th percentile over all requests counts most of them.
    """
    path = tmp_path_factory.mktemp("saving") / "saving.yaml"
    text = TWO.replace("30 req/s", "200 req/s").replace("request_rate: 1 req/s", "request_rate: 3 req/s")
    text = text.replace("ttft_p95", "ttft_p99").replace("tpot_p95", "tpot_p99")
    path.write_text(text.replace("l4: 0.4", "l4: 0.1").replace("name: two", "name: saving"))
    return path


@pytest.mark.long
def test_a_mix_is_a_plan_of_groups(capplan, saving):
    """Recommended, first in the table, in choices, certainty and order, and never dearer than its parts together."""
    single = fleet(capplan, saving)
    found = fleet(capplan, saving, "--set", "fleet.mix=classes")
    chosen, mix = found["chosen"], found["mix"]
    assert found["plans"][0] == choice(found, "cheapest") == chosen
    assert found["plans"][1:] == single["plans"]
    assert chosen["usd_per_month"] < choice(single, "cheapest")["usd_per_month"]
    assert [(group["role"], group["requests"]["classes"]) for group in chosen["groups"]] == [
        ("serve", ["chat"]), ("serve", ["documents"])
    ]  # fmt: skip
    assert sum(group["requests"]["request_fraction"] for group in chosen["groups"]) == pytest.approx(1.0)
    parts = [part["plan"] for part in mix["parts"]]
    assert chosen["usd_per_month"] == pytest.approx(sum(part["usd_per_month"] for part in parts))
    assert chosen["gpus"] == sum(part["gpus"] for part in parts) == chosen["order"]["gpus"]
    assert sum(line["count"] * line["gpus"] for line in chosen["order"]["machines"]) == chosen["gpus"]
    shares = [part["request_fraction"] for part in mix["parts"]]
    for key in ("ttft_s", "tpot_s", "e2e_s"):
        for name in ("p50", "p95", "p99"):
            values = [part[key][name] for part in parts]
            assert min(values) <= chosen[key][name] <= max(values)
        means = [part[key]["mean"] for part in parts]
        assert chosen[key]["mean"] == pytest.approx(np.average(means, weights=shares), rel=1e-6)
    assert chosen["class_e2e_mean_s"] == pytest.approx([part["e2e_s"]["mean"] for part in parts])
    for group, seen, part in zip(chosen["groups"], chosen["class_latencies"], parts, strict=True):
        for key in ("ttft_s", "tpot_s", "e2e_s"):
            assert group[key] == part[key]
            assert seen[key]["p95"] == pytest.approx(part[key]["p95"], rel=1e-6)
    assert {part["slo_met_probability"] for part in parts} == {chosen["slo_met_probability"]}
    assert chosen["slo_met_probability"] >= 0.5
    cost = {row["confidence"]: row["usd_per_month"] for row in found["certainty"]}
    assert cost[0.5] == chosen["usd_per_month"]
    assert cost[0.95] == {row["confidence"]: row["usd_per_month"] for row in single["certainty"]}[0.95]


@pytest.fixture(scope="module")
def mixed_plan(saving):
    return fleet_plan(saving, "--set", "fleet.mix=classes")


@pytest.mark.long
def test_a_mix_meets_its_targets_in_simulation(capplan, mixed_plan):
    """One stream, each request sent to the group of its class: every target is met, and the groups see what the plan says."""
    found = capplan.result("simulate", "--plan", mixed_plan, "--offline")
    chosen = json.loads(mixed_plan.read_text())["result"]["chosen"]
    assert found["missed"] == []
    assert found["replicas"] == chosen["replicas"] - chosen["spare_replicas"]
    assert found["gpus"] == chosen["gpus"]
    assert 0.5 < found["utilisation_fraction"] < 1.0
    for key in ("ttft_s", "tpot_s", "e2e_s"):
        for name in ("mean", "p50", "p90", "p95", "p99"):
            assert found[key][name] == pytest.approx(chosen[key][name], rel=0.1)
    for seen in chosen["class_latencies"]:
        assert found["classes"][seen["name"]]["e2e_s"]["p95"] == pytest.approx(seen["e2e_s"]["p95"], rel=0.1)


LONG_TAIL = (
    TWO.split("traffic:")[0]
    + """traffic:
  - {name: mixed, request_rate: 60 req/s, input_tokens: {p50: 800, p95: 9000, max: 24000}, output_tokens: {mean: 120, p95: 300}}
slo: {ttft_p95: 1 s, tpot_p95: 40 ms}
fleet: {hardware: [l4, h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, survive: {machine: 0}, mix: lengths}
prices: {per_gpu_hour: {l4: 0.4 $/h, h100-sxm: 4 $/h}}
"""
)


@pytest.mark.long
def test_a_few_long_prompts_do_not_decide_about_a_percentile_of_all_requests(capplan, tmp_path):
    """What simulate sees of the mix is what the plan says, and a target over all requests leaves room for the longest of them."""
    scenario, plan = tmp_path / "tail.yaml", tmp_path / "tail.json"
    scenario.write_text(LONG_TAIL)
    assert capplan("fleet", scenario, "--offline", "-o", plan).code == 0
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    assert len(chosen["groups"]) == 2
    ran = capplan.result("simulate", "--plan", plan, "--offline")
    assert ran["missed"] == []
    for key in ("ttft_s", "tpot_s", "e2e_s"):
        for name in ("mean", "p50", "p90", "p95"):
            assert ran[key][name] == pytest.approx(chosen[key][name], rel=0.12), (key, name)
    assert capplan("check", "--plan", plan, "--offline").code == 0
    for name in ("ttft_s.p50", "class_latencies[0].tpot_s.p95", "groups[1].e2e_s.p95", "slo_met_probability"):
        assert capplan("explain", plan, name, "--offline").code == 0


@pytest.mark.long
def test_a_mix_is_kept_in_its_plan_file_and_read_by_every_command(capplan, mixed_plan, saving):
    chosen = json.loads(mixed_plan.read_text())["result"]["chosen"]
    bill = capplan.result("bill", "--plan", mixed_plan, "--offline")
    assert bill["usd_per_month"] == pytest.approx(chosen["usd_per_month"])
    assert [row["with_idle_usd"] for row in bill["classes"]] == pytest.approx(
        [group["usd_per_hour"] * 730 for group in chosen["groups"]]
    )
    checked = capplan(
        "check", saving, "--offline", "--set", "fleet.mix=classes", "--plan", mixed_plan, "--format", "json"
    )
    checks = {row["what"]: row["holds"] for row in json.loads(checked.out)["result"]["checks"]}
    assert (checked.code, all(checks.values())) == (0, True)
    assert {"chat: capacity", "documents: capacity"} <= checks.keys()
    same = capplan.result("diff", mixed_plan, mixed_plan)
    assert same["changes"] == []


def test_a_mix_grows_and_takes_power_group_by_group(capplan, saving):
    found = fleet(
        capplan, saving, "--set", "fleet.mix=classes", "--set", "energy={}", "--set", "growth={per_month: 50 %, months: 3}"
    )  # fmt: skip
    first, *later = found["growth"]["months"]
    counts = [group["replicas"] for group in found["chosen"]["groups"]]
    assert first["pool_replicas"] == counts
    assert all(a <= b for month in later for a, b in zip(counts, month["pool_replicas"], strict=True))
    assert first["usd_per_month"] == pytest.approx(found["chosen"]["usd_per_month"])
    energy = found["energy"]
    assert sum(phase["time_fraction"] for phase in energy["phases"]) == pytest.approx(1.0)
    assert [row["device"] for row in energy["servers"]] == ["l4", "h100-sxm"]
    by_phase = sum(phase["time_fraction"] * phase["watts_per_gpu"] for phase in energy["phases"])
    assert energy["gpu_watts"] == pytest.approx(by_phase * found["chosen"]["gpus"])


@pytest.mark.long
def test_levers_say_what_a_mix_saves(capplan, saving):
    (row,) = capplan.result("levers", saving, "--offline", "--lever", "mix")["levers"]
    found = fleet(capplan, saving, "--set", "fleet.mix=any")
    single = fleet(capplan, saving)["chosen"]["usd_per_month"]
    assert row["usd_per_month_saved"] == pytest.approx(single - found["chosen"]["usd_per_month"])
    assert row["usd_per_month_saved"] > 0.0


@pytest.mark.long
def test_prompts_are_divided_by_length(capplan, saving):
    """The classes of the scenario differ in length, so a threshold between them is the same division."""
    found = fleet(capplan, saving, "--set", "fleet.mix=lengths")["chosen"]
    short, long = (group["requests"] for group in found["groups"])
    assert short["up_to_tokens"] == long["above_tokens"]
    assert 200 <= short["up_to_tokens"] < 8000
    assert found["usd_per_month"] == pytest.approx(
        fleet(capplan, saving, "--set", "fleet.mix=classes")["chosen"]["usd_per_month"], rel=0.05
    )


@pytest.mark.long
def test_the_mix_of_two_classes_is_the_cheapest_fleet_of_each(capplan, two):
    """Enumeration: each class for itself, on each kind of GPU."""
    mix = fleet(capplan, two, "--set", "fleet.mix=classes")["mix"]
    together = choice(fleet(capplan, two), "cheapest")["usd_per_month"]
    apart = 0.0
    for text in TWO.split("traffic:\n")[1].split("slo:")[0].strip().splitlines():
        alone = two.parent / "alone.yaml"
        alone.write_text(
            TWO.split("traffic:\n")[0] + "traffic:\n  " + text.strip() + "\nslo:" + TWO.split("slo:")[1]
        )
        apart += choice(fleet(capplan, alone), "cheapest")["usd_per_month"]
    if apart < together:
        assert mix["usd_per_month"] == pytest.approx(apart)
    else:
        assert "no mix costs less" in mix["reason"]


def test_values_of_a_distribution_are_its_quantiles():
    values = prompt_tokens(lognormal(1000.0, 0.5))
    assert np.all(np.diff(values) >= 0.0)
    assert values.mean() == pytest.approx(1000.0, rel=0.01)
