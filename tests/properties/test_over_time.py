"""Laws of a fleet over the time of a trace."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.cli.main import main
from capplan.fleet.over_time import (
    RateLine,
    autoscaled_replicas,
    fleet_over_time,
    forecast_replicas,
    replicas_over_time,
)
from capplan.questions.rate_line import rate_line
from capplan.questions.scenario import read_scenario

needs = st.lists(st.integers(1, 9), min_size=1, max_size=40).map(lambda values: np.array(values))


@settings(derandomize=True, deadline=None)
@given(needed=needs, lag=st.integers(0, 5), hold=st.integers(0, 5))
def test_an_autoscaler_is_a_delayed_maximum_worked_out_one_by_one(needed, lag, hold):
    before = [needed[0]] * (lag + hold)
    seen = [*before, *needed]
    byhand = [max(seen[j : j + hold + 1]) for j in range(needed.size)]
    assert autoscaled_replicas(needed, lag, hold).tolist() == byhand
    ahead = [max(needed[j : j + lag + 1]) for j in range(needed.size)]
    assert forecast_replicas(needed, lag).tolist() == ahead


def over_time(rates, **changes):
    plan = SimpleNamespace(request_rate_limit_per_replica=2.0, layout=SimpleNamespace(devices=4))
    asked = {"headroom_fraction": 0.2, "start_up_s": 120.0, "burst_ratio": 1.5} | changes
    return fleet_over_time(plan, RateLine(np.array(rates), 60.0), **asked)


rates = st.lists(st.floats(0, 50), min_size=2, max_size=60)


@settings(derandomize=True, deadline=None)
@given(values=rates)
def test_a_forecast_never_falls_short_and_never_costs_more_than_the_static_fleet(values):
    found = over_time(values)
    assert (found.foreseen >= found.needed).all()
    assert found.static_replicas == found.needed.max()
    assert found.gpu_hours(found.needed) <= found.gpu_hours(found.foreseen) <= found.static_gpu_hours
    assert found.gpu_hours(found.autoscaled) <= found.static_gpu_hours
    assert 0.0 <= found.short_fraction <= 1.0
    assert [row.replicas for row in found.spares] == [found.static_replicas + k for k in (0, 1, 2)]
    assert all(row.burst_replicas >= row.replicas for row in found.spares)


@settings(derandomize=True, deadline=None)
@given(values=rates)
def test_a_slower_start_never_leaves_fewer_requests_short_with_a_forecast_costing_less(values):
    hours = [(found := over_time(values, start_up_s=s)).gpu_hours(found.foreseen) for s in (0.0, 60.0, 600.0)]
    assert hours == sorted(hours)


def test_a_step_in_the_rate_is_short_for_as_long_as_a_start_takes():
    """From 1 to 9 req/s after ten minutes; seen after one more minute, served after two more: three of ten minutes short."""
    found = over_time([1.0] * 10 + [9.0] * 10)
    assert found.needed.tolist() == [1] * 10 + [6] * 10
    assert found.autoscaled.tolist() == [1] * 13 + [6] * 7
    assert found.short_fraction == (3 * 9.0) / 100.0
    assert found.static_gpu_hours == 6 * 4 * 20 / 60


def test_headroom_never_needs_fewer_replicas():
    line = np.array([0.5, 3.0, 7.9])
    assert (replicas_over_time(line, 2.0, 0.5) >= replicas_over_time(line, 2.0, 0.0)).all()


def test_fleet_shows_a_trace_over_time(tmp_path, capsys):
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
    assert main(["fleet", str(scenario), "--offline"]) == 0
    shown = capsys.readouterr().out
    assert "peak to mean 2.40" in shown
    assert "a burst of 2 times the peak" in shown
    assert "autoscaled on what was seen" in shown
