"""Why a device that was asked for has no plan in the table: one true sentence, with the number that decides."""

import json
import re
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from capplan.cli.main import main
from capplan.fleet.answer import DEAR
from capplan.questions.fleet import asked_fleet
from capplan.questions.fleet_answer import fleet_for
from capplan.readers.yaml_file import parse_yaml
from capplan.report.answers.fleet_words import measuring_texts, tight_texts, uneconomical_text
from capplan.scenario.scenario import scenario_from
from tests.files import written_to

pytestmark = pytest.mark.usefixtures("shared_runs")

LARGE = """name: large
model: meta-llama/Llama-3.1-70B-Instruct
weight_dtype: fp8
gpu_memory_utilization: 0.88
traffic: [{name: chat, request_rate: 10 req/s, input_tokens: {mean: 1800, p95: 6000}, output_tokens: {mean: 350, p95: 900}}]
slo: {ttft_p95: 900 ms, tpot_p95: 40 ms}
fleet: {hardware: [t4, l4, a100-sxm-80gb, l40s, b200], tensor_parallel: [1, 2], pipeline_parallel: 1}
"""
SMALL = """name: small
model: llama-3.1-8b
traffic: [{name: chat, request_rate: 20 req/s, input_tokens: {mean: 1800, p95: 6000}, output_tokens: {mean: 350, p95: 900}}]
slo: {ttft_p95: 900 ms, tpot_p95: 40 ms}
fleet: {hardware: [l4, l40s, h100-sxm], tensor_parallel: [1, 2], pipeline_parallel: 1}
"""
PRICED = SMALL + "prices: {per_gpu_hour: {l40s: 1 $/h}}\n"


def answered(text, *changes):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    asked = asked_fleet(scenario_from(parse_yaml(text, "lines.yaml"), Path()), offline=True)
    return fleet_for(replace(asked, question=replace(asked.question, requests=2500)))


def sentences(answer):
    return {row.hardware: uneconomical_text(row, answer) for row in answer.uneconomical}


def test_a_device_without_a_plan_says_what_decides():
    said = sentences(answered(LARGE))
    assert said["t4"] == "t4 has no plan: vllm does not run fp8 weights on turing"
    weights, usable = map(
        float, re.search(r"weights take ([\d.]+) GB on each of 2 GPUs, .* ([\d.]+) GB", said["l4"]).groups()
    )
    assert (
        70.55 / 2 < weights < 1.06 * 70.55 / 2
    )  # 70.55 billion parameters in fp8, embedding and LM head in 16 bits
    assert 0.85 * 24 < usable < 24
    held, longest = re.search(
        r"holds ([\d,]+) tokens, and a request may have ([\d,]+)", said["l40s"]
    ).groups()
    assert int(held.replace(",", "")) < int(longest.replace(",", ""))
    assert re.search(r"ttft_p95 is at least [\d.]+ s .* and the limit is 900 ms", said["a100-sxm-80gb"])
    assert set(said) == {"t4", "l4", "l40s", "a100-sxm-80gb"}


def test_a_device_that_exceeds_a_limit_of_the_scenario_says_by_how_much():
    free = {plan.hardware: plan.gpus for plan in reversed(answered(SMALL).plans)}
    few = sentences(
        answered(SMALL, ("pipeline_parallel: 1}", f"pipeline_parallel: 1, max_gpus: {free['h100-sxm']}}}"))
    )
    needed, allowed = map(
        int,
        re.search(
            r"l40s has no plan: it takes (\d+) GPUs, and fleet.max_gpus allows (\d+)$", few["l40s"]
        ).groups(),
    )
    assert allowed == free["h100-sxm"] < needed <= free["l40s"]
    for most, names in ((needed, {"l40s"}), (needed - 1, set())):
        limit = ("pipeline_parallel: 1}", f"pipeline_parallel: 1, max_gpus: {most}}}")
        plans = answered(SMALL, ("[l4, l40s, h100-sxm]", "[l40s]"), limit).plans
        assert {plan.hardware for plan in plans} == names, (
            "what is said to be enough is, and one GPU fewer is not"
        )


def test_a_target_out_of_reach_is_named_with_what_a_replica_may_take():
    line = answered(SMALL, ("[l4, l40s, h100-sxm]", "[l4, h100-sxm]")).uneconomical[0]
    assert (line.hardware, line.target, line.gpus, line.limit_s) == ("l4", "ttft_p95", None, 0.9)
    assert line.sure_value_s > line.limit_s
    assert line.sure_value_s > line.value_s
    assert all(each.limit_s > line.limit_s for each in line.gpus_at)


@pytest.fixture(scope="module")
def tight():
    return answered(PRICED, ("[l4, l40s, h100-sxm]", "[l40s]"), ("40 ms", "18.5 ms"))


