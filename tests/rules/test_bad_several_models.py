"""What is not modelled of several models, or makes no sense, is refused in one line that names the place and the way out."""

import pytest

pytestmark = pytest.mark.usefixtures("shared_runs")
CASCADE = "cascade={model: qwen3-4b, escalated: 30 %}"
JOB = "traffic=[{requests: 900, within: 1 h, input_tokens: 400, output_tokens: 40}]"
USERS = "{users: 9, think_time: 5 s, input_tokens: 400, output_tokens: 40}"
HALF = "gpu_memory_utilization=0.5"
GUARD = "{name: guard, model: qwen3-4b, gpu_memory_utilization: 0.4%s}"
SHARING = "sharing={by: device, models: [" + GUARD % "" + "]}"
CUT = "sharing={by: mig, models: [{name: guard, model: qwen3-4b%s}]}"
SLICE = "fleet.hardware=[h100-sxm:3g.40gb]"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["cascade={model: qwen3-4b}"], "cascade.escalated: is missing"),
        (["cascade={escalated: 20 %}"], "cascade.model: is missing"),
        ([CASCADE, "cascade.escalated=30"], "cascade.escalated: '30' is over 1"),
        ([CASCADE, "cascade.escalated=-5 %"], "cascade.escalated: '-5 %' is below 0"),
        ([CASCADE, "cascade.after=anser"], "cascade.after: unknown after 'anser': did you mean 'answer'?"),
        ([CASCADE, "cascade.part=thrid"], "cascade.part: unknown part 'thrid'"),
        ([CASCADE, "cascade.verdict_time=60"], "cascade.verdict_time: '60' is not in s (the unit is missing)"),
        ([CASCADE, "cascade.shares=2"], "cascade.shares: unknown key 'shares'"),
        ([CASCADE, "cascade.model=qwen3-4bb"], "unknown model 'qwen3-4bb'"),
        ([CASCADE, "cascade.changes={wieght_dtype: fp8}"], "unknown key 'wieght_dtype': did you mean 'weight_dtype'"),
        ([CASCADE, "cascade.changes={fleet: {hardware: h110}}"], "fleet.hardware[0]: unknown hardware 'h110'"),
        ([CASCADE, "cascade.changes={model: qwen3-8b}"], "cascade.changes.model: is the same for both models; give cascade.model"),
        ([CASCADE, "cascade.changes={traffic: []}"], "cascade.changes.traffic: is the same for both models"),
        ([CASCADE, "traffic[0].turns=4", "traffic[0].think_time=5 s", "traffic[0].added_tokens=90"], "cascade: traffic[0] has users or sessions"),
        ([CASCADE, "traffic[0].samples=4"], "cascade: traffic[0] has several sequences a request"),
        ([CASCADE, "traffic=[{trace: ../data/traces/AzureLLMInferenceTrace_code.csv}]"], "cascade: traffic[0] is a trace"),
        ([CASCADE, "runner=pooling", "traffic[0].output_tokens=null", "slo={ttft_p95: 1 s}"], "cascade: is about answers, and runner: pooling gives none"),
        ([CASCADE, "traffic[0].outside={time: 90 ms}"], "cascade: traffic[0] takes time or money outside the GPUs"),
        ([HALF, SHARING, "traffic[0].outside={time: 90 ms}"], "traffic[0]: has users, sessions, a trace, a job or something outside"),
        ([CASCADE, "budget.usd_per_month=900"], "cascade: has several fleets, and budget is of one"),
        ([CASCADE, "energy={}"], "cascade: has several fleets, and energy is of one"),
        ([CASCADE, "energy={grid: 400 g/kWh}"], "cascade: has several fleets, and energy is of one"),
        ([CASCADE, "fleet.max_gpus=9"], "cascade: has several fleets, and fleet.max_gpus is of one"),
        ([CASCADE, "cascade.escalated=0", "cascade.part=second"], "cascade.part: no request reaches the second fleet at an escalated share of 0"),
        ([CASCADE, "cascade.escalated=1", "cascade.after=router", "cascade.part=first"], "cascade.part: no request reaches the first fleet"),
        ([SHARING], "gpu_memory_utilization: is missing: each model on a device has its own part of the memory"),
        ([HALF, "sharing={by: device, models: [{name: guard, model: qwen3-4b}]}"], "sharing.models[0].gpu_memory_utilization: is missing"),
        (["gpu_memory_utilization=0.7", SHARING], "sharing: the models have 0.7 + 0.4 of the memory of a device, more than all of it"),
        ([HALF, SHARING, "sharing.by=mps"], "sharing.by: unknown by 'mps'"),
        ([HALF, SHARING, "sharing.models=[]"], "sharing.models: is empty"),
        ([HALF, "sharing={by: device, models: [" + GUARD % "" + ", " + GUARD % "" + "]}"], "sharing.models[1].name: 'guard' names two models"),
        ([HALF, SHARING, "sharing.models[0].name=own"], "sharing.models[0].name: 'own' names two models"),
        ([HALF, SHARING, "sharing.models[0].modle=x"], "unknown key 'modle': did you mean 'model'?"),
        ([HALF, SHARING, "sharing.models[0].changes={model: x}"], "sharing.models[0].changes.model: is not for one of the models only"),
        ([HALF, SHARING, "sharing.part=gard"], "sharing.part: unknown model 'gard': did you mean 'guard'?"),
        ([HALF, SHARING, "sharing.part=guard"], "sharing.part: guard has no traffic, so it needs no fleet of its own"),
        ([HALF, SHARING, "traffic=[" + USERS + "]"], "traffic[0]: has users, sessions, a trace, a job or something outside, which are not modelled on shared devices"),
        ([HALF, SHARING, JOB, "slo={}"], "traffic[0]: has users, sessions, a trace, a job or something outside"),
        ([HALF, "sharing={by: device, models: [" + GUARD % (", changes: {traffic: [" + USERS + "]}") + "]}"], "guard: traffic has users, sessions, a trace, a job or something outside"),
        ([HALF, SHARING, "sharing.by=hour"], "sharing.by: hour was removed: write device or mig"),
        ([HALF, SHARING, "speculation={method: ngram, acceptance: 0.4}"], "sharing: is not modelled with speculation"),
        ([HALF, SHARING, "commitments={spot: {}}"], "sharing: is not modelled with commitments"),
        ([HALF, SHARING, "fleet.disaggregation=allowed"], "sharing: is not modelled with fleet.disaggregation"),
        ([HALF, SHARING, "growth.per_month=5 %"], "sharing: has several fleets, and growth is of one"),
        ([CUT % ", gpu_memory_utilization: 0.4"], "sharing.models[0].gpu_memory_utilization: is for by: device; each model has slices of its own"),
        ([CUT % "", "fleet.hardware=[l40s]"], "fleet.hardware: no MIG slices of l40s are known"),
        ([CUT % "", "fleet.hardware=[h100-sxm:3g.41gb]"], "unknown slice of h100-sxm '3g.41gb': did you mean '3g.40gb'"),
        (["fleet.hardware=[mi300x:3g.40gb]"], "mi300x:3g.40gb: no MIG slices of mi300x are known"),
        (["fleet.hardware=[h110:3g.40gb]"], "unknown hardware 'h110': did you mean"),
        ([SLICE, "energy={grid: 400 g/kWh}"], "energy: is counted in whole GPUs, and h100-sxm:3g.40gb is a slice of one"),
        ([SLICE, "commitments={owned: {capex: 9000 $, electricity: 0.1 $/kWh}}"], "commitments.owned: is counted in whole GPUs"),
        ([SLICE, "fleet.disaggregation=allowed"], "fleet.disaggregation: is counted in whole GPUs"),
        ([HALF, SHARING, CASCADE], "sharing: is not modelled with a cascade; leave one of them out"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(capplan, settings, said):
    words = [word for text in settings for word in ("--set", text)]
    ran = capplan("fleet", "tests/golden/small.yaml", "--offline", *words)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_mistake_of_the_second_model_is_said_before_the_fleet_of_the_first_is_searched(
    capplan, monkeypatch
):
    searched = []
    monkeypatch.setattr("capplan.questions.several_models.fleet_for", lambda *asked: searched.append(asked))
    ran = capplan(
        "fleet", "tests/golden/small.yaml", "--offline", "--set", CASCADE, "--set", "cascade.model=qwen3-4bb"
    )
    assert (ran.code, searched) == (2, [])
    assert "unknown model 'qwen3-4bb'" in ran.err


def test_a_model_that_meets_no_target_is_named_by_its_fleet(capplan):
    ran = capplan(
        "fleet",
        "tests/golden/small.yaml",
        "--offline",
        "--set",
        CASCADE,
        "--set",
        "cascade.changes={slo: {ttft_p95: 1 us}}",
    )
    assert ran.code == 4
    assert "no plan meets the targets, so the cascade has no second fleet" in ran.err
    assert "--set cascade.part=second" in ran.err


def test_a_picture_is_of_one_fleet(capplan, tmp_path):
    ran = capplan(
        "fleet", "tests/golden/small.yaml", "--offline", "--set", CASCADE, "--plot", tmp_path / "x.svg"
    )
    assert (ran.code, ran.err[:27]) == (2, "--plot: draws one fleet, an")
    assert list(tmp_path.iterdir()) == []


def test_a_replica_on_slices_has_one_of_them(capplan):
    ran = capplan(
        "fleet", "tests/golden/small.yaml", "--offline", "--set", SLICE, "--set", "fleet.tensor_parallel=[2]"
    )
    assert ran.code == 4
    assert "slices of a GPU have no links to each other, so a replica has one" in ran.out
    asked = capplan("fit", "qwen3-4b", "--hardware", "h100:3g.40gb", "-tp", "2", "--offline")
    assert asked.code == 2
    assert "slices of a GPU have no links to each other" in asked.err
