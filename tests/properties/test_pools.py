"""Prefill and decode in separate pools: the link, the ratio, the search, and one answer with `simulate`."""

import json
import math
import re
from collections import Counter
from dataclasses import replace
from itertools import product
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.cli.main import main
from capplan.errors import InputError, Refusal
from capplan.explain.plans import subject_of
from capplan.fleet.load.demand import demand_of_classes, planned_demand, without_users
from capplan.fleet.load.routed import run_fleet
from capplan.fleet.pools import search as pools_search
from capplan.fleet.pools.joint import AS_PREDICTED, Joint, Paces, cheapest_pair, demanded_of
from capplan.fleet.pools.link import (
    LinkTerms,
    check_known,
    kv_bytes_per_prompt_token,
    link_between,
    link_use,
    unlinked_reason,
)
from capplan.fleet.pools.search import pools_decision
from capplan.fleet.pools.sizing import Contender, decode_question, pools_sizing, prefill_question, rank_of
from capplan.fleet.review import spec_of_layout
from capplan.fleet.search.candidates import Layout
from capplan.fleet.search.cheapest import Sized
from capplan.fleet.search.layouts import RATE_SLACK, search
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.search_cache import SearchCache
from capplan.fleet.search.trial import Trial
from capplan.fleet.simulation import capacity_per_s
from capplan.hardware.device import NETWORKS
from capplan.model.sharding import Sharding
from capplan.questions.fleet import terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.simulation import asked_stream, chosen_of, operation_of_plan
from capplan.readers.catalogue.hardware import device
from capplan.replica.replica import replica_of
from capplan.scenario.command_flags import OperationFlags, RequestFlags
from capplan.serving.steady_state import replicas_over_time
from capplan.serving.terms import link_load_fraction, transfer_s
from capplan.workload.length import fixed
from capplan.workload.request_class import RequestClass
from tests.asked import asked_of, fleet_of
from tests.files import file_with, written_to
from tests.plan_files import choice
from tests.sweeps import long_but

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
SUPPORT = Path(__file__).resolve().parents[2] / "scenarios" / "support-chat.yaml"
SMALL = """name: small
model: llama-3.1-8b
max_num_seqs: 128
traffic:
  - {name: chat, request_rate: 12 req/s, input_tokens: {mean: 3000, p95: 6000}, output_tokens: {mean: 120, p95: 300}}
slo: {ttft_p95: 900 ms, tpot_p95: 15 ms}
fleet:
  {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 0, disaggregation: allowed,
   kv_link: ethernet-100g}
"""


path = file_with(SMALL, "small.yaml")


@pytest.fixture(scope="module")
def allowed(path, few_requests):
    asked = asked_of(path)
    return asked, fleet_for(asked)


@pytest.fixture(scope="module")
def joint(allowed):
    asked, answer = allowed
    replicas = [
        replica_of(spec_of_layout(pool.layout, asked.question)) for pool in answer.with_pools[0].groups
    ]
    return Joint(asked.question, *replicas, LinkTerms())


def layouts_of(question):
    """The layouts of either phase."""
    phases = prefill_question(question, question.devices), decode_question(question, question.devices)
    return [search(phase).candidates for phase in phases]


def slower_of(question, *sides):
    """How slow the replicas of either pool may be: by the step times of its own layout, as both latencies are equally likely to show it."""
    pools = [
        question.joint_slowness(
            question.networks[side.layout.weight_format], side.usual_step_s, side.layout.device
        ).equally(0.8)
        for side in sides
    ]
    return {name: Paces(*(pool[name] for pool in pools)) for name in pools[0]}


def spec_70b(kv="bf16", name="h100-sxm", tensor=4.0):
    asked = asked_of(SUPPORT, f"fleet.hardware=[{name}]")
    return spec_of_layout(Layout(device(name), Sharding(tensor, 1.0, 1.0, 1.0), "fp8", kv), asked.question)


# --- the link ---


