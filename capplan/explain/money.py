"""Costs explained: by hour, month, token and request, and what is spent outside the GPUs."""

from capplan.explain.record import Explained, Input, explained, formula_of, input_of, worked
from capplan.explain.subject import ACCURACY, METHODOLOGY, MONEY, WORKLOADS, Subject, plan_numbers
from capplan.fleet.availability import plan_failures_per_month
from capplan.fleet.order import OWN, Machine
from capplan.fleet.plan import Plan, paid_by_the_gpu, plan_order
from capplan.fleet.price import HOURS_PER_MONTH, SIDES, usd_per_million_tokens, usd_per_month
from capplan.fleet.search.cheapest import Sized
from capplan.fleet.search.recommended import RANGE, cost_range
from capplan.fleet.unit_costs import unit_costs_at_mean
from capplan.money.commitments import HOURS_PER_YEAR
from capplan.workload.outside import requests_paid


def gpus(of: Subject) -> Explained:
    """Explain the devices of the fleet."""
    inputs = (
        input_of("n", "replicas", of.plan.replicas, "derived", "explain replicas"),
        input_of(
            "g", "gpus_per_replica", of.plan.single.layout.devices, "derived", "explain gpus_per_replica"
        ),
    )
    return explained("gpus", float(of.plan.gpus), "n g", inputs, METHODOLOGY, label=of.plan.single.label)


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


def usd_per_hour(of: Subject) -> Explained:
    """Explain the cost of an hour."""
    one, devices, energy = usd_per_gpu_hour(of), gpus(of), of.price.energy_usd_per_hour or 0.0
    inputs = (
        input_of("p", "usd_per_gpu_hour", one.value, one.label, "explain usd_per_gpu_hour"),
        of.of_scenario("e", "energy_usd_per_gpu_hour", energy, "prices.electricity"),
        input_of("g", "gpus", of.plan.gpus, devices.label, "explain gpus"),
    )
    value = of.price.total_usd_per_hour * of.plan.gpus
    if not of.price.machines:
        return explained("usd_per_hour", value, "(p + e) g", inputs, MONEY, steps=(one, devices))
    value = of.plan.usd_per_hour or 0.0
    ordered = explained_order(of.plan, "order.usd_per_hour", value)
    whole = (input_of("h", "order.usd_per_hour", value, ordered.label, "explain order.usd_per_hour"),)
    return explained("usd_per_hour", value, "h", whole, MONEY, steps=(one, devices, ordered))


def explained_order(plan: Plan, quantity: str, value: float) -> Explained:
    """Explain a number of the machines of a plan: GPUs, idle ones, replicas that fit beside, cost."""
    order = plan_order(plan)
    assert order is not None
    lines = [(line, line.machine.sku or "by the GPU") for line in order.lines]
    counts = [
        input_of(
            f"n{i}", f"machines {name}", line.count, "derived", "the cheapest machines that hold the replicas"
        )
        for i, (line, name) in enumerate(lines, start=1)
    ]
    name = quantity.removeprefix("order.")
    if name == "gpus":
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
    if name == "gpus_idle":
        used = input_of("g", "gpus", plan.gpus, "derived", "explain gpus")
        whole = input_of("o", "order.gpus", order.gpus, "derived", "explain order.gpus")
        return explained(quantity, value, "o - g", (whole, used), MONEY)
    if name == "free_replicas":
        held = sum(line.replicas for line in order.lines)
        used = input_of("n", "replicas", plan.replicas, "derived", "explain replicas")
        whole = input_of("h", "replicas_held", held, "derived", "machines x replicas that fit on each")
        return explained(quantity, value, "h - n", (whole, used), MONEY)
    if name == "usd_per_month":
        hourly = input_of(
            "h", "order.usd_per_hour", order.usd_per_hour, "derived", "explain order.usd_per_hour"
        )
        hours = input_of("m", "hours", HOURS_PER_MONTH, "derived", "365 x 24 / 12 hours of an average month")
        return explained(quantity, value, "h m", (hourly, hours), MONEY)
    prices = [
        input_of(f"p{i}", f"usd_per_machine_hour {sku}", line.machine.usd_per_hour, *_stated_by(line.machine))
        for i, (line, sku) in enumerate(lines, start=1)
    ]  # fmt: skip
    energy = value - sum(line.count * line.machine.usd_per_hour for line in order.lines)
    rest = input_of("e", "energy_usd_per_hour", energy, "config", "scenario: prices.electricity")
    formula = f"{_sum_of('n', 'p', len(lines))} + e"
    return explained(quantity, value, formula, (*counts, *prices, rest), MONEY)


