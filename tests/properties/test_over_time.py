"""Laws of a fleet over the time of a trace."""

from math import ceil
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capplan.cli.main import main
from capplan.fleet.over_time import (
    RateLine,
    autoscaled_replicas,
    fleet_over_time,
    forecast_replicas,
    paid_replicas,
    replicas_by_window,
)
from capplan.fleet.search.recommended import planned_rate_limit
from capplan.report.answers.fleet_outlook import over_time_result, over_time_tables
from capplan.scenario.scenario import read_scenario
from capplan.scenario.traffic import rate_line
from capplan.serving.steady_state import replicas_over_time

pytestmark = pytest.mark.usefixtures("shared_runs")

needs = st.lists(st.integers(1, 9), min_size=1, max_size=40).map(lambda values: np.array(values))


@settings(deadline=None)
@given(needed=needs, lag=st.integers(0, 5), hold=st.integers(0, 5))
def test_an_autoscaler_is_a_delayed_maximum_worked_out_one_by_one(needed, lag, hold):
    before = [needed[0]] * (lag + hold)
    seen = [*before, *needed]
    byhand = [max(seen[j : j + hold + 1]) for j in range(needed.size)]
    assert autoscaled_replicas(needed, lag, hold).tolist() == byhand
    ahead = [max(needed[j : j + lag + 1]) for j in range(needed.size)]
    assert forecast_replicas(needed, lag).tolist() == ahead


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40),
    st.lists(st.integers(1, 9), min_size=61, max_size=61),
)
def test_a_busier_window_never_has_fewer_replicas_whatever_is_found_at_each_rate(rates, found):
    """Counts of noisy searches: as found in the busiest window, never more than found in any other, and never fewer than at a lower rate."""
    counts = replicas_by_window(np.array(rates, dtype=float), lambda rate: found[int(rate)])
    assert counts.max() == found[max(rates)]
    order = np.argsort(rates, kind="stable")
    assert (np.diff(counts[order]) >= 0).all()
    assert counts[order[0]] == min(found[min(rates)], found[max(rates)])


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 200), min_size=1, max_size=60),
    st.lists(st.floats(0.1, 60), min_size=1, max_size=12),
)
def test_each_window_has_what_a_search_at_its_own_rate_finds(rates, steps):
    """Where more traffic never needs fewer replicas, no window differs from its own search, however few are searched."""
    bounds = np.cumsum(steps)
    asked = []

    def search(rate_per_s):
        asked.append(rate_per_s)
        return 1 + int(np.searchsorted(bounds, rate_per_s))

    counts = replicas_by_window(np.array(rates), search)
    assert counts.tolist() == [1 + int(np.searchsorted(bounds, rate)) for rate in rates]
    assert len(set(asked)) == len(asked) or len(rates) == 1 or len(set(rates)) == 1


def over_time(rates, window_s=60.0, **changes):
    planned = changes.pop("planned", 1.6)
    group = SimpleNamespace(layout=SimpleNamespace(devices=4))
    asked = {"start_up_s": 120.0, "burst_ratio": 1.5} | changes

    def by_the_rate(rate_per_s):
        return int(replicas_over_time(np.array([rate_per_s]), planned)[0])

    return fleet_over_time(group, RateLine(np.array(rates), window_s), by_the_rate, **asked)


rates = st.lists(st.floats(0, 50), min_size=2, max_size=60)


def test_a_step_in_the_rate_is_short_for_as_long_as_a_start_takes():
    """From 1 to 9 req/s after ten minutes; seen after one more minute, served after two more: three of ten minutes short."""
    found = over_time([1.0] * 10 + [9.0] * 10)
    assert found.needed.tolist() == [1] * 10 + [6] * 10
    assert found.autoscaled.tolist() == [1] * 13 + [6] * 7
    assert found.short_fraction == (3 * 9.0) / 100.0
    assert found.static_gpu_hours == 6 * 4 * 20 / 60


@pytest.mark.parametrize("window_s", [20.0, 60.0, 250.0, 700.0])
def test_a_crowd_of_one_window_is_served_late_and_for_five_minutes_more(window_s):
    """Seen at its end, served after a start of two minutes, kept for Kubernetes' 300 s from then on, in whole windows."""
    found = over_time([1.0] * 5 + [9.0] + [1.0] * 60, window_s)
    late, held = 1 + ceil(120 / window_s), ceil(300 / window_s)
    assert found.autoscaled.tolist() == [1] * (5 + late) + [6] * (1 + held) + [1] * (60 - late - held)
    assert found.short_fraction == 9.0 / (65 + 9)
    assert found.foreseen.tolist() == [1] * max(6 - late, 0) + [6] * min(late, 6) + [1] * 60
    assert found.static_gpu_hours == 6 * 4 * 66 * window_s / 3600
    assert found.peak_to_mean_ratio == pytest.approx(9.0 * 66 / 74)
    # A burst of one and a half times the peak: 13.5 over 1.6 for each, rounded up.
    assert [list(row.values()) for row in found.spares] == [
        [k, 6 + k, 4 * (6 + k), 9 + k, 4 * (9 + k)] for k in range(3)
    ]


def test_no_requests_at_all_have_no_peak():
    found = over_time([0.0, 0.0])
    assert (found.short_fraction, found.peak_to_mean_ratio, found.static_replicas) == (0.0, 1.0, 1)


