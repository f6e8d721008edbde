"""What `fleet` looks at where a scenario leaves fleet.disaggregation out: separate pools too for large mixtures of experts."""

import json

import pytest

from capplan.cli.main import main
from capplan.fleet.plan import cost_of
from capplan.fleet.review import spec_of_layout
from capplan.fleet.search.candidates import Ranges, shardings
from capplan.fleet.search.layouts import search
from capplan.fleet.search.one_layout import trial_of
from capplan.model.parameters import is_large_mixture
from capplan.model.sharding import Sharding
from capplan.questions.fleet import terms_of
from capplan.questions.plans.plan_file import asked_of_plan, chosen_in
from capplan.readers.catalogue.models import read_model
from capplan.readers.plan_file import read_plan_file
from tests.asked import asked_of, fleet_of
from tests.files import written_to
from tests.sweeps import long_but
from tests.tables import table

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
SCENARIO = """name: mixture
model: {model}
traffic:
  - {{name: chat, request_rate: {rate} req/s, input_tokens: {{mean: {input}, p95: {long}}}, output_tokens: 300}}
slo: {{ttft_p95: 2 s, tpot_p95: {tpot} ms, confidence: {confidence} %}}
fleet: {{hardware: {hardware}}}
"""
V3, OSS = "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"
CASES = {
    "pools cost a fraction": (V3, 20, 1500, 3000, 30, 80, "[h200-sxm]"),
    "pools cost more": (V3, 1, 1500, 3000, 60, 80, "[h200-sxm]"),
    "a strict target": (OSS, 40, 3000, 9000, 15, 80, "[h100-sxm]"),
    "two devices": (OSS, 10, 1000, 2000, 30, 90, "[h100-sxm, h200-sxm]"),
    "one replica is enough": (OSS, 0.2, 1000, 2000, 60, 60, "[h100-sxm]"),
    "a GPU of which no machine is listed": (OSS, 4, 3000, 9000, 15, 80, "[h100-sxm, gh200-96gb]"),
}


def path_of(folder, case):
    names = ("model", "rate", "input", "long", "tpot", "confidence", "hardware")
    return written_to(folder / "mixture.yaml", SCENARIO.format(**dict(zip(names, case, strict=True))))


def test_pools_of_gpus_that_nobody_lists_leave_those_out_that_can_be_ordered(tmp_path):
    """The cheapest GPU by the piece is in no machine: pools are looked for among those that are."""
    path = path_of(tmp_path, CASES["a GPU of which no machine is listed"])
    listed, both = (
        fleet_of(
            path, "fleet.disaggregation=only", "fleet.tensor_parallel=2", f"fleet.hardware={names}"
        ).chosen
        for names in ("[h100-sxm]", "[h100-sxm, gh200-96gb]")
    )
    assert not any(group.is_by_the_gpu for group in both.groups)
    assert cost_of(both) == cost_of(listed)


@pytest.mark.parametrize("case", long_but({"pools cost a fraction", "one replica is enough"}, CASES))
def test_the_default_plan_costs_no_more_than_that_of_either_way(tmp_path, case):
    path = path_of(tmp_path, CASES[case])
    default, *others = (
        fleet_of(path, *settings)
        for settings in ((), ("fleet.disaggregation=off",), ("fleet.disaggregation=only",))
    )
    least = min(cost_of(other.choices.cheapest) for other in others if other.choices)
    assert cost_of(default.choices.cheapest) <= least + 1e-9
    assert cost_of(default.chosen) <= min(cost_of(other.chosen) for other in others if other.choices) + 1e-9
    assert default.chosen.slo_met_probability >= CASES[case][5] / 100.0


def test_pools_are_simulated_only_where_their_bounds_leave_them_a_chance(tmp_path):
    few = fleet_of(path_of(tmp_path, CASES["one replica is enough"]))
    assert few.pools.simulated_pairs == 0
    assert not few.with_pools
    assert few.pools.least_usd_per_hour >= cost_of(few.choices.cheapest)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-70B-Instruct"])
