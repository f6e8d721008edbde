"""A mix by shares: what is there already takes a share of each class, and other GPUs take the rest."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capplan.fleet.load.routed import MixedGroup
from capplan.fleet.simulation import Stream
from capplan.questions.mix import _divides
from capplan.readers.plan_file import result_digest
from capplan.serving.requests import Requests
from capplan.workload.length import fixed
from capplan.workload.multiples import share_of
from capplan.workload.request_class import RequestClass
from tests.files import written_to
from tests.plan_files import choice

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
OWN = """name: own
model: meta-llama/Llama-3.1-8B-Instruct
traffic:
  - {name: chat, request_rate: 45 req/s, input_tokens: 400, output_tokens: 150}
  - {name: mail, request_rate: 15 req/s, arrival_cv: 2, input_tokens: 800, output_tokens: 100}
slo: {ttft_p95: 2 s, tpot_p95: 100 ms, confidence: 50 %}
fleet: {hardware: [h100-sxm, l40s], tensor_parallel: 1, pipeline_parallel: 1, headroom: 0 %, survive: {machine: 0}, own: {4 x l40s: 1}, max_machines: {g6e.12xlarge: 0}}
prices: {file: prices.yaml}
"""
USERS = """name: users
model: meta-llama/Llama-3.1-8B-Instruct
traffic:
  - {name: chat, users: 1600, think_time: 8 s, input_tokens: 400, output_tokens: 150}
  - {name: code, users: 240, think_time: 4 s, input_tokens: 800, output_tokens: 100}
slo: {ttft_p95: 2 s, tpot_p95: 100 ms, confidence: 50 %}
fleet: {hardware: [h100-sxm, l40s], tensor_parallel: 1, pipeline_parallel: 1, headroom: 0 %, survive: {machine: 0}, own: {4 x l40s: 1}, max_machines: {g6e.12xlarge: 0}}
prices: {file: prices.yaml}
"""
PRICES = """sources: {page: {title: page, url: 'https://example.org'}}
prices:
  - {device: l40s, provider: P, sku: g6e.12xlarge, devices: 4, commitment: on-demand, price: 1 $/h, date: 2026-11-01, source: page}
  - {device: h100-sxm, provider: P, sku: one, devices: 1, commitment: on-demand, price: 4 $/h, date: 2026-11-02, source: page}
