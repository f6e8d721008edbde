"""Growth against the closed form of a geometric progression, a month worked out by hand, and searches of their own."""

from dataclasses import replace
from math import floor, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.fleet.growth import grown_ratios, growth_of
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.money.energy import outlook_of
from capplan.serving.steady_state import replicas_over_time
from tests.asked import asked_of

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
SCENARIO = """name: small
model: meta-llama/Llama-3.1-8B-Instruct
traffic: [{request_rate: 30 req/s, daily_curve: office, input_tokens: 900, output_tokens: 150}]
slo: {ttft_p95: 2 s, tpot_p95: 60 ms}
fleet: {hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 1}
prices: {per_gpu_hour: {l40s: 1 $/h}}
commitments: {reserved_1y: {discount: 40 %}}
growth: {per_month: 7 %, months: 24}
"""


def without_mix(*_):
    return None


def by_the_rate(group):
    """Replicas that all carry as much, whatever their number."""
    each = group.total_rate_per_replica
    return [lambda rate_per_s: int(replicas_over_time(np.array([rate_per_s]), each)[0])]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("growth") / "small.yaml"
    path.write_text(SCENARIO)

    def answer(*settings):
        asked = asked_of(path, *settings)
        return asked, fleet_for(asked)

    return answer


@pytest.fixture(scope="module")
def plan(small):
    return small()[1].chosen


@given(growth=st.floats(0.001, 0.3), carried=st.floats(0.05, 3.0), busy=st.integers(1, 40))
def test_a_plan_is_outgrown_in_the_month_of_the_closed_form(plan, growth, carried, busy):
    """(1 + g)^(m - 1) <= n c / r: the last month that holds is floor(ln(n c / r) / ln(1 + g)) + 1."""
    rate = carried * busy * 0.83
    group = replace(
        plan.single, replicas=busy + 1, spare_replicas=1, request_rate_per_replica=rate / busy,
        planned_request_rate_limit_per_replica=carried,
    )  # fmt: skip
    some = replace(plan, groups=(group,))
    found = growth_of(some, grown_ratios(growth, 120), without_mix, by_the_rate(group))
    room = busy * carried / rate
    lasts = floor(log(room) / log(1 + growth) + 1e-9) + 1
    assert found.outgrown_in_month == (lasts + 1 if lasts < 120 else None)


def test_the_first_month_is_todays_plan_and_its_mix(small):
    asked, answer = small()
    outlook = outlook_of(asked, answer)
    first = outlook.growth.months[0]
    assert (first.replicas, first.added_gpus) == (answer.chosen.replicas, 0)
    assert first.usd_per_month == pytest.approx(answer.chosen.usd_per_month)
    assert first.mix_usd_per_month == pytest.approx(outlook.mixes[0].mix.usd_per_hour * 730)
    assert outlook.growth.mix_usd < outlook.growth.usd


def test_a_later_month_is_what_a_search_at_its_rate_finds(small):
    """The same layout at the rate of month 24, searched anew, needs as many replicas within one."""
    asked, answer = small()
    last = outlook_of(asked, answer).growth.months[-1]
    _, later = small(f"traffic[0].request_rate={last.request_rate!r}")
    assert last.request_rate == pytest.approx(30 * 1.07**23)
    assert abs(later.chosen.replicas - last.replicas) <= 1


def test_stated_rates_are_taken_month_by_month(small):
    asked, answer = small("growth={rates: {1: 30 req/s, 2: 60 req/s, 3: 15 req/s}}")
    rows = outlook_of(asked, answer).growth.months
    assert [row.request_rate for row in rows] == pytest.approx([30.0, 60.0, 15.0])
    assert rows[2].added_gpus < 0


def test_no_growth_never_outgrows(small):
    asked, answer = small("growth.per_month=0 %")
    growth = outlook_of(asked, answer).growth
    assert growth.outgrown_in_month is None
    assert growth.usd == pytest.approx(24 * answer.chosen.usd_per_month)
