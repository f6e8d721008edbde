"""What the machines of a plan cost, explained: as rented, by a mix of commitments, or for one job; with people and overhead."""

from capplan.explain.record import Explained, Input, explained, formula_of, input_of
from capplan.explain.row import Planned
from capplan.explain.subject import MONEY
from capplan.fleet.money_terms import OwnTerms
from capplan.fleet.price import HOURS_PER_MONTH
from capplan.questions.money.paid_plan import PaidPlan, paid_plan
from capplan.questions.money.price_age import current_day
from capplan.scenario.host_memory import memory_usd_per_month


def paid(planned: Planned) -> PaidPlan:
    """Return the recommended plan as it is paid for."""
    return paid_plan(planned.asked, planned.answer, "there is nothing to pay for", current_day())


def machines(planned: Planned) -> Explained:
    """Explain what the machines cost: of a month or of one job, with host memory for offloaded caches."""
    plan = paid(planned)
    memory = memory_usd_per_month(planned.asked.scenario, plan.plan) * plan.hours / HOURS_PER_MONTH
    rest = input_of("k", "host_memory_usd", memory, "config", "scenario: prices.host_memory and kv_offload")
    if plan.by_mix and not plan.of_job:
        mix = plan.machines_usd - memory
        mixed = input_of("m", "usd_per_month", mix, "derived", "explain commitments.usd_per_month")
        return explained("machines_usd", plan.machines_usd, "m + k", (mixed, rest), MONEY)
    name = "usd_per_job" if plan.of_job else "usd_per_month"
    rented = planned.of_plan(name)
    cost = input_of("m", name, rented.value, rented.label, f"explain {name}")
    return explained("machines_usd", plan.machines_usd, "m + k", (cost, rest), MONEY, steps=(rented,))


def with_people(planned: Planned) -> Explained:
    """Explain what the machines cost with people and overhead."""
    terms, step = planned.asked.scenario.own, machines(planned)
    inputs = (input_of("m", "machines_usd", step.value, step.label, "the first step below"), *stated(planned))
    return explained("own_usd", terms.usd(step.value), formula_of(OwnTerms.usd), inputs, MONEY, steps=(step,))


def stated(planned: Planned) -> tuple[Input, ...]:
    """Return overhead and people."""
    terms = planned.asked.scenario.own
    return (
        input_of("f", "overhead_fraction", terms.overhead_fraction, "config", "scenario: prices.overhead"),
        input_of("p", "people_usd_per_month", terms.people_usd_per_month, "config", "scenario: prices.people"),
    )  # fmt: skip
