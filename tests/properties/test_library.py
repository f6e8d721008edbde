"""`import capplan`: its surface does not move, it loads nothing early, and its numbers are those of the commands."""

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import capplan as cp
from capplan.errors import InputError, TargetError

pytestmark = pytest.mark.usefixtures("shared_runs")
ROOT = Path(__file__).resolve().parents[2]
SURFACE = {
    "load_scenario": "(path: str | PathLike[str], *settings: str) -> Scenario",
    "plan_fleet": "(scenario: Scenario | str | PathLike[str], *, offline: bool = False) -> FleetResult",
    "estimate": "(model: str, hardware: str, *, tensor_parallel: int = 1, pipeline_parallel: int = 1, expert_parallel: int = 1, data_parallel: int = 1, weight_dtype: str | None = None, kv_dtype: str | None = None, engine: str = vllm, engine_version: str | None = None, backend: str | None = None, n_gpu_layers: int | None = None, tensor_split: str | None = None, split_mode: str = layer, main_gpu: int | None = None, n_cpu_moe: int | None = None, host_bandwidth: float | None = None, host_memory: float | None = None, max_model_len: int | None = None, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None, cuda_graphs: int | None = None, gpu_memory_utilization: float | None = None, calibration: Path | None = None, revision: str | None = None, offline: bool = False, input_tokens: int = 1024, output_tokens: int = 256, concurrency: int | None = None, request_rate: float | None = None, prefix_hit_fraction: float = 0.0) -> Result",
    "kv_size": "(model: str, contexts: Sequence[int] = (), *, offline: bool = False, sequences: int = 1, kv_dtype: str | None = None, tensor_parallel: int = 1, engine: str = vllm, engine_version: str | None = None, max_num_batched_tokens: int | None = None) -> Result",
    "simulate": "(scenario: Scenario | str | PathLike[str], *, seed: int = 7, until_s: float | None = None, "
    "warm_up_s: float | None = None, trace: str | PathLike[str] | None = None, offline: bool = False) -> Result",
    "capacity": "(scenario: str | PathLike[str], gpus: str | None = None, *, usd_per_month: float | None = None, settings: Sequence[str] = (), think_time_s: float = 30.0, offline: bool = False) -> Result",
    "compare": "(scenario: Scenario | str | PathLike[str], apis: Sequence[str] = (), *, offline: bool = False) -> Result",
}
SMALL = ROOT / "tests" / "golden" / "small.yaml"


def test_the_surface_is_what_it_was():
    from docs.generators.library_page import signature_text

    assert dir(cp) == sorted(["__version__", *SURFACE])
    for name, signature in SURFACE.items():
        assert signature_text(name).replace("'", "") == f"{name}{signature}"


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_help_says_what_each_parameter_is_and_each_guide_names_the_function(name):
    function = getattr(cp, name)
    described = set(re.findall(r"(?m)^(\w+) : ", inspect.getdoc(function)))
    assert described == set(inspect.signature(function).parameters)
    assert f"{name}(" in (ROOT / "docs" / "library.md").read_text(encoding="utf-8")


def test_another_name_is_refused_with_those_that_are_there():
    with pytest.raises(AttributeError, match="it has __version__, capacity, compare, estimate"):
        _ = cp.plan


def test_importing_it_loads_nothing_heavy():
    script = "import sys, capplan; dir(capplan); print(sorted({'numpy', 'pandas', 'pydantic', 'typer'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_the_example_of_the_readme_is_the_one_that_mypy_reads():
    example = (ROOT / "docs" / "examples" / "library.py").read_text(encoding="utf-8").partition("\n\n")[2]
    for name in ("README.md", "docs/library.md"):
        assert f"```python\n{example}```" in (ROOT / name).read_text(encoding="utf-8")


def json_of(capplan, *words):
    return capplan.result(*words, "--offline")


def test_sizes_and_estimates_are_those_of_the_commands(capplan):
    sizes = cp.kv_size("llama-3.1-8b", [8192, 131072], kv_dtype="fp8", tensor_parallel=2, offline=True)
    words = shlex.split("kv-size llama-3.1-8b --context 8192 --context 131072 --kv-dtype fp8 -tp 2")
    assert sizes.data == json_of(capplan, *words)
    assert list(sizes.to_pandas()["context_tokens"]) == [8192, 131072]
    guess = cp.estimate("llama-3.1-8b", "h100-sxm", concurrency=16, weight_dtype="fp8", offline=True)
    words = shlex.split("estimate llama-3.1-8b --hardware h100-sxm --concurrency 16 --weight-dtype fp8")
    assert guess.data == json_of(capplan, *words)
    assert guess.to_pandas()["ttft_s.mean"][0] == guess.data["ttft_s"]["mean"]
    assert any("KV cache" in text for text in guess.assumptions)


