"""A plan that is searched once and read by every test of the page that is made of it."""

import pytest

from tests.files import written_to
from tests.plan_files import fleet_plan, plan_in
from tests.sweeps import size_on_few_requests

PAGE = """name: page
model: meta-llama/Llama-3.1-8B-Instruct
weight_dtype: bf16
kv_dtype: bf16
engine: vllm
engine_version: 0.19.0
max_model_len: 8192
traffic:
  - name: chat
    request_rate: 10 req/s
    daily_curve: office
    input_tokens: {mean: 800, p95: 2000}
    output_tokens: {mean: 150, p95: 400}
    shared_prefix: {tokens: 300, hit_fraction: 0.5}
slo: {ttft_p95: 2 s, tpot_p95: 60 ms}
fleet: {hardware: [h100-sxm, h200-sxm], tensor_parallel: [1, 2], pipeline_parallel: [1], headroom: 20 %, spare_replicas: 1}
prices: {commitment: on-demand, provider: any}
"""


@pytest.fixture(scope="session")
def plan_of_page(tmp_path_factory):
    """The plan file of the scenario PAGE, which stands beside it as page.yaml."""
    return fleet_plan(written_to(tmp_path_factory.mktemp("mit Leerzeichen und ü") / "page.yaml", PAGE))


@pytest.fixture(scope="session")
def plan(tmp_path_factory):
    """The plan file of the scenario of tests/plan_files.py, which stands beside it as small.yaml; no test writes there."""
    with pytest.MonkeyPatch.context() as patch:
        size_on_few_requests(patch)
        return plan_in(tmp_path_factory.mktemp("plan"))
