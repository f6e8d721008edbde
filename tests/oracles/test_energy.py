"""Energy against worked examples, occupancy drawn at random, and racks filled one by one."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.money.energy import (
    EnergyTerms,
    Servers,
    energy_of,
    kwh_per_million_tokens,
    occupied_fraction,
    servers_of,
)

pytestmark = pytest.mark.usefixtures("shared_runs")
TERMS = EnergyTerms(80.0, 420.0, 650.0, 200.0, 1.25, 0.4, 0.1, 40_000.0)


@pytest.mark.parametrize(("rate", "seconds"), [(0.05, 8.0), (0.4, 3.0), (2.0, 1.5)])
def test_occupancy_agrees_with_requests_drawn_one_by_one(rate, seconds):
    """Poisson arrivals, each in the replica for an exponential time: share of the time with at least one."""
    random = np.random.default_rng(5)
    arrival = np.cumsum(random.exponential(1 / rate, 200_000))
    end = np.maximum.accumulate(arrival + random.exponential(seconds, arrival.size))
    idle = np.maximum(arrival[1:] - end[:-1], 0.0).sum() / (arrival[-1] - arrival[0])
    assert occupied_fraction(rate * seconds) == pytest.approx(1 - idle, abs=0.005)


def test_energy_by_hand():
    """8 busy devices prefill a quarter and decode half of the time, 2 spares wait: 8 x (162.5 + 210 + 20) + 2 x 80 W."""
    energy = energy_of(np.full(24, 0.25), np.full(24, 0.75), 8, 2, 9000.0, TERMS, (900.0, 100.0), ())
    assert energy.gpu_watts == pytest.approx(8 * (0.25 * 650 + 0.5 * 420 + 0.25 * 80) + 2 * 80)
    assert energy.server_watts == pytest.approx(energy.gpu_watts + 10 * 200)
    assert energy.facility_watts == pytest.approx(1.25 * energy.server_watts)
    assert energy.kwh == pytest.approx(energy.facility_watts * 0.73)
    assert energy.usd == pytest.approx(energy.kwh * 0.1)
    assert energy.kg_co2 == pytest.approx(energy.kwh * 0.4)
    assert energy.joules_per_output_token == pytest.approx(energy.facility_watts / 100)
    assert energy.kwh_per_million_tokens == pytest.approx(energy.facility_watts / 1000 / 3.6)
    assert [phase["time_fraction"] for phase in energy.phases] == pytest.approx([0.2, 0.4, 0.4])


@pytest.mark.long
def test_a_batch_job_takes_energy_until_it_is_done(capplan):
    """Ten hours of the mean power, and as much for each of its tokens as their number says."""
    energy = capplan.result(
        "fleet scenarios/batch-summaries.yaml --offline --set 'energy.grid=380 g/kWh' --set 'prices.electricity=0.14 $/kWh'",
    )["energy"]
    assert energy["kwh_per_job"] == pytest.approx(energy["facility_watts"] * 10 / 1000)
    assert energy["kwh_per_job"] == pytest.approx(energy["kwh_per_million_output_tokens"] * 2 * 290, rel=1e-6)
    assert energy["kg_co2_per_job"] == pytest.approx(0.38 * energy["kwh_per_job"])
    assert energy["electricity_usd_per_job"] == pytest.approx(0.14 * energy["kwh_per_job"])
    assert "kwh_per_month" not in energy


@pytest.mark.parametrize(
    ("watts", "tokens_per_s", "joules", "kwh"),
    [(1500.0, 41.8, 36.0, 10.0), (3000.0, 41.8, 72.0, 20.0), (1500.0, 156.0, 9.6, 2.7)],
)
def test_published_energy_of_a_token_on_four_h100(watts, tokens_per_s, joules, kwh):
    """J and kWh per million at 1.5 and 3 kW, batches of 1 and 8: https://clune.org/posts/per-token-energy-costs-again."""
    assert watts / tokens_per_s == pytest.approx(joules, rel=0.01)
    assert kwh_per_million_tokens(watts, tokens_per_s) == pytest.approx(kwh, rel=0.02)


