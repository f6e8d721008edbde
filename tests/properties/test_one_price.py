"""One price for each plan: its order, at prices that a list states, everywhere it is shown."""

import json
import random
from statistics import median_low

import pytest

from capplan.money.order import Machine, Survival, machines_at_median, order_of, orders_by_provider
from capplan.readers.catalogue.offer_terms import known_machines
from tests.sweeps import long_but

DEVICES = ("l4", "l40s", "a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "mi300x", "rtx-4090", "l20")
COMMITMENTS = ("on-demand", "on-demand", "on-demand", "spot", "reserved", "reserved-1y")


def scenario(seed):
    """Return a random small service as text."""
    draw = random.Random(seed)
    devices = draw.sample(DEVICES, draw.randint(1, 4))
    model, dtype = draw.choice([("qwen3-8b", "bf16"), ("qwen3-32b", "fp8"), ("llama-3.1-8b", "bf16")])
    survive = draw.choice(["spare_replicas: 1", "survive: {machine: 1}", "spare_replicas: 0"])
    power = ", electricity: 0.2 $/kWh" if draw.random() < 0.3 else ""
    return f"""\
name: s{seed}
model: {model}
weight_dtype: {dtype}
traffic:
  - {{request_rate: {draw.choice([1, 4, 15, 50])} req/s, input_tokens: {draw.choice([300, 1500])}, output_tokens: {draw.choice([100, 300])}}}
slo: {{ttft_p95: 2 s, tpot_p95: 80 ms}}
fleet: {{hardware: [{", ".join(devices)}], {survive}}}
prices: {{commitment: {draw.choice(COMMITMENTS)}{power}}}
"""


def listed_prices():
    """Return the prices that the files of machines state: provider, machine -> prices."""
    found = {}
    for known in known_machines():
        for offer in known.record.offers:
            found.setdefault((known.provider, known.record.sku), set()).add(offer.price)
    return found


@pytest.mark.parametrize("seed", long_but(range(4), range(30)))
def test_the_first_line_costs_what_its_order_costs_at_listed_prices(seed, capplan, tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(scenario(seed))
    ran = capplan("fleet", path, "--offline", "--format", "json")
    if ran.code == 4:
        return
    result, listed = json.loads(ran.out)["result"], listed_prices()
    for plan in result["plans"]:
        order = plan["order"]
        if order is None:
            continue
        paid = sum(line["count"] * line["usd_per_hour"] for line in order["machines"])
        assert order["usd_per_hour"] == pytest.approx(paid + (order["energy_usd_per_hour"] or 0.0), rel=1e-9)
        assert plan["usd_per_hour"] == pytest.approx(order["usd_per_hour"], rel=1e-9)
        assert plan["usd_per_month"] == pytest.approx(730.0 * order["usd_per_hour"], rel=1e-9)
        for line in order["machines"]:
            if line["sku"] is not None:
                assert line["usd_per_hour"] in listed[line["provider"], line["sku"]]
                assert line["date"]
        offers = plan["offers"]
        costs = [offers[side]["usd_per_hour"] for side in ("low", "likely", "high")]
        assert costs == sorted(costs)
        assert costs[1] == pytest.approx(plan["usd_per_hour"], rel=1e-9)
    ordered = [plan for plan in result["plans"] if plan["order"]]
    unlisted = [any(line["sku"] is None for line in plan["order"]["machines"]) for plan in ordered]
    assert unlisted == sorted(unlisted), "a plan that cannot be ordered stands before one that can be"
    costs = [plan["usd_per_month"] for plan, other in zip(ordered, unlisted, strict=True) if not other]
    assert costs == sorted(costs)
    if result["chosen"]["order"] is None:
        assert all(plan["order"] is None for plan in result["plans"])
        return
    first = capplan("fleet", path, "--offline").out.splitlines()[0]
    assert f"${result['chosen']['order']['usd_per_month']:,.0f} per month" in first


@pytest.mark.parametrize("seed", range(200))
def test_an_order_is_at_the_provider_of_the_lower_median_price_whatever_its_size(seed):
    """Against every provider by itself, each with one size of machine; those that sell no machine for a replica do not count."""
    draw = random.Random(seed)
    machines = tuple(
        Machine(f"P{provider}", f"{provider}", "gpu", gpus, round(gpus * draw.uniform(1.0, 9.0), 2))
        for provider in range(draw.randint(1, 6))
        for gpus in [draw.choice((1, 2, 4, 8))]
    )
    replica, survive = draw.choice((1, 2, 4, 8)), draw.choice((Survival("replica", 1), Survival()))
    able = {
        item.provider: item.usd_per_hour / (item.gpus // replica) for item in machines if item.gpus >= replica
    }
    sold = machines_at_median(machines, replica, 8)
    if not able:
        assert sold == machines
        return
    (seller,) = sold
    assert able[seller.provider] == median_low(able.values())
    for busy in (1, 3, 20):
        orders = orders_by_provider(machines, replica, 8, busy, survive)
        assert len(orders) == len(able)
        costs = [order.usd_per_hour for order in orders]
        assert costs == sorted(costs)
        assert order_of(sold, replica, 8, busy, survive).usd_per_hour in costs
