"""Traffic read from the formats of published traces and of benchmark tools, against published figures."""

import gzip
import json

import numpy as np
import pytest
import yaml

from capplan.errors import InputError
from capplan.recorded.traces.trace import format_of, read_trace, workload_of
from capplan.scenario.scenario import read_scenario
from capplan.scenario.workload_file import read_workload, workload_text
from tests.files import written_to
from tests.tables import rows

TEXTS = rows("traces")
SMALL, OLD_METRICS, LONG_AND_SHORT = (TEXTS[name] for name in ("formats", "metrics", "long_and_short"))
PUBLISHED = {
    "AzureLLMInferenceTrace_code.csv.gz": (8819, 2047.8, 7303, 27.9, 90, 2.567, 4.18, 13.15),
    "AzureLLMInferenceTrace_conv.csv.gz": (19366, 1154.7, 4083, 211.1, 451, 5.530, 1.52, 1.09),
    "mooncake_conversation_trace.jsonl.gz": (12031, 12035, 39550, 342.6, 698, 3.402, 1.21, 1.05),
    "mooncake_synthetic_trace.jsonl.gz": (3993, 15325, 48905, 149.1, 519, 3.907, 1.17, 1.01),
    "servegen_language_m-large_clients.csv.gz": (236892826, 914.3, 2404, 155.1, 539, 195.84, 2.98, 3.45),
    "servegen_reason_deepseek-r1_clients.csv.gz": (1383669, 1268.2, 6714, 1527.4, 5701, 16.0, 2.66, 2.28),
}
STATISTICS = ("requests", "mean_in", "p95_in", "mean_out", "p95_out", "rate", "peak_ratio", "cv")


@pytest.mark.parametrize("file", PUBLISHED)
def test_statistics_of_public_traces(measured, trace, file):
    """Published with the traces, as far as they are rounded there; of an excerpt what plain counting finds.

    Peaks of whole traces are those of windows that may start elsewhere, to 3 %.
    """
    found = workload_of([trace(file)])
    ours = (
        found.requests, found.input_tokens.mean, found.input_tokens.p95, found.output_tokens.mean,
        found.output_tokens.p95, found.rate.mean, found.rate.peak_to_mean_ratio, found.rate.cv,
    )  # fmt: skip
    if measured.whole:
        relative = dict(zip(STATISTICS, (1e-8, 1e-4, 1e-4, 2e-3, 1e-4, 2e-3, 0.03, 0.01), strict=True))
        said = dict(zip(STATISTICS, PUBLISHED[file], strict=True))
    else:
        relative, said = dict.fromkeys(STATISTICS, 1e-7), measured.facts(file)
    for name, value in zip(STATISTICS, ours, strict=True):
        assert value == pytest.approx(said[name], rel=relative[name], abs=1.0 if "p95" in name else 0.0), name
    assert found.omissions == ()


def test_reuse_of_the_mooncake_conversation_trace_by_cache_size(measured, trace):
    """By size as published with the trace; of the excerpt without a limit, by counting the leading blocks seen before."""
    path = trace("mooncake_conversation_trace.jsonl.gz")
    found = workload_of([path]).prefix
    assert found.block_tokens == 512
    curve = dict(found.curve)
    if measured.whole:
        assert found.unlimited_hit_fraction == pytest.approx(0.366, abs=5e-4)
        shares = [curve[n] for n in (1000, 10000, 20000, 50000)]
        assert shares == pytest.approx([0.045, 0.215, 0.293, 0.362], abs=1e-3)
        return
    prompts = [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()]
    seen, hits = set(), 0
    for prompt in prompts:
        hits += next((i for i, block in enumerate(prompt) if block not in seen), len(prompt))
        seen.update(prompt)
    assert found.unlimited_hit_fraction == pytest.approx(hits / sum(map(len, prompts)), rel=1e-12)
    assert list(curve.values()) == sorted(curve.values())
    assert max(curve) <= len(seen)