def test_a_prompt_of_llama_70b_sends_320_kib_a_token():
    """80 layers x 2 x 8 KV heads x 128 x 2 bytes, as Llama-3.1-70B's config gives; sharding changes nothing."""
    for tensor in (2.0, 8.0):
        assert kv_bytes_per_prompt_token(spec_70b(tensor=tensor), 6000.0) == 320 * 1024
    use = link_use(
        spec_70b(), spec_70b(tensor=8.0), (2, 1), LinkTerms("x", NETWORKS["ethernet-100g"], 0.001),
        prompt_tokens=6000.0, requests_per_s=4.0,
    )  # fmt: skip
    assert use.bytes_per_request == 6000 * 320 * 1024
    assert use.transfer_s == pytest.approx(
        0.001 + use.bytes_per_request / (4 * 12.5e9)
    )  # the slower end has four ports
    assert use.prefill_load_fraction == pytest.approx(4 * use.bytes_per_request / (2 * 4 * 12.5e9))
    assert use.decode_load_fraction == pytest.approx(4 * use.bytes_per_request / (8 * 12.5e9))


def test_networks_have_the_rates_of_their_standards():
    """Gigabits per second of a four-lane port, by the roadmap of the InfiniBand Trade Association and IEEE 802.3."""
    rates = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
    assert {name: rate * 8 / 1e9 for name, rate in NETWORKS.items() if name.startswith("infiniband")} == {
        f"infiniband-{name}": rate for name, rate in rates.items()
    }
    for name, rate in NETWORKS.items():
        if name.startswith("ethernet"):
            assert name == f"ethernet-{rate * 8 / 1e9:g}g"


@given(*(st.floats(1.0, 1e6) for _ in range(4)))
def test_the_load_of_a_link_is_the_time_of_its_transfers(
    tokens_per_s, bytes_per_token, replicas, bytes_per_s
):
    load = link_load_fraction(tokens_per_s, bytes_per_token, replicas, bytes_per_s)
    of_a_second = transfer_s(tokens_per_s / replicas, bytes_per_token, bytes_per_s, 0.0)
    assert load == pytest.approx(of_a_second)
    assert link_load_fraction(tokens_per_s, bytes_per_token, 2 * replicas, bytes_per_s) == pytest.approx(
        load / 2
    )


def test_links_that_do_not_join_the_pools_are_refused():
    with pytest.raises(
        InputError, match=r"a KV cache in bf16 cannot be handed to decode replicas that keep it in fp8"
    ):
        link_between(spec_70b(), spec_70b("fp8"), LinkTerms(), 1000.0)
    with pytest.raises(InputError, match="unknown link 'nvlink9'"):
        check_known([device("h100-sxm"), device("l40s")], LinkTerms("nvlink9"))
    check_known([device("h100-sxm"), device("l40s")], LinkTerms("nvlink4"))
    assert unlinked_reason(spec_70b(), spec_70b(), (1, 1), LinkTerms("nvlink4")) == ""
    assert "joins 8 x h100-sxm" in unlinked_reason(spec_70b(), spec_70b(), (2, 1), LinkTerms("nvlink4"))
    assert "does not join" in unlinked_reason(
        spec_70b(), spec_70b(name="h200-sxm"), (1, 1), LinkTerms("nvlink4")
    )
    assert unlinked_reason(spec_70b(), spec_70b(name="h200-sxm"), (9, 9), LinkTerms()) == ""


def disaggregated(rate, link="infiniband-ndr"):
    """Return a scenario at a request rate, whose first and later tokens have tight targets."""
    return f"""name: rates
model: llama-3.1-8b
traffic:
  - {{name: agent, request_rate: {rate}, input_tokens: {{mean: 2500, p95: 6000}}, output_tokens: {{mean: 150, p95: 400}}}}
slo: {{ttft_p95: 1 s, tpot_p95: 15 ms}}
fleet:
  {{hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, headroom: 20 %, spare_replicas: 1,
   disaggregation: only, kv_link: {link}, kv_link_latency: 10 us}}
prices: {{per_gpu_hour: {{h100-sxm: 4.08 $/h}}}}
"""


def pools_at(tmp_path, rate, link="infiniband-ndr"):
    file = written_to(tmp_path / "rates.yaml", disaggregated(rate, link))
    asked = asked_of(file)
    return pools_decision(asked.question, asked.scenario.fleet.pools, terms_of(asked), beyond=False)[0]