def explained_survival(plan: Plan, quantity: str, value: float) -> Explained:
    """Explain what a plan survives, and how likely enough replicas are in service."""
    survive, name = plan.groups[0].survive, quantity.removeprefix("survival.")
    if name == "count":
        stated = input_of("n", "count", survive.count, "config", f"scenario: {survive.key}")
        return explained(quantity, value, "n", (stated,), MONEY)
    repair = input_of(
        "r", "hours_to_repair", survive.failures.repair_s / 3600.0, "config", "scenario: fleet.time_to_repair"
    )
    if name == "hours_to_repair":
        return explained(quantity, value, "r", (repair,), MONEY)
    if name == "one_machine_more.usd_per_month":
        return explained(
            quantity, value, "price of one more of the machines that the order has most of", (), MONEY
        )
    fails = input_of(
        "f", "failures_per_month", plan_failures_per_month(plan), "spec",
        "fleet.time_to_failure, or by GPUs as published for servers of eight H100 (arXiv 2407.21783)",
    )  # fmt: skip
    spares = input_of("s", "spare_replicas", plan.spare_replicas, "derived", "explain spare_replicas")
    if name == "failures_per_month":
        return explained(quantity, value, "f", (fails,), MONEY)
    formula = (
        "probability of at most s lost replicas, machines failing independently"
        if name.endswith("time_fraction")
        else "the same at all times of a month: A exp(-nu T / A), nu being the rate of failures that leave too few"
    )
    return explained(quantity, value, formula, (fails, repair, spares), MONEY)


def _stated_by(machine: Machine) -> tuple[str, str]:
    """Return the label of what a machine is and costs, and who states it."""
    if not machine.source:
        return "config", f"scenario: {'fleet.own' if machine.provider == OWN else 'prices.per_gpu_hour'}"
    return "spec", f"{machine.source}, {machine.provider}, {machine.date or 'date unknown'}"


def _sum_of(one: str, other: str, terms: int) -> str:
    return " + ".join(f"{one}{i} {other}{i}" for i in range(1, terms + 1))


def energy_usd_per_hour(of: Subject) -> Explained:
    """Explain the electricity of an hour."""
    energy = of.price.energy_usd_per_hour or 0.0
    inputs = (
        of.of_scenario(
            "e", "energy_usd_per_gpu_hour", energy, "prices.electricity, at the thermal design power"
        ),
        input_of("g", "gpus", of.plan.gpus, "derived", "explain gpus"),
    )
    return explained("energy_usd_per_hour", of.plan.gpus * energy, "e g", inputs, MONEY)


def month(of: Subject) -> Explained:
    """Explain the cost of a month."""
    hourly = usd_per_hour(of)
    inputs = {
        "usd_per_hour": (hourly.value, hourly.label, "explain usd_per_hour"),
        "hours": (HOURS_PER_MONTH, "derived", "365 x 24 / 12 hours of an average month"),
    }
    return worked("usd_per_month", usd_per_month, inputs, page=MONEY, steps=(hourly,))


def month_at_an_end(of: Subject, quantity: str, end: int) -> Explained:
    """Explain the cost of a month if replicas are as fast, or as slow, as in a tenth of the cases."""
    costs = cost_range(Sized(of.trial, of.busy, of.plan.gpus), of.terms)
    assert costs is not None
    slowness, one = of.trial.candidate.slowness, usd_per_gpu_hour(of)
    source = f"{RANGE[end]:.0%} point of {slowness.rows} measured open-loop runs"
    inputs = (
        input_of("s", "slowness_ratio", slowness.quantile(RANGE[end]), "measured", source),
        of.of_scenario("h", "headroom_fraction", of.terms.headroom_fraction, "fleet.headroom"),
        input_of("p", "usd_per_gpu_hour", one.value, one.label, "explain usd_per_gpu_hour"),
    )
    formula = "month of the replicas that the peak with headroom h takes if every step takes s times as long"
    return explained(quantity, costs[end], formula, inputs, ACCURACY, label=of.plan.single.label)


