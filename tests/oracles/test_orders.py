"""Orders of whole machines, as the catalogue and a price list have them and as commands show them; tests/oracles/test_survival.py has every combination."""

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from capplan.fleet.pools.search import pools_decision
from capplan.money.order import (
    NO_LOSS,
    Machine,
    OrderLine,
    Survival,
    cheapest_cover,
    machines_per_replica,
    order_of,
)
from capplan.questions.fleet import terms_of
from capplan.questions.fleet_answer import fleet_for
from capplan.readers.catalogue.offer_terms import known_machines
from capplan.readers.catalogue.prices import machine_prices, sold_machines
from capplan.report.answers.order import lines_texts, used_texts
from capplan.scenario.scenario import read_scenario
from tests.asked import asked_in, asked_of
from tests.oracles.test_survival import every_survivor
from tests.shipped import price_by_hand

SMALL = "tests/golden/small.yaml"
pytestmark = pytest.mark.usefixtures("shared_runs")


def test_a_large_order_is_mostly_of_one_kind():
    """100,003 units of eights at $16, fours at $9 and ones at $2.50: all in eights but the last three, which cost $7.50 alone."""
    assert cheapest_cover(100_003, (8, 4, 1), (16.0, 9.0, 2.5), (None, None, None)) == (12_500, 0, 3)


def test_a_replica_stays_where_it_was_predicted():
    """Inside one machine, or in whole machines of at least the size of the server that the prediction assumes."""
    assert machines_per_replica(8, 4, 8) == (1, 2)
    assert machines_per_replica(4, 8, 8) == (1, 0)
    assert machines_per_replica(8, 24, 8) == (3, 1)
    assert order_of((Machine("p", "x4", "gpu", 4, 9.0),), 8, 8, 1) is None


def test_the_catalogue_says_how_clouds_sell():
    """AWS sells one H100, and B200 and H200 in eights only; RunPod and Verda sell B200 singly."""

    def sizes(provider, device):
        sold = [
            known for known in known_machines() if (known.provider, known.record.device) == (provider, device)
        ]
        return {known.record.gpus for known in sold}

    assert sizes("AWS", "h100-sxm") == {1, 8}
    assert sizes("AWS", "b200") == sizes("AWS", "h200-sxm") == {8}
    assert 1 in sizes("RunPod", "b200")
    assert 1 in sizes("Verda", "b200")
    for known in known_machines():
        for offer in known.record.offers:
            assert known.sources[offer.source].startswith("https://"), known.name
            assert 0.01 < offer.price / known.record.gpus < 60.0, known.name
            assert not {*";(,"} & {*(offer.region or "")}, f"{known.name}: an offer has one region"
    assert {machine.gpus for machine in sold_machines("h200-sxm", "on-demand", providers=["AWS"])} == {8}


def test_a_price_of_several_regions_is_an_offer_in_each():
    """Nebius' H200 had the region "eu-north1;eu-west1;us-central1", and nobody could ask for one of them."""
    for region in ("eu-north1", "eu-west1", "us-central1"):
        sold = sold_machines("h200-sxm", "on-demand", providers=["Nebius"], regions=[region])
        assert {(machine.gpus, machine.region) for machine in sold} == {(1, region), (8, region)}


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """A price list of one provider that sells L40S in eights and L4 in ones and fours."""
    file = tmp_path_factory.mktemp("prices") / "prices.yaml"
    file.write_text(
        "sources: {page: {title: page, url: 'https://example.org'}}\n"
        "prices:\n"
        "  - {device: l40s, provider: P, sku: eight, devices: 8, commitment: on-demand, price: 8 $/h, date: 2026-11-01, source: page}\n"
        "  - {device: l4, provider: P, sku: one, devices: 1, commitment: on-demand, price: 0.5 $/h, date: 2026-11-02, source: page}\n"
        "  - {device: l4, provider: P, sku: four, devices: 4, commitment: on-demand, price: 2 $/h, date: 2026-11-02, source: page}\n"
    )
    return ("--set", "prices={}", "--set", f"prices.file={file}")


def fleet(capplan, *words, code=0):
    return capplan.result("fleet", SMALL, "--offline", *words, code=code)