@pytest.mark.long
def test_plans_of_both_kinds_compete_in_one_table_and_for_each_choice(tmp_path, capsys):
    """The headline bought pools while the table, the cheapest and the fewest GPUs were of identical replicas."""
    file, plan_file = tmp_path / "both.yaml", tmp_path / "plan.json"
    file.write_text(disaggregated(20).replace("only", "allowed"))
    assert main(["fleet", str(file), "--offline", "--format", "json"]) == 0
    text = capsys.readouterr().out
    plan_file.write_text(text)
    result = json.loads(text)["result"]
    costs = [row["usd_per_month"] for row in result["plans"]]
    assert {row["transfer"] is not None for row in result["plans"]} == {True, False}
    assert costs == sorted(costs)
    assert result["chosen"] == choice(result, "cheapest") == result["plans"][0]
    assert result["chosen"]["transfer"]
    assert choice(result, "fewest")["gpus"] == min(row["gpus"] for row in result["plans"])
    near = [row for row in result["plans"] if row["usd_per_month"] <= 1.25 * costs[0]]
    assert choice(result, "surest")["slo_met_probability"] >= max(row["slo_met_probability"] for row in near)
    for form in ("table", "markdown"):
        assert main(["fleet", str(file), "--offline", "--full", "--format", form]) == 0
        listed = (
            capsys.readouterr()
            .out.split("lans, cheapest first")[1]
            .split("Disaggregated prefill and decode")[0]
        )
        assert "prefill TP1" in listed
    assert main(["check", "--plan", str(plan_file), "--offline"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.99])
def test_a_plan_with_pools_reaches_the_confidence_asked_for_at_its_own_load(tmp_path, confidence):
    """At 99% replicas may be several times as slow as predicted, beyond the range in which the slowest is looked for."""
    file = tmp_path / "sure.yaml"
    file.write_text(
        disaggregated(10)
        .replace("tpot_p95: 15 ms", f"tpot_p95: 60 ms, confidence: {confidence}")
        .replace("ttft_p95: 1 s", "ttft_p95: 9 s")
    )
    asked = asked_of(file)
    plans, _ = pools_decision(asked.question, asked.scenario.fleet.pools, terms_of(asked))
    assert plans
    for plan in plans:
        assert plan.slo_met_probability >= confidence
        sizing = pools_sizing(asked.question, plan, terms_of(asked))
        pair = (plan.groups[0].busy_replicas, plan.groups[1].busy_replicas)
        for condition in sizing.contender.demanded(asked.question, 0.0):
            outcome = sizing.joint.sized(pair, 1.0, condition.paces)
            assert all(
                outcome.value(target) * condition.paces.decode <= target.limit_s
                for target in asked.question.slo.targets
                if condition.concerns(target)
            )


# --- the ratio ---


@pytest.mark.long
def test_every_larger_load_has_pools_and_they_take_at_most_copies_of_smaller_ones(tmp_path):
    """160 requests a second had a plan, 200 and 320 had none."""
    gpus = {}
    for rate in (40, 160, 200, 320):
        (plan,) = pools_at(tmp_path, rate)
        assert plan.slo_met_probability >= 0.8
        gpus[rate] = plan.gpus
    assert list(gpus.values()) == sorted(gpus.values())
    assert gpus[320] <= 2 * gpus[160] <= 8 * gpus[40]


def test_a_slow_link_has_pools_for_more_than_the_smallest_load(tmp_path):
    """Transfers of 105 ms: 2 requests a second had a plan, 5 had none."""
    small, larger = (pools_at(tmp_path, rate, "ethernet-25g")[0] for rate in (2, 5))
    assert small.gpus <= larger.gpus <= 3 * small.gpus


def test_a_link_that_is_too_slow_for_any_number_of_replicas_is_the_reason_with_its_time(tmp_path):
    """2,500 tokens x 128 KiB over 0.35 GB/s take 936 ms, which is more than the first token may."""
    file = written_to(tmp_path / "slow.yaml", disaggregated(5, "0.35 GB/s"))
    asked = asked_of(file)
    plans, searched = pools_decision(
        asked.question, asked.scenario.fleet.pools, terms_of(asked), beyond=False
    )
    assert not plans
    (reason,) = [row.reason for row in searched.rejected if "however many" in row.reason]
    took = re.search(r"(\d+) ms of it the transfer of a mean prompt over 0.35 GB/s", reason)
    assert float(took.group(1)) == pytest.approx(936.0, rel=0.02)


