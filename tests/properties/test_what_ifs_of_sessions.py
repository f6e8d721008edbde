"""What-ifs of sessions count replicas as `fleet` does: with the prefix-cache hits at the load that each replica carries."""

from pathlib import Path

import pytest

from capplan.fleet.sensitivity import resized
from capplan.questions.fleet import asked_fleet, fleet_for, terms_of
from capplan.readers.yaml_file import parse_yaml
from capplan.scenario.scenario import scenario_from

TEXT = """name: agents
model: Qwen/Qwen3-30B-A3B
traffic: [{{name: agent, users: {users}, turns: {{mean: 8, p95: 20}}, think_time: 15 s, added_tokens: 900, input_tokens: 3000, output_tokens: 250}}]
slo: {{ttft_p95: 1 s, tpot_p95: 30 ms}}
fleet: {{hardware: [h100-sxm], tensor_parallel: 1, spare_replicas: 0, headroom: 0 %}}
prices: {{per_gpu_hour: {{h100-sxm: 4 $/h}}}}
"""


def asked(users):
    return asked_fleet(scenario_from(parse_yaml(TEXT.format(users=users), "a.yaml"), Path()), offline=True)


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("users", [200, 600])
def test_a_layout_takes_the_same_replicas_in_a_what_if_as_in_its_plan(users):
    question = asked(users)
    plan = fleet_for(question).chosen
    assert resized(question.question, plan, terms_of(question)) == (plan.single.busy_replicas,)
