"""Replicas of each hour against a search of its own for the traffic of that hour, and where they are paid for."""

import numpy as np
import pytest

from capplan.fleet.search.one_layout import replicas_of_layout
from capplan.questions.fleet import replicas_by_group, terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.money.energy import outlook_of
from capplan.serving.steady_state import replicas_over_time
from tests.asked import asked_of
from tests.files import written_to

pytestmark = pytest.mark.usefixtures("few_requests")
REQUESTS = """name: day
model: meta-llama/Llama-3.1-8B-Instruct
traffic: [{request_rate: 30 req/s, daily_curve: office, input_tokens: 900, output_tokens: 150}]
slo: {ttft_p95: 500 ms, tpot_p95: 60 ms}
fleet: {hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 1}
prices: {per_gpu_hour: {l40s: 1 $/h}}
commitments: {reserved_1y: {discount: 40 %}}
growth: {per_month: 5 %, months: 3}
"""
KINDS = {
    "requests": (),
    "bursts": ("traffic[0].arrival_cv=2.5",),
    "users": ("traffic[0].request_rate=null", "traffic[0].users=400", "traffic[0].think_time=10 s"),
}


@pytest.fixture(scope="module", params=KINDS)
def day(request, tmp_path_factory):
    path = written_to(tmp_path_factory.mktemp("day") / "day.yaml", REQUESTS)
    asked = asked_of(path, *KINDS[request.param])
    answer = fleet_for(asked)
    return path, KINDS[request.param], asked, answer.chosen, outlook_of(asked, answer)


def test_each_hour_has_the_replicas_that_a_search_for_its_own_traffic_finds(day):
    path, changes, _, plan, outlook = day
    group, hours = plan.single, outlook.over_time[""]
    key = "users" if "users" in "".join(changes) else "request_rate"
    whole = 400 if key == "users" else 30
    for rate in np.unique(hours.rates_per_s).tolist():
        part = rate / float(hours.rates_per_s.max())
        (needed,) = set(hours.needed[hours.rates_per_s == rate].tolist())
        asked = asked_of(path, *changes, f"traffic[0].{key}={whole * part!r}")
        alone = replicas_of_layout(asked.question, group.layout, terms_of(asked))
        assert abs(needed - alone) <= (key == "users"), (rate, needed, alone)


def test_no_busier_hour_has_fewer_replicas_and_the_busiest_has_those_of_the_plan(day):
    *_, plan, outlook = day
    hours = outlook.over_time[""]
    order = np.argsort(hours.rates_per_s, kind="stable")
    assert (np.diff(hours.needed[order]) >= 0).all()
    assert hours.needed.max() == plan.single.busy_replicas == hours.needed[np.argmax(hours.rates_per_s)]
    by_the_rate = replicas_over_time(hours.rates_per_s, plan.single.total_rate_per_replica)
    assert (hours.needed >= np.minimum(by_the_rate, plan.single.busy_replicas)).all()


def test_growth_and_commitments_count_the_replicas_of_the_hours(day):
    """The first month is paid as the plan of today; a month at twice the traffic has what its peak needs."""
    _, _, asked, plan, outlook = day
    (needed_at,) = replicas_by_group(asked, plan)
    for row in outlook.growth.months:
        assert row.replicas == needed_at(row.request_rate) + plan.single.spare_replicas
    assert outlook.growth.months[0].mix_usd_per_month == pytest.approx(
        outlook.mixes[0].mix.usd_per_hour * 730
    )
    running = (outlook.over_time[""].paid + plan.single.spare_replicas).mean()
    billed = sum(part.units * part.used_fraction for part in outlook.mixes[0].mix.parts)
    assert billed == pytest.approx(running)


@pytest.mark.parametrize("day", ["bursts"], indirect=True)
def test_few_replicas_of_bursts_carry_less_each_so_that_a_night_needs_more_of_them(day):
    *_, plan, outlook = day
    hours = outlook.over_time[""]
    by_the_rate = replicas_over_time(hours.rates_per_s, plan.single.total_rate_per_replica)
    assert (hours.needed > by_the_rate).any()
