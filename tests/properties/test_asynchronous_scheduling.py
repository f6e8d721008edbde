"""Asynchronous scheduling: what it does to a first token and to a seat."""

from dataclasses import replace

import numpy as np
import pytest

from capplan.engine.profile import Scheduling
from capplan.serving.requests import Requests
from capplan.serving.server import simulate
from capplan.serving.step_table import StepTable
from capplan.serving.terms import EngineSetup


def test_a_request_joins_the_step_after_the_next() -> None:
    """Steps of 1 s. The second request comes at 0.5 s, when the step from 1 s on is planned: it joins that from 2 s on."""
    one, none = np.array([1.0]), np.array([[0.0]])
    table = StepTable(one, one, 0 * one, one, none, one, one, one, 0 * one, none)
    requests = Requests(np.array([4, 4]), np.array([5, 5]), np.array([0.0, 0.5]))
    between = EngineSetup(table, Scheduling("mixed", 8, 64), 100)
    ahead = replace(between, scheduling=replace(between.scheduling, asynchronous=True))
    assert simulate(requests, between).ttft_s.tolist() == pytest.approx([1.0, 1.5])
    assert simulate(requests, ahead).ttft_s.tolist() == pytest.approx([1.0, 2.5])
    assert simulate(requests, ahead).tpot_s.tolist() == pytest.approx([1.0, 1.0])


def test_a_seat_is_free_one_step_later() -> None:
    """Two seats. The first request ends at 2 s, when the step from 2 s on has been planned without its seat: the third joins that from 3 s on."""
    one, none = np.array([1.0]), np.array([[0.0]])
    table = StepTable(one, one, 0 * one, one, none, one, one, one, 0 * one, none)
    requests = Requests(np.array([4, 4, 4]), np.array([2, 4, 2]), np.zeros(3))
    between = EngineSetup(table, Scheduling("mixed", 2, 64), 100)
    ahead = replace(between, scheduling=replace(between.scheduling, asynchronous=True))
    assert simulate(requests, between).ttft_s.tolist() == pytest.approx([1.0, 1.0, 3.0])
    assert simulate(requests, ahead).ttft_s.tolist() == pytest.approx([1.0, 1.0, 4.0])
