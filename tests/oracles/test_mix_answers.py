"""What commands say of a mix: each group like a fleet of its requests, sized with the others, and the whole like the sum of the groups."""

import csv
import json
import re
from collections import defaultdict

import pytest

from capplan.explain.plans import Planned
from capplan.explain.printed import printed
from capplan.questions.fleet import part_of
from capplan.questions.plans.plan_file import answered, asked_of_plan
from capplan.questions.plans.plan_verification import planned
from tests.asked import asked_of
from tests.files import written_to
from tests.plan_files import choice, fleet_plan

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
CHAT = "{name: chat, request_rate: 100 req/s, input_tokens: 200, output_tokens: 60}"
DOCUMENTS = "{name: documents, request_rate: 3 req/s, input_tokens: 8000, output_tokens: 100}"
TEXT = """name: saving
model: meta-llama/Llama-3.1-8B-Instruct
traffic: [CLASSES]
slo: {ttft_p99: 2 s, tpot_p99: 100 ms, confidence: 50 %}
fleet: {hardware: [l4, h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, headroom: 0 %, survive: {machine: 0}, mix: classes}
prices: {per_gpu_hour: {l4: 0.1 $/h, h100-sxm: 4 $/h}}
"""


def written(folder, classes=f"{CHAT}, {DOCUMENTS}", more=""):
    return written_to(folder / "saving.yaml", TEXT.replace("CLASSES", classes) + more)


