"""What `explain` says of a number that `fleet` or another command printed is that number, to the last digit, and its formula gives it from the inputs shown."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest

from capplan.cli.main import main
from capplan.explain import printed as paths
from capplan.explain.plans import Planned, explained_quantity, subject_of
from capplan.explain.subject import HELD, Subject, formula_of, labelled, listed_path, name_of, places_of
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.plans.plan_file import answered
from capplan.report.quantities import plan_path, quantity_of, unexplained
from capplan.report.screen_units import screen_of, unit_of
from capplan.scenario.scenario_file import ScenarioFile
from tests.asked import asked_of
from tests.files import written_to
from tests.letters import symbols_of
from tests.plan_files import fleet_plan, plan_in
from tests.shipped import FLEETS, Fleet
from tests.sweeps import long_but
from tests.tables import table

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
ROOT = Path(__file__).resolve().parents[2]
SMALL = "tests/golden/small.yaml"
SAMPLE = {
    Fleet(ROOT / "scenarios" / f"{name}.yaml") for name in ("energy", "growing", "support-chat", "who-pays")
}
"""Of the shipped scenarios, those that ask for every group: energy, growth, commitments, classes and tenants."""
KINDS = {
    Fleet(ROOT / "scenarios" / f"{name}.yaml")
    for name in ("commitments", "embed-corpus", "energy", "growing", "many-adapters", "padded-job", "screenshots", "support-chat")
}  # fmt: skip
"""Of the shipped scenarios, one of each kind: open traffic, a job, prompts alone, adapters, images, money."""
COMMANDS = ("bill", "compare", "simulate")
FUNCTIONS = {"ceil": math.ceil, "floor": math.floor, "min": min, "max": max}
API = ("--api", "openai/gpt-5-mini")
LABELS = {"spec", "config", "derived", "measured", "assumed"}
WORKED_OUT = {
    "gpus", "usd_per_hour", "energy_usd_per_hour", "usd_per_month", "usd_per_million_output_tokens", "usd_per_million_tokens", "watts",
    "usable_bytes_per_gpu", "kv_bytes_available_per_gpu", "concurrency_per_replica", "ttft_s.low", "tpot_s.high", "e2e_s.low", "spare_replicas",
    "planned_request_rate_limit_per_replica", "usd_per_million_output_tokens_at_mean", "usd_per_million_tokens_at_mean", "usd_per_job",
    "usd_per_thousand_requests", "order.gpus", "order.gpus_idle", "order.free_replicas", "order.usd_per_hour", "order.usd_per_month", "survival.count",
    "request_rate_per_replica",
}  # fmt: skip
"""Quantities whose formula is arithmetic of the inputs that are shown."""


def at(result, place):
    """Return what stands at a place of a result."""
    for part in place:
        result = result[part]
    return result


def worked_out(explained):
    """Return what the formula gives for the inputs that are shown; None where it has words, or a letter for several of them."""
    values = {item.symbol: item.value for item in explained.inputs if item.symbol}
    text = explained.formula.rpartition(" = ")[2].replace("^", "**").replace("(Little's law)", "")
    text = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", text)
    text = re.sub(r"\b(ceil|floor|min|max) ?\*? ?\(", r"\1(", text)
    if re.search(r"\b(min|max)\b(?!\()", text):
        return None  # words: the largest of what several machines take
    letters = set(re.findall(r"[A-Za-z_]\w*", text)) - FUNCTIONS.keys()
    if len(values) < len(explained.inputs) or not letters or not letters <= values.keys():
        return None
    if any(values[letter] is None for letter in letters):
        return None
    return eval(text, FUNCTIONS, values)


def checked(explained):
    """Check a number and everything below it, and return how many formulas were worked out."""
    assert math.isfinite(explained.value)
    assert explained.formula
    assert explained.unit
    assert explained.label in LABELS
    assert (ROOT / explained.page).exists()
    for item in explained.inputs:
        assert item.name
        assert item.source
        assert item.unit
        assert item.label in LABELS
    value = worked_out(explained)
    if value is not None:
        assert value == pytest.approx(explained.value, rel=1e-9, abs=1e-12), explained
    return (value is not None) + sum(checked(step) for step in explained.steps)


@pytest.mark.parametrize("fleet", long_but(KINDS, FLEETS), ids=lambda fleet: fleet.name)
def test_every_number_of_a_plan_is_explained_to_the_last_digit(fleet):
    asked = asked_of(fleet.path, *fleet.settings)
    of = Subject(asked, fleet_for(asked).together)
    for name, printed in of.numbers.items():
        explained = explained_quantity(of, name)
        assert (explained.quantity, explained.value) == (name, printed)
        assert quantity_of(name) is not None
        checked(explained)
        assert name not in WORKED_OUT or worked_out(explained) == pytest.approx(printed, rel=1e-12), name
    prices = explained_quantity(of, "usd_per_hour").steps[0].inputs
    assert all(re.search(r"https?://|prices\.", given.source) for given in prices)


@pytest.fixture(scope="module", params=long_but(SAMPLE, FLEETS), ids=lambda fleet: fleet.name)
def plan(request, tmp_path_factory, few_requests):
    """The path of the plan of a shipped scenario."""
    words = [word for setting in request.param.settings for word in ("--set", setting)]
    return fleet_plan(request.param.path, *words, at=tmp_path_factory.mktemp("plan") / "plan.json")


def stated(document, path):
    """Return whether a YAML document states a key, in any record of a list on the way."""
    if not path:
        return document is not None
    if isinstance(document, list):
        return any(stated(record, path) for record in document)
    return isinstance(document, dict) and path[0] in document and stated(document[path[0]], path[1:])


def in_schema(schema, path):
    """Return whether the published schema has a key, in any of its alternatives."""

    def below(node):
        if "$ref" in node:
            return below(schema["$defs"][node["$ref"].rpartition("/")[2]])
        inner = [
            *node.get("anyOf", ()),
            *node.get("oneOf", ()),
            *([node["items"]] if "items" in node else []),
        ]
        return [node, *(found for each in inner for found in below(each))]

    nodes = below(schema)
    for key in path:
        nodes = [
            found
            for node in nodes
            for value in [node.get("properties", {}).get(key) or node.get("additionalProperties")]
            if isinstance(value, dict)
            for found in below(value)
        ]
    return bool(nodes)


def keys_of_sources(item):
    """Yield the label and the key of each input that names a key of the scenario, in all steps."""
    for each in item.inputs:
        match = re.match(r"scenario: ([a-z_0-9-]+(?:\.[a-z_0-9-]+)*)", each.source)
        if match:
            yield each.label, match[1].split(".")
    for step in item.steps:
        yield from keys_of_sources(step)


def test_config_is_what_the_scenario_states_and_a_default_is_assumed(plan):
    planned = Planned(*answered(plan, offline=True), API[1:])
    document = planned.asked.scenario.written
    schema = ScenarioFile.model_json_schema()
    subject = subject_of(planned.asked, planned.plan)
    found = [explained_quantity(subject, name) for name in subject.numbers]
    for name in paths.groups_of(planned):
        if name not in COMMANDS:
            group = paths.GROUPS[name](planned)
            found += [group.explain(place, value) for place, value in list(group.numbers.items())[:40]]
    labels = set()
    for item in found:
        for label, key in keys_of_sources(labelled(item, document)):
            assert in_schema(schema, key), (item.quantity, key)
            assert label in ("derived", "config" if stated(document, key) else "assumed"), (
                item.quantity,
                key,
            )
            labels.add(label)
    assert "config" in labels


def result_of(capsys, command, plan):
    api = API if command == "compare" else ()
    assert main([command, "--plan", str(plan), *api, "--offline", "--format", "json"]) in (0, 4)
    return json.loads(capsys.readouterr().out)["result"]


def test_every_number_that_is_listed_is_the_one_that_the_command_printed(plan, capsys):
    planned = Planned(*answered(plan, offline=True), API[1:])
    fleet = json.loads(plan.read_text())["result"]
    for name in paths.groups_of(planned):
        result = result_of(capsys, name, plan) if name in COMMANDS else fleet[name]
        group = paths.GROUPS[name](planned)
        assert group.numbers
        formulas = 0
        for place, value in group.numbers.items():
            assert value == at(result, place), (name, place)
            if unexplained(plan_path(name_of((name, *place)))):
                continue
            explained = group.explain(place, value)
            assert explained.value == value, (name, place)
            formulas += checked(explained)
        assert formulas >= len(group.numbers) / 3, f"{name}: too few formulas are arithmetic of what is shown"


STATES_A_UNIT = re.compile(r"usd|watts|bytes|seconds|hours|kwh|(_s|tokens)$")
"""Words of a name whose quantity has a unit; others may be counts and shares."""


def has_unit_and_title(place, value):
    """Check that tables have a heading for a number, and that its name states a unit if it is an amount."""
    key = next(str(part) for part in reversed(place) if isinstance(part, str))
    assert screen_of(key, [value]).column(), place
    assert unit_of(name_of(place)) != "-" or not STATES_A_UNIT.search(key), place


def test_each_number_of_an_answer_is_in_the_table_and_explained_or_says_why_not(plan, capsys):
    """By its path: a row of the table of quantities with a title and a unit, and a number that explain lists; else a reason."""
    planned = Planned(*answered(plan, offline=True), API[1:])
    listed = dict(subject_of(planned.asked, planned.plan).numbers)
    for name in paths.groups_of(planned):
        listed |= {
            name_of((name, *place)): value for place, value in paths.GROUPS[name](planned).numbers.items()
        }
    answers = {"": json.loads(plan.read_text())["result"]} | {
        f"{name}.": result_of(capsys, name, plan) for name in (*COMMANDS, "check")
    }
    for command, result in answers.items():
        for place, value in places_of({key: part for key, part in result.items() if key != "plan_file"}):
            path = plan_path(f"{command}{name_of(place)}")
            has_unit_and_title(place, value)
            if not unexplained(path):
                assert listed[listed_path(path, listed)] == value, path
                row = quantity_of(re.sub(r"^simulate\.classes\.[^.]+", "simulate", path))
                assert row is not None, path


def explained(capsys, *words, code=0):
    assert main(["explain", *map(str, words), "--offline", "--format", "json"]) == code
    return json.loads(capsys.readouterr().out)["result"]


@pytest.fixture(scope="module")
def small(tmp_path_factory, few_requests):
    return fleet_plan(ROOT / SMALL, at=tmp_path_factory.mktemp("explain") / "plan.json")


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "qwen3-0.6b", "--hardware", "l4", "--concurrency", "8"),
        ("levers", "tests/golden/small.yaml", "--lever", "kv-dtype"),
        ("what-if", "tests/golden/small.yaml", "--set", "fleet.hardware=l40s"),
    ],
    ids=lambda words: words[0],
)
def test_each_number_of_no_plan_has_a_unit_a_title_and_a_reason(words, capplan, few_requests):
    for place, value in places_of(capplan.result(*words, "--offline")):
        has_unit_and_title(place, value)
        assert unexplained(f"{words[0]}.{name_of(place)}")


def test_a_path_without_a_number_lists_those_below_it(small, capsys):
    result = json.loads(small.read_text())["result"]
    listed = {row["quantity"]: row["value"] for row in explained(capsys, small, "certainty[1]")["quantities"]}
    assert listed["certainty[1].gpus"] == result["certainty"][1]["gpus"]
    assert all(name.startswith("certainty[1].") for name in listed)
    groups = explained(capsys, small)["groups"]
    assert {
        *("certainty", "plans", "next_steps"),
        *("demand", "total_cost", "bill", "compare", "simulate"),
    } == set(groups)


@pytest.mark.long
def test_a_source_that_is_another_number_can_be_explained(small, capsys):
    """Every `explain PATH` among the sources, followed down from numbers of each group, leads to a number of the same value."""
    seen = set()
    waiting = [
        "certainty[2].usd_per_month",
        "plans[1].ttft_s.p95",
        "bill.classes[0].usd_per_request",
        "simulate.ttft_s.p95",
    ]
    while waiting:
        path = waiting.pop()
        for item in explained(capsys, small, path)["inputs"]:
            match = re.match(r"explain ([\w.\[\]]+)$", item["source"])
            if match and match[1] not in seen:
                seen.add(match[1])
                waiting.append(match[1])
                assert explained(capsys, small, match[1])["value"] == item["value"], (path, item)
    assert len(seen) > 8


JOB = "traffic=[{requests: 200k, within: 10 h, input_tokens: 400, output_tokens: 60}]"


@pytest.mark.parametrize(
    ("paid", "settings"),
    [("bill.usd_per_month", ()), ("bill.usd_per_job", ("--set", JOB, "--set", "slo={}"))],
)
def test_a_bill_comes_from_what_its_plan_costs_for_the_month_or_the_job(
    small, tmp_path, capsys, paid, settings
):
    """A bill of a job was said to come from the cost of a month, which it does not have, and a bill of a month from itself."""
    plan = small
    if settings:
        plan = fleet_plan(ROOT / SMALL, *settings, at=tmp_path / "job.json")
    answer = explained(capsys, plan, paid)
    (source,) = (item for item in answer["inputs"] if item["source"].startswith("explain "))
    other = source["source"].removeprefix("explain ")
    assert other == paid.removeprefix("bill.")
    assert explained(capsys, plan, other)["value"] == source["value"] > 0.0


def test_a_percentile_is_interpolated_between_two_requests(small, capsys):
    answer = explained(capsys, small, "simulate.ttft_s.p95")
    values = {item["symbol"]: item["value"] for item in answer["inputs"]}
    assert values["a"] <= answer["value"] <= values["b"]
    assert values["k"] == math.floor(0.95 * (values["N"] - 1))
    request = answer["steps"][0]
    waited = {item["name"]: item["value"] for item in request["inputs"]}
    assert waited["queue_s"] + waited["prefill_s"] == pytest.approx(request["value"])


def numbers(row, name=""):
    """Return the numbers of a row of `fleet`, by path."""
    if isinstance(row, dict):
        return {
            k: v
            for key, inner in row.items()
            for k, v in numbers(inner, f"{name}.{key}" if name else key).items()
        }
    return {name: row} if isinstance(row, (int, float)) and not isinstance(row, bool) else {}


def test_a_plan_file_is_explained_as_the_row_that_it_holds(small, capsys):
    chosen = json.loads(small.read_text())["result"]["chosen"]
    listed = {row["quantity"]: row["value"] for row in explained(capsys, small)["quantities"]}
    held = {*HELD, "kv_bytes_per_token", "state_bytes_per_sequence"}
    assert {name: value for name, value in listed.items() if name not in held and "[" not in name} == numbers(
        chosen
    )
    assert held <= set(listed)
    for name in ("usd_per_month", "ttft_s.p95", "slo_met_probability", "kv_cache_tokens"):
        found = explained(capsys, small, name)
        assert found["value"] == listed[name]
        assert {"quantity", "value", "unit", "formula", "inputs", "steps"} <= set(found)
        assert {"symbol", "name", "value", "unit", "label", "source"} == set(found["inputs"][0])
    assert explained(capsys, ROOT / SMALL, "gpus")["value"] == chosen["gpus"]


def test_a_latency_leads_down_to_the_work_of_operators(small, capsys):
    steps = explained(capsys, small, "tpot_s.p95")["steps"]
    named = {row["quantity"] for row in steps}
    assert {"decode.attention_s", "prefill.attention_s", "decode.host_s"} <= named
    heavy = next(row for row in steps if row["quantity"] == "decode.lm_head_s")
    work = {given["name"]: given["value"] for given in heavy["inputs"]}
    assert work["moved_bytes"] > 151_936 * 1024, (
        "the LM head of qwen3-0.6b is read at least once a step, one byte an element or more"
    )
    assert heavy["value"] > 0


def test_what_is_assumed_is_labelled_so(small, capsys, tmp_path):
    text = (ROOT / SMALL).read_text()
    without = tmp_path / "s.yaml"
    without.write_text(text.replace("  spare_replicas: 1\n", "").replace("  headroom: 20 %\n", ""))
    assert explained(capsys, small, "usd_per_gpu_hour")["inputs"][0]["label"] == "config"
    shown = {given["name"]: given["label"] for given in explained(capsys, without, "replicas")["inputs"]}
    assert shown["spare_replicas"] == "assumed"
    assert shown["headroom_fraction"] == "assumed"


def test_formulas_and_letters_are_those_of_the_docstrings():
    from capplan.money.price import usd_per_million_tokens

    assert formula_of(usd_per_million_tokens) == "c = 10^6 h / (3600 r)"
    assert symbols_of(usd_per_million_tokens) == {
        "usd_per_hour": ("h", "$/h"),
        "tokens_per_s": ("r", "token/s"),
    }


@table
def test_an_unknown_quantity_names_the_nearest(small, capsys, words, code, said):
    assert main(["explain", str(small), *words, "--offline"]) == code
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_scenario_without_a_plan_has_nothing_to_explain(tmp_path, capsys):
    path = written_to(tmp_path / "s.yaml", (ROOT / SMALL).read_text().replace("300 ms", "1 ms"))
    assert main(["explain", str(path), "gpus", "--offline"]) == 4
    assert "no plan meets the targets" in capsys.readouterr().err


@table
def test_the_memory_that_is_explained_is_that_of_fit(capplan, engine, settings, words, tmp_path):
    """The names and the bytes of `capplan fit` and `capplan kv-size` for the layout of the plan."""
    plan = plan_in(tmp_path, f"engine={engine}", *settings)
    result = json.loads(plan.read_text())["result"]
    chosen, launch = result["chosen"], result["plan_file"]["inputs"]["launch"]
    model = shlex.split(f"llama-3.1-8b-instruct --engine {engine} --kv-dtype fp8 --offline --format json")
    limits = [
        word
        for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
        for word in (f"--{key.replace('_', '-')}", launch[key])
    ]
    served = ("--weight-dtype", chosen["weight_dtype"], "--hardware", "h100-sxm", *limits, *words)
    fits = capplan.result("fit", *model, *served)
    sized = capplan.result("kv-size", *model, "--context", launch["max_model_len"])["rows"][0]
    listed = capplan.result("explain", plan, "--offline")["quantities"]
    known = {row["quantity"]: row["value"] for row in listed}
    for name in HELD:
        assert known[name] == pytest.approx(fits[name], rel=1e-12), name
    for name in ("kv_bytes_per_token", "state_bytes_per_sequence"):
        assert known[name] == pytest.approx(sized[name], rel=1e-12), name


def test_a_probability_of_one_target_names_the_latency_that_its_slowness_is_of():
    """All targets together are met by both latencies, a single one by its own."""
    keys = ("--request-rate=4 req/s", "--hardware=h100-sxm", "--ttft-p95=800 ms", "--tpot-p95=30 ms")
    asked = asked_of("qwen3-8b", *keys)
    of = Subject(asked, fleet_for(asked).together)

    def rests_on(name):
        inputs = explained_quantity(of, name).inputs
        return " ".join(item.source for item in inputs if item.name == "slowness")

    assert all(f", by {name}: " in rests_on("slo_met_probability") for name in ("TTFT", "TPOT"))
    assert ", by TPOT: " in rests_on("target_probabilities.tpot_p95")
    assert "TTFT" not in rests_on("target_probabilities.tpot_p95")
    trial = of.facts.trial
    (tpot,) = (target for target in of.facts.limits if target.key == "tpot_p95")
    alone = trial.slowness_of(tpot).probability(of.facts.slowest({tpot: tpot.limit_s}))
    assert of.numbers["target_probabilities.tpot_p95"] == max(alone, of.numbers["slo_met_probability"])
