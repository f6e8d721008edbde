"""Costs explained: by hour, month, token and request, and what is spent outside the GPUs."""

from collections.abc import Callable

from capplan.explain.subject import Explained, Input, PlanSubject, Subject, explained, formula_of, input_of
from capplan.explain.table import formula_in
from capplan.fleet.order import OWN, Machine
from capplan.fleet.plan import Plan, paid_by_the_gpu, plan_order
from capplan.fleet.price import HOURS_PER_MONTH, SIDES
from capplan.fleet.unit_costs import mean_requests_per_s
from capplan.money.commitments import HOURS_PER_YEAR
from capplan.report.quantities import MONEY, PLAN, WORKLOADS
from capplan.workload.daily_curve import requests_paid


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
    inputs = (input_of("h", whole.quantity, whole.value, whole.label, f"explain {whole.quantity}"),)
    return explained("usd_per_hour", whole.value, "h", inputs, MONEY, steps=steps)


def per_thousand_requests(of: Subject, explain: Callable[[str], Explained]) -> Explained:
    """Explain the cost of a thousand requests: of a job, or of an hour at the mean load."""
    quantity = "usd_per_thousand_requests"
    demand, value = of.trial.demand, of.numbers[quantity]
    if "usd_per_job" in of.numbers:
        job = explain("usd_per_job")
        requests = sum((item.job_requests or 0.0) / item.sequences_per_request for item in demand.classes)
        paid = input_of("c", job.quantity, job.value, job.label, f"explain {job.quantity}")
        asked = input_of("n", "requests", requests, "config", "scenario: traffic, requests of the job")
        return explained(quantity, value, "1000 c / n", (paid, asked), MONEY, steps=(job,))
    hourly, rate = explain("usd_per_hour"), mean_requests_per_s(demand, of.latencies.responses_s)
    paid = input_of("h", hourly.quantity, hourly.value, hourly.label, f"explain {hourly.quantity}")
    asked = input_of(
        "r", "request_rate", rate, "config", "scenario: traffic, mean over the hours that are paid for"
    )
    return explained(quantity, value, "1000 h / (3600 r)", (paid, asked), MONEY, steps=(hourly,))


def line_by_line(of: PlanSubject, quantity: str) -> Explained:
    """Explain GPUs or cost of the machines of a plan, line by line."""
    order, value = plan_order(of.plan), of.numbers[quantity]
    assert order is not None
    lines = [(line, line.machine.sku or "by the GPU") for line in order.lines]
    counts = [
        input_of(
            f"n{i}", f"machines {name}", line.count, "derived", "the cheapest machines that hold the replicas"
        )
        for i, (line, name) in enumerate(lines, start=1)
    ]
    if quantity == "order.gpus":
        sizes = [
            input_of(
                f"g{i}",
                f"gpus_per_machine {sku}",
                line.machine.gpus,
                "spec",
                line.machine.source or "the scenario",
            )
            for i, (line, sku) in enumerate(lines, start=1)
        ]
        return explained(quantity, value, _sum_of("n", "g", len(lines)), (*counts, *sizes), MONEY)
    prices = [
        input_of(f"p{i}", f"usd_per_machine_hour {sku}", line.machine.usd_per_hour, *_stated_by(line.machine))
        for i, (line, sku) in enumerate(lines, start=1)
    ]  # fmt: skip
    energy = value - sum(line.count * line.machine.usd_per_hour for line in order.lines)
    rest = input_of("e", "energy_usd_per_hour", energy, "config", "scenario: prices.electricity")
    formula = f"{_sum_of('n', 'p', len(lines))} + e"
    return explained(quantity, value, formula, (*counts, *prices, rest), MONEY)


def _stated_by(machine: Machine) -> tuple[str, str]:
    """Return the label of what a machine is and costs, and who states it."""
    if not machine.source:
        return "config", f"scenario: {'fleet.own' if machine.provider == OWN else 'prices.per_gpu_hour'}"
    return "spec", f"{machine.source}, {machine.provider}, {machine.date or 'date unknown'}"


def _sum_of(one: str, other: str, terms: int) -> str:
    return " + ".join(f"{one}{i} {other}{i}" for i in range(1, terms + 1))


def at_an_offer(of: Subject, quantity: str, explain: Callable[[str], Explained]) -> Explained:
    """Explain what the fleet costs at the lowest, the likely or the highest offer of its device."""
    _, side, key = quantity.split(".")
    usd, records = of.price.at(next(each for each in SIDES if each == side))
    energy = of.price.energy_usd_per_hour or 0.0
    stated = of.of_scenario("p", "usd_per_gpu_hour", usd - energy, f"prices.per_gpu_hour.{of.plan.hardware}")
    offers = [
        input_of("p", f"{offer.provider} usd_per_gpu_hour", offer.usd_per_hour, "spec", f"{offer.source}, {offer.date or 'date unknown'}")
        for offer in records
    ]  # fmt: skip
    inputs = (
        *(offers or [stated]),
        of.of_scenario("e", "energy_usd_per_gpu_hour", energy, "prices.electricity"),
        input_of("g", "gpus", of.plan.gpus, "derived", "explain gpus"),
    )
    hours = {
        "usd_per_hour": "",
        "usd_per_month": f" {HOURS_PER_MONTH:g}",
        "usd_per_year": f" {HOURS_PER_YEAR:g}",
    }
    formula = f"({'mean of p' if len(offers) > 1 else 'p'} + e) g{hours.get(key, ' job_hours')}"
    value = of.numbers[quantity]
    if not paid_by_the_gpu([of.plan]):
        hourly, likely = explain("usd_per_hour"), of.price.total_usd_per_hour
        inputs = (
            *inputs[:-1],
            input_of("h", "usd_per_hour", hourly.value, hourly.label, "explain usd_per_hour"),
            input_of("q", "usd_per_gpu_hour with electricity", likely, "derived", "explain usd_per_gpu_hour"),
        )
        formula = (
            f"h {formula.removesuffix(formula[formula.index(' g') :])} / q{hours.get(key, ' job_hours')}"
        )
    return explained(quantity, value, formula, inputs, MONEY)


def explained_outside(of: PlanSubject, quantity: str) -> Explained:
    """Explain a quantity of what users wait for and pay for outside the GPUs."""
    _, key, *part = quantity.split(".")
    inputs, value = _of_scenario(of.plan), of.numbers[quantity]
    if key.startswith("seen_by_class_s"):
        statistic = part[1] if part[1] == "mean" else f"{part[1][1:]}th percentile"
        formula = f"{statistic} of t_i + w over the requests i of the class at the peak"
        at = int(key.partition("[")[2].removesuffix("]"))
        return explained(quantity, value, formula, inputs[3 * at : 3 * at + 2], WORKLOADS)
    if part:
        metric = key.removeprefix("seen_")
        statistic = "mean" if part[0] == "mean" else f"{part[0][1:]}th percentile"
        formula = (
            "t + w_k"
            if of.plan.unlike_waits is None
            else f"{statistic} of t_i + w_k over all requests i, each of its class k"
        )
        inputs = (
            input_of("t", f"{metric}.{part[0]}", of.numbers[f"{metric}.{part[0]}"], of.label, f"explain {metric}.{part[0]}"), *inputs
        )  # fmt: skip
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
