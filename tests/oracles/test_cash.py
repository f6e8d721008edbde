"""Payments month by month against a ledger that is kept day by day of its events, and the total against its lines."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.money.commitments import Mix, MixedPart, Offer, PaidTerm, cash_of, tied_up_ratio
from capplan.money.comparison import OwnFleet
from capplan.money.ledger import service_entries, total_usd
from capplan.money.price import OtherPrices, Prices, choose_price
from capplan.questions.money.commitments import owned_offer, reserved_offer
from capplan.scenario.scenario_file import Owned, Reserved

RESERVED = Offer("reserved-1y", 2.0, 0.0)
RENTED = Offer("on-demand", 0.0, 5.0)


def mix_of_month(reserved, rented=0):
    parts = [MixedPart(RESERVED, reserved, 1.0, 2.0 * reserved, 1)] if reserved else []
    parts += [MixedPart(RENTED, rented, 0.5, 2.5 * rented, 1)] if rented else []
    return Mix(tuple(parts), ())


def on_terms(mixes, terms):
    """Return mixes whose offers are paid over the terms that some of them have."""
    return [
        replace(
            mix,
            parts=tuple(
                replace(part, offer=replace(part.offer, term=terms.get(part.offer))) for part in mix.parts
            ),
        )
        for mix in mixes
    ]


def test_a_three_year_term_that_begins_in_month_12_binds_until_month_47():
    offer = Offer("reserved-3y", 1000.0 / 730.0, 0.0)
    term = {offer: PaidTerm(36.0, 0.0, 1000.0)}
    months = [Mix((), ())] * 11 + [Mix((MixedPart(offer, 1, 1.0, 1000.0 / 730.0, 1),), ())]
    cash = cash_of(on_terms(months, term))
    assert sum(row.usd for row in cash.months) == pytest.approx(1000.0)
    assert (cash.bound_usd, cash.bound_until_month) == (35_000.0, 47)
    (begun,) = cash.begun
    assert (begun["month"], begun["until_month"]) == (12, 47)
    assert (begun["usd"], begun["usd_after_horizon"]) == (36_000.0, 35_000.0)


def test_reservations_of_two_kinds_of_machines_are_paid_at_their_own_prices():
    """Two GPUs at $2 and three at $5: half of a year at its start, the rest by the month, in all what the mix costs."""
    listed = choose_price([], "gpu", Prices(per_gpu_hour={"gpu": 9.0}))
    offers = [
        reserved_offer("reserved-1y", Reserved(price=f"{usd} $/h", upfront=0.5), None, listed, 0.0)
        for usd in (2.0, 5.0)
    ]
    parts = tuple(
        MixedPart(offer, count, 1.0, count * offer.fixed_usd_per_hour, 1)
        for offer, count in zip(offers, (2, 3), strict=True)
    )
    mix = Mix(parts, ())
    cash = cash_of([mix] * 12)
    assert cash.months[0].upfront_usd == pytest.approx(6.0 * 730.0 * (2 * 2.0 + 3 * 5.0))
    assert sum(row.usd for row in cash.months) == pytest.approx(8760.0 * mix.usd_per_hour)
    assert [(term["name"], term["devices"]) for term in cash.begun] == [
        ("reserved-1y", 2),
        ("reserved-1y", 3),
    ]


@pytest.mark.parametrize("months", [12, 36])
@pytest.mark.parametrize("ahead", [0.0, 0.5, 1.0])
def test_a_term_with_interest_costs_its_ledger_spread_over_its_months(months, ahead):
    left, interest = float(months), 0.0
    while left > 0:
        interest += ahead * 100.0 * left * 0.08 / 12
        left -= 1
    assert tied_up_ratio(ahead, months, 0.08) == pytest.approx(1 + interest / (100.0 * months))


def test_the_price_of_a_reservation_has_the_interest_that_its_cash_has(capplan, tmp_path):
    """A year of one GPU half upfront: the interest of its twelve months is what the mix costs more."""
    path = tmp_path / "s.yaml"
    path.write_text(SMALL + "prices: {per_gpu_hour: {l4: 1 $/h}}\n")
    results = []
    for interest in ((), ("--set", "commitments.interest=9 %")):
        words = ("--set", "commitments={reserved_1y: {discount: 40 %, upfront: 50 %}}", *interest)
        results.append(capplan.result("fleet", path, "--offline", *words))
    plain, dearer = results
    assert plain["cash"]["interest_usd"] == 0.0
    more = 12 * (dearer["commitments"]["usd_per_month"] - plain["commitments"]["usd_per_month"])
    assert dearer["cash"]["interest_usd"] == pytest.approx(more)
    assert [row["usd"] for row in dearer["cash"]["months"]] == pytest.approx(
        [row["usd"] for row in plain["cash"]["months"]]
    )
    # 0.60 $/h are 438 $ a month of a GPU, half of 5,256 $ upfront for each of two, a twelfth of 9 % on 78 twelfths
    assert more == pytest.approx(2 * 2628.0 * 0.09 / 12 * 78 / 12)


def test_a_purchase_is_paid_once_and_is_worth_something_at_the_end():
    """40,000 $, a quarter of it left after four years: 27,500 $ are gone evenly in 48 months."""
    offer = Offer("owned", 3.0, 0.0)
    mix = Mix((MixedPart(offer, 1, 1.0, 3.0, 1),), (), people_usd_per_hour=1.0)
    terms = {offer: PaidTerm(48.0, 40_000.0, 200.0, 10_000.0, bought=True)}
    year = cash_of(on_terms([mix] * 12, terms))
    assert [row.usd for row in year.months] == pytest.approx([40_930.0, *[930.0] * 11])
    assert (year.bound_usd, year.worth_usd) == (0.0, pytest.approx(40_000 - 30_000 * 12 / 48))
    whole = cash_of(on_terms([mix] * 49, terms))
    assert whole.months[47].residual_usd == 10_000.0
    assert whole.months[48].upfront_usd == 40_000.0


@pytest.mark.parametrize("residual", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("interest", [0.0, 0.08])
def test_the_annuity_of_a_purchase_pays_for_all_but_its_residual_value(residual, interest):
    """Years one by one: the annuity at each year's end and the residual value at the last one are worth the purchase today."""
    terms = Owned.model_validate(
        {
            "capex": "42000 $",
            "electricity": "0 $/kWh",
            "interest": interest,
            "upkeep": 0,
            "residual": residual,
        }
    )
    yearly = owned_offer(terms, 0.0).fixed_usd_per_hour * 8760.0
    worth = (
        sum(yearly / (1 + interest) ** year for year in range(1, 5))
        + residual * 42_000.0 / (1 + interest) ** 4
    )
    assert worth == pytest.approx(42_000.0)


