"""What `capplan explain` shows: the formula of a quantity, what went into it, and the steps before it."""

from typing import Any

from capplan.explain.pools import PoolsSubject
from capplan.explain.quantities import explained_quantity, quantities
from capplan.explain.record import Explained, Input, unit_of
from capplan.explain.subject import Subject
from capplan.report.answer import Answer, Table
from capplan.report.answers.plan_words import purchase_text
from capplan.report.screen_units import is_number


def explain_answer(of: Subject | PoolsSubject, quantity: str | None) -> Answer:
    """Return a quantity explained, or the list of quantities."""
    asked, fleet = of.asked, purchase_text(of.plan)
    name = asked.scenario.name
    if quantity is None:
        rows = [
            {"quantity": name, "value": value, "unit": unit_of(name)}
            for name, value in quantities(of).items()
        ]
        return Answer(
            command="explain",
            result={"quantities": rows},
            tables=(Table([_exact(row) for row in rows], title="What can be explained"),),
            csv_rows=rows,
            headline=f"{name}: {fleet}",
            assumptions=asked.assumptions,
            warnings=asked.warnings,
        )
    explained = explained_quantity(of, quantity)
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
    unit = "" if explained.unit == "-" else f" {explained.unit}"
    return Answer(
        command="explain",
        result={**_listed(explained), "inputs": inputs, "steps": steps},
        tables=tuple(tables),
        csv_rows=[{"kind": "result", **_listed(explained)}, *({"kind": "input", **row} for row in inputs)],
        headline=f"{name}: {explained.quantity} = {_digits(explained.value)}{unit} ({explained.label})",
        closing=(f"formula: {explained.formula}", f"of {fleet}; more: {explained.page}"),
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
