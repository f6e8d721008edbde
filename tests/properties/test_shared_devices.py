"""Models that share devices: time slices are the same search at a multiple of the load, MIG slices are devices, an idle model takes
memory alone."""

import json
from dataclasses import replace

import pytest

from capplan.fleet.search.layouts import search
from capplan.fleet.search.trial import Trial
from capplan.questions.fleet import asked_fleet
from capplan.questions.several_models import sliced_scenario
from capplan.scenario.scenario import read_scenario
from capplan.workload.request_class import Target
from tests.files import written_to
from tests.plan_files import choice
from tests.slower import made_slower

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
LINE = "{name: chat, request_rate: 20 req/s, input_tokens: {mean: 500, p95: 1200}, output_tokens: {mean: 60, p95: 150}%s}"
ONE = f"""name: one
model: qwen3-4b
weight_dtype: bf16
max_model_len: 4096
gpu_memory_utilization: 0.5
traffic: [{LINE % ""}]
slo: {{ttft_p95: 900 ms, tpot_p95: 60 ms}}
fleet: {{hardware: [h100-sxm, l40s]}}
prices: {{per_gpu_hour: {{h100-sxm: 4 $/h, l40s: 2 $/h}}}}
"""
SECOND = "  models: [{name: other, model: qwen3-0.6b, gpu_memory_utilization: 0.3, changes: {%s}}]\n"
IDLE = ONE + "sharing:\n  by: device\n" + SECOND % "weight_dtype: bf16"
BUSY = ONE + "sharing:\n  by: device\n" + SECOND % f"traffic: [{LINE % ''}], slo: {{ttft_p95: 500 ms}}"
CUT = (
    BUSY.replace("gpu_memory_utilization: 0.5\n", "")
    .replace(", gpu_memory_utilization: 0.3", "")
    .replace("by: device", "by: mig")
    .replace("hardware: [h100-sxm, l40s]", "hardware: [h100-sxm]")
)


@pytest.fixture
def result(capplan, tmp_path):
    path = tmp_path / "one.yaml"

    def of(text, *keys, command="fleet", code=0):
        path.write_text(text)
        ran = capplan(
            command, path, *(word for key in keys for word in ("--set", key)), "--offline", "--format", "json"
        )
        assert ran.code == code, ran.err
        return json.loads(ran.out)["result"] if not code else ran.err

    def asked(*words):
        return capplan.result(*words, "--offline", code=(0, 3))

    of.asked = asked
    return of


def test_beside_an_idle_model_it_is_the_fleet_of_the_model_with_its_part_of_the_memory(result):
    found = result(IDLE)
    alone = result(ONE, "fleet.max_gpus_per_replica=1")["plans"]
    pool = found["sharing"]
    assert pool["gpus"] == next(plan["replicas"] for plan in alone if plan["hardware"] == pool["hardware"])
    own, other = found["models"]
    best = next(plan for plan in alone if plan["hardware"] == pool["hardware"])
    assert own["ttft_p95_s"] == best["ttft_s"]["p95"]
    assert own["slo_met_probability"] == best["slo_met_probability"]
    assert other["alone"] is None
    assert (
        pool["apart_usd_per_month"] == result(ONE, "gpu_memory_utilization=null")["chosen"]["usd_per_month"]
    )


@pytest.mark.long
def test_each_of_two_busy_models_is_searched_at_twice_the_load_within_half_of_the_latency(result):
    found = result(BUSY)
    pool = found["sharing"]
    halves = {
        "own": ("traffic[0].request_rate=40", "slo={ttft_p95: 450 ms, tpot_p95: 30 ms}"),
        "other": (
            "traffic[0].request_rate=40",
            "slo={ttft_p95: 250 ms, tpot_p95: 30 ms}",
            "model=qwen3-0.6b",
            "gpu_memory_utilization=0.3",
        ),
    }
    replicas = []
    for row in found["models"]:
        plans = result(ONE, "fleet.max_gpus_per_replica=1", *halves[row["model"]])["plans"]
        plan = next(plan for plan in plans if plan["hardware"] == pool["hardware"])
        assert row["replicas"] == plan["replicas"] - 1
        assert row["ttft_p95_s"] == pytest.approx(2 * plan["ttft_s"]["p95"])
        assert row["tpot_p95_s"] == pytest.approx(2 * plan["tpot_s"]["p95"])
        replicas.append(row["replicas"])
    assert pool["gpus"] == max(replicas) + 1
    usd = {"h100-sxm": 4, "l40s": 2}[pool["hardware"]]
    assert pool["usd_per_month"] == pytest.approx(pool["gpus"] * usd * 730)
    assert pool["apart_usd_per_month"] == pytest.approx(
        sum(row["alone"]["usd_per_month"] for row in found["models"])
    )


