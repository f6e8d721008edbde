"""Laws of separate pools whose decode replicas draft, and whose prefill replicas keep prefixes in host memory."""

from dataclasses import replace

import numpy as np
import pytest

from capplan.fleet.pools.joint import Joint
from capplan.fleet.pools.link import LinkTerms, kv_bytes_per_prompt_token
from capplan.fleet.pools.sizing import decode_question, prefill_question
from capplan.fleet.review import spec_of_layout
from capplan.fleet.search.layouts import search
from capplan.questions.fleet_answer import fleet_for
from capplan.questions.plans.plan_row import plan_row
from capplan.replica.replica import replica_of
from capplan.replica.speculation import (
    DraftPlan,
    best_speculating_replica,
    drafting_of_prompts,
    rejection_s,
    round_table,
)
from capplan.scenario.money_terms import host_bytes, memory_usd_per_month
from capplan.serving.simulator import simulate
from tests.asked import asked_of, fleet_of
from tests.files import file_with

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
SMALL = """name: small
model: llama-3.1-8b
max_num_seqs: 128
traffic:
  - {name: chat, request_rate: 12 req/s, input_tokens: {mean: 3000, p95: 6000}, output_tokens: {mean: 120, p95: 300}}
slo: {ttft_p95: 900 ms, tpot_p95: 15 ms}
fleet:
  {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 0, disaggregation: only,
   kv_link: ethernet-100g}
"""
CHATS = """name: chats
model: llama-3.1-8b
traffic:
  - {name: chat, request_rate: 8 req/s, turns: {mean: 8, p95: 20}, input_tokens: {mean: 6000, p95: 9000}, added_tokens: {mean: 900, p95: 3000},
     output_tokens: {mean: 120, p95: 300}, think_time: 30 s}
slo: {ttft_p95: 900 ms, tpot_p95: 15 ms}
fleet:
  {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 0, disaggregation: only,
   kv_link: infiniband-ndr}
"""
HOST = "kv_offload=[{name: host, capacity: 2 TB}]"


path = file_with(SMALL, "small.yaml")


chats = file_with(CHATS, "chats.yaml")


@pytest.fixture(scope="module")
def question(path):
    return asked_of(path).question


@pytest.fixture(scope="module")
def plain(question):
    (candidate,) = search(replace(question, slo=replace(question.slo, targets=()))).candidates
    return replica_of(spec_of_layout(candidate.layout, question))


def joint_of(question, plain, plan):
    """Return both pools of one layout with drafts, as the search builds them."""
    prompts = drafting_of_prompts(plan)
    prefill = best_speculating_replica(plain, prompts, 1.0, 3000.0) if prompts else plain
    decode = best_speculating_replica(plain, plan, 1.0, 3000.0) if plan else plain
    return Joint(question, prefill, decode, LinkTerms())


def test_drafts_that_are_never_accepted_cost_their_rounds_and_nothing_else(question, plain):
    """All tokens come from steps as long as rounds."""
    plan = DraftPlan("draft-model", (0.0,), 3, step_s=1e-3)
    without, drafted = joint_of(question, plain, None), joint_of(question, plain, plan)
    longer = replace(
        plain,
        table=round_table(plain, 1e-3, 3),
        scheduling=drafted.decode.scheduling,
        query_tokens=4,
    )
    by_hand = Joint(question, plain, longer, LinkTerms())
    runs = [joint.at_peak((3, 3)) for joint in (without, drafted, by_hand)]
    assert runs[0].all.ttft_s.mean < runs[1].all.ttft_s.mean
    assert runs[1].all.ttft_s == runs[2].all.ttft_s
    assert runs[1].all.e2e_s == runs[2].all.e2e_s
    assert runs[1].all.tpot_s == runs[2].all.tpot_s
    assert runs[1].all.tpot_s.mean >= runs[0].all.tpot_s.mean + 3e-3
    assert drafted.link_use((3, 3)) == without.link_use((3, 3))


def test_drafts_that_take_no_time_and_are_always_accepted_shorten_the_answers(question, plain):
    """Without queues, n - 1 tokens take (n - 1) / 4 rounds: a quarter of the time, and what verifying four tokens takes longer."""
    plan = DraftPlan("draft-model", (1.0,), 3, step_s=0.0)
    without, drafted = joint_of(question, plain, None), joint_of(question, plain, plan)
    before, after = (joint.sized((3, 3), 1e-6).all for joint in (without, drafted))
    assert after.ttft_s.mean == pytest.approx(
        before.ttft_s.mean, rel=1e-3
    )  # verifying four tokens takes a little longer
    ratio = (after.e2e_s.mean - after.ttft_s.mean) / (before.e2e_s.mean - before.ttft_s.mean)
    assert 0.24 < ratio < 0.45