def test_other_lines_by_hand():
    """A billion tokens of 300 B at 0.09 $/GB are 27 $; 140 GB at 0.02 $ 2.80 $; three nodes at 150 $; a tenth of 5,000 $."""
    terms = Prices(other=OtherPrices(False, 0.09, 300.0, 50.0, 0.02, 3, 150.0, 0.1))
    lines = service_entries(terms, 5000.0, 0.0, 1e9, 140e9, 1.0)
    assert [round(line.usd, 6) for line in lines] == [27.0, 50.0, 2.8, 450.0, 500.0]
    assert total_usd(lines) == pytest.approx(1029.8)
    half = service_entries(terms, 2500.0, 0.0, 5e8, 140e9, 0.5)
    assert total_usd(half) == pytest.approx(1029.8 / 2)
    assert service_entries(Prices(), 5000.0, 1e9, 1e9, 140e9, 1.0) == ()


def test_traffic_between_zones_logs_and_staging_by_hand():
    """Two billion input tokens of 4 B are 8 GB, a billion output tokens 300 GB streamed and 4 GB of text; two thirds of 308 GB cross at 0.02 $."""
    terms = Prices(other=OtherPrices(cross_zone_per_gb=0.02, logs_per_gb=0.5, staging=0.1))
    lines = {line.what: line for line in service_entries(terms, 5000.0, 2e9, 1e9, 140e9, 1.0)}
    usd = {what: round(line.usd, 9) for what, line in lines.items()}
    assert usd == {
        "traffic between zones": round(308 * 2 / 3 * 0.02, 9),
        "logs of prompts and responses": 12 * 0.5,
        "development and staging": 500.0,
    }
    assert [line.grows_with for line in lines.values()] == ["traffic", "traffic", "machines"]
    assumed = service_entries(Prices(other=OtherPrices(defaults=True)), 5000.0, 2e9, 1e9, 140e9, 1.0)
    assert {line.what for line in assumed} > set(usd)
    assert all(line.basis == "assumed" for line in assumed)