def test_a_server_s_own_log_and_its_counters_tell_the_same(measured, root, tmp_path):
    """300 requests measured on an RTX PRO 6000, as a log and as the counters that vLLM 0.33 makes of them."""
    folder, examples = tmp_path, root / "tests" / "data" / "results"
    (served,) = (row for row in measured.table("served_logs") if row["log"] == "RTXPRO6000_Llama-3.1-8B")
    if measured.whole:
        folder = root.parent / "shared" / "traces" / "llmservingsim_vllm"
        examples = root.parent / "shared" / "formats" / "examples"
    else:
        (folder / "RTXPRO6000_Llama-3.1-8B_requests.jsonl").write_text(
            "\n".join(
                json.dumps({
                    "arrival_time": float(row["arrival_s"]), "input_toks": int(row["llama_input_tokens"]),
                    "output_toks": int(row["llama_output_tokens"]),
                })
                for row in measured.table("served_requests")
            )
        )  # fmt: skip
    log = workload_of([folder / "RTXPRO6000_Llama-3.1-8B_requests.jsonl"])
    counters = workload_of([examples / "vllm_0.33.0_metrics_exposition.txt"], interval_s=30.0)
    assert counters.requests == log.requests == 300
    assert counters.rate.mean == pytest.approx(10.0)
    for lengths in ("input_tokens", "output_tokens"):
        seen, counted = getattr(log, lengths), getattr(counters, lengths)
        assert counted.mean == pytest.approx(seen.mean)
        assert counted.p50 == pytest.approx(seen.p50, rel=0.06)
    for found in [counters, log] if measured.whole else [counters]:
        assert found.measured["ttft_s"] == pytest.approx(float(served["ttft_s"]), rel=1e-3)
        assert found.measured["tpot_s"] == pytest.approx(float(served["tpot_s"]), rel=1e-3)
    assert counters.prefix_hit_fraction == 0.0
    assert counters.kv_cache_tokens == 27000 * 16


def test_old_metric_names_hits_and_acceptance_are_read(tmp_path):
    path = written_to(tmp_path / "metrics.txt", OLD_METRICS)
    found = workload_of([path])
    assert (found.requests, found.input_tokens.mean, found.output_tokens.mean) == (
        40,
        pytest.approx(100.0),
        20.0,
    )
    assert found.prefix_hit_fraction == 0.25
    assert found.acceptance_fraction == 0.6
    assert found.accepted_tokens_per_round == pytest.approx(1 + 60 / 25)
    assert found.measured["tpot_s"] == pytest.approx(0.01)
    assert found.rate.mean is None


def test_two_scrapes_give_what_happened_between_them(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text(OLD_METRICS)
    second.write_text(
        OLD_METRICS.replace(" 10.0", " 70.0")
        .replace('_count{model_name="m"} 40.0', '_count{model_name="m"} 100.0')
        .replace("4000.0", "16000.0")
        .replace(" 800.0", " 3200.0")
    )
    found = workload_of([first, second], interval_s=600.0)
    assert found.requests == 60
    assert found.rate.mean == pytest.approx(0.1)
    assert found.input_tokens.mean == pytest.approx(12000 / 60)
    assert found.output_tokens.mean == pytest.approx(2400 / 60)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", SMALL)
def test_a_format_is_told_by_its_content(kind, packed, tmp_path):
    name, text = SMALL[kind]
    path = tmp_path / (name + ".gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert format_of(path) == kind
    found = workload_of([path])
    assert (found.requests, found.input_tokens.mean, found.output_tokens.mean) == (3, 200.0, 20.0)
    assert found.rate.seconds == pytest.approx(3.0, abs=0.01)
    if kind == "Qwen-Bailian":
        assert found.prefix.block_tokens == 16
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 1.0, 3.0], abs=0.01)


def test_logs_of_guidellm_and_inference_perf_are_normalised(tmp_path):
    """GuideLLM writes TTFT in ms and latency in s; TPOT leaves out the first token, whatever the tool's own does."""
    requests = [
        {"request_start_time": 100.0 + i, "prompt_tokens": 100, "output_tokens": 11, "time_to_first_token_ms": 200.0, "request_latency": 1.2, "time_per_output_token_ms": 109.0}
        for i in range(3)
    ]  # fmt: skip
    guide = tmp_path / "guide.json"
    guide.write_text(
        json.dumps(
            {
                "metadata": {"version": 2},
                "benchmarks": [{"requests": {"successful": requests, "errored": [{}], "incomplete": []}}],
            }
        )
    )
    lifecycle = tmp_path / "per_request_lifecycle_metrics.json"
    lifecycle.write_text(json.dumps([
        {"start_time": 100.0 + i, "end_time": 101.2 + i, "error": None, "info": {"input_tokens": 100, "output_tokens": 11, "output_token_times": [100.2 + i]}}
        for i in range(3)
    ]))  # fmt: skip
    for path in (guide, lifecycle):
        measured = workload_of([path]).measured
        assert measured["ttft_s"] == pytest.approx(0.2)
        assert measured["tpot_s"] == pytest.approx(0.1)
        assert measured["e2e_s"] == pytest.approx(1.2)
    assert workload_of([guide]).omissions == ("1 row left out: errored request (first in line 1)",)


