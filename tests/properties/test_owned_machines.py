"""Machines that are there already: owning more is never dearer, each is used or unused with a reason, and no figure of an answer calls it ordered."""

import csv
import io
import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from capplan.assumption import Assumption
from capplan.money.order import OWN, Machine, Survival
from capplan.money.price import ChosenPrice
from capplan.questions.fleet_answer import fleet_for
from capplan.report.answers.fleet import fleet_answer
from capplan.review.evidence import _devices_rows
from tests.asked import asked_of
from tests.sweeps import examples

pytestmark = pytest.mark.usefixtures("few_requests", "shared_runs")
SIZES = (1, 2, 4, 8)
SURVIVE = st.builds(
    Survival, st.sampled_from(["replica", "machine", "zone"]), st.integers(0, 2), zones=st.integers(3, 4)
)


@st.composite
def priced(draw):
    """A GPU in machines of some sizes at prices of their own, of which some are limited, with electricity or without."""
    sold = tuple(
        Machine("P", f"sku {gpus}", "h100-sxm", gpus, gpus * draw(st.floats(1.0, 4.0)), most=draw(st.none() | st.integers(0, 4)))
        for gpus in draw(st.sets(st.sampled_from(SIZES), min_size=1))
    )  # fmt: skip
    energy = draw(st.none() | st.floats(0.01, 3.0))
    return ChosenPrice(
        2.0, "on-demand", (), 0, None, None, Assumption("a", "b"), energy_usd_per_hour=energy, machines=sold
    )


def with_owned(price, gpus, count):
    there = Machine(OWN, f"{gpus} x h100-sxm", "h100-sxm", gpus, 0.0, most=count)
    return price.__class__(
        **{
            **{name: getattr(price, name) for name in price.__dataclass_fields__},
            "machines": (there, *price.machines),
        }
    )


@given(
    priced(),
    st.sampled_from(SIZES),
    st.integers(0, 6),
    st.sampled_from((1, 2, 4)),
    st.integers(1, 12),
    SURVIVE,
)
def test_owning_more_is_never_dearer_and_no_order_has_more_than_there_are(
    price, size, owned, each, busy, survive
):
    """One replica in a machine of eight whose electricity is dearer than a rented GPU is left out; three zones share two machines."""
    costs = []
    for count in (0, owned, owned + 1):
        had = with_owned(price, size, count)
        costs.append(had.order_usd_per_hour(each, 8, busy, survive=survive))
        order = had.order(each, 8, busy, survive)
        for line in order.lines if order else ():
            limits = [item.most for item in had.machines if item.sku == line.machine.sku]
            assert limits[0] is None or line.count <= limits[0]
    assert costs[1] <= costs[0] * (1 + 1e-9)
    assert costs[2] <= costs[1] * (1 + 1e-9)


SCENARIO = """name: small
model: meta-llama/Llama-3.1-8B-Instruct
traffic: [{{{traffic}, input_tokens: 400, output_tokens: 150}}]
slo: {{ttft_p95: 2 s, tpot_p95: 100 ms, confidence: 50 %}}
fleet: {{hardware: [l40s, h100-sxm], tensor_parallel: 1, pipeline_parallel: 1, headroom: 0 %, survive: {{machine: 0}}, mix: {mix}, own: {own}}}
prices: {{file: prices.yaml}}
"""
PRICES = """sources: {page: {title: page, url: 'https://example.org'}}
prices:
  - {device: l40s, provider: P, sku: g6e.12xlarge, devices: 4, commitment: on-demand, price: 6 $/h, date: 2026-11-01, source: page}
  - {device: h100-sxm, provider: P, sku: one, devices: 1, commitment: on-demand, price: 2 $/h, date: 2026-11-02, source: page}
"""
ORDERED_OWN = re.compile(
    r"(order|rent|buy)[^;.\n]* of your own|an unknown day|for \$0 |\$0\.00", re.IGNORECASE
)
"""What no answer says of machines that are there already."""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    path = tmp_path_factory.mktemp("owned") / "small.yaml"
    (path.parent / "prices.yaml").write_text(PRICES)

    def written(traffic="request_rate: 60 req/s", own="{}", mix="off"):
        path.write_text(SCENARIO.format(traffic=traffic, own=own, mix=mix))
        return path

    return written