@pytest.mark.parametrize("slices", [2, 3])
def test_a_slice_is_a_replica_whose_steps_take_so_many_times_as_long(slices, tmp_path):
    """Steps that are made longer, against k times the traffic in times of a k-th: two simulations of the same requests."""
    path = written_to(tmp_path / "one.yaml", ONE)
    scenario = read_scenario(path)

    def trial(of):
        question = replace(asked_fleet(of, offline=True).question, requests=6000)
        layouts = {
            item.layout.device.name: item for item in search(question).candidates if item.layout.devices == 1
        }
        return Trial(layouts["h100-sxm"], question, {})

    sliced, made = trial(sliced_scenario(scenario, slices, 0.5)), made_slower(trial(scenario), float(slices))
    rate = 0.6 * made.limit(2, 1.0, made.limits)
    for metric in ("ttft", "tpot", "e2e"):
        target = Target(metric, "p95", 1.0)
        assert slices * sliced.at(slices * rate, 2).value(target) == pytest.approx(
            made.at(rate, 2).value(target), rel=0.01
        )


def test_a_part_is_an_ordinary_scenario_with_all_of_its_devices(result):
    found = result(BUSY)
    for row in found["models"]:
        assert result(BUSY, f"sharing.part={row['model']}")["chosen"] == row["alone"]
    assert result(BUSY, "sharing.part=own")["chosen"] == result(ONE, "gpu_memory_utilization=null")["chosen"]
    assert "sharing: has several fleets, which capplan fleet plans together" in result(
        BUSY, command="bill", code=2
    )


def test_models_whose_memory_exceeds_the_device_are_refused(result):
    keys = ("model=llama-3.1-8b", "fleet.hardware=l40s", "slo={}")
    assert result(BUSY, *keys)["sharing"]["hardware"] == "l40s"
    said = result(BUSY, *keys, "gpu_memory_utilization=0.3", code=4)
    assert "sharing: no device in fleet.hardware serves all models within their targets" in said
    assert "l40s: own has no plan: " in said
    assert "memory" in said


@pytest.mark.parametrize("drafts", [(), ("speculation={method: ngram, acceptance: 0.5, draft_tokens: 2}",)])
def test_on_mig_slices_each_model_has_the_fleet_of_its_slice_and_the_pool_pays_for_whole_gpus(result, drafts):
    found = result(CUT, *drafts)
    pool = found["sharing"]
    held = [name for gpu in pool["cut"] for name in gpu]
    keys = {"own": (), "other": ("model=qwen3-0.6b", "slo={ttft_p95: 500 ms, tpot_p95: 60 ms}")}
    for row in found["models"]:
        hardware = f"h100-sxm:{row['slice']}"
        alone = result(
            ONE, "gpu_memory_utilization=null", f"fleet.hardware=[{hardware}]", *keys[row["model"]], *drafts
        )["plans"][0]
        assert alone["hardware"] == hardware
        assert row["replicas"] == alone["replicas"] - 1
        assert row["ttft_p95_s"] == alone["ttft_s"]["p95"]
        assert row["slo_met_probability"] == alone["slo_met_probability"]
        assert held.count(row["slice"]) >= row["replicas"]
    assert len(held) == sum(row["replicas"] for row in found["models"])
    assert pool["gpus"] == len(pool["cut"]) + pool["spare_gpus"] == len(pool["cut"]) + 1
    assert pool["usd_per_month"] == pytest.approx(pool["gpus"] * 4 * 730)


@pytest.mark.long
def test_fewer_allowed_slices_never_take_fewer_gpus(result):
    every = result(CUT)["sharing"]["gpus"]
    for allowed in ("[h100-sxm:3g.40gb]", "[h100-sxm:1g.10gb, h100-sxm:7g.80gb]"):
        assert result(CUT, f"fleet.hardware={allowed}")["sharing"]["gpus"] >= every


def test_a_smaller_slice_is_never_faster_nor_holds_more(result):
    names = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "7g.80gb"]
    path = ("estimate", "qwen3-0.6b", "--input-tokens", "800", "--output-tokens", "40", "--concurrency", "6")
    found = [result.asked(*path, "--hardware", f"h100:{name}") for name in names]
    for field in ("ttft_s", "tpot_s"):
        times = [item[field]["mean"] for item in found]
        assert times == sorted(times, reverse=True)
    whole = result.asked(*path, "--hardware", "h100")
    assert found[-1]["ttft_s"]["mean"] == pytest.approx(whole["ttft_s"]["mean"], rel=1e-9)
    assert found[-1]["tpot_s"]["mean"] == pytest.approx(whole["tpot_s"]["mean"], rel=1e-9)
    for field in ("ttft_s", "tpot_s", "e2e_s"):
        assert found[-1][field]["low"] < whole[field]["low"] < whole[field]["high"] < found[-1][field]["high"]
    held = [
        result.asked("fit", "qwen3-0.6b", "--hardware", f"h100:{name}")["kv_cache_tokens"] for name in names
    ]
    assert held == sorted(held)