def fleet(capplan, path, *words):
    return capplan.result("fleet", path, "--offline", *words, code=(0, 4))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """The plan file of chats on small GPUs beside documents on large ones."""
    return fleet_plan(written(tmp_path_factory.mktemp("mixed")))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The plan file of the chats alone."""
    path = written(tmp_path_factory.mktemp("alone"), CHAT)
    return fleet_plan(path, "--set", "fleet.mix=off", "--hardware", "l4")


def test_a_group_is_explained_like_the_fleet_of_its_requests(plan, alone):
    mixed, single = (Planned(*answered(path, None, offline=True)) for path in (plan, alone))
    for name in ("ttft_s.p95", "tpot_s.mean", "request_rate_limit_per_replica", "kv_bytes_per_token", "usd_per_month"):  # fmt: skip
        mine, own = printed(mixed, f"groups[0].{name}"), printed(single, name)
        assert mine.formula == own.formula, name
        assert name != "kv_bytes_per_token" or mine.value == own.value


CURVE = ", daily_curve: office}"
MORE = "energy: {grid: 300 g/kWh}\ngrowth: {per_month: 30 %, months: 2}\ncommitments: {reserved_1y: {discount: 30 %}}\n"


@pytest.mark.parametrize(
    ("more", "groups"),
    [
        ("", ("bill",)),
        pytest.param("", (None, "plans"), marks=pytest.mark.long),
        pytest.param(MORE, ("energy", "growth", "commitments"), marks=pytest.mark.long),
    ],
)
def test_every_number_of_a_mix_is_explained_as_it_is_printed(tmp_path, more, groups):
    """And every input that is explained further leads to another number."""
    path = written(
        tmp_path, f"{CHAT[:-1]}{CURVE}, {DOCUMENTS[:-1]}{CURVE}" if more else f"{CHAT}, {DOCUMENTS}", more
    )
    of_plan = Planned(*answered(fleet_plan(path), None, offline=True))
    known = printed(of_plan, None)
    for group in groups:
        numbers = printed(of_plan, group)
        assert numbers
        for name, value in numbers.items():
            item = printed(of_plan, name)
            assert (item.quantity, item.value) == (name, pytest.approx(value)), name
            for given in item.inputs:
                path = given.source.removeprefix("explain ").split(",")[0].split(";")[0].split()[0]
                if given.source.startswith("explain ") and path not in known | numbers:
                    assert printed(of_plan, path).quantity == path


@pytest.mark.long
def test_a_report_has_each_group_of_a_mix(capplan, plan, alone):
    ran = capplan("report", "--plan", plan, "--offline", "--format", "markdown")
    assert ran.code == 0, ran.err
    for heading in ("Memory of one GPU: chat", "Roofline: documents", "Where the time goes: documents", "### documents"):  # fmt: skip
        assert heading in ran.out
    mixed = capplan.result("report", "--plan", plan, "--offline")
    single = capplan.result("report", "--plan", alone, "--offline")
    tables, own = ({part["title"]: part["tables"] for part in found["sections"]} for found in (mixed, single))
    assert tables["Memory of one GPU: chat"][0] == own["Memory of one GPU"][0]
    assert tables["Number of replicas"][0][0].keys() == own["Number of replicas"][0][0].keys()
    chosen = mixed["chosen"]
    assert sum(table[0]["devices"] for table in tables["Number of replicas"]) == chosen["gpus"]
    today = next(row for row in mixed["what_if"] if row["traffic_ratio"] == 1.0)
    assert (today["gpus"], today["usd_per_month"]) == (chosen["gpus"], pytest.approx(chosen["usd_per_month"]))


def test_the_traffic_and_the_speed_of_a_mix_turn_group_by_group(capplan, tmp_path, plan):
    page = capplan.result("report", "--plan", plan, "--offline")
    swings = next(part for part in page["sections"] if part["title"] == "What moves the number")["tables"][0]
    more = next(row for row in swings if (row["what"], row["if_it_is"]) == ("traffic", "+20%"))
    busier = []
    for name, hardware, rate in ((CHAT, "l4", "100"), (DOCUMENTS, "h100-sxm", "3")):
        grown = name.replace(f"{rate} req/s", f"{1.2 * float(rate):g} req/s")
        found = fleet(capplan, written(tmp_path, grown), "--hardware", hardware, "--set", "fleet.mix=off")
        busier.append(choice(found, "cheapest"))
    assert more["gpus"] == sum(each["gpus"] for each in busier)
    assert more["usd_per_month"] == pytest.approx(sum(each["usd_per_month"] for each in busier))


def test_a_bill_of_a_mix_in_focus_adds_up_whatever_its_rows_are_of(capplan, plan, tmp_path):
    totals = []
    for by in ("class", "machine"):
        out = tmp_path / f"{by}.csv"
        assert capplan("bill", "--plan", plan, "--offline", "--focus", out, "--by", by).code == 0
        rows = list(csv.DictReader(out.open()))
        totals.append(sum(float(row["BilledCost"]) for row in rows))
        prices = defaultdict(set)
        for row in rows:
            prices[row["SkuPriceId"]].add(row["ListUnitPrice"])
        assert all(len(each) == 1 for each in prices.values())
        if by == "class":
            gpus = defaultdict(float)
            for row in rows:
                gpus[row["x_Hardware"]] += float(row["x_Gpus"])
            groups = json.loads(plan.read_text())["result"]["chosen"]["groups"]
            assert gpus == {group["hardware"]: pytest.approx(group["gpus"]) for group in groups}
            assert sum(float(row["x_GpuTimeShare"]) for row in rows) == pytest.approx(1.0)
    assert totals[0] == pytest.approx(totals[1])


def test_a_replica_of_a_group_is_verified_with_the_requests_of_the_group(capplan, plan, alone, tmp_path):
    measured = tmp_path / "result.json"
    measured.write_text(
        json.dumps(
            {
                "backend": "vllm", "num_prompts": 400, "completed": 400, "duration": 60.0, "request_rate": 6.7,
                "total_input_tokens": 80_000, "total_output_tokens": 24_000, "mean_ttft_ms": 150.0, "mean_tpot_ms": 80.0,
            }
        )
    )  # fmt: skip

    def verified(path, *more):
        return capplan.result(
            "verify-plan", "--plan", path, "--results", measured, "--offline", *more, code=(0, 4)
        )

    mixed, single = verified(plan, "--group", 1), verified(alone)
    assert mixed["rows"] == single["rows"]
    assert verified(plan, "--group", 2)["rows"] != single["rows"]
    assert not any("traffic" in setting for setting in mixed["next_settings"])
    for path, words, said in (
        (plan, (), "give --group: 1 (chat on l4), 2 (documents on h100-sxm)"),
        (plan, ("--group", 3), "give --group: 1 (chat on l4), 2 (documents on h100-sxm)"),
        (alone, ("--group", 1), "are alike; leave it out"),
    ):
        ran = capplan("verify-plan", "--plan", path, "--results", measured, "--offline", *words)
        assert (ran.code, said in ran.err, ran.err.count("\n")) == (2, True, 1), ran.err


def test_the_question_of_a_group_is_that_of_its_requests(plan):
    asked, of_group = planned(plan, 2, offline=True)
    whole, _ = asked_of_plan(None, plan, offline=True)
    assert [item.name for item in asked.question.demand.classes] == ["documents"]
    assert of_group.single.layout.device.name == "h100-sxm"
    assert whole.question.demand.lengths.input_tokens != asked.question.demand.lengths.input_tokens


def test_a_budget_counts_all_groups_of_a_mix(capplan, tmp_path):
    """Between the mix and the cheapest fleet of one kind only the mix is within it; below the mix nothing is."""
    path = written(tmp_path)
    free = fleet(capplan, path)
    mix, single = free["chosen"]["usd_per_month"], choice(free, "fewest")["usd_per_month"]
    assert mix < single
    within = fleet(capplan, path, "--set", f"budget={{usd_per_month: {(mix + single) / 2:.2f}}}")
    assert within["chosen"] == free["chosen"]
    assert [each["usd_per_month"] for each in within["plans"]] == [mix]
    assert all((row["usd_per_month"] or 0.0) <= single for row in within["certainty"])
    over = fleet(capplan, path, "--set", f"budget={{usd_per_month: {0.9 * mix:.2f}}}")
    assert (over["chosen"], over["plans"]) == (None, [])
    assert (
        fleet(capplan, path, "--set", f"budget={{usd_per_month: {10 * single:.2f}}}")["plans"]
        == free["plans"]
    )


@pytest.mark.long
def test_commitments_of_a_mix_are_those_of_its_groups(capplan, tmp_path):
    terms = "commitments={reserved_1y: {discount: 30 %}}"
    found = fleet(capplan, written(tmp_path, f"{CHAT[:-1]}{CURVE}, {DOCUMENTS[:-1]}{CURVE}"), "--set", terms)
    parts = [
        fleet(capplan, written(tmp_path, f"{name[:-1]}{CURVE}"), "--hardware", hardware, "--set", "fleet.mix=off", "--set", terms)
        for name, hardware in ((CHAT, "l4"), (DOCUMENTS, "h100-sxm"))
    ]  # fmt: skip
    assert found["chosen"]["hardware"] == "l4 + h100-sxm"
    assert {row["pool"] for row in found["commitments"]["rows"]} == {"chat", "documents"}
    apart = sum(part["commitments"]["usd_per_month"] for part in parts)
    assert 0.5 * apart < found["commitments"]["usd_per_month"] <= apart * (1.0 + 1e-6)


def test_adapters_cost_each_group_by_the_length_of_its_prompts(capplan, tmp_path):
    lora = "lora: {adapters: 20, max_lora_rank: 16}\n"
    found = fleet(capplan, written(tmp_path, more=lora))
    for part, (name, hardware) in zip(
        found["mix"]["parts"], ((CHAT, "l4"), (DOCUMENTS, "h100-sxm")), strict=True
    ):
        own = fleet(capplan, written(tmp_path, name, lora), "--hardware", hardware, "--set", "fleet.mix=off")
        plan = choice(own, "cheapest")
        assert part["plan"]["hardware"] == plan["hardware"]
        assert part["plan"]["replicas"] <= plan["replicas"]  # the other requests may make up for some


def test_only_the_group_that_gets_images_reads_them():
    """Two classes, one with screenshots: the replicas of the other have nothing to do in the vision tower."""
    text = {"name": "text", "request_rate": "20 req/s", "input_tokens": 150, "output_tokens": 160}
    seen = {**text, "name": "seen", "images": {"count": 2, "width": 1920, "height": 1080}}

    def asked_with(*classes):
        return asked_of("screenshots", f"traffic={json.dumps(classes)}")

    both = asked_with(text, seen)
    for item, written_as in zip(both.scenario.classes, (text, seen), strict=True):
        (mine,) = part_of(both, (item,)).question.networks.values()
        (own,) = asked_with(written_as).question.networks.values()
        assert [work.per_prompt_token for work in mine.image_work] == pytest.approx(
            [work.per_prompt_token for work in own.image_work]
        )
        assert bool(mine.image_work) == ("images" in written_as)


DRAFTS = "speculation: {method: ngram, acceptance: 70 %}\n"


@pytest.mark.long
def test_each_group_of_a_mix_drafts_like_the_fleet_of_its_requests_alone(capplan, tmp_path):
    found = fleet(capplan, written(tmp_path, more=DRAFTS))
    assert found["chosen"]["usd_per_month"] <= fleet(capplan, written(tmp_path, more=DRAFTS), "--set", "fleet.mix=off")["chosen"]["usd_per_month"]  # fmt: skip
    counts = []
    for group, (name, hardware) in zip(
        found["chosen"]["groups"], ((CHAT, "l4"), (DOCUMENTS, "h100-sxm")), strict=True
    ):
        own = fleet(
            capplan, written(tmp_path, name, DRAFTS), "--hardware", hardware, "--set", "fleet.mix=off"
        )
        plan = choice(own, "cheapest")
        assert (group["hardware"], group["draft_tokens"]) == (plan["hardware"], plan["draft_tokens"])
        assert group["replicas"] <= plan["replicas"]
        counts.append(group["draft_tokens"])
    assert all(counts)
    assert found["chosen"]["draft_tokens"] == (counts[0] if len(set(counts)) == 1 else None)


def test_with_one_kind_listed_a_mix_that_drafts_is_that_plan(capplan, tmp_path):
    path = written(tmp_path, more=DRAFTS)
    mix, plain = (
        fleet(capplan, path, "--hardware", "h100-sxm", "--set", f"fleet.mix={by}") for by in ("any", "off")
    )
    assert (mix["chosen"], mix["mix"]["reason"]) == (
        plain["chosen"],
        "h100-sxm is the only kind of GPU listed",
    )


def test_a_mix_that_drafts_is_read_again_simulated_and_exported_group_by_group(capplan, tmp_path):
    path, plan = written(tmp_path, more=DRAFTS), tmp_path / "plan.json"
    assert capplan("fleet", path, "--offline", "-o", plan).code == 0
    chosen = json.loads(plan.read_text())["result"]["chosen"]
    drafts = [group["draft_tokens"] for group in chosen["groups"]]
    again = asked_of_plan(None, plan, offline=True)[1].chosen
    assert [group.draft_tokens for group in again.groups] == drafts
    text = capplan("export", "--plan", plan, "--target", "vllm").out
    assert [int(count) for count in re.findall(r'"num_speculative_tokens": ?([0-9]+)', text)] == drafts
    simulated = capplan.result("simulate", path, "--plan", plan, "--offline", "--until", "3 min")
    assert simulated["slo_met_fraction"] > 0.9
    yields = [1 + sum(0.7**place for place in range(1, count + 1)) for count in drafts]
    assert min(yields) <= simulated["tokens_per_step"] <= max(yields)
    explained = capplan("explain", plan, "groups[0].tpot_s.p95", "--format", "json")
    assert explained.code == 0, explained.err
