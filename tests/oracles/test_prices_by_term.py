"""Public prices of the GPUs of a plan by how long one commits to them, against offers that are worked out by hand."""

import json
from datetime import timedelta

import pytest

from capplan.keys import current_day

OFFERS = """sources:
  page: {title: 'a list', url: 'https://prices.example/list'}
prices:
"""
LISTED = (
    ("A", "on-demand", 4.0, "2026-10-01", "list"), ("B", "on-demand", 2.0, "2026-10-02", "list"), ("C", "on-demand", 3.0, "2026-10-03", "list"),
    ("A", "reserved-1y", 3.0, "2026-09-01", "list"), ("index", "reserved-1y", 1.9, "2026-03", "list"), ("builders", "owned", 1.0, "2026-04-03", "estimate"),
)  # fmt: skip


@pytest.fixture
def priced(tmp_path):
    """Return the path of a scenario of two replicas of an L4 with some offers."""

    def scenario(*listed, more=""):
        rows = [
            f"  - {{device: l4, provider: {name}, devices: 1, commitment: {way}, price: {usd} $/h, date: '{day}', source: page, quality: {quality}}}"
            for name, way, usd, day, quality in listed
        ]
        (tmp_path / "prices.yaml").write_text(OFFERS + "\n".join(rows) + "\n")
        path = tmp_path / "s.yaml"
        path.write_text(
            "name: s\nmodel: Qwen/Qwen3-0.6B\ntraffic: [{request_rate: 2 req/s, input_tokens: 900, output_tokens: 9}]\n"
            "fleet: {hardware: [l4], tensor_parallel: 1, pipeline_parallel: 1, spare_replicas: 1}\n"
            f"prices: {{file: prices.yaml{more}}}\n"
        )
        return path

    return scenario


def test_prices_by_term_by_hand(capplan, priced):
    """A's year is a quarter below its own $4, so it counts as $2.25 against the median of $3; an index counts as it is; nobody lists three years."""
    path = priced(*LISTED)
    rows = capplan.result("fleet", path, "--offline")["prices_by_term"]
    assert [row["commitment"] for row in rows] == ["on-demand", "reserved-1y", "owned"]
    ends = ("lowest_usd_per_gpu_hour", "usd_per_gpu_hour", "highest_usd_per_gpu_hour")
    prices = [tuple(row[key] for key in ends) for row in rows]
    assert prices == [(2.0, 3.0, 4.0), (1.9, 1.9, 2.25), (1.0, 1.0, 1.0)]
    for row in rows:
        for key in ends:
            assert row[key.replace("gpu_hour", "month")] == pytest.approx(row[key] * 2 * 730)
    assert [(row["provider"], row["date"]) for row in rows] == [
        ("C", "2026-10-03"), ("index", "2026-03"), ("builders", "2026-04-03"),
    ]  # fmt: skip
    assert {row["source"] for row in rows} == {"https://prices.example/list"}
    assert rows == capplan.result("bill", path, "--offline")["prices_by_term"]


def test_a_term_that_counts_by_its_discount_says_so(capplan, priced, tmp_path):
    """The only year is A's: the page has its $3, the answer $2.25, with the reason."""
    path = priced(*(row for row in LISTED if row[0] != "index"))
    plan = tmp_path / "plan.json"
    assert capplan("fleet", path, "--offline", "-o", plan).code == 0
    year = capplan.result("fleet", path, "--offline")["prices_by_term"][1]
    assert (year["usd_per_gpu_hour"], year["price_basis"]) == (2.25, "one offer, by its discount")
    (price,) = capplan.result("explain", plan, "prices_by_term[1].usd_per_gpu_hour")["inputs"]
    assert price["value"] == 2.25
    assert "A, 2026-09-01: by its discount, on the median price on demand; https://" in price["source"]
    month = capplan.result("explain", plan, "prices_by_term[1].usd_per_month")
    assert [row["value"] for row in month["inputs"]] == [2.25, 2, 730.0]
    owned = capplan.result("explain", plan, "prices_by_term[2].usd_per_gpu_hour")["inputs"][0]
    assert owned["label"] == "assumed"


def test_a_price_over_90_days_old_says_so(capplan, priced):
    """Each price by its own day, as those of the headline; one without a day says that."""
    day = {back: str(current_day() - timedelta(days=back)) for back in (1, 85, 95)}
    path = priced(
        ("A", "on-demand", 4.0, day[1], "list"), ("index", "reserved-1y", 2.0, day[85], "list"), ("index", "reserved-3y", 1.9, day[95], "list"),
        ("builders", "owned", 1.0, "never", "estimate"),
    )  # fmt: skip
    prices = path.with_name("prices.yaml")
    prices.write_text(prices.read_text().replace("'never'", "null"))
    rows = capplan.result("fleet", path, "--offline")["prices_by_term"]
    assert [row["remark"] for row in rows] == [None, None, "over 90 days old", "no date"]
    assert rows == capplan.result("bill", path, "--offline")["prices_by_term"]
    title = "Public prices by term (over 90 days old: l4 reserved-3y; no date: l4 owned)"
    for words in (("fleet", "--full"), ("bill",)):
        assert title in capplan(words[0], path, "--offline", *words[1:]).out


@pytest.mark.long
def test_a_page_without_a_day_judges_prices_by_the_newest_one(capplan, priced):
    """The clock is not printed on a page, so the same inputs give the same page."""
    path = priced(
        ("A", "on-demand", 4.0, "2020-06-01", "list"), ("index", "reserved-1y", 2.0, "2020-01-01", "list")
    )
    page = ("report", path, "--offline", "--format", "markdown")
    title = "Public prices by term (over 90 days old: l4 "
    assert f"{title}reserved-1y)" in capplan(*page).out
    assert f"{title}on-demand, l4 reserved-1y)" in capplan(*page, "--date", "2021-01-01").out


def test_a_slice_counts_by_a_discount_only_where_its_gpu_does(capplan, priced):
    """A seventh of the $3 of an index is its price as it is listed; a seventh of A's $3 is by A's discount, on the median of A's $4 and B's $2."""
    path = priced(("A", "on-demand", 4.0, "2026-10-01", "list"), ("B", "on-demand", 2.0, "2026-10-01", "list"), ("A", "reserved-1y", 3.0, "2026-10-01", "list"), ("index", "reserved-3y", 1.75, "2026-10-01", "list"))  # fmt: skip
    prices = path.with_name("prices.yaml")
    prices.write_text(prices.read_text().replace("device: l4", "device: h100-sxm"))
    path.write_text(path.read_text().replace("[l4]", "['h100-sxm:1g.10gb']"))
    rows = capplan.result("fleet", path, "--offline")["prices_by_term"]
    assert [round(7 * row["usd_per_gpu_hour"], 9) for row in rows] == [2.0, 1.5, 1.75]
    assert [row["price_basis"] for row in rows] == [
        "median of 2 offers",
        "one offer, by its discount",
        "one offer",
    ]


@pytest.mark.parametrize(
    ("listed", "more"),
    [(LISTED[:3], ""), (LISTED, ", per_gpu_hour: {l4: 1 $/h}")],
    ids=["on demand only", "a price of one's own"],
)
def test_nothing_is_shown_where_there_is_nothing_to_compare(capplan, priced, listed, more):
    path = priced(*listed, more=more)
    assert capplan.result("fleet", path, "--offline")["prices_by_term"] == []
    assert "by term" not in capplan("fleet", path, "--offline", "--full").out


def test_only_gpus_that_are_paid_for_count(capplan, priced):
    path = priced(*LISTED)
    rows = capplan.result("fleet", path, "--offline", "--set", "fleet.own={1 x l4: 1}")["prices_by_term"]
    assert {row["gpus"] for row in rows} == {1}
    assert (
        capplan.result("fleet", path, "--offline", "--set", "fleet.own={1 x l4: 2}")["prices_by_term"] == []
    )


def test_the_review_has_the_table_and_its_numbers(capplan, priced):
    path = priced(*LISTED)
    page = capplan("report", path, "--offline", "--format", "markdown").out
    assert "Public prices by term" in page
    (row,) = (line for line in page.splitlines() if "reserved-1y" in line and "index" in line)
    assert json.dumps([cell.strip() for cell in row.split("|")[3:7]]) == '["1.90", "1.90", "2.25", "2,774"]'