@given(st.integers(1, 400), st.integers(1, 16), st.floats(5e3, 2e5))
def test_racks_agree_with_servers_placed_one_by_one(gpus, per_server, limit):
    terms = EnergyTerms(80.0, 420.0, 650.0, 200.0, rack_limit_watts=limit)
    server = per_server * 900.0
    servers = servers_of("", "gpu", -(-gpus // per_server), per_server, server, limit)
    energy = energy_of(np.zeros(24), np.zeros(24), gpus, 0, 900.0 * gpus, terms, (1.0, 1.0), (servers,))
    if server > limit:
        assert (energy.racks, energy.gpus_per_rack) == (None, 0)
        return
    racks, room, placed = 0, 0.0, 0
    while placed < gpus:
        if room < server * (1 - 1e-12):
            racks, room = racks + 1, limit
        placed, room = placed + per_server, room - server
    assert energy.racks == racks
    assert energy.rack_watts <= limit * (1 + 1e-9)


def test_kinds_of_servers_fill_racks_of_their_own():
    """Five servers of 10 kW and three of 7 kW, 40 kW a rack: 4 and 5 to a rack, so 2 and 1 racks, the fuller of 40 kW."""
    servers = (Servers("large", "gpu", 5, 8, 10_000.0, 4), Servers("small", "gpu", 3, 4, 7000.0, 5))
    energy = energy_of(np.zeros(24), np.zeros(24), 52, 0, 71_000.0, TERMS, (1.0, 1.0), servers)
    assert (energy.racks, energy.rack_watts, energy.gpus_per_rack) == (3, 40_000.0, 32)


SMALL = "tests/golden/small.yaml"


@pytest.mark.long
def test_servers_of_the_order_are_those_at_the_wall(capplan):
    """A DGX B200 draws 14.3 kW as its catalogue entry says: two of them in a rack of 30 kW, none in one of 10 kW."""
    own = ("--set", "fleet.hardware=b200", "--set", "fleet.own={NVIDIA DGX B200: 4}")

    def fleet(limit):
        return capplan(
            "fleet", SMALL, "--offline", "--format", "json", *own, "--set", f"energy.rack_limit={limit}"
        )

    result = json.loads(fleet("30 kW").out)["result"]
    energy, (line,) = result["energy"], result["chosen"]["order"]["machines"]
    (servers,) = energy["servers"]
    assert (servers["sku"], servers["watts"], servers["per_rack"]) == ("NVIDIA DGX B200", 14_300.0, 2)
    assert servers["count"] == line["count"]
    assert energy["design_watts"] == pytest.approx(14_300.0 * line["count"])
    assert energy["racks"] == -(-line["count"] // 2)
    assert energy["rack_watts"] == 28_600.0
    host = 14_300.0 / 8 - 1000.0
    idle = [phase for phase in energy["phases"] if phase["phase"] == "idle"]
    assert energy["server_watts"] == pytest.approx(energy["gpu_watts"] + host * 8 * line["count"])
    assert idle[0]["time_fraction"] > 0.5
    assert "one NVIDIA DGX B200 draws 14,300 W, more than the 10,000 W of a rack" in fleet("10 kW").err


@pytest.mark.long
def test_a_server_that_no_rack_takes_is_said(capplan):
    ran = capplan("fleet", SMALL, "--offline", "--set", "energy.rack_limit=1 kW")
    assert ran.code == 0
    assert (
        "energy.rack_limit: one server of 8 x l40s draws 3,780 W, more than the 1,000 W of a rack" in ran.err
    )


@pytest.mark.long
def test_less_traffic_takes_less_power_and_more_energy_a_token(capplan):
    def energy(*settings):
        words = [part for setting in settings for part in ("--set", setting)]
        return capplan.result("fleet", SMALL, "--offline", "--set", "energy={}", *words)["energy"]

    busy, quiet = energy(), energy("traffic[0].mean_rate=1 req/s")
    assert quiet["gpu_watts"] < busy["gpu_watts"]
    assert quiet["joules_per_output_token"] > busy["joules_per_output_token"]


@pytest.mark.parametrize(("idle", "warned"), [("90 %", True), ("20 %", False)])
def test_a_device_that_draws_more_while_it_waits_is_warned_of(capplan, idle, warned):
    ran = capplan("fleet", SMALL, "--offline", "--set", f"energy.idle={idle}")
    assert ran.code == 0
    assert ("a device that waits draws" in ran.err + ran.out) == warned
