"""A running replica gets the traffic of a plan: users who think and wait, sessions that continue, classes with their prefixes."""

import json
import random
import re
import shlex
import threading
from dataclasses import replace

import numpy as np
import pytest

from capplan.calibrate.endpoint.client import Answered, answered, endpoint_of
from capplan.calibrate.endpoint.plan_traffic import Conversations
from capplan.calibrate.endpoint.probe import Prompts, prompts_for
from capplan.cli.main import main
from capplan.serving.requests import Requests
from tests.calibrate.endpoint_stub import stub
from tests.files import written_to
from tests.plan_files import fleet_plan
from tests.tables import table

FEW = np.array([32, 64, 64])
IDS = Prompts(takes_ids=True, returns_ids=True)


def of(server):
    return replace(endpoint_of(server.url), model="tiny")


def turns():
    """Two turns of a session, of 32 and 64 tokens with a response of 16 between them, and a turn of another one that shares 16 tokens."""
    return Requests(
        FEW, np.array([16, 4, 4]), block_ids=np.array([0, 1, 0, 1, 2, 3, 0, 7, 8, 9]), block_counts=np.array([2, 4, 4]),
        output_ids=np.array([2]), output_counts=np.array([1, 0, 0]),
    )  # fmt: skip


def test_a_turn_continues_the_response_before_it_and_another_session_only_what_all_share():
    asked, heard = Conversations(IDS, 16).of(turns())
    first = asked[0]()
    heard(0, Answered(0.0, ids=tuple(range(16))))
    second, other = asked[1](), asked[2]()
    assert second.prompt[:48] == first.prompt + tuple(range(16))
    assert other.prompt[:16] == first.prompt[:16]
    assert other.prompt[16:32] != first.prompt[16:32]
    assert [len(question.prompt) for question in (first, second, other)] == FEW.tolist()


def test_a_turn_waits_for_the_response_that_it_continues():
    asked, heard = Conversations(IDS, 16).of(turns())
    asked[0]()
    written = []
    thread = threading.Thread(target=lambda: written.append(asked[1]()))
    thread.start()
    asked[2]()  # another session does not wait
    assert thread.is_alive()
    heard(0, Answered(0.0, ids=tuple(range(16))))
    thread.join(10.0)
    assert len(written) == 1


def test_a_turn_in_words_continues_the_words_of_the_response():
    asked, heard = Conversations(Prompts(takes_ids=False), 16).of(turns())
    first = asked[0]()
    heard(0, Answered(0.0, text=" ".join(f"w{place}" for place in range(16))))
    assert asked[1]().prompt.split()[:48] == [*first.prompt.split(), *(f"w{place}" for place in range(16))]


def test_each_class_shares_its_own_prefix_and_a_miss_shares_none():
    six = np.full(6, 64)
    cached = np.array([32, 32, 48, 48, 0, 0])
    requests = Requests(six, six, cached_tokens=cached, class_index=np.array([0, 0, 1, 1, 1, 2]))
    asked, _ = Conversations(IDS, 0).of(requests)
    prompts = [question().prompt for question in asked]
    common = [
        [next((at for at in range(64) if a[at] != b[at]), 64) for b in prompts if b is not a] for a in prompts
    ]
    assert [max(each) for each in common] == [32, 32, 48, 48, 0, 0]


@pytest.mark.parametrize(
    ("behaviour", "takes_ids", "returns_ids"),
    [("", True, True), ("no ids", True, False), ("text only", False, False)],
)
def test_a_server_is_asked_for_the_ids_of_its_tokens_if_it_knows_them(behaviour, takes_ids, returns_ids):
    with stub(behaviour) as server:
        prompts = prompts_for(of(server), random.Random(0), whole_sessions=True)
        answer = answered(of(server), prompts.question(prompts.drawn(random.Random(1), 20), 3))
    assert (prompts.takes_ids, prompts.returns_ids) == (takes_ids, returns_ids)
    assert answer.ids == ((20, 21, 22) if returns_ids else ())


PLAN = """name: small
model: qwen3-0.6b
slo: {ttft_p95: 800 ms, tpot_p95: 60 ms}
fleet: {hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1}
traffic:
  - {name: chat, request_rate: 8 req/s, input_tokens: 200, output_tokens: 20, shared_prefix: {tokens: 96, hit_fraction: 1.0}}
"""


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    return fleet_plan(written_to(tmp_path_factory.mktemp("endpoint-plan") / "small.yaml", PLAN))


def test_a_slow_replica_gets_the_traffic_of_the_plan_and_does_not_verify(capplan, plan_file):
    with stub(prompt_s=0.2, token_s=0.05) as server:
        words = shlex.split(
            f"verify-plan --plan {plan_file} --endpoint {server.url} --minutes 0.05 --offline"
        )
        ran = capplan(*words, "--format", "json")
        seen = [body for _, body in server.seen[1:]]
    assert ran.code == 4, ran.err
    found = json.loads(ran.out)["result"]
    assert found["verdict"] == "slower"
    assert {row["quantity"] for row in found["rows"]} >= {"ttft_s.p95", "tpot_s.p50", "e2e_s.mean"}
    assert [len(body["prompt"]) for body in seen] == [200] * len(seen)
    assert {body["max_tokens"] for body in seen} == {20}
    assert len(seen) >= 20
    assert len({tuple(body["prompt"][:96]) for body in seen}) == 1
    assert len({tuple(body["prompt"]) for body in seen}) == len(seen)