def test_the_answer_for_other_models_is_that_without_pools(tmp_path, model):
    path = path_of(tmp_path, (model, 4, 1500, 3000, 50, 80, "[h100-sxm]"))
    assert fleet_of(path) == fleet_of(path, "fleet.disaggregation=off")


def test_mixtures_with_latent_attention_or_many_parameters_are_those_that_operators_spread():
    spread = {V3, OSS, "deepseek-ai/DeepSeek-V2-Lite", "Qwen/Qwen3-235B-A22B", "MiniMaxAI/MiniMax-M2"}
    others = {
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen3-32B",
        "meta-llama/Meta-Llama-3.1-405B",
        "google/gemma-4-26B-A4B",
    }
    for names, expected in ((spread, True), (others, False)):
        for name in names:
            assert is_large_mixture(read_model(name, offline=True)) is expected, name


@table
def test_what_excludes_pools_leaves_them_out(tmp_path, change):
    path = path_of(tmp_path, CASES["two devices"])
    assert asked_of(path, change).scenario.fleet.pools is None


def test_the_keys_of_pools_still_need_the_key_that_asks_for_them(tmp_path, capplan):
    path = path_of(tmp_path, CASES["two devices"])
    assert "disaggregation: allowed" in capplan.refused(
        "fleet", path, "--set", "fleet.kv_link=pcie", "--offline"
    )