@pytest.mark.long
def test_a_plan_costs_what_its_machines_cost(capplan, eight):
    by_the_piece = fleet(capplan)
    whole = fleet(capplan, *eight, "--hardware", "l40s")["chosen"]
    order = whole["order"]
    assert [(line["sku"], line["count"], line["gpus"]) for line in order["machines"]] == [
        ("eight", math.ceil(whole["gpus"] / 8), 8)
    ]
    assert order["usd_per_hour"] == whole["usd_per_hour"] == 8.0 * order["machines"][0]["count"]
    assert order["usd_per_month"] == pytest.approx(whole["usd_per_month"])
    assert order["gpus_idle"] == order["gpus"] - whole["gpus"]
    alone = next(plan for plan in by_the_piece["plans"] if plan["hardware"] == "l40s")
    assert whole["usd_per_month"] >= alone["usd_per_month"]
    pieces = by_the_piece["chosen"]["order"]
    assert (pieces["gpus"], pieces["gpus_idle"]) == (by_the_piece["chosen"]["gpus"], 0)
    assert pieces["machines"][0]["sku"] is None


def test_groups_and_order_are_those_of_the_interface(capplan, eight):
    for plan in fleet(capplan, *eight)["plans"]:
        (group,) = plan["groups"]
        for key in ("hardware", "replicas", "spare_replicas", "gpus", "tensor_parallel", "pipeline_parallel"):
            assert group[key] == plan[key]
        assert group["role"] == "serve"
        keys = {"sku", "provider", "region", "hardware", "gpus", "count", "usd_per_hour", "date", "source"}
        assert all(line.keys() == keys for line in plan["order"]["machines"])


def test_machines_that_are_there_are_filled_first(capplan, eight):
    own = ("--set", "fleet.own={8 x l40s: 1}", "--hardware", "l40s")
    bought, had = (
        fleet(capplan, *eight, "--hardware", "l40s")["chosen"],
        fleet(capplan, *eight, *own)["chosen"],
    )
    assert had["order"]["machines"][0]["provider"] == "own"
    assert had["usd_per_hour"] == bought["usd_per_hour"] - 8.0


@pytest.mark.long
@pytest.mark.parametrize("settings", [(), ("fleet.disaggregation=allowed",), ("fleet.mix=any",), ("growth={per_month: 40 %, months: 6}", "energy={}")])  # fmt: skip
def test_machines_that_cost_nothing_more_are_in_every_answer(capplan, tmp_path, settings):
    """All GPUs are there already: machines cost nothing, people still do, and nothing is divided by the price of the machines."""
    path = tmp_path / "s.yaml"
    path.write_text("""name: s
model: llama-3.1-8b
traffic: [{request_rate: 4 req/s, input_tokens: 900, output_tokens: 90}, {name: b, request_rate: 2 req/s, input_tokens: 3000, output_tokens: 90}]
slo: {ttft_p95: 2 s, tpot_p95: 60 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, own: {8 x h100-sxm: 3}}
prices: {people: 500 $/month}
""")
    words = ("--offline", *(word for key in settings for word in ("--set", key)))
    assert capplan.result("fleet", path, *words)["chosen"]["usd_per_month"] == 0.0
    bill = capplan.result("bill", path, *words)
    assert bill["usd_per_month"] == pytest.approx(500.0)
    compared = capplan.result("compare", path, *words, "--api", "openai/gpt-5-mini")  # fmt: skip
    assert compared["own"]["usd_per_month"] == pytest.approx(500.0)
    page = tmp_path / "page.md"
    assert capplan("report", path, *words, "-o", page).code == 0
    assert "**Use " in page.read_text()
    assert ", counted as free. " in page.read_text()
    assert "$0 per month" not in page.read_text()
    said = capplan("fleet", path, *words).out
    assert "nan" not in said
    assert "less than $0" not in said


def test_too_few_machines_are_said_in_one_line(capplan, eight):
    words = (*eight, "--hardware", "l40s", "--set", "fleet.max_machines={p5.48xlarge: 3}")
    assert fleet(capplan, *words)["chosen"]["order"]["machines"][0]["sku"] == "eight"
    none = fleet(
        capplan, "--set", "prices={}", "--hardware", "h100-sxm", "--set", "fleet.providers=[AWS]", "--set",
        "fleet.max_machines={p5.48xlarge: 0, p5.4xlarge: 0}", code=4,
    )  # fmt: skip
    reason = none["uneconomical"][0]["reason"]
    assert reason.startswith("the machines that may be ordered hold 0 GPUs, and it takes ")
    unlimited = fleet(
        capplan, "--set", "prices={}", "--hardware", "h100-sxm", "--set", "fleet.providers=[AWS]"
    )["chosen"]["order"]  # fmt: skip
    for line in unlimited["machines"]:
        assert f"{line['count']} x {line['sku']}" in reason


