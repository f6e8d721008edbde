"""What prompts of sessions find: turns walked one by one, at an API, in an own fleet, and dealt out to replicas."""

import math
from dataclasses import replace

import numpy as np
import pytest

from capplan.money.hosted import Hosted, billed_class, hosted_traffic
from capplan.money.token_price import BY_ITSELF, NOT_CACHED, TokenPrice, TokenRates
from capplan.workload.length import empirical, fixed, lognormal
from capplan.workload.request_class import RequestClass
from capplan.workload.reuse import hits_by_replica, session_reuse_by_age
from capplan.workload.sessions import Sessions, drawn_turns
from tests.files import written_to

pytestmark = pytest.mark.usefixtures("shared_runs")
AGENT = Sessions(lognormal(6.0, 0.5), lognormal(2500.0, 0.3), lognormal(400.0, 0.8), fixed(200.0), 40.0, 1500)
SCENARIO = """name: agents
model: llama-3.1-8b
traffic:
  - {name: coding, request_rate: 8 req/s, turns: 8, input_tokens: 4000, added_tokens: 600, output_tokens: 150, think_time: 5 s,
     shared_prefix: {tokens: 2000}}
slo: {ttft_p95: 2 s, tpot_p95: 40 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1}
"""


@pytest.mark.parametrize("alive_s", [1.0, 20.0, 60.0, 300.0])
@pytest.mark.parametrize("ratio", [1.0, 0.02, 0.002])
@pytest.mark.parametrize("shortest", [0, 1200, 3000])
def test_prompts_find_what_a_clock_for_every_prefix_finds(alive_s, ratio, shortest):
    """Sessions as a stream of their own, a clock for the shared prefix and one for each session; no shorter prefix is kept."""
    rate, response_s = 0.5, 3.0
    reuse = session_reuse_by_age(AGENT, response_s, 1 << 20, np.random.default_rng(0))
    random = np.random.default_rng(5)
    turns = drawn_turns(AGENT, 3000, random)
    gaps = random.exponential(1.0, len(turns)) * AGENT.think_time_s + response_s
    starts = random.uniform(0.0, len(turns) / (rate * ratio), 3000)
    at, events = 0.0, []
    for row, (session, place, tokens) in enumerate(
        zip(turns.session.tolist(), turns.turn.tolist(), turns.input_tokens.tolist(), strict=True)
    ):
        at = starts[session] if place == 0 else at + gaps[row]
        events.append((at, session, tokens))
    shared_at, mine, found, total = -math.inf, {}, 0, 0
    for now, session, tokens in sorted(events):
        last, before = mine.get(session, (-math.inf, 0))
        held = min(AGENT.shared_tokens, tokens - 1)
        held = held if now - max(shared_at, last) <= alive_s else 0
        held = max(before, held) if now - last <= alive_s else held
        found += held if held >= shortest else 0
        total += tokens if tokens >= shortest else 0
        shared_at, mine[session] = now, (now, tokens)
    kept = reuse.kept_from(shortest)
    assert kept.hit_fraction(alive_s, rate * ratio) == pytest.approx(found / total, abs=0.01)


def test_more_sessions_change_only_how_often_the_shared_prefix_is_sent():
    reuse = session_reuse_by_age(AGENT, 3.0, 1 << 20, np.random.default_rng(0))
    rising = [reuse.hit_fraction(30.0, rate) for rate in (1e-4, 1e-2, 1.0, 100.0)]
    assert rising == sorted(rising)
    assert reuse.hit_fraction(1e9, 1.0) == pytest.approx(reuse.hit_fraction(1e9, 100.0))
    alone = float(reuse.repeated_tokens[reuse.gap_s <= 30.0].sum() / reuse.input_tokens.sum())
    assert rising[0] >= alone


