"""Streams and files that are not what people mean: a full disk for warnings, a pipe without a writer, rows that no run has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from capplan.cli.main import main
from capplan.readers import text_file

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


def test_a_pipe_to_which_nobody_writes_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(text_file, "PIPE_WAIT_MS", 50)
    os.mkfifo(tmp_path / "pipe.yaml")
    assert main(["fleet", str(tmp_path / "pipe.yaml")]) == 2
    assert "a pipe to which nobody wrote" in capsys.readouterr().err


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
    file = tmp_path / "runs.csv"
    file.write_text(
        "\n".join([HEAD, ROW, ",".join(odd)]) + "\n"
    )  # of one id, as in files that were pasted together
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