"""


@pytest.fixture(scope="module")
def owned(tmp_path_factory):
    """Four L40S that are there already and no more of them, and H100 to rent."""
    path = written_to(tmp_path_factory.mktemp("owned") / "own.yaml", OWN)
    (path.parent / "prices.yaml").write_text(PRICES)
    return path


@pytest.fixture(scope="module")
def of_users(owned):
    """The same machines, for users of two classes who wait for their answers."""
    return written_to(owned.parent / "users.yaml", USERS)


def fleet(capplan, path, *words):
    return capplan.result("fleet", path, "--offline", "--format", "json", *words)


def test_what_is_there_takes_a_share_of_each_class_and_the_rest_is_rented(capplan, owned):
    rented = fleet(capplan, owned)["chosen"]
    result = fleet(capplan, owned, "--set", "fleet.mix=shares")
    chosen = result["chosen"]
    assert (rented["hardware"], chosen["usd_per_month"] < rented["usd_per_month"]) == ("h100-sxm", True)
    assert result["mix"]["by"] == "shares"
    shares = {group["hardware"]: group["requests"]["share"] for group in chosen["groups"]}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(share == round(share, 2) for share in shares.values())
    for group in chosen["groups"]:
        assert group["requests"]["classes"] == ["chat", "mail"]
        assert group["requests"]["request_fraction"] == pytest.approx(group["requests"]["share"])
        assert group["request_rate_per_replica"] * group["replicas"] == pytest.approx(
            60 * group["requests"]["share"]
        )
    own = next(line for line in chosen["order"]["machines"] if line["hardware"] == "l40s")
    assert (own["provider"], own["count"], own["usd_per_hour"]) == ("own", 1, 0.0)


def test_the_groups_of_shares_are_the_fleets_of_that_part_of_the_traffic(capplan, owned):
    """Each class thinned by chance: rates times s, and arrivals with a variation of sqrt(1 + s (c^2 - 1))."""
    for part in fleet(capplan, owned, "--set", "fleet.mix=shares")["mix"]["parts"]:
        share = part["plan"]["groups"][0]["requests"]["share"]
        found = fleet(
            capplan, owned, "--hardware", part["plan"]["hardware"], "--set", f"traffic[0].request_rate={45 * share!r}", "--set",
            f"traffic[1].request_rate={15 * share!r}", "--set", f"traffic[1].arrival_cv={(1 + 3 * share) ** 0.5!r}",
        )  # fmt: skip
        alone = choice(found, "cheapest")
        assert part["plan"]["usd_per_hour"] == pytest.approx(alone["usd_per_hour"])
        assert part["plan"]["replicas"] == alone["replicas"]


@pytest.mark.long
def test_no_share_is_cheaper_than_the_one_that_is_found(capplan, owned):
    """Enumeration: every fifth of the traffic on the machines that are there, the rest on those to rent."""
    found = fleet(capplan, owned, "--set", "fleet.mix=shares")["chosen"]["usd_per_hour"]

    def least(device, share):
        found = capplan.result(
            f"fleet {owned} --offline --hardware {device} --set",
            f"traffic[0].request_rate={45 * share}",
            "--set",
            f"traffic[1].request_rate={15 * share}",
            "--set",
            f"traffic[1].arrival_cv={(1 + 3 * share) ** 0.5}",
        )
        return choice(found, "cheapest")["usd_per_hour"] if found["choices"] else np.inf

    for tenth in (2, 4, 6, 8):
        assert found <= least("l40s", tenth / 10) + least("h100-sxm", 1 - tenth / 10) + 1e-9


@pytest.mark.long
def test_shares_are_kept_simulated_exported_and_billed(capplan, owned, tmp_path):
    plan = tmp_path / "plan.json"
    assert capplan("fleet", owned, "--offline", "--set", "fleet.mix=shares", "-o", plan).code == 0
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    assert capplan.result("simulate", "--plan", plan, "--offline")["missed"] == []
    bill = json.loads(capplan("bill", "--plan", plan, "--offline", "--format", "json").out)["result"]
    assert bill["usd_per_month"] == pytest.approx(chosen["usd_per_month"])
    words = " and ".join(f"{group['requests']['share']:.0%} of each class" for group in chosen["groups"])
    first, second = words.split(" and ")
    assert (
        f"the router sends {first} to"
        in capplan("fleet", owned, "--offline", "--set", "fleet.mix=shares", "--full").out
    )
    text = capplan("export", "--plan", plan, "--target", "k8s").out
    rule = first.replace("each class", "the requests of chat, mail")
    assert f"# the router in front of the groups has to send {rule} to own-1" in text
    assert second.replace("each class", "the requests of chat, mail") in text
    broken = json.loads(plan.read_text())
    for row in (broken["result"]["chosen"], broken["result"]["plans"][0]):
        row["groups"][0]["requests"]["share"] = 0.9
    broken["result"]["plan_file"]["result_sha256"] = result_digest(broken["result"])
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    refused = capplan("simulate", "--plan", tmp_path / "broken.json", "--offline")
    assert (refused.code, "the share of each class of all groups is" in refused.err) == (2, True), refused.err
    checked = capplan("check", owned, "--plan", plan, "--offline", "--set", "fleet.mix=shares")
    assert checked.code == 0, checked.out + checked.err


def test_every_request_is_dealt_to_one_group(capplan, owned):
    """The parts of the unit interval are those of the shares, and each request is in one of them."""
    stream = Stream(Requests(np.full(4000, 9), np.full(4000, 9)), ("chat",), warm_up_share=0.0)
    groups = [
        MixedGroup(None, 1, frozenset({0}), None, None, weights) for weights in ((0.0, 0.37), (0.37, 1.0))
    ]
    counts = [len(group.requests_of(stream)) for group in groups]
    assert sum(counts) == 4000
    assert counts[0] / 4000 == pytest.approx(0.37, abs=0.03)


@given(st.integers(1, 5000), st.integers(1, 99))
@example(3, 50)
@example(2, 1)
def test_users_are_dealt_whole_and_none_is_lost(users, percent):
    """Counted by hand: users up to n p / 100, ends in a half excluded, are the first part, and the others the second."""
    item = RequestClass("chat", fixed(100.0), fixed(10.0), None, users=float(users), think_time_s=10.0)
    parts = [share_of(item, part / 100).users for part in (percent, 100 - percent)]
    ends_in_half = (2 * users * percent) % 200 == 100
    if ends_in_half:
        assert sum(parts) == users + 1
    else:
        assert sum(parts) == users
        assert parts[0] == sum(100 * at - 50 < users * percent for at in range(1, users + 1))
    assert _divides(item, percent) == (not ends_in_half and min(parts) >= 1)


@pytest.mark.long
def test_users_on_machines_that_are_there_are_as_many_as_these_hold(capplan, of_users):
    """Enumeration by fleets of one kind: the owned machines hold this share of the users, and not a hundredth more."""
    result = fleet(capplan, of_users, "--set", "fleet.mix=shares")
    chosen, single = result["chosen"], result["mix"]["single_usd_per_month"]
    assert chosen["usd_per_month"] < single
    shares = {group["hardware"]: group["requests"]["share"] for group in chosen["groups"]}
    assert sum(shares.values()) == pytest.approx(1.0)
    mine = shares["l40s"]

    def alone(device, share):
        words = [
            word
            for at, users in enumerate((1600, 240))
            for word in ("--set", f"traffic[{at}].users={round(users * share)}")
        ]
        return choice(
            capplan.result("fleet", of_users, "--offline", "--hardware", device, *words), "cheapest"
        )

    part = {group["hardware"]: group for group in chosen["groups"]}
    for device, share in shares.items():
        assert part[device]["replicas"] == alone(device, share)["replicas"]
    assert alone("l40s", mine)["usd_per_hour"] == 0.0
    assert any(plan["requests"] == f"{mine:.0%} of each class" for plan in result["mix"]["parts"])


@pytest.mark.long
def test_what_a_mix_does_not_try_is_said(capplan, of_users):
    """Prompts of users are not divided by length; a single class is not divided by class; one user of a class is not dealt."""
    tried = capplan("fleet", of_users, "--offline", "--set", "fleet.mix=any", "--full").out
    assert (
        "fleet.mix does not try lengths: the prompts of users, sessions and cached prefixes stay together (chat, code)"
        in tried
    )
    assert "there is one class" not in tried
    one = fleet(capplan, of_users, "--set", "fleet.mix=any", "--set", "traffic[1].users=1")["mix"]["skipped"]
    assert [text.split(":")[0] for text in one] == ["lengths", "shares"]
    assert one[1].endswith("(code)")
