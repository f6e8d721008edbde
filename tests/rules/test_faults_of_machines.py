"""Faults and sizes that no usual machine and file has: results of 200,000 rows, hundreds of classes, many threads."""

import csv
import json
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.sweeps import long_but

GIB = 1024**3
ROWS = [2_000, 200_000]
SERVED = {
    "engine": "vllm", "engine_version": "0.7.3", "model_hf_id": "Qwen/Qwen2.5-0.5B-Instruct", "weights_dtype": "bf16", "gpu": "l4",
    "num_gpus": 1, "tp": 1, "isl": 72, "osl": 100, "length_distribution": "fixed", "kind": "online_conc",
}  # fmt: skip
SCENARIO = {
    "name": "s",
    "model": "llama-3.1-8b-instruct",
    "traffic": [{"request_rate": "4 req/s", "input_tokens": 512, "output_tokens": 200}],
    "slo": {"ttft_p95": "2 s", "tpot_p95": "60 ms"},
    "fleet": {"hardware": ["h100-sxm"]},
}


@pytest.fixture
def within(root, tmp_path):
    """Run the program with so much memory, in a folder of its own."""

    def run(limit_bytes, *words):
        done = subprocess.run(
            [sys.executable, "-m", "capplan", *map(str, words)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={
                "PYTHONPATH": str(root),
                "PATH": "/usr/bin:/bin",
                "OPENBLAS_NUM_THREADS": "1",
                "HOME": str(tmp_path),
            },
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes)),
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr[-2000:]
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


def request_log(path, count):
    """Write the detailed result of a vLLM server that answered so many requests."""
    each = {"input_lens": 512, "output_lens": 200, "ttfts": 0.06, "latencies": 1.453}
    whole = {
        "date": "20260101-000000", "backend": "vllm", "model_id": SCENARIO["model"], "num_prompts": count, "max_concurrency": 16,
        "completed": count, "failed": 0, "duration": 0.1 * count, "total_input_tokens": 512 * count, "total_output_tokens": 200 * count,
        "request_throughput": 10.0, "output_throughput": 2000.0, "mean_ttft_ms": 60.0, "median_ttft_ms": 60.0, "p99_ttft_ms": 60.0,
        "mean_tpot_ms": 7.0, "median_tpot_ms": 7.0, "p99_tpot_ms": 7.0,
    }  # fmt: skip
    lists = {key: [value] * count for key, value in each.items()} | {
        "start_times": [0.1 * n for n in range(count)]
    }
    path.write_text(json.dumps(whole | lists))
    return whole


@pytest.mark.parametrize("rows", long_but({2_000}, ROWS))
def test_measured_rows_with_the_same_settings_are_simulated_once(within, tmp_path, rows):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*SERVED, "concurrency", "ttft_ms_p50", "output_tok_s"])
        writer.writeheader()
        for number in range(rows):
            users = 1 + number % 8
            writer.writerow(
                SERVED | {"concurrency": users, "ttft_ms_p50": 27 + number % 5, "output_tok_s": 100 * users}
            )
    done = within(2 * GIB, "validate", path, "--predictions", "out.csv")
    assert done.code == 0, done.err
    assert f"{rows} of {rows} rows predicted" in done.out
    with (tmp_path / "out.csv").open() as file:
        predicted = {line["predicted"] for line in csv.DictReader(file) if line["metric"] == "ttft_ms_p50"}
    assert len(predicted) == 8


@pytest.mark.parametrize("requests", long_but({2_000}, ROWS))
def test_logs_of_many_requests_are_one_result(within, tmp_path, requests):
    whole = request_log(tmp_path / "log.json", requests)
    (tmp_path / "mean.json").write_text(json.dumps(whole))
    (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO))
    assert within(GIB, "fleet", "s.yaml", "-o", "plan.json", "--offline").code == 0
    words = ("--hardware", "h100-sxm", "--offline", "--format", "json")
    for command, more in (
        ("calibrate", words),
        ("verify-plan", ("--plan", "plan.json", "--offline", "--format", "json")),
    ):
        given = "--from" if command == "calibrate" else "--results"
        log, mean = (within(GIB, command, given, name, *more) for name in ("log.json", "mean.json"))
        assert log.code == mean.code
        measured = [json.loads(done.out)["result"] for done in (log, mean)]
        assert [found.get("results", 1) for found in measured] == [1, 1]


