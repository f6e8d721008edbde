"""Manifests as people bring them (`tests/rows/manifests.yaml`) and as capplan writes them: all engines, replicas, GPUs and requests are read; else one line says what a file is."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from capplan.deploy.command_line import launch_of_words, read_command_line
from capplan.deploy.export import TARGETS
from capplan.deploy.manifests import deployed_engines
from capplan.deploy.replica_launch import ReplicaLaunch
from capplan.errors import InputError
from capplan.readers.catalogue.scenarios import shipped_scenarios
from capplan.readers.yaml_file import parse_yaml
from tests.files import written_to
from tests.plan_files import with_changes

pytestmark = pytest.mark.usefixtures("shared_runs")
FILE = Path(__file__).resolve().parents[1] / "rows" / "manifests.yaml"
ROWS = {row["name"]: row for row in parse_yaml(FILE.read_text(encoding="utf-8"), FILE.name).value}
PLAIN = ReplicaLaunch("", None, "")
OTHERWISE_SAID = ("unread", "assumed", "role")


def engines(text):
    """Return the engines of a manifest as the table writes them."""
    for one in deployed_engines(text, "FILE"):
        launch = launch_of_words(one.started, "FILE")
        said = {field.name: getattr(launch, field.name) for field in fields(ReplicaLaunch)}
        role = one.role or launch.role
        yield {
            "name": one.name,
            "replicas": one.replicas,
            "gpus": one.gpus,
            "requests": dict(one.requests),
            **({"role": role} if role else {}),
            **{
                key: value
                for key, value in said.items()
                if value != getattr(PLAIN, key) and key not in OTHERWISE_SAID
            },
        }


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "engines" in row])
def test_every_engine_of_a_manifest_is_read(name):
    assert list(engines(ROWS[name]["text"])) == ROWS[name]["engines"]


def test_an_engine_of_the_operator_is_that_of_the_chart():
    """vllm-project/production-stack, VLLMRuntime in operator/config/samples: what the operator does not find stated, it turns off."""
    (found,) = engines(
        """apiVersion: production-stack.vllm.ai/v1alpha1
kind: VLLMRuntime
metadata: {name: runtime}
spec:
  model: {modelURL: meta-llama/Llama-3.1-8B-Instruct, maxModelLen: 4096, dtype: bfloat16, maxNumSeqs: 32}
  vllmConfig: {enablePrefixCaching: true, tensorParallelSize: 2, gpuMemoryUtilization: "0.8", v1: true, port: 8000}
  deploymentConfig:
    replicas: 2
    resources: {cpu: "5", memory: 32Gi, gpu: "2", gpuType: nvidia.com/gpu}
    image: {registry: docker.io, name: "vllm/vllm-openai:v0.10.2"}
