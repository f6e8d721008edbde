"""No key of a scenario is accepted and ignored: a change of it changes numbers of an answer, or is refused with a reason.

Every key has one case in tests/rows/keys.yaml. Keys that only name something must be shown. A new key fails the first test until it has a case.
"""

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from capplan.readers.record import keys_of as record_keys
from capplan.readers.record import record_of
from capplan.scenario.scenario_file import ScenarioFile
from tests.tables import rows

BASE = {
    "name": "small",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "traffic": [{"request_rate": "2 req/s", "input_tokens": 400, "output_tokens": 60}],
    "fleet": {"hardware": ["h100-sxm"], "tensor_parallel": 1, "pipeline_parallel": 1},
}
ASKS = {
    "fleet": "fleet scenario.yaml --offline --format json",
    "simulate": "simulate scenario.yaml --hardware h100-sxm --until 20s --offline --format json",
    "replay": "simulate scenario.yaml --hardware h100-sxm --offline --format json",
    "compare": "compare scenario.yaml --api openai/gpt-5-mini --offline --format json",
    "claude": "compare scenario.yaml --api anthropic/claude-opus-5-5 --offline --format json",
    "bill": "bill scenario.yaml --offline --format json",
    "december": "bill scenario.yaml --offline --format json --month 2026-12",
    "page": "report scenario.yaml --offline --format markdown",
}


class Case(NamedTuple):
    """A key, before and after: everything else is the same."""

    value: Any
    """After."""
    before: Mapping[str, Any] = MappingProxyType({})
    """Added to the base scenario on both sides; None takes a key away."""
    ask: str = "fleet"
    shown: bool = False
    """The key is a label: its value must be shown, and changes nothing else."""
    refused: str = ""
    """Words of the reason, where the change is refused."""


ROWS = rows("keys")


def added(before: Any) -> dict[str, Any]:
    """Return the keys that both scenarios of a row have: those of a group, keys by themselves, or several of them."""
    if isinstance(before, list):
        return {key: value for part in before for key, value in added(part).items()}
    return ROWS["groups"][before] if isinstance(before, str) else before


def case_of(row: Any) -> Case:
    """Return the case of a row: a value by itself, or its fields."""
    row = row if isinstance(row, dict) else {"value": row}
    return Case(**row | {"before": added(row.get("before", {}))})


def lengths(kind: str, scale: int = 1, before: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Case]:
    """Return the cases of the ways to write a length, or one of so many times less; turns are asked in a simulation."""
    ways = {
        "fixed": ({"fixed": 300}, 500),
        "mean": ({"mean": 300, "p95": 800}, 450),
        "p50": ({"p50": 300, "p95": 800}, 450),
        "p90": ({"mean": 300, "p90": 600}, 500),
        "p95": ({"mean": 300, "p95": 800}, 900),
        "p99": ({"mean": 300, "p99": 900}, 1200),
        "min": ({"min": 100, "max": 500}, 300),
        "max": ({"min": 100, "max": 500}, 700),
        "values": ({"values": [100, 200]}, [100, 900]),
    }

    def scaled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: scaled(part) for key, part in value.items()}
        return [part // scale for part in value] if isinstance(value, list) else value // scale

    return {
        f"traffic.{kind}.{key}": Case(
            scaled(after), {**before, f"traffic.{kind}": scaled(first)}, "simulate" if before else "fleet"
        )
        for key, (first, after) in ways.items()
    }


CASES = (
    {key: case_of(row) for key, row in ROWS["cases"].items()}
    | lengths("input_tokens")
    | lengths("output_tokens")
    | lengths("reasoning_tokens")
    | lengths("turns", 100, added("turns"))
    | lengths("added_tokens", 1, added("turns"))
    | {
        f"slo.{metric}_{s}": Case("1 us")
        for metric in ("ttft", "tpot", "itl", "e2e")
        for s in ("mean", "p50", "p90", "p95", "p99")
    }
)
REFUSALS = {key: case_of(row) for key, row in ROWS["refusals"].items()}
"""What has nothing to apply to."""


def keys_of(model: type, start: str = "") -> Iterator[str]:
    """Yield the keys of a record and of the records in it."""
    for name, field in record_keys(model).items():
        inner = record_of(field.annotation)
        if inner:
            yield from keys_of(inner, f"{start}{name}.")
        else:
            yield f"{start}{name}"


def test_every_key_has_its_case():
    assert list(dict.fromkeys(keys_of(ScenarioFile))) == list(keys_of(ScenarioFile))
    assert set(CASES) == set(keys_of(ScenarioFile))


def changed(scenario: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario with keys set, or taken away where the value is None; of a list the first entry."""
    found = deepcopy(scenario)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = found
        for part in parents:
            inner = place.setdefault(part, {})
            place = inner[0] if isinstance(inner, list) else inner
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return found


@pytest.fixture
def answer(line):
    """Return what a question on a scenario gives: what is printed, or the refusal."""

    def run(scenario, ask):
        text = json.dumps(scenario)
        if (text, ask) not in ANSWERS:
            Path("scenario.yaml").write_text(text)
            ran = line(ASKS[ask].split(), anew=True)
            ANSWERS[text, ask] = ran.err if ran.code == 2 else ran.out
        return ANSWERS[text, ask]

    return run


ANSWERS: dict[tuple[str, str], str] = {}


@pytest.mark.parametrize("key", CASES)
def test_a_change_of_a_key_changes_an_answer(key, answer, numbers):
    case = CASES[key]
    before = changed(BASE, case.before)
    after = changed(before, {key: case.value})
    assert before != after
    first, second = answer(before, case.ask), answer(after, case.ask)
    if case.refused:
        assert re.search(case.refused, second)
    elif case.shown:
        (shown,) = case.value.values() if isinstance(case.value, dict) else (str(case.value),)
        assert shown in second
        assert shown not in first
    else:
        name = key.rpartition(".")[2]
        was, now = (numbers(json.loads(text)["result"], name) for text in (first, second))
        assert was != now


def test_a_burst_that_is_given_changes_the_plan_itself(answer):
    """Nine times the busiest minute of the trace: the plan serves nine times the rate; left out, it serves the minute."""
    before = changed(BASE, added("trace"))
    plans = [
        json.loads(answer(scenario, "fleet"))["result"]["chosen"]
        for scenario in (before, changed(before, {"fleet.burst": 1}), changed(before, {"fleet.burst": 9}))
    ]
    left_out, minute, burst = (plan["request_rate_per_replica"] * plan["replicas"] for plan in plans)
    assert left_out == minute
    assert burst == pytest.approx(9 * minute)
    assert plans[0] == plans[1]
    assert plans[2]["replicas"] > plans[0]["replicas"]


@pytest.mark.parametrize("key", REFUSALS)
def test_a_key_with_nothing_to_apply_to_is_refused(key, answer):
    case = REFUSALS[key]
    said = answer(changed(changed(BASE, case.before), {key: case.value}), "fleet")
    assert re.search(case.refused, said)


def test_experts_of_a_dense_model_and_prices_of_other_devices_are_said(answer):
    spread = changed(BASE, {"fleet.expert_parallel": [1, 2], "fleet.tensor_parallel": 2})
    rejected = json.loads(answer(spread, "fleet"))["result"]["rejected"]
    assert "expert-parallel 2 on a model without experts" in {item["reason"] for item in rejected}
    priced = changed(BASE, {"prices.per_gpu_hour": {"b200": "5 $/h"}})
    said = json.loads(answer(priced, "fleet"))["warnings"]
    assert "prices.per_gpu_hour: fleet.hardware has no b200" in said
