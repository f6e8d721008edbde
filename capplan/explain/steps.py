"""What the next steps of the recommended plan cost, and what its tightest target costs, explained."""

from collections.abc import Mapping
from functools import cache, partial

from capplan.explain.plans import of_plan, sized_for
from capplan.explain.record import Explained, Input, explained, input_of
from capplan.explain.row import Group, Planned, Row
from capplan.explain.subject import QUESTIONS, SIMULATION, Place, name_of, places_of
from capplan.fleet.plan import Certainty, FleetPlan
from capplan.questions.fleet import terms_of
from capplan.report.answers.fleet import tight_target_result
from capplan.report.answers.fleet_words import next_steps_result

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
        Certainty(step.confidence, plan.hardware, step.gpus, step.usd_per_month, step.gpus // plan.layout.devices, plan.spare_replicas, plan.layout, plan.weight_dtype)
        for step in steps.surer
        if step.gpus is not None
    ]  # fmt: skip
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
    row = Row("next_steps", numbers, place[:-1], plan.label)
    if key in _DIFFERENCES:
        formula, letters, (letter, name) = _DIFFERENCES[key]
        now = {"gpus": float(plan.gpus), "usd_per_month": plan.usd_per_month}[name]
        bought = input_of(letter, name, now, plan.label, f"explain {name}")
        return explained(key, value, formula, (*row.inputs(letters), bought), QUESTIONS)
    if key == "confidence":
        source = "one of the few confidences that capplan fleet sizes for, whatever the scenario asks for"
        return explained(key, value, "c", (input_of("c", key, value, "derived", source),), QUESTIONS)
    if key == "usd_per_month":
        return explained(
            key, value, "p n h", (_price(planned, plan, place), row.input("n", "gpus"), _HOURS), QUESTIONS
        )
    formula = "GPUs of the fewest replicas that meet all SLO targets at R / (1 - h) if every step takes as long as predicted, and of s spare replicas"
    return explained(key, value, formula, _sizing(planned), SIMULATION, label=plan.label)


_HOURS = input_of("h", "hours", 730.0, "derived", "365 x 24 / 12 hours of an average month")


def _price(planned: Planned, plan: FleetPlan, place: Place) -> Input:
    if place[0] == "unmeasured":
        steps = planned.answer.next_steps
        assert steps is not None
        other = steps.unproven[int(place[1])]
        hourly = other.usd_per_month / other.gpus / 730.0
        return input_of(
            "p", "usd_per_gpu_hour", hourly, "derived", f"the price of {other.hardware}, electricity included"
        )
    price = None if plan.usd_per_hour is None else plan.usd_per_hour / plan.gpus
    return input_of("p", "usd_per_gpu_hour", price, plan.label, "explain usd_per_hour, of one GPU")


def _sizing(planned: Planned) -> tuple[Input, ...]:
    terms = terms_of(planned.asked)
    return (
        input_of("R", "request_rate", planned.of_plan("request_rate_per_replica").inputs[0].value, "derived", "scenario: traffic, at its peak"),
        input_of("h", "headroom_fraction", terms.headroom_fraction, "config", "scenario: fleet.headroom"),
        input_of("s", "spare_replicas", terms.spare_replicas, "config", "scenario: fleet.spare_replicas"),
    )  # fmt: skip


def tight_target_group(planned: Planned) -> Group:
    """Return what the SLO target that costs the most throughput would cost if it were looser."""
    numbers: dict[Place, float] = dict(places_of(tight_target_result(planned.answer)))

    def explain(place: Place, value: float) -> Explained:
        key, tight = str(place[-1]), planned.answer.tight
        assert tight is not None
        limit = input_of("L", "limit_s", tight.limit_s, "config", f"scenario: slo.{tight.target}")
        if key == "limit_s" and len(place) == 1:
            return explained(key, value, "L", (limit,), QUESTIONS)
        if key == "limit_s":
            looser = input_of(
                "x", key, value, "derived", "a looser limit to compare with, rounded to two digits"
            )
            return explained(key, value, "x", (looser,), QUESTIONS)
        formula = {
            "value_s": f"{tight.target} of requests that have a replica to themselves",
            "used_fraction": "largest throughput of a replica that meets L over its largest throughput without targets",
            "gpus": "GPUs of the cheapest size of this layout if L is the limit of this row",
        }[key]
        return explained(key, value, formula, (limit, *_sizing(planned)), SIMULATION)

    return Group(numbers, explain)