def found(path):
    asked = asked_of(path)
    answer = fleet_for(asked)
    return asked, answer, fleet_answer(asked, answer)


@pytest.mark.long
@given(
    st.sampled_from(("request_rate: 60 req/s", "request_rate: 400 req/s", "users: 900, think_time: 6 s")),
    st.dictionaries(st.sampled_from(("4 x l40s", "8 x h100-sxm", "1 x h100-sxm", "8 x b200")), st.integers(1, 3), min_size=1),
    st.sampled_from(("off", "shares", "any")),
)  # fmt: skip
@settings(max_examples=examples(8, 40), deadline=None)
@example("request_rate: 400 req/s", {"8 x h100-sxm": 3}, "off")
@example("users: 900, think_time: 6 s", {"4 x l40s": 1}, "shares")
def test_every_owned_machine_is_used_or_unused_with_a_reason(scenario, traffic, own, mix):
    words = "{" + ", ".join(f"{name}: {count}" for name, count in own.items()) + "}"
    _, answer, shown = found(scenario(traffic, words, mix))
    _, without, _ = found(scenario(traffic, "{}", mix))
    assert answer.choices.cheapest.usd_per_hour <= without.choices.cheapest.usd_per_hour * (1 + 1e-9)
    chosen, rows = shown.result["chosen"], shown.result["owned"]
    used = {line["sku"]: line["count"] for line in chosen["order"]["machines"] if line["provider"] == OWN}
    assert {row["machine"]: row["machines"] for row in rows} == own
    assert used == {row["machine"]: row["used"] for row in rows if row["used"]}
    for row in rows:
        assert row["used"] + row["unused"] == row["machines"]
        assert bool(row["unused"]) == bool(row["reason"]), row
    assert sum(row["used"] * row["gpus"] for row in rows) == chosen["order"]["gpus_owned"]
    placed = chosen["order"]["placement"]
    assert sum(row["replicas"] for row in rows) == sum(
        item["machines"] * item["replicas"] for item in placed if item["sku"] in own
    )
    screen = "\n".join((shown.first_screen.headline, *shown.first_screen.closing))
    for row in rows:
        name = "h100-sxm of your own" if row["gpus"] == 1 else f"({row['machine']}) of your own"
        for word in ("used", "unused"):
            said = f"{'use' if word == 'used' else word}: {row[word]} x {name}"
            assert (said in screen) == bool(row[word]), screen
    assert not ORDERED_OWN.search(screen), screen
    assert any(plan == answer.chosen for plan in answer.plans)
    for plan in answer.plans:
        devices = [
            row
            for group in plan.groups
            for row in _devices_rows(plan, group, "", powered=False, of_job=False)
        ]
        assert sum(row["usd_per_hour"] for row in devices) == pytest.approx(plan.usd_per_hour)
        for row in devices:
            assert row["gpus"] * row["usd_per_gpu_hour"] == pytest.approx(row["usd_per_hour"])


@pytest.mark.long
def test_a_fleet_of_ones_own_is_used_in_every_answer(capplan, scenario, tmp_path):
    """Three servers of eight H100 carry everything: no page, table, export, bill or JSON orders or rents one."""
    path, plan = scenario("request_rate: 60 req/s", "{8 x h100-sxm: 3}"), tmp_path / "plan.json"
    ran = capplan("fleet", path, "--offline", "-o", plan)
    assert ran.code == 0, ran.err
    result = json.loads(plan.read_text())["result"]
    assert (result["chosen"]["usd_per_month"], result["owned"][0]["reason"]) == (
        0.0,
        "the plan needs no more",
    )
    texts = {
        "screen": capplan("fleet", path, "--offline").out,
        "full": capplan("fleet", path, "--offline", "--full").out,
        "export": capplan("export", "--plan", plan, "--target", "k8s").out,
        "compose": capplan("export", "--plan", plan, "--target", "compose").out,
        "bill": capplan("bill", "--plan", plan, "--offline").out,
    }
    page = tmp_path / "page.md"
    assert capplan("report", path, "--offline", "-o", page).code == 0
    texts["page"] = page.read_text()
    used = result["owned"][0]["used"]
    for name, text in texts.items():
        assert f"{used} x (8 x h100-sxm) of your own" in text, name
        assert "counted as free" in text, name
        assert not ORDERED_OWN.search(text), (name, ORDERED_OWN.search(text))
    assert f"use {result['chosen']['gpus']} x h100-sxm of your own (" in texts["screen"]
    assert f"Use {result['chosen']['gpus']} x h100-sxm of your own (" in texts["page"]
    assert f"unused: {3 - used} x (8 x h100-sxm) of your own: the plan needs no more" in texts["screen"]
    focus = tmp_path / "focus.csv"
    written = capplan(
        "bill --plan", plan, "--offline", "--focus", focus, "--month", "2026-11", "--by", "machine"
    )
    assert written.code == 0, written.err
    rows = list(csv.DictReader(io.StringIO(focus.read_text())))
    (owned,) = [row for row in rows if row["ResourceType"] == "Machine"]
    assert (owned["ProviderName"], float(owned["BilledCost"])) == ("self-hosted fleet", 0.0)
    assert (float(owned["x_Gpus"]), "of your own" in owned["ChargeDescription"]) == (8.0 * used, True)


