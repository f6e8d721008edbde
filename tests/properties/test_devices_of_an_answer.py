"""A device is the same alone and among others: its best plan is a row, or it has one true line with the number that decides."""

import re
from dataclasses import astuple, replace
from math import inf

import pytest
from hypothesis import assume, example, given

from capplan.fleet.answer import DEAR
from capplan.fleet.decision import fleet_decision
from capplan.questions.fleet import terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.report.answers.fleet_words import measuring_texts, tight_texts, uneconomical_text
from tests.asked import asked_in
from tests.files import written_to
from tests.properties.test_cheapest_fleet import LAW, PRICES, RUNS, asked, scenarios, some_devices, terms

pytestmark = pytest.mark.usefixtures("shared_runs")


CHAT = """name: chat-qwen235
model: Qwen/Qwen3-235B-A22B
weight_dtype: fp8
kv_dtype: fp8
traffic:
  - {name: chat, users: 500, think_time: 45 s, input_tokens: {p50: 900, p95: 6000}, output_tokens: {mean: 400, p95: 1000}}
slo: {ttft_p95: 1.5 s, tpot_p95: 50 ms}
fleet: {hardware: [h100-sxm, h200-sxm, mi300x, b200], tensor_parallel: [1, 4], pipeline_parallel: 1, headroom: 20 %, spare_replicas: 1}
"""
TEAM = """name: team-box
model: Qwen/Qwen3-30B-A3B
weight_dtype: fp8
traffic:
  - {name: team, users: 25, think_time: 40 s, input_tokens: {mean: 2500, p95: 9000}, output_tokens: {mean: 400, p95: 1200}}
slo: {ttft_p95: 2 s, tpot_p95: 40 ms}
fleet: {hardware: [rtx-4090, rtx-5090, l40s, rtx-pro-6000-server, gb10], tensor_parallel: [1, 2], pipeline_parallel: 1, headroom: 10 %}
prices: {per_gpu_hour: {gb10: 0.2 $/h, rtx-5090: 0.5 $/h}}
"""


def best_of(answer, name):
    """Return what identifies the best plan of a device: the first of its rows; None without one."""
    plan = next((plan for plan in answer.plans if plan.hardware == name), None)
    return plan and (
        plan.single.layout, plan.single.weight_dtype, plan.replicas, plan.gpus, plan.usd_per_hour, plan.slo_met_probability,
    )  # fmt: skip


def cost(plan):
    return inf if plan.usd_per_hour is None else plan.usd_per_hour


def check_that_a_device_is_the_same_alone(decide, names):
    """`decide` answers for some devices: all of them together against each alone."""
    together = decide(names)
    lines = {line.hardware: line for line in together.uneconomical}
    rows = {plan.hardware for plan in together.plans}
    assert len(lines) == len(together.uneconomical)
    assert rows.isdisjoint(lines)
    assert rows | set(lines) == set(names)
    for name in names:
        alone = decide([name])
        if name in rows:
            assert best_of(together, name) == best_of(alone, name)
        elif lines[name].gpus is None:
            assert not alone.plans
            assert alone.uneconomical == (lines[name],)
        else:
            assert lines[name].gpus == alone.plans[0].gpus
            assert cost(alone.plans[0]) > DEAR * cost(together.plans[0])
        if alone.plans:
            assert cost(together.plans[0]) <= cost(alone.plans[0])
    return together


def priced(**changes):
    """Return terms with prices that plans can be made of."""
    return terms(**changes)


TIES = """name: law
model: Qwen/Qwen3-30B-A3B
traffic:
  - {name: a, request_rate: 20 req/s, input_tokens: {mean: 1500, p95: 4000}, output_tokens: {mean: 300, p95: 900}}
slo: {ttft_p95: 500 ms, tpot_p95: 15 ms, confidence: 80 %}
fleet: {hardware: [l40s, a100-sxm-80gb, h100-sxm, b200], tensor_parallel: [1, 2], pipeline_parallel: [1]}
"""
"""Several layouts take 18 h100-sxm, 2.4 times the cost of 5 b200; 124 l40s cost 4.1 times as much."""


@pytest.mark.long
@LAW
@given(scenarios(), some_devices, some_devices)
@example(TIES, ["l40s", "h100-sxm"], ["b200"])
def test_a_device_has_the_same_best_plan_alone_and_among_others_or_one_reason(text, few, more):
    def decide(names):
        return fleet_decision(asked(text, names), priced(), cache=RUNS)

    check_that_a_device_is_the_same_alone(decide, list(dict.fromkeys([*few, *more])))


@pytest.mark.long
@pytest.mark.parametrize("text", [CHAT, TEAM], ids=["chat", "team"])
def test_no_device_of_a_long_list_loses_its_plan(text):
    """Both once lost one: 48 x h200 were said not to suit, and 3 x l40s were missing."""
    found = asked_in(text)
    question = replace(found.question, requests=3000)

    def decide(names):
        kept = [device for device in question.devices if device.name in names]
        return fleet_decision(replace(question, devices=kept), terms_of(found), cache=RUNS)

    together = check_that_a_device_is_the_same_alone(decide, [device.name for device in question.devices])
    assert {"h200-sxm", "l40s"} & {plan.hardware for plan in together.plans}


@pytest.mark.long
@LAW
@given(scenarios(), some_devices)
def test_the_next_steps_are_of_the_recommended_plan_and_each_is_surer(text, few):
    answer = fleet_decision(asked(text, few), priced(), cache=RUNS)
    assume(answer.next_steps is not None)
    plan, steps = answer.chosen, answer.next_steps
    known = [step for step in steps.surer if step.gpus is not None]
    assert all(step.confidence > plan.slo_met_probability for step in steps.surer)
    assert [step.gpus for step in known] == sorted(step.gpus for step in known)
    hourly = PRICES[plan.hardware]
    for step in known:
        assert step.gpus >= plan.gpus
        assert step.gpus % plan.single.layout.devices == 0
        assert step.usd_per_month == pytest.approx(step.gpus * hourly * 730)
        row = next(row for row in answer.certainty if row.confidence == step.confidence)
        assert (
            row.gpus * PRICES[row.hardware] <= step.gpus * hourly
        )  # the cheapest of all devices costs no more
    assert steps.as_predicted.gpus <= plan.gpus
    assert steps.as_predicted.usd_per_month == pytest.approx(steps.as_predicted.gpus * hourly * 730)
    assert all(device.usd_per_month < plan.usd_per_month for device in steps.unmeasured)


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
    asked = asked_in(text)
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
    return answered(PRICED, ("[l4, l40s, h100-sxm]", "[l40s]"), ("40 ms", "16.5 ms"))


def test_a_plan_that_uses_a_small_part_of_its_gpus_names_the_target_and_what_a_higher_limit_saves(tight):
    """Against the largest fleet that the same GPUs are without targets: 110 of them at a fourteenth of their rate."""
    plan, found = tight.chosen, tight.tight
    assert found.target == "tpot_p95"
    assert found.value_s < found.limit_s == 0.0165
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
def test_in_json_every_device_is_in_one_of_two_lists(tmp_path, capplan):
    path = written_to(tmp_path / "small.yaml", SMALL.replace("llama-3.1-8b", "Qwen/Qwen2.5-0.5B"))
    result = capplan.result("fleet", path)
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
