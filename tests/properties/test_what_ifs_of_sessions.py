"""Fleets of sessions have the prefix-cache hits at the load that each replica carries, in every what-if and at every slowness."""

from pathlib import Path

import pytest

from capplan.fleet.search.layouts import search
from capplan.fleet.search.trial import Trial
from capplan.fleet.sweep import resized
from capplan.questions.fleet import asked_fleet, terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.readers.yaml_file import parse_yaml
from capplan.scenario.scenario import scenario_from

TEXT = """name: agents
model: Qwen/Qwen3-30B-A3B
traffic: [{{name: agent, {load}, turns: {{mean: 8, p95: 20}}, think_time: 15 s, added_tokens: 900, input_tokens: 3000, output_tokens: 250}}]
slo: {{ttft_p95: 1 s, tpot_p95: 30 ms}}
fleet: {{hardware: [h100-sxm], tensor_parallel: 1, spare_replicas: 0, headroom: 0 %}}
prices: {{per_gpu_hour: {{h100-sxm: 4 $/h}}}}
"""


def asked(load):
    return asked_fleet(scenario_from(parse_yaml(TEXT.format(load=load), "a.yaml"), Path()), offline=True)


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("users", [200, 600])
def test_a_layout_takes_the_same_replicas_in_a_what_if_as_in_its_plan(users):
    question = asked(f"users: {users}")
    plan = fleet_for(question).chosen
    assert resized(question.question, plan, terms_of(question)) == (plan.single.busy_replicas,)


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("slowness", [1.0, 1.5])
def test_the_hits_of_a_run_are_those_of_its_own_response_times(slowness):
    question, replicas = asked("request_rate: 15 req/s").question, 14
    trial = Trial(search(question).candidates[0], question, {})
    seen = trial.fleet(replicas, slowness)
    hits = trial.with_hits(1.0 / replicas, tuple(slowness * wait_s for wait_s in seen.responses_s))
    again = trial._at(hits, trial.total_rate / replicas, replicas, slowness, {}, short=False)
    assert (again.ttft_s, again.responses_s) == (seen.ttft_s, seen.responses_s)
    assert hits.hit_fractions < trial.with_hits(1.0 / replicas, trial.responses_s).hit_fractions