@pytest.mark.long
def test_owned_and_ordered_gpus_are_told_apart(capplan, scenario, tmp_path):
    """One H100 is there and the others cost $2: use one and order the rest, for $1,460 a month each."""
    path = scenario("request_rate: 400 req/s", "{1 x h100-sxm: 1}")
    words = ("fleet", path, "--offline", "--hardware", "h100-sxm")
    chosen = capplan.result(*words)["chosen"]
    more = chosen["gpus"] - 1
    assert chosen["usd_per_month"] == pytest.approx(1460.0 * more)
    screen = capplan(*words).out
    assert f"use 1 x h100-sxm of your own and order {more} more ({chosen['replicas']} replicas" in screen
    assert f"for ${1460 * more:,} per month, your own counted as free" in screen
    assert (
        f"use: 1 x h100-sxm of your own, counted as free, for 1 of the {chosen['replicas']} replicas"
        in screen
    )
    page = tmp_path / "page.md"
    assert capplan("report", path, "--offline", "--set", "fleet.hardware=[h100-sxm]", "-o", page).code == 0
    devices = [line for line in page.read_text().splitlines() if line.startswith("| h100-sxm")]
    assert re.search(
        r"\| h100-sxm of your own \| TP1, as published +\| +1 \| +0 \| +0 \|", "\n".join(devices)
    )
    assert re.search(
        rf"\| h100-sxm +\| TP1, as published +\| +{more} \| +2(?:.00)? \| +{2 * more:.2f} \|",
        "\n".join(devices),
    ), devices


def test_stated_costs_of_owned_machines_are_their_price(capplan, scenario):
    """Owned GPUs at $1.20 an hour, and electricity: 8 x 1.2 a machine, and 8 x 0.7 kW x $0.10."""
    path = scenario("request_rate: 20 req/s", "{8 x h100-sxm: 1}")
    words = ("fleet", path, "--offline", "--hardware", "h100-sxm", "--set")
    priced = capplan(
        *words,
        "prices={commitment: owned, per_gpu_hour: {h100-sxm: 1.2 $/h}}",
        "--set",
        "fleet.max_machines={}",
    )
    powered = capplan(*words, "prices={electricity: 0.1 $/kWh, per_gpu_hour: {h100-sxm: 5 $/h}}")
    assert "use: " in powered.out
    assert "counted at its electricity" in powered.out
    assert "counted as free" not in powered.out + priced.out
    chosen = capplan.result(*words, "prices={electricity: 0.1 $/kWh, per_gpu_hour: {h100-sxm: 5 $/h}}")[
        "chosen"
    ]
    assert chosen["usd_per_hour"] == pytest.approx(8 * 0.7 * 0.1)


@pytest.mark.long
def test_the_router_of_an_export_deals_users_and_all_of_them(capplan, scenario, tmp_path):
    """Users of one class over owned L40S and rented H100: both shares are of users, and the same as in the plan."""
    path, plan = scenario("users: 1800, think_time: 8 s", "{4 x l40s: 1}", "shares"), tmp_path / "plan.json"
    assert capplan("fleet", path, "--offline", "-o", plan).code == 0
    groups = json.loads(plan.read_text())["result"]["chosen"]["groups"]
    shares = [group["requests"]["share"] for group in groups]
    assert sum(shares) == pytest.approx(1.0)
    text = capplan("export", "--plan", plan, "--target", "k8s").out
    for share in shares:
        assert f"{share:.0%} of the users of" in text
