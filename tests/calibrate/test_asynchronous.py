"""Asynchronous scheduling by default: which engines, and what it does to a prediction."""

from dataclasses import replace

import pytest

from calibrate.asynchronous import Twice, is_asynchronous, table, twice
from capplan.accuracy.benchmark import benchmark_of

ROW = {
    "id": "roleplay", "kind": "online_rate", "engine": "vllm", "engine_version": "0.15.1", "model_hf_id": "meta-llama/Llama-2-7b-hf",
    "weights_dtype": "fp16", "gpu": "h100-sxm", "num_gpus": "1", "tp": "1", "isl": "785.84", "osl": "251", "request_rate": "6",
    "stage_s": "30", "n_requests": "180", "ttft_ms_p50": "26.8", "tpot_ms_p50": "8.16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "version", "pp", "ahead"),
    [
        ("vllm", "0.13.0", "1", False),
        ("vllm", "0.14.0", "1", True),
        ("vllm", "0.33.0", "2", False),
        ("sglang", "0.5.23", "1", True),
        ("trtllm", "0.20.0", "1", False),
        ("trtllm", "1.2.0", "1", True),
        ("vllm", "nightly", "1", False),
    ],
)
def test_releases_that_plan_ahead(engine, version, pp, ahead):
    row = {**ROW, "engine": engine, "engine_version": version, "pp": pp, "num_gpus": pp}
    assert is_asynchronous(benchmark_of(row)) is ahead


def test_a_request_waits_for_a_step_more_and_tokens_take_as_long():
    values = {value.column: value for value in twice(ROW)}
    ttft, tpot = values["ttft_ms_p50"], values["tpot_ms_p50"]
    assert 0.2 * tpot.without < ttft.with_it - ttft.without < 2.0 * tpot.without
    assert tpot.with_it == pytest.approx(tpot.without, rel=0.02)
    assert not list(twice({**ROW, "engine_version": "0.13.0"}))
    assert not list(twice({**ROW, "kind": "offline_max"}))


def test_the_table_has_errors_as_they_are_and_less_the_best_constant():
    value = Twice(("vllm", "open"), "ttft_ms_mean", 100.0, 104.0, 120.0, 1.0)
    lines = table([value, replace(value, without=108.0, with_it=124.0, weight=0.5)]).splitlines()
    assert lines[2] == "| vllm | open | ttft_ms_mean | 2 | 4.0 % | 20 % | 0.0 % at 4 ms | 0.0 % at 20 ms |"
