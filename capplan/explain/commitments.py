"""The mix of commitments explained: which replicas are paid for in which way, and what that costs."""

from collections.abc import Mapping
from functools import partial

from capplan.explain.record import Explained, Input, explained, formula_of, input_of
from capplan.explain.row import Group, Planned, Row
from capplan.explain.subject import MONEY, Place, places_of
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.money.commitments import HOURS_PER_YEAR, Mix, MixedPart, use_fractions
from capplan.questions.money.commitments import asked_mix
from capplan.report.answers.commitments import commitments_result
from capplan.scenario.rate_line import rate_line

_SIDES = {"usd_per_month_low": "low_ratio", "usd_per_month_high": "high_ratio"}


def commitments_group(planned: Planned) -> Group:
    """Return the mix of the recommended plan that `capplan fleet` prints, where the scenario names commitments."""
    scenario = planned.asked.scenario
    asked = asked_mix(scenario, planned.plan, rate_line(scenario, planned.plan.responses_s))
    result = commitments_result((asked,)) if asked else None
    numbers = {place: value for place, value in places_of(result) if place[0] != "plans"}
    return Group(numbers, partial(_explain, asked.mix if asked else None, numbers))


def _explain(mix: Mix | None, numbers: Mapping[Place, float], place: Place, value: float) -> Explained:
    assert mix is not None
    key = str(place[-1])
    if place[0] == "rows":
        return _part(mix.parts[int(place[1])], Row("commitments", numbers, place[:2]), key, value)
    if place[0] == "pure":
        return _alone(mix, numbers, int(place[1]), key, value)
    people = input_of(
        "p",
        "people_usd_per_month",
        mix.people_usd_per_hour * HOURS_PER_MONTH,
        "config",
        "scenario: commitments.owned.people",
    )
    if key == "people_usd_per_month":
        return explained(key, value, "p", (people,), MONEY)  # fmt: skip
    parts = [
        Row("commitments", numbers, ("rows", number)).input(f"c_{number}", key)
        for number in range(len(mix.parts))
    ]
    formula = " + ".join(part.symbol for part in parts)
    if key == "usd_per_year":
        return explained(key, value, f"{formula} + 12 p", (*parts, people), MONEY)
    return explained(key, value, f"{formula} + p", (*parts, people), MONEY)


def _part(part: MixedPart, row: Row, key: str, value: float) -> Explained:
    offer = part.offer
    used = input_of(
        "u",
        "used_fraction",
        part.used_fraction,
        "config",
        f"scenario: traffic, the load curve: {formula_of(use_fractions)}",
    )
    if key in ("replicas", "used_fraction"):
        formula = (
            "replicas whose share u of the time is cheapest paid for in this way"
            if key == "replicas"
            else "mean of their u"
        )
        return explained(key, value, formula, (used,), MONEY)  # fmt: skip
    if key == "gpus":
        devices = input_of("g", "gpus_per_replica", part.devices, "derived", "explain gpus_per_replica")
        return explained(key, value, "n g", (*row.inputs({"n": "replicas"}), devices), MONEY)
    price = input_of(
        "p", "usd_per_gpu_hour", offer.usd_per_hour(1.0), "spec", f"{offer.name}: {offer.origin}"
    )
    if key == "usd_per_gpu_hour":
        return explained(key, value, "p", (price,), MONEY)
    inputs = (
        row.input("g", "gpus"),
        input_of("f", "fixed_usd_per_gpu_hour", offer.fixed_usd_per_hour, "spec", f"at all hours; {offer.name}: {offer.origin}"),
        input_of("v", "used_usd_per_gpu_hour", offer.used_usd_per_hour, "spec", f"while in use; {offer.name}: {offer.origin}"),
        used,
        _hours(key),
    )  # fmt: skip
    if key in _SIDES:
        source = (
            "lowest offer over the likely one" if key.endswith("low") else "highest offer over the likely one"
        )
        ratio = input_of("x", _SIDES[key], getattr(offer, _SIDES[key]), "spec", source)
        return explained(key, value, "g (f + v u) h x", (*inputs, ratio), MONEY)
    return explained(key, value, "g (f + v u) h", inputs, MONEY)


def _hours(key: str) -> Input:
    hours = HOURS_PER_YEAR if key == "usd_per_year" else HOURS_PER_MONTH
    return input_of("h", "hours", hours, "derived", "8,760 hours of a year, a twelfth of them a month")


def _alone(mix: Mix, numbers: Mapping[Place, float], position: int, key: str, value: float) -> Explained:
    """Explain what one commitment for all replicas would cost, or the mix beside it."""
    if position == len(mix.pure):
        total = Row("commitments", numbers).input("c", key)
        return explained(key, value, "c", (total,), MONEY)
    offer, usd = mix.pure[position]
    each = input_of(
        "u",
        "usd_per_hour",
        usd,
        "spec",
        f"every replica by its share of the time, {offer.name}: {offer.origin}",
    )
    if key in _SIDES:
        ratio = input_of(
            "x", _SIDES[key], getattr(offer, _SIDES[key]), "spec", "offers of all pools over the likely ones"
        )
        return explained(key, value, "u x h", (each, ratio, _hours(key)), MONEY)  # fmt: skip
    return explained(key, value, "u h", (each, _hours(key)), MONEY)
