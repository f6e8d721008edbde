"""What `fleet` calls met is met in simulation, copies carry copies of the load, a device alone is that device among others: a sample.

`make fuzz` asks new scenarios: see tests/fuzz/answers.py.
"""

from random import Random

import pytest
import yaml

from capplan.cli.main import main
from capplan.errors import InputError
from capplan.fleet.search.one_layout import trial_of
from capplan.questions.fleet import terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.serving.outcome import SHED
from tests.asked import asked_in
from tests.fuzz.answers import (
    KINDS,
    asked_question,
    at_most_linear,
    laws,
    met_in_simulation,
    one_ladder,
    one_peak,
    simulated,
)
from tests.sweeps import long_but

SAMPLE = {
    "open": 900_301,
    "users": 3,
    "classes": 820_005,
    "mixed": 900_304,
    "sessions": 3,
    "session-users": 1,
    "drafts": 1,
    "pools": 700,
    "pool-users": 810_003,
    "session-mixed": 1,
    "user-drafts": 1,
    "mixed-drafts": 900_000,
    "pool-drafts": 1,
}
"""Kind -> number of a scenario.

In the one of pools, a listed plan with pools is surer for less than any without; users of pools send more to quicker devices
beside it. In the one of classes, users without think time wait for most of their time. The open one comes in
bursts, which more replicas even out; in the mixed one a few long requests come beside many short ones of users.
"""


@pytest.mark.parametrize("kind", long_but(("open", "users", "classes"), SAMPLE))
def test_the_laws_of_an_answer_hold(kind):
    text, random = asked_question(kind, SAMPLE[kind])
    assert laws(text, random) == [], text


@pytest.mark.long
@pytest.mark.parametrize(("kind", "number"), [("drafts", 100_001)])
def test_the_laws_hold_where_they_once_did_not(kind, number):
    """One step of the scale of loads is three of 150 replicas, and twice the load took 306."""
    text, random = asked_question(kind, number)
    assert laws(text, random) == [], text


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "number"), [("session-mixed", 400_020), ("user-drafts", 400_025), ("mixed", 500_029)]
)
def test_copies_carry_copies_of_a_load_whose_latencies_hardly_grow(kind, number):
    """A target within 0.1% of its limit from 140 to 150 replicas, and users of whom 20 at a replica hold where 18 do not.

    For twice the load the search took 293 instead of 2 x 145 replicas, and 80 instead of 2 x 33.
    """
    text, _ = asked_question(kind, number)
    answer = fleet_for(asked_in(text))
    for copies in (2, 3):
        assert at_most_linear(text, answer, Random(TWO_OR_THREE[copies])) == []


TWO_OR_THREE = {2: 1, 3: 0}
"""Copies -> a seed whose first choice of two or three they are."""


def test_seeds_of_copies_are_what_they_are_called():
    assert {copies: Random(seed).choice([2, 3]) for copies, seed in TWO_OR_THREE.items()} == {2: 2, 3: 3}


LONG_PROMPTS = """
name: law
model: llama-3.1-8b
engine: trtllm
traffic: [{name: u, users: 40, think_time: 0 s, input_tokens: {mean: 2045, p95: 4090}, output_tokens: 57}]
slo: {ttft_mean: 1.4 s, tpot_mean: 30 ms}
fleet: {hardware: [b200], tensor_parallel: 1, pipeline_parallel: 1}
prices: {per_gpu_hour: {b200: 6 $/h}}
"""


def test_an_engine_that_reads_prompts_whole_gets_steps_that_hold_the_longest(tmp_path, capsys):
    """TensorRT-LLM rejects prompts above its 8,192 tokens of a step, of which the plan took no notice."""
    asked = asked_in(LONG_PROMPTS)
    assert asked.question.max_model_len == 9216
    assert asked.question.max_num_batched_tokens == 9216 + 2048  # the sequences that it runs at once
    assert any("it rejects longer ones" in item.what for item in asked.assumptions)
    plan = fleet_for(asked).chosen
    outcome = simulated(asked, plan, 1)
    assert sum(part.count(SHED) for part in outcome.parts) == 0
    scenario, written = tmp_path / "law.yaml", tmp_path / "plan.json"
    scenario.write_text(LONG_PROMPTS)
    assert main(["fleet", str(scenario), "-o", str(written)]) == 0
    assert main(["export", "--plan", str(written), "--target", "trtllm"]) == 0
    assert "--max_num_tokens 11264" in capsys.readouterr().out
    with pytest.raises(InputError, match="max_num_batched_tokens: 8192 is below the context of 9216"):
        asked_in(LONG_PROMPTS + "max_num_batched_tokens: 8192\n")
    assert asked_in(LONG_PROMPTS.replace("trtllm", "vllm")).question.max_num_batched_tokens is None


@pytest.mark.long
def test_requests_next_to_quick_users_count_by_what_they_are_while_both_last():
    """At the lightest load users send 32 of 33 requests; they go on for most of the run after the last of the others, which were overlooked."""
    text, random = asked_question("mixed", 80_002)
    asked = asked_in(text)
    assert met_in_simulation(asked, fleet_for(asked), random.randint(1, 10**6)) == []


@pytest.mark.long
def test_gaps_between_tokens_are_those_while_users_and_requests_both_come():
    """A run of slow replicas holds more of the users' requests than come until the last of the others."""
    text, _ = asked_question("mixed", 80_002)
    said = yaml.safe_load(text)
    said["slo"] = {"itl_mean": "20 ms", "confidence": "80 %"}
    asked = asked_in(yaml.safe_dump(said))
    plan = fleet_for(asked).chosen
    trial = trial_of(asked.question, plan.single.layout, terms_of(asked))
    (target,) = asked.scenario.slo.targets
    planned_s = trial.fleet(plan.single.busy_replicas, slowness := 2.0).value(target)
    assert planned_s == pytest.approx(simulated(asked, plan, 1, slowness).value(target), rel=0.05)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "number"),
    [("classes", 820_005), ("mixed", 2), ("session-mixed", 1), ("session-users", 1), ("pools", 700), ("user-drafts", 1)],
)  # fmt: skip
def test_the_laws_hold_where_each_class_waits_outside_for_a_time_of_its_own(kind, number):
    """Retrieval of 50 ms before the prompts of one class and of 150 ms before those of the other, both part of the SLO targets."""
    text, _ = asked_question(kind, number)
    said = yaml.safe_load(text)
    for place, item in enumerate(said["traffic"]):
        item["outside"] = {"time": f"{50 + 100 * place} ms"}
    said["slo"]["outside"] = "included"
    asked = asked_in(yaml.safe_dump(said))
    answer = fleet_for(asked)
    assert answer.chosen is not None
    seed = Random(number).randint(1, 10**6)
    assert [*met_in_simulation(asked, answer, seed), *one_peak(asked, answer), *one_ladder(answer)] == []


def test_every_kind_of_scenario_is_asked():
    assert set(SAMPLE) == set(KINDS)
