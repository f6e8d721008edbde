"""Plans next to the recommended one, explained: the choices, the runners-up, and its next steps."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

from capplan.errors import InputError, Reason
from capplan.explain.quantities import (
    AnySubject,
    Group,
    Planned,
    Row,
    explained_quantity,
    subject_of,
)
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
from capplan.fleet.plan import Certainty, Plan
from capplan.fleet.search.cheapest import Sized
from capplan.fleet.search.one_layout import trial_of
from capplan.fleet.search.recommended import plan_of
from capplan.questions.fleet import AskedFleet, terms_of
from capplan.questions.plans.plan_file import layout_of
from capplan.questions.plans.plan_row import certainty_row
from capplan.report.answers.fleet import tight_target_result
from capplan.report.answers.fleet_words import next_steps_result
from capplan.report.quantities import METHODOLOGY, SIMULATION


def choices_group(planned: Planned) -> Group:
    """Return the cheapest plan, the surest for a little more, and the one with the fewest GPUs."""
    choices = planned.answer.choices
    names = ("cheapest", "surest", "fewest") if choices else ()
    return _plans_group("choices", planned.asked, {(name,): getattr(choices, name) for name in names})


def plans_group(planned: Planned) -> Group:
    """Return the plans of identical replicas and of separate pools, cheapest first."""
    return _plans_group(
        "plans", planned.asked, {(place,): plan for place, plan in enumerate(planned.answer.plans)}
    )


def _plans_group(group: str, asked: AskedFleet, plans: Mapping[Place, Plan]) -> Group:
    numbers = {(*place, *inner): value for place, plan in plans.items() for inner, value in plan_places(plan)}

    subjects = {
        name_of((group, *place)): cache(partial(subject_of, asked, plan)) for place, plan in plans.items()
    }

    def explain(place: Place, _value: float) -> Explained:
        path = name_of((group, place[0]))
        return of_plan(path, subjects[path](), name_of(place[1:]))

    return Group(numbers, explain, subjects)


def of_plan(path: str, subject: AnySubject, quantity: str) -> Explained:
    """Return a number of a plan explained that stands at a path."""
    return within(path, explained_quantity(subject, quantity), subject.numbers)


def certainty_group(planned: Planned) -> Group:
    """Return the cheapest fleet at each confidence."""
    fleets = planned.answer.certainty
    subjects = {
        name_of(("certainty", place)): cache(partial(sized_for, planned.asked, row))
        for place, row in enumerate(fleets)
        if row.has_layout
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
        return explained(f"{group}.{key}", value, "c", (chosen,), METHODOLOGY)  # fmt: skip
    if not row.has_layout:
        sure = input_of("c", "confidence", row.confidence, "derived", f"explain {group}.confidence")
        plan = planned.answer.chosen
        formula = "of the cheapest fleet that meets all targets with probability c: the recommended one, of several groups"
        if plan is None or len(plan.groups) == 1 or plan.hardware != row.hardware:
            formula = "of the cheapest fleet that meets all targets with probability c; its layout is not in this plan file, a new one has it"
        return explained(f"{group}.{key}", value, formula, (sure,), METHODOLOGY)
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
    assert row.weight_dtype is not None
    assert row.replicas is not None
    assert row.gpus is not None
    busy = row.replicas - (row.spare_replicas or 0)
    trial = trial_of(surer.question, layout_of(row, None, asked), row.weight_dtype, terms)
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


_DIFFERENCES = {
    "more_gpus": ("n - g", {"n": "gpus"}, ("g", "gpus")),
    "more_usd_per_month": ("m - c", {"m": "usd_per_month"}, ("c", "usd_per_month")),
    "fewer_gpus": ("g - n", {"n": "gpus"}, ("g", "gpus")),
    "saved_usd_per_month": ("c - m", {"m": "usd_per_month"}, ("c", "usd_per_month")),
}
"""Number -> its formula, the letters of its row, and the letter of a number of the recommended plan."""


def next_steps_group(planned: Planned) -> Group:
    """Return what more certainty of the recommended layout costs, and what it costs if it is as fast as predicted."""
    plan = planned.answer.chosen
    steps = planned.answer.next_steps
    numbers = dict(places_of(next_steps_result(planned.answer)))
    if plan is None or steps is None:
        return Group(numbers, partial(_of_steps, planned, numbers))
    sizes = [
        Certainty(
            step.confidence,
            plan.hardware,
            step.gpus,
            step.usd_per_month,
            gpus_per_replica=plan.single.gpus_per_replica,
            replicas=step.gpus // plan.single.gpus_per_replica,
            spare_replicas=plan.spare_replicas,
            **plan.single.layout.degrees,
            weight_dtype=plan.weight_dtype,
            kv_dtype=plan.kv_dtype,
        )
        for step in steps.surer
        if step.gpus is not None
    ]
    rows = [place for place, step in enumerate(steps.surer) if step.gpus is not None]
    subjects = {
        name_of(("next_steps", "surer", place)): cache(partial(sized_for, planned.asked, size))
        for place, size in zip(rows, sizes, strict=True)
    }

    def explain(place: Place, value: float) -> Explained:
        path = name_of(("next_steps", *place[:-1]))
        if path in subjects and place[-1] in {"gpus", "usd_per_month"}:
            return of_plan(path, subjects[path](), str(place[-1]))
        return _of_steps(planned, numbers, place, value)

    return Group(numbers, explain, subjects)


def _of_steps(planned: Planned, numbers: Mapping[Place, float], place: Place, value: float) -> Explained:
    key, plan = str(place[-1]), planned.answer.chosen
    assert plan is not None
    row = Row("next_steps", numbers, place[:-1], plan.single.label)
    if key in _DIFFERENCES:
        formula, letters, (letter, name) = _DIFFERENCES[key]
        now = {"gpus": float(plan.gpus), "usd_per_month": plan.usd_per_month}[name]
        bought = input_of(letter, name, now, plan.single.label, f"explain {name}")
        return explained(key, value, formula, (*row.inputs(letters), bought), METHODOLOGY)
    if key == "confidence":
        source = "one of the few confidences that capplan fleet sizes for, whatever the scenario asks for"
        return explained(key, value, "c", (input_of("c", key, value, "derived", source),), METHODOLOGY)
    if key == "usd_per_month":
        return explained(
            key, value, "p n h", (_price(planned, plan, place), row.input("n", "gpus"), _HOURS), METHODOLOGY
        )
    formula = "GPUs of the fewest replicas that meet all SLO targets at R / (1 - h) if every step takes as long as predicted, and of s spare replicas"
    return explained(key, value, formula, _sizing(planned), SIMULATION, label=plan.single.label)


_HOURS = input_of("h", "hours", 730.0, "derived", "365 x 24 / 12 hours of an average month")


def _price(planned: Planned, plan: Plan, place: Place) -> Input:
    if place[0] == "unmeasured":
        steps = planned.answer.next_steps
        assert steps is not None
        other = steps.unmeasured[int(place[1])]
        hourly = other.usd_per_month / other.gpus / 730.0
        return input_of(
            "p", "usd_per_gpu_hour", hourly, "derived", f"the price of {other.hardware}, electricity included"
        )
    price = None if plan.usd_per_hour is None else plan.usd_per_hour / plan.gpus
    return input_of("p", "usd_per_gpu_hour", price, plan.single.label, "explain usd_per_hour, of one GPU")


def _sizing(planned: Planned) -> tuple[Input, ...]:
    terms = terms_of(planned.asked)
    return (
        input_of("R", "request_rate", planned.of_plan("request_rate_per_replica").inputs[0].value, "derived", "scenario: traffic, at its peak"),
        input_of("h", "headroom_fraction", terms.headroom_fraction, "config", "scenario: fleet.headroom"),
        input_of("s", "spare_replicas", planned.plan.groups[0].spare_replicas, "config", f"scenario: {terms.survive.key}"),
    )  # fmt: skip


def tight_target_group(planned: Planned) -> Group:
    """Return what the SLO target that costs the most throughput would cost if it were looser."""
    numbers: dict[Place, float] = dict(places_of(tight_target_result(planned.answer)))

    def explain(place: Place, value: float) -> Explained:
        key, tight = str(place[-1]), planned.answer.tight
        assert tight is not None
        limit = input_of("L", "limit_s", tight.limit_s, "config", f"scenario: slo.{tight.target}")
        if key == "limit_s" and len(place) == 1:
            return explained(key, value, "L", (limit,), METHODOLOGY)
        if key == "limit_s":
            looser = input_of(
                "x", key, value, "derived", "a looser limit to compare with, rounded to two digits"
            )
            return explained(key, value, "x", (looser,), METHODOLOGY)
        formula = {
            "value_s": f"{tight.target} of requests that have a replica to themselves",
            "used_fraction": "largest throughput of a replica that meets L over its largest throughput without targets",
            "gpus": "GPUs of the cheapest size of this layout if L is the limit of this row",
        }[key]
        return explained(key, value, formula, (limit, *_sizing(planned)), SIMULATION)

    return Group(numbers, explain)
