"""Regions: curves in UTC, the busiest hour against every hour, and fleets against ordinary scenarios of the same requests."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from capplan.fleet.load.waits import WaitedTimes, Waits
from capplan.fleet.search.latencies import Seen, latencies_of
from capplan.library.simulated_fleet import SimulationRecords, simulation
from capplan.questions.fleet_answer import fleet_for
from capplan.readers.plan_file import read_plan_file
from capplan.scenario.scenario import read_scenario
from capplan.serving.outcome import WeightedHistogram, spread
from capplan.workload.daily_curve import HOURS, LEAST_PART, OFFICE, in_utc, together_at_peak
from capplan.workload.length import fixed
from capplan.workload.request_class import Outside, RequestClass, Target
from tests.asked import asked_of, fleet_of
from tests.files import file_with

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
LENGTHS = "input_tokens: {mean: 400, p95: 1200}, output_tokens: {mean: 100, p95: 300}"
SUN = f"""name: sun
model: qwen3-0.6b
traffic:
  - {{name: west, region: america, request_rate: 200 req/s, daily_curve: office, {LENGTHS}}}
  - {{name: middle, region: europe, request_rate: 300 req/s, daily_curve: office, {LENGTHS}}}
  - {{name: east, region: asia, request_rate: 200 req/s, daily_curve: office, {LENGTHS}}}
regions:
  - {{name: america, utc_offset: -5, delay: {{europe: 90 ms, asia: 180 ms}}, grid: 400 g/kWh, electricity: 0.20 $/kWh}}
  - {{name: europe, utc_offset: 1, delay: {{asia: 160 ms}}, grid: 200 g/kWh, electricity: 0.30 $/kWh}}
  - {{name: asia, utc_offset: 9, grid: 500 g/kWh, electricity: 0.10 $/kWh}}