def test_a_replica_larger_than_any_machine_says_which_machine_would_do(capplan, eight):
    """16 GB of bf16 weights do not fit on one L4 with their cache: the smallest replica has two."""
    words = ("--set", "model=llama-3.1-8b", "--set", "max_model_len=131072", "--hardware", "l4", "--set", "slo={ttft_p95: 9 s}")  # fmt: skip
    none = fleet(capplan, *words, "--set", "prices={}", "--set", "fleet.machines=[g6.xlarge]", code=4)
    reason = none["uneconomical"][0]["reason"]
    said = re.match(
        r"its smallest replica has (\d+) GPUs, and the largest machine that may be ordered has 1: a machine of (\d+) would do", reason
    )  # fmt: skip
    assert said, reason
    assert said[1] == said[2] != "1"


def test_a_replica_over_two_servers_says_which_machines_and_network_would_do(capplan):
    """Stages of eight H100 in two servers: machines of one GPU hold no part of such a replica."""
    words = ("--set", "model=deepseek-v3", "--set", "max_model_len=8192", "--hardware", "h100-sxm", "--set", "slo={ttft_p95: 20 s}", "--set", "fleet.network=50 GB/s", "--set", "fleet.tensor_parallel=[8]", "--set", "fleet.pipeline_parallel=[2]")  # fmt: skip
    none = fleet(capplan, *words, "--set", "prices={}", "--set", "fleet.machines=[p5.4xlarge]", code=4)
    assert none["uneconomical"][0]["reason"].startswith(
        "its smallest replica has 16 GPUs, and the largest machine that may be ordered has 1: machines of 8 would do, with fleet.network between them;"
    )


def test_a_device_that_is_dear_for_its_whole_machines_says_so(capplan, tmp_path):
    """L40S in eights at the price of 160 L4: two machines, as one may fail, for the few GPUs that carry the peak."""
    file = tmp_path / "prices.yaml"
    file.write_text(
        "sources: {page: {title: page, url: 'https://example.org'}}\n"
        "prices:\n"
        "  - {device: l40s, provider: P, sku: eight, devices: 8, commitment: on-demand, price: 80 $/h, date: 2026-11-01, source: page}\n"
        "  - {device: l4, provider: P, sku: one, devices: 1, commitment: on-demand, price: 0.5 $/h, date: 2026-11-02, source: page}\n"
    )
    survive = ("--set", "fleet.spare_replicas=null", "--set", "fleet.survive={machine: 1}")
    words = ("--set", "prices={}", "--set", f"prices.file={file}", *survive)
    (row,) = fleet(capplan, *words)["uneconomical"]
    assert row["hardware"] == "l40s"
    said = re.fullmatch(
        r"16 GPUs at \$10\.00 an hour are bought instead of \d+ at \$0\.50; (\d+) carry the peak, its machines have 8 GPUs, and 1 machine may fail; .*", row["dear"]
    )  # fmt: skip
    assert said, row
    assert 1 <= int(said[1]) <= 8
    assert said[0] in capplan("fleet", SMALL, "--offline", *words, "--full").out


def test_machines_that_serve_nothing_and_machines_without_a_price_are_said(capplan):
    own = capplan(
        "fleet", SMALL, "--offline", "--hardware", "l40s", "--set", "fleet.own={NVIDIA DGX H100: 2}"
    )
    assert "fleet.own: NVIDIA DGX H100 serves nothing: fleet.hardware has no h100-sxm" in own.err
    unpriced = capplan(
        "fleet", SMALL, "--offline", "--hardware", "b200", "--set", "prices={}", "--set", "fleet.machines=[HGX B200 server (OEM)]"
    )  # fmt: skip
    assert (
        "no machine with b200 is listed on-demand for HGX B200 server (OEM), so its cost is left out"
        in unpriced.err
    )


