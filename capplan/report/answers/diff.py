"""What `capplan diff` shows: what it costs and how sure it is before and after, and the inputs that changed."""

from collections.abc import Mapping
from typing import Any

from capplan.questions.difference import Change, Side, changes
from capplan.report.answer import Answer, Table
from capplan.report.screen_units import is_number, screen_of, shown_money, shown_number

_PLAN = (
    "hardware", "replicas", "spare_replicas", "gpus_per_replica", "tensor_parallel", "pipeline_parallel", "expert_parallel",
    "data_parallel", "weight_dtype", "kv_dtype", "draft_tokens", "usd_per_gpu_hour",
    *(
        f"pools.{pool}.{key}"
        for pool in ("prefill", "decode")
        for key in ("hardware", "replicas", "gpus_per_replica", "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel")
    ),
)  # fmt: skip
"""Keys of a plan that are shown only where they differ."""
_RESULTS = {
    "gpus": "gpus",
    "usd_per_month": "usd_per_month",
    "usd_per_month_low": "usd_per_month_low",
    "usd_per_month_high": "usd_per_month_high",
    "usd_per_million_output_tokens_at_mean": "usd_per_million_output_tokens_at_mean",
    "ttft_s.p95": "ttft_p95_s",
    "tpot_s.p95": "tpot_p95_s",
    "slo_met_probability": "confidence",
}
"""Keys of a plan that are always shown -> their names here."""
_HEADINGS = {
    "confidence": "SLO attainment (%)",
    "usd_per_month_low": "$/month at best",
    "usd_per_month_high": "$/month at worst",
}


def diff_answer(before: Side, after: Side) -> Answer:
    """Return what changed; exit code 4 where no plan meets the targets afterwards."""
    found = changes(before, after)
    plan = {name: _pair(before, after, name) for name in _PLAN}
    plan["order"] = {"before": _ordered(before.chosen), "after": _ordered(after.chosen)}
    plan = {name: pair for name, pair in plan.items() if "." not in name or any(pair.values())}
    results = {name: _pair(before, after, key) for key, name in _RESULTS.items()}
    moved = {name: pair for name, pair in plan.items() if pair["before"] != pair["after"]}
    known = set(before.assumptions)
    return Answer(
        command="diff",
        result={
            "before": {"file": str(before.path), "scenario": before.inputs["content"].get("name")},
            "after": {"file": str(after.path), "scenario": after.inputs["content"].get("name")},
            "changes": [{"path": c.path, "before": c.before, "after": c.after} for c in found],
            "plan": plan,
            **results,
        },
        tables=tuple(
            table
            for table in (
                Table(
                    [_row(name, pair) for name, pair in (*results.items(), *moved.items())], title="The plan"
                ),
                Table([_changed(change) for change in found], title="Inputs"),
            )
            if table.rows
        ),
        csv_rows=[
            *({"path": c.path, "before": c.before, "after": c.after} for c in found),
            *({"path": f"plan.{name}", **pair} for name, pair in (*results.items(), *plan.items())),
        ],
        headline=_headline(before, after, results),
        closing=(
            "before: " + _named(before),
            "after: " + _named(after),
        ),
        assumptions=tuple(item for item in after.assumptions if item not in known),
        warnings=tuple(dict.fromkeys((*before.warnings, *after.warnings))),
        exit_code=4 if after.chosen is None else 0,
    )


def _ordered(chosen: Mapping[str, Any] | None) -> str | None:
    """Return the machines of a plan, as an order names them; None without a plan, and if GPUs are bought by the piece."""
    lines = ((chosen or {}).get("order") or {}).get("machines", ())
    return ", ".join(f"{line['count']} x {line['sku']}" for line in lines if line["sku"]) or None


def _named(side: Side) -> str:
    return f"{side.inputs['content'].get('name')} ({side.path}), by capplan {side.version}"


def _pair(before: Side, after: Side, key: str) -> dict[str, Any]:
    return {"before": _value(before.chosen, key), "after": _value(after.chosen, key)}


def _value(chosen: Mapping[str, Any] | None, key: str) -> Any:
    value: Any = chosen
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _row(name: str, pair: Mapping[str, Any]) -> dict[str, str]:
    """Return a quantity of both plans as text, with its change: absolute, and as a share of what it was."""
    values = [pair["before"], pair["after"]]
    numbers = [float(value) for value in values if is_number(value)]
    screen = screen_of("confidence_fraction" if name == "confidence" else name, numbers)
    row = {"quantity": _HEADINGS.get(name) or screen.column(numbers=bool(numbers))}
    row |= {side: _text(pair[side], screen.unit, screen.factor) for side in ("before", "after")}
    if len(numbers) < 2:
        return {**row, "change": "", "share": ""}
    change = numbers[1] - numbers[0]
    sign = "+" if change > 0 else "-" if change < 0 else ""
    size = abs(change) if isinstance(pair["after"], float) else round(abs(change))
    return {
        **row,
        "change": sign + _text(size, screen.unit, screen.factor) if change else "-",
        "share": f"{change / numbers[0]:+.1%}" if change and numbers[0] and name != "confidence" else "",
    }


def _text(value: Any, unit: str, factor: float) -> str:
    if not is_number(value):
        return "-" if value is None else str(value)
    return shown_money(value, unit) if unit.startswith("$") else shown_number(value, factor)


def _changed(change: Change) -> dict[str, str]:
    return {"key": change.path, "before": _written(change.before), "after": _written(change.after)}


def _written(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join("-" if item is None else str(item) for item in value)
    return str(value)


def _headline(before: Side, after: Side, results: Mapping[str, Mapping[str, Any]]) -> str:
    name = after.inputs["content"].get("name")
    if after.chosen is None:
        return f"{name}: no plan meets the targets afterwards"
    if before.chosen is None:
        return f"{name}: a plan meets the targets now: {_fleet(after.chosen)}"
    if before.chosen == after.chosen:
        return f"{name}: the plan stays {_fleet(after.chosen)}"
    return (
        f"{name}: {_cost_change(results['usd_per_month'])}; {_fleet(before.chosen)} -> {_fleet(after.chosen)}"
    )


def _cost_change(usd: Mapping[str, Any]) -> str:
    if usd["before"] is None or usd["after"] is None:
        return "cost unknown"
    change = usd["after"] - usd["before"]
    if not change:
        return f"${usd['after']:,.0f} per month as before"
    share = f", {change / usd['before']:+.1%}" if usd["before"] else ""
    return f"{'+' if change > 0 else '-'}${abs(change):,.0f} per month (${usd['before']:,.0f} -> ${usd['after']:,.0f}{share})"


def _fleet(chosen: Mapping[str, Any]) -> str:
    return f"{chosen['gpus']} x {chosen['hardware']}"