def test_a_fleet_and_its_simulation_are_those_of_the_commands(capplan):
    scenario = cp.load_scenario(SMALL, "slo.ttft_p95=400 ms")
    fleet = cp.plan_fleet(scenario, offline=True)
    result = json_of(capplan, "fleet", str(SMALL), "--set", "slo.ttft_p95=400 ms")
    assert fleet.data["plans"] == result["plans"]
    assert fleet.chosen.gpus == result["chosen"]["gpus"]
    frame = fleet.to_pandas()
    assert list(frame["usd_per_month"]) == [plan["usd_per_month"] for plan in result["plans"]]
    run = cp.simulate(SMALL, seed=3, until_s=20.0, offline=True)
    assert run.data == json_of(capplan, "simulate", str(SMALL), "--seed", "3", "--until", "20s")


def test_the_chosen_plan_may_have_separate_pools():
    settings = ("fleet.disaggregation=only", "fleet.hardware=[h100-sxm]", "fleet.tensor_parallel=[1]")
    fleet = cp.plan_fleet(cp.load_scenario(SMALL, *settings), offline=True)
    pools = fleet.data["disaggregated"]["plans"][0]
    assert (fleet.chosen.gpus, fleet.chosen.usd_per_month) == (pools["gpus"], pools["usd_per_month"])
    assert fleet.plans[0] is fleet.chosen


def test_a_comparison_is_that_of_the_command(capplan):
    compared = cp.compare(SMALL, ["openai/gpt-5-mini"], offline=True)
    assert compared.data == json_of(capplan, "compare", str(SMALL), "--api", "openai/gpt-5-mini")


def test_without_a_plan_chosen_raises_what_the_command_says():
    fleet = cp.plan_fleet(cp.load_scenario(SMALL, "slo.ttft_p95=1 ms"), offline=True)
    assert fleet.plans == ()
    with pytest.raises(TargetError, match="no plan meets the SLO targets"):
        _ = fleet.chosen


def test_mistakes_are_those_of_the_command():
    with pytest.raises(InputError, match=r"did you mean.*h100"):
        cp.estimate("llama-3.1-8b", "h100-sxn", concurrency=1, offline=True)


def test_help_lists_options_with_types_and_defaults():
    text = str(inspect.signature(cp.estimate))
    assert "tensor_parallel: int = 1" in text
    assert "concurrency: int | None = None" in text
    assert "**" not in text
    with pytest.raises(InputError, match="did you mean 'concurrency'"):
        cp.estimate("llama-3.1-8b", "h100-sxm", concurency=3)


def test_a_result_fits_a_screen_and_a_notebook_shows_a_table():
    fleet = cp.plan_fleet(SMALL, offline=True)
    for result in (fleet, cp.kv_size("llama-3.1-8b", range(1, 60), offline=True)):
        lines = repr(result).splitlines()
        assert len(lines) <= 33
        assert max(map(len, lines)) <= 100
        assert result._repr_html_().count("<tr>") > 1
    assert repr(fleet).startswith("small: order ")
    assert "<th" in fleet._repr_html_()


def test_a_notebook_draws_fleets_capacities_and_estimates():
    """Each chart is one element, whose marks say their values, and no script."""
    small = "tests/golden/small.yaml"
    for result in (
        cp.plan_fleet(SMALL, offline=True),
        cp.capacity(small, "2 x l40s", offline=True),
        cp.estimate("qwen3-0.6b", "l4", concurrency=8, kv_dtype="bf16", offline=True),
    ):
        shown = result._repr_html_()
        (drawing,) = re.findall(r"<svg.*?</svg>", shown, re.DOTALL)
        assert "<title>" in drawing
        assert "<script" not in shown
        ET.fromstring(drawing)


def test_what_is_no_scenario_is_refused_in_words():
    with pytest.raises(InputError, match="a value of type dict is not a scenario"):
        cp.plan_fleet({"name": "chat"})