def test_what_follows_the_price_of_machines_follows_it_where_those_of_today_cost_nothing():
    """A fleet on owned machines that rents more: $1,000 of machines take a tenth of overhead, of support and of staging."""
    own = Prices(overhead=0.1, people=90.0, other=OtherPrices(support=0.1, staging=0.1))
    fleet = OwnFleet(1.0, (), service_entries(own, 0.0, 1e9, 1e9, 140e9, 1.0))
    assert fleet.usd_with(1000.0) == pytest.approx(1000.0 + 3 * 100.0 + 90.0)


SMALL = (
    "name: s\nmodel: Qwen/Qwen3-0.6B\ntraffic: [{request_rate: 2 req/s, input_tokens: 900, output_tokens: 9}]\n"
    "fleet: {hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 1}\n"
)


@pytest.fixture
def priced(capplan, tmp_path):
    """Return the JSON of a command for two replicas of an L4 at 1 $/h, with more keys of prices."""

    def ask(command, *words, **prices):
        path = tmp_path / "s.yaml"
        path.write_text(SMALL + f"prices: {json.dumps({'per_gpu_hour': {'l4': '1 $/h'}, **prices})}\n")
        return capplan.result(command, path, "--offline", *words)

    return ask


OTHER = {
    "egress_per_gb": "0.09 $",
    "bytes_per_token": "1 kB",
    "load_balancers": "20 $/month",
    "cpu_nodes": 2,
    "cpu_node": "100 $/month",
}


def test_lines_add_up_to_the_total_and_the_headline_on_every_page(priced):
    total = priced("fleet", people="500 $/month", overhead="10 %", other=OTHER)["total_cost"]
    lines = {line["what"]: line["usd"] for line in total["lines"]}
    tokens = 2 * 3600 * 730 * 9
    assert lines == pytest.approx(
        {
            "2 x l4, the scenario": 1460.0,
            "overhead": 146.0,
            "people": 500.0,
            "egress of streamed output": tokens * 1e3 * 1e-9 * 0.09,
            "load balancers": 20.0,
            "CPU nodes": 200.0,
        }
    )
    assert total["usd"] == pytest.approx(sum(lines.values()))
    assert all(line["usd"] == pytest.approx(line["quantity"] * line["usd_each"]) for line in total["lines"])
    bill = priced("bill", people="500 $/month", overhead="10 %", other=OTHER)
    assert bill["usd_per_month"] == pytest.approx(total["usd"])
    compared = priced("compare", "--api", "openai/gpt-5", people="500 $/month", overhead="10 %", other=OTHER)
    assert compared["own"]["usd_per_month"] == pytest.approx(total["usd"])