def test_a_session_pays_reads_for_what_it_sends_again_and_writes_for_the_rest():
    """Two turns of 1,000 and 1,500 tokens, 10 s apart: of 2,500 tokens 1,000 are read and 1,500 written."""
    pair = Sessions(fixed(2.0), fixed(1000.0), fixed(300.0), fixed(200.0), 0.0)
    reuse = session_reuse_by_age(pair, 10.0, 1 << 20, np.random.default_rng(0), 50)
    item = RequestClass("a", empirical(np.array([1000.0, 1500.0])), fixed(200.0), 1.0, sessions=pair)
    price = TokenPrice("a", "b", TokenRates(3.0, 15.0, 0.3, 3.75), "2026", "page", time_to_live_s=300.0)
    bill = billed_class(hosted_traffic(item, 10.0, reuse), price, Hosted()).bill
    requests = 730 * 3600.0
    assert bill.cache_read_usd == pytest.approx(requests / 2 * 1000 * 0.3e-6)
    assert bill.cache_write_usd == pytest.approx(requests / 2 * 1500 * 3.75e-6)
    late = billed_class(hosted_traffic(item, 10.0, reuse), price, Hosted(time_to_live=9.0)).bill
    assert late.cache_read_usd == 0.0


@pytest.mark.parametrize(("pause_s", "found"), [(10.0, True), (1000.0, True), (2000.0, False)])
def test_a_turn_finds_the_turn_before_where_the_end_of_a_prompt_is_marked_by_default(pause_s, found):
    """GPT-5.6 and later mark the end of the newest message for 30 minutes: the next turn begins with the whole prompt before."""
    pair = Sessions(fixed(2.0), fixed(1100.0), fixed(300.0), fixed(200.0), 0.0)
    item = RequestClass("a", empirical(np.array([1100.0, 1600.0])), fixed(200.0), 1.0, sessions=pair)
    repeated = session_reuse_by_age(pair, pause_s, 1 << 20, np.random.default_rng(0), 50)
    price = TokenPrice("a", "b", TokenRates(2.0, 9.0, 0.2, 2.5), "2026", "page", time_to_live_s=1800.0, minimum_prefix_tokens=1024.0, marked=True)  # fmt: skip
    traffic = hosted_traffic(item, pause_s, repeated.kept_from(1024.0))
    stored, usd = {}, 0.0
    for session in range(50):
        for turn, tokens in enumerate((1100, 1600)):
            now = session * 7919.0 + turn * pause_s
            hit = 1100 if turn and now - stored[session] <= 1800.0 else 0
            usd += (hit * 0.2 + (tokens - hit) * 2.5 + 200 * 9.0) * 1e-6
            stored[session] = now
    bill = billed_class(traffic, price, Hosted(caching="default")).bill
    assert (bill.cache_read_usd > 0.0) == found
    assert bill.usd / traffic.requests == pytest.approx(usd / 100)


def test_a_session_below_the_shortest_prefix_is_plain_input():
    """Prompts of 1,000 and 1,500 tokens at an API that keeps 1,200: the first is input, the second is written, nothing is found."""
    pair = Sessions(fixed(2.0), fixed(1000.0), fixed(300.0), fixed(200.0), 0.0)
    item = RequestClass("a", empirical(np.array([1000.0, 1500.0])), fixed(200.0), 1.0, sessions=pair)
    repeated = session_reuse_by_age(pair, 10.0, 1 << 20, np.random.default_rng(0), 50)
    price = TokenPrice("a", "b", TokenRates(3.0, 15.0, 0.3, 3.75), "2026", "page", time_to_live_s=300.0, minimum_prefix_tokens=1200.0)  # fmt: skip
    kept = replace(price, rates=replace(price.rates, cache_write=3.0))
    traffic = hosted_traffic(item, 10.0, repeated.kept_from(1200.0))
    requests = 730 * 3600.0
    bill = billed_class(traffic, kept, Hosted(time_to_live=300.0)).bill
    assert bill.cache_read_usd == 0.0
    assert bill.usd - bill.output_usd == pytest.approx(requests / 2 * 2500 * 3e-6)
    assert billed_class(traffic, price, Hosted()).way.name == NOT_CACHED


