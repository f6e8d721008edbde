"""The text of a command, unchanged: one command, one file. `make golden` writes them; review the diff like code."""

import pytest

from tests.tables import rows

pytestmark = pytest.mark.usefixtures("shared_runs")
SMALL = "tests/golden/small.yaml"

SEEN = rows("commands")["seen"]
SIMULATED = {"compare", "diff", "estimate", "explain", "fleet", "levers", "simulate", "sweep"}
"""Commands whose numbers are sums of thousands of steps."""


@pytest.mark.parametrize("name", SEEN)
def test_what_people_see_is_unchanged(capplan, golden, name):
    ran = capplan(SEEN[name])
    assert ran.code == (3 if name.startswith("does-not-fit") else 0), ran.err
    golden(name, ran.out, simulated=SEEN[name].split()[0] in SIMULATED)


def test_what_people_see_of_a_mistake_is_unchanged(capplan, golden):
    ran = capplan("fit", "llama-3.1-8b", "--hardware", "h109")
    assert ran.code == 2
    golden("mistake.txt", ran.err)


EXPORTED = {
    "export.sh": "vllm",
    "export-k8s.yaml": "k8s",
    "export-keda.yaml": "keda",
    "export-llm-d.yaml": "llm-d",
}


def test_what_a_plan_is_exported_as_is_unchanged(capplan, golden, tmp_path):
    plan = tmp_path / "plan.json"
    assert capplan("fleet", SMALL, "-o", plan).code == 0
    for name, target in EXPORTED.items():
        ran = capplan("export", "--plan", plan, "--target", target)
        assert ran.code == 0, ran.err
        golden(name, ran.out, simulated=True)


def test_a_first_scenario_is_unchanged(capplan, golden, tmp_path):
    file = tmp_path / "scenario.yaml"
    assert (
        capplan("init", file, "--model", "qwen3-0.6b", "--hardware", "l4", "--request-rate", "5 req/s").code
        == 0
    )
    first, _, rest = file.read_text().partition("\n")
    assert first.startswith("# yaml-language-server: $schema=")
    golden("init.yaml", rest)