def test_a_slow_replica_means_more_machines(capplan, plan_file):
    with stub(prompt_s=0.2, token_s=0.05) as server:
        ran = capplan(
            "verify-plan --plan", plan_file, "--endpoint", server.url, "--minutes", "0.02", "--offline"
        )
    needed = r"no number of such replicas meets|\d+ busy replicas? on \d+ GPUs? to meet"
    said = rf"steps take [0-9.]+ times as long as predicted: ({needed}) the targets"
    assert re.search(said, ran.out), ran.out
    assert f"capplan calibrate --endpoint {server.url}" in ran.out


def test_a_replica_that_sheds_load_is_not_compared(capplan, plan_file):
    with stub(lambda number: "busy" if number % 4 == 0 else "") as server:
        ran = capplan(
            "verify-plan --plan", plan_file, "--endpoint", server.url, "--minutes", "0.02", "--offline"
        )
    assert ran.code == 2
    assert "requests failed: status 429" in ran.err


@table
def test_a_plan_is_verified_with_results_or_with_a_server(capplan, plan_file, more, words):
    ran = capplan("verify-plan", "--plan", plan_file, *more, "--offline")
    assert (ran.code, words in ran.err) == (2, True), ran.err


USERS = """name: small
model: qwen3-0.6b
slo: {ttft_p95: 2 s, tpot_p95: 200 ms}
fleet: {hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1}
traffic:
  - {name: chat, users: 5, think_time: 200 ms, input_tokens: 40, output_tokens: 10, shared_prefix: {tokens: 32, hit_fraction: 1.0}}
  - {name: batch, request_rate: 3 req/s, input_tokens: 60, output_tokens: 4}
"""
SESSIONS = """name: small
model: qwen3-0.6b
slo: {ttft_p95: 2 s, tpot_p95: 200 ms}
fleet: {hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1}
traffic:
  - {name: agent, TRAFFIC, turns: 3, input_tokens: 64, added_tokens: 32, output_tokens: 16, think_time: 100 ms}
"""


def planned(folder, text):
    (folder / "small.yaml").write_text(text)
    assert main(["fleet", str(folder / "small.yaml"), "-o", str(folder / "plan.json"), "--offline"]) == 0
    return folder / "plan.json"


@pytest.mark.long
def test_users_and_requests_of_a_plan_are_sent_together(capplan, tmp_path):
    plan = planned(tmp_path, USERS)
    with stub(prompt_s=0.05, token_s=0.002) as server:
        words = shlex.split(f"--plan {plan} --endpoint {server.url} --minutes 0.05 --offline --format json")
        ran = capplan("verify-plan", *words)
        spans = server.spans[1:]
    assert ran.code in {0, 4}, ran.err
    assert "5 users" in ran.err
    chat = sorted((span for span in spans if len(span[2]["prompt"]) == 40), key=lambda span: span[0])
    batch = [body for _, _, body in spans if len(body["prompt"]) == 60]
    assert len(chat) + len(batch) == len(spans)
    assert min(len(chat), len(batch)) >= 5
    assert most_at_once(chat) <= 5
    assert len({tuple(body["prompt"][:32]) for _, _, body in chat}) == 1
    assert len({tuple(body["prompt"][:32]) for body in batch}) == len(batch)
    found = {row["quantity"] for row in json.loads(ran.out)["result"]["rows"]}
    assert found >= {"ttft_s.p95", "tpot_s.p50", "e2e_s.mean", "requests_per_s"}


def most_at_once(spans):
    """Return how many requests were in a server at most."""
    events = sorted([(begun, 1) for begun, _, _ in spans] + [(ended, -1) for _, ended, _ in spans])
    return int(np.cumsum([step for _, step in events]).max())


@pytest.mark.parametrize("traffic", ["users: 4", "request_rate: 2 req/s"])
def test_turns_of_a_plan_continue_each_other(capplan, tmp_path, traffic):
    plan = planned(tmp_path, SESSIONS.replace("TRAFFIC", traffic))
    with stub(prompt_s=0.01, token_s=0.001) as server:
        words = shlex.split(f"--plan {plan} --endpoint {server.url} --minutes 0.05 --offline --format json")
        ran = capplan("verify-plan", *words)
        spans = server.spans[1:]
    assert ran.code in {0, 4}, ran.err
    assert "min in which sessions begin" in ran.err
    at_end = {}
    later = in_flight = 0
    for begun_s, ended_s, body in sorted(spans, key=lambda span: span[0]):
        prompt = tuple(body["prompt"])
        if len(prompt) > 64:
            earlier = at_end.get(prompt[: len(prompt) - 32])
            in_flight += earlier is None
            assert earlier is None or earlier <= begun_s
            later += earlier is not None
        response = range(len(prompt), len(prompt) + body["max_tokens"])
        at_end[(*prompt, *response)] = ended_s
    assert later >= 5
    assert in_flight <= 4  # users are in a session already when the traffic begins


POOLING = {
    "qwen3-0.6b": "bge-m3\nrunner: pooling",
    ", output_tokens: 20, shared_prefix: {tokens: 96, hit_fraction: 1.0}": "",
    ", tpot_p95: 60 ms": "",
}
DRAFTS = {"traffic:": "speculation: {method: ngram, acceptance: [0.7], draft_tokens: 1}\ntraffic:"}


@pytest.mark.parametrize(
    ("replaced", "words"), [(POOLING, "ask for vectors or scores"), (DRAFTS, "the plan speculates")]
)
def test_traffic_that_is_not_sent_is_refused_before_anything_is_sent(capplan, tmp_path, replaced, words):
    text = PLAN
    for before, after in replaced.items():
        text = text.replace(before, after)
    plan = planned(tmp_path, text)
    with stub() as server:
        ran = capplan("verify-plan", "--plan", plan, "--endpoint", server.url, "--offline")
        assert server.seen == []
    assert (ran.code, words in ran.err) == (2, True), ran.err
