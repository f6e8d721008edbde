"""Plan files for tests: one that a search wrote, and the same with other layouts, signed again."""

import copy
import json

import pytest

from capplan.cli.main import main
from capplan.readers.plan_file import result_digest
from tests.files import written_to

SCENARIO = """name: small
model: llama-3.1-8b-instruct
weight_dtype: fp8
kv_dtype: fp8
traffic:
  - {name: chat, request_rate: 30 req/s, input_tokens: {mean: 900, p95: 2500}, output_tokens: {mean: 120, p95: 300}}
slo: {ttft_p95: 600 ms, tpot_p95: 30 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1}
"""


def fleet_plan(scenario, *words, at=None):
    """Write the plan of a scenario beside it, or elsewhere, and return its path."""
    plan = at or scenario.with_name("plan.json")
    assert main(["fleet", str(scenario), *words, "-o", str(plan), "--offline"]) == 0
    return plan


def plan_of_file_with(content, name):
    """Return a fixture for the tests of a module: the path of the plan of a scenario, found on few requests, which stands beside it."""

    @pytest.fixture(scope="module")
    def path(tmp_path_factory, few_requests):
        return fleet_plan(written_to(tmp_path_factory.mktemp("plans") / name, content))

    return path


def plan_in(folder, *settings):
    """Write a scenario and its plan into a folder, and return the path of the plan."""
    words = (part for setting in settings for part in ("--set", setting))
    return fleet_plan(written_to(folder / "small.yaml", SCENARIO), *words)


def choice(result, name):
    """Return the cheapest, the surest or the fewest of the plans of an answer."""
    return result["plans"][result["choices"][name]]


def _follow(row):
    """Make the counts and the order of a plan those of its parallelism and replicas."""
    if row["transfer"] is not None:
        return
    each = row["tensor_parallel"] * row["pipeline_parallel"] * row["data_parallel"]
    row.update({"gpus_per_replica": each, "gpus": row["replicas"] * each})
    (group,) = row["groups"]
    group.update({key: row[key] for key in group if key in row})
    order, line = row["order"], row["order"]["machines"][0]
    count = -(-row["gpus"] // line["gpus"])
    line |= {"count": count, "usd_per_hour": order["usd_per_hour"] / count}
    gpus = count * line["gpus"]
    order.update({"machines": [line], "gpus": gpus, "gpus_idle": gpus - row["gpus"]})


def with_changes(plan, target, *, chosen=None, launch=None, inputs=None, order=None):
    """Write a plan file with some values changed, signed as a search would; return its path."""
    envelope = copy.deepcopy(json.loads(plan.read_text()))
    result = envelope["result"]
    plan = result["plans"][result["recommended"]]
    plan.update(chosen or {})
    _follow(plan)
    if order is not None:
        plan["order"]["machines"] = [line | order for line in plan["order"]["machines"]]
    result["chosen"] = plan
    origin = result["plan_file"]["inputs"]
    origin["launch"].update(launch or {})
    for key, value in (inputs or {}).items():
        origin[key] = origin[key] | value if isinstance(value, dict) else value
    result["plan_file"]["result_sha256"] = result_digest(result)
    target.write_text(json.dumps(envelope))
    return target