PAID = {
    "rented": ("prices.per_gpu_hour={l4: 1 $/h}",),
    "by the hour of electricity": ("prices={per_gpu_hour: {l4: 1 $/h}, electricity: 0.2 $/kWh}",),
    "reserved": ("commitments={reserved_1y: {discount: 40 %, upfront: 50 %}, spot: {}}", "commitments.interest=9 %"),
    "owned": ("commitments={owned: {capex: 4000 $, electricity: 0.11 $/kWh, people: 90 $/month}}",),
    "machines of its own": ("fleet.own={8 x l4: 1}",),
    "of one provider": ("fleet.providers=[AWS]",),
    "in euros": ("prices.per_gpu_hour={l4: 1 $/h}", "currency={name: EUR, usd: 1.16}"),
    "a job": ("traffic=[{requests: 90000, within: 8 h, input_tokens: 900, output_tokens: 9}]",),
}  # fmt: skip
"""Ways to pay for the machines."""


@pytest.mark.long
@pytest.mark.parametrize("way", PAID)
def test_the_page_of_the_total_cost_adds_up_to_the_headline(capplan, tmp_path, way):
    """Every line of the page is quantity x price, their sum is the total, and less the other lines it is the price in the headline."""
    path, page = tmp_path / "s.yaml", tmp_path / "page.md"
    path.write_text(SMALL)
    words = [
        "--set", "prices.people=500 $/month", "--set", "prices.overhead=10 %",
        "--set", f"prices.other={json.dumps({**OTHER, 'support': '5 %', 'weights_per_gb': '0.5 $/month'})}",
    ]  # fmt: skip
    words = [*(word for key in PAID[way] for word in ("--set", key)), *words]
    ran = capplan("report", path, "--offline", "-o", page, *words)
    assert ran.code == 0, ran.err
    text = page.read_text()
    rows = [
        [cell.strip().replace(",", "") for cell in line.split("|")[1:-1]]
        for line in text[text.index("### Total cost") :].split("\n\n")[1].splitlines()[2:]
    ]
    *lines, total = rows
    costs = {what: float(usd) for what, _, _, _, usd, _ in lines}
    for what, quantity, _, each, usd, _ in lines:
        # three digits of the quantity and of the price are shown
        assert float(usd) == pytest.approx(float(quantity) * float(each), rel=0.012, abs=0.006), what
    assert float(total[4]) == pytest.approx(sum(costs.values()), rel=0.003)
    first = re.search(r"the other lines of the total cost: \$([\d,]+) (?:per month|for the job)\.", text)[1]
    assert first == re.search(r"the lines add up to \$([\d,]+)", text)[1]
    said, headline = re.search(r"the lines add up to \$([\d,]+) .* cost \$([\d,]+)[,;]", text).groups()
    assert float(said.replace(",", "")) == pytest.approx(float(total[4]), rel=0.006, abs=0.6)
    (decision,) = re.findall(r"\*\*(.*)\*\*", text)
    if way == "machines of its own":
        assert "of your own" in decision
        assert "counted as free" in decision
        return
    first = re.search(r"\$([\d,.]+) (?:per month|for the job)", decision).group(1)
    assert float(first.replace(",", "")) == pytest.approx(
        float(headline.replace(",", "")), rel=0.006, abs=0.6
    )
    beside = {"overhead", "people", "egress of streamed output", "load balancers", "CPU nodes", "support plan", "storage of weights"}  # fmt: skip
    machines = sum(usd for what, usd in costs.items() if what not in beside)
    if "commitments" not in PAID[way][0]:
        assert machines == pytest.approx(float(headline.replace(",", "")), rel=0.006, abs=0.6)
    assert beside - {"overhead", "support plan"} <= costs.keys()


def test_the_page_says_in_words_that_only_machines_are_counted(capplan, tmp_path):
    path, page = tmp_path / "s.yaml", tmp_path / "page.md"
    path.write_text(SMALL)
    assert capplan("report", path, "--offline", "-o", page).code == 0
    text = page.read_text()
    assert "are all of it: no staff, overhead or other cost is stated" in text
    assert "$-" not in text


