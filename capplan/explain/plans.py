"""Plans beside the recommended one, explained: the choices, the runners-up, and the cheapest fleet at each confidence."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

from capplan.errors import InputError, Reason
from capplan.explain.quantities import AnySubject, explained_quantity, quantities, subject_of
from capplan.explain.record import Explained, explained, input_of, within
from capplan.explain.row import Group, Planned
from capplan.explain.subject import QUESTIONS, Place, Subject, name_of, places_of
from capplan.fleet.plan import AnyPlan, Certainty
from capplan.fleet.search.cheapest import Sized
from capplan.fleet.search.confirmed import plan_of
from capplan.fleet.search.one_layout import trial_of
from capplan.questions.fleet import AskedFleet, terms_of
from capplan.questions.plans.plan_row import certainty_row, plan_row


def choices_group(planned: Planned) -> Group:
    """Return the cheapest plan, the surest for a little more, and the one with the fewest GPUs."""
    choices = planned.answer.choices
    names = ("cheapest", "surest", "fewest") if choices else ()
    return _plans_group("choices", planned.asked, {(name,): getattr(choices, name) for name in names})


def plans_group(planned: Planned) -> Group:
    """Return the plans of identical replicas and of separate pools, cheapest first."""
    return _plans_group(
        "plans", planned.asked, {(place,): plan for place, plan in enumerate(planned.answer.all_plans)}
    )


def _plans_group(group: str, asked: AskedFleet, plans: Mapping[Place, AnyPlan]) -> Group:
    numbers = {
        (*place, *inner): value for place, plan in plans.items() for inner, value in places_of(plan_row(plan))
    }

    subjects = {
        name_of((group, *place)): cache(partial(subject_of, asked, plan)) for place, plan in plans.items()
    }

    def explain(place: Place, _value: float) -> Explained:
        path = name_of((group, place[0]))
        return of_plan(path, subjects[path](), name_of(place[1:]))

    return Group(numbers, explain, subjects)


def of_plan(path: str, subject: AnySubject, quantity: str) -> Explained:
    """Return a number of a plan explained that stands at a path."""
    return within(path, explained_quantity(subject, quantity), quantities(subject))


def certainty_group(planned: Planned) -> Group:
    """Return the cheapest fleet at each confidence."""
    fleets = planned.answer.certainty
    subjects = {
        name_of(("certainty", place)): cache(partial(sized_for, planned.asked, row))
        for place, row in enumerate(fleets)
        if row.layout is not None
    }
    rows = [certainty_row(row) for row in fleets]
    return Group(dict(places_of(rows)), partial(_certain, planned, subjects), subjects)


def _certain(
    planned: Planned, subjects: Mapping[str, Callable[[], Subject]], place: Place, value: float
) -> Explained:
    """Explain a number of the cheapest fleet at one confidence, as a plan that has to be that sure."""
    position, key = int(place[0]), str(place[1])
    row = planned.answer.certainty[position]
    group = name_of(("certainty", position))
    if key == "confidence":
        chosen = input_of(
            "c",
            key,
            value,
            "derived",
            "capplan fleet sizes for the same few confidences, whatever the scenario asks for",
        )
        return explained(f"{group}.{key}", value, "c", (chosen,), QUESTIONS)  # fmt: skip
    if row.layout is None:
        sure = input_of("c", "confidence", row.confidence, "derived", f"explain {group}.confidence")
        formula = "of the cheapest fleet that meets all targets with probability c: separate pools"
        if planned.answer.chosen_pools is None:
            formula = "of the cheapest fleet that meets all targets with probability c; its layout is not in this plan file, a new one has it"
        return explained(f"{group}.{key}", value, formula, (sure,), QUESTIONS)
    return of_plan(group, subjects[group](), key)


def sized_for(asked: AskedFleet, row: Certainty) -> Subject:
    """Return the plan of the cheapest fleet at one confidence, as one that has to be that sure."""
    slo = replace(asked.question.slo, confidence=row.confidence)
    surer = replace(
        asked,
        question=replace(asked.question, slo=slo),
        scenario=replace(asked.scenario, slo=replace(asked.scenario.slo, confidence=row.confidence)),
    )
    terms = terms_of(surer)
    assert row.layout is not None
    assert row.weight_dtype is not None
    assert row.replicas is not None
    assert row.gpus is not None
    busy = row.replicas - (row.spare_replicas or 0)
    trial = trial_of(surer.question, row.layout, row.weight_dtype, terms, busy=busy)
    if isinstance(trial, Reason):
        raise InputError(
            f"the layout of {row.gpus} x {row.hardware} no longer serves the model: {trial.words}"
        )
    return Subject(surer, plan_of(Sized(trial, busy, row.gpus), terms), trial)


PLANS: Mapping[str, Callable[[Planned], Group]] = {
    "choices": choices_group,
    "certainty": certainty_group,
    "plans": plans_group,
}
"""Group -> the plans that it holds."""