@settings(deadline=None)
@given(values=rates, sure=st.floats(0.2, 3.0))
def test_replicas_over_time_are_the_larger_of_those_for_headroom_and_those_for_confidence(values, sure):
    found, by_headroom, by_confidence = (
        over_time(values, planned=planned_rate_limit(2.0, *terms))
        for terms in ((sure, 0.2), (1e9, 0.2), (sure, 0.0))
    )
    assert (found.needed >= by_headroom.needed).all()
    assert (found.needed >= by_confidence.needed).all()
    assert (
        found.needed == np.maximum(by_headroom.needed, np.maximum(np.ceil(np.array(values) / sure - 1e-9), 1))
    ).all()


def test_fleet_shows_a_trace_over_time(tmp_path, capsys, capplan):
    rows = [f"{t:.2f},{300},{30}" for minute, per in enumerate((20, 20, 90, 20)) for t in np.linspace(minute * 60, minute * 60 + 59, per)]  # fmt: skip
    (tmp_path / "t.csv").write_text(
        "arrival_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n245,300,30\n"
    )
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "name: s\nmodel: llama-3.1-8b\ntraffic: [{trace: t.csv}]\nslo: {ttft_p95: 2 s}\n"
        "fleet: {hardware: [h100-sxm], tensor_parallel: 1, start_up: 2 min, burst: 2}\n"
    )
    line = rate_line(read_scenario(scenario))
    assert (line.rates_per_s * 60).tolist() == [20, 20, 90, 20]
    result = capplan.result("fleet", scenario, "--offline")
    chosen, spares = result["chosen"], result["over_time"]["spares"]
    assert chosen["replicas"] - chosen["spare_replicas"] == spares[0]["burst_replicas"]
    assert spares[0]["replicas"] == result["over_time"]["static_replicas"]
    assert main(["fleet", str(scenario), "--offline", "--full"]) == 0
    shown = capsys.readouterr().out
    assert "peak-to-mean ratio 2.40" in shown
    assert "a burst of 2 times the peak" in shown
    assert "autoscaled on the observed rate" in shown


@settings(deadline=None)
@given(serving=needs, start=st.integers(0, 6))
def test_every_replica_is_paid_for_from_its_decision_until_it_is_let_go(serving, start):
    """Counted replica by replica: the k-th one serves where at least k do, and is paid for through each start before that."""
    paid = np.zeros(serving.size, dtype=int)
    for number in range(1, int(serving.max()) + 1):
        mine = np.zeros(serving.size, dtype=bool)
        for window in np.flatnonzero(serving >= number):
            mine[max(window - start, 0) : window + 1] = True
        paid += mine
    assert paid_replicas(serving, start).tolist() == paid.tolist()


def test_gpu_hours_of_an_autoscaler_hold_the_starts():
    """From 1 to 9 req/s after ten minutes: decided one minute later, paid from there, serving two minutes after that."""
    found = over_time([1.0] * 10 + [9.0] * 10)
    assert found.autoscaled.tolist() == [1] * 13 + [6] * 7
    assert found.paid.tolist() == [1] * 11 + [6] * 9
    assert over_time_result(found)["autoscaled_gpu_hours"] == (11 + 9 * 6) * 4 / 60
    assert next(over_time_tables(found)).rows[1]["gpu_hours"] == (11 + 9 * 6) * 4 / 60


SCENARIO = (
    "name: s\nmodel: llama-3.1-8b\ntraffic:\n- {name: t, trace: t.csv%s}\n- {name: x, request_rate: 2 req/s, input_tokens: 300, "
    "output_tokens: 30}\nslo: {ttft_p95: 2 s}\nfleet: {hardware: [h100-sxm]%s}\n"
)


@pytest.mark.long
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    burst=st.floats(1.0, 100.0),
    more=st.sampled_from(["", ", mean_rate: 1 req/s", ", daily_curve: office", ", active_hours: 10 h"]),
)
def test_a_burst_that_is_given_is_the_peak_and_changes_nothing_else(tmp_path, burst, more):
    """The peak of a trace times the burst; its mean, its hours, its rates over time and other traffic as before."""
    rows = [f"{at:.2f},300,30" for at in np.concatenate([np.linspace(0, 60, 60), np.linspace(60, 121, 200)])]
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    scenarios = []
    for name, fleet in (("a.yaml", ""), ("b.yaml", f", burst: {burst!r}")):
        (tmp_path / name).write_text(SCENARIO % (more, fleet))
        scenarios.append(read_scenario(tmp_path / name))
    (before, other), (after, same) = (found.classes for found in scenarios)
    assert after.request_rate_per_s == pytest.approx(burst * before.request_rate_per_s)
    assert same == other
    for mean in (lambda item: item.mean_rate_fraction, lambda item: np.array(item.hourly_rate_fractions)):
        assert mean(after) * after.request_rate_per_s == pytest.approx(
            mean(before) * before.request_rate_per_s
        )
    lines = [rate_line(found) for found in scenarios]
    assert lines[1].rates_per_s == pytest.approx(lines[0].rates_per_s)
    said = [item.what for found in scenarios for item in found.assumptions if "bursts" in item.what]
    assert said == [f"sized for bursts of {burst:g} times the busiest minute of a trace"]