def test_a_written_workload_is_the_traffic_of_a_scenario(tmp_path):
    random = np.random.default_rng(5)
    arrivals = np.cumsum(random.exponential(0.5, 2000))
    inputs = np.rint(random.lognormal(6.5, 0.9, 2000)).astype(int) + 1
    outputs = np.rint(random.lognormal(5.0, 0.7, 2000)).astype(int) + 1
    drawn = zip(arrivals, inputs, outputs, strict=True)
    (tmp_path / "t.csv").write_text(
        "timestamp,input,output\n" + "\n".join(f"{a:.6f},{i},{o}" for a, i, o in drawn)
    )
    found = workload_of([tmp_path / "t.csv"])
    (tmp_path / "w.yaml").write_text(workload_text(found))
    assert read_workload(tmp_path / "w.yaml").requests == 2000
    scenario = "name: s\nmodel: m\ntraffic: [{name: chat, trace: FILE}]\n"
    classes = []
    for name in ("t.csv", "w.yaml"):
        (tmp_path / "s.yaml").write_text(scenario.replace("FILE", name))
        classes.append(read_scenario(tmp_path / "s.yaml").classes[0])
    raw, again = classes
    assert again.request_rate_per_s == pytest.approx(raw.request_rate_per_s, rel=1e-5)
    assert again.arrival_cv == pytest.approx(raw.arrival_cv, rel=1e-5)
    for lengths in ("input_tokens", "output_tokens"):
        assert getattr(again, lengths).mean_tokens == pytest.approx(
            getattr(raw, lengths).mean_tokens, rel=0.01
        )
        p95 = float(getattr(raw, lengths).quantile(0.95))
        assert float(getattr(again, lengths).quantile(0.95)) == pytest.approx(p95, rel=0.08)


def test_clients_of_servegen_add_up(tmp_path):
    """Two windows of ten minutes: 3 + 1 requests per second in the first, 2 in the second."""
    (tmp_path / "mine_clients.csv").write_text(
        "client,start_s,rate_rps,cv,pattern,arg1,arg2\n0,0,3,2.0,Gamma,1,1\n1,0,1,1.0,Gamma,1,1\n0,600,2,2.0,Gamma,1,1\n0,600,x,1,Gamma,1,1\n"
    )
    (tmp_path / "mine_length_hist.csv").write_text(
        "field,value,prob\ninput_tokens,100,0.5\ninput_tokens,300,0.5\noutput_tokens,10,1\n"
    )
    found = workload_of([tmp_path / "mine_clients.csv"])
    assert found.requests == 3600
    assert (found.rate.mean, found.rate.peak_60s, found.rate.seconds) == (3.0, 4.0, 1200.0)
    assert found.rate.cv == pytest.approx((3 * 2 + 1 * 1 + 2 * 2) / 6)
    assert (found.input_tokens.mean, found.output_tokens.mean) == (200.0, 10.0)
    assert found.omissions == ("1 row left out: is not the rate of a client (first in line 5)",)


def test_lengths_without_times_make_a_workload_that_asks_for_its_rate(tmp_path):
    (tmp_path / "v.csv").write_text("num_prefill_tokens,num_decode_tokens\n100,10\n300,30\n")
    found = workload_of([tmp_path / "v.csv"])
    assert (found.requests, found.rate.mean, found.input_tokens.mean) == (2, None, 200.0)
    (tmp_path / "w.yaml").write_text(workload_text(found))
    (tmp_path / "s.yaml").write_text("name: s\nmodel: m\ntraffic: [{trace: w.yaml}]\n")
    with pytest.raises(InputError, match="has no request_rate"):
        read_scenario(tmp_path / "s.yaml")
    (tmp_path / "w.yaml").write_text(
        workload_text(found).replace("traffic:\n  - name", "traffic:\n  - request_rate: 3 req/s\n    name")
    )
    assert [item.request_rate_per_s for item in read_scenario(tmp_path / "s.yaml").classes] == [3.0]


