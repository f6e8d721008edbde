"""What `capplan explain` shows: the formula of a quantity, what went into it, and the steps before it."""

from collections.abc import Mapping
from typing import Any

from capplan.explain.printed import groups_of, is_of_another_plan, printed
from capplan.explain.record import Explained, Input, unit_of
from capplan.explain.row import Planned
from capplan.report.answer import Answer, Table
from capplan.report.answers.plan_words import purchase_text
from capplan.report.screen_units import is_number

FEW_STEPS = 4
"""Steps whose inputs are shown too; JSON has those of all."""


def explain_answer(planned: Planned, quantity: str | None) -> Answer:
    """Return a number explained, or the list of numbers."""
    asked, fleet = planned.asked, purchase_text(planned.plan)
    name = asked.scenario.name
    explained = printed(planned, quantity)
    if isinstance(explained, dict):
        return _list_answer(planned, explained, quantity)
    of_fleet = "" if is_of_another_plan(explained.quantity) else f"of {fleet}; "
    inputs = [_input_row(each) for each in explained.inputs]
    steps = [
        {**_listed(step), "inputs": [_input_row(each) for each in step.inputs]} for step in explained.steps
    ]
    tables = [Table([_exact(row) for row in inputs], title="Inputs")]
    if steps:
        shown = [
            _exact({key: row[key] for key in ("quantity", "value", "unit", "formula", "label")})
            for row in steps
        ]
        tables.append(Table(shown, title="Steps before it"))
    if 0 < len(steps) <= FEW_STEPS:
        below = [{"quantity": step["quantity"], **row} for step in steps for row in step["inputs"]]
        tables.append(Table([_exact(row) for row in below], title="Inputs of these steps"))
    unit = "" if explained.unit == "-" else f" {explained.unit}"
    return Answer(
        command="explain",
        result={**_listed(explained), "inputs": inputs, "steps": steps},
        tables=tuple(tables),
        csv_rows=[{"kind": "result", **_listed(explained)}, *({"kind": "input", **row} for row in inputs)],
        headline=f"{name}: {explained.quantity} = {_digits(explained.value)}{unit} ({explained.label})",
        closing=(f"formula: {explained.formula}", f"{of_fleet}more: {explained.page}"),
        assumptions=asked.assumptions,
        warnings=asked.warnings,
    )


def _list_answer(planned: Planned, numbers: Mapping[str, float], path: str | None) -> Answer:
    asked = planned.asked
    rows = [
        {"quantity": quantity, "value": value, "unit": unit_of(quantity)}
        for quantity, value in numbers.items()
    ]
    groups = groups_of(planned)
    return Answer(
        command="explain",
        result={"quantities": rows, "groups": list(groups)},
        tables=(Table([_exact(row) for row in rows], title="What can be explained"),),
        csv_rows=rows,
        headline=f"{asked.scenario.name}: {purchase_text(planned.plan)}",
        closing=() if path else (f"beside the plan, lists of their own: {', '.join(groups)}",),
        assumptions=asked.assumptions,
        warnings=asked.warnings,
    )


def _listed(explained: Explained) -> dict[str, Any]:
    return {
        "quantity": explained.quantity,
        "value": explained.value,
        "unit": explained.unit,
        "formula": explained.formula,
        "label": explained.label,
        "page": explained.page,
    }


def _input_row(each: Input) -> dict[str, Any]:
    return {
        "symbol": each.symbol,
        "name": each.name,
        "value": each.value,
        "unit": each.unit,
        "label": each.label,
        "source": each.source,
    }


def _exact(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose values are text with all their digits, in base units."""
    return {**row, "value": _digits(row["value"])}


def _digits(value: Any) -> str:
    return f"{value:.12g}" if is_number(value) else "-"
