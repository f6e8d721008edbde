"""Faults and sizes that no usual machine and file has: results of 200,000 rows, hundreds of classes, many threads."""

import csv
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

import capplan as cp
from capplan.errors import InputError
from tests.files import written_to
from tests.installs.sizes import SCENARIO, many_results, measured_rows, request_log, scenario_of_classes
from tests.sweeps import long_but
from tests.tables import table

GIB = 1024**3
ROWS = [2_000, 200_000]


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


@pytest.mark.parametrize("rows", long_but({2_000}, ROWS))
def test_measured_rows_with_the_same_settings_are_simulated_once(within, tmp_path, rows):
    path = tmp_path / "rows.csv"
    measured_rows(path, rows)
    done = within(2 * GIB, "validate", path, "--predictions", "out.csv")
    assert done.code == 0, done.err
    assert f"{rows} of {rows} rows predicted" in done.out
    with (tmp_path / "out.csv").open() as file:
        predicted = {line["predicted"] for line in csv.DictReader(file) if line["metric"] == "output_tok_s"}
    assert len(predicted) == 8


def ask_of_a_log(run, folder, requests):
    """A log of many requests and its means are one result each, whichever command reads them."""
    log, mean, scenario, plan = (folder / name for name in ("log.json", "mean.json", "s.yaml", "plan.json"))
    mean.write_text(json.dumps(request_log(log, requests)))
    scenario.write_text(json.dumps(SCENARIO))
    assert run("fleet", scenario, "-o", plan, "--offline").code == 0
    for words in (
        ("calibrate", "--hardware", "h100-sxm", "--from"),
        ("verify-plan", "--plan", plan, "--results"),
    ):
        answers = [run(*words, file, "--offline", "--format", "json") for file in (log, mean)]
        assert answers[0].code == answers[1].code
        assert [json.loads(done.out)["result"].get("results", 1) for done in answers] == [1, 1]


def test_a_log_of_requests_is_one_result(capplan, tmp_path, few_requests):
    ask_of_a_log(capplan, tmp_path, 2_000)


@pytest.mark.long
def test_logs_of_many_requests_are_one_result(within, tmp_path):
    ask_of_a_log(partial(within, GIB), tmp_path, 200_000)


@pytest.mark.parametrize("results", long_but({501}, [501, 200_000]))
@table
def test_more_results_than_are_replayed_are_refused_with_a_way_out(within, tmp_path, root, results, command):
    many_results(tmp_path / "many.jsonl", results)
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
    gpus = []
    for count, rate in ((1, "10 req/s"), (500, "0.02 req/s")):
        scenario_of_classes(tmp_path / "s.yaml", count, request_rate=rate)
        done = within(GIB, "fleet", "s.yaml", "--offline", "--format", "json")
        assert done.code == 0, done.err
        gpus.append(json.loads(done.out)["result"]["chosen"]["gpus"])
    assert gpus[0] == gpus[1]


def test_more_classes_than_a_scenario_may_have_are_refused(capplan, tmp_path):
    scenario_of_classes(tmp_path / "s.yaml", 1001, request_rate="0.02 req/s")
    done = capplan("fleet", tmp_path / "s.yaml", "--offline")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0].endswith("traffic: has more than 1,000 entries; leave some out")


THREADS = """
import json, sys, threading
import capplan as cp

sys.setswitchinterval(1e-5)
path, count = sys.argv[2], int(sys.argv[3])
QUESTIONS = (
    lambda: cp.kv_size("deepseek-v3", [1, 8192], offline=True).data,
    lambda: cp.estimate("llama-3.1-8b", "h100-sxm", concurrency=16, offline=True).data,
    lambda: cp.estimate("qwen3-0.6b", "l4", request_rate=1.0, offline=True).data,
    lambda: repr(cp.load_scenario("small-team", "slo.ttft_p95=3 s")),
    lambda: cp.simulate(path, until_s=20.0, offline=True).data,
    lambda: cp.plan_fleet(path, offline=True).data,
)[:int(sys.argv[1])]
answers, start = [None] * count, threading.Barrier(count)

def ask(number):
    start.wait()
    answers[number] = repr(QUESTIONS[number % len(QUESTIONS)]())

threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
alone = [repr(question()) for question in QUESTIONS]
print(json.dumps([number for number in range(count) if answers[number] != alone[number % len(QUESTIONS)]]))
"""


