"""Cost per token as OpenCost and llm-d define it, from the machines and tokens of a bill."""

import re

import pytest

SCENARIO = """name: small
model: Qwen/Qwen3-0.6B
traffic: [{request_rate: 20 req/s, input_tokens: 900, output_tokens: 90}]
fleet: {hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 1}
prices: {per_gpu_hour: {l4: 1 $/h}, people: 500 $/month, overhead: 10 %}
"""


def samples(text):
    """Return what each line says, by its name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()
            found[name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))] = float(value)
    return found


def of(found, name, **labels):
    (value,) = (usd for (each, given), usd in found.items() if each == name and set(labels.items()) <= given)
    return value


def test_tokens_cost_what_their_machines_cost_by_the_time_of_the_phases(capplan, tmp_path):
    """A month of 730 h: $1 an hour for each GPU, 20 req/s of 900 and 90 tokens; people and overhead are no infrastructure."""
    path, out = tmp_path / "s.yaml", tmp_path / "cost.prom"
    path.write_text(SCENARIO)
    bill = capplan.result("bill", path, "--offline", "--metrics", out)
    found = samples(out.read_text())
    seconds = 730 * 3600.0
    prompts, generated = 20.0 * 900 * seconds, 20.0 * 90 * seconds
    (row,) = bill["classes"]
    prefill = row["prefill_usd"] / (row["prefill_usd"] + row["decode_usd"])
    for basis, usd in (
        ("allocation", bill["gpus"] * 730.0),
        ("usage", bill["gpus"] * 730.0 * bill["busy_fraction"]),
    ):
        assert of(found, "llm_total_hourly_cost", cost_basis=basis) == pytest.approx(usd / 730.0)
        blended, prompt, generation = (
            of(found, "llm_cost_per_million_tokens", cost_basis=basis, phase=phase)
            for phase in ("", "prompt", "generation")
        )
        assert blended == pytest.approx(1e6 * usd / (prompts + generated))
        assert prompt == pytest.approx(1e6 * usd * prefill / prompts)
        assert prompt * prompts + generation * generated == pytest.approx(1e6 * usd)
    assert of(found, "llm_cache_savings_fraction", model_name="Qwen/Qwen3-0.6B", namespace="small") == 0.0


def test_every_metric_has_its_kind_and_no_series_comes_twice(capplan, tmp_path):
    path, out = tmp_path / "s.yaml", tmp_path / "cost.prom"
    path.write_text(SCENARIO)
    capplan("bill", path, "--offline", "--metrics", out)
    text = out.read_text()
    names = {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == names
    assert len(samples(text)) == sum(not line.startswith("#") for line in text.splitlines())


def test_tokens_of_machines_that_are_there_already_cost_nothing(capplan, tmp_path):
    scenario, text = tmp_path / "own.yaml", tmp_path / "own.prom"
    scenario.write_text(
        "name: own\nmodel: Qwen/Qwen3-0.6B\ntraffic: [{request_rate: 20 req/s, input_tokens: 900, output_tokens: 90}]\n"
        "fleet: {hardware: [l4], tensor_parallel: 1, own: {4 x l4: 20}}\n"
    )
    ran = capplan("bill", scenario, "--offline", "--metrics", text)
    assert ran.code == 0, ran.err
    values = re.findall(r"^llm_(?:total|cost).* (\S+)$", text.read_text(), re.MULTILINE)
    assert len(values) == 8
    assert set(values) == {"0.0"}
