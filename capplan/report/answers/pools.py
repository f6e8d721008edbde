"""What `capplan fleet` shows of separate prefill and decode pools, next to identical replicas."""

from dataclasses import asdict
from typing import Any

from capplan.fleet.plan import FleetAnswer, Group, Plan, PoolsSearch, cost_of
from capplan.questions.plans.plan_row import plan_row
from capplan.report.answer import Table

_TITLES = {
    "way": "",
    "bytes_per_request": "each prompt",
    "bytes_per_s": "all prompts",
}
_SHOWN = (
    "way", "prefill", "decode", "gpus", "usd_per_month", "ttft_s.p95", "tpot_s.p95", "prefill_busy_fraction",
    "decode_busy_fraction", "slo_met_probability",
)  # fmt: skip
_SENT = (
    "way",
    "link",
    "bytes_per_request",
    "transfer_s",
    "bytes_per_s",
    "prefill_load_fraction",
    "decode_load_fraction",
)


def pool_text(pool: Group) -> str:
    """Return one pool as short text, such as '4 x 2 h200-sxm (TP2, fp8)', spares included."""
    layout = pool.layout
    return f"{pool.replicas} x {layout.devices} {layout.device.name} ({layout.in_words(pool.weight_dtype)})"


def pools_text(plan: Plan) -> str:
    """Return what to buy for a plan."""
    prefill, decode = plan.groups
    spare = prefill.spare_replicas
    spares = f", {spare} of each spare" if spare else ""
    return f"{plan.gpus} GPUs, prefill on {pool_text(prefill)} and decode on {pool_text(decode)}{spares}"


def pools_result(answer: FleetAnswer) -> dict[str, Any] | None:
    """Return the plans with separate pools and why there are no others; None where none were asked for."""
    if answer.pools is None:
        return None
    return {
        "recommended": answer.chosen is not None and answer.chosen.has_pools,
        "plans": [plan_row(plan) for plan in answer.with_pools],
        "rejected": [asdict(item) for item in answer.pools.rejected],
        "evaluated": answer.pools.evaluated,
        "simulated_pairs": answer.pools.simulated_pairs,
        "smaller_chunks": [
            {
                "max_num_batched_tokens": item.max_num_batched_tokens,
                "gpus": item.plan.gpus,
                "usd_per_month": item.plan.usd_per_month,
            }
            for item in answer.pools.chunked
        ],
    }


def pools_tables(answer: FleetAnswer) -> list[Table]:
    """Return the plans of either way, cheapest first, what their links carry, and why other devices have no plan."""
    if answer.pools is None:
        return []
    rows = [
        {
            **plan_row(plan),
            "way": f"apart {place}",
            **{group.role: pool_text(group) for group in plan.groups},
            **{f"{group.role}_busy_fraction": group.busy_fraction for group in plan.groups},
        }
        for place, plan in enumerate(answer.with_pools, start=1)
    ]
    sent = [{"way": row["way"], **row["transfer"]} for row in rows]
    if answer.together is not None:
        rows.append(_together(answer.together, "together"))
    rows += [
        _together(item.plan, f"together, {item.max_num_batched_tokens:,} tokens a step")
        for item in answer.pools.chunked
    ]
    no_plan = [
        asdict(item) for item in answer.pools.rejected if " + " in item.hardware or not answer.with_pools
    ]
    return [
        Table(
            rows,
            title="Disaggregated prefill and decode, against aggregated replicas",
            shown=_SHOWN,
            titles=_TITLES,
        ),
        Table(
            sent, title="KV caches sent at the peak, and how busy the links are", shown=_SENT, titles=_TITLES
        ),
        Table(
            no_plan,
            title="No plan with separate pools",
            shown=("hardware", "reason", "count"),
            titles={"count": "candidates"},
        ),
    ]


def _together(plan: Plan, way: str) -> dict[str, Any]:
    layout = plan.single.layout
    both = f"{plan.replicas} x {layout.devices} {layout.device.name} ({layout.in_words(plan.single.weight_dtype)})"
    return {
        "way": way,
        "prefill": both,
        "decode": "the same",
        "gpus": plan.gpus,
        "usd_per_month": plan.usd_per_month,
        "ttft_s": asdict(plan.ttft_s),
        "tpot_s": asdict(plan.tpot_s),
        "prefill_busy_fraction": None,
        "decode_busy_fraction": None,
        "slo_met_probability": plan.slo_met_probability,
    }


def pools_closing(answer: FleetAnswer) -> tuple[str, ...]:
    """Return whether separate pools pay."""
    if answer.pools is None:
        return ()
    apart, together = next(iter(answer.with_pools), None), answer.together
    if apart is None:
        return ("separate pools: no plan meets the targets",)
    if together is None:
        return (f"recommended: {pools_text(apart)}",)
    which = "recommended" if answer.chosen == apart else "not recommended"
    said = f"separate pools are {which}: {pools_text(apart)}, {_compared(apart, together)}"
    return (said, *_cheaper_chunks(answer.pools, min(cost_of(apart), cost_of(together))))


def _cheaper_chunks(pools: PoolsSearch, cost: float) -> tuple[str, ...]:
    """Return which smaller steps would cost less than either way."""
    return tuple(
        f"cheaper than both: identical replicas with --set max_num_batched_tokens={item.max_num_batched_tokens}"
        for item in pools.chunked
        if cost_of(item.plan) < cost
    )


def _compared(apart: Plan, together: Plan) -> str:
    if apart.usd_per_month is None or together.usd_per_month is None:
        return f"against {together.gpus} GPUs together"
    more = apart.usd_per_month - together.usd_per_month
    part = f"{abs(more) / together.usd_per_month:.0%} " if together.usd_per_month else ""
    words = f"{part}{'more' if more > 0.0 else 'less'} than" if more else "as much as"
    return f"${apart.usd_per_month:,.0f} per month, {words} ${together.usd_per_month:,.0f} together"
