"""Commitments against every assignment there is, the annuity tables of finance, and a day worked out by hand."""

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.money.commitments import (
    GroupUse,
    Offer,
    annuity_usd_per_hour,
    cheapest_mix,
    mix_of,
    use_fractions,
)
from capplan.money.order import Survival
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.money.commitments import units_in_service
from capplan.questions.money.energy import outlook_of
from capplan.readers.catalogue.offer_terms import known_machines
from tests.asked import asked_of

USD = st.floats(0.0, 10.0)
OFFERS = st.lists(st.tuples(USD, USD), min_size=1, max_size=3).map(
    lambda pairs: [Offer(f"way {i}", fixed, used) for i, (fixed, used) in enumerate(pairs)]
)
COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any).map(np.array)
SPOT = st.none() | st.builds(Offer, st.just("spot"), st.just(0.0), USD, most_fraction=st.floats(0.0, 0.99))


def brute_force(counts, offers, devices):
    """Return the least cost of all assignments of replicas to offers, each hour of each replica summed one by one."""
    replicas = int(counts.max())
    best = np.inf
    for ways in product(range(len(offers)), repeat=replicas):
        allowed = all(
            ways.count(i) <= offer.most_fraction * replicas + 1e-9 for i, offer in enumerate(offers)
        )
        hours = [
            offers[way].fixed_usd_per_hour + (offers[way].used_usd_per_hour if running > place else 0.0)
            for running in counts
            for place, way in enumerate(ways)
        ]
        best = min(best, sum(hours) / len(counts) * devices if allowed else np.inf)
    return best


@given(COUNTS, OFFERS, SPOT, st.integers(1, 8))
def test_the_mix_is_the_best_of_all_assignments(counts, offers, spot, devices):
    every = [*offers, *([spot] if spot else [])]
    parts = cheapest_mix(GroupUse(use_fractions(counts), every, devices))
    assert sum(part.units for part in parts) == counts.max()
    assert sum(part.usd_per_hour for part in parts) == pytest.approx(brute_force(counts, every, devices))


def test_an_office_day_by_hand():
    """Ten hours a day need 4 replicas, the others 1; reserved 2 $, on demand 3 $ an hour.

    The first runs always: reserved. The other three run 10 of 24 hours: 1.25 $ on demand.
    """
    counts = np.array([4] * 10 + [1] * 14)
    used = use_fractions(counts)
    assert used.tolist() == pytest.approx([1.0, 10 / 24, 10 / 24, 10 / 24])
    mix = mix_of([GroupUse(used, [Offer("on-demand", 0.0, 3.0), Offer("reserved-1y", 2.0, 0.0)], 1)])
    assert {part.offer.name: part.units for part in mix.parts} == {"on-demand": 3, "reserved-1y": 1}
    assert mix.usd_per_hour == pytest.approx(2.0 + 3 * 3.0 * 10 / 24)
    assert {offer.name: usd for offer, usd in mix.pure} == pytest.approx(
        {"on-demand": 3.0 * (1 + 30 / 24), "reserved-1y": 8.0}
    )


@pytest.mark.parametrize(
    ("interest", "years", "per_1000"),
    [(0.08, 4.0, 301.92), (0.10, 5.0, 263.80), (0.05, 3.0, 367.21), (0.0, 4.0, 250.0)],
)
def test_annuities_agree_with_the_tables_of_finance(interest, years, per_1000):
    """Yearly payment for 1,000 borrowed, from capital recovery factors as printed: 0.30192, 0.26380, 0.36721."""
    assert annuity_usd_per_hour(1000.0, years, interest) * 8760 == pytest.approx(per_1000, abs=0.006)


EIGHTS = """name: eights
model: meta-llama/Llama-3.1-8B-Instruct
traffic: [{request_rate: 45 req/s, daily_curve: office, input_tokens: 900, output_tokens: 150}]
slo: {ttft_p95: 500 ms, tpot_p95: 30 ms}
fleet: {hardware: [h200-sxm], tensor_parallel: 1, pipeline_parallel: 1, survive: {machine: 0}}
prices: {provider: CoreWeave}
commitments: {reserved_1y: {discount: 35 %}, spot: {most: 30 %}}
"""


