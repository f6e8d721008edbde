"""Bad input: one clear line that names file and key, what is allowed, the nearest match; exit 2; no traceback, no number."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

import capplan as cp
from capplan.cli.commands import DROPPED, FUNCTIONS
from capplan.cli.main import main
from capplan.errors import InputError, nearest
from capplan.families.model_config import read_network
from capplan.families.registry import REFUSED
from capplan.fleet.engine_options import Scheduler
from capplan.model.parameters import parameters
from capplan.readers.catalogue.models import shipped_config
from capplan.readers.text_file import data_folder
from capplan.scenario.scenario import read_scenario
from capplan.scenario.scenario_file import ScenarioFile
from capplan.serving.terms import ROUTINGS
from tests.files import written_to
from tests.hub import CONFIG
from tests.interrupts import started

pytestmark = pytest.mark.usefixtures("shared_runs")


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


STATED = ("--draft-step-time", "2 ms", "--target-step-time", "35 ms")


def test_two_models_that_leave_no_cache_do_not_fit(capplan):
    ran = capplan(
        "spec llama-3.1-70b --hardware h100 -tp 2 --weight-dtype fp8 --kv-dtype fp8 --max-model-len 8192 --draft llama-3.1-70b --acceptance 0.8",
    )  # fmt: skip
    assert ran.code == 3
    assert "the draft needs" in ran.err
    assert ran.out == ""


def test_a_model_beside_two_stated_times_is_said_to_be_unused(capplan):
    ran = capplan("spec", "llama-3.1-8b", "--hardware", "h100", "--acceptance", "0.8", *STATED)
    assert ran.code == 0
    assert "not used" in ran.err


@pytest.mark.parametrize("option", DROPPED)
def test_a_removed_option_says_what_to_write(option, capplan):
    command, name = option.split(" ")
    assert command in FUNCTIONS
    assert capplan.refused(command, "MODEL", name, "x") == f"{name}: was removed: {DROPPED[option]}\n"


@pytest.mark.parametrize("key", ScenarioFile.removed)
def test_a_removed_value_says_what_to_write(key, capsys):
    name, _, value = key.partition(": ")
    assert main(["fleet", "shared-gpus", "--set", f"{name}={value}", "--offline"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{name}: {value} was removed: {ScenarioFile.removed[key]}")


CHAT = """name: chat
model: Qwen/Qwen3-32B
traffic:
  - name: chat
    request_rate: 8 req/s
    input_tokens: {mean: 1500, p95: 5000}
    output_tokens: {mean: 300, p95: 800}