@pytest.mark.parametrize(
    ("questions", "threads"),
    [(4, 12), *(pytest.param(kinds, 50, marks=pytest.mark.long) for kinds in (4, 6))],
)
def test_many_threads_of_one_process_get_the_answers_of_one(root, tmp_path, questions, threads):
    """They begin at once, in a process that has read and imported nothing yet."""
    path = written_to(tmp_path / "s.yaml", SCENARIO)
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(questions), str(path), str(threads)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == []


@pytest.mark.long
def test_ten_thousand_calls_of_the_library_leave_nothing_behind():
    """Open files, threads and memory: what the first thousand calls keep is what all keep."""

    def call(turn):
        with suppress(InputError):
            cp.kv_size("llama-3.1-8b", [4096 + turn % 7], offline=True)
            cp.load_scenario("small-team", f"traffic[0].request_rate={1 + turn % 9} req/s")
            cp.kv_size("llama-3.1-8b", [-turn], offline=True)

    def held():
        gc.collect()
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), memory

    for turn in range(300):
        call(turn)
    before = held()
    for turn in range(3400):  # three calls each
        call(turn)
    after = held()
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 8_000_000  # 800 bytes a call


def test_answers_errors_and_scenarios_survive_pickling():
    scenario = cp.load_scenario("small-team")
    assert pickle.loads(pickle.dumps(scenario)) == scenario
    answer = cp.kv_size("llama-3.1-8b", [4096], offline=True)
    again = pickle.loads(pickle.dumps(answer))
    assert again.data == answer.data
    with pytest.raises(InputError) as caught:
        cp.kv_size("lama-3.1-8b", [4096], offline=True)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (type(error), str(error), error.exit_code) == (type(caught.value), str(caught.value), 2)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.long
def test_a_process_that_is_started_in_any_way_answers_alike(method):
    expected = cp.kv_size("llama-3.1-8b", [4096, 8192], offline=True).data
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.starmap(_cache_sizes, [("llama-3.1-8b", [4096, 8192])] * 3)
    assert found == [expected] * 3


def _cache_sizes(model, contexts):
    return cp.kv_size(model, contexts, offline=True).data


@pytest.mark.parametrize("step_s", [-1e9, -3600.0, 3600.0, 1e9])
def test_a_clock_that_steps_changes_no_answer(step_s, monkeypatch):
    expected = cp.kv_size("llama-3.1-8b", [4096], offline=True).data
    real, steps = time.time, itertools.count()
    monkeypatch.setattr(time, "time", lambda: real() + step_s * (next(steps) % 2))
    assert cp.kv_size("llama-3.1-8b", [4096], offline=True).data == expected
    assert cp.estimate("llama-3.1-8b", "l4", concurrency=2, offline=True).data


NAMES = ["<script>alert(1)</script>", '"><img src=x onerror=x>', "'--><svg onload=x>", "</title><b>", "</style><i>", "]]><u>", "&lt;b&gt;<b x='", "javascript:x", "{{x}}`${x}`"]  # fmt: skip


class Markup(HTMLParser):
    """The elements of a page with the names of their attributes, in their order, and its text."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, tuple(sorted(name for name, _ in attrs))))

    def handle_data(self, data):
        self.text += data


@pytest.mark.long
def test_no_name_becomes_markup_of_the_review(tmp_path, capplan):
    """The elements of a page do not depend on what things are called, but for the class of a short text."""
    pages, hostile = [], " ".join(NAMES)
    for name in ["plain ".ljust(len(hostile), "x"), hostile]:
        words = [
            "report",
            "small-team",
            "--offline",
            "--author",
            name,
            "--date",
            "2026-11-22",
            "-o",
            tmp_path / "page.html",
        ]
        ran = capplan(
            *words, "--set", f"name={json.dumps(name)}", "--set", f"traffic[0].name={json.dumps(name)}"
        )
        assert ran.code == 0, ran.err
        pages.append(Markup((tmp_path / "page.html").read_text()))
    assert pages[0].elements == pages[1].elements
    assert NAMES[0] in pages[1].text