@settings(max_examples=200)
@given(
    st.integers(1, 12), st.lists(st.integers(1, 12), min_size=12, max_size=12),
    st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.sampled_from([1, 4]),
)  # fmt: skip
def test_the_cheapest_pair_is_that_of_all_pairs(prefill, decodes, cost, other, size):
    """The first token takes `prefill` replicas; more of them never take more decode replicas for the later ones."""
    least = np.minimum.accumulate(decodes)

    def lacking(pair):
        if pair[0] < prefill:
            return frozenset({"prefill"})
        return frozenset() if pair[1] >= least[min(pair[0], 12) - 1] else frozenset({"prefill", "decode"})

    def rank(pair):
        """In machines of `size` replicas; by the replica if that is 1."""
        return cost * ceil(pair[0] / size) + other * ceil(pair[1] / size), sum(pair)

    found, _ = cheapest_pair(lacking, (1, 1), rank)
    every = [pair for pair in product(range(1, 25), repeat=2) if not lacking(pair)]
    assert rank(found) == min(map(rank, every))
    assert cheapest_pair(lacking, (1, 1), rank, under=rank(found))[0] is None


@pytest.mark.parametrize(
    "target",
    long_but({("traffic[0].request_rate=24",)}, [("traffic[0].request_rate=24",), ("slo.ttft_p95=300 ms",)]),
)
def test_no_other_layouts_of_the_pools_cost_less(path, target):
    """Every pair of layouts and replica counts below the cost of the plan, simulated one by one, misses something."""
    asked = asked_of(path, "fleet.tensor_parallel=[1, 2]", *target)
    question, limits, headroom = (
        asked.question,
        asked.scenario.fleet.pools,
        asked.scenario.fleet.headroom_fraction,
    )
    (found, *_), _ = pools_decision(question, limits, terms_of(asked), beyond=False)
    cheaper = 0
    for prefill, decode in product(*layouts_of(question)):
        slower = slower_of(question, prefill, decode)
        specs = [spec_of_layout(side.layout, question) for side in (prefill, decode)]
        joint = Joint(question, *map(replica_of, specs), limits.link)
        sides = [
            Sized(
                trial_of(phase(question, question.devices), side.layout, terms_of(asked)),
                1,
                1,
            )
            for phase, side in ((prefill_question, prefill), (decode_question, decode))
        ]
        cost = rank_of(Contender(*sides), terms_of(asked))
        for pair in product(range(1, found.gpus), repeat=2):
            if cost(pair)[0] < found.usd_per_hour - 1e-9:
                assert joint.lacking(pair, demanded_of(headroom, slower))
                cheaper += 1
    assert cheaper >= 3


# --- the phases and the pools together ---


def test_each_phase_is_asked_with_its_targets_and_its_work(allowed):
    question = allowed[0].question
    first, later = prefill_question(question, question.devices), decode_question(question, question.devices)
    assert [target.metric for target in first.slo.targets] == ["ttft"]
    assert [target.metric for target in later.slo.targets] == ["tpot"]
    assert first.demand.lengths.output_tokens == 1.0
    assert later.demand.lengths.cached_tokens == pytest.approx(later.demand.lengths.input_tokens, rel=1e-3)
    assert first.demand.lengths.input_tokens == later.demand.lengths.input_tokens


WIDE = """name: wide
model: deepseek-ai/DeepSeek-R1
traffic:
  - {name: chat, request_rate: 60 req/s, input_tokens: {mean: 1500, p95: 3000}, output_tokens: 300}
slo: {ttft_p95: 2 s, tpot_p95: 50 ms}
fleet: {hardware: [h100-sxm], disaggregation: allowed}
"""


def test_no_fewer_decode_replicas_are_enough_than_the_closed_form_says(tmp_path):
    """Experts over 32 GPUs: steps with prompts took so long in closed form that one replica was held to be too few, which carries the peak."""
    question = asked_of(written_to(tmp_path / "wide.yaml", WIDE)).question
    question = decode_question(question, question.devices)
    confidence, enough = question.slo.confidence, {}
    for candidate in search(question).candidates:
        trial = Trial(candidate, question, {})
        (slowest,) = candidate.slowness.each(confidence).values()
        replicas = trial.replicas_for(trial.total_rate, slowest, trial.limits)
        if replicas is not None:
            assert replicas >= math.ceil(1.0 / candidate.sure_share_bounds[confidence])
            enough[candidate.layout.in_words()] = replicas
    assert enough["TP1 DP32 EP32, as published, 1,024 tokens a step"] == 1


