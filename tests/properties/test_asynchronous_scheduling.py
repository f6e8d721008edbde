"""Asynchronous scheduling: which engines have it, and what it does to a first token and to a seat."""

from dataclasses import replace

import numpy as np
import pytest

from capplan.accuracy.benchmark import benchmark_of
from capplan.engine.profile import Scheduling
from capplan.fleet.engine_options import EngineOptions, engines_of
from capplan.questions.benchmark_spec import benchmark_spec
from capplan.replica.replica import replica_of
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
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


LLAMA = {
    "kind": "online_conc", "model_hf_id": "meta-llama/Llama-3.1-8B-Instruct", "weights_dtype": "bf16", "gpu": "h100-sxm", "num_gpus": "1", "tp": "1",
    "isl": "512", "osl": "128", "concurrency": "4",
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "version", "columns", "ahead"),
    [
        ("vllm", "0.13.0", {}, False),
        ("vllm", "0.14.0", {}, True),
        ("vllm", "0.33.0", {"pp": "2", "num_gpus": "2"}, False),
        ("vllm", "0.33.0", {"gpu": "cpu"}, False),
        ("sglang", "0.5.23", {}, True),
        ("trtllm", "1.2.0", {}, False),
    ],
)
def test_engines_plan_ahead_by_version_on_gpus_without_stages(engine, version, columns, ahead):
    row = {**LLAMA, "engine": engine, "engine_version": version, **columns}
    assert replica_of(benchmark_spec(benchmark_of(row))).scheduling.asynchronous is ahead


def test_slots_are_filled_when_a_step_has_ended():
    replica = replica_of(
        benchmark_spec(benchmark_of({**LLAMA, "engine": "vllm", "engine_version": "0.33.0"}))
    )
    assert not engines_of(replica, EngineOptions(scheduler="slots"), 0, 512.0).replica.scheduling.asynchronous
    assert engines_of(replica, EngineOptions(scheduler="chunked"), 0, 512.0).replica.scheduling.asynchronous