PAID_HOW = {
    "fleet.providers=[AWS]": "You pay AWS by the hour, on demand: the plan commits nothing beyond an hour.",
    "prices.commitment=spot": "by the hour, at spot prices: the plan commits nothing beyond an hour. The provider may take machines back",
    "prices={commitment: reserved-1y, provider: GCP}": "You commit to GCP for 1 year (${year} until the end of the term).",
    "commitments={reserved_1y: {discount: 90 %}}": "The mix commits 2 GPUs for 1 year (${year} until the end of the term)",
    "commitments={spot: {}}": "The mix commits nothing.",
}  # fmt: skip
"""Way to pay -> what the page says of whom you pay and what that commits; a term costs twelve months of its rate."""


@pytest.mark.parametrize("key", PAID_HOW)
def test_the_page_says_whom_you_pay_and_what_that_commits(capplan, tmp_path, key):
    path, page = tmp_path / "s.yaml", tmp_path / "page.md"
    path.write_text(SMALL)
    assert capplan("report", path, "--offline", "-o", page, "--set", key).code == 0
    cost = page.read_text().partition("## What it costs")[2].partition("\n## ")[0]
    year = re.search(r"\$([\d,]+) per year" if "mix of" in cost else r"\| per year +\| +([\d,]+)", cost)[1]
    assert PAID_HOW[key].format(year=year) in cost


def test_nothing_beside_the_machines_is_counted_until_it_is_asked_for(priced):
    assert [line["what"] for line in priced("fleet")["total_cost"]["lines"]] == ["2 x l4, the scenario"]
    assumed = priced("fleet", other={"defaults": True})["total_cost"]
    by_basis = {line["what"]: line["basis"] for line in assumed["lines"]}
    assert {name for name, basis in by_basis.items() if basis == "assumed"} == {
        "people", "egress of streamed output", "load balancers", "storage of weights", "CPU nodes", "support plan",
        "traffic between zones", "logs of prompts and responses", "development and staging",
    }  # fmt: skip
    stated = priced("fleet", people="1 $/month", other={"defaults": True, "support": "0 %"})["total_cost"]
    names = {line["what"]: line["usd"] for line in stated["lines"]}
    assert names["people"] == 1.0
    assert "support plan" not in names


def test_staging_and_support_are_no_machines_of_the_plan(capplan, tmp_path):
    """Two GPUs at $1 are $1,460; a tenth for staging and a tenth for support make $1,752."""
    path = tmp_path / "s.yaml"
    path.write_text(SMALL + "prices: {per_gpu_hour: {l4: 1 $/h}, other: {staging: 10 %, support: 10 %}}\n")
    for command in ("fleet", "bill"):
        assert "in all $1,752 a month, $1,460 for machines" in capplan(command, path, "--offline").out


def test_electricity_is_a_cost_of_the_machines(capplan, tmp_path):
    """The first line has it, so there is nothing on top; with people there is, and the machines are those of the first line."""
    path = tmp_path / "s.yaml"
    for more, beside in (("", False), (", people: 100 $/month", True)):
        path.write_text(SMALL + f"prices: {{per_gpu_hour: {{l4: 1 $/h}}, electricity: 0.5 $/kWh{more}}}\n")
        machines = capplan.result("fleet", path, "--offline")["chosen"]["usd_per_month"]
        assert machines > 1460.0
        said = f"in all ${machines + 100.0:,.0f} a month, ${machines:,.0f} for machines"
        for command in ("fleet", "bill"):
            out = capplan(command, path, "--offline").out
            assert ("in all" in out, said in out) == (beside, beside)


def test_a_total_at_another_rate_grows_by_what_its_lines_grow_with(priced):
    """The break-even of a comparison moves as egress is paid for by every request, and load balancers are not."""
    even = [
        priced("compare", "--api", "anthropic/claude-opus-5-5", other=other)["apis"][0][
            "breakeven_request_rate"
        ]
        for other in ({}, {"load_balancers": "400 $/month"}, {"load_balancers": "800 $/month"})
    ]
    assert all(first < later for first, later in pairwise(even))