def test_the_rate_of_prompts_alone_is_bounded_by_the_closed_form(allowed):
    """One-token answers: the closed form is no lower than a closed loop measures, and within a quarter of it."""
    question = prefill_question(allowed[0].question, allowed[0].question.devices)
    (candidate,) = search(question).candidates
    trial = Trial(candidate, question, {})
    requests = trial._path(trial.demand, 3000).offered(1.0).requests
    most = capacity_per_s(trial.replica.engine, requests)
    assert most <= trial.rate_ceiling <= 1.25 * RATE_SLACK * most


def test_first_tokens_are_late_where_a_whole_run_misses_their_target_and_with_any_decode_pool(joint):
    """Late is what the prefill pool shows; a run that is not late is the whole run, and serves the other questions too."""
    found = set()
    for load, slowness in product((0.25, 0.5, 1.0, 1.5, 2.2, 4.0), (0.7, 1.0, 1.6)):
        early, whole = (Joint(joint.question, joint.prefill, joint.decode, joint.link) for _ in range(2))
        paces = Paces(slowness, slowness)
        late = early.late((2, 2), load, paces)
        missed = {target.metric for target in whole.missed((2, 2), load, paces)}
        assert late == ("ttft" in missed), (load, slowness)
        assert late == early.late((2, 5), load, paces)
        if not late:
            assert early.sized((2, 2), load, paces).all == whole.sized((2, 2), load, paces).all
        found.add(late)
    assert found == {True, False}


def test_queues_grow_at_many_times_the_load_and_links_carry_it_in_proportion(joint):
    assert joint.steady((3, 3), 0.5, AS_PREDICTED)
    assert not joint.steady((1, 1), 8.0, AS_PREDICTED)
    one, three = joint.link_use((2, 3)), joint.link_use((2, 3), 3.0)
    assert one.bytes_per_s == pytest.approx(joint.rate * one.bytes_per_request)
    assert three.bytes_per_s == pytest.approx(3.0 * one.bytes_per_s)


def test_explain_says_what_makes_a_pool_so_large(allowed):
    """Time in steps, the targets, headroom, slow replicas, spares: each takes no fewer replicas than the one before."""
    asked, answer = allowed
    plan = answer.with_pools[0]
    of = subject_of(asked, plan)
    for at, group in enumerate(plan.groups):
        steps = {item.symbol: item.value for item in of.explained(f"groups[{at}].replicas").inputs}
        assert steps["n"] <= steps["h"]
        assert ("b" in steps) == (group.role == "prefill")
        assert steps.get("b", 0.0) <= steps["n"] <= group.busy_replicas + 1
        assert abs(max(steps["h"], steps["c"]) + steps["s"] - group.replicas) <= 1
    for target in plan.target_probabilities:
        assert of.explained(f"target_probabilities.{target}").formula.endswith("as the target bears")


# --- the answer ---


def test_simulate_prints_what_fleet_prints(path, capsys):
    words = ["--set", "fleet.disaggregation=only", "--offline", "--format", "json"]
    results = []
    for command in ("fleet", "simulate"):
        assert main([command, str(path), *words]) == 0
        results.append(json.loads(capsys.readouterr().out)["result"])
    plan, run = results[0]["chosen"], results[1]
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert {key: plan[name][key] for key in run[name]} == run[name]
    assert run["transfer"] == plan["transfer"]
    assert (run["gpus"], run["requests"]) == (plan["gpus"], plan["simulated_requests"])
    assert run["missed"] == []
    assert all(row["transfer"] for row in results[0]["plans"])


def test_more_devices_than_allowed_and_a_link_that_is_too_slow_are_said(path):
    asked = asked_of(path)
    limits, terms = asked.scenario.fleet.pools, terms_of(asked)
    plans, few = pools_decision(asked.question, limits, replace(terms, max_devices=2))
    assert not plans
    assert Refusal.FLEET_SIZE in {item.code for item in few.rejected}
    slow = replace(limits, link=LinkTerms("carrier pigeon", 1e6))
    plans, searched = pools_decision(asked.question, slow, terms)
    assert not plans
    assert "which would be busy" in " ".join(item.reason for item in searched.rejected)
    other = asked_of(path, "fleet.decode_hardware=[h200-sxm]", "fleet.kv_link=nvlink4")
    _, others = pools_decision(other.question, other.scenario.fleet.pools, terms_of(other))
    assert "does not join" in " ".join(item.reason for item in others.rejected)