def test_a_plan_that_uses_a_small_part_of_its_gpus_names_the_target_and_what_a_higher_limit_saves(tight):
    """Against the largest fleet that the same GPUs are without targets: 110 of them at a fourteenth of their rate."""
    plan, found = tight.chosen, tight.tight
    assert found.target == "tpot_p95"
    assert found.value_s < found.limit_s == 0.0185
    free = answered(
        PRICED, ("[l4, l40s, h100-sxm]", "[l40s]"), ("slo: {ttft_p95: 900 ms, tpot_p95: 40 ms}\n", "")
    )
    least = min(row.gpus for row in free.plans) - 2  # without its spare, with headroom on top
    assert found.used_fraction == pytest.approx(least / (plan.gpus - plan.single.layout.devices), rel=0.35)
    limits, gpus = zip(*map(astuple, found.gpus_at), strict=True)
    assert found.limit_s < limits[0] <= limits[-1]
    assert plan.gpus > gpus[0] >= gpus[-1]
    relaxed = answered(PRICED, ("[l4, l40s, h100-sxm]", "[l40s]"), ("40 ms", f"{limits[-1] * 1e3:g} ms"))
    assert relaxed.chosen.gpus <= gpus[-1]  # another layout may need fewer still
    (text,) = tight_texts(tight)
    saved = round(plan.usd_per_month * (1 - gpus[-1] / plan.gpus))
    assert (
        f"{gpus[-1]} GPUs are enough with a limit of {1e3 * limits[-1]:.3g} ms, which saves ${saved:,} per month"
        in text
    )


def test_what_certainty_takes_is_what_a_measurement_may_save(tight):
    plan, steps = tight.chosen, tight.next_steps
    half = answered(PRICED, ("[l4, l40s, h100-sxm]", "[l40s]"), ("40 ms", "21.5 ms, confidence: 30 %"))
    assert half.chosen.gpus <= steps.as_predicted.gpus < plan.gpus
    (text,) = measuring_texts(tight)
    assert text.startswith(
        f"the required confidence takes {plan.gpus - steps.as_predicted.gpus} of the {plan.gpus} GPUs, $"
    )


@pytest.mark.long
def test_in_json_every_device_is_in_one_of_two_lists(tmp_path, capsys):
    path = written_to(tmp_path / "small.yaml", SMALL.replace("llama-3.1-8b", "Qwen/Qwen2.5-0.5B"))
    assert main(["fleet", str(path), "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    lines = {row["hardware"]: row for row in result["uneconomical"]}
    rows = {row["hardware"]: row for row in reversed(result["plans"])}
    assert set(lines).isdisjoint(rows)
    assert {*lines, *rows} == {"l4", "l40s", "h100-sxm"}
    least = result["plans"][0]["usd_per_month"]
    assert all(row["usd_per_month"] <= DEAR * least for row in rows.values())
    for name, line in lines.items():
        assert line["sentence"].startswith(name)
        assert (
            line["gpus"] is None or line["cost_ratio"] == pytest.approx(line["usd_per_month"] / least) > DEAR
        )
    chosen, steps = result["chosen"], result["next_steps"]
    for step in steps["surer"]:
        assert step["gpus"] - step["more_gpus"] == chosen["gpus"]
        assert step["usd_per_month"] - step["more_usd_per_month"] == pytest.approx(chosen["usd_per_month"])
    known = steps["as_predicted"]
    assert known["gpus"] + known["fewer_gpus"] == chosen["gpus"]


def test_a_device_that_costs_far_more_says_why():
    """One replica of a small model: two L4 by the piece against two machines of eight A100, of which one may fail."""
    text = SMALL.replace("llama-3.1-8b", "Qwen/Qwen3-0.6B").replace("20 req/s", "1 req/s")
    text = text.replace("[l4, l40s, h100-sxm]", "[l4, a100-sxm-80gb]").replace(
        "tensor_parallel: [1, 2]", "tensor_parallel: 1, machines: [p4de.24xlarge]"
    )
    answer = answered(f"{text}prices: {{per_gpu_hour: {{l4: 0.7 $/h}}}}\n")
    assert answer.chosen.hardware == "l4"
    (row,) = answer.uneconomical
    said = uneconomical_text(row, answer)
    bought, usd, best, least, carrying, size = re.search(
        r"cheapest plan: ([\d,]+) GPUs at \$([\d.]+) an hour are bought instead of (\d+) at \$([\d.]+); (\d+) carry the peak, "
        r"its machines have (\d+) GPUs, and 1 machine may fail; fleet.survive, fleet.providers$",
        said,
    ).groups()
    assert (int(best), int(carrying), int(size)) == (answer.chosen.gpus, 1, 8)
    assert int(bought) == 2 * int(size)
    assert float(bought) * float(usd) / (float(best) * float(least)) == pytest.approx(
        row.cost_ratio, rel=0.02
    )
