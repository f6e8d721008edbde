"""What `levers` says of a change is true: why it takes more GPUs, and that it can be made at all."""

import re

import pytest

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
LONG_PROMPTS = """name: prompts
model: llama-3.1-8b
weight_dtype: fp8
traffic: [{name: rag, request_rate: 40 req/s, input_tokens: {mean: 4000, p95: 9000}, output_tokens: 60}]
slo: {ttft_p95: 600 ms, tpot_p95: 60 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: 1, spare_replicas: 0, headroom: 0 %}
prices: {per_gpu_hour: {h100-sxm: 4 $/h}}
"""
NEAR_PEAK = """name: steady
model: llama-3.1-8b
traffic: [{name: chat, request_rate: 40 req/s, mean_rate: 39 req/s, input_tokens: 900, output_tokens: 150}]
slo: {ttft_p95: 1 s, tpot_p95: 40 ms}
fleet: {hardware: [l40s], spare_replicas: 0}
prices: {per_gpu_hour: {l40s: 1 $/h}}
"""


@pytest.fixture
def rows(capplan, tmp_path):
    path = tmp_path / "scenario.yaml"

    def of(text, lever):
        path.write_text(text)
        return capplan.result("levers", path, "--lever", lever, "--offline")["levers"]

    return of


def test_a_change_that_takes_more_gpus_says_which_target_it_would_miss_and_by_how_much(rows):
    """Weights in int4 are multiplied in 16 bits after they are unpacked, so prompts take about twice as long as in fp8."""
    found = {row["change"]: row for row in rows(LONG_PROMPTS, "weight-dtype")}
    int4 = found["weights in int4"]
    assert int4["usd_per_month_saved"] < 0
    value, before, limit = (
        float(number.replace(",", "")) for number in re.findall(r"([\d,.]+) ms", int4["dearer"])
    )
    target = int4["dearer"].partition(" of ")[0]
    assert limit == {"ttft_p95": 600.0, "tpot_p95": 60.0}[target]
    assert before <= limit < value
    for row in found.values():
        assert bool(row["dearer"]) == bool(row["usd_per_month_saved"] and row["usd_per_month_saved"] < 0)


def test_admission_control_is_tried_where_the_mean_is_near_the_peak(rows):
    """What is refused above 95 % of the peak is missing from the mean too."""
    (row,) = rows(NEAR_PEAK, "admission-control")
    assert row["applicable"], row["reason"]
    assert "traffic[0].mean_rate=38.0 req/s" in row["settings"]
