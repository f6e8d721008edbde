"""A scenario made of flags is the one that a YAML with these keys states; options come in groups, and mistakes name the flags."""

import json
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from capplan.cli.main import as_click
from capplan.cli.options import Group, fraction, grouped, measure, whole
from capplan.errors import InputError
from capplan.readers.yaml_file import parse_yaml
from capplan.scenario.scenario import read_scenario
from tests.files import written_to
from tests.tables import table

pytestmark = pytest.mark.usefixtures("shared_runs")

MODEL = "llama-3.1-8b"
LINES = {
    "requests": (
        ["--request-rate", "30 req/s", "--input-tokens", "800", "--output-tokens", "150", "--ttft-p95", "1 s", "--tpot-p95", "40 ms", "--hardware", "h100,l40s"],
        """traffic: [{request_rate: 30 req/s, input_tokens: 800, output_tokens: 150}]
slo: {ttft_p95: 1 s, tpot_p95: 40 ms}
fleet: {hardware: [h100, l40s]}""",
    ),
    "users": (
        ["--users", "300", "--think-time", "20 s", "--input-tokens", "800,2000", "--output-tokens", "150,400", "--tpot-p95", "30 ms", "--hardware", "h100-sxm", "--confidence", "90%"],
        """traffic: [{users: 300, think_time: 20 s, input_tokens: {mean: 800, p95: 2000}, output_tokens: {mean: 150, p95: 400}}]
slo: {tpot_p95: 30 ms, confidence: 90 %}
fleet: {hardware: [h100-sxm]}""",
    ),
    "dtypes": (
        ["--request-rate", "90 req/s", "--input-tokens", "800", "--output-tokens", "150", "--weight-dtype", "fp8", "--kv-dtype", "fp8", "--engine", "sglang", "--hardware", "h100-sxm", "--set", "fleet.headroom=30%"],
        """traffic: [{request_rate: 90 req/s, input_tokens: 800, output_tokens: 150}]
weight_dtype: fp8
kv_dtype: fp8
engine: sglang
fleet: {hardware: [h100-sxm], headroom: 30 %}""",
    ),
}  # fmt: skip


def answered(ran):
    """Return the JSON of a fleet without where it was read."""
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    origin = answer["result"].pop("plan_file")
    return json.dumps(answer), origin


@pytest.mark.parametrize("name", LINES)
def test_flags_are_answered_as_a_scenario_with_these_keys(name, capplan, tmp_path):
    flags, keys = LINES[name]
    file = written_to(tmp_path / "line.yaml", f"name: {MODEL}\nmodel: {MODEL}\n{keys}\n")
    of_flags, origin = answered(capplan("fleet", MODEL, *flags, "--offline", "--format", "json"))
    of_file, _ = answered(capplan("fleet", file, "--offline", "--format", "json"))
    assert of_flags == of_file
    assert read_scenario(MODEL, origin["settings"]).file == read_scenario(file).file


def test_what_is_saved_is_asked_and_gives_the_same_bytes(capplan, tmp_path):
    file = tmp_path / "kept.yaml"
    line = ("fleet", MODEL, "--request-rate", "30 req/s", "--use-case", "rag", "--hardware", "h100", "--offline", "--format", "json")  # fmt: skip
    first = capplan(*line, "--save", file)
    assert (first.code, capplan("fleet", file, "--offline", "--format", "json").out) == (0, first.out)
    written = parse_yaml(file.read_text(), "kept").value
    assert written["slo"] == {"ttft_p99": "2 s", "tpot_p99": "200 ms"}
    assert written["traffic"][0]["input_tokens"] == {"mean": 2588, "p95": 3813}
    assert "exists" in capplan.refused(*line, "--save", file)


def test_a_plan_of_flags_is_checked_and_explained_without_a_file(capplan, tmp_path):
    plan = tmp_path / "plan.json"
    flags, _ = LINES["requests"]
    assert capplan("fleet", MODEL, *flags, "--offline", "-o", plan).code == 0
    assert capplan("check", "--plan", plan, "--offline").code == 0
    assert "has changed" not in capplan("explain", plan, "gpus", "--offline").err


def test_only_a_model_and_a_load_are_answered_with_stated_defaults():
    scenario = read_scenario(MODEL, ["--users=100"])
    stated = {item.key: item.what for item in scenario.assumptions if item.key.startswith("traffic")}
    assert stated == {
        "traffic[0].think_time": "think_time 30 s: not stated",
        "traffic[0].input_tokens": "input_tokens mean 1500, p95 4500: not stated",
        "traffic[0].output_tokens": "output_tokens mean 300, p95 800: not stated",
    }
    assert scenario.file.fleet.hardware == ["any"]
    names = [device.name for device in scenario.fleet.hardware]
    assert {"h100-sxm", "b200", "l4"} <= set(names)
    assert len(names) == len(set(names)) > 20


def test_a_config_is_a_model_and_a_file_of_its_name_a_scenario(capplan, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / MODEL).write_text("name: of a file\nmodel: llama-3.1-8b\n")
    assert "traffic" in capplan("fleet", MODEL, "--offline").err
    config = next(root.glob("model_configs/**/config.json"))
    assert "no load is stated" in capplan("fleet", config, "--offline").err
    assert "no load is stated" in capplan("fleet", config.parent, "--offline").err