@pytest.mark.parametrize(("response_s", "way"), [(10.0, BY_ITSELF), (1000.0, NOT_CACHED)])
def test_prompts_of_sessions_are_not_kept_at_a_price_by_the_hour(response_s, way):
    """An hour on demand would find every turn after 1,000 s, for 4.50 $ a million tokens and hour; by itself none is left."""
    pair = Sessions(fixed(2.0), fixed(1000.0), fixed(300.0), fixed(200.0), 0.0)
    item = RequestClass("a", empirical(np.array([1000.0, 1500.0])), fixed(200.0), 1.0, sessions=pair)
    reuse = session_reuse_by_age(pair, response_s, 1 << 20, np.random.default_rng(0), 50)
    price = TokenPrice(
        "a", "b", TokenRates(1.25, 10.0, 0.125), "2026", "page", time_to_live_s=3600.0,
        storage_usd_per_million_tokens_hour=4.5, keeps_by_itself=True, from_creation=True,
    )  # fmt: skip
    billed = billed_class(hosted_traffic(item, response_s, reuse), price, Hosted())
    found = 1000 if way == BY_ITSELF else 0
    per_pair = (2500 - found) * 1.25e-6 + found * 0.125e-6 + 2 * 200 * 10e-6
    assert billed.way.name == way
    assert billed.bill.usd == pytest.approx(730 * 3600.0 / 2 * per_pair)
    alone = billed_class(hosted_traffic(item, response_s, reuse), replace(price, keeps_by_itself=False), Hosted())  # fmt: skip
    assert alone.way.name == NOT_CACHED


def test_turns_that_are_dealt_out_find_what_their_replica_has():
    """Every turn to a random replica of three, whose caches are walked one by one."""
    random = np.random.default_rng(7)
    turns = drawn_turns(AGENT, 4000, np.random.default_rng(0))
    found = total = 0
    held: dict[int, int] = {}
    for place, tokens in zip(turns.turn.tolist(), turns.input_tokens.tolist(), strict=True):
        held = held if place else {}
        replica = int(random.integers(3))
        found += max(held.get(replica, 0), min(AGENT.shared_tokens, tokens - 1))
        held[replica] = tokens
        total += tokens
    assert hits_by_replica(AGENT, 3, 1 << 20) == pytest.approx(found / total, abs=0.01)
    assert hits_by_replica(AGENT, 1, 1 << 20) > hits_by_replica(AGENT, 2, 1 << 20) > found / total


@pytest.mark.long
def test_bill_and_comparison_count_the_hits_of_sessions(capplan, tmp_path):
    path = written_to(tmp_path / "agents.yaml", SCENARIO)
    prefill = {}
    for hits in ("true", "false"):
        row = capplan.result("bill", path, "--offline", "--set", f"prefix_caching={hits}")["classes"][0]
        prefill[hits] = row["prefill_usd"] / row["decode_usd"]
    # 2,000 of 4,000 tokens are shared and later turns send the rest again: over nine tenths need no prefill.
    assert prefill["true"] < 0.35 * prefill["false"]
    (api,) = capplan.result("compare", path, "--offline", "--api", "anthropic/claude-haiku-5-5")["apis"]
    assert api["input_usd"] == 0.0
    read, written = (
        api["cache_read_usd"] / 0.1,
        api["cache_write_usd"] / 1.25,
    )  # 0.1 and 1.25 times the price of input
    # Of turn k (1 to 8) 4,000 + 750 (k - 1) tokens, all of the turn before are read; of the first one the shared 2,000.
    sent = sum(4000 + 750 * k for k in range(8))
    assert read / (read + written) == pytest.approx((2000 + sent - (4000 + 750 * 7)) / sent, rel=0.01)