"""
    )
    assert found == {
        "name": "runtime",
        "replicas": 2,
        "gpus": 2,
        "requests": {"cpu": "5", "memory": "32Gi"},
        "engine": "vllm",
        "version": "0.10.2",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "tensor_parallel": 2,
        "weight_dtype": "bf16",
        "max_model_len": 4096,
        "max_num_seqs": 32,
        "memory_fraction": 0.8,
        "chunked_prefill": False,
    }


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "refused" in row])
def test_a_manifest_without_an_engine_is_named(capplan, tmp_path, name):
    """In a line with what it is, and one with what is missing; nothing is asked of it that a trace has."""
    file = written_to(tmp_path / "given.yaml", ROWS[name]["text"])
    ran = capplan("init", tmp_path / "made.yaml", "--from", file, "--offline")
    assert ran.code == 2
    assert ROWS[name]["refused"] in ran.err
    assert len(ran.err.strip().splitlines()) <= 2
    assert "arrival_s" not in ran.err


CHANGES = {
    "sglang": {"inputs": {"engine": {"name": "sglang", "version": "0.5.23"}}},
    "trtllm": {
        "inputs": {"engine": {"name": "trtllm", "version": "1.4.0"}},
        "chosen": {"weight_dtype": "bf16"},
    },
}
CHANGES["llamacpp"] = {
    "inputs": {"engine": {"name": "llamacpp", "version": "b10680"}, "launch": {"max_num_seqs": 4}},
    "chosen": {"weight_dtype": "q4_k_m", "kv_dtype": "fp16"},
}
FILES = ("ollama", "lmstudio")
"""Files of other programs, which have no command."""
STARTS_NONE = ("keda", "grafana", "skypilot")
"""Targets whose objects start no engine: they scale and watch those of another one, or order machines."""


@pytest.mark.parametrize("target", [name for name in TARGETS if name not in FILES])
def test_every_export_is_read_back(capplan, plan, target, tmp_path):
    """The same model, engine, layout and limits, as many replicas, and the GPUs of each."""
    changed = with_changes(plan, tmp_path / "p.json", **CHANGES.get(target, {}))
    image = ["--image", "r/n:1"] if target == "dynamo" else []
    ran = capplan("export", "--plan", changed, "--target", target, *image)
    assert ran.code == 0, ran.err
    file = written_to(tmp_path / "exported", ran.out)
    made = capplan("init", tmp_path / "made.yaml", "--from", file, "--offline")
    if target in STARTS_NONE:
        assert made.code == 2
        assert re.search(r"is an? \w+.*in which nothing starts", made.err)
        return
    assert made.code == 0, made.err
    chosen = json.loads(changed.read_text())["result"]["chosen"]
    scenario = yaml.safe_load((tmp_path / "made.yaml").read_text())
    assert scenario["engine"] == (target if target in CHANGES else "vllm")
    assert scenario["fleet"]["tensor_parallel"] == chosen["tensor_parallel"]
    deployed = deployed_engines(ran.out, "exported")
    engine = target if target in CHANGES else "vllm"
    alone = read_command_line(capplan("export", "--plan", changed, "--target", engine).out)
    if deployed is None:
        assert scenario["model"] == alone.model
        return
    assert len(deployed) == 1
    launch = launch_of_words(deployed[0].started, "exported")
    assert replace(launch, unread=(), version=None) == replace(alone, unread=(), version=None)
    assert deployed[0].replicas == chosen["replicas"]
    assert deployed[0].gpus == launch.devices


@pytest.mark.parametrize("target", ["k8s", "compose"])
def test_files_next_to_a_command_are_read_with_it(capplan, plan, target, tmp_path):
    """TensorRT-LLM is told its cache by a YAML, which a manifest carries as well."""
    changed = with_changes(plan, tmp_path / "p.json", **CHANGES["trtllm"])
    text = capplan("export", "--plan", changed, "--target", target).out
    (one,) = deployed_engines(text, "exported")
    alone = read_command_line(capplan("export", "--plan", changed, "--target", "trtllm").out)
    assert one.started.files
    assert replace(launch_of_words(one.started, "exported"), unread=(), version=None) == replace(
        alone, unread=(), version=None
    )


def test_one_of_several_engines_is_named(capplan, tmp_path):
    file = tmp_path / "values.yaml"
    file.write_text(ROWS["values of the production stack with two models"]["text"])
    made = tmp_path / "made.yaml"
    refused = capplan("init", made, "--from", file, "--offline")
    assert refused.code == 2
    assert "starts 2 engines" in refused.err
    assert "mistral: 3 replicas of 2 GPUs: vllm mistralai/Mistral-7B-Instruct-v0.2" in refused.err
    named = re.search(r"name one: (--engine-name \S+)", refused.err)[1].split()
    assert capplan("init", made, "--from", file, *named, "--model", "llama-3.1-8b", "--offline").code == 0
    assert "# it runs llama3: 1 replica of 1 GPU" in made.read_text()
    wrong = capplan("init", tmp_path / "x.yaml", "--from", file, "--engine-name", "lama3", "--offline")
    assert "did you mean 'llama3'?" in wrong.err


def test_pools_of_one_model_are_a_scenario_of_pools(capplan, tmp_path):
    file, made = tmp_path / "values.yaml", tmp_path / "made.yaml"
    file.write_text(ROWS["values of llm-d with two pools"]["text"])
    assert capplan("init", made, "--from", file, "--model", "qwen3-32b", "--offline").code == 0
    text = made.read_text()
    assert yaml.safe_load(text)["fleet"]["disaggregation"] == "only"
    assert "# it runs Qwen/Qwen3-32B-prefill: 4 replicas of 1 GPU" in text
    assert "# the decode pool: tensor_parallel 4" in text


def test_a_unit_of_systemd_is_read(capplan, tmp_path):
    file = tmp_path / "vllm.service"
    file.write_text("[Unit]\nDescription=vLLM\n[Service]\nExecStart=/usr/bin/vllm serve qwen3-8b -tp 2\n")
    made = tmp_path / "made.yaml"
    assert capplan("init", made, "--from", file, "--offline").code == 0
    assert yaml.safe_load(made.read_text())["fleet"]["tensor_parallel"] == 2


NOT_SOURCES = {
    "a scenario": ("s.yaml", "name: x\nmodel: qwen3-8b\ntraffic: []\nfleet: {}\n", "is a scenario already"),
    "a config.json": ("config.json", '{"model_type": "qwen3", "architectures": ["A"]}', "is the config.json of a model"),
    "a Dockerfile": ("Dockerfile", "FROM vllm/vllm-openai\nCMD vllm serve o/n\n", "is a Dockerfile"),
    "a page": ("notes.md", "# Notes\nnothing\n", "is a md file in which no engine is started"),
    "YAML that names an image": ("values.yaml", "# Defaults\nimages:\n  default: vllm/vllm-openai:v0.14.0\n", "is a yaml file in which no engine is started"),
    "options of vLLM": ("o.yaml", "model: o/n\ntensor-parallel-size: 4\n", "--from 'vllm serve OWNER/NAME --config "),
    "options of TensorRT-LLM": ("o.yaml", "kv_cache_config: {dtype: fp8}\n", "--from 'trtllm-serve OWNER/NAME --config "),
    "a note": ("notes.txt", "hello\n", "is a text without columns, in which no engine is started"),
    "variables": (".env", "TP=4\n", "is a text without columns, in which no engine is started"),
    "other JSON": ("d.json", '{"vllm": {"model": "o/n"}}', "has neither times nor lengths of requests by a name that is known"),
    "a log of a start": ("v.log", "INFO [utils.py:233] non-default args: {'model': 'o/n'}\n", "is the log of an engine's start"),
    "other YAML": ("other.yaml", "a: 1\nb: 2\n", "is a yaml file in which no engine is started"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_SOURCES)
def test_a_file_of_another_kind_is_named(capplan, tmp_path, kind):
    name, text, says = NOT_SOURCES[kind]
    (tmp_path / name).write_text(text)
    ran = capplan("init", tmp_path / "made.yaml", "--from", tmp_path / name, "--offline")
    assert ran.code == 2
    assert says in ran.err
    assert "arrival_s" not in ran.err


@pytest.mark.parametrize(
    "text", ["apiVersion: v1\nkind: Pod\n", "#!/bin/sh\nexec x\n", "vllm serve o/n -tp 2\n", "a:\n  b: 1\n"]
)
def test_a_trace_is_told_from_a_deployment(capplan, tmp_path, text):
    """What reads a trace says that it was given something else, and what reads that."""
    (tmp_path / "given").write_text(text)
    ran = capplan("workload", tmp_path / "given")
    assert ran.code == 2
    assert "no trace and no log\n  what it says of a deployment: capplan init FILE --from" in ran.err
    assert "arrival_s" not in ran.err


def test_a_page_and_a_log_are_told_apart(capplan, tmp_path):
    """The command of a page is in its blocks of code; a prompt of a log may hold any command."""
    (tmp_path / "page.md").write_text(
        "# It's here\n```bash\nvllm serve llama-3.1-8b -tp 2\n```\nDon't stop.\n"
    )
    assert capplan("init", tmp_path / "a.yaml", "--from", tmp_path / "page.md", "--offline").code == 0
    rows = [f"{at},900,100" for at in range(300)]
    (tmp_path / "log.csv").write_text(
        "\n".join(["arrival_s,input_tokens,output_tokens", *rows, "# vllm serve o/n"])
    )
    ran = capplan(
        "init", tmp_path / "b.yaml", "--from", tmp_path / "log.csv", "--model", "llama-3.1-8b", "--offline"
    )
    assert "starts no engine" not in ran.err


def test_a_model_in_a_variable_is_named_by_people(capplan, tmp_path):
    line = ("--from", "vllm serve $MODEL -tp 2", "--offline")
    assert "name the model: --model OWNER/NAME" in capplan.refused("init", tmp_path / "made.yaml", *line)
    assert capplan("init", tmp_path / "made.yaml", *line, "--model", "llama-3.1-8b").code == 0
    assert yaml.safe_load((tmp_path / "made.yaml").read_text())["model"] == "llama-3.1-8b"


def test_what_a_scenario_cannot_say_is_refused_or_stated(capplan, tmp_path):
    line = ("--from", "vllm serve qwen3-vl-8b-instruct -tp 2 --mm-encoder-tp-mode data", "--offline")
    assert "holds the whole vision tower on every GPU" in capplan("init", tmp_path / "made.yaml", *line).err
    assert capplan("init", tmp_path / "made.yaml", *line, "--ignore-unmodelled").code == 0
    assert "holds the whole vision tower on every GPU" in (tmp_path / "made.yaml").read_text()


def test_a_name_that_is_suggested_is_a_scenario(capplan, tmp_path):
    for name in shipped_scenarios():
        ran = capplan("init", tmp_path / "made.yaml", "--from", f"{name[:3]}{name[4:]}", "--offline")
        near = re.search(r"did you mean '(\S+)'", ran.err)
        assert near is None or near[1] in shipped_scenarios()


def test_a_file_that_is_not_there_is_taken_for_the_nearest_one(capplan, tmp_path):
    """A file is no name of a shipped scenario, and what is suggested is read."""
    (tmp_path / "values.yaml").write_text(ROWS["a StatefulSet whose image starts the engine"]["text"])
    ran = capplan("init", tmp_path / "made.yaml", "--from", tmp_path / "valeus.yaml", "--offline")
    near = re.search(r"no such file; did you mean (\S+)\?", ran.err)[1]
    assert (
        capplan("init", tmp_path / "made.yaml", "--from", near, "--model", "llama-3.1-8b", "--offline").code
        == 0
    )
    alone = capplan("init", tmp_path / "other.yaml", "--from", tmp_path / "nothing" / "x.csv", "--offline")
    assert "no such file" in alone.err
    assert "did you mean" not in alone.err


@pytest.mark.parametrize(
    ("replicas", "gpus", "shown"),
    [
        ("0", "2", "a: 0 replicas of 2 GPUs"),
        ("'2'", "'2'", "a: 2 replicas of 2 GPUs"),
        ("2.5", "2", "a: an unstated number of replicas of 2 GPUs"),
        ("'{{ .Values.replicas }}'", "2", "a: an unstated number of replicas of 2 GPUs"),
        ("1", "nan", "a: 1 replica"),
        ("1", "-1", "a: 1 replica"),
    ],
)
def test_what_a_manifest_leaves_open_is_not_made_up(replicas, gpus, shown):
    container = (
        f"{{image: x, command: [vllm, serve, o/n], resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}}}"
    )
    pod = f"{{spec: {{containers: [{container}]}}}}"
    text = f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: a}}\nspec: {{replicas: {replicas}, template: {pod}}}\n"
    (one,) = deployed_engines(text, "a.yaml")
    assert one.shown == shown
    twice = deployed_engines(f"{text}---\n{text}", "a.yaml")
    assert [each.replicas for each in twice] == [None if one.replicas is None else 2 * one.replicas]


def test_an_exported_replica_over_servers_is_read_back(capplan, plan, tmp_path):
    wide = with_changes(plan, tmp_path / "p.json", chosen={"tensor_parallel": 8, "pipeline_parallel": 2})
    (one,) = deployed_engines(capplan("export", "--plan", wide, "--target", "k8s").out, "exported")
    launch = launch_of_words(one.started, "exported")
    assert (one.gpus, launch.tensor_parallel, launch.pipeline_parallel) == (16, 8, 2)


def engines_or_refusal(text):
    """Return the engines of a text and no refusal, or none and the refusal."""
    try:
        return deployed_engines(text, "FILE"), ""
    except InputError as error:
        return None, str(error)


BROKEN = (
    "kind: [",
    "services: 3",
    "services: {a: 3}",
    "servingEngineSpec: {modelSpec: {a: 1}}",
    "apiVersion: v1\nkind: Deployment\nspec: 3",
    "kind: List\napiVersion: v1\nitems: [1, {kind: Pod, apiVersion: v1, spec: {containers: 3}}]",
    "modelArtifacts: {}\ndecode: {create: true, containers: [{args: {a: 1}}]}",
    "kind: ConfigMap\napiVersion: v1\ndata: 3",
    "services: {a: {image: 'vllm/vllm-openai', command: 'x \"', deploy: 3}}\nconfigs: 4",
)


@pytest.mark.parametrize("text", BROKEN)
def test_broken_manifests_are_refused_or_read_in_part(text):
    found, refusal = engines_or_refusal(text)
    assert found is not None or refusal == "" or refusal.startswith("FILE")
