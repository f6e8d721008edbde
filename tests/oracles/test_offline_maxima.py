"""Offline maxima: replicas are as fast as one of them each, and the end of a run decides no rate that the row does not hold."""

from dataclasses import replace

import numpy as np
import pytest

from capplan.accuracy.benchmark import benchmark_of
from capplan.accuracy.replay import replayed_columns, requests_of, steady_rates
from capplan.calibrate.refit import run_of
from capplan.engine.profile import Scheduling
from capplan.errors import InputError
from capplan.questions.benchmark_spec import benchmark_servers
from capplan.questions.validation import replica_of_result
from capplan.recorded.results.record import BenchmarkResult, latency
from capplan.scenario.flags import ServingFlags
from capplan.serving.requests import Requests
from capplan.serving.simulator import simulate
from capplan.serving.terms import EngineSetup
from tests.constant_steps import constant_steps

ROW = {
    "kind": "offline_max", "engine": "trtllm", "engine_version": "1.0", "model_hf_id": "meta-llama/Llama-3.1-8B-Instruct",
    "weights_dtype": "fp8", "kv_dtype": "auto", "gpu": "h100-sxm", "source_family": "mlperf",
}  # fmt: skip
ENGINES = {
    "trtllm": {},
    "vllm": {"engine": "vllm", "engine_version": "0.19.0"},
    "sglang": {"engine": "sglang", "engine_version": "0.5.10"},
}


def columns_of(replicas, **row):
    benchmark = benchmark_of(ROW | row | {"num_gpus": str(replicas), "replicas": str(replicas)})
    return replayed_columns(benchmark, benchmark_servers(benchmark))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("prompt", "answer"), [("1000", "1000"), ("300", "300"), ("870.73", "128")])
def test_an_offline_maximum_per_gpu_is_the_same_on_any_number_of_replicas(engine, prompt, answer):
    """Replicas share nothing: MLPerf's offline results of 8 and more GPUs are within some per cent of the same rate per GPU."""
    lengths = {"isl": prompt, "osl": answer}
    one, eight, many = (
        columns_of(replicas, **ENGINES[engine], **lengths)["output_tok_s_per_gpu"] for replicas in (1, 8, 72)
    )
    assert eight == pytest.approx(one, rel=0.03)
    assert many == pytest.approx(one, rel=0.03)


def test_the_steady_rate_is_that_of_a_run_many_times_as_long():
    """Many times the requests have a shorter drain by comparison; the spread of MLPerf's reasoning set has a long one."""
    lengths = {"isl": "804", "osl": "3898", "length_distribution": "mlperf-deepseek-r1"}
    steady = columns_of(1, **ENGINES["vllm"], **lengths)["output_tok_s"]
    long = columns_of(1, **ENGINES["vllm"], **lengths, requests="60000")["output_tok_s"]
    assert steady == pytest.approx(long, rel=0.05)


def test_a_stated_number_of_requests_is_kept_with_its_drain():
    row = ROW | {"isl": "1000", "osl": "1000", "num_gpus": "8", "replicas": "8"}
    assert requests_of(benchmark_of(row | {"requests": "160"})) == 160
    few, many = (
        columns_of(8, isl="1000", osl="1000", requests=number)["output_tok_s"] for number in ("160", "160000")
    )
    assert few < 0.4 * many


def test_the_steady_rate_of_slots_is_worked_out_by_hand():
    """Four slots, an answer of one token, steps of one second: four requests a second, though the last of them fills no batch."""
    table = constant_steps()
    engine = EngineSetup(table, Scheduling("mixed", 4, 64), kv_blocks=100)
    tokens = np.full(41, 3)
    outcome = simulate(Requests(tokens, np.full(41, 1)), engine)
    whole = 41 / outcome.seconds
    per_s, inputs, outputs = steady_rates(outcome)
    assert (inputs, outputs) == (pytest.approx(3.0 * per_s), pytest.approx(per_s))
    assert per_s == pytest.approx(4.0)
    assert whole < 0.95 * per_s


def test_too_few_requests_have_no_steady_rate():
    table = constant_steps()
    engine = EngineSetup(table, Scheduling("mixed", 40, 640), kv_blocks=100)
    assert steady_rates(simulate(Requests(np.full(41, 3), np.full(41, 1)), engine)) is None


def test_an_offline_maximum_of_pools_needs_its_number_of_requests():
    row = (
        ROW
        | ENGINES["vllm"]
        | {"isl": "1000", "osl": "100", "disagg": "1", "replicas": "2P(TP1)+2D(TP1)", "num_gpus": "4"}
    )
    benchmark = benchmark_of(row)
    with pytest.raises(InputError, match="requests: missing"):
        replayed_columns(benchmark, benchmark_servers(benchmark))


@pytest.mark.parametrize("load", [{"concurrency": 64.0}, {"request_rate_per_s": 16.0}, {"kind": "offline"}])
def test_a_result_over_replicas_is_refitted_as_one_of_them(load):
    """The same run on one replica with an eighth of the load measures the same times."""
    run = BenchmarkResult(
        "t", "p", model="llama-3.1-8b", hardware="h100-sxm", engine="vllm", requests=400, input_tokens=500.0,
        output_tokens=100.0, tpot_s=latency(0.02), ttft_s=latency(0.1), replicas=8,
    )  # fmt: skip
    over_all = replace(run, **load)
    of_one = replace(
        run, **{name: value / 8 if isinstance(value, float) else value for name, value in load.items()},
        requests=50, replicas=1,
    )  # fmt: skip
    spec = replica_of_result(over_all, ServingFlags(offline=True))
    host = spec.profile.host
    assert run_of(over_all, spec).replayed_s(host) == run_of(of_one, spec).replayed_s(host)


def test_an_offline_result_without_its_number_of_requests_is_left_out():
    result = BenchmarkResult(
        "t", "p", kind="offline", model="llama-3.1-8b", hardware="h100-sxm", input_tokens=500.0,
        output_tokens=100.0, output_tokens_per_s=1e3,
    )  # fmt: skip
    assert "number of its requests" in run_of(result, replica_of_result(result, ServingFlags(offline=True)))
