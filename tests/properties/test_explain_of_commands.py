"""What `explain` says of a number that a command printed is that number, to the last digit, and its formula gives it from the inputs shown."""

import json
import math
import re
from pathlib import Path

import pytest

from capplan.cli.main import main
from capplan.explain import printed as paths
from capplan.explain.plans import Planned, explained_quantity, subject_of
from capplan.explain.subject import labelled, listed_path, name_of, places_of
from capplan.questions.plans.plan_file import answered
from capplan.report.quantities import plan_path, quantity_of, unexplained
from capplan.report.screen_units import screen_of, unit_of
from capplan.scenario.scenario_file import ScenarioFile
from tests.shipped import FLEETS, Fleet
from tests.sweeps import long_but

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
ROOT = Path(__file__).resolve().parents[2]
SAMPLE = {
    Fleet(ROOT / "scenarios" / f"{name}.yaml") for name in ("energy", "growing", "support-chat", "who-pays")
}
"""Of the shipped scenarios, those that ask for every group: energy, growth, commitments, classes and tenants."""
COMMANDS = ("bill", "compare", "simulate")
FUNCTIONS = {"ceil": math.ceil, "floor": math.floor}
API = ("--api", "openai/gpt-5-mini")
LABELS = {"spec", "config", "derived", "measured", "assumed"}


def at(result, place):
    """Return what stands at a place of a result."""
    for part in place:
        result = result[part]
    return result


def worked_out(explained):
    """Return what the formula gives for the inputs that are shown; None where it has words, or a letter for several of them."""
    values = {item.symbol: item.value for item in explained.inputs if item.symbol}
    text = explained.formula.rpartition(" = ")[2].replace("^", "**")
    text = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", text)
    text = re.sub(r"\b(ceil|floor) ?\*? ?\(", r"\1(", text)
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
        assert item.label in LABELS
    value = worked_out(explained)
    if value is not None:
        assert value == pytest.approx(explained.value, rel=1e-9, abs=1e-12), explained
    return (value is not None) + sum(checked(step) for step in explained.steps)


@pytest.fixture(scope="module", params=long_but(SAMPLE, FLEETS), ids=lambda fleet: fleet.name)
def plan(request, tmp_path_factory, few_requests):
    """The path of the plan of a shipped scenario."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = [word for setting in request.param.settings for word in ("--set", setting)]
    code = main(["fleet", str(request.param.path), *words, "-o", str(path), "--offline"])
    assert code == 0
    return path


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
    path = tmp_path_factory.mktemp("explain") / "plan.json"
    assert main(["fleet", str(ROOT / "tests/golden/small.yaml"), "-o", str(path), "--offline"]) == 0
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "qwen3-0.6b", "--hardware", "l4", "--concurrency", "8"),
        ("levers", "tests/golden/small.yaml", "--lever", "kv-dtype"),
        ("what-if", "tests/golden/small.yaml", "--set", "fleet.hardware=l40s"),
    ],
    ids=lambda words: words[0],
)
def test_each_number_of_no_plan_has_a_unit_a_title_and_a_reason(words, capsys, few_requests):
    assert main([*words, "--offline", "--format", "json"]) == 0
    for place, value in places_of(json.loads(capsys.readouterr().out)["result"]):
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
        plan = tmp_path / "job.json"
        assert (
            main(["fleet", str(ROOT / "tests/golden/small.yaml"), *settings, "-o", str(plan), "--offline"])
            == 0
        )
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