@pytest.fixture(scope="module")
def eights(tmp_path_factory):
    """H200 that are sold in eights alone, for a day whose night needs a part of one machine."""
    path = tmp_path_factory.mktemp("eights") / "eights.yaml"
    path.write_text(EIGHTS)

    def answer(*settings):
        asked = asked_of(path, *settings)
        found = fleet_for(asked)
        return found.chosen, outlook_of(asked, found)

    return answer


@pytest.mark.usefixtures("few_requests", "shared_runs")
@pytest.mark.parametrize("survive", ["{machine: 0}", "{machine: 1}"])
def test_commitments_pay_for_the_whole_machines_of_the_order(eights, survive):
    """On demand alone costs what the order costs, GPUs that stay idle included, and every way to pay takes whole machines."""
    plan, outlook = eights(f"fleet.survive={survive}", "traffic[0].daily_curve=flat")
    (mixed, *_) = outlook.mixes
    on_demand = {offer.name: usd for offer, usd in mixed.mix.pure}["on-demand"]
    assert on_demand == pytest.approx(plan.usd_per_hour)
    for part in mixed.mix.parts:
        assert (part.devices, part.gpus % 8, part.replicas) == (8, 0, None)
    assert sum(part.gpus for part in mixed.mix.parts) == plan.single.order.gpus
    assert not any("idle" in text for text in mixed.warnings)


@pytest.mark.usefixtures("few_requests", "shared_runs")
def test_a_night_pays_for_the_machines_that_its_replicas_need(eights):
    """Window by window: the order of the replicas that run then, at the price on demand."""
    plan, outlook = eights("traffic[0].request_rate=300 req/s")
    group = plan.single
    paid = np.clip(outlook.over_time[""].paid, 1, group.busy_replicas)
    each = {busy: group.usd_per_hour_of(busy) for busy in np.unique(paid).tolist()}
    on_demand = {offer.name: usd for offer, usd in outlook.mixes[0].mix.pure}["on-demand"]
    assert len(set(each.values())) > 1
    assert on_demand == pytest.approx(np.mean([each[busy] for busy in paid.tolist()]))


@pytest.mark.long
@pytest.mark.usefixtures("few_requests", "shared_runs")
@pytest.mark.parametrize("settings", [(), ("traffic[0].request_rate=90 req/s",), ("fleet.spare_replicas=2", "prices.provider=Lambda", "fleet.hardware=[h100-sxm]")])  # fmt: skip
def test_the_recommended_plan_is_the_cheapest_as_it_is_paid(capplan, settings):
    """Of all plans with their own mixes, unless another costs under 5 % more and is 5 points surer; levers begin at the same plan."""
    path = "scenarios/commitments.yaml"
    asked = asked_of(path, *settings)
    found = fleet_for(asked)
    chosen, *others = outlook_of(asked, found).mixes
    assert others
    assert chosen.plan is found.chosen
    for other in others:
        assert chosen.mix.usd_per_hour < 1.05 * other.mix.usd_per_hour
        if other.mix.usd_per_hour < chosen.mix.usd_per_hour:
            assert chosen.plan.slo_met_probability >= other.plan.slo_met_probability + 0.05
    words = ("--offline", *(word for key in settings for word in ("--set", key)))
    said = " ".join(capplan("fleet", path, *words).out.split())
    assert f"GPUs cost ${chosen.mix.usd_per_hour * 730:,.0f} per month" in said
    base = capplan.result("levers", path, *words, "--lever", "kv-dtype")["base"]
    assert (base["hardware"], base["gpus"]) == (chosen.plan.hardware, chosen.plan.gpus)


NAMED = """name: named
model: Qwen/Qwen3-0.6B
traffic: [{request_rate: 120 req/s, daily_curve: office, input_tokens: 500, output_tokens: 150}]
slo: {ttft_p95: 500 ms, tpot_p95: 30 ms}
fleet: {hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1, regions: [us-central1], machines: [g2-standard-4, g2-standard-24, g2-standard-96], survive: {machine: 1}}
commitments: {reserved_1y: {}, reserved_3y: {}, spot: {headroom: 0 %, most: 30 %}}
"""


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """L4 in three machines of one provider, each with prices of its own on demand, reserved and spot."""
    path = tmp_path_factory.mktemp("named") / "named.yaml"
    path.write_text(NAMED)

    def answer(*settings):
        asked = asked_of(path, *settings)
        found = fleet_for(asked)
        return found.chosen, outlook_of(asked, found)

    return answer


