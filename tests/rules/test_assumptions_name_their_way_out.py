"""Every assumption that a command prints has two parts, and what it says replaces it exists: a flag, a scenario key, a command."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from capplan.assumption import Assumption
from capplan.cli.commands import COMMANDS
from capplan.cli.main import app
from tests.tables import rows

pytestmark = pytest.mark.usefixtures("shared_runs")
ROOT = Path(__file__).resolve().parents[2]
TRACE = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{i / 4},{200 + i},{20 + i}\n" for i in range(60))
SCENARIO = """name: chat
model: meta-llama/Llama-3.1-8B-Instruct
weight_dtype: int4
calibration: null
traffic:
  - {name: chat, request_rate: 1 req/s, input_tokens: {mean: 500}, output_tokens: {mean: 50}}
fleet: {hardware: [a100-sxm-80gb], tensor_parallel: [1], pipeline_parallel: [1]}
"""
RESULT = {
    "num_prompts": 20, "completed": 20, "duration": 20.0, "total_input_tokens": 10_000, "total_output_tokens": 1000, "request_rate": 1.0,
    "mean_ttft_ms": 50.0,
}  # fmt: skip
FILES = {"SCENARIO": "chat.yaml", "TRACE": "trace.csv", "RESULT": "result.json"}
LINES = [tuple(shlex.split(line)) for line in rows("commands")["assuming"]]
OUTSIDE = {
    "a quantised checkpoint's own config", "Hedging in Python", "shared_prefix in the workload YAML",
    "a config.json without them", "a run with lengths that do not vary", "results with the lengths of every request", "the config.json of the text model only",
}  # fmt: skip
"""What replaces an assumption and is no flag, key or command of ours."""


def keys_of(name):
    """Return every key of a schema, dotted, lists without their index."""
    schema = json.loads((ROOT / "docs" / "schema" / f"{name}.json").read_text(encoding="utf-8"))
    found = set()

    def walk(part, path):
        if "$ref" in part:
            walk(schema["$defs"][part["$ref"].rsplit("/", 1)[1]], path)
        for branch in (*part.get("anyOf", ()), *part.get("oneOf", ())):
            walk(branch, path)
        if isinstance(part.get("items"), dict):
            walk(part["items"], path)
        if isinstance(part.get("additionalProperties"), dict):
            found.add(f"{path}.*")
        for key, inner in part.get("properties", {}).items():
            own = f"{path}.{key}" if path else key
            found.add(own)
            walk(inner, own)

    walk(schema, "")
    return found


def is_key(text, keys):
    plain = re.sub(r"\[\d+\]", "", text)
    return plain in keys or f"{plain.rpartition('.')[0]}.*" in keys


@pytest.fixture(scope="module")
def options():
    """Flags by command."""
    program = typer.main.get_command(app)
    with program.make_context("capplan", ["--help"], resilient_parsing=True) as context:
        return {
            name: {
                flag
                for p in program.get_command(context, name).params
                for flag in (*p.opts, *p.secondary_opts)
            }
            for name in COMMANDS
        }


@pytest.fixture
def assumptions(tmp_path, capplan):
    """Run a command line and return the assumptions that it prints."""
    (tmp_path / "chat.yaml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "trace.csv").write_text(TRACE, encoding="utf-8")
    (tmp_path / "result.json").write_text(json.dumps(RESULT), encoding="utf-8")
    places = {name: tmp_path / file for name, file in FILES.items()}

    def run(*words):
        if "PLAN" in words:
            places["PLAN"] = tmp_path / "plan.json"
            assert capplan("fleet", places["SCENARIO"], "-o", places["PLAN"]).code == 0
        ran = capplan(*(places.get(word, word) for word in words), "--format", "json")
        assert ran.code in {0, 4}, ran.err
        return json.loads(ran.out)["assumptions"]

    return run


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line)[:60])
def test_what_replaces_an_assumption_exists(line, assumptions, options):
    keys = keys_of("scenario") | keys_of("hardware")
    printed = assumptions(*line)
    assert printed
    for item in printed:
        what, replace = item["assumption"], item["replace"]
        assert what
        assert not re.search(r"replace with|\bNone\b|Assumption\(", what), item
        commands = set(re.findall(r"capplan ([a-z-]+)", replace)) & set(COMMANDS)
        flags = set(re.findall(r"--[a-z-]+", replace))
        # A device of the catalogue is replaced where it is used.
        users = set(COMMANDS) if line[0] == "hardware" else {line[0], *commands}
        assert flags <= set().union(*(options[name] for name in users)), item
        words = [word.strip(",;") for word in replace.split()]
        assert flags or commands or any(is_key(word, keys) for word in words) or replace in OUTSIDE, item


@pytest.mark.long
def test_the_key_of_an_assumption_is_one_of_a_scenario():
    """Code asks for it: the star of a column, the context that a trace needs instead."""
    keys = keys_of("scenario")
    found = set()
    for path in (ROOT / "capplan").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Assumption":
                found |= {key.value for key in node.args[2:] if isinstance(key, ast.Constant)}
    assert {"kv_dtype", "max_model_len", "engine_version", "calibration"} <= found
    assert {key for key in found if not is_key(key, keys)} == set()


def test_commands_without_such_lines_are_known():
    """These assume nothing of what they show, mark it in the file that they write, or need a device to be measured first."""
    assert set(COMMANDS) - {line[0] for line in LINES} == {
        "validate",
        "calibrate",
        "init",
        "prices",
        "list",
        "detect",
        "export",
        "mcp",
        "replan",
        "serve",
    }


def test_an_assumption_of_flags_is_one_of_a_scenario_by_its_key():
    item = Assumption("vllm 0.33.0, the newest version known", "--engine-version", "engine_version")
    assert item.of_scenario().replace == "engine_version"
    plain = Assumption("a", "b")
    assert plain.of_scenario() == plain