@pytest.mark.parametrize("method", ["ngram", "eagle"])
def test_a_better_draft_never_needs_more_of_either_pool(question, plain, method):
    means = []
    for acceptance in (0.0, 0.5, 0.9):
        joint = joint_of(question, plain, DraftPlan(method, (acceptance,), 3))
        means.append(joint.sized((3, 3), 0.5).all.tpot_s.mean)
    assert means == sorted(means, reverse=True)


def test_the_cache_of_a_head_is_sent_and_held_by_both_pools(question, plain):
    """An EAGLE head is one layer more: 33/32 of the bytes of 32 layers; drafts from the prompt send nothing."""
    plan = DraftPlan("eagle", (0.7,), 3)
    without, head, lookup = (
        joint_of(question, plain, drafts) for drafts in (None, plan, DraftPlan("ngram", (0.7,), 3))
    )
    use = [joint.link_use((2, 2)) for joint in (without, head, lookup)]
    assert use[1].bytes_per_request == pytest.approx(use[0].bytes_per_request * 33 / 32)
    assert use[2] == use[0]
    assert head.prefill.kv_blocks == pytest.approx(head.decode.kv_blocks, rel=1e-3)
    assert head.prefill.kv_blocks < plain.kv_blocks == lookup.prefill.kv_blocks
    assert head.prefill.draft is not None
    one, whole = (kv_bytes_per_prompt_token(spec, 3000.0) for spec in (head.prefill.draft, plain.spec))
    assert one == pytest.approx(whole / 32)


def test_each_phase_is_asked_with_its_drafts(path):
    question = asked_of(path, "speculation={method: eagle, acceptance: 0.7, draft_tokens: 3}").question
    first, later = (
        phase(question, question.devices).drafting for phase in (prefill_question, decode_question)
    )
    assert first.draft_tokens == 1
    assert later.draft_tokens == 3
    lookup = asked_of(path, "speculation={method: ngram, acceptance: 0.4}").question
    assert prefill_question(lookup, lookup.devices).drafting is None


def test_a_plan_of_pools_with_drafts_is_what_its_pools_do_when_they_are_simulated(path):
    """The plan says how many tokens are drafted; both pools by the engine options of `simulate` see the latencies of the plan."""
    from capplan.library.simulated_fleet import SimulationRecords, simulated

    asked = asked_of(path, "speculation={method: eagle, acceptance: 0.8, draft_tokens: 3}")
    answer = fleet_for(asked)
    plan = answer.chosen
    assert plan.has_pools
    assert plan.draft_tokens == 3
    assert plan_row(plan)["draft_tokens"] == 3
    result = simulated(asked, answer, SimulationRecords(), offline=True).result
    assert result["ttft_s"]["p95"] == pytest.approx(plan.ttft_s.p95, rel=0.03)
    assert result["tpot_s"]["mean"] == pytest.approx(plan.tpot_s.mean, rel=0.03)
    assert result["transfer"]["bytes_per_request"] == pytest.approx(
        plan.transfer.at_peak.bytes_per_request, rel=0.02
    )


@pytest.mark.long
def test_good_drafts_make_pools_cheaper_and_useless_ones_dearer(path):
    costs = {}
    for acceptance in (None, 0.0, 0.9):
        drafts = (
            []
            if acceptance is None
            else [f"speculation={{method: ngram, acceptance: {acceptance}, draft_tokens: 3}}"]
        )
        plan = fleet_of(path, "slo.tpot_p95=9 ms", "traffic[0].output_tokens=800", *drafts).chosen
        costs[acceptance] = float("inf") if plan is None else plan.usd_per_month
    assert costs[0.9] < costs[None] <= costs[0.0]


def test_sessions_that_come_seldom_are_measured_until_no_session_begins(chats):
    """At a thousandth of the load everything happens a thousand times as late: the end of the load too, after which nothing was measured."""
    question = asked_of(chats, "traffic[0].request_rate=1 req/s", "slo={}").question
    (candidate,) = search(question).candidates
    replica = replica_of(spec_of_layout(candidate.layout, question))
    joint = Joint(question, replica, replica, LinkTerms())
    peak, seldom = (joint.sized((1, 1), load) for load in (1.0, 1e-3))
    assert seldom.all.requests > 500
    assert seldom.from_s == pytest.approx(1000.0 * peak.from_s, rel=0.01)
    assert seldom.until_s == pytest.approx(1000.0 * peak.until_s, rel=0.01)


