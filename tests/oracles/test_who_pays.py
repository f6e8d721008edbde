"""Who pays: a month worked out by hand, laws of sharing, and a FOCUS export that adds up and has the mandatory columns."""

import csv
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.money.commitments import GroupUse, Offer, cheapest_mix, use_fractions
from capplan.money.who_pays import (
    ClassUse,
    PaidPool,
    decode_s_per_request,
    who_pays,
)
from tests.focus_rules import follows_columns, total

USES = st.lists(
    st.builds(
        ClassUse, name=st.text(min_size=1, max_size=3), tenant=st.sampled_from("abc"), requests=st.floats(1, 1e7),
        input_tokens=st.floats(1, 1e9), output_tokens=st.floats(1, 1e9), prefill_s=st.floats(1e-4, 5), decode_s=st.floats(1e-4, 50),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def test_people_are_never_idle():
    """A team for 600 $ beside machines for 1,000 $ that work a quarter of the time: 250 + 600 $ are shared, 750 $ are idle."""
    chat = ClassUse("chat", "a", 100.0, 1.0, 1.0, 1.0, 3.0)
    mail = ClassUse("mail", "b", 200.0, 1.0, 1.0, 2.0, 0.0)
    bill = who_pays([chat, mail], PaidPool(1000.0, 1, 3200.0, 600.0))
    assert [share.usd for share in bill.shares] == pytest.approx([425.0, 425.0])
    assert (bill.idle_usd, bill.usd) == pytest.approx((750.0, 1600.0))


@pytest.mark.long
@given(USES, st.floats(1, 1e6), st.floats(0, 1e6), st.floats(1.0, 50.0))
def test_idle_is_what_a_ledger_of_seconds_leaves_over(uses, usd, people, spare_time):
    """Every second of the replicas is booked, to the class at work or to nobody: the seconds of nobody are the idle line."""
    work = [use.requests * (use.prefill_s + use.decode_s) for use in uses]
    seconds = sum(work) * spare_time
    each = usd / seconds
    bill = who_pays(uses, PaidPool(usd, 1, seconds, people))
    assert bill.idle_usd == pytest.approx(each * (seconds - sum(work)), abs=1e-9 * usd)
    assert [share.usd for share in bill.shares] == pytest.approx(
        [each * mine + people * mine / sum(work) for mine in work]
    )
    assert sum(share.idle_usd for share in bill.shares) == pytest.approx(bill.idle_usd, abs=1e-9 * usd)


@given(USES, st.floats(1, 1e6), st.floats(1.0, 20.0), st.floats(1.0, 20.0))
def test_each_pool_is_idle_by_its_own_time(uses, usd, first, last):
    prefill, decode = (sum(u.requests * s for u, s in zip(uses, phase, strict=True)) for phase in (
        [u.prefill_s for u in uses], [u.decode_s for u in uses]))  # fmt: skip
    pools = PaidPool(usd, 1, prefill * first), PaidPool(2 * usd, 2, decode * last)
    bill = who_pays([replace(use, groups=(0, 1)) for use in uses], *pools)
    assert bill.idle_usd == pytest.approx(usd * (1 - 1 / first) + 2 * usd * (1 - 1 / last), abs=1e-9 * usd)
    assert bill.usd == pytest.approx(3 * usd)


def test_the_parts_of_a_step_add_up_to_it():
    """Ten sequences of 101 tokens in one batch: 100 steps of 20 ms are 2 s of the replica."""
    assert 10 * decode_s_per_request(101.0, 0.02, 10.0) == pytest.approx(100 * 0.02)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("bill") / "two.yaml"
    path.write_text("""name: two
model: meta-llama/Llama-3.1-8B-Instruct
traffic:
  - {name: a, tenant: x, request_rate: 4 req/s, input_tokens: 900, output_tokens: 100}
  - {name: b, tenant: x, request_rate: 4 req/s, input_tokens: 900, output_tokens: 100}
  - {name: long, request_rate: 4 req/s, input_tokens: 9000, output_tokens: 100}
fleet: {hardware: [l40s], tensor_parallel: 1, pipeline_parallel: 1}
prices: {people: 100 $/month}
""")
    return path


def test_equal_classes_pay_alike_and_longer_prompts_more(capplan, two):
    result = capplan.result("bill", two, "--offline")
    a, b, long = result["classes"]
    assert a["usd"] == pytest.approx(b["usd"])
    assert long["prefill_usd"] > 8 * a["prefill_usd"]
    fleet = capplan.result("fleet", two, "--offline")["chosen"]
    assert result["usd_per_month"] == pytest.approx(fleet["usd_per_month"] + 100.0)
    assert [row["tenant"] for row in result["tenants"]] == ["x", "long"]
    assert 0.0 < result["busy_fraction"] < 1.0
    machines = fleet["usd_per_month"]
    assert result["idle_usd"] == pytest.approx((1 - result["busy_fraction"]) * machines)
    for key in ("classes", "tenants"):
        assert sum(row["usd"] for row in result[key]) + result["idle_usd"] == pytest.approx(
            result["usd_per_month"]
        )
        assert sum(row["with_idle_usd"] for row in result[key]) == pytest.approx(result["usd_per_month"])
    lines = [row for row in capplan("bill", two, "--offline").out.splitlines() if row.startswith("idle")]
    assert [f"{result['idle_usd']:,.0f}" in line for line in lines] == [True, True]  # by class, by tenant


def test_a_class_that_is_its_own_tenant_is_named_once(capplan, two, tmp_path):
    heading = "By class of requests\nclass   tenant "
    assert heading in capplan("bill", two, "--offline").out
    path = tmp_path / "s.yaml"
    path.write_text(two.read_text().replace("tenant: x, ", ""))
    said = capplan("bill", path, "--offline").out
    assert heading not in said
    assert "\nlong " in said
    assert "By tenant" not in said


def focus_rows(capplan, path, *words, month="2026-12"):
    result = capplan.result("bill", path, "--offline", "--focus", "f.csv", "--month", month, *words)
    with open("f.csv", newline="") as file:
        return list(csv.DictReader(file)), result


def follows_focus(rows, version="1.2"):
    """The rules of the columns, and of a bill of ours: a million tokens is the unit of their price, and what is used up is what is billed."""
    follows_columns(rows, version)
    for row in rows:
        each = {"1000000 Tokens": 1e6}.get(row["PricingUnit"], 1.0)
        if row["ConsumedQuantity"]:
            assert float(row["PricingQuantity"]) * each == pytest.approx(float(row["ConsumedQuantity"]))
        if (
            not row["CommitmentDiscountId"]
            and row["ChargeCategory"] == "Usage"
            and row["PricingCategory"] != "Other"
        ):
            assert row["BilledCost"] == row["EffectiveCost"]
            assert float(row["x_CapitalCost"]) == pytest.approx(0.0, abs=1e-9)
        if row["CommitmentDiscountId"] and row["ChargeCategory"] == "Usage":
            assert float(row["BilledCost"]) == pytest.approx(0.0, abs=1e-9)


def cost(rows):
    """What the fleet costs: what is used up, and the cost of capital."""
    return total(rows, "EffectiveCost") + total(rows, "x_CapitalCost")


def test_the_focus_export_adds_up_and_follows_the_rules(capplan, two, tmp_path, monkeypatch):
    two = os.path.abspath(two)
    monkeypatch.chdir(tmp_path)
    rows, result = focus_rows(capplan, two)
    follows_focus(rows)
    assert len(rows) == 10  # of 3 classes input, output and people, and idle GPUs
    assert total(rows, "BilledCost") == pytest.approx(result["usd_per_month"])
    assert {(row["BillingPeriodStart"], row["BillingPeriodEnd"]) for row in rows} == {
        ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
    }
    assert {row["SubAccountId"] for row in rows} == {"x", "long", "__idle__"}
    assert total(rows, "x_GpuTimeShare") == pytest.approx(1.0)
    assert total(rows, "x_Gpus") == pytest.approx(result["gpus"])
    for kind in ("input_tokens", "output_tokens"):
        column = f"x_{kind.title().replace('_', '')}"
        assert total(rows, column) == pytest.approx(sum(row[kind] for row in result["classes"]))
    requests = sum(row["requests"] for row in result["classes"])
    assert total(rows, "x_Requests") == pytest.approx(requests) == pytest.approx(12 * 744 * 3600)
    (idle,) = (row for row in rows if row["SubAccountId"] == "__idle__")
    assert float(idle["BilledCost"]) == pytest.approx(result["idle_usd"])
    shorter, february = focus_rows(capplan, two, month="2027-02")
    assert total(shorter, "BilledCost") == pytest.approx(february["usd_per_month"])
    assert february["usd_per_month"] - 100 == pytest.approx((result["usd_per_month"] - 100) * 672 / 744)
    euros = focus_rows(capplan, two, "--set", "currency={name: EUR, usd: 1.25}")[0]
    assert {row["BillingCurrency"] for row in euros} == {"EUR"}
    assert total(euros, "BilledCost") == pytest.approx(total(rows, "BilledCost") / 1.25)


@pytest.mark.long
@pytest.mark.usefixtures("shared_runs")
def test_the_focus_export_of_commitments_has_their_hours(capplan, root, tmp_path, monkeypatch):
    path = root / "scenarios" / "commitments.yaml"
    monkeypatch.chdir(tmp_path)
    rows, result = focus_rows(capplan, path)
    follows_focus(rows)
    euro_hours = 744 / 730 / 1.16  # the scenario is in euros, of $1.16 each
    assert {row["BillingCurrency"] for row in rows} == {"EUR"}
    assert cost(rows) == pytest.approx(result["usd_per_month"] / 1.16)
    mix = capplan.result("fleet", path, "--offline")["commitments"]["rows"]
    for part in mix:
        own = [row for row in rows if row["SkuPriceId"].endswith(f"/{part['commitment']}")]
        assert cost(own) == pytest.approx(part["usd_per_month"] * euro_hours)
        hours = [row["CommitmentDiscountQuantity"] for row in own]
        if part["commitment"].startswith("reserved"):
            assert sum(map(float, hours)) == pytest.approx(part["gpus"] * 744)


def test_a_job_has_no_bill_of_a_month(capplan):
    ran = capplan("bill scenarios/batch-summaries.yaml --offline --month 2026-12")
    assert "--month: a batch job is paid for once" in ran.err


def test_a_bill_of_a_month_has_its_own_hours(capplan, two):
    """February has 672 hours: rent and requests follow them, people are paid for the month."""
    mean, short = (capplan.result("bill", two, "--offline", *words) for words in ((), ("--month", "2027-02")))
    assert (mean["hours"], short["hours"]) == (730.0, 672.0)
    assert short["usd_per_month"] - 100 == pytest.approx((mean["usd_per_month"] - 100) * 672 / 730)
    assert [row["requests"] for row in short["classes"]] == pytest.approx([4 * 672 * 3600] * 3)
    assert "in 2027-02 of 672 h" in capplan("bill", two, "--offline", "--month", "2027-02").out


@pytest.mark.parametrize("scenario", ["two", "commitments"])
def test_rows_by_machine_add_up_to_the_same_bill(capplan, two, root, tmp_path, monkeypatch, scenario):
    path = two if scenario == "two" else root / "scenarios" / "commitments.yaml"
    path = os.path.abspath(path)
    monkeypatch.chdir(tmp_path)
    rows, result = focus_rows(capplan, path, "--by", "machine")
    follows_focus(rows)
    rate = 1.16 if scenario == "commitments" else 1.0
    assert cost(rows) == pytest.approx(result["usd_per_month"] / rate)
    by_class, _ = focus_rows(capplan, path)
    assert cost(by_class) == pytest.approx(cost(rows))
    for column in ("BilledCost", "EffectiveCost", "ListCost"):
        assert total(by_class, column) == pytest.approx(total(rows, column))
    machines = [row for row in rows if row["ResourceType"] == "Machine"]
    assert machines
    assert total(machines, "x_Gpus") == total(rows, "x_Gpus") == result["gpus"]
    if scenario == "two":
        assert {row["PricingUnit"] for row in machines} == {"Hours"}
        assert "people" in {row["SkuId"] for row in rows}


WAYS = st.tuples(st.sampled_from(["fixed", "used", "both"]), st.floats(0.01, 5.0), st.floats(1.0, 1.5))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any).map(np.array),
    st.lists(WAYS, min_size=1, max_size=3),
    st.integers(1, 8),
)
def test_the_gpus_of_a_mix_are_paid_for_by_a_ledger_of_its_hours(counts, ways, devices):
    """What runs only at a peak and is rented by the hour is paid for in these hours; a reservation or a purchase at all hours."""
    offers = [
        Offer(str(place), usd * (kind != "used"), usd * (kind != "fixed"), rented_ratio=ratio)
        for place, (kind, usd, ratio) in enumerate(ways)
    ]
    ledger = []
    for place in range(int(counts.max())):
        running = [count > place for count in counts]
        cheapest = min(offers, key=lambda offer: offer.usd_per_hour(sum(running) / len(running)))
        hours = sum(running) if not cheapest.fixed_usd_per_hour else len(running)
        ledger.append(hours * devices * cheapest.rented_ratio)
    parts = cheapest_mix(GroupUse(use_fractions(counts), offers, devices))
    assert sum(part.paid_gpus for part in parts) * len(counts) == pytest.approx(sum(ledger))


