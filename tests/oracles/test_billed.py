"""What is billed and what is used up: ledgers by hand of reservations, purchases and rents, and the rows of FOCUS that they become."""

import csv
import json
from calendar import monthrange

import pytest

from capplan.money.commitments import MixedPart, Offer, PaidTerm, breakeven_decline
from capplan.money.ledger import commitment_rates, committed_entry
from tests.focus_rules import faults, follows_columns, total
from tests.plan_files import plan_of_file_with
from tests.tables import table

YEAR = [(2026 + (month + 11) // 12, (month + 11) % 12 + 1) for month in range(24)]
"""Twenty-four months from December 2026 on."""


def hours_of(month):
    return 24.0 * monthrange(*month)[1]


def test_a_year_of_a_reservation_is_used_up_as_it_is_billed():
    """Three GPUs at $2 an hour, half of the year upfront: $26,280 once, $1 an hour as it runs; on demand they cost $3."""
    term = PaidTerm(12.0, 8760.0, 730.0)
    offer = Offer("reserved-1y", 2.0, 0.0, list_usd_per_hour=3.0, term=term)
    part = MixedPart(offer, 3, 0.75, 6.0, 1)
    entries = [
        committed_entry(part, hours_of(month), begins=place == 0) for place, month in enumerate(YEAR[:12])
    ]
    charges = [entry.paid for entry in entries]
    assert [each.upfront_usd for each in charges] == [26_280.0] + 11 * [0.0]
    assert [each.recurring_usd for each in charges] == pytest.approx([3.0 * hours_of(m) for m in YEAR[:12]])
    assert [each.effective_usd for each in charges] == pytest.approx([6.0 * hours_of(m) for m in YEAR[:12]])
    assert [each.billed_usd for each in charges] == pytest.approx(12 * [0.0], abs=1e-9)
    paid = sum(each.upfront_usd + each.recurring_usd for each in charges)
    assert paid == pytest.approx(sum(each.effective_usd for each in charges)) == pytest.approx(52_560.0)
    assert (entries[0].machine_hours, entries[0].unused_fraction) == (3 * 744.0, 0.25)
    assert charges[0].list_usd == pytest.approx(3 * 744.0 * 3.0)


def test_the_cost_of_capital_is_no_charge():
    """The offer has interest in its price, $2.10 instead of $2; nobody bills these ten cents."""
    term = PaidTerm(12.0, 8760.0, 730.0, interest_fraction=0.08)
    part = MixedPart(Offer("reserved-1y", 2.1, 0.0, term=term), 1, 1.0, 2.1, 1)
    charge = committed_entry(part, 730.0, begins=False).paid
    assert (charge.effective_usd, charge.capital_usd) == pytest.approx((1460.0, 73.0))


def test_a_purchase_is_billed_once_and_used_up_over_its_life():
    """A GPU of $43,800 keeps a fifth of its worth over four years: $1 an hour, next to $0.50 of upkeep and $0.20 while it runs, half of the time."""
    term = PaidTerm(48.0, 43_800.0, 365.0, 8760.0, bought=True)
    part = MixedPart(Offer("owned", 1.9, 0.2, term=term), 2, 0.5, 2 * (1.9 + 0.1), 1)
    entry = committed_entry(part, 730.0, begins=True)
    first = entry.paid
    assert (first.upfront_usd, first.recurring_usd) == (87_600.0, 0.0)
    assert first.billed_usd == pytest.approx(2 * 730 * (0.5 + 0.1))
    assert first.effective_usd == pytest.approx(2 * 730 * (1.0 + 0.5 + 0.1))
    assert first.capital_usd == pytest.approx(2 * 730 * 0.4)
    assert (first.list_usd, entry.is_reserved) == (first.effective_usd, False)


def test_coverage_utilisation_and_savings_by_hand():
    """One reserved GPU runs 600 of 1,000 h, 400 h are rented: of $3,000 on demand 60% are covered; $2,000 + $1,200 are paid for them."""
    term = PaidTerm(12.0, 0.0, 1460.0)
    reserved = MixedPart(Offer("reserved-1y", 2.0, 0.0, list_usd_per_hour=3.0, term=term), 1, 0.6, 2.0, 1)
    rented = MixedPart(Offer("on-demand", 0.0, 3.0, list_usd_per_hour=3.0), 1, 0.4, 1.2, 1)
    there = MixedPart(Offer("owned", 9.0, 0.0), 1, 1.0, 9.0, 1)
    entries = [committed_entry(part, 1000.0, begins=False) for part in (reserved, rented, there)]
    rates = commitment_rates(entries)
    assert (rates.coverage_fraction, rates.utilisation_fraction) == pytest.approx((0.6, 0.6))
    assert rates.effective_savings_fraction == pytest.approx(1.0 - 3200.0 / 3000.0)
    assert commitment_rates([]) is None


SCENARIO = """name: half
model: meta-llama/Llama-3.1-8B-Instruct
traffic: [{request_rate: 30 req/s, daily_curve: evening, input_tokens: 900, output_tokens: 100}]
slo: {ttft_p95: 1 s, tpot_p95: 60 ms}
fleet: {hardware: [l40s]}
prices: {per_gpu_hour: {l40s: 1 $/h}, people: 500 $/month}
tags: {cost_center: "4711", team: chat}
commitments: {begin: 2026-12, reserved_1y: {discount: 40 %, upfront: 50 %}, interest: 8 %}
"""


planned = plan_of_file_with(SCENARIO, "half.yaml")


def bill_of(capplan, plan, month, *words):
    path = plan.with_name("focus.csv")
    bill = capplan.result("bill --plan", plan, "--offline", "--focus", path, "--month", month, *words)
    return list(csv.DictReader(path.open())), bill


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_reservation_is_a_purchase_with_used_and_unused_hours(capplan, planned, version):
    """$0.60 an hour for each reserved GPU: $2,628 once, $0.30 an hour in the month; hours without a replica are unused."""
    rows, bill = bill_of(capplan, planned, "2026-12", "--by", "machine", "--focus-version", version)
    follows_columns(rows, version)
    mine = [row for row in rows if row["CommitmentDiscountId"]]
    (charge,) = (each for each in bill["charges"] if each["commitment"] == "reserved-1y")
    gpus = charge["gpus"]
    assert gpus > 1
    kinds = {
        (row["ChargeCategory"], row["ChargeFrequency"], row["CommitmentDiscountStatus"]): row for row in mine
    }
    once, monthly = kinds["Purchase", "One-Time", ""], kinds["Purchase", "Recurring", ""]
    used, unused = (kinds["Usage", "Usage-Based", status] for status in ("Used", "Unused"))
    assert float(once["BilledCost"]) == pytest.approx(gpus * 0.3 * 8760)
    assert float(once["CommitmentDiscountQuantity"]) == pytest.approx(gpus * 8760)
    assert float(monthly["BilledCost"]) == pytest.approx(gpus * 0.3 * 744)
    assert total([used, unused], "EffectiveCost") == pytest.approx(gpus * 0.6 * 744)
    assert total([used, unused], "CommitmentDiscountQuantity") == pytest.approx(gpus * 744)
    assert float(unused["CommitmentDiscountQuantity"]) == pytest.approx(
        gpus * 744 * charge["unused_fraction"]
    )
    assert 0.0 < charge["unused_fraction"] < 0.5
    assert (float(used["ListUnitPrice"]), float(used["ConsumedQuantity"])) == pytest.approx(
        (1.0, gpus * 744 * (1.0 - charge["unused_fraction"]))
    )
    assert {row["BillingAccountType"] for row in rows} == {"Scenario"}
    assert {row["Tags"] for row in rows} == {'{"cost_center": "4711", "team": "chat"}'}
    assert bill["tags"]["cost_center"] == "4711"
    assert total(rows, "EffectiveCost") + total(rows, "x_CapitalCost") == pytest.approx(bill["usd_per_month"])


def test_the_upfront_part_is_billed_in_the_months_in_which_a_term_begins(capplan, planned):
    def upfront(month):
        rows, _ = bill_of(capplan, planned, month)
        return total(rows, "BilledCost", lambda row: row["ChargeFrequency"] == "One-Time")

    first, second, again = (upfront(month) for month in ("2026-12", "2027-01", "2027-12"))
    assert first == again > 0.0 == second
    said = capplan.refused("bill", "--plan", planned, "--offline", "--month", "2026-11")
    assert "--month: the month is before commitments.begin" in said


def test_rows_by_class_are_allocated_since_1_3(capplan, planned):
    rows, _ = bill_of(capplan, planned, "2026-12", "--focus-version", "1.3")
    follows_columns(rows, "1.3")
    allocated = [row for row in rows if row["AllocatedMethodId"]]
    assert {row["AllocatedResourceName"] for row in allocated} == {"requests", ""}
    ratio = {}
    for row in allocated:
        (element,) = json.loads(row["AllocatedMethodDetails"])["Elements"]
        name = row["SkuPriceId"].rpartition("/")[2]
        ratio[name] = ratio.get(name, 0.0) + element["AllocatedRatio"]
    assert list(ratio.values()) == pytest.approx([1.0] * len(ratio))


def test_a_plan_at_the_price_of_a_reservation_is_committed(capplan, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.partition("commitments")[0].replace("daily_curve: evening, ", ""))
    words = ("--set", "prices.commitment=reserved-1y")
    ran = capplan(
        "bill",
        path,
        *words,
        "--offline",
        "--focus",
        tmp_path / "f.csv",
        "--month",
        "2026-12",
        "--by",
        "machine",
    )
    assert ran.code == 0, ran.err
    rows = list(csv.DictReader((tmp_path / "f.csv").open()))
    follows_columns(rows, "1.2")
    machine = [row for row in rows if row["CommitmentDiscountId"]]
    assert {row["ChargeCategory"] for row in machine} == {"Usage", "Purchase"}
    assert total(machine, "BilledCost") == pytest.approx(total(machine, "EffectiveCost"))


@table
def test_the_rules_see_a_fault(capplan, planned, changed, fault):
    rows, _ = bill_of(capplan, planned, "2026-12", "--by", "machine")
    (row,) = (row for row in rows if row["CommitmentDiscountStatus"] == "Used")
    assert not faults(row, "1.2")
    assert any(each.startswith(fault) for each in faults({**row, **changed}, "1.2"))


@pytest.mark.parametrize(("usd", "used", "months"), [(1.0, 1.0, 36), (1.3, 0.8, 12), (0.4, 0.5, 48)])
def test_a_term_costs_as_much_as_rent_at_its_break_even(usd, used, months):
    """A ledger month by month: at $2 on demand, falling by the break-even, rent over the term costs what the term does."""
    fall = breakeven_decline(usd, 2.0, used, months)
    rent, each = 0.0, 2.0
    for _ in range(months):
        rent += used * each
        each *= (1.0 - fall) ** (1.0 / 12.0)
    assert rent == pytest.approx(months * usd)


def test_a_term_that_is_dearer_today_or_cheaper_than_a_month_has_no_break_even():
    assert breakeven_decline(2.0, 2.0, 0.9, 12) == 0.0
    assert breakeven_decline(0.1, 2.0, 1.0, 12) is None


def test_the_break_even_counts_a_discount_of_ones_own():
    """$1 for a year against $2 less 20%: rent that falls to what the term costs has to fall by less than from $2."""
    offer = Offer("reserved-1y", 1.0, 0.0, list_usd_per_hour=2.0, discounted_ratio=0.8)
    assert offer.breakeven_decline(1.0, 12) == breakeven_decline(1.0, 1.6, 1.0, 12)
    assert offer.breakeven_decline(1.0, 12) < breakeven_decline(1.0, 2.0, 1.0, 12)


def test_the_bill_says_at_which_fall_of_prices_a_term_no_longer_pays(capplan, planned):
    rows, bill = bill_of(capplan, planned, "2026-12")
    (charge,) = (each for each in bill["charges"] if each["commitment"] == "reserved-1y")
    used = 1.0 - charge["unused_fraction"]
    hourly = (charge["effective_usd"] + charge["capital_usd"]) / 744 / charge["gpus"]
    months = sum((1.0 - charge["breakeven_decline"]) ** (month / 12) for month in range(12))
    assert used * 1.0 * months == pytest.approx(12 * hourly)
    assert rows
    said = capplan("bill", "--plan", planned, "--offline").out
    assert (
        f"a term pays if prices on demand fall by less a year: reserved-1y {charge['breakeven_decline']:.0%}"
        in said
    )
