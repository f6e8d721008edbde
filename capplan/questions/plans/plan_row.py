"""A plan as a row with the keys of the interface, which a plan file holds and programs read."""

from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from capplan.accuracy.bounded import BoundedSpread
from capplan.fleet.availability import plan_availability
from capplan.fleet.order import OrderLine
from capplan.fleet.plan import Certainty, Group, Plan, plan_order
from capplan.fleet.pools.link import LinkUse
from capplan.fleet.price import usd_per_month
from capplan.fleet.search.candidates import Layout
from capplan.fleet.unit_costs import UnitCosts
from capplan.money.commitments import offered_costs
from capplan.workload.outside import OutsideUse

MONTHS_PER_YEAR = 12.0
OWN_PRICE = "the scenario"
"""Who offers a price that the scenario states."""
GROUP_FIGURES = (
    "concurrency_per_replica", "request_rate_per_replica", "request_rate_limit_per_replica", "sure_request_rate_limit_per_replica",
    "planned_request_rate_limit_per_replica", "kv_cache_tokens", "label", "busy_fraction",
)  # fmt: skip
"""Fields of a group that its row has under the same name."""
OF_GROUPS_ALONE = ("role", "model", "busy_fraction", "requests")
"""Keys of a group that a plan of one group does not repeat."""


def plan_row(plan: Plan) -> dict[str, Any]:
    """Return one plan with the keys of the interface.

    What its groups of replicas are like is in `groups`; a plan of one group has these keys itself too.
    """
    groups = [group_row(group) for group in plan.groups]
    first = groups[0] if len(groups) == 1 else {}
    return {
        "hardware": plan.hardware,
        "gpus": plan.gpus,
        "replicas": plan.replicas,
        "spare_replicas": plan.spare_replicas,
        **{key: value for key, value in first.items() if key not in OF_GROUPS_ALONE},
        "weight_dtype": groups[-1]["weight_dtype"],
        "kv_dtype": groups[-1]["kv_dtype"],
        "ttft_s": asdict(plan.ttft_s),
        "tpot_s": asdict(plan.tpot_s),
        "e2e_s": asdict(plan.e2e_s),
        "class_e2e_mean_s": list(plan.class_e2e_s),
        "slo_met_probability": plan.slo_met_probability,
        "few_open_loops_measured": plan.few_open_loops_measured,
        "target_probabilities": dict(plan.target_probabilities),
        "energy_usd_per_hour": plan.energy_usd_per_hour,
        "usd_per_hour": plan.usd_per_hour,
        "usd_per_month": plan.usd_per_month,
        "usd_per_month_low": plan.usd_per_month_low,
        "usd_per_month_high": _finite(plan.usd_per_month_high),
        "offers": offers_row(plan),
        "outside": outside_row(plan),
        "usd_per_million_output_tokens": plan.usd_per_million_output_tokens,
        "usd_per_million_tokens": plan.usd_per_million_tokens,
        **_unit_costs(plan.money),
        "draft_tokens": plan.draft_tokens,
        "routing": plan.routing,
        "watts": plan.watts,
        "bottleneck": plan.bottleneck,
        "checked": plan.checked,
        "groups": groups,
        "transfer": transfer_result(plan.transfer.at_peak) if plan.transfer else None,
        "simulated_requests": plan.requests,
        "order": order_row(plan),
        "survival": survival_row(plan),
    }


def group_row(group: Group) -> dict[str, Any]:
    """Return one group of identical replicas of a plan."""
    return {
        "role": group.role,
        "model": group.model,
        "hardware": group.layout.device.name,
        "gpus": group.gpus,
        "gpus_per_replica": group.layout.devices,
        "replicas": group.replicas,
        "spare_replicas": group.spare_replicas,
        **_degrees(group.layout),
        "weight_dtype": group.weight_dtype,
        "kv_dtype": group.layout.kv_format,
        **{name: getattr(group, name) for name in GROUP_FIGURES},
        "usd_per_gpu_hour": None if group.price is None else group.price.usd_per_hour,
        "price_basis": None if group.price is None else group.price.basis,
        "usd_per_hour": group.usd_per_hour,
        "requests": None if group.requests is None else asdict(group.requests),
    }


def order_row(plan: Plan) -> dict[str, Any] | None:
    """Return the machines of a plan, line by line; None without a price."""
    order = plan_order(plan)
    if order is None:
        return None
    return {
        "machines": machine_rows(order.lines, plan.hardware),
        "placement": [
            {
                "sku": item.machine.sku or None,
                "machines": item.machines,
                "replicas": item.replicas,
                "machines_per_replica": item.span,
            }
            for item in order.placed
        ],
        "gpus": order.gpus,
        "gpus_idle": order.gpus_idle,
        "free_replicas": order.free_replicas,
        "usd_per_hour": order.usd_per_hour,
        "usd_per_month": float(usd_per_month(order.usd_per_hour)),
    }


