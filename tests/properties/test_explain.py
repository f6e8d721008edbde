"""An explained number is the number that `fleet` printed, and follows from the inputs that are shown."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest

from capplan.cli.main import main
from capplan.explain.plans import explained_quantity
from capplan.explain.subject import HELD, Subject, formula_of
from capplan.questions.fleet import asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.report.quantities import quantity_of
from capplan.scenario.scenario import read_scenario
from tests.files import written_to
from tests.letters import symbols_of
from tests.plan_files import plan_in
from tests.shipped import FLEETS, Fleet
from tests.sweeps import long_but

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
ROOT = Path(__file__).resolve().parents[2]
SAMPLE = {
    Fleet(ROOT / "scenarios" / f"{name}.yaml")
    for name in ("commitments", "embed-corpus", "energy", "growing", "many-adapters", "padded-job", "screenshots", "support-chat")
}  # fmt: skip
"""Of the shipped scenarios, one of each kind: open traffic, a job, prompts alone, adapters, images, money."""
LABELS = {"spec", "config", "derived", "measured", "assumed"}
WORKED_OUT = {
    "gpus", "usd_per_hour", "energy_usd_per_hour", "usd_per_month", "usd_per_million_output_tokens", "usd_per_million_tokens", "watts",
    "usable_bytes_per_gpu", "kv_bytes_available_per_gpu", "concurrency_per_replica", "ttft_s.low", "tpot_s.high", "e2e_s.low", "spare_replicas",
    "planned_request_rate_limit_per_replica", "usd_per_million_output_tokens_at_mean", "usd_per_million_tokens_at_mean", "usd_per_job",
    "usd_per_thousand_requests", "order.gpus", "order.gpus_idle", "order.free_replicas", "order.usd_per_hour", "order.usd_per_month", "survival.count",
    "request_rate_per_replica",
}  # fmt: skip
"""Quantities whose formula is arithmetic of the inputs that are shown."""
SMALL = "tests/golden/small.yaml"


def numbers(row, name=""):
    """Return the numbers of a row of `fleet`, by path."""
    if isinstance(row, dict):
        return {
            k: v
            for key, inner in row.items()
            for k, v in numbers(inner, f"{name}.{key}" if name else key).items()
        }
    return {name: row} if isinstance(row, (int, float)) and not isinstance(row, bool) else {}


def arithmetic(formula, values):
    """Return what a formula such as '10^6 h / (3600 r)' is for values of its letters."""
    text = formula.rpartition(" = ")[2].replace("(Little's law)", "").strip()
    text = text.replace("10^6", "1e6")
    text = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", text)
    return eval(text, {"min": min, "max": max}, values)


def consistent(explained):
    """Check a quantity and everything below it."""
    assert math.isfinite(explained.value)
    assert explained.formula
    assert explained.label in LABELS
    assert (ROOT / explained.page).exists()
    for given in explained.inputs:
        assert given.label in LABELS
        assert given.name
        assert given.source
        assert given.unit
    for step in explained.steps:
        consistent(step)


@pytest.mark.parametrize("fleet", long_but(SAMPLE, FLEETS), ids=lambda fleet: fleet.name)
def test_every_number_of_a_plan_is_explained_to_the_last_digit(fleet):
    asked = asked_fleet(read_scenario(*fleet), offline=True)
    of = Subject(asked, fleet_for(asked).together)
    known = of.numbers
    for name, printed in known.items():
        explained = explained_quantity(of, name)
        assert (explained.quantity, explained.value) == (name, printed)
        assert quantity_of(name) is not None
        consistent(explained)
        if name in WORKED_OUT:
            values = {given.symbol: given.value for given in explained.inputs}
            assert arithmetic(explained.formula, values) == pytest.approx(printed, rel=1e-12), name
    prices = explained_quantity(of, "usd_per_hour").steps[0].inputs
    assert all(re.search(r"https?://|prices\.", given.source) for given in prices)


@pytest.fixture(scope="module")
def plan(tmp_path_factory, few_requests):
    path = tmp_path_factory.mktemp("explain") / "plan.json"
    assert main(["fleet", str(ROOT / SMALL), "-o", str(path), "--offline"]) == 0
    return path


def answer(capsys, *words, code=0):
    assert main([*map(str, words), "--offline", "--format", "json"]) == code
    return json.loads(capsys.readouterr().out)["result"]


def test_a_plan_file_is_explained_as_the_row_that_it_holds(plan, capsys):
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    listed = {row["quantity"]: row["value"] for row in answer(capsys, "explain", plan)["quantities"]}
    held = {*HELD, "kv_bytes_per_token", "state_bytes_per_sequence"}
    assert {name: value for name, value in listed.items() if name not in held and "[" not in name} == numbers(
        chosen
    )
    assert held <= set(listed)
    for name in ("usd_per_month", "ttft_s.p95", "slo_met_probability", "kv_cache_tokens"):
        found = answer(capsys, "explain", plan, name)
        assert found["value"] == listed[name]
        assert {"quantity", "value", "unit", "formula", "inputs", "steps"} <= set(found)
        assert {"symbol", "name", "value", "unit", "label", "source"} == set(found["inputs"][0])
    assert answer(capsys, "explain", ROOT / SMALL, "gpus")["value"] == chosen["gpus"]


def test_a_latency_leads_down_to_the_work_of_operators(plan, capsys):
    steps = answer(capsys, "explain", plan, "tpot_s.p95")["steps"]
    named = {row["quantity"] for row in steps}
    assert {"decode.attention_s", "prefill.attention_s", "decode.host_s"} <= named
    heavy = next(row for row in steps if row["quantity"] == "decode.lm_head_s")
    work = {given["name"]: given["value"] for given in heavy["inputs"]}
    assert work["moved_bytes"] > 151_936 * 1024, (
        "the LM head of qwen3-0.6b is read at least once a step, one byte an element or more"
    )
    assert heavy["value"] > 0


def test_what_is_assumed_is_labelled_so(plan, capsys, tmp_path):
    text = (ROOT / SMALL).read_text()
    without = tmp_path / "s.yaml"
    without.write_text(text.replace("  spare_replicas: 1\n", "").replace("  headroom: 20 %\n", ""))
    assert answer(capsys, "explain", plan, "usd_per_gpu_hour")["inputs"][0]["label"] == "config"
    shown = {
        given["name"]: given["label"] for given in answer(capsys, "explain", without, "replicas")["inputs"]
    }
    assert shown["spare_replicas"] == "assumed"
    assert shown["headroom_fraction"] == "assumed"


def test_formulas_and_letters_are_those_of_the_docstrings():
    from capplan.money.price import usd_per_million_tokens

    assert formula_of(usd_per_million_tokens) == "c = 10^6 h / (3600 r)"
    assert symbols_of(usd_per_million_tokens) == {
        "usd_per_hour": ("h", "$/h"),
        "tokens_per_s": ("r", "token/s"),
    }


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["usd_per_mont"], 2, "did you mean 'usd_per_month'"),
        (["ttft_q95"], 2, "ttft_s.p95"),
        (["hardware"], 2, "unknown quantity"),
    ],
)
def test_an_unknown_quantity_names_the_nearest(plan, capsys, words, code, said):
    assert main(["explain", str(plan), *words, "--offline"]) == code
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_scenario_without_a_plan_has_nothing_to_explain(tmp_path, capsys):
    path = written_to(tmp_path / "s.yaml", (ROOT / SMALL).read_text().replace("300 ms", "1 ms"))
    assert main(["explain", str(path), "gpus", "--offline"]) == 4
    assert "no plan meets the targets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "settings", "words"),
    [
        ("vllm", (), ()),
        ("sglang", (), ()),
        ("trtllm", ("weight_dtype=bf16",), ()),
        ("vllm", ("lora.adapters=9",), ("--max-loras", 9)),
    ],
)
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
