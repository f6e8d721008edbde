"""Separate pools in bills, mixes, growth, comparisons, plan files and levers: one plan, and the figures of its parts."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.money.commitments import GroupUse, Offer, cheapest_mix, mix_of
from capplan.money.who_pays import ClassUse, PaidPool, who_pays
from tests.files import file_with
from tests.plan_files import fleet_plan

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
SCENARIO = """name: apart
model: llama-3.1-8b
max_num_seqs: 128
traffic:
  - {name: chat, request_rate: 9 req/s, input_tokens: {mean: 3000, p95: 6000}, output_tokens: {mean: 120, p95: 300}, daily_curve: office}
  - {name: long, request_rate: 1 req/s, input_tokens: 9000, output_tokens: 50, daily_curve: office}
slo: {ttft_p95: 900 ms, tpot_p95: 15 ms}
fleet:
  {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, disaggregation: only, kv_link: ethernet-100g}
commitments: {reserved_1y: {discount: 40 %}, owned: {capex: 30000 $, electricity: 0.1 $/kWh, people: 900 $/month}}
growth: {per_month: 15 %, months: 5}
energy: {grid: 300 g/kWh}
"""
USES = st.lists(
    st.builds(
        ClassUse, name=st.just("a"), tenant=st.sampled_from("ab"), requests=st.floats(1, 1e6), input_tokens=st.just(1.0),
        output_tokens=st.just(1.0), prefill_s=st.floats(1e-3, 5), decode_s=st.floats(1e-3, 50),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


path = file_with(SCENARIO, "apart.yaml")


@pytest.fixture(scope="module")
def plan_file(path, few_requests):
    return fleet_plan(path)


@pytest.fixture
def result(capplan):
    def of(*words):
        return capplan.result(*words, "--offline")

    return of


def test_each_pool_is_paid_by_those_who_use_it():
    """Chat prefills 100 x 1 s of 300 s and decodes all 300 s: a third of the 600 $ of one pool, all 900 $ of the other."""
    chat = ClassUse("chat", "a", 100.0, 1.0, 1.0, 1.0, 3.0, groups=(0, 1))
    mail = ClassUse("mail", "b", 200.0, 1.0, 1.0, 1.0, 0.0, groups=(0, 1))
    bill = who_pays([chat, mail], PaidPool(600.0, 1, 1000.0), PaidPool(900.0, 4, 500.0))
    # of 1,000 s at 600 $ 300 s are used, of 500 s at 900 $ as many; the rest is idle
    assert [share.prefill_usd for share in bill.shares] == pytest.approx([60.0, 120.0])
    assert [share.decode_usd for share in bill.shares] == pytest.approx([540.0, 0.0])
    assert bill.idle_usd == pytest.approx(700 * 0.6 + 200 * 1.8)
    assert [share.with_idle_usd for share in bill.shares] == pytest.approx([200.0 + 900.0, 400.0])
    # 300 s of one device and 300 s of four, of 1,000 s of one and 500 s of four
    assert bill.busy_fraction == pytest.approx((300 + 1200) / (1000 + 2000))
    assert bill.shares[0].fraction == pytest.approx((100 + 1200) / 1500)


@given(USES, st.floats(1, 1e6))
def test_pools_that_cost_as_they_work_are_paid_like_identical_replicas(uses, usd):
    prefill, decode = (sum(u.requests * s for u, s in zip(uses, phase, strict=True)) for phase in (
        [u.prefill_s for u in uses], [u.decode_s for u in uses]))  # fmt: skip
    whole = prefill + decode
    pools = PaidPool(usd * prefill / whole, 1, prefill), PaidPool(usd * decode / whole, 1, decode)
    apart = who_pays([replace(use, groups=(0, 1)) for use in uses], *pools)
    together = who_pays(uses, PaidPool(usd, 1, whole))
    assert [share.usd for share in apart.shares] == pytest.approx([share.usd for share in together.shares])
    assert sum(share.usd for share in apart.shares) == pytest.approx(usd)


USD = st.floats(0.01, 10.0)
GROUPS = st.lists(
    st.tuples(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4), st.tuples(USD, USD, USD), st.integers(1, 8)),
    min_size=1, max_size=2,
)  # fmt: skip


@given(GROUPS, st.floats(0.0, 30.0))
def test_people_of_owned_devices_are_paid_once_and_only_where_that_is_cheapest(groups, people):
    """Against every choice of the groups that own some: the others rent alone."""
    uses = [
        GroupUse(
            -np.sort(-np.array(used)),
            [Offer("on-demand", 0.0, rent), Offer("owned", fixed, running)],
            devices,
            group=place,
        )
        for place, (used, (rent, fixed, running), devices) in enumerate(groups)
    ]
    rented = [replace(group, offers=group.offers[:1]) for group in uses]

    def cost(every):
        return sum(p.usd_per_hour for g in every for p in cheapest_mix(g))

    mix = mix_of(uses, people)
    assert mix.usd_per_hour == pytest.approx(min(cost(rented), cost(uses) + people))
    assert {part.group for part in mix.parts} == set(range(len(groups)))
    assert mix.usd_per_hour <= min(usd for _, usd in mix.pure) * (1 + 1e-9)


@pytest.mark.long
def test_bill_comparison_and_growth_cost_what_the_plan_costs(result, plan_file):
    fleet = json.loads(plan_file.read_text())["result"]
    month = fleet["commitments"]["usd_per_month"]
    rows = fleet["commitments"]["rows"]
    assert {row["pool"] for row in rows} == {"prefill", "decode"}
    people = fleet["commitments"]["people_usd_per_month"]
    assert sum(row["usd_per_month"] for row in rows) + people == pytest.approx(month)
    assert sum(row["gpus"] for row in rows) == fleet["chosen"]["gpus"]
    bill = result("bill", "--plan", plan_file)
    busy = sum(row["prefill_usd"] + row["decode_usd"] for row in bill["classes"])
    assert busy + bill["idle_usd"] == pytest.approx(month)
    assert 0.0 < bill["idle_usd"] < month
    focus = plan_file.with_name("focus.csv")
    billed = result("bill", "--plan", plan_file, "--focus", focus, "--month", "2026-12")
    with focus.open(newline="") as file:
        lines = list(csv.DictReader(file))
    sums = {
        key: sum(float(line[key]) for line in lines)
        for key in ("EffectiveCost", "x_CapitalCost", "x_GpuTimeShare", "x_Gpus")
    }
    sums["cost"] = sums.pop("EffectiveCost") + sums.pop("x_CapitalCost")
    assert sums == pytest.approx(
        {"cost": billed["usd_per_month"], "x_GpuTimeShare": 1.0, "x_Gpus": billed["gpus"]}
    )
    assert len({line["SkuPriceId"] for line in lines}) == len(lines)
    waiting = [line["x_Hardware"] for line in lines if line["SubAccountId"] == "__idle__"]
    assert len(waiting) >= 2  # of either pool, by the ways to pay
    compared = result("compare", "--plan", plan_file, "--api", "openai/gpt-5-mini")
    assert compared["own"]["machines_usd_per_month"] == pytest.approx(month)
    first, *later = fleet["growth"]["months"]
    assert (first["gpus"], first["mix_usd_per_month"]) == pytest.approx((fleet["chosen"]["gpus"], month))
    for row in later:
        assert row["replicas"] == sum(row["pool_replicas"])
        assert row["gpus"] == row["replicas"]  # one device each
    assert fleet["growth"]["outgrown_in_month"] == next(
        r["month"] for r in later if r["gpus"] > first["gpus"]
    )


def test_energy_of_pools_is_that_of_their_phases(plan_file):
    fleet = json.loads(plan_file.read_text())["result"]
    energy, gpus = fleet["energy"], fleet["chosen"]["gpus"]
    shares = {row["phase"]: row["time_fraction"] for row in energy["phases"]}
    assert set(shares) == {
        "prefill pool: prefill",
        "prefill pool: idle",
        "decode pool: decode",
        "decode pool: idle",
    }
    assert sum(shares.values()) == pytest.approx(1.0)
    watts = sum(row["time_fraction"] * row["watts_per_gpu"] for row in energy["phases"])
    assert energy["gpu_watts"] == pytest.approx(gpus * watts)


def test_a_plan_file_with_pools_is_read_as_it_was_written_and_holds(result, path, plan_file, capplan):
    fleet = json.loads(plan_file.read_text())["result"]["chosen"]
    checked = result("check", "--plan", plan_file)
    assert checked["holds"]
    assert {"prefill: capacity", "decode: capacity"} <= {row["what"] for row in checked["checks"]}
    degrees = capplan("check", "--plan", plan_file, "--offline", "--set", "fleet.tensor_parallel=[1, 2]")
    assert (degrees.code, "1, 2" in degrees.out) == (0, True)
    more = capplan("check", "--plan", plan_file, "--offline", "--set", "traffic[0].request_rate=40")
    assert more.code == 4
    assert "capacity" in more.out
    together = capplan("check", "--plan", plan_file, "--offline", "--set", "fleet.disaggregation=off", "--set", "fleet.kv_link=null")  # fmt: skip
    assert together.code == 4
    assert "fleet.disaggregation" in together.out
    same = result("diff", plan_file, plan_file)
    assert same["gpus"] == {"before": fleet["gpus"], "after": fleet["gpus"]}
    assert same["changes"] == []
    run = result("simulate", "--plan", plan_file)
    assert run["ttft_s"]["p95"] == pytest.approx(fleet["ttft_s"]["p95"])


@pytest.mark.long
def test_levers_start_from_separate_pools_and_one_more_never_makes_the_best_dearer(result, path):
    names = ("commitment", "disaggregation", "autoscaling")
    found = {
        few: result("levers", path, *(word for name in few for word in ("--lever", name)))
        for few in (names[:1], names)
    }
    for answer in found.values():
        assert answer["base"]["transfer"]
    rows = {(row["lever"], row["change"]): row for row in found[names]["levers"]}
    together = rows["disaggregation", "prefill and decode in the same replicas"]
    off = result("fleet", path, "--set", "fleet.disaggregation=off", "--set", "fleet.kv_link=null")
    assert together["usd_per_month"] == pytest.approx(off["chosen"]["usd_per_month"])
    base = found[names]["base"]["usd_per_month"]
    ahead = rows["autoscaling", "replicas are started ahead of a known load"]
    assert 0.3 * base < ahead["usd_per_month"] < base
    best = [found[few]["best"]["usd_per_month"] for few in (names[:1], names)]
    assert best[1] <= best[0] <= base
    assert best[1] <= min(together["usd_per_month"], base)