def machine_rows(lines: Sequence[OrderLine], hardware: str) -> list[dict[str, Any]]:
    """Return the machines of an order with the keys of the interface; those of no device are of the hardware of the plan."""
    return [
        {
            "sku": line.machine.sku or None,
            "provider": line.machine.provider,
            "region": line.machine.region,
            "hardware": line.machine.device or hardware,
            "gpus": line.machine.gpus,
            "count": line.count,
            "usd_per_hour": line.machine.usd_per_hour,
            "date": line.machine.date,
            "source": line.machine.source or None,
        }
        for line in lines
    ]


def survival_row(plan: Plan) -> dict[str, Any] | None:
    """Return what a plan survives, and how likely enough of it is in service; None without a price."""
    found, survive = plan_availability(plan), plan.groups[0].survive
    if found is None:
        return None
    now, more = found.now, found.one_more
    return {
        "domain": survive.domain,
        "count": survive.count,
        "time_fraction": now.time_fraction,
        "month_probability": now.month_probability,
        "failures_per_month": now.failures_per_month,
        "hours_to_repair": survive.failures.repair_s / 3600.0,
        "one_machine_more": None
        if more is None
        else {
            "machine": more.machine,
            "usd_per_month": float(usd_per_month(more.usd_per_hour)),
            "time_fraction": more.availability.time_fraction,
            "month_probability": more.availability.month_probability,
        },
    }


def _degrees(layout: Layout) -> dict[str, int]:
    sharding = layout.sharding
    return {
        "tensor_parallel": int(sharding.tensor),
        "pipeline_parallel": int(sharding.pipeline),
        "expert_parallel": int(sharding.expert),
        "data_parallel": int(sharding.data),
    }


def certainty_row(row: Certainty) -> dict[str, Any]:
    """Return the cheapest fleet at one confidence; its layout is left out where it has separate pools."""
    layout = row.layout
    cost = {
        "confidence": row.confidence,
        "hardware": row.hardware,
        "gpus": row.gpus,
        "usd_per_month": row.usd_per_month,
    }
    if layout is None:
        return cost
    return cost | {
        "gpus_per_replica": layout.devices,
        "replicas": row.replicas,
        "spare_replicas": row.spare_replicas,
        **_degrees(layout),
        "weight_dtype": row.weight_dtype,
        "kv_dtype": layout.kv_format,
    }


def _unit_costs(money: UnitCosts | None) -> dict[str, float | None]:
    """Return what a token, a request and a job cost; None without a price, or without a job."""
    return {
        "usd_per_million_output_tokens_at_mean": money.usd_per_million_output_tokens if money else None,
        "usd_per_million_tokens_at_mean": money.usd_per_million_tokens if money else None,
        "job_hours": money.job_hours if money else None,
        "usd_per_job": money.usd_per_job if money else None,
        "usd_per_thousand_requests": money.usd_per_thousand_requests if money else None,
    }


def offers_row(plan: Plan) -> dict[str, Any] | None:
    """Return what a plan costs at the lowest offers, at those it is priced at, and at the highest; None without a price."""
    costs = offered_costs(plan)
    return {
        side: {
            "usd_per_hour": cost.usd_per_hour,
            "usd_per_month": usd_per_month(cost.usd_per_hour),
            "usd_per_year": MONTHS_PER_YEAR * usd_per_month(cost.usd_per_hour),
            "usd_per_job": cost.usd_per_job,
            "providers": [record.provider for record in cost.records] or [OWN_PRICE],
            "dates": [record.date for record in cost.records],
        }
        for side, cost in costs.items()
    } or None


def outside_row(plan: Plan) -> dict[str, Any] | None:
    """Return what requests take beside the GPUs, and what users see with it; None where nothing is stated.

    The mean is that of all requests; to the percentile of the engine the longest wait of any class is added.
    """
    use = plan.outside
    if use is None:
        return None
    return {
        "longest_wait_s": use.longest_wait_s,
        "mean_wait_s": use.mean_wait_s,
        "seen_ttft_s": _seen(plan.ttft_s, use),
        "seen_e2e_s": _seen(plan.e2e_s, use),
        "usd_per_month": None if use.of_job else use.usd,
        "usd_per_job": use.usd if use.of_job else None,
    }


def _seen(engine: BoundedSpread, use: OutsideUse) -> dict[str, float]:
    return {"mean": engine.mean + use.mean_wait_s, "p95": engine.p95 + use.longest_wait_s}


def transfer_result(use: LinkUse) -> dict[str, Any]:
    """Return what the transfers of KV caches are like."""
    return {"link": use.name, **{key: value for key, value in asdict(use).items() if key != "name"}}


def _finite(value: float | None) -> float | None:
    return None if value is None or value == inf else value
