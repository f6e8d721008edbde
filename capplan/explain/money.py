"""Costs of a plan, explained: by hour, month, token and request, at other offers, and what is spent outside the GPUs."""

from collections.abc import Callable

from capplan.explain.subject import (
    Explained,
    Input,
    PlanSubject,
    Subject,
    explained,
    formula_of,
    in_words,
    input_of,
)
from capplan.explain.table import formula_in
from capplan.fleet.plan import Plan
from capplan.money.commitments import HOURS_PER_YEAR
from capplan.money.price import HOURS_PER_MONTH, SIDES
from capplan.report.quantities import (
    MONEY,
    PLAN,
    WORKLOADS,
)
from capplan.workload.request_class import requests_paid


def usd_per_gpu_hour(of: Subject) -> Explained:
    """Explain the price of a device: the offers that it comes from."""
    offers = [
        input_of(
            "p",
            f"{record.provider} usd_per_gpu_hour",
            record.usd_per_hour,
            "spec" if record.quality == "list" else "assumed",
            f"{record.source}, {record.date or 'date unknown'}",
        )
        for record in of.price.records
    ]
    key = f"prices.per_gpu_hour.{of.plan.single.layout.device.name}"
    offers = offers or [of.of_scenario("p", "usd_per_gpu_hour", of.price.usd_per_hour, key)]
    return explained("usd_per_gpu_hour", of.price.usd_per_hour, f"p: {of.price.basis}", offers, MONEY)


def of_an_order(explain: Callable[[str], Explained]) -> Explained:
    """Explain the cost of an hour of machines that are bought whole."""
    steps = tuple(explain(name) for name in ("usd_per_gpu_hour", "gpus", "order.usd_per_hour"))
    whole = steps[-1]
    return explained("usd_per_hour", whole.value, "h", (whole.input("h"),), MONEY, steps=steps)


def per_thousand_requests(of: Subject, explain: Callable[[str], Explained]) -> Explained:
    """Explain the cost of a thousand requests: of a job, or of an hour at the mean load."""
    quantity = "usd_per_thousand_requests"
    demand, value = of.facts.demand, of.numbers[quantity]
    if "usd_per_job" in of.numbers:
        job = explain("usd_per_job")
        requests = sum((item.job_requests or 0.0) / item.sequences_per_request for item in demand.classes)
        asked = input_of("n", "requests", requests, "config", "scenario: traffic, requests of the job")
        return explained(quantity, value, "1000 c / n", (job.input("c"), asked), MONEY, steps=(job,))
    hourly, rate = explain("usd_per_hour"), of.facts.mean_requests_per_s
    source = "scenario: traffic, mean over the hours that are paid for"
    inputs = (hourly.input("h"), input_of("r", "request_rate", rate, "config", source))
    return explained(quantity, value, "1000 h / (3600 r)", inputs, MONEY, steps=(hourly,))


def at_an_offer(of: Subject, quantity: str) -> Explained:
    """Explain what the fleet costs at the lowest, the likely or the highest offer of its device."""
    _, side, key = quantity.split(".")
    at = next(each for each in SIDES if each == side)
    usd, records = of.price.at(at)
    energy = of.price.energy_usd_per_hour or 0.0
    stated = of.of_scenario("p", "usd_per_gpu_hour", usd - energy, f"prices.per_gpu_hour.{of.plan.hardware}")
    offers = [
        input_of("p", f"{offer.provider} usd_per_gpu_hour", offer.usd_per_hour, "spec", f"{offer.source}, {offer.date or 'date unknown'}")
        for offer in records
    ]  # fmt: skip
    order = of.plan.single.order_of(of.busy, at)
    lines = order.lines if order is not None else ()
    gpus = sum(line.count * line.machine.gpus for line in lines)
    paid = sum(line.count * line.machine.gpus for line in lines if not line.machine.is_owned)
    inputs = (
        *(offers or [stated]),
        input_of("g", "gpus to be paid", paid, "derived", "the machines at this offer"),
        of.of_scenario("e", "energy_usd_per_gpu_hour", energy, "prices.electricity"),
        input_of(
            "G", "gpus", gpus, "derived", "the machines at this offer, and those that are there already"
        ),
    )
    hours = {
        "usd_per_hour": "",
        "usd_per_month": f" {HOURS_PER_MONTH:g}",
        "usd_per_year": f" {HOURS_PER_YEAR:g}",
    }
    formula = f"(p g + e G){hours.get(key, ' job_hours')}"
    return explained(quantity, of.numbers[quantity], formula, inputs, MONEY)


def explained_outside(of: PlanSubject, quantity: str) -> Explained:
    """Explain a quantity of what users wait for and pay for outside the GPUs."""
    _, key, *part = quantity.split(".")
    inputs, value = _of_scenario(of.plan), of.numbers[quantity]
    if key.startswith("seen_by_class_s"):
        formula = f"{in_words(part[1])} of t_i + w over the requests i of the class at the peak"
        at = int(key.partition("[")[2].removesuffix("]"))
        return explained(quantity, value, formula, inputs[3 * at : 3 * at + 2], WORKLOADS)
    if part:
        metric = key.removeprefix("seen_")
        formula = (
            "t + w_k"
            if of.plan.unlike_waits is None
            else f"{in_words(part[0])} of t_i + w_k over all requests i, each of its class k"
        )
        inputs = (of.number("t", f"{metric}.{part[0]}", of.label), *inputs)
        return explained(quantity, value, formula, inputs, WORKLOADS)
    return explained(quantity, value, formula_in(PLAN[quantity]), inputs, WORKLOADS)


def _of_scenario(plan: Plan) -> tuple[Input, ...]:
    """Return requests, wait and price of every class."""
    assert plan.outside is not None
    paid = f"scenario: traffic, {formula_of(requests_paid)}"
    return tuple(
        item
        for index, share in enumerate(plan.outside.classes)
        for item in (
            input_of("n_k", f"{share.name} requests", share.requests, "config", paid),
            input_of("w_k", f"{share.name} wait_s", share.wait_s, "config", f"scenario: traffic[{index}].outside"),
            input_of("u_k", f"{share.name} usd_per_request", share.usd_per_request, "config", f"scenario: traffic[{index}].outside"),
        )
    )  # fmt: skip
