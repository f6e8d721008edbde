"""Result files of every tool come out in the same units; expected values are worked out by hand from each tool's definition."""

import gzip
import json
from dataclasses import replace

import pytest

from capplan.engine.versions import named_engine
from capplan.errors import InputError
from capplan.recorded.results.read import read_results, request_log
from tests.files import written_to
from tests.tables import rows

TTFT_S, TPOT_S, INPUT, OUTPUT = 0.25, 0.010, 100.0, 21.0
E2E_S = TTFT_S + (OUTPUT - 1) * TPOT_S
"""The same run in every format: 8 requests of 100 tokens in and 21 out, 4 at a time, in 1.8 s."""


SAME_RUN = rows("results")
"""The same run in every format."""


def vllm_serve(**more):
    return SAME_RUN["vllm bench serve"] | more


def written(folder, values, name="result.json"):
    return written_to(folder / name, values)


@pytest.mark.parametrize("tool", SAME_RUN)
def test_the_same_run_reads_the_same_from_every_tool(tool, tmp_path):
    (result,) = read_results(written(tmp_path, SAME_RUN[tool]))
    assert result.ttft_s.mean == pytest.approx(TTFT_S)
    assert result.tpot_s.mean == pytest.approx(TPOT_S)
    assert result.e2e_s.mean == pytest.approx(E2E_S)
    assert result.input_tokens == pytest.approx(INPUT)
    assert result.output_tokens == pytest.approx(OUTPUT)
    assert result.concurrency == pytest.approx(4)
    assert result.output_tokens_per_s == pytest.approx(168 / 1.8)


@pytest.mark.parametrize("tool", ["trtllm-bench", "inferencex", "llm-d 0.1", "llm-d 0.2"])
def test_split_and_hardware_come_from_files_that_say_them(tool, tmp_path):
    (result,) = read_results(written(tmp_path, SAME_RUN[tool]), tensor_parallel=8, hardware="l4")
    assert (result.tensor_parallel, "h100" in result.hardware.lower()) == (2, True)


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_a_report_of_separate_pools_names_no_engine_that_runs_both(version, tmp_path):
    report = json.loads(json.dumps(SAME_RUN[f"llm-d {version}"]))
    if version == "0.1":
        report["scenario"]["host"]["type"] = ["prefill", "decode"]
    else:
        (decode,) = report["scenario"]["stack"]
        decode["standardized"]["role"] = "decode"
        report["scenario"]["stack"] = [
            decode,
            {"standardized": {**decode["standardized"], "role": "prefill"}},
        ]
    (result,) = read_results(written(tmp_path, report))
    with pytest.raises(InputError, match="serves disaggregated prefill and decode"):
        named_engine(result.engine)


def test_split_and_hardware_come_from_flags_where_the_file_is_silent(tmp_path):
    (result,) = read_results(written(tmp_path, vllm_serve()), tensor_parallel=8, hardware="h100-sxm")
    assert (result.tensor_parallel, result.hardware) == (8, "h100-sxm")


def test_a_trailing_colon_of_vllm_0_8_5_is_read(tmp_path):
    values = {f"{key}:" if key == "request_throughput" else key: value for key, value in vllm_serve().items()}
    (result,) = read_results(written(tmp_path, values))
    assert result.requests_per_s == pytest.approx(8 / 1.8)


def test_appended_results_are_read_one_by_one(tmp_path):
    path = tmp_path / "appended.json"
    path.write_text("\n".join(json.dumps(vllm_serve(max_concurrency=c)) for c in (1, 2, 4)))
    assert [result.concurrency for result in read_results(path)] == [1, 2, 4]


def test_a_gzipped_sweep_summary_is_read(tmp_path):
    path = tmp_path / "summary.json.gz"
    path.write_bytes(gzip.compress(json.dumps([vllm_serve(), vllm_serve(max_concurrency=8)]).encode()))
    assert [result.concurrency for result in read_results(path)] == [4, 8]


def test_a_peak_of_one_second_buckets_is_not_taken_for_the_concurrency(tmp_path):
    (result,) = read_results(written(tmp_path, vllm_serve(max_concurrency=None, max_concurrent_requests=10)))
    assert result.concurrency is None
    assert any("one-second buckets" in note for note in result.notes)


def test_details_become_a_log_without_the_failed_requests(tmp_path):
    details = {
        "input_lens": [10, 20, 30], "output_lens": [2, 3, 0], "ttfts": [0.1, 0.2, 0.0], "itls": [[0.01], [0.01, 0.01], []],
        "start_times": [5.0, 6.0, 7.0], "errors": ["", "", "timeout"],
    }  # fmt: skip
    log = request_log(written(tmp_path, vllm_serve(**details)))
    assert [(r.arrival_s, r.input_tokens, r.output_tokens) for r in log] == [(0.0, 10, 2), (1.0, 20, 3)]
    assert log[1].e2e_s == pytest.approx(0.22)


def test_a_batch_latency_keeps_its_percentiles_and_asks_for_its_shape(tmp_path):
    values = {"avg_latency": 2.0, "latencies": [2.0], "percentiles": {"50": 1.9, "90": 2.5}}
    (result,) = read_results(written(tmp_path, values), input_tokens=32.0, output_tokens=128.0)
    assert (result.kind, result.e2e_s.p90, result.output_tokens) == ("static_batch", 2.5, 128.0)