def at_an_offer(of: Subject, quantity: str) -> Explained:
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
    value = plan_numbers(of.plan)[quantity]
    if not paid_by_the_gpu([of.plan]):
        hourly, likely = usd_per_hour(of), of.price.total_usd_per_hour
        inputs = (
            *inputs[:-1],
            input_of("h", "usd_per_hour", hourly.value, hourly.label, "explain usd_per_hour"),
            input_of("q", "usd_per_gpu_hour with electricity", likely, "derived", "explain usd_per_gpu_hour"),
        )
        formula = (
            f"h {formula.removesuffix(formula[formula.index(' g') :])} / q{hours.get(key, ' job_hours')}"
        )
    return explained(quantity, value, formula, inputs, MONEY)


def per_million_tokens(of: Subject, quantity: str, *, inputs_too: bool) -> Explained:
    """Explain the cost of a million tokens at the peak."""
    hourly, demand = usd_per_hour(of), of.trial.demand.at_responses(of.latencies.responses_s)
    rate = of.latencies.requests_per_s * of.busy
    tokens_per_s = rate * demand.generated_tokens
    if inputs_too:
        tokens_per_s += rate * float(demand.lengths.input_tokens)
    what = "input and output" if inputs_too else "output"
    inputs = {
        "usd_per_hour": (hourly.value, hourly.label, "explain usd_per_hour"),
        "tokens_per_s": (tokens_per_s, "config", f"scenario: traffic, {what} tokens at the peak"),
    }
    return worked(quantity, usd_per_million_tokens, inputs, page=MONEY, steps=(hourly,))


_AT_MEAN = {
    "job_hours": "requests of the job / (3600 their rate)",
    "usd_per_job": "h job_hours",
    "usd_per_thousand_requests": "1000 usd_per_job / requests of the job",
}


def at_the_mean_load(of: Subject, quantity: str) -> Explained:
    """Explain a cost at the mean load, or of a job."""
    hourly, response_s = usd_per_hour(of), of.latencies.e2e_s.mean
    paid = unit_costs_at_mean(of.trial.demand, hourly.value, of.latencies.responses_s)
    inputs = (
        input_of("h", "usd_per_hour", hourly.value, hourly.label, "explain usd_per_hour"),
        input_of(
            "t", "e2e_s.mean", response_s, of.plan.single.label, "explain e2e_s.mean; users wait for it"
        ),
        input_of("r", "traffic", None, "config", "scenario: traffic, mean over the hours that are paid for"),
    )
    formula = _AT_MEAN.get(quantity, "10^6 h / (3600 r)")
    if quantity == "usd_per_thousand_requests" and paid.usd_per_job is None:
        formula = "1000 h / (3600 r)"
    value = float(getattr(paid, quantity.removesuffix("_at_mean")))
    return explained(quantity, value, formula, inputs, MONEY, steps=(hourly,))


def watts(of: Subject) -> Explained:
    """Explain the power of all devices."""
    device = of.plan.single.layout.device
    keys = device.figure_sources.get("tdp_w", ())
    titles = [item.title for item in device.sources if item.key in keys]
    inputs = (
        input_of(
            "w",
            "watts",
            device.tdp_w,
            device.labels.get("tdp_w", "spec"),
            ", ".join(titles) or "hardware_specs",
        ),
        input_of("g", "gpus", of.plan.gpus, "derived", "explain gpus"),
    )
    return explained("watts", (device.tdp_w or 0.0) * of.plan.gpus, "w g", inputs, MONEY)


_FORMULAS = {
    "longest_wait_s": "max w_k",
    "mean_wait_s": "sum n_k w_k / sum n_k",
    "usd_per_month": "sum n_k u_k",
    "usd_per_job": "sum n_k u_k",
}


def explained_outside(plan: Plan, quantity: str, value: float, label: str) -> Explained:
    """Explain a quantity of what users wait for and pay for outside the GPUs; the label is that of the plan's latencies."""
    _, key, *part = quantity.split(".")
    inputs = _of_scenario(plan)
    if part:
        metric = key.removeprefix("seen_")
        engine = float(getattr(getattr(plan, metric), part[0]))
        statistic = "mean" if part[0] == "mean" else f"{part[0][1:]}th percentile"
        formula = (
            "t + w_k"
            if plan.unlike_waits is None
            else f"{statistic} of t_i + w_k over all requests i, each of its class k"
        )
        inputs = (
            input_of("t", f"{metric}.{part[0]}", engine, label, f"explain {metric}.{part[0]}"), *inputs
        )  # fmt: skip
        return explained(quantity, value, formula, inputs, WORKLOADS)
    return explained(quantity, value, _FORMULAS[key], inputs, WORKLOADS)


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