def test_any_hardware_leaves_out_only_what_costs_far_more(capplan):
    line = ("fleet", MODEL, "--request-rate", "9 req/s", "--ttft-p95", "1 s", "--offline", "--format", "json")
    of_any = capplan.result(*line)
    names = [of_any["chosen"]["hardware"]]
    some = ["h100-sxm", "h200-sxm", "l40s", "mi300x", *names]
    of_some = capplan.result(*line, "--hardware", ",".join(some))
    assert of_some["chosen"]["usd_per_month"] == of_any["chosen"]["usd_per_month"]
    far = [row for row in of_any["uneconomical"] if "less than 2 times" in (row["reason"] or "")]
    costs = {row["hardware"]: row["usd_per_month"] for row in of_some["plans"]}
    cheapest = min(plan["usd_per_month"] for plan in of_any["plans"])
    assert all(costs.get(row["hardware"], 1e9) >= 2.0 * cheapest for row in far)


@pytest.mark.parametrize("short", ["tp", "pp", "ep", "dp"])
def test_degrees_are_read_with_one_dash_or_two(short, capplan):
    line = ("fit", "qwen3-30b-a3b", "--hardware", "h100-sxm", "--offline", "--format", "json", "-tp", "2")
    first, second = (capplan(*line, f"{dashes}{short}", "2") for dashes in ("-", "--"))
    assert (first.code, first.out, first.err) == (second.code, second.out, second.err)
    assert first.code != 2 or "No such option" not in first.err


ANY_LINE = (MODEL, "--request-rate", "30 req/s", "--input-tokens", "800", "--output-tokens", "150", "--tpot-p95", "40 ms", "--hardware", "h100-sxm", "--offline")  # fmt: skip


@pytest.mark.long
def test_any_engine_is_the_one_whose_fleet_costs_least(capplan, tmp_path):
    plan = tmp_path / "plan.json"
    costs = {}
    for engine in ("vllm", "sglang", "trtllm"):
        found = capplan.result("fleet", *ANY_LINE, "--engine", engine)
        costs[engine] = found["chosen"]["usd_per_month"]
    ran = capplan("fleet", *ANY_LINE, "--engine", "any", "-o", plan)
    said = ", ".join(f"{engine} ${usd:,.0f} per month" for engine, usd in costs.items())
    assert f"engine: any: {said}" in ran.out + ran.err
    written = json.loads(plan.read_text())
    assert written["result"]["chosen"]["usd_per_month"] == min(costs.values())
    assert {row["engine"]: row["usd_per_month"] for row in written["result"]["engines"]} == costs
    assert capplan("check", plan, "--offline").code == 0


def test_a_version_belongs_to_one_engine(capplan):
    assert "belongs to one engine" in capplan.refused(
        "fleet", *ANY_LINE, "--engine", "any", "--set", "engine_version='0.19.0'"
    )


@dataclass(frozen=True, slots=True)
class Trip:
    """A record of questions."""

    riders: int
    time_s: float | None = None
    stops: list[str] | None = None
    full_fraction: float = 0.5
    return_too: bool = False


TRIP = Group(
    "Trip",
    riders=whole("--riders", "-r", of="people", most=50, says="Who goes."),
    time_s=measure("--time", says="How long."),
    stops=typer.Option("--stop", help="On the way."),
    full_fraction=fraction("--full", says="Share."),
)


def run(annotation, *words):
    seen = []

    @grouped
    def command(
        *,
        place: Annotated[str, typer.Argument()],
        trip: Annotated[Trip, annotation],
        loud: Annotated[bool, typer.Option("--loud")] = False,
    ) -> int:
        """Go."""
        seen.append((place, trip, loud))
        return 0

    as_click("go", command).main(["sea", *words], standalone_mode=False)
    return seen[0]


def test_a_command_is_handed_one_record_per_group():
    assert run(TRIP, "-r", "2") == ("sea", Trip(2), False)
    words = ("--time", "2 min", "--stop", "a", "--stop", "b", "--full", "90 %", "--riders", "10", "--loud")
    assert run(TRIP, *words) == ("sea", Trip(10, 120.0, ["a", "b"], 0.9), True)


def test_a_field_without_a_default_is_a_required_option():
    with pytest.raises(Exception, match="riders"):
        run(TRIP)


def test_options_that_are_left_out_of_a_group_are_unknown_and_keep_the_default():
    few = TRIP.only("riders")
    assert run(few, "--riders", "3")[1] == Trip(3)
    with pytest.raises(Exception, match="--time"):
        run(few, "--riders", "3", "--time", "2 min")


def test_an_option_of_a_field_that_the_record_lacks_is_an_error():
    with pytest.raises(KeyError, match="wheels"):
        run(Group("Trip", wheels=whole("--wheels", says="")))


def test_two_groups_with_the_same_field_are_an_error():
    def command(*, one: Annotated[Trip, TRIP], two: Annotated[Trip, TRIP]) -> int:
        """Go."""
        return one.riders + two.riders

    with pytest.raises(ValueError, match="riders"):
        grouped(command)


@table
def test_what_an_option_cannot_be_is_said_with_its_name_and_what_is_allowed(words, message):
    with pytest.raises(InputError) as caught:
        run(TRIP, *words)
    assert message in str(caught.value)
