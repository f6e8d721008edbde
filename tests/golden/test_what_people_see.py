"""The text of a command, unchanged: one command, one file. `make golden` writes them; review the diff like code."""

import pytest

pytestmark = pytest.mark.usefixtures("shared_runs")
VERSION = ("--engine-version", "0.21.0")
SMALL = "tests/golden/small.yaml"

SEEN = {
    "kv-size-of-llama.txt": ("kv-size", "llama-3.1-8b", "--kv-dtype", "fp8", "--engine-version", "0.19.0"),
    "kv-size-on-two-gpus.md": (
        "kv-size llama-3.1-8b --context 8192 -tp 2 --sequences 4 --format markdown",
    ),
    "model.csv": ("model", "mixtral-8x7b-v0.1", "--format", "csv"),
    "model-in-int4.txt": ("model", "llama-3.1-8b", "--weight-dtype", "int4"),
    "fit.txt": (
        "fit llama-3.1-8b --hardware l4 --kv-dtype fp8 --max-model-len 8192 --engine-version 0.19.0",
    ),
    "fit-on-the-newest-version.txt": ("fit", "qwen3-0.6b", "--hardware", "l4", "--kv-dtype", "bf16"),
    "does-not-fit.txt": (
        "fit llama-3.1-70b-instruct --hardware h100-sxm --kv-dtype bf16 --engine-version 0.19.0",
    ),
    "spec-of-stated-times.txt": (
        "spec --draft-step-time '2 ms' --target-step-time '35 ms' --acceptance 0.8",
    ),
    "estimate-at-a-concurrency.txt": ("estimate", "qwen3-0.6b", "--hardware", "l4", "--concurrency", "8", *VERSION),
    "estimate-at-a-rate.md": (
        "estimate qwen3-0.6b --hardware l40s --request-rate '5 req/s'", *VERSION, "--format", "markdown",
    ),
    "fleet.txt": ("fleet", SMALL),
    "fleet-in-full.txt": ("fleet", SMALL, "--full"),
    "diff.md": ("diff", SMALL, "tests/golden/review.yaml", "--format", "markdown"),
    "explain.txt": ("explain", SMALL, "usd_per_month"),
    "levers.txt": ("levers", SMALL, "--lever", "weight-dtype", "--lever", "kv-dtype", "--lever", "target", "--lever", "autoscaling"),
    "compare.txt": ("compare", SMALL, "--api", "anthropic/claude-haiku-5-5", "--api", "openai/gpt-5-mini"),
    "fleet-with-commitments.txt": (
        "fleet", SMALL, "--full", "--set", "traffic[0].daily_curve=office", "--set", "traffic[0].request_rate=200",
        "--set", "commitments={reserved_1y: {discount: 30 %}, owned: {capex: 9000 $, electricity: 0.1 $/kWh}, spot: {}}",
        "--set", "currency={name: EUR, usd: 1.16}", "--set", "budget.usd_per_month=20000",
    ),
    "cache.txt": ("cache", "--prefix-tokens", "4000", "--requests-per-day", "10000", "--api", "anthropic/claude-sonnet-5-5"),
    "simulate.txt": ("simulate", SMALL, "--until", "10 s", "--hardware", "l40s", "--replicas", "2"),
    "sweep.txt": ("sweep", SMALL, "--request-rate", "5,20 req/s", "--hardware", "l40s"),
    "list-of-engines.txt": ("list", "engines", "sglang"),
    "estimate-of-a-launch.txt": (
        "estimate --launch 'vllm serve qwen3-0.6b --max-num-seqs 64 --port 80' --hardware l4 --concurrency 8", *VERSION,
    ),
    "hardware.json": ("hardware", "l4", "--format", "json"),
}  # fmt: skip
SIMULATED = {"compare", "diff", "estimate", "explain", "fleet", "levers", "simulate", "sweep"}
"""Commands whose numbers are sums of thousands of steps."""


@pytest.mark.parametrize("name", SEEN)
def test_what_people_see_is_unchanged(capplan, golden, name):
    ran = capplan(*SEEN[name])
    assert ran.code == (3 if name.startswith("does-not-fit") else 0), ran.err
    golden(name, ran.out, simulated=SEEN[name][0] in SIMULATED)


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
