"""Orders of separate pools: against every combination of machines, and the search over them against every pair."""

import itertools
import json
import math
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.fleet.pools.joint import Paces, demanded_of
from capplan.fleet.pools.order import PoolSize, pools_order
from capplan.fleet.pools.search import pools_decision
from capplan.fleet.pools.sizing import decode_question, prefill_question
from capplan.fleet.review import spec_of_layout
from capplan.fleet.search.layouts import search
from capplan.fleet.search.search_cache import SearchCache
from capplan.money.order import NO_LOSS, OWN, Machine, Survival, order_of, racks_of
from capplan.questions.fleet import terms_of
from capplan.replica.replica import replica_of
from tests.asked import asked_in
from tests.oracles.test_survival import left_after
from tests.shipped import price_by_hand
from tests.sweeps import examples

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")

SIZES = (1, 2, 4, 8)


def sized(machines, each, usd_per_gpu=2.0):
    return PoolSize(replace(price_by_hand(usd_per_gpu), machines=tuple(machines)), each, 8)


def every_order(machines, each, busy, lost):
    """Yield the machines, as counts in their order, of every order that holds some replicas without the largest machines."""
    able = [machine.gpus // each for machine in machines]
    limits = [
        0
        if not held
        else min(math.ceil(busy / held) + lost, math.inf if machine.most is None else machine.most)
        for machine, held in zip(machines, able, strict=True)
    ]
    for counts in itertools.product(*(range(limit + 1) for limit in limits)):
        if left_after(counts, able, lost) >= busy:
            yield counts


def least_of_pools(machines, sizes, busy, lost):
    """Return the lowest cost of all pairs of orders of pools of one GPU: at one provider, and each machine in one of them only."""
    sellers = {item.provider for item in machines} - {OWN} or {OWN}
    least = math.inf
    for seller in sellers:
        near = [item for item in machines if item.provider in (seller, OWN)]
        for pair in itertools.product(
            *(every_order(near, each, count, lost) for each, count in zip(sizes, busy, strict=True))
        ):
            both = [sum(counts) for counts in zip(*pair, strict=True)]
            if all(item.most is None or count <= item.most for item, count in zip(near, both, strict=True)):
                least = min(least, sum(item.usd_per_hour * n for item, n in zip(near, both, strict=True)))
    return least


def random_machines(dice):
    """Return one to three kinds of machines, some there already, some limited, at one or two providers."""
    found = []
    for place in range(dice.randint(1, 3)):
        gpus, own = dice.choice(SIZES), dice.random() < 0.2
        usd = 0.0 if own else round(gpus * dice.uniform(1.0, 3.0), 2)
        most = dice.choice([1, 2, 3]) if own else dice.choice([None, None, 1, 3])
        found.append(Machine(OWN if own else dice.choice("PPQ"), f"x{place}", "gpu", gpus, usd, most=most))
    return tuple(found)


def test_brute_force_on_200_random_small_pools_finds_no_cheaper_order():
    dice = random.Random(27)
    possible = 0
    for _ in range(200):
        machines, lost = random_machines(dice), dice.randint(0, 1)
        sizes, busy = (dice.choice(SIZES), dice.choice((1, 2, 4))), (dice.randint(1, 5), dice.randint(1, 4))
        survive = Survival("machine", lost) if lost else NO_LOSS
        pools = [sized(machines, each) for each in sizes]
        usd_per_hour, divided = pools_order(pools, busy, survive)
        assert usd_per_hour == pytest.approx(least_of_pools(machines, sizes, busy, lost))
        if usd_per_hour == math.inf:
            continue
        possible += 1
        counts = {machine.sku: 0 for machine in machines}
        for pool, part, count in zip(pools, divided, busy, strict=True):
            for line in pool.order(part, count, survive).lines:
                counts[line.machine.sku] += line.count
        for machine in machines:
            assert machine.most is None or counts[machine.sku] <= machine.most
    assert possible > 100


def test_pools_are_at_one_provider_and_own_machines_are_counted_once():
    """P sells ones dearly and eights cheaply, Q ones only; one machine of eight is there already."""
    ones, eights = Machine("P", "one", "gpu", 1, 3.0), Machine("P", "eight", "gpu", 8, 16.0)
    cheap, there = Machine("Q", "q", "gpu", 1, 2.5), Machine(OWN, "had", "gpu", 8, 0.0, most=1)
    split = [sized([eights], 1), sized([ones, cheap], 1)]
    assert pools_order(split, (8, 2), NO_LOSS)[0] == 16.0 + 2 * 3.0
    owned = [sized([there, ones], 1) for _ in range(2)]
    assert pools_order(owned, (8, 2), NO_LOSS)[0] == 2 * 3.0
    assert pools_order(owned, (2, 8), NO_LOSS)[0] == 2 * 3.0
    assert pools_order([sized([there], 1)] * 2, (4, 4), NO_LOSS)[0] == math.inf


# --- the search ---

SCENARIO = """name: pools
model: llama-3.1-8b
max_num_seqs: 128
traffic:
  - {{name: chat, request_rate: {rate} req/s, input_tokens: {{mean: {prompt}, p95: {longest}}}, output_tokens: {{mean: 120, p95: 300}}}}
slo: {{ttft_p95: {first} ms, tpot_p95: 15 ms}}
fleet:
  {{hardware: [h100-sxm], tensor_parallel: [1, 2], pipeline_parallel: 1, spare_replicas: 0, disaggregation: only,
   kv_link: infiniband-ndr}}
"""
TRAFFIC = (
    {"rate": 24, "prompt": 3000, "longest": 6000, "first": 900},
    {"rate": 14, "prompt": 2000, "longest": 5000, "first": 250},
)


PRICE_LISTS = examples(15, 100)
"""Random machines for each of two loads."""


class Brute:
    """Every pair of layouts and replicas of a question, each simulated once, however many price lists there are."""

    def __init__(self, traffic):
        text = SCENARIO.format(**traffic)
        self.asked = asked_in(text)
        self.question, self.pools = self.asked.question, self.asked.scenario.fleet.pools
        self.cache = SearchCache()
        (device,) = self.question.devices
        self.device = device.name
        self.candidates = [
            {
                item.layout.devices: item
                for item in search(phase(self.question, self.question.devices)).candidates
            }
            for phase in (prefill_question, decode_question)
        ]
        self.replicas = {
            size: replica_of(spec_of_layout(item.layout, self.question))
            for size, item in self.candidates[1].items()
        }
        self._enough = {}

    def terms(self, machines, survive):
        price = replace(price_by_hand(2.0), machines=machines)
        return replace(terms_of(self.asked), prices={self.device: price}, survive=survive)

    def slower(self, candidates, size):
        """Return how slow the replicas of a pool may be, by the step times of their layout."""
        layout = candidates[size]
        network = self.question.networks[layout.layout.weight_format]
        spread = self.question.joint_slowness(network, layout.usual_step_s, layout.layout.device)
        return spread.equally(self.question.slo.confidence)

    def enough(self, sizes, pair, headroom):
        """Return whether a pair of these tensor-parallel sizes meets all targets."""
        if (sizes, pair) not in self._enough:
            joint = self.cache.joint(self.question, *(self.replicas[size] for size in sizes), self.pools.link)
            pools = list(map(self.slower, self.candidates, sizes))
            slower = {name: Paces(*(pool[name] for pool in pools)) for name in pools[0]}
            self._enough[sizes, pair] = not joint.lacking(pair, demanded_of(headroom, slower))
        return self._enough[sizes, pair]


@pytest.fixture(scope="module", params=range(len(TRAFFIC)))
def brute(request, few_requests):
    return Brute(TRAFFIC[request.param])


def test_brute_force_on_200_random_machines_finds_no_cheaper_pools(brute):
    """Price lists for each of two loads: every pair of layouts and replicas below the cost of the plan misses something."""
    dice = random.Random(4)
    planned = cheaper = 0
    for _ in range(PRICE_LISTS):
        machines, lost = random_machines(dice), dice.randint(0, 1)
        terms = brute.terms(machines, Survival("machine", lost) if lost else NO_LOSS)
        plans, _ = pools_decision(brute.question, brute.pools, terms, beyond=False, cache=brute.cache)
        found = plans[0].usd_per_hour if plans else math.inf
        planned += bool(plans)
        for sizes in itertools.product((1, 2), repeat=2):
            for pair in itertools.product(range(1, 8), repeat=2):
                usd = least_of_pools(machines, sizes, pair, lost)
                if usd < found - 1e-9:
                    cheaper += 1
                    assert not brute.enough(sizes, pair, terms.headroom_fraction), (machines, sizes, pair)
    assert planned > PRICE_LISTS // 2
    assert cheaper > PRICE_LISTS


LARGE = """name: pools
model: meta-llama/Llama-3.1-70B-Instruct
weight_dtype: fp8
kv_dtype: fp8
traffic:
  - {{name: agent, request_rate: 8.5 req/s, input_tokens: {{mean: 1500, p95: 3000}}, output_tokens: {{mean: 250, p95: 600}}}}
slo: {{ttft_p95: {first} ms, tpot_p95: 20 ms}}
fleet:
  {{hardware: [h100-sxm], tensor_parallel: {sizes}, pipeline_parallel: 1, spare_replicas: 0, disaggregation: only,
   kv_link: infiniband-ndr}}
"""


def large_pools(sizes, first_ms, one_usd):
    """Return what is planned in machines of one GPU at a price, and of eight at $16 per hour."""
    text = LARGE.format(sizes=sizes, first=first_ms)
    asked = asked_in(text)
    machines = (
        Machine("P", "one", "h100-sxm", 1, one_usd),
        Machine("P", "eight", "h100-sxm", 8, 16.0),
    )
    terms = replace(
        terms_of(asked), prices={"h100-sxm": replace(price_by_hand(2.0), machines=machines)}, survive=NO_LOSS
    )
    question = replace(asked.question, requests=1500)
    (plan,), _ = pools_decision(question, asked.scenario.fleet.pools, terms, beyond=False)
    return plan.gpus, plan.usd_per_hour, [(group.gpus_per_replica, group.replicas) for group in plan.groups]


def test_more_gpus_are_planned_where_their_machines_cost_less():
    """Prefill takes replicas of one GPU, each a machine at $1.70 per hour, or three of two GPUs in a machine of eight at $16."""
    few, many = (large_pools(sizes, 690, 1.7) for sizes in ("[2, 4]", "[1, 2, 4]"))
    assert few[1:] == (32.0, [(2, 3), (4, 1)])
    gpus, usd, [(one, prefill), (four, decode)] = many
    assert (one, four, gpus) == (1, 4, prefill + 4 * decode)
    assert usd == pytest.approx(1.7 * prefill + 16.0 * math.ceil(decode / 2))
    assert usd < few[1]
    assert gpus > few[0]


def test_layouts_that_are_dear_for_a_phase_by_itself_are_planned_where_the_cheap_one_misses_a_target():
    """With the link the first token takes over 540 ms on one GPU; two GPUs a replica meet that, and there was no plan."""
    assert large_pools("[1, 2, 4]", 540, 1.0) == large_pools("[2, 4]", 540, 1.0)


# --- what commands say ---

EIGHTS = """sources: {page: {title: page, url: 'https://example.org'}}
prices:
  - {device: h100-sxm, provider: P, sku: eight, devices: 8, commitment: on-demand, price: 16 $/h, date: 2026-11-01, source: page}
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pools")
    (folder / "prices.yaml").write_text(EIGHTS)
    text = SCENARIO.format(**TRAFFIC[0]).replace("spare_replicas: 0", "survive: {machine: 1}")
    (folder / "pools.yaml").write_text(f"{text}prices: {{file: prices.yaml}}\n")
    return folder / "pools.yaml"


def planned(capplan, path, *settings, code=0):
    words = (word for key in settings for word in ("--set", key))
    return capplan.result("fleet", path, "--offline", *words, code=code)


def test_one_server_that_is_there_is_in_one_pool_only(capplan, scenario):
    """Both pools took the one server of their own: two of them were in the order, and one was paid too little."""
    bought = planned(capplan, scenario)["chosen"]
    had = planned(capplan, scenario, "fleet.own={8 x h100-sxm: 1}")["chosen"]
    counts = {line["sku"]: line["count"] for line in had["order"]["machines"]}
    assert counts["8 x h100-sxm"] == 1
    assert had["usd_per_hour"] == bought["usd_per_hour"] - 16.0
    assert sum(counts.values()) == sum(line["count"] for line in bought["order"]["machines"])


def test_a_quota_counts_the_machines_of_both_pools(capplan, scenario, tmp_path):
    """AWS sells eight H100 as p5.48xlarge; either pool survives one machine, so both take four of them at least."""
    at_aws = ("prices={}", "fleet.providers=[AWS]", "fleet.machines=[p5.48xlarge]")
    plan = planned(capplan, scenario, *at_aws)["chosen"]
    (line,) = plan["order"]["machines"]
    enough = planned(capplan, scenario, *at_aws, f"fleet.max_machines={{p5.48xlarge: {line['count']}}}")
    assert enough["chosen"]["order"]["usd_per_hour"] == plan["order"]["usd_per_hour"]
    few = planned(
        capplan, scenario, *at_aws, f"fleet.max_machines={{p5.48xlarge: {line['count'] - 1}}}", code=4
    )
    assert "needs more machines than fleet.max_machines and fleet.own allow" in {
        row["reason"] for row in few["disaggregated"]["rejected"]
    }


@pytest.mark.long
def test_every_command_says_the_order_of_pools(capplan, scenario, tmp_path):
    plan, own = tmp_path / "plan.json", ("--set", "fleet.own={8 x h100-sxm: 1}")
    assert capplan("fleet", scenario, "--offline", *own, "-o", plan).code == 0
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    asked = ("--plan", plan, "--offline")
    for command, words in (("bill", asked), ("compare", (*asked, "--api", "openai/gpt-5-mini"))):
        result = capplan.result(command, *words)
        assert (result["own"] if command == "compare" else result)["order"] == chosen["order"]
    assert capplan("check", scenario, *own, *asked).code == 0
    budget = ("--set", f"budget={{usd_per_month: {chosen['usd_per_month'] + 1}}}")
    assert capplan("check", scenario, *own, *budget, *asked).code == 0
    assert capplan.result("explain", plan, "order.usd_per_hour", "--offline")["value"] == pytest.approx(
        chosen["usd_per_hour"]
    )
    other = tmp_path / "other.json"
    assert capplan("fleet", scenario, "--offline", "-o", other).code == 0
    changed = capplan.result("diff", plan, other)
    assert any(item["path"].startswith("plan.order.machines") for item in changed["changes"])
    manifest = capplan("export", "--plan", plan, "--target", "k8s")
    assert manifest.code == 0, manifest.err
    assert "# use: 1 x (8 x h100-sxm) of your own, counted as free" in manifest.out
    page = tmp_path / "page.md"
    assert capplan("report", "--plan", plan, "--offline", "-o", page).code == 0
    assert re.search(r"8 x h100-sxm.*own.*\| *8 *\| *1 *\|", page.read_text())


@pytest.mark.long
def test_pools_of_two_devices_are_at_one_provider_at_its_listed_prices(capplan):
    """KV caches go from one pool to the other, so both are where one provider sells the GPUs of both."""
    result = capplan.result("fleet", "scenarios/disaggregated.yaml", "--offline")
    pooled = next(plan for plan in result["plans"] if len(plan["groups"]) == 2)
    assert len({line["provider"] for line in pooled["order"]["machines"]}) == 1
    assert all(line["sku"] and line["date"] for line in pooled["order"]["machines"])


@given(st.lists(st.integers(1, 72), min_size=1, max_size=30))
def test_racks_hold_all_replicas_and_no_fewer_could_be_half_empty(sizes):
    racks = racks_of(sizes, 72)
    assert math.ceil(sum(sizes) / 72) <= racks <= len(sizes)
    assert racks == 1 or sum(sizes) > 36 * racks - 36
    assert racks_of([*sizes, 73], 72) is None


@given(st.tuples(*[st.integers(1, 30)] * 2), st.tuples(*[st.sampled_from(SIZES)] * 2), st.integers(0, 1))
def test_both_pools_stand_in_the_same_racks_where_racks_are_sold_whole(busy, each, spare):
    rack, survive = Machine("P", "node", "gpu", 4, 42.0, sold_by=18), Survival("machine", spare)
    sizes = [4 * size for size in each]
    pools = [replace(sized((rack,), size), node_gpus=4) for size in sizes]
    usd, divided = pools_order(pools, busy, survive)
    orders = [
        pool.order(part, count, survive) for pool, part, count in zip(pools, divided, busy, strict=True)
    ]
    nodes = sum(line.count for order in orders for line in order.lines)
    assert nodes % 18 == 0
    assert usd == pytest.approx(42.0 * nodes)
    used = sum((order.busy + order.spares) * size for order, size in zip(orders, each, strict=True))
    apart = sum(
        order_of((rack,), size, 4, count, survive).usd_per_hour
        for size, count in zip(sizes, busy, strict=True)
    )
    assert used <= nodes
    assert usd <= apart + 1e-9
    parts = [
        pool.price.by_the_machine().order_usd_per_hour(size, 4, count, survive=survive)
        for pool, size, count in zip(pools, sizes, busy, strict=True)
    ]
    assert sum(parts) <= usd + 1e-9
    if sum(each) == 2:
        assert nodes == 18 * math.ceil(used / 18)


@pytest.mark.long
def test_a_shared_rack_is_one_total_for_fleet_order_commitments_and_bill(capplan, tmp_path):
    """Racks, pools, a load curve and commitments at once: 18 servers of which 16 hold replicas, all of them paid."""
    scenario, plan = tmp_path / "rack.yaml", tmp_path / "plan.json"
    scenario.write_text(
        "name: rack\nmodel: moonshotai/Kimi-K2.5\n"
        "traffic: [{request_rate: 60 req/s, daily_curve: evening, input_tokens: {mean: 1500, p95: 3000}, output_tokens: 300}]\n"
        "slo: {ttft_p95: 2 s, tpot_p95: 50 ms}\nfleet: {hardware: [gb200], providers: [CoreWeave]}\n"
        "commitments: {reserved_1y: {discount: 30 %}}\n"
    )
    assert capplan("fleet", scenario, "--offline", "-o", plan).code == 0
    result = json.loads(plan.read_text())["result"]
    (line,) = result["chosen"]["order"]["machines"]
    assert (len(result["chosen"]["groups"]), line["count"]) == (2, 18)
    rows = result["commitments"]["rows"]
    assert sum(row["gpus"] for row in rows) == 72
    total = 0.7 * 730 * 18 * 42.0
    assert sum(row["usd_per_month"] for row in rows) == pytest.approx(total)
    bill = json.loads(capplan("bill", plan, "--format", "json").out)["result"]
    assert bill["usd_per_month"] == pytest.approx(total)
    assert sum(row["with_idle_usd"] for row in bill["classes"]) == pytest.approx(total)
