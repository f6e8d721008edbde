"""The table of docs/money.md has the order of every shipped scenario, as `capplan fleet` prints it."""

import pytest

from docs.generators.orders import PAGE, line_of, lines_on, scenario_names
from tests.sweeps import long_but

BY_HAND = {"energy"}
"""Scenarios that state prices of their own: nobody else sells at them."""


def test_every_shipped_scenario_has_an_order_that_can_be_placed():
    lines = lines_on(PAGE.read_text(encoding="utf-8"))
    assert sorted(lines) == scenario_names()
    for name, line in lines.items():
        assert ("(the scenario)" in line) == (name in BY_HAND), line


@pytest.mark.usefixtures("shared_runs")
@pytest.mark.parametrize("name", long_but(["drafts"], scenario_names()))
def test_the_order_of_a_scenario_is_the_one_that_it_prints(name, same_but_for_rounding):
    shown = lines_on(PAGE.read_text(encoding="utf-8"))[name]
    same_but_for_rounding(shown, line_of(name), "run: python -m docs.generators.orders")
