"""Money per token, per job and per request, worked out by hand."""

import pytest

from capplan.fleet.load.demand import Demand
from capplan.fleet.unit_costs import job_hours, mean_tokens_per_s, unit_costs_at_mean
from capplan.serving.steady_state import Lengths
from capplan.workload.length import fixed
from capplan.workload.request_class import RequestClass

CHAT = RequestClass("chat", fixed(100), fixed(10), 4.0, mean_rate_fraction=0.5)
CODE = RequestClass("code", fixed(1000), fixed(200), 1.0)
PEOPLE = RequestClass("people", fixed(50), fixed(20), None, users=60.0, think_time_s=20.0)
NIGHT = RequestClass("night", fixed(3000), fixed(400), 2.0, job_requests=14_400.0)
REST = RequestClass("rest", fixed(10), fixed(10), 1.0, job_requests=3_600.0)


def demand(*classes):
    return Demand(classes, Lengths(1.0, 1.0), 1)


def near(value):
    return pytest.approx(value, rel=1e-12)


def test_tokens_are_counted_at_the_mean_load_not_at_the_peak():
    # 4 req/s at half: 2 x 100 in and 2 x 10 out; 1 req/s always: 1000 in and 200 out.
    assert mean_tokens_per_s(demand(CHAT, CODE), 0.0) == near((1200.0, 220.0))
    # 60 people who think 20 s and wait 5 s: 2.4 req/s; who wait 20 s: 1.5 req/s.
    assert mean_tokens_per_s(demand(PEOPLE), 5.0) == near((120.0, 48.0))
    assert mean_tokens_per_s(demand(PEOPLE), 20.0) == near((75.0, 30.0))


def test_dollars_per_million_tokens_divide_an_hour_by_its_tokens():
    found = unit_costs_at_mean(demand(CHAT, CODE), 18.0, 0.0)
    # 220 token/s are 0.792 million an hour; 1,420 token/s are 5.112 million.
    assert found.usd_per_million_output_tokens_at_mean == near(18.0 / 0.792)
    assert found.usd_per_million_tokens_at_mean == near(18.0 / 5.112)
    assert (found.job_hours, found.usd_per_job, found.usd_per_thousand_requests) == (None, None, None)


def test_a_job_is_paid_until_its_last_part_is_done():
    # 14,400 at 2 req/s take two hours, 3,600 at 1 req/s one.
    assert job_hours(demand(NIGHT, REST)) == near(2.0)
    found = unit_costs_at_mean(demand(NIGHT, REST), 42.0, 0.0)
    assert (found.job_hours, found.usd_per_job) == near((2.0, 84.0))
    assert found.usd_per_thousand_requests == near(84.0 / 18.0)
    assert job_hours(demand(NIGHT, CHAT)) is None