def test_a_gpu_that_no_named_machine_has_is_not_planned(capplan):
    """A p5.48xlarge has H100: a B200 cannot be ordered in it, whatever it would cost elsewhere."""
    words = ("fleet", SMALL, "--offline", "--set", "prices={}", "--set", "fleet.machines=[p5.48xlarge]")
    both = capplan(*words, "--hardware", "h100-sxm", "--hardware", "b200", "--format", "json")
    found = json.loads(both.out)["result"]
    assert {plan["hardware"] for plan in found["plans"]} == {"h100-sxm"}
    (row,) = [row for row in found["uneconomical"] if row["hardware"] == "b200"]
    assert row["reason"] == "no machine that may be ordered has it: p5.48xlarge"
    assert "b200" not in both.err
    message = capplan.refused(*words, "--hardware", "b200")
    assert "fleet.hardware: b200: no machine that may be ordered has it: p5.48xlarge" in message
    assert "capplan list machines b200" in message


def test_a_gpu_with_a_price_by_hand_is_planned_whatever_machines_are_named(capplan):
    words = ("--hardware", "b200", "--set", "fleet.machines=[p5.48xlarge]")
    by_hand = ("--set", "prices={per_gpu_hour: {b200: 4 $/h}}", "--format", "json")
    assert {
        plan["hardware"] for plan in capplan.result("fleet", SMALL, "--offline", *words, *by_hand)["plans"]
    } == {"b200"}


def test_a_gpu_in_servers_that_are_there_is_planned_on_them_only(capplan):
    """One server of eight B200 is there, and none may be ordered."""
    words = ("--hardware", "b200", "--set", "prices={}", "--set", "fleet.machines=[p5.48xlarge]")
    words = (*words, "--set", "fleet.own={p6-b200.48xlarge: 1}", "--set", "fleet.spare_replicas=0")
    plans = capplan.result("fleet", SMALL, "--offline", *words)["plans"]
    assert {(plan["hardware"], plan["usd_per_hour"]) for plan in plans} == {("b200", 0.0)}


def test_own_servers_that_cannot_run_the_dtype_are_said_in_one_line(capplan):
    """A V100 has neither FP8 matrix units nor kernels that read FP8 weights."""
    ran = capplan(
        "fleet", SMALL, "--offline", "--format", "json", "--hardware", "v100-sxm-32gb",
        "--set", "prices={}", "--set", "weight_dtype=fp8", "--set", "fleet.own={8 x v100-sxm-32gb: 1}",
    )  # fmt: skip
    (row,) = json.loads(ran.out)["result"]["uneconomical"]
    assert (ran.code, row["hardware"]) == (4, "v100-sxm-32gb")
    assert "fp8" in row["reason"]


def test_an_order_says_what_its_price_list_leaves_out(capplan):
    """DigitalOcean states no region of its L40S; AWS states all; nobody lists a machine with L20."""
    words = ("--offline", "--hardware", "l40s", "--set", "prices={}")
    unstated = capplan("fleet", SMALL, *words, "--set", "fleet.providers=[DigitalOcean]", "--full").out
    assert "to order l40s, its region is missing in the price list of DigitalOcean" in unstated
    named = capplan("fleet", SMALL, *words, "--set", "fleet.providers=[AWS]")
    assert re.search(
        r"^order: \d+ x g6e\.xlarge at AWS, us-east-1, \$1\.86 per hour each, price of 2026-07-20$",
        named.out, re.MULTILINE,
    )  # fmt: skip


def test_a_price_that_holds_in_every_region_can_be_ordered(capplan, tmp_path):
    """Lambda has one price for an instance type: a price list that states that price of it has nothing left out, another price has."""
    words = ("--offline", "--hardware", "b200", "--set", "prices={provider: Lambda}")
    plan = tmp_path / "plan.json"
    assert capplan("fleet", SMALL, *words, "--set", "fleet.providers=[Lambda]", "-o", plan).code == 0
    placed = json.loads(plan.read_text())["result"]["chosen"]["order"]["machines"]
    assert {(line["provider"], line["region"], line["date"]) for line in placed} == {
        ("Lambda", "any region", "2026-09-20")
    }
    tasks = list(yaml.safe_load_all(capplan("export", "--plan", plan, "--target", "skypilot").out))
    assert {task["resources"]["infra"] for task in tasks} == {"lambda"}
    eight = sold_machines("b200", "on-demand", skus=["gpu_8x_b200_sxm6"])[0]
    scenario = read_scenario(
        SMALL, ["fleet.hardware=[b200]", "prices={provider: Lambda}", "fleet.tensor_parallel=[8]"]
    )
    machines = {item.gpus: item for item in machine_prices(scenario)[0]["b200"].machines}
    assert (machines[8].usd_per_hour, machines[8].unstated) == (eight.usd_per_hour, ())
    assert (machines[1].usd_per_hour, machines[1].unstated) == (6.99, ())


