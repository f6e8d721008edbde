"""What `capplan init` writes is answered at once, holds what was said, and never takes the place of a file."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.deploy.known_deployment import known_deployment
from capplan.readers.catalogue.scenarios import described, scenario_word, shipped_scenarios
from capplan.readers.yaml_file import parse_yaml, schema_line
from capplan.scenario.command_flags import FirstScenario
from capplan.scenario.first_scenario import ASSUMED, CASES, DEFAULTS, Known, first_scenario_text
from capplan.scenario.scenario import DEFAULT_HARDWARE, read_scenario, scenario_from
from tests.files import written_to
from tests.sweeps import size_on_few_requests

pytestmark = pytest.mark.usefixtures("shared_runs")

ROOT = Path(__file__).resolve().parents[2]
SAID = (
    "--model", "llama-3.1-8b-instruct", "--request-rate", "3 req/s", "--input-tokens", "800,2000", "--output-tokens", "90",
    "--ttft-p95", "700 ms", "--tpot-p95", "40 ms", "--hardware", "h100-sxm",
)  # fmt: skip


def read(path):
    return scenario_from(parse_yaml(path.read_text(), str(path)), path.parent)


def test_what_was_said_is_written_and_nothing_of_it_is_assumed(capplan, tmp_path):
    file = tmp_path / "mine.yaml"
    ran = capplan("init", file, *SAID, "--offline")
    assert (ran.code, ran.out) == (0, "")
    assert f"capplan fleet {file}" in ran.err
    scenario = read(file)
    assert ASSUMED not in file.read_text()
    assert (scenario.name, scenario.model) == ("mine", "llama-3.1-8b-instruct")
    assert {target.key: target.limit_s for target in scenario.slo.targets} == {
        "ttft_p95": 0.7,
        "tpot_p95": 0.04,
    }
    (requests,) = scenario.classes
    assert requests.request_rate_at() == 3.0
    assert [device.name for device in scenario.fleet.hardware] == ["h100-sxm"]
    assert all(
        "  # " in line
        for line in file.read_text().splitlines()
        if re.match(r"\s+\w+: |(model|prices): ", line)
    )


def test_a_first_scenario_is_answered_at_once(capplan, tmp_path, monkeypatch):
    size_on_few_requests(monkeypatch)
    file = tmp_path / "mine.yaml"
    assert capplan("init", file, *SAID, "--offline").code == 0
    assert capplan.result("fleet", file, "--offline")["chosen"]["hardware"] == "h100-sxm"


def test_what_nobody_said_is_assumed_and_marked(capplan, tmp_path):
    file = tmp_path / "mine.yaml"
    assert capplan("init", file, "--model", "qwen3-8b", "--offline").code == 0
    marked = [line.split(":")[0].strip() for line in file.read_text().splitlines() if ASSUMED in line]
    assert marked == ["request_rate", "input_tokens", "output_tokens", "ttft_p95", "tpot_p95", "hardware"]
    assert [device.name for device in read(file).fleet.hardware] == list(DEFAULT_HARDWARE)


def test_a_rate_without_a_unit_is_one_of_requests_a_second(capplan, tmp_path):
    file = tmp_path / "mine.yaml"
    assert capplan("init", file, "--model", "qwen3-8b", "--request-rate", 20, "--offline").code == 0
    (item,) = read_scenario(file).classes
    assert item.request_rate_at() == 20.0


def test_a_file_that_exists_is_left_alone(capplan, tmp_path):
    file = written_to(tmp_path / "mine.yaml", "kept")
    for words in (SAID, ("--from", "support-chat")):
        assert "exists; name another file" in capplan.refused("init", file, *words, "--offline")
        assert file.read_text() == "kept"


def test_a_folder_that_is_missing_is_named(capplan, tmp_path):
    assert "name a file in a folder that exists" in capplan.refused(
        "init", tmp_path / "no" / "mine.yaml", *SAID, "--offline"
    )


@pytest.mark.parametrize("name", shipped_scenarios())
def test_a_shipped_scenario_is_copied_under_another_name(capplan, tmp_path, name):
    file = tmp_path / "mine.yaml"
    assert capplan("init", file, "--from", name).code == 0
    ours, theirs = (parse_yaml(path.read_text(), "x").value for path in (file, shipped_scenarios()[name]))
    assert ours == theirs | {"name": "mine"}
    assert file.read_text().startswith(f"{schema_line('scenario')}\n")
    assert described(name)


def test_a_launch_command_says_model_engine_and_layout(capplan, tmp_path):
    script = tmp_path / "serve.sh"
    script.write_text(
        "#!/bin/sh\n# as it runs\nexec vllm serve qwen3-8b \\\n  --tensor-parallel-size 2 --kv-cache-dtype fp8 \\\n  --port 80\n"
    )
    for name, source in (
        ("one", "vllm serve qwen3-8b -tp 2 --kv-cache-dtype fp8 --port 80"),
        ("two", str(script)),
    ):
        file = tmp_path / f"{name}.yaml"
        assert capplan("init", file, "--from", source, "--offline").code == 0
        scenario = read(file)
        assert (scenario.model, scenario.engine, scenario.kv_dtypes) == ("qwen3-8b", "vllm", ("fp8",))
        assert scenario.fleet.ranges.tensor_parallel == (2,)
        assert "# not read: --port" in file.read_text()


def test_a_launch_command_says_adapters_chunks_and_the_runner(capplan, tmp_path):
    file = tmp_path / "today.yaml"
    line = "vllm serve qwen3-8b --runner pooling --disable-chunked-prefill --enable-lora --max-loras 4 --max-cpu-loras 9 --lora-target-modules qkv_proj"
    assert (
        known_deployment(line, tmp_path).top.items()
        >= {
            "runner": "pooling",
            "chunked_prefill": False,
            "lora": {
                "adapters": 9,
                "max_loras": 4,
                "max_lora_rank": 16,
                "modules": ["q_proj", "k_proj", "v_proj"],
            },
        }.items()
    )
    words = "vllm serve qwen3-8b --disable-chunked-prefill --enable-lora --max-loras 4 --max-cpu-loras 9"
    assert capplan("init", file, "--from", words, "--hardware", "h100-sxm", "--offline").code == 0
    pooled = tmp_path / "pooled.yaml"
    assert capplan("init", pooled, "--from", "vllm serve qwen3-8b --runner pooling", "--offline").code == 0
    assert read_scenario(pooled).pooled
    assert "output_tokens" not in pooled.read_text()
    scenario = read_scenario(file)
    assert (scenario.lora.adapters, scenario.lora.slots, scenario.file.chunked_prefill) == (9, 4, False)


def test_a_trace_is_named_relative_to_the_scenario(capplan, tmp_path):
    rows = [f"{at},500,60" for at in range(300)]
    (tmp_path / "day.csv").write_text("\n".join(["timestamp,input_tokens,output_tokens", *rows]))
    file = tmp_path / "mine.yaml"
    assert capplan("init", file, "--from", tmp_path / "day.csv", "--model", "qwen3-8b", "--offline").code == 0
    assert "trace: day.csv" in file.read_text()
    assert read(file).classes[0].request_rate_at() == pytest.approx(1.0, rel=0.02)


def test_counters_say_lengths_and_hits(shared, tmp_path):
    known = known_deployment(
        str(shared / "formats" / "examples" / "vllm_0.33.0_metrics_exposition.txt"), tmp_path
    )
    assert known.traffic["input_tokens"]["mean"] == pytest.approx(857.5)
    assert "request_rate" not in known.fields


@given(
    st.builds(
        FirstScenario,
        model=st.none() | st.sampled_from(("owner/na me", "a: b", "#x", "{y}", "no")),
        request_rate=st.none() | st.floats(0.01, 1e4).map(lambda rate: f"{rate} req/s"),
        input_tokens=st.none()
        | st.integers(2, 10**6).map(str)
        | st.integers(2, 10**5).map(lambda n: f"{n}, {3 * n}"),
        hardware=st.none() | st.lists(st.sampled_from(("l4", "h100-sxm", "b200")), min_size=1, unique=True),
    )
)
def test_whatever_is_said_the_text_is_yaml_that_says_it(first):
    text = first_scenario_text("mine", first, Known())
    value = parse_yaml(text, "mine.yaml").value
    assert value["model"] == (first.model or DEFAULTS["model"])
    (traffic,) = value["traffic"]
    if first.request_rate:
        assert traffic["request_rate"] == first.request_rate
    if first.input_tokens and "," not in first.input_tokens:
        assert traffic["input_tokens"] == int(first.input_tokens)
    if first.hardware:
        assert value["fleet"]["hardware"] == first.hardware


@pytest.mark.parametrize("kind", ["scenarios", "models", "hardware", "engines", "prices"])
def test_a_list_has_all_its_names_and_finds_them(capplan, kind):
    rows = capplan.result("list", kind)["rows"]
    assert rows
    key = next(iter(rows[0]))
    assert capplan("list", kind, "zzzz").code == 2
    found = capplan.result("list", kind, str(rows[-1][key]).upper())["rows"]
    assert rows[-1] in found
    assert len(found) <= len(rows)


@pytest.mark.long
def test_scenarios_are_answered_by_name_from_any_folder(program, tmp_path):
    ran = program("workload", "no-such.csv", cwd=tmp_path)
    assert ran.code == 2
    named = program("explain", "suport-chat", cwd=tmp_path)
    assert (named.code, "did you mean 'support-chat'?" in named.err) == (2, True)
    listed = json.loads(program("list", "scenarios", "--format", "json", cwd=tmp_path).out)["result"]["rows"]
    assert {row["scenario"] for row in listed} == {path.stem for path in (ROOT / "scenarios").glob("*.yaml")}
    assert all(Path(row["file"]).is_file() for row in listed)


def test_the_path_that_an_error_names_exists(capplan):
    ran = capplan("fleet", "absent.yaml")
    assert ran.code == 2
    assert Path(re.search(r"keys: (\S+)", ran.err)[1]).is_file()


@pytest.mark.parametrize("name", CASES)
def test_a_use_case_is_a_starting_point_with_sources(capplan, tmp_path, name):
    file = tmp_path / "mine.yaml"
    ran = capplan("init", file, "--use-case", name, "--model", "qwen3-8b", "--offline")
    assert ran.code == 0, ran.err
    text = file.read_text()
    assert "# lengths: " in text
    assert "https://" in text
    scenario = read_scenario(file)
    assert bool(scenario.slo.targets) == (name != "batch")
    assert ("spare_replicas" in text) == (name != "batch")
    if "(99th percentile)" in text:
        assert [target.key for target in scenario.slo.targets] == ["ttft_p99", "tpot_p99"]


def test_what_people_say_comes_before_a_use_case(capplan, tmp_path):
    file = tmp_path / "mine.yaml"
    words = ("--use-case", "voice", "--model", "qwen3-8b", "--ttft-p95", "700 ms", "--offline")
    assert capplan("init", file, *words).code == 0
    text = file.read_text()
    assert "ttft_p95: 700 ms" in text
    assert "tpot_p95: 40 ms" in text


def test_next_commands_name_a_scenario_as_people_gave_it(tmp_path, monkeypatch):
    """A shipped one by its name, one below the working folder by its relative path, and nothing that a shell takes apart."""
    monkeypatch.chdir(tmp_path)
    assert [scenario_word(path) for path in shipped_scenarios().values()] == list(shipped_scenarios())
    assert scenario_word("support-chat") == "support-chat"
    assert scenario_word(tmp_path / "plans" / "chat.yaml") == "plans/chat.yaml"
    assert scenario_word("../it's mine.yaml") == "'../it'\"'\"'s mine.yaml'"
    assert scenario_word(tmp_path.parent / "other.yaml") == str(tmp_path.parent / "other.yaml")