DOLLARS = re.compile(r"\$([\d,]+) (?:per month|a month)")
TOTALS = {
    "rented": "",
    "by a mix": "commitments: {reserved_1y: {discount: 30 %}, reserved_3y: {discount: 55 %}, spot: {headroom: 20 %, most: 40 %}}\n",
    "a mix and people": "commitments: {reserved_3y: {discount: 55 %}}\nprices: {people: 900 $/month, overhead: 10 %}\n",
    "a mix that grows": "commitments: {reserved_1y: {discount: 30 %, upfront: 50 %}}\ngrowth: {per_month: 5 %, months: 3}\n",
}
CURVE = (
    "name: s\nmodel: Qwen/Qwen3-0.6B\n"
    "traffic: [{request_rate: 60 req/s, daily_curve: evening, input_tokens: 900, output_tokens: 90}]\n"
    "slo: {ttft_p95: 1 s, tpot_p95: 60 ms}\nfleet: {hardware: [l4], tensor_parallel: 1}\n"
)


@pytest.mark.long
@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize("way", TOTALS)
def test_a_plan_has_one_total_on_every_page_and_command(capplan, tmp_path, way):
    """The first line of `fleet` and of the page, the bill, the lines of the total, the comparison and the cash of a month are one sum and its parts."""
    path, page = tmp_path / "s.yaml", tmp_path / "page.md"
    path.write_text(CURVE + TOTALS[way])

    def run(*words):
        ran = capplan(words[0], path, "--offline", *words[1:])
        assert ran.code == 0, ran.err
        return ran.out

    def result(*words):
        return json.loads(run(*words, "--format", "json"))["result"]

    fleet, bill, compared = result("fleet"), result("bill"), result("compare", "--api", "openai/gpt-5")
    run("report", "-o", page)
    screen, text = run("fleet"), page.read_text()
    lines, total = fleet["total_cost"]["lines"], fleet["total_cost"]["usd"]
    assert sum(line["quantity"] * line["usd_each"] for line in lines) == pytest.approx(total)
    assert bill["usd_per_month"] == pytest.approx(total) == pytest.approx(compared["own"]["usd_per_month"])
    assert sum(row["with_idle_usd"] for row in bill["classes"]) == pytest.approx(total)
    machines = total - sum(line["usd"] for line in lines if line["what"] in ("people", "overhead"))
    if fleet["commitments"]:
        assert sum(row["usd_per_month"] for row in fleet["commitments"]["rows"]) == pytest.approx(machines)
        assert fleet["cash"]["months"][0]["cost_usd"] == pytest.approx(machines)
    (headline,) = re.findall(r"\*\*(.*)\*\*", text)
    for sentence in (screen.splitlines()[0], headline):
        assert DOLLARS.search(sentence)[1] == f"{machines:,.0f}"
    assert re.search(r"\| per month \| +([\d,]+) \|", text)[1] == f"{machines:,.0f}"
    every = f"in all ${total:,.0f} a month, ${machines:,.0f} for machines"
    for said in (screen, run("bill")):
        assert (every in said) == (abs(total - machines) >= 0.5)
    assert f"the lines add up to ${total:,.0f} a month" in text
    other = f"{fleet['chosen']['usd_per_month']:,.0f}"
    if fleet["commitments"]:
        assert other != f"{machines:,.0f}"
        for line in (*screen.splitlines(), *text.splitlines()):
            assert f"${other}" not in line or "at all hours" in line, line


