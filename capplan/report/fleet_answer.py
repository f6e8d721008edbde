"""What `capplan fleet` shows: the decision, the plans, and what was turned down."""

from dataclasses import asdict
from typing import Any

from capplan.fleet.over_time import OverTime
from capplan.fleet.plan import FleetAnswer, FleetPlan, Relaxation
from capplan.inputs.question import AskedFleet
from capplan.report.answer import Answer, Table
from capplan.report.over_time_answer import over_time_assumptions, over_time_result, over_time_tables

_SHOWN = (
    "hardware", "gpus", "replicas", "plan", "request_rate_per_replica", "concurrency_per_replica", "ttft_s.p95",
    "tpot_s.p95", "slo_met_probability", "usd_per_hour", "usd_per_month", "usd_per_million_output_tokens",
)  # fmt: skip
_TITLES = {"request_rate_per_replica": "per replica", "concurrency_per_replica": "in flight", "plan": "each"}


def layout_text(plan: FleetPlan) -> str:
    """Return the parallelism and dtypes of one replica in a few words."""
    sharding = plan.layout.sharding
    parts = [f"TP{sharding.tensor:g}"]
    for name, value in (("PP", sharding.pipeline), ("DP", sharding.data), ("EP", sharding.expert)):
        if float(value) > 1:
            parts.append(f"{name}{value:g}")
    dtype = plan.weight_dtype if plan.weight_dtype != "auto" else "as published"
    return f"{' '.join(parts)}, {dtype}"


def plan_row(plan: FleetPlan) -> dict[str, Any]:
    """Return one plan with the keys of the interface."""
    sharding = plan.layout.sharding
    return {
        "hardware": plan.layout.device.name,
        "gpus": plan.gpus,
        "replicas": plan.replicas,
        "spare_replicas": plan.spare_replicas,
        "tensor_parallel": int(sharding.tensor),
        "pipeline_parallel": int(sharding.pipeline),
        "expert_parallel": int(sharding.expert),
        "data_parallel": int(sharding.data),
        "weight_dtype": plan.weight_dtype,
        "kv_dtype": plan.layout.kv_format,
        "concurrency_per_replica": plan.concurrency_per_replica,
        "request_rate_per_replica": plan.request_rate_per_replica,
        "request_rate_limit_per_replica": plan.request_rate_limit_per_replica,
        "ttft_s": asdict(plan.ttft_s),
        "tpot_s": asdict(plan.tpot_s),
        "e2e_s": asdict(plan.e2e_s),
        "slo_met_probability": plan.slo_met_probability,
        "usd_per_hour": plan.usd_per_hour,
        "usd_per_month": plan.usd_per_month,
        "usd_per_million_output_tokens": plan.usd_per_million_output_tokens,
        "usd_per_million_tokens": plan.usd_per_million_tokens,
        "watts": plan.watts,
        "bottleneck": plan.bottleneck,
        "label": plan.label,
        "kv_cache_tokens": plan.kv_cache_tokens,
        "checked": plan.checked,
    }


def decision(asked: AskedFleet, answer: FleetAnswer) -> str:
    """Return the one sentence that a reader wants."""
    plan = answer.chosen
    if plan is None:
        return f"{asked.scenario.name}: no plan holds the targets on the hardware allowed"
    cost = f"${plan.usd_per_month:,.0f} a month" if plan.usd_per_month is not None else "price unknown"
    spare = f", {plan.spare_replicas} of them spare" if plan.spare_replicas else ""
    return (
        f"{asked.scenario.name}: {plan.gpus} x {plan.layout.device.name} ({plan.replicas} replicas of "
        f"{plan.layout.devices}{spare}; {layout_text(plan)}), {cost}"
    )


def relaxation_text(relaxation: Relaxation) -> str:
    """Return the change to one target that would let a plan through."""
    layout = relaxation.layout
    return (
        f"relax {relaxation.target} from {relaxation.limit_s:g} s to {relaxation.needed_s:.3g} s: "
        f"{layout.devices} x {layout.device.name} a replica would do"
    )


def fleet_answer(asked: AskedFleet, answer: FleetAnswer, over_time: OverTime | None = None) -> Answer:
    """Return the plans, cheapest first, and the rejections by reason; exit code 4 where nothing is feasible."""
    rows = [plan_row(plan) for plan in answer.plans]
    shown = [{**row, "plan": layout_text(plan)} for row, plan in zip(rows, answer.plans, strict=True)]
    rejected = [asdict(item) for item in answer.rejected]
    tables = [Table(shown, title="Plans, cheapest first", shown=_SHOWN, titles=_TITLES)] if shown else []
    tables.append(Table(rejected, title=f"Rejected, of {answer.evaluated} candidates"))
    unsure = {
        f"{plan.layout.device.name}: efficiencies of another device, nothing was measured on this one"
        for plan in answer.plans
        if plan.label == "assumed"
    }
    chosen = plan_row(answer.chosen) if answer.chosen else None
    return Answer(
        command="fleet",
        result={
            "scenario": asked.scenario.name,
            "plans": rows,
            "rejected": rejected,
            "evaluated": answer.evaluated,
            "chosen": chosen,
            "over_time": over_time_result(over_time) if over_time else None,
            "relaxations": [
                {
                    "target": r.target,
                    "limit_s": r.limit_s,
                    "needed_s": r.needed_s,
                    "hardware": r.layout.device.name,
                }
                for r in answer.relaxations
            ],
        },
        tables=(*tables, *(over_time_tables(over_time) if over_time else ())),
        headline=decision(asked, answer),
        closing=tuple(relaxation_text(item) for item in answer.relaxations),
        assumptions=(*asked.assumptions, *(over_time_assumptions(over_time) if over_time else ())),
        warnings=(*asked.warnings, *sorted(unsure)),
        exit_code=0 if answer.plans else 4,
    )