def catalogue_usd_per_gpu_hour(sku):
    """Prices as the file of the provider has them, for the region of the scenario."""
    (known,) = [item for item in known_machines() if item.record.sku == sku]
    return {
        offer.commitment: offer.price / known.record.gpus
        for offer in known.record.offers
        if offer.region == "us-central1"
    }


@pytest.mark.usefixtures("few_requests", "shared_runs")
def test_named_machines_are_paid_at_their_own_prices_of_each_commitment(named):
    plan, outlook = named()
    (mixed, *_) = outlook.mixes
    (line,) = plan.single.order.lines
    listed = catalogue_usd_per_gpu_hour(line.machine.sku)
    assert {part.sku for part in mixed.mix.parts} == {line.machine.sku}
    assert len({part.offer.name for part in mixed.mix.parts}) > 1
    for part in mixed.mix.parts:
        assert part.offer.usd_per_hour(1.0) == pytest.approx(listed[part.offer.name])
        assert re.fullmatch(r"GCP, 2026-\d\d-\d\d", part.offer.origin)
    assert sum(part.gpus for part in mixed.mix.parts) == plan.single.order.gpus


@pytest.mark.usefixtures("few_requests", "shared_runs")
def test_machines_of_several_kinds_are_started_in_turn_and_each_is_paid_at_its_own_price(named):
    """Two machines of one GPU may be ordered, the others have more: between the cheapest order of each hour and that of the peak."""
    plan, outlook = named("fleet.max_machines={g2-standard-4: 2}")
    (mixed, *_) = outlook.mixes
    group, order = plan.single, plan.single.order
    assert len(order.lines) == 2
    assert {part.sku for part in mixed.mix.parts} == {line.machine.sku for line in order.lines}
    for part in mixed.mix.parts:
        listed = catalogue_usd_per_gpu_hour(part.sku)
        assert part.offer.usd_per_hour(1.0) == pytest.approx(listed[part.offer.name])
    assert sum(part.gpus for part in mixed.mix.parts) == order.gpus
    paid = np.clip(outlook.over_time[""].paid, 1, group.busy_replicas)
    each = {busy: group.usd_per_hour_of(busy) for busy in np.unique(paid).tolist()}
    on_demand = {offer.name: usd for offer, usd in mixed.mix.pure}["on-demand"]
    assert np.mean([each[busy] for busy in paid.tolist()]) <= on_demand * (1 + 1e-9)
    assert on_demand < order.usd_per_hour
    assert all(mixed.mix.usd_per_hour <= usd * (1 + 1e-9) for _, usd in mixed.mix.pure)


@pytest.mark.usefixtures("few_requests", "shared_runs")
def test_machines_that_are_there_carry_the_base_and_commitments_pay_for_the_rest(named):
    """A server of four: its GPUs cost nothing, run in every hour, and the mix costs less by at least what they would cost reserved."""
    (without, *_), (with_own, *_) = named()[1].mixes, named("fleet.own={4 x l4: 1}")[1].mixes
    own, *rest = with_own.mix.parts
    assert (own.offer.name, own.gpus, own.usd_per_hour, own.used_fraction) == ("own", 4, 0.0, 1.0)
    assert all(part.usd_per_hour > 0.0 for part in rest)
    assert with_own.mix.usd_per_hour < without.mix.usd_per_hour
    assert all(usd >= with_own.mix.usd_per_hour * (1 - 1e-9) for _, usd in with_own.mix.pure)


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=8),
    st.integers(1, 30),
    st.sampled_from(["replica", "machine", "rack"]),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_no_fewer_machines_than_are_started_would_hold_a_load(units, busy, domain, count, unavailable):
    """One after the other, against every limit on the replicas of a machine: what is left without the fullest ones carries the load."""
    survive = Survival(domain, count, machines_per_rack=2, unavailable=unavailable)
    lost = {"machine": count, "rack": 2 * count}.get(domain, 0)

    def holds(held):
        if not lost:
            return sum(held) >= busy + unavailable + (count if domain == "replica" else 0)
        spread = [sorted(min(each, level) for each in held) for level in range(1, 9)]
        return any(sum(each[: max(len(each) - lost, 0)]) >= busy + unavailable for each in spread)

    started = units_in_service(units, busy, survive)
    assert not holds(units[: started - 1]) or started == 1
    assert holds(units[:started]) or started == len(units)