def test_an_order_is_said_in_one_line():
    """What is there already costs nothing; prices of the scenario have no line."""
    known = OrderLine(Machine("P", "two", "l4", 2, 3.0, "north", "2026-11-01", "page"), 2, 2)
    bare = OrderLine(Machine("Q", "", "l4", 1, 1.0, None, "2026-11-02", "page"), 4, 4)
    there = OrderLine(Machine("own", "4 x l4", "l4", 4, 0.0, most=1), 1, 4)
    assert lines_texts([bare, there]) == (
        "order: 4 x l4 at Q, $1.00 per hour each, price of 2026-11-02 (not stated: machine and region)",
    )
    assert lines_texts([there]) == ()
    assert [*used_texts([bare, there], powered=False)] == ["use: 1 x (4 x l4) of your own, counted as free"]
    assert [*used_texts([bare], powered=False)] == []
    larger = OrderLine(replace(known.machine, sku="four", gpus=4, usd_per_hour=6.0), 1, 1)
    assert lines_texts([known, larger]) == (
        "order: 2 x two ($3.00), 1 x four ($6.00) at P, north, per hour each, prices of 2026-11-01",
    )
    assert lines_texts([known]) == ("order: 2 x two at P, north, $3.00 per hour each, price of 2026-11-01",)
    assert lines_texts([replace(bare, machine=replace(bare.machine, source=""))]) == ()


def test_a_device_that_nobody_sells_there_has_no_plan(capplan):
    words = ("--offline", "--set", "prices={}", "--set", "fleet.providers=[CoreWeave]", "--full")
    ran = capplan("fleet", SMALL, *words)
    assert "l4 has no plan: no machine that may be ordered has it: CoreWeave" in ran.out


def test_a_plan_file_keeps_its_order_and_check_explain_and_export_read_it(capplan, eight, tmp_path):
    plan = tmp_path / "plan.json"
    assert capplan("fleet", SMALL, "--offline", *eight, "--hardware", "l40s", "-o", plan).code == 0
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    explained = capplan.result("explain", plan, "order.usd_per_hour", "--offline")
    assert explained["value"] == chosen["usd_per_hour"]
    assert [item["value"] for item in explained["inputs"]][:2] == [
        chosen["order"]["machines"][0]["count"],
        8.0,
    ]
    only = ("--set", "fleet.hardware=[l40s]")
    assert capplan("check", SMALL, "--offline", *eight, *only, "--plan", plan).code == 0
    bill = capplan.result("bill", "--plan", plan, "--offline")
    assert bill["usd_per_month"] == pytest.approx(chosen["usd_per_month"])


def test_bill_and_compare_state_the_order_that_they_pay(capplan, eight, tmp_path):
    """The lines of the plan file, in JSON and in words."""
    plan = tmp_path / "plan.json"
    assert capplan("fleet", SMALL, "--offline", *eight, "--hardware", "l40s", "-o", plan).code == 0
    order = json.loads(plan.read_text())["result"]["chosen"]["order"]
    said = f"order: {order['machines'][0]['count']} x eight at P, $8.00 per hour each, price of 2026-11-01 (not stated: region)"
    asked = ("--plan", plan, "--offline")
    compare = (*asked, "--api", "openai/gpt-5-mini")
    for command, words, keys in (("bill", asked, ()), ("compare", compare, ("own",))):
        result = capplan.result(command, *words)
        for key in keys:
            result = result[key]
        assert result["order"] == order
        assert said in " ".join(capplan(command, *words).out.split())


def test_check_and_diff_say_what_changed_at_the_provider(capplan, eight, tmp_path):
    """The provider sells L40S in another machine at another price: the plan is no longer one, and its order differs."""
    before, after, file = tmp_path / "before.json", tmp_path / "after.json", tmp_path / "later.yaml"
    listed = Path(eight[3].removeprefix("prices.file=")).read_text()
    file.write_text(
        re.sub("sku: eight, devices: 8, (.*)price: 8", r"sku: octet, devices: 8, \1price: 9", listed)
    )
    only = ("--set", "fleet.hardware=[l40s]")
    now = (*only, "--set", "prices={}", "--set", f"prices.file={file}")
    assert capplan("fleet", SMALL, "--offline", *only, *eight, "-o", before).code == 0
    assert capplan("fleet", SMALL, "--offline", *now, "-o", after).code == 0
    ran = capplan("check", SMALL, "--offline", *now, "--plan", before, "--format", "json")
    result = json.loads(ran.out)["result"]
    (row,) = [row for row in result["checks"] if row["what"] == "machine eight at P"]
    assert (ran.code, row["value"], row["holds"]) == (4, None, False)
    changed = capplan.result("diff", before, after)
    moved = {item["path"]: (item["before"], item["after"]) for item in changed["changes"]}
    assert moved["plan.order.machines[0].sku"] == ("eight", "octet")
    assert moved["plan.order.machines[0].usd_per_hour"] == (8.0, 9.0)


