"""The numbers of the plans of an answer, explained, and of what it prints next to them: choices, certainty, next steps, the tight target."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import TypeAlias

from capplan.errors import unknown
from capplan.explain import money
from capplan.explain.groups import MixSubject, PoolsSubject
from capplan.explain.subject import (
    Explained,
    Input,
    Place,
    Subject,
    explained,
    input_of,
    name_of,
    places_of,
    plan_places,
    within,
)
from capplan.explain.table import (
    RULES,
    Stated,
    by_the_engine,
    formula_in,
    latency,
    probability,
    stated_input,
    stated_inputs,
    tabled,
    with_sums,
)
from capplan.fleet.answer import Certainty, FleetAnswer
from capplan.fleet.group import Group as PlanGroup
from capplan.fleet.plan import Plan
from capplan.money.price import HOURS_PER_MONTH
from capplan.questions.fleet import AskedFleet, parts_of, terms_of
from capplan.questions.plans.facts import sized_as
from capplan.questions.plans.plan_row import certainty_row
from capplan.report.answers.fleet_words import next_steps_result
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
    "usd_per_gpu_hour": lambda of, _path, _: money.usd_per_gpu_hour(of),
    "usd_per_hour": lambda of, _path, explain: money.of_an_order(explain) if of.price.machines else None,
    "usd_per_thousand_requests": lambda of, _path, explain: money.per_thousand_requests(of, explain),
    "offers": lambda of, path, _: money.at_an_offer(of, path),
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
    value, layout = of.numbers[quantity], of.plan.single.layout.in_words()
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


def no_number(place: Place, _value: float) -> Explained:
    """Raise the error for a number of a part that the answer lacks; nobody asks for one."""
    raise KeyError(place)


Given: TypeAlias = Stated | list[Stated]
Arguments: TypeAlias = Mapping[str, Given | Callable[[Place], Given]]
"""Argument that no number of an answer is -> its value for the number at a place; a list of the values that a formula adds up."""


@dataclass(frozen=True, slots=True)
class NextToPlan:
    """Numbers that `fleet` prints next to a plan, which the table of quantities explains."""

    name: str
    """First part of their paths."""
    numbers: Mapping[Place, float]
    given: Arguments
    label: str = "derived"
    """Label of what the numbers rest on."""
    under: Place = ()
    """Place of the part that the numbers are of, such as one class; the table has them without it."""
    of_groups: bool = False
    """Whether the plan has several groups."""

    def row(self, *place: str | int) -> Row:
        """Return the numbers of one row."""
        return Row(self.name, self.numbers, place, self.label)

    def explain(self, place: Place, value: float) -> Explained:
        """Return a number explained as the table says."""
        quantity = quantity_of(name_of((self.name, *place[len(self.under) :])), of_groups=self.of_groups)
        assert quantity is not None, place
        lists = [(letter, self.inputs(place, name, letter)) for name, letter in quantity.arguments.items()]
        return explained(str(place[-1]), value, *with_sums(formula_in(quantity), lists), quantity.page)

    def inputs(self, place: Place, name: str, letter: str) -> list[Input]:
        """Return one argument of a number: several inputs if the formula adds them up."""
        if name in self.given:
            given = self.given[name]
            return stated_inputs(name, letter, given(place) if callable(given) else given)
        rows, _, key = name.partition("[].")
        if key:
            found = sorted(int(at[1]) for at in self.numbers if at[0] == rows and at[2:] == (key,))
            return [
                replace(self.row(rows, at).input(letter, key), name=f"{rows}[{at}].{key}") for at in found
            ]
        return [self.row(*(place[:-1] if (*place[:-1], name) in self.numbers else ())).input(letter, name)]


def plans_group(planned: Planned) -> Group:
    """Return the plans of identical replicas and of separate pools, cheapest first, and the surest choice."""
    plans = planned.answer.written
    numbers = {
        (place, *inner): value for place, plan in enumerate(plans) for inner, value in plan_places(plan)
    }
    subjects = {
        name_of(("plans", place)): cache(partial(subject_of, planned.asked, plan))
        for place, plan in enumerate(plans)
    }

    def explain(place: Place, _value: float) -> Explained:
        path = name_of(("plans", place[0]))
        return of_plan(path, subjects[path](), name_of(place[1:]))

    return Group(numbers, explain, subjects)


def of_plan(path: str, subject: AnySubject, quantity: str) -> Explained:
    """Return a number of a plan explained that stands at a path."""
    return within(path, explained_quantity(subject, quantity), subject.numbers)


def certainty_group(planned: Planned) -> Group:
    """Return the cheapest fleet at each confidence."""
    fleets = planned.answer.certainty
    subjects = {
        name_of(("certainty", place)): cache(partial(_sized, planned.asked, row))
        for place, row in enumerate(fleets)
        if row.has_layout
    }
    rows = [certainty_row(row) for row in fleets]
    return Group(dict(places_of(rows)), partial(_certain, planned, subjects), subjects)


def _certain(
    planned: Planned, subjects: Mapping[str, Callable[[], Subject]], place: Place, value: float
) -> Explained:
    """Explain a number of the cheapest fleet at one required confidence."""
    position, key = int(place[0]), str(place[1])
    row = planned.answer.certainty[position]
    group = name_of(("certainty", position))
    if key == "confidence":
        chosen = stated_input("sized_confidence", "c", Stated(value))
        return explained(f"{group}.{key}", value, "c", (chosen,), METHODOLOGY)
    if not row.has_layout:
        sure = input_of("c", "confidence", row.confidence, "derived", f"explain {group}.confidence")
        plan = planned.answer.chosen
        formula = "of the cheapest fleet that meets all targets with probability c: the recommended one, of several groups"
        if plan is None or len(plan.groups) == 1 or plan.hardware != row.hardware:
            formula = "of the cheapest fleet that meets all targets with probability c; its layout is not in this plan file, a new one has it"
        return explained(f"{group}.{key}", value, formula, (sure,), METHODOLOGY)
    return of_plan(group, subjects[group](), key)


def _sized(asked: AskedFleet, row: Certainty) -> Subject:
    return Subject(*sized_as(asked, row))


def next_steps_group(planned: Planned) -> Group:
    """Return what more certainty of the recommended layout costs, and what it costs if it is as fast as predicted."""
    plan = planned.answer.chosen
    steps = planned.answer.next_steps
    numbers = dict(places_of(next_steps_result(planned.answer)))
    if plan is None or steps is None:
        return Group(numbers, no_number)
    group, subjects = plan.single, {}
    for place, step in enumerate(steps.surer):
        if step.gpus is not None:
            replicas = step.gpus // group.gpus_per_replica
            spares, usd = group.spares_among(replicas), step.usd_per_month
            size = Certainty.of_layout(step.confidence, group.layout, replicas, spares, usd)
            subjects[name_of(("next_steps", "surer", place))] = cache(partial(_sized, planned.asked, size))

    given = {
        **_sizing(planned),
        "sized_confidence": lambda place: Stated(numbers[place]),
        "ordered_gpus": Stated(plan.gpus),
        "plan_usd_per_month": Stated(plan.usd_per_month, label=plan.single.label),
        "hours": Stated(HOURS_PER_MONTH),
        "size_usd_per_hour": lambda place: Stated(None if place[0] == "unmeasured" else _usd_per_hour(plan, steps.as_predicted.gpus)),
    }  # fmt: skip
    of = NextToPlan("next_steps", numbers, given, plan.single.label)

    def explain(place: Place, value: float) -> Explained:
        path = name_of(("next_steps", *place[:-1]))
        if path in subjects and place[-1] in {"gpus", "usd_per_month"}:
            return of_plan(path, subjects[path](), str(place[-1]))
        return of.explain(place, value)

    return Group(numbers, explain, subjects)


def _usd_per_hour(plan: Plan, gpus: int) -> float | None:
    """Return what an hour of the layout of a plan costs with a number of GPUs, spares included."""
    group = plan.single
    return plan.resized([busy_of(group, gpus // group.gpus_per_replica)]).usd_per_hour


def busy_of(group: PlanGroup, replicas: int) -> int:
    """Return the replicas of a group without its spares, of a number with them."""
    return next(n for n in range(replicas, 0, -1) if n + group.spares_for(n) <= replicas)


def _sizing(planned: Planned) -> Arguments:
    """Return what the number of replicas follows from: the peak, headroom, spares."""
    terms, plan = terms_of(planned.asked), planned.plan
    return {
        "request_rate": Stated(plan.peak_requests_per_s, label="derived"),
        "headroom_fraction": Stated(terms.headroom_fraction),
        "stated_spare_replicas": Stated(plan.groups[0].spare_replicas, f"scenario: {terms.survive.key}"),
    }  # fmt: skip


def tight_target_group(planned: Planned) -> Group:
    """Return what the SLO target that costs the most throughput would cost if it were looser."""
    numbers: dict[Place, float] = {}
    tight = planned.answer.tight
    if tight is None:
        return Group(numbers, no_number)
    numbers |= places_of(asdict(tight))
    given = {
        **_sizing(planned),
        "slo_limit": Stated(tight.limit_s, f"scenario: slo.{tight.target}"),
        "looser_limit": lambda place: Stated(numbers[place]),
    }
    return Group(numbers, NextToPlan("tight_target", numbers, given, planned.plan.groups[0].label).explain)
