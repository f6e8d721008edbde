"""The quantities of a plan: every number in its row, by name, and the groups of numbers beside it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from capplan.errors import unknown
from capplan.explain import memory, money, serving
from capplan.explain.mix import MixSubject
from capplan.explain.money import explained_order, explained_outside, explained_survival
from capplan.explain.pools import PoolsSubject
from capplan.explain.record import Explained, Input, explained, input_of
from capplan.explain.subject import METHODOLOGY, Place, Subject, name_of, plan_numbers
from capplan.fleet.plan import FleetAnswer, Plan
from capplan.questions.fleet import AskedFleet, parts_of

AnySubject: TypeAlias = Subject | PoolsSubject | MixSubject
_LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
_BY_NAME: dict[str, Callable[[Subject], Explained]] = {
    "replicas": serving.replicas,
    "gpus": money.gpus,
    "usd_per_gpu_hour": money.usd_per_gpu_hour,
    "energy_usd_per_hour": money.energy_usd_per_hour,
    "usd_per_hour": money.usd_per_hour,
    "usd_per_month": money.month,
    "usd_per_month_low": partial(money.month_at_an_end, quantity="usd_per_month_low", end=0),
    "usd_per_month_high": partial(money.month_at_an_end, quantity="usd_per_month_high", end=1),
    "watts": money.watts,
    "request_rate_per_replica": serving.request_rate,
    "planned_request_rate_limit_per_replica": serving.planned_rate,
    "concurrency_per_replica": serving.concurrency,
    "slo_met_probability": partial(serving.probability, quantity="slo_met_probability"),
    "kv_cache_tokens": memory.cache_tokens,
}
_BY_NAME |= {
    name: partial(serving.rate_limit, quantity=name, sure=sure) for name, sure in serving.LIMITS.items()
}
_BY_NAME |= {
    name: partial(money.per_million_tokens, quantity=name, inputs_too=both)
    for name, both in (("usd_per_million_output_tokens", False), ("usd_per_million_tokens", True))
}
_BY_NAME |= {
    name: partial(money.at_the_mean_load, quantity=name)
    for name in (
        "usd_per_million_output_tokens_at_mean", "usd_per_million_tokens_at_mean", "job_hours", "usd_per_job",
        "usd_per_thousand_requests",
    )
}  # fmt: skip
"""Quantity -> its explanation, for those that are neither a statistic of a latency nor chosen by the search."""


def subject_of(asked: AskedFleet, plan: Plan) -> AnySubject:
    """Return a plan whose quantities are asked for."""
    if plan.is_mix:
        groups = tuple(Subject(*part) for part in parts_of(asked, plan))
        return MixSubject(asked, plan, groups, explained_quantity)
    return PoolsSubject(asked, plan) if plan.has_pools else Subject(asked, plan)


def quantities(of: AnySubject) -> dict[str, float]:
    """Return the numbers of a plan by name, such as ttft_s.p95, and the memory of one of its devices.

    Plans for vectors have no time between tokens; the memory of separate pools is that of two kinds of replica, and is not explained.
    """
    row = _row(of)
    return row | memory.memory_figures(of) if isinstance(of, Subject) else row


def _row(of: AnySubject) -> dict[str, float]:
    return plan_numbers(of.plan)


def explained_quantity(of: AnySubject, quantity: str) -> Explained:
    """Return a quantity explained; InputError for one that the plan does not have."""
    if not isinstance(of, Subject):
        return of.explained(quantity)
    if quantity in memory.EXPLAINED:
        return memory.memory_figure(of, quantity)
    row = _row(of)
    if quantity not in row:
        names = (*row, *memory.EXPLAINED)
        raise unknown("quantity", quantity, names, hint="all of them: capplan explain PLAN")
    metric, _, part = quantity.partition(".")
    if metric in _LATENCIES:
        return (serving.end_of_interval if part in serving.BOUNDS else serving.latency)(of, metric, part)
    if metric == "target_probabilities":
        return serving.probability(of, quantity, part)
    if metric == "outside":
        return explained_outside(of.plan, quantity, float(row[quantity]), of.plan.single.label)
    if metric == "order":
        return explained_order(of.plan, quantity, float(row[quantity]))
    if metric == "survival":
        return explained_survival(of.plan, quantity, float(row[quantity]))
    if metric == "offers":
        return money.at_an_offer(of, quantity)
    own = _BY_NAME.get(quantity)
    return own(of) if own else _chosen(of, quantity, float(row[quantity]))


def _chosen(of: Subject, quantity: str, value: float) -> Explained:
    """Explain what the search chose rather than worked out: parallelism, drafts, spares."""
    if quantity == "spare_replicas":
        stated = of.of_scenario("s", quantity, value, of.plan.groups[0].survive.key)
        return explained(quantity, value, "s", (stated,), METHODOLOGY)
    layout = of.plan.single.layout.in_words(of.plan.single.weight_dtype)
    chosen = input_of(
        "", quantity, value, "derived", f"the layout {layout}, chosen among all that meet the targets"
    )
    return explained(
        quantity, value, "of the layout that meets the targets at the least cost", (chosen,), METHODOLOGY
    )


_STATED = ("requests",)
"""Numbers of the traffic: no weaker for the times that other numbers of their row rest on."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A scenario with its plans, of which one is recommended."""

    asked: AskedFleet
    answer: FleetAnswer
    plan: Plan
    """The recommended one."""
    apis: tuple[str, ...] = ()
    """Hosted APIs to compare with; empty: all that serve the model."""

    def of_plan(self, quantity: str) -> Explained:
        """Return a number of the recommended plan explained."""
        return explained_quantity(subject_of(self.asked, self.plan), quantity)


@dataclass(frozen=True, slots=True)
class Group:
    """Numbers that one command prints, or one part of what it prints."""

    numbers: Mapping[Place, float]
    """Numbers by their place in the result, without the name of the group."""
    explain: Callable[[Place, float], Explained]
    """Explanation of the number at a place; its quantity may lack the name of the group."""
    plans: Mapping[str, Callable[[], AnySubject]] = field(default_factory=dict)
    """Plans of the group by path, of which more can be explained than is printed."""


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one row of a group."""

    group: str
    numbers: Mapping[Place, float]
    place: Place = ()
    label: str = "derived"
    """Label of what the numbers of the row rest on."""

    def value(self, name: str) -> float:
        """Return one of the numbers."""
        return self.numbers[(*self.place, name)]

    def input(self, symbol: str, name: str) -> Input:
        """Return one of the numbers as an input of another."""
        path, label = name_of((self.group, *self.place, name)), "config" if name in _STATED else self.label
        return input_of(symbol, name, self.value(name), label, f"explain {path}")

    def inputs(self, names: Mapping[str, str]) -> tuple[Input, ...]:
        """Return several of the numbers, by their letter."""
        return tuple(self.input(symbol, name) for symbol, name in names.items())
