"""Ledgers of services that tests make up."""

from capplan.money.comparison import OwnFleet
from capplan.money.ledger import Entry


def fleet_that_costs(groups, machines_usd, people_usd=0.0, overhead=0.0):
    """Return a fleet for one request a second whose machines, overhead and people cost so much in a month."""
    machines = Entry("machines", 1.0, "fleet", machines_usd, "stated", "machines", "machines")
    beside = Entry("overhead", machines_usd, "$ of machines", overhead, "stated", "overhead", "machines")
    people = Entry("people", 1.0, "team", people_usd, "stated", "people")
    return OwnFleet(1.0, groups, (machines, beside, people))
