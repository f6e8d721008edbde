"""The table of docs/evidence/orders.md has the order of every shipped scenario, as `capplan fleet` prints it."""

import re

import pytest

from capplan.readers.catalogue.prices import known_machines
from docs.generators.orders import PAGE, line_of, lines_on, scenario_names
from tests.sweeps import long_but

BY_HAND = {"energy"}
"""Scenarios that state prices of their own: nobody else sells at them."""


def test_every_shipped_scenario_has_an_order_that_can_be_placed():
    lines = lines_on(PAGE.read_text(encoding="utf-8"))
    assert sorted(lines) == scenario_names()
    for name, line in lines.items():
        assert ("(the scenario)" in line) == (name in BY_HAND), line


def test_each_machine_of_these_orders_is_listed_with_the_price_that_is_paid():
    """The cost of a month is that of the machines in the catalogue, at 730 hours; jobs may run on spot machines."""
    sold = {(known.provider, known.record.sku): known for known in known_machines()}
    for name, line in lines_on(PAGE.read_text(encoding="utf-8")).items():
        if name in BY_HAND:
            continue
        *_, placed, paid, _ = (cell.strip() for cell in line.split("|"))
        bought, sellers = re.fullmatch(r"(.*) \((.*)\)", placed).groups()
        hourly = 0.0
        for count, sku in re.findall(r"(\d+) x ([^,]+)", bought):
            (known,) = (sold[seller, sku] for seller in sellers.split(", ") if (seller, sku) in sold)
            offer = known.offered("on-demand") or known.offered("spot")
            assert offer.date, line
            assert known.sources[offer.source], line
            hourly += int(count) * offer.price
        if paid.endswith(" a month") and name != "commitments":
            assert float(paid.split()[0].replace(",", "")) == pytest.approx(730 * hourly, rel=1e-3), line


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize("name", long_but(["drafts"], scenario_names()))
def test_the_order_of_a_scenario_is_the_one_that_it_prints(name, same_but_for_rounding):
    shown = lines_on(PAGE.read_text(encoding="utf-8"))[name]
    same_but_for_rounding(shown, line_of(name), "run: python -m docs.generators.orders")
