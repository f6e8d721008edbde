"""Sentences about devices and layouts that were rejected, and what would let them through."""

from collections.abc import Iterable, Iterator
from math import ceil

from capplan.fleet.plan import FleetAnswer, FleetPlan, Insensible, Relaxation
from capplan.fleet.price import usd_per_month
from capplan.questions.fleet import AskedFleet
from capplan.scenario.host_memory import host_bytes, memory_usd_per_month


def insensible_text(row: Insensible) -> str:
    """Return why a device has no plan worth showing, and what would change that."""

    def milliseconds(value_s: float) -> str:
        return f"{1e3 * value_s:.3g} ms" if value_s < 1.0 else f"{value_s:.3g} s"

    at = ", ".join(f"{gpus} GPUs at {milliseconds(limit)}" for limit, gpus in row.gpus_at)
    needed = "no number of GPUs is enough" if row.gpus is None else f"it would take {row.gpus} GPUs"
    return (
        f"{row.hardware}: {row.target} is {milliseconds(row.value_s)} on an idle replica, with a limit of {milliseconds(row.limit_s)}"
        f", so {needed}{f'; with a higher limit, about {at}' if at else ''}"
    )


def relaxation_text(relaxation: Relaxation) -> str:
    """Return the change to one target that would let a plan through."""
    layout = relaxation.layout
    return (
        f"relax {relaxation.target} from {relaxation.limit_s:g} s to {relaxation.needed_s:.3g} s: "
        f"replicas of {layout.devices} x {layout.device.name} would then do"
    )


def slices_texts(plans: Iterable[FleetPlan]) -> Iterator[str]:
    """Yield what the slices of each plan are in whole GPUs, which is what most providers rent."""
    for plan in plans:
        cut = plan.layout.device.partition
        if cut is None:
            continue
        wholes = ceil(plan.gpus / cut.per_device)
        usd = None if plan.price is None else plan.price.total_usd_per_hour * cut.per_device * wholes
        cost = (
            ""
            if usd is None
            else f", ${usd_per_month(usd):,.0f} a month where slices are not sold one by one"
        )
        yield f"{plan.gpus} x {plan.hardware} are cut from {wholes} whole GPUs{cost}"


def rejected_text(answer: FleetAnswer) -> str:
    """Return how many candidates were rejected, and what became of the others, so that the counts add up."""
    rejected = sum(item.count for item in answer.rejected)
    title = f"Rejected: {rejected:,} of {answer.evaluated:,} candidates (every layout at a range of loads)"
    left = answer.evaluated - rejected
    return (
        f"{title}; the other {left:,} meet the targets, at a lower load or a higher cost" if left else title
    )


def against_text(usd: float, other_usd: float) -> str:
    """Return how a cost stands to another one.

    Examples
    --------
    >>> against_text(60.0, 80.0), against_text(88.0, 80.0)
    ('25% less than', '10% more than')
    """
    if usd == other_usd:
        return "as much as"
    return (
        f"{1.0 - usd / other_usd:.0%} less than"
        if usd < other_usd
        else f"{usd / other_usd - 1.0:.0%} more than"
    )


def sure(probability: float) -> str:
    """Format a probability for people, rounded down; never as certain.

    Examples
    --------
    >>> sure(0.616), sure(0.9999), sure(0.0001)
    ('61%', 'over 99%', 'under 1%')
    """
    if probability > 0.99:
        return "over 99%"
    return "under 1%" if probability < 0.01 else f"{int(100.0 * probability)}%"


def unsure(probability: float) -> str:
    """Format what a probability leaves for people, rounded up, so that it adds up with `sure`; never as impossible.

    Examples
    --------
    >>> unsure(0.616), unsure(0.9999), unsure(0.0001)
    ('39%', 'under 1%', 'over 99%')
    """
    if probability > 0.99:
        return "under 1%"
    return "over 99%" if probability < 0.01 else f"{100 - int(100.0 * probability)}%"


def host_memory_texts(asked: AskedFleet, answer: FleetAnswer) -> tuple[str, ...]:
    """Return what the host memory of offload tiers costs on top of the recommended plan, where it has a price."""
    plan = answer.bought
    usd = 0.0 if plan is None else memory_usd_per_month(asked.scenario, plan)
    if plan is None or not usd:
        return ()
    each = host_bytes(asked.scenario) * 1e-9
    return (
        f"on top of it, {each:,.0f} GB of host memory for each of {plan.replicas} replicas: ${usd:,.0f} a month",
    )