def first_screen(path, capsys, *words):
    assert main(["fleet", str(path), "--offline", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_first_screen_says_what_pools_save(tmp_path, capsys):
    path = path_of(tmp_path, CASES["pools cost a fraction"])
    answer = fleet_of(path)
    apart, together = answer.chosen, answer.alike[0]
    assert apart.has_pools
    said = f"disaggregated: {apart.gpus} instead of {together.gpus} GPUs"
    assert said in first_screen(path, capsys)


def test_the_first_screen_says_why_pools_do_not_pay(tmp_path, capsys):
    shown = first_screen(path_of(tmp_path, CASES["one replica is enough"]), capsys)
    assert "not disaggregated: prefill and decode by themselves take $" in shown
    slow = path_of(tmp_path, CASES["pools cost a fraction"])
    allowed = ("--set", "fleet.disaggregation=allowed", "--set", "fleet.kv_link=1 MB/s")
    assert "not disaggregated: " in (linked := first_screen(slow, capsys, *allowed))
    assert "busy" in linked


def test_nothing_is_said_of_pools_where_they_were_not_looked_at(tmp_path, capsys):
    path = path_of(tmp_path, ("Qwen/Qwen3-32B", 2, 1500, 3000, 50, 80, "[h100-sxm]"))
    assert "disaggregated" not in first_screen(path, capsys)


def test_experts_of_large_mixtures_are_tried_over_several_servers():
    def wide(model, **degrees):
        found = shardings(read_model(model, offline=True), Ranges(**degrees))
        return {(int(item.data), int(item.expert)) for item in found if item.devices > 16}

    assert wide(V3) == {(32, 32), (64, 64)}
    assert not wide("Qwen/Qwen3-30B-A3B")
    assert not wide("meta-llama/Llama-3.1-70B-Instruct")
    assert not wide(V3, tensor_parallel=(8,))
    assert not wide(V3, tensor_parallel=(1,), data_parallel=(8,))
    assert wide(V3, expert_parallel=(32,)) == {(32, 32)}


def candidates_of(path, *settings):
    return search(asked_of(path, *settings).question).candidates


def test_a_layout_that_does_not_fit_with_the_engines_step_is_tried_with_smaller_ones(tmp_path):
    """Attention groups of Kimi-K2 on 8 B200 do not fit with vLLM's steps of 16,384 tokens: all tokens of all groups pass every expert."""
    path = path_of(tmp_path, ("moonshotai/Kimi-K2-Instruct", 20, 1500, 3000, 50, 80, "[b200]"))
    wide = [item for item in candidates_of(path) if item.layout.sharding == Sharding(1.0, 1.0, 8.0, 8.0)]
    assert wide
    steps = [item.layout.max_num_batched_tokens for item in wide]
    assert all(step and 1024 <= step < 16384 for step in steps)
    assert len(set(steps)) == len(steps)
    assert wide[0].layout.in_words() == f"TP1 DP8 EP8, as published, {steps[0]:,} tokens a step"


def test_smaller_steps_leave_more_cache_and_are_tried_only_where_nobody_states_a_step(tmp_path):
    path = path_of(tmp_path, (V3, 20, 1500, 3000, 50, 80, "[h200-sxm]"))
    by_layout = {}
    for item in candidates_of(path):
        by_layout.setdefault(item.layout.sharding, {})[item.layout.max_num_batched_tokens] = (
            item.kv_cache_tokens
        )
    chosen = {sharding: steps for sharding, steps in by_layout.items() if len(steps) > 1}
    assert chosen
    for sharding, steps in chosen.items():
        smallest = min(step for step in steps if step)
        if sharding.devices <= 8:
            assert steps[smallest] == max(steps.values()) >= 1.25 * min(steps.values())
    over_servers = {tuple(steps) for sharding, steps in by_layout.items() if sharding.expert > 8}
    assert over_servers
    assert all(1024 in steps for steps in over_servers)
    stated = candidates_of(path, "max_num_batched_tokens=4096")
    assert all(item.layout.max_num_batched_tokens is None for item in stated)
    dense = path_of(tmp_path, ("Qwen/Qwen3-32B", 2, 1500, 3000, 50, 80, "[h100-sxm]"))
    assert all(item.layout.max_num_batched_tokens is None for item in candidates_of(dense))


def test_a_plan_and_its_launch_command_state_the_steps_that_the_search_chose(tmp_path, capsys):
    """Attention groups of Kimi-K2 on 8 B200 take smaller steps than the engine's, without which they do not fit."""
    path = path_of(tmp_path, ("moonshotai/Kimi-K2-Instruct", 20, 1500, 3000, 50, 80, "[b200]"))
    file = tmp_path / "plan.json"
    degrees = "fleet.tensor_parallel=1", "fleet.data_parallel=8", "fleet.pipeline_parallel=1"
    settings = [word for key in degrees for word in ("--set", key)]
    assert main(["fleet", str(path), *settings, "--offline", "-o", str(file)]) == 0
    plan = json.loads(file.read_text())["result"]["chosen"]
    tokens = plan["groups"][-1]["max_num_batched_tokens"]
    assert tokens
    capsys.readouterr()
    assert main(["export", "--plan", str(file), "--target", "vllm"]) == 0
    *_, last = capsys.readouterr().out.split("vllm serve")
    assert f"--max-num-batched-tokens {tokens} " in last
    read = chosen_in(read_plan_file(file), asked_of_plan(None, file, offline=True)[0])
    assert [group.layout.max_num_batched_tokens for group in read.groups] == [
        group["max_num_batched_tokens"] for group in plan["groups"]
    ]


def test_other_engines_are_named_with_the_command_that_searches_them(tmp_path, capsys):
    path = path_of(tmp_path, CASES["pools cost a fraction"])
    assert main(["fleet", str(path), "--offline"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"may cost over a tenth less; to find out: capplan levers {path} --lever engine" in printed
    capsys.readouterr()
    assert main(["fleet", str(path), "--set", "engine=vllm", "--offline"]) == 0
    assert "another engine" not in capsys.readouterr().out


def test_a_layout_by_itself_keeps_the_steps_that_were_chosen_for_it(tmp_path):
    """`explain`, growth and sensitivities price the layouts of a plan one by one."""
    asked = asked_of(path_of(tmp_path, (V3, 20, 1500, 3000, 50, 80, "[h200-sxm]")))
    chosen = [item for item in search(asked.question).candidates if item.layout.max_num_batched_tokens]
    assert chosen
    for item in chosen[:4]:
        trial = trial_of(asked.question, item.layout, terms_of(asked))
        assert trial.candidate.kv_cache_tokens == item.kv_cache_tokens
        assert trial.replica.spec == spec_of_layout(item.layout, asked.question)
