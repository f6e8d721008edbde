"""What `capplan fleet` shows: the decision, the plans, and what was turned down."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from capplan.assumption import Assumption
from capplan.fleet.over_time import OverTime
from capplan.fleet.plan import FleetAnswer, FleetPlan, Relaxation
from capplan.fleet.price import PriceChoice
from capplan.questions.fleet import AskedFleet
from capplan.report.answer import Answer, Table
from capplan.report.answers.over_time import over_time_assumptions, over_time_result, over_time_tables

_SHOWN = (
    "hardware", "plan", "replicas", "gpus_per_replica", "gpus", "usd_per_gpu_hour", "usd_per_hour", "usd_per_month",
    "usd_per_million_output_tokens", "ttft_s.p95", "tpot_s.p95", "slo_met_probability",
)  # fmt: skip
_POWERED = (*_SHOWN[:6], "watts", "energy_usd_per_hour", *_SHOWN[6:])
"""Where electricity is paid on top of the price."""
_TITLES = {
    "plan": "each replica",
    "gpus_per_replica": "GPUs each",
    "usd_per_gpu_hour": "",
    "usd_per_hour": "",
    "usd_per_month": "",
    "watts": "power",
    "energy_usd_per_hour": "power",
    "usd_per_million_output_tokens": "",
    "slo_met_probability": "targets met",
}
_PREDICTED = ("ttft_s.p95", "tpot_s.p95", "slo_met_probability")
"""Columns that rest on what kernels reach; marked where that was taken from another device."""
_REJECTED = ("hardware", "reason", "count")
_TOKENS_READING = "$/Mtok out: per million output tokens with the traffic of the scenario at all hours; targets met: the chance that all hold"


def _reading(prices: PriceChoice) -> tuple[str, ...]:
    """Return how to read the plans."""
    money = "GPUs x $/GPU/h = $/h"
    if prices.usd_per_kwh is not None:
        money = (
            f"power (W) / 1000 x {prices.facility_ratio:g} (facility ratio) x {prices.usd_per_kwh:g} $/kWh = power ($/h); "
            "GPUs x $/GPU/h + power = $/h"
        )
    return f"replicas (spares included) x GPUs each = GPUs; {money}; $/h x 730 = $/month", _TOKENS_READING


def layout_text(plan: FleetPlan) -> str:
    """Return the parallelism and dtypes of one replica in a few words."""
    return plan.layout.in_words(plan.weight_dtype)


def plan_row(plan: FleetPlan) -> dict[str, Any]:
    """Return one plan with the keys of the interface."""
    sharding = plan.layout.sharding
    return {
        "hardware": plan.layout.device.name,
        "gpus": plan.gpus,
        "gpus_per_replica": plan.layout.devices,
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
        "usd_per_gpu_hour": None if plan.price is None else plan.price.usd_per_hour,
        "energy_usd_per_hour": plan.energy_usd_per_hour,
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
    targets = "sized for throughput alone"
    if asked.scenario.slo.targets:
        targets = f"{sure(plan.slo_met_probability)} sure to meet its targets"
    return f"{asked.scenario.name}: {purchase_text(plan)}, {cost}, {targets}"


def purchase_text(plan: FleetPlan) -> str:
    """Return how many of which device, and how they are grouped."""
    replicas = f"{plan.replicas} {'replica' if plan.replicas == 1 else 'replicas'}"
    each = f"{plan.layout.devices} {'GPU' if plan.layout.devices == 1 else 'GPUs'}"
    spare = f", {plan.spare_replicas} of them spare" if plan.spare_replicas else ""
    return f"{plan.gpus} x {plan.layout.device.name} ({replicas} of {each}{spare}; {layout_text(plan)})"


def sure(probability: float) -> str:
    """Format a probability for people: no prediction is certain.

    Examples
    --------
    >>> sure(0.616), sure(0.9999), sure(0.0001)
    ('62 %', 'over 99 %', 'under 1 %')
    """
    if probability > 0.99:
        return "over 99 %"
    return "under 1 %" if probability < 0.01 else f"{100.0 * probability:.0f} %"


def relaxation_text(relaxation: Relaxation) -> str:
    """Return the change to one target that would let a plan through."""
    layout = relaxation.layout
    return (
        f"relax {relaxation.target} from {relaxation.limit_s:g} s to {relaxation.needed_s:.3g} s: "
        f"{layout.devices} x {layout.device.name} a replica would do"
    )


def kernel_assumptions(plans: Sequence[FleetPlan]) -> tuple[Assumption, ...]:
    """Return which devices of the plans borrow what their kernels reach from another one."""
    names = dict.fromkeys(plan.layout.device.name for plan in plans if plan.label == "assumed")
    return tuple(
        Assumption(
            f"kernel efficiencies of {name} are borrowed from a related device",
            "calibration, a file of capplan calibrate",
        )
        for name in names
    )


def rejected_text(answer: FleetAnswer) -> str:
    """Return how many candidates were turned down, and what became of the others, so that the counts add up."""
    turned_down = sum(item.count for item in answer.rejected)
    title = f"Rejected: {turned_down:,} of {answer.evaluated:,} candidates (every layout at a range of loads)"
    left = answer.evaluated - turned_down
    return (
        f"{title}; the other {left:,} meet the targets, at a smaller load or a higher cost" if left else title
    )


def fleet_answer(asked: AskedFleet, answer: FleetAnswer, over_time: OverTime | None = None) -> Answer:
    """Return the plans, cheapest first, and the rejections by reason; exit code 4 where nothing is feasible."""
    rows = [plan_row(plan) for plan in answer.plans]
    shown = [{**row, "plan": layout_text(plan)} for row, plan in zip(rows, answer.plans, strict=True)]
    rejected = [asdict(item) for item in answer.rejected]
    assumed = frozenset(
        (i, name) for i, plan in enumerate(answer.plans) if plan.label == "assumed" for name in _PREDICTED
    )
    columns: tuple[str, ...] = _POWERED if asked.scenario.prices.usd_per_kwh is not None else _SHOWN
    columns = columns if asked.scenario.slo.targets else columns[:-1]
    tables = [Table(shown, title="Plans, cheapest first", shown=columns, titles=_TITLES, assumed=assumed)]
    if rejected:
        tables.append(
            Table(rejected, title=rejected_text(answer), shown=_REJECTED, titles={"count": "candidates"})
        )
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
        tables=(
            *(table for table in tables if table.rows),
            *(over_time_tables(over_time) if over_time else ()),
        ),
        headline=decision(asked, answer),
        closing=(
            *(_reading(asked.scenario.prices) if rows else ()),
            *(relaxation_text(item) for item in answer.relaxations),
        ),
        assumptions=(
            *asked.assumptions,
            *kernel_assumptions(answer.plans),
            *(over_time_assumptions(over_time) if over_time else ()),
        ),
        warnings=asked.warnings,
        exit_code=0 if answer.plans else 4,
    )