def test_pools_are_sized_only_where_they_may_cost_less_than_a_plan_that_is_known(allowed):
    """At the cost of the plan nothing is cheaper; at a hundredth of it no pair is simulated; a dollar more changes nothing."""
    asked, answer = allowed
    (found, *_), cache = answer.with_pools, asked.cache

    def under(usd_per_hour):
        return pools_decision(
            asked.question,
            asked.scenario.fleet.pools,
            terms_of(asked),
            beyond=False,
            cache=cache,
            most_usd_per_hour=usd_per_hour,
        )

    (same, *_), _ = under(found.usd_per_hour + 1.0)
    assert (same.gpus, same.usd_per_hour, same.ttft_s) == (found.gpus, found.usd_per_hour, found.ttft_s)
    assert not under(found.usd_per_hour)[0]
    none, searched = under(found.usd_per_hour / 100.0)
    assert not none
    assert searched.simulated_pairs == 0
    assert {row.code for row in searched.rejected if "identical replicas" in row.reason} == {Refusal.COST}


def test_a_sweep_of_pools_meets_the_plan_at_its_peak_and_breaks_the_targets_beyond_it(path, allowed, capsys):
    """At the rate of the plan the targets hold; at three times what either pool can serve they do not."""
    _, answer = allowed
    plan = answer.with_pools[0]
    devices = sum(pool.busy_replicas * pool.layout.devices for pool in plan.groups)
    words = ["sweep", str(path), "--set", "fleet.disaggregation=only", "--request-rate", "12,36", "--offline", "--format", "json"]  # fmt: skip
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    (row,) = (row for row in result["plans"] if row["gpus"] == devices)
    assert "apart: " in row["plan"]
    points = {point["request_rate"]: point for point in row["points"]}
    assert points[12.0]["holds"]
    assert not points[36.0]["holds"]
    assert points[12.0]["requests_per_s"] == pytest.approx(12.0, rel=0.05)
    assert points[12.0]["ttft_s"]["p95"] == pytest.approx(plan.ttft_s.p95, rel=0.25)
    assert 12.0 <= row["largest_load_that_holds"] < 36.0


def test_the_traffic_of_today_takes_the_replicas_of_the_plan(allowed):
    """By the rate that a replica is planned for, which growth, comparisons and autoscalers count with."""
    _, answer = allowed
    for plan in answer.with_pools:
        for pool in plan.groups:
            rate = pool.request_rate_per_replica * pool.busy_replicas
            assert (
                replicas_over_time(np.array([rate]), pool.planned_request_rate_limit_per_replica)
                == pool.busy_replicas
            )


@pytest.mark.long
def test_pools_are_looked_for_until_one_pair_of_devices_has_a_plan(path):
    """Three devices that cost next to nothing have no NVLink 4; the one that has it makes the dearest of sixteen pairs."""
    cheap = ("l40s", "a100-sxm-80gb", "a6000")
    prices = ", ".join(f"{name}: 0.01 $/h" for name in cheap)
    changes = (
        f"fleet.hardware=[{', '.join(cheap)}, h100-sxm]", "fleet.disaggregation=only", "fleet.kv_link=nvlink4",
        f"prices.per_gpu_hour={{{prices}, h100-sxm: 3 $/h}}", "slo.tpot_p95=60 ms",
    )  # fmt: skip
    answer = fleet_of(path, *changes)
    assert [plan.hardware for plan in answer.plans] == ["h100-sxm"]
    without = [row for row in answer.pools.rejected if row.code == Refusal.LINK_DOMAIN]
    assert sum(row.count for row in without) > 3


USERS = """
name: users
model: meta-llama/Llama-3.1-8B-Instruct
traffic:
  - {name: chat, users: 600, think_time: 20 s, input_tokens: {mean: 2500, p95: 6000}, output_tokens: {mean: 250, p95: 600}}
  - {name: batch, request_rate: 5 req/s, input_tokens: {mean: 900, p95: 2000}, output_tokens: {mean: 100, p95: 300}}
slo: {ttft_p95: 1 s, tpot_p95: 15 ms}
fleet: {hardware: [h100-sxm], disaggregation: only, kv_link: infiniband-ndr}
"""


