"""Laws of the load over a day: what a scenario says of its mean rate, and what follows for the records."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.readers.yaml_file import Document
from capplan.recorded.traces.trace import read_trace
from capplan.scenario.scenario import scenario_from
from capplan.scenario.scenario_file import Fleet
from capplan.scenario.traffic import rate_line
from capplan.workload.daily_curve import HOURS, SHAPES, active_for
from capplan.workload.request_class import Slo

pytestmark = pytest.mark.usefixtures("shared_runs")

PEAK = 20.0
LENGTHS = {"input_tokens": 100, "output_tokens": 10}
AT_ALL_HOURS = "traffic is at its peak at all hours"


def scenario(tmp_path, *traffic, **sections):
    items = [{"name": f"kind {index}", **LENGTHS, **item} for index, item in enumerate(traffic)]
    value = {"name": "day", "model": "llama-3.1-8b", "traffic": items, **sections}
    return scenario_from(Document("day.yaml", value, {}), tmp_path)


def stated(found):
    return {assumption.what: assumption.replace for assumption in found.assumptions}


def only(tmp_path_factory, **item):
    (found,) = scenario(tmp_path_factory.getbasetemp(), {"request_rate": PEAK, **item}).classes
    return found


CURVES = st.lists(st.floats(0.0, 1e6), min_size=HOURS, max_size=HOURS).filter(lambda rates: max(rates) > 1e-6)


@given(rates=CURVES)
def test_a_curve_is_scaled_to_the_peak_and_keeps_its_mean_over_its_maximum(rates, tmp_path_factory):
    found = only(tmp_path_factory, daily_curve=rates)
    assert max(found.hourly_rate_fractions) == 1.0
    assert found.mean_rate_fraction == pytest.approx(np.mean(rates) / np.max(rates))


@given(fraction=st.floats(1e-6, 1.0))
def test_a_mean_rate_is_a_share_of_the_peak(fraction, tmp_path_factory):
    found = only(tmp_path_factory, mean_rate=f"{fraction * PEAK} req/s")
    assert found.mean_rate_fraction == pytest.approx(fraction)
    assert found.request_rate_per_s == PEAK


@given(hours=st.floats(0.01, 24.0))
def test_active_hours_are_a_share_of_the_day(hours, tmp_path_factory):
    found = only(tmp_path_factory, active_hours=hours)
    assert found.mean_rate_fraction == pytest.approx(hours / 24.0)
    assert sum(active_for(hours)) == pytest.approx(hours)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_24_rates_whose_largest_is_the_peak(name, tmp_path):
    (found,) = scenario(tmp_path, {"request_rate": PEAK, "daily_curve": name}).classes
    assert found.hourly_rate_fractions == SHAPES[name]
    assert (len(SHAPES[name]), max(SHAPES[name])) == (24, 1.0)
    assert min(SHAPES[name]) > 0.0


def test_what_is_said_of_the_mean_takes_the_assumption_away(tmp_path):
    silent = stated(scenario(tmp_path, {"request_rate": PEAK}))
    assert silent[f"kind 0: {AT_ALL_HOURS}"] == "traffic[0].mean_rate, traffic[0].daily_curve"
    for said in ({"mean_rate": 5}, {"daily_curve": "office"}, {"active_hours": 24}):
        assert AT_ALL_HOURS not in str(stated(scenario(tmp_path, {"request_rate": PEAK, **said})))


def test_a_day_of_a_curve_is_its_hours_in_minutes(tmp_path):
    found = scenario(tmp_path, {"request_rate": PEAK, "daily_curve": "office"}, {"request_rate": 3.0})
    line = rate_line(found)
    assert line is not None
    assert line.rates_per_s.size == 24 * 60
    assert line.rates_per_s.max() == PEAK + 3.0
    assert line.mean_per_s == pytest.approx(PEAK * np.mean(SHAPES["office"]) + 3.0)
    assert line.rates_per_s[10 * 60 + 30] == PEAK + 3.0


def test_users_follow_a_curve(tmp_path):
    (found,) = scenario(tmp_path, {"users": 100, "think_time": "10 s", "daily_curve": "evening"}).classes
    assert found.mean_rate_fraction == pytest.approx(np.mean(SHAPES["evening"]))


def test_a_trace_has_its_own_mean_unless_the_scenario_says_another(tmp_path):
    minutes = (3, 3, 30, 5, 3, 50, 3, 3)
    rows = [f"{60 * m + 60 * i / n},900,180" for m, n in enumerate(minutes) for i in range(n)]
    (tmp_path / "day.csv").write_text(
        "\n".join(["arrival_s,input_tokens,output_tokens", *rows, "480,900,200"])
    )
    trace = read_trace(tmp_path / "day.csv")
    found = scenario(tmp_path, {"trace": "day.csv"})
    (own,) = found.classes
    assert own.request_rate_per_s * own.mean_rate_fraction == pytest.approx(trace.mean_request_rate_per_s)
    assert "kind 0: mean rate 0.2104 req/s, from the trace" in stated(found)
    (other,) = scenario(tmp_path, {"trace": "day.csv", "mean_rate": 0.01}).classes
    assert other.request_rate_per_s * other.mean_rate_fraction == pytest.approx(0.01)


def test_a_workload_has_the_mean_of_its_hours(tmp_path):
    (tmp_path / "w.yaml").write_text(
        "name: w\nrequests: 100\nseconds: 100\n"
        "traffic: [{request_rate: 4 req/s, input_tokens: 100, output_tokens: 10}]\nrate_by_hour: [1, 3]\n"
    )
    (found,) = scenario(tmp_path, {"trace": "w.yaml"}).classes
    assert found.mean_rate_fraction == 0.5
    (tmp_path / "w.yaml").write_text((tmp_path / "w.yaml").read_text().replace("rate_by_hour: [1, 3]", ""))
    (found,) = scenario(tmp_path, {"trace": "w.yaml"}).classes
    assert found.mean_rate_fraction == 0.25
    (tmp_path / "w.yaml").write_text((tmp_path / "w.yaml").read_text().replace("[{", "[{active_hours: 12, "))
    (found,) = scenario(tmp_path, {"trace": "w.yaml"}).classes
    assert found.mean_rate_fraction == 0.5
    (found,) = scenario(tmp_path, {"trace": "w.yaml", "mean_rate": 3}).classes
    assert found.mean_rate_fraction == 0.75


JOB = {"requests": 1000, "within": "1 h"}


@pytest.mark.parametrize(
    ("traffic", "spares"),
    [([JOB], 0), ([JOB, JOB], 0), ([JOB, {"request_rate": 1}], 1), ([{"request_rate": 1}], 1)],
)
def test_jobs_alone_need_no_spare(traffic, spares, tmp_path):
    found = scenario(tmp_path, *traffic)
    assert found.fleet.survive.count == spares
    assert [item.job_requests for item in found.classes] == [item.get("requests") for item in traffic]
    assert any(
        "fail" in what or ("gone" in what and key == "fleet.survive") for what, key in stated(found).items()
    )
    assert scenario(tmp_path, *traffic, fleet={"spare_replicas": 2}).fleet.survive.count == 2


@pytest.mark.parametrize(
    "routing", ["round_robin", "random", "least_loaded", "reported_load", "prefix_aware", "gpu_prefix_aware"]
)
def test_a_router_that_is_named_is_taken(routing, tmp_path):
    found = scenario(tmp_path, {"request_rate": 1}, fleet={"routing": routing})
    assert found.file.fleet.routing == routing
    assert "fleet.routing" not in stated(found).values()


def test_the_router_of_the_engines_stands_in(tmp_path):
    assert Fleet().routing is None
    silent = scenario(tmp_path, {"request_rate": 1})
    assert silent.file.fleet.routing is None
    assert [what for what, key in stated(silent).items() if key == "fleet.routing"] == [
        "requests are routed to the replicas in turn (round-robin), the default of the vLLM production stack's router"
    ]


def test_targets_hold_in_four_of_five_cases_unless_said_otherwise(tmp_path):
    slo = {"ttft_p95": "1 s"}
    assert Slo().confidence == 0.8
    silent = scenario(tmp_path, {"request_rate": 1}, slo=slo)
    assert silent.slo.confidence == 0.8
    assert any("80%" in what and key == "slo.confidence" for what, key in stated(silent).items())
    assert scenario(tmp_path, {"request_rate": 1}, slo=slo | {"confidence": "50 %"}).slo.confidence == 0.5


PREFIX = {"tokens": 1200, "hit_fraction": 0.85}


def test_prompts_that_cannot_hold_the_shared_prefix_are_warned_of_with_the_figures(tmp_path):
    """Lognormal prompts with a mean of 1,800 and a p95 of 6,000: 57 % are shorter than 1,200 tokens."""
    said = {"request_rate": 1, "input_tokens": {"mean": 1800, "p95": 6000}, "shared_prefix": PREFIX}
    (warning,) = scenario(tmp_path, said).warnings
    assert warning.startswith("kind 0: 57% of the prompts do not exceed the shared prefix of 1,200 tokens")
    assert "710 tokens are cached on average, not 1,200 x 85% = 1,020; " in warning
    assert warning.endswith("input_tokens with min: 1201")


@pytest.mark.parametrize(
    "lengths",
    [1201, {"values": [1300, 5000]}, {"min": 1201, "max": 4000}, {"p50": 1500, "p95": 6000, "min": 1201}],
)
def test_prompts_that_contain_the_shared_prefix_find_all_of_it(lengths, tmp_path):
    found = scenario(tmp_path, {"request_rate": 1, "input_tokens": lengths, "shared_prefix": PREFIX})
    assert found.warnings == ()
    assert found.classes[0].cached_input_tokens == pytest.approx(1020)


@pytest.mark.parametrize(
    ("cut", "mean"), [("min: 1201", "2,164"), ("max: 7000", "1,616"), ("max: 60000", "")]
)
def test_a_cut_that_moves_the_stated_mean_is_warned_of(cut, mean, tmp_path):
    key, value = cut.split(": ")
    said = {"request_rate": 1, "input_tokens": {"mean": 1800, "p95": 6000, key: int(value)}}
    warnings = scenario(tmp_path, said).warnings
    assert [f"{mean} tokens" in warning for warning in warnings] == [True] * bool(mean)
    assert all(f"kind 0: {key} moves the mean of input_tokens from 1,800" in warning for warning in warnings)


def test_a_warning_of_the_reading_is_one_of_the_answer(tmp_path, capplan):
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\nmodel: llama-3.1-8b\nfleet: {hardware: [h100], tensor_parallel: 1, pipeline_parallel: 1}\n"
        "traffic: [{request_rate: 1, input_tokens: {mean: 1800, p95: 6000}, output_tokens: 9, "
        "shared_prefix: {tokens: 1200, hit_fraction: 85 %}}]\n"
    )
    assert "warning: requests: 57% of the prompts" in capplan("fleet", str(path), "--offline").err