def test_offline_throughput_counts_prompt_and_output_together(tmp_path):
    values = {"elapsed_time": 10.0, "num_requests": 100, "total_num_tokens": 5000, "requests_per_second": 10.0,
              "tokens_per_second": 500.0}  # fmt: skip
    (result,) = read_results(written(tmp_path, values))
    assert (result.kind, result.total_tokens_per_s, result.output_tokens_per_s) == ("offline", 500.0, None)


def test_one_batch_of_sglang_is_a_prefill_and_a_decode(tmp_path):
    values = {"run_name": "r", "batch_size": 4, "input_len": 100, "output_len": 20, "prefill_latency": 0.5,
              "median_decode_latency": 0.01}  # fmt: skip
    prefill, decode = read_results(written(tmp_path, values))
    assert (prefill.kind, prefill.ttft_s.mean, prefill.concurrency) == ("prefill", 0.5, 4)
    assert (decode.kind, decode.tpot_s.mean, decode.context_tokens) == ("decode", 0.01, 110)


def test_llama_bench_rows_are_prefill_or_decode_by_what_they_generate(tmp_path):
    row = {
        "model_type": "llama 8B",
        "gpu_info": "H100",
        "avg_ns": 640_000_000,
        "avg_ts": 200.0,
        "n_depth": 1000,
    }
    path = written(tmp_path, [row | {"n_prompt": 512, "n_gen": 0}, row | {"n_prompt": 0, "n_gen": 128}])
    prefill, decode = read_results(path)
    assert (prefill.kind, prefill.ttft_s.mean, prefill.context_tokens) == ("prefill", 0.64, 1000)
    assert (decode.kind, decode.tpot_s.mean, decode.context_tokens) == ("decode", 0.005, 1064)


def test_genai_perf_is_aiperf_without_a_schema_version(tmp_path):
    values = {
        key: value
        for key, value in SAME_RUN["aiperf"].items()
        if key not in ("schema_version", "aiperf_version")
    }
    (result,) = read_results(written(tmp_path, values))
    assert (result.tool, result.tpot_s.mean) == ("GenAI-Perf", pytest.approx(TPOT_S))


def test_a_log_of_aiperf_leaves_out_warm_up_and_errors(tmp_path):
    def record(start, phase="profiling", error=None):
        names = {"time_to_first_token": 250.0, "request_latency": 450.0}
        metrics = {name: {"value": value, "unit": "ms"} for name, value in names.items()}
        metrics |= {"output_sequence_length": {"value": 21}, "input_sequence_length": {"value": 100}}
        return {
            "metadata": {"request_start_ns": start, "benchmark_phase": phase},
            "metrics": metrics,
            "error": error,
        }

    lines = [
        record(0, phase="warmup"),
        record(10**9),
        record(2 * 10**9, error={"code": 500}),
        record(3 * 10**9),
    ]
    path = written_to(tmp_path / "profile_export.jsonl", "\n".join(map(json.dumps, lines)))
    (result,) = read_results(path)
    assert result.requests == 2
    assert result.notes == ("2 records of warm-up or with an error left out",)
    assert result.tpot_s.mean == pytest.approx(TPOT_S)


def test_a_result_without_requests_cannot_be_a_log(tmp_path):
    with pytest.raises(InputError, match="--save-detailed"):
        request_log(written(tmp_path, vllm_serve()))


@pytest.mark.parametrize(
    ("name", "runs", "tpot_s"),
    [
        ("vllm_bench_serve.json", 1, 6.479e-3),
        ("vllm_bench_serve_detailed.json", 1, 5.384e-3),
        # 29 gaps of 30 server tokens in the decode time, not the 59 of the client's tokenizer
        ("aiperf_profile_export_aiperf.json", 1, 6.927e-3),
        ("aiperf_profile_export_aiperf.csv", 1, 6.917e-3),
        ("aiperf_profile_export_first3.jsonl", 1, 7.667e-3),
        ("guidellm_report_v2_fixture.json", 2, 1.151e-3),
        ("inference-perf_stage_lifecycle_metrics.json", 1, 19.89e-3),
        ("inference-perf_stage_prometheus_metrics.json", 1, 22.59e-3),
        ("llmd_br_v0_1_example.yaml", 1, 83.69e-6),
        ("llmd_br_v0_2_1_example.yaml", 1, 36.86e-3),
    ],
)
def test_published_examples_are_read(measured, root, name, runs, tpot_s):
    """Those here have what is read of the published files and nothing else."""
    results = read_results(root / "tests" / "data" / "results" / name)
    assert len(results) == runs
    assert results[0].tpot_s.mean == pytest.approx(tpot_s, rel=1e-3)
    if measured.whole:
        published = read_results(root.parent / "shared" / "formats" / "examples" / name)
        assert [replace(result, path="") for result in published] == [
            replace(result, path="") for result in results
        ]


@pytest.mark.parametrize("field", ["prompt_len", "output_len"])
def test_a_mean_length_that_the_rates_of_its_file_contradict_is_named(tmp_path, field):
    """A stage of inference-perf gives each mean twice; the lifecycle file of one that disagreed by 63 times had the rates' one."""
    lengths = {"prompt_len": {"mean": 201, "rate": 33840.1}, "output_len": {"mean": 63, "rate": 10736.9}}
    path = tmp_path / "stage.json"

    def results(scale):
        stated = {**lengths, field: {**lengths[field], "mean": scale * lengths[field]["mean"]}}
        path.write_text(
            json.dumps({"load_summary": {}, "successes": {"count": 13234, "rate": 167.5, **stated}})
        )
        return read_results(path)

    assert not results(1.0)[0].contradiction
    for scale in (63.0, 1 / 63.0):
        assert f"{field}.mean is " in results(scale)[0].contradiction
