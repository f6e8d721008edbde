"""Streams and files that are not what people mean: a full disk for warnings, a pipe without a writer, rows that no run has."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from capplan.cli.main import main
from capplan.readers import text_file
from capplan.report import show
from tests.files import written_to
from tests.sweeps import long_but

pytestmark = pytest.mark.usefixtures("shared_runs")

ROOT = Path(__file__).resolve().parents[2]
FULL = Path(os.devnull).with_name("full")
HEAD = "id,engine,engine_version,model_hf_id,weights_dtype,kv_dtype,gpu,num_gpus,tp,pp,ep,dp,isl,osl,length_distribution,concurrency,request_rate,tpot_ms_mean,ttft_ms_mean,kind,core,weight"
ROW = "a,vllm,0.11.0,meta-llama/Llama-3.1-8B-Instruct,bf16,auto,h100-sxm,1,1,1,1,1,500,60,fixed,4,,9,40,online_conc,1,1"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize(("words", "code"), [(["model", "no-such-model", "--offline"], 2), (["hardware", "l4"], 0), (["report", "--help"], 0), (["fleet", "rerank", "--offline"], 0)])  # fmt: skip
def test_where_no_warning_can_be_written_the_answer_and_its_code_still_come(words, code):
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "capplan", *words], stdout=subprocess.PIPE, stderr=full, cwd=ROOT, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == code
    assert bool(done.stdout) == (code == 0)


def test_a_pipe_to_which_nobody_writes_is_refused(tmp_path, capplan, monkeypatch):
    monkeypatch.setattr(text_file, "PIPE_WAIT_MS", 50)
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "to which nobody wrote" in capplan.refused("fleet", tmp_path / "pipe.yaml")


@pytest.mark.parametrize("command", ["workload", "fleet", "model", "validate"])
def test_a_device_that_is_silent_is_given_up_like_a_pipe(command, capplan, monkeypatch):
    monkeypatch.setattr(text_file, "PIPE_WAIT_MS", 50)
    for silent in (os.ttyname(os.openpty()[1]), "/dev/ptmx", "/proc/kmsg"):
        if not os.access(silent, os.R_OK) or (silent == "/proc/kmsg" and os.geteuid()):
            continue  # only root reads messages of the kernel
        assert re.search("to which nobody wrote|is expected", err := capplan.refused(command, silent)), (
            silent,
            err,
        )


def test_a_pipe_that_does_not_end_is_given_up(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(text_file, "LONGEST_PIPE_S", 0.2)
    os.mkfifo(tmp_path / "pipe.csv")
    with subprocess.Popen(["yes"], stdout=os.open(tmp_path / "pipe.csv", os.O_RDWR)) as writer:
        assert main(["workload", str(tmp_path / "pipe.csv")]) == 2
        writer.kill()
    assert "does not end" in capsys.readouterr().err


ROWS = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{n}.5,100,{n + 9}\n" for n in range(30))


@pytest.mark.long
@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_stdin_is_read_as_often_as_a_command_reads_its_file(name, tmp_path):
    file = written_to(tmp_path / "stdin", ROWS)
    asked = [sys.executable, "-m", "capplan", "workload", "--format", "json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    of_file = subprocess.run([*asked, str(file)], capture_output=True, env=env, check=True, text=True)
    of_pipe = subprocess.run([*asked, name], input=ROWS, capture_output=True, env=env, check=True, text=True)
    without_name = [
        json.loads(run.stdout.replace(str(file), "/dev/stdin"))["result"] for run in (of_file, of_pipe)
    ]
    assert without_name[0] == without_name[1]


def test_a_line_as_the_output_is_stdout(tmp_path, capplan, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["-o", "-"], ["--output=-"], ["-o-"], ["--output", "-"], []):
        assert capplan.result("hardware", "l4", *words)
    assert "--points: - is stdout" in capplan.refused(
        "sweep", "llama-3.1-8b", "--hardware", "l4", "--points", "-"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_that_is_written_to_is_read_whole(tmp_path, capsys):
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    text = (ROOT / "model_configs" / "meta-llama--Llama-3.1-8B-Instruct" / "config.json").read_text()
    writer = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(0.3); open({str(pipe)!r}, 'w').write({text!r})"]
    )
    assert main(["model", str(pipe), "--format", "csv"]) == 0
    assert writer.wait(timeout=20) == 0
    assert "8030261248" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "value"), [("weight", "0"), ("num_gpus", "0"), ("num_gpus", "fp9"), ("concurrency", "l4"), ("osl", "many")]
)  # fmt: skip
def test_a_row_that_no_run_has_is_counted_and_scores_nothing(column, value, tmp_path, capsys):
    names, row = HEAD.split(","), ROW.split(",")
    odd = row.copy()
    odd[names.index(column)] = value
    file = written_to(tmp_path / "runs.csv", "\n".join([HEAD, ROW, ",".join(odd)]) + "\n")
    assert main(["validate", str(file), "--decisions", "--format", "json"]) == 0
    answered = capsys.readouterr().out
    assert '"rows": 2' in answered
    assert "NaN" not in answered
    file.write_text("\n".join([HEAD, ",".join(odd)]) + "\n")
    assert main(["validate", str(file), "--decisions"]) in (0, 2)


def test_a_hub_cache_that_is_no_text_is_refused(tmp_path, monkeypatch, program):
    refs = tmp_path / "models--owner--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_bytes(bytes(range(128, 190)))
    found = program("model", "owner/name", "--offline", env={"HF_HUB_CACHE": str(tmp_path)})
    assert found.code == 2
    assert "cannot be read" in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize(
    "text", [b"", bytes(range(256)), b"\xff\xfe", b"..", b"../../../x", b"a" * 5000, b"\n\n", b"abc\0def"]
)
def test_whatever_a_hub_cache_says_of_a_revision_is_one_line(text, tmp_path, capplan, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refs = tmp_path / "models--owner--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_bytes(text)
    found = capplan("model", "owner/name", "--offline")
    assert found.code == 2
    assert "Traceback" not in found.err


def test_an_answer_waits_for_a_reader_of_its_pipe_and_not_for_ever(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(show, "READER_WAIT_S", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["hardware", "l4", "-o", str(pipe)]) == 2
    said = capsys.readouterr()
    assert "--output: cannot write" in said.err
    assert "nobody read this pipe" in said.err
    assert "NVIDIA L4" in said.out  # what was computed is not lost
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        monkeypatch.setattr(show, "READER_WAIT_S", 20.0)
        assert main(["hardware", "l4", "-o", str(pipe)]) == 0
        assert "NVIDIA L4" in reader.communicate(timeout=20)[0]


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
def test_a_bill_that_cannot_be_written_names_the_option_that_it_is_for(capsys):
    assert main(["bill", "rerank", "--focus", str(FULL), "--offline"]) == 2
    said = capsys.readouterr()
    assert "--focus: cannot write" in said.err
    assert "--output" not in said.err
    assert "BilledCost" in said.out


@pytest.mark.parametrize("columns", ["9" * 5000, "0" * 5000 + "80", "²", "-1", "0", "٣", "1e9"])
def test_a_width_that_is_none_is_not_asked_for(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["kv-size", "llama-3.1-8b", "--context", "8192"]) == 0
    assert "8,192" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    long_but(
        {"capplan model 'llama", "capplan '\"", "capplan --"},
        [
            "capplan model 'llama",
            'capplan model "llama',
            "capplan model llama\\",
            "capplan 'mod",
            "capplan x '",
            "capplan '\"",
            "capplan --",
        ],
    ),
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_a_quote_that_is_still_open_is_completed_or_left_alone(shell, line, program):
    env = {
        "_CAPPLAN_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": "2",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_WORD_TO_COMPLETE": line,
    }
    assert "Traceback" not in program(env=env).err


LATE = {
    "backend": "vllm", "num_prompts": 2, "completed": 2, "duration": 1.0, "total_input_tokens": 20, "total_output_tokens": 16,
    "request_rate": "inf", "input_lens": [10, 10], "output_lens": [8, 8], "ttfts": [10.0, 0.15], "latencies": [0.2, 0.2],
    "start_times": [1.0, 1.1], "mean_ttft_ms": 150.0, "mean_tpot_ms": 5.0,
}  # fmt: skip


def test_a_result_whose_first_token_comes_after_its_end_is_refused(tmp_path, capsys, capplan):
    file = written_to(tmp_path / "late.json", LATE)
    for words in (
        ["workload", str(file)],
        ["calibrate", "--from", str(file), "--model", "llama-3.2-1b", "--hardware", "l4", "--offline"],
    ):
        assert main(words) == 2
        assert (
            "request 1 of the log has its first token after 10 s and its end after 0.2 s"
            in capsys.readouterr().err
        )
    file.write_text(json.dumps({**LATE, "ttfts": [0.2004, 0.15]}))  # rounded to milliseconds
    assert capplan.result("workload", file)["measured"]["tpot_s"] >= 0.0


def test_a_line_of_a_log_whose_first_token_comes_after_its_end_is_counted_and_left_out(tmp_path, capsys):
    rows = [
        {
            "timestamp": i,
            "input_length": 50,
            "output_length": 8,
            "ttft_s": 0.1,
            "e2e_s": 0.01 if i == 3 else 0.5,
        }
        for i in range(6)
    ]
    file = written_to(tmp_path / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert main(["workload", str(file), "--format", "json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["result"]["requests"] == 5
    assert "the first token is later than the end" in said.out + said.err
