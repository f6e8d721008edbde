"""The quantities of a plan: every number in its row, by name, and the groups of numbers next to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from capplan.errors import unknown
from capplan.explain import money
from capplan.explain.several_groups import MixSubject, PoolsSubject
from capplan.explain.subject import Explained, Input, Place, Subject, explained, input_of, name_of
from capplan.explain.table import RULES, by_the_engine, latency, probability, tabled
from capplan.fleet.plan import FleetAnswer, Plan
from capplan.questions.fleet import AskedFleet, parts_of
from capplan.report.quantities import CHOSEN, METHODOLOGY, quantity_of

AnySubject: TypeAlias = Subject | PoolsSubject | MixSubject


def subject_of(asked: AskedFleet, plan: Plan) -> AnySubject:
    """Return a plan whose quantities are asked for."""
    if plan.is_mix:
        groups = tuple(Subject(*part) for part in parts_of(asked, plan))
        return MixSubject(asked, plan, groups, explained_quantity)
    return PoolsSubject(asked, plan) if plan.has_pools else Subject(asked, plan)


_Explain = Callable[[str], Explained]
_BESIDE_THE_TABLE: Mapping[str, Callable[[Subject, str, _Explain], Explained | None]] = {
    **dict.fromkeys(("ttft_s", "tpot_s", "e2e_s"), lambda of, path, _: latency(of, path)),
    **dict.fromkeys(("slo_met_probability", "target_probabilities"), lambda of, path, _: probability(of, path)),
    **dict.fromkeys(("order.gpus", "order.usd_per_hour"), lambda of, path, _: money.line_by_line(of, path)),
    "usd_per_gpu_hour": lambda of, _path, _: money.usd_per_gpu_hour(of),
    "usd_per_hour": lambda of, _path, explain: money.of_an_order(explain) if of.price.machines else None,
    "usd_per_thousand_requests": lambda of, _path, explain: money.per_thousand_requests(of, explain),
    "offers": money.at_an_offer,
    "outside": lambda of, path, _: money.explained_outside(of, path),
    **dict.fromkeys(RULES, lambda of, path, _: by_the_engine(of, path)),
}  # fmt: skip
"""Quantity, or the first part of its path -> what the table of quantities cannot say of it: which offers, machines, operators and measured
results it rests on; None where the table says it for this plan."""


def explained_quantity(of: AnySubject, quantity: str) -> Explained:
    """Return a quantity explained; InputError for one that the plan does not have."""
    if not isinstance(of, Subject):
        return of.explained(quantity)
    if quantity not in of.numbers:
        raise unknown("quantity", quantity, of.numbers, hint="all of them: capplan explain PLAN")
    explain = partial(explained_quantity, of)
    beside = _BESIDE_THE_TABLE.get(quantity) or _BESIDE_THE_TABLE.get(quantity.partition(".")[0])
    found = beside(of, quantity, explain) if beside else None
    row = quantity_of(quantity)
    if found is None and row is not None and row.formula != CHOSEN:
        return tabled(of, quantity, explain)
    return found or _chosen(of, quantity)


def _chosen(of: Subject, quantity: str) -> Explained:
    """Explain what the search chose rather than worked out: parallelism, drafts."""
    value, layout = of.numbers[quantity], of.plan.single.layout.in_words(of.plan.single.weight_dtype)
    source = f"the layout {layout}, chosen among all that meet the targets"
    return explained(
        quantity, value, CHOSEN, (input_of("", quantity, value, "derived", source),), METHODOLOGY
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
