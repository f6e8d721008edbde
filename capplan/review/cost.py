"""The costs in a review: devices by the hour and month, tokens at the mean load and at the peak, a job as a whole."""

from typing import Any

from capplan.fleet.plan import Group, Plan, paid_by_the_gpu
from capplan.fleet.price import HOURS_PER_MONTH, usd_per_month
from capplan.money.total_cost import total_usd
from capplan.report.answer import Table
from capplan.report.answers.fleet_money import total_table
from capplan.report.answers.order import order_tables
from capplan.report.answers.plan_words import layout_text
from capplan.review.findings import Findings, Section
from capplan.review.plans import CHARTED, by_the_job

_TITLES = {
    "usd_per_job": "the job",
    "usd_per_hour": "cost",
    "usd_per_month": "cost",
    "load": "tokens at",
}
MEAN, PEAK = "the mean load", "the peak, all month"


def cost_section(given: Findings) -> Section:
    """Return the cost of the devices, and of a million tokens or of the job; every row multiplies across."""
    powered = given.asked.scenario.prices.usd_per_kwh is not None
    plans = given.plans[:CHARTED]
    of_job = by_the_job(plans)
    devices = [row for plan in plans for row in _devices_rows(plan, powered=powered, of_job=of_job)]
    tokens = [row for plan in plans for row in (_job_rows(plan) if of_job else _token_rows(plan))]
    way = "cost per hour is the price of whole machines, as in the order; "
    if paid_by_the_gpu(plans):
        way = f"GPUs x price{' + electricity' if powered else ''} = cost per hour; "
    if of_job:
        way += (
            "x hours of the job = cost of the job; / thousand requests = price per thousand requests; cost of the job / million "
            "tokens = price per million tokens. Nothing is paid for once the job is done."
        )
    else:
        way += (
            "x hours = cost per month; / million tokens = price per million tokens. Devices are paid for at all hours, "
            "so the price to expect is that at the mean load; the price at the peak would need peak traffic all month."
        )
    if powered:
        way += _electricity_text(given)
    return Section(
        "Cost",
        text=(way,),
        tables=(
            Table(devices, title="Devices", titles=_TITLES),
            Table(tokens, title="Requests and tokens" if of_job else "Tokens", titles=_TITLES),
            *order_tables(given.answer.chosen),
        ),
    )


def total_section(given: Findings) -> Section:
    """Return every line of the total cost, and how it adds up to the headline of the plan."""
    lines, plan = given.outlook.total, given.chosen
    if not lines or plan is None:
        return Section("Total cost")
    of_job = plan.money is not None and plan.money.usd_per_job is not None
    span = "for the job" if of_job else "a month"
    headline = plan.money.usd_per_job if of_job and plan.money else plan.usd_per_month
    by_mix = bool(given.outlook.mixes)
    beside = total_usd(lines) - (headline or 0.0)
    how = "the headline, at the price of prices.commitment" if by_mix else "the headline"
    text = f"Quantity x price of one = cost; the lines add up to ${total_usd(lines):,.0f} {span}. The machines of {how} cost ${headline or 0.0:,.0f}"
    text += (
        f"; the mix and the other lines are ${abs(beside):,.0f} {'less' if beside < 0.0 else 'more'}."
        if by_mix
        else f", the other lines ${beside:,.0f}."
    )
    return Section("Total cost", text=(text,), tables=(total_table(lines),))


def _electricity_text(given: Findings) -> str:
    prices = given.asked.scenario.prices
    return (
        f" Electricity is maximum power x {prices.facility_ratio:g} (facility ratio) x {prices.usd_per_kwh:g} $/kWh, on top of "
        "the price; leave it out where the price of a rented GPU-hour already includes it."
    )


def _devices_rows(plan: Plan, *, powered: bool, of_job: bool) -> list[dict[str, Any]]:
    """Return the devices of each group of a plan and their cost."""
    return [
        _devices_row(plan, group, name, powered=powered, of_job=of_job)
        for group, name in zip(plan.groups, plan.group_names, strict=True)
    ]


def _devices_row(plan: Plan, group: Group, name: str, *, powered: bool, of_job: bool) -> dict[str, Any]:
    usd, price = group.usd_per_hour, group.price
    paid = {"hours": HOURS_PER_MONTH, "usd_per_month": None if usd is None else float(usd_per_month(usd))}
    if of_job:
        hours = plan.money.job_hours if plan.money else None
        paid = {"job_hours": hours, "usd_per_job": None if usd is None or hours is None else hours * usd}
    return {
        "hardware": group.layout.device.name,
        "plan": f"{name} {group.layout.in_words(group.weight_dtype)}" if name else layout_text(plan),
        "gpus": group.gpus,
        "usd_per_gpu_hour": None if price is None else price.usd_per_hour,
        **({"energy_usd_per_hour": group.energy_usd_per_hour} if powered else {}),
        "usd_per_hour": usd,
        **paid,
        "tdp_watts": group.watts,
    }


def _token_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return the cost per month over the tokens at the mean load and at the peak; nothing without a price."""
    if plan.money is None or plan.usd_per_month is None:
        return []
    loads: list[tuple[str, float | None, float | None]] = [
        (MEAN, plan.money.usd_per_million_output_tokens_at_mean, plan.money.usd_per_million_tokens_at_mean)
    ]
    if plan.usd_per_million_tokens is not None:
        loads.append((PEAK, plan.usd_per_million_output_tokens, plan.usd_per_million_tokens))
    return [
        {
            "hardware": plan.hardware,
            "plan": layout_text(plan),
            "load": load,
            "usd_per_month": plan.usd_per_month,
            **_million_tokens("month", plan.usd_per_month, of_output, of_all),
        }
        for load, of_output, of_all in loads
    ]


def _job_rows(plan: Plan) -> list[dict[str, Any]]:
    money = plan.money
    if money is None or money.usd_per_job is None or not money.usd_per_thousand_requests:
        return []
    return [
        {
            "hardware": plan.hardware,
            "plan": layout_text(plan),
            "usd_per_job": money.usd_per_job,
            "thousand_requests": money.usd_per_job / money.usd_per_thousand_requests,
            "usd_per_thousand_requests": money.usd_per_thousand_requests,
            **_million_tokens(
                "job",
                money.usd_per_job,
                money.usd_per_million_output_tokens_at_mean,
                money.usd_per_million_tokens_at_mean,
            ),
        }
    ]


def _million_tokens(
    span: str, usd: float, of_output: float | None, of_all: float | None
) -> dict[str, float | None]:
    """Return the million tokens of a month or a job and the price per million, of output and of all tokens."""
    return {
        f"output_million_tokens_per_{span}": usd / of_output if of_output else None,
        "usd_per_million_output_tokens": of_output,
        f"total_million_tokens_per_{span}": usd / of_all if of_all else None,
        "usd_per_million_tokens": of_all,
    }
