"""The months to come explained: the traffic of each, the replicas that it takes, and their cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from capplan.explain.record import Explained, Input, explained, formula_of, input_of
from capplan.explain.row import Group, Planned, Row
from capplan.explain.subject import MONEY, Place, places_of
from capplan.fleet.over_time import replicas_over_time
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.fleet.replica_group import planned_rate_per_replica
from capplan.questions.money.growth import asked_growth
from capplan.report.answers.growth import growth_result
from capplan.scenario.rate_line import rate_line


@dataclass(frozen=True, slots=True)
class _Grown:
    """The growth of a plan and its numbers."""

    planned: Planned
    numbers: Mapping[Place, float]

    def row(self, position: int) -> Row:
        """Return the numbers of a month."""
        return Row("growth", self.numbers, ("months", position), self.planned.plan.groups[0].label)

    def sum_of(self, key: str, value: float, name: str) -> Explained:
        """Explain the sum of a number of all months."""
        months = sorted({int(place[1]) for place in self.numbers if place[0] == "months"})
        parts = [self.row(month).input(f"c_{month + 1}", name) for month in months]
        return explained(key, value, " + ".join(part.symbol for part in parts), parts, MONEY)


def growth_group(planned: Planned) -> Group:
    """Return the months to come that `capplan fleet` prints, where the scenario states a growth."""
    scenario = planned.asked.scenario
    growth = asked_growth(scenario, planned.plan, rate_line(scenario, planned.plan.responses_s))
    numbers = dict(places_of(growth_result(growth)))
    return Group(numbers, partial(_explain, _Grown(planned, numbers)))


def _explain(grown: _Grown, place: Place, value: float) -> Explained:
    key = str(place[-1])
    if place[0] == "months":
        return _month(grown, grown.row(int(place[1])), place, value)
    if key == "usd_over_horizon":
        return grown.sum_of(key, value, "usd_per_month")
    if key == "mix_usd_over_horizon":
        return grown.sum_of(key, value, "mix_usd_per_month")
    plan = grown.planned.plan
    bought = input_of("n", "replicas", plan.replicas, "derived", "explain replicas")
    needed = grown.row(int(value) - 1).input("m", "replicas")
    formula = "first month whose replicas m, of any kind, are more than those n of today's plan"
    return explained(key, value, formula, (bought, needed), MONEY)


def _month(grown: _Grown, row: Row, place: Place, value: float) -> Explained:
    key, month, plan = str(place[-1]), int(place[1]), grown.planned.plan
    if key == "month":
        return explained(key, value, "1 is today", (), MONEY)
    if key == "request_rate":
        group = plan.groups[0]
        today = group.request_rate_per_replica * group.busy_replicas
        ratio = grown.planned.asked.scenario.growth[month]
        inputs = (
            input_of("r", "request_rate", today, "derived", "the peak of today: explain request_rate_per_replica, times the busy replicas"),
            input_of("x", "traffic_ratio", ratio, "config", "scenario: growth, traffic of the month over that of today"),
        )  # fmt: skip
        return explained(key, value, "r x", inputs, MONEY)
    if key == "replicas" or place[2] == "pool_replicas":
        return _replicas(grown, row, place, value)
    if key == "gpus":
        if len(plan.groups) > 1:
            return explained(key, value, "of both pools, replicas times their GPUs", (), MONEY)
        devices = input_of(
            "g", "gpus_per_replica", plan.groups[0].layout.devices, "derived", "explain gpus_per_replica"
        )
        return explained(key, value, "n g", (*row.inputs({"n": "replicas"}), devices), MONEY)
    if key == "added_gpus":
        before = input_of("b", "gpus", plan.gpus, "derived", "explain gpus")
        before = before if month == 0 else grown.row(month - 1).input("b", "gpus")
        return explained(key, value, "g - b", (row.input("g", "gpus"), before), MONEY)
    if key == "mix_usd_per_month":
        formula = "cheapest mix of commitments for the load of the month: explain commitments.usd_per_month has that of today"
        return explained(key, value, formula, row.inputs({"r": "request_rate"}), MONEY)
    return _cost(grown, row, value)


def _replicas(grown: _Grown, row: Row, place: Place, value: float) -> Explained:
    groups, headroom = grown.planned.plan.groups, grown.planned.asked.scenario.fleet.headroom_fraction
    if place[-1] == "replicas" and len(groups) > 1:
        return explained("replicas", value, "of both pools", (), MONEY)
    group = groups[int(place[-1]) if place[2] == "pool_replicas" else 0]
    planned = planned_rate_per_replica(group, headroom)
    source = "largest rate of a replica: as predicted less headroom, and with the confidence"
    inputs = (
        row.input("r", "request_rate"),
        input_of("c", "planned_request_rate_per_replica", planned, group.label, source),
        input_of("s", "spare_replicas", group.spare_replicas, "config", "scenario: fleet.spare_replicas"),
    )
    needed = formula_of(replicas_over_time).rpartition("= ")[2].replace("r_i", "r")
    return explained("replicas", value, f"{needed} + s", inputs, MONEY)


def _cost(grown: _Grown, row: Row, value: float) -> Explained:
    plan = grown.planned.plan
    if len(plan.groups) > 1:
        formula = f"{HOURS_PER_MONTH:g} hours of the replicas of both pools"
        return explained("usd_per_month", value, formula, row.inputs({"n": "replicas"}), MONEY)
    each = (plan.usd_per_hour or 0.0) / plan.replicas
    inputs: tuple[Input, ...] = (
        input_of("u", "usd_per_hour", each, "derived", "explain usd_per_hour, of one replica"),
        row.input("n", "replicas"),
        input_of("m", "hours", HOURS_PER_MONTH, "derived", "365 x 24 / 12 hours of an average month"),
    )
    return explained("usd_per_month", value, "u n m", inputs, MONEY)