slo: {ttft_p95: 1 s, tpot_p95: 40 ms}
fleet: {hardware: [h100-sxm]}
"""


def test_a_key_of_the_file_keeps_its_line_beside_an_overridden_one(tmp_path):
    path = written_to(tmp_path / "chat.yaml", CHAT.replace("40 ms", "40"))
    with pytest.raises(InputError) as caught:
        read_scenario(path, ("slo.ttft_p95=1",))
    first, second = str(caught.value).splitlines()
    assert "overridden: slo.ttft_p95" in first
    assert "line 8: slo.tpot_p95" in second


def test_no_word_of_other_tools_is_taken_for_its_opposite():
    assert "headroom" not in nearest("utilization", ["headroom", "hardware"])


def test_words_of_the_screen_find_their_quantity():
    known = ["gpus", "slo_met_probability", "usd_per_hour", "usd_per_month"]
    assert nearest("cost", known) == ["usd_per_month"]
    assert nearest("chance", known) == ["slo_met_probability"]


def test_the_library_says_what_to_write():
    with pytest.raises(InputError, match=r"'openai/gpt-5-mini' is not a list; write \['openai/gpt-5-mini'\]"):
        cp.compare("small-team", "openai/gpt-5-mini")
    with pytest.raises(InputError, match="a value of type int is not a scenario"):
        cp.plan_fleet(5)
    for call in (cp.plan_fleet, cp.simulate, cp.compare):
        with pytest.raises(InputError, match="unknown option 'ofline': did you mean 'offline'"):
            call("small-team", ofline=True)


@pytest.mark.long
def test_a_gpu_of_a_file_is_found_from_here_and_has_its_own_price(capplan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (data_folder("hardware_specs") / "l40s.yaml").read_text(encoding="utf-8")
    (tmp_path / "our-gpu.yaml").write_text(text.replace("name: l40s", "name: our-gpu", 1))
    words = ("--hardware", "our-gpu.yaml", "--set", "prices.per_gpu_hour={our-gpu: 0.50 $/h}")
    ran = capplan("fleet", "small-team", "--offline", *words)
    assert ran.code == 0, ran.err
    assert "2 x our-gpu" in ran.out
    assert "$730 per month" in ran.out


CASCADE = "cascade={model: qwen3-4b, escalated: 30 %}"
SLICE = "fleet.hardware=[h100-sxm:3g.40gb]"


def test_a_mistake_of_the_second_model_is_said_before_the_fleet_of_the_first_is_searched(
    capplan, monkeypatch
):
    searched = []
    monkeypatch.setattr("capplan.questions.several_models.fleet_for", lambda *asked: searched.append(asked))
    ran = capplan(
        "fleet tests/golden/small.yaml --offline --set", CASCADE, "--set", "cascade.model=qwen3-4bb"
    )
    assert (ran.code, searched) == (2, [])
    assert "unknown model 'qwen3-4bb'" in ran.err


def test_a_model_that_meets_no_target_is_named_by_its_fleet(capplan):
    ran = capplan(
        "fleet tests/golden/small.yaml --offline --set",
        CASCADE,
        "--set",
        "cascade.changes={slo: {ttft_p95: 1 us}}",
    )
    assert ran.code == 4
    assert "no plan meets the targets, so the cascade has no second fleet" in ran.err
    assert "--set cascade.part=second" in ran.err


def test_a_picture_is_of_one_fleet(capplan, tmp_path):
    ran = capplan("fleet tests/golden/small.yaml --offline --set", CASCADE, "--plot", tmp_path / "x.svg")
    assert (ran.code, ran.err[:27]) == (2, "--plot: draws one fleet, an")
    assert list(tmp_path.iterdir()) == []


def test_a_replica_on_slices_has_one_of_them(capplan):
    ran = capplan(
        "fleet tests/golden/small.yaml --offline --set", SLICE, "--set", "fleet.tensor_parallel=[2]"
    )
    assert ran.code == 4
    assert "slices of a GPU have no links to each other, so a replica has one" in ran.out
    assert "slices of a GPU have no links to each other" in capplan.refused(
        "fit qwen3-4b --hardware h100:3g.40gb -tp 2 --offline"
    )


PUBLISHED = ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3",
             "mistralai/Mixtral-8x7B-Instruct-v0.1", "openai/gpt-oss-20b"]  # fmt: skip
"""Models whose keys say how they are built, whatever the name of their type."""


def refusal(config):
    with pytest.raises(InputError) as error:
        read_network(config, "private")
    return str(error.value).splitlines()


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_private_type_is_sent_to_a_kin_that_counts_the_same(model):
    config = shipped_config(model)[0]
    first, second = refusal({**config, "model_type": "acme_large"})
    kin = first.rpartition("set model_type: ")[2]
    assert f"if it is built like {kin!r}" in first
    assert "CONTRIBUTING.md" in second
    followed = read_network({**config, "model_type": kin}, "private")
    assert parameters(followed) == parameters(read_network(config, "published"))


def test_a_file_with_none_but_the_keys_of_a_llama_is_sent_to_llama():
    """Its kin was phi3, whose class has fewer keys that such a file leaves out."""
    plain = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "hidden_act": "silu"}  # fmt: skip
    assert refusal({**plain, "model_type": "acme_large"})[0].endswith("set model_type: llama")


def test_a_kin_that_does_not_read_the_file_is_not_named():
    config = shipped_config("meta-llama/Llama-3.1-8B-Instruct")[0] | {"num_attention_heads": 7}
    lines = refusal({**config, "model_type": "acme_large"})
    for kin in re.findall(r"set model_type: (\S+)", lines[0]):
        read_network({**config, "model_type": kin}, "private")


@pytest.mark.parametrize(
    "config", [{}, {"hidden_size": 64}, json.loads('{"text_config": {}, "vision_config": {}}')]
)
def test_a_file_of_few_keys_has_no_kin(config):
    assert "built like" not in refusal({**config, "model_type": "acme_large"})[0]


@pytest.mark.parametrize(
    "kind", ["diffusion_gemma", "t5gemma2", "rwkv", "xlstm", "dory", "inkling2_loop", "lara_mini", "omniasr"]
)
def test_what_no_engine_decodes_is_refused_with_the_reason(kind):
    assert REFUSED[kind] in refusal({"model_type": kind, "hidden_size": 64})[0]
