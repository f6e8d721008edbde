"""A scenario and its plan -> what the service costs in all, line by line."""

from capplan.fleet.order import OrderLine
from capplan.fleet.plan import Plan, plan_order
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.model.parameters import weight_bytes
from capplan.money.commitments import Mix
from capplan.money.hosted import hosted_traffic, outside_usd
from capplan.money.total_cost import CostLine, Sold, other_lines
from capplan.questions.fleet import AskedFleet
from capplan.scenario.money_terms import memory_usd_per_month


def asked_other_lines(
    asked: AskedFleet, plan: Plan, machines_usd: float, hours: float
) -> tuple[CostLine, ...]:
    """Return what a plan takes in addition to GPUs and people, in the hours that it is paid for.

    Parameters
    ----------
    asked : the scenario
    plan : whose response times decide how often users ask
    machines_usd : [$]
        what its machines cost in that time
    hours : [h]
        of a month, or of a job
    """
    responses_s = asked.question.demand.responses_s(plan.responses_s)
    classes = zip(asked.question.demand.classes, responses_s, strict=True)
    traffic = [hosted_traffic(item, response_s) for item, response_s in classes]
    tokens = sum(part.requests * part.request_class.generated_tokens * hours / part.hours for part in traffic)
    networks = {group.weight_dtype: asked.question.networks[group.weight_dtype] for group in plan.groups}
    stored = sum(weight_bytes(network) for network in networks.values())
    months = hours / HOURS_PER_MONTH
    return other_lines(asked.scenario.own.other, machines_usd, tokens, stored, months)


def total_cost(
    asked: AskedFleet, plan: Plan, mix: Mix | None, month_hours: float = HOURS_PER_MONTH
) -> tuple[CostLine, ...]:
    """Return every line of what a plan costs in a month, or until its job is done; empty without a price.

    Parameters
    ----------
    asked : the scenario
    plan : with a price
    mix : commitments that pay for its machines; None: rented at one price
    month_hours : [h]
        of the month
    """
    own, job_hours = asked.scenario.own, plan.money.job_hours if plan.money else None
    hours = job_hours or month_hours
    machines = _mix_lines(mix, hours) if mix is not None and job_hours is None else _order_lines(plan, hours)
    if not machines:
        return ()
    memory = memory_usd_per_month(asked.scenario, plan)
    months = hours / HOURS_PER_MONTH
    machines += [
        CostLine(
            "host memory of offloaded caches", months, "months", memory, "scenario: prices.host_memory_per_gb"
        )
    ]
    machines_usd = sum(line.usd for line in machines)
    responses_s = asked.question.demand.responses_s(plan.responses_s)
    traffic = tuple(
        hosted_traffic(item, response_s)
        for item, response_s in zip(asked.question.demand.classes, responses_s, strict=True)
    )
    people = "assumed" if own.people_assumed else "scenario: prices.people"
    lines = (
        *machines,
        CostLine("overhead", machines_usd, "$ of machines", own.overhead_fraction, "scenario: prices.overhead"),
        CostLine("people", 1.0, "team", own.people_usd_per_month, people),
        *asked_other_lines(asked, plan, machines_usd, hours),
        CostLine("retrieval and tools", 1.0, "all requests", outside_usd(traffic) * (1.0 if job_hours else months), "scenario: traffic, outside"),
    )  # fmt: skip
    return tuple(line for line in lines if line.usd)


def _order_lines(plan: Plan, hours: float) -> list[CostLine]:
    """Return the machines of the order, and the electricity that is paid in addition to them."""
    order = plan_order(plan)
    if order is None or plan.usd_per_hour is None:
        return []
    lines = [
        CostLine(_machine_text(line), line.count * hours, "machine hours", line.machine.usd_per_hour, _machine_basis(line), "machines", Sold(line.machine.provider, "", line.machine.sku, line.machine.region, line.count * line.machine.gpus))
        for line in order.lines
    ]  # fmt: skip
    energy = plan.usd_per_hour - sum(line.usd for line in lines) / hours
    return [*lines, CostLine("electricity at design power", hours, "hours", energy if energy > 1e-9 * plan.usd_per_hour else 0.0, "scenario: prices.electricity")]  # fmt: skip


def _machine_text(line: OrderLine) -> str:
    machine = line.machine
    name = machine.sku or (machine.device if machine.gpus == 1 else f"{machine.gpus} x {machine.device}")
    return f"{line.count} x {name}, {machine.provider}"


def _machine_basis(line: OrderLine) -> str:
    machine = line.machine
    place = f"{machine.region}, " if machine.region else ""
    return f"offer: {place}{machine.date or 'date unknown'}" if machine.source else "scenario"


def _mix_lines(mix: Mix, hours: float) -> list[CostLine]:
    """Return the parts of a mix, by the GPU hours that are paid for."""
    lines = []
    for part in mix.parts:
        gpus, offer = part.gpus, part.offer
        paid = float(gpus) if offer.fixed_usd_per_hour else gpus * part.used_fraction
        each = part.usd_per_hour / paid if paid else 0.0
        machines = f" in {part.units} x {part.machine}" if part.machine else ""
        lines.append(
            CostLine(
                f"{gpus} GPUs{machines}, {offer.name}", paid * hours, "GPU hours", each, offer.origin, "machines",
                sold=Sold("", offer.name, part.machine or "", None, gpus),
            )
        )  # fmt: skip
    people = CostLine(
        "people for owned machines", hours / HOURS_PER_MONTH, "months", mix.people_usd_per_hour * HOURS_PER_MONTH, "scenario: commitments.owned.people",
    )  # fmt: skip
    return [*lines, people]