slo: {{ttft_p95: 400 ms, tpot_p95: 20 ms}}
fleet: {{hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1, survive: {{replica: 0}}}}
prices: {{per_gpu_hour: {{l40s: 1 $/h}}}}
energy: {{}}
"""
CURVE = st.lists(st.floats(0.0, 1.0), min_size=HOURS, max_size=HOURS)


@given(CURVE, st.integers(-48, 56).map(lambda quarters: quarters / 4))
def test_a_curve_in_utc_is_the_local_one_by_the_minute(curve, ahead):
    """Sixty rates an hour, taken by the clock: their mean over an hour of UTC."""
    minutes = np.array(curve).repeat(60)
    shifted = np.roll(minutes, -round(60 * ahead)).reshape(HOURS, 60).mean(axis=1)
    assert in_utc(curve, ahead) == pytest.approx(shifted.tolist(), abs=1e-12)


@st.composite
def several(draw):
    count = draw(st.integers(1, 4))
    curves = draw(arrays(float, (count, HOURS), elements=st.floats(0.0, 1.0)))
    curves[np.arange(count), draw(st.lists(st.integers(0, 23), min_size=count, max_size=count))] = 1.0
    return curves, draw(arrays(float, (count, 3), elements=st.floats(0.1, 100.0)))


@given(several())
def test_no_hour_has_more_work_of_any_kind_than_the_peak(drawn):
    curves, work = drawn
    parts, hour = together_at_peak(curves, work)
    for place in range(HOURS):
        assert np.all(work.T @ curves[:, place] <= work.T @ parts + 1e-6)
    assert np.all((parts >= LEAST_PART) & (parts <= 1.0))
    assert hour is None or 0 <= hour < HOURS


@given(several())
def test_of_equal_lengths_the_peak_is_the_busiest_hour(drawn):
    curves, work = drawn
    equal = work[:, :1] * np.array([1.0, 400.0, 100.0])
    parts, hour = together_at_peak(curves, equal)
    assert hour is not None
    assert parts == pytest.approx(np.maximum(curves[:, hour], LEAST_PART))
    assert curves[:, hour] @ equal[:, 0] == pytest.approx((curves.T @ equal[:, 0]).max())


sun = file_with(SUN, "sun.yaml")


def rates_in_utc():
    """Return the request rates of all classes in every hour of UTC, worked out by hand."""
    return np.array(
        [
            [rate * OFFICE[(hour + offset) % HOURS] for hour in range(HOURS)]
            for rate, offset in ((200, -5), (300, 1), (200, 9))
        ]
    )


def test_one_fleet_for_all_is_sized_for_the_busiest_hour_of_all(sun):
    scenario, hourly = read_scenario(sun), rates_in_utc()
    busiest = int(hourly.sum(axis=0).argmax())
    rates = [item.request_rate_at() for item in scenario.classes]
    assert rates == pytest.approx(hourly[:, busiest].tolist())
    assert sum(rates) < 500 < hourly.max(axis=1).sum()
    for item, line in zip(scenario.classes, hourly, strict=True):
        assert np.array(item.hourly_rate_fractions) * item.request_rate_at() == pytest.approx(line)
        assert item.mean_rate_fraction * item.request_rate_at() == pytest.approx(line.mean())
    assert "all machines are in europe" in " ".join(item.what for item in scenario.assumptions)


def answer(capplan, command, path, *settings):
    words = [word for setting in settings for word in ("--set", setting)]
    return capplan.result(command, path, "--offline", "--format", "json", *words)


def test_a_fleet_for_all_is_that_of_an_ordinary_scenario_with_the_delay_written_by_hand(
    capplan, sun, tmp_path
):
    """Machines in Europe: 90 ms from America and 160 ms from Asia, before the prompt arrives."""
    hourly = rates_in_utc()
    rates = hourly[:, int(hourly.sum(axis=0).argmax())]
    plain = tmp_path / "plain.yaml"
    lines = "\n".join(
        f"  - {{name: {name}, request_rate: {rate}, mean_rate: {min(line.mean(), rate)}, outside: {{time: {delay} ms}}, {LENGTHS}}}"
        for name, rate, line, delay in zip(
            ("west", "middle", "east"), rates, hourly, (90, 0, 160), strict=True
        )
    )
    prices = "prices: {electricity: 0.30 $/kWh, per_gpu_hour"
    text = SUN[: SUN.index("  - {name: west")] + lines + "\n" + SUN[SUN.index("slo:") :]
    plain.write_text(text.replace("prices: {per_gpu_hour", prices))
    by_hand, found = (answer(capplan, "fleet", path)["chosen"] for path in (plain, sun))
    for key in (
        "gpus",
        "usd_per_month",
        "ttft_s",
        "tpot_s",
        "slo_met_probability",
        "request_rate_per_replica",
    ):
        assert found[key] == pytest.approx(by_hand[key]), key


def test_the_fleet_of_a_region_is_that_of_its_own_users(capplan, sun, tmp_path):
    alone = tmp_path / "alone.yaml"
    west = SUN[SUN.index("  - {name: west") : SUN.index("  - {name: middle")].replace("region: america, ", "")
    text = SUN[: SUN.index("  - {name: west")] + west + SUN[SUN.index("slo:") :]
    alone.write_text(text.replace("prices: {per", "prices: {electricity: 0.20 $/kWh, per"))
    by_hand = answer(capplan, "fleet", alone)["chosen"]
    found = answer(capplan, "fleet", sun, "fleet.location=america", "fleet.serves=location")["chosen"]
    for key in ("gpus", "usd_per_month", "ttft_s", "tpot_s", "slo_met_probability"):
        assert found[key] == pytest.approx(by_hand[key]), key


@pytest.mark.long
def test_levers_compare_a_fleet_in_each_region_with_one_for_all(capplan, sun):
    found = capplan.result("levers", sun, "--lever", "regions", "--offline")
    rows = {row["change"].partition(":")[0]: row for row in found["levers"]}
    names = ("america", "europe", "asia")
    assert set(rows) == {
        "one fleet for all users, in america",
        "one fleet for all users, in asia",
        "a fleet in each region",
    }
    for name in ("america", "asia"):
        chosen = answer(capplan, "fleet", sun, f"fleet.location={name}")
        row = rows[f"one fleet for all users, in {name}"]
        assert row["usd_per_month"] == pytest.approx(chosen["chosen"]["usd_per_month"])
        assert row["kg_co2_per_month"] == pytest.approx(chosen["energy"]["kg_co2_per_month"])
        assert row["settings"] == [f'fleet.location="{name}"']
    each = [
        answer(capplan, "fleet", sun, f"fleet.location={name}", "fleet.serves=location") for name in names
    ]
    row = rows["a fleet in each region"]
    assert row["usd_per_month"] == pytest.approx(sum(one["chosen"]["usd_per_month"] for one in each))
    assert row["gpus"] == sum(one["chosen"]["gpus"] for one in each)
    assert row["kg_co2_per_month"] == pytest.approx(sum(one["energy"]["kg_co2_per_month"] for one in each))
    assert row["gpus"] > found["base"]["gpus"]  # offices that are open in turn share one fleet
    for name, one in zip(names, each, strict=True):
        assert f"{one['chosen']['gpus']} x l40s in {name}" in row["change"]


def test_carbon_and_electricity_are_those_of_the_place(capplan, sun):
    here, there = (
        answer(capplan, "fleet", sun, f"fleet.location={name}", "slo.ttft_p95=9 s")
        for name in ("europe", "asia")
    )
    if here["chosen"]["gpus"] == there["chosen"]["gpus"]:
        ratio = there["energy"]["kg_co2_per_month"] / here["energy"]["kg_co2_per_month"]
        assert ratio == pytest.approx(500 / 200, rel=0.01)
    each = [one["chosen"]["energy_usd_per_hour"] / one["chosen"]["gpus"] for one in (here, there)]
    assert each[0] == pytest.approx(3 * each[1])


def test_machines_are_ordered_in_the_region(capplan, tmp_path):
    path = tmp_path / "offers.yaml"
    path.write_text(
        SUN.replace("{name: europe,", "{name: europe, offers: [us-east-1],").replace("prices: {per_gpu_hour: {l40s: 1 $/h}}", "prices: {}")
    )  # fmt: skip
    order = answer(capplan, "fleet", path)["chosen"]["order"]
    assert {line["region"] for line in order["machines"]} == {"us-east-1"}


@pytest.mark.long
def test_a_plan_file_stands_for_its_region(capplan, sun, tmp_path):
    plan = tmp_path / "plan.json"
    assert capplan("fleet", sun, "--offline", "--set", "fleet.location=asia", "-o", plan).code == 0
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    ran = capplan(
        "check", sun, "--plan", plan, "--offline", "--set", "fleet.location=asia", "--format", "json"
    )
    assert ran.code == 0, ran.err
    bill = json.loads(capplan("bill", "--plan", plan, "--offline", "--format", "json").out)["result"]
    assert bill["usd_per_month"] == pytest.approx(chosen["usd_per_month"])
    assert "Where machines are" in capplan("levers", "--plan", plan, "--lever", "regions", "--offline").out
    levers = capplan("levers", "--plan", plan, "--lever", "regions", "--offline", "--format", "json")
    changes = [row["change"] for row in json.loads(levers.out)["result"]["levers"]]
    assert "one fleet for all users, in asia" not in changes
    assert "one fleet for all users, in europe" in changes


def test_users_of_a_region_are_whole(tmp_path):
    path = tmp_path / "users.yaml"
    path.write_text(SUN.replace("request_rate: 200 req/s", "users: 2001, think_time: 10 s", 1))
    west = read_scenario(path, ("fleet.location=asia",)).classes[0]
    assert west.users == round(west.users) < 2001
    assert west.think_time_s == pytest.approx(10.18)
    assert west.users * max(west.hourly_rate_fractions) == pytest.approx(2001)


def test_a_scenario_of_no_regions_says_so_as_a_lever(capplan):
    (row,) = capplan.result("levers", "tests/golden/small.yaml", "--lever", "regions", "--offline")["levers"]
    assert (row["applicable"], "fewer than two regions" in row["reason"]) == (False, True)


def test_a_region_without_users_may_have_the_machines_of_all_and_none_of_its_own(capplan, tmp_path):
    path = tmp_path / "four.yaml"
    path.write_text(
        SUN.replace("slo:", "  - {name: north, utc_offset: 0, delay: {america: 80 ms, europe: 30 ms, asia: 170 ms}}\nslo:")
    )  # fmt: skip
    assert answer(capplan, "fleet", path, "fleet.location=north")["chosen"]["gpus"] > 0
    ran = capplan(
        "fleet", path, "--offline", "--set", "fleet.location=north", "--set", "fleet.serves=location"
    )
    assert (ran.code, "no traffic is from north; name another fleet.location" in ran.err) == (2, True)


NEAR_LIMIT = SUN.replace("ttft_p95: 400 ms, tpot_p95: 20 ms", "ttft_p95: 190 ms, tpot_p95: 60 ms").replace("survive:", "location: north, survive:").replace(
    "slo:", "  - {name: north, delay: {america: 40 ms, europe: 40 ms, asia: 40 ms}}\nslo:"
)  # fmt: skip
"""Machines in a fourth region, from which nobody sends requests, so that every delay can be set by itself."""


def with_delays(*delays_ms):
    """Return the settings of the round trips from America, Europe and Asia to the machines."""
    names = ("america", "europe", "asia")
    return tuple(f"regions[3].delay.{name}={delay} ms" for name, delay in zip(names, delays_ms, strict=True))


north = file_with(NEAR_LIMIT, "north.yaml")


def chosen_plan_of(path, settings):
    return fleet_of(path, *settings).chosen


def test_equal_delays_are_a_target_that_is_shorter_by_as_much(north):
    """What counted before each region had its own: 190 ms less 40 ms for everyone, to the bit."""
    equal = chosen_plan_of(north, with_delays(40, 40, 40))
    shorter = chosen_plan_of(north, (*with_delays(0, 0, 0), "slo.ttft_p95=150 ms"))
    assert (equal.gpus, equal.usd_per_month, equal.ttft_s) == (
        shorter.gpus,
        shorter.usd_per_month,
        shorter.ttft_s,
    )
    assert equal.slo_met_probability == pytest.approx(shorter.slo_met_probability, rel=1e-9)


def test_the_longest_way_counts_for_its_own_users_alone(north):
    """Of 190 ms, 60 are left to the few requests from Asia; if everybody were as far away, more GPUs would have to answer sooner."""
    settings = ("traffic[2].request_rate=2 req/s",)
    own = chosen_plan_of(north, (*settings, *with_delays(20, 0, 110)))
    every = chosen_plan_of(north, (*settings, *with_delays(110, 110, 110)))
    assert own.usd_per_month < every.usd_per_month


@pytest.mark.long
def test_what_fleet_and_simulate_test_is_each_request_with_the_delay_of_its_region(north):
    settings = with_delays(70, 10, 120)
    asked = asked_of(north, *settings)
    plan = fleet_for(asked).chosen
    run = simulation(asked, fleet_for(asked), SimulationRecords(), offline=True)
    outcome = run.outcome
    names = ("arrival_s", "ttft_s", "tpot_s", "e2e_s", "class_index")
    columns = {name: np.concatenate([getattr(part, name) for part in outcome.parts]) for name in names}
    counted = (columns["arrival_s"] >= outcome.from_s) & (columns["arrival_s"] <= outcome.until_s)
    delays = np.array([0.07, 0.01, 0.12])[columns["class_index"]][counted]
    seen = columns["ttft_s"][counted] + delays
    (target,) = (target for target in asked.scenario.slo.targets if target.metric == "ttft")
    assert outcome.value(target) + target.outside_s == pytest.approx(np.quantile(seen, 0.95))
    assert outcome.seen.e2e_s.p99 == pytest.approx(
        np.quantile(columns["e2e_s"][counted] + delays, 0.99, method="inverted_cdf")
    )
    within = (seen <= 0.19) & (np.nan_to_num(columns["tpot_s"])[counted] <= 0.06)
    assert outcome.all.slo_met_fraction == pytest.approx(within.mean())
    of_class = columns["class_index"][counted]
    hours = np.array([item.hourly_rate_fractions for item in asked.scenario.classes]).T
    worst = max(
        np.quantile(seen, 0.95, weights=hour[of_class], method="inverted_cdf") for hour in hours if hour.any()
    )
    assert worst > np.quantile(
        seen, 0.95
    )  # at the peak few of the requests are from Asia, and later most of them are
    assert plan.value(target) == pytest.approx(worst, rel=0.05)
    assert plan.ttft_s.p95 < plan.seen.ttft_s.p95 <= min(target.stated_s, plan.ttft_s.p95 + 0.12)


def test_slower_steps_lengthen_the_engine_and_not_the_way():
    """Two classes of one request each, and steps that take twice as long: 2 x 1 s + 5 s and 2 x 3 s + 0 s."""
    near = RequestClass("near", fixed(1.0), fixed(1.0), 1.0)
    far = replace(near, name="far", outside=Outside(wait_s=5.0))
    times = np.array([1.0, 3.0])
    seen = Seen(times, times, times, np.array([1, 0]), WeightedHistogram(), 1.0, steady=True, end_s=1.0)
    latencies = latencies_of([(seen, 1.0)], (near, far))
    target = Target("ttft", "mean", limit_s=1.0, outside_s=5.0)
    assert latencies.value(target, 2.0) + 5.0 == pytest.approx((7.0 + 6.0) / 2)
    assert latencies.value(target) + 5.0 == pytest.approx((6.0 + 3.0) / 2)
    excluded = Target("ttft", "mean", limit_s=6.0)
    assert latencies.value(excluded, 2.0) == pytest.approx(4.0)


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 2)), min_size=1, max_size=60),
    st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3),
)
def test_the_users_of_a_class_see_the_percentiles_of_its_own_requests(requests, delays):
    """Counted request by request; a class of which no request came is said to see what all users see."""
    times, of_class = np.array([time for time, _ in requests]), np.array([place for _, place in requests])
    waited = WaitedTimes(Waits(tuple(delays), ((1.0, 1.0, 1.0),)), times, of_class, spread(times))
    for place, seen in enumerate(waited.by_class):
        own = times[of_class == place]
        if not own.size:
            assert seen == waited.spread
            continue
        assert seen.mean == pytest.approx(own.mean() + delays[place])
        for name in ("p50", "p90", "p95", "p99"):
            exact = np.quantile(own, int(name[1:]) / 100, method="inverted_cdf")
            assert getattr(seen, name) == pytest.approx(exact + delays[place])


@pytest.mark.parametrize(
    "quantity", ["outside.seen_by_class_s[2].ttft_s.p95", "outside.seen_by_class_s[0].e2e_s.mean"]
)
def test_what_the_users_of_a_class_see_is_explained(capplan, sun, quantity):
    found = capplan.result("explain", sun, quantity, "--offline")
    assert found["formula"].endswith("of t_i + w over the requests i of the class at the peak")
    waits = [item["value"] for item in found["inputs"] if item["symbol"] == "w_k"]
    assert waits == [0.16 if "[2]" in quantity else 0.09]


@pytest.mark.parametrize("quantity", ["outside.seen_ttft_s.p95", "outside.seen_e2e_s.p50"])
def test_a_percentile_with_unlike_delays_is_explained(capplan, sun, quantity):
    found = capplan.result("explain", sun, quantity, "--offline")
    assert "of t_i + w_k over all requests i" in found["formula"]


@pytest.mark.long
def test_pools_count_each_region_with_its_own_delay(north):
    """Both pools and their link: equal delays are the shorter target; with one region far, users see what the requests say."""
    rates = tuple(f"traffic[{place}].request_rate=20 req/s" for place in range(3))
    pools = ("fleet.disaggregation=only", "fleet.kv_link=pcie", "slo.ttft_p95=400 ms", *rates)
    equal = chosen_plan_of(north, (*pools, *with_delays(40, 40, 40)))
    shorter = chosen_plan_of(north, (*pools, *with_delays(0, 0, 0), "slo.ttft_p95=360 ms"))
    assert (equal.in_service, equal.ttft_s) == (shorter.in_service, shorter.ttft_s)
    far = chosen_plan_of(north, (*pools, *with_delays(20, 0, 300)))
    every = chosen_plan_of(north, (*pools, *with_delays(300, 300, 300)))
    assert far.usd_per_hour <= every.usd_per_hour
    assert far.ttft_s.p95 < far.seen.ttft_s.p95 <= 0.4


@pytest.mark.long
def test_a_plan_file_and_its_page_have_the_delay_of_each_region(capplan, north, tmp_path):
    words = [word for setting in with_delays(70, 10, 120) for word in ("--set", setting)]
    plan = tmp_path / "plan.json"
    assert capplan("fleet", north, "--offline", *words, "-o", plan).code == 0
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    seen = chosen["outside"]["seen_ttft_s"]["p95"]
    page = capplan("report", "--plan", plan, "--offline", "--format", "json")
    assert page.code == 0, page.err
    (margin,) = (row for row in json.loads(page.out)["result"]["margins"][0] if row["target"] == "ttft_p95")
    assert (margin["limit_s"], margin["predicted_s"]) == (pytest.approx(0.19), pytest.approx(seen))
    assert margin["margin_fraction"] == pytest.approx(1 - seen / 0.19)
    check = capplan("check", north, "--plan", plan, "--offline", "--format", "json", *words)
    assert check.code == 0, check.err
    (row,) = (row for row in json.loads(check.out)["result"]["checks"] if row["what"] == "slo.ttft_p95")
    assert (row["limit"], row["value"]) == (pytest.approx(0.19), pytest.approx(seen, rel=1e-6))
    by_class = chosen["outside"]["seen_by_class_s"]
    assert [row["name"] for row in by_class] == ["west", "middle", "east"]
    worst = max(by_class, key=lambda row: row["ttft_s"]["p95"])
    assert worst["name"] == "east"
    ends = [row["ttft_s"]["p95"] - delay for row, delay in zip(by_class, (0.07, 0.01, 0.12), strict=True)]
    assert ends == pytest.approx([chosen["ttft_s"]["p95"]] * 3, rel=0.15)
    text = (
        f"of all classes east sees the largest ttft_p95 at the peak, {1e3 * worst['ttft_s']['p95']:,.0f} ms, "
    )
    assert text in capplan("fleet", north, "--offline", "--full", *words).out
    html = tmp_path / "page.html"
    assert capplan("report", "--plan", plan, "--offline", "-o", html).code == 0
    assert text in html.read_text()
    simulated = capplan("simulate", north, "--offline", *words).out
    assert "the peak is simulated; capplan fleet also tests the hours in which" in simulated
    engine = chosen["ttft_s"]["p95"] + 0.19 - seen
    assert read_plan_file(plan).inputs.targets["ttft_p95"] == pytest.approx(engine)
