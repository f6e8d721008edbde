"""Shipped scenarios are read, keep their schema, and state every default."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from capplan.questions.fleet import asked_fleet
from capplan.recorded.traces.trace import read_trace
from capplan.scenario.scenario import read_scenario
from docs.generators.schemas import SCHEMAS, schema_text, write_schemas
from tests.asked import asked_of
from tests.files import written_to
from tests.tables import table

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "scenarios").glob("*.yaml"))

SMALLEST = """name: small
model: meta-llama/Llama-3.1-8B-Instruct
traffic: [{request_rate: 5 req/s, input_tokens: 800, output_tokens: {mean: 200, p95: 500}}]
"""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenario_is_read_and_names_its_schema(path):
    scenario = read_scenario(path)
    assert scenario.name == path.stem
    assert all(item.request_rate_at() > 0 for item in scenario.classes)
    assert path.read_text().startswith("# yaml-language-server: $schema=../docs/schema/scenario.json\n")


def test_there_are_scenarios_for_the_common_questions():
    assert len(SHIPPED) >= 7


def test_support_chat_is_read_in_base_units():
    scenario = read_scenario(ROOT / "scenarios" / "support-chat.yaml")
    (chat,) = scenario.classes
    assert scenario.weight_dtypes == ("fp8",)
    assert scenario.kv_dtypes == ("fp8",)
    assert chat.request_rate_per_s == 20.0
    sigma = np.log(6000.0 / 1500.0) / stats.norm.ppf(0.95)
    drawn = stats.lognorm(sigma, scale=1500.0)
    mean = drawn.expect(lambda tokens: max(tokens, 1201.0), lb=0.0, ub=np.inf)
    assert chat.input_tokens.mean_tokens == pytest.approx(mean, rel=1e-3)
    assert float(chat.input_tokens.quantile(0.95)) == pytest.approx(6000)
    assert chat.cached_input_tokens == pytest.approx(1200.0 * 0.85)  # every prompt is longer than the prefix
    assert {t.key: t.limit_s for t in scenario.slo.targets} == {"ttft_p95": 0.8, "tpot_p95": 0.04}
    assert [entry.name for entry in scenario.fleet.hardware] == [
        "a100-sxm-80gb",
        "h100-sxm",
        "h200-sxm",
        "b200",
    ]
    assert scenario.fleet.headroom_fraction == 0.2
    assert (scenario.fleet.survive.domain, scenario.fleet.survive.count) == ("replica", 1)


def test_every_default_of_the_smallest_scenario_is_stated(tmp_path):
    path = written_to(tmp_path / "small.yaml", SMALLEST)
    scenario = read_scenario(path)
    replaced = {assumption.replace for assumption in asked_fleet(scenario, offline=True).assumptions}
    keys = {
        "weight_dtype",
        "kv_dtype",
        "engine",
        "fleet.hardware",
        "fleet.headroom",
        "fleet.survive",
        "prices.commitment",
        "prices.provider",
    }
    assert keys <= replaced
    assert any(key.startswith("slo.") for key in replaced)
    assert scenario.kv_dtypes == ("auto",)
    assert scenario.weight_dtypes == (None,)


def test_kv_dtype_never_follows_from_the_weight_dtype(tmp_path):
    path = written_to(tmp_path / "small.yaml", SMALLEST + "weight_dtype: fp8\n")
    assert asked_of(path).question.kv_formats == ("bf16",)


@pytest.mark.parametrize("model", ["nvidia/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B-Instruct"])
@pytest.mark.parametrize("asked", ["", "kv_dtype: auto\n", "kv_dtype: fp8\n"])
def test_auto_means_the_same_kv_dtype_in_a_scenario_and_on_the_command_line(tmp_path, capplan, model, asked):
    path = tmp_path / "small.yaml"
    path.write_text(SMALLEST.replace("meta-llama/Llama-3.1-8B-Instruct", model) + asked)
    (planned,) = asked_of(path).question.kv_formats
    flags = ["--kv-dtype", asked.split()[-1]] if asked else []
    fit = json.loads(capplan("fit", model, "--hardware", "h100-sxm", "--format", "json", *flags).out)
    assert fit["result"]["kv_dtype"] == planned


@table
def test_rate_may_be_given_as_rate_users_or_job(traffic, rate, tmp_path):
    path = written_to(tmp_path / "s.yaml", SMALLEST.replace("request_rate: 5 req/s", traffic))
    (item,) = read_scenario(path).classes
    assert item.request_rate_at() == pytest.approx(rate)


def test_users_who_wait_ask_less_often(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SMALLEST.replace("request_rate: 5 req/s", "users: 300, think_time: 20 s"))
    (people,) = read_scenario(path).classes
    assert people.request_rate_at(10.0) == pytest.approx(10.0)


def test_paths_are_relative_to_the_scenario(tmp_path, monkeypatch):
    folder = tmp_path / "a b ü"
    folder.mkdir()
    (folder / "gpu.yaml").write_text(
        (ROOT / "hardware_specs" / "l4.yaml").read_text().replace("name: l4", "name: mine")
    )
    (folder / "config.json").write_text("{}")
    (folder / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,30,7\n2,20,6\n")
    path = folder / "s.yaml"
    path.write_text(
        "name: s\nmodel: ./config.json\ntraffic: [{trace: t.csv}]\nfleet: {hardware: [gpu.yaml, h100]}\nprices: {per_gpu_hour: {h100: 2.5 $/h}}\n"
    )
    monkeypatch.chdir(tmp_path)
    scenario = read_scenario(path)
    assert scenario.model == str(folder / "config.json")
    assert [entry.name for entry in scenario.fleet.hardware] == ["mine", "h100-sxm"]
    assert scenario.prices.per_gpu_hour == {"h100-sxm": 2.5}
    (item,) = scenario.classes
    assert item.input_tokens.mean_tokens == 20.0
    assert item.request_rate_per_s == pytest.approx(1.5)


def test_schemas_in_the_docs_are_current(tmp_path):
    for name in SCHEMAS:
        shown = (ROOT / "docs" / "schema" / f"{name}.json").read_text(encoding="utf-8")
        assert shown == schema_text(name), "write them anew: python -m docs.generators.schemas docs/schema"
    assert len(write_schemas(tmp_path / "new")) == len(SCHEMAS)


def test_json_lines_trace_counts_milliseconds_where_blocks_are_hashed(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    lines = [
        f'{{"timestamp": {3000 * i}, "input_length": 100, "output_length": 10, "hash_ids": [1]}}'
        for i in range(5)
    ]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines))
    trace = read_trace(path)
    assert trace.seconds == 12.0
    assert np.all(trace.input_tokens == 100)


@pytest.mark.parametrize(
    ("file", "mean_in", "mean_out", "rate", "peak_ratio"),
    # means over all requests, published with the traces
    [
        ("AzureLLMInferenceTrace_code.csv.gz", 2047.8, 27.9, 2.567, 4.18),
        ("AzureLLMInferenceTrace_conv.csv.gz", 1154.7, 211.1, 5.53, 1.52),
        ("mooncake_conversation_trace.jsonl.gz", 12035, 342.6, 3.402, 1.21),
    ],
)
def test_public_trace_has_its_published_means(measured, trace, file, mean_in, mean_out, rate, peak_ratio):
    if not measured.whole:
        mean_in, mean_out, rate, peak_ratio = (
            measured.facts(file)[name] for name in ("mean_in", "mean_out", "rate", "peak_ratio")
        )
    found = read_trace(trace(file))
    assert found.input_tokens.mean() == pytest.approx(mean_in, rel=1e-3)
    assert found.output_tokens.mean() == pytest.approx(mean_out, rel=2e-3)
    assert found.mean_request_rate_per_s == pytest.approx(rate, rel=2e-3)
    # windows may start anywhere: the published peak is known to 3 %
    peak = found.peak_request_rate_per_s / found.mean_request_rate_per_s
    assert peak == pytest.approx(peak_ratio, rel=0.03)
