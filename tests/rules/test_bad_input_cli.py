"""Bad input: one clear line that names file and key, what is allowed, the nearest match; exit 2; no traceback, no number."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from capplan.fleet.engine_options import Scheduler
from capplan.serving.terms import ROUTINGS
from tests.files import written_to
from tests.hub import CONFIG
from tests.interrupts import started

LLAMA = {**CONFIG, "torch_dtype": "bfloat16"}


def refused(ran, *expected):
    """Check that a run was refused in words: what, where and what is allowed."""
    assert ran.code == 2, (ran.out, ran.err)
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert "Error" not in ran.err.split(":")[0]
    first = ran.err.splitlines()[0]
    for text in expected:
        assert text in ran.err, f"{text!r} is not in {ran.err!r}"
    return first


def written(folder, config, name="config.json"):
    return written_to(folder / name, config if isinstance(config, str) else json.dumps(config))


@pytest.fixture
def model(capplan, tmp_path):
    """Run `capplan model` on a config of these keys."""

    def run(**changes):
        config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
        return capplan("model", written(tmp_path, config), "--format", "json")

    return run


def test_a_good_config_is_read(model):
    ran = model()
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["result"]["layers"] == 2


# Files


def test_an_unreadable_file_is_named(capplan, tmp_path):
    folder = tmp_path / "config.json"
    folder.mkdir()
    refused(capplan("model", folder), "config.json")
    locked = written(tmp_path, LLAMA, "locked.json")
    locked.chmod(0)
    if not os.access(locked, os.R_OK):
        refused(capplan("model", locked), "locked.json", "cannot be read")


def test_a_folder_without_config_says_so(capplan, tmp_path):
    refused(capplan("model", tmp_path), str(tmp_path), "no config.json")


def test_weights_passed_by_mistake_are_recognised(capplan, tmp_path):
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF" + bytes(100))
    refused(capplan("model", gguf), "model.gguf", "GGUF version 0")
    header = json.dumps({"w": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    tensors = tmp_path / "model.safetensors"
    tensors.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    refused(capplan("model", tensors), "model.safetensors", "safetensors", "config.json")


def test_a_file_of_50_mb_is_not_read_whole(capplan, tmp_path):
    large = tmp_path / "config.json"
    with large.open("wb") as file:
        file.write(b'{"model_type": "')
        file.truncate(50_000_000)
    start = time.perf_counter()
    refused(capplan("model", large), "config.json", "MB")
    assert time.perf_counter() - start < 30


def test_a_path_with_blanks_and_unicode_works(capplan, tmp_path):
    folder = tmp_path / "mein Modell – 模型"
    folder.mkdir()
    written(folder, LLAMA)
    assert capplan.result("model", folder)["model"] == "mein Modell – 模型"


# Keys of a config


def test_an_unknown_model_type_gives_its_nearest(model):
    refused(model(model_type="lama"), "config.json: model_type", "'lama'", "llama")
    refused(model(model_type=...), "config.json: model_type", "missing")
    refused(model(model_type=7), "config.json: model_type")


@pytest.mark.long
def test_the_list_of_models_leaves_out_what_is_not_modelled(capplan):
    listed = capplan.result("model")
    assert len(listed["models"]) >= 40
    for name in listed["not_modelled"]:
        refused(capplan("model", name), name, "not modelled")


def test_a_quantisation_that_is_no_section_is_refused(model):
    refused(model(quantization_config="fp8"), "quantization_config")


# Words of the command line


def test_a_context_over_the_maximum_is_a_warning_with_the_number(capplan):
    ran = capplan("kv-size", "llama-3.1-8b", "--context", "200000", "--format", "json")
    assert ran.code == 0
    assert "warning: a context of 200000 tokens exceeds the model's maximum of 131072" in ran.err
    assert json.loads(ran.out)["warnings"]


# Where the answer goes


def test_an_output_that_cannot_be_written_is_named_and_leaves_nothing(capplan, tmp_path):
    words = ("kv-size", "llama-3.1-8b", "--context", "8192", "--output")
    refused(capplan(*words, tmp_path / "none" / "a.csv"), "--output", "none/a.csv")
    refused(capplan(*words, tmp_path), "--output", "folder")
    assert list(tmp_path.iterdir()) == []


def test_an_output_takes_its_format_from_the_suffix_and_is_whole(capplan, tmp_path):
    target = written_to(tmp_path / "größe.json", "old")
    ran = capplan("kv-size", "llama-3.1-8b", "--context", "8192", "-o", target)
    assert (ran.code, ran.out) == (0, "")
    assert json.loads(target.read_text(encoding="utf-8"))["command"] == "kv-size"
    assert list(tmp_path.iterdir()) == [target]


def test_a_device_file_is_written_to_and_never_replaced(capplan):
    assert capplan("hardware", "l4", "-o", "/dev/null").code == 0
    assert not Path("/dev/null").is_file()


def test_a_closed_stdout_is_no_error(root):
    """`capplan hardware | head -1`: the reader goes away before everything is written."""
    for words in (["hardware", "--format", "json"], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-m", "capplan", *words],
            cwd=root,
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_ends_with_130_and_no_traceback(root, tmp_path):
    """Interrupted while it waits for the end of a config that is a pipe."""
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    running = started(
        [sys.executable, "-m", "capplan", "model", str(pipe)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    writer = os.open(pipe, os.O_WRONLY)  # returns once the program has opened its end
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    os.close(writer)
    assert running.returncode == 130
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize(("flag", "names"), [("--routing", ROUTINGS), ("--scheduling", get_args(Scheduler))])
def test_a_flag_knows_the_names_that_the_simulator_knows(capplan, flag, names):
    """The command lists them itself, for it starts before the simulator is loaded."""
    ran = capplan("simulate", "scenario.yaml", flag, "zzz")
    refused(ran, f"known: {', '.join(sorted(names))}")