@pytest.mark.parametrize("results", long_but({501}, [501, 200_000]))
@pytest.mark.parametrize(
    "command",
    [
        ("calibrate", "--from"),
        ("calibrate", "--verify", "llama-3.1-8b-instruct", "--calibration", "{}", "--results"),
    ],
)
def test_more_results_than_are_replayed_are_refused_with_a_way_out(within, tmp_path, root, results, command):
    one = request_log(tmp_path / "one.json", 160)
    lines = (json.dumps(one | {"max_concurrency": 1 + number % 64}) for number in range(results))
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    calibration = next(
        (root / "tests" / "data").rglob("*.calibration.yaml"), tmp_path / "none.calibration.yaml"
    )
    words = [word.format(calibration) for word in command]
    done = within(2 * GIB, *words, "many.jsonl", "--hardware", "h100-sxm", "--offline")
    assert done.code == 2
    assert done.err.splitlines() == [
        f"many.jsonl: {results:,} results are given, and capplan replays at most 500",
        "  give results of different concurrencies and lengths, and of repeats only one",
    ]


@pytest.mark.long
def test_a_scenario_of_500_classes_is_answered_as_the_one_class_that_they_are(within, tmp_path):
    (whole,) = SCENARIO["traffic"]
    each = [whole | {"name": f"class{number}", "request_rate": "0.02 req/s"} for number in range(500)]
    gpus = []
    for traffic in ([whole | {"request_rate": "10 req/s"}], each):
        (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO | {"traffic": traffic}))
        done = within(GIB, "fleet", "s.yaml", "--offline", "--format", "json")
        assert done.code == 0, done.err
        gpus.append(json.loads(done.out)["result"]["chosen"]["gpus"])
    assert gpus[0] == gpus[1]


def test_more_classes_than_a_scenario_may_have_are_refused(capplan, tmp_path):
    (whole,) = SCENARIO["traffic"]
    each = [whole | {"name": f"class{number}", "request_rate": "0.02 req/s"} for number in range(1001)]
    (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO | {"traffic": each}))
    done = capplan("fleet", tmp_path / "s.yaml", "--offline")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0].endswith("traffic: has more than 1,000 entries; leave some out")


THREADS = """
import json, sys, threading
import capplan as cp

sys.setswitchinterval(1e-5)
path = sys.argv[2]
QUESTIONS = (
    lambda: cp.kv_size("deepseek-v3", [1, 8192], offline=True).data,
    lambda: cp.estimate("llama-3.1-8b", "h100-sxm", concurrency=16, offline=True).data,
    lambda: cp.estimate("qwen3-0.6b", "l4", request_rate=1.0, offline=True).data,
    lambda: repr(cp.load_scenario("small-team", "slo.ttft_p95=3 s")),
    lambda: cp.simulate(path, until_s=20.0, offline=True).data,
    lambda: cp.plan_fleet(path, offline=True).data,
)[:int(sys.argv[1])]
answers, start = [None] * 50, threading.Barrier(50)

def ask(number):
    start.wait()
    answers[number] = repr(QUESTIONS[number % len(QUESTIONS)]())

threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
for thread in threads: thread.start()
for thread in threads: thread.join()
alone = [repr(question()) for question in QUESTIONS]
print(json.dumps([number for number in range(50) if answers[number] != alone[number % len(QUESTIONS)]]))
"""


@pytest.mark.parametrize("questions", long_but({4}, [4, 6]))
def test_fifty_threads_of_one_process_get_the_answers_of_one(root, tmp_path, questions):
    """They begin at once, in a process that has read and imported nothing yet."""
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(SCENARIO))
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(questions), str(path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == []
