"""The table of docs/reference/hosted-apis.md that compares hosted models with a fleet of one's own is what `capplan compare` answers at the prices that ship."""

import re

import pytest

from docs.generators.hosted_models import (
    MODELS,
    PAGE,
    SCENARIO,
    comparisons,
    dearest_and_cheapest,
    shown,
    written,
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def by_day():
    return comparisons()


def test_the_table_is_that_of_the_prices_that_ship(by_day):
    assert shown(PAGE.read_text(encoding="utf-8")) == written(by_day), (
        "run: python -m docs.generators.hosted_models"
    )


def test_the_table_has_the_bills_of_the_command(by_day, capplan):
    """Each row against the JSON of the command, for models whose provider announced no other price."""
    asked = next(iter(by_day.values()))
    still = [api.price.name for api in asked.comparison.apis if api.price.change is None]
    assert len(still) > len(MODELS) / 2
    words = [word for name in still for word in ("--api", name)]
    bills = {
        f"{row['provider']}/{row['model']}": row
        for row in capplan.result("compare", SCENARIO, "--offline", *words)["apis"]
    }
    rows = re.findall(
        r"^\| (\S+) \| \S+ \| ([\d,]+) \|.*\| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    table = {name: (usd, at) for name, usd, at in rows if name in bills}
    assert sorted(table) == sorted(still)
    for name, (usd, at) in table.items():
        assert usd == f"{bills[name]['usd_per_month']:,.0f}"
        rate = bills[name]["breakeven_request_rate"]
        assert at == ("no rate" if rate is None else f"a peak of {rate:.3g} req/s")


def test_what_the_page_says_of_prices_of_input_holds(by_day):
    """Every model up to one price costs less than the fleet, every one from another on more."""
    asked = next(iter(by_day.values()))
    below, above = dearest_and_cheapest(asked.comparison.apis, asked.comparison.own.usd_today)
    assert below < above
    usd = {api.price.model: api.bill.usd for api in asked.comparison.apis}
    assert usd["claude-haiku-5-5"] < asked.comparison.own.usd_today / 3
    assert usd["claude-haiku-4-5"] > asked.comparison.own.usd_today