@pytest.mark.long
def test_a_tier_without_room_is_no_tier_and_a_large_one_never_makes_first_tokens_later(chats):
    """The tiers are those of the prefill replicas: the first token waits for their loads, later tokens do not know of them."""
    without, tiny, large = (
        asked_of(chats, *change).question
        for change in ((), ("kv_offload=[{name: host, capacity: 1 MB}]",), (HOST,))
    )
    (candidate,) = search(replace(without, slo=replace(without.slo, targets=()))).candidates
    replica = replica_of(spec_of_layout(candidate.layout, without))
    small = replace(replica, kv_blocks=replica.kv_blocks // 16)
    joints = [Joint(question, small, replica, LinkTerms()) for question in (without, tiny, large)]
    hits = [float(joint.demand.lengths.cached_tokens) for joint in joints]
    assert hits[0] == pytest.approx(hits[1], rel=1e-3)
    assert hits[2] > 1.05 * hits[0]
    assert joints[2].demand.load_s > 0.0
    none, some = (joint.sized((4, 4), 0.5).all for joint in (joints[0], joints[2]))
    assert some.ttft_s.mean < none.ttft_s.mean
    assert some.tpot_s.mean == pytest.approx(none.tpot_s.mean, rel=0.05)
    assert prefill_question(large, large.devices).demand.tiers == large.demand.tiers
    assert decode_question(large, large.devices).demand.tiers == ()


@pytest.mark.long
def test_host_memory_is_bought_for_the_replicas_that_read_prompts(path, chats):
    plan = fleet_of(path).chosen
    scenario = asked_of(chats, HOST, "prices.host_memory_per_gb=3 $/month").scenario
    assert plan.has_pools
    assert host_bytes(scenario) == 2e12
    assert memory_usd_per_month(scenario, plan) == pytest.approx(3.0 * 2000 * plan.groups[0].replicas)
    assert plan.prefilling_replicas == plan.groups[0].replicas < plan.replicas


def test_the_first_token_and_the_rounds_of_pools_are_those_of_one_engine(question, plain):
    """Requests that never meet, a link that takes no time, and decode engines that stream the first token of the prefill engine."""
    plan = DraftPlan("ngram", (0.6,), 2)
    joint = joint_of(question, plain, plan)
    streaming = replace(joint.decode, scheduling=replace(joint.decode.scheduling, draws_first=False))
    endless = Joint(question, joint.prefill, streaming, LinkTerms("endless", 1e30))
    apart = endless.sized((1, 1), 1e-6).parts[0]
    requests = endless.stream.requests.between(0, apart.ttft_s.size)
    alone = simulate(replace(requests, arrival_s=requests.arrival_s * 1e6), joint.decode.engine)
    # The one engine draws for a round in each step of a prompt.
    steps = np.ceil(requests.input_tokens / joint.decode.engine.scheduling.max_num_batched_tokens)
    drawn_s = float(rejection_s(joint.decode.spec, 2.0)) * steps
    assert apart.ttft_s + drawn_s == pytest.approx(alone.ttft_s, rel=1e-6)
    assert np.nanmean(apart.e2e_s) == pytest.approx(np.nanmean(alone.e2e_s), rel=0.02)


@pytest.mark.parametrize(
    ("method", "named", "pools"),
    [("ngram", (), ["decode"]), ("eagle", ("--draft", "someone/EAGLE3-llama"), ["prefill", "decode"])],
)
def test_pools_are_started_with_the_drafts_that_they_run(tmp_path, capplan, method, named, pools):
    """Drafts from the prompt are of the decode pool; a head with a KV cache is set up in both, as vLLM checks when they connect."""
    path, plan = tmp_path / "small.yaml", tmp_path / "plan.json"
    path.write_text(SMALL + f"speculation: {{method: {method}, acceptance: 0.6, draft_tokens: 1}}\n")
    ran = capplan("fleet", path, "--offline", "-o", plan)
    assert ran.code == 0, ran.err
    ran = capplan("export", "--plan", plan, "--target", "vllm", *named)
    assert ran.code == 0, ran.err
    started = zip(("prefill", "decode"), ran.out.split("vllm serve")[1:], strict=True)
    assert [pool for pool, words in started if "--speculative-config" in words] == pools
