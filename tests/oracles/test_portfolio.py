"""Services that share commitments, against a ledger of GPUs that are counted minute by minute."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from capplan.money.commitments import GroupUse, Offer, mix_of, pooled_use, use_fractions

OFFERS = (Offer("on-demand", 0.0, 2.0), Offer("reserved-1y", 1.2, 0.0))


def use_of(running, devices=1):
    return GroupUse(use_fractions(running), OFFERS, devices, running=running)


def test_a_day_service_and_a_night_service_share_a_reservation_by_hand():
    """Two GPUs by day and two by night: $2 in half of the hours each, or two reserved ones for both at $1.20."""
    day, night = np.array([2, 0]), np.array([0, 2])
    separate = [mix_of([use_of(running)]) for running in (day, night)]
    assert [mix.usd_per_hour for mix in separate] == [2.0, 2.0]
    shared = mix_of([pooled_use([use_of(day), use_of(night)])])
    assert shared.usd_per_hour == pytest.approx(2.4)
    assert [(part.offer.name, part.gpus) for part in shared.parts] == [("reserved-1y", 2)]


counts = arrays.arrays(np.int64, st.integers(1, 12), elements=st.integers(0, 5)).filter(
    lambda each: each.max() > 0
)


@given(st.lists(st.tuples(counts, st.sampled_from([1, 2, 4])), min_size=1, max_size=4))
def test_sharing_costs_what_its_gpus_cost_one_by_one_and_never_more(services):
    uses = [use_of(running, devices) for running, devices in services]
    longest = max(running.size for running, _ in services)
    needed = [
        sum(int(running[t % running.size]) * devices for running, devices in services) for t in range(longest)
    ]
    ledger = sum(
        min(1.2, 2.0 * sum(count >= gpu for count in needed) / longest) for gpu in range(1, max(needed) + 1)
    )
    assert mix_of([pooled_use(uses)]).usd_per_hour == pytest.approx(ledger)
    if all(longest % running.size == 0 for running, _ in services):
        assert ledger <= sum(mix_of([use]).usd_per_hour for use in uses) + 1e-9


SCENARIO = """name: {name}
model: Qwen/Qwen3-0.6B
traffic: [{{request_rate: 40 req/s, daily_curve: {curve}, input_tokens: 900, output_tokens: 90}}]
fleet: {{hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 0}}
prices: {{per_gpu_hour: {{l4: 1 $/h}}, people: 300 $/month, overhead: 10 %}}
commitments: {{reserved_1y: {{discount: 30 %}}}}
"""


@pytest.fixture
def day_and_night(tmp_path):
    for name, curve in (("day", [0.1] * 12 + [1.0] * 12), ("night", [1.0] * 12 + [0.1] * 12)):
        (tmp_path / f"{name}.yaml").write_text(SCENARIO.format(name=name, curve=json.dumps(curve)))
    return tmp_path / "day.yaml", tmp_path / "night.yaml"


@pytest.mark.long
def test_two_services_by_the_minute(capplan, day_and_night):
    """Each GPU of the sum takes the cheaper of $1 while it runs and $0.70 at all hours; people and overhead stay with each service."""
    fleets = [capplan.result("fleet", path, "--offline") for path in day_and_night]
    by_minute = [np.array(fleet["over_time"]["autoscaled_paid_gpus"]) for fleet in fleets]
    total = by_minute[0] + by_minute[1]

    def hourly(gpus):
        return sum(min(0.7, float(np.mean(gpus >= gpu))) for gpu in range(1, int(gpus.max()) + 1))

    found = capplan.result(
        "bill", day_and_night[0], "--with", day_and_night[1], "--offline", "--budget", "9000"
    )
    machines = 730.0 * hourly(total)
    assert found["usd_per_month"] == pytest.approx(1.1 * machines + 600.0)
    separate = 730.0 * sum(map(hourly, by_minute))
    assert found["separate_usd_per_month"] == pytest.approx(1.1 * separate + 600.0)
    assert machines < separate
    assert found["over_budget_usd_per_month"] == pytest.approx(found["usd_per_month"] - 9000.0)
    shares = [float(np.mean(total >= gpu)) for gpu in range(1, int(total.max()) + 1)]
    reserved = [share for share in shares if share > 0.7]
    assert found["rates"]["coverage_fraction"] == pytest.approx(sum(reserved) / sum(shares))
    assert found["rates"]["utilisation_fraction"] == pytest.approx(sum(reserved) / len(reserved))
    assert found["rates"]["effective_savings_fraction"] == pytest.approx(1.0 - hourly(total) / sum(shares))


def test_a_budget_that_is_too_small_is_an_exit_code(capplan, day_and_night):
    ran = capplan("bill", day_and_night[0], "--with", day_and_night[1], "--offline", "--budget", "100")
    assert ran.code == 4
    assert "the budget of all services is $100 per month" in ran.out


def test_services_with_other_commitments_share_nothing(capplan, day_and_night):
    path = day_and_night[1]
    path.write_text(path.read_text().replace("30 %", "40 %"))
    ran = capplan("bill", day_and_night[0], "--with", path, "--offline")
    assert ran.code == 2
    assert "has other commitments than day" in ran.err


def test_services_on_machines_that_are_there_already_share_what_is_free(capplan, tmp_path):
    paths = []
    for name in ("a", "b"):
        paths.append(tmp_path / f"{name}.yaml")
        owned = SCENARIO.format(name=name, curve="evening").replace("fleet: {", "fleet: {own: {4 x l4: 20}, ")
        paths[-1].write_text(owned.replace("per_gpu_hour: {l4: 1 $/h}, ", ""))
    result = capplan.result("bill", paths[0], "--with", paths[1], "--offline")
    costs = [(service["separate_usd"], service["shared_usd"]) for service in result["services"]]
    assert costs == [(pytest.approx(300.0), pytest.approx(300.0))] * 2  # people
