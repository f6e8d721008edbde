"""Samples, retries, reasoning and padding against closed forms and simulated coins."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from capplan.fleet.load.demand import demand_of, drawn_requests
from capplan.fleet.unit_costs import unit_costs_at_mean
from capplan.scenario.scenario import read_scenario
from capplan.workload.length import lognormal, uniform
from capplan.workload.multiples import batch_arrival_cv, longest_of, mean_attempts, sum_of

JOB = {"requests": 36_000, "within": "10 h", "input_tokens": 600, "output_tokens": 40}


@pytest.fixture
def demand(tmp_path):
    """Return the traffic of a scenario of one line."""

    def read(**traffic):
        path = tmp_path / "s.yaml"
        path.write_text(json.dumps({"name": "s", "model": "meta-llama/Llama-3.1-8B-Instruct", "traffic": [traffic], "fleet": {"hardware": ["h100-sxm"]}}))  # fmt: skip
        return demand_of(read_scenario(path))

    return read


def test_attempts_are_those_of_simulated_coins():
    tries = np.random.default_rng(2).random((200_000, 4)) < 0.3
    needed = 1 + np.cumprod(tries, axis=1)[:, :3].sum(axis=1)
    assert mean_attempts(0.3, 4.0) == pytest.approx(needed.mean(), rel=0.005)
    assert mean_attempts(0.3, 1000.0) == pytest.approx(1 / 0.7)


@given(batch=st.integers(1, 9), cv=st.sampled_from((0.5, 1.0, 2.0)))
def test_batches_arrive_as_unevenly_as_simulated_ones(batch, cv):
    gaps = np.zeros((60_000, batch))
    gaps[:, 0] = np.random.default_rng(3).gamma(1 / cv**2, cv**2, 60_000)
    assert batch_arrival_cv(cv, batch) == pytest.approx(gaps.std() / gaps.mean(), rel=0.03)


@given(batch=st.integers(1, 64), low=st.integers(1, 500), more=st.integers(1, 2000))
def test_the_longest_of_equally_likely_lengths_is_that_of_order_statistics(batch, low, more):
    """Beta distribution: the mean of the largest of b uniform values is l + w b / (b + 1)."""
    longest = longest_of(uniform(low, low + more), batch)
    assert longest.mean_tokens == pytest.approx(low + more * stats.beta(batch, 1).mean(), rel=1e-3)


def test_reasoning_and_answers_add_up():
    both = sum_of(lognormal(3000.0, 0.8), lognormal(400.0, 0.5))
    assert both.mean_tokens == pytest.approx(3400.0)
    drawn = lognormal(3000.0, 0.8).sample(100_000, 1) + lognormal(400.0, 0.5).sample(100_000, 2)
    assert float(both.quantile(0.95)) == pytest.approx(np.quantile(drawn, 0.95), rel=0.03)


def test_nothing_changes_with_one_sample_no_invalid_output_and_batches_of_one(demand):
    none = {"samples": 1, "retries": {"invalid": 0, "attempts": 5}, "padded_batch": 1}
    assert demand(**JOB, **none).classes == demand(**JOB).classes


def test_samples_share_their_prompt_and_retries_send_it_again(demand):
    """Four samples, 1.25 attempts each: five sequences, of which one in five works on the prompt."""
    several = demand(**JOB, samples=4, retries={"invalid": 0.25, "attempts": 2})
    (item,), (alone,) = several.classes, demand(**JOB).classes
    assert item.request_rate_per_s == pytest.approx(5 * alone.request_rate_per_s)
    assert item.cached_input_tokens == pytest.approx(0.8 * 599)
    drawn = drawn_requests(several, 20_000, 1, 4096)
    assert float(drawn.cached_tokens.mean()) == pytest.approx(0.8 * 599, rel=0.02)


def test_a_thousand_documents_cost_the_machines_of_the_job_over_its_documents(demand):
    """3 $/h for ten hours are 30 $ for 36,000 documents, however many sequences each of them takes."""
    for multiples in ({}, {"samples": 4}, {"retries": {"invalid": 0.5, "attempts": 3}}):
        money = unit_costs_at_mean(demand(**JOB, **multiples), 3.0, 0.0)
        assert money.job_hours == pytest.approx(10.0)
        assert money.usd_per_thousand_requests == pytest.approx(30 / 36)