def test_lists_and_machines_are_shown(capplan):
    rows = capplan.result("list", "machines", "p5")["rows"]
    assert {row["sku"] for row in rows} >= {"p5.48xlarge", "p5.4xlarge"}
    one = capplan.result("hardware", "p5.48xlarge")
    assert (one["hardware"], one["gpus"]) == ("h100-sxm", 8)
    assert one["offers"][0]["source"].startswith("https://")


@pytest.mark.long
def test_random_small_fleets_cost_no_more_than_any_order_of_any_layout(capplan, eight):
    """Brute force: each layout with the replicas of its plan, in every combination of machines of its device."""
    random.seed(4)
    for rate in (3, 40, 90):
        answer = fleet(capplan, *eight, "--set", f"traffic[0].request_rate={rate} req/s")
        for plan in answer["plans"]:
            sizes = ((8, 8.0),) if plan["hardware"] == "l40s" else ((1, 0.5), (4, 2.0))
            able = [
                (gpus // plan["gpus_per_replica"], usd)
                for gpus, usd in sizes
                if gpus >= plan["gpus_per_replica"]
            ]
            least = every_survivor(
                plan["replicas"], [c for c, _ in able], [p for _, p in able], [None] * len(able), 0
            )
            assert plan["usd_per_hour"] == pytest.approx(least)
        assert answer["chosen"]["usd_per_hour"] <= 1.05 * min(
            plan["usd_per_hour"] for plan in answer["plans"]
        )


POOLS = """name: p
model: meta-llama/Llama-3.1-70B-Instruct
weight_dtype: fp8
kv_dtype: fp8
traffic: [{name: agent, request_rate: 9 req/s, input_tokens: {mean: 1500, p95: 3000}, output_tokens: {mean: 250, p95: 600}}]
slo: {ttft_p95: 760 ms, tpot_p95: 20 ms}
fleet: {hardware: [h100-sxm], tensor_parallel: [1, 2, 4, 8], pipeline_parallel: 1, disaggregation: only, kv_link: infiniband-ndr}
"""


def test_of_pools_with_as_many_gpus_those_are_planned_whose_machines_cost_less():
    """Ten GPUs either way: prefill on 6 x 1 in a four and two ones at $13.20 an hour, or on 3 x 2 in two fours at $16."""
    asked = asked_in(POOLS)
    machines = (Machine("P", "four", "h100-sxm", 4, 8.0), Machine("P", "one", "h100-sxm", 1, 2.6))
    price = replace(price_by_hand(2.0), machines=machines)
    terms = replace(terms_of(asked), prices={"h100-sxm": price}, survive=NO_LOSS)
    question = replace(asked.question, requests=1500)
    (plan,), _ = pools_decision(question, asked.scenario.fleet.pools, terms, beyond=False)
    layouts = [(group.gpus_per_replica, group.replicas) for group in plan.groups]
    assert (plan.usd_per_hour, layouts) == (pytest.approx(21.2), [(1, 6), (4, 1)])


def test_an_order_is_exported_for_skypilot_and_named_in_every_export(capplan, eight, tmp_path):
    plan = tmp_path / "plan.json"
    at_aws = ("--set", "prices={}", "--hardware", "l40s", "--set", "fleet.providers=[AWS]")
    assert capplan("fleet", SMALL, "--offline", *at_aws, "-o", plan).code == 0
    machines = json.loads(plan.read_text())["result"]["chosen"]["order"]["machines"]
    tasks = list(yaml.safe_load_all(capplan("export", "--plan", plan, "--target", "skypilot").out))
    assert [
        (task["resources"]["infra"], task["resources"]["instance_type"], task["num_nodes"]) for task in tasks
    ] == [(f"aws/{line['region']}", line["sku"], line["count"]) for line in machines]
    manifest = capplan("export", "--plan", plan, "--target", "k8s").out
    assert f"# order: {machines[0]['count']} x {machines[0]['sku']}" in manifest
    (deployment,) = (item for item in yaml.safe_load_all(manifest) if item["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert terms[0]["matchExpressions"][0]["values"] == [line["sku"] for line in machines]
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    pieces = tmp_path / "pieces.json"
    assert capplan("fleet", SMALL, "--offline", "-o", pieces).code == 0
    assert "is not a machine that SkyPilot starts" in capplan.refused(
        "export --plan", pieces, "--target", "skypilot"
    )


def test_machines_that_are_planned_on_spot_are_started_on_spot(capplan, tmp_path):
    """GCP's L4 at less than half of its price on demand: SkyPilot started it on demand."""
    plan, words = tmp_path / "plan.json", ("--hardware", "l4", "--set", "fleet.providers=[GCP]")
    for commitment, spot in (("spot", True), ("on-demand", None)):
        paid = ("--set", f"prices={{commitment: {commitment}}}")
        assert capplan("fleet", SMALL, "--offline", *words, *paid, "-o", plan).code == 0
        (task,) = yaml.safe_load_all(capplan("export", "--plan", plan, "--target", "skypilot").out)
        assert task["resources"].get("use_spot") is spot
        plan.unlink()


@pytest.mark.parametrize(
    ("sku", "network", "said"), [("a3-highgpu-8g", "50 GB/s", "15.6"), ("a3-highgpu-8g", "15 GB/s", None), ("p5.48xlarge", "50 GB/s", None)]
)  # fmt: skip
def test_a_network_that_is_slower_than_the_plan_counts_on_is_said(capplan, sku, network, said):
    """Eight GPUs of GCP's A3 High share 1,000 Gb/s, 15.6 GB/s for each; those of a p5.48xlarge 3,200 Gb/s, 50 GB/s for each."""
    keys = (f"fleet.machines=[{sku}]", f"fleet.network={network}", "fleet.tensor_parallel=[8]", "fleet.pipeline_parallel=[2]", "prices={}")  # fmt: skip
    words = ("--offline", "--hardware", "h100-sxm", *(word for key in keys for word in ("--set", key)))
    for full in ((), ("--full",)):
        shown = " ".join(capplan("fleet", SMALL, *words, *full).out.split())
        text = f"the network of {sku} carries {said} GB/s for each GPU, and the plan counts on 50 GB/s"
        assert (text in shown) == bool(said)
        assert ("the network of" in shown) == bool(said)


def test_servers_are_joined_by_the_network_of_the_machines_that_are_ordered(capplan):
    """A replica of 16 GPUs over two a3-highgpu-8g counts on 15.6 GB/s for each, as if fleet.network said so."""
    keys = (
        "fleet.machines=[a3-highgpu-8g]",
        "fleet.tensor_parallel=[8]",
        "fleet.pipeline_parallel=[2]",
        "prices={}",
    )
    words = ("--offline", "--hardware", "h100-sxm", *(word for key in keys for word in ("--set", key)))
    answers = {}
    for network in ("", "15.625 GB/s", "50 GB/s"):
        own = ("--set", f"fleet.network={network}") if network else ()
        said = json.loads(capplan("fleet", SMALL, *words, *own, "--format", "json").out)
        answers[network] = said["result"]["chosen"]
    ordered, stated, usual = answers.values()
    assert ordered["ttft_s"] == stated["ttft_s"]
    assert ordered["ttft_s"]["p95"] > usual["ttft_s"]["p95"]
    shown = " ".join(capplan("fleet", SMALL, *words, "--assumptions").out.split())
    assert "servers of h100-sxm are joined as those of a3-highgpu-8g are: 15.6 GB/s for each GPU" in shown
    assert "the network of" not in shown


SINGLES = """name: p
model: llama-3.1-8b
weight_dtype: fp8
traffic: [{name: agent, request_rate: 9 req/s, input_tokens: {mean: 1500, p95: 3000}, output_tokens: {mean: 250, p95: 600}}]
slo: {ttft_p95: 1.5 s, tpot_p95: 40 ms}
fleet: {hardware: [l40s], tensor_parallel: [1], pipeline_parallel: 1, disaggregation: only, providers: [AWS]}
"""


def test_caches_that_go_between_slower_machines_than_the_plan_counts_on_are_said(capplan, tmp_path):
    """Pools of single GPUs: a g6e.xlarge carries 2.5 GB/s, and eight L40S of a g6e.48xlarge, which replicas over servers take, 6.25 GB/s each."""
    scenario = tmp_path / "pools.yaml"
    scenario.write_text(SINGLES, encoding="utf-8")
    shown = " ".join(capplan("fleet", scenario, "--offline").out.split())
    said = "the network of g6e.xlarge carries 2.5 GB/s for each GPU, and the plan counts on 6.25 GB/s"
    assert f"{said}: plan with fleet.network: 2.5 GB/s" in shown
    slower = " ".join(capplan("fleet", scenario, "--offline", "--set", "fleet.network=2.5 GB/s").out.split())
    assert "the network of" not in slower


@pytest.mark.parametrize(("span", "busy", "lots"), [
    (1, 1, 1), (1, 17, 1), (1, 18, 2), (2, 8, 1), (2, 9, 2), (8, 1, 1), (8, 2, 2), (10, 1, 2), (16, 2, 3), (18, 1, 2), (20, 1, 4),
])  # fmt: skip
def test_replicas_and_a_spare_stand_in_whole_racks_and_none_in_two(span, busy, lots):
    rack = Machine("P", "node", "gpu", 4, 42.0, sold_by=18)
    order = order_of((rack,), 4 * span, 4, busy, Survival("machine", 1))
    (line,) = order.lines
    assert (line.count, order.usd_per_hour) == (18 * lots, 42.0 * 18 * lots)
    assert order.busy + order.spares == busy + 1
    assert line.replicas >= busy + 1
    assert line.replicas * span <= line.count
    assert sum(item.machines * item.replicas // item.span for item in order.placed()) == busy + 1


def test_a_small_order_goes_to_whoever_sells_single_servers_and_a_large_one_to_whoever_sells_racks():
    rack = Machine("P", "node", "gpu", 4, 42.0, date="2026-11-01", sold_by=18)
    single = Machine("Q", "vm", "gpu", 4, 108.0, date="2026-11-01")
    price = replace(price_by_hand(1.0), machines=(rack, single), at_one_provider=True)
    for busy, seller, usd in (
        (1, "Q", 108.0),
        (6, "Q", 648.0),
        (8, "P", 756.0),
        (18, "P", 756.0),
        (19, "P", 1512.0),
    ):
        order = price.order(4, 4, busy)
        assert ({line.machine.provider for line in order.lines}, order.usd_per_hour) == ({seller}, usd), busy
    costs = [price.order_usd_per_hour(4, 4, busy) for busy in range(1, 80)]
    assert costs == sorted(costs)
    assert all(price.least_usd_per_hour(4, 4, 4.0 * busy) <= usd for busy, usd in enumerate(costs, start=1))


def test_a_provider_of_racks_and_of_single_servers_sells_what_costs_less():
    kinds = tuple(
        Machine("P", sku, "gpu", 4, usd, sold_by=lot)
        for sku, usd, lot in (("node", 42.0, 18), ("vm", 108.0, 1))
    )
    costs = [order_of(kinds, 4, 4, busy).usd_per_hour for busy in range(1, 40)]
    assert costs[:8] == [108.0 * busy for busy in range(1, 8)] + [756.0]
    assert costs == sorted(costs)


def test_a_rack_that_is_sold_whole_is_ordered_whole_and_the_first_line_costs_that(tmp_path):
    scenario = tmp_path / "racks.yaml"
    scenario.write_text(
        "name: racks\nmodel: openai/gpt-oss-120b\n"
        "traffic:\n  - {request_rate: 60 req/s, input_tokens: 1500, output_tokens: 300}\n"
        "slo: {ttft_p95: 2 s, tpot_p95: 50 ms}\nfleet: {hardware: [gb200], providers: [CoreWeave]}\n",
        encoding="utf-8",
    )
    asked = asked_of(scenario)
    plan = fleet_for(asked).chosen
    (line,) = plan.order.lines
    assert (line.machine.sku, line.count, line.machine.region) == ("gb200-4x", 18, "US-EAST-01A")
    assert plan.usd_per_month == pytest.approx(730 * 18 * 42.0)
    assert plan.order.gpus_idle == 72 - plan.gpus
    (ordered,) = lines_texts(plan.order.lines)
    assert "18 x gb200-4x (sold 18 at once) at CoreWeave, US-EAST-01A, $42.00 per hour each" in ordered