def test_slices_that_fill_a_gpu_cost_what_the_gpu_costs(result):
    keys = ("gpu_memory_utilization=null", "fleet.headroom=0")
    for name, per_gpu in {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2}.items():
        plan = result(ONE, *keys, "model=qwen3-0.6b", f"fleet.hardware=[h100-sxm:{name}]")["chosen"]
        assert plan["usd_per_hour"] == pytest.approx(plan["gpus"] * 4 / per_gpu)
    own = result(
        ONE, *keys, "fleet.hardware=[h100-sxm:3g.40gb]", "prices.per_gpu_hour={'h100-sxm:3g.40gb': 3 $/h}"
    )
    assert own["chosen"]["usd_per_hour"] == pytest.approx(3 * own["chosen"]["gpus"])


def test_a_fleet_of_slices_says_what_whole_gpus_cost_and_is_exported_as_slices(capplan, tmp_path):
    path, plan = tmp_path / "one.yaml", tmp_path / "plan.json"
    path.write_text(ONE)
    keys = ("gpu_memory_utilization=null", "fleet.hardware=[h100-sxm:3g.40gb]", "fleet.spare_replicas=0")
    asked = ("fleet", path, *(word for key in keys for word in ("--set", key)), "--offline")
    chosen = capplan.result(*asked)["chosen"]
    whole = -(-chosen["gpus"] // 2)
    assert f"are cut from {whole} whole GPUs, ${whole * 4 * 730:,} per month" in capplan(*asked, "--full").out
    assert capplan(*asked, "-o", plan).code == 0
    manifest = capplan("export", "--plan", plan, "--target", "k8s").out
    assert "nvidia.com/mig-3g.40gb: '1'" in manifest
    assert "nvidia.com/gpu" not in manifest
    assert "mig.strategy=mixed" in manifest
    assert "CUDA_VISIBLE_DEVICES=MIG-" in capplan("export", "--plan", plan, "--target", "vllm").out
    assert "the plan has MIG slices" in capplan.refused("export", "--plan", plan, "--target", "compose")


def test_the_fewest_gpus_count_slices_as_their_part_of_one(result):
    keys = ("gpu_memory_utilization=null", "fleet.spare_replicas=0", "traffic[0].request_rate=90")
    found = result(ONE, *keys, "fleet.hardware=[h100-sxm:1g.20gb, h100-sxm:3g.40gb, h100-sxm]")
    each = {"h100-sxm:1g.20gb": 4, "h100-sxm:3g.40gb": 2, "h100-sxm": 1}
    whole = {plan["hardware"]: plan["gpus"] / each[plan["hardware"]] for plan in reversed(found["plans"])}
    fewest = choice(found, "fewest")
    assert fewest["gpus"] / each[fewest["hardware"]] == min(whole.values())
    assert fewest["gpus"] > min(plan["gpus"] for plan in found["plans"])


BIG = (
    "name: big\nmodel: llama-3.1-8b\nweight_dtype: fp8\nmax_model_len: 8192\n"
    "traffic: [{name: chat, request_rate: 30 req/s, input_tokens: {mean: 900, p95: 2500}, output_tokens: {mean: 150, p95: 400}}]\n"
    "slo: {ttft_p95: 1 s, tpot_p95: 40 ms}\nfleet: {hardware: [%s], spare_replicas: %d}\n"
    "prices: {per_gpu_hour: {h100-sxm: 20 $/h, l40s: 0.5 $/h, h200-sxm: 24 $/h}}\n"
)
BIG_SHARED = BIG + (
    "gpu_memory_utilization: 0.3\nsharing:\n  by: device\n  models: [{name: reports, model: Qwen/Qwen3-32B, gpu_memory_utilization: 0.6, changes: {traffic: [{name: r, request_rate: 2 req/s, "
    "input_tokens: 1500, output_tokens: 200}], slo: {ttft_p95: 9 s, tpot_p95: 80 ms}}}]\n"
)
"""The small model is some 40 times cheaper on L40S; the large one has no room there."""


@pytest.mark.long
def test_a_pool_is_on_a_device_that_is_dear_for_one_of_its_models(result):
    """More hardware is never dearer: what one model does better elsewhere takes no device from the pool."""
    alone = result(BIG_SHARED % ("h100-sxm", 1))["sharing"]
    among = result(BIG_SHARED % ("l40s, h100-sxm, h200-sxm", 1))["sharing"]
    assert among["usd_per_month"] <= alone["usd_per_month"] * (1 + 1e-9)


def test_the_reason_without_a_pool_is_what_decided(result):
    """The TTFT that users see in one of two time slices is twice as long, and the sentence has the numbers that were compared."""
    tight = BUSY.replace("slo: {ttft_p95: 500 ms}", "slo: {ttft_p95: 45 ms}").replace(
        "[h100-sxm, l40s]", "[l40s]"
    )
    said = result(tight, code=4)
    assert "l40s: other has no plan: ttft_p95 of an idle replica in one of 2 time slices" in said
    assert "the limit is 45 ms" in said
    assert "one replica" not in said.replace("idle replica", "")