@pytest.mark.long
def test_users_of_pools_see_in_simulation_what_the_plan_says(tmp_path):
    """The plan is sized for requests at the rate of the users; the simulation has the users themselves, who wait."""
    file = written_to(tmp_path / "users.yaml", USERS)
    asked = asked_of(file)
    plan = fleet_for(asked).chosen
    assert plan.has_pools
    peak = planned_demand(asked.question.demand, plan.responses_s).peak_requests_per_s
    for group in plan.groups:
        assert group.busy_replicas * group.request_rate_per_replica == pytest.approx(peak)
    chosen = chosen_of(asked, plan)
    stream = asked_stream(chosen, RequestFlags(seed=11)).stream
    assert stream.crowd.users == 600
    operation = operation_of_plan(chosen, OperationFlags(), None)
    outcome = run_fleet(
        replica_of(chosen.spec), stream, operation, replicas=chosen.replicas, slo=asked.scenario.slo
    )
    assert not outcome.missed(asked.scenario.slo)
    assert outcome.all.requests_per_s == pytest.approx(peak, rel=0.03)
    assert outcome.all.tpot_s.p95 == pytest.approx(plan.tpot_s.p95, rel=0.05)
    assert outcome.all.ttft_s.mean <= 1.1 * plan.ttft_s.mean
    assert outcome.classes["chat"].e2e_s.mean == pytest.approx(plan.class_e2e_mean_s[0], rel=0.05)


@given(users=st.integers(1, 5000), think_s=st.floats(0.5, 100.0), response_s=st.floats(0.1, 30.0))
def test_users_become_requests_at_the_rate_that_they_send(users, think_s, response_s):
    """Little's law: of N users, rate x think time think and rate x response time wait."""
    item = RequestClass("u", fixed(100.0), fixed(10.0), None, users=float(users), think_time_s=think_s)
    other = RequestClass("o", fixed(50.0), fixed(5.0), 3.0)
    before = demand_of_classes((item, other))
    after = without_users(before, response_s)
    assert not after.users
    rate = after.classes[0].request_rate_per_s
    assert rate * (think_s + response_s) == pytest.approx(users)
    assert after.classes[1] == other


@pytest.mark.long
def test_smaller_steps_are_tried_beside_devices_that_run_more_sequences(tmp_path):
    """An L40S runs 256 sequences and steps of 2,048 tokens by default, an H100 1,024: steps of 512 tokens ended the search."""
    file = tmp_path / "two.yaml"
    file.write_text(
        "name: two\nmodel: llama-3.1-8b\nweight_dtype: bf16\ntraffic:\n"
        "  - {name: o, request_rate: 1.49 req/s, arrival_cv: 2.5, input_tokens: 3141, output_tokens: {mean: 16, p95: 32}}\n"
        "slo: {ttft_mean: 1.262 s, tpot_p95: 48.51 ms, confidence: 80 %}\n"
        "fleet: {hardware: [l40s, h200-sxm], tensor_parallel: [1, 2], pipeline_parallel: 1, headroom: 0 %, spare_replicas: 1,\n"
        "  disaggregation: allowed, kv_link: infiniband-ndr}\n"
        "prices: {per_gpu_hour: {l40s: 1 $/h, h200-sxm: 4.5 $/h}}\n"
    )
    asked = asked_of(file)
    answer = fleet_for(asked)
    assert answer.chosen.hardware == "l40s"
    assert list(answer.pools.chunked) == [512, 256]


@pytest.mark.long
def test_no_pair_of_pools_costs_less_than_the_bounds_of_either_device(tmp_path):
    """Devices are left out by them before their layouts are paired, so that nothing below a cost is missed."""
    file = tmp_path / "users.yaml"
    file.write_text(USERS.replace("[h100-sxm]", "[h100-sxm, l40s, b200]"))
    asked = asked_of(file)
    limits, terms = asked.scenario.fleet.pools, terms_of(asked)
    found = pools_search._groups(asked.question, limits, terms, Counter(), SearchCache(), math.inf)
    costs = {}
    for timed, (first, *_) in found.groups:
        for side in first.sides:
            name = side.trial.replica.spec.device.name
            costs.setdefault(name, []).append((timed, pools_search._alone_cost(first, terms)))
    assert len(costs) >= 2
    for each in limits.prefill_devices:
        pairs = costs.get(each.name, [])
        for timed, cost in pairs:
            for most in (math.inf, 0.0):
                assert pools_search._least_with(each, timed, limits, terms, SearchCache(), most) <= cost * (
                    1.0 + 1e-9
                )