@pytest.mark.long
@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize("commitments", ["", "commitments: {reserved_1y: {discount: 30 %}}\n"])
def test_the_range_of_the_cost_has_the_offers_and_the_speed_of_replicas_in_it(capplan, tmp_path, commitments):
    """The page is at least as wide as the same plan at its lowest and highest offers, and as the fleet at its fastest and slowest."""
    path, page = tmp_path / "s.yaml", tmp_path / "page.md"
    path.write_text(CURVE + commitments)
    chosen = capplan.result("fleet", path, "--offline")
    assert capplan("report", path, "--offline", "-o", page).code == 0
    row = re.search(r"\| per month \| +([\d,]+) \| +([\d,]+) \| +([\d,]+) \|", page.read_text())
    planned, low, high = (float(each.replace(",", "")) for each in row.groups())
    plan, mix = chosen["chosen"], chosen["commitments"]
    speed = [plan[f"usd_per_month_{side}"] / plan["usd_per_month"] for side in ("low", "high")]
    offered = (
        [mix[f"usd_per_month_{side}"] / mix["usd_per_month"] for side in ("low", "high")] if mix
        else [plan["offers"][side]["usd_per_month"] / plan["usd_per_month"] for side in ("low", "high")]
    )  # fmt: skip
    assert low <= planned * min(speed[0], offered[0]) + 1.0
    assert high >= planned * max(speed[1], offered[1]) - 1.0
    assert low < planned < high


@given(
    needed=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    rented=st.integers(0, 3),
    length=st.integers(1, 36),
    ahead=st.floats(0, 1),
    fall=st.one_of(st.just(0.0), st.floats(0, 0.9)),
    yearly=st.floats(0, 0.5),
)
def test_payments_agree_with_a_ledger_of_single_contracts(needed, rented, length, ahead, fall, yearly):
    """Whenever a month needs more than run, contracts are signed at the price of that month; the oldest are used first.

    Each pays its part upfront and uses it up month by month; what is left when a month begins bears a twelfth of the interest.
    """
    contracts, paid, cost, interest, price = [], [], [], [], 1.0
    for count in needed:
        running = [item for item in contracts if item["left"] > 0]
        fresh = [{"left": length, "price": price} for _ in range(count - len(running))]
        contracts += fresh
        running += fresh
        rents = rented * 2.5 * 730.0 * price
        upfront = sum(item["price"] for item in fresh) * ahead * 1460.0 * length
        monthly = sum(item["price"] for item in running) * (1 - ahead) * 1460.0
        paid.append(rents + upfront + monthly)
        cost.append(rents + sum(item["price"] for item in running[:count]) * 1460.0)
        interest.append(sum(item["price"] * item["left"] for item in running) * ahead * 1460.0 * yearly / 12)
        for item in running:
            item["left"] -= 1
        price *= (1.0 - fall) ** (1.0 / 12.0)
    term = PaidTerm(length, ahead * 1460.0 * length, (1 - ahead) * 1460.0, interest_fraction=yearly)
    cash = cash_of(on_terms([mix_of_month(count, rented) for count in needed], {RESERVED: term}), fall)
    assert [row.usd for row in cash.months] == pytest.approx(paid)
    assert [row.cost_usd for row in cash.months] == pytest.approx(cost)
    assert [row.interest_usd for row in cash.months] == pytest.approx(interest)
    left = sum(item["price"] * item["left"] for item in contracts) * 1460.0
    assert cash.bound_usd == pytest.approx((1 - ahead) * left)
    assert sum(row["devices"] for row in cash.begun) == len(contracts)
    assert sum(row["usd"] for row in cash.begun) == pytest.approx(
        sum(item["price"] for item in contracts) * 1460.0 * length
    )
    assert sum(row["usd_after_horizon"] for row in cash.begun) == pytest.approx(cash.bound_usd)


def test_what_is_bought_later_is_cheaper_and_takes_as_much_power():
    """A device of $7,300 for 20 months with $365 a month for power; one more in month 13, when prices are a fifth lower."""
    offer = Offer("owned", (7300.0 / 20 + 365.0) / 730.0, 0.0)
    mixes = [
        Mix((MixedPart(offer, count, 1.0, count * offer.fixed_usd_per_hour, 1),), ())
        for count in [1] * 12 + [2]
    ]
    cash = cash_of(on_terms(mixes, {offer: PaidTerm(20.0, 7300.0, 365.0, bought=True)}), 0.2)
    assert [row.upfront_usd for row in cash.months] == pytest.approx([7300.0, *[0.0] * 11, 5840.0])
    assert cash.months[-1].running_usd == pytest.approx(730.0)
    assert cash.months[-1].cost_usd == pytest.approx(730.0 + 0.8 * 365.0 + 365.0)
    assert cash.worth_usd == pytest.approx(7300.0 * 7 / 20 + 5840.0 * 19 / 20)