def test_the_same_traffic_draws_the_same_picture(capplan, tmp_path):
    name, text = SMALL["Mooncake"]
    (tmp_path / name).write_text(text)
    for picture in ("a.svg", "b.svg"):
        assert capplan("workload", tmp_path / name, "--plot", tmp_path / picture).code == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "--plot: 'c.png' is not an .svg" in capplan.refused(
        "workload", tmp_path / name, "--plot", tmp_path / "c.png"
    )


@pytest.mark.parametrize("way", ["workload", "init"])
def test_hits_that_a_server_counted_come_back_from_prompts_of_any_length(capplan, tmp_path, way):
    """A counter says that 8,600 of 43,000 prompt tokens were found; most prompts are far shorter than the mean."""
    metrics, path = tmp_path / "metrics.txt", tmp_path / "found.yaml"
    metrics.write_text(LONG_AND_SHORT)
    said = ("--model", "llama-3.1-8b", "--request-rate", "1 req/s")
    assert capplan("init", path, "--from", metrics, *said).code == 0
    if way == "workload":
        written = yaml.safe_load(workload_text(workload_of([metrics])))["traffic"][0]
        traffic = {**written, "request_rate": "1 req/s"}
        path.write_text(json.dumps({**yaml.safe_load(path.read_text()), "traffic": [traffic]}))
    (item,) = read_scenario(path).classes
    assert item.cached_input_tokens / item.input_tokens.whole_tokens(1000).mean() == pytest.approx(
        0.2, rel=0.03
    )


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_time_stamps_and_delays_of_aiperf_are_milliseconds_without_hashes(tmp_path):
    """AIPerf, docs/tutorials/fixed-schedule.md: "timestamp: Milliseconds from schedule start"; delays are in milliseconds too."""
    lengths = {"input_length": 655, "output_length": 52}
    schedule = [{"timestamp": at, **lengths} for at in (0, 10_535, 27_482, 30_482)]
    assert read_trace(jsonl(tmp_path / "a.jsonl", schedule)).arrival_s.tolist() == [
        0.0,
        10.535,
        27.482,
        30.482,
    ]
    fractions = [{"timestamp": at, **lengths} for at in (0.0, 10_535.25, 27_482.5)]
    assert read_trace(jsonl(tmp_path / "f.jsonl", fractions)).arrival_s.tolist() == [0.0, 10.53525, 27.4825]
    turns = [
        {"session_id": f"s{n}", **lengths, **({"delay": 5000} if turn else {"timestamp": 1000 * n})}
        for n in range(20)
        for turn in range(5)
    ]
    found = workload_of([jsonl(tmp_path / "s.jsonl", turns)])
    assert (found.requests, found.rate.seconds) == (100, 39.0)
    assert any("in ms" in note for note in workload_of([tmp_path / "a.jsonl"]).notes)
    table = tmp_path / "a.csv"
    table.write_text("timestamp,input_length,output_length\n0,655,52\n10535,672,26\n27482,655,52\n")
    assert read_trace(table).arrival_s.tolist() == [0.0, 10.535, 27.482]


UNITS = [("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)]


@pytest.mark.parametrize("spelling", ["jsonl", "csv"])
@pytest.mark.parametrize("prefix", ["arrival", "timestamp"])
@pytest.mark.parametrize(("unit", "per_s"), UNITS)
def test_a_named_unit_counts_and_an_unnamed_one_is_asked_for_where_the_rate_cannot_be(
    tmp_path, spelling, prefix, unit, per_s
):
    """The same requests, four seconds apart, in any unit: what is read has the same times, or asks for the unit."""

    def written(column):
        path = tmp_path / f"{column}.{spelling}"
        rows = [{column: round(4 * n * per_s), "input_tokens": 100, "output_tokens": 10} for n in range(9)]
        if spelling == "jsonl":
            return jsonl(path, rows)
        path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
        return path

    assert read_trace(written(f"{prefix}_{unit}")).arrival_s.tolist() == [4.0 * n for n in range(9)]
    for read in (read_trace, lambda path: workload_of([path])):
        if unit == "s":
            read(written(prefix))
            continue
        with pytest.raises(InputError, match=r"requests per second, and the file does not state their unit"):
            read(written(prefix))


def test_a_rare_rate_in_a_stated_unit_is_questioned_and_read(tmp_path):
    rows = [{"arrival_s": 7200.0 * n, "input_tokens": 100, "output_tokens": 10} for n in range(9)]
    found = workload_of([jsonl(tmp_path / "t.jsonl", rows)])
    assert found.requests == 9
    assert any("is the unit of the time stamps right?" in note for note in found.notes)