CURVE = (
    "name: curve\nmodel: meta-llama/Llama-3.1-8B-Instruct\n"
    "traffic: [{request_rate: 30 req/s, daily_curve: evening, input_tokens: 900, output_tokens: 100}]\n"
    "slo: {ttft_p95: 1 s, tpot_p95: 60 ms}\nfleet: {hardware: [l40s]}\n"
    "prices: {per_gpu_hour: {l40s: 1 $/h}}\n"
)


@pytest.mark.long
@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize(
    "commitments", ["{}", "{reserved_1y: {discount: 30 %}, spot: {headroom: 20 %}}", "{reserved_3y: {discount: 55 %}}"]
)  # fmt: skip
def test_a_bill_by_commitments_counts_the_hours_that_they_pay_for(
    capplan, tmp_path, monkeypatch, commitments
):
    """The work is the same whatever pays for it: busy hours do not change, so what is idle is the rest of the hours of the mix."""
    path = tmp_path / "curve.yaml"
    path.write_text(CURVE)
    monkeypatch.chdir(tmp_path)
    plain = capplan.result("bill", path, "--offline")
    path.write_text(f"{CURVE}commitments: {commitments}\n")
    fleet = capplan.result("fleet", path, "--offline")
    rows, bill = focus_rows(capplan, path)
    ratio = {"spot": 1.2}
    hours = {
        row["commitment"]: row["gpus"] * ratio.get(row["commitment"], 1.0)
        * (1.0 if row["commitment"].startswith("reserved") else row["used_fraction"])
        for row in fleet["commitments"]["rows"]
    }  # fmt: skip
    busy = plain["busy_fraction"] * plain["gpus"]
    assert bill["busy_fraction"] == pytest.approx(busy / sum(hours.values()))
    assert sum(hours.values()) < plain["gpus"]
    for name, mine in hours.items():
        idle = [
            row
            for row in rows
            if row["SkuPriceId"].endswith(f"/{name}") and row["SubAccountId"] == "__idle__"
        ]
        assert total(idle, "PricingQuantity") == pytest.approx(744 * (1.0 - bill["busy_fraction"]) * mine)
        part = next(row for row in fleet["commitments"]["rows"] if row["commitment"] == name)
        unused = {"Unused"} if part["used_fraction"] < 1.0 else set()
        assert {row["CommitmentDiscountStatus"] for row in idle} == ({"Used"} | unused if name.startswith("reserved") else {""})  # fmt: skip
    follows_focus(rows)