@pytest.mark.long
def test_a_term_of_three_years_against_renting_at_falling_prices(capplan, tmp_path):
    """Two GPUs at $0.50 for three years, or at $1 by the hour, falling to 60 cents a year later, in the hours in which they run."""
    path = tmp_path / "s.yaml"
    path.write_text(SMALL + "prices: {per_gpu_hour: {l4: 1 $/h}}\n")
    words = ("--set", "commitments={reserved_3y: {discount: 50 %}}", "--set", "growth={per_month: 0 %, months: 30, gpu_price_decline: 40 %}")  # fmt: skip
    result = capplan.result("fleet", path, "--offline", *words)
    (term,) = result["cash"]["terms"]
    gpus = term["devices"]
    (row,) = (row for row in result["commitments"]["rows"] if row["commitment"] == "reserved-3y")
    price, rented, even, start = 1.0, 0.0, 0.0, 1.0
    for _ in range(36):
        rented += gpus * row["used_fraction"] * 730.0 * price
        even += gpus * row["used_fraction"] * 730.0 * start
        price *= 0.6 ** (1 / 12)
        start *= (1.0 - term["breakeven_decline"]) ** (1 / 12)
    assert term["usd"] == pytest.approx(gpus * 0.5 * 730.0 * 36)
    assert term["rented_usd"] == pytest.approx(rented)
    assert even == pytest.approx(term["usd"])
    months = result["growth"]["months"]
    rents = [row["usd_per_month"] for row in months]
    assert rents[24] == pytest.approx(rents[0] * 0.36)
    mixes = [row["mix_usd_per_month"] for row in months]
    reserved = gpus * 0.5 * 730.0
    assert [mix - reserved for mix in mixes] == pytest.approx(
        [(mixes[0] - reserved) * 0.6 ** (month / 12) for month in range(30)], abs=1e-6
    )
    said = capplan("fleet", path, "--offline", *words, "--full").out
    more = term["usd"] - term["rented_usd"]
    assert (
        f"if prices fall by 40% a year, reserved-3y costs ${abs(more):,.0f} {'more' if more > 0 else 'less'}"
        in said
    )


@pytest.mark.long
def test_both_sides_of_a_comparison_month_by_month(capplan, tmp_path):
    """Traffic doubles each month; rent falls to 0.7 and tokens to a half in a year, people stay."""
    path = tmp_path / "s.yaml"
    path.write_text(
        SMALL.replace("2 req/s", "20 req/s")
        + "prices: {per_gpu_hour: {l4: 1 $/h}, people: 500 $/month, overhead: 10 %}\n"
    )
    words = ("--set", "growth={per_month: 100 %, months: 4, gpu_price_decline: 30 %, token_price_decline: 50 %}")  # fmt: skip
    fleets = capplan.result("fleet", path, "--offline", *words)["growth"]["months"]
    found = capplan.result("compare", path, "--offline", "--api", "openai/gpt-5-mini", *words)
    api = found["apis"][0]["usd_per_month"]
    assert found["months"][0]["own_usd"] == pytest.approx(found["own"]["usd_per_month"])
    for month, (fleet, row) in enumerate(zip(fleets, found["months"], strict=True)):
        rent = fleet["gpus"] * 730.0 * 0.7 ** (month / 12)
        assert row["own_usd"] == pytest.approx(1.1 * rent + 500.0)
        assert row["api_usd"] == pytest.approx(api * 2**month * 0.5 ** (month / 12))
        assert row["request_rate"] == pytest.approx(2**month * found["own"]["request_rate"])
    assert fleets[-1]["gpus"] > fleets[0]["gpus"]
